/* SPDX-License-Identifier: Apache-2.0
 *
 * The two ways Python formats: '%s' % x (also the format filter) and '{}'.format(x) with its format specifications. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/internal.h"

enum { MAX_PRECISION = 400, DIGITS_CAP = 1024, MAX_WIDTH = 1 << 20 };

struct spec {
    uint32_t fill;
    char align, sign, group, type; /* 0: not given */
    bool alt, zero;
    int64_t width, precision; /* -1: not given */
};

static struct chat_value bad(struct chat_run *r, const char *what)
{
    return chat__fail(r, CHAT_ERROR_RUNTIME, "%s", what);
}

static void fill(struct chat_text *t, uint32_t c, int64_t n)
{
    for (int64_t i = 0; i < n && !t->failed; i++)
        chat__text_char(t, c, false);
}

/* ---- one value ---- */

static void append(char out[DIGITS_CAP], const char *z)
{
    size_t n = strlen(out);
    snprintf(out + n, DIGITS_CAP - n, "%s", z);
}

/* The digits of a number without its sign. */
static bool float_digits(struct chat_run *r, double f, const struct spec *s, char out[DIGITS_CAP])
{
    char format[8] = "%#.*";
    char type = s->type ? s->type : 'g';
    int64_t precision = s->precision;
    if (precision > MAX_PRECISION) {
        chat__fail(r, CHAT_ERROR_LIMIT, "a precision of more than %d", MAX_PRECISION);
        return false;
    }
    f = fabs(f);
    if (!isfinite(f)) {
        snprintf(out, DIGITS_CAP, "%s", isnan(f) ? "nan" : "inf");
        for (char *p = out; type >= 'A' && type <= 'Z' && *p; p++)
            *p ^= 32;
    } else if (!s->type && precision < 0) {
        out[chat__float_repr(f, out)] = 0;
        return true;
    } else {
        size_t at = s->alt ? 2 : 1;
        snprintf(format + at, sizeof(format) - at, ".*%c", type == '%' || type == 'n' ? (type == 'n' ? 'g' : 'f') : type);
        snprintf(out, DIGITS_CAP, format, (int)(precision < 0 ? 6 : precision), type == '%' ? f * 100 : f);
        if (!s->type && !strpbrk(out, ".en"))
            append(out, ".0");
    }
    if (type == '%')
        append(out, "%");
    return true;
}

static void int_digits(uint64_t v, char type, char out[DIGITS_CAP])
{
    char tmp[72], *p = tmp + sizeof(tmp) - 1;
    unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : (type | 32) == 'x' ? 16 : 10;
    const char *digits = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    *p = 0;
    do
        *--p = digits[v % base];
    while (v /= base);
    snprintf(out, DIGITS_CAP, "%s", p);
}

/* sign, prefix, zeros or fill, digits with separators */
static void put_number(struct chat_text *t, const struct spec *s, const char *sign, const char *prefix, const char *digits)
{
    char grouped[DIGITS_CAP * 2];
    size_t n_int = strspn(digits, s->type && strchr("xXbo", s->type) ? "0123456789abcdefABCDEF" : "0123456789"), n = 0;
    size_t every = s->group == '_' && s->type && strchr("xXbo", s->type) ? 4 : 3;
    for (size_t i = 0; digits[i]; i++) {
        if (s->group && i && i < n_int && (n_int - i) % every == 0)
            grouped[n++] = s->group;
        grouped[n++] = digits[i];
    }
    char align = s->align ? s->align : s->zero ? '=' : '>';
    int64_t pad = s->width - (int64_t)(strlen(sign) + strlen(prefix) + n);
    uint32_t c = s->fill ? s->fill : s->zero ? '0' : ' ';
    if (align == '>' || align == '^')
        fill(t, c, align == '>' ? pad : pad / 2);
    chat__text_puts(t, sign);
    chat__text_puts(t, prefix);
    if (align == '=')
        fill(t, c, pad);
    chat__text_put(t, grouped, n, false);
    if (align == '<' || align == '^')
        fill(t, c, align == '<' ? pad : pad - pad / 2);
}

static const char *sign_of(const struct spec *s, bool negative)
{
    return negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
}

static void put_int(struct chat_run *r, struct chat_text *t, const struct spec *s, int64_t i)
{
    char digits[DIGITS_CAP];
    const char *prefix = !s->alt ? "" : s->type == 'x' ? "0x" : s->type == 'X' ? "0X" : s->type == 'o' ? "0o" : s->type == 'b' ? "0b" : "";
    if (s->precision >= 0) {
        bad(r, "Precision not allowed in integer format specifier");
        return;
    }
    int_digits(i < 0 ? 0 - (uint64_t)i : (uint64_t)i, s->type, digits);
    put_number(t, s, sign_of(s, i < 0), prefix, digits);
}

