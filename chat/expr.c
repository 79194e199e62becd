/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluates expressions: one case per node, operands from left to right as Python does. Depth, steps and the sticky
 * error are checked here, once per node. */
#include "chat/internal.h"

static struct chat_value *slot(struct chat_run *r, const struct chat_var *v)
{
    struct chat_frame *f = r->frame;
    for (uint32_t i = 0; i < v->hops; i++)
        f = f->up;
    return &f->slot[v->slot];
}

static struct chat_value eval_name(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v = *slot(r, &n->var);
    if (v.type == CHAT_MISSING)
        return chat__undefined(r, 0, (struct chat_value){.type = CHAT_STRING, .s = n->var.name});
    return v;
}

static struct chat_value eval_sequence(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value out = n->kind == N_LIST ? chat_list(&r->arena) : chat__tuple(&r->arena);
    for (uint32_t i = 0; i < n->n && !r->status; i++)
        if (chat_list_push(&r->arena, out, chat__eval(r, n->list[i])))
            return chat__out_of_memory(r);
    return out.type == CHAT_INVALID ? chat__out_of_memory(r) : out;
}

static struct chat_value eval_dict(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value out = chat_dict(&r->arena);
    if (out.type == CHAT_INVALID)
        return chat__out_of_memory(r);
    for (uint32_t i = 0; i + 1 < n->n && !r->status; i += 2) {
        struct chat_value key = chat__eval(r, n->list[i]), value = chat__eval(r, n->list[i + 1]);
        if (r->status)
            break;
        if (!chat__hashable(key))
            return chat__fail(r, CHAT_ERROR_RUNTIME, "unhashable type: '%s'", chat__type_name(key));
        if (chat__dict_put(&r->arena, out.d, key, value))
            return chat__out_of_memory(r);
    }
    return out;
}

static struct chat_value eval_cond(struct chat_run *r, const struct chat_node *n)
{
    bool yes = chat__truth(r, chat__eval(r, n->kid[0]));
    if (r->status)
        return chat_none();
    if (yes)
        return chat__eval(r, n->kid[1]);
    return n->kid[2] ? chat__eval(r, n->kid[2])
                     : chat__undefined_hint(r, "the inline if-expression evaluated to false and no else section was defined.");
}

static struct chat_value eval_concat(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value out = {0};
    for (uint32_t i = 0; i < n->n && !r->status; i++) {
        struct chat_value part = chat__to_str(r, chat__eval(r, n->list[i]));
        if (!r->status)
            out = i ? chat__concat(r, out, part) : part;
    }
    out.flags = 0;
    return r->status ? chat_none() : out;
}

static struct chat_value eval_compare(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value left = chat__eval(r, n->kid[0]);
    bool yes = true;
    for (uint32_t i = 0; i < n->n && yes && !r->status; i++) {
        struct chat_value right = chat__eval(r, n->list[i]->kid[0]);
        yes = chat__compare(r, (enum chat_op)n->list[i]->op, left, right);
        left = right;
    }
    return chat_bool(yes);
}

static struct chat_value eval_sign(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v = chat__eval(r, n->kid[0]);
    if (v.type == CHAT_BOOL)
        v = chat_int(v.b);
    if (v.type == CHAT_UNDEFINED)
        return chat__fail_undefined(r, v);
    if (v.type != CHAT_INT && v.type != CHAT_FLOAT)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "bad operand type for unary %c: '%s'", n->kind == N_NEG ? '-' : '+', chat__type_name(v));
    if (n->kind == N_POS)
        return v;
    return v.type == CHAT_FLOAT ? chat_float(-v.f) : chat__binary(r, OP_SUB, chat_int(0), v);
}

static struct chat_value eval_getitem(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v = chat__eval(r, n->kid[0]);
    const struct chat_node *arg = n->kid[1];
    if (arg->kind != N_SLICE) {
        struct chat_value key = chat__eval(r, arg);
        return r->status ? chat_none() : chat__getitem(r, v, key);
    }
    struct chat_value part[3];
    for (int i = 0; i < 3; i++)
        part[i] = arg->kid[i] ? chat__eval(r, arg->kid[i]) : chat_none();
    return r->status ? chat_none() : chat__slice(r, v, part[0], part[1], part[2]);
}

static struct chat_value eval_call(struct chat_run *r, const struct chat_node *n)
{
    struct chat_args args;
    struct chat_value callee = chat__eval(r, n->subject);
    if (r->status || !chat__eval_args(r, n, &args, NULL))
        return chat_none();
    r->line = n->line;
    return chat__call(r, callee, &args);
}

