/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of single values: text, numbers, JSON. Those of sequences are in filters_seq.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/internal.h"

#define FILTER(name) static struct chat_value name(struct chat_run *r, struct chat_value v, const struct chat_value *a, const struct chat_args *raw)
#define UNUSED (void)r, (void)v, (void)a, (void)raw

static bool given(struct chat_value v)
{
    return v.type != CHAT_INVALID && v.type != CHAT_NONE;
}

static bool truthy(struct chat_run *r, struct chat_value v)
{
    return v.type != CHAT_INVALID && chat__truth(r, v);
}

static int64_t int_or(struct chat_run *r, struct chat_value v, int64_t otherwise)
{
    int64_t i = otherwise;
    return v.type == CHAT_INVALID || chat__to_int(r, v, &i) ? i : otherwise;
}

/* v as text; with an error pending an empty string, so that callers may go on. */
static struct chat_value text(struct chat_run *r, struct chat_value v)
{
    static const struct chat_str empty = {.p = ""};
    v = chat__to_str(r, v);
    return v.type == CHAT_STRING ? v : (struct chat_value){.type = CHAT_STRING, .s = &empty};
}

FILTER(f_upper) { UNUSED; return chat__case(r, text(r, v), CASE_UPPER); }
FILTER(f_lower) { UNUSED; return chat__case(r, text(r, v), CASE_LOWER); }
FILTER(f_capitalize) { UNUSED; return chat__capitalize(r, text(r, v)); }
FILTER(f_trim) { UNUSED; return chat__strip(r, text(r, v), a[0], 3); }
FILTER(f_string) { UNUSED; return text(r, v); }
FILTER(f_tojson) { UNUSED; return chat__to_json(r, v, a); }
FILTER(f_center) { UNUSED; return chat__pad(r, text(r, v), int_or(r, a[0], 80), chat_none(), '^'); }
FILTER(f_replace) { UNUSED; return chat__replace(r, text(r, v), text(r, a[0]), text(r, a[1]), given(a[2]) ? int_or(r, a[2], -1) : -1); }

static bool begins_word(const struct chat_str *s, size_t at, size_t *len)
{
    uint32_t c = chat__char_at(s->p + at, s->len - at, len);
    return !(chat__is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<');
}

/* Each word by itself: the first character upper case, the rest lower. */
FILTER(f_title)
{
    UNUSED;
    struct chat_text t;
    v = text(r, v);
    chat__text_for(r, &t);
    for (size_t at = 0, end, len; at < v.s->len && chat__step(r, 0); at = end) {
        bool word = begins_word(v.s, at, &len);
        size_t first = at + len;
        for (end = first; end < v.s->len && begins_word(v.s, end, &len) == word; end += len)
            continue;
        struct chat_value head = chat__str_slice(&r->arena, v, at, word ? first : end), tail = chat__str_slice(&r->arena, v, first, end);
        if (head.type == CHAT_INVALID || tail.type == CHAT_INVALID)
            return chat__out_of_memory(r);
        chat__text_str(&t, word ? chat__case(r, head, CASE_UPPER) : head);
        if (word && !r->status)
            chat__text_str(&t, chat__case(r, tail, CASE_LOWER));
    }
    return r->status ? v : chat__text_done(r, &t);
}

FILTER(f_safe)
{
    UNUSED;
    v = text(r, v);
    v.flags |= CHAT_MARKUP;
    return v;
}

FILTER(f_escape)
{
    UNUSED;
    v = text(r, v);
    return v.flags & CHAT_MARKUP ? v : chat__escape(r, v);
}

FILTER(f_forceescape) { UNUSED; return chat__escape(r, text(r, v)); }

FILTER(f_default)
{
    UNUSED;
    if (v.type != CHAT_UNDEFINED && !(truthy(r, a[1]) && !chat__truth(r, v)))
        return v;
    return a[0].type == CHAT_INVALID ? text(r, (struct chat_value){.type = CHAT_UNDEFINED}) : a[0];
}

FILTER(f_length)
{
    UNUSED;
    int64_t n = v.type == CHAT_LOOP ? chat__loop_len(r, v.p) : chat__len(v);
    return n < 0 ? chat__fail(r, CHAT_ERROR_RUNTIME, "object of type '%s' has no len()", chat__type_name(v)) : chat_int(n);
}

FILTER(f_indent)
{
    UNUSED;
    static const char newline[] = "\n";
    struct chat_text t;
    if (v.type == CHAT_UNDEFINED)
        return chat__fail_undefined(r, v);
    if (v.type != CHAT_STRING)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "unsupported operand type(s) for +: '%s' and 'str'", chat__type_name(v));
    struct chat_value indent = a[0];
    bool first = truthy(r, a[1]), blank = truthy(r, a[2]);
    if (indent.type != CHAT_STRING)
        indent = chat__pad(r, chat_string(&r->arena, "", 0, CHAT_TRUSTED), int_or(r, a[0], 4), chat_none(), '<');
    struct chat_value end = chat_string(&r->arena, newline, 1, CHAT_TRUSTED);
    if (r->status || end.type == CHAT_INVALID)
        return chat__out_of_memory(r);
    struct chat_value lines = chat__splitlines(r, chat__concat(r, v, end), false);
    chat__text_for(r, &t);
    for (size_t i = 0; i < chat_list_len(lines) && chat__step(r, indent.s->len); i++) {
        struct chat_value line = lines.l->item[i];
        if (i)
            chat__text_put(&t, newline, 1, false);
        if (i == 0 ? first : blank || line.s->len)
            chat__text_str(&t, indent);
        chat__text_str(&t, line);
    }
    struct chat_value out = chat__text_done(r, &t);
    out.flags = r->status ? 0 : v.flags;
    return out;
}

