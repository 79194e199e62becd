/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal grouped-query attention over a paged KV cache, online softmax, one KV page (in blocks of up to 32 positions)
 * at a time in position order. The rounding therefore depends on page_tokens, which is fixed for a process.
 * KV layout of one layer: K [page][kv_head][page_tokens][head_dim_k], V the same with head_dim_v. In KERN_KV_Q8 the
 * [page_tokens][head_dim] int8 of a (page, kv head) are followed by their [page_tokens] float scales.
 *
 * The keys are cut by position into segments of KERN_ATTN_SEGMENT. Each has an online softmax of its own, and they are
 * merged in order; so the segments of one long sequence may be computed anywhere (kern_attn.part) without changing a
 * bit. The arithmetic for (token, head) depends only on its own KV 0..pos, never on which other tokens are in the
 * call or on who computes which segment. */
#ifndef MOED_KERNELS_ATTN_H
#define MOED_KERNELS_ATTN_H

#include <stddef.h>
#include <stdint.h>

/* Q8: int8 with one float scale, max|x| / 127, per (position, kv head). Products with it are integer sums: q and the
 * weights of a block are rounded to 16 bits, 256 times finer than the cache itself. Quality on the demo model, float
 * activations, against an F32 cache: top-1 98.6 %, KL 6.6e-4 nats, logits off by 3.0 % of their deviation (scales per 32
 * would give 4.9e-4 and 2.3 %; 8-bit activations alone cost 3.5e-3). tests/unit/engine_demo.c holds it to that. */
enum kern_kv_type { KERN_KV_F16, KERN_KV_BF16, KERN_KV_F32, KERN_KV_Q8 };

enum { KERN_ATTN_SEGMENT = 1024 };

/* Attention of n_tokens consecutive tokens of one sequence (positions pos0 ..) for the heads of one kv head. */
struct kern_attn {
    enum kern_kv_type kv_type;
    const void *k, *v;           /* whole pools of this layer                                          */
    const int32_t *pages;        /* page table of the sequence: page of positions [i*page_tokens, ...) */
    uint32_t page_tokens;
    uint32_t n_heads, n_kv_heads;
    uint32_t head_dim_k, head_dim_v;
    float scale;
    const float *q;              /* [n_tokens, n_heads, head_dim_k]: first token of the call           */
    size_t q_stride;             /* floats between tokens                                              */
    float *out;                  /* [n_tokens, n_heads, head_dim_v]; accumulator, so it must not alias q   */
    size_t out_stride;
    uint32_t pos0, n_tokens;
    float *scratch;              /* private to the call, kern_attn_scratch_floats(d) floats, 64-byte aligned */
    float *part;                 /* NULL: all segments. Else `segment` alone: its state, kern_attn_part_floats(d) floats */
    uint32_t segment;            /* starts at or before the last position of the call                  */
};

size_t kern_attn_scratch_floats(const struct kern_attn *d);

/* Computes out for all n_tokens and the n_heads / n_kv_heads query heads of kv_head. */
typedef void (*kern_attn_fn)(const struct kern_attn *d, uint32_t kv_head);

/* Of a sequence of n positions. */
static inline uint32_t kern_attn_segments(uint32_t n) {
    return n / KERN_ATTN_SEGMENT + (n % KERN_ATTN_SEGMENT != 0);
}

/* Size of one part: a multiple of 16. Depends on the head counts, head_dim_v and n_tokens. */
size_t kern_attn_part_floats(const struct kern_attn *d);

/* out from the parts [kern_attn_segments(pos0 + n_tokens)][kern_attn_part_floats(d)] of one kv head: the bits that
 * one call without part gives. d->part is not looked at. */
void kern_attn_merge(const struct kern_attn *d, uint32_t kv_head, const float *parts);

/* Bytes of K (or V) of one page of one layer. */
size_t kern_kv_page_bytes(enum kern_kv_type type, uint32_t page_tokens, uint32_t n_kv_heads, uint32_t head_dim);

/* Stores one token's k [n_kv_heads, head_dim_k] and v [n_kv_heads, head_dim_v] at slot `offset` of `page`. Rounds to
 * nearest even; every level gives the same bits. Q8: a row with a non-finite element gets scale NaN and zeros, so the
 * fault stays visible; a row below 2^-100 becomes zero. */
struct kern_kv_store {
    enum kern_kv_type kv_type;
    void *k, *v;
    uint32_t page_tokens, n_kv_heads, head_dim_k, head_dim_v;
};
typedef void (*kern_kv_store_fn)(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k,
                                 const float *v);

#endif
