/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine thread E: take what L sent, give out KV, form a batch, run the engine, report, once per step. It never
 * waits for L, with one exception: when L has not polled for hundreds of tokens per sequence, the event ring cannot take
 * another step's events and no step is made. Even then every EVENT_DONE has its place (L never has more than max_live
 * requests out), so cancelling and sched_quiesce never wait for a poll. E allocates nothing; the ends of requests free. */
#include "scheduler/internal.h"

#include <assert.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

static const uint64_t RING_WAIT_NS = 1000000;

static bool failed(const struct sched *s) {
    return atomic_load_explicit(&s->failed, memory_order_relaxed);
}

static void notify(struct sched *s) {
    if (s->event_pushed && s->o.notify)
        s->o.notify(s->o.notify_ctx);
    s->event_pushed = false;
}

/* Never fails: has_room was asked before the step. */
static void emit(struct sched *s, const struct event *ev) {
    bool pushed = spsc_push(&s->events, ev);

    assert(pushed);
    s->event_pushed |= pushed;
}

/* For all that a step can report, STARTED and TOKEN of every sequence, beside the max_live places kept for EVENT_DONE. */
static bool has_room(const struct sched *s) {
    return s->events.cap - spsc_used(&s->events) >= 2 * s->o.max_running + s->max_live;
}

static void push_done_event(struct sched *s, struct seq *q, const struct event *ev) {
    metrics__done(&s->m, (enum finish_reason)ev->finish, q->ran);
    q->request = NULL; /* L frees it as soon as it sees the event */
    emit(s, ev);
}

static void push_done(struct sched *s, struct seq *q, enum finish_reason why, int status) {
    struct event ev = {.request = q->request, .type = EVENT_DONE, .finish = (uint8_t)why, .status = (int16_t)status};

    push_done_event(s, q, &ev);
}

static void end_active(struct sched *s, struct seq *q, enum finish_reason why, int status) {
    push_done(s, q, why, status);
    slots__retire(s, q);
}

static void take_submits(struct sched *s) {
    struct request *r;

    while (spsc_pop(&s->submits, &r)) {
        queue__push(&s->queue, r->seq);
        if (r->seq->deadline_ns < s->queue_deadline_ns)
            s->queue_deadline_ns = r->seq->deadline_ns;
        metrics__add(&s->m.n_taken, 1);
    }
}

static bool pick_all(void *ctx, const struct seq *q) {
    (void)ctx;
    (void)q;
    return true;
}

static bool pick_cancelled(void *ctx, const struct seq *q) {
    (void)ctx;
    return seq__cancelled(q);
}

static void end_waiting(struct sched *s, bool (*pick)(void *, const struct seq *), void *ctx, enum finish_reason why, int status) {
    struct seq *q = queue__extract(&s->queue, pick, ctx), *next;

    for (; q; q = next) {
        next = q->next;
        wait__left(s, q->request);
        push_done(s, q, why, status);
        seq__free(q);
    }
}

/* Ends the picked ones, wherever they are. */
static void end_picked(struct sched *s, bool (*pick)(void *, const struct seq *), enum finish_reason why, int status) {
    end_waiting(s, pick, NULL, why, status);
    for (uint32_t i = s->n_active; i-- > 0;)
        if (pick(NULL, s->active[i]))
            end_active(s, s->active[i], why, status);
}

struct expiry { uint64_t now_ns, next_ns; };

static bool pick_expired(void *ctx, const struct seq *q) {
    struct expiry *e = ctx;

    if (q->deadline_ns <= e->now_ns)
        return true;
    if (q->deadline_ns < e->next_ns)
        e->next_ns = q->deadline_ns;
    return false;
}

/* Nothing is computed for those whose time is over. The queue is looked through only when somebody's may be. */
static void take_deadlines(struct sched *s) {
    struct expiry e = {.now_ns = clock_mono_ns(), .next_ns = UINT64_MAX};

    if (s->queue_deadline_ns <= e.now_ns) {
        end_waiting(s, pick_expired, &e, FINISH_DEADLINE, ST_OK);
        s->queue_deadline_ns = e.next_ns;
    }
    for (uint32_t i = s->n_active; i-- > 0;)
        if (s->active[i]->deadline_ns <= e.now_ns)
            end_active(s, s->active[i], FINISH_DEADLINE, ST_OK);
}

