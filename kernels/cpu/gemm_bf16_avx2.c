/* SPDX-License-Identifier: Apache-2.0
 *
 * BF16 weights times bf16 activations for AVX2 with FMA: a pair is two multiply-adds. */
#include "kernels/cpu/gemm_bf16_x86.h"

enum { WIDTH = 8, BF16_ROWS = 2, BF16_TOKENS = 2 };
typedef __m256 vecf;
typedef struct {
    __m256 even, odd;
} pairs;

KERN_INLINE vecf vf_zero(void) { return _mm256_setzero_ps(); }
KERN_INLINE pairs pairs_load(const uint16_t *p) {
    __m256i v = _mm256_loadu_si256((const __m256i *)p);
    return (pairs){ _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)),
                    _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-0x10000))) };
}
KERN_INLINE vecf pairs_madd(vecf acc, pairs w, pairs x) {
    return _mm256_fmadd_ps(w.even, x.even, _mm256_fmadd_ps(w.odd, x.odd, acc));
}
KERN_INLINE void vf_sums(const vecf (*acc)[2], int n, float *y) {
    __m128 v[4] = { 0 };
KERN__UNROLL
    for (int r = 0; r < n; r++) {
        __m256 a = _mm256_add_ps(acc[r][0], acc[r][1]);
        v[r] = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    }
    sum_lanes(v, n, y);
}

#include "kernels/cpu/gemm_bf16.h"

void kern__gemm_bf16_avx2(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    gemm_bf16(d, row0, row1);
}
