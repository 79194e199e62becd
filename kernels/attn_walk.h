/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of attention that no instruction set changes: which query rows meet which keys, in which order.
 * Folder-private. A level supplies one function that folds one block of keys into a group of rows; the walk
 * calls it block by block in position order, merges the segments and divides by the softmax sums at the end.
 *
 * Row r of a group is (token t0 + r / heads_per_kv, query head r % heads_per_kv of the kv head). A group is small
 * enough that its queries, outputs and the key block stay in L1 and L2, and large enough that a long prompt reads
 * the KV cache once per GROUP_ROWS rows and not once per token.
 *
 * Invariance: a block covers fixed positions (at most ATTN_BLOCK within one page), and a row of position p sees
 * min(n_keys, p + 1 - block start) keys of it. What a row computes is therefore a function of its own position
 * and its own q; how rows are grouped only decides who shares a loaded key. */
#ifndef MOED_KERNELS_ATTN_WALK_H
#define MOED_KERNELS_ATTN_WALK_H

#include "kernels/internal.h"

enum {
    KERN__ATTN_BLOCK = 32,
    KERN__ATTN_GROUP_ROWS = 64,
    KERN__ATTN_TILE_ROWS = 8,   /* most rows a level folds at a time */
    KERN__ATTN_W16 = 32767,     /* KERN_KV_Q8: the largest weight of a block becomes this, 32 x 127 x it fits an int32 */
};

/* Blocks whose largest weight is below this add nothing: KERN__ATTN_W16 / weight must stay finite. */
#define KERN__ATTN_W_TINY 0x1p-100f

struct kern__attn_block {
    const struct kern_attn *d;
    uint32_t kv_head;
    const void *k, *v;           /* first key and value of the block, kv_type; rows adjacent        */
    const void *next_k, *next_v; /* those of the next block, worth a prefetch; at the end, the same */
    uint32_t n_keys;             /* 1 .. KERN__ATTN_BLOCK; the last row may see all of them         */
    uint32_t pos;                /* of the first key                                                */
    uint32_t t0, n_rows;         /* first token (index in the call) and rows of the group           */
    const float *k_scale, *v_scale; /* KERN_KV_Q8: [n_keys]                                          */
    const char *q;               /* see kern__attn_q_f32                                            */
    uint32_t q_rows;
    const float *q_scale;        /* KERN_KV_Q8: [n_rows], attention scale included                  */
    float *max, *sum;            /* [n_rows] running maximum and sum of the online softmax          */
    float *out;                  /* of token t0 and the first head; the segment's weighted sum so far  */
    size_t out_stride;           /* floats between tokens                                           */
    float *score;                /* [KERN__ATTN_TILE_ROWS][KERN__ATTN_BLOCK], 64-byte aligned       */
    float *k_f32, *v_f32;        /* [KERN__ATTN_BLOCK][head_dim] scratch                            */
};

/* KERN_KV_Q8, for every level: score = (q16 . k) * (q_scale * k_scale); with w = p * v_scale over the block,
 * w16 = round(w * (KERN__ATTN_W16 / max w)) and out = out * keep + (w16 . v) * (max w / KERN__ATTN_W16). */
typedef void (*kern__attn_block_fn)(const struct kern__attn_block *b);

void kern__attn_walk(const struct kern_attn *d, uint32_t kv_head, kern__attn_block_fn fold);

KERN_INLINE uint32_t kern__attn_heads_per_kv(const struct kern_attn *d) {
    return d->n_heads / d->n_kv_heads;
}

KERN_INLINE size_t kern__kv_elem_bytes(enum kern_kv_type t) {
    return t == KERN_KV_F32 ? 4 : t == KERN_KV_Q8 ? 1 : 2;
}

/* Of the int8 rows of one (page, kv head): where its scales begin. */
KERN_INLINE size_t kern__kv_scales_at(uint32_t page_tokens, uint32_t dim) {
    return ((size_t)page_tokens * dim + 3) & ~(size_t)3;
}

/* 64 bytes of the queries of `row` from element i on, of `row` + 1 in the next 64 and so on: a tile needs one pointer
 * for all its rows. 16 floats, or 32 int16 for KERN_KV_Q8 (i a multiple of that); zero beyond head_dim_k. */
KERN_INLINE const float *kern__attn_q_f32(const struct kern__attn_block *b, uint32_t row, uint32_t i) {
    return (const float *)(const void *)b->q + ((size_t)i / 16 * b->q_rows + row) * 16;
}
KERN_INLINE const int16_t *kern__attn_q_i16(const struct kern__attn_block *b, uint32_t row, uint32_t i) {
    return (const int16_t *)(const void *)b->q + ((size_t)i / 32 * b->q_rows + row) * 32;
}

KERN_INLINE float *kern__attn_out(const struct kern__attn_block *b, uint32_t row) {
    uint32_t per = kern__attn_heads_per_kv(b->d);
    return b->out + row / per * b->out_stride + (size_t)(row % per) * b->d->head_dim_v;
}

/* Keys of this block that `row` may see; 0 when the block lies in its future. */
KERN_INLINE uint32_t kern__attn_visible(const struct kern__attn_block *b, uint32_t row) {
    uint32_t end = b->d->pos0 + b->t0 + row / kern__attn_heads_per_kv(b->d) + 1;
    if (end <= b->pos) return 0;
    return end - b->pos < b->n_keys ? end - b->pos : b->n_keys;
}

/* Brings bytes [first, first + n) of the next block to L2 (L1 is full of this one). The hardware prefetchers stop at
 * every page of the table: without this, decode at 4k context streams the cache at half of memory speed. The tiles ask
 * for a few lines per step, because a core keeps only some 20 to 50 misses in flight and a burst would stall it.
 * `block` is never NULL: where there is no next one it is the block at hand, which costs less than to ask. */
KERN_INLINE void kern__attn_prefetch(const char *block, size_t first, const size_t n) {
    KERN__UNROLL
    for (size_t i = 0; i < n; i += 64) __builtin_prefetch(block + first + i, 0, 2);
}

/* Rows from `row` on, at most `cap`, that see the same number of keys, so that one tile can take them. */
KERN_INLINE uint32_t kern__attn_run(const struct kern__attn_block *b, uint32_t row, uint32_t cap) {
    uint32_t n = 1, keys = kern__attn_visible(b, row);
    while (n < cap && row + n < b->n_rows && kern__attn_visible(b, row + n) == keys) n++;
    return n;
}

/* The same rounded down to a power of two: the tile shapes there are. */
KERN_INLINE uint32_t kern__attn_tile_rows(const struct kern__attn_block *b, uint32_t row, uint32_t most) {
    uint32_t n = kern__attn_run(b, row, most), rows = 1;
    while (2 * rows <= n) rows *= 2;
    return rows;
}

void kern__attn_q8_scalar(const struct kern__attn_block *b);
void kern__attn_q8_avx2(const struct kern__attn_block *b);
void kern__attn_q8_avx512(const struct kern__attn_block *b);

/* ---- kv_store ---- */

/* x [n] -> row in the format `type`; *scale for KERN_KV_Q8 only. */
typedef void (*kern__kv_row_fn)(enum kern_kv_type type, const float *x, uint32_t n, void *row, float *scale);

void kern__kv_store_rows(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v,
                         kern__kv_row_fn row);

#endif
