/* SPDX-License-Identifier: Apache-2.0
 *
 * BF16 weights times bf16 activations with AVX-512 BF16: vpdpbf16ps multiplies 16 pairs and adds them. 24 accumulators. */
#include "kernels/cpu/gemm_bf16_x86.h"

enum { BF16_ROWS = 4, BF16_TOKENS = 6 };
typedef __m512i pairs;

KERN_INLINE pairs pairs_load(const uint16_t *p) { return _mm512_loadu_si512(p); }
KERN_INLINE vecf pairs_madd(vecf acc, pairs w, pairs x) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }

#include "kernels/cpu/gemm_bf16.h"

void kern__gemm_bf16_avx512bf16(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    gemm_bf16(d, row0, row1);
}
