/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on whole strings that methods and filters share: strip, replace, case, split, join, padding. All build
 * their results from parts of the originals, so that marks of the request come along. */
#include <string.h>

#include "chat/internal.h"

static struct chat_value made(struct chat_run *r, struct chat_value v)
{
    return v.type == CHAT_INVALID ? chat__out_of_memory(r) : v;
}

static bool in_set(const struct chat_str *set, const char *p, size_t len)
{
    return memmem(set->p, set->len, p, len) != NULL; /* whole characters: UTF-8 cannot match across a border */
}

struct chat_value chat__strip(struct chat_run *r, struct chat_value v, struct chat_value chars, int sides)
{
    const struct chat_str *s = v.s;
    bool spaces = chars.type != CHAT_STRING;
    size_t start = 0, end = s->len, len = 0;
    if (!spaces && !chat__step(r, (size_t)chars.s->len * 4))
        return v;
    while (sides & 1 && start < end) {
        uint32_t c = chat__char_at(s->p + start, end - start, &len);
        if (spaces ? !chat__is_space(c) : !in_set(chars.s, s->p + start, len))
            break;
        start += len;
    }
    while (sides & 2 && end > start) {
        size_t at = end - 1;
        while (at > start && ((unsigned char)s->p[at] & 0xc0) == 0x80)
            at--;
        uint32_t c = chat__char_at(s->p + at, end - at, &len);
        if (spaces ? !chat__is_space(c) : !in_set(chars.s, s->p + at, end - at))
            break;
        end = at;
    }
    return chat__step(r, s->len - (end - start)) ? made(r, chat__str_slice(&r->arena, v, start, end)) : v;
}

struct chat_value chat__replace(struct chat_run *r, struct chat_value v, struct chat_value old, struct chat_value with, int64_t count)
{
    struct chat_text t;
    const struct chat_str *s = v.s;
    size_t at = 0;
    chat__text_for(r, &t);
    while (count != 0 && chat__step(r, 0) && !t.failed) {
        const char *hit = at <= s->len ? memmem(s->p + at, s->len - at, old.s->p, old.s->len) : NULL;
        if (!hit)
            break;
        size_t found = (size_t)(hit - s->p);
        chat__text_part(&t, s, at, found);
        chat__text_str(&t, with);
        if (old.s->len == 0) { /* before every character, and at the end */
            size_t next = found < s->len ? found + chat__char_len(s->p + found, s->len - found) : found + 1;
            chat__text_part(&t, s, found, next < s->len ? next : s->len);
            at = next;
        } else {
            at = found + old.s->len;
        }
        count -= count > 0;
    }
    if (at < s->len)
        chat__text_part(&t, s, at, s->len);
    struct chat_value out = chat__text_done(r, &t);
    out.flags = r->status ? 0 : v.flags;
    return out;
}

/* Whether the capital sigma at `at` ends a word: a cased character before it, none after, skipping what is ignorable. */
static bool final_sigma(const struct chat_str *s, size_t at)
{
    bool before = false;
    size_t len;
    for (size_t i = at; i > 0;) {
        do
            i--;
        while (i > 0 && ((unsigned char)s->p[i] & 0xc0) == 0x80);
        unsigned f = chat__unicode(chat__char_at(s->p + i, s->len - i, &len));
        if (f & UNICODE_IGNORABLE)
            continue;
        before = f & UNICODE_CASED;
        break;
    }
    if (!before)
        return false;
    for (size_t i = at + 2; i < s->len; i += len) {
        unsigned f = chat__unicode(chat__char_at(s->p + i, s->len - i, &len));
        if (!(f & UNICODE_IGNORABLE))
            return !(f & UNICODE_CASED);
    }
    return true;
}

size_t chat__case_at(const struct chat_str *s, size_t at, enum unicode_case how, uint32_t out[3])
{
    size_t len;
    uint32_t c = chat__char_at(s->p + at, s->len - at, &len);
    size_t n = chat__to_case(c, how, out);
    if (c == 0x3a3 && how == CASE_LOWER && final_sigma(s, at))
        out[0] = 0x3c2;
    return n;
}

static void put_case(struct chat_text *t, const struct chat_str *s, size_t start, size_t end, enum unicode_case how)
{
    size_t len;
    for (size_t i = start; i < end; i += len) {
        uint32_t out[3];
        size_t n = chat__case_at(s, i, how, out);
        len = chat__char_len(s->p + i, s->len - i);
        for (size_t k = 0; k < n; k++)
            chat__text_char(t, out[k], chat__is_request(s, i));
    }
}

