/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects of a schema: declared keys in the order of the schema, optional ones may be left out, then other keys as far as
 * they are allowed. What a key's value must satisfy is the set of what each schema says about that key, by name, by
 * pattern, or as an additional one. */
#include <string.h>

#include "grammar/schema.h"

enum { MAX_PATTERNS = 4, MAX_KEYS = 2000, MAX_GRID = 400000 };

static const char ANY_TEXT[] = "[\\d\\D]*";

struct key { const char *s; size_t n; bool required; };

struct object {
    struct schema *x;
    struct build *b;
    const struct items *l;
    uint32_t rule;
    struct key *keys;
    uint32_t n_keys, cap_keys;
    struct { const struct json_value *v; struct dfa *d; } patterns[MAX_PATTERNS]; /* v: the value, its key is the pattern */
    uint32_t n_patterns;
    uint32_t min, max;
    bool others;                   /* any key beside the declared ones may come */
};

static struct nfa *nfa_of(struct object *o) {
    return &o->b->rules[o->rule].nfa;
}

static struct key *key_of(struct object *o, const char *s, size_t n) {
    for (uint32_t i = 0; i < o->n_keys; i++)
        if (o->keys[i].n == n && memcmp(o->keys[i].s, s, n) == 0) return &o->keys[i];
    struct key *keys = build__grow(o->b, o->keys, o->n_keys, &o->cap_keys, sizeof *keys);
    if (!keys || !build__work(o->b, o->n_keys)) return NULL;
    if (o->n_keys == MAX_KEYS) return build__fail(o->b, ST_LIMIT, "schema: an object with more than %d properties", MAX_KEYS), NULL;
    o->keys = keys;
    keys[o->n_keys] = (struct key){ s, n, false };
    return &keys[o->n_keys++];
}

static void read_patterns(struct object *o, const struct json_value *v) {
    for (const struct json_value *c = v->child; c && !o->b->status; c = c->next) {
        uint32_t i = 0;
        while (i < o->n_patterns && (o->patterns[i].v->n_key != c->n_key || memcmp(o->patterns[i].v->key, c->key, c->n_key) != 0)) i++;
        if (i < o->n_patterns) continue;
        if (i == MAX_PATTERNS) {
            schema__bad(o->x, ST_LIMIT, v, NULL, "more than 4 patterns");
            return;
        }
        o->patterns[o->n_patterns].v = c;
        o->patterns[o->n_patterns++].d = regex__dfa(o->b, c->key, c->n_key, REGEX_SEARCH, "schema: patternProperties");
    }
}

static void read_required(struct object *o, const struct json_value *required) {
    if (required->type == JSON_TRUE || required->type == JSON_FALSE) return; /* draft 3, of the property itself */
    if (required->type != JSON_ARRAY) schema__bad(o->x, ST_INVALID, required, NULL, "expected an array of strings");
    for (const struct json_value *c = required->child; c && !o->b->status; c = c->next) {
        if (c->type != JSON_STRING) {
            schema__bad(o->x, ST_INVALID, c, NULL, "expected a string");
            return;
        }
        struct key *k = key_of(o, c->s, c->n);
        if (k) k->required = true;
    }
}

static bool closed(const struct object *o, const struct json_value *v) {
    return o->b->closed && json__get(v, "properties") && !json__get(v, "additionalProperties") && !json__get(v, "patternProperties");
}

static void read_object(struct object *o) {
    o->others = true;
    for (uint32_t k = 0; k < o->l->n; k++) {
        const struct json_value *v = o->l->at[k].v, *properties = json__get(v, "properties"), *patterns = json__get(v, "patternProperties");
        const struct json_value *additional = json__get(v, "additionalProperties");
        uint32_t min = schema__count(o->x, v, "minProperties", 0), max = schema__count(o->x, v, "maxProperties", UINT32_MAX);
        o->min = min > o->min ? min : o->min;
        o->max = max < o->max ? max : o->max;
        o->others &= !((additional && additional->type == JSON_FALSE && !patterns) || closed(o, v));
        if (properties && properties->type != JSON_OBJECT) schema__bad(o->x, ST_INVALID, properties, NULL, "expected an object");
        for (const struct json_value *c = properties ? properties->child : NULL; c && !o->b->status; c = c->next) key_of(o, c->key, c->n_key);
        if (patterns && patterns->type != JSON_OBJECT) schema__bad(o->x, ST_INVALID, patterns, NULL, "expected an object");
        else if (patterns) read_patterns(o, patterns);
    }
    for (uint32_t k = 0; k < o->l->n && !o->b->status; k++) {
        const struct json_value *required = json__get(o->l->at[k].v, "required");
        if (required) read_required(o, required);
    }
}