FILTER(f_truncate)
{
    UNUSED;
    struct chat_value end = a[2].type == CHAT_STRING ? a[2] : chat_string(&r->arena, "...", 3, CHAT_TRUSTED);
    int64_t length = int_or(r, a[0], 255), leeway = given(a[3]) ? int_or(r, a[3], 5) : 5;
    if (v.type == CHAT_UNDEFINED)
        return text(r, v); /* its length is 0 */
    if (v.type != CHAT_STRING || end.type == CHAT_INVALID)
        return end.type == CHAT_INVALID ? chat__out_of_memory(r) : chat__fail(r, CHAT_ERROR_RUNTIME, "object of type '%s' has no len()", chat__type_name(v));
    if (length < end.s->n_chars || leeway < 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "expected length >= %u, got %lld", end.s->n_chars, (long long)length);
    if (length > INT32_MAX || leeway > INT32_MAX || v.s->n_chars <= length + leeway)
        return v;
    size_t cut = chat__char_offset(v.s, (size_t)(length - end.s->n_chars));
    struct chat_value kept = chat__str_slice(&r->arena, v, 0, cut);
    if (kept.type == CHAT_INVALID)
        return chat__out_of_memory(r);
    const char *space = truthy(r, a[1]) || !cut ? NULL : memrchr(kept.s->p, ' ', cut);
    if (space)
        kept = chat__str_slice(&r->arena, kept, 0, (size_t)(space - kept.s->p));
    return kept.type == CHAT_INVALID ? chat__out_of_memory(r) : chat__concat(r, kept, end);
}

FILTER(f_wordcount)
{
    UNUSED;
    int64_t n = 0;
    bool inside = false;
    v = text(r, v);
    for (size_t i = 0, len; i < v.s->len && chat__step(r, 0); i += len) {
        uint32_t c = chat__char_at(v.s->p + i, v.s->len - i, &len);
        bool word = c == '_' || chat__unicode(c) & UNICODE_ALNUM;
        n += word && !inside;
        inside = word;
    }
    return chat_int(n);
}

FILTER(f_format)
{
    UNUSED;
    struct chat_value args = raw->n_kw ? chat_dict(&r->arena) : chat__tuple(&r->arena);
    int st = args.type == CHAT_INVALID;
    if (raw->n_pos && raw->n_kw)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "can't handle positional and keyword arguments at the same time");
    for (uint32_t i = 0; i < raw->n_kw && !st; i++)
        st = chat__dict_put(&r->arena, args.d, raw->kw[i].key, raw->kw[i].value);
    for (uint32_t i = 0; i < raw->n_pos && !st; i++)
        st = chat_list_push(&r->arena, args, raw->pos[i]);
    return st ? chat__out_of_memory(r) : chat__percent(r, text(r, v), args);
}

static bool is_safe_url(uint32_t c, bool slash)
{
    return c < 128 && c && (chat__unicode(c) & UNICODE_ALNUM || strchr("_.-~", (int)c) || (slash && c == '/'));
}

static void put_url(struct chat_run *r, struct chat_text *t, struct chat_value v, bool query)
{
    char out[4];
    v = text(r, v);
    for (size_t i = 0; i < v.s->len && chat__step(r, 0); i++) {
        unsigned char c = (unsigned char)v.s->p[i];
        if (is_safe_url(c, !query))
            chat__text_part(t, v.s, i, i + 1);
        else if (query && c == ' ')
            chat__text_put(t, "+", 1, chat__is_request(v.s, i));
        else
            chat__text_put(t, out, (size_t)snprintf(out, sizeof(out), "%%%02X", c), chat__is_request(v.s, i));
    }
}

