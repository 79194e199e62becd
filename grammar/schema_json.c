/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain JSON as rules, made when first used, and the pieces that schemas put between them. White space: none, one space,
 * or a line break and up to 40 blanks, after { [ , and before } ]; none or one space after a colon; so that neither a
 * compact nor a pretty-printed text is refused and a model cannot go on writing blanks for ever. Numbers have at most 18
 * digits before and after the point and an exponent that a double holds, for the same reason. */
#include <string.h>

#include "grammar/schema.h"

static const char INTEGER[] = "-?(?:0|[1-9]\\d{0,17})";
static const char NUMBER[] = "-?(?:0|[1-9]\\d{0,17})(?:\\.\\d{1,18})?(?:[eE][+-]?(?:0?\\d?\\d|1\\d\\d|2[0-8]\\d))?";

enum { MAX_INDENT = 40 };

static struct nfa *nfa_of(struct build *b, uint32_t rule) {
    return &b->rules[rule].nfa;
}

void json__byte(struct build *b, uint32_t rule, uint32_t from, uint32_t to, char c) {
    if (!b->status) nfa__edge(b, nfa_of(b, rule), from, to, (uint8_t)c, (uint8_t)c);
}

void json__call(struct build *b, uint32_t rule, uint32_t from, uint32_t to, enum json_rule which) {
    uint32_t r = json__rule(b, which);
    if (!b->status) nfa__call(b, nfa_of(b, rule), from, to, r);
}

void json__byte_space(struct build *b, uint32_t rule, uint32_t from, uint32_t to, char c) {
    if (b->status) return;
    uint32_t mid = nfa__node(b, nfa_of(b, rule));
    json__byte(b, rule, from, mid, c);
    if (c == ':') {
        nfa__eps(b, nfa_of(b, rule), mid, to);
        json__byte(b, rule, mid, to, ' ');
    } else {
        json__call(b, rule, mid, to, JSON_RULE_SPACE);
    }
}

void json__plain_of(struct build *b, uint32_t rule, uint32_t from, uint32_t to, const struct dfa *d) {
    if (!b->status) encode__dfa(b, nfa_of(b, rule), from, to, d, ENCODE_UTF8);
}

void json__string_of(struct build *b, uint32_t rule, uint32_t from, uint32_t to, const struct dfa *d) {
    if (b->status) return;
    struct frag f = nfa__frag(b, nfa_of(b, rule));
    json__byte(b, rule, from, f.from, '"');
    encode__dfa(b, nfa_of(b, rule), f.from, f.to, d, ENCODE_JSON);
    json__byte(b, rule, f.to, to, '"');
}

/* ---- one given value ---- */

void json__exactly_string(struct build *b, uint32_t rule, uint32_t from, uint32_t to, const char *s, size_t n) {
    static const char SHORT[] = "\"\"\\\\\bb\ff\nn\rr\tt", HEX[] = "0123456789abcdef";
    char *out = build__alloc(b, 6 * n + 2, 1);
    size_t len = 0;
    if (!out) return;
    out[len++] = '"';
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s[i];
        const char *p = SHORT;
        while (*p && (uint8_t)*p != c) p += 2;
        if (*p) {
            out[len++] = '\\';
            out[len++] = p[1];
        } else if (c < 0x20) {
            memcpy(out + len, "\\u00", 4);
            out[len + 4] = HEX[c >> 4];
            out[len + 5] = HEX[c & 15];
            len += 6;
        } else {
            out[len++] = (char)c;
        }
    }
    out[len++] = '"';
    nfa__text(b, nfa_of(b, rule), from, to, out, len);
}

void json__exactly(struct build *b, uint32_t rule, uint32_t from, uint32_t to, const struct json_value *v) {
    static const char *const WORDS[] = { "null", "false", "true" };
    if (b->status) return;
    struct nfa *n = nfa_of(b, rule);
    if (v->type == JSON_STRING) {
        json__exactly_string(b, rule, from, to, v->s, v->n);
    } else if (v->type == JSON_NUMBER) {
        nfa__text(b, n, from, to, v->s, v->n);
    } else if (v->type < JSON_NUMBER) {
        nfa__text(b, n, from, to, WORDS[v->type], strlen(WORDS[v->type]));
    } else {
        bool object = v->type == JSON_OBJECT;
        uint32_t at = nfa__node(b, n), next;
        json__byte_space(b, rule, from, at, object ? '{' : '[');
        for (const struct json_value *c = v->child; c && !b->status; c = c->next, at = next) {
            next = nfa__node(b, nfa_of(b, rule));
            if (c->index > 0) {
                uint32_t after = nfa__node(b, nfa_of(b, rule));
                json__byte_space(b, rule, at, after, ',');
                at = after;
            }
            if (object) {
                struct frag key = nfa__frag(b, nfa_of(b, rule));
                json__exactly_string(b, rule, at, key.from, c->key, c->n_key);
                json__byte_space(b, rule, key.from, key.to, ':');
                at = key.to;
            }
            json__exactly(b, rule, at, next, c); /* MAX_NESTING deep */
        }
        if (b->status) return;
        next = nfa__node(b, nfa_of(b, rule));
        json__call(b, rule, at, next, JSON_RULE_SPACE);
        json__byte(b, rule, next, to, object ? '}' : ']');
    }
}

