/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantisation of activations for aarch64; the bits are those of ref/quantize.c. */
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "kernels/internal.h"

/* 16 floats times inv, rounded to nearest even, as bytes; |x inv| <= 127, so nothing is lost in narrowing. */
static int8x16_t round16(const float *x, float inv) {
    int16x4_t h[4];
    for (int i = 0; i < 4; i++)
        h[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inv)));
    return vcombine_s8(vmovn_s16(vcombine_s16(h[0], h[1])), vmovn_s16(vcombine_s16(h[2], h[3])));
}

void kern__quantize_neon(const float *x, size_t n, struct kern_q8 *out) {
    for (size_t b = 0; b < n / 32; b++, x += 32, out++) {
        uint32x4_t a = vdupq_n_u32(0);
        for (int k = 0; k < 32; k += 4) /* as integers, magnitudes order like floats, infinity and NaN on top */
            a = vmaxq_u32(a, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + k))));
        uint32_t top = vmaxvq_u32(a);
        float max;
        memcpy(&max, &top, 4);
        if (top >= 0x7f800000 || max < KERN__Q8_TINY) {
            memset(out, 0, sizeof *out);
            out->d = top >= 0x7f800000 ? NAN : 0;
            continue;
        }
        float inv = 127.0f / max;
        int8x16_t q0 = round16(x, inv), q1 = round16(x + 16, inv);
        out->d = max / 127.0f;
        out->sum[0] = vaddlvq_s8(q0);
        out->sum[1] = vaddlvq_s8(q1);
        vst1q_s8(out->q, q0);
        vst1q_s8(out->q + 16, q1);
    }
}
