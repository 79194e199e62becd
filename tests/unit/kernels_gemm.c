/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix product, every format at every level this CPU has:
 *   equal     all levels give the scalar level's bits, over random shapes, slices, gathers, extreme scales
 *   invariant one output row has the same bits alone, in any batch, at any slice boundary and address
 *   truth     against double precision, with bounds derived below; the measured errors are printed
 * Weights, activations and results are allocated to the byte, so that ASan sees any access outside. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/internal.h"
#include "tests/unit/kernels_level.h"

static uint64_t rng_state = 0x9e3779b97f4a7c15u;
static uint32_t rng(void) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 16);
}
static uint32_t rng_in(uint32_t lo, uint32_t hi) { return lo + rng() % (hi - lo + 1); }
static float rng_normal(void) { /* sum of 12 uniforms: close enough to a bell */
    float s = -6;
    for (int i = 0; i < 12; i++)
        s += (float)(rng() & 0xffffff) * 0x1p-24f;
    return s;
}

struct format {
    enum dtype dtype;
    const char *name;
    uint32_t elems, bytes;
    int scale[2]; /* offsets of f16 scales, -1 none */
};
static const struct format formats[] = {
    { DTYPE_F32, "F32", 1, 4, { -1, -1 } },
    { DTYPE_F16, "F16", 1, 2, { -1, -1 } },
    { DTYPE_BF16, "BF16", 1, 2, { -1, -1 } },
    { DTYPE_Q8_0, "Q8_0", 32, sizeof(struct block_q8_0), { 0, -1 } },
    { DTYPE_Q4_0, "Q4_0", 32, sizeof(struct block_q4_0), { 0, -1 } },
    { DTYPE_Q4_1, "Q4_1", 32, sizeof(struct block_q4_1), { 0, 2 } },
    { DTYPE_Q5_0, "Q5_0", 32, sizeof(struct block_q5_0), { 0, -1 } },
    { DTYPE_Q5_1, "Q5_1", 32, sizeof(struct block_q5_1), { 0, 2 } },
    { DTYPE_Q4_K, "Q4_K", 256, sizeof(struct block_q4_k), { 0, 2 } },
    { DTYPE_Q5_K, "Q5_K", 256, sizeof(struct block_q5_k), { 0, 2 } },
    { DTYPE_Q6_K, "Q6_K", 256, sizeof(struct block_q6_k), { 208, -1 } },
    { DTYPE_IQ4_NL, "IQ4_NL", 32, sizeof(struct block_iq4_nl), { 0, -1 } },
    { DTYPE_IQ4_XS, "IQ4_XS", 256, sizeof(struct block_iq4_xs), { 0, -1 } },
    { DTYPE_MXFP4, "MXFP4", 32, sizeof(struct block_mxfp4), { -1, -1 } },
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* What the values look like. WILD: any bytes at all, so scales are infinite, NaN, huge or zero. */
enum range { ORDINARY, SMALL, HUGE_SCALES, WILD };

static void put_float(const struct format *f, uint8_t *w, float v) {
    uint16_t h = f->dtype == DTYPE_F16 ? kern_f32_to_f16(v) : kern_f32_to_bf16(v);
    if (f->dtype == DTYPE_F32)
        memcpy(w, &v, 4);
    else
        memcpy(w, &h, 2);
}

static void fill_block(const struct format *f, enum range range, uint8_t *w) {
    static const float size[] = { 0.02f, 3e-7f, 3e4f };
    for (uint32_t i = 0; i < f->bytes; i++)
        w[i] = (uint8_t)rng();
    if (range == WILD)
        return;
    if (f->elems == 1)
        put_float(f, w, rng_normal() * size[range]);
    if (f->dtype == DTYPE_MXFP4)
        w[0] = (uint8_t)(range == ORDINARY ? rng_in(118, 124) : range == SMALL ? rng_in(0, 3) : rng_in(220, 254));
    for (int i = 0; i < 2 && f->scale[i] >= 0; i++) {
        float s = rng_normal() * size[range];
        if (f->elems == 256 && range == ORDINARY)
            s /= 32; /* a 6-bit scale comes on top */
        uint16_t h = kern_f32_to_f16(s);
        memcpy(w + f->scale[i], &h, 2);
    }
}

/* One problem; owns its buffers. */
struct problem {
    struct kern_gemm d;
    const struct format *f;
    uint32_t n_rows_x;
    void *w, *x_mem;
    float *x; /* [n_rows_x, n_in] before quantisation */
    int32_t *gather;
};

static void fill_x(struct problem *p, enum range range, size_t n) {
    for (size_t i = 0; i < n; i++)
        p->x[i] = rng_normal() * (rng() % 50 ? 1.0f : 20.0f); /* outliers, as real activations have */
    if (range == SMALL && n)
        for (size_t i = 0; i < n; i++)
            p->x[i] *= i / 32 % 3 == 0 ? 0 : 1e-35f;
    if (range == HUGE_SCALES)
        for (size_t i = 0; i < n; i++)
            p->x[i] *= 1e30f;
    if (range == WILD)
        for (size_t i = 0; i < n; i++)
            if (rng() % 97 == 0) {
                uint32_t u = rng();
                memcpy(&p->x[i], &u, 4);
            }
}

static void problem_make(struct problem *p, const struct format *f, enum range range, uint32_t n_in, uint32_t n_out,
                         uint32_t n_tokens) {
    memset(p, 0, sizeof *p);
    p->f = f;
    size_t row_bytes = n_in / f->elems * f->bytes;
    p->n_rows_x = n_tokens ? rng_in(1, n_tokens) : 1;
    if (rng() % 2)
        p->n_rows_x = n_tokens ? n_tokens : 1;
    size_t n_x = (size_t)p->n_rows_x * n_in;
    p->w = malloc(row_bytes * n_out);
    p->x = malloc(n_x * sizeof(float));
    for (uint32_t i = 0; i < row_bytes * n_out / f->bytes; i++)
        fill_block(f, range, (uint8_t *)p->w + (size_t)i * f->bytes);
    fill_x(p, range, n_x);
    p->d = (struct kern_gemm){ .dtype = f->dtype, .w = p->w, .row_bytes = row_bytes, .n_in = n_in, .n_out = n_out,
                               .n_tokens = n_tokens, .x = p->x, .x_stride = n_in, .y_stride = n_out };
    if (kern_gemm_wants_q8(f->dtype)) {
        p->x_mem = malloc(n_x / 32 * sizeof(struct kern_q8));
        kern__quantize_scalar(p->x, n_x, p->x_mem);
        p->d.x = p->x_mem;
        p->d.x_stride = n_in / 32;
    }
    if (p->n_rows_x != n_tokens || rng() % 2) {
        p->gather = malloc((n_tokens ? n_tokens : 1) * sizeof *p->gather);
        for (uint32_t t = 0; t < n_tokens; t++)
            p->gather[t] = (int32_t)(rng() % p->n_rows_x);
        p->d.gather = p->gather;
    }
}

static void problem_free(struct problem *p) {
    free(p->w);
    free(p->x);
    free(p->x_mem);
    free(p->gather);
}

static bool same(float a, float b) {
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b)); /* NaN payloads carry no meaning */
}

