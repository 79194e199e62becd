/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine without a model, for tests of the scheduler and the server. The next token is a hash of every token in the
 * KV of the sequence (and of seed and counter when the temperature is not 0), so a wrong, missing, stale or
 * foreign KV entry changes the text. KV is real: pages with reference counts that hold the tokens. Every breach of the
 * contract in engine/engine.h is counted in `violations` with the first one described, and makes step fail. */
#ifndef MOED_TESTS_FAKE_ENGINE_H
#define MOED_TESTS_FAKE_ENGINE_H

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "engine/engine.h"

struct fake_opts {
    struct engine_info info;
    int32_t eos;            /* drawn with probability 1 / eos_every; -1 = no such token                 */
    uint32_t eos_every;
    uint32_t step_us;       /* artificial duration of a step ...                                        */
    uint32_t token_us;      /* ... and of each of its tokens                                            */
    uint64_t fail_at_step;  /* this step (from 1) fails; 0 = none                                       */
    bool (*fails)(void *ctx, const struct batch_item *it); /* NULL, or this item fails: an expert cannot be read; on E */
    void *fails_ctx;
    struct step_experts experts; /* what every step says of the expert store */
    int32_t (*script)(const int32_t *tokens, uint32_t n, uint64_t counter); /* NULL, or pure: the token to draw, -1 = as usual */
    void (*on_step)(void *ctx, const struct batch *b); /* NULL, or sees every valid batch, on thread E  */
    void *on_step_ctx;
};

struct fake_page { uint32_t n_refs; int32_t *tokens; };
struct fake_seq { uint32_t *pages; uint32_t n_pages, n_tokens; bool in_batch; };

struct fake_engine {
    struct fake_opts o;
    struct fake_page *pages;
    struct fake_seq *seqs;
    int32_t *scratch;               /* [n_ctx] */
    atomic_uint n_free;
    atomic_ullong n_steps, n_tokens;
    atomic_uint violations;
    atomic_flag inside;             /* two threads in the engine at once */
    char what[200];                 /* first violation */
};

__attribute__((format(printf, 2, 3))) static inline int fake_violation(struct fake_engine *f, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    if (atomic_fetch_add(&f->violations, 1) == 0)
        vsnprintf(f->what, sizeof f->what, fmt, ap);
    va_end(ap);
    return ST_INTERNAL;
}

static inline void fake_enter(struct fake_engine *f) {
    if (atomic_flag_test_and_set(&f->inside))
        fake_violation(f, "entered by two threads at once");
}

static inline void fake_leave(struct fake_engine *f) {
    atomic_flag_clear(&f->inside);
}

static inline void fake_open(struct fake_engine *f, const struct fake_opts *o) {
    memset(f, 0, sizeof *f);
    f->o = *o;
    f->pages = calloc(o->info.n_pages, sizeof *f->pages);
    f->seqs = calloc(o->info.n_seqs, sizeof *f->seqs);
    f->scratch = calloc(o->info.n_ctx, sizeof *f->scratch);
    for (uint32_t i = 0; i < o->info.n_pages; i++)
        f->pages[i].tokens = calloc(o->info.page_tokens, sizeof(int32_t));
    for (uint32_t i = 0; i < o->info.n_seqs; i++)
        f->seqs[i].pages = calloc(o->info.n_ctx / o->info.page_tokens + 1, sizeof(uint32_t));
    atomic_store(&f->n_free, o->info.n_pages);
    atomic_flag_clear(&f->inside);
}

static inline void fake_close(struct fake_engine *f) {
    for (uint32_t i = 0; i < f->o.info.n_pages; i++)
        free(f->pages[i].tokens);
    for (uint32_t i = 0; i < f->o.info.n_seqs; i++)
        free(f->seqs[i].pages);
    free(f->pages);
    free(f->seqs);
    free(f->scratch);
}

static inline uint64_t fake_mix(uint64_t h, uint64_t v) {
    h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ (h >> 31);
}