static void take_cancels(struct sched *s, bool all) {
    uint64_t n = atomic_load_explicit(&s->n_cancels, memory_order_acquire);

    if (all)
        end_picked(s, pick_all, FINISH_CANCELLED, ST_OK);
    else if (n != s->n_cancels_seen)
        end_picked(s, pick_cancelled, FINISH_CANCELLED, ST_OK);
    s->n_cancels_seen = n;
}

/* Returns the number of items; s->item_seqs names the sequence of each. */
static uint32_t form_batch(struct sched *s, struct batch *b) {
    uint32_t n_items = 0;

    slots__admit(s);
    slots__grow(s);
    for (uint32_t i = 0; i < s->n_running && !failed(s); i++) {
        const struct seq *q = s->active[i];
        bool ready = slots__ready(s, i);
        uint32_t n_pending = q->n_tokens - q->n_computed;

        s->wants[i] = (struct batch_want){
            .n_pending = ready ? n_pending : 0,
            .decode = ready && n_pending == 1 && q->started,
            .last_step = q->last_step,
        };
    }
    if (failed(s))
        return 0;
    *b = (struct batch){.items = s->items};
    b->n_tokens = batcher__plan(s->wants, s->n_running, s->o.batch_tokens, s->turn);
    for (uint32_t i = 0; i < s->n_running; i++) {
        if (s->wants[i].n_take == 0)
            continue;
        seq__item(s->active[i], s->wants[i].n_take, &s->items[n_items]);
        seq__mask(s->active[i], &s->items[n_items]);
        s->item_seqs[n_items++] = s->active[i];
    }
    b->n_items = n_items;
    return n_items;
}

static void report_started(struct sched *s, struct seq *q) {
    struct event ev = {.request = q->request, .type = EVENT_STARTED, .cached = q->n_reused};
    uint64_t now = clock_mono_ns();

    q->started = true;
    if (q->request->predict_ns > 0 && now + q->request->predict_ns < q->deadline_ns)
        q->deadline_ns = now + q->request->predict_ns;
    metrics__add(&s->m.prompt_tokens, q->n_prompt);
    metrics__add(&s->m.cached_tokens, q->n_reused);
    emit(s, &ev);
}

static void report_token(struct sched *s, const struct seq *q) {
    struct event ev = {
        .request = q->request,
        .type = EVENT_TOKEN,
        .token = q->tokens[q->n_tokens - 1],
        .index = seq__n_output(q) - 1,
    };

    metrics__add(&s->m.output_tokens, 1);
    queue__charge(&s->queue, q->request, 1);
    emit(s, &ev);
}

/* What the step did for one sequence. Returns why q ends now, or FINISH_NONE. */
static enum finish_reason advance(struct sched *s, struct seq *q, uint32_t n_computed, const struct kern_sampled *drawn) {
    enum finish_reason why;

    q->n_computed += n_computed;
    q->last_step = s->turn;
    prefix__publish(&s->index, q);
    if (q->n_computed < q->n_tokens)
        return FINISH_NONE;
    if (!q->started)
        report_started(s, q);
    if (q->request->max_tokens == 0)
        return FINISH_LENGTH;
    why = seq__append(q, drawn);
    if (why != FINISH_ERROR)
        report_token(s, q);
    return why;
}

/* An expert that q needs cannot be read. What it has in KV is right as far as it goes, but nobody shall start from it. */
static void fail_seq(struct sched *s, struct seq *q, const struct step_item *outcome) {
    struct event ev = {
        .request = q->request,
        .type = EVENT_DONE,
        .finish = FINISH_ERROR,
        .status = (int16_t)outcome->status,
        .layer = outcome->layer,
        .expert = outcome->expert,
    };

    push_done_event(s, q, &ev);
    prefix__withdraw(q);
    slots__retire(s, q);
}