FILTER(f_urlencode)
{
    UNUSED;
    struct chat_text t;
    struct chat_value pair = v;
    chat__text_for(r, &t);
    if (v.type == CHAT_STRING || !chat__iterable(v)) {
        put_url(r, &t, v, false);
        return chat__text_done(r, &t);
    }
    if (v.type == CHAT_DICT)
        v = (struct chat_value){.type = CHAT_VIEW, .flags = VIEW_ITEMS, .d = v.d};
    struct chat_iter *it = chat__iter(r, v);
    for (size_t i = 0; it && chat__next(r, it, &pair); i++) {
        if (!chat__is_seq(pair) || pair.l->n != 2)
            return chat__fail(r, CHAT_ERROR_RUNTIME, "urlencode needs pairs");
        if (i)
            chat__text_puts(&t, "&");
        put_url(r, &t, pair.l->item[0], true);
        chat__text_puts(&t, "=");
        put_url(r, &t, pair.l->item[1], true);
    }
    return r->status ? chat_none() : chat__text_done(r, &t);
}

/* ---- numbers ---- */

FILTER(f_int)
{
    UNUSED;
    struct chat_value otherwise = a[0].type == CHAT_INVALID ? chat_int(0) : a[0];
    int64_t i, base = int_or(r, a[1], 10);
    double f;
    switch (v.type) {
    case CHAT_INT: return v;
    case CHAT_BOOL: return chat_int(v.b);
    case CHAT_FLOAT:
        if (isinf(v.f))
            return chat__fail(r, CHAT_ERROR_RUNTIME, "cannot convert float infinity to integer");
        if (isnan(v.f))
            return otherwise;
        return chat__float_to_int(v.f, &i) ? chat_int(i) : chat__fail(r, CHAT_ERROR_LIMIT, "an integer does not fit into 64 bits");
    case CHAT_STRING:
        if (base >= 2 && base <= 36 && chat__parse_int(v.s, (int)base, &i))
            return chat_int(i);
        return chat__parse_float(v.s, &f) && chat__float_to_int(f, &i) ? chat_int(i) : otherwise;
    case CHAT_UNDEFINED: return chat__fail_undefined(r, v);
    default: return otherwise;
    }
}

FILTER(f_float)
{
    UNUSED;
    double f;
    switch (v.type) {
    case CHAT_INT: return chat_float((double)v.i);
    case CHAT_BOOL: return chat_float(v.b);
    case CHAT_FLOAT: return v;
    case CHAT_UNDEFINED: return chat__fail_undefined(r, v);
    default:
        if (v.type == CHAT_STRING && chat__parse_float(v.s, &f))
            return chat_float(f);
        return a[0].type == CHAT_INVALID ? chat_float(0) : a[0];
    }
}

FILTER(f_abs)
{
    UNUSED;
    if (v.type == CHAT_FLOAT)
        return chat_float(fabs(v.f));
    if (v.type == CHAT_BOOL || (v.type == CHAT_INT && v.i >= 0))
        return v.type == CHAT_BOOL ? chat_int(v.b) : v;
    if (v.type == CHAT_INT)
        return chat__binary(r, OP_SUB, chat_int(0), v);
    return chat__fail(r, CHAT_ERROR_RUNTIME, "bad operand type for abs(): '%s'", chat__type_name(v));
}

/* To the nearest number of so many decimals, ties to even, by way of the exact decimal digits. */
static double round_to(double f, int64_t precision)
{
    char out[512];
    if (precision > 300 || !isfinite(f) || (precision >= 0 && fabs(f) > 1e22))
        return f;
    if (precision < 0) {
        double scale = pow(10, (double)-precision);
        return isfinite(scale) ? nearbyint(f / scale) * scale : 0;
    }
    snprintf(out, sizeof(out), "%.*f", (int)precision, f);
    return strtod(out, NULL);
}

static struct chat_value round_up_or_down(struct chat_run *r, double f, int64_t precision, bool up)
{
    double scale = pow(10, (double)precision);
    if (!isfinite(f * scale))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "cannot convert float infinity or NaN to integer");
    return chat_float(((up ? ceil(f * scale) : floor(f * scale)) + 0.0) / scale); /* through an int, which has no -0 */
}

