/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention: the walk over rows, segments and key blocks that all levels share (see attn_walk.h), and the scalar
 * level, whose arithmetic is that of every level. For one query row and one block of up to 32 keys:
 *   score    product i is added to lane i % 16 by fma in order; in each quarter of the lanes (l0 + l2) + (l1 + l3), of the
 *            quarters (Q0 + Q2) + (Q1 + Q3); then times the attention scale
 *   softmax  now = max(old, the block's scores), p = kern__exp(score - now), 0 beyond the last key; of the 32 p halves are
 *            added: j + 16, j + 8, j + 4, j + 2, j + 1; keep = kern__exp(old - now), sum = sum * keep + the block's
 *   values   out = out * keep, then fma(p, v, out) key by key
 * KERN_KV_Q8: see attn_walk.h; products with the cache are integer, out = fma(product, unit, out * keep).
 *
 * Error of an output element: about (head_dim / 16 + 6) * 2^-24 relative in each score's sum of |q k|, exp 1 ulp,
 * and (n_keys / 32 + 4) * 2^-24 * max|v|. */
#include "kernels/attn_walk.h"
#include "kernels/ref/exp.h"

#include <float.h>
#include <string.h>

/* ---- sizes ---- */

static size_t round_up16(size_t n) {
    return (n + 15) & ~(size_t)15;
}

static uint32_t group_tokens(const struct kern_attn *d) {
    uint32_t t = KERN__ATTN_GROUP_ROWS / kern__attn_heads_per_kv(d);
    return t ? t : 1;
}

static size_t group_rows_cap(const struct kern_attn *d) {
    return round_up16((size_t)group_tokens(d) * kern__attn_heads_per_kv(d));
}

/* Floats of 64-byte vectors that hold head_dim_k elements of q. */
static size_t q_floats(const struct kern_attn *d) {
    return d->kv_type == KERN_KV_Q8 ? (d->head_dim_k + (size_t)31) / 32 * 16 : round_up16(d->head_dim_k);
}

size_t kern_attn_scratch_floats(const struct kern_attn *d) {
    return group_rows_cap(d) * (5 + d->head_dim_v + q_floats(d)) + KERN__ATTN_TILE_ROWS * KERN__ATTN_BLOCK +
           KERN__ATTN_BLOCK * (round_up16(d->head_dim_k) + round_up16(d->head_dim_v));
}

static size_t call_rows(const struct kern_attn *d) {
    return (size_t)d->n_tokens * kern__attn_heads_per_kv(d);
}

size_t kern_attn_part_floats(const struct kern_attn *d) {
    return round_up16(call_rows(d) * (2 + (size_t)d->head_dim_v));
}

/* ---- KV addresses ---- */

static size_t head_page_bytes(enum kern_kv_type type, uint32_t page_tokens, uint32_t dim) {
    if (type != KERN_KV_Q8) return (size_t)page_tokens * dim * kern__kv_elem_bytes(type);
    return kern__kv_scales_at(page_tokens, dim) + page_tokens * sizeof(float);
}

size_t kern_kv_page_bytes(enum kern_kv_type type, uint32_t page_tokens, uint32_t n_kv_heads, uint32_t head_dim) {
    return n_kv_heads * head_page_bytes(type, page_tokens, head_dim);
}

/* The next block of b starts at position pos. */
static void locate(struct kern__attn_block *b, uint32_t pos) {
    const struct kern_attn *d = b->d;
    uint32_t slot = pos % d->page_tokens, dk = d->head_dim_k, dv = d->head_dim_v;
    size_t run = (size_t)d->pages[pos / d->page_tokens] * d->n_kv_heads + b->kv_head, elem = kern__kv_elem_bytes(d->kv_type);
    b->next_k = (const char *)d->k + run * head_page_bytes(d->kv_type, d->page_tokens, dk) + slot * dk * elem;
    b->next_v = (const char *)d->v + run * head_page_bytes(d->kv_type, d->page_tokens, dv) + slot * dv * elem;
}

static const float *scale_of(const struct kern_attn *d, const void *rows, uint32_t slot, uint32_t dim) {
    const char *page = (const char *)rows - (size_t)slot * dim;
    return (const float *)(const void *)(page + kern__kv_scales_at(d->page_tokens, dim)) + slot;
}

/* ---- walk ---- */

/* Length of the block that starts at pos, itself a block start: pages and segments are cut into ATTN_BLOCKs and a rest. */
static uint32_t block_keys(const struct kern_attn *d, uint32_t pos) {
    uint32_t n = d->page_tokens - pos % d->page_tokens, in_segment = KERN_ATTN_SEGMENT - pos % KERN_ATTN_SEGMENT;
    n = n < in_segment ? n : in_segment;
    return n < KERN__ATTN_BLOCK ? n : KERN__ATTN_BLOCK;
}

/* Folds the keys of the segment that starts at pos, up to `end`, into the state that b points at. Keys up to `end` are
 * worth a prefetch even where they belong to the next segment. */
static void fold_segment(struct kern__attn_block *b, uint32_t pos, uint32_t end, kern__attn_block_fn fold) {
    const struct kern_attn *d = b->d;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        b->max[r] = -INFINITY;
        b->sum[r] = 0;
        memset(kern__attn_out(b, r), 0, d->head_dim_v * sizeof(float));
    }
    const uint32_t stop = end - pos < KERN_ATTN_SEGMENT ? end : pos + KERN_ATTN_SEGMENT;
    locate(b, pos);
    for (b->pos = pos; b->pos < stop; b->pos += b->n_keys) {
        uint32_t n = block_keys(d, b->pos), slot = b->pos % d->page_tokens;
        b->n_keys = n < end - b->pos ? n : end - b->pos;
        b->k = b->next_k;
        b->v = b->next_v;
        if (d->kv_type == KERN_KV_Q8) {
            b->k_scale = scale_of(d, b->k, slot, d->head_dim_k);
            b->v_scale = scale_of(d, b->v, slot, d->head_dim_v);
        }
        if (b->pos + b->n_keys < end) locate(b, b->pos + b->n_keys);
        fold(b);
    }
}

