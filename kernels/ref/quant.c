/* SPDX-License-Identifier: Apache-2.0
 *
 * The truth about every weight format: one decoder from file bytes to integer codes and scales, used both for
 * plain dequantisation and by the scalar matrix product. The fast levels unpack the same bytes on their own and
 * are compared with this. Also f16 and bf16 conversions. Pure functions, any thread. */
#include "kernels/quant.h"

#include <string.h>

#include "kernels/internal.h"

const int8_t kern__iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t kern__mxfp4_values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static float bits_float(uint32_t u) {
    union { uint32_t u; float f; } v = { u };
    return v.f;
}

static uint32_t float_bits(float f) {
    union { float f; uint32_t u; } v = { f };
    return v.u;
}

float kern_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023;
    if (exp == 0) { /* zero or subnormal: man * 2^-24 is exact in f32 */
        float f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    if (exp == 31)
        return bits_float(sign | 0x7f800000 | man << 13);
    return bits_float(sign | (exp + 112) << 23 | man << 13);
}

uint16_t kern_f32_to_f16(float f) {
    uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) /* NaN: keep the top of the payload, set the quiet bit as vcvtps2ph does */
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: adding 0.5 lets the FPU round at 2^-24, to nearest even */
        return (uint16_t)(sign | (float_bits(bits_float(a) + 0.5f) - 0x3f000000));
    }
    uint32_t odd = a >> 13 & 1;
    return (uint16_t)(sign | (a - 0x38000000 + 0xfff + odd) >> 13);
}

uint16_t kern_f32_to_bf16(float f) {
    uint32_t u = float_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 64); /* rounding could carry a NaN into infinity */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void kern_round_bf16(const float *x, size_t n, uint16_t *out) {
    for (size_t i = 0; i < n; i++) { /* kern_f32_to_bf16 without a branch, which keeps compilers from vectors */
        uint32_t u = float_bits(x[i]), nan = (u & 0x7fffffff) > 0x7f800000, round = 0x7fff + (u >> 16 & 1);
        out[i] = (uint16_t)((nan ? u | 0x400000 : u + round) >> 16);
    }
}

/* Half-split nibbles: byte j holds weight j below and weight j + 16 above. */
static void nibbles_split(const uint8_t qs[16], int bias, int16_t code[32]) {
    for (int j = 0; j < 16; j++) {
        code[j] = (int16_t)((qs[j] & 15) - bias);
        code[j + 16] = (int16_t)((qs[j] >> 4) - bias);
    }
}

static void nibbles_table(const uint8_t qs[16], const int8_t table[16], int16_t code[32]) {
    for (int j = 0; j < 16; j++) {
        code[j] = table[qs[j] & 15];
        code[j + 16] = table[qs[j] >> 4];
    }
}

/* Bit j of qh is the fifth bit of weight j. */
static void add_fifth_bit(const uint8_t qh[4], int16_t code[32]) {
    for (int j = 0; j < 32; j++)
        code[j] = (int16_t)(code[j] + ((qh[j / 8] >> j % 8 & 1) << 4));
}

static void decode_q4_k(const struct block_q4_k *p, unsigned j, struct kern__block *out) {
    uint8_t sc, mn;
    kern__scale_min(p->scales, j, &sc, &mn);
    out->d = kern_f16_to_f32(p->d) * (float)sc;
    out->m = -(kern_f16_to_f32(p->dmin) * (float)mn);
    const uint8_t *qs = p->qs + j / 2 * 32;
    for (int k = 0; k < 32; k++)
        out->code[k] = qs[k] >> j % 2 * 4 & 15;
}

static void decode_q5_k(const struct block_q5_k *p, unsigned j, struct kern__block *out) {
    uint8_t sc, mn;
    kern__scale_min(p->scales, j, &sc, &mn);
    out->d = kern_f16_to_f32(p->d) * (float)sc;
    out->m = -(kern_f16_to_f32(p->dmin) * (float)mn);
    const uint8_t *qs = p->qs + j / 2 * 32;
    for (int k = 0; k < 32; k++)
        out->code[k] = (int16_t)((qs[k] >> j % 2 * 4 & 15) | (p->qh[k] >> j & 1) << 4);
}

/* Sub-block j of 32: half h = j / 4 of the block has its own 64 bytes of low nibbles and 32 of high pairs. */
static void decode_q6_k(const struct block_q6_k *p, unsigned j, struct kern__block *out) {
    const uint8_t *ql = p->ql + j / 4 * 64 + j % 2 * 32, *qh = p->qh + j / 4 * 32;
    unsigned low = j % 4 / 2 * 4, high = j % 4 * 2;
    for (int k = 0; k < 32; k++)
        out->code[k] = (int16_t)(((ql[k] >> low & 15) | (qh[k] >> high & 3) << 4) - 32);
    out->d = kern_f16_to_f32(p->d);
    out->sc[0] = p->scales[2 * j];
    out->sc[1] = p->scales[2 * j + 1];
}

