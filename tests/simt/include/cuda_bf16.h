/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOED_TESTS_SIMT_CUDA_BF16_H
#define MOED_TESTS_SIMT_CUDA_BF16_H

#include <cstdint>
#include <cstring>

#include "simt_types.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 v) {
    const uint32_t u = (uint32_t)v.bits << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* To nearest, ties to even; NaN to the canonical one. */
static inline __nv_bfloat16 __float2bfloat16_rn(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return { 0x7fff };
    return { (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16) };
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return { __float2bfloat16_rn(a), __float2bfloat16_rn(b) }; }

#endif
