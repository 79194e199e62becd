/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of str. */
#include <string.h>

#include "base/utf8.h"
#include "chat/internal.h"

#define METHOD(name) static struct chat_value name(struct chat_run *r, struct chat_value self, const struct chat_value *a, const struct chat_args *raw)
#define UNUSED (void)r, (void)self, (void)a, (void)raw

static bool is_str(struct chat_run *r, struct chat_value v)
{
    if (v.type == CHAT_STRING)
        return true;
    chat__fail(r, CHAT_ERROR_RUNTIME, "must be str, not %s", chat__type_name(v));
    return false;
}

static int64_t int_or(struct chat_run *r, struct chat_value v, int64_t otherwise)
{
    int64_t i = otherwise;
    if (v.type != CHAT_INVALID && !chat__to_int(r, v, &i))
        return otherwise;
    return i;
}

static struct chat_value part(struct chat_run *r, struct chat_value s, size_t start, size_t end)
{
    struct chat_value v = chat__str_slice(&r->arena, s, start, end);
    return v.type == CHAT_INVALID ? chat__out_of_memory(r) : v;
}

METHOD(m_lower) { UNUSED; return chat__case(r, self, CASE_LOWER); }
METHOD(m_upper) { UNUSED; return chat__case(r, self, CASE_UPPER); }
METHOD(m_capitalize) { UNUSED; return chat__capitalize(r, self); }
METHOD(m_strip) { UNUSED; return a[0].type == CHAT_INVALID || a[0].type == CHAT_NONE || is_str(r, a[0]) ? chat__strip(r, self, a[0], 3) : self; }
METHOD(m_lstrip) { UNUSED; return a[0].type == CHAT_INVALID || a[0].type == CHAT_NONE || is_str(r, a[0]) ? chat__strip(r, self, a[0], 1) : self; }
METHOD(m_rstrip) { UNUSED; return a[0].type == CHAT_INVALID || a[0].type == CHAT_NONE || is_str(r, a[0]) ? chat__strip(r, self, a[0], 2) : self; }
METHOD(m_split) { UNUSED; return chat__split(r, self, a[0], int_or(r, a[1], -1), false); }
METHOD(m_rsplit) { UNUSED; return chat__split(r, self, a[0], int_or(r, a[1], -1), true); }
METHOD(m_splitlines) { UNUSED; return chat__splitlines(r, self, a[0].type != CHAT_INVALID && chat__truth(r, a[0])); }
METHOD(m_join) { UNUSED; return chat__join(r, self, a[0], false); }
METHOD(m_ljust) { UNUSED; return chat__pad(r, self, int_or(r, a[0], 0), a[1], '<'); }
METHOD(m_rjust) { UNUSED; return chat__pad(r, self, int_or(r, a[0], 0), a[1], '>'); }
METHOD(m_center) { UNUSED; return chat__pad(r, self, int_or(r, a[0], 0), a[1], '^'); }
METHOD(m_format) { UNUSED; return chat__format(r, self, raw); }

METHOD(m_replace)
{
    UNUSED;
    if (!is_str(r, a[0]) || !is_str(r, a[1]))
        return self;
    return chat__replace(r, self, a[0], a[1], int_or(r, a[2], -1));
}

METHOD(m_format_map)
{
    UNUSED;
    if (a[0].type != CHAT_DICT)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "format_map() argument must be a mapping");
    struct chat_args args = {0};
    args.kw = chat__alloc(r, (a[0].d->n + 1) * sizeof(*args.kw));
    for (uint32_t i = 0; args.kw && i < a[0].d->n; i++)
        if (a[0].d->entry[i].key.type == CHAT_STRING)
            args.kw[args.n_kw++] = a[0].d->entry[i];
    return args.kw ? chat__format(r, self, &args) : self;
}

/* The bytes of self[start:end] that optional arguments ask for; false when start lies behind end. */
static bool window(struct chat_run *r, struct chat_value self, const struct chat_value *a, size_t *from, size_t *to)
{
    int64_t n = self.s->n_chars, start = a[0].type == CHAT_NONE ? 0 : int_or(r, a[0], 0), end = a[1].type == CHAT_NONE ? n : int_or(r, a[1], n);
    start = start < 0 ? (start + n < 0 ? 0 : start + n) : start;
    end = end < 0 ? (end + n < 0 ? 0 : end + n) : end > n ? n : end;
    if (start > end || r->status || !chat__step(r, self.s->len))
        return false;
    *from = chat__char_offset(self.s, (size_t)start);
    *to = chat__char_offset(self.s, (size_t)end);
    return true;
}

