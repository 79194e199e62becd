/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding. Everything that depends on the position is computed in double and rounded once, so
 * the table is right to 1 ulp of float for the (float) frequencies at any position; an accumulated float angle
 * would be off by 1e-2 rad at position 100k. What the float frequencies themselves lose against real numbers is
 * at most pos * inv_freq * 2^-24 rad (checkpoints were trained with float frequencies too).
 *
 * YaRN (Peng et al. 2023, section 3): dims that turn more than BETA_FAST times within the original context keep
 * their frequency, dims that turn less than BETA_SLOW times are interpolated by 1 / factor, linear ramp between. */
#include "kernels/rope.h"

#include <math.h>
#include <stddef.h>

static const double BETA_FAST = 32, BETA_SLOW = 1;

/* The (fractional) pair index whose frequency makes n_turns turns within the original context. */
static double yarn_pair_of_turns(const struct kern_rope_params *p, double n_turns) {
    return p->n_dims * log(p->ctx_orig / (n_turns * 2 * M_PI)) / (2 * log((double)p->theta));
}

/* 1 = keep the frequency, 0 = interpolate it. */
static double yarn_keep_share(double pair, double low, double high) {
    double ramp = (pair - low) / fmax(0.001, high - low);
    return 1 - fmin(1, fmax(0, ramp));
}

void kern_rope_init(const struct kern_rope_params *p, float *inv_freq, float *mscale) {
    double factor = p->factor > 0 ? (double)p->factor : 1;
    double low = 0, high = 0;
    if (p->yarn) {
        low = fmax(0, floor(yarn_pair_of_turns(p, BETA_FAST)));
        high = fmin(p->n_dims - 1.0, ceil(yarn_pair_of_turns(p, BETA_SLOW)));
    }
    for (uint32_t i = 0; i < p->n_dims / 2; i++) {
        double freq = pow((double)p->theta, -2.0 * i / p->n_dims);
        if (p->factors) freq /= (double)p->factors[i];
        double keep = p->yarn ? yarn_keep_share(i, low, high) : 0;
        inv_freq[i] = (float)(freq * keep + freq / factor * (1 - keep));
    }
    *mscale = p->yarn ? (float)((double)p->attn_factor * (1 + 0.1 * log(factor))) : 1.0f;
}

void kern_rope_table(const struct kern_rope *r, uint32_t pos, float *cs) {
    uint32_t half = r->n_dims / 2;
    for (uint32_t i = 0; i < half; i++) {
        double s, c;
        sincos((double)pos * (double)r->inv_freq[i], &s, &c); /* exact product below position 2^29 */
        cs[i] = (float)(c * (double)r->mscale);
        cs[half + i] = (float)(s * (double)r->mscale);
    }
}

static void rotate_halves(const float *cs, uint32_t half, float *x) {
    for (uint32_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cs[i] - b * cs[half + i];
        x[half + i] = a * cs[half + i] + b * cs[i];
    }
}

static void rotate_pairs(const float *cs, uint32_t half, float *x) {
    for (uint32_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cs[i] - b * cs[half + i];
        x[2 * i + 1] = a * cs[half + i] + b * cs[i];
    }
}

void kern_rope_apply(const struct kern_rope *r, const float *cs, float *x, uint32_t n_heads) {
    for (uint32_t h = 0; h < n_heads; h++, x += r->head_dim) {
        if (r->neox)
            rotate_halves(cs, r->n_dims / 2, x);
        else
            rotate_pairs(cs, r->n_dims / 2, x);
    }
}
