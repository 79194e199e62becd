/* SPDX-License-Identifier: Apache-2.0
 *
 * y[t, r] = sum_k w[r, k] * x[t, k] for a weight matrix in any file format and a batch of activation rows.
 * Quantised weights take activations quantised to kern_q8 and accumulate in integers per block of 32;
 * F32, F16 and BF16 weights take float activations. For BF16 weights there is a second product, kern_ops.gemm_bf16: its
 * activations are rounded to bf16 (kern_round_bf16), its operations those of the instruction vpdpbf16ps, which is twice as
 * fast as floats where a CPU has it. None for F16: bf16 could not hold its weights, and no x86 level multiplies pairs of f16
 * into f32. The exact operations are in ref/gemm.c and ref/gemm_bf16.c; every level does the same ones in the same order, so
 * all levels, slices and batches give the same bits (NaN payloads aside). */
#ifndef MOED_KERNELS_GEMM_H
#define MOED_KERNELS_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/quant.h"

struct kern_gemm {
    enum dtype dtype;       /* of w                                                                  */
    const void *w;          /* [n_out, n_in] rows, row_bytes apart                                   */
    size_t row_bytes;
    bool packed;            /* w is in the layout of pack.h: row0, row1 and n_out are multiples of 16 */
    uint32_t n_in, n_out;   /* n_in >= 1, a multiple of the format's block                           */
    const void *x;          /* float [rows, n_in] or struct kern_q8 [rows, n_in / 32]: see kern_gemm_wants_q8;
                             * gemm_bf16: uint16_t [rows, n_in]                                      */
    size_t x_stride;        /* in elements of x's type (floats, blocks, bf16) between rows           */
    const int32_t *gather;  /* NULL, or [n_tokens]: row of x for output row t                        */
    uint32_t n_tokens;
    float *y;               /* [n_tokens, n_out]                                                     */
    size_t y_stride;        /* floats between rows                                                   */
};

/* Computes y[:, row0 .. row1) for all tokens and writes nothing else; borrows everything for the call. Any
 * row0 <= row1 <= n_out unless packed; fastest where row1 - row0 is a multiple of 16, and with few tokens at 64 or more.
 * Give all tokens of an expert at once: unpacked weights are decoded once per 128 tokens, packed ones stay in cache.
 * The next rows are prefetched. */
typedef void (*kern_gemm_fn)(const struct kern_gemm *d, uint32_t row0, uint32_t row1);

bool kern_gemm_wants_q8(enum dtype dtype);

/* The same product with float activations for every format: d->x is float, weight rows are dequantised and multiplied
 * as F32 through `gemm` (an entry of the dispatch table). No rounding of activations, so it is the truth that the 8-bit
 * path is judged by; several times slower. `scratch` is private to the call, kern_gemm_exact_floats(n_in) floats. */
size_t kern_gemm_exact_floats(uint32_t n_in);
void kern_gemm_exact(kern_gemm_fn gemm, const struct kern_gemm *d, uint32_t row0, uint32_t row1, float *scratch);

#endif
