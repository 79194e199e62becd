/* SPDX-License-Identifier: Apache-2.0
 *
 * What may stand behind `is`. */
#include "chat/internal.h"

#define IS(name) static struct chat_value name(struct chat_run *r, struct chat_value v, const struct chat_value *a, const struct chat_args *raw)
#define UNUSED (void)r, (void)v, (void)a, (void)raw

static struct chat_value remainder_is(struct chat_run *r, struct chat_value v, struct chat_value by, int64_t want)
{
    struct chat_value m = chat__binary(r, OP_MOD, v, by);
    return chat_bool(!r->status && chat__compare(r, OP_EQ, m, chat_int(want)));
}

IS(is_odd) { UNUSED; return remainder_is(r, v, chat_int(2), 1); }
IS(is_even) { UNUSED; return remainder_is(r, v, chat_int(2), 0); }
IS(is_divisibleby) { UNUSED; return remainder_is(r, v, a[0], 0); }
IS(is_defined) { UNUSED; return chat_bool(v.type != CHAT_UNDEFINED); }
IS(is_undefined) { UNUSED; return chat_bool(v.type == CHAT_UNDEFINED); }
IS(is_none) { UNUSED; return chat_bool(v.type == CHAT_NONE); }
IS(is_boolean) { UNUSED; return chat_bool(v.type == CHAT_BOOL); }
IS(is_true) { UNUSED; return chat_bool(v.type == CHAT_BOOL && v.b); }
IS(is_false) { UNUSED; return chat_bool(v.type == CHAT_BOOL && !v.b); }
IS(is_integer) { UNUSED; return chat_bool(v.type == CHAT_INT); }
IS(is_float) { UNUSED; return chat_bool(v.type == CHAT_FLOAT); }
IS(is_number) { UNUSED; return chat_bool(v.type == CHAT_INT || v.type == CHAT_FLOAT || v.type == CHAT_BOOL); }
IS(is_string) { UNUSED; return chat_bool(v.type == CHAT_STRING); }
IS(is_mapping) { UNUSED; return chat_bool(v.type == CHAT_DICT); }
IS(is_iterable) { UNUSED; return chat_bool(chat__iterable(v)); }
IS(is_escaped) { UNUSED; return chat_bool(v.type == CHAT_STRING && v.flags & CHAT_MARKUP); }
IS(is_in) { UNUSED; return chat_bool(chat__contains(r, v, a[0])); }
IS(is_eq) { UNUSED; return chat_bool(chat__compare(r, OP_EQ, v, a[0])); }
IS(is_ne) { UNUSED; return chat_bool(chat__compare(r, OP_NE, v, a[0])); }
IS(is_gt) { UNUSED; return chat_bool(chat__compare(r, OP_GT, v, a[0])); }
IS(is_ge) { UNUSED; return chat_bool(chat__compare(r, OP_GE, v, a[0])); }
IS(is_lt) { UNUSED; return chat_bool(chat__compare(r, OP_LT, v, a[0])); }
IS(is_le) { UNUSED; return chat_bool(chat__compare(r, OP_LE, v, a[0])); }

IS(is_sequence)
{
    UNUSED;
    return chat_bool(v.type == CHAT_STRING || chat__is_seq(v) || v.type == CHAT_DICT || v.type == CHAT_RANGE || v.type == CHAT_UNDEFINED);
}

IS(is_callable)
{
    UNUSED;
    return chat_bool(v.type == CHAT_FUNC || v.type == CHAT_MACRO || v.type == CHAT_JOINER || v.type == CHAT_LOOP || v.type == CHAT_UNDEFINED);
}

/* `is` of Python. Equal scalars count as one object, which is what its caches make of those that matter. */
IS(is_sameas)
{
    UNUSED;
    if (v.type != a[0].type || v.type == CHAT_LIST || v.type == CHAT_DICT || v.type == CHAT_TUPLE)
        return chat_bool(v.type == a[0].type && v.p == a[0].p);
    return chat_bool(chat__compare(r, OP_EQ, v, a[0]));
}

static struct chat_value in_case(struct chat_run *r, struct chat_value v, unsigned want)
{
    bool any = false;
    v = chat__to_str(r, v);
    for (size_t i = 0, len; !r->status && i < v.s->len; i += len) {
        unsigned f = chat__unicode(chat__char_at(v.s->p + i, v.s->len - i, &len)) & UNICODE_CASED;
        if (f & ~want)
            return chat_bool(false);
        any |= f != 0;
    }
    return chat_bool(any);
}

IS(is_lower) { UNUSED; return in_case(r, v, UNICODE_LOWER); }
IS(is_upper) { UNUSED; return in_case(r, v, UNICODE_UPPER); }
IS(is_filter) { UNUSED; return chat_bool(v.type == CHAT_STRING && chat__filter(v.s)); }
IS(is_test) { UNUSED; return chat_bool(v.type == CHAT_STRING && chat__test(v.s)); }

const struct chat_builtin *chat__test(const struct chat_str *name)
{
    static const struct chat_builtin tests[] = {
        {"odd", is_odd, "", 0}, {"even", is_even, "", 0}, {"divisibleby", is_divisibleby, "num", 1}, {"defined", is_defined, "", 0},
        {"undefined", is_undefined, "", 0}, {"filter", is_filter, "", 0}, {"test", is_test, "", 0}, {"none", is_none, "", 0},
        {"boolean", is_boolean, "", 0}, {"false", is_false, "", 0}, {"true", is_true, "", 0}, {"integer", is_integer, "", 0},
        {"float", is_float, "", 0}, {"lower", is_lower, "", 0}, {"upper", is_upper, "", 0}, {"string", is_string, "", 0},
        {"mapping", is_mapping, "", 0}, {"number", is_number, "", 0}, {"sequence", is_sequence, "", 0}, {"iterable", is_iterable, "", 0},
        {"callable", is_callable, "", 0}, {"sameas", is_sameas, "other", 1}, {"escaped", is_escaped, "", 0}, {"in", is_in, "seq", 1},
        {"==", is_eq, "/ b", 1}, {"eq", is_eq, "/ b", 1}, {"equalto", is_eq, "/ b", 1}, {"!=", is_ne, "/ b", 1}, {"ne", is_ne, "/ b", 1},
        {">", is_gt, "/ b", 1}, {"gt", is_gt, "/ b", 1}, {"greaterthan", is_gt, "/ b", 1}, {"ge", is_ge, "/ b", 1}, {">=", is_ge, "/ b", 1},
        {"<", is_lt, "/ b", 1}, {"lt", is_lt, "/ b", 1}, {"lessthan", is_lt, "/ b", 1}, {"<=", is_le, "/ b", 1}, {"le", is_le, "/ b", 1},
    };
    return chat__find_builtin(tests, sizeof(tests) / sizeof(tests[0]), name);
}