static void problem_random(struct problem *p, const struct format *f, enum range range) {
    uint32_t n_in = f->elems == 1 ? rng_in(1, 200) : f->elems == 32 ? 32 * rng_in(1, 20) : 256 * rng_in(1, 3);
    uint32_t n_tokens = rng() % 16 == 0 ? rng_in(125, 140) : rng_in(0, 17);
    problem_make(p, f, range, n_in, rng_in(1, 70), n_tokens);
}

/* Every output of a random slicing equals the scalar level; nothing outside the slices is written. */
static void case_equal(const char *test_name_, const struct format *f, const struct kern_ops *ops) {
    for (int trial = 0; trial < 48; trial++) {
        struct problem p;
        problem_random(&p, f, (enum range)(trial % 4));
        size_t n = (size_t)p.d.n_tokens * p.d.n_out;
        float *want = malloc((n + 1) * sizeof(float)), *got = malloc((n + 1) * sizeof(float));
        for (size_t i = 0; i < n; i++)
            got[i] = 12345.0f;
        uint32_t row0 = rng_in(0, p.d.n_out), row1 = rng_in(row0, p.d.n_out);
        p.d.y = want;
        kern__gemm_scalar(&p.d, 0, p.d.n_out);
        p.d.y = got;
        ops->gemm(&p.d, row0, row1);
        for (uint32_t t = 0; t < p.d.n_tokens; t++)
            for (uint32_t r = 0; r < p.d.n_out; r++) {
                size_t i = (size_t)t * p.d.n_out + r;
                float expect = r >= row0 && r < row1 ? want[i] : 12345.0f;
                CHECKF(same(got[i], expect), "trial %d token %u of %u row %u of [%u, %u): %.9g, expected %.9g", trial, t,
                       p.d.n_tokens, r, row0, row1, (double)got[i], (double)expect);
            }
        free(want);
        free(got);
        problem_free(&p);
    }
}