/* ---- rules ---- */

static void make_space(struct build *b, uint32_t rule, struct frag f) {
    struct nfa *n = nfa_of(b, rule);
    nfa__eps(b, n, f.from, f.to);
    nfa__edge(b, n, f.from, f.to, ' ', ' ');
    uint32_t cr = nfa__node(b, n), at = nfa__node(b, n);
    nfa__edge(b, n, f.from, cr, '\r', '\r');
    nfa__edge(b, n, cr, at, '\n', '\n');
    nfa__edge(b, n, f.from, at, '\n', '\n');
    for (uint32_t i = 0; i < MAX_INDENT; i++) {
        uint32_t next = nfa__node(b, n);
        nfa__eps(b, n, at, f.to);
        nfa__edge(b, n, at, next, ' ', ' ');
        nfa__edge(b, n, at, next, '\t', '\t');
        at = next;
    }
    nfa__eps(b, n, at, f.to);
}

/* open, then nothing or members with commas between, then close. */
static void make_container(struct build *b, uint32_t rule, struct frag f, bool object) {
    struct nfa *n = nfa_of(b, rule);
    uint32_t first = nfa__node(b, n), member = nfa__node(b, n), value = nfa__node(b, n), after = nfa__node(b, n), end = nfa__node(b, n);
    json__byte_space(b, rule, f.from, first, object ? '{' : '[');
    if (object && !b->status) {
        uint32_t key = nfa__node(b, nfa_of(b, rule));
        json__call(b, rule, member, key, JSON_RULE_STRING);
        json__byte_space(b, rule, key, value, ':');
    }
    json__call(b, rule, object ? value : member, after, JSON_RULE_VALUE);
    json__byte_space(b, rule, after, member, ',');
    json__call(b, rule, after, end, JSON_RULE_SPACE);
    json__byte(b, rule, end, f.to, object ? '}' : ']');
    if (b->status) return;
    nfa__eps(b, nfa_of(b, rule), first, member);
    nfa__eps(b, nfa_of(b, rule), first, end);
}

static void make_value(struct build *b, uint32_t rule, struct frag f) {
    static const char *const WORDS[] = { "null", "false", "true" };
    static const enum json_rule RULES[] = { JSON_RULE_OBJECT, JSON_RULE_ARRAY, JSON_RULE_STRING, JSON_RULE_NUMBER };
    for (uint32_t i = 0; i < 3; i++) nfa__text(b, nfa_of(b, rule), f.from, f.to, WORDS[i], strlen(WORDS[i]));
    for (uint32_t i = 0; i < 4; i++) json__call(b, rule, f.from, f.to, RULES[i]);
}

static void make_string(struct build *b, uint32_t rule, struct frag f) {
    struct nfa *n = nfa_of(b, rule);
    uint32_t body = nfa__node(b, n);
    json__byte(b, rule, f.from, body, '"');
    encode__range(b, n, body, body, 0, MAX_CODE_POINT, ENCODE_JSON);
    json__byte(b, rule, body, f.to, '"');
}

static void make_number(struct build *b, uint32_t rule, struct frag f, const char *expression) {
    json__plain_of(b, rule, f.from, f.to, regex__dfa(b, expression, strlen(expression), REGEX_WHOLE, "schema"));
}

uint32_t json__rule(struct build *b, enum json_rule which) {
    if (b->status) return UINT32_MAX;
    if (b->json[which]) return b->json[which] - 1;
    uint32_t rule = build__rule(b);
    if (b->status) return UINT32_MAX;
    b->json[which] = rule + 1; /* before it is made: the rules call each other */
    struct frag f = b->rules[rule].frag;
    switch (which) {
    case JSON_RULE_VALUE: make_value(b, rule, f); break;
    case JSON_RULE_OBJECT: make_container(b, rule, f, true); break;
    case JSON_RULE_ARRAY: make_container(b, rule, f, false); break;
    case JSON_RULE_STRING: make_string(b, rule, f); break;
    case JSON_RULE_NUMBER: make_number(b, rule, f, NUMBER); break;
    case JSON_RULE_INTEGER: make_number(b, rule, f, INTEGER); break;
    case JSON_RULE_SPACE: make_space(b, rule, f); break;
    }
    return rule;
}

uint32_t schema__json_object(struct build *b) {
    return json__rule(b, JSON_RULE_OBJECT);
}
