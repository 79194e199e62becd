/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of sequences and mappings. map, select and reject are lazy; what sorts or groups makes lists. Sorting is a
 * stable merge sort, as Python's, and counts its comparisons as steps. */
#include <string.h>

#include "chat/internal.h"

#define FILTER(name) static struct chat_value name(struct chat_run *r, struct chat_value v, const struct chat_value *a, const struct chat_args *raw)
#define UNUSED (void)r, (void)v, (void)a, (void)raw

static bool truthy(struct chat_run *r, struct chat_value v)
{
    return v.type != CHAT_INVALID && chat__truth(r, v);
}

static bool push(struct chat_run *r, struct chat_value list, struct chat_value item)
{
    if (!r->status && chat_list_push(&r->arena, list, item))
        chat__out_of_memory(r);
    return !r->status;
}

static struct chat_value pair(struct chat_run *r, struct chat_value x, struct chat_value y)
{
    struct chat_value t = chat__tuple(&r->arena);
    push(r, t, x);
    push(r, t, y);
    return t;
}

static struct chat_value ignore_case(struct chat_run *r, struct chat_value v)
{
    return v.type == CHAT_STRING ? chat__case(r, v, CASE_LOWER) : v;
}

/* The key of an item: an attribute of it when asked for, in lower case unless case counts. */
static struct chat_value key_of(struct chat_run *r, struct chat_value item, struct chat_value attribute, bool case_sensitive)
{
    if (attribute.type != CHAT_INVALID && attribute.type != CHAT_NONE)
        item = chat__path(r, item, attribute);
    return case_sensitive ? item : ignore_case(r, item);
}

/* items in the order of their keys; both are lists of the same length. */
static struct chat_value sorted(struct chat_run *r, struct chat_value items, struct chat_value keys, bool reverse)
{
    size_t n = chat_list_len(items);
    uint32_t *order = chat__alloc(r, (n + 1) * 2 * sizeof(*order));
    struct chat_value out = chat_list(&r->arena);
    if (!order || chat_list_len(keys) != n)
        return out;
    uint32_t *tmp = order + n;
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t width = 1; width < n && !r->status; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            for (size_t i = lo, j = mid, k = lo; k < hi; k++) {
                int c = i < mid && j < hi && chat__step(r, 0) ? chat__order(r, keys.l->item[order[j]], keys.l->item[order[i]], "<") : 0;
                bool left = j >= hi || (i < mid && (c == 2 || (reverse ? c <= 0 : c >= 0)));
                tmp[k] = left ? order[i++] : order[j++];
            }
        }
        memcpy(order, tmp, n * sizeof(*order));
    }
    for (size_t i = 0; i < n; i++)
        push(r, out, items.l->item[order[i]]);
    return out;
}

FILTER(f_sort)
{
    UNUSED;
    struct chat_value items = chat__to_list(r, v), keys = chat_list(&r->arena), comma = chat_string(&r->arena, ",", 1, CHAT_TRUSTED);
    bool case_sensitive = truthy(r, a[1]);
    struct chat_value names = a[2].type == CHAT_STRING && comma.type == CHAT_STRING ? chat__split(r, a[2], comma, -1, false) : chat_none();
    for (size_t i = 0; i < chat_list_len(items) && !r->status; i++) {
        struct chat_value key = chat_list(&r->arena);
        if (names.type != CHAT_LIST)
            push(r, key, key_of(r, items.l->item[i], a[2], case_sensitive));
        for (size_t k = 0; k < chat_list_len(names); k++)
            push(r, key, key_of(r, items.l->item[i], names.l->item[k], case_sensitive));
        push(r, keys, key);
    }
    return r->status ? chat_none() : sorted(r, items, keys, truthy(r, a[0]));
}

FILTER(f_dictsort)
{
    UNUSED;
    struct chat_value items = chat_list(&r->arena), keys = chat_list(&r->arena);
    bool by_value = a[1].type == CHAT_STRING && chat__str_eq(a[1].s, "value");
    if (a[1].type != CHAT_INVALID && !by_value && !(a[1].type == CHAT_STRING && chat__str_eq(a[1].s, "key")))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "You can only sort by either \"key\" or \"value\"");
    if (v.type == CHAT_UNDEFINED)
        return chat__fail_undefined(r, v);
    if (v.type != CHAT_DICT)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "'%s' object has no attribute 'items'", chat__type_name(v));
    for (uint32_t i = 0; i < v.d->n && !r->status; i++) {
        struct chat_value key = by_value ? v.d->entry[i].value : v.d->entry[i].key;
        push(r, items, pair(r, v.d->entry[i].key, v.d->entry[i].value));
        push(r, keys, truthy(r, a[0]) ? key : ignore_case(r, key));
    }
    return r->status ? chat_none() : sorted(r, items, keys, truthy(r, a[2]));
}