static bool affix(const struct chat_str *s, size_t from, size_t to, const struct chat_str *x, bool at_end)
{
    return x->len <= to - from && memcmp(s->p + (at_end ? to - x->len : from), x->p, x->len) == 0;
}

static struct chat_value has_affix(struct chat_run *r, struct chat_value self, const struct chat_value *a, bool at_end)
{
    size_t from = 0, to = 0;
    bool in = window(r, self, a + 1, &from, &to);
    if (a[0].type == CHAT_TUPLE) {
        for (uint32_t i = 0; i < a[0].l->n; i++)
            if (!is_str(r, a[0].l->item[i]) || (in && affix(self.s, from, to, a[0].l->item[i].s, at_end)))
                return chat_bool(true);
        return chat_bool(false);
    }
    return chat_bool(is_str(r, a[0]) && in && affix(self.s, from, to, a[0].s, at_end));
}

METHOD(m_startswith) { UNUSED; return has_affix(r, self, a, false); }
METHOD(m_endswith) { UNUSED; return has_affix(r, self, a, true); }

METHOD(m_removeprefix)
{
    UNUSED;
    return is_str(r, a[0]) && affix(self.s, 0, self.s->len, a[0].s, false) ? part(r, self, a[0].s->len, self.s->len) : self;
}

METHOD(m_removesuffix)
{
    UNUSED;
    return is_str(r, a[0]) && affix(self.s, 0, self.s->len, a[0].s, true) ? part(r, self, 0, self.s->len - a[0].s->len) : self;
}

/* Byte position of the first or last occurrence, -1: none. */
static int64_t search(const struct chat_str *s, size_t from, size_t to, const struct chat_str *x, bool last)
{
    int64_t found = -1;
    for (const char *hit; from <= to && (hit = memmem(s->p + from, to - from, x->p, x->len)); from = (size_t)found + 1) {
        found = hit - s->p;
        if (!last)
            break;
    }
    return found;
}

static struct chat_value find(struct chat_run *r, struct chat_value self, const struct chat_value *a, bool last, bool must)
{
    size_t from, to;
    if (!is_str(r, a[0]))
        return self;
    int64_t at = window(r, self, a + 1, &from, &to) ? search(self.s, from, to, a[0].s, last) : -1;
    if (at < 0 && must)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "substring not found");
    return chat_int(at < 0 ? -1 : (int64_t)utf8_count(self.s->p, (size_t)at));
}

METHOD(m_find) { UNUSED; return find(r, self, a, false, false); }
METHOD(m_rfind) { UNUSED; return find(r, self, a, true, false); }
METHOD(m_index) { UNUSED; return find(r, self, a, false, true); }
METHOD(m_rindex) { UNUSED; return find(r, self, a, true, true); }

METHOD(m_count)
{
    UNUSED;
    size_t from, to;
    int64_t n = 0;
    if (!is_str(r, a[0]) || !window(r, self, a + 1, &from, &to))
        return chat_int(0);
    if (a[0].s->len == 0)
        return chat_int((int64_t)utf8_count(self.s->p + from, to - from) + 1);
    for (const char *hit; (hit = memmem(self.s->p + from, to - from, a[0].s->p, a[0].s->len)); n++)
        from = (size_t)(hit - self.s->p) + a[0].s->len;
    return chat_int(n);
}

static struct chat_value partition(struct chat_run *r, struct chat_value self, struct chat_value sep, bool last)
{
    if (!is_str(r, sep))
        return self;
    if (sep.s->len == 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "empty separator");
    int64_t at = chat__step(r, self.s->len) ? search(self.s, 0, self.s->len, sep.s, last) : -1;
    struct chat_value out = chat__tuple(&r->arena), three[3];
    size_t cut = at < 0 ? (last ? 0 : self.s->len) : (size_t)at, end = at < 0 ? cut : cut + sep.s->len;
    three[0] = part(r, self, 0, cut);
    three[1] = part(r, self, cut, end);
    three[2] = part(r, self, end, self.s->len);
    for (int i = 0; i < 3; i++)
        if (chat_list_push(&r->arena, out, three[i]))
            return chat__out_of_memory(r);
    return out;
}

METHOD(m_partition) { UNUSED; return partition(r, self, a[0], false); }
METHOD(m_rpartition) { UNUSED; return partition(r, self, a[0], true); }

