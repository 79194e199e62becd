/* SPDX-License-Identifier: Apache-2.0
 *
 * The batching policy by itself: decode first, prefill always progresses, the budget is kept and used. */
#include "test.h"

#include "scheduler/internal.h"
#include "sched_client.h"

enum { MAX_WANTS = 40 };

static struct batch_want decode(uint64_t last_step) {
    return (struct batch_want){.n_pending = 1, .decode = true, .last_step = last_step};
}

static struct batch_want prefill(uint32_t n) {
    return (struct batch_want){.n_pending = n};
}

TEST(batcher_nothing_pending) {
    struct batch_want w[2] = {prefill(0), prefill(0)};

    CHECK(batcher__plan(w, 0, 16, 0) == 0);
    CHECK(batcher__plan(w, 2, 16, 0) == 0);
    CHECK(w[0].n_take == 0 && w[1].n_take == 0);
}

TEST(batcher_decode_before_prefill) {
    struct batch_want w[4] = {prefill(1000), decode(0), decode(0), decode(0)};

    CHECK(batcher__plan(w, 4, 16, 0) == 16);
    CHECK(w[1].n_take == 1 && w[2].n_take == 1 && w[3].n_take == 1);
    CHECK(w[0].n_take == 13);
}

TEST(batcher_short_prompt_beside_a_long_one) {
    struct batch_want w[3] = {prefill(1000), prefill(3), prefill(1000)};

    CHECK(batcher__plan(w, 3, 20, 0) == 20);
    CHECK(w[0].n_take == 10 && w[1].n_take == 3 && w[2].n_take == 7);
}

TEST(batcher_oldest_takes_what_others_leave) {
    struct batch_want w[2] = {prefill(1000), prefill(3)};

    CHECK(batcher__plan(w, 2, 20, 0) == 20);
    CHECK(w[0].n_take == 17 && w[1].n_take == 3);
}

TEST(batcher_prefill_share_when_decode_fills_the_budget) {
    struct batch_want w[17];

    for (int i = 0; i < 16; i++)
        w[i] = decode((uint64_t)i);
    w[16] = prefill(100);
    CHECK(batcher__plan(w, 17, 16, 0) == 16);
    CHECK(w[16].n_take == 2);
    for (int i = 0; i < 14; i++)
        CHECK(w[i].n_take == 1);
    CHECK(w[14].n_take == 0 && w[15].n_take == 0); /* served last: they wait this time */
}

/* Any mix and any budget: simulate steps; everyone must advance within a bound. */
static void simulate(const char *test_name_, uint64_t *state) {
    struct batch_want w[MAX_WANTS];
    uint64_t waits[MAX_WANTS] = {0};
    uint32_t n = rnd_in(state, 1, MAX_WANTS), budget = rnd_in(state, 1, 50);

    for (uint32_t i = 0; i < n; i++)
        w[i] = rnd(state) % 3 ? decode(0) : prefill(rnd_in(state, 1, 300));
    for (uint64_t turn = 0; turn < 200; turn++) {
        uint32_t total = batcher__plan(w, n, budget, turn), sum = 0, pending = 0;
        bool prefilled = false, prefill_waits = false;

        for (uint32_t i = 0; i < n; i++) {
            CHECK(w[i].n_take <= w[i].n_pending);
            sum += w[i].n_take;
            pending += w[i].n_pending;
            prefill_waits |= !w[i].decode && w[i].n_pending > 0;
            prefilled |= !w[i].decode && w[i].n_take > 0;
            waits[i] = w[i].decode && w[i].n_take == 0 ? waits[i] + 1 : 0;
            CHECKF(waits[i] <= 2 * MAX_WANTS + 2, "decode waited %lu steps", (unsigned long)waits[i]);
        }
        CHECK(sum == total && total <= budget);
        CHECK(budget == 1 || total == (pending < budget ? pending : budget));
        CHECK(total > 0 || pending == 0);
        CHECK(prefilled || !prefill_waits || (budget == 1 && turn % 2 == 0));
        for (uint32_t i = 0; i < n; i++) {
            if (w[i].decode && w[i].n_take)
                w[i].last_step = turn + 1;
            else if (!w[i].decode)
                w[i].n_pending -= w[i].n_take;
        }
    }
}

TEST(batcher_everyone_advances) {
    uint64_t state = 1;

    for (int round = 0; round < 500; round++)
        simulate(test_name_, &state);
}

int main(void) {
    RUN(batcher_nothing_pending);
    RUN(batcher_decode_before_prefill);
    RUN(batcher_short_prompt_beside_a_long_one);
    RUN(batcher_oldest_takes_what_others_leave);
    RUN(batcher_prefill_share_when_decode_fills_the_budget);
    RUN(batcher_everyone_advances);
    return test_failed_;
}
