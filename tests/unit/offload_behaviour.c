/* SPDX-License-Identifier: Apache-2.0
 *
 * What the store promises beyond right bytes: a prefill spares the working set of decode, guesses are counted and stop
 * when they do not pay, heat comes back, memory is given back, and with everything resident a step costs next to nothing. */
#include "test.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "fake_disk.h"

enum { N_LAYERS = 2, N_EXPERTS = 64, N_USED = 4 }; /* two layers: both have experts, one class each */

struct rig {
    struct fake_disk disk;
    struct fake_experts experts;
    struct offload *o;
    uint64_t all;
};

static const char *heat_path(void) { return "/tmp/moed-heat-test"; }

static void rig_open(const char *test_name_, struct rig *r, double share, struct offload_opts opts) {
    struct offload__catalog c;
    struct err e;
    r->experts = (struct fake_experts){ N_LAYERS, N_EXPERTS, false };
    fake_init(&r->disk, 5, 8);
    fake_catalog(&c, &r->experts, N_USED);
    r->all = offload__all_bytes(&c);
    opts.ram_bytes = (uint64_t)(share * (double)r->all);
    opts.disk = &r->disk.disk;
    opts.queue_depth = 8;
    CHECKF(offload__open(&r->o, &opts, &c, &e) == 0, "%s", e.text);
}

static void rig_close(struct rig *r) {
    offload_close(r->o);
    fake_clear(&r->disk);
}

/* Experts first .. first + n of a layer, taken and released. */
static void use(const char *test_name_, struct rig *r, uint32_t layer, uint32_t first, uint32_t n, bool stream) {
    struct offload_want wants[N_EXPERTS];
    struct offload_item items[N_EXPERTS];
    uint32_t got, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        wants[i] = (struct offload_want){ first + i, 1 };
    }
    CHECK(offload_begin(r->o, layer, wants, n, stream) == 0);
    for (; (got = offload_next(r->o, items, N_EXPERTS)) > 0; sum += got) {
        for (uint32_t i = 0; i < got; i++) {
            CHECK(items[i].status == 0 && fake_right(&r->experts, layer, &items[i]));
        }
    }
    CHECK(sum == n);
}

static struct offload_stats stats(const struct rig *r) {
    struct offload_stats s;
    offload_stats(r->o, &s);
    return s;
}

static uint32_t low_reads(struct rig *r) {
    pthread_mutex_lock(&r->disk.mutex);
    const uint32_t n = r->disk.n_low;
    pthread_mutex_unlock(&r->disk.mutex);
    return n;
}

/* Waits for something the reader does on its own. */
#define EVENTUALLY(cond)                                                                             \
    do {                                                                                             \
        for (int tries_ = 0; !(cond) && tries_ < 20000; tries_++) {                                  \
            usleep(100);                                                                             \
        }                                                                                            \
        CHECK(cond);                                                                                 \
    } while (0)

TEST(a_prefill_spares_what_decode_uses) {
    for (enum offload_policy policy = OFFLOAD_LRU; policy < OFFLOAD_N_POLICIES; policy++) {
        struct rig r;
        rig_open(test_name_, &r, 0.5, (struct offload_opts){ .policy = policy });
        for (int round = 0; round < 4; round++) { /* 24 of 32 slots of a layer are in use */
            for (uint32_t first = 0; first < 24; first += N_USED) {
                use(test_name_, &r, 0, first, N_USED, false);
                use(test_name_, &r, 1, first, N_USED, false);
            }
        }
        for (int round = 0; round < 3; round++) {
            use(test_name_, &r, 0, 0, N_EXPERTS, true);
            use(test_name_, &r, 1, 0, N_EXPERTS, true);
        }
        const struct offload_stats before = stats(&r);
        for (uint32_t first = 0; first < 24; first += N_USED) {
            use(test_name_, &r, 0, first, N_USED, false);
            use(test_name_, &r, 1, first, N_USED, false);
        }
        const struct offload_stats after = stats(&r);
        CHECKF(after.misses == before.misses, "policy %d: %llu misses", policy, (unsigned long long)(after.misses - before.misses));
        rig_close(&r);
    }
}