FILTER(f_groupby)
{
    UNUSED;
    struct chat_value items = chat__to_list(r, v), keys = chat_list(&r->arena), out = chat_list(&r->arena), group = {0};
    bool case_sensitive = truthy(r, a[2]), has_default = a[1].type != CHAT_INVALID && a[1].type != CHAT_NONE;
    for (size_t i = 0; i < chat_list_len(items) && !r->status; i++) {
        struct chat_value key = chat__path(r, items.l->item[i], a[0]);
        key = key.type == CHAT_UNDEFINED && has_default ? a[1] : key;
        push(r, keys, pair(r, case_sensitive ? key : ignore_case(r, key), key));
        items.l->item[i] = pair(r, keys.l->n ? keys.l->item[i] : key, items.l->item[i]);
    }
    struct chat_value only = chat_list(&r->arena);
    for (size_t i = 0; i < chat_list_len(keys) && !r->status; i++)
        push(r, only, keys.l->item[i].l->item[0]);
    items = r->status ? chat_list(&r->arena) : sorted(r, items, only, false);
    for (size_t i = 0; i < chat_list_len(items) && !r->status; i++) {
        struct chat_value key = items.l->item[i].l->item[0], item = items.l->item[i].l->item[1];
        struct chat_value before = i ? items.l->item[i - 1].l->item[0].l->item[0] : chat_none();
        if (i == 0 || !chat__compare(r, OP_EQ, before, key.l->item[0])) {
            group = pair(r, key.l->item[1], chat_list(&r->arena));
            group.flags = CHAT_GROUP;
            push(r, out, group);
        }
        if (!r->status)
            push(r, group.l->item[1], item);
    }
    return r->status ? chat_none() : out;
}

static struct chat_value extreme(struct chat_run *r, struct chat_value v, const struct chat_value *a, bool max)
{
    struct chat_value best, best_key, x;
    struct chat_iter *it = chat__iter(r, v);
    if (!it || !chat__next(r, it, &best))
        return chat__undefined_hint(r, "No aggregated item, sequence was empty.");
    best_key = key_of(r, best, a[1], truthy(r, a[0]));
    while (chat__next(r, it, &x)) {
        struct chat_value key = key_of(r, x, a[1], truthy(r, a[0]));
        int c = chat__order(r, key, best_key, max ? ">" : "<");
        if (c != 2 && (max ? c > 0 : c < 0)) {
            best = x;
            best_key = key;
        }
    }
    return best;
}

FILTER(f_min) { UNUSED; return extreme(r, v, a, false); }
FILTER(f_max) { UNUSED; return extreme(r, v, a, true); }

FILTER(f_sum)
{
    UNUSED;
    struct chat_value total = a[1].type == CHAT_INVALID ? chat_int(0) : a[1], x;
    struct chat_iter *it = chat__iter(r, v);
    if (total.type == CHAT_STRING)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "sum() can't sum strings [use ''.join(seq) instead]");
    while (it && chat__next(r, it, &x))
        total = chat__binary(r, OP_ADD, total, key_of(r, x, a[0], true));
    return total;
}

FILTER(f_join)
{
    UNUSED;
    struct chat_value sep = chat__to_str(r, a[0].type == CHAT_INVALID ? (struct chat_value){.type = CHAT_UNDEFINED} : a[0]);
    if (r->status)
        return chat_none();
    if (a[1].type != CHAT_INVALID && a[1].type != CHAT_NONE) {
        struct chat_iter *it = chat__alloc(r, sizeof(*it)), *source = chat__iter(r, v);
        if (!it || !source)
            return chat_none();
        *it = (struct chat_iter){.kind = ITER_MAP, .source = source, .path = a[1]};
        v = chat__iter_value(it);
    }
    sep.flags = 0;
    return chat__join(r, sep, v, true);
}

