/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product of BF16 weights and bf16 activations: the walk over tiles of BF16_ROWS x BF16_TOKENS outputs that the
 * vector levels share. A row is read as the file has it, 32 weights at a time: pair l of them goes to accumulator l of 16,
 * as vpdpbf16ps does it and ref/gemm_bf16.c says. Rows packed side by side would need no sums across lanes at the end, but
 * those are 15 additions per output; four sequential streams already read at DRAM speed.
 *
 * To be defined before: WIDTH (32-bit lanes of a vector), BF16_ROWS, BF16_TOKENS (up to 6), the types vecf (of WIDTH
 * float) and pairs (WIDTH pairs of bf16), and
 *   pairs_load(p), pairs_madd(acc, w, x)   acc = fma(even, fma(odd, acc)), denormals flushed at every step
 *   vf_zero()
 *   vf_sums(acc, n, y)                     y[r] = the sum of the 16 of row r: l + 8, l + 4, l + 2, l + 1, flushed as well
 *   flush_begin(), flush_end(state)        around all of it */
#ifndef MOED_KERNELS_CPU_GEMM_BF16_H
#define MOED_KERNELS_CPU_GEMM_BF16_H

#include <string.h>

#include "kernels/internal.h"

enum { STEP = 32, PARTS = STEP / 2 / WIDTH };

struct bf16_tile {
    uint32_t n_in;
    size_t ahead; /* bytes from a row to the one that takes its place next: prefetched */
    const uint16_t *w[BF16_ROWS];
    const uint16_t *x[BF16_TOKENS];
    float *y[BF16_TOKENS]; /* at the first row */
};

/* Weights k .. k + 31, or the last n_in % 32 and zeros. */
KERN_INLINE const uint16_t *step_at(const uint16_t *row, uint32_t k, uint32_t n_in, uint16_t tail[STEP]) {
    if (n_in - k >= STEP)
        return row + k;
    memset(tail, 0, STEP * sizeof *tail);
    return memcpy(tail, row + k, (n_in - k) * sizeof *tail);
}

KERN__TILE void bf16_step(const struct bf16_tile *t, uint32_t k, const int n_rows, const int n,
                          vecf acc[BF16_TOKENS][BF16_ROWS][PARTS]) {
    uint16_t tail[BF16_ROWS + 1][STEP];
    const uint16_t *w[BF16_ROWS];
KERN__UNROLL
    for (int r = 0; r < n_rows; r++) {
        w[r] = step_at(t->w[r], k, t->n_in, tail[r]);
        __builtin_prefetch((const char *)(t->w[r] + k) + t->ahead, 0, 2);
    }
KERN__UNROLL
    for (int p = 0; p < PARTS; p++) {
        pairs wp[BF16_ROWS];
KERN__UNROLL
        for (int r = 0; r < n_rows; r++)
            wp[r] = pairs_load(w[r] + p * 2 * WIDTH);
KERN__UNROLL
        for (int i = 0; i < n; i++) {
            pairs x = pairs_load(step_at(t->x[i], k, t->n_in, tail[BF16_ROWS]) + p * 2 * WIDTH);
KERN__UNROLL
            for (int r = 0; r < n_rows; r++)
                acc[i][r][p] = pairs_madd(acc[i][r][p], wp[r], x);
        }
    }
}

KERN__TILE void bf16_tile_n(const int n_rows, const int n, const struct bf16_tile *t) {
    vecf acc[BF16_TOKENS][BF16_ROWS][PARTS];
KERN__UNROLL
    for (int i = 0; i < n; i++)
KERN__UNROLL
        for (int r = 0; r < n_rows; r++)
KERN__UNROLL
            for (int p = 0; p < PARTS; p++)
                acc[i][r][p] = vf_zero();
    uint32_t k = 0;
    for (; k + STEP <= t->n_in; k += STEP)
        bf16_step(t, k, n_rows, n, acc);
    if (k < t->n_in)
        bf16_step(t, k, n_rows, n, acc);
KERN__UNROLL
    for (int i = 0; i < n; i++)
        vf_sums(acc[i], n_rows, t->y[i]);
}

#define BF16_CASE(n)                                                                                             \
    case n:                                                                                                      \
        if (n <= BF16_TOKENS)                                                                                    \
            bf16_tile_n(BF16_ROWS, n, t);                                                                        \
        break;
static void bf16_tile_run(uint32_t n_rows, uint32_t n, const struct bf16_tile *t) {
    if (n_rows == BF16_ROWS) {
        switch (n) {
            BF16_CASE(1) BF16_CASE(2) BF16_CASE(3) BF16_CASE(4) BF16_CASE(5) BF16_CASE(6)
        default: break;
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < n_rows; r++)
            bf16_tile_n(1, 1, &(struct bf16_tile){ .n_in = t->n_in, .w = { t->w[r] }, .x = { t->x[i] }, .y = { t->y[i] + r } });
}

/* Not inlined, so that no arithmetic moves to where denormals are not flushed. */
static __attribute__((noinline)) void bf16_walk(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    struct bf16_tile tile = { .n_in = d->n_in, .ahead = BF16_ROWS * d->row_bytes };
    for (uint32_t r = row0; r < row1; r += BF16_ROWS) {
        uint32_t n_rows = row1 - r < BF16_ROWS ? row1 - r : BF16_ROWS;
        for (uint32_t i = 0; i < n_rows; i++)
            tile.w[i] = (const uint16_t *)((const char *)d->w + (r + i) * d->row_bytes);
        for (uint32_t t = 0, n; t < d->n_tokens; t += n) {
            n = d->n_tokens - t < BF16_TOKENS ? d->n_tokens - t : BF16_TOKENS;
            for (uint32_t i = 0; i < n; i++) {
                size_t from = d->gather ? (size_t)d->gather[t + i] : t + i;
                tile.x[i] = (const uint16_t *)d->x + from * d->x_stride;
                tile.y[i] = d->y + (t + i) * d->y_stride + r;
            }
            bf16_tile_run(n_rows, n, &tile);
        }
    }
}

KERN_INLINE void gemm_bf16(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    unsigned state = flush_begin();
    bf16_walk(d, row0, row1);
    flush_end(state);
}

#endif
