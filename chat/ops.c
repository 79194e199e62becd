/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators as Python has them: arithmetic over bool, int and float (64-bit integers; beyond is an error, not another
 * number), sequences, comparisons, containment, truth. */
#include <math.h>
#include <string.h>

#include "chat/internal.h"

bool chat__truth(struct chat_run *r, struct chat_value v)
{
    switch (v.type) {
    case CHAT_BOOL: return v.b;
    case CHAT_INT: return v.i != 0;
    case CHAT_FLOAT: return v.f != 0;
    case CHAT_NONE: case CHAT_UNDEFINED: case CHAT_MISSING: case CHAT_INVALID: return false;
    case CHAT_NAMESPACE: return true;
    case CHAT_LOOP: return chat__loop_len(r, v.p) != 0;
    default: return chat__len(v) != 0; /* what has no length is true */
    }
}

int64_t chat__len(struct chat_value v)
{
    switch (v.type) {
    case CHAT_STRING: return v.s->n_chars;
    case CHAT_LIST: case CHAT_TUPLE: return v.l->n;
    case CHAT_DICT: case CHAT_VIEW: return v.d->n;
    case CHAT_RANGE: return ((struct chat_range_obj *)v.p)->len;
    case CHAT_UNDEFINED: return 0;
    default: return -1;
    }
}

bool chat__to_int(struct chat_run *r, struct chat_value v, int64_t *out)
{
    *out = 0;
    if (v.type == CHAT_INT || v.type == CHAT_BOOL) {
        *out = v.type == CHAT_BOOL ? v.b : v.i;
        return true;
    }
    if (v.type == CHAT_UNDEFINED)
        chat__fail_undefined(r, v);
    else
        chat__fail(r, CHAT_ERROR_RUNTIME, "'%s' object cannot be interpreted as an integer", chat__type_name(v));
    return false;
}

/* ---- arithmetic ---- */

static bool is_int(struct chat_value v)
{
    return v.type == CHAT_INT || v.type == CHAT_BOOL;
}

static bool is_number(struct chat_value v)
{
    return is_int(v) || v.type == CHAT_FLOAT;
}

static double as_float(struct chat_value v)
{
    return v.type == CHAT_FLOAT ? v.f : v.type == CHAT_BOOL ? (double)v.b : (double)v.i;
}

static const char *const op_names[] = {"+", "-", "*", "/", "//", "%", "** or pow()", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static struct chat_value unsupported(struct chat_run *r, enum chat_op op, struct chat_value a, struct chat_value b)
{
    if (op == OP_ADD && a.type == CHAT_STRING)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "can only concatenate str (not \"%s\") to str", chat__type_name(b));
    return chat__fail(r, CHAT_ERROR_RUNTIME, "unsupported operand type(s) for %s: '%s' and '%s'", op_names[op], chat__type_name(a), chat__type_name(b));
}

static struct chat_value overflow(struct chat_run *r)
{
    return chat__fail(r, CHAT_ERROR_LIMIT, "an integer does not fit into 64 bits");
}

static struct chat_value int_pow(struct chat_run *r, int64_t a, int64_t b)
{
    int64_t out = 1;
    if (b < 0)
        return a == 0 ? chat__fail(r, CHAT_ERROR_RUNTIME, "0.0 cannot be raised to a negative power") : chat_float(pow((double)a, (double)b));
    if (a == 0 || a == 1 || a == -1)
        return chat_int(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
    while (b--)
        if (__builtin_mul_overflow(out, a, &out))
            return overflow(r);
    return chat_int(out);
}

static struct chat_value int_binary(struct chat_run *r, enum chat_op op, int64_t a, int64_t b)
{
    int64_t out = 0;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, op == OP_DIV ? "division by zero" : "integer division or modulo by zero");
    switch (op) {
    case OP_ADD: return __builtin_add_overflow(a, b, &out) ? overflow(r) : chat_int(out);
    case OP_SUB: return __builtin_sub_overflow(a, b, &out) ? overflow(r) : chat_int(out);
    case OP_MUL: return __builtin_mul_overflow(a, b, &out) ? overflow(r) : chat_int(out);
    case OP_DIV: return chat_float((double)a / (double)b);
    case OP_POW: return int_pow(r, a, b);
    default: break;
    }
    if (b == -1)
        return op == OP_MOD ? chat_int(0) : a == INT64_MIN ? overflow(r) : chat_int(-a);
    int64_t q = a / b, m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) { /* Python rounds down */
        q--;
        m += b;
    }
    return chat_int(op == OP_MOD ? m : q);
}

