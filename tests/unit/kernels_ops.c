/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-wise kernels (rms_norm, swiglu, axpy) of every level: the bits of the scalar level, and the truth in double precision. Rope
 * against double precision. */
#include "test.h"

#include <stdlib.h>

#include "kernels_level.h"
#include "kernels_rand.h"

enum { MAX_N = 5000 };

static float x_[MAX_N + 16], w_[MAX_N + 16], y_[MAX_N + 16], z_[MAX_N + 16];

/* Every tail length, then a few long ones. */
static uint32_t shape(int round, uint64_t *s) {
    return round < 100 ? 1 + (uint32_t)round : 1 + rng_below(s, MAX_N);
}

/* eps = 2^-24 is half an ulp: one rounding. */
#define EPS 0x1p-24

static void rms_norm_level(const char *test_name_, const struct kern_ops *ops) {
    uint64_t s = 11;
    for (int round = 0; round < 160; round++) {
        uint32_t n = shape(round, &s), off = rng_below(&s, 16);
        float *x = x_ + off, *w = w_ + 15 - off, *y = y_ + off / 2, eps = round % 2 ? 1e-6f : 1e-5f;
        float size = (float[]){ 1, 1e-3f, 1e4f, 1e15f, 0 }[round % 5];
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            x[i] = rng_normal(&s) * size;
            w[i] = rng_normal(&s);
            sum += (double)x[i] * (double)x[i];
        }
        y[n] = 123;
        ops->rms_norm(x, w, eps, n, y);
        CHECK(y[n] == 123);
        double scale = 1 / sqrt(sum / n + (double)eps);
        for (uint32_t i = 0; i < n; i++) {
            double want = (double)x[i] * scale * (double)w[i];
            /* scale rounded once, two products, and 1e-13 of the double sum: 3 eps, + 1 for second order */
            CHECKF(fabs((double)y[i] - want) <= 4 * EPS * fabs(want), "n %u i %u: %g, want %g", n, i, (double)y[i], want);
        }
        memcpy(z_, y, n * sizeof *y);
        ops->rms_norm(x, w, eps, n, x); /* in place */
        CHECK(memcmp(x, z_, n * sizeof *x) == 0);
    }
}

static void swiglu_level(const char *test_name_, const struct kern_ops *ops) {
    uint64_t s = 12;
    for (int round = 0; round < 300; round++) {
        uint32_t n = shape(round, &s), off = rng_below(&s, 16);
        float *g = x_ + off, *u = w_ + 15 - off, *y = y_ + off / 2, range = round % 3 ? 12.0f : 200.0f;
        for (uint32_t i = 0; i < n; i++) {
            g[i] = rng_float(&s, range);
            u[i] = rng_normal(&s);
        }
        y[n] = 123;
        ops->swiglu(g, u, n, y);
        CHECK(y[n] == 123);
        for (uint32_t i = 0; i < n; i++) {
            double want = (double)g[i] / (1 + exp(-(double)g[i])) * (double)u[i];
            /* exp 1 ulp = 2 eps, sum, division, product: 5 eps; below e^-88 the float exp overflows and 0 is right
             * to 89 / FLT_MAX = 3e-37 per unit of u */
            CHECKF(fabs((double)y[i] - want) <= 5.5 * EPS * fabs(want) + 3e-37 * fabs((double)u[i]),
                   "g %g u %g: %g, want %g", (double)g[i], (double)u[i], (double)y[i], want);
        }
        uint32_t cut = rng_below(&s, n + 1); /* any slicing, in place: same bits */
        ops->swiglu(g, u, cut, g);
        ops->swiglu(g + cut, u + cut, n - cut, u + cut);
        CHECK(memcmp(g, y, cut * sizeof *g) == 0 && memcmp(u + cut, y + cut, (n - cut) * sizeof *u) == 0);
    }
    float g[6] = { INFINITY, -INFINITY, NAN, 0, 88.8f, -1e38f }, u[6] = { 1, 1, 1, 1, 1, 1 }, y[6];
    ops->swiglu(g, u, 6, y);
    CHECK(y[0] == INFINITY && isnan(y[2]) && y[3] == 0 && y[4] == 88.8f && y[5] == 0);
}

static void axpy_level(const char *test_name_, const struct kern_ops *ops) {
    uint64_t s = 13;
    for (int round = 0; round < 160; round++) {
        uint32_t n = shape(round, &s), off = rng_below(&s, 16);
        float *x = x_ + off, *y = y_ + 15 - off, a = rng_normal(&s);
        for (uint32_t i = 0; i < n; i++) {
            x[i] = rng_normal(&s);
            z_[i] = y[i] = rng_normal(&s);
        }
        y[n] = 123;
        ops->axpy(a, x, n, y);
        CHECK(y[n] == 123);
        for (uint32_t i = 0; i < n; i++) {
            double ax = (double)a * (double)x[i], want = ax + (double)z_[i];
            CHECK(fabs((double)y[i] - want) <= EPS * (fabs(ax) + fabs(want)) * 1.001); /* product, sum */
        }
    }
}