struct chat_value chat__case(struct chat_run *r, struct chat_value v, enum unicode_case how)
{
    struct chat_text t;
    chat__text_for(r, &t);
    if (!chat__step(r, (size_t)v.s->len * 8))
        return v;
    put_case(&t, v.s, 0, v.s->len, how);
    struct chat_value out = chat__text_done(r, &t);
    out.flags = r->status ? 0 : v.flags;
    return out;
}

struct chat_value chat__capitalize(struct chat_run *r, struct chat_value v)
{
    struct chat_text t;
    size_t first = v.s->len ? chat__char_len(v.s->p, v.s->len) : 0;
    chat__text_for(r, &t);
    if (!chat__step(r, (size_t)v.s->len * 8))
        return v;
    put_case(&t, v.s, 0, first, CASE_TITLE);
    put_case(&t, v.s, first, v.s->len, CASE_LOWER);
    return chat__text_done(r, &t);
}

static bool push(struct chat_run *r, struct chat_value list, struct chat_value s, size_t start, size_t end)
{
    if (chat_list_push(&r->arena, list, chat__str_slice(&r->arena, s, start, end)))
        chat__out_of_memory(r);
    return chat__step(r, 0);
}

static size_t skip(const struct chat_str *s, size_t at, bool space)
{
    size_t len;
    while (at < s->len && chat__is_space(chat__char_at(s->p + at, s->len - at, &len)) == space)
        at += len;
    return at;
}

/* Backwards: the begin of the run of (non-)spaces that ends at `at`. */
static size_t skip_back(const struct chat_str *s, size_t at, bool space)
{
    while (at > 0) {
        size_t i = at - 1, len;
        while (i > 0 && ((unsigned char)s->p[i] & 0xc0) == 0x80)
            i--;
        if (chat__is_space(chat__char_at(s->p + i, s->len - i, &len)) != space)
            break;
        at = i;
    }
    return at;
}

static void reverse(struct chat_value list)
{
    for (uint32_t i = 0; i < list.l->n / 2; i++) {
        struct chat_value x = list.l->item[i];
        list.l->item[i] = list.l->item[list.l->n - 1 - i];
        list.l->item[list.l->n - 1 - i] = x;
    }
}

static void split_spaces(struct chat_run *r, struct chat_value out, struct chat_value v, int64_t max)
{
    for (size_t at = skip(v.s, 0, true); at < v.s->len && !r->status;) {
        size_t end = max-- == 0 ? v.s->len : skip(v.s, at, false);
        push(r, out, v, at, end);
        at = skip(v.s, end, true);
    }
}

static void rsplit_spaces(struct chat_run *r, struct chat_value out, struct chat_value v, int64_t max)
{
    for (size_t at = skip_back(v.s, v.s->len, true); at > 0 && !r->status;) {
        size_t start = max-- == 0 ? 0 : skip_back(v.s, at, false);
        push(r, out, v, start, at);
        at = skip_back(v.s, start, true);
    }
    reverse(out);
}

static void split_at(struct chat_run *r, struct chat_value out, struct chat_value v, const struct chat_str *sep, int64_t max)
{
    size_t at = 0;
    for (const char *hit; max-- != 0 && (hit = memmem(v.s->p + at, v.s->len - at, sep->p, sep->len));) {
        if (!push(r, out, v, at, (size_t)(hit - v.s->p)))
            return;
        at = (size_t)(hit - v.s->p) + sep->len;
    }
    push(r, out, v, at, v.s->len);
}

static void rsplit_at(struct chat_run *r, struct chat_value out, struct chat_value v, const struct chat_str *sep, int64_t max)
{
    size_t end = v.s->len;
    for (size_t at = end; max != 0 && at >= sep->len && chat__step(r, sep->len); at--) {
        if (memcmp(v.s->p + at - sep->len, sep->p, sep->len) != 0)
            continue;
        push(r, out, v, at, end);
        end = at - sep->len;
        at = end + 1;
        max -= max > 0;
        if (end == 0)
            break;
    }
    push(r, out, v, 0, end);
    reverse(out);
}