static void put_float(struct chat_run *r, struct chat_text *t, const struct spec *s, double f)
{
    char digits[DIGITS_CAP];
    if (float_digits(r, f, s, digits))
        put_number(t, s, sign_of(s, signbit(f) && !isnan(f)), "", digits);
}

static void put_text(struct chat_text *t, const struct spec *s, struct chat_value v, char align)
{
    int64_t n = v.s->n_chars;
    size_t end = v.s->len;
    if (s->precision >= 0 && s->precision < n) {
        n = s->precision;
        end = chat__char_offset(v.s, (size_t)n);
    }
    int64_t pad = s->width - n, left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    fill(t, s->fill ? s->fill : ' ', left);
    chat__text_part(t, v.s, 0, end);
    fill(t, s->fill ? s->fill : ' ', pad - (left > 0 ? left : 0));
}

static bool number(const char *p, size_t n, size_t *at, int64_t *out)
{
    size_t first = *at;
    *out = 0;
    for (; *at < n && p[*at] >= '0' && p[*at] <= '9'; (*at)++)
        if (*out <= MAX_WIDTH)
            *out = *out * 10 + p[*at] - '0';
    return *at > first;
}

static bool one_of(const char *p, size_t n, size_t at, const char *set)
{
    return at < n && p[at] && strchr(set, p[at]);
}

/* [[fill]align]; the position behind. */
static size_t parse_align(const char *p, size_t n, struct spec *s)
{
    size_t len = n ? chat__char_len(p, n) : 0;
    if (one_of(p, n, len, "<>^=") && len) {
        s->fill = chat__char_at(p, n, &len);
        s->align = p[len];
        return len + 1;
    }
    if (!one_of(p, n, 0, "<>^="))
        return 0;
    s->align = p[0];
    return 1;
}

/* [sign][#][0][width][,][.precision][type] */
static bool parse_spec(struct chat_run *r, const char *p, size_t n, struct spec *s)
{
    *s = (struct spec){.precision = -1};
    size_t at = parse_align(p, n, s);
    if (one_of(p, n, at, "+- "))
        s->sign = p[at++];
    if (one_of(p, n, at, "#"))
        s->alt = p[at++];
    if (one_of(p, n, at, "0"))
        s->zero = p[at++];
    number(p, n, &at, &s->width);
    if (one_of(p, n, at, ",_"))
        s->group = p[at++];
    if (one_of(p, n, at, ".")) {
        at++;
        if (!number(p, n, &at, &s->precision)) {
            bad(r, "Format specifier missing precision");
            return false;
        }
    }
    if (at < n)
        s->type = p[at++];
    if (s->zero && s->align && !s->fill)
        s->fill = '0';
    if (s->width > MAX_WIDTH)
        chat__fail(r, CHAT_ERROR_LIMIT, "a width of more than %d", MAX_WIDTH);
    else if (at < n)
        bad(r, "Invalid format specifier");
    return !r->status;
}

static bool is_int(struct chat_value v)
{
    return v.type == CHAT_INT || v.type == CHAT_BOOL;
}

static int64_t int_of(struct chat_value v)
{
    return v.type == CHAT_BOOL ? v.b : v.i;
}

static double float_of(struct chat_value v)
{
    return v.type == CHAT_FLOAT ? v.f : (double)int_of(v);
}

static void format_text_value(struct chat_text *t, struct chat_value v, struct spec s)
{
    s.fill = s.fill ? s.fill : s.zero ? '0' : ' ';
    put_text(t, &s, v, s.align ? s.align : '<');
}

static void format_one(struct chat_run *r, struct chat_text *t, struct chat_value v, const struct spec *s)
{
    bool is_number = is_int(v) || v.type == CHAT_FLOAT;
    if (v.type == CHAT_STRING && (!s->type || s->type == 's') && !s->sign && s->align != '=')
        format_text_value(t, v, *s);
    else if (is_int(v) && (!s->type || strchr("bdoxXn", s->type)))
        put_int(r, t, s, int_of(v));
    else if (v.type == CHAT_INT && s->type == 'c' && v.i > 0 && v.i < 0x110000)
        chat__text_char(t, (uint32_t)v.i, false);
    else if (is_number && (!s->type || strchr("eEfFgGn%", s->type)))
        put_float(r, t, s, float_of(v));
    else if (is_number || v.type == CHAT_STRING)
        chat__fail(r, CHAT_ERROR_RUNTIME, "Unknown format code '%c' for object of type '%s'", s->type > 31 ? s->type : '?', chat__type_name(v));
    else
        chat__fail(r, CHAT_ERROR_RUNTIME, "unsupported format string passed to %s.__format__", chat__type_name(v));
}

