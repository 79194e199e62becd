/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls: arguments, builtins with their parameter lists, macros and call blocks, and the functions every template
 * has: range, dict, namespace, cycler, joiner, raise_exception, strftime_now. */
#include <string.h>
#include <time.h>

#include "chat/internal.h"

enum { CALL_DEPTH = 8, MAX_RANGE = 100000 };

/* ---- arguments ---- */

static bool add_keyword(struct chat_run *r, struct chat_value kw, struct chat_value key, struct chat_value v)
{
    if (key.type != CHAT_STRING) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "keywords must be strings");
        return false;
    }
    if (chat__dict_find(kw.d, key).type != CHAT_INVALID) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "got multiple values for keyword argument '%.*s'", (int)key.s->len, key.s->p);
        return false;
    }
    if (chat__dict_put(&r->arena, kw.d, key, v))
        chat__out_of_memory(r);
    return !r->status;
}

static void add_star(struct chat_run *r, struct chat_value pos, struct chat_value v)
{
    struct chat_value x;
    struct chat_iter *it = r->status ? NULL : chat__iter(r, v);
    while (it && chat__next(r, it, &x))
        if (chat_list_push(&r->arena, pos, x)) {
            chat__out_of_memory(r);
            return;
        }
}

static void add_star_star(struct chat_run *r, struct chat_value kw, struct chat_value v)
{
    if (v.type != CHAT_DICT) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "argument after ** must be a mapping, not %s", chat__type_name(v));
        return;
    }
    for (uint32_t i = 0; i < v.d->n; i++)
        if (!add_keyword(r, kw, v.d->entry[i].key, v.d->entry[i].value))
            return;
}

bool chat__eval_args(struct chat_run *r, const struct chat_node *n, struct chat_args *out, const struct chat_value *caller)
{
    *out = (struct chat_args){0};
    if (n->n == 0 && !caller)
        return !r->status;
    struct chat_value pos = chat_list(&r->arena), kw = chat_dict(&r->arena);
    if (pos.type == CHAT_INVALID || kw.type == CHAT_INVALID)
        chat__out_of_memory(r);
    for (uint32_t i = 0; i < n->n && !r->status; i++) {
        const struct chat_node *a = n->list[i];
        bool plain = a->kind != N_KEYWORD && a->kind != N_STAR && a->kind != N_STARSTAR;
        struct chat_value v = chat__eval(r, plain ? a : a->kid[0]);
        if (r->status)
            return false;
        if (plain && chat_list_push(&r->arena, pos, v))
            chat__out_of_memory(r);
        if (a->kind == N_STAR)
            add_star(r, pos, v);
        if (a->kind == N_KEYWORD)
            add_keyword(r, kw, a->kid[1]->value, v);
        if (a->kind == N_STARSTAR)
            add_star_star(r, kw, v);
    }
    if (caller && !r->status) {
        struct chat_value key = chat_string(&r->arena, "caller", 6, CHAT_TRUSTED);
        if (key.type == CHAT_INVALID)
            chat__out_of_memory(r);
        else
            add_keyword(r, kw, key, *caller);
    }
    if (!r->status)
        *out = (struct chat_args){.pos = pos.l->item, .n_pos = pos.l->n, .kw = kw.d->entry, .n_kw = kw.d->n};
    return !r->status;
}

/* The index of a name in "name name name", or -1. */
static int param_index(const char *params, const struct chat_str *name)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, " ");
        if (n == name->len && memcmp(params, name->p, n) == 0)
            return i;
        params += n + (params[n] == ' ');
    }
    return -1;
}

static uint32_t param_count(const char *params)
{
    uint32_t n = *params != 0;
    for (; *params; params++)
        n += *params == ' ';
    return n;
}

struct chat_value chat__call_builtin(struct chat_run *r, const struct chat_builtin *fn, struct chat_value self, const struct chat_args *args)
{
    struct chat_value a[CHAT_MAX_PARAMS] = {{0}};
    if (r->status)
        return chat_none();
    if (!fn->params)
        return fn->fn(r, self, NULL, args);
    bool positional = fn->params[0] == '/';
    const char *params = fn->params + (positional ? 1 + (fn->params[1] == ' ') : 0);
    uint32_t n = param_count(params);
    if (args->n_pos > n)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "%s() takes at most %u arguments (%u given)", fn->name, n, args->n_pos);
    for (uint32_t i = 0; i < args->n_pos; i++)
        a[i] = args->pos[i];
    for (uint32_t i = 0; i < args->n_kw; i++) {
        const struct chat_str *key = args->kw[i].key.s;
        int at = positional ? -1 : param_index(params, key);
        if (at < 0 || a[at].type != CHAT_INVALID)
            return chat__fail(r, CHAT_ERROR_RUNTIME, at < 0 ? "%s() got an unexpected keyword argument '%.*s'" : "%s() got multiple values for argument '%.*s'",
                              fn->name, (int)key->len, key->p);
        a[at] = args->kw[i].value;
    }
    for (uint32_t i = 0; i < fn->n_required; i++)
        if (a[i].type == CHAT_INVALID)
            return chat__fail(r, CHAT_ERROR_RUNTIME, "%s() is missing required argument %u", fn->name, i + 1);
    return fn->fn(r, self, a, args);
}

