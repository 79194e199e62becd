/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, AVX2: the plan of attn_avx512.c with half the lanes and half the registers. A tile is R query rows
 * (4, 2 or 1) that see the same keys of a block.
 *   scores  8 / R keys at a time: 8 accumulators over head_dim, once for lanes 0 to 7 and once for 8 to 15, since both
 *           would not fit the registers (one row: both for half of the keys); a transposing tree gives the quarters' sums,
 *           then these are added
 *   softmax the block's 32 scores in four registers
 *   values  R rows x C vectors of out stay in registers while the keys pass in order */
#include "kernels/cpu/attn_avx2.h"

#include <string.h>

struct tile {
    const struct kern__attn_block *b;
    uint32_t row;     /* first of the tile */
    float *out[4];
    float *p[4];      /* scores, then unnormalised probabilities, [KERN__ATTN_BLOCK] */
    float keep[4];    /* what the earlier sum and output are multiplied by          */
    const char *k, *v;
    const char *next_k, *next_v; /* next block, to be prefetched by this tile; or this one */
    uint32_t n;       /* keys */
};

/* Elements i .. i + n (n <= 8) of a K or V row, 0 beyond. There is no masked 16-bit load: short ones are copied. */
KERN__TILE __m256 load_kv(enum kern_kv_type type, const void *row, size_t i, uint32_t n) {
    if (type == KERN_KV_F32)
        return n == 8 ? _mm256_loadu_ps((const float *)row + i) : _mm256_maskload_ps((const float *)row + i, kern__mask8(n));
    const uint16_t *src = (const uint16_t *)row + i;
    uint16_t part[8] = { 0 };
    if (n < 8) src = memcpy(part, src, n * sizeof *src);
    __m128i h = _mm_loadu_si128((const __m128i *)src);
    if (type == KERN_KV_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

KERN__TILE __m256 load_f32(const float *x, uint32_t n) {
    return n == 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, kern__mask8(n));
}

KERN__TILE void store_f32(float *x, uint32_t n, __m256 v) {
    if (n == 8)
        _mm256_storeu_ps(x, v);
    else
        _mm256_maskstore_ps(x, kern__mask8(n), v);
}

/* Lanes 4 x + y of half x: (a0+a2)+(a1+a3) of input y. */
KERN__TILE __m256 sum_quarters(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256d x = _mm256_castps_pd(ab), y = _mm256_castps_pd(cd);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}

/* acc [R][8/R] += q . k over elements i .. i + n */
KERN__TILE void dot_step(enum kern_kv_type type, const int R, const struct tile *t, const char *const *key, uint32_t i,
                          uint32_t n, __m256 *acc) {
    const int J = 8 / R;
    KERN__UNROLL
    for (int x = 0; x < J; x++) {
        __m256 k = load_kv(type, key[x], i, n);
        KERN__UNROLL
        for (int r = 0; r < R; r++) acc[r * J + x] = _mm256_fmadd_ps(_mm256_loadu_ps(kern__attn_q_f32(t->b, t->row, i) + i % 16 + 16 * r), k, acc[r * J + x]);
    }
}

/* half [2][2]: sums of the quarters of lanes 0 to 7 and of 8 to 15, of the first and the last four of 8 scores. One half of the
 * lanes after the other, each for all scores. */
KERN__TILE void dot_by_lanes(enum kern_kv_type type, const int R, const struct tile *t, const char *const *key, uint32_t dim,
                             const char *next_k, __m256 (*half)[2]) {
    const size_t step_bytes = 64 / (size_t)R * kern__kv_elem_bytes(type);
    KERN__UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        __m256 acc[8];
        uint32_t i = 8 * h;
        KERN__UNROLL
        for (int x = 0; x < 8; x++) acc[x] = _mm256_setzero_ps();
        for (; i + 8 <= dim; i += 16, next_k += step_bytes) {
            kern__attn_prefetch(next_k, 0, step_bytes);
            dot_step(type, R, t, key, i, 8, acc);
        }
        if (i < dim) dot_step(type, R, t, key, i, dim - i, acc);
        half[h][0] = sum_quarters(acc[0], acc[1], acc[2], acc[3]);
        half[h][1] = sum_quarters(acc[4], acc[5], acc[6], acc[7]);
    }
}

