/* SPDX-License-Identifier: Apache-2.0
 *
 * What the AVX2 kernels share: tails, sums in a fixed order, and exp, which is kern__exp of ref/exp.h. */
#ifndef MOED_KERNELS_CPU_VEC_AVX2_H
#define MOED_KERNELS_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <math.h>

#include "kernels/internal.h"

/* Mask of the first n of 8 lanes. */
KERN_INLINE __m256i kern__mask8(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Halves are added: l + 4, l + 2, l + 1. */
KERN_INLINE float kern__sum8(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* l + 2, l + 1. */
KERN_INLINE double kern__sum4d(__m256d v) {
    __m128d x = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)));
}

KERN_INLINE float kern__max8(__m256 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

KERN_INLINE __m256 kern__exp8(__m256 x) {
    const __m256 lo = _mm256_set1_ps(-87.336544f);
    /* max and min return their second operand when one is NaN, so NaN passes through */
    __m256 c = _mm256_min_ps(_mm256_set1_ps(89), _mm256_max_ps(lo, x));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(c, _mm256_set1_ps(0x1.715476p0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), c); /* exact: ln 2 in two parts */
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
    __m256 q = _mm256_set1_ps(0x1.a01a02p-13f);
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0x1.6c16c2p-10f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0x1.111112p-7f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0x1.555556p-5f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0x1.555556p-3f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0.5f));
    q = _mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r);
    /* times 2^n in two steps: n = 128 is no float exponent */
    __m256i ni = _mm256_cvtps_epi32(n), h = _mm256_srai_epi32(ni, 1);
    __m256 s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, _mm256_set1_epi32(127)), 23));
    __m256 s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(ni, h), _mm256_set1_epi32(127)), 23));
    __m256 y = _mm256_mul_ps(_mm256_fmadd_ps(q, s1, s1), s2); /* s1 + q s1 rounds as 1 + q does */
    return _mm256_andnot_ps(_mm256_cmp_ps(x, lo, _CMP_LT_OQ), y);
}

#endif