TEST(a_prefill_reads_the_next_layer_ahead) {
    struct rig r;
    rig_open(test_name_, &r, 0.5, (struct offload_opts){ 0 });
    use(test_name_, &r, 0, 0, N_EXPERTS, true);
    EVENTUALLY(low_reads(&r) > 0);
    use(test_name_, &r, 1, 0, N_EXPERTS, true);
    const struct offload_stats s = stats(&r);
    CHECK(s.prefetch_useful > 0 && s.prefetch_wasted == 0);
    rig_close(&r);
}

static void guess(struct rig *r, uint32_t layer, uint32_t first) {
    uint32_t experts[N_USED];
    for (uint32_t i = 0; i < N_USED; i++) {
        experts[i] = (first + i) % N_EXPERTS;
    }
    offload_prefetch(r->o, layer, experts, N_USED);
}

TEST(right_guesses_are_useful) {
    struct rig r;
    rig_open(test_name_, &r, 0.5, (struct offload_opts){ .prefetch = true });
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t first = i * N_USED % N_EXPERTS;
        guess(&r, 1, first);
        use(test_name_, &r, 0, first, N_USED, false);
        usleep(2000);
        use(test_name_, &r, 1, first, N_USED, false);
    }
    const struct offload_stats s = stats(&r);
    CHECKF(s.prefetch_useful > 40 && s.prefetch_wasted == 0, "%llu useful, %llu wasted", (unsigned long long)s.prefetch_useful,
           (unsigned long long)s.prefetch_wasted);
    rig_close(&r);
}

TEST(wrong_guesses_stop_and_are_tried_again) {
    struct rig r;
    rig_open(test_name_, &r, 0.5, (struct offload_opts){ .prefetch = true });
    struct offload_stats s[3];
    for (uint32_t i = 0; i < 900; i++) {
        const uint32_t first = i * N_USED % N_EXPERTS;
        guess(&r, 1, i < 600 ? first + N_EXPERTS / 2 : first); /* wrong, wrong, right */
        use(test_name_, &r, 0, first, N_USED, false);
        use(test_name_, &r, 1, first, N_USED, false);
        if (i % 300 == 299) {
            s[i / 300] = stats(&r);
        }
    }
    CHECKF(s[0].prefetch_wasted < 100, "%llu wasted", (unsigned long long)s[0].prefetch_wasted);
    CHECKF(s[1].prefetch_wasted == s[0].prefetch_wasted, "%llu more wasted", (unsigned long long)(s[1].prefetch_wasted - s[0].prefetch_wasted));
    CHECKF(s[2].prefetch_useful > s[1].prefetch_useful, "%llu useful", (unsigned long long)s[2].prefetch_useful);
    rig_close(&r);
}

TEST(heat_comes_back_and_fills_the_slots) {
    struct rig r;
    uint8_t bits[N_LAYERS * N_EXPERTS / 8] = { 0 };
    unlink(heat_path());
    rig_open(test_name_, &r, 0.25, (struct offload_opts){ .heat_path = heat_path() });
    for (int round = 0; round < 10; round++) {
        use(test_name_, &r, 0, 40, N_USED, false);
        use(test_name_, &r, 1, 48, N_USED, false);
    }
    rig_close(&r);
    rig_open(test_name_, &r, 0.25, (struct offload_opts){ .heat_path = heat_path(), .fill = true });
    EVENTUALLY(stats(&r).resident == stats(&r).slots);
    offload_resident(r.o, bits);
    CHECK(bits[40 / 8] == 0x0f && bits[(N_EXPERTS + 48) / 8] == 0x0f);
    use(test_name_, &r, 0, 40, N_USED, false);
    CHECK(stats(&r).hits == N_USED && stats(&r).misses == 0);
    rig_close(&r);
    unlink(heat_path());
}