static struct chat_value float_pow(struct chat_run *r, double a, double b)
{
    double out = pow(a, b);
    if (a == 0 && b < 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "0.0 cannot be raised to a negative power");
    if (isnan(out) && !isnan(a) && !isnan(b))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "complex numbers are not supported");
    if (isinf(out) && !isinf(a) && !isinf(b))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "Numerical result out of range");
    return chat_float(out);
}

/* a // b or a % b, rounding down; the signs of zeros as in Python. */
static struct chat_value float_divmod(double a, double b, bool want_mod)
{
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod == 0) {
        mod = copysign(0.0, b);
    } else if ((b < 0) != (mod < 0)) {
        mod += b;
        div -= 1;
    }
    if (want_mod)
        return chat_float(mod);
    double whole = floor(div);
    return chat_float(div == 0 ? copysign(0.0, a / b) : div - whole > 0.5 ? whole + 1 : whole);
}

static struct chat_value float_binary(struct chat_run *r, enum chat_op op, double a, double b)
{
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "float division by zero");
    switch (op) {
    case OP_ADD: return chat_float(a + b);
    case OP_SUB: return chat_float(a - b);
    case OP_MUL: return chat_float(a * b);
    case OP_DIV: return chat_float(a / b);
    case OP_POW: return float_pow(r, a, b);
    default: return float_divmod(a, b, op == OP_MOD);
    }
}

static struct chat_value repeat(struct chat_run *r, struct chat_value seq, int64_t times)
{
    int64_t n = seq.type == CHAT_STRING ? seq.s->len : seq.l->n;
    if (times < 0)
        times = 0;
    if (n && times > (int64_t)(r->limits.max_output / (uint64_t)n))
        return chat__fail(r, CHAT_ERROR_LIMIT, "a sequence repeated %lld times is too long", (long long)times);
    if (seq.type == CHAT_STRING) {
        struct chat_text t;
        chat__text_for(r, &t);
        for (int64_t i = 0; i < times && n && chat__step(r, (size_t)n); i++)
            chat__text_str(&t, seq);
        struct chat_value v = chat__text_done(r, &t);
        v.flags = seq.flags;
        return v;
    }
    struct chat_value out = seq.type == CHAT_LIST ? chat_list(&r->arena) : chat__tuple(&r->arena);
    for (int64_t i = 0; i < times * n && chat__step(r, 0); i++)
        if (chat_list_push(&r->arena, out, seq.l->item[i % n]))
            return chat__out_of_memory(r);
    return out.type == CHAT_INVALID ? chat__out_of_memory(r) : out;
}

static struct chat_value add_lists(struct chat_run *r, struct chat_value a, struct chat_value b)
{
    struct chat_value out = a.type == CHAT_LIST ? chat_list(&r->arena) : chat__tuple(&r->arena);
    int st = out.type == CHAT_INVALID;
    if (!chat__step(r, (a.l->n + b.l->n) * sizeof(struct chat_value)))
        return chat_none();
    for (uint32_t i = 0; i < a.l->n && !st; i++)
        st = chat_list_push(&r->arena, out, a.l->item[i]);
    for (uint32_t i = 0; i < b.l->n && !st; i++)
        st = chat_list_push(&r->arena, out, b.l->item[i]);
    return st ? chat__out_of_memory(r) : out;
}

static struct chat_value add(struct chat_run *r, struct chat_value a, struct chat_value b)
{
    if (a.type == CHAT_STRING && b.type == CHAT_STRING) {
        if (!((a.flags | b.flags) & CHAT_MARKUP))
            return chat__concat(r, a, b);
        if (!(a.flags & CHAT_MARKUP))
            a = chat__escape(r, a);
        if (!(b.flags & CHAT_MARKUP))
            b = chat__escape(r, b);
        struct chat_value v = chat__concat(r, a, b);
        v.flags = CHAT_MARKUP;
        return v;
    }
    return chat__is_seq(a) && a.type == b.type ? add_lists(r, a, b) : unsupported(r, OP_ADD, a, b);
}