/* title and swapcase: each character by itself, title by whether a cased one stands before it */
static struct chat_value recase(struct chat_run *r, struct chat_value self, bool title)
{
    struct chat_text t;
    bool inside = false;
    chat__text_for(r, &t);
    for (size_t i = 0, len; i < self.s->len && chat__step(r, 0); i += len) {
        uint32_t out[3], c = chat__char_at(self.s->p + i, self.s->len - i, &len);
        unsigned f = chat__unicode(c);
        enum unicode_case how = title ? (inside ? CASE_LOWER : CASE_TITLE) : f & UNICODE_UPPER ? CASE_LOWER : CASE_UPPER;
        size_t n = title || f & (UNICODE_UPPER | UNICODE_LOWER) ? chat__case_at(self.s, i, how, out) : (out[0] = c, 1);
        for (size_t k = 0; k < n; k++)
            chat__text_char(&t, out[k], chat__is_request(self.s, i));
        inside = f & UNICODE_CASED;
    }
    return r->status ? self : chat__text_done(r, &t);
}

METHOD(m_title) { UNUSED; return recase(r, self, true); }
METHOD(m_swapcase) { UNUSED; return recase(r, self, false); }

METHOD(m_zfill)
{
    UNUSED;
    struct chat_value zero = chat_string(&r->arena, "0", 1, CHAT_TRUSTED);
    size_t sign = self.s->len && (self.s->p[0] == '-' || self.s->p[0] == '+');
    int64_t width = int_or(r, a[0], 0);
    if (zero.type == CHAT_INVALID)
        return chat__out_of_memory(r);
    struct chat_value digits = chat__pad(r, part(r, self, sign, self.s->len), width - (int64_t)sign, zero, '>');
    return r->status || !sign ? digits : chat__concat(r, part(r, self, 0, 1), digits);
}

METHOD(m_expandtabs)
{
    UNUSED;
    struct chat_text t;
    int64_t size = int_or(r, a[0], 8), column = 0;
    chat__text_for(r, &t);
    for (size_t i = 0, len; i < self.s->len && chat__step(r, 0) && !t.failed; i += len) {
        uint32_t c = chat__char_at(self.s->p + i, self.s->len - i, &len);
        int64_t pad = c == '\t' && size > 0 ? size - column % size : 0;
        for (int64_t k = 0; k < pad && !t.failed; k++)
            chat__text_put(&t, " ", 1, false);
        if (c != '\t')
            chat__text_part(&t, self.s, i, i + len);
        column = c == '\n' || c == '\r' ? 0 : column + (c == '\t' ? pad : 1);
    }
    return r->status ? self : chat__text_done(r, &t);
}

/* All characters have a flag of `any`, and there is one. */
static struct chat_value all(struct chat_run *r, struct chat_value self, unsigned any)
{
    for (size_t i = 0, len; i < self.s->len && chat__step(r, 0); i += len)
        if (!(chat__unicode(chat__char_at(self.s->p + i, self.s->len - i, &len)) & any))
            return chat_bool(false);
    return chat_bool(self.s->len > 0);
}

METHOD(m_isalpha) { UNUSED; return all(r, self, UNICODE_ALPHA); }
METHOD(m_isalnum) { UNUSED; return all(r, self, UNICODE_ALNUM); }
METHOD(m_isdecimal) { UNUSED; return all(r, self, UNICODE_DECIMAL); }
METHOD(m_isdigit) { UNUSED; return all(r, self, UNICODE_DIGIT); }
METHOD(m_isnumeric) { UNUSED; return all(r, self, UNICODE_NUMERIC); }
METHOD(m_isprintable) { UNUSED; return self.s->len == 0 ? chat_bool(true) : all(r, self, UNICODE_PRINTABLE); }

METHOD(m_isascii)
{
    UNUSED;
    return chat_bool(self.s->n_chars == self.s->len);
}

METHOD(m_isspace)
{
    UNUSED;
    for (size_t i = 0, len; i < self.s->len && chat__step(r, 0); i += len)
        if (!chat__is_space(chat__char_at(self.s->p + i, self.s->len - i, &len)))
            return chat_bool(false);
    return chat_bool(self.s->len > 0);
}

