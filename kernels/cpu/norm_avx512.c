/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-wise element kernels, AVX-512. Lanes are independent and tails are masked, so an element's bits do not
 * depend on where in the row it lies. The arithmetic is that of ref/norm.c. */
#include "kernels/cpu/vec_avx512.h"

void kern__rms_norm_avx512(const float *x, const float *w, float eps, size_t n, float *y) {
    __m512d s0 = _mm512_setzero_pd(), s1 = _mm512_setzero_pd();
    for (size_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(kern__mask16(n - i), x + i);
        __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v)), b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        s0 = _mm512_fmadd_pd(a, a, s0);
        s1 = _mm512_fmadd_pd(b, b, s1);
    }
    double sum = kern__sum8d(_mm512_add_pd(s0, s1));
    __m512 scale = _mm512_set1_ps((float)(1.0 / sqrt(sum / (double)n + (double)eps)));
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = kern__mask16(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), scale);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

void kern__swiglu_avx512(const float *g, const float *u, size_t n, float *y) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = kern__mask16(n - i);
        __m512 x = _mm512_maskz_loadu_ps(m, g + i);
        __m512 e = kern__exp16(_mm512_xor_ps(x, _mm512_set1_ps(-0.0f)));
        x = _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1), e));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(x, _mm512_maskz_loadu_ps(m, u + i)));
    }
}

void kern__axpy_avx512(float a, const float *x, size_t n, float *y) {
    __m512 va = _mm512_set1_ps(a);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = kern__mask16(n - i);
        __m512 v = _mm512_fmadd_ps(va, _mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}