/* The state (max, sum, out) of a row takes in that of its next segment. */
static void merge_row(float *max, float *sum, float *out, float seg_max, float seg_sum, const float *seg_out, uint32_t dim) {
    float top = seg_max > *max ? seg_max : *max;
    float keep = kern__exp(*max - top), take = kern__exp(seg_max - top);
    *max = top;
    *sum = *sum * keep + seg_sum * take;
    for (uint32_t i = 0; i < dim; i++) out[i] = out[i] * keep + seg_out[i] * take;
}

static void finish_row(float *out, float sum, uint32_t dim) {
    float inv = 1.0f / sum;
    for (uint32_t i = 0; i < dim; i++) out[i] *= inv;
}

/* Segment 0 goes straight to out, so short contexts pay nothing for the others. */
static void all_segments(struct kern__attn_block *b, uint32_t end, float *state, kern__attn_block_fn fold) {
    const uint32_t per = kern__attn_heads_per_kv(b->d), dim = b->d->head_dim_v;
    const size_t cap = group_rows_cap(b->d);
    struct kern__attn_block whole = *b;
    whole.max = state;
    whole.sum = state + cap;
    whole.out = b->d->out + b->t0 * b->d->out_stride + (size_t)b->kv_head * per * dim;
    whole.out_stride = b->d->out_stride;
    fold_segment(&whole, 0, end, fold);
    b->max = state + 2 * cap;
    b->sum = state + 3 * cap;
    b->out = state + 4 * cap;
    b->out_stride = (size_t)per * dim;
    for (uint32_t pos = KERN_ATTN_SEGMENT; pos < end; pos += KERN_ATTN_SEGMENT) {
        fold_segment(b, pos, end, fold);
        for (uint32_t r = 0; r < b->n_rows; r++) /* rows before the segment do not see it */
            if (b->d->pos0 + b->t0 + r / per >= pos)
                merge_row(&whole.max[r], &whole.sum[r], kern__attn_out(&whole, r), b->max[r], b->sum[r],
                          kern__attn_out(b, r), dim);
    }
    for (uint32_t r = 0; r < b->n_rows; r++) finish_row(kern__attn_out(&whole, r), whole.sum[r], dim);
}

static void one_segment(struct kern__attn_block *b, uint32_t end, kern__attn_block_fn fold) {
    const struct kern_attn *d = b->d;
    const size_t rows = call_rows(d), per = kern__attn_heads_per_kv(d), row0 = b->t0 * per;
    const uint32_t pos = d->segment * KERN_ATTN_SEGMENT;
    if (pos >= end) return;
    b->max = d->part + row0;
    b->sum = d->part + rows + row0;
    b->out = d->part + 2 * rows + row0 * d->head_dim_v;
    b->out_stride = per * d->head_dim_v;
    fold_segment(b, pos, end - pos < KERN_ATTN_SEGMENT ? end : pos + KERN_ATTN_SEGMENT, fold);
}

void kern_attn_merge(const struct kern_attn *d, uint32_t kv_head, const float *parts) {
    const size_t rows = call_rows(d), per = kern__attn_heads_per_kv(d), size = kern_attn_part_floats(d);
    const uint32_t dim = d->head_dim_v;
    for (size_t r = 0; r < rows; r++) {
        float *out = d->out + r / per * d->out_stride + (kv_head * per + r % per) * dim;
        float max = parts[r], sum = parts[rows + r];
        const uint32_t n = kern_attn_segments(d->pos0 + (uint32_t)(r / per) + 1);
        memcpy(out, parts + 2 * rows + r * dim, dim * sizeof *out);
        for (uint32_t s = 1; s < n; s++) {
            const float *part = parts + s * size;
            merge_row(&max, &sum, out, part[r], part[rows + r], part + 2 * rows + r * dim, dim);
        }
        finish_row(out, sum, dim);
    }
}

