/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product with weights in the packed layout (pack.h), the part that the vector levels share; each includes it
 * once, after gemm_panel.h. The layout is the panel's LAYOUT_WORDS already, so a block of ROWS rows is decoded from
 * whole vectors without a shuffle. Few tokens: decoded in registers, multiplied at once, one walk over the rows, which
 * is one sequential stream from DRAM. Many tokens: a chunk is decoded into a panel as gemm_panel.h does.
 * Both do the operations of ref/gemm.c in its order.
 *
 * To be defined before: FUSED_EVERY (up to 8) and FUSED_TOKENS (8 or 16), see FUSED below, packed_dot(kind, alone,
 * block, x, bias) = dot of a block and one token, the only one if `alone`, in units of the activation's d, v_bytes (ROWS bytes to 32 bits), h_load, vf_zero, vf_set1,
 * vf_madd(a, b, c) = fma, vf_store. */
#ifndef MOED_KERNELS_CPU_GEMM_PACKED_H
#define MOED_KERNELS_CPU_GEMM_PACKED_H

#include "kernels/cpu/gemm_panel.h"

enum {
    PACKED_AHEAD = 4096, /* bytes from decoding to prefetch, L1 */
};

/* Compile-time facts of a format. */
VEC_FN size_t block_bytes(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_Q4_0: return sizeof(struct block_q4_0);
    case DTYPE_Q4_1: return sizeof(struct block_q4_1);
    case DTYPE_Q5_0: return sizeof(struct block_q5_0);
    case DTYPE_Q5_1: return sizeof(struct block_q5_1);
    case DTYPE_Q8_0: return sizeof(struct block_q8_0);
    case DTYPE_Q4_K: return sizeof(struct block_q4_k);
    case DTYPE_Q5_K: return sizeof(struct block_q5_k);
    case DTYPE_Q6_K: return sizeof(struct block_q6_k);
    case DTYPE_IQ4_NL: return sizeof(struct block_iq4_nl);
    case DTYPE_IQ4_XS: return sizeof(struct block_iq4_xs);
    case DTYPE_MXFP4: return sizeof(struct block_mxfp4);
    default: return 0;
    }
}

VEC_FN unsigned block_parts(enum dtype dtype) {
    return block_bytes(dtype) > sizeof(struct block_q8_0) ? 8 : 1; /* of 32 weights */
}

/* Words at offset o .. o + 4 n - 1 of the blocks in a group; `first` picks ROWS of its 16 rows. */
VEC_FN void packed_words(const uint8_t *group, unsigned first, size_t o, int n, vec *out) {
    for (int i = 0; i < n; i++)
        out[i] = v_load(group + KERN_PACK_ROWS * (o + 4 * (size_t)i) + 4 * first);
}

VEC_FN vecf packed_halfs(const uint8_t *group, unsigned first, size_t o) {
    return h_to_float(h_load(group + KERN_PACK_ROWS * o + 2 * first));
}

VEC_FN void packed_nibbles(const uint8_t *group, unsigned first, size_t o, vec code[8]) {
    packed_words(group, first, o, 4, code);
    for (int i = 0; i < 4; i++) {
        code[4 + i] = nibble_high(code[i]);
        code[i] = nibble_low(code[i]);
    }
}

/* Sub-block j of Q4_K or Q5_K: a nibble of 32 bytes that it shares with sub-block j ^ 1. */
VEC_FN void packed_k_nibbles(const uint8_t *group, unsigned first, size_t qs, unsigned j, vec code[8]) {
    packed_words(group, first, qs + j / 2 * 32, 8, code);
    for (int i = 0; i < 8; i++)
        code[i] = j % 2 ? nibble_high(code[i]) : nibble_low(code[i]);
}

VEC_FN void packed_fifth(const uint8_t *group, unsigned first, size_t qh, vec code[8]) {
    vec v;
    packed_words(group, first, qh, 1, &v);
    fifth_bits(LAYOUT_WORDS, v, code);
}

VEC_FN void packed_q5_k(const uint8_t *group, unsigned first, unsigned j, vec code[8]) {
    vec high[8];
    packed_k_nibbles(group, first, offsetof(struct block_q5_k, qs), j, code);
    packed_words(group, first, offsetof(struct block_q5_k, qh), 8, high);
    for (int i = 0; i < 8; i++)
        code[i] = v_or(code[i], bit_to_4(high[i], j));
}

VEC_FN void packed_q6_k(const uint8_t *group, unsigned first, unsigned j, vec code[8]) {
    vec high[8], top = v_set1_8(0x30);
    packed_words(group, first, j / 4 * 64 + j % 2 * 32, 8, code);
    packed_words(group, first, offsetof(struct block_q6_k, qh) + j / 4 * 32, 8, high);
    for (int i = 0; i < 8; i++) {
        vec low = j % 4 < 2 ? nibble_low(code[i]) : nibble_high(code[i]);
        vec two = j % 4 == 0   ? v_sll16(high[i], 4)
                  : j % 4 == 1 ? v_sll16(high[i], 2)
                  : j % 4 == 2 ? high[i]
                               : v_srl16(high[i], 2);
        code[i] = v_or(low, v_and(two, top));
    }
}

