/* SPDX-License-Identifier: Apache-2.0
 *
 * Fork-join pool of CPU threads. pool_run splits [0, n_tasks) over the workers and the caller, and returns
 * when all are done. Tasks are claimed one by one from an atomic counter, so uneven tasks balance; results
 * must therefore not depend on which worker runs a task. One thread at a time may call pool_run.
 * Workers spin a short while between runs (the engine calls hundreds of runs per step), then sleep on a futex. */
#ifndef MOED_BASE_POOL_H
#define MOED_BASE_POOL_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct pool; /* opaque */

typedef void (*pool_fn)(void *ctx, int task, int worker); /* worker in [0, pool_n_threads), 0 is the caller */

struct pool_opts {
    int n_threads;       /* caller included, >= 1                                                       */
    const int *cpus;     /* borrowed for the call: cpu of worker i, or NULL = not pinned                 */
    int n_cpus;          /* entries of cpus; worker i is pinned to cpus[i % n_cpus]; cpus[0] waits for pool_pin_caller */
    uint32_t spin_us;    /* how long a worker spins for the next run before it sleeps                    */
};

int pool_open(struct pool **out, const struct pool_opts *o, struct err *e); /* returns owned, free with pool_close */
void pool_close(struct pool *p);                                             /* joins; NULL is fine */
int pool_n_threads(const struct pool *p);
void pool_run(struct pool *p, int n_tasks, pool_fn fn, void *ctx);

/* Pins the calling thread, which is to be the one that calls pool_run, to cpus[0]. Without cpus: nothing. ST_INVALID when the
 * kernel refuses. Threads it starts later inherit the pin. */
int pool_pin_caller(const struct pool *p);

/* CPUs this process may run on: affinity mask and cgroup quota respected, one thread per physical core. >= 1. */
int pool_default_threads(void);

#endif
