/* SPDX-License-Identifier: Apache-2.0
 *
 * kern_dev_rms_norm against the definition in double. */
#include "rig.h"

#include <cmath>

static void compare(const char *test_name_, uint32_t n_rows, uint32_t n, bool add, float spread, uint32_t round) {
    uint64_t s = 100 + round;
    std::vector<float> x(n_rows * n), a(n_rows * n), w(n);
    for (float &v : x) v = rng_float(&s, spread);
    for (float &v : a) v = rng_float(&s, spread / 4);
    for (float &v : w) v = rng_float(&s, 2);
    device_array<float> dx(x), da(a), dw(w), dy(n_rows * n);
    struct kern_dev_rms_norm d = {};
    d.n_rows = n_rows;
    d.n = n;
    d.x = dx.p;
    d.add = add ? da.p : nullptr;
    d.w = dw.p;
    d.eps = 1e-6f;
    d.y = round % 2 && add ? da.p : dy.p; /* y may alias add */
    order_of_round(round);
    CHECK(kern_dev_rms_norm(&d, stream_of_test()) == ST_OK);
    const std::vector<float> got = round % 2 && add ? da.get() : dy.get(), got_x = dx.get();
    for (uint32_t r = 0; r < n_rows; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            const size_t at = (size_t)r * n + i;
            if (add) x[at] += a[at];
            CHECK(got_x[at] == x[at]);
            sum += (double)x[at] * (double)x[at];
        }
        const double scale = 1 / sqrt(sum / n + 1e-6);
        for (uint32_t i = 0; i < n; i++) {
            /* the sum of n non-negative terms over 256 threads: n / 256 + 12 roundings, halved by the root; three more */
            const double want = (double)x[(size_t)r * n + i] * scale * (double)w[i], tolerance = 0x1p-24 * (n / 512.0 + 12) * fabs(want);
            CHECKF(fabs((double)got[(size_t)r * n + i] - want) <= tolerance, "n %u row %u column %u: %g, want %g", n, r, i, (double)got[(size_t)r * n + i], want);
        }
    }
}

TEST(rms_norm_equals_its_definition) {
    const uint32_t widths[] = { 4, 64, 256, 576, 1024, 1028, 2048, 2880, 4096, 5120, 8192, 12288 };
    uint32_t round = 0;
    for (uint32_t n : widths)
        for (int add = 0; add < 2; add++, round++) compare(test_name_, 1 + round % 4, n, add, round % 3 ? 3 : 3e-4f, round);
    compare(test_name_, 0, 64, true, 1, 0);
}

/* A row has the same bits alone, among others, and in any order of threads. */
TEST(rms_norm_rows_stand_alone) {
    uint64_t s = 5;
    const uint32_t n = 2048, rows = 6;
    std::vector<float> x(rows * n), w(n), alone;
    for (float &v : x) v = rng_float(&s, 1);
    for (float &v : w) v = rng_float(&s, 1);
    for (uint32_t round = 0; round < 10; round++) {
        device_array<float> dx(x), dw(w), dy(rows * n);
        struct kern_dev_rms_norm d = {};
        d.n = n;
        d.w = dw.p;
        d.eps = 1e-5f;
        order_of_round(round);
        for (uint32_t r = 0; r < rows; r += round ? rows : 1) {
            d.n_rows = round ? rows : 1;
            d.x = dx.p + r * n;
            d.y = dy.p + r * n;
            CHECK(kern_dev_rms_norm(&d, stream_of_test()) == ST_OK);
        }
        if (!round) alone = dy.get();
        CHECK(memcmp(dy.get().data(), alone.data(), rows * n * 4) == 0);
    }
}

int main() {
    RUN(rms_norm_equals_its_definition);
    RUN(rms_norm_rows_stand_alone);
    return test_failed_;
}
