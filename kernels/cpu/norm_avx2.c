/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-wise element kernels, AVX2. Lanes are independent and tails are masked, so an element's bits do not depend
 * on where in the row it lies. The arithmetic is that of ref/norm.c. */
#include "kernels/cpu/vec_avx2.h"

#include <string.h>

/* s: 16 lanes += squares of x [16] */
KERN_INLINE void add_squares(const float *x, __m256d *s) {
    KERN__UNROLL
    for (int j = 0; j < 4; j++) {
        __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(x + 4 * j));
        s[j] = _mm256_fmadd_pd(a, a, s[j]);
    }
}

void kern__rms_norm_avx2(const float *x, const float *w, float eps, size_t n, float *y) {
    __m256d s[4] = { _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd() };
    size_t i = 0;
    for (; i + 16 <= n; i += 16) add_squares(x + i, s);
    if (i < n) {
        float tail[16] = { 0 };
        add_squares(memcpy(tail, x + i, (n - i) * sizeof *x), s);
    }
    double sum = kern__sum4d(_mm256_add_pd(_mm256_add_pd(s[0], s[2]), _mm256_add_pd(s[1], s[3])));
    float scale = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    __m256 vs = _mm256_set1_ps(scale);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), vs), _mm256_loadu_ps(w + i)));
    for (; i < n; i++) y[i] = x[i] * scale * w[i];
}

KERN_INLINE __m256 swiglu8(__m256 g, __m256 u) {
    __m256 one = _mm256_set1_ps(1), e = kern__exp8(_mm256_xor_ps(g, _mm256_set1_ps(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), u);
}

void kern__swiglu_avx2(const float *g, const float *u, size_t n, float *y) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, swiglu8(_mm256_loadu_ps(g + i), _mm256_loadu_ps(u + i)));
    if (i < n) {
        __m256i m = kern__mask8((uint32_t)(n - i));
        _mm256_maskstore_ps(y + i, m, swiglu8(_mm256_maskload_ps(g + i, m), _mm256_maskload_ps(u + i, m)));
    }
}

void kern__axpy_avx2(float a, const float *x, size_t n, float *y) {
    __m256 va = _mm256_set1_ps(a);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(va, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    if (i < n) {
        __m256i m = kern__mask8((uint32_t)(n - i));
        _mm256_maskstore_ps(y + i, m, _mm256_fmadd_ps(va, _mm256_maskload_ps(x + i, m), _mm256_maskload_ps(y + i, m)));
    }
}
