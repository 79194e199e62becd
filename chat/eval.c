/* SPDX-License-Identifier: Apache-2.0
 *
 * Executes statements, and the public face of rendering: limits, the first error, the output and whose bytes it has. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "chat/internal.h"

enum { STEP_BYTES = 64 };

/* ---- errors and limits ---- */

/* The text of an error is cut where a character ends. */
static void trim_error(struct chat_error *e)
{
    size_t n = strlen(e->text);
    if (n < sizeof(e->text) - 1)
        return;
    n -= 3;
    while (n > 0 && ((unsigned char)e->text[n] & 0xc0) == 0x80)
        n--;
    memcpy(e->text + n, "...", 4);
}

struct chat_value chat__fail(struct chat_run *r, enum chat_error_kind kind, const char *fmt, ...)
{
    if (r->status)
        return chat_none();
    r->status = kind == CHAT_ERROR_LIMIT ? ST_LIMIT : kind == CHAT_ERROR_MEMORY ? ST_NOMEM : ST_INVALID;
    if (r->e) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(r->e->text, sizeof(r->e->text), fmt, ap);
        va_end(ap);
        r->e->kind = kind;
        r->e->line = (int)r->line;
        trim_error(r->e);
    }
    return chat_none();
}

/* No single request is near the whole budget, so a failure while little is used is the machine's. */
struct chat_value chat__out_of_memory(struct chat_run *r)
{
    if (r->arena.used_bytes > r->limits.max_memory / 4)
        return chat__fail(r, CHAT_ERROR_LIMIT, "rendering needs more than %zu bytes of memory", r->limits.max_memory);
    return chat__fail(r, CHAT_ERROR_MEMORY, "out of memory while rendering the template");
}

bool chat__step(struct chat_run *r, size_t n_bytes)
{
    r->steps += 1 + n_bytes / STEP_BYTES;
    if (r->steps > r->limits.max_steps)
        chat__fail(r, CHAT_ERROR_LIMIT, "rendering takes more than %llu steps", (unsigned long long)r->limits.max_steps);
    return !r->status;
}

void *chat__alloc(struct chat_run *r, size_t n)
{
    void *p = r->status ? NULL : arena_alloc(&r->arena, n);
    if (!p)
        chat__out_of_memory(r);
    return p;
}

void chat__text_for(struct chat_run *r, struct chat_text *t)
{
    chat__text_init(t, &r->arena, r->limits.max_output);
}

struct chat_value chat__text_done(struct chat_run *r, struct chat_text *t)
{
    if (t->over)
        return chat__fail(r, CHAT_ERROR_LIMIT, "a text longer than %zu bytes", r->limits.max_output);
    chat__step(r, t->len);
    struct chat_value v = chat__text_value(t);
    if (v.type == CHAT_INVALID)
        chat__out_of_memory(r);
    return r->status ? chat_none() : v;
}

/* ---- scopes and functions ---- */

struct chat_frame *chat__frame(struct chat_run *r, const struct chat_function *f, struct chat_frame *up)
{
    struct chat_frame *frame = chat__alloc(r, sizeof(*frame) + f->n_slots * sizeof(frame->slot[0]));
    if (!frame || !chat__step(r, f->n_slots * sizeof(frame->slot[0])))
        return NULL;
    frame->up = up;
    for (uint32_t i = 0; i < f->n_slots; i++)
        frame->slot[i] = (struct chat_value){.type = CHAT_MISSING};
    return frame;
}

struct chat_value chat__lookup(struct chat_run *r, const struct chat_str *name)
{
    const struct chat_scope *main = &r->t->main.scope;
    for (uint32_t i = 0; r->main && i < main->n; i++) /* blocks see what the template assigned at its own level */
        if (main->load[i].name == name && r->main->slot[main->load[i].slot].type != CHAT_MISSING)
            return r->main->slot[main->load[i].slot];
    struct chat_value v = chat__dict_find(r->vars.d, (struct chat_value){.type = CHAT_STRING, .s = name});
    return v.type == CHAT_INVALID ? chat__global(r, name) : v;
}

void chat__scope_enter(struct chat_run *r, const struct chat_scope *s)
{
    for (uint32_t i = 0; i < s->n && chat__step(r, 0); i++) {
        const struct chat_load *l = &s->load[i];
        struct chat_value v = {.type = CHAT_MISSING};
        if (l->kind == LOAD_RESOLVE) {
            v = chat__lookup(r, l->name);
        } else if (l->kind == LOAD_ALIAS) {
            struct chat_frame *f = r->frame;
            for (uint32_t h = 0; h < l->hops; h++)
                f = f->up;
            v = f->slot[l->from];
        }
        r->frame->slot[l->slot] = v;
    }
}

/* Runs `body` with its output going to a text of its own. */
struct chat_value chat__capture(struct chat_run *r, const struct chat_node *body, enum chat_flow *flow)
{
    struct chat_text t, *outer = r->out;
    chat__text_for(r, &t);
    r->out = &t;
    *flow = chat__exec(r, body);
    r->out = outer;
    return r->status ? chat_none() : chat__text_done(r, &t);
}

