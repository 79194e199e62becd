/* SPDX-License-Identifier: Apache-2.0
 *
 * Attributes, items and slices, with the sandbox's order: `a.b` prefers an attribute (a method) and falls back to the
 * item, `a['b']` the other way round, and what is neither is an Undefined that knows what was missing. Methods that
 * would change a list or dictionary are refused the way the sandbox does: as an Undefined that must not be used. */
#include <stdio.h>
#include <string.h>

#include "chat/internal.h"

static struct chat_value undefined(struct chat_run *r, struct chat_undefined u)
{
    struct chat_undefined *p = chat__alloc(r, sizeof(*p));
    if (p)
        *p = u;
    return (struct chat_value){.type = CHAT_UNDEFINED, .p = p};
}

struct chat_value chat__undefined(struct chat_run *r, uint8_t owner, struct chat_value name)
{
    return undefined(r, (struct chat_undefined){.owner = owner, .name = name});
}

struct chat_value chat__undefined_hint(struct chat_run *r, const char *hint)
{
    return undefined(r, (struct chat_undefined){.hint = hint});
}

static void owner_name(uint8_t type, char *out, size_t n)
{
    if (type == CHAT_NONE)
        snprintf(out, n, "None");
    else if (type == CHAT_NAMESPACE)
        snprintf(out, n, "jinja2.utils.Namespace object");
    else
        snprintf(out, n, "%s object", chat__type_name((struct chat_value){.type = type}));
}

struct chat_value chat__fail_undefined(struct chat_run *r, struct chat_value v)
{
    const struct chat_undefined *u = v.p;
    char owner[64];
    if (!u)
        return chat__fail(r, CHAT_ERROR_UNDEFINED, "a value is undefined");
    if (u->hint)
        return chat__fail(r, CHAT_ERROR_UNDEFINED, "%s", u->hint);
    struct chat_text t;
    chat__text_init(&t, &r->arena, 512);
    chat__put_repr(r, &t, u->name, 0);
    owner_name(u->owner, owner, sizeof(owner));
    int n = (int)t.len;
    if (u->security)
        return chat__fail(r, CHAT_ERROR_SECURITY, "access to attribute %.*s of '%s' is unsafe.", n, t.p, owner);
    if (!u->owner)
        return chat__fail(r, CHAT_ERROR_UNDEFINED, "%.*s is undefined", n, t.p);
    if (u->name.type != CHAT_STRING)
        return chat__fail(r, CHAT_ERROR_UNDEFINED, "%s has no element %.*s", owner, n, t.p);
    return chat__fail(r, CHAT_ERROR_UNDEFINED, "'%s' has no attribute %.*s", owner, n, t.p);
}

/* getattr(v, name) of Python; CHAT_MISSING where it raises AttributeError. */
struct chat_value chat__attribute(struct chat_run *r, struct chat_value v, struct chat_value name)
{
    bool unsafe = false;
    const struct chat_str *s = name.s;
    if (s->len > 3 && memcmp(s->p, "__", 2) == 0 && memcmp(s->p + s->len - 2, "__", 2) == 0)
        return undefined(r, (struct chat_undefined){.owner = v.type, .security = true, .name = name});
    struct chat_value missing = {.type = CHAT_MISSING};
    if (v.type == CHAT_NAMESPACE) {
        struct chat_value got = chat__dict_find(v.d, name);
        return got.type == CHAT_INVALID ? missing : got;
    }
    if (v.type == CHAT_LOOP)
        return chat__loop_attr(r, v.p, s);
    if (v.type == CHAT_TUPLE && v.flags & CHAT_GROUP && chat__str_eq(s, "grouper"))
        return v.l->item[0];
    if (v.type == CHAT_TUPLE && v.flags & CHAT_GROUP && chat__str_eq(s, "list"))
        return v.l->item[1];
    if (v.type == CHAT_CYCLER && chat__str_eq(s, "current"))
        return chat_list_at(((struct chat_cycler *)v.p)->items, ((struct chat_cycler *)v.p)->pos);
    if (v.type == CHAT_MACRO && chat__str_eq(s, "name") && ((struct chat_closure *)v.p)->fn->name)
        return (struct chat_value){.type = CHAT_STRING, .s = ((struct chat_closure *)v.p)->fn->name};
    if (v.type == CHAT_RANGE) {
        const struct chat_range_obj *o = v.p;
        if (chat__str_eq(s, "start"))
            return chat_int(o->start);
        if (chat__str_eq(s, "stop"))
            return chat_int(o->stop);
        if (chat__str_eq(s, "step"))
            return chat_int(o->step);
    }
    const struct chat_builtin *fn = chat__method(v, s, &unsafe);
    if (unsafe)
        return undefined(r, (struct chat_undefined){.owner = v.type, .security = true, .name = name});
    return fn ? chat__func(r, fn, v) : missing;
}

