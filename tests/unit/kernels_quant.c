/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats against the truth of others: dequantisation bit for bit against files made with the `gguf` package
 * (tests/fixtures/make_quant.py), 16-bit floats against the definition of rounding, activations against their
 * stated bound. Run from the repository root. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/internal.h"
#include "tests/unit/test.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint64_t rng_state = 88172645463325252u;
static uint32_t rng(void) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 16);
}

struct fixture {
    uint32_t dtype, n, n_bytes;
    unsigned char *blocks;
    float *want;
};

static int fixture_load(struct fixture *f, const char *name) {
    char path[128], magic[4];
    snprintf(path, sizeof path, "tests/data/quant/%s.bin", name);
    FILE *in = fopen(path, "rb");
    if (!in)
        return 0;
    int ok = fread(magic, 1, 4, in) == 4 && memcmp(magic, "MQNT", 4) == 0 && fread(&f->dtype, 4, 3, in) == 3;
    f->blocks = malloc(f->n_bytes);
    f->want = malloc(f->n * sizeof(float));
    ok = ok && fread(f->blocks, 1, f->n_bytes, in) == f->n_bytes && fread(f->want, 4, f->n, in) == f->n;
    fclose(in);
    return ok;
}

static void check_format(const char *test_name_, const char *name) {
    struct fixture f = { 0 };
    CHECKF(fixture_load(&f, name), "tests/data/quant/%s.bin is missing or short", name);
    float *got = malloc(f.n * sizeof(float));
    kern_dequant_row((enum dtype)f.dtype, f.blocks, f.n, got);
    for (uint32_t i = 0; i < f.n; i++)
        CHECKF(bits_of(got[i]) == bits_of(f.want[i]), "%s weight %u: got %.9g expected %.9g", name, i,
               (double)got[i], (double)f.want[i]);
    free(got);
    free(f.want);
    free(f.blocks);
}

#define FORMAT(name) \
    TEST(dequant_##name) { check_format(test_name_, #name); }
FORMAT(F32)
FORMAT(F16)
FORMAT(BF16)
FORMAT(Q8_0)
FORMAT(Q4_0)
FORMAT(Q4_1)
FORMAT(Q5_0)
FORMAT(Q5_1)
FORMAT(Q4_K)
FORMAT(Q5_K)
FORMAT(Q6_K)
FORMAT(IQ4_NL)
FORMAT(IQ4_XS)
FORMAT(MXFP4)

TEST(f16_every_pattern_round_trips) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = kern_f16_to_f32((uint16_t)h);
        uint32_t exp = h >> 10 & 31, man = h & 1023;
        double want = exp == 31 ? INFINITY : exp ? ldexp(1024.0 + man, (int)exp - 25) : ldexp(man, -24);
        if (exp == 31 && man) {
            CHECK(isnan(f) && isnan(kern_f16_to_f32(kern_f32_to_f16(f))));
            continue;
        }
        CHECKF(fabs((double)f) == want && !!signbit(f) == (h >> 15), "pattern %04x is %g", h, (double)f);
        CHECKF(kern_f32_to_f16(f) == h, "pattern %04x came back as %04x", h, kern_f32_to_f16(f));
    }
}

/* The neighbour that the definition of round-to-nearest-even picks among lo and lo + 1 (as magnitudes). */
static uint32_t nearest(double v, uint32_t lo, double f_lo, double f_hi) {
    double down = v - f_lo, up = f_hi - v;
    return down < up || (down == up && lo % 2 == 0) ? lo : lo + 1;
}

TEST(f16_rounds_to_nearest_even) {
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double a = (double)kern_f16_to_f32((uint16_t)h);
        double b = h == 0x7bff ? 65536.0 : (double)kern_f16_to_f32((uint16_t)(h + 1));
        for (int i = 0; i < 9; i++) {
            float mid = (float)((a + b) / 2); /* exact in f32 */
            float f = i < 3 ? float_of(bits_of(mid) + (uint32_t)i - 1) : (float)(a + (b - a) * (rng() & 0xffff) / 65536.0);
            uint32_t want = nearest((double)f, h, a, b);
            CHECKF(kern_f32_to_f16(f) == want, "%.9g gave %04x, expected %04x", (double)f, kern_f32_to_f16(f), want);
            CHECK(kern_f32_to_f16(-f) == (want | 0x8000));
        }
    }
    CHECK(kern_f32_to_f16(1e30f) == 0x7c00 && kern_f32_to_f16(-INFINITY) == 0xfc00);
    CHECK(kern_f32_to_f16(0x1p-26f) == 0 && kern_f32_to_f16(-0x1p-149f) == 0x8000);
}

TEST(bf16_rounds_to_nearest_even) {
    for (uint32_t h = 0; h < 0x7f80; h++) {
        for (int i = 0; i < 8; i++) {
            uint32_t low = i == 0 ? 0x8000 : i == 1 ? 0x7fff : i == 2 ? 0x8001 : rng() & 0xffff;
            uint32_t want = h + (low > 0x8000 || (low == 0x8000 && h % 2));
            CHECK(kern_f32_to_bf16(float_of(h << 16 | low)) == want);
            CHECK(kern_f32_to_bf16(float_of(h << 16 | low | 0x80000000)) == (want | 0x8000));
        }
        CHECK(kern_f32_to_bf16(kern_bf16_to_f32((uint16_t)h)) == h);
    }
    CHECK(isnan(kern_bf16_to_f32(kern_f32_to_bf16(float_of(0x7f800001)))));
    CHECK(isnan(kern_bf16_to_f32(kern_f32_to_bf16(float_of(0xffffffff)))));
}

int main(void) {
    RUN(dequant_F32);
    RUN(dequant_F16);
    RUN(dequant_BF16);
    RUN(dequant_Q8_0);
    RUN(dequant_Q4_0);
    RUN(dequant_Q4_1);
    RUN(dequant_Q5_0);
    RUN(dequant_Q5_1);
    RUN(dequant_Q4_K);
    RUN(dequant_Q5_K);
    RUN(dequant_Q6_K);
    RUN(dequant_IQ4_NL);
    RUN(dequant_IQ4_XS);
    RUN(dequant_MXFP4);
    RUN(f16_every_pattern_round_trips);
    RUN(f16_rounds_to_nearest_even);
    RUN(bf16_rounds_to_nearest_even);
    return test_failed_;
}
