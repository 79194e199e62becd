/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner against brute force, in the cases where the answer is known, and its loop when predictions go wrong. */
#include "test.h"

#include <math.h>

#include "offload/plan.h"

enum { BYTES = 1000000, MOST = 6 };

/* VRAM, RAM, file: the link into VRAM 25 GB/s, from the file 5 GB/s; computing in RAM is 10 times slower. */
static const struct plan_tier gpu[3] = {
    { .computes = true, .expert_s = 5e-6, .row_s = 1e-7, .bytes_per_s = 25e9, .latency_s = 1e-5 },
    { .computes = true, .expert_s = 5e-5, .row_s = 2e-5, .bytes_per_s = 5e9, .latency_s = 1e-4 },
    { 0 },
};
static const struct plan_tier cpu[2] = {
    { .computes = true, .expert_s = 2e-5, .row_s = 1e-5, .bytes_per_s = 2e9, .latency_s = 1e-4 },
    { 0 },
};

static uint32_t rnd(uint64_t *rng) {
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*rng >> 33);
}

TEST(what_lies_in_the_fastest_tier_is_a_hit) {
    struct plan_expert x[3] = { { .n_rows = 1 }, { .n_rows = 500, .tier = 2 }, { .n_rows = 4 } };
    uint32_t order[3];
    const double s = plan_layer(gpu, 3, BYTES, PLAN_MIXED, x, 3, order);
    CHECK(x[0].choice == PLAN_HIT && x[2].choice == PLAN_HIT && x[1].choice == PLAN_TRANSFER && x[1].computed_in == 0);
    CHECK(order[2] == 1 && s > BYTES / 5e9 + BYTES / 25e9);
}

TEST(few_rows_are_computed_where_they_lie_and_many_are_moved) {
    struct plan_expert one = { .n_rows = 1, .tier = 1 }, many = { .n_rows = 200, .tier = 1 };
    struct plan_tier slow_link[3] = { gpu[0], gpu[1], gpu[2] };
    uint32_t order[1];
    slow_link[0].bytes_per_s = 5e9;
    plan_layer(slow_link, 3, BYTES, PLAN_MIXED, &one, 1, order);
    plan_layer(slow_link, 3, BYTES, PLAN_MIXED, &many, 1, order);
    CHECK(one.choice == PLAN_CPU && one.computed_in == 1 && many.choice == PLAN_TRANSFER);
    slow_link[0].link_busy_s = 1; /* a link with a long queue is no way */
    plan_layer(slow_link, 3, BYTES, PLAN_MIXED, &many, 1, order);
    CHECK(many.choice == PLAN_CPU);
}

TEST(ram_and_file_read_the_longest_computation_first) {
    struct plan_expert x[5] = { { 3, 1, 0, 0 }, { 9, 1, 0, 0 }, { 2, 0, 0, 0 }, { 9, 1, 0, 0 }, { 1, 1, 0, 0 } };
    uint32_t order[5];
    plan_layer(cpu, 2, BYTES, PLAN_MIXED, x, 5, order);
    CHECK(order[0] == 2 && order[1] == 1 && order[2] == 3 && order[3] == 0 && order[4] == 4);
    for (uint32_t i = 0; i < 5; i++) {
        CHECK(x[i].choice == (i == 2 ? PLAN_HIT : PLAN_TRANSFER) && x[i].computed_in == 0);
    }
}

/* The same schedule, written again: experts in `order`, each computed in tiers[to[i]]. */
static double replay(const struct plan_tier *tiers, const struct plan_expert *x, const uint32_t *order, uint32_t n, const uint32_t *to) {
    double link[3] = { 0 }, compute[3] = { 0 }, last = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct plan_expert *e = &x[order[i]];
        double at = 0;
        for (uint32_t t = e->tier; t > to[order[i]]; t--) {
            link[t - 1] = fmax(at, link[t - 1]) + BYTES / tiers[t - 1].bytes_per_s;
            at = link[t - 1] + tiers[t - 1].latency_s;
        }
        const uint32_t t = to[order[i]];
        compute[t] = fmax(at, compute[t]) + tiers[t].expert_s + e->n_rows * tiers[t].row_s;
        last = fmax(last, compute[t]);
    }
    return last;
}

TEST(close_to_the_best_of_all_assignments) {
    uint64_t rng = 1;
    double worst = 0;
    for (int round = 0; round < 2000; round++) {
        struct plan_expert x[MOST];
        uint32_t order[MOST], n = 1 + rnd(&rng) % MOST, to[MOST] = { 0 };
        for (uint32_t i = 0; i < n; i++) {
            x[i] = (struct plan_expert){ .n_rows = 1 + rnd(&rng) % 40, .tier = (uint8_t)(rnd(&rng) % 3) };
        }
        const double moved = plan_layer(gpu, 3, BYTES, PLAN_ALL_TRANSFER, x, n, order);
        const double stayed = plan_layer(gpu, 3, BYTES, PLAN_ALL_CPU, x, n, order);
        const double planned = plan_layer(gpu, 3, BYTES, PLAN_MIXED, x, n, order);
        CHECK(planned <= moved && planned <= stayed);
        for (uint32_t i = 0; i < n; i++) {
            to[i] = x[i].computed_in;
        }
        CHECK(fabs(replay(gpu, x, order, n, to) - planned) < 1e-12);
        double best = INFINITY;
        for (uint32_t all = 0; all < 1u << n; all++) { /* tier 0 or, from RAM and file, tier 1 */
            for (uint32_t i = 0; i < n; i++) {
                to[i] = x[i].tier && all >> i & 1;
            }
            best = fmin(best, replay(gpu, x, order, n, to));
        }
        worst = fmax(worst, planned / best);
    }
    printf("  at most %.3f times the best assignment\n", worst);
    CHECK(worst < 1.15);
}

TEST(wrong_predictions_make_it_fall_back_to_the_better_pure_policy) {
    struct plan_loop l = { 0 };
    for (int i = 0; i < 200; i++) {
        CHECK(plan_loop_mode(&l) == PLAN_MIXED && !plan_loop_observe(&l, PLAN_MIXED, 1.0, 1.1, 8));
    }
    int told = 0;
    for (int i = 0; i < 200 && !l.fallen; i++) {
        told += plan_loop_observe(&l, PLAN_MIXED, 1.0, 8.0, 8); /* eight times off */
    }
    CHECK(l.fallen && told == 1 && l.n_falls == 1);
    uint32_t n_cpu = 0;
    for (int i = 0; i < 256; i++) { /* all on the CPU takes half as long */
        const enum plan_mode mode = plan_loop_mode(&l);
        CHECK(mode != PLAN_MIXED);
        n_cpu += mode == PLAN_ALL_CPU;
        CHECK(!plan_loop_observe(&l, mode, 1.0, mode == PLAN_ALL_CPU ? 4.0 : 8.0, 8));
    }
    CHECK(n_cpu == 248);
    for (int i = 0; i < 200 && l.fallen; i++) { /* the costs are learned again */
        told += plan_loop_observe(&l, plan_loop_mode(&l), 4.0, 4.0, 8);
    }
    CHECK(!l.fallen && told == 2 && plan_loop_mode(&l) == PLAN_MIXED);
}

int main(void) {
    RUN(what_lies_in_the_fastest_tier_is_a_hit);
    RUN(few_rows_are_computed_where_they_lie_and_many_are_moved);
    RUN(ram_and_file_read_the_longest_computation_first);
    RUN(close_to_the_best_of_all_assignments);
    RUN(wrong_predictions_make_it_fall_back_to_the_better_pure_policy);
    return test_failed_;
}
