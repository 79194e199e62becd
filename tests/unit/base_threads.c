/* SPDX-License-Identifier: Apache-2.0
 *
 * Threaded units of base/: spsc ring, park, pool. Run them with SAN=thread as well. */
#include <pthread.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/park.h"
#include "base/pool.h"
#include "base/spsc.h"
#include "tests/unit/test.h"

enum { N_ITEMS = 200000 };

struct ring_test { struct spsc ring; struct park park; };

static void *produce(void *arg) {
    struct ring_test *t = arg;
    for (uint64_t i = 0; i < N_ITEMS;) {
        uint64_t item[2] = { i, ~i };
        if (spsc_push(&t->ring, item)) {
            i++;
            park_wake(&t->park);
        } else {
            sched_yield();
        }
    }
    return NULL;
}

TEST(spsc_keeps_order_and_park_loses_no_wake) {
    struct ring_test t;
    CHECK(spsc_init(&t.ring, 100, 16) == 0 && t.ring.cap == 128);
    CHECK(park_init(&t.park) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, produce, &t) == 0);
    uint64_t want = 0, item[2];
    bool ok = true;
    while (want < N_ITEMS && ok) {
        if (!spsc_pop(&t.ring, item)) {
            ok = park_wait(&t.park, 5000000000u) || spsc_used(&t.ring); /* a lost wake-up would sit here for 5 s */
            continue;
        }
        ok = item[0] == want && item[1] == ~want;
        want++;
    }
    CHECK(ok);
    pthread_join(thread, NULL);
    CHECK(!spsc_pop(&t.ring, item));
    spsc_clear(&t.ring);
    park_clear(&t.park);
}

TEST(spsc_refuses_when_full) {
    struct spsc r;
    CHECK(spsc_init(&r, 4, 4) == 0);
    uint32_t v = 0;
    for (uint32_t i = 0; i < 4; i++) CHECK(spsc_push(&r, &i));
    CHECK(!spsc_push(&r, &v) && spsc_used(&r) == 4);
    CHECK(spsc_pop(&r, &v) && v == 0 && spsc_push(&r, &v));
    spsc_clear(&r);
}

TEST(park_times_out) {
    struct park p;
    CHECK(park_init(&p) == 0);
    uint64_t t0 = clock_mono_ns();
    CHECK(!park_wait(&p, 20000000));
    CHECK(clock_mono_ns() - t0 >= 19000000);
    park_wake(&p);
    CHECK(park_wait(&p, UINT64_MAX));
    park_clear(&p);
}

struct sum_test { int64_t *cell; int salt; };

static void add_one(void *ctx, int task, int worker) {
    struct sum_test *t = ctx;
    (void)worker;
    t->cell[task] += t->salt;
}

TEST(pool_runs_every_task_once) {
    static const int widths[] = { 1, 2, 3, 7 };
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        struct pool *p;
        struct err e;
        CHECKF(pool_open(&p, &(struct pool_opts){ .n_threads = widths[w], .spin_us = w % 2 ? 50 : 0 }, &e) == 0, "%s", e.text);
        int64_t cell[97] = { 0 }, want = 0;
        for (int run = 1; run <= 3000; run++) {
            struct sum_test t = { cell, run }; /* a new ctx each run: a stale worker would read a dead one */
            pool_run(p, 97, add_one, &t);
            want += run;
            if (run % 1000 == 0) usleep(2000); /* let the workers fall asleep in between */
        }
        for (int i = 0; i < 97; i++) CHECK(cell[i] == want);
        pool_close(p);
    }
}

TEST(pool_refuses_bad_options) {
    struct pool *p;
    struct err e;
    int bad = -1;
    CHECK(pool_open(&p, &(struct pool_opts){ .n_threads = 0 }, &e) == ST_INVALID && strstr(e.text, "threads"));
    CHECK(pool_open(&p, &(struct pool_opts){ .n_threads = 2, .cpus = &bad, .n_cpus = 1 }, &e) == ST_INVALID);
    for (uint64_t n = 0; n < 2; n++) {
        mem_fail_after(n);
        int st = pool_open(&p, &(struct pool_opts){ .n_threads = 2 }, &e);
        mem_fail_after(UINT64_MAX);
        CHECK(st == ST_NOMEM && p == NULL);
    }
    CHECK(pool_default_threads() >= 1);
}

int main(void) {
    RUN(spsc_keeps_order_and_park_loses_no_wake);
    RUN(spsc_refuses_when_full);
    RUN(park_times_out);
    RUN(pool_runs_every_task_once);
    RUN(pool_refuses_bad_options);
    return test_failed_;
}