static struct chat_value filtered(struct chat_run *r, const struct chat_node *filter, struct chat_value v)
{
    struct chat_args args;
    if (!filter)
        return v;
    v = filtered(r, filter->subject, v);
    if (r->status || !chat__eval_args(r, filter, &args, NULL))
        return chat_none();
    if (!filter->fn)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "No filter named '%.*s' found.", (int)filter->fn_name->len, filter->fn_name->p);
    return chat__call_builtin(r, filter->fn, v, &args);
}

static void print(struct chat_run *r, struct chat_value v)
{
    if (!r->status)
        chat__put_str(r, r->out, v);
    if (r->out->over)
        chat__fail(r, CHAT_ERROR_LIMIT, "the output is longer than %zu bytes", r->limits.max_output);
    else if (r->out->failed)
        chat__out_of_memory(r);
}

/* What a filter or call block gives is written as it is, so it has to be text. */
static void print_text(struct chat_run *r, struct chat_value v)
{
    if (!r->status && v.type != CHAT_STRING)
        chat__fail(r, CHAT_ERROR_RUNTIME, "sequence item 0: expected str instance, %s found", chat__type_name(v));
    print(r, v);
}

/* ---- loops ---- */

static struct chat_iter *tested(struct chat_run *r, const struct chat_for *f, struct chat_iter *source, struct chat_frame *up)
{
    struct chat_iter *it = chat__alloc(r, sizeof(*it));
    struct chat_frame *frame = chat__frame(r, f->test, up);
    if (!it || !frame)
        return NULL;
    *it = (struct chat_iter){.kind = ITER_TEST, .source = source, .test = f, .frame = frame};
    struct chat_frame *outer = r->frame;
    r->frame = frame;
    chat__scope_enter(r, &f->test->scope);
    r->frame = outer;
    return it;
}

static enum chat_flow run_loop(struct chat_run *r, const struct chat_for *f, struct chat_value iterable, struct chat_frame *up, uint32_t depth)
{
    struct chat_iter *it = chat__iter(r, iterable);
    if (it && f->test)
        it = tested(r, f, it, up);
    struct chat_loop *l = it ? chat__alloc(r, sizeof(*l)) : NULL;
    enum chat_flow flow = FLOW_NEXT;
    struct chat_value item, missing = {.type = CHAT_MISSING};
    bool any = false;
    if (!l)
        return FLOW_NEXT;
    *l = (struct chat_loop){.it = it, .iterable = f->test ? chat__iter_value(it) : iterable, .index0 = -1, .length = -1, .before = missing,
                            .current = missing, .after = missing, .changed = missing, .recursive = f->recursive ? f : NULL, .up = up,
                            .depth0 = depth};
    while (!r->status && chat__loop_next(r, l, &item)) {
        chat__assign(r, f->target, item);
        if (f->loop_slot != UINT32_MAX)
            r->frame->slot[f->loop_slot] = (struct chat_value){.type = CHAT_LOOP, .p = l};
        chat__scope_enter(r, &f->scope);
        flow = r->status ? FLOW_NEXT : chat__exec(r, f->body);
        if (flow == FLOW_BREAK)
            break;
        any |= flow == FLOW_NEXT;
    }
    if (!any && f->otherwise && !r->status) {
        chat__scope_enter(r, &f->else_scope);
        return chat__exec(r, f->otherwise);
    }
    return FLOW_NEXT;
}

struct chat_value chat__run_recursive(struct chat_run *r, const struct chat_for *f, struct chat_frame *up, struct chat_value iterable, uint32_t depth)
{
    struct chat_frame *outer = r->frame, *frame = chat__frame(r, f->recursive, up);
    struct chat_text t, *out = r->out;
    if (!frame)
        return chat_none();
    if (r->depth + 8 >= r->limits.max_depth)
        return chat__fail(r, CHAT_ERROR_LIMIT, "recursion deeper than %zu", r->limits.max_depth);
    chat__text_for(r, &t);
    r->out = &t;
    r->frame = frame;
    r->depth += 8; /* a call takes more stack than an expression */
    run_loop(r, f, iterable, up, depth);
    r->depth -= 8;
    r->frame = outer;
    r->out = out;
    return r->status ? chat_none() : chat__text_done(r, &t);
}

static enum chat_flow exec_for(struct chat_run *r, const struct chat_for *f)
{
    struct chat_value iterable = chat__eval(r, f->iter);
    if (r->status)
        return FLOW_NEXT;
    if (!f->recursive)
        return run_loop(r, f, iterable, r->frame, 0);
    print(r, chat__run_recursive(r, f, r->frame, iterable, 0));
    return FLOW_NEXT;
}

/* ---- the other statements ---- */

