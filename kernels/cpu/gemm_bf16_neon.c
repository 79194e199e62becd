/* SPDX-License-Identifier: Apache-2.0
 *
 * BF16 weights times bf16 activations for aarch64: a pair is two multiply-adds. FPCR.FZ would flush results before
 * rounding, vpdpbf16ps flushes after, so it is done by hand: a value of 2^-126 may be one that rounded up to it, which
 * the scalar function decides. */
#include <arm_neon.h>

#include "kernels/internal.h"

enum { WIDTH = 4, BF16_ROWS = 2, BF16_TOKENS = 2 };
typedef float32x4_t vecf;
typedef struct {
    float32x4_t even, odd;
} pairs;

KERN_INLINE vecf vf_zero(void) { return vdupq_n_f32(0); }

/* Denormals to 0 of their sign. */
KERN_INLINE float32x4_t flush(float32x4_t v) {
    const uint32x4_t sign = vdupq_n_u32(0x80000000u);
    uint32x4_t keep = vorrq_u32(vmvnq_u32(vcaltq_f32(v, vdupq_n_f32(0x1p-126f))), sign);
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), keep));
}
KERN_INLINE float32x4_t madd(float32x4_t a, float32x4_t b, float32x4_t c) {
    float32x4_t v = vfmaq_f32(c, a, b);
    if (vmaxvq_u32(vceqq_f32(vabsq_f32(v), vdupq_n_f32(0x1p-126f))) == 0)
        return flush(v);
    float x[4], y[4], z[4];
    vst1q_f32(x, a), vst1q_f32(y, b), vst1q_f32(z, c);
    for (int i = 0; i < 4; i++)
        z[i] = kern__madd_flushed(x[i], y[i], z[i]);
    return vld1q_f32(z);
}
KERN_INLINE pairs pairs_load(const uint16_t *p) {
    uint32x4_t v = vreinterpretq_u32_u16(vld1q_u16(p));
    return (pairs){ flush(vreinterpretq_f32_u32(vshlq_n_u32(v, 16))),
                    flush(vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xffff0000u)))) };
}
KERN_INLINE vecf pairs_madd(vecf acc, pairs w, pairs x) { return madd(w.even, x.even, madd(w.odd, x.odd, acc)); }

/* Sums of two that are this small are exact: no rounding to look at. */
KERN_INLINE void vf_sums(const vecf (*acc)[4], int n, float *y) {
    for (int r = 0; r < n; r++) {
        float32x4_t a = flush(vaddq_f32(acc[r][0], acc[r][2])), b = flush(vaddq_f32(acc[r][1], acc[r][3]));
        a = flush(vaddq_f32(a, b));
        a = flush(vaddq_f32(a, vextq_f32(a, a, 2)));
        y[r] = vgetq_lane_f32(flush(vaddq_f32(a, vextq_f32(a, a, 1))), 0);
    }
}
KERN_INLINE unsigned flush_begin(void) { return 0; }
KERN_INLINE void flush_end(unsigned state) { (void)state; }

#include "kernels/cpu/gemm_bf16.h"

void kern__gemm_bf16_neon(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    gemm_bf16(d, row0, row1);
}
