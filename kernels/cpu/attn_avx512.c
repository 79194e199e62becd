/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, AVX-512. A tile is R query rows (4, 2 or 1) that see the same keys of a block; a key loaded and
 * converted once serves R rows.
 *   scores  16 / R keys at a time: 16 accumulators over head_dim, then one transposing tree gives 16 sums
 *   softmax the block's 32 scores in two registers
 *   values  R rows x C vectors of out stay in registers while the keys pass in order
 * The tree adds lanes as (((0+2)+(1+3)) of each quarter), then quarters 0+2, 1+3: the same for each of the 16, so
 * a score's bits do not depend on R or on its place in the tile. The same goes for C in the value step.
 *
 * Error of an output element: about (head_dim / 16 + 6) * 2^-24 relative in each score's sum of |q k|, exp 1 ulp,
 * and (n_keys / 32 + 4) * 2^-24 * max|v|. */
#include "kernels/attn_walk.h"
#include "kernels/cpu/vec_avx512.h"

#include <string.h>

struct tile {
    const float *q[4];
    float *out[4];
    float *p[4];      /* scores, then unnormalised probabilities, [KERN__ATTN_BLOCK] */
    float keep[4];    /* what the earlier sum and output are multiplied by          */
    const char *k, *v;
    const char *next_k, *next_v; /* next block, to be prefetched by this tile; or NULL */
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
KERN__TILE void dot_step(enum kern_kv_type type, const int R, const struct tile *t, const char *const *key, uint32_t i,
                          __mmask16 m, __m512 *acc) {
    const int J = 16 / R;
    __m512 q[4];
    KERN__UNROLL
    for (int r = 0; r < R; r++) q[r] = _mm512_maskz_loadu_ps(m, t->q[r] + i);
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
    size_t step_bytes = 16 * (size_t)J * kern__kv_elem_bytes(type);
    for (; i + 16 <= dim; i += 16) {
        kern__attn_prefetch(t->next_k, j * row_bytes + i / 16 * step_bytes, step_bytes);
        dot_step(type, R, t, key, i, 0xFFFF, acc);
    }
    if (i < dim) dot_step(type, R, t, key, i, kern__mask16(dim - i), acc);

    float sums[16] __attribute__((aligned(64)));
    _mm512_store_ps(sums, sum16x16(acc));
    KERN__UNROLL
    for (int r = 0; r < R; r++) memcpy(t->p[r] + j, sums + r * J, (size_t)J * sizeof *sums);
}

/* Turns the scores p into exp(score * scale - max); returns what the row's past must be multiplied by. */
KERN__TILE float softmax_step(float *p, uint32_t n, float scale, float *max, float *sum) {
    __mmask16 m0 = kern__mask16(n), m1 = n > 16 ? kern__mask16(n - 16) : 0;
    __m512 none = _mm512_set1_ps(-INFINITY), vs = _mm512_set1_ps(scale);
    __m512 s0 = _mm512_mask_mul_ps(none, m0, _mm512_loadu_ps(p), vs);
    __m512 s1 = _mm512_mask_mul_ps(none, m1, _mm512_loadu_ps(p + 16), vs);
    float old = *max, now = _mm512_reduce_max_ps(_mm512_max_ps(s0, s1));
    if (!(now > old)) now = old;
    __m512 vm = _mm512_set1_ps(now);
    s0 = _mm512_maskz_mov_ps(m0, kern__exp16(_mm512_sub_ps(s0, vm)));
    s1 = _mm512_maskz_mov_ps(m1, kern__exp16(_mm512_sub_ps(s1, vm)));
    _mm512_storeu_ps(p, s0);
    _mm512_storeu_ps(p + 16, s1);
    float keep = now == old ? 1 : _mm512_cvtss_f32(kern__exp16(_mm512_set1_ps(old - now)));
    *sum = *sum * keep + _mm512_reduce_add_ps(_mm512_add_ps(s0, s1));
    *max = now;
    return keep;
}

/* out[.., i .. i + 16 C) = out * keep + sum over keys p * v for R rows; m masks every vector's lanes. */
KERN__TILE void add_values(enum kern_kv_type type, const int R, const int C, const struct tile *t, uint32_t dim,
                            uint32_t i, __mmask16 m) {
    size_t row_bytes = dim * kern__kv_elem_bytes(type);
    size_t step_bytes = 16 * (size_t)C * kern__kv_elem_bytes(type);
    const char *row = t->v;
    __m512 acc[16];
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) {
        __m512 o = _mm512_maskz_loadu_ps(m, t->out[x / C] + i + 16 * (x % C));
        acc[x] = _mm512_mul_ps(o, _mm512_set1_ps(t->keep[x / C]));
    }
    for (uint32_t j = 0; j < t->n; j++, row += row_bytes) {
        kern__attn_prefetch(t->next_v, i * t->n * kern__kv_elem_bytes(type) + j * step_bytes, step_bytes);
        __m512 v[8];
        KERN__UNROLL
        for (int c = 0; c < C; c++) v[c] = load_kv(type, row, i + 16 * (uint32_t)c, m);
        KERN__UNROLL
        for (int x = 0; x < R * C; x++) acc[x] = _mm512_fmadd_ps(_mm512_set1_ps(t->p[x / C][j]), v[x % C], acc[x]);
    }
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) _mm512_mask_storeu_ps(t->out[x / C] + i + 16 * (x % C), m, acc[x]);
}

