/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranges of code points as automata over bytes. The one idea: UTF-8, \uXXXX and a surrogate pair are all numbers written
 * in digits of fixed widths, so one function that splits a range of such numbers into ranges of digits serves the three. */
#include "grammar/internal.h"

/* A digit's byte range and what stands before it. A hexadecimal digit is up to three ranges of bytes. */
struct digit { uint8_t bits; bool hex; uint8_t base; const char *before; };
struct digits { const struct digit *digit; uint32_t n; };

static const struct digit UTF8_2[] = { { 5, false, 0xC0, NULL }, { 6, false, 0x80, NULL } };
static const struct digit UTF8_3[] = { { 4, false, 0xE0, NULL }, { 6, false, 0x80, NULL }, { 6, false, 0x80, NULL } };
static const struct digit UTF8_4[] = {
    { 3, false, 0xF0, NULL }, { 6, false, 0x80, NULL }, { 6, false, 0x80, NULL }, { 6, false, 0x80, NULL },
};
static const struct digit U4[] = { { 4, true, 0, "\\u" }, { 4, true, 0, NULL }, { 4, true, 0, NULL }, { 4, true, 0, NULL } };
static const struct digit PAIR[] = {
    { 2, true, 8, "\\uD" }, { 4, true, 0, NULL }, { 4, true, 0, NULL }, { 2, true, 12, "\\uD" }, { 4, true, 0, NULL }, { 4, true, 0, NULL },
};

enum { SCHEMES = 5, MAX_DIGITS = 6 };

/* The way to one target, with the shared endings "any digits from here on". */
struct enc {
    struct build *b;
    struct nfa *n;
    uint32_t to;
    uint32_t rest[SCHEMES][MAX_DIGITS]; /* 1 + node, 0 = not made */
};

static void hex_edge(struct enc *x, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi) {
    if (lo <= 9) nfa__edge(x->b, x->n, from, to, '0' + lo, '0' + (hi < 9 ? hi : 9));
    if (hi < 10) return;
    if (lo < 10) lo = 10;
    nfa__edge(x->b, x->n, from, to, 'a' + lo - 10, 'a' + hi - 10);
    nfa__edge(x->b, x->n, from, to, 'A' + lo - 10, 'A' + hi - 10);
}

static void digit_edge(struct enc *x, const struct digit *d, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi) {
    for (const char *s = d->before; s && *s; s++) {
        uint32_t next = nfa__node(x->b, x->n);
        nfa__edge(x->b, x->n, from, next, (uint8_t)*s, (uint8_t)*s);
        if (*s == 'D') nfa__edge(x->b, x->n, from, next, 'd', 'd');
        from = next;
    }
    if (d->hex) hex_edge(x, from, to, lo + d->base, hi + d->base);
    else nfa__edge(x->b, x->n, from, to, lo + d->base, hi + d->base);
}

static const struct digits DIGITS[SCHEMES] = { { UTF8_2, 2 }, { UTF8_3, 3 }, { UTF8_4, 4 }, { U4, 4 }, { PAIR, 6 } };

/* The node from which any digits i.. lead to the target. */
static uint32_t rest_node(struct enc *x, uint32_t scheme, uint32_t i) {
    const struct digits *s = &DIGITS[scheme];
    if (i == s->n) return x->to;
    if (x->rest[scheme][i] == 0) {
        uint32_t node = nfa__node(x->b, x->n);
        x->rest[scheme][i] = node + 1;
        digit_edge(x, &s->digit[i], node, rest_node(x, scheme, i + 1), 0, (1u << s->digit[i].bits) - 1);
    }
    return x->rest[scheme][i] - 1;
}

static void split(struct enc *x, uint32_t scheme, uint32_t from, uint32_t lo, uint32_t hi, uint32_t i) {
    const struct digits *s = &DIGITS[scheme];
    const struct digit *d = &s->digit[i];
    uint32_t below = 0;
    for (uint32_t k = i + 1; k < s->n; k++) below += s->digit[k].bits;
    uint32_t mask = (1u << below) - 1, first = lo >> below, last = hi >> below;
    if (first < last && (lo & mask) != 0) {
        split(x, scheme, from, lo, lo | mask, i);
        lo = ++first << below;
    }
    if (first < last && (hi & mask) != mask) {
        split(x, scheme, from, last << below, hi, i);
        hi = (last-- << below) - 1;
    }
    if ((lo & mask) == 0 && (hi & mask) == mask) {
        digit_edge(x, d, from, rest_node(x, scheme, i + 1), first, last);
        return;
    }
    uint32_t next = nfa__node(x->b, x->n);
    digit_edge(x, d, from, next, first, last);
    split(x, scheme, next, lo & mask, hi & mask, i + 1);
}

