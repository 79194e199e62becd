/* SPDX-License-Identifier: Apache-2.0
 *
 * What the x86 levels of gemm_bf16.h share. Denormals as vpdpbf16ps has them, for all other instructions of this thread:
 * operands count as 0, results become 0 (DAZ and FTZ of MXCSR, at which vpdpbf16ps does not look). And the end of the sums
 * across lanes. */
#ifndef MOED_KERNELS_CPU_GEMM_BF16_X86_H
#define MOED_KERNELS_CPU_GEMM_BF16_X86_H

#include <immintrin.h>
#include <string.h>

#include "kernels/internal.h"

KERN_INLINE unsigned flush_begin(void) {
    unsigned old = _mm_getcsr();
    _mm_setcsr(old | 0x8040);
    return old;
}

KERN_INLINE void flush_end(unsigned old) {
    _mm_setcsr(old);
}

/* y[r] = the sum of the lanes of v[r], l + 2 before l + 1, of n <= 4 rows at once; v beyond n is anything finite. */
KERN_INLINE void sum_lanes(const __m128 v[4], int n, float *y) {
    __m128 a = _mm_add_ps(_mm_movelh_ps(v[0], v[1]), _mm_movehl_ps(v[1], v[0]));
    __m128 b = _mm_add_ps(_mm_movelh_ps(v[2], v[3]), _mm_movehl_ps(v[3], v[2]));
    float sum[4];
    _mm_storeu_ps(sum, _mm_add_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xdd)));
    memcpy(y, sum, (size_t)n * sizeof *y);
}

#ifdef __AVX512F__
/* What the levels with 512-bit registers share. */
enum { WIDTH = 16 };
typedef __m512 vecf;

KERN_INLINE vecf vf_zero(void) { return _mm512_setzero_ps(); }
KERN_INLINE void vf_sums(const vecf (*acc)[1], int n, float *y) {
    __m128 v[4] = { 0 };
KERN__UNROLL
    for (int r = 0; r < n; r++) {
        __m256 a = _mm256_add_ps(_mm512_castps512_ps256(acc[r][0]), _mm512_extractf32x8_ps(acc[r][0], 1));
        v[r] = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    }
    sum_lanes(v, n, y);
}
#endif

#endif
