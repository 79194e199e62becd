/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON schema: keywords, references, and sets of schemas -> rules (schema.h has the idea). Rules wait in a list instead
 * of calling each other, so nesting and recursion of the schema cost no stack. docs/STRUCTURED.md says what is covered;
 * a keyword that is not, or not known, is an error with its path. */
#include <stdio.h>
#include <string.h>

#include "grammar/schema.h"

enum { MAX_ITEMS = 2000, BUCKETS = 4096 };

struct known { struct items items; uint32_t rule, next; };

struct schema {
    struct build *b;
    const struct json_value *root;
    struct known *known;            /* sets seen so far, which is also the list of rules to make */
    uint32_t n_known, cap_known, n_made;
    uint32_t buckets[BUCKETS];      /* 1 + known */
};

struct build *schema__build(struct schema *x) {
    return x->b;
}

/* ---- errors ---- */

static void put(char *out, size_t cap, size_t *len, const char *s, size_t n) {
    for (size_t i = 0; i < n && *len + 1 < cap; i++) out[(*len)++] = s[i];
    out[*len] = 0;
}

static void put_path(char *out, size_t cap, size_t *len, const struct json_value *v) {
    const struct json_value *up[MAX_NESTING + 1];
    uint32_t n = 0;
    char index[16];
    for (; v->parent && n <= MAX_NESTING; v = v->parent) up[n++] = v;
    put(out, cap, len, "#", 1);
    while (n-- > 0) {
        put(out, cap, len, "/", 1);
        if (up[n]->key) put(out, cap, len, up[n]->key, up[n]->n_key < 60 ? up[n]->n_key : 60);
        else put(out, cap, len, index, (size_t)snprintf(index, sizeof index, "%u", up[n]->index));
    }
}

void schema__bad(struct schema *x, int code, const struct json_value *v, const char *keyword, const char *what) {
    char path[320];
    size_t len = 0;
    put_path(path, sizeof path, &len, v);
    if (keyword) put(path, sizeof path, &len, "/", 1);
    if (keyword) put(path, sizeof path, &len, keyword, strlen(keyword));
    build__fail(x->b, code, "schema: %s: %s", path, what);
}

/* ---- keywords ---- */

enum keyword_class { ANNOTATION, HANDLED, REFUSED };

static const struct { const char *name; enum keyword_class class; } KEYWORDS[] = {
    { "$ref", HANDLED }, { "allOf", HANDLED }, { "anyOf", HANDLED }, { "oneOf", HANDLED }, { "type", HANDLED }, { "enum", HANDLED },
    { "const", HANDLED }, { "nullable", HANDLED }, { "properties", HANDLED }, { "required", HANDLED }, { "patternProperties", HANDLED },
    { "additionalProperties", HANDLED }, { "minProperties", HANDLED }, { "maxProperties", HANDLED }, { "items", HANDLED },
    { "prefixItems", HANDLED }, { "additionalItems", HANDLED }, { "minItems", HANDLED }, { "maxItems", HANDLED },
    { "uniqueItems", HANDLED }, { "minLength", HANDLED }, { "maxLength", HANDLED }, { "pattern", HANDLED }, { "format", HANDLED },
    { "minimum", HANDLED }, { "maximum", HANDLED }, { "exclusiveMinimum", HANDLED }, { "exclusiveMaximum", HANDLED },
    { "title", ANNOTATION }, { "description", ANNOTATION }, { "default", ANNOTATION }, { "example", ANNOTATION },
    { "examples", ANNOTATION }, { "$comment", ANNOTATION }, { "$schema", ANNOTATION }, { "$defs", ANNOTATION },
    { "definitions", ANNOTATION }, { "deprecated", ANNOTATION }, { "readOnly", ANNOTATION }, { "writeOnly", ANNOTATION },
    { "contentEncoding", ANNOTATION }, { "contentMediaType", ANNOTATION }, { "discriminator", ANNOTATION }, { "$id", ANNOTATION },
    { "id", ANNOTATION }, { "$anchor", ANNOTATION }, { "$vocabulary", ANNOTATION },
    { "multipleOf", REFUSED }, { "not", REFUSED }, { "if", REFUSED }, { "then", REFUSED }, { "else", REFUSED },
    { "contains", REFUSED }, { "minContains", REFUSED }, { "maxContains", REFUSED }, { "propertyNames", REFUSED },
    { "dependencies", REFUSED }, { "dependentRequired", REFUSED }, { "dependentSchemas", REFUSED },
    { "unevaluatedItems", REFUSED }, { "unevaluatedProperties", REFUSED }, { "contentSchema", REFUSED },
    { "$dynamicRef", REFUSED }, { "$dynamicAnchor", REFUSED }, { "$recursiveRef", REFUSED }, { "$recursiveAnchor", REFUSED },
};

