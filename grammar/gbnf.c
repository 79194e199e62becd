/* SPDX-License-Identifier: Apache-2.0
 *
 * GBNF, the grammar language of llama.cpp: `name ::= alternatives`, one rule after the other, over code points. A rule of
 * the text is a rule of the build; groups and repetitions are built in place. */
#include <string.h>

#include "grammar/internal.h"

enum { MAX_TEXT = 4 << 20, BUCKETS = 4096, MAX_COUNT = 10000 };

struct name { const char *s; size_t n; uint32_t rule, next; size_t used_at; bool defined; };

struct gbnf {
    struct build *b;
    const char *s;
    size_t n, at;
    uint32_t depth, rule;       /* in work */
    struct name *names;
    uint32_t n_names, cap_names;
    uint32_t buckets[BUCKETS];  /* 1 + name */
};

static int bad_at(struct gbnf *g, size_t at, int code, const char *what) {
    size_t line = 1, start = 0;
    for (size_t i = 0; i < at && i < g->n; i++)
        if (g->s[i] == '\n') {
            line++;
            start = i + 1;
        }
    return build__fail(g->b, code, "grammar: %zu:%zu: %s", line, at - start + 1, what);
}

static int bad(struct gbnf *g, int code, const char *what) {
    return bad_at(g, g->at, code, what);
}

static bool at_char(const struct gbnf *g, char c) {
    return g->at < g->n && g->s[g->at] == c;
}

static void skip_space(struct gbnf *g, bool newlines) {
    for (; g->at < g->n; g->at++) {
        char c = g->s[g->at];
        if (c == '#')
            while (g->at + 1 < g->n && g->s[g->at + 1] != '\n' && g->s[g->at + 1] != '\r') g->at++;
        else if (c != ' ' && c != '\t' && (!newlines || (c != '\n' && c != '\r')))
            return;
    }
}

static bool is_name_char(char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '-' || c == '_';
}

static struct name *read_name(struct gbnf *g) {
    size_t start = g->at, len;
    uint32_t h = 2166136261u;
    while (g->at < g->n && is_name_char(g->s[g->at])) h = (h ^ (uint8_t)g->s[g->at++]) * 16777619u;
    len = g->at - start;
    if (len == 0) return bad(g, ST_INVALID, "expected the name of a rule"), NULL;
    for (uint32_t i = g->buckets[h % BUCKETS]; i; i = g->names[i - 1].next)
        if (g->names[i - 1].n == len && memcmp(g->names[i - 1].s, g->s + start, len) == 0) return &g->names[i - 1];
    struct name *names = build__grow(g->b, g->names, g->n_names, &g->cap_names, sizeof *names);
    if (!names) return NULL;
    g->names = names;
    names[g->n_names] = (struct name){ g->s + start, len, build__rule(g->b), g->buckets[h % BUCKETS], start, false };
    g->buckets[h % BUCKETS] = g->n_names + 1;
    return &names[g->n_names++];
}

static struct nfa *nfa_of(struct gbnf *g) {
    return &g->b->rules[g->rule].nfa;
}

/* One code point of a literal or class, escapes undone. */
static bool read_char(struct gbnf *g, uint32_t *cp) {
    static const char SHORT[] = "t\tr\rn\n\\\\\"\"[[]]--^^//";
    if (!at_char(g, '\\')) {
        if (utf8__next(g->s, g->n, &g->at, cp)) return true;
        return bad(g, ST_INVALID, g->at >= g->n ? "the text ends early" : "not UTF-8"), false;
    }
    char kind = g->at + 1 < g->n ? g->s[g->at + 1] : 0;
    for (const char *c = SHORT; *c; c += 2)
        if (kind == *c) return g->at += 2, *cp = (uint8_t)c[1], true;
    uint32_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (!digits) return bad(g, ST_INVALID, "unknown escape; known: \\t \\r \\n \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH"), false;
    g->at += 2;
    for (*cp = 0; digits > 0; digits--, g->at++) {
        char c = g->at < g->n ? g->s[g->at] : 0;
        uint32_t v = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (uint32_t)((c | 0x20) - 'a' + 10) : 16;
        if (v == 16) return bad(g, ST_INVALID, "expected a hexadecimal digit"), false;
        *cp = *cp << 4 | v;
    }
    if (*cp <= MAX_CODE_POINT && (*cp < 0xD800 || *cp > 0xDFFF)) return true;
    return bad(g, ST_INVALID, "not a code point"), false;
}