/* Rows of x at another address, another stride, in another order, alone or in another batch, in other slices. */
static void case_invariant(const char *test_name_, const struct format *f, const struct kern_ops *ops) {
    for (int trial = 0; trial < 24; trial++) {
        struct problem p;
        problem_random(&p, f, trial % 3 ? ORDINARY : SMALL);
        size_t elem = kern_gemm_wants_q8(f->dtype) ? sizeof(struct kern_q8) : sizeof(float);
        size_t row = p.d.x_stride, stride = row + rng_in(0, 3), n_sub = rng_in(1, 19), y_stride = p.d.n_out + rng_in(0, 5);
        size_t n = (size_t)p.d.n_tokens * p.d.n_out, skew = rng_in(0, 3);
        float *want = malloc((n + 1) * sizeof(float)), *got = malloc((n_sub * y_stride + 4) * sizeof(float));
        uint8_t *x = malloc(n_sub * stride * elem + 16);
        p.d.y = want;
        ops->gemm(&p.d, 0, p.d.n_out);
        if (p.d.n_tokens == 0)
            goto next;
        struct kern_gemm d = p.d;
        uint32_t pick[19];
        for (size_t i = 0; i < n_sub; i++) {
            pick[i] = rng() % p.d.n_tokens;
            size_t from = p.gather ? (size_t)p.gather[pick[i]] : pick[i];
            memcpy(x + 4 * skew + i * stride * elem, (const char *)p.d.x + from * row * elem, row * elem);
        }
        d.x = x + 4 * skew, d.x_stride = stride, d.gather = NULL;
        d.n_tokens = (uint32_t)n_sub, d.y = got + skew, d.y_stride = y_stride;
        for (uint32_t r = 0; r < d.n_out;) {
            uint32_t end = rng_in(r + 1, d.n_out);
            ops->gemm(&d, r, end);
            r = end;
        }
        for (size_t i = 0; i < n_sub; i++)
            for (uint32_t r = 0; r < d.n_out; r++)
                CHECKF(same(d.y[i * y_stride + r], want[(size_t)pick[i] * d.n_out + r]), "trial %d row %u token %u", trial,
                       r, pick[i]);
    next:
        free(want);
        free(got);
        free(x);
        problem_free(&p);
    }
}

struct errors {
    double sum_sq, max, truth_sq;
    size_t n;
};

static void add_error(struct errors *e, double err, double truth) {
    e->sum_sq += err * err;
    e->truth_sq += truth * truth;
    e->max = fmax(e->max, fabs(err));
    e->n++;
}

