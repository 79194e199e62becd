/* SPDX-License-Identifier: Apache-2.0
 *
 * The scalar product of BF16 weights with activations rounded to bf16, which defines the arithmetic of every level: what
 * vpdpbf16ps does. 16 accumulators; weights 32 j + 2 l and 32 j + 2 l + 1 go to accumulator l, the odd one first, each
 * by fma, rounded to nearest even (missing weights of the last group count as 0 * 0); then halves are added: l + 8, l + 4,
 * l + 2, l + 1. Denormal operands count as 0 of their sign, and so does every result that is denormal after rounding to
 * 24 bits. Infinities and NaN as in IEEE. tests/unit/kernels_bf16.c holds the instruction to it. */
#include <math.h>
#include <string.h>

#include "kernels/internal.h"

static float operand(uint16_t h) {
    return kern_bf16_to_f32(h & 0x7f80 ? h : h & 0x8000);
}

float kern__madd_flushed(float a, float b, float c) {
    const float least = 0x1p-126f; /* of the normal numbers */
    float r = fmaf(a, b, c);
    if (!(fabsf(r) <= least))
        return r;
    /* `least` may have been rounded up from what 24 bits of a smaller exponent can tell from it: below the middle */
    bool tiny = fabsf(r) < least || fabs((double)a * (double)b + (double)c) < 0x1p-126 - 0x1p-151;
    return tiny ? copysignf(0, r) : r;
}

static float bf16_dot(const uint16_t *w, const uint16_t *x, uint32_t n) {
    float acc[16] = { 0 };
    for (uint32_t k = 0; k < n; k += 32) {
        uint16_t wk[32] = { 0 }, xk[32] = { 0 };
        memcpy(wk, w + k, (n - k < 32 ? n - k : 32) * sizeof *w);
        memcpy(xk, x + k, (n - k < 32 ? n - k : 32) * sizeof *x);
        for (int l = 0; l < 16; l++) {
            acc[l] = kern__madd_flushed(operand(wk[2 * l + 1]), operand(xk[2 * l + 1]), acc[l]);
            acc[l] = kern__madd_flushed(operand(wk[2 * l]), operand(xk[2 * l]), acc[l]);
        }
    }
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++)
            acc[l] = kern__madd_flushed(1, acc[l], acc[l + half]);
    return acc[0];
}

void kern__gemm_bf16_scalar(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    for (uint32_t r = row0; r < row1; r++) {
        const uint16_t *w = (const uint16_t *)((const char *)d->w + (size_t)r * d->row_bytes);
        for (uint32_t t = 0; t < d->n_tokens; t++) {
            size_t from = d->gather ? (size_t)d->gather[t] : t;
            d->y[t * d->y_stride + r] = bf16_dot(w, (const uint16_t *)d->x + from * d->x_stride, d->n_in);
        }
    }
}
