/* SPDX-License-Identifier: Apache-2.0
 *
 * Random steps against the fake disk: random wants, budgets, policies, resizes, abandoned steps, faults of every kind.
 * Whatever happens, what is handed out holds the expert's bytes until it is released, every want is answered once, the
 * mapped memory is within the budget, and the counters add up. */
#include "test.h"

#include <sched.h>
#include <unistd.h>

#include "base/log.h"
#include "fake_disk.h"

enum { N_LAYERS = 5, N_EXPERTS = 16, N_USED = 3, N_STEPS = 400 };

struct world {
    uint64_t rng;
    struct fake_disk disk;
    struct fake_experts experts;
    struct offload *o;
    uint64_t least, all, budget, base_mapped;
    uint64_t n_wants, n_failed, n_seen;
};

static const struct fake_faults no_faults, some_faults = { .errors = 60, .shorts = 30, .wrong_bytes = 40, .stalls = 1 };

static uint64_t mapped(void) {
    struct mem_stats s;
    mem_stats(&s);
    return s.mapped_bytes;
}

static uint64_t random_budget(struct world *w) {
    return w->least + (w->all - w->least) * (fake_rand(&w->rng) % 101) / 100;
}

static void world_open(const char *test_name_, struct world *w, uint64_t seed, bool spans) {
    struct offload__catalog c;
    struct err e;
    *w = (struct world){ .rng = seed * 77 + 1, .experts = { N_LAYERS, N_EXPERTS, spans }, .base_mapped = mapped() };
    fake_init(&w->disk, seed, 1 + seed % 9);
    fake_catalog(&c, &w->experts, N_USED);
    w->least = offload__min_bytes(&c);
    w->all = offload__all_bytes(&c);
    w->budget = random_budget(w);
    const struct offload_opts opts = {
        .ram_bytes = w->budget, .policy = (enum offload_policy)(seed % OFFLOAD_N_POLICIES), .queue_depth = 1 + fake_rand(&w->rng) % 12,
        .disk = &w->disk.disk, .prefetch = seed % 2, .fill = seed % 3 == 0,
    };
    CHECKF(offload__open(&w->o, &opts, &c, &e) == 0, "%s", e.text);
}

static void world_close(const char *test_name_, struct world *w) {
    struct offload_stats s;
    offload_stats(w->o, &s);
    offload_close(w->o);
    fake_clear(&w->disk);
    CHECK(mapped() == w->base_mapped);
    CHECKF(s.hits + s.misses == w->n_wants, "%llu hits + %llu misses, %llu wants", (unsigned long long)s.hits,
           (unsigned long long)s.misses, (unsigned long long)w->n_wants);
    CHECK(s.failures >= w->n_failed && s.resident <= s.slots && s.evictions <= s.loads + w->n_wants + s.prefetch_wasted + 1000);
}

static uint32_t random_wants(struct world *w, struct offload_want *wants) {
    uint32_t order[N_EXPERTS], most = fake_rand(&w->rng) % 4 ? N_USED : N_EXPERTS, n = 1 + fake_rand(&w->rng) % most;
    for (uint32_t i = 0; i < N_EXPERTS; i++) {
        order[i] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = i + fake_rand(&w->rng) % (N_EXPERTS - i), x = order[j];
        order[j] = order[i];
        order[i] = x;
        wants[i] = (struct offload_want){ x, 1 + fake_rand(&w->rng) % 8 };
    }
    return n;
}

/* Takes and checks until the step ends, or is left early. */
static void take_all(const char *test_name_, struct world *w, uint32_t layer, uint32_t wanted, bool faults) {
    const bool leave = fake_rand(&w->rng) % 20 == 0;
    struct offload_item items[N_EXPERTS];
    uint32_t n, seen = 0;
    while ((n = offload_next(w->o, items, 1 + fake_rand(&w->rng) % N_EXPERTS)) > 0) {
        for (int pass = 0; pass < 2; pass++) { /* twice: nothing may move into them while they are held */
            for (uint32_t i = 0; i < n; i++) {
                CHECK(items[i].status == 0 ? fake_right(&w->experts, layer, &items[i]) : faults && items[i].status == ST_IO && !items[i].gate);
            }
            sched_yield();
        }
        for (uint32_t i = 0; i < n; i++) {
            CHECK(!(seen >> items[i].expert & 1));
            seen |= 1u << items[i].expert;
            w->n_failed += items[i].status != 0;
        }
        if (leave && fake_rand(&w->rng) % 2) {
            return;
        }
        if (fake_rand(&w->rng) % 3) {
            offload_release(w->o);
        }
    }
    CHECK((uint32_t)__builtin_popcount(seen) == wanted);
}

