/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuous batching: takes requests, forms a batch each step (decode first, then prefill chunks), runs the
 * engine on its own thread E and reports events. All functions here are called by one thread, L, and never wait
 * for E, except sched_stop which joins it. */
#ifndef MOED_SCHEDULER_SCHEDULER_H
#define MOED_SCHEDULER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/engine.h"
#include "scheduler/event.h"
#include "scheduler/request.h"

struct sched; /* opaque */

struct sched_opts {
    const struct engine_ops *ops;
    void *engine;               /* `self` of ops; borrowed until sched_stop returns                       */
    uint32_t max_running;       /* sequences in one batch; ids above it, up to info.n_seqs, cache prefixes */
    uint32_t max_queued;        /* requests submitted and not yet running                                  */
    uint32_t batch_tokens;      /* tokens per step, <= info.max_batch_tokens                               */
    bool prefix_cache;
    void (*notify)(void *ctx);  /* called on E after events were pushed; must be async-safe and cheap      */
    void *notify_ctx;
};

int sched_start(struct sched **out, const struct sched_opts *o, struct err *e); /* returns owned, free with sched_stop */

/* Cancels whatever still runs, joins E, frees. Every submitted request gets its EVENT_DONE, so the caller drains
 * with sched_poll between sched_quiesce and sched_stop. */
void sched_quiesce(struct sched *s); /* refuse new work, cancel all; returns once E has nothing left and every event is in the ring or polled */
void sched_stop(struct sched *s);

/* 0: the scheduler has r until its EVENT_DONE. ST_QUEUE_FULL, ST_SHUTDOWN, ST_INVALID (does not fit the context or
 * the whole KV): the caller keeps r. */
int sched_submit(struct sched *s, struct request *r);
void sched_cancel(struct sched *s, struct request *r); /* any state after submit; EVENT_DONE still arrives, within one step */
int sched_poll(struct sched *s, struct event *ev, int cap); /* up to cap events; 0 when there are none now */

struct sched_stats {             /* a snapshot; any thread */
    uint64_t n_submitted, n_finished_stop, n_finished_length, n_cancelled, n_failed, n_preempted;
    uint64_t prompt_tokens, cached_tokens, output_tokens; /* done so far   */
    uint64_t n_steps, step_ns;                            /* engine time   */
    uint64_t n_ring_waits;                                /* times E found the event ring full: L polls too late */
    uint32_t n_running, n_queued /* preempted included */, n_cached_seqs;
    uint32_t last_batch_tokens;
    bool engine_failed;          /* the engine returned an error: every request fails from now on */
    struct engine_stats engine;
};
void sched_stats(const struct sched *s, struct sched_stats *out);

/* Seconds a new request would wait, from the measured drain rate; for Retry-After. >= 1. */
uint32_t sched_retry_after_s(const struct sched *s);

#endif
