/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuous batching: takes requests, forms a batch each step (decode first, then prefill chunks), runs the
 * engine on its own thread E and reports events. All functions here are called by one thread, L (sched_stats,
 * sched_wait_ns and sched_retry_after_s by any), and never wait for E, except sched_quiesce (one step at most) and sched_stop. */
#ifndef MOED_SCHEDULER_SCHEDULER_H
#define MOED_SCHEDULER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/engine.h"
#include "scheduler/event.h"
#include "scheduler/request.h"

struct sched; /* opaque */

enum { SCHED_SHARE = 2 };

struct sched_opts {
    const struct engine_ops *ops;
    void *engine;               /* `self` of ops; borrowed until sched_stop returns                       */
    uint32_t max_running;       /* sequences in one batch; ids above it, up to info.n_seqs, cache prefixes */
    uint32_t max_queued;        /* at most max_running + max_queued requests between submit and the poll of their
                                   EVENT_DONE; those that do not run (no place, no KV) wait                */
    uint32_t n_tenants;         /* ids of request.tenant are below it; 0 = 1. One of several tenants never gets all places:
                                   it may hold at most SCHED_SHARE times as many as are free             */
    uint32_t batch_tokens;      /* tokens per step, <= info.max_batch_tokens; more than max_running is wise */
    bool prefix_cache;
    void (*notify)(void *ctx);  /* called on E, at most once per step, after events were pushed (release); does its own
                                   fencing; must be cheap and must not call back                           */
    void *notify_ctx;
    void (*enter)(void *ctx);   /* called once on E before anything else, NULL = nothing; e.g. to pin the thread */
    void *enter_ctx;
};

int sched_start(struct sched **out, const struct sched_opts *o, struct err *e); /* returns owned, free with sched_stop */

/* Refuses new work and cancels all. Returns once E has nothing left and every event is in the ring: the caller then polls
 * until sched_poll returns 0 and has every EVENT_DONE. It never needs a poll meanwhile: the ring keeps a place for the
 * EVENT_DONE of every request. Twice is fine. */
void sched_quiesce(struct sched *s);
/* Takes s: quiesces if that was not done, joins E, frees. Events not polled before are gone. */
void sched_stop(struct sched *s);

/* 0: the scheduler has r until its EVENT_DONE. Otherwise the caller keeps r: ST_QUEUE_FULL (or too full for one more of
 * this tenant); ST_SHUTDOWN (after
 * sched_quiesce); ST_INVALID (does not fit the context or the whole KV, or has a token or bias id outside the
 * vocabulary); ST_NOMEM; ST_INTERNAL (the engine failed). */
int sched_submit(struct sched *s, struct request *r);
/* Any state between submit and the poll of EVENT_DONE. E sees it before its next step; EVENT_DONE says FINISH_CANCELLED
 * unless the request ended by itself before. Events already in the ring still arrive. */
void sched_cancel(struct sched *s, struct request *r);
int sched_poll(struct sched *s, struct event *ev, int cap); /* up to cap events; 0 when there are none now */

struct sched_stats {             /* a snapshot; any thread */
    uint64_t n_submitted, n_finished_stop, n_finished_length, n_cancelled, n_failed, n_expired, n_preempted;
    uint64_t prompt_tokens, cached_tokens, output_tokens; /* done so far   */
    uint64_t n_steps, step_ns;                            /* engine time   */
    uint64_t n_ring_waits;                                /* times E found the event ring full: L polls too late */
    uint32_t n_running, n_queued /* preempted included */, n_cached_seqs;
    uint32_t last_batch_tokens;
    bool engine_failed;          /* the engine returned an error: every request fails from now on */
    struct engine_stats engine;
};
void sched_stats(const struct sched *s, struct sched_stats *out);

/* How long a new request of this tenant and priority would wait for its place in the batch: those before it by fair order,
 * and how long requests have had their places lately. 0 while places are free. Any thread. */
uint64_t sched_wait_ns(const struct sched *s, uint32_t tenant, int priority);
uint32_t sched_retry_after_s(const struct sched *s, uint32_t tenant, int priority); /* the same for Retry-After, 1..600 */
uint32_t sched_most_places(const struct sched *s); /* requests one tenant can have in an otherwise idle scheduler */

#endif