FILTER(f_first)
{
    UNUSED;
    struct chat_value x;
    struct chat_iter *it = chat__iter(r, v);
    return it && chat__next(r, it, &x) ? x : chat__undefined_hint(r, "No first item, sequence was empty.");
}

FILTER(f_last)
{
    UNUSED;
    if (v.type == CHAT_ITER || v.type == CHAT_LOOP || !chat__iterable(v))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "'%s' object is not reversible", chat__type_name(v));
    if (chat__len(v) == 0)
        return chat__undefined_hint(r, "No last item, sequence was empty.");
    if (v.type != CHAT_DICT && v.type != CHAT_VIEW)
        return chat__getitem(r, v, chat_int(-1));
    struct chat_value items = chat__to_list(r, v);
    return r->status ? chat_none() : items.l->item[items.l->n - 1];
}

FILTER(f_reverse)
{
    UNUSED;
    if (v.type == CHAT_STRING)
        return chat__slice(r, v, chat_none(), chat_none(), chat_int(-1));
    bool lazy = v.type != CHAT_ITER;
    v = chat__to_list(r, v);
    if (r->status)
        return v;
    v = chat__slice(r, v, chat_none(), chat_none(), chat_int(-1));
    struct chat_iter *it = r->status || !lazy ? NULL : chat__iter(r, v);
    return it ? chat__iter_value(it) : v;
}

FILTER(f_list) { UNUSED; return chat__to_list(r, v); }

FILTER(f_items)
{
    UNUSED;
    if (v.type != CHAT_DICT && v.type != CHAT_UNDEFINED)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "Can only get item pairs from a mapping.");
    struct chat_iter *it = chat__iter(r, v.type == CHAT_DICT ? (struct chat_value){.type = CHAT_VIEW, .flags = VIEW_ITEMS, .d = v.d} : v);
    return it ? chat__iter_value(it) : chat_none();
}

FILTER(f_attr)
{
    UNUSED;
    if (a[0].type != CHAT_STRING)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "attribute name must be string, not '%s'", chat__type_name(a[0]));
    if (v.type == CHAT_UNDEFINED)
        return chat__fail_undefined(r, v);
    struct chat_value got = chat__attribute(r, v, a[0]);
    return got.type == CHAT_MISSING ? chat__undefined(r, v.type, a[0]) : got;
}

/* n lists of as equal length as can be. */
FILTER(f_slice)
{
    UNUSED;
    struct chat_value seq = chat__to_list(r, v), out = chat_list(&r->arena);
    int64_t n = 0, at = 0;
    if (r->status || !chat__to_int(r, a[0], &n))
        return chat_none();
    if (n == 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "integer division or modulo by zero");
    for (int64_t i = 0; i < n && chat__step(r, 0); i++) {
        int64_t len = seq.l->n / n + (i < seq.l->n % n);
        struct chat_value part = chat_list(&r->arena);
        for (int64_t k = 0; k < len; k++)
            push(r, part, seq.l->item[at++]);
        if (a[1].type != CHAT_INVALID && a[1].type != CHAT_NONE && i >= seq.l->n % n)
            push(r, part, a[1]);
        push(r, out, part);
    }
    struct chat_iter *it = r->status ? NULL : chat__iter(r, out);
    return it ? chat__iter_value(it) : chat_none();
}

/* ---- lazy ---- */

/* The filter or test an argument names. */
static const struct chat_builtin *named(struct chat_run *r, struct chat_value name, bool is_filter)
{
    const struct chat_builtin *fn = name.type != CHAT_STRING ? NULL : is_filter ? chat__filter(name.s) : chat__test(name.s);
    if (!fn) {
        struct chat_value s = chat__to_str(r, name);
        if (!r->status)
            chat__fail(r, CHAT_ERROR_RUNTIME, "No %s named '%.*s'.", is_filter ? "filter" : "test", (int)s.s->len, s.s->p);
    }
    return fn;
}

static struct chat_value lazy(struct chat_run *r, struct chat_value v, struct chat_iter make)
{
    struct chat_iter *it = chat__alloc(r, sizeof(*it));
    make.source = !it || r->status ? NULL : chat__iter(r, v);
    if (!make.source)
        return chat_none();
    *it = make;
    return chat__iter_value(it);
}

static struct chat_value nothing(struct chat_run *r)
{
    struct chat_iter *it = chat__iter(r, (struct chat_value){.type = CHAT_UNDEFINED});
    return it ? chat__iter_value(it) : chat_none();
}