static const float *query(const struct kern__attn_block *b, uint32_t row) {
    uint32_t per = kern__attn_heads_per_kv(b->d);
    size_t head = (size_t)b->kv_head * per + row % per;
    return b->d->q + (b->t0 + row / per) * b->d->q_stride + head * b->d->head_dim_k;
}

static void pack_q(const struct kern__attn_block *b, float *dst) {
    const uint32_t dim = b->d->head_dim_k;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const float *q = query(b, r);
        for (uint32_t i = 0; i < dim; i += 16) {
            float *v = dst + ((size_t)i / 16 * b->q_rows + r) * 16;
            memcpy(v, q + i, (dim - i < 16 ? dim - i : 16) * sizeof *v);
            if (dim - i < 16) memset(v + dim - i, 0, (16 - (dim - i)) * sizeof *v);
        }
    }
}

/* q as 16-bit integers, as many of the 15 bits as keep a product with head_dim_k int8 within an int32. */
static void quantize_q(const struct kern__attn_block *b, int16_t *dst, float *scale) {
    const uint32_t dim = b->d->head_dim_k;
    const int32_t fits = INT32_MAX / 127 / (int32_t)dim;
    const float most = fits < INT16_MAX ? (float)fits : (float)INT16_MAX, magic = 0x1.8p23f; /* adding it rounds to an integer */
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const float *q = query(b, r);
        float max = 0;
        bool finite = true;
        for (uint32_t i = 0; i < dim; i++) {
            finite &= fabsf(q[i]) <= FLT_MAX;
            max = fabsf(q[i]) > max ? fabsf(q[i]) : max;
        }
        const bool zero = !finite || max < KERN__Q8_TINY;
        const float inv = zero ? 0 : most / max;
        scale[r] = !finite ? NAN : zero ? 0 : max / most * b->d->scale;
        for (uint32_t i = 0; i < ((dim + 31) & ~31u); i++)
            dst[((size_t)i / 32 * b->q_rows + r) * 32 + i % 32] =
                zero || i >= dim ? 0 : (int16_t)(int32_t)(q[i] * inv + magic - magic);
    }
}

void kern__attn_walk(const struct kern_attn *d, uint32_t kv_head, kern__attn_block_fn fold) {
    const size_t cap = group_rows_cap(d);
    uint32_t per = kern__attn_heads_per_kv(d), step = group_tokens(d);
    struct kern__attn_block b = { .d = d, .kv_head = kv_head, .score = d->scratch, .q_rows = (uint32_t)cap };
    b.k_f32 = b.score + KERN__ATTN_TILE_ROWS * KERN__ATTN_BLOCK;
    b.v_f32 = b.k_f32 + KERN__ATTN_BLOCK * round_up16(d->head_dim_k);
    float *state = b.v_f32 + KERN__ATTN_BLOCK * round_up16(d->head_dim_v);
    float *q_scale = state + cap * (4 + (size_t)d->head_dim_v), *q = q_scale + cap;
    b.q_scale = q_scale;
    b.q = (const char *)q;
    for (b.t0 = 0; b.t0 < d->n_tokens; b.t0 += step) {
        uint32_t n_tokens = d->n_tokens - b.t0 < step ? d->n_tokens - b.t0 : step;
        uint32_t end = d->pos0 + b.t0 + n_tokens; /* one past the last position any row sees */
        b.n_rows = n_tokens * per;
        if (d->kv_type == KERN_KV_Q8)
            quantize_q(&b, (int16_t *)(void *)q, q_scale);
        else
            pack_q(&b, q);
        if (d->part)
            one_segment(&b, end, fold);
        else
            all_segments(&b, end, state, fold);
    }
}

/* ---- scalar level ---- */

static void kv_to_f32(enum kern_kv_type type, const void *src, size_t n, float *dst) {
    const uint16_t *h = src;
    switch (type) {
    case KERN_KV_F16:
        for (size_t i = 0; i < n; i++) dst[i] = kern_f16_to_f32(h[i]);
        break;
    case KERN_KV_BF16:
        for (size_t i = 0; i < n; i++) dst[i] = kern_bf16_to_f32(h[i]);
        break;
    case KERN_KV_F32:
        memcpy(dst, src, n * sizeof *dst);
        break;
    case KERN_KV_Q8: /* never converted: its products are integer */
        break;
    }
}

