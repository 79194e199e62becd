/* SPDX-License-Identifier: Apache-2.0
 *
 * BF16 weights times activations rounded to bf16:
 *   instruction  vpdpbf16ps gives the bits of the scalar definition: any bits, cancellation, denormals, overflow, NaN
 *   rounding     kern_round_bf16 gives the nearest, even at ties
 *   equal        all levels give the scalar level's bits over random shapes, slices, gathers and ranges
 *   invariant    one output row has the same bits alone, in any batch, at any slice boundary and address
 *   truth        against double precision, with a derived bound; the measured errors are printed */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/internal.h"
#include "kernels_level.h"
#include "kernels_rand.h"

static uint64_t seed = 20261201;

static float float_of(uint32_t u) {
    union { uint32_t u; float f; } v = { u };
    return v.f;
}

static bool same(float a, float b) {
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b)); /* NaN payloads carry no meaning */
}

static uint16_t rng_bf16(uint32_t exp0, uint32_t n_exps) {
    return (uint16_t)(rng_next(&seed) % 2 << 15 | (exp0 + rng_below(&seed, n_exps)) << 7 | rng_below(&seed, 128));
}

enum range { ORDINARY, TINY, CANCEL, HUGE_SUMS, WILD, N_RANGES };

#if defined(__x86_64__)
/* Two pairs and a sum so far. TINY: sums among denormals; CANCEL: next to the least normal number, from both sides. */
struct pair_sum {
    uint16_t w[2], x[2];
    float c;
};

static struct pair_sum pair_sum_make(enum range range) {
    static const struct { uint32_t w, x, n, c, n_c; } exps[] = {
        [ORDINARY] = { 120, 120, 12, 118, 14 }, [TINY] = { 60, 60, 8, 0, 6 }, [CANCEL] = { 0, 0, 1, 1, 1 }, [HUGE_SUMS] = { 190, 186, 8, 250, 5 },
        [WILD] = { 0, 0, 256, 0, 256 },
    };
    struct pair_sum v;
    for (int i = 0; i < 2; i++) {
        v.w[i] = rng_bf16(exps[range].w, exps[range].n);
        v.x[i] = rng_bf16(exps[range].x, exps[range].n);
    }
    v.c = float_of((uint32_t)(rng_next(&seed) % 2) << 31 | (exps[range].c + rng_below(&seed, exps[range].n_c)) << 23 | (uint32_t)rng_next(&seed) >> 8);
    if (range == CANCEL) {
        v.w[0] = (uint16_t)(0x3f80 | rng_next(&seed) % 2 << 15); /* +-1 times +-2^-126 */
        v.x[0] = 0x0080;
        v.w[1] = rng_bf16(62, 1);
        v.x[1] = rng_bf16(38, 6);
        v.c = float_of((uint32_t)(rng_next(&seed) % 2) << 31 | 0x00800000 | (rng_next(&seed) % 2 ? 0 : rng_below(&seed, 5)));
    }
    return v;
}

__attribute__((target("avx512f,avx512bf16,avx512vl"))) static float instruction(const struct pair_sum *v) {
    __m128i w = _mm_cvtsi32_si128((int)(v->w[0] | (uint32_t)v->w[1] << 16)), x = _mm_cvtsi32_si128((int)(v->x[0] | (uint32_t)v->x[1] << 16));
    return _mm_cvtss_f32(_mm_dpbf16_ps(_mm_set_ss(v->c), (__m128bh)w, (__m128bh)x));
}

static float operand(uint16_t h) {
    return kern_bf16_to_f32(h & 0x7f80 ? h : h & 0x8000);
}

static void check_pair(const char *test_name_, enum range range) {
    struct pair_sum v = pair_sum_make(range);
    float c = fabsf(v.c) < FLT_MIN ? copysignf(0, v.c) : v.c;
    float want = kern__madd_flushed(operand(v.w[1]), operand(v.x[1]), c), got = instruction(&v);
    want = kern__madd_flushed(operand(v.w[0]), operand(v.x[0]), want);
    CHECKF(same(got, want), "%d: %a + pairs of %04x %04x and %04x %04x: %a, expected %a", (int)range, (double)v.c, v.w[0], v.w[1], v.x[0],
           v.x[1], (double)got, (double)want);
}
#endif

TEST(instruction_is_the_definition) {
#if defined(__x86_64__)
    if (kern_cpu_ops(KERN_AVX512BF16)) {
        for (int i = 0; i < 400000; i++)
            check_pair(test_name_, (enum range)(i % N_RANGES));
        return;
    }
#endif
    SKIP("this CPU has no vpdpbf16ps");
}