/* Bounds, for one output y = sum over n_in of w x, with u = 2^-24:
 *   rounding, quantised weights: let S = sum of (|codes d| + |m|) |d q|. The dot of a block converts to float exactly.
 *     A block rounds m * sum and the fma with it, or with Q6_K the two halves: 2 u of its part of S. Adding it to the sum so
 *     far rounds once more: n_blocks u S in all. The truth's own w is rounded twice. (n_blocks + 4) u S.
 *   rounding, float weights, S = sum |w x|: 16 lanes of ceil(n_in / 16) fmas, then 4 additions: (n_in / 16 + 5) u S.
 *   activations: q = x (127 / max) rounded: two float roundings of at most 127, one more in d, so |x - d q| is at most
 *     d (1/2 + 3 * 127 u) < d (1/2 + 2^-15), and the error of y at most the sum over blocks of that times sum |w|. */
#define HALF_STEP (0.5 + 0x1p-15)

static void row_truth(const struct problem *p, const float *w, uint32_t t, double out[4]) {
    size_t from = p->gather ? (size_t)p->gather[t] : t;
    const float *x = p->x + from * p->d.n_in;
    const struct kern_q8 *q = p->x_mem ? (const struct kern_q8 *)p->x_mem + from * p->d.x_stride : NULL;
    memset(out, 0, 4 * sizeof *out);
    for (uint32_t k = 0; k < p->d.n_in; k++) {
        double xq = q ? (double)q[k / 32].d * q[k / 32].q[k % 32] : (double)x[k];
        out[0] += (double)w[k] * x[k];                                               /* truth                */
        out[1] += (double)w[k] * xq;                                                 /* with rounded x       */
        out[2] += q ? (double)q[k / 32].d * HALF_STEP * fabs(w[k]) : 0;              /* bound: activations   */
        out[3] += fabs(w[k] * xq);                                                   /* S of float weights   */
    }
}

/* S of quantised weights. */
static double s_quant(const struct problem *p, uint32_t r, uint32_t t) {
    size_t from = p->gather ? (size_t)p->gather[t] : t;
    const struct kern_q8 *q = (const struct kern_q8 *)p->x_mem + from * p->d.x_stride;
    double s = 0;
    for (uint32_t b = 0; b < p->d.n_in / 32; b++) {
        struct kern__block blk;
        kern__decode_block(p->d.dtype, (const char *)p->w + r * p->d.row_bytes, b, &blk);
        for (int k = 0; k < 32; k++) {
            double w = fabs((double)blk.d * blk.sc[k / 16] * blk.code[k]) + fabs((double)blk.m);
            s += w * fabs((double)q[b].d * q[b].q[k]);
        }
    }
    return s;
}

