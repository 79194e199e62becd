/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding (Su et al. 2021), pair order NORM or NEOX, with linear and YaRN scaling (Peng et al.
 * 2023) and per-dimension frequency factors (llama-3). Frequencies are computed once; the sine and cosine of one
 * position are computed once per token and shared by all heads. */
#ifndef MOED_KERNELS_ROPE_H
#define MOED_KERNELS_ROPE_H

#include <stdbool.h>
#include <stdint.h>

struct kern_rope {
    bool neox;            /* halves instead of adjacent pairs  */
    uint32_t n_dims;      /* rotated dims of each head, even   */
    uint32_t head_dim;
    const float *inv_freq; /* [n_dims / 2], scaling included   */
    float mscale;         /* multiplies sine and cosine (YaRN attention factor), 1 otherwise */
};

struct kern_rope_params {
    uint32_t n_dims;
    float theta;
    float factor;          /* linear: position / factor; YaRN: s           */
    bool yarn;
    uint32_t ctx_orig;     /* YaRN                                         */
    float attn_factor;     /* YaRN                                         */
    const float *factors;  /* NULL, or [n_dims / 2] divisors of frequency  */
};

/* Fills inv_freq [n_dims / 2] and *mscale. */
void kern_rope_init(const struct kern_rope_params *p, float *inv_freq, float *mscale);

/* cs [n_dims]: cosines then sines of position pos. */
void kern_rope_table(const struct kern_rope *r, uint32_t pos, float *cs);

/* Rotates n_heads heads of one token in place; x [n_heads, head_dim]. */
void kern_rope_apply(const struct kern_rope *r, const float *cs, float *x, uint32_t n_heads);

#endif