TEST(rounding) {
    for (int i = 0; i < 200000; i++) {
        uint32_t u = (uint32_t)(rng_next(&seed) << 16 ^ rng_next(&seed));
        if (i % 3 == 0)
            u = (u & 0xffff0000) | 0x8000; /* ties */
        float x = float_of(u), r;
        uint16_t h;
        kern_round_bf16(&x, 1, &h);
        r = kern_bf16_to_f32(h);
        CHECK(h == kern_f32_to_bf16(x) && isnan(x) == isnan(r));
        if (isfinite(x) && fabsf(x) < 0x1.fep127f) {
            double step = ldexp(1, (int)(fmax(u >> 23 & 255, 1)) - 127 - 7), off = fabs((double)x - (double)r);
            CHECKF(off < step / 2 || (off == step / 2 && h % 2 == 0), "%a became %a", (double)x, (double)r);
        }
    }
}

struct problem {
    struct kern_gemm d;
    uint16_t *w, *x;
    int32_t *gather;
    uint32_t n_rows_x;
};

static uint16_t value(enum range range) {
    float v = rng_normal(&seed);
    switch (range) {
    case TINY: return kern_f32_to_bf16(rng_below(&seed, 3) ? v * 0x1p-63f : v * 0x1p-125f);
    case CANCEL: return rng_bf16(63, 2); /* products around the least normal number */
    case HUGE_SUMS: return kern_f32_to_bf16(v * 0x1p62f);
    case WILD: return (uint16_t)rng_next(&seed);
    default: return kern_f32_to_bf16(v);
    }
}

static void problem_make(struct problem *p, enum range range, uint32_t n_in, uint32_t n_out, uint32_t n_tokens) {
    memset(p, 0, sizeof *p);
    p->n_rows_x = n_tokens ? 1 + rng_below(&seed, n_tokens) : 1;
    p->w = malloc((size_t)n_in * n_out * 2);
    p->x = malloc((size_t)n_in * p->n_rows_x * 2);
    p->gather = malloc((n_tokens + 1) * sizeof *p->gather);
    for (size_t i = 0; i < (size_t)n_in * n_out; i++)
        p->w[i] = value(range);
    for (size_t i = 0; i < (size_t)n_in * p->n_rows_x; i++)
        p->x[i] = value(range == WILD && rng_below(&seed, 40) ? ORDINARY : range);
    for (uint32_t t = 0; t < n_tokens; t++)
        p->gather[t] = (int32_t)rng_below(&seed, p->n_rows_x);
    p->d = (struct kern_gemm){ .dtype = DTYPE_BF16, .w = p->w, .row_bytes = (size_t)n_in * 2, .n_in = n_in, .n_out = n_out, .x = p->x,
                               .x_stride = n_in, .gather = p->n_rows_x < n_tokens ? p->gather : NULL, .n_tokens = n_tokens, .y_stride = n_out };
}

static void problem_free(struct problem *p) {
    free(p->w);
    free(p->x);
    free(p->gather);
}

static void problem_random(struct problem *p, int trial) {
    problem_make(p, (enum range)(trial % N_RANGES), 1 + rng_below(&seed, 200), 1 + rng_below(&seed, 37), rng_below(&seed, 20));
}

/* Every output of a random slicing equals the scalar level; nothing outside the slice is written. */
static void case_equal(const char *test_name_, const struct kern_ops *ops) {
    for (int trial = 0; trial < 150; trial++) {
        struct problem p;
        problem_random(&p, trial);
        const uint32_t n = p.d.n_tokens * p.d.n_out, row0 = rng_below(&seed, p.d.n_out + 1), row1 = row0 + rng_below(&seed, p.d.n_out - row0 + 1);
        float *want = malloc((n + 1) * sizeof *want), *got = malloc((n + 1) * sizeof *got);
        for (uint32_t i = 0; i < n; i++)
            got[i] = 12345;
        p.d.y = want;
        kern__gemm_bf16_scalar(&p.d, 0, p.d.n_out);
        p.d.y = got;
        ops->gemm_bf16(&p.d, row0, row1);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t r = i % p.d.n_out;
            float expect = r >= row0 && r < row1 ? want[i] : 12345;
            CHECKF(same(got[i], expect), "trial %d n_in %u row %u of [%u, %u): %a, expected %a", trial, p.d.n_in, r, row0, row1, (double)got[i],
                   (double)expect);
        }
        free(want);
        free(got);
        problem_free(&p);
    }
}

