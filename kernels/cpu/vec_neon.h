/* SPDX-License-Identifier: Apache-2.0
 *
 * What the aarch64 kernels share: sums in a fixed order, and exp, which is kern__exp of ref/exp.h. */
#ifndef MOED_KERNELS_CPU_VEC_NEON_H
#define MOED_KERNELS_CPU_VEC_NEON_H

#include <arm_neon.h>
#include <math.h>

#include "kernels/internal.h"

/* Lane i: (x0 + x2) + (x1 + x3) of the i-th argument. */
KERN_INLINE float32x4_t kern__sum4x4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
    float64x2_t p = vreinterpretq_f64_f32(a), q = vreinterpretq_f64_f32(b), r = vreinterpretq_f64_f32(c), s = vreinterpretq_f64_f32(d);
    float32x4_t ab = vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(p, q)), vreinterpretq_f32_f64(vzip2q_f64(p, q)));
    float32x4_t cd = vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(r, s)), vreinterpretq_f32_f64(vzip2q_f64(r, s)));
    return vpaddq_f32(ab, cd);
}

KERN_INLINE float kern__sum4(float32x4_t v) {
    return vaddv_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)));
}

KERN_INLINE float32x4_t kern__exp4(float32x4_t x) {
    const float32x4_t lo = vdupq_n_f32(-87.336544f);
    float32x4_t c = vminq_f32(vdupq_n_f32(89), vmaxq_f32(lo, x)); /* NaN passes both */
    float32x4_t n = vrndnq_f32(vmulq_n_f32(c, 0x1.715476p0f));
    float32x4_t r = vfmsq_f32(c, n, vdupq_n_f32(0x1.62e4p-1f)); /* exact: ln 2 in two parts */
    r = vfmsq_f32(r, n, vdupq_n_f32(0x1.7f7d1cp-20f));
    float32x4_t q = vdupq_n_f32(0x1.a01a02p-13f);
    q = vfmaq_f32(vdupq_n_f32(0x1.6c16c2p-10f), q, r);
    q = vfmaq_f32(vdupq_n_f32(0x1.111112p-7f), q, r);
    q = vfmaq_f32(vdupq_n_f32(0x1.555556p-5f), q, r);
    q = vfmaq_f32(vdupq_n_f32(0x1.555556p-3f), q, r);
    q = vfmaq_f32(vdupq_n_f32(0.5f), q, r);
    q = vfmaq_f32(r, q, vmulq_f32(r, r));
    /* times 2^n in two steps: n = 128 is no float exponent */
    int32x4_t ni = vcvtnq_s32_f32(n), h = vshrq_n_s32(ni, 1), one = vdupq_n_s32(127);
    float32x4_t s1 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(h, one), 23));
    float32x4_t s2 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(ni, h), one), 23));
    float32x4_t y = vmulq_f32(vfmaq_f32(s1, q, s1), s2); /* s1 + q s1 rounds as 1 + q does */
    return vbslq_f32(vcltq_f32(x, lo), vdupq_n_f32(0), y);
}

#endif
