/* SPDX-License-Identifier: Apache-2.0
 *
 * The side of L: start and stop, submit, cancel, poll. All checks of a request happen here, so that E only sees what
 * fits. Nothing here waits for E, except sched_quiesce (one step at most) and sched_stop. */
#include "scheduler/internal.h"

#include <signal.h>

#include "base/alloc.h"
#include "base/status.h"

enum { EVENTS_PER_SEQ = 256 };

static int check_opts(const struct sched_opts *o, const struct engine_info *info, struct err *e) {
    if (o->max_running < 1 || o->max_running > info->n_seqs)
        return err_set(e, ST_INVALID, "max_running: expected 1..%u (sequences of the engine), found %u", info->n_seqs,
                       o->max_running);
    if (o->batch_tokens < 1 || o->batch_tokens > info->max_batch_tokens)
        return err_set(e, ST_INVALID, "batch_tokens: expected 1..%u (largest batch of the engine), found %u",
                       info->max_batch_tokens, o->batch_tokens);
    if (o->max_queued < 1 || o->max_queued > 1u << 20)
        return err_set(e, ST_INVALID, "max_queued: expected 1..%u, found %u", 1u << 20, o->max_queued);
    if (o->max_running > 1u << 16)
        return err_set(e, ST_INVALID, "max_running: expected at most %u, found %u", 1u << 16, o->max_running);
    if (info->page_tokens < 1 || info->n_pages < 1 || info->n_ctx < 1)
        return err_set(e, ST_INVALID, "engine: no KV (%u pages of %u tokens, context %u)", info->n_pages,
                       info->page_tokens, info->n_ctx);
    return ST_OK;
}

static int alloc_parts(struct sched *s) {
    uint32_t n = s->o.max_running;

    s->slots = mem_zalloc(s->info.n_seqs, sizeof(struct seq *));
    s->active = mem_zalloc(n, sizeof(struct seq *));
    s->wants = mem_zalloc(n, sizeof *s->wants);
    s->items = mem_zalloc(n, sizeof *s->items);
    s->item_seqs = mem_zalloc(n, sizeof(struct seq *));
    s->sampled = mem_zalloc(n, sizeof *s->sampled);
    s->outcome = mem_zalloc(n, sizeof *s->outcome);
    if (!s->slots || !s->active || !s->wants || !s->items || !s->item_seqs || !s->sampled || !s->outcome)
        return ST_NOMEM;
    if (spsc_init(&s->submits, s->max_live, sizeof(struct request *)) != ST_OK ||
        spsc_init(&s->events, n * EVENTS_PER_SEQ + s->max_live, sizeof(struct event)) != ST_OK ||
        queue__init(&s->queue, s->max_live, s->o.n_tenants) != ST_OK || wait__init(s) != ST_OK ||
        prefix__init(&s->index, s->info.n_pages, s->info.page_tokens) != ST_OK)
        return ST_NOMEM;
    return ST_OK;
}

static void free_parts(struct sched *s) {
    prefix__clear(&s->index);
    wait__clear(s);
    queue__clear(&s->queue);
    spsc_clear(&s->events);
    spsc_clear(&s->submits);
    mem_free(s->outcome);
    mem_free(s->sampled);
    mem_free(s->item_seqs);
    mem_free(s->items);
    mem_free(s->wants);
    mem_free(s->active);
    mem_free(s->slots);
    mem_unmap(s, sizeof *s);
}

/* Signals belong to L. */
static int start_thread(struct sched *s) {
    sigset_t all, old;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    failed = pthread_create(&s->thread, NULL, loop__main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!failed)
        pthread_setname_np(s->thread, "moed-engine");
    return failed;
}