TEST(heat_is_saved_while_the_store_is_open) {
    struct rig r;
    struct policy_entry entries[N_LAYERS * N_EXPERTS];
    struct stat first, second;
    uint64_t now = 0;
    unlink(heat_path());
    rig_open(test_name_, &r, 0.5, (struct offload_opts){ .heat_path = heat_path(), .heat_every_ms = 10 });
    usleep(50000);
    CHECK(access(heat_path(), F_OK)); /* nothing was learned */
    use(test_name_, &r, 0, 8, N_USED, false);
    EVENTUALLY(offload__heat_load(heat_path(), 42, N_LAYERS * N_EXPERTS, entries, &now));
    CHECK(now == 1 && entries[8].uses > 0.99f && entries[7].uses == 0);
    CHECK(stat(heat_path(), &first) == 0);
    usleep(50000);
    CHECK(stat(heat_path(), &second) == 0 && first.st_ino == second.st_ino); /* nothing more was */
    use(test_name_, &r, 1, 8, N_USED, false);
    EVENTUALLY(offload__heat_load(heat_path(), 42, N_LAYERS * N_EXPERTS, entries, &now) && now == 2);
    rig_close(&r);
    unlink(heat_path());
}

TEST(damaged_heat_is_ignored) {
    struct rig r;
    struct policy_entry entries[N_LAYERS * N_EXPERTS];
    uint64_t now;
    rig_open(test_name_, &r, 0.5, (struct offload_opts){ .heat_path = heat_path() });
    use(test_name_, &r, 0, 0, N_USED, false);
    rig_close(&r);
    CHECK(offload__heat_load(heat_path(), 42, N_LAYERS * N_EXPERTS, entries, &now) && now == 1 && entries[0].uses > 0.99f);
    CHECK(!offload__heat_load(heat_path(), 43, N_LAYERS * N_EXPERTS, entries, &now)); /* other weights */
    CHECK(!offload__heat_load(heat_path(), 42, N_LAYERS * N_EXPERTS - 1, entries, &now));
    struct stat st;
    CHECK(stat(heat_path(), &st) == 0);
    for (off_t at = 0; at < st.st_size; at += 13) { /* any byte */
        const int fd = open(heat_path(), O_RDWR);
        unsigned char byte;
        CHECK(pread(fd, &byte, 1, at) == 1);
        byte ^= 1;
        CHECK(pwrite(fd, &byte, 1, at) == 1);
        CHECK(!offload__heat_load(heat_path(), 42, N_LAYERS * N_EXPERTS, entries, &now) && entries[0].uses == 0);
        byte ^= 1;
        CHECK(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
    }
    CHECK(truncate(heat_path(), st.st_size / 2) == 0);
    CHECK(!offload__heat_load(heat_path(), 42, N_LAYERS * N_EXPERTS, entries, &now));
    rig_open(test_name_, &r, 0.5, (struct offload_opts){ .heat_path = heat_path() });
    use(test_name_, &r, 0, 0, N_USED, false);
    rig_close(&r);
    unlink(heat_path());
}

/* From the page tables: the counter in statm lags behind, and code that is used for the first time counts as resident. */
static uint64_t anonymous_bytes(void) {
    char line[256];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Anonymous: %lu kB", &kib) == 1) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    return (uint64_t)kib << 10;
}

TEST(a_smaller_budget_gives_memory_back) {
    struct rig r;
    rig_open(test_name_, &r, 1, (struct offload_opts){ 0 });
    use(test_name_, &r, 0, 0, N_EXPERTS, false);
    use(test_name_, &r, 1, 0, N_EXPERTS, false);
    const uint64_t full = anonymous_bytes();
    CHECK(offload_resize(r.o, r.all / 8, NULL) == 0);
    use(test_name_, &r, 0, 60, N_USED, false); /* the last used stayed, whichever slot they were in */
    use(test_name_, &r, 1, 60, N_USED, false);
    const struct offload_stats s = stats(&r);
    CHECK(s.misses == 2 * N_EXPERTS && s.slots == 16 && s.budget_bytes == r.all / 8);
    CHECKF(anonymous_bytes() + r.all * 3 / 4 < full, "%llu of %llu", (unsigned long long)anonymous_bytes(), (unsigned long long)full);
    CHECK(offload_resize(r.o, 1, NULL) == ST_INVALID);
    rig_close(&r);
}

TEST(a_resident_step_is_cheap) {
    struct rig r;
    rig_open(test_name_, &r, 1, (struct offload_opts){ .policy = OFFLOAD_LFRU });
    use(test_name_, &r, 0, 0, N_EXPERTS, false);
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < 20; round++) {
        struct offload_want wants[8];
        struct offload_item items[8];
        const uint64_t t0 = clock_mono_ns();
        for (uint32_t step = 0; step < 500; step++) {
            for (uint32_t i = 0; i < 8; i++) {
                wants[i] = (struct offload_want){ (step * 5 + i * 7) % N_EXPERTS, 1 };
            }
            offload_begin(r.o, 0, wants, 8, false);
            while (offload_next(r.o, items, 8)) {
                offload_release(r.o);
            }
        }
        const uint64_t ns = (clock_mono_ns() - t0) / 500;
        best = ns < best ? ns : best;
    }
    printf("  %llu ns a step of 8 hits\n", (unsigned long long)best);
    CHECK(stats(&r).misses == N_EXPERTS && stats(&r).stall_ns < UINT64_C(1000000000));
    rig_close(&r);
}

