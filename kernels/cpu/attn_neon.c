/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention for aarch64. A block of keys and values is converted to float once per group of rows (exact), then tiles
 * of R query rows (4 or 1) that see the same keys pass over it:
 *   scores  one key at a time: four accumulators of 4 lanes per row over head_dim
 *   softmax the block's 32 scores in eight registers
 *   values  R rows x 16 elements of out stay in registers while the keys pass in order
 * A row does the operations of ref/attn.c in any tile. */
#include "kernels/attn_walk.h"
#include "kernels/cpu/vec_neon.h"

#include <string.h>

struct tile {
    const struct kern__attn_block *b;
    uint32_t row;  /* first of the tile */
    float *out[4];
    float *p[4];   /* scores, then unnormalised probabilities, [KERN__ATTN_BLOCK] */
    float keep[4]; /* what the earlier sum and output are multiplied by          */
    const float *k, *v;
    uint32_t n;    /* keys */
};

/* acc [R][4] += q . key over elements i .. i + n; n < 16 only at the end, where q is zero beyond */
KERN__TILE void dot_step(const int R, const struct tile *t, const float *key, uint32_t i, uint32_t n, float32x4_t *acc) {
    float part[16] = { 0 };
    const float *query = kern__attn_q_f32(t->b, t->row, i);
    key += i;
    if (n < 16) key = memcpy(part, key, n * sizeof *key);
    KERN__UNROLL
    for (int x = 0; x < 4; x++) {
        float32x4_t k = vld1q_f32(key + 4 * x);
        KERN__UNROLL
        for (int r = 0; r < R; r++) acc[4 * r + x] = vfmaq_f32(acc[4 * r + x], vld1q_f32(query + 16 * r + 4 * x), k);
    }
}

/* Dots of R rows with one key. */
KERN__TILE void score_key(const int R, const struct tile *t, uint32_t dim, uint32_t j) {
    const float *key = t->k + (size_t)j * dim;
    float32x4_t acc[16];
    uint32_t i = 0;
    KERN__UNROLL
    for (int x = 0; x < 4 * R; x++) acc[x] = vdupq_n_f32(0);
    for (; i + 16 <= dim; i += 16) dot_step(R, t, key, i, 16, acc);
    if (i < dim) dot_step(R, t, key, i, dim - i, acc);
    KERN__UNROLL
    for (int r = 0; r < R; r++) t->p[r][j] = kern__sum4(kern__sum4x4(acc[4 * r], acc[4 * r + 1], acc[4 * r + 2], acc[4 * r + 3]));
}

/* Turns the scores p into exp(score * scale - max); returns what the row's past must be multiplied by. */
static float softmax_step(float *p, uint32_t n, float scale, float *max, float *sum) {
    float32x4_t s[8], top = vdupq_n_f32(-INFINITY);
    for (uint32_t j = n; j < KERN__ATTN_BLOCK; j++) p[j] = -INFINITY; /* exp gives 0 */
    for (int x = 0; x < 8; x++) {
        s[x] = vmulq_n_f32(vld1q_f32(p + 4 * x), scale);
        top = vmaxq_f32(top, s[x]);
    }
    float old = *max, now = vmaxvq_f32(top);
    if (!(now > old)) now = old;
    for (int x = 0; x < 8; x++) {
        s[x] = kern__exp4(vsubq_f32(s[x], vdupq_n_f32(now)));
        vst1q_f32(p + 4 * x, s[x]);
    }
    for (int half = 4; half; half /= 2)
        for (int x = 0; x < half; x++) s[x] = vaddq_f32(s[x], s[x + half]);
    float keep = now == old ? 1 : vgetq_lane_f32(kern__exp4(vdupq_n_f32(old - now)), 0);
    *sum = *sum * keep + kern__sum4(s[0]);
    *max = now;
    return keep;
}

