/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-wise element kernels for aarch64. Lanes are independent, so the tail runs through the same code on a padded copy
 * and an element's bits do not depend on where in the row it lies. The arithmetic is that of ref/norm.c. */
#include "kernels/cpu/vec_neon.h"

#include <string.h>

/* s: 16 lanes += squares of x [16] */
KERN_INLINE void add_squares(const float *x, float64x2_t *s) {
    for (size_t j = 0; j < 8; j++) {
        float64x2_t a = vcvt_f64_f32(vld1_f32(x + 2 * j));
        s[j] = vfmaq_f64(s[j], a, a);
    }
}

void kern__rms_norm_neon(const float *x, const float *w, float eps, size_t n, float *y) {
    float64x2_t s[8];
    size_t i = 0;
    for (size_t j = 0; j < 8; j++) s[j] = vdupq_n_f64(0);
    for (; i + 16 <= n; i += 16) add_squares(x + i, s);
    if (i < n) {
        float tail[16] = { 0 };
        add_squares(memcpy(tail, x + i, (n - i) * sizeof *x), s);
    }
    for (size_t half = 4; half; half /= 2)
        for (size_t j = 0; j < half; j++) s[j] = vaddq_f64(s[j], s[j + half]);
    double sum = vaddvq_f64(s[0]);
    float scale = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    for (i = 0; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), scale), vld1q_f32(w + i)));
    for (; i < n; i++) y[i] = x[i] * scale * w[i];
}

KERN_INLINE float32x4_t swiglu4(float32x4_t g, float32x4_t u) {
    return vmulq_f32(vdivq_f32(g, vaddq_f32(vdupq_n_f32(1), kern__exp4(vnegq_f32(g)))), u);
}

void kern__swiglu_neon(const float *g, const float *u, size_t n, float *y) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, swiglu4(vld1q_f32(g + i), vld1q_f32(u + i)));
    if (i < n) {
        float gt[4] = { 0 }, ut[4] = { 0 };
        memcpy(gt, g + i, (n - i) * sizeof *g);
        memcpy(ut, u + i, (n - i) * sizeof *u);
        vst1q_f32(gt, swiglu4(vld1q_f32(gt), vld1q_f32(ut)));
        memcpy(y + i, gt, (n - i) * sizeof *y);
    }
}

void kern__axpy_neon(float a, const float *x, size_t n, float *y) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vfmaq_n_f32(vld1q_f32(y + i), vld1q_f32(x + i), a));
    for (; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}
