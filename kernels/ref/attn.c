/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention: the walk over rows and key blocks that all levels share (see attn_walk.h), the scalar level, and
 * the KV store.
 *
 * Scalar level: dot products in double, rounded once; everything else float. Error of an output element against
 * exact arithmetic: about (n_blocks + 4) * 2^-24 * max|v| for scores of ordinary size. */
#include "kernels/attn_walk.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- walk ---- */

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

size_t kern_attn_scratch_floats(const struct kern_attn *d) {
    return 2 * group_rows_cap(d) + 4 * KERN__ATTN_BLOCK +
           KERN__ATTN_BLOCK * (round_up16(d->head_dim_k) + round_up16(d->head_dim_v));
}

/* Points *k and *v at the keys of position pos. */
static void locate(const struct kern_attn *d, uint32_t kv_head, uint32_t pos, const void **k, const void **v) {
    size_t page = (size_t)d->pages[pos / d->page_tokens];
    size_t row = (page * d->n_kv_heads + kv_head) * d->page_tokens + pos % d->page_tokens;
    size_t elem = kern__kv_elem_bytes(d->kv_type);
    *k = (const char *)d->k + row * d->head_dim_k * elem;
    *v = (const char *)d->v + row * d->head_dim_v * elem;
}

/* Length of the block that starts at pos, itself a block start: pages are cut into ATTN_BLOCKs and a rest. */
static uint32_t block_keys(const struct kern_attn *d, uint32_t pos) {
    uint32_t in_page = d->page_tokens - pos % d->page_tokens;
    return in_page < KERN__ATTN_BLOCK ? in_page : KERN__ATTN_BLOCK;
}

static void group_start(const struct kern__attn_block *b) {
    for (uint32_t r = 0; r < b->n_rows; r++) {
        b->max[r] = -INFINITY;
        b->sum[r] = 0;
        memset(kern__attn_out(b, r), 0, b->d->head_dim_v * sizeof(float));
    }
}

static void group_finish(const struct kern__attn_block *b) {
    for (uint32_t r = 0; r < b->n_rows; r++) {
        float *out = kern__attn_out(b, r), inv = 1.0f / b->sum[r];
        for (uint32_t i = 0; i < b->d->head_dim_v; i++) out[i] *= inv;
    }
}

void kern__attn_walk(const struct kern_attn *d, uint32_t kv_head, kern__attn_block_fn fold) {
    uint32_t per = kern__attn_heads_per_kv(d), step = group_tokens(d);
    struct kern__attn_block b = { .d = d, .kv_head = kv_head, .max = d->scratch };
    b.sum = b.max + group_rows_cap(d);
    b.score = b.sum + group_rows_cap(d);
    b.k_f32 = b.score + 4 * KERN__ATTN_BLOCK;
    b.v_f32 = b.k_f32 + KERN__ATTN_BLOCK * round_up16(d->head_dim_k);

    for (b.t0 = 0; b.t0 < d->n_tokens; b.t0 += step) {
        uint32_t n_tokens = d->n_tokens - b.t0 < step ? d->n_tokens - b.t0 : step;
        uint32_t end = d->pos0 + b.t0 + n_tokens; /* one past the last position any row sees */
        b.n_rows = n_tokens * per;
        group_start(&b);
        locate(d, kv_head, 0, &b.next_k, &b.next_v);
        for (b.pos = 0; b.pos < end; b.pos += b.n_keys) {
            uint32_t n = block_keys(d, b.pos);
            b.n_keys = n < end - b.pos ? n : end - b.pos;
            b.k = b.next_k;
            b.v = b.next_v;
            b.next_k = b.next_v = NULL;
            if (b.pos + b.n_keys < end) locate(d, kv_head, b.pos + b.n_keys, &b.next_k, &b.next_v);
            fold(&b);
        }
        group_finish(&b);
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
    }
}

static void fold_row(const struct kern__attn_block *b, uint32_t row) {
    uint32_t dk = b->d->head_dim_k, dv = b->d->head_dim_v, n = kern__attn_visible(b, row);
    const float *q = kern__attn_q(b, row);
    float *out = kern__attn_out(b, row), *p = b->score, max = b->max[row];
    if (n == 0) return;

    for (uint32_t j = 0; j < n; j++) {
        double dot = 0;
        for (uint32_t i = 0; i < dk; i++) dot += (double)q[i] * (double)b->k_f32[(size_t)j * dk + i];
        p[j] = (float)dot * b->d->scale;
        if (p[j] > max) max = p[j];
    }
    float keep = expf(b->max[row] - max), sum = 0; /* 0 in the first block: max was -inf */
    for (uint32_t j = 0; j < n; j++) sum += p[j] = expf(p[j] - max);
    b->sum[row] = b->sum[row] * keep + sum;
    b->max[row] = max;
    for (uint32_t i = 0; i < dv; i++) {
        float acc = out[i] * keep;
        for (uint32_t j = 0; j < n; j++) acc += p[j] * b->v_f32[(size_t)j * dv + i];
        out[i] = acc;
    }
}

static void fold_scalar(const struct kern__attn_block *b) {
    kv_to_f32(b->d->kv_type, b->k, (size_t)b->n_keys * b->d->head_dim_k, b->k_f32);
    kv_to_f32(b->d->kv_type, b->v, (size_t)b->n_keys * b->d->head_dim_v, b->v_f32);
    for (uint32_t r = 0; r < b->n_rows; r++) fold_row(b, r);
}

void kern__attn_scalar(const struct kern_attn *d, uint32_t kv_head) {
    kern__attn_walk(d, kv_head, fold_scalar);
}

/* ---- store ---- */

static void f32_to_kv(enum kern_kv_type type, const float *src, size_t n, void *dst) {
    uint16_t *h = dst;
    switch (type) {
    case KERN_KV_F16:
        for (size_t i = 0; i < n; i++) h[i] = kern_f32_to_f16(src[i]);
        break;
    case KERN_KV_BF16:
        for (size_t i = 0; i < n; i++) h[i] = kern_f32_to_bf16(src[i]);
        break;
    case KERN_KV_F32:
        memcpy(dst, src, n * sizeof *src);
        break;
    }
}

void kern_kv_store(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v) {
    assert(page >= 0 && offset < d->page_tokens);
    size_t elem = kern__kv_elem_bytes(d->kv_type);
    for (uint32_t h = 0; h < d->n_kv_heads; h++) {
        size_t row = ((size_t)page * d->n_kv_heads + h) * d->page_tokens + offset;
        f32_to_kv(d->kv_type, k + (size_t)h * d->head_dim_k, d->head_dim_k,
                  (char *)d->k + row * d->head_dim_k * elem);
        f32_to_kv(d->kv_type, v + (size_t)h * d->head_dim_v, d->head_dim_v,
                  (char *)d->v + row * d->head_dim_v * elem);
    }
}