static struct frag read_literal(struct gbnf *g) {
    struct frag f = nfa__frag(g->b, nfa_of(g));
    uint32_t at = f.from, cp;
    g->at++;
    while (!at_char(g, '"') && read_char(g, &cp)) {
        uint32_t next = nfa__node(g->b, nfa_of(g));
        encode__range(g->b, nfa_of(g), at, next, cp, cp, ENCODE_UTF8);
        at = next;
    }
    g->at++;
    nfa__eps(g->b, nfa_of(g), at, f.to);
    return f;
}

static struct frag read_class(struct gbnf *g) {
    struct frag f = nfa__frag(g->b, nfa_of(g));
    struct cp_set s = { 0 };
    bool invert;
    uint32_t lo, hi;
    g->at++;
    if ((invert = at_char(g, '^'))) g->at++;
    while (!at_char(g, ']') && read_char(g, &lo)) {
        hi = lo;
        if (at_char(g, '-') && g->at + 1 < g->n && g->s[g->at + 1] != ']') {
            g->at++;
            if (!read_char(g, &hi)) break;
            if (hi < lo) bad(g, ST_INVALID, "a range needs two characters in order");
        }
        cp_set__add(g->b, &s, lo, hi);
    }
    g->at++;
    cp_set__finish(g->b, &s, invert);
    encode__set(g->b, nfa_of(g), f.from, f.to, &s, ENCODE_UTF8);
    return f;
}

static struct frag read_alternatives(struct gbnf *g, bool nested);

static struct frag read_item(struct gbnf *g) {
    struct frag f = { 0, 0 };
    char c = g->s[g->at];
    if (c == '"') return read_literal(g);
    if (c == '[') return read_class(g);
    if (c == '(') {
        g->at++;
        skip_space(g, true);
        f = read_alternatives(g, true);
        if (!at_char(g, ')')) bad(g, ST_INVALID, "expected )");
        g->at++;
        return f;
    }
    if (c == '.') {
        g->at++;
        f = nfa__frag(g->b, nfa_of(g));
        encode__range(g->b, nfa_of(g), f.from, f.to, 0, MAX_CODE_POINT, ENCODE_UTF8);
        return f;
    }
    if (c == '<' || c == '!') return bad(g, ST_UNSUPPORTED, "tokens (<...>, !<...>) are not supported"), f;
    if (!is_name_char(c)) return bad(g, ST_INVALID, "expected a name, a literal, a class, . or ("), f;
    struct name *name = read_name(g);
    if (!name) return f;
    f = nfa__frag(g->b, nfa_of(g));
    nfa__call(g->b, nfa_of(g), f.from, f.to, name->rule);
    return f;
}

static bool read_count(struct gbnf *g, uint32_t *v) {
    size_t start = g->at;
    for (*v = 0; g->at < g->n && g->s[g->at] >= '0' && g->s[g->at] <= '9'; g->at++)
        if (*v <= MAX_COUNT) *v = *v * 10 + (uint32_t)(g->s[g->at] - '0');
    if (*v > MAX_COUNT) bad_at(g, start, ST_LIMIT, "more than 10000 repetitions");
    return g->at > start;
}

