/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOED_TESTS_SIMT_CUDA_FP16_H
#define MOED_TESTS_SIMT_CUDA_FP16_H

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simt_types.h"

struct __half {
    uint16_t bits;
};

static inline float __half2float(__half v) {
    const uint32_t sign = (uint32_t)(v.bits & 0x8000) << 16, e = v.bits >> 10 & 31, m = v.bits & 1023;
    if (e == 0) return (sign ? -1.0f : 1.0f) * ldexpf((float)m, -24);
    const uint32_t u = sign | (e == 31 ? 0x7f800000 : (e + 112) << 23) | m << 13;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* To nearest, ties to even. */
static inline __half __float2half_rn(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000) return { 0x7fff };
    if (u >= 0x47800000) return { (uint16_t)(sign | 0x7c00) };
    if (u < 0x38800000) return { (uint16_t)(sign | (uint16_t)rintf(ldexpf(fabsf(f), 24))) };
    const uint32_t r = u + 0xfff + (u >> 13 & 1);
    return { (uint16_t)(sign | (uint16_t)((r - 0x38000000) >> 13)) };
}

#endif
