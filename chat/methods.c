/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of containers and of cycler, and which methods the immutable sandbox refuses. */
#include <string.h>

#include "chat/internal.h"

#define METHOD(name) static struct chat_value name(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
#define UNUSED (void)r, (void)self, (void)a, (void)raw

static struct chat_value view(struct chat_value dict, enum chat_view what)
{
    return (struct chat_value){.type = CHAT_VIEW, .flags = (uint8_t)what, .d = dict.d};
}

METHOD(d_keys) { UNUSED; return view(self, VIEW_KEYS); }
METHOD(d_values) { UNUSED; return view(self, VIEW_VALUES); }
METHOD(d_items) { UNUSED; return view(self, VIEW_ITEMS); }
METHOD(d_copy) { UNUSED; return self; /* nothing can change it */ }

METHOD(d_get)
{
    UNUSED;
    if (!chat__hashable(a[0]))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "unhashable type: '%s'", chat__type_name(a[0]));
    struct chat_value v = chat__dict_find(self.d, a[0]);
    if (v.type != CHAT_INVALID)
        return v;
    return a[1].type == CHAT_INVALID ? chat_none() : a[1];
}

METHOD(d_fromkeys)
{
    UNUSED;
    struct chat_value out = chat_dict(&r->arena), x;
    struct chat_iter *it = chat__iter(r, a[0]);
    while (it && out.type == CHAT_DICT && chat__next(r, it, &x)) {
        if (!chat__hashable(x))
            return chat__fail(r, CHAT_ERROR_RUNTIME, "unhashable type: '%s'", chat__type_name(x));
        if (chat__dict_put(&r->arena, out.d, x, a[1].type == CHAT_INVALID ? chat_none() : a[1]))
            return chat__out_of_memory(r);
    }
    return out.type == CHAT_INVALID ? chat__out_of_memory(r) : out;
}

METHOD(l_count)
{
    UNUSED;
    int64_t n = 0;
    for (uint32_t i = 0; i < self.l->n && !r->status; i++)
        n += chat__compare(r, OP_EQ, self.l->item[i], a[0]);
    return chat_int(n);
}

/* The place of an equal number in a range, -1: none. */
static int64_t range_find(const struct chat_range_obj *o, struct chat_value v)
{
    int64_t i = v.type == CHAT_INT ? v.i : v.type == CHAT_BOOL ? v.b : 0;
    if (v.type == CHAT_FLOAT ? !chat__float_to_int(v.f, &i) || (double)i != v.f : v.type != CHAT_INT && v.type != CHAT_BOOL)
        return -1;
    __int128 steps = ((__int128)i - o->start) / o->step;
    return steps >= 0 && steps < o->len && o->start + steps * o->step == i ? (int64_t)steps : -1;
}

METHOD(r_count) { UNUSED; return chat_int(range_find(self.p, a[0]) >= 0); }

METHOD(r_index)
{
    UNUSED;
    int64_t i = range_find(self.p, a[0]);
    return i < 0 ? chat__fail(r, CHAT_ERROR_RUNTIME, "the value is not in range") : chat_int(i);
}

METHOD(l_index)
{
    UNUSED;
    int64_t from = 0, to = self.l->n;
    if ((a[1].type != CHAT_INVALID && !chat__to_int(r, a[1], &from)) || (a[2].type != CHAT_INVALID && !chat__to_int(r, a[2], &to)))
        return chat_none();
    from = from < 0 ? (from + self.l->n < 0 ? 0 : from + self.l->n) : from;
    to = to < 0 ? to + self.l->n : to > self.l->n ? self.l->n : to;
    for (int64_t i = from; i < to && !r->status; i++)
        if (chat__compare(r, OP_EQ, self.l->item[i], a[0]))
            return chat_int(i);
    return chat__fail(r, CHAT_ERROR_RUNTIME, "the value is not in the list");
}

METHOD(c_next)
{
    UNUSED;
    struct chat_cycler *c = self.p;
    struct chat_value v = chat_list_at(c->items, c->pos);
    c->pos = (c->pos + 1) % c->items.l->n;
    return v;
}

METHOD(c_reset)
{
    UNUSED;
    ((struct chat_cycler *)self.p)->pos = 0;
    return chat_none();
}

METHOD(f_is_integer)
{
    UNUSED;
    int64_t i;
    return chat_bool(chat__float_to_int(self.f, &i) && (double)i == self.f);
}

const struct chat_builtin *chat__find_builtin(const struct chat_builtin *table, size_t n, const struct chat_str *name)
{
    for (size_t i = 0; i < n; i++)
        if (chat__str_eq(name, table[i].name))
            return &table[i];
    return NULL;
}

static bool listed(const char *const *names, const struct chat_str *name)
{
    for (; *names; names++)
        if (chat__str_eq(name, *names))
            return true;
    return false;
}

#define FIND(table) chat__find_builtin(table, sizeof(table) / sizeof((table)[0]), name)

const struct chat_builtin *chat__method(struct chat_value v, const struct chat_str *name, bool *unsafe)
{
    static const struct chat_builtin dict[] = {
        {"items", d_items, "/", 0}, {"keys", d_keys, "/", 0}, {"values", d_values, "/", 0}, {"get", d_get, "/ key default", 1},
        {"copy", d_copy, "/", 0}, {"fromkeys", d_fromkeys, "/ iterable value", 1},
    };
    static const struct chat_builtin list[] = {{"count", l_count, "/ value", 1}, {"index", l_index, "/ value start stop", 1}, {"copy", d_copy, "/", 0}};
    static const struct chat_builtin range[] = {{"count", r_count, "/ value", 1}, {"index", r_index, "/ value", 1}};
    static const struct chat_builtin cycler[] = {{"next", c_next, "", 0}, {"reset", c_reset, "", 0}};
    static const struct chat_builtin floating[] = {{"is_integer", f_is_integer, "/", 0}};
    static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const list_unsafe[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove", NULL};
    *unsafe = (v.type == CHAT_DICT && listed(dict_unsafe, name)) || (v.type == CHAT_LIST && listed(list_unsafe, name));
    switch (v.type) {
    case CHAT_STRING: return chat__find_builtin(chat__str_methods, chat__n_str_methods, name);
    case CHAT_DICT: return FIND(dict);
    case CHAT_LIST: return FIND(list);
    case CHAT_TUPLE: return chat__find_builtin(list, 2, name);
    case CHAT_RANGE: return FIND(range);
    case CHAT_CYCLER: return FIND(cycler);
    case CHAT_FLOAT: return FIND(floating);
    default: return NULL;
    }
}
