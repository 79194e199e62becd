/* SPDX-License-Identifier: Apache-2.0
 *
 * BF16 weights times bf16 activations for AVX-512 without its BF16 extension: a pair is two multiply-adds. */
#include "kernels/cpu/gemm_bf16_x86.h"

enum { BF16_ROWS = 4, BF16_TOKENS = 4 };
typedef struct {
    __m512 even, odd;
} pairs;

KERN_INLINE pairs pairs_load(const uint16_t *p) {
    __m512i v = _mm512_loadu_si512(p);
    return (pairs){ _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
                    _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-0x10000))) };
}
KERN_INLINE vecf pairs_madd(vecf acc, pairs w, pairs x) {
    return _mm512_fmadd_ps(w.even, x.even, _mm512_fmadd_ps(w.odd, x.odd, acc));
}

#include "kernels/cpu/gemm_bf16.h"

void kern__gemm_bf16_avx512(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    gemm_bf16(d, row0, row1);
}
