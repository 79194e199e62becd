/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-wise element kernels, scalar level: the arithmetic of every level, and what runs on a CPU without AVX2.
 *   rms_norm  the square of element i is added to double lane i % 16 in order; halves are added: l + 8, l + 4, l + 2, l + 1;
 *             scale = (float)(1 / sqrt(sum / n + eps)), y = (x * scale) * w
 *   swiglu    y = (g / (1 + exp(-g))) * u with kern__exp
 *   axpy      fma(a, x, y)
 * Errors (eps = 2^-24): rms_norm 4 eps relative (the sum of squares is exact to 1e-13, three roundings and the
 * float cast remain); swiglu 5 eps (exp 2, sum, division, product); axpy one rounding. */
#include "kernels/internal.h"
#include "kernels/ref/exp.h"

void kern__rms_norm_scalar(const float *x, const float *w, float eps, size_t n, float *y) {
    double s[16] = { 0 };
    for (size_t i = 0; i < n; i++) s[i % 16] += (double)x[i] * (double)x[i]; /* the product is exact, so no fma is needed */
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) s[l] += s[l + half];
    float scale = (float)(1.0 / sqrt(s[0] / (double)n + (double)eps));
    for (size_t i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}

void kern__swiglu_scalar(const float *g, const float *u, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = g[i] / (1.0f + kern__exp(-g[i])) * u[i];
}

void kern__axpy_scalar(float a, const float *x, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}
