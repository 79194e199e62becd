/* SPDX-License-Identifier: Apache-2.0
 *
 * Where one sequence stands. The scratch of a grammar and its masks are shared by all its sequences under its lock. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/internal.h"

enum { ACCEPT_WORK = 4 << 20, COMPACT_AT = 2048 };

/* r->set [base, r->n) becomes the state's. */
static int take_set(struct grammar_state *st, const struct run *r, uint32_t base) {
    uint32_t n = r->n - base;
    if (n > st->cap) {
        void *p = mem_realloc(st->set, 2 * n * sizeof *st->set);
        if (!p) return ST_NOMEM;
        st->set = p;
        st->cap = 2 * n;
    }
    if (n) memcpy(st->set, r->set + base, n * sizeof *st->set);
    st->n = n;
    st->complete = r->bottom;
    if (st->k.n_frames < st->compact_at) return ST_OK;
    int status = stacks__compact(&st->k, st->set, st->n);
    st->compact_at = 2 * st->k.n_frames + COMPACT_AT;
    return status;
}

static void begin_run(struct grammar_state *st) {
    struct run *r = &st->g->run;
    r->k = &st->k;
    r->n = 0;
    r->status = ST_OK;
    r->work_left = ACCEPT_WORK;
}

/* Starts in `state`, alone. */
static int restart(struct grammar_state *st, uint32_t state) {
    struct run *r = &st->g->run;
    uint32_t base;
    pthread_mutex_lock(&st->g->lock);
    begin_run(st);
    run__begin(r, &base);
    run__add(r, base, state, 0);
    run__close(r, base);
    int status = r->status ? r->status : take_set(st, r, base);
    pthread_mutex_unlock(&st->g->lock);
    return status;
}

int grammar_state_open(struct grammar_state **out, struct grammar *g) {
    struct grammar_state *st = mem_zalloc(1, sizeof *st);
    if (!st) return ST_NOMEM;
    st->g = grammar_take(g);
    st->compact_at = COMPACT_AT;
    int status = stacks__init(&st->k);
    if (status == ST_OK) status = restart(st, g->p.rules[0].start);
    if (status == ST_OK) *out = st;
    else grammar_state_close(st);
    return status;
}

int grammar_state_clone(struct grammar_state **out, const struct grammar_state *from) {
    struct grammar_state *st = mem_alloc(sizeof *st);
    if (!st) return ST_NOMEM;
    *st = *from;
    grammar_take(st->g);
    st->set = mem_alloc((from->cap + 1u) * sizeof *st->set);
    int status = stacks__copy(&st->k, &from->k);
    if (!st->set || status != ST_OK) {
        grammar_state_close(st);
        return ST_NOMEM;
    }
    if (from->n) memcpy(st->set, from->set, from->n * sizeof *st->set);
    *out = st;
    return ST_OK;
}

void grammar_state_close(struct grammar_state *st) {
    if (!st) return;
    stacks__clear(&st->k);
    mem_free(st->set);
    grammar_drop(st->g);
    mem_free(st);
}

bool grammar_state_is_complete(const struct grammar_state *st) {
    return st->complete;
}

bool grammar_state_is_free(const struct grammar_state *st) {
    for (uint32_t i = 0; i < st->n; i++)
        if (st->g->p.states[st->set[i].state].free) return true;
    return false;
}

int grammar_state_mask(struct grammar_state *st, uint32_t *allowed) {
    struct grammar *g = st->g;
    const struct grammar_vocab *v = g->v;
    uint32_t any = 0;
    memset(allowed, 0, v->n_words * sizeof *allowed);
    if (!st->ended) {
        pthread_mutex_lock(&g->lock);
        int status = mask__tokens(g, st->set, st->n, &st->k, allowed);
        pthread_mutex_unlock(&g->lock);
        if (status) return status;
    }
    if (!st->ended && grammar_state_is_free(st)) {
        for (uint32_t i = 0; i < v->n_words; i++) allowed[i] |= v->control[i];
        for (uint32_t i = 0; i < g->n_trigger_tokens; i++) allowed[g->trigger_tokens[i] / 32] |= 1u << g->trigger_tokens[i] % 32;
    }
    for (uint32_t i = 0; i < v->n_words; i++) any |= allowed[i] |= st->complete ? v->eog[i] : 0;
    return any ? ST_OK : ST_INVALID; /* the vocabulary cannot spell what must come */
}

int grammar_state_accept_text(struct grammar_state *st, const char *text, size_t n_bytes) {
    struct grammar *g = st->g;
    struct run *r = &g->run;
    uint32_t base = 0, n_frames = st->k.n_frames, n_edges = st->k.n_edges;
    bool alive = true;
    if (n_bytes == 0) return ST_OK;
    if (st->ended) return ST_INVALID;
    pthread_mutex_lock(&g->lock);
    begin_run(st);
    if (st->n > r->cap) {
        void *p = mem_realloc(r->set, st->n * sizeof *r->set);
        if (!p) r->status = ST_NOMEM;
        if (p) r->cap = st->n;
        if (p) r->set = p;
    }
    if (!r->status && st->n) memcpy(r->set, st->set, st->n * sizeof *r->set);
    r->n = r->status ? 0 : st->n;
    for (size_t i = 0; i < n_bytes && alive && !r->status; i++) {
        uint32_t end = r->n;
        alive = run__step(r, base, end, (uint8_t)text[i]);
        base = end;
        if (base > 1u << 20) { /* a long text: forget the sets before */
            memmove(r->set, r->set + base, (r->n - base) * sizeof *r->set);
            r->n -= base;
            base = 0;
        }
        if ((i & 255) == 255) r->work_left = ACCEPT_WORK;
    }
    int status = r->status ? r->status : alive ? take_set(st, r, base) : ST_INVALID;
    if (status) {
        st->k.n_frames = n_frames;
        st->k.n_edges = n_edges;
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

int grammar_state_accept(struct grammar_state *st, int32_t token) {
    const struct grammar *g = st->g;
    const struct grammar_vocab *v = g->v;
    if (token < 0 || (uint32_t)token >= v->n_vocab) return ST_INVALID;
    if (v->kind[token] == GRAMMAR_EOG) {
        st->ended |= st->complete;
        return st->complete ? ST_OK : ST_INVALID;
    }
    if (!st->ended && grammar_state_is_free(st)) {
        for (uint32_t i = 0; i < g->n_trigger_tokens; i++)
            if (g->trigger_tokens[i] == token) return restart(st, g->p.triggered);
        if (v->kind[token] == GRAMMAR_CONTROL) return ST_OK;
    }
    uint32_t at = v->text_at[token], end = v->text_at[token + 1];
    if (at == end) return ST_INVALID;
    return grammar_state_accept_text(st, v->text + at, end - at);
}

static int filter_mask(void *self, uint32_t *allowed) {
    return grammar_state_mask(self, allowed);
}

static int filter_accept(void *self, int32_t token) {
    return grammar_state_accept(self, token);
}

struct token_filter grammar_state_filter(struct grammar_state *st) {
    static const struct token_filter_ops OPS = { .mask = filter_mask, .accept = filter_accept };
    return (struct token_filter){ .ops = &OPS, .self = st };
}