/* ---- what a key's value must satisfy ---- */

static bool pattern_matches(struct object *o, uint32_t i, const char *s, size_t n) {
    const struct dfa *d = o->patterns[i].d;
    uint32_t state = 0, cp;
    if (!d || d->n_states == 0) return false;
    for (size_t at = 0; at < n;) {
        bool found = false;
        if (!utf8__next(s, n, &at, &cp)) return false;
        for (uint32_t e = d->first[state]; e < d->first[state + 1] && !found; e++)
            if (d->edges[e].lo <= cp && cp <= d->edges[e].hi) {
                state = d->edges[e].to;
                found = true;
            }
        if (!found) return false;
    }
    return d->final[state];
}

/* The rule for a value whose key matches the patterns in `matched`; the key is s [n], or one that no schema names (NULL). */
static uint32_t value_rule(struct object *o, const char *s, size_t n, uint32_t matched) {
    struct items set = { 0 };
    for (uint32_t k = 0; k < o->l->n; k++) {
        const struct json_value *v = o->l->at[k].v, *patterns = json__get(v, "patternProperties");
        const struct json_value *named = s ? json__get_n(json__get(v, "properties"), s, n) : NULL;
        const struct json_value *additional = json__get(v, "additionalProperties");
        bool mentioned = named;
        if (named) schema__item(o->x, &set, named, WHOLE);
        for (uint32_t i = 0; i < o->n_patterns; i++) {
            const struct json_value *p = json__get_n(patterns, o->patterns[i].v->key, o->patterns[i].v->n_key);
            if (!p || !(matched >> i & 1)) continue;
            schema__item(o->x, &set, p, WHOLE);
            mentioned = true;
        }
        if (!mentioned && additional) schema__item(o->x, &set, additional, WHOLE);
        if (!mentioned && closed(o, v)) return UINT32_MAX;
    }
    return schema__rule_of(o->x, &set);
}

/* ---- members ---- */

/* A rule for `"key": value`; UINT32_MAX when the key may not come. */
static uint32_t member_rule(struct object *o, const struct key *k) {
    struct build *b = o->b;
    uint32_t matched = 0;
    for (uint32_t i = 0; i < o->n_patterns; i++)
        if (pattern_matches(o, i, k->s, k->n)) matched |= 1u << i;
    uint32_t value = value_rule(o, k->s, k->n, matched), rule = value == UINT32_MAX ? value : build__rule(b);
    if (b->status || rule == UINT32_MAX) return UINT32_MAX;
    struct nfa *n = &b->rules[rule].nfa;
    struct frag f = b->rules[rule].frag;
    uint32_t colon = nfa__node(b, n), before = nfa__node(b, n);
    json__exactly_string(b, rule, f.from, colon, k->s, k->n);
    json__byte_space(b, rule, colon, before, ':');
    nfa__call(b, &b->rules[rule].nfa, before, f.to, value);
    return rule;
}

static struct dfa *declared_names(struct object *o) {
    struct nfa n = { 0 };
    struct frag f = nfa__frag(o->b, &n);
    uint32_t cp;
    for (uint32_t i = 0; i < o->n_keys; i++) {
        uint32_t at = f.from;
        for (size_t k = 0; k < o->keys[i].n && utf8__next(o->keys[i].s, o->keys[i].n, &k, &cp);) {
            uint32_t next = nfa__node(o->b, &n);
            nfa__edge(o->b, &n, at, next, cp, cp);
            at = next;
        }
        nfa__eps(o->b, &n, at, f.to);
    }
    return dfa__of(o->b, &n, f);
}

