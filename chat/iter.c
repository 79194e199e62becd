/* SPDX-License-Identifier: Apache-2.0
 *
 * Iteration: over sequences, strings, dictionaries and ranges; the lazy results of map, select and reject, which can be
 * consumed once as in Python; the filtered source of `for x in y if z`; and `loop`, which looks one item ahead. */
#include "chat/internal.h"

bool chat__iterable(struct chat_value v)
{
    switch (v.type) {
    case CHAT_STRING: case CHAT_LIST: case CHAT_TUPLE: case CHAT_DICT: case CHAT_VIEW: case CHAT_RANGE: case CHAT_ITER:
    case CHAT_UNDEFINED: case CHAT_LOOP:
        return true;
    default:
        return false;
    }
}

struct chat_value chat__iter_value(struct chat_iter *it)
{
    return (struct chat_value){.type = CHAT_ITER, .p = it};
}

struct chat_iter *chat__iter(struct chat_run *r, struct chat_value v)
{
    static const uint8_t kinds[] = {[CHAT_STRING] = ITER_STR, [CHAT_DICT] = ITER_DICT, [CHAT_VIEW] = ITER_DICT, [CHAT_RANGE] = ITER_RANGE, [CHAT_LOOP] = ITER_LOOP};
    if (v.type == CHAT_ITER)
        return v.p;
    if (!chat__iterable(v)) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "'%s' object is not iterable", chat__type_name(v));
        return NULL;
    }
    struct chat_iter *it = chat__alloc(r, sizeof(*it));
    if (!it)
        return NULL;
    *it = (struct chat_iter){.over = v, .kind = chat__is_seq(v) || v.type == CHAT_UNDEFINED ? ITER_SEQ : kinds[v.type]};
    it->view = v.type == CHAT_VIEW ? v.flags : VIEW_KEYS;
    return it;
}

static bool next_char(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    const struct chat_str *s = it->over.s;
    if (it->at >= s->len)
        return false;
    size_t end = it->at + chat__char_len(s->p + it->at, s->len - it->at);
    *out = chat__str_slice(&r->arena, it->over, it->at, end);
    it->at = end;
    out->flags = 0; /* the characters of Markup are plain */
    if (out->type == CHAT_INVALID)
        chat__out_of_memory(r);
    return !r->status;
}

static bool next_entry(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    const struct chat_dict *d = it->over.d;
    if (it->at >= d->n)
        return false;
    const struct chat_entry *e = &d->entry[it->at++];
    if (it->view != VIEW_ITEMS) {
        *out = it->view == VIEW_KEYS ? e->key : e->value;
        return true;
    }
    *out = chat__tuple(&r->arena);
    if (chat_list_push(&r->arena, *out, e->key) || chat_list_push(&r->arena, *out, e->value))
        chat__out_of_memory(r);
    return !r->status;
}

static bool next_mapped(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    if (!chat__next(r, it->source, out))
        return false;
    if (it->path.type != CHAT_INVALID) {
        *out = chat__path(r, *out, it->path);
        if (out->type == CHAT_UNDEFINED && it->fallback.type != CHAT_INVALID)
            *out = it->fallback;
    }
    if (it->fn)
        *out = chat__call_builtin(r, it->fn, *out, &it->args);
    return !r->status;
}

static bool next_selected(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    while (chat__next(r, it->source, out)) {
        struct chat_value v = it->path.type == CHAT_INVALID ? *out : chat__path(r, *out, it->path);
        if (it->fn)
            v = chat__call_builtin(r, it->fn, v, &it->args);
        if (chat__truth(r, v) != it->negate && !r->status)
            return true;
    }
    return false;
}

/* it->over: what was seen */
static bool next_unique(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    while (chat__next(r, it->source, out)) {
        struct chat_value key = it->path.type == CHAT_NONE ? *out : chat__path(r, *out, it->path);
        if (!it->negate && key.type == CHAT_STRING)
            key = chat__case(r, key, CASE_LOWER);
        if (!r->status && !chat__hashable(key))
            chat__fail(r, CHAT_ERROR_RUNTIME, "unhashable type: '%s'", chat__type_name(key));
        if (r->status || chat__dict_find(it->over.d, key).type != CHAT_INVALID)
            continue;
        if (chat__dict_put(&r->arena, it->over.d, key, key))
            chat__out_of_memory(r);
        return !r->status;
    }
    return false;
}

/* Rows of it->batch items; the last one is filled up. */
static bool next_batch(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    struct chat_value x, row = chat_list(&r->arena);
    int st = row.type == CHAT_INVALID;
    if (it->at) /* the item that began the next row */
        st |= chat_list_push(&r->arena, row, it->over);
    it->at = 0;
    while (!st && chat__next(r, it->source, &x)) {
        if (row.l->n && (int64_t)row.l->n == it->batch) {
            it->over = x;
            it->at = 1;
            break;
        }
        st = chat_list_push(&r->arena, row, x);
    }
    bool any = !st && row.l->n > 0;
    while (any && !st && it->fallback.type != CHAT_INVALID && (int64_t)row.l->n < it->batch && chat__step(r, 0))
        st = chat_list_push(&r->arena, row, it->fallback);
    if (st)
        chat__out_of_memory(r);
    *out = row;
    return any && !r->status;
}

static bool next_tested(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    struct chat_frame *frame = r->frame;
    bool yes = false;
    while (!yes && chat__next(r, it->source, out)) {
        r->frame = it->frame;
        chat__assign(r, it->test->test_target, *out);
        yes = chat__truth(r, chat__eval(r, it->test->test->body)) && !r->status;
        r->frame = frame;
    }
    return yes;
}