struct chat_value chat__getattr(struct chat_run *r, struct chat_value v, struct chat_value name)
{
    if (v.type == CHAT_UNDEFINED)
        return chat__fail_undefined(r, v);
    struct chat_value got = chat__attribute(r, v, name);
    if (got.type != CHAT_MISSING)
        return got;
    if (v.type == CHAT_DICT) {
        got = chat__dict_find(v.d, name);
        if (got.type != CHAT_INVALID)
            return got;
    }
    return chat__undefined(r, v.type, name);
}

static bool index_of(struct chat_value key, int64_t len, int64_t *out)
{
    if (key.type != CHAT_INT && key.type != CHAT_BOOL)
        return false;
    *out = key.type == CHAT_BOOL ? key.b : key.i;
    if (*out < 0)
        *out += len;
    return *out >= 0 && *out < len;
}

/* v[key] of Python; CHAT_MISSING where it raises TypeError or LookupError. */
static struct chat_value item(struct chat_run *r, struct chat_value v, struct chat_value key)
{
    struct chat_value missing = {.type = CHAT_MISSING};
    int64_t i;
    if (v.type == CHAT_DICT) {
        struct chat_value got = chat__hashable(key) ? chat__dict_find(v.d, key) : missing;
        return got.type == CHAT_INVALID ? missing : got;
    }
    if (v.type != CHAT_STRING && v.type != CHAT_RANGE && !chat__is_seq(v))
        return missing;
    if (!index_of(key, chat__len(v), &i))
        return missing;
    if (v.type == CHAT_RANGE)
        return chat_int(((struct chat_range_obj *)v.p)->start + i * ((struct chat_range_obj *)v.p)->step);
    if (v.type != CHAT_STRING)
        return v.l->item[i];
    if (!chat__step(r, v.s->n_chars == v.s->len ? 0 : (size_t)i))
        return chat_none();
    size_t at = chat__char_offset(v.s, (size_t)i);
    struct chat_value c = chat__str_slice(&r->arena, v, at, at + chat__char_len(v.s->p + at, v.s->len - at));
    return c.type == CHAT_INVALID ? chat__out_of_memory(r) : c;
}

struct chat_value chat__getitem(struct chat_run *r, struct chat_value v, struct chat_value key)
{
    if (v.type == CHAT_UNDEFINED)
        return chat__fail_undefined(r, v);
    struct chat_value got = item(r, v, key);
    if (got.type == CHAT_MISSING && key.type == CHAT_STRING)
        got = chat__attribute(r, v, key);
    return got.type == CHAT_MISSING ? chat__undefined(r, v.type, key) : got;
}

/* ---- slices ---- */

static bool slice_part(struct chat_run *r, struct chat_value v, int64_t absent, int64_t *out)
{
    *out = absent;
    if (v.type == CHAT_NONE)
        return true;
    if (v.type == CHAT_INT || v.type == CHAT_BOOL)
        return chat__to_int(r, v, out);
    chat__fail(r, CHAT_ERROR_RUNTIME, "slice indices must be integers or None or have an __index__ method");
    return false;
}

static int64_t clamp(int64_t i, int64_t len, int64_t lo, int64_t hi)
{
    if (i < 0)
        i = i < -len ? lo : i + len;
    return i < lo ? lo : i > hi ? hi : i;
}

static struct chat_value slice_string(struct chat_run *r, struct chat_value v, int64_t start, int64_t n, int64_t step)
{
    if (!chat__step(r, v.s->len))
        return chat_none();
    if (step == 1) {
        size_t from = chat__char_offset(v.s, (size_t)start), to = from;
        for (int64_t i = 0; i < n; i++)
            to += v.s->n_chars == v.s->len ? 1 : chat__char_len(v.s->p + to, v.s->len - to);
        struct chat_value s = chat__str_slice(&r->arena, v, from, to);
        return s.type == CHAT_INVALID ? chat__out_of_memory(r) : s;
    }
    uint32_t *at = chat__alloc(r, ((size_t)v.s->n_chars + 1) * sizeof(*at)); /* where the characters begin */
    struct chat_text t;
    chat__text_for(r, &t);
    if (!at)
        return chat_none();
    size_t pos = 0;
    for (uint32_t i = 0; i <= v.s->n_chars; i++) {
        at[i] = (uint32_t)pos;
        if (i < v.s->n_chars)
            pos += chat__char_len(v.s->p + pos, v.s->len - pos);
    }
    for (int64_t i = 0; i < n; i++)
        chat__text_part(&t, v.s, at[start + i * step], at[start + i * step + 1]);
    struct chat_value s = chat__text_done(r, &t);
    s.flags = v.flags;
    return s;
}