struct chat_value chat__binary(struct chat_run *r, enum chat_op op, struct chat_value a, struct chat_value b)
{
    if (r->status)
        return chat_none();
    if (is_int(a) && is_int(b))
        return int_binary(r, op, a.type == CHAT_BOOL ? a.b : a.i, b.type == CHAT_BOOL ? b.b : b.i);
    if (is_number(a) && is_number(b))
        return float_binary(r, op, as_float(a), as_float(b));
    if (op == OP_MOD && a.type == CHAT_STRING)
        return chat__percent(r, a, b);
    if (a.type == CHAT_UNDEFINED || b.type == CHAT_UNDEFINED)
        return chat__fail_undefined(r, a.type == CHAT_UNDEFINED ? a : b);
    if (op == OP_ADD)
        return add(r, a, b);
    if (op == OP_MUL && (a.type == CHAT_STRING || chat__is_seq(a)) && is_int(b))
        return repeat(r, a, b.type == CHAT_BOOL ? b.b : b.i);
    if (op == OP_MUL && (b.type == CHAT_STRING || chat__is_seq(b)) && is_int(a))
        return repeat(r, b, a.type == CHAT_BOOL ? a.b : a.i);
    return unsupported(r, op, a, b);
}

/* ---- comparisons ---- */

static int order_lists(struct chat_run *r, struct chat_value a, struct chat_value b, const char *op)
{
    struct chat_budget budget = {.left = 1000000};
    for (uint32_t i = 0; i < a.l->n && i < b.l->n && chat__step(r, 0); i++) {
        if (chat__equal(a.l->item[i], b.l->item[i], &budget))
            continue;
        if (budget.over || ++r->depth > r->limits.max_depth) {
            chat__fail(r, CHAT_ERROR_LIMIT, "values too large to compare");
            return 0;
        }
        int c = chat__order(r, a.l->item[i], b.l->item[i], op);
        r->depth--;
        return c;
    }
    return (a.l->n > b.l->n) - (a.l->n < b.l->n);
}

int chat__order(struct chat_run *r, struct chat_value a, struct chat_value b, const char *op)
{
    if (r->status)
        return 0;
    if (is_int(a) && is_int(b)) {
        int64_t x = a.type == CHAT_BOOL ? a.b : a.i, y = b.type == CHAT_BOOL ? b.b : b.i;
        return (x > y) - (x < y);
    }
    if (is_number(a) && is_number(b)) {
        double x = as_float(a), y = as_float(b);
        return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
    }
    if (a.type == CHAT_STRING && b.type == CHAT_STRING) {
        int c = chat__step(r, a.s->len < b.s->len ? a.s->len : b.s->len) ? chat__str_cmp(a.s, b.s) : 0;
        return (c > 0) - (c < 0);
    }
    if (chat__is_seq(a) && a.type == b.type)
        return order_lists(r, a, b, op);
    if (a.type == CHAT_UNDEFINED || b.type == CHAT_UNDEFINED)
        chat__fail_undefined(r, a.type == CHAT_UNDEFINED ? a : b);
    else
        chat__fail(r, CHAT_ERROR_RUNTIME, "'%s' not supported between instances of '%s' and '%s'", op, chat__type_name(a), chat__type_name(b));
    return 0;
}

static bool equal(struct chat_run *r, struct chat_value a, struct chat_value b)
{
    struct chat_budget budget = {.left = 1000000};
    bool same = chat__equal(a, b, &budget);
    if (budget.over)
        chat__fail(r, CHAT_ERROR_LIMIT, "values too large to compare");
    chat__step(r, (1000000 - budget.left) * 64);
    return same;
}

bool chat__compare(struct chat_run *r, enum chat_op op, struct chat_value a, struct chat_value b)
{
    if (r->status)
        return false;
    switch (op) {
    case OP_EQ: return equal(r, a, b);
    case OP_NE: return !equal(r, a, b);
    case OP_IN: return chat__contains(r, a, b);
    case OP_NOT_IN: return !chat__contains(r, a, b);
    default: break;
    }
    int c = chat__order(r, a, b, op_names[op]);
    if (r->status || c == 2)
        return false;
    return op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
}