/* What the values look like: ordinary, of any size down to subnormal, and any bits at all. */
static float wild(uint64_t *s, int kind) {
    if (kind == 0) return rng_normal(s);
    if (kind == 1) return rng_normal(s) * ldexpf(1, (int)rng_below(s, 270) - 140);
    uint32_t bits = (uint32_t)rng_next(s) ^ (uint32_t)rng_next(s) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void ops_equal(const char *test_name_, const struct kern_ops *ops) {
    static float a_[MAX_N], b_[MAX_N];
    const struct kern_ops *ref = kern_cpu_ops(KERN_SCALAR);
    uint64_t s = 14;
    for (int round = 0; round < 400; round++) {
        uint32_t n = shape(round % 200, &s), off = rng_below(&s, 16);
        float *x = x_ + off, *w = w_ + 15 - off, scale = wild(&s, round % 3);
        for (uint32_t i = 0; i < n; i++) {
            x[i] = wild(&s, round % 3);
            w[i] = wild(&s, round % 3);
        }
        ops->rms_norm(x, w, 1e-6f, n, a_);
        ref->rms_norm(x, w, 1e-6f, n, b_);
        CHECKF(first_difference(a_, b_, n) == n, "rms_norm: round %d, n %u", round, n);
        ops->swiglu(x, w, n, a_);
        ref->swiglu(x, w, n, b_);
        CHECKF(first_difference(a_, b_, n) == n, "swiglu: round %d, n %u", round, n);
        memcpy(a_, w, n * sizeof *w);
        memcpy(b_, w, n * sizeof *w);
        ops->axpy(scale, x, n, a_);
        ref->axpy(scale, x, n, b_);
        CHECKF(first_difference(a_, b_, n) == n, "axpy: round %d, n %u", round, n);
    }
}

/* Every 4,099th float, and all around the ends of exp's range. */
static void exp_equal(const char *test_name_, const struct kern_ops *ops) {
    enum { STEP = 4099, N = 4096 };
    static const uint32_t EDGES[] = { 0x42AE0000, 0x42AEAC50, 0x42B17218, 0x42B20000, 0, 0x7F800000 }; /* 87, 87.34, 88.72, 89 */
    static float one[N], want[N], got[N];
    const struct kern_ops *ref = kern_cpu_ops(KERN_SCALAR);
    for (int i = 0; i < N; i++) one[i] = 1;
    for (uint32_t block = 0; block < (UINT32_MAX / STEP + N) / N + 12; block++) {
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t edge = block / 2 < 6 ? EDGES[block / 2] - N / 2 + i : 0, bits = block < 12 ? edge | block << 31 : ((block - 12) * N + i) * STEP;
            memcpy(&x_[i], &bits, sizeof bits);
        }
        ops->swiglu(x_, one, N, got);
        ref->swiglu(x_, one, N, want);
        size_t at = first_difference(got, want, N);
        CHECKF(at == N, "%a: %a, scalar %a", (double)x_[at], (double)got[at], (double)want[at]);
    }
}

/* ---- rope ---- */

enum { MAX_DIMS = 256 };

static const uint32_t POSITIONS[] = { 0, 1, 2, 77, 4095, 32768, 100000, 1000000 };

TEST(rope_frequencies_plain_linear_and_factors) {
    float freq[MAX_DIMS / 2], factors[MAX_DIMS / 2], mscale;
    for (uint32_t n_dims = 2; n_dims <= MAX_DIMS; n_dims += 2) {
        for (uint32_t i = 0; i < n_dims / 2; i++) factors[i] = 1 + (float)i / 3;
        for (int form = 0; form < 3; form++) {
            struct kern_rope_params p = { .n_dims = n_dims, .theta = 500000, .factor = form ? 4 : 0,
                                          .factors = form == 2 ? factors : NULL };
            kern_rope_init(&p, freq, &mscale);
            CHECK(mscale == 1);
            for (uint32_t i = 0; i < n_dims / 2; i++) {
                double want = pow(500000, -2.0 * i / n_dims) / (form ? 4 : 1) / (form == 2 ? (double)factors[i] : 1);
                CHECK(fabs((double)freq[i] - want) <= 1.001 * EPS * want); /* one rounding */
            }
        }
    }
}

/* Values worked out from the paper's definition for head 128, theta 10000, 4096 * 4 (the public YaRN models):
 * turns(i) = ctx * freq(i) / 2 pi; ramp from floor(pair of 32 turns) = 20 to ceil(pair of 1 turn) = 46. */
