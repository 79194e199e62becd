/* SPDX-License-Identifier: Apache-2.0
 *
 * oneOf is made as anyOf, which is right only where no value can satisfy two branches. That is shown by types, by enum and
 * const, or in objects by a key that both require with different values, or one requires and the other does not have;
 * where it cannot be shown the schema is refused. */
#include <string.h>

#include "grammar/schema.h"

enum { MAX_BRANCHES = 200 };

static const struct json_value *follow(struct schema *x, const struct json_value *v) {
    for (int i = 0; i < 32 && v && v->type == JSON_OBJECT; i++) {
        const struct json_value *ref = json__get(v, "$ref");
        if (!ref) return v;
        v = schema__resolve(x, ref);
    }
    return v;
}

static const struct json_value *value_list(const struct json_value *v, bool *single) {
    const struct json_value *one = json__get(v, "const"), *many = json__get(v, "enum");
    *single = one;
    return one ? one : many && many->type == JSON_ARRAY ? many : NULL;
}

static bool is_plain(const struct json_value *number) {
    for (size_t i = 0; i < number->n; i++)
        if (strchr(".eE", number->s[i])) return false;
    return true;
}

static bool may_equal(const struct json_value *p, const struct json_value *q) {
    if (p->type != q->type || p->type < JSON_NUMBER) return p->type == q->type;
    if (p->type == JSON_NUMBER && is_plain(p) && is_plain(q)) return json__equal(p, q);
    return p->type != JSON_STRING || json__equal(p, q); /* written differently, and equal all the same? */
}

/* Both list their values and share none. */
static bool lists_disjoint(const struct json_value *a, const struct json_value *b) {
    bool one_a, one_b;
    const struct json_value *x = value_list(a, &one_a), *y = value_list(b, &one_b);
    if (!x || !y) return false;
    for (const struct json_value *p = one_a ? x : x->child; p; p = one_a ? NULL : p->next)
        for (const struct json_value *q = one_b ? y : y->child; q; q = one_b ? NULL : q->next)
            if (may_equal(p, q)) return false;
    return true;
}

static bool requires(const struct json_value *v, const struct json_value *key) {
    const struct json_value *required = json__get(v, "required");
    for (const struct json_value *c = required && required->type == JSON_ARRAY ? required->child : NULL; c; c = c->next)
        if (json__equal(c, key)) return true;
    return false;
}

static bool lacks(const struct json_value *v, const struct json_value *key) {
    const struct json_value *additional = json__get(v, "additionalProperties");
    return additional && additional->type == JSON_FALSE && !json__get(v, "patternProperties") &&
           !json__get_n(json__get(v, "properties"), key->s, key->n);
}

/* Objects only: of other types the required keys say nothing. */
static bool objects_disjoint(struct schema *x, const struct json_value *a, const struct json_value *b) {
    const struct json_value *required = json__get(a, "required");
    if (!required || required->type != JSON_ARRAY) return false;
    for (const struct json_value *c = required->child; c && !schema__build(x)->status; c = c->next) {
        if (c->type != JSON_STRING) continue;
        if (lacks(b, c)) return true;
        const struct json_value *p = json__get_n(json__get(a, "properties"), c->s, c->n);
        const struct json_value *q = json__get_n(json__get(b, "properties"), c->s, c->n);
        if (!p || !q || !requires(b, c) || !(p = follow(x, p)) || !(q = follow(x, q))) continue;
        if (p->type != JSON_OBJECT || q->type != JSON_OBJECT) continue;
        if (!(schema__types(x, p) & schema__types(x, q)) || lists_disjoint(p, q)) return true;
    }
    return false;
}

/* Types a schema allows; the types of its values where it lists them. */
static uint32_t types(struct schema *x, const struct json_value *v) {
    static const uint32_t BITS[] = { TYPE_NULL, TYPE_BOOLEAN, TYPE_BOOLEAN, TYPE_NUMBER | TYPE_INTEGER, TYPE_STRING, TYPE_ARRAY, TYPE_OBJECT };
    bool single;
    const struct json_value *list = value_list(v, &single);
    uint32_t bits = 0;
    for (const struct json_value *c = list && single ? list : list ? list->child : NULL; c; c = single ? NULL : c->next) bits |= BITS[c->type];
    return schema__types(x, v) & (list ? bits : TYPE_ALL);
}

static bool disjoint(struct schema *x, const struct json_value *a, const struct json_value *b) {
    a = follow(x, a);
    b = follow(x, b);
    if (!a || !b || a->type == JSON_FALSE || b->type == JSON_FALSE) return true;
    if (a->type != JSON_OBJECT || b->type != JSON_OBJECT) return false;
    uint32_t common = types(x, a) & types(x, b);
    if (common == 0 || lists_disjoint(a, b)) return true;
    return common == TYPE_OBJECT && (objects_disjoint(x, a, b) || objects_disjoint(x, b, a));
}

void schema__check_one_of(struct schema *x, const struct json_value *branches) {
    if (branches->n_children > MAX_BRANCHES) schema__bad(x, ST_LIMIT, branches, NULL, "more than 200 branches");
    for (const struct json_value *a = branches->child; a && !schema__build(x)->status; a = a->next)
        for (const struct json_value *b = a->next; b && !schema__build(x)->status; b = b->next)
            if (!disjoint(x, a, b))
                schema__bad(x, ST_UNSUPPORTED, branches, NULL, "supported where no value can satisfy two branches, which cannot be shown here; use anyOf");
}
