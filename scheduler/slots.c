/* SPDX-License-Identifier: Apache-2.0
 *
 * Who has KV. A sequence is admitted when the pages of all its present tokens, minus those it shares with another
 * sequence, are free and one more page stays free for every sequence that runs already. Later pages are taken one
 * by one; when none is free, cached sequences go first (least recently used), then the last running one is preempted: it
 * gives up its KV and computes prompt and output again when there is room. Running ones stand by priority, then age. The
 * first is never preempted for another and, alone, always fits (sched_submit saw to that), so something always ends.
 *
 * Seq ids are interchangeable: a sequence that ends keeps its id and so becomes a cached one. E only. */
#include "scheduler/internal.h"

#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

static uint32_t pages_of(const struct sched *s, uint32_t n_tokens) {
    return n_tokens / s->info.page_tokens + (n_tokens % s->info.page_tokens != 0);
}

static uint64_t free_pages(const struct sched *s) {
    struct engine_stats st;

    s->o.ops->stats(s->o.engine, &st);
    return st.kv_pages_free;
}

/* What evicting them all would free, at most: pages shared with a running sequence stay. */
static uint64_t cached_pages(const struct sched *s) {
    uint64_t n = 0;

    for (uint32_t id = 0; id < s->info.n_seqs; id++)
        if (s->slots[id] && s->slots[id]->cached)
            n += pages_of(s, s->slots[id]->n_reserved);
    return n;
}

static void broken(struct sched *s, const char *what) {
    log_error("scheduler", "the engine broke its contract: %s", what);
    atomic_store_explicit(&s->failed, true, memory_order_relaxed);
}

static seq_id free_id(const struct sched *s) {
    seq_id id = 0;

    while (id < s->info.n_seqs && s->slots[id])
        id++;
    assert(id < s->info.n_seqs); /* running + cached < n_seqs whenever this is called */
    return id;
}

static void drop_kv(struct sched *s, struct seq *q) {
    prefix__withdraw(q);
    s->o.ops->kv_free(s->o.engine, q->id);
    s->slots[q->id] = NULL;
    q->n_computed = q->n_reserved = q->n_reused = 0;
}

static void evict(struct sched *s, struct seq *cached) {
    drop_kv(s, cached);
    seq__free(cached);
    s->n_cached--;
}

static bool evict_lru(struct sched *s) {
    struct seq *lru = NULL;

    for (uint32_t id = 0; id < s->info.n_seqs; id++) {
        struct seq *q = s->slots[id];

        if (q && q->cached && (!lru || q->last_used < lru->last_used))
            lru = q;
    }
    if (lru)
        evict(s, lru);
    return lru != NULL;
}

static int reserve(struct sched *s, struct seq *q, uint32_t n_tokens) {
    int status = s->o.ops->kv_reserve(s->o.engine, q->id, n_tokens);

    if (status == ST_OK)
        q->n_reserved = pages_of(s, n_tokens) * s->info.page_tokens;
    else if (status != ST_KV_FULL)
        broken(s, "kv_reserve returned neither success nor a full KV");
    return status;
}

/* q has an id and no KV: it starts with the first n_tokens of `from`, or with nothing. */
static void share_kv(struct sched *s, struct seq *q, struct seq *from, uint32_t n_tokens) {
    s->slots[q->id] = q;
    if (n_tokens == 0)
        return;
    if (s->o.ops->kv_fork(s->o.engine, from->id, q->id, n_tokens) != ST_OK) {
        broken(s, "kv_fork of computed pages failed");
        return;
    }
    q->n_computed = q->n_reserved = q->n_reused = n_tokens;
    prefix__publish(&s->index, q);
    if (from->cached)
        from->last_used = ++s->lru_clock;
}

/* The last token is always computed, because the next one is drawn from it; for prompt logprobs all of them are. */
static uint32_t reusable_tokens(const struct seq *q) {
    return q->share && (q->started || !q->request->prompt_logprobs) ? q->n_tokens - 1 : 0;
}

static bool give_kv(struct sched *s, struct seq *q) {
    struct seq *from = NULL;
    uint32_t n_shared = q->share ? prefix__find(&s->index, q, reusable_tokens(q), &from) : 0;
    uint64_t need = pages_of(s, q->n_tokens) - pages_of(s, n_shared) + (uint64_t)s->n_running;

    if (free_pages(s) + cached_pages(s) < need)
        return false;
    q->id = free_id(s);
    share_kv(s, q, from, n_shared); /* before any eviction: shared pages survive their first owner */
    while (free_pages(s) < need && evict_lru(s))
        ;
    if (free_pages(s) >= need && reserve(s, q, q->n_tokens) == ST_OK)
        return true;
    drop_kv(s, q);
    return false;
}

static bool failed(const struct sched *s) {
    return atomic_load_explicit(&s->failed, memory_order_relaxed);
}

/* Behind all that are as urgent. Preempted ones stand behind running ones, so a newcomer that may pass them runs. */
static void place(struct sched *s, struct seq *q) {
    uint32_t i = s->n_active++;

    for (; i > 0 && s->active[i - 1]->request->priority > q->request->priority; i--)
        s->active[i] = s->active[i - 1];
    s->active[i] = q;
}

/* Preempted ones come before new ones, unless those are more urgent and there are places for both. */
static bool resumes(const struct sched *s, const struct seq *newcomer) {
    if (s->n_running == s->n_active)
        return false;
    return !newcomer || s->n_active == s->o.max_running ||
           newcomer->request->priority >= s->active[s->n_running]->request->priority;
}

