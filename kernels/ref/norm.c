/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-wise element kernels, scalar level: the truth that the SIMD levels are tested against, and what runs on a
 * CPU without AVX2. Sums are kept in double and added in index order.
 *
 * Errors (eps = 2^-24): rms_norm 4 eps relative (the sum of squares is exact to 1e-13, three roundings and the
 * float cast remain); swiglu a few eps relative (expf, one division, one product); axpy 2 roundings. */
#include "kernels/internal.h"

#include <math.h>

void kern__rms_norm_scalar(const float *x, const float *w, float eps, size_t n, float *y) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    float scale = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    for (size_t i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}

void kern__swiglu_scalar(const float *g, const float *u, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = g[i] / (1.0f + expf(-g[i])) * u[i];
}

void kern__axpy_scalar(float a, const float *x, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] += a * x[i];
}