/* Codes of sub-block j (0 where the block is 32 weights) as in the panel. */
KERN__TILE void packed_codes(enum dtype dtype, const uint8_t *group, unsigned first, unsigned j, vec code[8]) {
    switch (dtype) {
    case DTYPE_Q4_0: packed_nibbles(group, first, offsetof(struct block_q4_0, qs), code); break;
    case DTYPE_Q4_1: packed_nibbles(group, first, offsetof(struct block_q4_1, qs), code); break;
    case DTYPE_Q5_0:
        packed_nibbles(group, first, offsetof(struct block_q5_0, qs), code);
        packed_fifth(group, first, offsetof(struct block_q5_0, qh), code);
        break;
    case DTYPE_Q5_1:
        packed_nibbles(group, first, offsetof(struct block_q5_1, qs), code);
        packed_fifth(group, first, offsetof(struct block_q5_1, qh), code);
        break;
    case DTYPE_Q8_0:
        packed_words(group, first, offsetof(struct block_q8_0, qs), 8, code);
        flip_bytes(code);
        break;
    case DTYPE_IQ4_NL:
        packed_nibbles(group, first, offsetof(struct block_iq4_nl, qs), code);
        look_up(iq4_table(), code);
        break;
    case DTYPE_IQ4_XS:
        packed_nibbles(group, first, offsetof(struct block_iq4_xs, qs) + 16 * j, code);
        look_up(iq4_table(), code);
        break;
    case DTYPE_MXFP4:
        packed_nibbles(group, first, offsetof(struct block_mxfp4, qs), code);
        look_up(mxfp4_table(), code);
        break;
    case DTYPE_Q4_K: packed_k_nibbles(group, first, offsetof(struct block_q4_k, qs), j, code); break;
    case DTYPE_Q5_K: packed_q5_k(group, first, j, code); break;
    case DTYPE_Q6_K: packed_q6_k(group, first, j, code); break;
    default: break;
    }
}

KERN__TILE void packed_scales(enum dtype dtype, const uint8_t *group, unsigned first, unsigned j, struct panel_block *to) {
    vec w[4];
    switch (dtype) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        packed_words(group, first, 0, 1, w);
        to->d = v_halfs(w[0]);
        to->m = v_halfs(v_srl32(w[0], 16));
        break;
    case DTYPE_MXFP4: to->d = v_e8m0(v_bytes(group + first)); break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        packed_words(group, first, 0, 4, w);
        k_scale(w, j, to);
        break;
    case DTYPE_Q6_K:
        packed_words(group, first, offsetof(struct block_q6_k, scales) + j / 2 * 4, 1, w);
        q6_scale(w[0], packed_halfs(group, first, offsetof(struct block_q6_k, d)), j, to);
        break;
    case DTYPE_IQ4_XS:
        packed_words(group, first, 0, 2, w);
        to->d = iq4_xs_scale(w, j);
        break;
    default: to->d = packed_halfs(group, first, 0); break;
    }
}

VEC_FN void packed_block(enum dtype dtype, const uint8_t *group, unsigned first, unsigned j, struct panel_block *to) {
    packed_codes(dtype, group, first, j, to->code);
    packed_scales(dtype, group, first, j, to);
}

/* ROWS whole rows and a few tokens. */
struct stream {
    const uint8_t *w;  /* the group of the first block                   */
    unsigned first;
    bool ahead;        /* prefetch: the first walk over these 16 rows    */
    uint32_t n_blocks; /* of 32                                          */
    const struct kern_q8 *x[FUSED_TOKENS];
    float *y[FUSED_TOKENS];
};

/* All lines of `bytes` that come PACKED_AHEAD later. It runs past the rows into the next ones, which are next. */
VEC_FN void packed_prefetch(const uint8_t *p, size_t bytes) {
    uintptr_t at = (uintptr_t)p + PACKED_AHEAD;
#pragma GCC unroll 9
    for (size_t i = 0; i < (bytes + 63) / 64; i++)
        __builtin_prefetch((const void *)(at + 64 * i), 0, 3);
}

KERN__TILE void fused_n(enum dtype dtype, enum kind kind, int bias, const unsigned n, const struct stream *s) {
    const unsigned parts = block_parts(dtype);
    const size_t group = KERN_PACK_ROWS * block_bytes(dtype);
    const uint8_t *w = s->w;
    vecf acc[FUSED_TOKENS];
KERN__UNROLL
    for (unsigned i = 0; i < n; i++)
        acc[i] = vf_zero();
    for (uint32_t b = 0; b < s->n_blocks; b += parts, w += group) {
KERN__UNROLL
        for (unsigned j = 0; j < parts; j++) {
            struct panel_block block;
            if (s->ahead)
                packed_prefetch(w + j * (group / parts), group / parts);
            packed_block(dtype, w, s->first, j, &block);
KERN__UNROLL
            for (unsigned i = 0; i < n; i++) {
                const struct kern_q8 *x = s->x[i] + b + j;
                acc[i] = vf_madd(packed_dot(kind, n == 1, &block, x, bias), vf_set1(x->d), acc[i]);
            }
        }
    }
KERN__UNROLL
    for (unsigned i = 0; i < n; i++)
        vf_store(s->y[i], acc[i]);
}

