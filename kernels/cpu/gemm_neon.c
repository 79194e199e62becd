/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product for aarch64 with the dot product extension: 4 weight rows in the lanes of a vector. sdot multiplies
 * signed bytes and adds four at a time into 32 bits. All codes are below 128, so none needs a bias beyond its format's,
 * and it takes the four activations of a word from any lane, so they are loaded once and never broadcast.
 * Float weights: 16 accumulators along the row. */
#include <arm_neon.h>
#include <string.h>

#include "kernels/internal.h"

#define VEC_FN KERN_INLINE
#define CODE_BYTE_BIAS 0 /* signed bytes stay signed */

enum { ROWS = 4, TILE = 4, LINES_TOKENS = 1, FUSED_EVERY = 4, FUSED_TOKENS = 8 };
typedef uint8x16_t vec;
typedef float32x4_t vecf;
typedef uint16x4_t hvec;

#define U16(v) vreinterpretq_u16_u8(v)
#define U32(v) vreinterpretq_u32_u8(v)
#define S32(v) vreinterpretq_s32_u8(v)
#define U64(v) vreinterpretq_u64_u8(v)
#define S8(v) vreinterpretq_s8_u8(v)

VEC_FN vec v_load4(const uint8_t *const rows[ROWS], size_t off, int i) { return vld1q_u8(rows[i] + off); }
VEC_FN vec v_load(const void *p) { return vld1q_u8(p); }
VEC_FN vec v_dup128(const void *p) { return vld1q_u8(p); }
VEC_FN vec v_set1_8(char c) { return vdupq_n_u8((uint8_t)c); }
VEC_FN vec v_set1_32(int c) { return vreinterpretq_u8_s32(vdupq_n_s32(c)); }
VEC_FN vec v_and(vec a, vec b) { return vandq_u8(a, b); }
VEC_FN vec v_or(vec a, vec b) { return vorrq_u8(a, b); }
VEC_FN vec v_xor(vec a, vec b) { return veorq_u8(a, b); }
VEC_FN vec v_add8(vec a, vec b) { return vaddq_u8(a, b); }
VEC_FN vec v_add32(vec a, vec b) { return vreinterpretq_u8_u32(vaddq_u32(U32(a), U32(b))); }
/* Shifts by vectors of the C language: the intrinsics want a literal. */
VEC_FN vec v_srl16(vec a, int n) { return vreinterpretq_u8_u16(U16(a) >> vdupq_n_u16((uint16_t)n)); }
VEC_FN vec v_sll16(vec a, int n) { return vreinterpretq_u8_u16(U16(a) << vdupq_n_u16((uint16_t)n)); }
VEC_FN vec v_srl32(vec a, int n) { return vreinterpretq_u8_u32(U32(a) >> vdupq_n_u32((uint32_t)n)); }
VEC_FN vec v_sll32(vec a, int n) { return vreinterpretq_u8_u32(U32(a) << vdupq_n_u32((uint32_t)n)); }
VEC_FN vec v_sra32(vec a, int n) { return vreinterpretq_u8_s32(S32(a) >> vdupq_n_s32(n)); }
VEC_FN vec v_unpacklo16(vec a, vec b) { return vreinterpretq_u8_u16(vzip1q_u16(U16(a), U16(b))); }
VEC_FN vec v_unpackhi16(vec a, vec b) { return vreinterpretq_u8_u16(vzip2q_u16(U16(a), U16(b))); }
VEC_FN vec v_unpacklo32(vec a, vec b) { return vreinterpretq_u8_u32(vzip1q_u32(U32(a), U32(b))); }
VEC_FN vec v_unpackhi32(vec a, vec b) { return vreinterpretq_u8_u32(vzip2q_u32(U32(a), U32(b))); }
VEC_FN vec v_unpacklo64(vec a, vec b) { return vreinterpretq_u8_u64(vzip1q_u64(U64(a), U64(b))); }
VEC_FN vec v_unpackhi64(vec a, vec b) { return vreinterpretq_u8_u64(vzip2q_u64(U64(a), U64(b))); }
VEC_FN vec v_table(vec table, vec index) { return vqtbl1q_u8(table, index); }
VEC_FN vec v_16_where(vec a, vec bits) { return vandq_u8(vtstq_u8(a, bits), vdupq_n_u8(16)); }
VEC_FN vecf v_to_float(vec a) { return vcvtq_f32_s32(S32(a)); }
VEC_FN vecf h_to_float(hvec h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
VEC_FN vecf v_halfs_at(const uint16_t *p) { return h_to_float(vld1_u16(p)); }
VEC_FN vecf v_halfs(vec a) { return h_to_float(vmovn_u32(U32(a))); }
VEC_FN vec h_to_32(hvec h) { return vreinterpretq_u8_u32(vmovl_u16(h)); }
VEC_FN hvec h_load(const void *p) { return vreinterpret_u16_u8(vld1_u8(p)); }
VEC_FN vec v_bytes(const void *p) {
    uint32_t four;
    memcpy(&four, p, 4);
    return h_to_32(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
VEC_FN void v_split_pairs(vec v, hvec out[2]) {
    out[0] = vget_low_u16(U16(v));
    out[1] = vget_high_u16(U16(v));
}
VEC_FN vecf v_e8m0(vec e) { /* kern__e8m0_half */
    uint32x4_t normal = vshlq_n_u32(vsubq_u32(U32(e), vdupq_n_u32(1)), 23);
    uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), S32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(U32(e), vdupq_n_u32(2)), tiny, normal));
}
VEC_FN vecf vf_mul(vecf a, vecf b) { return vmulq_f32(a, b); }
VEC_FN vecf vf_zero(void) { return vdupq_n_f32(0); }
VEC_FN vecf vf_set1(float f) { return vdupq_n_f32(f); }
VEC_FN vecf vf_madd(vecf a, vecf b, vecf c) { return vfmaq_f32(c, a, b); }
VEC_FN void vf_store(float *p, vecf a) { vst1q_f32(p, a); }
VEC_FN vecf vf_negate(vecf a) { return vnegq_f32(a); }

