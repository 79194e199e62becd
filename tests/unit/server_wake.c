/* SPDX-License-Identifier: Apache-2.0
 *
 * The wake-up rule of server/wake.c under fire: a producer pushes one or two items and waits until the loop has taken
 * them. A lost wake-up leaves the loop asleep beside an item, which shows as a stall. On two free cores a second is some
 * hundred thousand pushes; with a relaxed flag, runs of minutes lost a handful (see wake.c), so a pass of this test
 * is no proof of the order, but a broken protocol (no write, no drain until empty) fails at once. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/spsc.h"
#include "server/internal.h"
#include "tests/unit/test.h"

enum { ROUND_NS = 1500000000, STALL_NS = 1000000000 };

struct litmus {
    uv_loop_t loop;
    struct wake *wake;
    struct spsc ring;
    _Atomic uint64_t n_taken;
    atomic_bool stop;
    uint64_t n_pushed, n_lost, sum, n_calls;
};

static void drain(void *ctx) {
    struct litmus *t = ctx;
    uint64_t item;
    t->n_calls++;
    while (spsc_pop(&t->ring, &item)) {
        t->sum += item;
        atomic_fetch_add_explicit(&t->n_taken, 1, memory_order_release);
    }
    if (atomic_load(&t->stop)) wake_close(t->wake);
}

static void wait_taken(struct litmus *t) {
    uint64_t since = 0;
    for (uint32_t spins = 0; atomic_load_explicit(&t->n_taken, memory_order_acquire) != t->n_pushed; spins++) {
        if (spins < 2000) continue;
        sched_yield();
        if (since == 0) since = clock_mono_ns();
        if (clock_mono_ns() - since < STALL_NS) continue;
        t->n_lost++;
        wake_notify(t->wake);
        since = 0;
    }
}

static void *produce(void *ctx) {
    struct litmus *t = ctx;
    uint64_t end = clock_mono_ns() + ROUND_NS;
    uint32_t rng = 1;
    while (clock_mono_ns() < end) {
        for (int k = 0; k < 2; k++) { /* the second push meets the loop between clearing its flag and draining */
            uint64_t item = ++t->n_pushed;
            spsc_push(&t->ring, &item);
            wake_notify(t->wake);
            rng = rng * 1664525u + 1013904223u;
            for (volatile uint32_t i = (rng >> 16) % 400; k == 0 && i > 0; i--) continue;
        }
        wait_taken(t);
    }
    atomic_store(&t->stop, true);
    wake_notify(t->wake);
    return NULL;
}

TEST(no_wakeup_is_lost) {
    static struct litmus t;
    pthread_t thread;
    CHECK(uv_loop_init(&t.loop) == 0 && spsc_init(&t.ring, 64, sizeof(uint64_t)) == 0);
    CHECK(wake_open(&t.wake, &t.loop, drain, &t) == 0);
    CHECK(pthread_create(&thread, NULL, produce, &t) == 0);
    uv_run(&t.loop, UV_RUN_DEFAULT);
    pthread_join(thread, NULL);
    CHECK(uv_loop_close(&t.loop) == 0);
    spsc_clear(&t.ring);
    CHECKF(t.n_lost == 0, "%llu of %llu", (unsigned long long)t.n_lost, (unsigned long long)t.n_pushed);
    CHECK(t.n_taken == t.n_pushed && t.sum == t.n_pushed * (t.n_pushed + 1) / 2);
    CHECKF(t.n_pushed > 1000, "only %llu pushes", (unsigned long long)t.n_pushed);
    CHECK(t.n_calls >= 1);
}

/* Many notifications before the loop runs are one call: nobody may count them. */
static void count(void *ctx) {
    ++*(int *)ctx;
}

TEST(notifications_coalesce) {
    uv_loop_t loop;
    struct wake *w;
    int n = 0;
    CHECK(uv_loop_init(&loop) == 0 && wake_open(&w, &loop, count, &n) == 0);
    for (int i = 0; i < 1000; i++) wake_notify(w);
    uv_run(&loop, UV_RUN_NOWAIT);
    CHECKF(n == 1, "%d calls", n);
    wake_close(w);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&loop) == 0);
}

int main(void) {
    RUN(no_wakeup_is_lost);
    RUN(notifications_coalesce);
    return test_failed_;
}