static void guess(struct world *w) {
    uint32_t experts[N_EXPERTS];
    struct offload_want wants[N_EXPERTS];
    const uint32_t n = random_wants(w, wants);
    for (uint32_t i = 0; i < n; i++) {
        experts[i] = wants[i].expert;
    }
    offload_prefetch(w->o, 1 + fake_rand(&w->rng) % (N_LAYERS - 1), experts, n);
}

static void random_step(const char *test_name_, struct world *w, bool faults) {
    struct offload_want wants[N_EXPERTS];
    const uint32_t layer = 1 + fake_rand(&w->rng) % (N_LAYERS - 1), n = random_wants(w, wants);
    if (fake_rand(&w->rng) % 10 == 0) {
        w->budget = random_budget(w);
        CHECK(offload_resize(w->o, w->budget, NULL) == 0);
    }
    if (fake_rand(&w->rng) % 2) {
        guess(w);
    }
    CHECK(offload_begin(w->o, layer, wants, n, fake_rand(&w->rng) % 5 == 0) == 0);
    w->n_wants += n;
    struct offload_stats s;
    offload_stats(w->o, &s);
    CHECK(mapped() - w->base_mapped <= s.budget_bytes && s.slot_bytes <= s.budget_bytes);
    CHECK(s.budget_bytes == w->budget || faults); /* a stuck disk may hold a resize up */
    take_all(test_name_, w, layer, n, faults);
}

TEST(without_faults) {
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct world w;
        world_open(test_name_, &w, seed, seed / 2 % 2);
        for (int i = 0; i < N_STEPS; i++) {
            random_step(test_name_, &w, false);
        }
        CHECK(w.n_failed == 0);
        world_close(test_name_, &w);
    }
}

TEST(with_faults) {
    uint64_t n_failed = 0, n_retries = 0;
    for (uint64_t seed = 100; seed < 124; seed++) {
        struct world w;
        struct offload_stats s;
        world_open(test_name_, &w, seed, seed / 2 % 2);
        struct fake_faults faults = some_faults;
        faults.wrong_bytes = w.experts.spans ? 0 : faults.wrong_bytes; /* no checksum in those */
        for (int i = 0; i < N_STEPS; i++) {
            if (i % 50 == 0) {
                fake_set(&w.disk, i % 100 ? &no_faults : &faults, false);
            }
            random_step(test_name_, &w, true);
        }
        offload_stats(w.o, &s);
        n_failed += w.n_failed;
        n_retries += s.retries;
        world_close(test_name_, &w);
    }
    CHECK(n_retries > 100 && n_failed < n_retries);
}

TEST(a_disk_that_dies_fails_the_wants_and_comes_back) {
    struct world w;
    struct offload_want wants[4] = { { 0, 1 }, { 1, 1 }, { 2, 1 }, { 3, 1 } };
    struct offload_item items[4];
    world_open(test_name_, &w, 3, false);
    CHECK(offload_resize(w.o, w.all, NULL) == 0);
    fake_set(&w.disk, &no_faults, true);
    for (int round = 0; round < 3; round++) {
        uint32_t n, n_failed = 0, n_good = 0;
        if (round == 2) {
            fake_set(&w.disk, &no_faults, false);
        }
        CHECK(offload_begin(w.o, 1, wants, 4, false) == 0);
        while ((n = offload_next(w.o, items, 4)) > 0) {
            for (uint32_t i = 0; i < n; i++) {
                *(items[i].status ? &n_failed : &n_good) += 1;
                CHECK(items[i].status || fake_right(&w.experts, 1, &items[i]));
            }
        }
        CHECK(round < 2 ? n_failed == 4 : n_good == 4);
        w.n_wants += 4;
        w.n_failed += n_failed;
    }
    world_close(test_name_, &w);
}

TEST(reads_without_end_are_given_up) {
    const struct fake_faults endless = { .endless = 1000 };
    struct world w;
    struct offload_want wants[3] = { { 0, 1 }, { 1, 1 }, { 2, 1 } };
    struct offload_item items[3];
    world_open(test_name_, &w, 9, true);
    CHECK(offload_resize(w.o, w.least, NULL) == 0);
    for (int round = 0; round < 4; round++) {
        fake_set(&w.disk, &endless, false);
        CHECK(offload_begin(w.o, 2, wants, 3, false) == 0);
        uint32_t n = 0, got;
        while ((got = offload_next(w.o, items, 3)) > 0) {
            for (uint32_t i = 0; i < got; i++) {
                CHECK(items[i].status == ST_IO);
            }
            n += got;
        }
        CHECK(n == 3);
        w.n_wants += 3;
    }
    world_close(test_name_, &w);
}

int main(void) {
    alarm(300); /* a hang is a failure */
    log_setup(LOG_ERROR, LOG_TEXT);
    RUN(without_faults);
    RUN(with_faults);
    RUN(a_disk_that_dies_fails_the_wants_and_comes_back);
    RUN(reads_without_end_are_given_up);
    return test_failed_;
}