struct chat_value chat__split(struct chat_run *r, struct chat_value v, struct chat_value sep, int64_t max, bool from_right)
{
    struct chat_value out = chat_list(&r->arena);
    if (out.type == CHAT_INVALID)
        return chat__out_of_memory(r);
    if (sep.type != CHAT_INVALID && sep.type != CHAT_NONE && sep.type != CHAT_STRING)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "must be str or None, not %s", chat__type_name(sep));
    if (sep.type == CHAT_STRING && sep.s->len == 0)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "empty separator");
    if (!chat__step(r, v.s->len))
        return out;
    if (sep.type != CHAT_STRING)
        from_right ? rsplit_spaces(r, out, v, max) : split_spaces(r, out, v, max);
    else
        from_right ? rsplit_at(r, out, v, sep.s, max) : split_at(r, out, v, sep.s, max);
    return out;
}

static bool is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct chat_value chat__splitlines(struct chat_run *r, struct chat_value v, bool keep_ends)
{
    struct chat_value out = chat_list(&r->arena);
    size_t start = 0, len;
    if (out.type == CHAT_INVALID || !chat__step(r, v.s->len))
        return made(r, out);
    for (size_t i = 0; i < v.s->len && !r->status; i += len) {
        if (!is_line_end(chat__char_at(v.s->p + i, v.s->len - i, &len)))
            continue;
        if (v.s->p[i] == '\r' && i + 1 < v.s->len && v.s->p[i + 1] == '\n')
            len = 2;
        push(r, out, v, start, keep_ends ? i + len : i);
        start = i + len;
    }
    if (start < v.s->len)
        push(r, out, v, start, v.s->len);
    return out;
}

struct chat_value chat__join(struct chat_run *r, struct chat_value sep, struct chat_value items, bool convert)
{
    struct chat_text t;
    struct chat_value x;
    struct chat_iter *it = chat__iter(r, items);
    chat__text_for(r, &t);
    for (size_t i = 0; it && chat__next(r, it, &x) && !t.failed; i++) {
        if (i)
            chat__text_str(&t, sep);
        if (x.type != CHAT_STRING && !convert)
            return chat__fail(r, CHAT_ERROR_RUNTIME, "sequence item %zu: expected str instance, %s found", i, chat__type_name(x));
        chat__put_str(r, &t, x);
        if (!chat__step(r, sep.s->len))
            break;
    }
    return r->status ? chat_none() : chat__text_done(r, &t);
}

struct chat_value chat__pad(struct chat_run *r, struct chat_value v, int64_t width, struct chat_value with, int align)
{
    struct chat_text t;
    if (r->status || v.type != CHAT_STRING)
        return made(r, v);
    int64_t pad = width - v.s->n_chars, left = align == '>' ? pad : align == '^' ? pad / 2 + (pad & width & 1) : 0;
    if (with.type == CHAT_STRING && with.s->n_chars != 1)
        return chat__fail(r, CHAT_ERROR_RUNTIME, "The fill character must be exactly one character long");
    if (pad <= 0)
        return v;
    if (pad > (int64_t)r->limits.max_output)
        return chat__fail(r, CHAT_ERROR_LIMIT, "a text longer than %zu bytes", r->limits.max_output);
    chat__text_for(r, &t);
    for (int64_t i = 0; i <= pad && !t.failed; i++) {
        if (i == left)
            chat__text_str(&t, v);
        if (i < pad && with.type == CHAT_STRING)
            chat__text_str(&t, with);
        else if (i < pad)
            chat__text_put(&t, " ", 1, false);
    }
    return chat__text_done(r, &t);
}

struct chat_value chat__escape(struct chat_run *r, struct chat_value v)
{
    static const char plain[] = "&<>'\"";
    static const char *const html[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct chat_text t;
    size_t done = 0;
    chat__text_for(r, &t);
    for (size_t i = 0; i < v.s->len; i++) {
        const char *c = v.s->p[i] ? strchr(plain, v.s->p[i]) : NULL;
        if (!c)
            continue;
        chat__text_part(&t, v.s, done, i);
        chat__text_put(&t, html[c - plain], strlen(html[c - plain]), chat__is_request(v.s, i));
        done = i + 1;
    }
    chat__text_part(&t, v.s, done, v.s->len);
    struct chat_value out = chat__text_done(r, &t);
    out.flags = r->status ? 0 : CHAT_MARKUP;
    return out;
}