TEST(rope_yarn) {
    float freq[64], mscale;
    struct kern_rope_params p = { .n_dims = 128, .theta = 10000, .factor = 4, .yarn = true, .ctx_orig = 4096, .attn_factor = 1 };
    kern_rope_init(&p, freq, &mscale);
    CHECK(fabs((double)mscale - (0.1 * log(4) + 1)) < 1e-7);
    for (int i = 0; i < 64; i++) {
        double f = pow(10000, -i / 64.0), keep = i <= 20 ? 1 : i >= 46 ? 0 : 1 - (i - 20) / 26.0;
        double want = f * keep + f / 4 * (1 - keep);
        CHECKF(fabs((double)freq[i] - want) <= 1.001 * EPS * want, "pair %d: %g, want %g", i, (double)freq[i], want);
    }
    p.attn_factor = 0.5f;
    kern_rope_init(&p, freq, &mscale);
    CHECK(fabs((double)mscale - 0.5 * (0.1 * log(4) + 1)) < 1e-7);
    p.ctx_orig = 16; /* every dim turns less than once: all interpolated, and no division by zero */
    kern_rope_init(&p, freq, &mscale);
    CHECK(fabsf(freq[40] - powf(10000, -40 / 64.0f) / 4) < 1e-9f);
}

TEST(rope_table_is_exact_at_any_position) {
    float freq[64], cs[128];
    struct kern_rope_params p = { .n_dims = 128, .theta = 10000, .factor = 1 };
    struct kern_rope r = { .n_dims = 128, .head_dim = 128, .inv_freq = freq };
    kern_rope_init(&p, freq, &r.mscale);
    r.mscale = 1.25f;
    for (size_t k = 0; k < sizeof POSITIONS / sizeof *POSITIONS; k++) {
        kern_rope_table(&r, POSITIONS[k], cs);
        for (int i = 0; i < 64; i++) {
            long double a = (long double)POSITIONS[k] * (long double)freq[i];
            CHECK(fabsl((long double)cs[i] - 1.25L * cosl(a)) <= 1.25L * 1.001L * EPS);
            CHECK(fabsl((long double)cs[64 + i] - 1.25L * sinl(a)) <= 1.25L * 1.001L * EPS);
            /* against real-number frequencies: the rounding of freq grows with the position, and nothing else */
            long double real = (long double)POSITIONS[k] * powl(10000, -i / 64.0L);
            CHECK(fabsl((long double)cs[i] - 1.25L * cosl(real)) <= 1.25L * (1.001L * EPS + 1.001L * EPS * real));
        }
    }
}

static void rope_apply_form(const char *test_name_, bool neox, uint32_t head_dim, uint32_t n_dims) {
    float freq[MAX_DIMS / 2], cs[MAX_DIMS], x[3 * MAX_DIMS], y[3 * MAX_DIMS];
    struct kern_rope_params p = { .n_dims = n_dims, .theta = 10000, .factor = 1 };
    struct kern_rope r = { .neox = neox, .n_dims = n_dims, .head_dim = head_dim, .inv_freq = freq };
    uint64_t s = n_dims;
    kern_rope_init(&p, freq, &r.mscale);
    for (uint32_t i = 0; i < 3 * head_dim; i++) y[i] = x[i] = rng_normal(&s);
    kern_rope_table(&r, 1234, cs);
    kern_rope_apply(&r, cs, y, 3);
    for (uint32_t h = 0; h < 3; h++) {
        const float *xh = x + h * head_dim, *yh = y + h * head_dim;
        for (uint32_t i = 0; i < n_dims / 2; i++) {
            uint32_t ia = neox ? i : 2 * i, ib = neox ? i + n_dims / 2 : 2 * i + 1;
            double a = (double)xh[ia], b = (double)xh[ib], t = 1234 * (double)freq[i], size = fabs(a) + fabs(b);
            CHECK(fabs((double)yh[ia] - (a * cos(t) - b * sin(t))) <= 3 * EPS * size); /* table, product, sum */
            CHECK(fabs((double)yh[ib] - (a * sin(t) + b * cos(t))) <= 3 * EPS * size);
        }
        for (uint32_t i = n_dims; i < head_dim; i++) CHECK(xh[i] == yh[i]);
    }
}

TEST(rope_apply_norm_neox_full_and_partial) {
    for (uint32_t head_dim = 2; head_dim <= MAX_DIMS; head_dim += head_dim < 16 ? 2 : 24)
        for (uint32_t n_dims = 2; n_dims <= head_dim; n_dims += head_dim < 16 ? 2 : 18) {
            rope_apply_form(test_name_, false, head_dim, n_dims);
            rope_apply_form(test_name_, true, head_dim, n_dims);
        }
}

int main(void) {
    for (int i = KERN_SCALAR; i < KERN_N_LEVELS; i++) {
        enum kern_level level = (enum kern_level)i;
        if (!level_runs(level)) continue;
        run_level("rms_norm", rms_norm_level, level);
        run_level("swiglu", swiglu_level, level);
        run_level("axpy", axpy_level, level);
        if (level == KERN_SCALAR) continue;
        run_level("ops_equal", ops_equal, level);
        run_level("exp_equal", exp_equal, level);
    }
    RUN(rope_frequencies_plain_linear_and_factors);
    RUN(rope_yarn);
    RUN(rope_table_is_exact_at_any_position);
    RUN(rope_apply_norm_neox_full_and_partial);
    return test_failed_;
}
