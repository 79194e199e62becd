/* SPDX-License-Identifier: Apache-2.0
 *
 * The two exponentials, in plain C and with the same bits on every CPU. Both are 2^n * P(r) with n = round(x / ln 2),
 * |r| <= ln 2 / 2, P of degree 7 (Taylor).
 *   kern__exp       what the vector levels compute (vec_*.h) in attention and SwiGLU, with fused multiply-add
 *   kern__fast_exp  for x <= 0 without it, so that compilers vectorise it at any instruction set: sampling and routing */
#ifndef MOED_KERNELS_REF_EXP_H
#define MOED_KERNELS_REF_EXP_H

#include <math.h>
#include <stdint.h>

/* At most 1 ulp. Below -87.336544, where the result would be subnormal, 0; above 88.722839 infinity; NaN stays NaN. */
static inline float kern__exp(float x) {
    const float round = 0x1.8p23f; /* adding and taking it away rounds to an integer */
    union { uint32_t u; float f; } s1, s2;
    if (x < -87.336544f) return 0;
    float c = x > 89 ? 89 : x;
    float n = c * 0x1.715476p0f + round - round;
    float r = fmaf(-n, 0x1.62e4p-1f, c); /* exact: ln 2 in two parts */
    r = fmaf(-n, 0x1.7f7d1cp-20f, r);
    float q = 0x1.a01a02p-13f;
    q = fmaf(q, r, 0x1.6c16c2p-10f);
    q = fmaf(q, r, 0x1.111112p-7f);
    q = fmaf(q, r, 0x1.555556p-5f);
    q = fmaf(q, r, 0x1.555556p-3f);
    q = fmaf(q, r, 0.5f);
    q = fmaf(q, r * r, r);
    if (isnan(q)) return q;
    int32_t i = (int32_t)n, half = i / 2; /* in two steps: 128 is no float exponent */
    s1.u = (uint32_t)(half + 127) << 23;
    s2.u = (uint32_t)(i - half + 127) << 23;
    return (q + 1) * s1.f * s2.f;
}

/* Error: at most 1 ulp on [-87, 0] (every 13th float tried: 0.999); below -87, and for -inf, the result is 0.
 * The argument must not be positive or NaN. */
static inline float kern__fast_exp(float x) {
    const float round = 0x1.8p23f; /* adding it leaves the nearest integer in the low mantissa bits */
    const uint32_t floor = 0xC2AE0000u; /* -87.0f. Compared as bits: a float compare grows a branch in gcc */
    union { float f; uint32_t u; } in = { x }, y, n, scale, e;
    y.u = in.u < floor ? in.u : floor;
    n.f = y.f * 0x1.715476p0f + round;
    float r = y.f - (n.f - round) * 0x1.62e4p-1f;      /* ln 2 in two parts: the first product is exact */
    r -= (n.f - round) * 0x1.7f7d1cp-20f;
    float q = 0x1.a01a02p-13f;
    q = q * r + 0x1.6c16c2p-10f;
    q = q * r + 0x1.111112p-7f;
    q = q * r + 0x1.555556p-5f;
    q = q * r + 0x1.555556p-3f;
    q = q * r + 0.5f;
    q = q * (r * r) + r;
    scale.u = (n.u + 127) << 23; /* the low byte of n.u is n; the rest is shifted out */
    e.f = q * scale.f + scale.f;
    e.u &= (uint32_t)(in.u > floor) - 1;
    return e.f;
}

#endif
