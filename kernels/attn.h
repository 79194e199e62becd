/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal grouped-query attention over a paged KV cache, online softmax, one KV page (in blocks of up to 32 positions)
 * at a time in position order. The rounding therefore depends on page_tokens, which is fixed for a process.
 * KV layout of one layer: K [page][kv_head][page_tokens][head_dim_k], V the same with head_dim_v.
 * The arithmetic for (token, head) depends only on its own KV 0..pos, never on which other tokens are in the call. */
#ifndef MOED_KERNELS_ATTN_H
#define MOED_KERNELS_ATTN_H

#include <stddef.h>
#include <stdint.h>

enum kern_kv_type { KERN_KV_F16, KERN_KV_BF16, KERN_KV_F32 };

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
};

size_t kern_attn_scratch_floats(const struct kern_attn *d);

/* Computes out for all n_tokens and the n_heads / n_kv_heads query heads of kv_head. */
typedef void (*kern_attn_fn)(const struct kern_attn *d, uint32_t kv_head);

/* Stores one token's k [n_kv_heads, head_dim_k] and v [n_kv_heads, head_dim_v] at slot `offset` of `page`. */
struct kern_kv_store {
    enum kern_kv_type kv_type;
    void *k, *v;
    uint32_t page_tokens, n_kv_heads, head_dim_k, head_dim_v;
};
void kern_kv_store(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v);

#endif