struct chat_value chat__format_spec(struct chat_run *r, struct chat_value v, const char *spec, size_t n)
{
    struct chat_text t;
    struct spec s;
    if (n == 0)
        return chat__to_str(r, v);
    chat__text_for(r, &t);
    if (!parse_spec(r, spec, n, &s))
        return chat_none();
    format_one(r, &t, v, &s);
    return r->status ? chat_none() : chat__text_done(r, &t);
}

/* ---- % ---- */

struct percent {
    struct chat_run *r;
    struct chat_text t;
    const char *p;
    size_t n, at;
    struct chat_value args;
    uint32_t used;
    bool mapping; /* leftover arguments are fine */
};

static struct chat_value next_arg(struct percent *f)
{
    uint32_t n = f->args.type == CHAT_TUPLE ? f->args.l->n : 1;
    if (f->used >= n)
        return bad(f->r, "not enough arguments for format string");
    return f->args.type == CHAT_TUPLE ? f->args.l->item[f->used++] : (f->used++, f->args);
}

static struct chat_value named_arg(struct percent *f)
{
    size_t start = ++f->at;
    unsigned depth = 1;
    for (; f->at < f->n && depth; f->at++)
        depth += (f->p[f->at] == '(') - (f->p[f->at] == ')');
    if (depth)
        return bad(f->r, "incomplete format key");
    if (f->args.type != CHAT_DICT)
        return bad(f->r, "format requires a mapping");
    struct chat_value key = chat_string(&f->r->arena, f->p + start, f->at - 1 - start, CHAT_TRUSTED);
    if (key.type == CHAT_INVALID)
        return chat__out_of_memory(f->r);
    struct chat_value v = chat__dict_find(f->args.d, key);
    return v.type == CHAT_INVALID ? chat__fail(f->r, CHAT_ERROR_RUNTIME, "KeyError: '%.*s'", (int)key.s->len, key.s->p) : v;
}

static bool star_or_number(struct percent *f, int64_t *out)
{
    if (f->at < f->n && f->p[f->at] == '*') {
        f->at++;
        return chat__to_int(f->r, next_arg(f), out);
    }
    return number(f->p, f->n, &f->at, out);
}

/* %s and %r */
static void put_as_text(struct percent *f, const struct spec *s, struct chat_value v, bool repr, char align)
{
    struct chat_text t;
    chat__text_for(f->r, &t);
    if (repr)
        chat__put_repr(f->r, &t, v, 0);
    else
        chat__put_str(f->r, &t, v);
    v = chat__text_done(f->r, &t);
    if (!f->r->status)
        put_text(&f->t, s, v, align);
}

/* %d and friends; a precision asks for so many digits at least. */
static void put_as_int(struct percent *f, struct spec *s, struct chat_value v, char c, char align)
{
    struct chat_run *r = f->r;
    int64_t i;
    if (v.type == CHAT_FLOAT && strchr("diu", c) && chat__float_to_int(v.f, &i))
        v = chat_int(i);
    if (!is_int(v)) {
        chat__fail(r, CHAT_ERROR_RUNTIME, "%%%c format: a number is required, not %s", c, chat__type_name(v));
        return;
    }
    s->type = c == 'i' || c == 'u' ? 'd' : c;
    if (s->precision <= 0) {
        s->precision = -1;
        put_int(r, &f->t, s, int_of(v));
        return;
    }
    struct spec inner = {.zero = true, .width = s->precision + (int_of(v) < 0 || s->sign), .sign = s->sign, .type = s->type, .precision = -1};
    struct chat_text t;
    s->precision = -1;
    chat__text_for(r, &t);
    put_int(r, &t, &inner, int_of(v));
    v = chat__text_done(r, &t);
    if (!r->status)
        put_text(&f->t, s, v, align);
}

static void put_as_char(struct percent *f, const struct spec *s, struct chat_value v, char align)
{
    if (v.type == CHAT_STRING && v.s->n_chars == 1)
        put_text(&f->t, s, v, align);
    else if (v.type == CHAT_INT && v.i > 0 && v.i < 0x110000)
        chat__text_char(&f->t, (uint32_t)v.i, false);
    else
        bad(f->r, "%c requires int or char");
}

