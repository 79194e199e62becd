/* SPDX-License-Identifier: Apache-2.0
 *
 * What the AVX-512 kernels share: tails, a sum in a fixed order, and exp, which is kern__exp of ref/exp.h. */
#ifndef MOED_KERNELS_CPU_VEC_AVX512_H
#define MOED_KERNELS_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <math.h>

#include "kernels/internal.h"

/* Mask of the first n of 16 lanes, all 16 for more. */
KERN_INLINE __mmask16 kern__mask16(size_t n) {
    return n >= 16 ? 0xFFFF : (__mmask16)((1u << n) - 1);
}

/* Halves are added: l + 4, l + 2, l + 1. */
KERN_INLINE double kern__sum8d(__m512d v) {
    __m256d a = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    __m128d b = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}

KERN_INLINE __m512 kern__exp16(__m512 x) {
    const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.336544f), _CMP_NLT_UQ); /* NaN passes, here and below */
    __m512 c = _mm512_min_ps(_mm512_set1_ps(89), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(c, _mm512_set1_ps(0x1.715476p0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), c); /* exact: ln 2 in two parts */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
    __m512 q = _mm512_set1_ps(0x1.a01a02p-13f);
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.6c16c2p-10f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.111112p-7f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.555556p-5f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0x1.555556p-3f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(0.5f));
    q = _mm512_fmadd_ps(q, _mm512_mul_ps(r, r), r);
    return _mm512_maskz_scalef_ps(normal, _mm512_add_ps(q, _mm512_set1_ps(1)), n);
}

#endif