struct chat_value chat__func(struct chat_run *r, const struct chat_builtin *fn, struct chat_value self)
{
    struct chat_bound *b = chat__alloc(r, sizeof(*b));
    if (b)
        *b = (struct chat_bound){.fn = fn, .self = self};
    return (struct chat_value){.type = b ? CHAT_FUNC : CHAT_NONE, .p = b};
}

/* ---- macros ---- */

struct macro_call {
    const struct chat_function *f;
    struct chat_frame *frame;
    const struct chat_args *args;
    bool *used; /* [args->n_kw] */
};

static struct chat_value take_keyword(struct macro_call *m, const char *name, const struct chat_str *str)
{
    for (uint32_t i = 0; i < m->args->n_kw; i++) {
        const struct chat_str *key = m->args->kw[i].key.s;
        if (str ? key->len == str->len && memcmp(key->p, str->p, str->len) == 0 : chat__str_eq(key, name)) {
            m->used[i] = true;
            return m->args->kw[i].value;
        }
    }
    return (struct chat_value){.type = CHAT_MISSING};
}

/* What no parameter took goes to kwargs and varargs, if the body mentions them; else it is too much. */
static void bind_rest(struct chat_run *r, struct macro_call *m)
{
    const struct chat_function *f = m->f;
    struct chat_value kwargs = chat_dict(&r->arena), varargs = chat__tuple(&r->arena);
    const char *name = f->name ? f->name->p : "caller";
    int st = kwargs.type == CHAT_INVALID || varargs.type == CHAT_INVALID;
    for (uint32_t i = 0; i < m->args->n_kw && !st; i++) {
        if (m->used[i])
            continue;
        if (f->kwargs == UINT32_MAX) {
            chat__fail(r, CHAT_ERROR_RUNTIME, "macro '%s' takes no keyword argument '%.*s'", name, (int)m->args->kw[i].key.s->len, m->args->kw[i].key.s->p);
            return;
        }
        st = chat__dict_put(&r->arena, kwargs.d, m->args->kw[i].key, m->args->kw[i].value);
    }
    if (m->args->n_pos > f->n_params && f->varargs == UINT32_MAX) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "macro '%s' takes not more than %u argument(s)", name, f->n_params);
        return;
    }
    for (uint32_t i = f->n_params; i < m->args->n_pos && !st; i++)
        st = chat_list_push(&r->arena, varargs, m->args->pos[i]);
    if (st)
        chat__out_of_memory(r);
    if (f->kwargs != UINT32_MAX)
        m->frame->slot[f->kwargs] = kwargs;
    if (f->varargs != UINT32_MAX)
        m->frame->slot[f->varargs] = varargs;
}

static void bind_params(struct chat_run *r, struct macro_call *m)
{
    const struct chat_function *f = m->f;
    for (uint32_t i = 0; i < f->n_params; i++) {
        const struct chat_var *v = &f->param[i]->var;
        m->frame->slot[v->slot] = i < m->args->n_pos ? m->args->pos[i] : take_keyword(m, NULL, v->name);
    }
    if (f->caller != UINT32_MAX) {
        struct chat_value caller = take_keyword(m, "caller", NULL);
        m->frame->slot[f->caller] = caller.type == CHAT_MISSING || caller.type == CHAT_NONE ? chat__undefined_hint(r, "No caller defined") : caller;
    }
    bind_rest(r, m);
}

static void bind_defaults(struct chat_run *r, const struct macro_call *m)
{
    const struct chat_function *f = m->f;
    for (uint32_t i = 0; i < f->n_params && !r->status; i++) {
        struct chat_value *slot = &m->frame->slot[f->param[i]->var.slot];
        uint32_t first_default = f->n_params - f->n_defaults;
        if (slot->type == CHAT_MISSING && i >= first_default)
            *slot = chat__eval(r, f->defaults[i - first_default]);
        else if (slot->type == CHAT_MISSING)
            *slot = chat__undefined_hint(r, "a parameter was not provided");
    }
}

