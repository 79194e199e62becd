/* SPDX-License-Identifier: Apache-2.0
 *
 * Regular expressions -> automata over code points, and sets of code points. The linear subset that ECMA-262, Python's
 * `re` and RE2 agree on; what they understand differently or what is not regular is refused by name.
 *
 * Anchors: ^ and $ become marked edges; afterwards every node is copied once per phase of the text (nothing read yet,
 * something read, the end promised), which gives them their meaning anywhere in an expression. */
#include <stdlib.h>
#include <string.h>

#include "grammar/internal.h"

/* ---- code points ---- */

bool utf8__next(const char *s, size_t n, size_t *at, uint32_t *cp) {
    static const uint32_t LEAST[] = { 0, 0x80, 0x800, 0x10000 };
    if (*at >= n) return false;
    uint8_t c = (uint8_t)s[*at];
    uint32_t more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 9;
    if (more == 9 || *at + more >= n) return false;
    *cp = more == 0 ? c : c & (0x3Fu >> more);
    for (uint32_t i = 1; i <= more; i++) {
        if (((uint8_t)s[*at + i] & 0xC0) != 0x80) return false;
        *cp = *cp << 6 | ((uint8_t)s[*at + i] & 0x3F);
    }
    *at += 1 + more;
    return *cp >= LEAST[more] && *cp <= MAX_CODE_POINT && (*cp < 0xD800 || *cp > 0xDFFF);
}

void cp_set__add(struct build *b, struct cp_set *s, uint32_t lo, uint32_t hi) {
    struct cp_range *r = build__grow(b, s->ranges, s->n, &s->cap, sizeof *r);
    if (!r) return;
    s->ranges = r;
    r[s->n++] = (struct cp_range){ lo, hi };
}

static int by_low(const void *pa, const void *pb) {
    const struct cp_range *a = pa, *b = pb;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

/* Sorted and disjoint. */
static void merge(struct cp_set *s) {
    uint32_t n = 0;
    if (s->n) qsort(s->ranges, s->n, sizeof *s->ranges, by_low);
    for (uint32_t i = 0; i < s->n; i++) {
        struct cp_range r = s->ranges[i];
        if (n && r.lo <= s->ranges[n - 1].hi + 1) {
            if (r.hi > s->ranges[n - 1].hi) s->ranges[n - 1].hi = r.hi;
        } else {
            s->ranges[n++] = r;
        }
    }
    s->n = n;
}

static void invert_set(struct build *b, struct cp_set *s) {
    struct cp_set out = { 0 };
    uint32_t next = 0;
    merge(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].lo > next) cp_set__add(b, &out, next, s->ranges[i].lo - 1);
        next = s->ranges[i].hi + 1;
    }
    if (next <= MAX_CODE_POINT) cp_set__add(b, &out, next, MAX_CODE_POINT);
    *s = out;
}

void cp_set__finish(struct build *b, struct cp_set *s, bool invert) {
    if (!invert) invert_set(b, s);
    cp_set__add(b, s, 0xD800, 0xDFFF);
    invert_set(b, s);
}

/* ---- parser ---- */

enum { LABEL_BEGIN = LABEL_CALL, LABEL_END = LABEL_CALL + 1, MAX_REPEAT = 10000 };

struct re {
    struct build *b;
    const char *s, *where;
    size_t n, at;
    struct nfa nfa;
    uint32_t depth;
    bool anchored; /* ^ or $ occur */
};

static int bad(struct re *r, int code, const char *what) {
    return build__fail(r->b, code, "%s: column %zu: %s", r->where, r->at + 1, what);
}

static bool at_char(const struct re *r, char c) {
    return r->at < r->n && r->s[r->at] == c;
}

static bool next_cp(struct re *r, uint32_t *cp) {
    if (utf8__next(r->s, r->n, &r->at, cp)) return true;
    bad(r, ST_INVALID, r->at >= r->n ? "the expression ends early" : "not UTF-8");
    return false;
}

static uint32_t hex_value(char c) {
    return c >= '0' && c <= '9' ? (uint32_t)(c - '0') : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10) : 99;
}

static bool hex_digits(struct re *r, uint32_t n, uint32_t *cp) {
    *cp = 0;
    for (uint32_t i = 0; i < n; i++, r->at++) {
        uint32_t v = r->at < r->n ? hex_value(r->s[r->at]) : 99;
        if (v == 99) return bad(r, ST_INVALID, "expected a hexadecimal digit"), false;
        *cp = *cp << 4 | v;
    }
    return true;
}

