/* SPDX-License-Identifier: Apache-2.0
 *
 * The scalar matrix product, which defines the arithmetic of every level:
 *   quantised weights: isum = integer dot of codes and activation codes over a block of 32, t = isum * d, or
 *     fma(isum, d, m * sum of activation codes) where the format has a minimum; Q6_K has isums and scales of 16 weights,
 *     t = fma(isum1, d * sc1, isum0 * (d * sc0)), where d * sc is exact; then
 *     acc = fma(t, d of the activation block, acc), blocks in order, acc starting at +0;
 *   float weights: 16 accumulators, weight k into accumulator k % 16 by fma in order (missing weights of the last
 *     group count as 0 * 0), then halves are added: l + 8, l + 4, l + 2, l + 1.
 * The vector levels do exactly these operations in this order, so all levels agree bit for bit. */
#include <math.h>
#include <string.h>

#include "kernels/internal.h"

static const void *x_row(const struct kern_gemm *d, uint32_t t, size_t elem) {
    size_t r = d->gather ? (size_t)d->gather[t] : t;
    return (const char *)d->x + r * d->x_stride * elem;
}

static int32_t dot16(const int16_t *code, const int8_t *q) {
    int32_t sum = 0;
    for (int k = 0; k < 16; k++)
        sum += code[k] * q[k];
    return sum;
}

static float block_dot(enum dtype dtype, const struct kern__block *w, const struct kern_q8 *x) {
    const int32_t lo = dot16(w->code, x->q), hi = dot16(w->code + 16, x->q + 16);
    if (dtype == DTYPE_Q6_K)
        return fmaf((float)hi, w->d * (float)w->sc[1], (float)lo * (w->d * (float)w->sc[0]));
    const float isum = (float)(lo + hi);
    return kern__has_min(dtype) ? fmaf(isum, w->d, w->m * (float)(x->sum[0] + x->sum[1])) : isum * w->d;
}

static void quant_row(const struct kern_gemm *d, uint32_t r) {
    const char *w = (const char *)d->w + (size_t)r * d->row_bytes;
    const uint32_t parts = dtype_info((uint32_t)d->dtype)->block_elems / 32;
    _Alignas(4) uint8_t unpacked[KERN__BLOCK_MOST];
    for (uint32_t t = 0; t < d->n_tokens; t++)
        d->y[t * d->y_stride + r] = 0;
    for (uint32_t b = 0; b < d->n_in / 32; b++) {
        struct kern__block blk;
        if (d->packed && b % parts == 0)
            kern__packed_block(d->dtype, d->w, r, d->n_in, b / parts, unpacked);
        if (d->packed)
            kern__decode_block(d->dtype, unpacked, b % parts, &blk);
        else
            kern__decode_block(d->dtype, w, b, &blk);
        for (uint32_t t = 0; t < d->n_tokens; t++) {
            const struct kern_q8 *x = (const struct kern_q8 *)x_row(d, t, sizeof *x) + b;
            float *y = d->y + t * d->y_stride + r;
            *y = fmaf(block_dot(d->dtype, &blk, x), x->d, *y);
        }
    }
}

static float float_dot(enum dtype dtype, const void *w, const float *x, uint32_t n) {
    float acc[16] = { 0 }, wk[16], xk[16];
    for (uint32_t k = 0; k < n; k += 16) {
        uint32_t m = n - k < 16 ? n - k : 16;
        memset(wk, 0, sizeof wk);
        memset(xk, 0, sizeof xk);
        kern_dequant_row(dtype, (const char *)w + (size_t)k * (dtype == DTYPE_F32 ? 4 : 2), m, wk);
        memcpy(xk, x + k, m * sizeof *x);
        for (int l = 0; l < 16; l++)
            acc[l] = fmaf(wk[l], xk[l], acc[l]);
    }
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++)
            acc[l] += acc[l + half];
    return acc[0];
}

static void float_row(const struct kern_gemm *d, uint32_t r) {
    const void *w = (const char *)d->w + (size_t)r * d->row_bytes;
    for (uint32_t t = 0; t < d->n_tokens; t++)
        d->y[t * d->y_stride + r] = float_dot(d->dtype, w, x_row(d, t, sizeof(float)), d->n_in);
}

void kern__gemm_scalar(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    bool q8 = kern_gemm_wants_q8(d->dtype);
    for (uint32_t r = row0; r < row1; r++) {
        if (q8)
            quant_row(d, r);
        else
            float_row(d, r);
    }
}

enum { EXACT_ROWS = 4 }; /* rows dequantised at a time: what the float kernels take in one tile */

size_t kern_gemm_exact_floats(uint32_t n_in) {
    return (size_t)EXACT_ROWS * n_in;
}

static void dequant(const struct kern_gemm *d, uint32_t r, float *out) {
    if (d->packed)
        kern_dequant_packed_row(d->dtype, d->w, r, d->n_in, out);
    else
        kern_dequant_row(d->dtype, (const char *)d->w + (size_t)r * d->row_bytes, d->n_in, out);
}

void kern_gemm_exact(kern_gemm_fn gemm, const struct kern_gemm *d, uint32_t row0, uint32_t row1, float *scratch) {
    for (uint32_t r = row0; r < row1; r += EXACT_ROWS) {
        uint32_t n = row1 - r < EXACT_ROWS ? row1 - r : EXACT_ROWS;
        for (uint32_t i = 0; i < n; i++)
            dequant(d, r + i, scratch + (size_t)i * d->n_in);
        struct kern_gemm f = *d;
        f.packed = false;
        f.dtype = DTYPE_F32;
        f.w = scratch;
        f.row_bytes = (size_t)d->n_in * sizeof(float);
        f.n_out = n;
        f.y = d->y + r;
        gemm(&f, 0, n);
    }
}