static bool next_item(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    switch (it->kind) {
    case ITER_SEQ:
        if (it->over.type == CHAT_UNDEFINED || it->at >= it->over.l->n)
            return false;
        *out = it->over.l->item[it->at++];
        return true;
    case ITER_STR:
        return next_char(r, it, out);
    case ITER_RANGE: {
        const struct chat_range_obj *o = it->over.p;
        if (it->at >= (uint64_t)o->len)
            return false;
        *out = chat_int(o->start + (int64_t)it->at++ * o->step);
        return true;
    }
    case ITER_DICT:
        return next_entry(r, it, out);
    case ITER_MAP:
        return next_mapped(r, it, out);
    case ITER_SELECT:
        return next_selected(r, it, out);
    case ITER_UNIQUE:
        return next_unique(r, it, out);
    case ITER_BATCH:
        return next_batch(r, it, out);
    case ITER_TEST:
        return next_tested(r, it, out);
    default: /* iterating `loop` itself advances it */
        return chat__loop_next(r, it->over.p, out);
    }
}

bool chat__next(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    *out = chat_none();
    if (!chat__step(r, 0))
        return false;
    if (r->depth >= r->limits.max_depth) { /* a map of a map of a map ... */
        chat__fail(r, CHAT_ERROR_LIMIT, "iterators nested deeper than %zu", r->limits.max_depth);
        return false;
    }
    r->depth++;
    bool more = next_item(r, it, out);
    r->depth--;
    return more && !r->status;
}

struct chat_value chat__to_list(struct chat_run *r, struct chat_value v)
{
    struct chat_value out = chat_list(&r->arena), x;
    struct chat_iter *it = chat__iter(r, v);
    if (out.type == CHAT_INVALID)
        return chat__out_of_memory(r);
    while (it && chat__next(r, it, &x))
        if (chat_list_push(&r->arena, out, x))
            return chat__out_of_memory(r);
    return r->status ? chat_none() : out;
}

/* ---- loop ---- */

bool chat__loop_next(struct chat_run *r, struct chat_loop *l, struct chat_value *out)
{
    if (l->after.type != CHAT_MISSING) {
        *out = l->after;
        l->after.type = CHAT_MISSING;
    } else if (!chat__next(r, l->it, out)) {
        return false;
    }
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return true;
}

static bool peek(struct chat_run *r, struct chat_loop *l)
{
    if (l->after.type == CHAT_MISSING) {
        struct chat_value v;
        if (chat__next(r, l->it, &v))
            l->after = v;
    }
    return l->after.type != CHAT_MISSING;
}

int64_t chat__loop_len(struct chat_run *r, struct chat_loop *l)
{
    if (l->length >= 0)
        return l->length;
    l->length = chat__len(l->iterable);
    if (l->length < 0) { /* lazy: the rest is produced here, and walked from a list afterwards */
        struct chat_value rest = chat__to_list(r, chat__iter_value(l->it));
        if (r->status)
            return 0;
        struct chat_iter *it = chat__iter(r, rest);
        if (it)
            l->it = it;
        l->length = (int64_t)chat_list_len(rest) + l->index0 + 1 + (l->after.type != CHAT_MISSING);
    }
    return l->length;
}

static struct chat_value loop_cycle(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    const struct chat_loop *l = self.p;
    (void)a;
    if (raw->n_pos == 0 || raw->n_kw)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "no items for cycling given");
    return raw->pos[(uint64_t)l->index0 % raw->n_pos];
}

static struct chat_value loop_changed(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    struct chat_loop *l = self.p;
    struct chat_value now = chat__tuple(&r->arena);
    struct chat_budget budget = {.left = 100000};
    (void)a;
    for (uint32_t i = 0; i < raw->n_pos; i++)
        if (chat_list_push(&r->arena, now, raw->pos[i]))
            return chat__out_of_memory(r);
    bool same = l->changed.type != CHAT_MISSING && chat__equal(now, l->changed, &budget);
    if (!same)
        l->changed = now;
    return chat_bool(!same);
}

struct chat_value chat__loop_attr(struct chat_run *r, struct chat_loop *l, const struct chat_str *name)
{
    static const struct chat_builtin cycle = {"cycle", loop_cycle, NULL, 0}, changed = {"changed", loop_changed, NULL, 0};
    struct chat_value self = {.type = CHAT_LOOP, .p = l};
    if (chat__str_eq(name, "index"))
        return chat_int(l->index0 + 1);
    if (chat__str_eq(name, "index0"))
        return chat_int(l->index0);
    if (chat__str_eq(name, "first"))
        return chat_bool(l->index0 == 0);
    if (chat__str_eq(name, "last"))
        return chat_bool(!peek(r, l));
    if (chat__str_eq(name, "length"))
        return chat_int(chat__loop_len(r, l));
    if (chat__str_eq(name, "revindex"))
        return chat_int(chat__loop_len(r, l) - l->index0);
    if (chat__str_eq(name, "revindex0"))
        return chat_int(chat__loop_len(r, l) - l->index0 - 1);
    if (chat__str_eq(name, "previtem"))
        return l->index0 == 0 ? chat__undefined_hint(r, "there is no previous item") : l->before;
    if (chat__str_eq(name, "nextitem"))
        return peek(r, l) ? l->after : chat__undefined_hint(r, "there is no next item");
    if (chat__str_eq(name, "depth"))
        return chat_int((int64_t)l->depth0 + 1);
    if (chat__str_eq(name, "depth0"))
        return chat_int(l->depth0);
    if (chat__str_eq(name, "cycle"))
        return chat__func(r, &cycle, self);
    if (chat__str_eq(name, "changed"))
        return chat__func(r, &changed, self);
    return (struct chat_value){.type = CHAT_MISSING};
}
