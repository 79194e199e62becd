/* SPDX-License-Identifier: Apache-2.0
 *
 * Values as text: str() and repr() as Python prints them, and numbers read back from text. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/internal.h"

const char *chat__type_name(struct chat_value v)
{
    static const char *const names[] = {
        [CHAT_NONE] = "NoneType", [CHAT_BOOL] = "bool", [CHAT_INT] = "int", [CHAT_FLOAT] = "float", [CHAT_STRING] = "str",
        [CHAT_LIST] = "list", [CHAT_DICT] = "dict", [CHAT_UNDEFINED] = "Undefined", [CHAT_TUPLE] = "tuple", [CHAT_RANGE] = "range",
        [CHAT_ITER] = "generator", [CHAT_NAMESPACE] = "Namespace", [CHAT_LOOP] = "LoopContext", [CHAT_MACRO] = "Macro",
        [CHAT_FUNC] = "function", [CHAT_CYCLER] = "Cycler", [CHAT_JOINER] = "Joiner",
    };
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    if (v.type == CHAT_VIEW)
        return views[v.flags];
    const char *name = v.type < sizeof(names) / sizeof(names[0]) ? names[v.type] : NULL;
    return name ? name : "object";
}

/* The shortest digits that give the number back, placed as Python's repr places them. */
size_t chat__float_repr(double f, char out[32])
{
    char e[40], digits[24];
    if (!isfinite(f))
        return (size_t)snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    for (int p = 15; p <= 17; p++) {
        snprintf(e, sizeof(e), "%.*e", p - 1, f);
        if (strtod(e, NULL) == f)
            break;
    }
    const char *s = e + (e[0] == '-'), *exp_at = strchr(e, 'e');
    int exp = (int)strtol(exp_at + 1, NULL, 10), n = 0;
    for (; s < exp_at; s++)
        if (*s != '.' && n < 20)
            digits[n++] = *s;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    const char *sign = e[0] == '-' ? "-" : "";
    if (exp < -4 || exp >= 16)
        return (size_t)snprintf(out, 32, n > 1 ? "%s%c.%se%c%02d" : "%s%c%se%c%02d", sign, digits[0], digits + 1, exp < 0 ? '-' : '+', abs(exp));
    if (exp < 0)
        return (size_t)snprintf(out, 32, "%s0.%.*s%s", sign, -exp - 1, "0000", digits);
    if (n <= exp + 1)
        return (size_t)snprintf(out, 32, "%s%s%.*s.0", sign, digits, exp + 1 - n, "0000000000000000");
    return (size_t)snprintf(out, 32, "%s%.*s.%s", sign, exp + 1, digits, digits + exp + 1);
}

