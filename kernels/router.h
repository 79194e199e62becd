/* SPDX-License-Identifier: Apache-2.0
 *
 * Expert choice for one token, all router forms in one function (design: docs/ARCHITECTURE.md, "Routing").
 *   probs = softmax | sigmoid | identity | sqrt(softplus) of the logits
 *   ids   = top-k of probs + bias, ties to the lower index, NaN last
 *   w     = probs[ids] (softmax over the k logits for KERN_GATE_SOFTMAX_WEIGHT), renormalised and scaled on demand */
#ifndef MOED_KERNELS_ROUTER_H
#define MOED_KERNELS_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

enum kern_gate { KERN_GATE_SOFTMAX = 1, KERN_GATE_SIGMOID = 2, KERN_GATE_SOFTMAX_WEIGHT = 3, KERN_GATE_SQRT_SOFTPLUS = 4 };

struct kern_router {
    enum kern_gate gate;
    uint32_t n_experts, k;            /* k <= n_experts <= 1024                         */
    uint32_t n_groups, n_groups_used; /* 0 or 1: no groups                              */
    const float *select_bias;         /* NULL, or [n_experts], for selection only       */
    bool norm;                        /* w /= max(sum w, 2^-14)                         */
    float scale;                      /* applied when neither 0 nor 1                   */
};

/* logits [n_experts] (overwritten as workspace) -> ids [k] by falling selection score, w [k]. */
void kern_route(const struct kern_router *r, float *logits, int32_t *ids, float *w);

#endif
