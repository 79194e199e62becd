/* SPDX-License-Identifier: Apache-2.0
 *
 * kern_dev_route against kern_route, which tests/unit/kernels_router.c holds against an independent oracle. */
#include "rig.h"

#include <cmath>

static float rand_logit(uint64_t *s) { return roundf(rng_float(s, 4) * 16) / 16; } /* a grid: exact ties are common */

/* Scores of different experts are either equal or further apart than expf's rounding, so the ids must be the same. Weights:
 * 2^-19 relative, for sums of up to 1024 terms in another order and two expf. */
static void compare(const char *test_name_, const struct kern_router *host, const std::vector<float> &logits, uint32_t n_tokens, uint32_t round) {
    const uint32_t n = host->n_experts, k = host->k;
    struct kern_dev_route d = {};
    device_array<float> dl(logits), bias(n), w(n_tokens * k);
    device_array<uint8_t> prefer(n);
    device_array<int32_t> ids(n_tokens * k), counts(std::vector<int32_t>(n, 5));
    if (host->select_bias) bias.set(std::vector<float>(host->select_bias, host->select_bias + n));
    if (host->prefer) prefer.set(std::vector<uint8_t>(host->prefer, host->prefer + n));
    d.router = *host;
    d.router.select_bias = host->select_bias ? bias.p : nullptr;
    d.router.prefer = host->prefer ? prefer.p : nullptr;
    d.n_tokens = n_tokens;
    d.logits = dl.p;
    d.ids = ids.p;
    d.w = w.p;
    d.counts = round % 2 ? counts.p : nullptr;
    order_of_round(round % 5);
    CHECK(kern_dev_route(&d, stream_of_test()) == ST_OK);
    const std::vector<int32_t> got = ids.get(), got_counts = counts.get();
    const std::vector<float> got_w = w.get();

    std::vector<int32_t> want_counts(n, 5), want(k);
    std::vector<float> want_w(k);
    for (uint32_t t = 0; t < n_tokens; t++) {
        std::vector<float> work(logits.begin() + t * n, logits.begin() + (t + 1) * n);
        kern_route(host, work.data(), want.data(), want_w.data());
        for (uint32_t j = 0; j < k; j++) {
            const float g = got_w[t * k + j], x = want_w[j];
            CHECKF(got[t * k + j] == want[j], "gate %d n %u k %u groups %u slot %u: %d, want %d", host->gate, n, k, host->n_groups, j, got[t * k + j], want[j]);
            CHECKF((std::isnan(g) && std::isnan(x)) || fabsf(g - x) <= 0x1p-19f * fabsf(x) + 1e-30f, "gate %d slot %u: %g, want %g", host->gate, j, (double)g, (double)x);
            if (want[j] >= 0 && round % 2) want_counts[(size_t)want[j]]++;
        }
    }
    CHECK(got_counts == want_counts);
}

TEST(route_equals_cpu_on_random_shapes) {
    uint64_t s = 1;
    for (uint32_t round = 0; round < rounds(600); round++) {
        struct kern_router r = {};
        const uint32_t groups = 1u << rng_next(&s) % 4, size = 1 + (uint32_t)rng_next(&s) % (round % 20 ? 24 : 128);
        r.gate = (enum kern_gate)(1 + rng_next(&s) % 4);
        r.n_experts = groups * size;
        r.n_groups = groups == 1 ? (uint32_t)rng_next(&s) % 2 : groups;
        r.n_groups_used = 1 + (uint32_t)rng_next(&s) % groups;
        const uint32_t most = r.n_groups_used * size;
        r.k = 1 + (uint32_t)rng_next(&s) % (most < 32 ? most : 32);
        r.norm = rng_next(&s) % 2;
        r.scale = (float[]){ 0, 1, 2.5f }[rng_next(&s) % 3];
        r.enough = rng_next(&s) % 3 ? 0 : 0.7f;
        std::vector<float> bias(r.n_experts), logits;
        std::vector<uint8_t> prefer(r.n_experts);
        for (uint32_t e = 0; e < r.n_experts; e++) {
            bias[e] = (rng_next(&s) % 2 ? 0 : roundf(rng_float(&s, 1) * 8) / 8) + (r.gate == KERN_GATE_SOFTMAX_WEIGHT ? 0 : 0.001f * (float)(e % 7));
            prefer[e] = rng_next(&s) % 2;
        }
        if (rng_next(&s) % 2) r.select_bias = bias.data();
        if (rng_next(&s) % 4 == 0) {
            r.prefer = prefer.data();
            r.margin = (float[]){ 0, 0.0371f, 0.3113f }[rng_next(&s) % 3]; /* no sum of scores and gain meets another score */
        }
        const uint32_t n_tokens = (uint32_t)rng_next(&s) % 12;
        for (uint32_t i = 0; i < n_tokens * r.n_experts; i++) logits.push_back(rand_logit(&s));
        compare(test_name_, &r, logits, n_tokens, round);
    }
}