static struct chat_value call_macro(struct chat_run *r, const struct chat_closure *c, const struct chat_args *args)
{
    enum chat_flow flow;
    struct chat_value out = chat_none();
    if (r->depth + CALL_DEPTH >= r->limits.max_depth)
        return chat__fail(r, CHAT_ERROR_LIMIT, "macros nested too deeply");
    struct macro_call m = {.f = c->fn, .frame = chat__frame(r, c->fn, c->up), .args = args};
    m.used = chat__alloc(r, args->n_kw + 1);
    if (!m.frame || !m.used)
        return out;
    memset(m.used, 0, args->n_kw + 1);
    struct chat_frame *outer = r->frame;
    r->depth += CALL_DEPTH; /* a call takes more stack than an expression */
    bind_params(r, &m);
    r->frame = m.frame;
    if (!r->status) {
        chat__scope_enter(r, &c->fn->scope);
        bind_defaults(r, &m);
    }
    if (!r->status)
        out = chat__capture(r, c->fn->body, &flow);
    r->frame = outer;
    r->depth -= CALL_DEPTH;
    return out;
}

static struct chat_value call_loop(struct chat_run *r, const struct chat_loop *l, const struct chat_args *args)
{
    if (args->n_pos != 1 || args->n_kw)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "loop() takes one argument");
    if (!l->recursive)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "The loop must have the 'recursive' marker to be called recursively.");
    return chat__run_recursive(r, l->recursive, l->up, args->pos[0], l->depth0 + 1);
}

struct chat_value chat__call(struct chat_run *r, struct chat_value callee, struct chat_args *args)
{
    if (r->status)
        return chat_none();
    switch (callee.type) {
    case CHAT_FUNC:
        return chat__call_builtin(r, ((struct chat_bound *)callee.p)->fn, ((struct chat_bound *)callee.p)->self, args);
    case CHAT_MACRO:
        return call_macro(r, callee.p, args);
    case CHAT_LOOP:
        return call_loop(r, callee.p, args);
    case CHAT_JOINER: {
        struct chat_joiner *j = callee.p;
        bool used = j->used;
        j->used = true;
        return used ? j->sep : chat_string(&r->arena, "", 0, CHAT_TRUSTED);
    }
    case CHAT_UNDEFINED:
        return chat__fail_undefined(r, callee);
    default:
        return chat__fail(r, CHAT_ERROR_RUNTIME, "'%s' object is not callable", chat__type_name(callee));
    }
}

/* ---- global functions ---- */

static struct chat_value fn_range(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    struct chat_range_obj *o = chat__alloc(r, sizeof(*o));
    int64_t part[3] = {0, 0, 1};
    (void)self;
    if (!o)
        return chat_none();
    for (uint32_t i = 0; i < raw->n_pos; i++)
        if (!chat__to_int(r, a[i], &part[raw->n_pos == 1 ? 1 : i]))
            return chat_none();
    __int128 span = (__int128)part[1] - part[0], step = part[2];
    if (step == 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "range() arg 3 must not be zero");
    __int128 n = step > 0 ? (span > 0 ? (span - 1) / step + 1 : 0) : (span < 0 ? (-span - 1) / -step + 1 : 0);
    if (n > MAX_RANGE)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
    *o = (struct chat_range_obj){.start = part[0], .stop = part[1], .step = n > 1 ? part[2] : 1, .len = (int64_t)n};
    return (struct chat_value){.type = CHAT_RANGE, .p = o};
}

static bool put_pairs(struct chat_run *r, struct chat_value out, struct chat_value pairs)
{
    struct chat_value x;
    struct chat_iter *it = chat__iter(r, pairs);
    while (it && chat__next(r, it, &x)) {
        struct chat_value pair = chat__to_list(r, x);
        if (r->status)
            return false;
        if (pair.l->n != 2 || !chat__hashable(pair.l->item[0]))
            chat__fail(r, CHAT_ERROR_RUNTIME, "dictionary update sequence element has length %u; 2 is required", pair.l->n);
        else if (chat__dict_put(&r->arena, out.d, pair.l->item[0], pair.l->item[1]))
            chat__out_of_memory(r);
    }
    return !r->status;
}

static struct chat_value fn_dict(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    struct chat_value out = chat_dict(&r->arena);
    (void)self;
    (void)a;
    if (out.type == CHAT_INVALID)
        return chat__out_of_memory(r);
    if (raw->n_pos > 1)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "dict expected at most 1 argument, got %u", raw->n_pos);
    int st = 0;
    if (raw->n_pos && raw->pos[0].type == CHAT_DICT)
        for (uint32_t i = 0; i < raw->pos[0].d->n && !st && chat__step(r, 0); i++)
            st = chat__dict_put(&r->arena, out.d, raw->pos[0].d->entry[i].key, raw->pos[0].d->entry[i].value);
    else if (raw->n_pos && !put_pairs(r, out, raw->pos[0]))
        return chat_none();
    for (uint32_t i = 0; i < raw->n_kw && !st; i++)
        st = chat__dict_put(&r->arena, out.d, raw->kw[i].key, raw->kw[i].value);
    return st ? chat__out_of_memory(r) : out;
}