static void put_converted(struct percent *f, struct spec *s, struct chat_value v, char c)
{
    char align = s->align == '<' ? '<' : '>';
    if (c == 's' || c == 'r' || c == 'a') {
        put_as_text(f, s, v, c != 's', align);
    } else if (c == 'c') {
        put_as_char(f, s, v, align);
    } else if (c && strchr("diuxXo", c)) {
        put_as_int(f, s, v, c, align);
    } else if (c && strchr("eEfFgG", c)) {
        s->type = c;
        if (is_int(v) || v.type == CHAT_FLOAT)
            put_float(f->r, &f->t, s, float_of(v));
        else
            chat__fail(f->r, CHAT_ERROR_RUNTIME, "must be real number, not %s", chat__type_name(v));
    } else {
        chat__fail(f->r, CHAT_ERROR_RUNTIME, "unsupported format character '%c'", (unsigned char)c > 31 && (unsigned char)c < 127 ? c : '?');
    }
}

static void conversion(struct percent *f)
{
    struct spec s = {.precision = -1};
    struct chat_value v = {0};
    if (f->at < f->n && f->p[f->at] == '(')
        v = named_arg(f);
    for (; f->at < f->n && f->p[f->at] && strchr("-+ #0", f->p[f->at]); f->at++) {
        char c = f->p[f->at];
        s.align = c == '-' ? '<' : s.align;
        s.sign = c == '+' ? '+' : c == ' ' && s.sign != '+' ? ' ' : s.sign;
        s.alt |= c == '#';
        s.zero |= c == '0';
    }
    star_or_number(f, &s.width);
    if (s.width < 0) {
        s.align = '<';
        s.width = -s.width;
    }
    if (f->at < f->n && f->p[f->at] == '.') {
        f->at++;
        s.precision = 0;
        star_or_number(f, &s.precision);
        s.precision = s.precision < 0 ? 0 : s.precision;
    }
    if (s.align == '<')
        s.zero = false;
    while (f->at < f->n && f->p[f->at] && strchr("hlL", f->p[f->at]))
        f->at++;
    if (f->at >= f->n) {
        bad(f->r, "incomplete format");
        return;
    }
    if (s.width > MAX_WIDTH || s.precision > MAX_WIDTH)
        chat__fail(f->r, CHAT_ERROR_LIMIT, "a width of more than %d", MAX_WIDTH);
    char c = f->p[f->at++];
    if (c == '%') {
        chat__text_put(&f->t, "%", 1, false);
        return;
    }
    if (v.type == CHAT_INVALID)
        v = next_arg(f);
    if (!f->r->status)
        put_converted(f, &s, v, c);
}

struct chat_value chat__percent(struct chat_run *r, struct chat_value fmt, struct chat_value args)
{
    struct percent f = {.r = r, .p = fmt.s->p, .n = fmt.s->len, .args = args};
    f.mapping = args.type == CHAT_DICT || args.type == CHAT_LIST || args.type == CHAT_UNDEFINED || args.type == CHAT_RANGE;
    chat__text_for(r, &f.t);
    while (f.at < f.n && !r->status && !f.t.failed) {
        const char *percent = memchr(f.p + f.at, '%', f.n - f.at);
        size_t end = percent ? (size_t)(percent - f.p) : f.n;
        chat__text_part(&f.t, fmt.s, f.at, end);
        f.at = end + 1;
        if (percent)
            conversion(&f);
    }
    uint32_t n = args.type == CHAT_TUPLE ? args.l->n : 1;
    if (!r->status && !f.mapping && f.used < n)
        return bad(r, "not all arguments converted during string formatting");
    struct chat_value v = r->status ? chat_none() : chat__text_done(r, &f.t);
    v.flags = v.type == CHAT_STRING ? fmt.flags : 0;
    return v;
}

/* ---- str.format ---- */

struct braces {
    struct chat_run *r;
    const struct chat_args *args;
    uint32_t next; /* automatic numbering */
};

static struct chat_value first_part(struct braces *b, const char *p, size_t n)
{
    int64_t i = 0;
    size_t at = 0;
    if (n == 0)
        i = b->next++;
    else if (!number(p, n, &at, &i) || at != n)
        i = -1;
    if (i >= 0)
        return i < b->args->n_pos ? b->args->pos[i] : bad(b->r, "Replacement index out of range for positional args tuple");
    for (uint32_t k = 0; k < b->args->n_kw; k++)
        if (b->args->kw[k].key.s->len == n && memcmp(b->args->kw[k].key.s->p, p, n) == 0)
            return b->args->kw[k].value;
    return chat__fail(b->r, CHAT_ERROR_RUNTIME, "KeyError: '%.*s'", (int)n, p);
}

