/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight formats as they lie in a GGUF file. Layout facts only: block structs with checked sizes and a table
 * of names and sizes. Numbers are the GGUF type ids. All blocks are little-endian and packed. */
#ifndef MOED_MODEL_QUANT_FMT_H
#define MOED_MODEL_QUANT_FMT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2,
    DTYPE_Q4_1 = 3,
    DTYPE_Q5_0 = 6,
    DTYPE_Q5_1 = 7,
    DTYPE_Q8_0 = 8,
    DTYPE_Q4_K = 12,
    DTYPE_Q5_K = 13,
    DTYPE_Q6_K = 14,
    DTYPE_IQ4_NL = 20,
    DTYPE_IQ4_XS = 23,
    DTYPE_BF16 = 30,
    DTYPE_MXFP4 = 39,
};

struct block_q4_0 { uint16_t d; uint8_t qs[16]; };                 /* 32 w: (q - 8) d; low nibbles w0..15, high w16..31 */
struct block_q4_1 { uint16_t d, m; uint8_t qs[16]; };              /* 32 w: q d + m                                     */
struct block_q5_0 { uint16_t d; uint8_t qh[4], qs[16]; };          /* 32 w: (q - 16) d; bit j of qh is bit 4 of w j     */
struct block_q5_1 { uint16_t d, m; uint8_t qh[4], qs[16]; };       /* 32 w: q d + m                                     */
struct block_q8_0 { uint16_t d; int8_t qs[32]; };                  /* 32 w: q d                                         */
struct block_q4_k { uint16_t d, dmin; uint8_t scales[12], qs[128]; };            /* 256 w in 8 sub-blocks of 32        */
struct block_q5_k { uint16_t d, dmin; uint8_t scales[12], qh[32], qs[128]; };    /* 256 w                              */
struct block_q6_k { uint8_t ql[128], qh[64]; int8_t scales[16]; uint16_t d; };   /* 256 w in 16 sub-blocks of 16       */
struct block_iq4_nl { uint16_t d; uint8_t qs[16]; };               /* 32 w: table[q] d                                  */
struct block_iq4_xs { uint16_t d, scales_h; uint8_t scales_l[4], qs[128]; };     /* 256 w                              */
struct block_mxfp4 { uint8_t e; uint8_t qs[16]; };                 /* 32 w: e2m1[q] * 2^(e - 127)                       */

static_assert(sizeof(struct block_q4_0) == 18, "GGUF layout");
static_assert(sizeof(struct block_q4_1) == 20, "GGUF layout");
static_assert(sizeof(struct block_q5_0) == 22, "GGUF layout");
static_assert(sizeof(struct block_q5_1) == 24, "GGUF layout");
static_assert(sizeof(struct block_q8_0) == 34, "GGUF layout");
static_assert(sizeof(struct block_q4_k) == 144, "GGUF layout");
static_assert(sizeof(struct block_q5_k) == 176, "GGUF layout");
static_assert(sizeof(struct block_q6_k) == 210, "GGUF layout");
static_assert(sizeof(struct block_iq4_nl) == 18, "GGUF layout");
static_assert(sizeof(struct block_iq4_xs) == 136, "GGUF layout");
static_assert(sizeof(struct block_mxfp4) == 17, "GGUF layout");

struct dtype_info {
    const char *name;      /* "Q4_K"                              */
    uint32_t block_elems;  /* weights per block, 1 for F32/F16/BF16 */
    uint32_t block_bytes;
};

/* NULL when this build cannot read the type. Static data. */
const struct dtype_info *dtype_info(uint32_t dtype);

/* Bytes of one row of n_elems weights; n_elems must be a multiple of block_elems. */
static inline size_t dtype_row_bytes(const struct dtype_info *t, size_t n_elems) {
    return n_elems / t->block_elems * t->block_bytes;
}

#endif
