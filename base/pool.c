/* SPDX-License-Identifier: Apache-2.0
 *
 * Fork-join pool. A run is published by bumping `epoch`; workers spin on it for spin_us, then sleep on a futex.
 * Tasks are claimed from `cursor`, which carries the epoch in its high half: a worker that wakes late for an old
 * run cannot steal a task of the next one, because its compare-exchange fails on the epoch. */
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/topology.h"

enum { POOL_MAX_THREADS = 1024 };

struct pool_worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    int n_threads;
    int caller_cpu;                      /* -1 = not pinned */
    uint64_t spin_ns;
    struct pool_worker *workers;         /* [n_threads - 1], indices 1.. */
    int n_started;

    /* one run: plain fields written by the caller before the release store to epoch */
    pool_fn fn;
    void *ctx;
    uint32_t n_tasks;
    _Alignas(64) _Atomic uint64_t cursor; /* epoch << 32 | next task */
    _Alignas(64) _Atomic uint32_t done;   /* tasks finished in this run */
    _Alignas(64) _Atomic uint32_t epoch;  /* futex word; workers acquire it */
    _Atomic uint32_t n_active;            /* workers inside pool_work: the next run waits for 0 before it changes fn */
    _Alignas(64) _Atomic uint32_t n_sleeping;
    atomic_bool stop;
};

static inline void pool_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void pool_futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void pool_futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, POOL_MAX_THREADS, NULL, NULL, 0);
}

/* Claims and runs tasks of run `epoch` until none is left. */
static void pool_work(struct pool *p, uint32_t epoch, int worker) {
    uint64_t at = atomic_load_explicit(&p->cursor, memory_order_acquire);
    for (;;) {
        uint32_t task = (uint32_t)at;
        if ((uint32_t)(at >> 32) != epoch || task >= p->n_tasks) return;
        if (!atomic_compare_exchange_weak_explicit(&p->cursor, &at, at + 1, memory_order_acq_rel, memory_order_acquire)) continue;
        p->fn(p->ctx, (int)task, worker);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release); /* pairs with the acquire in pool_run */
        at = atomic_load_explicit(&p->cursor, memory_order_acquire);
    }
}

/* Returns the new epoch. Spins first: a layer is a dozen runs a few microseconds apart. */
static uint32_t pool_await(struct pool *p, uint32_t seen) {
    uint64_t until = clock_mono_ns() + p->spin_ns;
    for (;;) {
        for (int i = 0; i < 256; i++) {
            uint32_t now = atomic_load_explicit(&p->epoch, memory_order_acquire);
            if (now != seen) return now;
            pool_relax();
        }
        if (clock_mono_ns() < until) continue;
        atomic_fetch_add_explicit(&p->n_sleeping, 1, memory_order_seq_cst); /* before the epoch check inside the futex */
        pool_futex_wait(&p->epoch, seen);
        atomic_fetch_sub_explicit(&p->n_sleeping, 1, memory_order_seq_cst);
    }
}

static void *pool_main(void *arg) {
    struct pool_worker *w = arg;
    struct pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = pool_await(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        atomic_fetch_add_explicit(&p->n_active, 1, memory_order_seq_cst);
        /* Only a worker that sees its epoch still current may read fn and ctx. */
        if (atomic_load_explicit(&p->epoch, memory_order_seq_cst) == seen) pool_work(p, seen, w->index);
        atomic_fetch_sub_explicit(&p->n_active, 1, memory_order_release);
    }
}