static void case_truth(const char *test_name_, const struct format *f, const struct kern_ops *ops) {
    struct errors rounding = { 0 }, total = { 0 };
    struct problem p;
    problem_make(&p, f, ORDINARY, f->elems == 1 ? 2047 : 2048, 33, 9);
    float *y = malloc((size_t)p.d.n_tokens * p.d.n_out * sizeof(float)), *w = malloc(p.d.n_in * sizeof(float));
    p.d.y = y;
    ops->gemm(&p.d, 0, p.d.n_out);
    for (uint32_t r = 0; r < p.d.n_out; r++) {
        kern_dequant_row(f->dtype, (const char *)p.w + r * p.d.row_bytes, p.d.n_in, w);
        for (uint32_t t = 0; t < p.d.n_tokens; t++) {
            double v[4], got = (double)y[t * p.d.n_out + r];
            row_truth(&p, w, t, v);
            double bound = p.x_mem ? (p.d.n_in / 32 + 4) * 0x1p-24 * s_quant(&p, r, t)
                                   : (p.d.n_in / 16 + 6) * 0x1p-24 * v[3];
            double rounded = fabs(got - v[1]), all = fabs(got - v[0]);
            CHECKF(rounded <= bound, "row %u token %u: rounding error %g over bound %g", r, t, rounded, bound);
            CHECKF(all <= bound + v[2], "row %u token %u: error %g over bound %g", r, t, all, bound + v[2]);
            add_error(&rounding, got - v[1], v[0]);
            add_error(&total, got - v[0], v[0]);
        }
    }
    double rms = sqrt(total.truth_sq / (double)total.n);
    printf("# %s %s n_in %u, relative to the RMS of y: rounding max %.2g rms %.2g, ", f->name, ops->name, p.d.n_in,
           rounding.max / rms, sqrt(rounding.sum_sq / (double)rounding.n) / rms);
    printf("with activations in 8 bits max %.2g rms %.2g\n", total.max / rms,
           sqrt(total.sum_sq / (double)total.n) / rms);
    /* The bounds above are worst cases. On average the rounding of x has variance d^2 / 12 with d = max / 127; with 2 %
     * of x 20 times larger, half of the blocks have max^2 near 520, which makes 1.2 % of y (mean x^2 is 9). */
    CHECK(sqrt(total.sum_sq / (double)total.n) <= (p.x_mem ? 0.02 : 1e-5) * rms);
    free(y);
    free(w);
    problem_free(&p);
}

/* quantize: the same bits at every level, |x - d q| <= d / 2, sums right, faults visible. */
static void case_quantize(const char *test_name_, const struct format *f, const struct kern_ops *ops) {
    (void)f;
    for (int trial = 0; trial < 4000; trial++) {
        float x[64];
        struct kern_q8 want[2], got[2];
        float scale = ldexpf(1, (int)rng_in(0, 270) - 140);
        for (int i = 0; i < 64; i++)
            x[i] = rng_normal() * (trial % 5 == 0 ? scale : 1);
        if (trial % 7 == 0)
            x[rng() % 64] = (float[]){ NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, FLT_TRUE_MIN }[rng() % 6];
        if (trial % 11 == 0)
            memset(x, 0, 32 * sizeof *x);
        if (trial % 13 == 0) /* ties: max 127, so d = 1 and halves stay halves */
            for (int i = 0; i < 64; i++)
                x[i] = i % 32 ? (float)(rng() % 253) * 0.5f - 63 : 127;
        kern__quantize_scalar(x, 64, want);
        memset(got, 0x55, sizeof got);
        ops->quantize(x, 64, got);
        for (int b = 0; b < 2; b++) {
            if (isnan(want[b].d) && isnan(got[b].d))
                got[b].d = want[b].d;
            CHECKF(memcmp(&want[b], &got[b], sizeof *got) == 0, "trial %d differs from scalar", trial);
            int sum[2] = { 0, 0 };
            bool finite = true;
            for (int k = 0; k < 32; k++) {
                float v = x[32 * b + k];
                finite &= isfinite(v) != 0;
                sum[k / 16] += got[b].q[k];
                if (isfinite(got[b].d) && got[b].d > 0)
                    CHECKF(fabs((double)v - (double)got[b].d * got[b].q[k]) <= (double)got[b].d * HALF_STEP,
                           "trial %d: %g became %g * %d", trial, (double)v, (double)got[b].d, got[b].q[k]);
            }
            CHECK(sum[0] == got[b].sum[0] && sum[1] == got[b].sum[1]);
            CHECK(finite == !isnan(got[b].d));
        }
    }
}

