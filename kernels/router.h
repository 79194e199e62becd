/* SPDX-License-Identifier: Apache-2.0
 *
 * Expert choice for one token, all router forms in one function (design: docs/ARCHITECTURE.md, "Routing").
 *   probs = softmax | sigmoid | identity | sqrt(softplus) of the logits
 *   ids   = top-k of probs + bias, ties to the lower index, NaN last
 *   w     = probs[ids] (softmax over the k logits for KERN_GATE_SOFTMAX_WEIGHT), renormalised and scaled on demand
 *
 * Two ways to deviate from the model, both off when 0:
 *   prefer  selection scores of preferred experts gain margin * |the weakest chosen score| (logits of KERN_GATE_SOFTMAX_WEIGHT:
 *           margin). A preferred expert among the k best stays; one that comes in was at most the gain below the weakest,
 *           and whoever leaves for it at most the gain above. Weights are of the true scores.
 *   enough  when the first (k + 1) / 2 slots carry this share of the chosen weights, the others are empty: id -1, w 0; renormalised
 *           weights are so among those that stay. */
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
    const uint8_t *prefer;            /* NULL, or [n_experts]: not 0 = preferred        */
    float margin;                     /* >= 0                                           */
    float enough;                     /* 0 = every slot is filled                       */
};

/* logits [n_experts] (overwritten as workspace) -> ids [k] by falling selection score (then empty slots), w [k]. */
void kern_route(const struct kern_router *r, float *logits, int32_t *ids, float *w);

#endif
