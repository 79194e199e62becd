/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels share among themselves: every implementation the dispatch table (cpu/dispatch.c) may name.
 * One suffix per level: _scalar lives in ref/, the others in cpu/<family>_<level>.c, compiled with that level's
 * instruction set and reached only through the table, after the CPU has said yes. A level takes from another what it
 * cannot do better: avxvnni has a matrix product of its own and the rest of avx2, avx512bf16 one for BF16 and the rest of
 * avx512. */
#ifndef MOED_KERNELS_INTERNAL_H
#define MOED_KERNELS_INTERNAL_H

#include "kernels/kernels.h"

#define KERN_INLINE static inline __attribute__((always_inline))

/* Tile functions take their tile shape as arguments and rely on inlining to make constants of it. Instrumented
 * builds leave them as plain functions: the same arithmetic, but a minute less of compiling per file. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KERN__INSTRUMENTED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(KERN__INSTRUMENTED)
#define KERN__TILE static
#define KERN__UNROLL
#elif defined(__clang__)
#define KERN__TILE KERN_INLINE
#define KERN__UNROLL _Pragma("unroll")
#else
#define KERN__TILE KERN_INLINE
#define KERN__UNROLL _Pragma("GCC unroll 16")
#endif

/* 32 consecutive weights of one row, decoded: w[j] = d * sc[j / 16] * code[j] + m. Codes carry no bias. */
struct kern__block {
    int16_t code[32];
    int32_t sc[2]; /* Q6_K only; 1 in every other format */
    float d;
    float m;       /* only where kern__has_min           */
};

/* Block `b` (weights 32 b ..) of a row in any of the eleven quantised formats. */
void kern__decode_block(enum dtype dtype, const void *row, size_t b, struct kern__block *out);

bool kern__has_min(enum dtype dtype);

/* Bytes of the largest block of any format. */
#define KERN__BLOCK_MOST sizeof(struct block_q6_k)

/* Format block `block` of row `row` of a packed matrix (pack.h) as it lay in the file. */
void kern__packed_block(enum dtype dtype, const void *w, uint32_t row, size_t n_in, size_t block, void *out);

/* The 16 values of IQ4_NL and IQ4_XS, and of MXFP4 (doubled, so that they are integers). */
extern const int8_t kern__iq4_values[16];
extern const int8_t kern__mxfp4_values[16];

/* 6-bit scale and min of sub-block j (0..7) of Q4_K and Q5_K, from the block's 12 packed bytes. */
KERN_INLINE void kern__scale_min(const uint8_t s[12], unsigned j, uint8_t *sc, uint8_t *mn) {
    if (j < 4) {
        *sc = s[j] & 63;
        *mn = s[j + 4] & 63;
    } else {
        *sc = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *mn = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

/* e8m0 scale of MXFP4: 2^(e - 128), half of 2^(e - 127) because the value table is doubled. */
KERN_INLINE float kern__e8m0_half(uint8_t e) {
    union { uint32_t u; float f; } v = { e < 2 ? (uint32_t)0x00200000 << e : (uint32_t)(e - 1) << 23 };
    return v.f;
}

/* Blocks whose max|x| is below this quantise to zero: 127 / max|x| must stay finite. */
#define KERN__Q8_TINY 0x1p-100f

/* gemm.h */
void kern__gemm_scalar(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_avx2(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_avxvnni(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_avx512(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_neon(const struct kern_gemm *d, uint32_t row0, uint32_t row1);

void kern__gemm_bf16_scalar(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_bf16_avx2(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_bf16_avx512(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_bf16_avx512bf16(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_bf16_neon(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
float kern__madd_flushed(float a, float b, float c); /* one step of gemm_bf16; a and b are no denormals */

/* quant.h */
void kern__quantize_scalar(const float *x, size_t n, struct kern_q8 *out);
void kern__quantize_avx2(const float *x, size_t n, struct kern_q8 *out);
void kern__quantize_avx512(const float *x, size_t n, struct kern_q8 *out);
void kern__quantize_neon(const float *x, size_t n, struct kern_q8 *out);

/* attn.h */
void kern__attn_scalar(const struct kern_attn *d, uint32_t kv_head);
void kern__attn_avx2(const struct kern_attn *d, uint32_t kv_head);
void kern__attn_avx512(const struct kern_attn *d, uint32_t kv_head);
void kern__attn_neon(const struct kern_attn *d, uint32_t kv_head);
void kern__kv_store_scalar(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v);
void kern__kv_store_avx2(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v);
void kern__kv_store_avx512(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v);
void kern__kv_store_neon(const struct kern_kv_store *d, int32_t page, uint32_t offset, const float *k, const float *v);

/* norm.h */
void kern__rms_norm_scalar(const float *x, const float *w, float eps, size_t n, float *y);
void kern__rms_norm_avx2(const float *x, const float *w, float eps, size_t n, float *y);
void kern__rms_norm_avx512(const float *x, const float *w, float eps, size_t n, float *y);
void kern__rms_norm_neon(const float *x, const float *w, float eps, size_t n, float *y);

void kern__swiglu_scalar(const float *g, const float *u, size_t n, float *y);
void kern__swiglu_avx2(const float *g, const float *u, size_t n, float *y);
void kern__swiglu_avx512(const float *g, const float *u, size_t n, float *y);
void kern__swiglu_neon(const float *g, const float *u, size_t n, float *y);

void kern__axpy_scalar(float a, const float *x, size_t n, float *y);
void kern__axpy_avx2(float a, const float *x, size_t n, float *y);
void kern__axpy_avx512(float a, const float *x, size_t n, float *y);
void kern__axpy_neon(float a, const float *x, size_t n, float *y);

#endif
