/* SPDX-License-Identifier: Apache-2.0
 *
 * Automata under construction, and the memory and the patience of a compilation. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "grammar/internal.h"

int build__fail(struct build *b, int code, const char *fmt, ...) {
    if (b->status) return b->status;
    char text[sizeof b->e->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return b->status = err_set(b->e, code, "%s", text);
}

static int out_of_memory(struct build *b, size_t n_bytes) {
    if (n_bytes > b->arena.cap_bytes - b->arena.used_bytes)
        return build__fail(b, ST_LIMIT, "grammar: too large (compiling it takes more than %zu MiB)", b->arena.cap_bytes >> 20);
    return build__fail(b, ST_NOMEM, "grammar: out of memory");
}

void *build__alloc(struct build *b, size_t n, size_t size) {
    if (b->status) return NULL;
    void *p = arena_zalloc(&b->arena, n ? n : 1, size);
    if (!p) out_of_memory(b, n > SIZE_MAX / size ? SIZE_MAX : n * size);
    return p;
}

void *build__grow(struct build *b, void *array, uint32_t n, uint32_t *cap, size_t size) {
    if (b->status) return NULL;
    if (n < *cap) return array;
    uint32_t want = *cap ? *cap * 2 : 8;
    void *p = build__alloc(b, want, size);
    if (!p) return NULL;
    if (n) memcpy(p, array, n * size);
    *cap = want;
    return p;
}

bool build__work(struct build *b, uint64_t n) {
    if (b->status) return false;
    if (n > b->work_left) {
        build__fail(b, ST_LIMIT, "grammar: too complex (compiling it takes more than %d steps)", COMPILE_WORK);
        return false;
    }
    b->work_left -= n;
    return true;
}

uint32_t build__rule(struct build *b) {
    struct rule *rules = build__grow(b, b->rules, b->n_rules, &b->cap_rules, sizeof *rules);
    if (!rules || b->n_rules == MAX_RULES) {
        build__fail(b, ST_LIMIT, "grammar: more than %d rules", MAX_RULES);
        return UINT32_MAX;
    }
    b->rules = rules;
    b->rules[b->n_rules] = (struct rule){ .frag = { 0, 1 }, .nfa = { .n_nodes = 2 } };
    return b->n_rules++;
}

uint32_t nfa__node(struct build *b, struct nfa *n) {
    (void)b;
    return n->n_nodes++;
}

struct frag nfa__frag(struct build *b, struct nfa *n) {
    struct frag f = { nfa__node(b, n), 0 };
    f.to = nfa__node(b, n);
    return f;
}

void nfa__edge(struct build *b, struct nfa *n, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi) {
    struct nfa_edge *edges = build__grow(b, n->edges, n->n_edges, &n->cap_edges, sizeof *edges);
    if (!edges || n->n_nodes > INT_MAX) return;
    n->edges = edges;
    edges[n->n_edges++] = (struct nfa_edge){ from, to, lo, hi };
}

void nfa__eps(struct build *b, struct nfa *n, uint32_t from, uint32_t to) {
    nfa__edge(b, n, from, to, 1, 0);
}

void nfa__call(struct build *b, struct nfa *n, uint32_t from, uint32_t to, uint32_t rule) {
    if (rule == UINT32_MAX) return; /* of a build that failed */
    nfa__edge(b, n, from, to, LABEL_CALL + rule, LABEL_CALL + rule);
}

void nfa__text(struct build *b, struct nfa *n, uint32_t from, uint32_t to, const char *s, size_t n_bytes) {
    if (n_bytes == 0) nfa__eps(b, n, from, to);
    for (size_t i = 0; i < n_bytes && !b->status; i++) {
        uint32_t next = i + 1 == n_bytes ? to : nfa__node(b, n);
        nfa__edge(b, n, from, next, (uint8_t)s[i], (uint8_t)s[i]);
        from = next;
    }
}

struct nfa_mark nfa__mark(const struct nfa *n) {
    return (struct nfa_mark){ n->n_nodes, n->n_edges };
}

/* Another copy of the nodes [mark, end) and the edges between them. */
static struct frag copy(struct build *b, struct nfa *n, struct nfa_mark mark, struct nfa_mark end, struct frag f) {
    uint32_t shift = n->n_nodes - mark.n_nodes;
    n->n_nodes += end.n_nodes - mark.n_nodes;
    for (uint32_t i = mark.n_edges; i < end.n_edges && build__work(b, 1); i++) {
        struct nfa_edge x = n->edges[i];
        nfa__edge(b, n, x.from + shift, x.to + shift, x.lo, x.hi);
    }
    return (struct frag){ f.from + shift, f.to + shift };
}

struct frag nfa__repeat(struct build *b, struct nfa *n, struct nfa_mark mark, struct frag f, uint32_t min, uint32_t max) {
    struct nfa_mark end = nfa__mark(n);
    struct frag out = nfa__frag(b, n);
    uint32_t at = out.from, copies = max == UINT32_MAX ? (min ? min : 1) : max;
    if (max == 0) {
        nfa__eps(b, n, out.from, out.to);
        return out;
    }
    for (uint32_t i = 0; i < copies && !b->status; i++) {
        struct frag g = i == 0 ? f : copy(b, n, mark, end, f);
        uint32_t next = nfa__node(b, n);
        if (i >= min) nfa__eps(b, n, at, out.to);
        nfa__eps(b, n, at, g.from);
        nfa__eps(b, n, g.to, next);
        if (max == UINT32_MAX && i + 1 == copies) nfa__eps(b, n, next, at);
        at = next;
        if (!build__work(b, 1)) break;
    }
    nfa__eps(b, n, at, out.to);
    return out;
}
