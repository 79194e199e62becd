/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters. E writes them with relaxed stores on its way, any thread reads a snapshot: each number is whole, together
 * they may be a step apart. The drain rate behind Retry-After is engine time per request that ended, so that idle
 * hours do not count. */
#include "scheduler/internal.h"

static uint64_t get(const _Atomic uint64_t *c) {
    return atomic_load_explicit(c, memory_order_relaxed);
}

/* The running interval counts as soon as it is longer than the average: a stall shows at once. */
static void publish_drain(struct metrics *m) {
    uint64_t ns = m->since_done_ns > m->mean_done_ns ? m->since_done_ns : m->mean_done_ns;

    atomic_store_explicit(&m->drain_ns, ns, memory_order_relaxed);
}

void metrics__step(struct metrics *m, uint64_t ns, uint32_t n_tokens) {
    metrics__add(&m->n_steps, 1);
    metrics__add(&m->step_ns, ns);
    atomic_store_explicit(&m->last_batch_tokens, n_tokens, memory_order_relaxed);
    m->since_done_ns += ns;
    publish_drain(m);
}

void metrics__done(struct metrics *m, enum finish_reason why) {
    switch (why) {
    case FINISH_STOP: metrics__add(&m->n_stop, 1); break;
    case FINISH_LENGTH: metrics__add(&m->n_length, 1); break;
    case FINISH_CANCELLED: metrics__add(&m->n_cancelled, 1); break;
    case FINISH_ERROR: metrics__add(&m->n_failed, 1); break;
    case FINISH_NONE: break;
    }
    /* the last 16 or so count; the first one is taken whole */
    if (m->mean_done_ns == 0)
        m->mean_done_ns = m->since_done_ns;
    else
        m->mean_done_ns = (m->mean_done_ns * 15 + m->since_done_ns) / 16;
    m->since_done_ns = 0;
    publish_drain(m);
}

/* Queued and preempted ones, and those E has not seen yet. */
static uint64_t n_waiting(const struct metrics *m) {
    uint64_t n_taken = get(&m->n_taken), n_submitted = get(&m->n_submitted);
    uint64_t unseen = n_submitted > n_taken ? n_submitted - n_taken : 0; /* relaxed: the two may be of different times */

    return unseen + atomic_load_explicit(&m->n_queued, memory_order_relaxed);
}

void sched_stats(const struct sched *s, struct sched_stats *out) {
    const struct metrics *m = &s->m;
    *out = (struct sched_stats){
        .n_submitted = get(&m->n_submitted),
        .n_finished_stop = get(&m->n_stop),
        .n_finished_length = get(&m->n_length),
        .n_cancelled = get(&m->n_cancelled),
        .n_failed = get(&m->n_failed),
        .n_preempted = get(&m->n_preempted),
        .prompt_tokens = get(&m->prompt_tokens),
        .cached_tokens = get(&m->cached_tokens),
        .output_tokens = get(&m->output_tokens),
        .n_steps = get(&m->n_steps),
        .step_ns = get(&m->step_ns),
        .n_ring_waits = get(&m->n_ring_waits),
        .n_running = atomic_load_explicit(&m->n_running, memory_order_relaxed),
        .n_cached_seqs = atomic_load_explicit(&m->n_cached_seqs, memory_order_relaxed),
        .last_batch_tokens = atomic_load_explicit(&m->last_batch_tokens, memory_order_relaxed),
        .engine_failed = atomic_load_explicit(&s->failed, memory_order_relaxed),
    };
    out->n_queued = (uint32_t)n_waiting(m);
    s->o.ops->stats(s->o.engine, &out->engine);
}

uint32_t sched_retry_after_s(const struct sched *s) {
    enum { MOST_S = 600 }; /* beyond this it is a guess */
    uint64_t ahead = n_waiting(&s->m) + 1;
    uint64_t ns = get(&s->m.drain_ns), seconds;

    if (ns > UINT64_MAX / ahead)
        return MOST_S;
    seconds = (ns * ahead + 999999999) / 1000000000;
    return seconds < 1 ? 1 : seconds > MOST_S ? MOST_S : (uint32_t)seconds;
}