static struct chat_value eval_builtin(struct chat_run *r, const struct chat_node *n)
{
    struct chat_args args;
    struct chat_value v = chat__eval(r, n->subject);
    if (r->status || !chat__eval_args(r, n, &args, NULL))
        return chat_none();
    r->line = n->line;
    if (!n->fn)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "No %s named '%.*s' found.", n->kind == N_FILTER ? "filter" : "test", (int)n->fn_name->len, n->fn_name->p);
    return chat__call_builtin(r, n->fn, v, &args);
}

static struct chat_value eval_node(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v;
    switch (n->kind) {
    case N_CONST: return n->value;
    case N_NAME: return eval_name(r, n);
    case N_TUPLE: case N_LIST: return eval_sequence(r, n);
    case N_DICT: return eval_dict(r, n);
    case N_COND: return eval_cond(r, n);
    case N_AND:
        v = chat__eval(r, n->kid[0]);
        return chat__truth(r, v) ? chat__eval(r, n->kid[1]) : v;
    case N_OR:
        v = chat__eval(r, n->kid[0]);
        return chat__truth(r, v) ? v : chat__eval(r, n->kid[1]);
    case N_NOT: return chat_bool(!chat__truth(r, chat__eval(r, n->kid[0])));
    case N_NEG: case N_POS: return eval_sign(r, n);
    case N_BINARY:
        v = chat__eval(r, n->kid[0]);
        return chat__binary(r, (enum chat_op)n->op, v, chat__eval(r, n->kid[1]));
    case N_CONCAT: return eval_concat(r, n);
    case N_COMPARE: return eval_compare(r, n);
    case N_GETATTR:
        v = chat__eval(r, n->kid[0]);
        r->line = n->line;
        return r->status ? v : chat__getattr(r, v, n->kid[1]->value);
    case N_GETITEM: return eval_getitem(r, n);
    case N_CALL: return eval_call(r, n);
    case N_FILTER: case N_TEST: return eval_builtin(r, n);
    case N_SLICE: return chat__fail(r, CHAT_ERROR_RUNTIME, "a slice inside of a tuple is not supported");
    default: return chat__fail(r, CHAT_ERROR_RUNTIME, "not an expression");
    }
}

struct chat_value chat__eval(struct chat_run *r, const struct chat_node *n)
{
    if (!chat__step(r, 0))
        return chat_none();
    if (r->depth >= r->limits.max_depth)
        return chat__fail(r, CHAT_ERROR_LIMIT, "evaluation nested deeper than %zu", r->limits.max_depth);
    r->depth++;
    r->line = n->line;
    struct chat_value v = eval_node(r, n);
    r->depth--;
    return v;
}

static void unpack(struct chat_run *r, const struct chat_node *target, struct chat_value v)
{
    if (!chat__iterable(v)) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "cannot unpack non-iterable %s object", chat__type_name(v));
        return;
    }
    struct chat_iter *it = chat__iter(r, v);
    struct chat_value *item = chat__alloc(r, target->n * sizeof(*item)), extra;
    if (!it || !item)
        return;
    for (uint32_t i = 0; i < target->n; i++)
        if (!chat__next(r, it, &item[i])) {
            chat__fail(r, CHAT_ERROR_RUNTIME, "not enough values to unpack (expected %u, got %u)", target->n, i);
            return;
        }
    if (chat__next(r, it, &extra))
        chat__fail(r, CHAT_ERROR_RUNTIME, "too many values to unpack (expected %u)", target->n);
    for (uint32_t i = 0; i < target->n && !r->status; i++)
        chat__assign(r, target->list[i], item[i]);
}

void chat__assign(struct chat_run *r, const struct chat_node *target, struct chat_value v)
{
    if (r->status)
        return;
    if (target->kind == N_TUPLE) {
        unpack(r, target, v);
    } else if (target->kind == N_NAME) {
        *slot(r, &target->var) = v;
    } else {
        struct chat_value ns = *slot(r, &target->var), key = {.type = CHAT_STRING, .s = target->attr};
        if (ns.type != CHAT_NAMESPACE)
            chat__fail(r, CHAT_ERROR_RUNTIME, "cannot assign attribute on non-namespace object");
        else if (target->attr->p[0] == '_')
            chat__fail(r, CHAT_ERROR_SECURITY, "a namespace cannot hold the attribute '%.*s'", (int)target->attr->len, target->attr->p);
        else if (chat__dict_put(&r->arena, ns.d, key, v))
            chat__out_of_memory(r);
    }
}
