/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over an int8 cache, AVX2: the plan of attn_q8_avx512.c with half the lanes and half the registers. The
 * sums are integer and exact, so their order is free. A tile is R query rows (4, 2 or 1); q and the weights are rounded to
 * 1 / 65534 of their maximum. */
#include "kernels/cpu/attn_avx2.h"

#include <string.h>

struct tile {
    const struct kern__attn_block *b;
    uint32_t row;                 /* first of the tile                                       */
    float *out[4];
    float *p[4];                  /* scores, then probabilities, [KERN__ATTN_BLOCK]          */
    int16_t w[4][KERN__ATTN_BLOCK];
    float keep[4], unit[4];       /* factor of the earlier output, and of a weight           */
    const int8_t *k, *v;
    const char *next_k, *next_v;  /* next block, to be prefetched by this tile; or this one   */
    uint32_t n;                   /* keys                                                    */
};

/* n (<= 16) values in 16 bits, 0 beyond. */
KERN__TILE __m256i widen(const int8_t *x, uint32_t n) {
    int8_t part[16] = { 0 };
    if (n < 16) x = memcpy(part, x, n);
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)x));
}

KERN__TILE __m256i add_pairs(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

/* Lane i of the result: the sum of all lanes of a[i]. */
KERN__TILE __m256i sum8x8(const __m256i *a) {
    __m256i p = add_pairs(a[0], a[1], a[2], a[3]), q = add_pairs(a[4], a[5], a[6], a[7]);
    return _mm256_add_epi32(_mm256_permute2x128_si256(p, q, 0x20), _mm256_permute2x128_si256(p, q, 0x31));
}

/* Integer scores of keys j .. j + 8/R (the last key again where there are fewer) for R rows, as floats. */
KERN__TILE void score_keys(const int R, const struct tile *t, uint32_t dim, uint32_t j) {
    const int J = 8 / R;
    const int8_t *key[8];
    __m256i acc[8];
    KERN__UNROLL
    for (int x = 0; x < J; x++) key[x] = t->k + (size_t)(j + (uint32_t)x < t->n ? j + (uint32_t)x : t->n - 1) * dim;
    KERN__UNROLL
    for (int x = 0; x < 8; x++) acc[x] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < dim; i += 16) {
        const uint32_t n = dim - i < 16 ? dim - i : 16;
        const int16_t *q = kern__attn_q_i16(t->b, t->row, i) + i % 32;
        kern__attn_prefetch(t->next_k, (size_t)j * dim + (size_t)i * J, 16 * (size_t)J);
        KERN__UNROLL
        for (int x = 0; x < J; x++) {
            __m256i k = widen(key[x] + i, n);
            KERN__UNROLL
            for (int r = 0; r < R; r++) {
                __m256i y = _mm256_loadu_si256((const __m256i *)(q + 32 * r));
                acc[r * J + x] = _mm256_add_epi32(acc[r * J + x], _mm256_madd_epi16(k, y));
            }
        }
    }
    float sums[8] __attribute__((aligned(32)));
    _mm256_store_ps(sums, _mm256_cvtepi32_ps(sum8x8(acc)));
    KERN__UNROLL
    for (int r = 0; r < R; r++) memcpy(t->p[r] + j, sums + r * J, (size_t)J * sizeof *sums);
}

/* scale[8 x ..] of the first n keys, 0 beyond. */
KERN__TILE __m256 scales(const float *scale, int x, uint32_t n) {
    const uint32_t first = 8 * (uint32_t)x;
    return n > first ? _mm256_maskload_ps(scale + first, kern__mask8(n - first)) : _mm256_setzero_ps();
}

/* Row r: weights and unit from the probabilities and the scales of the values. */
KERN__TILE void quantize_weights(struct tile *t, int r, const float *v_scale) {
    __m256 w[4], top = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    KERN__UNROLL
    for (int x = 0; x < 4; x++) {
        w[x] = _mm256_mul_ps(_mm256_loadu_ps(t->p[r] + 8 * x), scales(v_scale, x, t->n));
        top = _mm256_max_ps(w[x], top); /* NaN: the second operand */
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(w[x], w[x], _CMP_UNORD_Q));
    }
    const float max = kern__max8(top);
    const bool nan = _mm256_movemask_ps(bad) != 0, use = !nan && max >= KERN__ATTN_W_TINY;
    const __m256 inv = _mm256_set1_ps(use ? KERN__ATTN_W16 / max : 0);
    t->unit[r] = nan ? NAN : use ? max / KERN__ATTN_W16 : 0;
    KERN__UNROLL
    for (int x = 0; x < 4; x += 2) {
        __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(w[x], inv)), b = _mm256_cvtps_epi32(_mm256_mul_ps(w[x + 1], inv));
        _mm256_storeu_si256((__m256i *)(t->w[r] + 8 * x), _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8));
    }
}