static inline bool fake_banned(const struct kern_sample *p, int32_t id) {
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id == id && p->bias[i].bias == -INFINITY)
            return true;
    return p->allowed && !(p->allowed[id / 32] >> (id % 32) & 1);
}

/* The model: pure, also the oracle of the tests. */
static inline void fake_draw(const struct fake_opts *o, const int32_t *tokens, uint32_t n, const struct kern_sample *p,
                             uint64_t counter, struct kern_sampled *out) {
    uint64_t h = 1;
    int32_t id;

    for (uint32_t i = 0; i < n; i++)
        h = fake_mix(h, (uint32_t)tokens[i]);
    if (p->temperature > 0)
        h = fake_mix(fake_mix(h, p->seed), counter);
    id = o->eos >= 0 && h % o->eos_every == 0 ? o->eos : (int32_t)(h / 7 % o->info.n_vocab);
    if (o->script && o->script(tokens, n, counter) >= 0)
        id = o->script(tokens, n, counter);
    for (uint32_t tried = 0; tried < o->info.n_vocab && fake_banned(p, id); tried++) /* a request may ban them all */
        id = (int32_t)((id + 1) % (int32_t)o->info.n_vocab);
    *out = (struct kern_sampled){.id = id, .logprob = -(float)(h % 1000) / 100};
}

/* Log-probability of `next` after tokens [n]. */
static inline float fake_prompt_logprob(const int32_t *tokens, uint32_t n, int32_t next) {
    uint64_t h = 2;

    for (uint32_t i = 0; i < n; i++)
        h = fake_mix(h, (uint32_t)tokens[i]);
    return -(float)(fake_mix(h, (uint32_t)next) % 1000) / 100;
}

static inline void fake_kv_read(struct fake_engine *f, const struct fake_seq *q) {
    uint32_t p = f->o.info.page_tokens;

    for (uint32_t i = 0; i < q->n_tokens; i++)
        f->scratch[i] = f->pages[q->pages[i / p]].tokens[i % p];
}

static inline int fake_check_item(struct fake_engine *f, const struct batch_item *it) {
    const struct engine_info *info = &f->o.info;
    struct fake_seq *q;

    if (it->seq >= info->n_seqs)
        return fake_violation(f, "seq %u does not exist", it->seq);
    q = &f->seqs[it->seq];
    if (q->in_batch)
        return fake_violation(f, "seq %u twice in one batch", it->seq);
    q->in_batch = true;
    if (it->n_tokens < 1 || !it->tokens)
        return fake_violation(f, "seq %u: no tokens", it->seq);
    if (it->pos != q->n_tokens)
        return fake_violation(f, "seq %u: pos %u but %u tokens in KV", it->seq, it->pos, q->n_tokens);
    if (it->pos + it->n_tokens > q->n_pages * info->page_tokens)
        return fake_violation(f, "seq %u: %u tokens not reserved", it->seq, it->pos + it->n_tokens);
    for (uint32_t i = 0; i < it->n_tokens; i++)
        if (it->tokens[i] < 0 || (uint32_t)it->tokens[i] >= info->n_vocab)
            return fake_violation(f, "token %d outside the vocabulary", it->tokens[i]);
    if (it->sample && (!it->params || !it->history || it->n_history != it->pos + it->n_tokens ||
                       it->n_prompt > it->n_history || it->counter != it->n_history - it->n_prompt))
        return fake_violation(f, "seq %u: sampling fields do not agree", it->seq);
    if (it->pooled && (it->sample || it->prompt_logprobs))
        return fake_violation(f, "seq %u: pooled beside other results", it->seq);
    if (it->prompt_logprobs && it->next_token < -1)
        return fake_violation(f, "seq %u: next_token %d", it->seq, it->next_token);
    return ST_OK;
}

/* Hidden state k after tokens [n]: pure, in -1..1, and the sums of it are exact. */
static inline double fake_hidden(const int32_t *tokens, uint32_t n, uint32_t k) {
    uint64_t h = fake_mix(3, k);

    for (uint32_t i = 0; i < n; i++)
        h = fake_mix(h, (uint32_t)tokens[i]);
    return (double)(h % 2049) / 1024 - 1;
}