static void check_keyword(struct schema *x, const struct json_value *v) {
    if (v->n_key > 2 && memcmp(v->key, "x-", 2) == 0) return;
    for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++) {
        if (!json__names(v, KEYWORDS[i].name)) continue;
        if (KEYWORDS[i].class == REFUSED) schema__bad(x, ST_UNSUPPORTED, v, NULL, "this keyword is not supported");
        if (v->parent->parent && json__names(v, "$id"))
            schema__bad(x, ST_UNSUPPORTED, v, NULL, "supported at the root only"); /* it would move the base of references */
        return;
    }
    schema__bad(x, ST_UNSUPPORTED, v, NULL, "unknown keyword");
}

static void check_schema(struct schema *x, const struct json_value *v) {
    struct json_value *mark = (struct json_value *)v; /* the mark is ours, the value is not changed */
    if (v->checked) return;
    mark->checked = true;
    if (v->type != JSON_OBJECT) {
        schema__bad(x, ST_INVALID, v, NULL, "a schema is an object, true or false");
        return;
    }
    for (const struct json_value *c = v->child; c && !x->b->status; c = c->next) check_keyword(x, c);
    const struct json_value *unique = json__get(v, "uniqueItems");
    if (unique && unique->type != JSON_FALSE) schema__bad(x, ST_UNSUPPORTED, unique, NULL, "only false is supported");
}

static uint32_t type_bit(struct schema *x, const struct json_value *v) {
    static const struct { const char *name; uint32_t bits; } TYPES[] = {
        { "null", TYPE_NULL }, { "boolean", TYPE_BOOLEAN }, { "integer", TYPE_INTEGER }, { "number", TYPE_NUMBER | TYPE_INTEGER },
        { "string", TYPE_STRING }, { "array", TYPE_ARRAY }, { "object", TYPE_OBJECT },
    };
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (json__is(v, TYPES[i].name)) return TYPES[i].bits;
    schema__bad(x, ST_INVALID, v, NULL, "expected null, boolean, integer, number, string, array or object");
    return 0;
}

uint32_t schema__types(struct schema *x, const struct json_value *v) {
    const struct json_value *type = json__get(v, "type"), *nullable = json__get(v, "nullable");
    uint32_t bits = 0;
    if (!type) return TYPE_ALL;
    if (type->type == JSON_ARRAY)
        for (const struct json_value *c = type->child; c; c = c->next) bits |= type_bit(x, c);
    else
        bits = type_bit(x, type);
    return bits | (nullable && nullable->type == JSON_TRUE ? TYPE_NULL : 0);
}

uint32_t schema__count(struct schema *x, const struct json_value *v, const char *keyword, uint32_t absent) {
    const struct json_value *c = json__get(v, keyword);
    uint32_t n = 0;
    if (!c) return absent;
    if (c->type != JSON_NUMBER) return schema__bad(x, ST_INVALID, c, NULL, "expected a number"), absent;
    for (size_t i = 0; i < c->n; i++) {
        if (c->s[i] == '.' && i + 1 < c->n && strspn(c->s + i + 1, "0") >= c->n - i - 1) break;
        if (c->s[i] < '0' || c->s[i] > '9') return schema__bad(x, ST_INVALID, c, NULL, "expected a whole number of 0 or more"), absent;
        n = n > 100000000 ? 1000000000 : n * 10 + (uint32_t)(c->s[i] - '0');
    }
    return n;
}

/* ---- references ---- */

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* One step of a JSON pointer in a URI fragment: %XX and ~0 ~1 undone. */
static size_t pointer_step(const char *s, size_t n, char *out) {
    size_t len = 0, m = 0;
    for (size_t i = 0; i < n; i++) {
        bool escaped = s[i] == '%' && i + 2 < n && hex(s[i + 1]) >= 0 && hex(s[i + 2]) >= 0;
        out[len++] = escaped ? (char)(hex(s[i + 1]) << 4 | hex(s[i + 2])) : s[i];
        i += escaped ? 2 : 0;
    }
    for (size_t i = 0; i < len; i++) {
        bool escaped = out[i] == '~' && i + 1 < len && (out[i + 1] == '0' || out[i + 1] == '1');
        out[m++] = escaped ? (out[i + 1] == '0' ? '~' : '/') : out[i];
        i += escaped;
    }
    return m;
}