/* The product without rounded activations, against double: 16 partial sums of n_in / 16 terms and 4 additions. */
static void case_exact(const char *test_name_, const struct format *f, const struct kern_ops *ops) {
    for (int trial = 0; trial < 6; trial++) {
        struct problem p;
        problem_make(&p, f, ORDINARY, rng_in(1, 3) * 256, rng_in(1, 21), rng_in(0, 9));
        struct kern_gemm d = p.d;
        d.x = p.x;
        d.x_stride = d.n_in;
        float *y = calloc((size_t)d.n_tokens * d.n_out + 1, sizeof *y), *w = malloc(d.n_in * sizeof *w);
        float *scratch = malloc(kern_gemm_exact_floats(d.n_in) * sizeof *scratch);
        d.y = y;
        uint32_t row0 = rng_in(0, d.n_out), row1 = rng_in(row0, d.n_out);
        kern_gemm_exact(ops->gemm, &d, row0, row1, scratch);
        bool ok = true;
        for (uint32_t r = 0; r < d.n_out; r++) {
            kern_dequant_row(d.dtype, (const char *)d.w + r * d.row_bytes, d.n_in, w);
            for (uint32_t t = 0; t < d.n_tokens; t++) {
                const float *x = p.x + (d.gather ? (size_t)d.gather[t] : t) * d.n_in;
                double want = 0, size = 0;
                for (uint32_t k = 0; k < d.n_in; k++) {
                    want += (double)w[k] * (double)x[k];
                    size += fabs((double)w[k] * (double)x[k]);
                }
                double got = (double)y[t * d.y_stride + r];
                ok &= r >= row0 && r < row1 ? fabs(got - want) <= (d.n_in / 16 + 4) * 0x1p-24 * size : got == 0;
            }
        }
        free(scratch);
        free(w);
        free(y);
        problem_free(&p);
        CHECKF(ok, "trial %d", trial);
    }
}

/* The table holds what the CPU can run, the best is the last of it, and names are those of the levels. */
TEST(dispatch) {
    enum kern_level best = kern_cpu_best(), found;
    CHECK(kern_cpu_ops(KERN_SCALAR) && kern_cpu_ops(best) && !kern_cpu_ops(KERN_N_LEVELS));
    for (int level = KERN_SCALAR; level < KERN_N_LEVELS; level++) {
        const struct kern_ops *ops = kern_cpu_ops((enum kern_level)level);
        const char *name = kern_level_name((enum kern_level)level);
        CHECK(kern_level_find(name, &found) && (int)found == level && (!ops || level <= (int)best));
        if (!ops)
            continue;
        CHECKF(ops == kern_cpu_ops((enum kern_level)level) && (int)ops->level == level && strcmp(ops->name, name) == 0, "%s", name);
        CHECKF(ops->gemm && ops->quantize && ops->attn && ops->rms_norm && ops->swiglu && ops->axpy, "%s", name);
    }
    found = KERN_AVX2;
    CHECK(!kern_level_find("auto", &found) && !kern_level_find("", &found) && found == KERN_AVX2);
}

static void run_case(void (*fn)(const char *, const struct format *, const struct kern_ops *), const char *what,
                     const struct format *f, const struct kern_ops *ops) {
    char name[64];
    snprintf(name, sizeof name, "%s%s%s_%s", what, f ? "_" : "", f ? f->name : "", ops->name);
    int jumped = setjmp(test_jump_);
    if (jumped == 0) {
        fn(name, f, ops);
        printf("PASS %s\n", name);
    } else if (jumped == 1) {
        test_failed_ = 1;
    }
    fflush(stdout);
}

static void run_gemm_cases(const struct kern_ops *ops) {
    for (int i = 0; i < N_FORMATS; i++) {
        run_case(case_equal, "equal", &formats[i], ops);
        run_case(case_invariant, "invariant", &formats[i], ops);
        run_case(case_truth, "truth", &formats[i], ops);
        run_case(case_exact, "exact", &formats[i], ops);
    }
}

int main(void) {
    RUN(dispatch);
    for (int level = KERN_SCALAR; level < KERN_N_LEVELS; level++) {
        if (!level_runs((enum kern_level)level))
            continue;
        const struct kern_ops *ops = kern_cpu_ops((enum kern_level)level);
        run_case(case_quantize, "quantize", NULL, ops);
        run_gemm_cases(ops);
    }
    return test_failed_;
}