static enum chat_flow exec_if(struct chat_run *r, const struct chat_node *n)
{
    uint32_t i = 0;
    for (; i + 1 < n->n; i += 2)
        if (chat__truth(r, chat__eval(r, n->list[i])) && !r->status)
            return chat__exec(r, n->list[i + 1]);
    return i < n->n && !r->status ? chat__exec(r, n->list[i]) : FLOW_NEXT;
}

/* Namespaces are checked before the value is computed, as jinja2 does. */
static void check_targets(struct chat_run *r, const struct chat_node *n)
{
    if (n->kind == N_NSREF) {
        struct chat_node name = *n;
        name.kind = N_NAME;
        struct chat_value v = chat__eval(r, &name);
        if (!r->status && v.type != CHAT_NAMESPACE)
            chat__fail(r, CHAT_ERROR_RUNTIME, "cannot assign attribute on non-namespace object");
    }
    for (uint32_t i = 0; n->kind == N_TUPLE && i < n->n; i++)
        check_targets(r, n->list[i]);
}

static struct chat_value closure(struct chat_run *r, const struct chat_function *f)
{
    struct chat_closure *c = chat__alloc(r, sizeof(*c));
    if (c)
        *c = (struct chat_closure){.fn = f, .up = r->frame};
    return (struct chat_value){.type = c ? CHAT_MACRO : CHAT_NONE, .p = c};
}

static void exec_call_block(struct chat_run *r, const struct chat_node *n)
{
    struct chat_args args;
    struct chat_value body = closure(r, n->function), callee = chat__eval(r, n->call->subject);
    if (r->status || !chat__eval_args(r, n->call, &args, &body))
        return;
    print_text(r, chat__call(r, callee, &args));
}

static enum chat_flow exec_block(struct chat_run *r, const struct chat_node *n)
{
    enum chat_flow flow = FLOW_NEXT;
    struct chat_value v;
    if (n->kind == N_WITH) {
        for (uint32_t i = 0; i + 1 < n->n; i += 2)
            chat__assign(r, n->list[i], chat__eval(r, n->list[i + 1]));
        chat__scope_enter(r, n->scope);
        return r->status ? FLOW_NEXT : chat__exec(r, n->block);
    }
    chat__scope_enter(r, n->scope);
    if (n->kind == N_SCOPE)
        return r->status ? FLOW_NEXT : chat__exec(r, n->block);
    v = chat__capture(r, n->block, &flow);
    if (flow != FLOW_NEXT)
        return flow; /* out of a loop around: what was captured is dropped */
    v = filtered(r, n->filter, v);
    if (n->kind == N_FILTER_BLOCK)
        print_text(r, v);
    else
        chat__assign(r, n->target, v);
    return FLOW_NEXT;
}

static enum chat_flow exec_named_block(struct chat_run *r, const struct chat_function *f)
{
    struct chat_frame *outer = r->frame, *frame = chat__frame(r, f, NULL);
    if (!frame)
        return FLOW_NEXT;
    r->frame = frame;
    chat__scope_enter(r, &f->scope);
    if (!r->status)
        chat__exec(r, f->body);
    r->frame = outer;
    return FLOW_NEXT;
}

static enum chat_flow exec_one(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v;
    switch (n->kind) {
    case N_OUTPUT:
        for (uint32_t i = 0; i < n->n && !r->status; i++)
            print(r, chat__eval(r, n->list[i]));
        return FLOW_NEXT;
    case N_FOR:
        return exec_for(r, n->loop);
    case N_IF:
        return exec_if(r, n);
    case N_SET:
        check_targets(r, n->kid[0]);
        v = chat__eval(r, n->kid[1]);
        chat__assign(r, n->kid[0], v);
        return FLOW_NEXT;
    case N_MACRO: {
        struct chat_node target = {.kind = N_NAME, .var = n->macro_var};
        chat__assign(r, &target, closure(r, n->function));
        return FLOW_NEXT;
    }
    case N_CALL_BLOCK:
        exec_call_block(r, n);
        return FLOW_NEXT;
    case N_BLOCK:
        return exec_named_block(r, n->function);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    case N_NO_LOADER:
        chat__fail(r, CHAT_ERROR_RUNTIME, "no loader for this environment specified");
        return FLOW_NEXT;
    default:
        return exec_block(r, n);
    }
}

enum chat_flow chat__exec(struct chat_run *r, const struct chat_node *body)
{
    enum chat_flow flow = FLOW_NEXT;
    if (r->depth >= r->limits.max_depth) {
        chat__fail(r, CHAT_ERROR_LIMIT, "statements nested deeper than %zu", r->limits.max_depth);
        return FLOW_NEXT;
    }
    r->depth += 2;
    for (uint32_t i = 0; i < body->n && flow == FLOW_NEXT && chat__step(r, 0); i++) {
        r->line = body->list[i]->line;
        flow = exec_one(r, body->list[i]);
    }
    r->depth -= 2;
    return flow;
}