#include "kernels/cpu/gemm_panel.h"

/* Dots of 16 weights of 4 rows with q, LAYOUT_WORDS. */
VEC_FN int32x4_t dot_words(const vec c[4], const int8_t q[16]) {
    int8x16_t x = vld1q_s8(q);
    int32x4_t sum = vdotq_laneq_s32(vdupq_n_s32(0), S8(c[0]), x, 0);
    sum = vdotq_laneq_s32(sum, S8(c[1]), x, 1);
    sum = vdotq_laneq_s32(sum, S8(c[2]), x, 2);
    return vdotq_laneq_s32(sum, S8(c[3]), x, 3);
}

/* The same, LAYOUT_LINES: c[i] is row i. */
VEC_FN int32x4_t dot_lines(const vec c[4], const int8_t q[16]) {
    int8x16_t x = vld1q_s8(q);
    int32x4_t p[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        p[i] = vdotq_s32(vdupq_n_s32(0), S8(c[i]), x);
    return vpaddq_s32(vpaddq_s32(p[0], p[1]), vpaddq_s32(p[2], p[3]));
}

/* Block dot of 4 rows with one token, in units of the activation's d. */
VEC_FN float32x4_t block_dot(enum kind kind, enum layout layout, const struct panel_block *w, const struct kern_q8 *x,
                             int bias) {
    bool words = layout == LAYOUT_WORDS;
    int32x4_t lo = words ? dot_words(w->code, x->q) : dot_lines(w->code, x->q);
    int32x4_t hi = words ? dot_words(w->code + 4, x->q + 16) : dot_lines(w->code + 4, x->q + 16);
    const int total = x->sum[0] + x->sum[1];
    if (kind == KIND_SIX) {
        float32x4_t l = vcvtq_f32_s32(vsubq_s32(lo, vdupq_n_s32(bias * x->sum[0])));
        float32x4_t h = vcvtq_f32_s32(vsubq_s32(hi, vdupq_n_s32(bias * x->sum[1])));
        return vfmaq_f32(vmulq_f32(l, w->sc[0]), h, w->sc[1]);
    }
    if (kind == KIND_BIAS)
        lo = vsubq_s32(lo, vdupq_n_s32(bias * total));
    float32x4_t dot = vcvtq_f32_s32(vaddq_s32(lo, hi));
    if (kind != KIND_MIN)
        return vmulq_f32(dot, w->d);
    return vfmaq_f32(vmulq_f32(w->m, vdupq_n_f32((float)total)), dot, w->d);
}

KERN__TILE vecf packed_dot(enum kind kind, bool alone, const struct panel_block *w, const struct kern_q8 *x, int bias) {
    (void)alone;
    return block_dot(kind, LAYOUT_WORDS, w, x, bias);
}

#include "kernels/cpu/gemm_packed.h"

VEC_FN float32x4_t load_rows(const float *y, uint32_t n) {
    float part[ROWS] = { 0 };
    return vld1q_f32(n == ROWS ? y : memcpy(part, y, n * sizeof *y));
}

VEC_FN void store_rows(float *y, uint32_t n, float32x4_t v) {
    if (n == ROWS) {
        vst1q_f32(y, v);
        return;
    }
    float part[ROWS];
    vst1q_f32(part, v);
    memcpy(y, part, n * sizeof *y);
}

KERN__TILE void tile_n(enum kind kind, enum layout layout, const int n, const struct tile *t) {
    float32x4_t acc[TILE];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        acc[i] = t->first ? vdupq_n_f32(0) : load_rows(t->y[i], t->n_rows);
    for (unsigned b = 0; b < t->n_blocks; b++) {
        const struct panel_block *w = &t->panel->b[b];
        prefetch_ahead(t, b);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            const struct kern_q8 *x = t->x[i] + b;
            acc[i] = vfmaq_f32(acc[i], block_dot(kind, layout, w, x, t->bias), vdupq_n_f32(x->d));
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        store_rows(t->y[i], t->n_rows, acc[i]);
}

#define TILE_KIND(name, kind)                                                                                    \
    static void name(uint32_t n, const struct tile *t) {                                                        \
        if (t->layout == LAYOUT_LINES) {                                                                         \
            tile_n(kind, LAYOUT_LINES, LINES_TOKENS, t);                                                         \
            return;                                                                                              \
        }                                                                                                        \
        switch (n) {                                                                                             \
        case 1: tile_n(kind, LAYOUT_WORDS, 1, t); break;                                                         \
        case 2: tile_n(kind, LAYOUT_WORDS, 2, t); break;                                                         \
        case 3: tile_n(kind, LAYOUT_WORDS, 3, t); break;                                                         \
        default: tile_n(kind, LAYOUT_WORDS, 4, t); break;                                                        \
        }                                                                                                        \
    }
TILE_KIND(tile_bias, KIND_BIAS)
TILE_KIND(tile_min, KIND_MIN)
TILE_KIND(tile_six, KIND_SIX)
TILE_KIND(tile_byte, KIND_BYTE)

static void tile_run(enum kind kind, uint32_t n, const struct tile *t) {
    switch (kind) {
    case KIND_BIAS: tile_bias(n, t); break;
    case KIND_MIN: tile_min(n, t); break;
    case KIND_SIX: tile_six(n, t); break;
    case KIND_BYTE: tile_byte(n, t); break;
    }
}

enum { FLOAT_ROWS = 2, FLOAT_TOKENS = 2 };

/* 16 lanes: v[i] holds l 4i .. 4i + 3. */
struct lanes {
    float32x4_t v[4];
};

VEC_FN float32x4_t load_weights4(enum dtype dtype, const uint8_t *w) {
    if (dtype == DTYPE_F32)
        return vreinterpretq_f32_u8(vld1q_u8(w));
    uint16x4_t h = vreinterpret_u16_u8(vld1_u8(w));
    if (dtype == DTYPE_F16)
        return h_to_float(h);
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

/* Adds halves: l + 8, l + 4, l + 2, l + 1. */
VEC_FN float add_lanes(const struct lanes *a) {
    float32x4_t b = vaddq_f32(vaddq_f32(a->v[0], a->v[2]), vaddq_f32(a->v[1], a->v[3]));
    float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}

struct float_tile {
    uint32_t n_in;
    const uint8_t *w[FLOAT_ROWS];
    const float *x[FLOAT_TOKENS];
    float *y[FLOAT_TOKENS]; /* at the first row */
};

/* Weights k .. k+15 of row w, or the last n % 16 and zeros. */
VEC_FN struct lanes load_weights(enum dtype dtype, const uint8_t *w, uint32_t k, uint32_t n_in) {
    const size_t size = dtype == DTYPE_F32 ? 4 : 2;
    uint8_t tail[64] = { 0 };
    struct lanes out;
    w += k * size;
    if (n_in - k < 16)
        w = memcpy(tail, w, (n_in - k) * size);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        out.v[i] = load_weights4(dtype, w + 4 * i * size);
    return out;
}

KERN__TILE void float_tile_n(enum dtype dtype, const int n_rows, const int n, const struct float_tile *t) {
    struct lanes acc[FLOAT_TOKENS][FLOAT_ROWS], w[FLOAT_ROWS];
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
            for (int l = 0; l < 4; l++)
                acc[i][r].v[l] = vdupq_n_f32(0);
    for (uint32_t k = 0; k < t->n_in; k += 16) {
#pragma GCC unroll 2
        for (int r = 0; r < n_rows; r++)
            w[r] = load_weights(dtype, t->w[r], k, t->n_in);
#pragma GCC unroll 2
        for (int i = 0; i < n; i++) {
            struct lanes x = load_weights(DTYPE_F32, (const uint8_t *)t->x[i], k, t->n_in);
#pragma GCC unroll 2
            for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
                for (int l = 0; l < 4; l++)
                    acc[i][r].v[l] = vfmaq_f32(acc[i][r].v[l], w[r].v[l], x.v[l]);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int r = 0; r < n_rows; r++)
            t->y[i][r] = add_lanes(&acc[i][r]);
}

#include "kernels/cpu/gemm_float.h"

void kern__gemm_neon(const struct kern_gemm *d, uint32_t row0, uint32_t row1) {
    switch (d->dtype) {
    case DTYPE_F32: gemm_float(d, DTYPE_F32, row0, row1); break;
    case DTYPE_F16: gemm_float(d, DTYPE_F16, row0, row1); break;
    case DTYPE_BF16: gemm_float(d, DTYPE_BF16, row0, row1); break;
    default: (d->packed ? gemm_packed : gemm_quant)(d, row0, row1); break;
    }
}
