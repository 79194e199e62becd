/* SPDX-License-Identifier: Apache-2.0
 *
 * A specification -> the top rule -> a grammar. Free text before a trigger is part of the automaton: Aho and Corasick's
 * matcher of all triggers, in every state of which the text may end, and whose matches lead on into the grammar. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/internal.h"

enum { MAX_PARTS = 4096, MAX_TRIGGER_BYTES = 4096, MAX_COUNTED_REPEAT = 1000 };

/* ---- parts ---- */

static void add_part(struct build *b, uint32_t top, const struct grammar_part *part, uint32_t from, uint32_t to) {
    uint32_t rule;
    b->closed = part->closed;
    switch (part->kind) {
    case GRAMMAR_LITERAL: nfa__text(b, &b->rules[top].nfa, from, to, part->text, part->n_bytes); return;
    case GRAMMAR_REGEX: {
        struct dfa *d = regex__dfa(b, part->text, part->n_bytes, REGEX_WHOLE, "regex");
        encode__dfa(b, &b->rules[top].nfa, from, to, d, ENCODE_UTF8);
        return;
    }
    case GRAMMAR_GBNF: rule = gbnf__rule(b, part->text, part->n_bytes); break;
    case GRAMMAR_JSON: rule = schema__json_object(b); break;
    case GRAMMAR_SCHEMA: rule = schema__rule(b, part->text, part->n_bytes); break;
    default: build__fail(b, ST_INVALID, "grammar: part of an unknown kind"); return;
    }
    nfa__call(b, &b->rules[top].nfa, from, to, rule);
}

static struct frag add_parts(struct build *b, uint32_t top, const struct grammar_spec *spec) {
    struct nfa *n = &b->rules[top].nfa;
    struct frag all = nfa__frag(b, n);
    uint32_t at = all.from;
    for (uint32_t i = 0; i < spec->n_parts && !b->status; i++) {
        n = &b->rules[top].nfa;
        if (i > 0 && spec->parts[i].alternative) {
            nfa__eps(b, n, at, all.to);
            at = all.from;
        }
        uint32_t next = nfa__node(b, n);
        add_part(b, top, &spec->parts[i], at, next);
        at = next;
    }
    nfa__eps(b, &b->rules[top].nfa, at, all.to);
    return all;
}

static struct frag add_body(struct build *b, uint32_t top, const struct grammar_spec *spec) {
    uint32_t max = spec->max_repeat ? spec->max_repeat : 1;
    struct frag first = add_parts(b, top, spec), more;
    struct nfa *n = &b->rules[top].nfa;
    const char *separator = spec->separator ? spec->separator : "";
    if (max == 1 || b->status) return first;
    if (max != UINT32_MAX && max > MAX_COUNTED_REPEAT) {
        build__fail(b, ST_LIMIT, "grammar: max_repeat above %d", MAX_COUNTED_REPEAT);
        return first;
    }
    uint32_t body = build__rule(b); /* what repeats is a rule, so a repetition is one call */
    if (b->status) return first;
    b->rules[body] = b->rules[top];
    b->rules[body].frag = first;
    b->rules[top].nfa = (struct nfa){ .n_nodes = 2 };
    n = &b->rules[top].nfa;
    struct nfa_mark mark = nfa__mark(n);
    more = nfa__frag(b, n);
    uint32_t mid = nfa__node(b, n);
    nfa__text(b, n, more.from, mid, separator, strlen(separator));
    nfa__call(b, n, mid, more.to, body);
    more = nfa__repeat(b, n, mark, more, 0, max == UINT32_MAX ? max : max - 1);
    first = nfa__frag(b, n);
    nfa__call(b, n, first.from, more.from, body);
    nfa__eps(b, n, more.to, first.to);
    return first;
}

/* ---- triggers ---- */

struct matcher { uint32_t (*go)[256]; uint32_t *fail, *queue; bool *hit; uint32_t n; };

static bool add_trigger(struct build *b, struct matcher *m, const char *s) {
    uint32_t at = 0;
    if (!*s) return build__fail(b, ST_INVALID, "triggers: an empty text"), false;
    for (; *s; s++) {
        uint32_t *go = &m->go[at][(uint8_t)*s];
        if (*go == 0) *go = m->n++;
        at = *go;
    }
    m->hit[at] = true;
    return true;
}

/* Breadth first: a node's missing edges are those of the longest proper suffix that is a node. */
static void finish_matcher(struct matcher *m) {
    uint32_t head = 0, tail = 0;
    for (uint32_t c = 0; c < 256; c++)
        if (m->go[0][c]) m->queue[tail++] = m->go[0][c];
    while (head < tail) {
        uint32_t s = m->queue[head++];
        m->hit[s] |= m->hit[m->fail[s]];
        for (uint32_t c = 0; c < 256; c++) {
            uint32_t to = m->go[s][c], other = m->go[m->fail[s]][c];
            if (!to) {
                m->go[s][c] = other;
                continue;
            }
            m->fail[to] = other;
            m->queue[tail++] = to;
        }
    }
}

