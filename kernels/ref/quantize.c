/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantisation of activations to kern_q8, scalar. The vector levels give the same bits, so a test may compare
 * with memcmp. */
#include <math.h>
#include <string.h>

#include "kernels/internal.h"

static void quantize_block(const float *x, struct kern_q8 *out) {
    float max = 0;
    bool finite = true;
    for (int k = 0; k < 32; k++) {
        float a = fabsf(x[k]);
        finite &= a <= 0x1.fffffep127f; /* false for NaN too */
        max = a > max ? a : max;
    }
    memset(out, 0, sizeof *out);
    if (!finite) {
        out->d = NAN;
        return;
    }
    if (max < KERN__Q8_TINY)
        return;
    out->d = max / 127.0f;
    float inv = 127.0f / max;
    for (int k = 0; k < 32; k++) {
        out->q[k] = (int8_t)rintf(x[k] * inv);
        out->sum[k / 16] = (int16_t)(out->sum[k / 16] + out->q[k]);
    }
}

void kern__quantize_scalar(const float *x, size_t n, struct kern_q8 *out) {
    for (size_t b = 0; b < n / 32; b++)
        quantize_block(x + 32 * b, out + b);
}
