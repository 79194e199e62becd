/* SPDX-License-Identifier: Apache-2.0
 *
 * Dequantisation of every weight format (scalar, bit-exact with the `gguf` Python package) and quantisation of
 * activations. */
#ifndef MOED_KERNELS_QUANT_H
#define MOED_KERNELS_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include "model/quant_fmt.h"

/* One block of 32 activations: x[j] ~ d * q[j], |q[j]| <= 127. sum[h] is the sum of q[16 h .. 16 h + 15]: a weight
 * code stored with bias b costs b * d * sum, and Q6_K has a scale per 16 weights, hence two halves. */
struct kern_q8 {
    float d;
    int16_t sum[2];
    int8_t q[32];
};

/* x [n] -> out [n / 32]; n % 32 == 0. d = max|x| / 127, q = x * (127 / max|x|) rounded to nearest even; all zero
 * when max|x| < 2^-100, below which 127 / max|x| would overflow. Non-finite input gives d = NaN and q = 0, so the
 * fault stays visible in the output. Every level gives the same bits. */
typedef void (*kern_quantize_fn)(const float *x, size_t n, struct kern_q8 *out);

/* One row of n weights to float; n is a multiple of the format's block. The bits are those that `dequantize` of the
 * `gguf` package gives. */
void kern_dequant_row(enum dtype dtype, const void *row, size_t n, float *out);

float kern_f16_to_f32(uint16_t h);
uint16_t kern_f32_to_f16(float f); /* round to nearest even */
static inline float kern_bf16_to_f32(uint16_t h) {
    union { uint32_t u; float f; } v = { (uint32_t)h << 16 };
    return v.f;
}
uint16_t kern_f32_to_bf16(float f); /* round to nearest even */
void kern_round_bf16(const float *x, size_t n, uint16_t *out); /* each as kern_f32_to_bf16 */

#endif