static const struct json_value *child_at(const struct json_value *v, const char *step, size_t n) {
    uint32_t index = 0;
    if (v->type != JSON_ARRAY) return json__get_n(v, step, n);
    if (n < 1 || n > 6) return NULL;
    for (size_t i = 0; i < n; i++) {
        if (step[i] < '0' || step[i] > '9') return NULL;
        index = index * 10 + (uint32_t)(step[i] - '0');
    }
    for (const struct json_value *c = v->child; c; c = c->next)
        if (c->index == index) return c;
    return NULL;
}

const struct json_value *schema__resolve(struct schema *x, const struct json_value *ref) {
    const struct json_value *v = x->root;
    if (ref->type != JSON_STRING || ref->n < 1 || ref->s[0] != '#' || (ref->n > 1 && ref->s[1] != '/'))
        return schema__bad(x, ST_UNSUPPORTED, ref, NULL, "only references within the schema, \"#\" or \"#/...\", are supported"), NULL;
    char *step = build__alloc(x->b, ref->n, 1);
    for (size_t at = 1; step && v && at < ref->n;) {
        size_t end = ++at;
        while (end < ref->n && ref->s[end] != '/') end++;
        v = child_at(v, step, pointer_step(ref->s + at, end - at, step));
        at = end;
    }
    if (!v) schema__bad(x, ST_INVALID, ref, NULL, "it points at nothing");
    return step ? v : NULL;
}

/* ---- sets of schemas ---- */

static bool has_item(const struct items *s, const struct json_value *v, enum item_kind kind) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->at[i].v == v && s->at[i].kind == kind) return true;
    return false;
}

void schema__item(struct schema *x, struct items *s, const struct json_value *v, enum item_kind kind) {
    if (x->b->status || has_item(s, v, kind)) return;
    if (s->n == MAX_ITEMS) {
        schema__bad(x, ST_LIMIT, v, NULL, "more than 2000 schemas for one value");
        return;
    }
    struct item *at = build__grow(x->b, s->at, s->n, &s->cap, sizeof *at);
    if (!at || !build__work(x->b, 1 + s->n / 8)) return;
    s->at = at;
    at[s->n++] = (struct item){ v, kind };
}

uint32_t schema__rule_of(struct schema *x, const struct items *s) {
    uint64_t h = s->n;
    if (x->b->status) return UINT32_MAX;
    for (uint32_t i = 0; i < s->n; i++) h += ((uint64_t)(uintptr_t)s->at[i].v * 4 + s->at[i].kind) * 0x9E3779B97F4A7C15u; /* any order */
    uint32_t bucket = (uint32_t)(h >> 40) % BUCKETS;
    for (uint32_t i = x->buckets[bucket]; i; i = x->known[i - 1].next) {
        const struct items *k = &x->known[i - 1].items;
        bool same = k->n == s->n;
        for (uint32_t j = 0; same && j < s->n; j++) same = has_item(k, s->at[j].v, s->at[j].kind);
        if (!build__work(x->b, 1 + (uint64_t)s->n)) return UINT32_MAX;
        if (same) return x->known[i - 1].rule;
    }
    struct known *known = build__grow(x->b, x->known, x->n_known, &x->cap_known, sizeof *known);
    uint32_t rule = build__rule(x->b);
    if (x->b->status) return UINT32_MAX;
    x->known = known;
    known[x->n_known] = (struct known){ *s, rule, x->buckets[bucket] };
    x->buckets[bucket] = ++x->n_known;
    return rule;
}