TEST(route_shapes_of_real_models) {
    uint64_t s = 2;
    static const struct { enum kern_gate gate; uint32_t n, k, groups, used; bool norm; float scale; } model[] = {
        { KERN_GATE_SOFTMAX, 128, 8, 0, 0, true, 0 },        { KERN_GATE_SOFTMAX, 64, 8, 0, 0, false, 0 },
        { KERN_GATE_SOFTMAX, 8, 2, 0, 0, true, 0 },          { KERN_GATE_SIGMOID, 256, 8, 8, 4, true, 2.5f },
        { KERN_GATE_SIGMOID, 384, 8, 1, 1, true, 2.827f },   { KERN_GATE_SOFTMAX_WEIGHT, 32, 4, 0, 0, false, 0 },
        { KERN_GATE_SQRT_SOFTPLUS, 256, 6, 0, 0, true, 0 },  { KERN_GATE_SOFTMAX, 512, 10, 0, 0, true, 0 },
        { KERN_GATE_SOFTMAX, 1024, 16, 0, 0, true, 0 },
    };
    for (uint32_t m = 0; m < sizeof model / sizeof *model; m++) {
        struct kern_router r = {};
        r.gate = model[m].gate;
        r.n_experts = model[m].n;
        r.k = model[m].k;
        r.n_groups = model[m].groups;
        r.n_groups_used = model[m].used;
        r.norm = model[m].norm;
        r.scale = model[m].scale;
        std::vector<float> logits;
        for (uint32_t i = 0; i < 9 * r.n_experts; i++) logits.push_back(rand_logit(&s));
        compare(test_name_, &r, logits, 9, m);
    }
}

TEST(route_special_values) {
    for (int gate = 1; gate <= 4; gate++) {
        struct kern_router r = {};
        r.gate = (enum kern_gate)gate;
        r.n_experts = 5;
        r.k = 5;
        compare(test_name_, &r, { NAN, 1, NAN, -3, 2, NAN, NAN, NAN, NAN, NAN, 0.0f, -0.0f, 0.0f, -0.0f, -0.0f }, 3, (uint32_t)gate);
        if (gate == KERN_GATE_SOFTMAX_WEIGHT) continue; /* a softmax of infinities is no number */
        compare(test_name_, &r, { 100, -100, 88, -88, 0 }, 1, 1);
    }
}

TEST(route_does_not_depend_on_order) {
    uint64_t s = 9;
    struct kern_router r = {};
    r.gate = KERN_GATE_SIGMOID;
    r.n_experts = 256;
    r.k = 8;
    r.n_groups = 8;
    r.n_groups_used = 4;
    r.norm = true;
    std::vector<float> logits;
    for (uint32_t i = 0; i < 40 * 256; i++) logits.push_back(rng_float(&s, 3));
    std::vector<int32_t> first_ids, first_counts;
    std::vector<float> first_w;
    for (uint32_t round = 0; round < rounds(20); round++) {
        device_array<float> dl(logits), w(40 * 8);
        device_array<int32_t> ids(40 * 8), counts(std::vector<int32_t>(256, 0));
        struct kern_dev_route d = {};
        d.router = r;
        d.n_tokens = 40;
        d.logits = dl.p;
        d.ids = ids.p;
        d.w = w.p;
        d.counts = counts.p;
        order_of_round(round);
        CHECK(kern_dev_route(&d, stream_of_test()) == ST_OK);
        if (!round) first_ids = ids.get(), first_w = w.get(), first_counts = counts.get();
        CHECK(ids.get() == first_ids && counts.get() == first_counts && memcmp(w.get().data(), first_w.data(), 40 * 8 * 4) == 0);
    }
}

int main() {
    RUN(route_equals_cpu_on_random_shapes);
    RUN(route_shapes_of_real_models);
    RUN(route_special_values);
    RUN(route_does_not_depend_on_order);
    return test_failed_;
}