/* acc [4] += q . k of one row and four keys */
KERN__TILE void dot_four(enum kern_kv_type type, const struct tile *t, const char *const *key, uint32_t i, uint32_t n, __m256 *acc) {
    __m256 q = _mm256_loadu_ps(kern__attn_q_f32(t->b, t->row, i) + i % 16);
    KERN__UNROLL
    for (int x = 0; x < 4; x++) acc[x] = _mm256_fmadd_ps(q, load_kv(type, key[x], i, n), acc[x]);
}

/* The same for one row, four keys after the other four: a key that comes from memory is then read in one go. */
KERN__TILE void dot_by_keys(enum kern_kv_type type, const struct tile *t, const char *const *key, uint32_t dim, const char *next_k,
                            __m256 (*half)[2]) {
    const size_t step_bytes = 64 * kern__kv_elem_bytes(type);
    KERN__UNROLL
    for (int g = 0; g < 2; g++) {
        __m256 lo[4], hi[4];
        KERN__UNROLL
        for (int x = 0; x < 4; x++) lo[x] = hi[x] = _mm256_setzero_ps();
        uint32_t i = 0;
        for (; i + 16 <= dim; i += 16, next_k += step_bytes) {
            kern__attn_prefetch(next_k, 0, step_bytes);
            dot_four(type, t, key + 4 * g, i, 8, lo);
            dot_four(type, t, key + 4 * g, i + 8, 8, hi);
        }
        if (i < dim) dot_four(type, t, key + 4 * g, i, dim - i < 8 ? dim - i : 8, lo);
        if (i + 8 < dim) dot_four(type, t, key + 4 * g, i + 8, dim - i - 8, hi);
        half[0][g] = sum_quarters(lo[0], lo[1], lo[2], lo[3]);
        half[1][g] = sum_quarters(hi[0], hi[1], hi[2], hi[3]);
    }
}

/* Scores of keys j .. j + 8/R (the last key again where there are fewer) for R rows. */
KERN__TILE void score_keys(enum kern_kv_type type, const int R, const struct tile *t, uint32_t dim, uint32_t j) {
    const int J = 8 / R;
    const size_t row_bytes = dim * kern__kv_elem_bytes(type);
    const char *key[8], *next_k = t->next_k + j * row_bytes;
    __m256 half[2][2];
    KERN__UNROLL
    for (int x = 0; x < J; x++) key[x] = t->k + (j + (uint32_t)x < t->n ? j + (uint32_t)x : t->n - 1) * row_bytes;
    if (R == 1)
        dot_by_keys(type, t, key, dim, next_k, half);
    else
        dot_by_lanes(type, R, t, key, dim, next_k, half);
    __m256 a = _mm256_add_ps(half[0][0], half[1][0]), b = _mm256_add_ps(half[0][1], half[1][1]);
    float sums[8] __attribute__((aligned(32)));
    _mm256_store_ps(sums, _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
    KERN__UNROLL
    for (int r = 0; r < R; r++) memcpy(t->p[r] + j, sums + r * J, (size_t)J * sizeof *sums);
}

/* out[.., i .. i + 8 C) = out * keep + sum over keys p * v for R rows; n < 8 elements only with C = 1. */
KERN__TILE void add_values(enum kern_kv_type type, const int R, const int C, const struct tile *t, uint32_t dim,
                            uint32_t i, uint32_t n) {
    size_t row_bytes = dim * kern__kv_elem_bytes(type);
    const size_t step_bytes = 8 * (size_t)C * kern__kv_elem_bytes(type);
    const char *row = t->v;
    __m256 acc[8];
    KERN__UNROLL
    for (int x = 0; x < R * C; x++)
        acc[x] = _mm256_mul_ps(load_f32(t->out[x / C] + i + 8 * (x % C), n), _mm256_set1_ps(t->keep[x / C]));
    for (uint32_t j = 0; j < t->n; j++, row += row_bytes) {
        kern__attn_prefetch(t->next_v, i * t->n * kern__kv_elem_bytes(type) + j * step_bytes, step_bytes);
        __m256 v[8];
        KERN__UNROLL
        for (int c = 0; c < C; c++) v[c] = load_kv(type, row, i + 8 * (uint32_t)c, n);
        KERN__UNROLL
        for (int x = 0; x < R * C; x++) acc[x] = _mm256_fmadd_ps(_mm256_broadcast_ss(t->p[x / C] + j), v[x % C], acc[x]);
    }
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) store_f32(t->out[x / C] + i + 8 * (x % C), n, acc[x]);
}

