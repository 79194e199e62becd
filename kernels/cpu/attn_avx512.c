/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, AVX-512. A tile is R query rows (8, 4, 2 or 1) that see the same keys of a block; a key loaded and
 * converted once serves R rows.
 *   scores  16 / R keys at a time: 16 accumulators over head_dim, then one transposing tree gives 16 sums
 *   softmax the tile's 32 R scores in 2 R registers
 *   values  R rows x C vectors of out stay in registers while the keys pass in order
 * The arithmetic of a row is that of ref/attn.c: it does not depend on R, on C or on the row's place in a tile. */
#include "kernels/cpu/attn_avx512.h"

struct tile {
    const struct kern__attn_block *b;
    uint32_t row;     /* first of the tile */
    float *out[8];
    float *p;         /* scores, then unnormalised probabilities, see attn_avx512.h */
    float keep[16];   /* what the earlier output of row r is multiplied by, at r * 16 / R */
    const char *k, *v;
    const char *next_k, *next_v; /* next block, to be prefetched by this tile; or this one */
    uint32_t n;       /* keys */
};

KERN__TILE __m512 load_kv(enum kern_kv_type type, const void *row, size_t i, __mmask16 m) {
    if (type == KERN_KV_F32) return _mm512_maskz_loadu_ps(m, (const float *)row + i);
    __m256i h = _mm256_maskz_loadu_epi16(m, (const uint16_t *)row + i);
    if (type == KERN_KV_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Lanes 4 x + y of quarter x: (a0+a2)+(a1+a3) of input y. */
KERN__TILE __m512 sum_quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

/* Lane i of the result: the sum of all lanes of a[i]. */
KERN__TILE __m512 sum16x16(const __m512 *a) {
    __m512 p = sum_quarters(a[0], a[1], a[2], a[3]), q = sum_quarters(a[4], a[5], a[6], a[7]);
    __m512 r = sum_quarters(a[8], a[9], a[10], a[11]), s = sum_quarters(a[12], a[13], a[14], a[15]);
    __m512 pq = _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xEE));
    __m512 rs = _mm512_add_ps(_mm512_shuffle_f32x4(r, s, 0x44), _mm512_shuffle_f32x4(r, s, 0xEE));
    return _mm512_add_ps(_mm512_shuffle_f32x4(pq, rs, 0x88), _mm512_shuffle_f32x4(pq, rs, 0xDD));
}

/* acc [R][16/R] += q . k over the elements of mask m from i on */
KERN__TILE void dot_step(enum kern_kv_type type, const int R, const float *query, const char *const *key, uint32_t i,
                          __mmask16 m, __m512 *acc) {
    const int J = 16 / R;
    __m512 q[8];
    KERN__UNROLL
    for (int r = 0; r < R; r++) q[r] = _mm512_loadu_ps(query + 16 * r);
    KERN__UNROLL
    for (int x = 0; x < J; x++) {
        __m512 k = load_kv(type, key[x], i, m);
        KERN__UNROLL
        for (int r = 0; r < R; r++) acc[r * J + x] = _mm512_fmadd_ps(q[r], k, acc[r * J + x]);
    }
}

/* Scores of keys j .. j + 16/R (the last key again where there are fewer) for R rows. */
KERN__TILE void score_keys(enum kern_kv_type type, const int R, const struct tile *t, uint32_t dim, uint32_t j) {
    const int J = 16 / R;
    size_t row_bytes = dim * kern__kv_elem_bytes(type);
    const char *key[16];
    __m512 acc[16];
    uint32_t i = 0;
    KERN__UNROLL
    for (int x = 0; x < J; x++) key[x] = t->k + (j + (uint32_t)x < t->n ? j + (uint32_t)x : t->n - 1) * row_bytes;
    KERN__UNROLL
    for (int x = 0; x < 16; x++) acc[x] = _mm512_setzero_ps();
    const size_t step_bytes = 16 * (size_t)J * kern__kv_elem_bytes(type);
    const float *q = kern__attn_q_f32(t->b, t->row, 0);
    const size_t q_step = 16 * (size_t)t->b->q_rows;
    const char *next_k = t->next_k + j * row_bytes;
    for (; i + 16 <= dim; i += 16, q += q_step, next_k += step_bytes) {
        kern__attn_prefetch(next_k, 0, step_bytes);
        dot_step(type, R, q, key, i, 0xFFFF, acc);
    }
    if (i < dim) dot_step(type, R, q, key, i, kern__mask16(dim - i), acc);

    _mm512_storeu_ps(t->p + j * (uint32_t)R, sum16x16(acc));
}