static struct chat_value fn_namespace(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    struct chat_value out = fn_dict(r, self, a, raw);
    if (r->status)
        return out;
    for (uint32_t i = 0; i < out.d->n; i++) {
        struct chat_value key = out.d->entry[i].key;
        if (key.type == CHAT_STRING && key.s->len && key.s->p[0] == '_')
            return chat__fail(r, CHAT_ERROR_SECURITY, "a namespace cannot hold the attribute '%.*s'", (int)key.s->len, key.s->p);
    }
    out.type = CHAT_NAMESPACE;
    return out;
}

static struct chat_value fn_raise(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    struct chat_value text = chat__to_str(r, a[0]);
    (void)self;
    (void)raw;
    if (r->status)
        return chat_none();
    return chat__fail(r, CHAT_ERROR_RAISED, "%.*s", (int)text.s->len, text.s->p);
}

static struct chat_value fn_strftime(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    char out[1024];
    time_t now = (time_t)r->now_s;
    struct tm tm;
    (void)self;
    (void)raw;
    if (a[0].type != CHAT_STRING)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "strftime() argument 1 must be str, not %s", chat__type_name(a[0]));
    if (!localtime_r(&now, &tm))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "the clock is out of range");
    struct chat_text fmt;
    chat__text_for(r, &fmt);
    for (size_t i = 0; i < a[0].s->len; i++) { /* a naive datetime has no zone, and this clock no microseconds */
        const char *two = a[0].s->p + i;
        bool percent = two[0] == '%' && i + 1 < a[0].s->len;
        if (percent && (two[1] == 'z' || two[1] == 'Z'))
            i++;
        else if (percent && two[1] == 'f')
            chat__text_puts(&fmt, "000000");
        else
            chat__text_put(&fmt, two, percent ? 2 : 1, false);
        i += percent && two[1] != 'z' && two[1] != 'Z';
    }
    chat__text_put(&fmt, "", 1, false);
    if (fmt.failed)
        return chat__out_of_memory(r);
    size_t n = strftime(out, sizeof(out), fmt.p, &tm);
    struct chat_value v = chat_string(&r->arena, out, n, a[0].s->n_ranges ? CHAT_REQUEST : CHAT_TRUSTED);
    return v.type == CHAT_INVALID ? chat__out_of_memory(r) : v;
}

static struct chat_value fn_cycler(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    struct chat_cycler *c = chat__alloc(r, sizeof(*c));
    (void)self;
    (void)a;
    if (raw->n_pos == 0 || raw->n_kw)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "at least one item has to be provided");
    if (!c)
        return chat_none();
    *c = (struct chat_cycler){.items = chat_list(&r->arena)};
    for (uint32_t i = 0; i < raw->n_pos; i++)
        if (chat_list_push(&r->arena, c->items, raw->pos[i]))
            return chat__out_of_memory(r);
    return (struct chat_value){.type = CHAT_CYCLER, .p = c};
}

static struct chat_value fn_joiner(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
{
    struct chat_joiner *j = chat__alloc(r, sizeof(*j));
    (void)self;
    (void)raw;
    if (!j)
        return chat_none();
    *j = (struct chat_joiner){.sep = a[0].type == CHAT_INVALID ? chat_string(&r->arena, ", ", 2, CHAT_TRUSTED) : a[0]};
    return j->sep.type == CHAT_INVALID ? chat__out_of_memory(r) : (struct chat_value){.type = CHAT_JOINER, .p = j};
}

struct chat_value chat__global(struct chat_run *r, const struct chat_str *name)
{
    static const struct chat_builtin globals[] = {
        {"range", fn_range, "/ start stop step", 1}, {"dict", fn_dict, NULL, 0}, {"namespace", fn_namespace, NULL, 0},
        {"raise_exception", fn_raise, "message", 1}, {"strftime_now", fn_strftime, "format", 1}, {"cycler", fn_cycler, NULL, 0},
        {"joiner", fn_joiner, "sep", 0},
    };
    const struct chat_builtin *fn = chat__find_builtin(globals, sizeof(globals) / sizeof(globals[0]), name);
    return fn ? chat__func(r, fn, chat_none()) : (struct chat_value){.type = CHAT_MISSING};
}
