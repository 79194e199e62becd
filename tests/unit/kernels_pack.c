/* SPDX-License-Identifier: Apache-2.0
 *
 * The packed layout: the documented place of every unit, the way back, rows read for an embedding, and the matrix
 * product, which must give the bits of the row layout's scalar definition for every format, level, slice on 16 rows and
 * batch. Buffers are allocated to the byte, so that ASan sees any access outside. */
#include <math.h>
#include <stdlib.h>

#include "kernels_level.h"
#include "kernels_rand.h"

struct format {
    enum dtype dtype;
    int scale[2];     /* offsets of f16 scales, -1 none                */
    int odd, odd_len; /* the unit that is not 4 bytes, by the header's text */
};
static const struct format formats[] = {
    { DTYPE_Q4_0, { 0, -1 }, 0, 2 },    { DTYPE_Q4_1, { 0, 2 }, 0, 0 },     { DTYPE_Q5_0, { 0, -1 }, 0, 2 },
    { DTYPE_Q5_1, { 0, 2 }, 0, 0 },     { DTYPE_Q8_0, { 0, -1 }, 0, 2 },    { DTYPE_Q4_K, { 0, 2 }, 0, 0 },
    { DTYPE_Q5_K, { 0, 2 }, 0, 0 },     { DTYPE_Q6_K, { 208, -1 }, 208, 2 }, { DTYPE_IQ4_NL, { 0, -1 }, 0, 2 },
    { DTYPE_IQ4_XS, { 0, -1 }, 0, 0 },  { DTYPE_MXFP4, { -1, -1 }, 0, 1 },
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static uint64_t seed = 20261130;

/* Random bytes; unless wild, with scales whose products neither overflow nor vanish. */
static void *random_rows(const struct format *f, size_t n_rows, size_t n_in, bool wild) {
    const struct dtype_info *t = dtype_info((uint32_t)f->dtype);
    size_t n = n_rows * dtype_row_bytes(t, n_in);
    uint8_t *w = malloc(n);
    for (size_t i = 0; i < n; i++)
        w[i] = (uint8_t)rng_next(&seed);
    for (size_t at = 0; at < n && !wild; at += t->block_bytes) {
        for (int i = 0; i < 2 && f->scale[i] >= 0; i++) {
            uint16_t h = kern_f32_to_f16(rng_float(&seed, 0.02f));
            memcpy(w + at + f->scale[i], &h, 2);
        }
        if (f->dtype == DTYPE_MXFP4)
            w[at] = (uint8_t)(118 + rng_below(&seed, 7));
    }
    return w;
}

static void *pack_all(const struct format *f, const uint8_t *rows, size_t n_rows, size_t n_in) {
    size_t row = dtype_row_bytes(dtype_info((uint32_t)f->dtype), n_in);
    uint8_t *packed = malloc(n_rows * row);
    for (size_t r = 0; r < n_rows; r += KERN_PACK_ROWS)
        kern_pack_rows(f->dtype, rows + r * row, n_in, packed + r * row);
    return packed;
}

TEST(every_unit_lies_where_the_header_says) {
    for (int i = 0; i < N_FORMATS; i++) {
        const struct format *f = &formats[i];
        const struct dtype_info *t = dtype_info((uint32_t)f->dtype);
        size_t n_in = 3 * t->block_elems, bytes = t->block_bytes, row = 3 * bytes;
        uint8_t *rows = random_rows(f, 16, n_in, true), *packed = pack_all(f, rows, 16, n_in);
        for (size_t b = 0; b < 3; b++)
            for (size_t r = 0; r < 16; r++)
                for (size_t o = 0, size; o < bytes; o += size) {
                    size = f->odd_len && o == (size_t)f->odd ? (size_t)f->odd_len : 4;
                    CHECKF(memcmp(packed + 16 * b * bytes + 16 * o + r * size, rows + r * row + b * bytes + o, size) == 0,
                           "%s block %zu row %zu offset %zu", t->name, b, r, o);
                }
        free(rows);
        free(packed);
    }
}

TEST(the_way_back_is_exact) {
    for (int trial = 0; trial < 8 * N_FORMATS; trial++) {
        const struct format *f = &formats[trial % N_FORMATS];
        const struct dtype_info *t = dtype_info((uint32_t)f->dtype);
        size_t n_in = (1 + rng_below(&seed, 9)) * t->block_elems, n = 16 * dtype_row_bytes(t, n_in);
        uint8_t *rows = random_rows(f, 16, n_in, true), *packed = pack_all(f, rows, 16, n_in), *back = malloc(n);
        kern_unpack_rows(f->dtype, packed, n_in, back);
        CHECKF(memcmp(rows, back, n) == 0, "%s n_in %zu", t->name, n_in);
        free(rows);
        free(packed);
        free(back);
    }
}

TEST(a_packed_row_dequantises_to_the_same_bits) {
    for (int trial = 0; trial < 4 * N_FORMATS; trial++) {
        const struct format *f = &formats[trial % N_FORMATS];
        const struct dtype_info *t = dtype_info((uint32_t)f->dtype);
        size_t n_in = (1 + rng_below(&seed, 3)) * t->block_elems, row = dtype_row_bytes(t, n_in);
        uint8_t *rows = random_rows(f, 48, n_in, false), *packed = pack_all(f, rows, 48, n_in);
        float *want = malloc(n_in * sizeof *want), *got = malloc(n_in * sizeof *got);
        for (uint32_t r = 0; r < 48; r++) {
            kern_dequant_row(f->dtype, rows + r * row, n_in, want);
            kern_dequant_packed_row(f->dtype, packed, r, n_in, got);
            CHECKF(memcmp(want, got, n_in * sizeof *got) == 0, "%s row %u", t->name, r);
        }
        free(rows);
        free(packed);
        free(want);
        free(got);
    }
}

TEST(only_quantised_formats_and_whole_groups_fit) {
    for (int i = 0; i < N_FORMATS; i++) {
        CHECK(kern_pack_fits(formats[i].dtype, 16) && kern_pack_fits(formats[i].dtype, UINT64_C(16) << 40));
        CHECK(!kern_pack_fits(formats[i].dtype, 8) && !kern_pack_fits(formats[i].dtype, 17));
    }
    CHECK(!kern_pack_fits(DTYPE_F32, 16) && !kern_pack_fits(DTYPE_F16, 16) && !kern_pack_fits(DTYPE_BF16, 16));
}

static bool same(float a, float b) {
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b)); /* NaN payloads carry no meaning */
}