/* out[.., i .. i + 16 C) = out * keep + sum over keys p * v for R rows; m masks every vector's lanes. */
KERN__TILE void add_values(enum kern_kv_type type, const int R, const int C, const struct tile *t, uint32_t dim,
                            uint32_t i, __mmask16 m) {
    size_t row_bytes = dim * kern__kv_elem_bytes(type);
    const size_t step_bytes = 16 * (size_t)C * kern__kv_elem_bytes(type);
    const uint32_t J = 16 / (uint32_t)R;
    const char *row = t->v, *next_v = t->next_v;
    const uint32_t n = t->n;
    const float *probs = t->p;
    __m512 acc[16];
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) {
        __m512 o = _mm512_maskz_loadu_ps(m, t->out[x / C] + i + 16 * (x % C));
        acc[x] = _mm512_mul_ps(o, _mm512_set1_ps(t->keep[(uint32_t)(x / C) * J]));
    }
    next_v += i * n * kern__kv_elem_bytes(type);
    for (uint32_t j = 0; j < n; j++, row += row_bytes, next_v += step_bytes) {
        kern__attn_prefetch(next_v, 0, step_bytes);
        const float *p = probs + j / J * 16 + j % J;
        __m512 v[8];
        KERN__UNROLL
        for (int c = 0; c < C; c++) v[c] = load_kv(type, row, i + 16 * (uint32_t)c, m);
        KERN__UNROLL
        for (int x = 0; x < R * C; x++) acc[x] = _mm512_fmadd_ps(_mm512_set1_ps(p[(uint32_t)(x / C) * J]), v[x % C], acc[x]);
    }
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) _mm512_mask_storeu_ps(t->out[x / C] + i + 16 * (x % C), m, acc[x]);
}

KERN__TILE void fold_tile(enum kern_kv_type type, const int R, const struct kern__attn_block *b, struct tile *t,
                           uint32_t row) {
    uint32_t dim_k = b->d->head_dim_k, dim_v = b->d->head_dim_v, i = 0;
    for (int r = 0; r < R; r++) {
        t->out[r] = kern__attn_out(b, row + (uint32_t)r);
    }
    for (uint32_t j = 0; j < t->n; j += 16 / R) score_keys(type, R, t, dim_k, j);
    kern__softmax_tile(R, t->p, t->n, b->d->scale, b->max + row, b->sum + row, t->keep);
    const uint32_t wide = R == 8 ? 32 : R == 4 ? 64 : 128; /* 16 accumulators, 8 for one row */
    for (; i + wide <= dim_v; i += wide) add_values(type, R, (int)wide / 16, t, dim_v, i, 0xFFFF);
    for (; i + 16 <= dim_v; i += 16) add_values(type, R, 1, t, dim_v, i, 0xFFFF);
    if (i < dim_v) add_values(type, R, 1, t, dim_v, i, kern__mask16(dim_v - i));
}

KERN__TILE void fold_block(enum kern_kv_type type, const struct kern__attn_block *b) {
    struct tile t = { .b = b, .p = b->score, .k = b->k, .v = b->v };
    for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
        n_rows = kern__attn_tile_rows(b, row, 8);
        t.n = kern__attn_visible(b, row);
        t.next_k = row == 0 ? b->next_k : b->k;
        t.next_v = row == 0 ? b->next_v : b->v;
        t.row = row;
        if (t.n == 0) continue;
        if (n_rows == 8)
            fold_tile(type, 8, b, &t, row);
        else if (n_rows == 4)
            fold_tile(type, 4, b, &t, row);
        else if (n_rows == 2)
            fold_tile(type, 2, b, &t, row);
        else
            fold_tile(type, 1, b, &t, row);
    }
}

static void fold_f32(const struct kern__attn_block *b) { fold_block(KERN_KV_F32, b); }
static void fold_f16(const struct kern__attn_block *b) { fold_block(KERN_KV_F16, b); }
static void fold_bf16(const struct kern__attn_block *b) { fold_block(KERN_KV_BF16, b); }

void kern__attn_avx512(const struct kern_attn *d, uint32_t kv_head) {
    static const kern__attn_block_fn folds[] = {
        [KERN_KV_F16] = fold_f16, [KERN_KV_BF16] = fold_bf16, [KERN_KV_F32] = fold_f32, [KERN_KV_Q8] = kern__attn_q8_avx512,
    };
    kern__attn_walk(d, kv_head, folds[d->kv_type]);
}
