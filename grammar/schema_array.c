/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays of a schema: the rule of element i is the set of what each schema says about element i. */
#include "grammar/schema.h"

enum { MAX_ELEMENTS = 20000 };

/* What v says of elements behind its prefix: `items`, or `additionalItems` beside an array of items (before 2020-12). */
struct element_schemas { const struct json_value *prefix, *rest; };

static struct element_schemas element_schemas(const struct json_value *v) {
    const struct json_value *items = json__get(v, "items"), *prefix = json__get(v, "prefixItems");
    if (items && items->type == JSON_ARRAY) return (struct element_schemas){ items, json__get(v, "additionalItems") };
    return (struct element_schemas){ prefix, items };
}

/* i = UINT32_MAX: behind every prefix. */
static uint32_t element_rule(struct schema *x, const struct items *l, uint32_t i) {
    struct items s = { 0 };
    for (uint32_t k = 0; k < l->n; k++) {
        struct element_schemas e = element_schemas(l->at[k].v);
        const struct json_value *of_i = NULL;
        for (const struct json_value *c = e.prefix ? e.prefix->child : NULL; c && i != UINT32_MAX; c = c->next)
            if (c->index == i) of_i = c;
        if (of_i) schema__item(x, &s, of_i, WHOLE);
        else if (e.rest) schema__item(x, &s, e.rest, WHOLE);
    }
    return schema__rule_of(x, &s);
}

struct bounds { uint32_t min, max, prefix; };

static struct bounds read_bounds(struct schema *x, const struct items *l) {
    struct bounds o = { 0, UINT32_MAX, 0 };
    for (uint32_t k = 0; k < l->n; k++) {
        const struct json_value *v = l->at[k].v;
        struct element_schemas e = element_schemas(v);
        uint32_t min = schema__count(x, v, "minItems", 0), max = schema__count(x, v, "maxItems", UINT32_MAX);
        if (e.prefix && e.prefix->type != JSON_ARRAY) schema__bad(x, ST_INVALID, e.prefix, NULL, "expected an array of schemas");
        else if (e.prefix && e.prefix->n_children > o.prefix) o.prefix = e.prefix->n_children;
        o.min = min > o.min ? min : o.min;
        o.max = max < o.max ? max : o.max;
        if (o.min > MAX_ELEMENTS || (o.max > MAX_ELEMENTS && o.max != UINT32_MAX))
            schema__bad(x, ST_LIMIT, v, o.min > MAX_ELEMENTS ? "minItems" : "maxItems", "more than 20000 elements");
    }
    return o;
}

static struct nfa *nfa_of(struct schema *x, uint32_t rule) {
    return &schema__build(x)->rules[rule].nfa;
}

void schema__array(struct schema *x, const struct items *l, uint32_t rule, uint32_t from, uint32_t to) {
    struct build *b = schema__build(x);
    struct bounds o = read_bounds(x, l);
    if (b->status || o.min > o.max) return;
    uint32_t last = o.max != UINT32_MAX ? o.max : o.prefix > o.min ? o.prefix : o.min; /* counted ones */
    struct nfa *n = nfa_of(x, rule);
    uint32_t open = nfa__node(b, n), before = nfa__node(b, n), space = nfa__node(b, n), end = nfa__node(b, n);
    nfa__eps(b, n, open, before); /* only here can the end follow at once: `before` comes after commas, too */
    json__byte_space(b, rule, from, open, '[');
    json__call(b, rule, space, end, JSON_RULE_SPACE);
    json__byte(b, rule, end, to, ']');
    if (o.min == 0 && !b->status) nfa__eps(b, nfa_of(x, rule), open, end);
    for (uint32_t i = 0; i <= last && !b->status; i++) {
        if (i == last && o.max != UINT32_MAX) break;
        uint32_t element = element_rule(x, l, i < o.prefix ? i : UINT32_MAX);
        if (b->status) return;
        uint32_t after = nfa__node(b, nfa_of(x, rule)), next = i == last ? before : nfa__node(b, nfa_of(x, rule));
        nfa__call(b, nfa_of(x, rule), before, after, element);
        if (i + 1 >= o.min) nfa__eps(b, nfa_of(x, rule), after, space);
        if (i + 1 < o.max) json__byte_space(b, rule, after, next, ',');
        before = next;
    }
}