KERN__TILE void fold_tile(enum kern_kv_type type, const int R, const struct kern__attn_block *b, struct tile *t,
                           uint32_t row) {
    uint32_t dim_k = b->d->head_dim_k, dim_v = b->d->head_dim_v, i = 0;
    for (int r = 0; r < R; r++) {
        t->q[r] = kern__attn_q(b, row + (uint32_t)r);
        t->out[r] = kern__attn_out(b, row + (uint32_t)r);
        t->p[r] = b->score + r * KERN__ATTN_BLOCK;
    }
    for (uint32_t j = 0; j < t->n; j += 16 / R) score_keys(type, R, t, dim_k, j);
    for (int r = 0; r < R; r++)
        t->keep[r] = softmax_step(t->p[r], t->n, b->d->scale, &b->max[row + (uint32_t)r], &b->sum[row + (uint32_t)r]);
    if (R < 4)
        for (; i + 128 <= dim_v; i += 128) add_values(type, R, R < 4 ? 8 : 4, t, dim_v, i, 0xFFFF);
    for (; i + 64 <= dim_v; i += 64) add_values(type, R, 4, t, dim_v, i, 0xFFFF);
    for (; i + 16 <= dim_v; i += 16) add_values(type, R, 1, t, dim_v, i, 0xFFFF);
    if (i < dim_v) add_values(type, R, 1, t, dim_v, i, kern__mask16(dim_v - i));
}

KERN__TILE void fold_block(enum kern_kv_type type, const struct kern__attn_block *b, const void *k, const void *v) {
    struct tile t = { .k = k, .v = v };
    for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
        n_rows = kern__attn_run(b, row, 4);
        n_rows = n_rows == 3 ? 2 : n_rows;
        t.n = kern__attn_visible(b, row);
        t.next_k = row == 0 && type == b->d->kv_type ? b->next_k : NULL;
        t.next_v = row == 0 && type == b->d->kv_type ? b->next_v : NULL;
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
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = kern__mask16(n - i);
        _mm512_mask_storeu_ps(dst + i, m, load_kv(type, src, i, m));
    }
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

void kern__attn_avx512(const struct kern_attn *d, uint32_t kv_head) {
    kern__attn_walk(d, kv_head, d->kv_type == KERN_KV_F32 ? fold_f32 : d->kv_type == KERN_KV_F16 ? fold_f16 : fold_bf16);
}