KERN__TILE void add_to(float *out, uint32_t n, float keep, float unit, __m256i acc) {
    float part[8] = { 0 };
    float *dst = n < 8 ? memcpy(part, out, n * sizeof *out) : out;
    __m256 past = _mm256_mul_ps(_mm256_loadu_ps(dst), _mm256_set1_ps(keep));
    _mm256_storeu_ps(dst, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc), _mm256_set1_ps(unit), past));
    if (n < 8) memcpy(out, part, n * sizeof *out);
}

/* out[.., i .. i + 16 C) = out * keep + sum over keys w * v for R rows; n < 16 elements only with C = 1. */
KERN__TILE void add_values(const int R, const int C, const struct tile *t, uint32_t dim, uint32_t i, uint32_t n) {
    __m256i acc[2][4];
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) acc[0][x] = acc[1][x] = _mm256_setzero_si256();
    for (uint32_t j = 0; j < t->n; j += 2) {
        const int8_t *even = t->v + (size_t)j * dim + i, *odd = j + 1 < t->n ? even + dim : even; /* weight 0 */
        kern__attn_prefetch(t->next_v, (size_t)i * t->n + (size_t)j * 16 * C, 32 * (size_t)C);
        KERN__UNROLL
        for (int c = 0; c < C; c++) {
            __m256i a = widen(even + 16 * c, n), b = widen(odd + 16 * c, n);
            __m256i lo = _mm256_unpacklo_epi16(a, b), hi = _mm256_unpackhi_epi16(a, b);
            KERN__UNROLL
            for (int r = 0; r < R; r++) {
                int32_t both;
                memcpy(&both, &t->w[r][j], sizeof both);
                __m256i w = _mm256_set1_epi32(both);
                acc[0][r * C + c] = _mm256_add_epi32(acc[0][r * C + c], _mm256_madd_epi16(lo, w));
                acc[1][r * C + c] = _mm256_add_epi32(acc[1][r * C + c], _mm256_madd_epi16(hi, w));
            }
        }
    }
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) { /* lo and hi: elements 0 3, 8 11 and 4 7, 12 15 */
        float *out = t->out[x / C] + i + 16 * (x % C);
        __m256i first = _mm256_permute2x128_si256(acc[0][x], acc[1][x], 0x20);
        __m256i second = _mm256_permute2x128_si256(acc[0][x], acc[1][x], 0x31);
        add_to(out, n < 8 ? n : 8, t->keep[x / C], t->unit[x / C], first);
        if (n > 8) add_to(out + 8, n - 8, t->keep[x / C], t->unit[x / C], second);
    }
}

KERN__TILE void fold_tile(const int R, const struct kern__attn_block *b, struct tile *t, uint32_t row) {
    const uint32_t dim_k = b->d->head_dim_k, dim = b->d->head_dim_v, wide = 64 / (uint32_t)R;
    uint32_t i = 0;
    for (int r = 0; r < R; r++) {
        t->out[r] = kern__attn_out(b, row + (uint32_t)r);
        t->p[r] = b->score + r * KERN__ATTN_BLOCK;
    }
    for (uint32_t j = 0; j < t->n; j += 8 / R) score_keys(R, t, dim_k, j);
    for (int r = 0; r < R; r++) {
        const __m256 q_scale = _mm256_set1_ps(b->q_scale[row + (uint32_t)r]);
        KERN__UNROLL
        for (int x = 0; x < 4; x++) {
            __m256 scale = _mm256_mul_ps(q_scale, scales(b->k_scale, x, t->n));
            _mm256_storeu_ps(t->p[r] + 8 * x, _mm256_mul_ps(_mm256_loadu_ps(t->p[r] + 8 * x), scale));
        }
        t->keep[r] = kern__softmax_row(t->p[r], t->n, 1, &b->max[row + (uint32_t)r], &b->sum[row + (uint32_t)r]);
        quantize_weights(t, r, b->v_scale);
    }
    for (; i + wide <= dim; i += wide) add_values(R, 4 / R, t, dim, i, 16);
    for (; i + 16 <= dim; i += 16) add_values(R, 1, t, dim, i, 16);
    if (i < dim) add_values(R, 1, t, dim, i, dim - i);
}

void kern__attn_q8_avx2(const struct kern__attn_block *b) {
    struct tile t = { .b = b, .k = b->k, .v = b->v };
    for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
        n_rows = kern__attn_tile_rows(b, row, 4);
        t.n = kern__attn_visible(b, row);
        t.next_k = row == 0 ? b->next_k : b->k;
        t.next_v = row == 0 ? b->next_v : b->v;
        t.row = row;
        if (t.n == 0) continue;
        if (n_rows == 4)
            fold_tile(4, b, &t, row);
        else if (n_rows == 2)
            fold_tile(2, b, &t, row);
        else
            fold_tile(1, b, &t, row);
    }
}