/* out[.., i .. i + 4 C) = out * keep + sum over keys p * v for R rows. */
KERN__TILE void add_values(const int R, const int C, const struct tile *t, uint32_t dim, uint32_t i) {
    const float *v = t->v + i;
    float32x4_t acc[16];
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) acc[x] = vmulq_n_f32(vld1q_f32(t->out[x / C] + i + 4 * (x % C)), t->keep[x / C]);
    for (uint32_t j = 0; j < t->n; j++, v += dim) {
        float32x4_t part[4];
        KERN__UNROLL
        for (int c = 0; c < C; c++) part[c] = vld1q_f32(v + 4 * c);
        KERN__UNROLL
        for (int x = 0; x < R * C; x++) acc[x] = vfmaq_n_f32(acc[x], part[x % C], t->p[x / C][j]);
    }
    KERN__UNROLL
    for (int x = 0; x < R * C; x++) vst1q_f32(t->out[x / C] + i + 4 * (x % C), acc[x]);
}

/* Element i of one row: what a lane of add_values does. */
static void add_value(const struct tile *t, int r, uint32_t dim, uint32_t i) {
    float acc = t->out[r][i] * t->keep[r];
    for (uint32_t j = 0; j < t->n; j++) acc = fmaf(t->v[(size_t)j * dim + i], t->p[r][j], acc);
    t->out[r][i] = acc;
}

KERN__TILE void fold_tile(const int R, const struct kern__attn_block *b, struct tile *t, uint32_t row) {
    uint32_t dim_k = b->d->head_dim_k, dim_v = b->d->head_dim_v, i = 0;
    for (int r = 0; r < R; r++) {
        t->out[r] = kern__attn_out(b, row + (uint32_t)r);
        t->p[r] = b->score + r * KERN__ATTN_BLOCK;
    }
    for (uint32_t j = 0; j < t->n; j++) score_key(R, t, dim_k, j);
    for (int r = 0; r < R; r++)
        t->keep[r] = softmax_step(t->p[r], t->n, b->d->scale, &b->max[row + (uint32_t)r], &b->sum[row + (uint32_t)r]);
    for (; i + 16 <= dim_v; i += 16) add_values(R, 4, t, dim_v, i);
    for (; i + 4 <= dim_v; i += 4) add_values(R, 1, t, dim_v, i);
    for (; i < dim_v; i++)
        for (int r = 0; r < R; r++) add_value(t, r, dim_v, i);
}

/* n elements of a K or V block as float, in `room` unless they are. */
static const float *as_f32(enum kern_kv_type type, const void *src, size_t n, float *room) {
    if (type == KERN_KV_F32) return src;
    const uint16_t *h = src;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint16x4_t v = vld1_u16(h + i);
        vst1q_f32(room + i, type == KERN_KV_F16 ? vcvt_f32_f16(vreinterpret_f16_u16(v))
                                                : vreinterpretq_f32_u32(vshll_n_u16(v, 16)));
    }
    for (; i < n; i++) room[i] = type == KERN_KV_F16 ? kern_f16_to_f32(h[i]) : kern_bf16_to_f32(h[i]);
    return room;
}

static void fold_neon(const struct kern__attn_block *b) {
    struct tile t = { .b = b };
    t.k = as_f32(b->d->kv_type, b->k, (size_t)b->n_keys * b->d->head_dim_k, b->k_f32);
    t.v = as_f32(b->d->kv_type, b->v, (size_t)b->n_keys * b->d->head_dim_v, b->v_f32);
    for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
        n_rows = kern__attn_run(b, row, 4) == 4 ? 4 : 1;
        t.n = kern__attn_visible(b, row);
        t.row = row;
        if (t.n == 0) continue;
        if (n_rows == 4)
            fold_tile(4, b, &t, row);
        else
            fold_tile(1, b, &t, row);
    }
}

void kern__attn_neon(const struct kern_attn *d, uint32_t kv_head) {
    kern__attn_walk(d, kv_head, d->kv_type == KERN_KV_Q8 ? kern__attn_q8_scalar : fold_neon);
}

void kern__kv_store_neon(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v) {
    kern__kv_store_scalar(d, page, offset, k, v);
}