/* \u, after the letter: four digits, or {digits}; a pair of surrogates is one code point. */
static bool unicode_escape(struct re *r, uint32_t *cp) {
    uint32_t low;
    if (at_char(r, '{')) {
        uint32_t n = 0;
        while (r->at + 1 + n < r->n && n < 7 && r->s[r->at + 1 + n] != '}') n++;
        r->at++;
        if (n < 1 || n > 6) return bad(r, ST_INVALID, "expected 1 to 6 hexadecimal digits"), false;
        if (!hex_digits(r, n, cp)) return false;
        r->at++;
        return true;
    }
    if (!hex_digits(r, 4, cp)) return false;
    if (*cp < 0xD800 || *cp > 0xDBFF || !at_char(r, '\\') || r->at + 1 >= r->n || r->s[r->at + 1] != 'u') return true;
    r->at += 2;
    if (!hex_digits(r, 4, &low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return bad(r, ST_INVALID, "half a surrogate pair"), false;
    *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
    return true;
}

static void add_named(struct build *b, struct cp_set *s, char name) {
    struct cp_set x = { 0 };
    char lower = (char)(name | 0x20);
    if (lower == 'd' || lower == 'w') cp_set__add(b, &x, '0', '9');
    if (lower == 'w') {
        cp_set__add(b, &x, 'A', 'Z');
        cp_set__add(b, &x, '_', '_');
        cp_set__add(b, &x, 'a', 'z');
    }
    if (lower == 's') {
        cp_set__add(b, &x, '\t', '\r');
        cp_set__add(b, &x, ' ', ' ');
    }
    if (name != lower) invert_set(b, &x);
    for (uint32_t i = 0; i < x.n; i++) cp_set__add(b, s, x.ranges[i].lo, x.ranges[i].hi);
}

static bool is_alphanumeric(uint32_t cp) {
    return (cp >= '0' && cp <= '9') || (cp < 0x80 && (cp | 0x20) >= 'a' && (cp | 0x20) <= 'z');
}

static bool bad_escape(struct re *r, size_t start, uint32_t cp) {
    r->at = start;
    bad(r, ST_UNSUPPORTED, cp >= '0' && cp <= '9' ? "a back-reference or octal escape is not supported"
        : (cp | 0x20) == 'b' ? "\\b and \\B are not supported" : (cp | 0x20) == 'p' ? "\\p{...} is not supported" : "this escape is not supported");
    return false;
}

/* After a backslash: one code point (true, *cp), or a named class added to s (true, *cp = UINT32_MAX). */
static bool escape(struct re *r, struct cp_set *s, bool in_class, uint32_t *cp) {
    static const char CONTROL[] = "t\tn\nr\rf\fv\v";
    size_t start = r->at;
    if (!next_cp(r, cp)) return false;
    if (*cp < 0x80 && strchr("dDwWsS", (int)*cp) && *cp) {
        add_named(r->b, s, (char)*cp);
        *cp = UINT32_MAX;
        return true;
    }
    if (*cp == 'b' && in_class) return *cp = '\b', true;
    if (*cp == '0' && !(r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9')) return *cp = 0, true;
    if (*cp == 'x') return hex_digits(r, 2, cp);
    if (*cp == 'u') return unicode_escape(r, cp);
    for (const char *c = CONTROL; *c; c += 2)
        if (*cp == (uint32_t)*c) return *cp = (uint32_t)c[1], true;
    return is_alphanumeric(*cp) ? bad_escape(r, start, *cp) : true;
}

static bool class_item(struct re *r, struct cp_set *s, uint32_t *cp) {
    if (at_char(r, '[') && r->at + 1 < r->n && strchr(":.=", r->s[r->at + 1]))
        return bad(r, ST_UNSUPPORTED, "a POSIX class is not supported"), false;
    if (!at_char(r, '\\')) return next_cp(r, cp);
    r->at++;
    return escape(r, s, true, cp);
}

/* After [ */
static struct cp_set parse_class(struct re *r) {
    struct cp_set s = { 0 };
    bool invert = at_char(r, '^');
    uint32_t lo, hi;
    if (invert) r->at++;
    if (at_char(r, ']')) bad(r, ST_INVALID, "an empty class, or a ] that needs a \\");
    while (!r->b->status && !at_char(r, ']')) {
        if (!class_item(r, &s, &lo)) break;
        if (!at_char(r, '-') || r->at + 1 >= r->n || r->s[r->at + 1] == ']') {
            if (lo != UINT32_MAX) cp_set__add(r->b, &s, lo, lo);
            continue;
        }
        r->at++;
        if (!class_item(r, &s, &hi)) break;
        if (lo == UINT32_MAX || hi == UINT32_MAX || lo > hi) bad(r, ST_INVALID, "a range needs two characters in order");
        cp_set__add(r->b, &s, lo, hi);
    }
    r->at++;
    cp_set__finish(r->b, &s, invert);
    return s;
}

static struct frag set_frag(struct re *r, const struct cp_set *s) {
    struct frag f = nfa__frag(r->b, &r->nfa);
    for (uint32_t i = 0; i < s->n; i++) nfa__edge(r->b, &r->nfa, f.from, f.to, s->ranges[i].lo, s->ranges[i].hi);
    return f;
}

static struct frag cp_frag(struct re *r, uint32_t cp) {
    struct cp_set s = { 0 };
    cp_set__add(r->b, &s, cp, cp);
    cp_set__finish(r->b, &s, false);
    return set_frag(r, &s);
}

static struct frag parse_alternatives(struct re *r);

/* After ( */
static struct frag parse_group(struct re *r) {
    struct frag f = { 0, 0 };
    if (at_char(r, '?')) {
        const char *s = r->s + r->at + 1, *end = r->s + r->n;
        bool named = s < end && (*s == '<' || (*s == 'P' && s + 1 < end && s[1] == '<'));
        const char *name = named ? s + (*s == 'P' ? 2 : 1) : s;
        if (named && name < end && *name != '=' && *name != '!') {
            while (name < end && *name != '>') name++;
            if (name == end) return bad(r, ST_INVALID, "the group's name has no end"), f;
            r->at = (size_t)(name + 1 - r->s);
        } else if (s < end && *s == ':') {
            r->at += 2;
        } else {
            bool look = s < end && strchr("=!<", *s);
            return bad(r, ST_UNSUPPORTED, look ? "look-around is not supported" : "flags and extensions (?...) are not supported"), f;
        }
    }
    f = parse_alternatives(r);
    if (!at_char(r, ')')) bad(r, ST_INVALID, "expected )");
    r->at++;
    return f;
}

static struct frag anchor(struct re *r, uint32_t label) {
    struct frag f = nfa__frag(r->b, &r->nfa);
    r->anchored = true;
    nfa__edge(r->b, &r->nfa, f.from, f.to, label, label);
    return f;
}

static struct frag parse_atom(struct re *r) {
    struct cp_set s = { 0 };
    uint32_t cp;
    if (!next_cp(r, &cp)) return (struct frag){ 0, 0 };
    if (cp == '(') return parse_group(r);
    if (cp == '^' || cp == '$') return anchor(r, cp == '^' ? LABEL_BEGIN : LABEL_END);
    if (cp == '[') {
        s = parse_class(r);
        return set_frag(r, &s);
    }
    if (cp == '.') {
        cp_set__add(r->b, &s, '\n', '\n');
        cp_set__finish(r->b, &s, true);
        return set_frag(r, &s);
    }
    if (cp == '*' || cp == '+' || cp == '?') {
        r->at--;
        return bad(r, ST_INVALID, "nothing to repeat"), (struct frag){ 0, 0 };
    }
    if (cp != '\\') return cp_frag(r, cp);
    if (!escape(r, &s, false, &cp)) return (struct frag){ 0, 0 };
    if (cp != UINT32_MAX) return cp_frag(r, cp);
    cp_set__finish(r->b, &s, false);
    return set_frag(r, &s);
}

static bool number(struct re *r, uint32_t *v) {
    size_t start = r->at;
    for (*v = 0; r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9'; r->at++)
        if (*v <= MAX_REPEAT) *v = *v * 10 + (uint32_t)(r->s[r->at] - '0');
    return r->at > start;
}

/* {m}, {m,}, {m,n}; false and nothing read when it is none of these: then { stands for itself. */
static bool parse_braces(struct re *r, uint32_t *min, uint32_t *max) {
    size_t start = r->at++;
    if (at_char(r, ',')) return bad(r, ST_UNSUPPORTED, "{,n} means different things to different engines; write {0,n}"), false;
    if (!number(r, min)) return r->at = start, false;
    *max = *min;
    if (at_char(r, ',')) {
        r->at++;
        if (!number(r, max)) *max = UINT32_MAX;
    }
    if (!at_char(r, '}')) return r->at = start, false;
    r->at++;
    if (*min > *max) return bad(r, ST_INVALID, "the least number of repetitions is above the largest"), false;
    if (*min > MAX_REPEAT || (*max > MAX_REPEAT && *max != UINT32_MAX)) return bad(r, ST_LIMIT, "more than 10000 repetitions"), false;
    return true;
}

static bool parse_quantifier(struct re *r, uint32_t *min, uint32_t *max) {
    char c = r->at < r->n ? r->s[r->at] : 0;
    if (c == '{') {
        if (!parse_braces(r, min, max)) return false;
    } else if (c == '*' || c == '+' || c == '?') {
        r->at++;
        *min = c == '+';
        *max = c == '?' ? 1 : UINT32_MAX;
    } else {
        return false;
    }
    if (at_char(r, '?')) r->at++; /* lazy: the same texts */
    else if (at_char(r, '+')) bad(r, ST_UNSUPPORTED, "a possessive quantifier is not supported");
    else if (at_char(r, '*')) bad(r, ST_INVALID, "two quantifiers in a row");
    return true;
}

static struct frag parse_sequence(struct re *r) {
    struct frag seq = nfa__frag(r->b, &r->nfa);
    uint32_t at = seq.from, min, max;
    while (!r->b->status && r->at < r->n && r->s[r->at] != '|' && r->s[r->at] != ')') {
        struct nfa_mark mark = nfa__mark(&r->nfa);
        bool is_anchor = at_char(r, '^') || at_char(r, '$');
        struct frag f = parse_atom(r);
        while (!r->b->status && parse_quantifier(r, &min, &max)) {
            if (is_anchor) bad(r, ST_UNSUPPORTED, "an anchor cannot be repeated");
            f = nfa__repeat(r->b, &r->nfa, mark, f, min, max);
            if (at_char(r, '{') || at_char(r, '+')) bad(r, ST_INVALID, "two quantifiers in a row");
        }
        nfa__eps(r->b, &r->nfa, at, f.from);
        at = f.to;
    }
    nfa__eps(r->b, &r->nfa, at, seq.to);
    return seq;
}

static struct frag parse_alternatives(struct re *r) {
    struct frag all = nfa__frag(r->b, &r->nfa);
    if (++r->depth > MAX_NESTING) return bad(r, ST_LIMIT, "groups nested deeper than 200"), all;
    for (;;) {
        struct frag f = parse_sequence(r);
        nfa__eps(r->b, &r->nfa, all.from, f.from);
        nfa__eps(r->b, &r->nfa, f.to, all.to);
        if (r->b->status || !at_char(r, '|')) break;
        r->at++;
    }
    r->depth--;
    return all;
}

/* ---- anchors ---- */

static void any_loop(struct re *r, uint32_t node) {
    nfa__edge(r->b, &r->nfa, node, node, 0, 0xD7FF);
    nfa__edge(r->b, &r->nfa, node, node, 0xE000, MAX_CODE_POINT);
}

/* Phases of a text: START nothing read, INSIDE, END no more may come, EMPTY both START and END. */
enum phase { START, INSIDE, END, EMPTY, PHASES };

static struct frag with_phases(struct re *r, struct frag f, struct nfa *out) {
    const struct nfa *n = &r->nfa;
    uint32_t goal;
    out->n_nodes = n->n_nodes * PHASES;
    goal = nfa__node(r->b, out);
    for (uint32_t i = 0; i < n->n_edges && build__work(r->b, PHASES); i++) {
        struct nfa_edge x = n->edges[i];
        for (uint32_t p = 0; p < PHASES; p++) {
            uint32_t q = p;
            bool empty_step = x.lo > x.hi;
            if (x.lo == LABEL_BEGIN && x.hi == LABEL_BEGIN) {
                if (p != START && p != EMPTY) continue;
                empty_step = true;
            } else if (x.lo == LABEL_END && x.hi == LABEL_END) {
                q = p == START || p == EMPTY ? EMPTY : END;
                empty_step = true;
            } else if (!empty_step) {
                if (p == END || p == EMPTY) continue;
                q = INSIDE;
            }
            nfa__edge(r->b, out, x.from * PHASES + p, x.to * PHASES + q, empty_step ? 1 : x.lo, empty_step ? 0 : x.hi);
        }
    }
    for (uint32_t p = 0; p < PHASES; p++) nfa__eps(r->b, out, f.to * PHASES + p, goal);
    return (struct frag){ f.from * PHASES + START, goal };
}

struct dfa *regex__dfa(struct build *b, const char *s, size_t n, enum regex_anchor anchor_mode, const char *where) {
    struct re r = { .b = b, .s = s, .n = n, .where = where };
    struct frag f = parse_alternatives(&r);
    if (!b->status && r.at < n) bad(&r, ST_INVALID, "a ) without its (");
    if (b->status) return NULL;
    if (anchor_mode == REGEX_SEARCH) {
        struct frag g = nfa__frag(b, &r.nfa);
        any_loop(&r, g.from);
        any_loop(&r, g.to);
        nfa__eps(b, &r.nfa, g.from, f.from);
        nfa__eps(b, &r.nfa, f.to, g.to);
        f = g;
    }
    if (!r.anchored) return dfa__of(b, &r.nfa, f);
    struct nfa phased = { 0 };
    f = with_phases(&r, f, &phased);
    return dfa__of(b, &phased, f);
}