/* The part of [lo, hi] within [from_cp, to_cp]. */
static void part(struct enc *x, uint32_t scheme, uint32_t from, uint32_t lo, uint32_t hi, uint32_t from_cp, uint32_t to_cp, uint32_t minus) {
    if (lo < from_cp) lo = from_cp;
    if (hi > to_cp) hi = to_cp;
    if (lo <= hi) split(x, scheme, from, lo - minus, hi - minus, 0);
}

static void ascii(struct enc *x, uint32_t from, uint32_t lo, uint32_t hi, uint32_t a, uint32_t z) {
    if (lo < a) lo = a;
    if (hi > z) hi = z;
    if (lo <= hi) nfa__edge(x->b, x->n, from, x->to, lo, hi);
}

static void json_escapes(struct enc *x, uint32_t from, uint32_t lo, uint32_t hi) {
    static const struct { uint8_t cp, letter; } SHORT[] = {
        { '"', '"' }, { '\\', '\\' }, { '/', '/' }, { '\b', 'b' }, { '\f', 'f' }, { '\n', 'n' }, { '\r', 'r' }, { '\t', 't' },
    };
    uint32_t escape = UINT32_MAX;
    for (size_t i = 0; i < sizeof SHORT / sizeof *SHORT; i++) {
        if (SHORT[i].cp < lo || SHORT[i].cp > hi) continue;
        if (escape == UINT32_MAX) nfa__edge(x->b, x->n, from, escape = nfa__node(x->b, x->n), '\\', '\\');
        nfa__edge(x->b, x->n, escape, x->to, SHORT[i].letter, SHORT[i].letter);
    }
    part(x, 3, from, lo, hi, 0, 0xD7FF, 0);
    part(x, 3, from, lo, hi, 0xE000, 0xFFFF, 0);
    part(x, 4, from, lo, hi, 0x10000, MAX_CODE_POINT, 0x10000);
}

static void one_range(struct enc *x, uint32_t from, uint32_t lo, uint32_t hi, enum encoding enc) {
    if (!build__work(x->b, 1)) return;
    if (enc == ENCODE_JSON) {
        ascii(x, from, lo, hi, 0x20, '"' - 1);
        ascii(x, from, lo, hi, '"' + 1, '\\' - 1);
        ascii(x, from, lo, hi, '\\' + 1, 0x7F);
        json_escapes(x, from, lo, hi);
    } else {
        ascii(x, from, lo, hi, 0, 0x7F);
    }
    part(x, 0, from, lo, hi, 0x80, 0x7FF, 0);
    part(x, 1, from, lo, hi, 0x800, 0xD7FF, 0);
    part(x, 1, from, lo, hi, 0xE000, 0xFFFF, 0);
    part(x, 2, from, lo, hi, 0x10000, MAX_CODE_POINT, 0);
}

void encode__range(struct build *b, struct nfa *n, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi, enum encoding enc) {
    struct enc x = { .b = b, .n = n, .to = to };
    one_range(&x, from, lo, hi, enc);
}

void encode__set(struct build *b, struct nfa *n, uint32_t from, uint32_t to, const struct cp_set *s, enum encoding enc) {
    struct enc x = { .b = b, .n = n, .to = to };
    for (uint32_t i = 0; i < s->n; i++) one_range(&x, from, s->ranges[i].lo, s->ranges[i].hi, enc);
}

void encode__dfa(struct build *b, struct nfa *n, uint32_t from, uint32_t to, const struct dfa *d, enum encoding enc) {
    if (b->status || !d || d->n_states == 0) return;
    struct enc *into = build__alloc(b, d->n_states, sizeof *into); /* the endings are shared by all edges into a state */
    if (!into) return;
    for (uint32_t s = 0; s < d->n_states; s++) into[s] = (struct enc){ .b = b, .n = n, .to = nfa__node(b, n) };
    nfa__eps(b, n, from, into[0].to);
    for (uint32_t s = 0; s < d->n_states; s++) {
        if (d->final[s]) nfa__eps(b, n, into[s].to, to);
        for (uint32_t i = d->first[s]; i < d->first[s + 1]; i++)
            one_range(&into[d->edges[i].to], into[s].to, d->edges[i].lo, d->edges[i].hi, enc);
    }
}
