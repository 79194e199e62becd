/* SPDX-License-Identifier: Apache-2.0
 *
 * The waiting queue by itself: order within and between groups, taking out of the middle, reuse of group places. */
#include "test.h"

#include "scheduler/internal.h"
#include "sched_client.h"

enum { N = 64 };

struct fixture {
    struct queue w;
    struct seq seqs[N];
    struct request requests[N];
};

static void setup(struct fixture *f, uint32_t cap) {
    memset(f, 0, sizeof *f);
    queue__init(&f->w, cap, 8);
    for (int i = 0; i < N; i++)
        f->seqs[i].request = &f->requests[i];
}

static void push(struct fixture *f, int i, uint64_t group) {
    f->requests[i].group = group;
    queue__push(&f->w, &f->seqs[i]);
}

static int pop(struct fixture *f) {
    struct seq *q = queue__peek(&f->w);

    if (!q)
        return -1;
    queue__pop(&f->w);
    return (int)(q - f->seqs);
}

TEST(queue_fifo_between_single_groups) {
    struct fixture f;

    setup(&f, N);
    for (int i = 0; i < N; i++)
        push(&f, i, (uint64_t)i * 64);
    for (int i = 0; i < N; i++)
        CHECK(pop(&f) == i);
    CHECK(pop(&f) == -1 && f.w.n == 0);
    queue__clear(&f.w);
}

TEST(queue_round_robin_between_groups) {
    static const int want[] = {0, 4, 7, 1, 5, 2, 6, 3};
    struct fixture f;

    setup(&f, 8);
    for (int i = 0; i < 8; i++)
        push(&f, i, i < 4 ? 1 : i < 7 ? 2 : 3);
    for (int i = 0; i < 8; i++)
        CHECK(pop(&f) == want[i]);
    queue__clear(&f.w);
}

TEST(queue_newcomer_waits_for_one_of_a_crowd) {
    struct fixture f;

    setup(&f, N);
    for (int i = 0; i < N - 1; i++)
        push(&f, i, 1);
    for (int i = 0; i < 5; i++)
        CHECK(pop(&f) == i);
    push(&f, N - 1, 2);
    CHECK(pop(&f) == 5);
    CHECK(pop(&f) == N - 1);
    CHECK(pop(&f) == 6);
    queue__clear(&f.w);
}

static bool pick_third(void *ctx, const struct seq *q) {
    const struct fixture *f = ctx;

    return (q - f->seqs) % 3 == 0;
}

TEST(queue_extract_keeps_the_order_of_the_rest) {
    struct fixture f;
    struct seq *q;
    uint32_t n = 0;
    int last[2] = {-1, -1};

    setup(&f, N);
    for (int i = 0; i < N; i++)
        push(&f, i, (uint64_t)i % 2);
    for (q = queue__extract(&f.w, pick_third, &f); q; q = q->next, n++)
        CHECK((q - f.seqs) % 3 == 0);
    CHECK(n == (N + 2) / 3 && f.w.n == N - n);
    push(&f, 0, 0); /* appending after the tail was taken out */
    for (uint32_t i = 0; i < N - n; i++) {
        int got = pop(&f);

        CHECK(got % 3 != 0 && got > last[got % 2]);
        last[got % 2] = got;
    }
    CHECK(pop(&f) == 0 && pop(&f) == -1);
    queue__clear(&f.w);
}

/* Against a plain model: per group FIFO, each waiting group at most once per round. */
TEST(queue_random_operations_lose_nothing) {
    struct fixture f;
    uint64_t state = 7;
    bool in[N] = {false};
    uint64_t stamp[N] = {0}, clock = 0;

    setup(&f, N);
    for (int op = 0; op < 20000; op++) {
        int i = (int)(rnd(&state) % N);

        if (!in[i] && rnd(&state) % 2) {
            push(&f, i, rnd(&state) % 7 * 1000);
            in[i] = true;
            stamp[i] = ++clock;
        } else if (rnd(&state) % 50 == 0) {
            for (struct seq *q = queue__extract(&f.w, pick_third, &f); q; q = q->next)
                in[q - f.seqs] = false;
        } else if ((i = pop(&f)) >= 0) {
            CHECK(in[i]);
            in[i] = false;
            for (int k = 0; k < N; k++)
                CHECK(!in[k] || f.requests[k].group != f.requests[i].group || stamp[k] > stamp[i]);
        }
        uint32_t n = 0;
        for (int k = 0; k < N; k++)
            n += in[k];
        CHECK(n == f.w.n);
    }
    queue__clear(&f.w);
}

int main(void) {
    RUN(queue_fifo_between_single_groups);
    RUN(queue_round_robin_between_groups);
    RUN(queue_newcomer_waits_for_one_of_a_crowd);
    RUN(queue_extract_keeps_the_order_of_the_rest);
    RUN(queue_random_operations_lose_nothing);
    return test_failed_;
}