static struct chat_value one_case(struct chat_run *r, struct chat_value self, unsigned want)
{
    bool any = false;
    for (size_t i = 0, len; i < self.s->len && chat__step(r, 0); i += len) {
        unsigned f = chat__unicode(chat__char_at(self.s->p + i, self.s->len - i, &len)) & UNICODE_CASED;
        if (f & ~want)
            return chat_bool(false);
        any |= f != 0;
    }
    return chat_bool(any);
}

METHOD(m_islower) { UNUSED; return one_case(r, self, UNICODE_LOWER); }
METHOD(m_isupper) { UNUSED; return one_case(r, self, UNICODE_UPPER); }

METHOD(m_istitle)
{
    UNUSED;
    bool inside = false, any = false;
    for (size_t i = 0, len; i < self.s->len && chat__step(r, 0); i += len) {
        unsigned f = chat__unicode(chat__char_at(self.s->p + i, self.s->len - i, &len)) & UNICODE_CASED;
        if (f & (UNICODE_UPPER | UNICODE_TITLE) ? inside : f && !inside)
            return chat_bool(false);
        inside = f != 0;
        any |= inside;
    }
    return chat_bool(any);
}

METHOD(m_isidentifier)
{
    UNUSED;
    for (size_t i = 0, len; i < self.s->len && chat__step(r, 0); i += len) {
        uint32_t c = chat__char_at(self.s->p + i, self.s->len - i, &len);
        if (c != '_' && !(chat__unicode(c) & (i ? UNICODE_ALPHA | UNICODE_DECIMAL : UNICODE_ALPHA)))
            return chat_bool(false);
    }
    return chat_bool(self.s->len > 0);
}

METHOD(m_bytes)
{
    UNUSED;
    return chat__fail(r, CHAT_ERROR_RUNTIME, "this method of str is not supported in chat templates");
}

const struct chat_builtin chat__str_methods[] = {
    {"capitalize", m_capitalize, "/", 0}, {"casefold", m_lower, "/", 0}, {"center", m_center, "/ width fillchar", 1},
    {"count", m_count, "/ sub start end", 1}, {"encode", m_bytes, NULL, 0}, {"endswith", m_endswith, "/ suffix start end", 1},
    {"expandtabs", m_expandtabs, "tabsize", 0}, {"find", m_find, "/ sub start end", 1}, {"format", m_format, NULL, 0},
    {"format_map", m_format_map, "/ mapping", 1}, {"index", m_index, "/ sub start end", 1}, {"isalnum", m_isalnum, "/", 0},
    {"isalpha", m_isalpha, "/", 0}, {"isascii", m_isascii, "/", 0}, {"isdecimal", m_isdecimal, "/", 0}, {"isdigit", m_isdigit, "/", 0},
    {"isidentifier", m_isidentifier, "/", 0}, {"islower", m_islower, "/", 0}, {"isnumeric", m_isnumeric, "/", 0},
    {"isprintable", m_isprintable, "/", 0}, {"isspace", m_isspace, "/", 0}, {"istitle", m_istitle, "/", 0}, {"isupper", m_isupper, "/", 0},
    {"join", m_join, "/ iterable", 1}, {"ljust", m_ljust, "/ width fillchar", 1}, {"lower", m_lower, "/", 0},
    {"lstrip", m_lstrip, "/ chars", 0}, {"maketrans", m_bytes, NULL, 0}, {"partition", m_partition, "/ sep", 1},
    {"removeprefix", m_removeprefix, "/ prefix", 1}, {"removesuffix", m_removesuffix, "/ suffix", 1},
    {"replace", m_replace, "/ old new count", 2}, {"rfind", m_rfind, "/ sub start end", 1}, {"rindex", m_rindex, "/ sub start end", 1},
    {"rjust", m_rjust, "/ width fillchar", 1}, {"rpartition", m_rpartition, "/ sep", 1}, {"rsplit", m_rsplit, "sep maxsplit", 0},
    {"rstrip", m_rstrip, "/ chars", 0}, {"split", m_split, "sep maxsplit", 0}, {"splitlines", m_splitlines, "keepends", 0},
    {"startswith", m_startswith, "/ prefix start end", 1}, {"strip", m_strip, "/ chars", 0}, {"swapcase", m_swapcase, "/", 0},
    {"title", m_title, "/", 0}, {"translate", m_bytes, NULL, 0}, {"upper", m_upper, "/", 0}, {"zfill", m_zfill, "/ width", 1},
};
const size_t chat__n_str_methods = sizeof(chat__str_methods) / sizeof(chat__str_methods[0]);