static bool read_quantifier(struct gbnf *g, bool nested, uint32_t *min, uint32_t *max) {
    char c = g->at < g->n ? g->s[g->at] : 0;
    if (c == '*' || c == '+' || c == '?') {
        g->at++;
        *min = c == '+';
        *max = c == '?' ? 1 : UINT32_MAX;
        return true;
    }
    if (c != '{') return false;
    g->at++;
    skip_space(g, nested);
    if (!read_count(g, min)) return bad(g, ST_INVALID, "expected {m}, {m,} or {m,n}"), false;
    *max = *min;
    skip_space(g, nested);
    if (at_char(g, ',')) {
        g->at++;
        skip_space(g, nested);
        if (!read_count(g, max)) *max = UINT32_MAX;
        skip_space(g, nested);
    }
    if (!at_char(g, '}')) return bad(g, ST_INVALID, "expected }"), false;
    g->at++;
    if (*min > *max) return bad(g, ST_INVALID, "the least number of repetitions is above the largest"), false;
    return true;
}

static struct frag read_sequence(struct gbnf *g, bool nested) {
    struct frag seq = nfa__frag(g->b, nfa_of(g));
    uint32_t at = seq.from, min, max;
    while (!g->b->status && g->at < g->n && !strchr("|)\r\n", g->s[g->at]) && g->s[g->at]) {
        struct nfa_mark mark = nfa__mark(nfa_of(g));
        struct frag f = read_item(g);
        skip_space(g, nested);
        while (!g->b->status && read_quantifier(g, nested, &min, &max)) {
            f = nfa__repeat(g->b, nfa_of(g), mark, f, min, max);
            skip_space(g, nested);
        }
        nfa__eps(g->b, nfa_of(g), at, f.from);
        at = f.to;
    }
    if (g->at < g->n && !g->s[g->at]) bad(g, ST_INVALID, "a zero byte");
    nfa__eps(g->b, nfa_of(g), at, seq.to);
    return seq;
}

static struct frag read_alternatives(struct gbnf *g, bool nested) {
    struct frag all = nfa__frag(g->b, nfa_of(g));
    if (++g->depth > MAX_NESTING) return bad(g, ST_LIMIT, "groups nested deeper than 200"), all;
    for (;;) {
        struct frag f = read_sequence(g, nested);
        nfa__eps(g->b, nfa_of(g), all.from, f.from);
        nfa__eps(g->b, nfa_of(g), f.to, all.to);
        if (g->b->status || !at_char(g, '|')) break;
        g->at++;
        skip_space(g, true);
    }
    g->depth--;
    return all;
}

static void read_rule(struct gbnf *g) {
    size_t start = g->at;
    struct name *name = read_name(g);
    if (!name) return;
    if (name->defined) bad_at(g, start, ST_INVALID, "this rule is defined twice");
    name->defined = true;
    g->rule = name->rule;
    skip_space(g, false);
    if (g->n - g->at < 3 || memcmp(g->s + g->at, "::=", 3) != 0) {
        bad(g, ST_INVALID, "expected ::=");
        return;
    }
    g->at += 3;
    skip_space(g, true);
    struct frag f = read_alternatives(g, false);
    if (g->b->status) return;
    g->b->rules[g->rule].frag = f;
    if (g->at < g->n && g->s[g->at] != '\n' && g->s[g->at] != '\r') bad(g, ST_INVALID, "expected the end of the line");
}

uint32_t gbnf__rule(struct build *b, const char *s, size_t n) {
    struct gbnf *g = build__alloc(b, 1, sizeof *g);
    uint32_t root = UINT32_MAX;
    if (!g) return root;
    *g = (struct gbnf){ .b = b, .s = s, .n = n };
    if (n > MAX_TEXT) build__fail(b, ST_LIMIT, "grammar: more than 4 MiB of text");
    for (skip_space(g, true); g->at < g->n && !b->status; skip_space(g, true)) read_rule(g);
    for (uint32_t i = 0; i < g->n_names && !b->status; i++) {
        if (!g->names[i].defined) bad_at(g, g->names[i].used_at, ST_INVALID, "this rule is not defined");
        if (g->names[i].n == 4 && memcmp(g->names[i].s, "root", 4) == 0) root = g->names[i].rule;
    }
    if (root == UINT32_MAX) build__fail(b, ST_INVALID, "grammar: no rule is called root");
    return b->status ? UINT32_MAX : root;
}