bool chat__contains(struct chat_run *r, struct chat_value item, struct chat_value in)
{
    if (in.type == CHAT_STRING) {
        if (item.type != CHAT_STRING) {
            chat__fail(r, CHAT_ERROR_RUNTIME, "'in <string>' requires string as left operand, not %s", chat__type_name(item));
            return false;
        }
        return chat__step(r, in.s->len) && memmem(in.s->p, in.s->len, item.s->p, item.s->len) != NULL;
    }
    if (in.type == CHAT_DICT || (in.type == CHAT_VIEW && in.flags == VIEW_KEYS)) {
        if (!chat__hashable(item)) {
            chat__fail(r, CHAT_ERROR_RUNTIME, "unhashable type: '%s'", chat__type_name(item));
            return false;
        }
        return chat__step(r, 0) && chat__dict_find(in.d, item).type != CHAT_INVALID;
    }
    if (!chat__iterable(in)) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "argument of type '%s' is not iterable", chat__type_name(in));
        return false;
    }
    struct chat_iter *it = chat__iter(r, in);
    struct chat_value v;
    while (it && chat__next(r, it, &v))
        if (equal(r, v, item))
            return true;
    return false;
}

/* ---- strings ---- */

/* The ranges of a followed by those of b, moved behind it. */
static bool join_ranges(struct chat_run *r, struct chat_str *out, const struct chat_str *a, const struct chat_str *b)
{
    if (a->n_ranges + b->n_ranges == 0)
        return true;
    struct chat_range *w = chat__alloc(r, (a->n_ranges + b->n_ranges) * sizeof(*w));
    uint32_t n = a->n_ranges;
    if (!w)
        return false;
    if (n)
        memcpy(w, a->ranges, n * sizeof(*w));
    for (uint32_t i = 0; i < b->n_ranges; i++) {
        struct chat_range moved = {b->ranges[i].start + a->len, b->ranges[i].end + a->len};
        if (n && w[n - 1].end == moved.start)
            w[n - 1].end = moved.end;
        else
            w[n++] = moved;
    }
    out->ranges = w;
    out->n_ranges = n;
    return true;
}

/* a + b. Templates build long texts by appending, so the block that ends with a is continued where it can be. */
static const char *join_bytes(struct chat_run *r, const struct chat_str *a, const struct chat_str *b)
{
    size_t len = (size_t)a->len + b->len;
    bool at_tail = r->tail && a->p + a->len == r->tail + r->n_tail;
    if (at_tail && r->cap_tail - r->n_tail >= b->len) {
        memcpy(r->tail + r->n_tail, b->p, b->len);
        r->n_tail += b->len;
        return a->p;
    }
    if (r->cap_tail - r->n_tail < len) {
        size_t cap = len < 4096 ? 8192 : len * 2;
        char *block = chat__alloc(r, cap);
        if (!block)
            return NULL;
        r->tail = block;
        r->n_tail = 0;
        r->cap_tail = cap;
    }
    char *p = r->tail + r->n_tail;
    memcpy(p, a->p, a->len);
    memcpy(p + a->len, b->p, b->len);
    r->n_tail += len;
    return p;
}

struct chat_value chat__concat(struct chat_run *r, struct chat_value a, struct chat_value b)
{
    if (r->status || b.s->len == 0)
        return a;
    if (a.s->len == 0)
        return b;
    if ((size_t)a.s->len + b.s->len > r->limits.max_output)
        return chat__fail(r, CHAT_ERROR_LIMIT, "a string longer than %zu bytes", r->limits.max_output);
    struct chat_str *s = chat__step(r, b.s->len) ? chat__alloc(r, sizeof(*s)) : NULL;
    if (!s)
        return a;
    *s = (struct chat_str){.len = a.s->len + b.s->len, .n_chars = a.s->n_chars + b.s->n_chars};
    s->p = join_bytes(r, a.s, b.s);
    if (!s->p || !join_ranges(r, s, a.s, b.s))
        return a;
    return (struct chat_value){.type = CHAT_STRING, .s = s};
}