static void put_escape(struct chat_text *t, uint32_t c, uint32_t quote, bool request)
{
    static const char plain[] = "\n\r\t", letters[] = "nrt";
    char out[12];
    const char *p = c < 128 && c ? strchr(plain, (int)c) : NULL;
    if (c == quote || c == '\\')
        snprintf(out, sizeof(out), "\\%c", (char)c);
    else if (p)
        snprintf(out, sizeof(out), "\\%c", letters[p - plain]);
    else
        snprintf(out, sizeof(out), c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    chat__text_put(t, out, strlen(out), request);
}

static void put_quoted(struct chat_run *r, struct chat_text *t, struct chat_value v)
{
    const struct chat_str *s = v.s;
    bool has_single = s->len && memchr(s->p, '\'', s->len), has_double = s->len && memchr(s->p, '"', s->len);
    uint32_t quote = has_single && !has_double ? '"' : '\'';
    if (v.flags & CHAT_MARKUP)
        chat__text_puts(t, "Markup(");
    chat__text_char(t, quote, false);
    size_t done = 0, len;
    for (size_t i = 0; i < s->len && chat__step(r, 0); i += len) {
        uint32_t c = chat__char_at(s->p + i, s->len - i, &len);
        if (c != quote && c != '\\' && chat__unicode(c) & UNICODE_PRINTABLE)
            continue;
        chat__text_part(t, s, done, i);
        put_escape(t, c, quote, chat__is_request(s, i));
        done = i + len;
    }
    chat__text_part(t, s, done, s->len);
    chat__text_char(t, quote, false);
    if (v.flags & CHAT_MARKUP)
        chat__text_puts(t, ")");
}

static void put_items(struct chat_run *r, struct chat_text *t, const struct chat_list *l, unsigned depth)
{
    for (uint32_t i = 0; i < l->n && !r->status && !t->failed; i++) {
        if (i)
            chat__text_puts(t, ", ");
        chat__put_repr(r, t, l->item[i], depth + 1);
    }
}

/* Entries of a dict; of a view, the part it shows. */
static void put_entries(struct chat_run *r, struct chat_text *t, const struct chat_dict *d, int view, unsigned depth)
{
    for (uint32_t i = 0; i < d->n && !r->status && !t->failed; i++) {
        if (i)
            chat__text_puts(t, ", ");
        if (view == VIEW_ITEMS)
            chat__text_puts(t, "(");
        if (view != VIEW_VALUES)
            chat__put_repr(r, t, d->entry[i].key, depth + 1);
        if (view == VIEW_ITEMS || view < 0)
            chat__text_puts(t, view < 0 ? ": " : ", ");
        if (view != VIEW_KEYS)
            chat__put_repr(r, t, d->entry[i].value, depth + 1);
        if (view == VIEW_ITEMS)
            chat__text_puts(t, ")");
    }
}

static void put_containers(struct chat_run *r, struct chat_text *t, struct chat_value v, unsigned depth)
{
    switch (v.type) {
    case CHAT_LIST:
        chat__text_puts(t, "[");
        put_items(r, t, v.l, depth);
        chat__text_puts(t, "]");
        break;
    case CHAT_TUPLE:
        chat__text_puts(t, "(");
        put_items(r, t, v.l, depth);
        chat__text_puts(t, v.l->n == 1 ? ",)" : ")");
        break;
    case CHAT_DICT:
        chat__text_puts(t, "{");
        put_entries(r, t, v.d, -1, depth);
        chat__text_puts(t, "}");
        break;
    case CHAT_NAMESPACE:
        chat__text_puts(t, "<Namespace {");
        put_entries(r, t, v.d, -1, depth);
        chat__text_puts(t, "}>");
        break;
    default:
        chat__text_puts(t, chat__type_name(v));
        chat__text_puts(t, "([");
        put_entries(r, t, v.d, v.flags, depth);
        chat__text_puts(t, "])");
    }
}

static void put_objects(struct chat_run *r, struct chat_text *t, struct chat_value v)
{
    char out[128];
    if (v.type == CHAT_RANGE) {
        const struct chat_range_obj *o = v.p;
        snprintf(out, sizeof(out), o->step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", o->start, o->stop,
                 o->step);
    } else if (v.type == CHAT_LOOP) {
        struct chat_loop *l = v.p;
        int64_t n = chat__loop_len(r, l);
        snprintf(out, sizeof(out), "<LoopContext %" PRId64 "/%" PRId64 ">", l->index0 + 1, n);
    } else if (v.type == CHAT_MACRO && ((struct chat_closure *)v.p)->fn->name) {
        const struct chat_str *name = ((struct chat_closure *)v.p)->fn->name;
        snprintf(out, sizeof(out), "<Macro '%.*s'>", chat__prefix(name, 64), name->p);
    } else {
        snprintf(out, sizeof(out), "<%s object>", chat__type_name(v));
    }
    chat__text_puts(t, out);
}

void chat__put_repr(struct chat_run *r, struct chat_text *t, struct chat_value v, unsigned depth)
{
    char out[32];
    if (depth > CHAT_MAX_DATA_DEPTH) {
        chat__fail(r, CHAT_ERROR_LIMIT, "a value nested deeper than %d", CHAT_MAX_DATA_DEPTH);
        return;
    }
    if (!chat__step(r, 0))
        return;
    switch (v.type) {
    case CHAT_NONE:
        chat__text_puts(t, "None");
        break;
    case CHAT_BOOL:
        chat__text_puts(t, v.b ? "True" : "False");
        break;
    case CHAT_INT:
        snprintf(out, sizeof(out), "%" PRId64, v.i);
        chat__text_puts(t, out);
        break;
    case CHAT_FLOAT:
        chat__text_put(t, out, chat__float_repr(v.f, out), false);
        break;
    case CHAT_STRING:
        put_quoted(r, t, v);
        break;
    case CHAT_UNDEFINED:
        chat__text_puts(t, "Undefined");
        break;
    case CHAT_LIST: case CHAT_TUPLE: case CHAT_DICT: case CHAT_NAMESPACE: case CHAT_VIEW:
        put_containers(r, t, v, depth);
        break;
    default:
        put_objects(r, t, v);
    }
}

void chat__put_str(struct chat_run *r, struct chat_text *t, struct chat_value v)
{
    if (v.type == CHAT_STRING)
        chat__text_str(t, v);
    else if (v.type != CHAT_UNDEFINED)
        chat__put_repr(r, t, v, 0);
}

struct chat_value chat__to_str(struct chat_run *r, struct chat_value v)
{
    struct chat_text t;
    if (v.type == CHAT_STRING || r->status)
        return v.type == CHAT_STRING ? v : chat_none();
    chat__text_for(r, &t);
    chat__put_str(r, &t, v);
    return chat__text_done(r, &t);
}

/* ---- numbers from text ---- */

static size_t spaces(const char *p, size_t n)
{
    size_t i = 0, len;
    while (i < n && chat__is_space(chat__char_at(p + i, n - i, &len)))
        i += len;
    return i;
}

/* The text without whitespace around, underscores between digits taken out; false when it cannot be a number. */
static bool number_text(const struct chat_str *s, char *out, size_t cap)
{
    size_t i = spaces(s->p, s->len), end = s->len, n = 0;
    while (end > i && (unsigned char)s->p[end - 1] < 128 && chat__is_space((unsigned char)s->p[end - 1]))
        end--;
    for (; i < end; i++) {
        char c = s->p[i];
        if (c == '_') {
            bool between = i > 0 && i + 1 < end && strchr("0123456789abcdefABCDEF", s->p[i - 1]) && strchr("0123456789abcdefABCDEF", s->p[i + 1]);
            if (!between)
                return false;
        } else if (n + 1 == cap || c == 0) {
            return false;
        } else {
            out[n++] = c;
        }
    }
    out[n] = 0;
    return n > 0;
}

bool chat__parse_int(const struct chat_str *s, int base, int64_t *out)
{
    char text[128], *end;
    if (!number_text(s, text, sizeof(text)) || strchr(" \t\n\v\f\r", text[0]))
        return false;
    const char *p = text;
    bool negative = *p == '-';
    p += *p == '-' || *p == '+';
    char x = p[0] == '0' ? (char)(p[1] | 32) : 0;
    if ((x == 'x' && base == 16) || (x == 'o' && base == 8) || (x == 'b' && base == 2))
        p += 2;
    if (*p == '+' || *p == '-' || *p == 0 || (base == 16 && p[0] == '0' && (p[1] | 32) == 'x'))
        return false;
    errno = 0;
    long long v = strtoll(p, &end, base);
    *out = negative ? -v : v;
    return *end == 0 && errno == 0;
}

bool chat__parse_float(const struct chat_str *s, double *out)
{
    char text[512], *end;
    if (!number_text(s, text, sizeof(text)))
        return false;
    const char *p = text + (text[0] == '-' || text[0] == '+');
    bool word = strcasecmp(p, "inf") == 0 || strcasecmp(p, "infinity") == 0 || strcasecmp(p, "nan") == 0;
    if (!word && p[strspn(p, "0123456789.eE+-")] != 0) /* no hexadecimal floats */
        return false;
    *out = strtod(text, &end);
    return *end == 0 && end != text;
}

bool chat__float_to_int(double f, int64_t *out)
{
    if (!(f > -9.2233720368547e18 && f < 9.2233720368547e18))
        return false;
    *out = (int64_t)f;
    return true;
}
