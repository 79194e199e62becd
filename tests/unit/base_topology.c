/* SPDX-License-Identifier: Apache-2.0
 *
 * CPU topology from a made-up /sys, and CPU lists. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pool.h"
#include "base/status.h"
#include "base/topology.h"
#include "tests/unit/test.h"

struct fake_sys { char root[64], made[64][128]; int n_made; }; /* made: to be removed, last first */

static void note(struct fake_sys *s, const char *path) { memcpy(s->made[s->n_made++], path, strlen(path) + 1); }

/* Makes root/relative with its directories. */
static void put(struct fake_sys *s, const char *relative, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", s->root, relative);
    for (char *slash = path + strlen(s->root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        if (mkdir(path, 0700) == 0) note(s, path);
        *slash = '/';
    }
    FILE *f = fopen(path, "we");
    if (!f) return;
    fputs(text, f);
    fclose(f);
    note(s, path);
}

static bool begin(struct fake_sys *s) {
    *s = (struct fake_sys){ .root = "/tmp/moed-topology-XXXXXX" };
    if (!mkdtemp(s->root)) return false;
    note(s, s->root);
    return true;
}

static void end(struct fake_sys *s) {
    while (s->n_made) remove(s->made[--s->n_made]);
}

static void siblings(struct fake_sys *s, int cpu, const char *list) {
    char path[64];
    snprintf(path, sizeof path, "cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(s, path, list);
}

static void allow(bool *allowed, int first, int last) {
    for (int i = first; i <= last; i++) allowed[i] = true;
}

/* Two nodes of two cores with two threads each, numbered as most servers do: cpu i and i + 4 are one core. */
static bool begin_server(struct fake_sys *s) {
    static const char *const pairs[] = { "0,4\n", "1,5\n", "2,6\n", "3,7\n" };
    if (!begin(s)) return false;
    for (int cpu = 0; cpu < 8; cpu++) siblings(s, cpu, pairs[cpu % 4]);
    put(s, "node/node0/cpulist", "0-1,4-5\n");
    put(s, "node/node2/cpulist", "2-3,6-7\n");
    put(s, "node/node3/cpulist", "\n"); /* memory only */
    return true;
}

TEST(one_thread_per_core_and_nodes_counted) {
    struct fake_sys s;
    struct topology t;
    bool allowed[TOPOLOGY_MAX_CPUS] = { 0 };
    CHECK(begin_server(&s));
    allow(allowed, 0, 7);
    topology_read(&t, s.root, allowed);
    end(&s);
    CHECKF(t.n_allowed == 8 && t.n_cores == 4 && t.n_nodes == 2, "%d allowed, %d cores, %d nodes", t.n_allowed, t.n_cores, t.n_nodes);
    for (int i = 0; i < 4; i++) CHECK(t.cores[i] == i);
}

TEST(cores_whose_first_thread_is_not_allowed_count_once) {
    struct fake_sys s;
    struct topology t;
    bool allowed[TOPOLOGY_MAX_CPUS] = { 0 };
    CHECK(begin_server(&s));
    allow(allowed, 1, 1);
    allow(allowed, 4, 5);
    topology_read(&t, s.root, allowed);
    end(&s);
    CHECK(t.n_allowed == 3 && t.n_cores == 2 && t.cores[0] == 1 && t.cores[1] == 4);
    CHECK(t.n_nodes == 1);
}

TEST(missing_and_odd_files_mean_a_core_each) {
    static const char *const odd[] = { "", "\n", "x\n", "0-\n", "4-0\n", "0,,4\n", "99999999999999999999\n", "-1\n", "5,6\n", "0;4\n" };
    struct topology t;
    bool allowed[TOPOLOGY_MAX_CPUS] = { 0 };
    allow(allowed, 0, 3);
    topology_read(&t, "/nonexistent", allowed);
    CHECK(t.n_cores == 4 && t.n_nodes == 1);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        struct fake_sys s;
        CHECK(begin(&s));
        for (int cpu = 0; cpu < 4; cpu++) siblings(&s, cpu, odd[i]);
        put(&s, "node/node0/cpulist", odd[i]);
        topology_read(&t, s.root, allowed);
        end(&s);
        CHECKF(t.n_cores == 4 && t.n_nodes == 1, "\"%s\": %d cores, %d nodes", odd[i], t.n_cores, t.n_nodes);
    }
}

TEST(own_mask_is_the_default) {
    struct topology t;
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    topology_read(&t, TOPOLOGY_ROOT, NULL);
    CHECK(t.n_allowed == CPU_COUNT(&set) && t.n_cores >= 1 && t.n_cores <= t.n_allowed);
    CHECK(CPU_ISSET((size_t)t.cores[0], &set));
}

TEST(cgroup_quota_rounds_down) {
    static const struct { const char *text; int want; } cases[] = {
        { "max 100000\n", 0 }, { "250000 100000\n", 2 }, { "50000 100000\n", 1 }, { "", 0 }, { "1 0\n", 0 }, { "-5 100000\n", 0 },
        { "9000000000000 1\n", TOPOLOGY_MAX_CPUS },
    };
    CHECK(topology_cgroup_quota("/nonexistent") == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake_sys s;
        char path[128];
        CHECK(begin(&s));
        put(&s, "cpu.max", cases[i].text);
        snprintf(path, sizeof path, "%s/cpu.max", s.root);
        int got = topology_cgroup_quota(path);
        end(&s);
        CHECKF(got == cases[i].want, "\"%s\": %d", cases[i].text, got);
    }
}

TEST(cpu_lists) {
    static const char *const bad[] = { "x", "-1", "0-", "3-1", "1,", ",1", "1,,2", "1024", "0-1024", "1 2", "0x1", "+1", "2,0-3", "1-2-3" };
    int cpus[TOPOLOGY_MAX_CPUS];
    struct err e;
    CHECK(topology_parse_list("", cpus, TOPOLOGY_MAX_CPUS, &e) == 0);
    CHECK(topology_parse_list("8,0-2", cpus, TOPOLOGY_MAX_CPUS, &e) == 4 && cpus[0] == 8 && cpus[1] == 0 && cpus[3] == 2);
    CHECK(topology_parse_list("0-1023", cpus, TOPOLOGY_MAX_CPUS, &e) == 1024 && cpus[1023] == 1023);
    CHECK(topology_parse_list("0-3", cpus, 3, &e) == ST_INVALID);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECKF(topology_parse_list(bad[i], cpus, TOPOLOGY_MAX_CPUS, &e) == ST_INVALID && strstr(e.text, "cpus"), "\"%s\"", bad[i]);
}

static void where(void *ctx, int task, int worker) {
    int *cpu = ctx;
    (void)task;
    cpu[worker] = sched_getcpu();
}

struct pinned { struct pool *pool; int cpu[2], n_cpus, pin; };

static void *run_pinned(void *arg) {
    struct pinned *x = arg;
    cpu_set_t set;
    x->pin = pool_pin_caller(x->pool);
    for (int i = 0; i < 200; i++) pool_run(x->pool, 2, where, x->cpu);
    x->n_cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    return NULL;
}

TEST(pinned_caller_and_workers_stay_on_their_cpus) {
    struct topology t;
    struct err e;
    topology_read(&t, TOPOLOGY_ROOT, NULL);
    int cpus[2] = { t.cores[t.n_cores - 1], t.cores[0] }; /* the same one twice where there is only one */
    struct pinned x = { .cpu = { -1, -1 } };
    pthread_t thread;
    CHECKF(pool_open(&x.pool, &(struct pool_opts){ .n_threads = 2, .cpus = cpus, .n_cpus = 2 }, &e) == 0, "%s", e.text);
    CHECK(pthread_create(&thread, NULL, run_pinned, &x) == 0);
    pthread_join(thread, NULL);
    pool_close(x.pool);
    CHECK(x.pin == ST_OK && x.n_cpus == 1);
    CHECK((x.cpu[0] == cpus[0] || x.cpu[0] == -1) && (x.cpu[1] == cpus[1] || x.cpu[1] == -1));
    CHECK(x.cpu[0] >= 0 || x.cpu[1] >= 0);
}

TEST(without_cpus_nothing_is_pinned) {
    struct pool *p;
    struct err e;
    cpu_set_t before, after;
    CHECKF(pool_open(&p, &(struct pool_opts){ .n_threads = 1 }, &e) == 0, "%s", e.text);
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    int st = pool_pin_caller(p);
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    pool_close(p);
    CHECK(st == ST_OK && CPU_EQUAL(&before, &after));
}

int main(void) {
    RUN(one_thread_per_core_and_nodes_counted);
    RUN(cores_whose_first_thread_is_not_allowed_count_once);
    RUN(missing_and_odd_files_mean_a_core_each);
    RUN(own_mask_is_the_default);
    RUN(cgroup_quota_rounds_down);
    RUN(cpu_lists);
    RUN(pinned_caller_and_workers_stay_on_their_cpus);
    RUN(without_cpus_nothing_is_pinned);
    return test_failed_;
}
