/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product with F32, F16 and BF16 weights: the walk over tiles of FLOAT_ROWS x FLOAT_TOKENS outputs that
 * the vector levels share. Each includes it once, after struct float_tile and
 *   float_tile_n(dtype, n_rows, n, tile)   computes n_rows x n outputs; the counts are compile-time constants. */
#ifndef MOED_KERNELS_CPU_GEMM_FLOAT_H
#define MOED_KERNELS_CPU_GEMM_FLOAT_H

/* Full tiles at once; with fewer tokens in pairs and singly; at the last rows one output at a time. */
VEC_FN void float_tile_run(enum dtype dtype, uint32_t n_rows, uint32_t n, const struct float_tile *t) {
    if (n_rows == FLOAT_ROWS && n == FLOAT_TOKENS) {
        float_tile_n(dtype, FLOAT_ROWS, FLOAT_TOKENS, t);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct float_tile part = { .n_in = t->n_in, .x = { t->x[i] }, .y = { t->y[i] } };
        memcpy(part.w, t->w, sizeof part.w);
        if (n_rows == FLOAT_ROWS && n - i >= 2) {
            part.x[1] = t->x[++i];
            part.y[1] = t->y[i];
            float_tile_n(dtype, FLOAT_ROWS, 2, &part);
        } else if (n_rows == FLOAT_ROWS) {
            float_tile_n(dtype, FLOAT_ROWS, 1, &part);
        } else {
            for (uint32_t r = 0; r < n_rows; r++, part.y[0]++) {
                part.w[0] = t->w[r];
                float_tile_n(dtype, 1, 1, &part);
            }
        }
    }
}

VEC_FN void gemm_float(const struct kern_gemm *d, enum dtype dtype, uint32_t row0, uint32_t row1) {
    struct float_tile tile = { .n_in = d->n_in };
    for (uint32_t r = row0; r < row1; r += FLOAT_ROWS) {
        uint32_t n_rows = row1 - r < FLOAT_ROWS ? row1 - r : FLOAT_ROWS;
        for (uint32_t i = 0; i < n_rows; i++)
            tile.w[i] = (const uint8_t *)d->w + (r + i) * d->row_bytes;
        for (uint32_t t = 0; t < d->n_tokens; t += FLOAT_TOKENS) {
            uint32_t n = d->n_tokens - t < FLOAT_TOKENS ? d->n_tokens - t : FLOAT_TOKENS;
            for (uint32_t i = 0; i < n; i++) {
                size_t from = d->gather ? (size_t)d->gather[t + i] : t + i;
                tile.x[i] = (const float *)d->x + from * d->x_stride;
                tile.y[i] = d->y + (t + i) * d->y_stride + r;
            }
            float_tile_run(dtype, n_rows, n, &tile);
        }
    }
}

#endif