static inline void fake_pool(struct fake_engine *f, const struct batch_item *it) {
    for (uint32_t i = 0; i < it->n_tokens; i++)
        for (uint32_t k = 0; k < f->o.info.n_embd; k++) {
            bool first = it->pooling == ENGINE_POOLING_LAST || it->pos + i == 0;

            it->pooled[k] = (first ? 0 : it->pooled[k]) + fake_hidden(f->scratch, it->pos + i + 1, k);
        }
}

static inline int fake_run_item(struct fake_engine *f, const struct batch_item *it, struct kern_sampled *out) {
    struct fake_seq *q = &f->seqs[it->seq];
    uint32_t p = f->o.info.page_tokens;

    for (uint32_t i = 0; i < it->n_tokens; i++) {
        uint32_t pos = it->pos + i;
        struct fake_page *page = &f->pages[q->pages[pos / p]];

        if (page->n_refs != 1)
            return fake_violation(f, "seq %u writes a page with %u owners", it->seq, page->n_refs);
        page->tokens[pos % p] = it->tokens[i];
    }
    q->n_tokens += it->n_tokens;
    fake_kv_read(f, q);
    if (it->sample && memcmp(it->history, f->scratch, it->n_history * sizeof(int32_t)) != 0)
        return fake_violation(f, "seq %u: history is not what is in KV", it->seq);
    if (it->sample) {
        struct kern_sample params = *it->params;

        if (it->mask)
            params.allowed = it->mask;
        fake_draw(&f->o, f->scratch, q->n_tokens, &params, it->counter, out);
    }
    for (uint32_t i = 0; it->prompt_logprobs && i < it->n_tokens; i++) {
        int32_t next = i + 1 < it->n_tokens ? it->tokens[i + 1] : it->next_token;

        if (next >= 0)
            it->prompt_logprobs[i] = (struct kern_sampled){
                .id = next, .logprob = fake_prompt_logprob(f->scratch, it->pos + i + 1, next)};
    }
    if (it->pooled)
        fake_pool(f, it);
    return ST_OK;
}

enum { FAKE_LAYER = 3, FAKE_EXPERT = 7 }; /* what a failing item names */

/* A failed item leaves the KV as it was. */
static inline struct step_item fake_outcome(const struct fake_engine *f, const struct batch_item *it) {
    if (!f->o.fails || !f->o.fails(f->o.fails_ctx, it))
        return (struct step_item){0};
    return (struct step_item){.status = ST_IO, .layer = FAKE_LAYER, .expert = FAKE_EXPERT};
}

static inline int fake_step(void *self, const struct batch *b, struct step_out *out) {
    struct fake_engine *f = self;
    uint32_t n_tokens = 0;
    int status = ST_OK;

    fake_enter(f);
    if (atomic_fetch_add(&f->n_steps, 1) + 1 == f->o.fail_at_step)
        status = ST_INTERNAL;
    if (b->n_items == 0)
        status = fake_violation(f, "empty batch");
    for (uint32_t i = 0; i < b->n_items && status == ST_OK; i++) {
        status = fake_check_item(f, &b->items[i]);
        n_tokens += b->items[i].n_tokens;
    }
    if (status == ST_OK && (n_tokens != b->n_tokens || n_tokens > f->o.info.max_batch_tokens))
        status = fake_violation(f, "batch of %u tokens says %u, at most %u", n_tokens, b->n_tokens,
                                f->o.info.max_batch_tokens);
    for (uint32_t i = 0; i < b->n_items && status == ST_OK; i++) {
        out->items[i] = fake_outcome(f, &b->items[i]);
        if (out->items[i].status == ST_OK)
            status = fake_run_item(f, &b->items[i], &out->sampled[i]);
    }
    out->experts = f->o.experts;
    for (uint32_t i = 0; i < f->o.info.n_seqs; i++)
        f->seqs[i].in_batch = false;
    atomic_fetch_add(&f->n_tokens, n_tokens);
    if (status == ST_OK && f->o.on_step)
        f->o.on_step(f->o.on_step_ctx, b);
    if (f->o.step_us + f->o.token_us > 0) {
        uint64_t us = f->o.step_us + (uint64_t)f->o.token_us * n_tokens;

        nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)}, NULL);
    }
    fake_leave(f);
    return status;
}