/* One random product: rows, scalar, whole against packed, `ops`, a slice. */
static void check_product(const char *test_name_, const struct kern_ops *ops, const struct kern_ops *scalar, const struct format *f, int trial) {
    const struct dtype_info *t = dtype_info((uint32_t)f->dtype);
    uint32_t n_in = t->block_elems * (1 + rng_below(&seed, t->block_elems == 32 ? 20 : 3)), n_out = 16 * (1 + rng_below(&seed, 4));
    uint32_t n_tokens = trial % 12 == 11 ? 125 + rng_below(&seed, 15) : rng_below(&seed, 20), n_x = 1 + rng_below(&seed, n_tokens + 1);
    void *rows = random_rows(f, n_out, n_in, trial % 4 == 3), *packed = pack_all(f, rows, n_out, n_in);
    float *x = malloc((size_t)n_x * n_in * sizeof *x);
    struct kern_q8 *q = malloc((size_t)n_x * (n_in / 32) * sizeof *q);
    int32_t *gather = malloc((n_tokens + 1) * sizeof *gather);
    uint32_t stride = n_out + rng_below(&seed, 3), n = n_tokens * stride;
    float *want = malloc((n + 1) * sizeof *want), *got = malloc((n + 1) * sizeof *got);
    for (size_t i = 0; i < (size_t)n_x * n_in; i++)
        x[i] = rng_normal(&seed) * (rng_below(&seed, 40) ? 1 : 20);
    scalar->quantize(x, (size_t)n_x * n_in, q);
    for (uint32_t i = 0; i < n_tokens; i++)
        gather[i] = (int32_t)rng_below(&seed, n_x);
    struct kern_gemm d = { .dtype = f->dtype, .w = rows, .row_bytes = dtype_row_bytes(t, n_in), .n_in = n_in, .n_out = n_out, .x = q,
                           .x_stride = n_in / 32, .gather = n_x >= n_tokens && trial % 2 ? NULL : gather, .n_tokens = n_tokens,
                           .y = want, .y_stride = stride };
    scalar->gemm(&d, 0, n_out);
    for (uint32_t i = 0; i < n; i++)
        got[i] = 12345;
    uint32_t row0 = rng_below(&seed, n_out / 16) * 16, row1 = row0 + (n_out / 16 - row0 / 16 - rng_below(&seed, 2)) * 16;
    d.w = packed;
    d.packed = true;
    d.y = got;
    ops->gemm(&d, row0, row1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = i % stride;
        float expect = r >= row0 && r < row1 ? want[i] : 12345;
        CHECKF(same(got[i], expect), "%s %s trial %d: %u x %u, token %u of %u, row %u of [%u, %u): %.9g, expected %.9g", ops->name, t->name,
               trial, n_out, n_in, i / stride, n_tokens, r, row0, row1, (double)got[i], (double)expect);
    }
    free(rows);
    free(packed);
    free(x);
    free(q);
    free(gather);
    free(want);
    free(got);
}

