/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of attention that no instruction set changes: which query rows meet which keys, in which order.
 * Folder-private. A level supplies one function that folds one block of keys into a group of rows; the walk
 * calls it block by block in position order and divides by the softmax sums at the end.
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

enum { KERN__ATTN_BLOCK = 32, KERN__ATTN_GROUP_ROWS = 64 };

struct kern__attn_block {
    const struct kern_attn *d;
    uint32_t kv_head;
    const void *k, *v;           /* first key and value of the block, kv_type; rows adjacent        */
    const void *next_k, *next_v; /* those of the next block, worth a prefetch; NULL at the end      */
    uint32_t n_keys;             /* 1 .. KERN__ATTN_BLOCK; the last row may see all of them         */
    uint32_t pos;                /* of the first key                                                */
    uint32_t t0, n_rows;         /* first token (index in the call) and rows of the group           */
    float *max, *sum;            /* [n_rows] running maximum and sum of the online softmax          */
    float *score;                /* [4][KERN__ATTN_BLOCK] for up to four rows at a time             */
    float *k_f32, *v_f32;        /* [KERN__ATTN_BLOCK][head_dim] scratch                            */
};

typedef void (*kern__attn_block_fn)(const struct kern__attn_block *b);

void kern__attn_walk(const struct kern_attn *d, uint32_t kv_head, kern__attn_block_fn fold);

KERN_INLINE uint32_t kern__attn_heads_per_kv(const struct kern_attn *d) {
    return d->n_heads / d->n_kv_heads;
}

KERN_INLINE size_t kern__kv_elem_bytes(enum kern_kv_type t) {
    return t == KERN_KV_F32 ? 4 : 2;
}

KERN_INLINE const float *kern__attn_q(const struct kern__attn_block *b, uint32_t row) {
    uint32_t per = kern__attn_heads_per_kv(b->d);
    size_t head = (size_t)b->kv_head * per + row % per;
    return b->d->q + (b->t0 + row / per) * b->d->q_stride + head * b->d->head_dim_k;
}

KERN_INLINE float *kern__attn_out(const struct kern__attn_block *b, uint32_t row) {
    uint32_t per = kern__attn_heads_per_kv(b->d);
    size_t head = (size_t)b->kv_head * per + row % per;
    return b->d->out + (b->t0 + row / per) * b->d->out_stride + head * b->d->head_dim_v;
}

/* Keys of this block that `row` may see; 0 when the block lies in its future. */
KERN_INLINE uint32_t kern__attn_visible(const struct kern__attn_block *b, uint32_t row) {
    uint32_t end = b->d->pos0 + b->t0 + row / kern__attn_heads_per_kv(b->d) + 1;
    if (end <= b->pos) return 0;
    return end - b->pos < b->n_keys ? end - b->pos : b->n_keys;
}

/* Brings the cache lines that start in bytes [first, first + n) of the next block to L2 (L1 is full of this one);
 * block NULL = nothing. The hardware prefetchers stop at every page of the table: without this, decode at 4k context
 * streams the cache at half of memory speed. The tiles ask for a few lines per step, because a core keeps only some
 * 20 to 50 misses in flight and a burst would stall it. */
KERN_INLINE void kern__attn_prefetch(const char *block, size_t first, size_t n) {
    for (size_t i = (first + 63) & ~(size_t)63; block && i < first + n; i += 64) __builtin_prefetch(block + i, 0, 2);
}

/* Rows from `row` on, at most `cap`, that see the same number of keys, so that one tile can take them. */
KERN_INLINE uint32_t kern__attn_run(const struct kern__attn_block *b, uint32_t row, uint32_t cap) {
    uint32_t n = 1, keys = kern__attn_visible(b, row);
    while (n < cap && row + n < b->n_rows && kern__attn_visible(b, row + n) == keys) n++;
    return n;
}

#endif
