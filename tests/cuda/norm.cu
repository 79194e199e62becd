/* SPDX-License-Identifier: Apache-2.0
 *
 * kern_dev_rms_norm against the CPU's scalar level, bit for bit. */
#include "rig.h"

static void compare(const char *test_name_, uint32_t n_rows, uint32_t n, float spread, uint32_t round) {
    uint64_t s = 100 + round;
    std::vector<float> x(n_rows * n), w(n), want(n_rows * n);
    for (float &v : x) v = rng_float(&s, spread) * (rng_next(&s) % 50 ? 1 : 100);
    for (float &v : w) v = rng_float(&s, 2);
    device_array<float> dx(x), dw(w), dy(n_rows * n);
    struct kern_dev_rms_norm d = {};
    d.n_rows = n_rows;
    d.n = n;
    d.x = dx.p;
    d.w = dw.p;
    d.eps = 1e-6f;
    d.y = round % 2 ? dx.p : dy.p; /* y may alias x */
    order_of_round(round);
    CHECK(kern_dev_rms_norm(&d, stream_of_test()) == ST_OK);
    const std::vector<float> got = round % 2 ? dx.get() : dy.get();
    for (uint32_t r = 0; r < n_rows; r++) kern_cpu_ops(KERN_SCALAR)->rms_norm(&x[r * n], w.data(), 1e-6f, n, &want[r * n]);
    CHECKF(want.empty() || memcmp(got.data(), want.data(), want.size() * 4) == 0, "%u rows of %u", n_rows, n);
}

TEST(rms_norm_has_the_cpu_s_bits) {
    const uint32_t widths[] = { 1, 4, 15, 16, 17, 64, 256, 576, 1024, 1029, 2048, 2880, 4096, 12288 };
    const float spreads[] = { 3, 3e-4f, 1e-30f, 1e18f };
    uint32_t round = 0;
    for (uint32_t n : widths)
        for (float spread : spreads) compare(test_name_, 1 + round % 4, n, spread, round), round++;
    compare(test_name_, 0, 64, 1, 0);
}

int main() {
    RUN(rms_norm_has_the_cpu_s_bits);
    return test_failed_;
}