static void count_experts(struct request *r, const struct step_experts *x) {
    metrics__add(&r->experts.hits, x->hits);
    metrics__add(&r->experts.misses, x->misses);
    metrics__add(&r->experts.load_bytes, x->load_bytes);
    metrics__add(&r->experts.stall_ns, x->stall_ns);
}

static void publish_counts(struct sched *s) {
    struct metrics *m = &s->m;

    atomic_store_explicit(&m->n_running, s->n_running, memory_order_relaxed);
    atomic_store_explicit(&m->n_queued, s->queue.n + s->n_active - s->n_running, memory_order_relaxed);
    atomic_store_explicit(&m->n_cached_seqs, s->n_cached, memory_order_relaxed);
    atomic_store_explicit(&m->n_paused, s->n_active - s->n_running, memory_order_relaxed);
    atomic_store_explicit(&m->n_places, s->kv_short && s->n_running > 0 ? s->n_running : s->o.max_running, memory_order_relaxed);
    atomic_store_explicit(&m->n_free, s->kv_short ? 0 : s->o.max_running - s->n_active, memory_order_relaxed);
}

static void run_step(struct sched *s, const struct batch *b) {
    struct step_out out = {.sampled = s->sampled, .items = s->outcome};
    uint64_t start_ns = clock_mono_ns();
    int status;

    publish_counts(s); /* a step can be long */
    status = s->o.ops->step(s->o.engine, b, &out);

    metrics__step(&s->m, clock_mono_ns() - start_ns, b->n_tokens, s->n_running);
    s->turn++;
    if (status != ST_OK) {
        log_error("scheduler", "the engine failed (%s): every request ends with an error from now on", status_name(status));
        atomic_store_explicit(&s->failed, true, memory_order_relaxed);
        return;
    }
    for (uint32_t i = 0; i < b->n_items; i++) {
        struct seq *q = s->item_seqs[i];
        enum finish_reason why;

        count_experts(q->request, &out.experts);
        if (s->outcome[i].status != ST_OK) {
            fail_seq(s, q, &s->outcome[i]);
            continue;
        }
        why = advance(s, q, b->items[i].n_tokens, &s->sampled[i]);
        if (why != FINISH_NONE)
            end_active(s, q, why, q->filter_status);
    }
}

/* L polls too late. Cancels and submits are still taken every time round. */
static void wait_for_room(struct sched *s) {
    metrics__add(&s->m.n_ring_waits, 1);
    notify(s);
    park_wait(&s->wake, RING_WAIT_NS);
}

/* Nothing to compute: tell L, and sleep until it sends something. */
static void rest(struct sched *s, bool quiescing) {
    notify(s);
    if (quiescing && !atomic_load_explicit(&s->quiesced, memory_order_relaxed)) {
        atomic_store_explicit(&s->quiesced, true, memory_order_release);
        park_wake(&s->quiet);
    }
    park_wait(&s->wake, UINT64_MAX);
}

static void work(struct sched *s) {
    struct batch b;

    if (failed(s) || s->n_active + s->queue.n == 0 || !has_room(s))
        return;
    if (form_batch(s, &b) > 0)
        run_step(s, &b);
    else /* there is work and nothing to do: only a broken engine gets here */
        atomic_store_explicit(&s->failed, true, memory_order_relaxed);
}

void *loop__main(void *arg) {
    struct sched *s = arg;

    if (s->o.enter)
        s->o.enter(s->o.enter_ctx);
    while (!atomic_load_explicit(&s->stop, memory_order_acquire)) {
        /* read before the ring: after cancel_all nothing is submitted, so all of it is seen below */
        bool all = atomic_load_explicit(&s->cancel_all, memory_order_acquire);

        take_submits(s);
        take_cancels(s, all);
        if (!failed(s))
            take_deadlines(s);
        work(s);
        if (failed(s))
            end_picked(s, pick_all, FINISH_ERROR, ST_INTERNAL);
        publish_counts(s);
        if (s->n_active + s->queue.n == 0)
            rest(s, all);
        else if (has_room(s))
            notify(s);
        else
            wait_for_room(s);
    }
    slots__clear(s);
    return NULL;
}