static void case_invariant(const char *test_name_, const struct kern_ops *ops) {
    for (int trial = 0; trial < 60; trial++) {
        struct problem p;
        problem_random(&p, trial);
        float *want = malloc(((size_t)p.d.n_tokens * p.d.n_out + 1) * sizeof *want), *got = malloc((p.d.n_out + 3) * sizeof *got);
        p.d.y = want;
        ops->gemm_bf16(&p.d, 0, p.d.n_out);
        for (uint32_t t = 0; t < p.d.n_tokens; t++) {
            struct kern_gemm one = p.d;
            int32_t from = p.d.gather ? p.d.gather[t] : (int32_t)t;
            one.gather = &from, one.n_tokens = 1, one.y = got + trial % 3;
            for (uint32_t r = 0, end; r < one.n_out; r = end) {
                end = r + 1 + rng_below(&seed, one.n_out - r);
                ops->gemm_bf16(&one, r, end);
            }
            for (uint32_t r = 0; r < one.n_out; r++)
                CHECKF(same(one.y[r], want[(size_t)t * one.n_out + r]), "trial %d row %u token %u", trial, r, t);
        }
        free(want);
        free(got);
        problem_free(&p);
    }
}

/* With u = 2^-24 and S = sum |w x|: 16 sums of n_in / 16 steps and 4 additions, each rounding at most u S; flushed denormals
 * are nothing beside it here. Rounding x: at most 2^-9 |x|, so 2^-9 S. */
static void case_truth(const char *test_name_, const struct kern_ops *ops) {
    enum { N_IN = 2047, N_OUT = 33, N_TOKENS = 9 };
    float *x = malloc(sizeof *x * N_IN * N_TOKENS), *y = malloc(sizeof *y * N_OUT * N_TOKENS);
    double sum_sq = 0, err_sq = 0;
    struct problem p;
    problem_make(&p, ORDINARY, N_IN, N_OUT, N_TOKENS);
    p.d.gather = NULL;
    p.d.x = p.x = realloc(p.x, sizeof *p.x * N_IN * N_TOKENS);
    for (size_t i = 0; i < (size_t)N_IN * N_TOKENS; i++)
        x[i] = rng_normal(&seed) * (rng_below(&seed, 50) ? 1 : 20);
    kern_round_bf16(x, (size_t)N_IN * N_TOKENS, p.x);
    p.d.y = y;
    ops->gemm_bf16(&p.d, 0, N_OUT);
    for (uint32_t i = 0; i < N_OUT * N_TOKENS; i++) {
        double truth = 0, rounded = 0, s = 0, got = (double)y[i];
        for (size_t k = 0; k < N_IN; k++) {
            double w = (double)kern_bf16_to_f32(p.w[i % N_OUT * N_IN + k]), xr = (double)kern_bf16_to_f32(p.x[i / N_OUT * N_IN + k]);
            truth += w * (double)x[i / N_OUT * N_IN + k];
            rounded += w * xr;
            s += fabs(w * xr);
        }
        CHECKF(fabs(got - rounded) <= (N_IN / 16 + 6) * 0x1p-24 * s, "output %u: %g, expected %g", i, got, rounded);
        CHECKF(fabs(got - truth) <= ((N_IN / 16 + 6) * 0x1p-24 + 0x1.02p-9) * s, "output %u: %g, expected %g", i, got, truth);
        sum_sq += truth * truth;
        err_sq += (got - truth) * (got - truth);
    }
    /* the rounding of x has a relative error of 2^-9 / sqrt(3) at most in the mean square, and so has y */
    printf("# %s n_in %d: error relative to the RMS of y %.2g\n", ops->name, N_IN, sqrt(err_sq / sum_sq));
    CHECK(sqrt(err_sq / sum_sq) <= 0x1p-9);
    free(x);
    free(y);
    problem_free(&p);
}

int main(void) {
    RUN(rounding);
    RUN(instruction_is_the_definition);
    for (int level = KERN_SCALAR; level < KERN_N_LEVELS; level++) {
        if (!level_runs((enum kern_level)level))
            continue;
        run_level("equal", case_equal, (enum kern_level)level);
        run_level("invariant", case_invariant, (enum kern_level)level);
        run_level("truth", case_truth, (enum kern_level)level);
    }
    return test_failed_;
}
