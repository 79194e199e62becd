/* SPDX-License-Identifier: Apache-2.0
 *
 * exp for x <= 0 in plain C that compilers vectorise at any instruction set: no branch, no call, no table, and
 * the same bits on every CPU. exp(x) = 2^n * P(r), n = round(x / ln 2), |r| <= ln 2 / 2, P of degree 7.
 * Error: at most 1 ulp on [-87, 0] (every 13th float tried: 0.999); below -87, and for -inf, the result is 0.
 * The argument must not be positive or NaN. */
#ifndef MOED_KERNELS_REF_FAST_EXP_H
#define MOED_KERNELS_REF_FAST_EXP_H

#include <stdint.h>

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