/* Looks through $ref, allOf and so on; false when no value can satisfy the set. */
static bool flatten(struct schema *x, const struct items *in, struct items *out) {
    struct items todo = { 0 };
    for (uint32_t i = 0; i < in->n; i++) schema__item(x, in->at[i].kind == WHOLE ? &todo : out, in->at[i].v, in->at[i].kind);
    for (uint32_t i = 0; i < todo.n && !x->b->status; i++) { /* grows meanwhile */
        static const char *const MANY[] = { "anyOf", "oneOf" };
        const struct json_value *v = todo.at[i].v, *ref, *all;
        if (v->type == JSON_FALSE) return false;
        if (v->type == JSON_TRUE) continue;
        check_schema(x, v);
        schema__item(x, out, v, LOCAL);
        if ((ref = json__get(v, "$ref")) && (ref = schema__resolve(x, ref))) schema__item(x, &todo, ref, WHOLE);
        if ((all = json__get(v, "allOf"))) {
            if (all->type != JSON_ARRAY) schema__bad(x, ST_INVALID, all, NULL, "expected an array of schemas");
            for (const struct json_value *c = all->child; c; c = c->next) schema__item(x, &todo, c, WHOLE);
        }
        for (uint32_t k = 0; k < 2; k++) {
            const struct json_value *some = json__get(v, MANY[k]);
            if (!some) continue;
            if (some->type != JSON_ARRAY || !some->child) schema__bad(x, ST_INVALID, some, NULL, "expected an array of schemas");
            else if (k == 1 && !has_item(out, some, BRANCHES)) schema__check_one_of(x, some);
            schema__item(x, out, some, BRANCHES);
        }
    }
    return !x->b->status;
}

/* ---- rules ---- */

static const struct json_value *choices_of(const struct json_value *v, bool *single) {
    const struct json_value *one = json__get(v, "const");
    *single = one;
    return one ? one : json__get(v, "enum");
}

static bool among(const struct json_value *v, const struct json_value *choices, bool single) {
    if (single) return json__equal(v, choices);
    for (const struct json_value *c = choices->child; c; c = c->next)
        if (json__equal(v, c)) return true;
    return false;
}

/* 1 and 1.0 are integers; so is 1e2, but it is not taken for one. */
static bool is_whole(const struct json_value *v) {
    size_t i = 0;
    while (i < v->n && (v->s[i] == '-' || (v->s[i] >= '0' && v->s[i] <= '9'))) i++;
    if (i < v->n && v->s[i] == '.') i++;
    while (i < v->n && v->s[i] == '0') i++;
    return i == v->n;
}

static uint32_t type_of(const struct json_value *v) {
    static const uint32_t BITS[] = { TYPE_NULL, TYPE_BOOLEAN, TYPE_BOOLEAN, TYPE_NUMBER, TYPE_STRING, TYPE_ARRAY, TYPE_OBJECT };
    return v->type == JSON_NUMBER && is_whole(v) ? TYPE_INTEGER : BITS[v->type];
}