KERN__TILE void fold_tile(enum kern_kv_type type, const int R, const struct kern__attn_block *b, struct tile *t,
                           uint32_t row) {
    const uint32_t wide = R == 1 ? 64 : R == 2 ? 32 : 16; /* 8 accumulators */
    uint32_t dim_k = b->d->head_dim_k, dim_v = b->d->head_dim_v, i = 0;
    for (int r = 0; r < R; r++) {
        t->out[r] = kern__attn_out(b, row + (uint32_t)r);
        t->p[r] = b->score + r * KERN__ATTN_BLOCK;
    }
    for (uint32_t j = 0; j < t->n; j += 8 / R) score_keys(type, R, t, dim_k, j);
    for (int r = 0; r < R; r++)
        t->keep[r] = kern__softmax_row(t->p[r], t->n, b->d->scale, &b->max[row + (uint32_t)r], &b->sum[row + (uint32_t)r]);
    for (; i + wide <= dim_v; i += wide) add_values(type, R, 8 / R, t, dim_v, i, 8);
    for (; i + 8 <= dim_v; i += 8) add_values(type, R, 1, t, dim_v, i, 8);
    if (i < dim_v) add_values(type, R, 1, t, dim_v, i, dim_v - i);
}

KERN__TILE void fold_block(enum kern_kv_type type, const struct kern__attn_block *b, const void *k, const void *v) {
    struct tile t = { .b = b, .k = k, .v = v };
    for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
        n_rows = kern__attn_tile_rows(b, row, 4);
        t.n = kern__attn_visible(b, row);
        t.next_k = row == 0 && type == b->d->kv_type ? b->next_k : k;
        t.next_v = row == 0 && type == b->d->kv_type ? b->next_v : v;
        t.row = row;
        if (t.n == 0) continue;
        if (n_rows == 4)
            fold_tile(type, 4, b, &t, row);
        else if (n_rows == 2)
            fold_tile(type, 2, b, &t, row);
        else
            fold_tile(type, 1, b, &t, row);
    }
}

KERN__TILE void kv_to_f32(enum kern_kv_type type, const void *src, size_t n, float *dst) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, load_kv(type, src, i, 8));
    if (i < n) store_f32(dst + i, (uint32_t)(n - i), load_kv(type, src, i, (uint32_t)(n - i)));
}

/* Conversion is exact, so converting the block beforehand changes no bit; it pays from a few tiles on. */
KERN__TILE void fold_16bit(enum kern_kv_type type, const struct kern__attn_block *b) {
    enum { CONVERT_MIN_ROWS = 16 };
    if (b->n_rows < CONVERT_MIN_ROWS) {
        fold_block(type, b, b->k, b->v);
        return;
    }
    kv_to_f32(type, b->k, (size_t)b->n_keys * b->d->head_dim_k, b->k_f32);
    kv_to_f32(type, b->v, (size_t)b->n_keys * b->d->head_dim_v, b->v_f32);
    fold_block(KERN_KV_F32, b, b->k_f32, b->v_f32);
}

static void fold_f32(const struct kern__attn_block *b) { fold_block(KERN_KV_F32, b, b->k, b->v); }
static void fold_f16(const struct kern__attn_block *b) { fold_16bit(KERN_KV_F16, b); }
static void fold_bf16(const struct kern__attn_block *b) { fold_16bit(KERN_KV_BF16, b); }

void kern__attn_avx2(const struct kern_attn *d, uint32_t kv_head) {
    static const kern__attn_block_fn folds[] = {
        [KERN_KV_F16] = fold_f16, [KERN_KV_BF16] = fold_bf16, [KERN_KV_F32] = fold_f32, [KERN_KV_Q8] = kern__attn_q8_avx2,
    };
    kern__attn_walk(d, kv_head, folds[d->kv_type]);
}
