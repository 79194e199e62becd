/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters. E writes them with relaxed stores on its way, any thread reads a snapshot: each number is whole, together
 * they may be a step apart. How long a request has its place is counted in engine time, so that idle hours do not count. */
#include "scheduler/internal.h"

static uint64_t get(const _Atomic uint64_t *c) {
    return atomic_load_explicit(c, memory_order_relaxed);
}

void metrics__init(struct metrics *m, uint32_t max_running) {
    m->window = 4 * max_running < 32 ? 32 : 4 * max_running; /* requests that run together also end together: average over some rounds */
    m->n_places = m->n_free = max_running;
}

/* With nobody having ended yet, those that run have had their places for that long at least. */
static void publish_stay(struct metrics *m, uint32_t n_running) {
    uint32_t n = m->n_left > 0 ? m->n_left : n_running > 0 ? n_running : 1;

    atomic_store_explicit(&m->stay_ns, m->place_ns / n, memory_order_relaxed);
}

void metrics__step(struct metrics *m, uint64_t ns, uint32_t n_tokens, uint32_t n_running) {
    metrics__add(&m->n_steps, 1);
    metrics__add(&m->step_ns, ns);
    atomic_store_explicit(&m->last_batch_tokens, n_tokens, memory_order_relaxed);
    m->place_ns += ns * n_running;
    publish_stay(m, n_running);
}

void metrics__done(struct metrics *m, enum finish_reason why, bool ran) {
    switch (why) {
    case FINISH_STOP: metrics__add(&m->n_stop, 1); break;
    case FINISH_LENGTH: metrics__add(&m->n_length, 1); break;
    case FINISH_CANCELLED: metrics__add(&m->n_cancelled, 1); break;
    case FINISH_ERROR: metrics__add(&m->n_failed, 1); break;
    case FINISH_DEADLINE: metrics__add(&m->n_expired, 1); break;
    case FINISH_NONE: break;
    }
    if (!ran) /* it left without having had a place, and tells nothing of how long one has it */
        return;
    if (++m->n_left >= m->window) {
        m->n_left /= 2;
        m->place_ns /= 2;
    }
    publish_stay(m, 1);
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
        .n_expired = get(&m->n_expired),
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
