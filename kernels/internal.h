/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels share among themselves: every implementation the dispatch table (cpu/dispatch.c) may name.
 * One suffix per level: _scalar lives in ref/, _avx2 and _avx512 in cpu/<family>_<level>.c, compiled with that
 * level's instruction set and reached only through the table, after cpuid has said yes. */
#ifndef MOED_KERNELS_INTERNAL_H
#define MOED_KERNELS_INTERNAL_H

#include "kernels/kernels.h"

#define KERN_INLINE static inline __attribute__((always_inline))

/* gemm.h */
void kern__gemm_scalar(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_avx2(const struct kern_gemm *d, uint32_t row0, uint32_t row1);
void kern__gemm_avx512(const struct kern_gemm *d, uint32_t row0, uint32_t row1);

/* quant.h */
void kern__quantize_scalar(const float *x, size_t n, struct kern_q8 *out);
void kern__quantize_avx2(const float *x, size_t n, struct kern_q8 *out);
void kern__quantize_avx512(const float *x, size_t n, struct kern_q8 *out);

/* attn.h */
void kern__attn_scalar(const struct kern_attn *d, uint32_t kv_head);
void kern__attn_avx2(const struct kern_attn *d, uint32_t kv_head);
void kern__attn_avx512(const struct kern_attn *d, uint32_t kv_head);

/* norm.h */
void kern__rms_norm_scalar(const float *x, const float *w, float eps, size_t n, float *y);
void kern__rms_norm_avx2(const float *x, const float *w, float eps, size_t n, float *y);
void kern__rms_norm_avx512(const float *x, const float *w, float eps, size_t n, float *y);

void kern__swiglu_scalar(const float *g, const float *u, size_t n, float *y);
void kern__swiglu_avx2(const float *g, const float *u, size_t n, float *y);
void kern__swiglu_avx512(const float *g, const float *u, size_t n, float *y);

void kern__axpy_scalar(float a, const float *x, size_t n, float *y);
void kern__axpy_avx2(float a, const float *x, size_t n, float *y);
void kern__axpy_avx512(float a, const float *x, size_t n, float *y);

#endif