/* "0.name[key]" */
static struct chat_value field(struct braces *b, const char *p, size_t n)
{
    size_t at = 0;
    while (at < n && p[at] != '.' && p[at] != '[')
        at++;
    struct chat_value v = first_part(b, p, at);
    while (at < n && !b->r->status) {
        bool item = p[at++] == '[';
        size_t start = at;
        while (at < n && (item ? p[at] != ']' : p[at] != '.' && p[at] != '['))
            at++;
        int64_t i;
        size_t digits = start;
        bool index = item && number(p, at, &digits, &i) && digits == at;
        struct chat_value key = index ? chat_int(i) : chat_string(&b->r->arena, p + start, at - start, CHAT_TRUSTED);
        if (key.type == CHAT_INVALID)
            return chat__out_of_memory(b->r);
        if (at == start || (item && at >= n))
            return bad(b->r, "Empty attribute in format string");
        v = item ? chat__getitem(b->r, v, key) : chat__getattr(b->r, v, key);
        at += item;
    }
    return v;
}

static struct chat_value format_text(struct braces *b, struct chat_value fmt, size_t start, size_t end, int depth);

/* p[start, end) is what is between the braces. */
static void put_field(struct braces *b, struct chat_text *t, struct chat_value fmt, size_t start, size_t end, int depth)
{
    const char *p = fmt.s->p;
    size_t name_end = start, brackets = 0;
    while (name_end < end && (brackets || (p[name_end] != '!' && p[name_end] != ':'))) {
        brackets += p[name_end] == '[';
        brackets -= brackets && p[name_end] == ']';
        name_end++;
    }
    struct chat_value v = field(b, p + start, name_end - start);
    size_t at = name_end;
    if (at < end && p[at] == '!') {
        char c = at + 1 < end ? p[at + 1] : 0;
        struct chat_text repr;
        if ((c != 'r' && c != 's' && c != 'a') || (at + 2 < end && p[at + 2] != ':')) {
            bad(b->r, "Unknown conversion specifier");
            return;
        }
        chat__text_for(b->r, &repr);
        if (c == 's')
            chat__put_str(b->r, &repr, v);
        else
            chat__put_repr(b->r, &repr, v, 0);
        v = b->r->status ? v : chat__text_done(b->r, &repr);
        at += 2;
    }
    struct chat_value spec = format_text(b, fmt, at < end ? at + 1 : end, end, depth + 1);
    if (b->r->status)
        return;
    v = chat__format_spec(b->r, v, spec.s->p, spec.s->len);
    if (!b->r->status)
        chat__text_str(t, v);
}

static size_t closing(const struct chat_str *s, size_t at, size_t end)
{
    for (unsigned depth = 1; at < end; at++) {
        depth += s->p[at] == '{';
        depth -= s->p[at] == '}';
        if (depth == 0)
            return at;
    }
    return end;
}

static struct chat_value format_text(struct braces *b, struct chat_value fmt, size_t start, size_t end, int depth)
{
    struct chat_text t;
    const char *p = fmt.s->p;
    chat__text_for(b->r, &t);
    if (depth > 2)
        return bad(b->r, "Max string recursion exceeded");
    for (size_t i = start; i < end && chat__step(b->r, 0) && !t.failed;) {
        if (p[i] != '{' && p[i] != '}') {
            size_t run = i;
            while (run < end && p[run] != '{' && p[run] != '}')
                run++;
            chat__text_part(&t, fmt.s, i, run);
            i = run;
        } else if (i + 1 < end && p[i + 1] == p[i]) {
            chat__text_part(&t, fmt.s, i, i + 1);
            i += 2;
        } else {
            size_t close = p[i] == '{' ? closing(fmt.s, i + 1, end) : end;
            if (close == end)
                return bad(b->r, p[i] == '{' ? "expected '}' before end of string" : "Single '}' encountered in format string");
            put_field(b, &t, fmt, i + 1, close, depth);
            i = close + 1;
        }
    }
    return b->r->status ? chat_none() : chat__text_done(b->r, &t);
}

struct chat_value chat__format(struct chat_run *r, struct chat_value fmt, const struct chat_args *args)
{
    struct braces b = {.r = r, .args = args};
    return format_text(&b, fmt, 0, fmt.s->len, 0);
}