static float score(const struct kern__attn_block *b, uint32_t row, const float *key) {
    const uint32_t dim = b->d->head_dim_k;
    float lane[16] = { 0 }, quarter[4];
    for (uint32_t i = 0; i < dim; i += 16) {
        const float *q = kern__attn_q_f32(b, row, i);
        for (uint32_t l = 0; l < 16 && i + l < dim; l++) lane[l] = fmaf(q[l], key[i + l], lane[l]);
    }
    for (int x = 0; x < 4; x++) quarter[x] = (lane[4 * x] + lane[4 * x + 2]) + (lane[4 * x + 1] + lane[4 * x + 3]);
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* Scores p of `row` become exp(p - max); returns what the row's past must be multiplied by. */
static float softmax(const struct kern__attn_block *b, uint32_t row, float *p, uint32_t n) {
    float max = b->max[row], sum[KERN__ATTN_BLOCK] = { 0 };
    for (uint32_t j = 0; j < n; j++) max = p[j] > max ? p[j] : max;
    float keep = kern__exp(b->max[row] - max); /* 0 in the first block: max was -inf */
    for (uint32_t j = 0; j < n; j++) sum[j] = p[j] = kern__exp(p[j] - max);
    for (uint32_t half = KERN__ATTN_BLOCK / 2; half; half /= 2)
        for (uint32_t j = 0; j < half; j++) sum[j] += sum[j + half];
    b->sum[row] = b->sum[row] * keep + sum[0];
    b->max[row] = max;
    return keep;
}

static void fold_row(const struct kern__attn_block *b, uint32_t row) {
    uint32_t dk = b->d->head_dim_k, dv = b->d->head_dim_v, n = kern__attn_visible(b, row);
    float *out = kern__attn_out(b, row), *p = b->score;
    if (n == 0) return;

    for (uint32_t j = 0; j < n; j++) p[j] = score(b, row, b->k_f32 + (size_t)j * dk) * b->d->scale;
    float keep = softmax(b, row, p, n);
    for (uint32_t i = 0; i < dv; i++) {
        float acc = out[i] * keep;
        for (uint32_t j = 0; j < n; j++) acc = fmaf(p[j], b->v_f32[(size_t)j * dv + i], acc);
        out[i] = acc;
    }
}

static void fold_float(const struct kern__attn_block *b) {
    kv_to_f32(b->d->kv_type, b->k, (size_t)b->n_keys * b->d->head_dim_k, b->k_f32);
    kv_to_f32(b->d->kv_type, b->v, (size_t)b->n_keys * b->d->head_dim_v, b->v_f32);
    for (uint32_t r = 0; r < b->n_rows; r++) fold_row(b, r);
}

/* Weights p * v_scale in 16 bits; returns what one unit is worth. */
static float quantize_weights(const struct kern__attn_block *b, const float *p, uint32_t n, int32_t *w16) {
    float max = 0;
    bool nan = false;
    for (uint32_t j = 0; j < n; j++) {
        float w = p[j] * b->v_scale[j];
        nan |= isnan(w);
        max = w > max ? w : max;
    }
    float inv = nan || max < KERN__ATTN_W_TINY ? 0 : KERN__ATTN_W16 / max;
    for (uint32_t j = 0; j < n; j++) w16[j] = inv > 0 ? (int32_t)lrintf(p[j] * b->v_scale[j] * inv) : 0;
    return nan ? NAN : inv > 0 ? max / KERN__ATTN_W16 : 0;
}

static void fold_row_q8(const struct kern__attn_block *b, uint32_t row) {
    uint32_t dk = b->d->head_dim_k, dv = b->d->head_dim_v, n = kern__attn_visible(b, row);
    const int8_t *k = b->k, *v = b->v;
    float *out = kern__attn_out(b, row), *p = b->score;
    int32_t w16[KERN__ATTN_BLOCK];
    if (n == 0) return;

    for (uint32_t j = 0; j < n; j++) {
        int32_t dot = 0;
        for (uint32_t i = 0; i < dk; i++) dot += kern__attn_q_i16(b, row, i)[i % 32] * k[(size_t)j * dk + i];
        p[j] = (float)dot * (b->q_scale[row] * b->k_scale[j]);
    }
    float keep = softmax(b, row, p, n), unit = quantize_weights(b, p, n, w16);
    for (uint32_t i = 0; i < dv; i++) {
        int32_t acc = 0;
        for (uint32_t j = 0; j < n; j++) acc += w16[j] * v[(size_t)j * dv + i];
        out[i] = fmaf((float)acc, unit, out[i] * keep);
    }
}

void kern__attn_q8_scalar(const struct kern__attn_block *b) {
    for (uint32_t r = 0; r < b->n_rows; r++) fold_row_q8(b, r);
}

void kern__attn_scalar(const struct kern_attn *d, uint32_t kv_head) {
    kern__attn_walk(d, kv_head, d->kv_type == KERN_KV_Q8 ? kern__attn_q8_scalar : fold_float);
}