/* Without rounded activations: rows and packed give the same bits, since both dequantise to the same floats. */
TEST(exact_product_is_the_same) {
    const struct kern_ops *ops = kern_cpu_ops(kern_cpu_best());
    for (int i = 0; i < N_FORMATS; i++) {
        const struct format *f = &formats[i];
        enum { N_IN = 512, N_OUT = 48, N_TOKENS = 3 };
        uint8_t *rows = random_rows(f, N_OUT, N_IN, false), *packed = pack_all(f, rows, N_OUT, N_IN);
        float x[N_TOKENS * N_IN], y[2][N_TOKENS * N_OUT] = { { 0 } };
        float *scratch = malloc(kern_gemm_exact_floats(N_IN) * sizeof *scratch);
        for (int k = 0; k < N_TOKENS * N_IN; k++)
            x[k] = rng_normal(&seed);
        struct kern_gemm d = { .dtype = f->dtype, .w = rows, .row_bytes = dtype_row_bytes(dtype_info((uint32_t)f->dtype), N_IN), .n_in = N_IN,
                               .n_out = N_OUT, .x = x, .x_stride = N_IN, .n_tokens = N_TOKENS, .y = y[0], .y_stride = N_OUT };
        kern_gemm_exact(ops->gemm, &d, 16, 48, scratch);
        d.w = packed;
        d.packed = true;
        d.y = y[1];
        kern_gemm_exact(ops->gemm, &d, 16, 48, scratch);
        CHECKF(y[0][47] != 0 && memcmp(y[0], y[1], sizeof y[0]) == 0, "%s", dtype_info((uint32_t)f->dtype)->name);
        free(rows);
        free(packed);
        free(scratch);
    }
}

static void product_equals_the_row_layout(const char *test_name_, const struct kern_ops *ops) {
    for (int trial = 0; trial < 60; trial++)
        for (int i = 0; i < N_FORMATS; i++)
            check_product(test_name_, ops, kern_cpu_ops(KERN_SCALAR), &formats[i], trial);
}

int main(void) {
    RUN(every_unit_lies_where_the_header_says);
    RUN(the_way_back_is_exact);
    RUN(a_packed_row_dequantises_to_the_same_bits);
    RUN(only_quantised_formats_and_whole_groups_fit);
    RUN(exact_product_is_the_same);
    for (int i = KERN_SCALAR; i < KERN_N_LEVELS; i++) {
        enum kern_level level = (enum kern_level)i;
        if (level_runs(level))
            run_level("product_equals_the_row_layout", product_equals_the_row_layout, level);
    }
    return test_failed_;
}