void pool_run(struct pool *p, int n_tasks, pool_fn fn, void *ctx) {
    if (n_tasks <= 0) return;
    if (n_tasks == 1 || p->n_threads == 1) {
        for (int i = 0; i < n_tasks; i++) fn(ctx, i, 0);
        return;
    }
    /* Invariant here: the previous run is complete and no worker is inside it, so the fields are ours. */
    uint32_t epoch = atomic_load_explicit(&p->epoch, memory_order_relaxed) + 1;
    p->fn = fn;
    p->ctx = ctx;
    p->n_tasks = (uint32_t)n_tasks;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->cursor, (uint64_t)epoch << 32, memory_order_relaxed);
    atomic_store_explicit(&p->epoch, epoch, memory_order_seq_cst); /* before reading n_sleeping; releases the fields */
    if (atomic_load_explicit(&p->n_sleeping, memory_order_seq_cst)) pool_futex_wake(&p->epoch);
    pool_work(p, epoch, 0);
    for (uint32_t spins = 0; atomic_load_explicit(&p->done, memory_order_acquire) != (uint32_t)n_tasks; spins++) {
        if (spins % 4096 == 4095) sched_yield(); /* a worker was descheduled: give it our core */
        pool_relax();
    }
    /* Close the run under the next epoch's number: a late worker fails the epoch check before it reads n_tasks. */
    atomic_store_explicit(&p->cursor, (uint64_t)(epoch + 1) << 32 | UINT32_MAX, memory_order_seq_cst);
    for (uint32_t spins = 0; atomic_load_explicit(&p->n_active, memory_order_seq_cst) != 0; spins++) {
        if (spins % 4096 == 4095) sched_yield();
        pool_relax();
    }
}

static int pool_start_worker(struct pool *p, int i, const struct pool_opts *o) {
    struct pool_worker *w = &p->workers[i - 1];
    *w = (struct pool_worker){ .pool = p, .index = i };
    pthread_attr_t attr;
    if (pthread_attr_init(&attr)) return ST_NOMEM;
    if (o->cpus && o->n_cpus > 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)o->cpus[i % o->n_cpus], &set);
        pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    }
    int failed = pthread_create(&w->thread, &attr, pool_main, w);
    pthread_attr_destroy(&attr);
    if (failed) return ST_NOMEM;
    p->n_started++;
    return 0;
}

int pool_open(struct pool **out, const struct pool_opts *o, struct err *e) {
    *out = NULL;
    if (o->n_threads < 1 || o->n_threads > POOL_MAX_THREADS) {
        return err_set(e, ST_INVALID, "threads: expected 1..%d, got %d", POOL_MAX_THREADS, o->n_threads);
    }
    for (int i = 0; i < o->n_cpus; i++) {
        if (o->cpus[i] < 0 || o->cpus[i] >= CPU_SETSIZE) {
            return err_set(e, ST_INVALID, "cpus: expected 0..%d, got %d", CPU_SETSIZE - 1, o->cpus[i]);
        }
    }
    struct pool *p = mem_zalloc(1, sizeof *p);
    if (!p) return err_set(e, ST_NOMEM, "out of memory for the CPU pool");
    p->n_threads = o->n_threads;
    p->caller_cpu = o->cpus && o->n_cpus > 0 ? o->cpus[0] : -1;
    p->spin_ns = (uint64_t)o->spin_us * 1000;
    p->workers = mem_zalloc((size_t)o->n_threads, sizeof *p->workers);
    if (!p->workers) {
        pool_close(p);
        return err_set(e, ST_NOMEM, "out of memory for the CPU pool");
    }
    for (int i = 1; i < o->n_threads; i++) {
        if (pool_start_worker(p, i, o)) {
            pool_close(p);
            return err_set(e, ST_NOMEM, "cannot start CPU thread %d of %d (cpus out of the allowed set, or a thread limit)", i, o->n_threads);
        }
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p) {
    if (!p) return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_seq_cst);
    pool_futex_wake(&p->epoch);
    for (int i = 0; i < p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    mem_free(p->workers);
    mem_free(p);
}

int pool_n_threads(const struct pool *p) {
    return p->n_threads;
}

int pool_pin_caller(const struct pool *p) {
    if (p->caller_cpu < 0) return ST_OK;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)p->caller_cpu, &set);
    return pthread_setaffinity_np(pthread_self(), sizeof set, &set) ? ST_INVALID : ST_OK;
}

int pool_default_threads(void) {
    struct topology t;
    topology_read(&t, TOPOLOGY_ROOT, NULL);
    int quota = topology_cgroup_quota("/sys/fs/cgroup/cpu.max"), n = t.n_cores;
    if (quota && quota < n) n = quota;
    return n > POOL_MAX_THREADS ? POOL_MAX_THREADS : n;
}