typedef void (*fused_fn)(uint32_t n, const struct stream *s);

/* A tile for each count up to FUSED_EVERY, and for FUSED_TOKENS. Five tokens as four and one would decode twice: a quarter
 * of the speed at 5 to 7 tokens, where the experts of a batch of decoding sequences are. */
#define FUSED(n, dtype, kind, bias)                                                                              \
    case n:                                                                                                      \
        if (n <= FUSED_EVERY || n == FUSED_TOKENS)                                                               \
            fused_n(dtype, kind, bias, n, s);                                                                    \
        break;
#define PACKED(name, dtype, kind, bias)                                                                          \
    static void fused_##name(uint32_t n, const struct stream *s) {                                              \
        switch (n) {                                                                                             \
            FUSED(1, dtype, kind, bias) FUSED(2, dtype, kind, bias) FUSED(3, dtype, kind, bias)                  \
            FUSED(4, dtype, kind, bias) FUSED(5, dtype, kind, bias) FUSED(6, dtype, kind, bias)                  \
            FUSED(7, dtype, kind, bias) FUSED(8, dtype, kind, bias) FUSED(16, dtype, kind, bias)                 \
        default: break;                                                                                          \
        }                                                                                                        \
    }
PACKED(q4_0, DTYPE_Q4_0, KIND_BIAS, 8)
PACKED(q4_1, DTYPE_Q4_1, KIND_MIN, 0)
PACKED(q5_0, DTYPE_Q5_0, KIND_BIAS, 16)
PACKED(q5_1, DTYPE_Q5_1, KIND_MIN, 0)
PACKED(q8_0, DTYPE_Q8_0, KIND_BYTE, 128)
PACKED(q4_k, DTYPE_Q4_K, KIND_MIN, 0)
PACKED(q5_k, DTYPE_Q5_K, KIND_MIN, 0)
PACKED(q6_k, DTYPE_Q6_K, KIND_SIX, 32)
PACKED(iq4_nl, DTYPE_IQ4_NL, KIND_BYTE, 128)
PACKED(iq4_xs, DTYPE_IQ4_XS, KIND_BYTE, 128)
PACKED(mxfp4, DTYPE_MXFP4, KIND_BIAS, MXFP4_BIAS)

static fused_fn fused_of(enum dtype dtype) {
    static const fused_fn table[] = {
        [DTYPE_Q4_0] = fused_q4_0, [DTYPE_Q4_1] = fused_q4_1,     [DTYPE_Q5_0] = fused_q5_0,     [DTYPE_Q5_1] = fused_q5_1,
        [DTYPE_Q8_0] = fused_q8_0, [DTYPE_Q4_K] = fused_q4_k,     [DTYPE_Q5_K] = fused_q5_k,     [DTYPE_Q6_K] = fused_q6_k,
        [DTYPE_MXFP4] = fused_mxfp4, [DTYPE_IQ4_NL] = fused_iq4_nl, [DTYPE_IQ4_XS] = fused_iq4_xs,
    };
    return table[dtype];
}

/* ROWS rows from row + first on and tokens t0 .. t0 + n - 1. */
static void packed_tile(const struct kern_gemm *d, uint32_t row, unsigned first, uint32_t t0, uint32_t n) {
    struct stream s = { .w = (const uint8_t *)d->w + row * d->row_bytes, .first = first, .n_blocks = d->n_in / 32 };
    s.ahead = first == 0 && t0 == 0; /* the other rows of the group lie in between, later tokens find them in cache */
    for (uint32_t i = 0; i < n; i++) {
        size_t from = d->gather ? (size_t)d->gather[t0 + i] : t0 + i;
        s.x[i] = (const struct kern_q8 *)d->x + from * d->x_stride;
        s.y[i] = d->y + (size_t)(t0 + i) * d->y_stride + row + first;
    }
    fused_of(d->dtype)(n, &s);
}

static void gemm_packed(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    for (uint32_t t0 = 0; t0 < d->n_tokens; t0 += TOKEN_GROUP) {
        uint32_t t1 = d->n_tokens - t0 < TOKEN_GROUP ? d->n_tokens : t0 + TOKEN_GROUP;
        for (uint32_t r = row0; r < row1; r += KERN_PACK_ROWS)
            for (unsigned first = 0; first < KERN_PACK_ROWS; first += ROWS)
                for (uint32_t t = t0, n; t < t1; t += n) {
                    n = t1 - t >= FUSED_TOKENS ? FUSED_TOKENS : t1 - t < FUSED_EVERY ? t1 - t : FUSED_EVERY;
                    packed_tile(d, r, first, t, n);
                }
    }
}

#endif