FILTER(f_unique)
{
    UNUSED;
    struct chat_iter it = {.kind = ITER_UNIQUE, .negate = truthy(r, a[0]), .path = a[1].type == CHAT_INVALID ? chat_none() : a[1], .over = chat_dict(&r->arena)};
    return it.over.type == CHAT_INVALID ? chat__out_of_memory(r) : lazy(r, v, it);
}

FILTER(f_batch)
{
    UNUSED;
    struct chat_iter it = {.kind = ITER_BATCH, .fallback = a[1].type == CHAT_NONE ? (struct chat_value){0} : a[1]};
    return chat__to_int(r, a[0], &it.batch) ? lazy(r, v, it) : chat_none();
}

FILTER(f_map)
{
    UNUSED;
    struct chat_iter it = {.kind = ITER_MAP};
    if (!chat__truth(r, v))
        return nothing(r);
    if (raw->n_pos == 0) {
        for (uint32_t i = 0; i < raw->n_kw; i++) {
            const struct chat_str *key = raw->kw[i].key.s;
            if (chat__str_eq(key, "attribute"))
                it.path = raw->kw[i].value;
            else if (chat__str_eq(key, "default"))
                it.fallback = raw->kw[i].value.type == CHAT_NONE ? it.fallback : raw->kw[i].value;
            else
                return chat__fail(r, CHAT_ERROR_RUNTIME, "Unexpected keyword argument '%.*s'", (int)key->len, key->p);
        }
        if (it.path.type == CHAT_INVALID)
            return chat__fail(r, CHAT_ERROR_RUNTIME, "map requires a filter argument");
        return lazy(r, v, it);
    }
    it.fn = named(r, raw->pos[0], true);
    it.args = (struct chat_args){.pos = raw->pos + 1, .n_pos = raw->n_pos - 1, .kw = raw->kw, .n_kw = raw->n_kw};
    return lazy(r, v, it);
}

static struct chat_value select(struct chat_run *r, struct chat_value v, const struct chat_args *raw, bool negate, bool attr)
{
    struct chat_iter it = {.kind = ITER_SELECT, .negate = negate};
    uint32_t off = attr;
    if (!chat__truth(r, v))
        return nothing(r);
    if (attr && raw->n_pos == 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "Missing parameter for attribute name");
    if (attr)
        it.path = raw->pos[0];
    if (raw->n_pos > off) {
        it.fn = named(r, raw->pos[off], false);
        it.args = (struct chat_args){.pos = raw->pos + off + 1, .n_pos = raw->n_pos - off - 1, .kw = raw->kw, .n_kw = raw->n_kw};
    }
    return lazy(r, v, it);
}

FILTER(f_select) { UNUSED; return select(r, v, raw, false, false); }
FILTER(f_reject) { UNUSED; return select(r, v, raw, true, false); }
FILTER(f_selectattr) { UNUSED; return select(r, v, raw, false, true); }
FILTER(f_rejectattr) { UNUSED; return select(r, v, raw, true, true); }

const struct chat_builtin chat__filters_seq[] = {
    {"attr", f_attr, "name", 1}, {"batch", f_batch, "linecount fill_with", 1}, {"dictsort", f_dictsort, "case_sensitive by reverse", 0},
    {"first", f_first, "", 0}, {"groupby", f_groupby, "attribute default case_sensitive", 1}, {"items", f_items, "", 0},
    {"join", f_join, "d attribute", 0}, {"last", f_last, "", 0}, {"list", f_list, "", 0}, {"map", f_map, NULL, 0},
    {"max", f_max, "case_sensitive attribute", 0}, {"min", f_min, "case_sensitive attribute", 0}, {"reject", f_reject, NULL, 0},
    {"rejectattr", f_rejectattr, NULL, 0}, {"reverse", f_reverse, "", 0}, {"select", f_select, NULL, 0},
    {"selectattr", f_selectattr, NULL, 0}, {"slice", f_slice, "slices fill_with", 1},
    {"sort", f_sort, "reverse case_sensitive attribute", 0}, {"sum", f_sum, "attribute start", 0},
    {"unique", f_unique, "case_sensitive attribute", 0},
};
const size_t chat__n_filters_seq = sizeof(chat__filters_seq) / sizeof(chat__filters_seq[0]);