/* Whether the other keywords of a schema with an enum beside it would have to be checked against value v. */
static const char *constraint_on(const struct json_value *v, const struct json_value *schema) {
    static const struct { const char *name; uint32_t types; } ALL[] = {
        { "minLength", TYPE_STRING }, { "maxLength", TYPE_STRING }, { "pattern", TYPE_STRING }, { "format", TYPE_STRING },
        { "minimum", TYPE_NUMBER | TYPE_INTEGER }, { "maximum", TYPE_NUMBER | TYPE_INTEGER },
        { "exclusiveMinimum", TYPE_NUMBER | TYPE_INTEGER }, { "exclusiveMaximum", TYPE_NUMBER | TYPE_INTEGER },
        { "items", TYPE_ARRAY }, { "prefixItems", TYPE_ARRAY }, { "minItems", TYPE_ARRAY }, { "maxItems", TYPE_ARRAY },
        { "properties", TYPE_OBJECT }, { "required", TYPE_OBJECT }, { "additionalProperties", TYPE_OBJECT },
        { "patternProperties", TYPE_OBJECT }, { "minProperties", TYPE_OBJECT }, { "maxProperties", TYPE_OBJECT },
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if ((ALL[i].types & type_of(v)) && json__get(schema, ALL[i].name)) return ALL[i].name;
    return NULL;
}

/* v is one of the values given by a schema of l: is it allowed by all of them? */
static bool choice_holds(struct schema *x, const struct items *l, const struct json_value *v, uint32_t types) {
    if (!(type_of(v) & types)) return false;
    for (uint32_t i = 0; i < l->n; i++) {
        bool single;
        const struct json_value *schema = l->at[i].v, *choices = choices_of(schema, &single), *all = json__get(schema, "enum");
        const char *other = constraint_on(v, schema);
        if (other) schema__bad(x, ST_UNSUPPORTED, schema, other, "not supported together with enum or const");
        if (choices && !among(v, choices, single)) return false;
        if (all && single && !among(v, all, false)) return false;
    }
    return true;
}

static bool make_choices(struct schema *x, const struct items *l, uint32_t types, uint32_t rule, struct frag f) {
    for (uint32_t i = 0; i < l->n; i++) {
        bool single;
        const struct json_value *choices = choices_of(l->at[i].v, &single);
        if (!choices) continue;
        if (!single && choices->type != JSON_ARRAY) schema__bad(x, ST_INVALID, choices, NULL, "expected an array");
        for (const struct json_value *c = single ? choices : choices->child; c && !x->b->status; c = single ? NULL : c->next)
            if (choice_holds(x, l, c, types)) json__exactly(x->b, rule, f.from, f.to, c);
        return true;
    }
    return false;
}

static void make_local(struct schema *x, const struct items *l, uint32_t rule, struct frag f) {
    uint32_t types = TYPE_ALL;
    struct build *b = x->b;
    for (uint32_t i = 0; i < l->n; i++) types &= schema__types(x, l->at[i].v);
    if (b->status || make_choices(x, l, types, rule, f)) return;
    if (types & TYPE_NULL) nfa__text(b, &b->rules[rule].nfa, f.from, f.to, "null", 4);
    if (types & TYPE_BOOLEAN) nfa__text(b, &b->rules[rule].nfa, f.from, f.to, "true", 4);
    if (types & TYPE_BOOLEAN) nfa__text(b, &b->rules[rule].nfa, f.from, f.to, "false", 5);
    if (types & (TYPE_NUMBER | TYPE_INTEGER)) schema__number(x, l, !(types & TYPE_NUMBER), rule, f.from, f.to);
    if (types & TYPE_STRING) schema__string(x, l, rule, f.from, f.to);
    if (types & TYPE_ARRAY) schema__array(x, l, rule, f.from, f.to);
    if (types & TYPE_OBJECT) schema__object(x, l, rule, f.from, f.to);
}

/* Nothing but annotations and the four keywords that flatten() took care of. */
static bool means_nothing(const struct json_value *v) {
    enum { APPLICATORS = 4 };
    for (const struct json_value *c = v->child; c; c = c->next)
        for (size_t i = APPLICATORS; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
            if (KEYWORDS[i].class == HANDLED && json__names(c, KEYWORDS[i].name)) return false;
    return true;
}

/* One rule per branch of the first array of branches; the rest of the set goes into each. */
static void make_branches(struct schema *x, const struct items *all, uint32_t at, uint32_t rule, struct frag f) {
    for (const struct json_value *c = all->at[at].v->child; c && !x->b->status; c = c->next) {
        struct items s = { 0 };
        for (uint32_t i = 0; i < all->n; i++)
            if (i != at && !(all->at[i].kind == LOCAL && means_nothing(all->at[i].v))) schema__item(x, &s, all->at[i].v, all->at[i].kind);
        schema__item(x, &s, c, WHOLE);
        uint32_t branch = schema__rule_of(x, &s);
        if (!x->b->status) nfa__call(x->b, &x->b->rules[rule].nfa, f.from, f.to, branch);
    }
}

static void make_rule(struct schema *x, struct items in, uint32_t rule) {
    struct items all = { 0 }, l = { 0 };
    struct frag f = x->b->rules[rule].frag;
    if (!flatten(x, &in, &all)) return;
    for (uint32_t i = 0; i < all.n; i++) {
        if (all.at[i].kind == BRANCHES) {
            make_branches(x, &all, i, rule, f);
            return;
        }
        if (!means_nothing(all.at[i].v)) schema__item(x, &l, all.at[i].v, LOCAL);
    }
    if (l.n == 0) json__call(x->b, rule, f.from, f.to, JSON_RULE_VALUE);
    else make_local(x, &l, rule, f);
}

uint32_t schema__rule(struct build *b, const char *s, size_t n) {
    struct schema *x = build__alloc(b, 1, sizeof *x);
    const struct json_value *root = json__read(b, s, n);
    struct items all = { 0 };
    if (!x || !root) return UINT32_MAX;
    x->b = b;
    x->root = root;
    schema__item(x, &all, root, WHOLE);
    uint32_t rule = schema__rule_of(x, &all);
    while (x->n_made < x->n_known && !b->status) {
        struct known k = x->known[x->n_made++];
        make_rule(x, k.items, k.rule);
    }
    return b->status ? UINT32_MAX : rule;
}