/* All members with other keys than the declared ones: one alternative per set of patterns that a key can match. */
static uint32_t others_rule(struct object *o) {
    struct build *b = o->b;
    uint32_t rule = build__rule(b);
    struct dfa *any = regex__dfa(b, ANY_TEXT, strlen(ANY_TEXT), REGEX_WHOLE, "schema");
    if (o->n_keys > 0 && !b->status) any = dfa__without(b, any, declared_names(o));
    for (uint32_t matched = 0; matched < 1u << o->n_patterns && !b->status; matched++) {
        struct dfa *d = any;
        for (uint32_t i = 0; i < o->n_patterns && !b->status; i++)
            d = matched >> i & 1 ? dfa__and(b, d, o->patterns[i].d) : dfa__without(b, d, o->patterns[i].d);
        if (b->status) break;
        uint32_t value = d->n_states ? value_rule(o, NULL, 0, matched) : UINT32_MAX;
        if (value == UINT32_MAX) continue;
        uint32_t colon = nfa__node(b, &b->rules[rule].nfa), before = nfa__node(b, &b->rules[rule].nfa);
        json__string_of(b, rule, 0, colon, d);
        json__byte_space(b, rule, colon, before, ':');
        if (!b->status) nfa__call(b, &b->rules[rule].nfa, before, 1, value);
    }
    return rule;
}

/* ---- the object ---- */

/* A grid: node (i, c) waits for key i or a later one, c members came so far (c counts up to `cap`, where it stays). Behind
 * a comma it is the same without the way to the end. */
static void make_grid(struct object *o, const uint32_t *members, uint32_t others, uint32_t cap, uint32_t open, uint32_t end) {
    struct build *b = o->b;
    uint32_t wide = cap + 1, n = (o->n_keys + 1) * wide, last = o->n_keys;
    uint32_t at = nfa_of(o)->n_nodes, after = at + n, space;
    nfa_of(o)->n_nodes += 2 * n; /* at: a member may begin here; after: a member ended here */
    space = nfa__node(b, nfa_of(o));
    nfa__eps(b, nfa_of(o), open, at);
    json__call(b, o->rule, space, end, JSON_RULE_SPACE);
    for (uint32_t i = 0; i <= last && !b->status; i++) {
        for (uint32_t c = 0; c <= cap && build__work(b, 1); c++) {
            uint32_t here = at + i * wide + c, up = c < cap ? c + 1 : c;
            uint32_t rule = i < last ? members[i] : others;
            bool full = o->max != UINT32_MAX && c == cap;
            if (rule != UINT32_MAX && !full) nfa__call(b, nfa_of(o), here, after + (i < last ? i + 1 : i) * wide + up, rule);
            if (i < last && !o->keys[i].required) {
                nfa__eps(b, nfa_of(o), here, here + wide);
                nfa__eps(b, nfa_of(o), after + i * wide + c, after + (i + 1) * wide + c);
            }
            if (c > 0 && !full) json__byte_space(b, o->rule, after + i * wide + c, here, ',');
            if (i == last && c >= o->min && c > 0) nfa__eps(b, nfa_of(o), after + i * wide + c, space);
            if (i == last && c >= o->min && c == 0) {
                bool optional = true;
                for (uint32_t k = 0; k < o->n_keys; k++) optional &= !o->keys[k].required;
                if (optional) nfa__eps(b, nfa_of(o), open, end);
            }
        }
    }
}

void schema__object(struct schema *x, const struct items *l, uint32_t rule, uint32_t from, uint32_t to) {
    struct build *b = schema__build(x);
    struct object o = { .x = x, .b = b, .l = l, .rule = rule, .max = UINT32_MAX };
    read_object(&o);
    uint32_t *members = build__alloc(b, o.n_keys, sizeof *members);
    for (uint32_t i = 0; i < o.n_keys && !b->status; i++) members[i] = member_rule(&o, &o.keys[i]);
    uint32_t others = o.others && !b->status ? others_rule(&o) : UINT32_MAX;
    if (b->status || o.min > o.max) return;
    uint32_t cap = o.max != UINT32_MAX ? o.max : o.min > 1 ? o.min : 1;
    if (o.min > 1 && others != UINT32_MAX) /* a repeated key counts once, and repeats cannot be kept out */
        schema__bad(x, ST_UNSUPPORTED, l->at[0].v, "minProperties", "above 1 it needs additionalProperties: false");
    if (others == UINT32_MAX && cap > o.n_keys + 1) cap = o.n_keys + 1;
    if ((uint64_t)(o.n_keys + 1) * (cap + 1) > MAX_GRID) schema__bad(x, ST_LIMIT, l->at[0].v, "maxProperties", "too large");
    if (b->status) return;
    uint32_t open = nfa__node(b, nfa_of(&o)), end = nfa__node(b, nfa_of(&o));
    json__byte_space(b, rule, from, open, '{');
    json__byte(b, rule, end, to, '}');
    make_grid(&o, members, others, cap, open, end);
}