static inline int fake_reserve(void *self, seq_id id, uint32_t n_tokens) {
    struct fake_engine *f = self;
    uint32_t p = f->o.info.page_tokens, want = (n_tokens + p - 1) / p, more, next = 0;
    struct fake_seq *q;
    int status = ST_OK;

    fake_enter(f);
    if (id >= f->o.info.n_seqs || n_tokens < 1 || n_tokens > f->o.info.n_ctx) {
        status = fake_violation(f, "kv_reserve(%u, %u)", id, n_tokens);
        goto out;
    }
    q = &f->seqs[id];
    more = want > q->n_pages ? want - q->n_pages : 0;
    if (more > atomic_load(&f->n_free)) {
        status = ST_KV_FULL;
        goto out;
    }
    for (uint32_t i = 0; i < more; i++) {
        while (f->pages[next].n_refs > 0)
            next++;
        f->pages[next].n_refs = 1;
        memset(f->pages[next].tokens, 0xff, p * sizeof(int32_t)); /* stale content must never look right */
        q->pages[q->n_pages++] = next;
    }
    atomic_fetch_sub(&f->n_free, more);
out:
    fake_leave(f);
    return status;
}

static inline void fake_free(void *self, seq_id id) {
    struct fake_engine *f = self;

    fake_enter(f);
    if (id >= f->o.info.n_seqs) {
        fake_violation(f, "kv_free(%u)", id);
    } else {
        struct fake_seq *q = &f->seqs[id];

        for (uint32_t i = 0; i < q->n_pages; i++)
            if (--f->pages[q->pages[i]].n_refs == 0)
                atomic_fetch_add(&f->n_free, 1);
        q->n_pages = q->n_tokens = 0;
    }
    fake_leave(f);
}

static inline int fake_fork(void *self, seq_id from, seq_id to, uint32_t n_tokens) {
    struct fake_engine *f = self;
    uint32_t p = f->o.info.page_tokens;
    int status = ST_OK;

    fake_enter(f);
    if (from >= f->o.info.n_seqs || to >= f->o.info.n_seqs || from == to || n_tokens == 0 || n_tokens % p != 0)
        status = fake_violation(f, "kv_fork(%u, %u, %u)", from, to, n_tokens);
    else if (f->seqs[to].n_pages != 0)
        status = fake_violation(f, "kv_fork to %u, which is not free", to);
    else if (n_tokens > f->seqs[from].n_tokens)
        status = fake_violation(f, "kv_fork of %u tokens, %u has %u", n_tokens, from, f->seqs[from].n_tokens);
    for (uint32_t i = 0; status == ST_OK && i < n_tokens / p; i++) {
        uint32_t page = f->seqs[from].pages[i];

        f->pages[page].n_refs++;
        f->seqs[to].pages[i] = page;
        f->seqs[to].n_pages = i + 1;
        f->seqs[to].n_tokens = (i + 1) * p;
    }
    fake_leave(f);
    return status;
}

static inline void fake_info(void *self, struct engine_info *out) {
    *out = ((struct fake_engine *)self)->o.info;
}

static inline void fake_stats(void *self, struct engine_stats *out) {
    struct fake_engine *f = self;

    *out = (struct engine_stats){
        .kv_pages_total = f->o.info.n_pages,
        .kv_pages_free = atomic_load(&f->n_free),
        .n_steps = atomic_load(&f->n_steps),
        .n_tokens = atomic_load(&f->n_tokens),
    };
}

static const struct engine_ops fake_ops = {
    .step = fake_step,
    .kv_reserve = fake_reserve,
    .kv_free = fake_free,
    .kv_fork = fake_fork,
    .info = fake_info,
    .stats = fake_stats,
};

#endif