static void decode_iq4_xs(const struct block_iq4_xs *p, unsigned j, struct kern__block *out) {
    int sc = (p->scales_l[j / 2] >> j % 2 * 4 & 15) | (p->scales_h >> 2 * j & 3) << 4;
    out->d = kern_f16_to_f32(p->d) * (float)(sc - 32);
    nibbles_table(p->qs + 16 * j, kern__iq4_values, out->code);
}

static void decode_q8_0(const struct block_q8_0 *p, struct kern__block *out) {
    for (int k = 0; k < 32; k++)
        out->code[k] = p->qs[k];
    out->d = kern_f16_to_f32(p->d);
}

void kern__decode_block(enum dtype dtype, const void *row, size_t b, struct kern__block *out) {
    out->sc[0] = out->sc[1] = 1;
    out->m = 0;
    switch (dtype) {
    case DTYPE_Q4_0: {
        const struct block_q4_0 *p = (const struct block_q4_0 *)row + b;
        nibbles_split(p->qs, 8, out->code);
        out->d = kern_f16_to_f32(p->d);
        return;
    }
    case DTYPE_Q4_1: {
        const struct block_q4_1 *p = (const struct block_q4_1 *)row + b;
        nibbles_split(p->qs, 0, out->code);
        out->d = kern_f16_to_f32(p->d);
        out->m = kern_f16_to_f32(p->m);
        return;
    }
    case DTYPE_Q5_0: {
        const struct block_q5_0 *p = (const struct block_q5_0 *)row + b;
        nibbles_split(p->qs, 16, out->code);
        add_fifth_bit(p->qh, out->code);
        out->d = kern_f16_to_f32(p->d);
        return;
    }
    case DTYPE_Q5_1: {
        const struct block_q5_1 *p = (const struct block_q5_1 *)row + b;
        nibbles_split(p->qs, 0, out->code);
        add_fifth_bit(p->qh, out->code);
        out->d = kern_f16_to_f32(p->d);
        out->m = kern_f16_to_f32(p->m);
        return;
    }
    case DTYPE_IQ4_NL: {
        const struct block_iq4_nl *p = (const struct block_iq4_nl *)row + b;
        nibbles_table(p->qs, kern__iq4_values, out->code);
        out->d = kern_f16_to_f32(p->d);
        return;
    }
    case DTYPE_MXFP4: {
        const struct block_mxfp4 *p = (const struct block_mxfp4 *)row + b;
        nibbles_table(p->qs, kern__mxfp4_values, out->code);
        out->d = kern__e8m0_half(p->e);
        return;
    }
    case DTYPE_Q8_0: decode_q8_0((const struct block_q8_0 *)row + b, out); return;
    case DTYPE_Q4_K: decode_q4_k((const struct block_q4_k *)row + b / 8, b % 8, out); return;
    case DTYPE_Q5_K: decode_q5_k((const struct block_q5_k *)row + b / 8, b % 8, out); return;
    case DTYPE_Q6_K: decode_q6_k((const struct block_q6_k *)row + b / 8, b % 8, out); return;
    case DTYPE_IQ4_XS: decode_iq4_xs((const struct block_iq4_xs *)row + b / 8, b % 8, out); return;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16: break; /* not block formats */
    }
    memset(out, 0, sizeof *out);
}

bool kern__has_min(enum dtype dtype) {
    return dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K;
}

bool kern_gemm_wants_q8(enum dtype dtype) {
    return dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16;
}

static void dequant_blocks(enum dtype dtype, const void *row, size_t n, float *out) {
    bool has_min = kern__has_min(dtype);
    for (size_t b = 0; b < n / 32; b++, out += 32) {
        struct kern__block blk;
        kern__decode_block(dtype, row, b, &blk);
        for (int k = 0; k < 32; k++) {
            float w = blk.d * (float)blk.sc[k / 16] * (float)blk.code[k];
            out[k] = has_min ? w + blk.m : w; /* w + 0 would lose the sign of -0 */
        }
    }
}

void kern_dequant_row(enum dtype dtype, const void *row, size_t n, float *out) {
    const uint16_t *h = row;
    switch (dtype) {
    case DTYPE_F32: memcpy(out, row, n * sizeof *out); return;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = kern_f16_to_f32(h[i]);
        return;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            out[i] = kern_bf16_to_f32(h[i]);
        return;
    default: dequant_blocks(dtype, row, n, out); return;
    }
}