FILTER(f_round)
{
    UNUSED;
    static const struct chat_str common = {.p = "common", .len = 6};
    const struct chat_str *method = a[1].type == CHAT_STRING ? a[1].s : a[1].type == CHAT_INVALID ? &common : NULL;
    int64_t precision = int_or(r, a[0], 0);
    bool up = method && chat__str_eq(method, "ceil"), nearest = method && chat__str_eq(method, "common");
    if (!up && !nearest && !(method && chat__str_eq(method, "floor")))
        return chat__fail(r, CHAT_ERROR_RUNTIME, "method must be common, ceil or floor");
    if (v.type == CHAT_UNDEFINED && !nearest)
        return chat__fail_undefined(r, v);
    if (v.type != CHAT_FLOAT && v.type != CHAT_INT && v.type != CHAT_BOOL)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "type %s doesn't define __round__ method", chat__type_name(v));
    double f = v.type == CHAT_FLOAT ? v.f : v.type == CHAT_BOOL ? (double)v.b : (double)v.i;
    if (!nearest)
        return round_up_or_down(r, f, precision, up);
    if (v.type == CHAT_FLOAT)
        return chat_float(round_to(f, precision));
    if (precision >= 0)
        return v.type == CHAT_BOOL ? chat_int(v.b) : v;
    return chat_int((int64_t)round_to(f, precision));
}

FILTER(f_pprint)
{
    UNUSED;
    struct chat_text t;
    chat__text_for(r, &t);
    chat__put_repr(r, &t, v, 0);
    return r->status ? v : chat__text_done(r, &t);
}

FILTER(f_filesizeformat)
{
    UNUSED;
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"}, *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    char out[64];
    bool is_binary = truthy(r, a[0]);
    double base = is_binary ? 1024 : 1000, bytes = 0, unit = base;
    if (v.type == CHAT_STRING ? !chat__parse_float(v.s, &bytes) : v.type != CHAT_INT && v.type != CHAT_FLOAT && v.type != CHAT_BOOL)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "could not convert to float");
    if (v.type != CHAT_STRING)
        bytes = v.type == CHAT_FLOAT ? v.f : v.type == CHAT_BOOL ? (double)v.b : (double)v.i;
    size_t i = 0;
    for (; i < 7 && bytes >= unit * base; i++)
        unit *= base;
    if (bytes == 1)
        snprintf(out, sizeof(out), "1 Byte");
    else if (bytes < base)
        snprintf(out, sizeof(out), "%lld Bytes", (long long)bytes);
    else
        snprintf(out, sizeof(out), "%.1f %s", bytes / unit, is_binary ? binary[i] : units[i]);
    struct chat_value s = chat_string(&r->arena, out, strlen(out), CHAT_TRUSTED);
    return s.type == CHAT_INVALID ? chat__out_of_memory(r) : s;
}

FILTER(f_unsupported)
{
    UNUSED;
    return chat__fail(r, CHAT_ERROR_RUNTIME, "this filter is not supported in chat templates");
}

static const struct chat_builtin filters[] = {
    {"abs", f_abs, "", 0}, {"capitalize", f_capitalize, "", 0}, {"center", f_center, "width", 0}, {"count", f_length, "", 0},
    {"d", f_default, "default_value boolean", 0}, {"default", f_default, "default_value boolean", 0}, {"e", f_escape, "", 0},
    {"escape", f_escape, "", 0}, {"filesizeformat", f_filesizeformat, "binary", 0}, {"float", f_float, "default", 0},
    {"forceescape", f_forceescape, "", 0}, {"format", f_format, NULL, 0}, {"indent", f_indent, "width first blank", 0},
    {"int", f_int, "default base", 0}, {"length", f_length, "", 0}, {"lower", f_lower, "", 0}, {"pprint", f_pprint, "", 0},
    {"random", f_unsupported, NULL, 0}, {"replace", f_replace, "old new count", 2}, {"round", f_round, "precision method", 0},
    {"safe", f_safe, "", 0}, {"string", f_string, "", 0}, {"striptags", f_unsupported, NULL, 0}, {"title", f_title, "", 0},
    {"tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0}, {"trim", f_trim, "chars", 0},
    {"truncate", f_truncate, "length killwords end leeway", 0}, {"upper", f_upper, "", 0}, {"urlencode", f_urlencode, "", 0},
    {"urlize", f_unsupported, NULL, 0}, {"wordcount", f_wordcount, "", 0}, {"wordwrap", f_unsupported, NULL, 0},
    {"xmlattr", f_unsupported, NULL, 0},
};

const struct chat_builtin *chat__filter(const struct chat_str *name)
{
    const struct chat_builtin *f = chat__find_builtin(filters, sizeof(filters) / sizeof(filters[0]), name);
    return f ? f : chat__find_builtin(chat__filters_seq, chat__n_filters_seq, name);
}