static struct chat_value slice_range(struct chat_run *r, const struct chat_range_obj *o, int64_t start, int64_t n, int64_t step)
{
    struct chat_range_obj *p = chat__alloc(r, sizeof(*p));
    if (!p)
        return chat_none();
    *p = (struct chat_range_obj){.start = o->start + start * o->step, .step = o->step * step, .len = n};
    p->stop = p->start + n * p->step;
    return (struct chat_value){.type = CHAT_RANGE, .p = p};
}

/* The items start:stop:step means: n of them from *from on. False after an error. */
static bool slice_bounds(struct chat_run *r, int64_t len, const struct chat_value part[3], int64_t *from, int64_t *n, int64_t *by)
{
    int64_t to;
    if (!slice_part(r, part[2], 1, by))
        return false;
    if (*by == 0 || *by > INT32_MAX || *by < -INT32_MAX) {
        chat__fail(r, CHAT_ERROR_RUNTIME, *by ? "slice step too large" : "slice step cannot be zero");
        return false;
    }
    bool up = *by > 0;
    if (!slice_part(r, part[0], up ? 0 : len - 1, from) || !slice_part(r, part[1], up ? len : -1, &to))
        return false;
    int64_t lo = up ? 0 : -1, hi = up ? len : len - 1;
    if (part[0].type != CHAT_NONE)
        *from = clamp(*from, len, lo, hi);
    if (part[1].type != CHAT_NONE)
        to = clamp(to, len, lo, hi);
    int64_t span = up ? to - *from : *from - to;
    *n = span > 0 ? (span - 1) / (up ? *by : -*by) + 1 : 0;
    if (*n == 0)
        *from = 0;
    return true;
}

struct chat_value chat__slice(struct chat_run *r, struct chat_value v, struct chat_value start, struct chat_value stop, struct chat_value step)
{
    int64_t from, n, by;
    if (v.type == CHAT_UNDEFINED)
        return chat__fail_undefined(r, v);
    if (v.type == CHAT_DICT)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "unhashable type: 'slice'");
    if (v.type != CHAT_STRING && v.type != CHAT_RANGE && !chat__is_seq(v))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "'%s' object is not subscriptable", chat__type_name(v));
    if (!slice_bounds(r, chat__len(v), (struct chat_value[]){start, stop, step}, &from, &n, &by))
        return chat_none();
    if (v.type == CHAT_STRING)
        return slice_string(r, v, from, n, n > 1 ? by : 1);
    if (v.type == CHAT_RANGE)
        return slice_range(r, v.p, from, n, by);
    struct chat_value out = v.type == CHAT_LIST ? chat_list(&r->arena) : chat__tuple(&r->arena);
    for (int64_t i = 0; i < n && chat__step(r, 0); i++)
        if (chat_list_push(&r->arena, out, v.l->item[from + i * by]))
            return chat__out_of_memory(r);
    return out.type == CHAT_INVALID ? chat__out_of_memory(r) : out;
}

/* ---- attribute= of filters ---- */

struct chat_value chat__path(struct chat_run *r, struct chat_value v, struct chat_value path)
{
    if (path.type != CHAT_STRING)
        return path.type == CHAT_NONE ? v : chat__getitem(r, v, path);
    for (size_t at = 0; at <= path.s->len && !r->status;) {
        const char *dot = memchr(path.s->p + at, '.', path.s->len - at);
        size_t end = dot ? (size_t)(dot - path.s->p) : path.s->len, i = at;
        int64_t number = 0;
        while (i < end && path.s->p[i] >= '0' && path.s->p[i] <= '9' && i - at < 18)
            number = number * 10 + path.s->p[i++] - '0';
        struct chat_value part = i == end && end > at ? chat_int(number) : chat__str_slice(&r->arena, path, at, end);
        v = part.type == CHAT_INVALID ? chat__out_of_memory(r) : chat__getitem(r, v, part);
        at = end + 1;
    }
    return v;
}
