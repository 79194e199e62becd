/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantisation of activations for AVX-512; the bits are those of ref/quantize.c. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/internal.h"

void kern__quantize_avx512(const float *x, size_t n, struct kern_q8 *out) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (size_t b = 0; b < n / 32; b++, x += 32, out++) {
        __m512 v0 = _mm512_loadu_ps(x), v1 = _mm512_loadu_ps(x + 16);
        /* as integers, magnitudes order like floats, with infinity and NaN on top */
        __m512i a0 = _mm512_and_si512(_mm512_castps_si512(v0), magnitude);
        __m512i a1 = _mm512_and_si512(_mm512_castps_si512(v1), magnitude);
        int32_t top = _mm512_reduce_max_epi32(_mm512_max_epi32(a0, a1));
        float max;
        memcpy(&max, &top, 4);
        if (top >= 0x7f800000 || max < KERN__Q8_TINY) {
            memset(out, 0, sizeof *out);
            out->d = top >= 0x7f800000 ? NAN : 0;
            continue;
        }
        __m512 inv = _mm512_set1_ps(127.0f / max);
        __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, inv)), q1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, inv));
        out->d = max / 127.0f;
        out->sum[0] = (int16_t)_mm512_reduce_add_epi32(q0);
        out->sum[1] = (int16_t)_mm512_reduce_add_epi32(q1);
        _mm_storeu_si128((__m128i *)out->q, _mm512_cvtepi32_epi8(q0));
        _mm_storeu_si128((__m128i *)(out->q + 16), _mm512_cvtepi32_epi8(q1));
    }
}