/* One read at a time, so that experts arrive in the order in which they are read. */
TEST(the_most_rows_are_read_first) {
    struct rig r;
    rig_open(test_name_, &r, 0.5, (struct offload_opts){ .policy = OFFLOAD_LFRU });
    pthread_mutex_lock(&r.disk.mutex);
    r.disk.depth = 1;
    pthread_mutex_unlock(&r.disk.mutex);
    const struct offload_want wants[4] = { { 3, 1 }, { 9, 7 }, { 4, 2 }, { 20, 30 } };
    struct offload_item items[4];
    uint32_t order[4], n = 0, got;
    CHECK(offload_begin(r.o, 0, wants, 4, false) == 0);
    while ((got = offload_next(r.o, items, 1)) > 0) {
        order[n++] = items[0].expert;
    }
    CHECK(n == 4 && order[0] == 20 && order[1] == 9 && order[2] == 4 && order[3] == 3);
    rig_close(&r);
}

/* A disk that is now and then a million times slower: no plan holds, and what is read stays right. */
TEST(an_unpredictable_disk_ends_the_planning) {
    struct rig r;
    rig_open(test_name_, &r, 0.25, (struct offload_opts){ .policy = OFFLOAD_LFRU });
    CHECK(stats(&r).plan_falls == 0 && stats(&r).plan_error == 0);
    for (uint32_t i = 0; i < 200; i++) {
        pthread_mutex_lock(&r.disk.mutex);
        r.disk.latency_ns = i % 4 ? 1000 : 1000000000;
        pthread_mutex_unlock(&r.disk.mutex);
        use(test_name_, &r, i % N_LAYERS, i * 8 % N_EXPERTS, 8, false);
    }
    const struct offload_stats s = stats(&r);
    CHECKF(s.plan_falls >= 1 && s.plan_error > 0.25, "%llu falls, error %.2f", (unsigned long long)s.plan_falls, s.plan_error);
    rig_close(&r);
}

int main(void) {
    alarm(120); /* a hang is a failure */
    log_setup(LOG_ERROR, LOG_TEXT);
    RUN(a_prefill_spares_what_decode_uses);
    RUN(a_prefill_reads_the_next_layer_ahead);
    RUN(right_guesses_are_useful);
    RUN(wrong_guesses_stop_and_are_tried_again);
    RUN(heat_comes_back_and_fills_the_slots);
    RUN(heat_is_saved_while_the_store_is_open);
    RUN(damaged_heat_is_ignored);
    RUN(a_smaller_budget_gives_memory_back);
    RUN(a_resident_step_is_cheap);
    RUN(the_most_rows_are_read_first);
    RUN(an_unpredictable_disk_ends_the_planning);
    return test_failed_;
}
