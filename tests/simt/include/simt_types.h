/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's keywords and vector types, as far as kernels here use them. */
#ifndef MOED_TESTS_SIMT_TYPES_H
#define MOED_TESTS_SIMT_TYPES_H

#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* Aligned as the hardware wants them; UBSan's alignment check finds a pointer that is not. */
#define SIMT_VEC2(T, name) struct alignas(2 * sizeof(T)) name { T x, y; }; static inline name make_##name(T x, T y) { return { x, y }; }
#define SIMT_VEC4(T, name) struct alignas(4 * sizeof(T)) name { T x, y, z, w; }; static inline name make_##name(T x, T y, T z, T w) { return { x, y, z, w }; }
SIMT_VEC2(float, float2)
SIMT_VEC4(float, float4)
SIMT_VEC2(int, int2)
SIMT_VEC4(int, int4)
SIMT_VEC2(unsigned, uint2)
SIMT_VEC4(unsigned, uint4)
SIMT_VEC4(signed char, char4)
SIMT_VEC4(unsigned char, uchar4)
#undef SIMT_VEC2
#undef SIMT_VEC4

#endif