static bool make_matcher(struct build *b, struct matcher *m, const struct grammar_spec *spec) {
    size_t n_bytes = 1;
    for (uint32_t i = 0; i < spec->n_triggers; i++) n_bytes += strlen(spec->triggers[i]);
    if (n_bytes > MAX_TRIGGER_BYTES) return build__fail(b, ST_LIMIT, "triggers: more than %d bytes", MAX_TRIGGER_BYTES), false;
    *m = (struct matcher){ .n = 1 };
    m->go = build__alloc(b, n_bytes, sizeof *m->go);
    m->fail = build__alloc(b, n_bytes, sizeof *m->fail);
    m->queue = build__alloc(b, n_bytes, sizeof *m->queue);
    m->hit = build__alloc(b, n_bytes, sizeof *m->hit);
    if (b->status) return false;
    for (uint32_t i = 0; i < spec->n_triggers; i++)
        if (!add_trigger(b, m, spec->triggers[i])) return false;
    finish_matcher(m);
    return true;
}

/* Free text, then `body`. */
static struct frag add_triggers(struct build *b, uint32_t top, const struct grammar_spec *spec, struct frag body) {
    struct nfa *n = &b->rules[top].nfa;
    struct frag all = nfa__frag(b, n);
    struct matcher m;
    if (!make_matcher(b, &m, spec)) return all;
    uint32_t first = n->n_nodes;
    n->n_nodes += m.n;
    for (uint32_t s = 0; s < m.n; s++) {
        if (m.hit[s]) {
            nfa__eps(b, n, first + s, body.from);
            continue;
        }
        nfa__edge(b, n, first + s, first + s, LABEL_FREE, LABEL_FREE);
        nfa__edge(b, n, first + s, body.from, LABEL_TRIGGERED, LABEL_TRIGGERED);
        nfa__eps(b, n, first + s, all.to);
        for (uint32_t lo = 0, hi; lo < 256; lo = hi + 1) {
            for (hi = lo; hi < 255 && m.go[s][hi + 1] == m.go[s][lo];) hi++;
            nfa__edge(b, n, first + s, first + m.go[s][lo], lo, hi);
        }
    }
    nfa__eps(b, n, all.from, first);
    nfa__eps(b, n, body.to, spec->again ? first : all.to);
    return all;
}

/* ---- grammar ---- */

static int check_spec(const struct grammar_vocab *v, const struct grammar_spec *spec, struct err *e) {
    if (spec->n_parts < 1 || spec->n_parts > MAX_PARTS)
        return err_set(e, ST_LIMIT, "grammar: expected 1 to %d parts or choices, found %u", MAX_PARTS, spec->n_parts);
    for (uint32_t i = 0; i < spec->n_trigger_tokens; i++)
        if (spec->trigger_tokens[i] < 0 || (uint32_t)spec->trigger_tokens[i] >= v->n_vocab)
            return err_set(e, ST_INVALID, "trigger_tokens: %d is outside the vocabulary", spec->trigger_tokens[i]);
    return ST_OK;
}

static int build(struct program *p, const struct grammar_vocab *v, const struct grammar_spec *spec, struct err *e) {
    struct build b = { .e = e, .work_left = COMPILE_WORK };
    arena_init(&b.arena, COMPILE_BYTES);
    uint32_t top = build__rule(&b);
    if (!b.status) {
        struct frag f = add_body(&b, top, spec);
        if (spec->n_triggers + spec->n_trigger_tokens > 0 && !b.status) f = add_triggers(&b, top, spec, f);
        if (!b.status) b.rules[top].frag = f;
    }
    int status = program__make(p, &b, top, v->max_token_bytes);
    arena_clear(&b.arena);
    return status;
}

int grammar_compile(struct grammar **out, const struct grammar_vocab *v, const struct grammar_spec *spec, struct err *e) {
    int status = check_spec(v, spec, e);
    if (status) return status;
    struct grammar *g = mem_zalloc(1, sizeof *g);
    if (!g) return err_set(e, ST_NOMEM, "grammar: out of memory");
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->v = v;
    status = build(&g->p, v, spec, e);
    if (status) goto fail;
    g->n_trigger_tokens = spec->n_trigger_tokens;
    g->trigger_tokens = mem_alloc((spec->n_trigger_tokens + 1u) * sizeof *g->trigger_tokens);
    int run = run__init(&g->run, &g->p), cache = cache__init(&g->cache, &g->p, v);
    if (!g->trigger_tokens || run || cache) {
        status = err_set(e, ST_NOMEM, "grammar: out of memory");
        goto fail;
    }
    if (spec->n_trigger_tokens) memcpy(g->trigger_tokens, spec->trigger_tokens, spec->n_trigger_tokens * sizeof *g->trigger_tokens);
    *out = g;
    return ST_OK;

fail:
    grammar_drop(g);
    return status;
}

struct grammar *grammar_take(struct grammar *g) {
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void grammar_drop(struct grammar *g) {
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    cache__clear(&g->cache, &g->p);
    run__clear(&g->run);
    program__clear(&g->p);
    mem_free(g->trigger_tokens);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

void grammar_warm(struct grammar *g, uint32_t budget_us) {
    pthread_mutex_lock(&g->lock);
    mask__warm(g, budget_us);
    pthread_mutex_unlock(&g->lock);
}