int sched_start(struct sched **out, const struct sched_opts *o, struct err *e) {
    struct engine_info info;
    struct sched *s;
    int status;

    o->ops->info(o->engine, &info);
    status = check_opts(o, &info, e);
    if (status != ST_OK)
        return status;
    s = mem_map(sizeof *s); /* the rings want cache-line alignment, which mem_alloc does not promise */
    if (!s)
        return err_set(e, ST_NOMEM, "scheduler: out of memory");
    s->o = *o;
    s->o.n_tenants = o->n_tenants > 0 ? o->n_tenants : 1;
    s->info = info;
    s->queue_deadline_ns = UINT64_MAX;
    metrics__init(&s->m, o->max_running);
    s->max_live = o->max_running + o->max_queued;
    s->max_cached = o->prefix_cache ? info.n_seqs - o->max_running : 0;
    if (alloc_parts(s) != ST_OK) {
        free_parts(s);
        return err_set(e, ST_NOMEM, "scheduler: out of memory for %u running and %u queued requests", o->max_running,
                       o->max_queued);
    }
    if (park_init(&s->wake) != ST_OK)
        goto fail;
    if (park_init(&s->quiet) != ST_OK)
        goto fail_wake;
    if (start_thread(s) != 0)
        goto fail_quiet;
    *out = s;
    return ST_OK;

fail_quiet:
    park_clear(&s->quiet);
fail_wake:
    park_clear(&s->wake);
fail:
    free_parts(s);
    return err_set(e, ST_INTERNAL, "scheduler: cannot start the engine thread");
}

void sched_quiesce(struct sched *s) {
    s->refuse = true;
    atomic_store_explicit(&s->cancel_all, true, memory_order_release);
    park_wake(&s->wake);
    while (!atomic_load_explicit(&s->quiesced, memory_order_acquire))
        park_wait(&s->quiet, UINT64_MAX);
}

void sched_stop(struct sched *s) {
    sched_quiesce(s);
    atomic_store_explicit(&s->stop, true, memory_order_release);
    park_wake(&s->wake);
    pthread_join(s->thread, NULL);
    park_clear(&s->quiet);
    park_clear(&s->wake);
    free_parts(s);
}

/* Everything E takes for granted. The last drawn token never enters KV. */
static bool request_fits(const struct sched *s, const struct request *r) {
    uint64_t n_total = (uint64_t)r->n_prompt + r->max_tokens;
    uint64_t n_kv = r->max_tokens > 0 ? n_total - 1 : n_total;

    if (r->n_prompt < 1 || n_total > s->info.n_ctx || (r->pooled && (r->max_tokens > 0 || r->prompt_logprobs)))
        return false;
    if (r->tenant >= s->o.n_tenants || r->priority < SCHED_PRIORITY_MIN || r->priority > SCHED_PRIORITY_MAX)
        return false;
    if (n_kv > (uint64_t)s->info.n_pages * s->info.page_tokens)
        return false;
    for (uint32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= s->info.n_vocab)
            return false;
    for (uint32_t i = 0; i < r->sample.n_bias; i++)
        if (r->sample.bias[i].id < 0 || (uint32_t)r->sample.bias[i].id >= s->info.n_vocab)
            return false;
    return true;
}

int sched_submit(struct sched *s, struct request *r) {
    int status;

    if (s->refuse)
        return ST_SHUTDOWN;
    if (atomic_load_explicit(&s->failed, memory_order_relaxed))
        return ST_INTERNAL;
    if (!request_fits(s, r))
        return ST_INVALID;
    if (!wait__has_place(s, r))
        return ST_QUEUE_FULL;
    status = seq__new(&r->seq, r, &s->info, s->o.prefix_cache);
    if (status != ST_OK)
        return status;
    wait__submitted(s, r);
    metrics__add(&s->m.n_submitted, 1);
    spsc_push(&s->submits, &r); /* has room for max_live */
    park_wake(&s->wake);
    return ST_OK;
}

void sched_cancel(struct sched *s, struct request *r) {
    atomic_store_explicit(&r->cancel, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->n_cancels, 1, memory_order_release);
    park_wake(&s->wake);
}

int sched_poll(struct sched *s, struct event *ev, int cap) {
    int n = 0;

    while (n < cap && spsc_pop(&s->events, &ev[n])) {
        if (ev[n].type == EVENT_DONE)
            wait__done(s, ev[n].request);
        n++;
    }
    return n;
}