void slots__admit(struct sched *s) {
    s->kv_short = false;
    while (s->n_running < s->o.max_running && !failed(s)) {
        struct seq *newcomer = queue__peek(&s->queue);
        bool resume = resumes(s, newcomer);
        struct seq *q = resume ? s->active[s->n_running] : newcomer;

        if (!q)
            return;
        if (!give_kv(s, q)) {
            if (s->n_running == 0)
                broken(s, "no sequence runs and KV pages are missing");
            s->kv_short = true;
            return;
        }
        if (!resume) {
            queue__pop(&s->queue);
            queue__charge(&s->queue, q->request, q->n_tokens - q->n_reused);
            wait__left(s, q->request);
            q->ran = true;
            place(s, q);
        }
        s->n_running++;
    }
}

static void preempt_last(struct sched *s) {
    drop_kv(s, s->active[--s->n_running]);
    metrics__add(&s->m.n_preempted, 1);
}

/* In their order, and only later ones are preempted: whoever was served before in this pass keeps its room. */
void slots__grow(struct sched *s) {
    for (uint32_t i = 0; i < s->n_running && !failed(s); i++) {
        struct seq *q = s->active[i];

        while (i < s->n_running && q->n_tokens > q->n_reserved && reserve(s, q, q->n_tokens) == ST_KV_FULL) {
            if (evict_lru(s))
                continue;
            if (s->n_running == 1) {
                broken(s, "one sequence that fits alone does not fit");
                return;
            }
            preempt_last(s);
        }
    }
}

static bool older_computes_block(const struct sched *s, uint32_t i_active, uint32_t k) {
    const struct seq *q = s->active[i_active];

    if (reusable_tokens(q) / s->info.page_tokens <= k)
        return false;
    for (uint32_t i = 0; i < i_active; i++) {
        const struct seq *p = s->active[i];

        if (p->share && k < p->n_hashed && k >= p->n_published && p->blocks[k].hash == q->blocks[k].hash)
            return true;
    }
    return false;
}

/* The n choices of one prompt arrive together: without this each of them would compute the whole prompt. */
bool slots__ready(struct sched *s, uint32_t i_active) {
    struct seq *q = s->active[i_active], *from;
    uint32_t n;

    if (!q->share || q->n_computed > q->n_reused)
        return true;
    n = prefix__find(&s->index, q, reusable_tokens(q), &from);
    if (older_computes_block(s, i_active, (n > q->n_computed ? n : q->n_computed) / s->info.page_tokens))
        return false;
    if (n > q->n_computed) {
        drop_kv(s, q);
        share_kv(s, q, from, n);
        if (reserve(s, q, q->n_tokens) == ST_KV_FULL)
            broken(s, "pages just freed cannot be reserved");
    }
    return !failed(s);
}

/* A sequence that was cancelled early holds pages it never filled: keep only the full ones. */
static void trim(struct sched *s, struct seq *q) {
    uint32_t n_tokens = q->n_published * s->info.page_tokens;
    seq_id id = free_id(s);

    if (s->o.ops->kv_fork(s->o.engine, q->id, id, n_tokens) != ST_OK) {
        broken(s, "kv_fork of computed pages failed");
        return;
    }
    s->o.ops->kv_free(s->o.engine, q->id);
    s->slots[q->id] = NULL;
    s->slots[id] = q;
    q->id = id;
    q->n_computed = q->n_reserved = n_tokens;
}

/* False when another cached sequence has all of q already. Those that q makes superfluous go. */
static bool worth_caching(struct sched *s, struct seq *q) {
    if (q->n_published == 0 || s->max_cached == 0)
        return false;
    for (uint32_t id = 0; id < s->info.n_seqs; id++) {
        struct seq *c = s->slots[id];

        if (!c || !c->cached)
            continue;
        if (prefix__covers(&s->index, c, q)) {
            c->last_used = ++s->lru_clock;
            return false;
        }
        if (prefix__covers(&s->index, q, c))
            evict(s, c);
    }
    return true;
}

static void cache_or_free(struct sched *s, struct seq *q) {
    if (!worth_caching(s, q)) {
        drop_kv(s, q);
        seq__free(q);
        return;
    }
    if (s->n_cached == s->max_cached)
        evict_lru(s);
    if (q->n_reserved / s->info.page_tokens > q->n_published + 1)
        trim(s, q);
    q->cached = true;
    q->last_used = ++s->lru_clock;
    s->n_cached++;
}

void slots__retire(struct sched *s, struct seq *q) {
    uint32_t i = 0;
    bool running;

    while (s->active[i] != q)
        i++;
    running = i < s->n_running;
    memmove(&s->active[i], &s->active[i + 1], (s->n_active - i - 1) * sizeof(struct seq *));
    s->n_active--;
    s->n_running -= running;
    if (!running) {
        seq__free(q);
    } else if (failed(s)) { /* the engine is not to be called any more */
        prefix__withdraw(q);
        s->slots[q->id] = NULL;
        seq__free(q);
    } else {
        cache_or_free(s, q);
    }
}

void slots__clear(struct sched *s) {
    for (uint32_t id = 0; id < s->info.n_seqs; id++) {
        struct seq *q = s->slots[id];

        if (!q)
            continue;
        if (!failed(s))
            s->o.ops->kv_free(s->o.engine, id);
        seq__free(q);
        s->slots[id] = NULL;
    }
    s->n_cached = 0;
}
