/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings: UTF-8 with a count of characters and the ranges of bytes that came from the request, and the growing text
 * they are made with. Whatever is copied takes its ranges along; that is the whole trick of keeping messages from
 * becoming control tokens. */
#include <string.h>

#include "base/utf8.h"
#include "chat/internal.h"

size_t chat__char_len(const char *p, size_t n)
{
    unsigned bad, len = utf8_next((const uint8_t *)p, n, &bad);
    return len ? len : 1;
}

uint32_t chat__char_at(const char *p, size_t n, size_t *len)
{
    const unsigned char *u = (const unsigned char *)p;
    *len = chat__char_len(p, n);
    switch (*len) {
    case 1: return u[0] < 0x80 ? u[0] : 0xfffd;
    case 2: return (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3f);
    case 3: return (uint32_t)(u[0] & 0x0f) << 12 | (uint32_t)(u[1] & 0x3f) << 6 | (u[2] & 0x3f);
    default: return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3f) << 12 | (uint32_t)(u[2] & 0x3f) << 6 | (u[3] & 0x3f);
    }
}

size_t chat__char_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

size_t chat__char_offset(const struct chat_str *s, size_t i)
{
    if (s->n_chars == s->len)
        return i;
    size_t at = 0;
    while (i-- && at < s->len)
        at += chat__char_len(s->p + at, s->len - at);
    return at;
}

int chat__prefix(const struct chat_str *s, int max)
{
    int n = (int)s->len;
    if (n > max)
        for (n = max; n > 0 && ((unsigned char)s->p[n] & 0xc0) == 0x80; n--)
            continue;
    return n;
}

bool chat__str_eq(const struct chat_str *s, const char *z)
{
    return s->len == strlen(z) && memcmp(s->p, z, s->len) == 0;
}

int chat__str_cmp(const struct chat_str *a, const struct chat_str *b)
{
    int c = memcmp(a->p, b->p, a->len < b->len ? a->len : b->len); /* UTF-8 sorts as its characters do */
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

struct chat_value chat__str_n(struct arena *a, const char *p, size_t n, enum chat_origin origin)
{
    struct {
        struct chat_str s;
        struct chat_range whole;
    } *made = n < UINT32_MAX / 2 ? arena_alloc(a, sizeof(*made)) : NULL;
    if (!made)
        return (struct chat_value){0};
    made->s = (struct chat_str){.p = p, .len = (uint32_t)n, .n_chars = (uint32_t)utf8_count(p, n)};
    if (origin == CHAT_REQUEST && n > 0) {
        made->whole = (struct chat_range){0, (uint32_t)n};
        made->s.ranges = &made->whole;
        made->s.n_ranges = 1;
    }
    return (struct chat_value){.type = CHAT_STRING, .s = &made->s};
}

/* The first range of s that ends behind `at`. */
static uint32_t range_from(const struct chat_str *s, size_t at)
{
    uint32_t lo = 0, hi = s->n_ranges;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (s->ranges[mid].end <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

bool chat__is_request(const struct chat_str *s, size_t at)
{
    uint32_t i = s->n_ranges ? range_from(s, at) : 0;
    return i < s->n_ranges && s->ranges[i].start <= at;
}

struct chat_value chat__str_slice(struct arena *a, struct chat_value v, size_t start, size_t end)
{
    const struct chat_str *s = v.s;
    if (start == 0 && end == s->len)
        return v;
    struct chat_value out = chat__str_n(a, s->p + start, end - start, CHAT_TRUSTED);
    out.flags = v.flags;
    uint32_t first = range_from(s, start), n = 0;
    while (first + n < s->n_ranges && s->ranges[first + n].start < end)
        n++;
    if (out.type == CHAT_INVALID || n == 0 || start == end)
        return out;
    struct chat_range *cut = arena_alloc(a, n * sizeof(*cut));
    if (!cut)
        return (struct chat_value){0};
    for (uint32_t i = 0; i < n; i++) {
        struct chat_range w = s->ranges[first + i];
        cut[i].start = (uint32_t)((w.start > start ? w.start : start) - start);
        cut[i].end = (uint32_t)((w.end < end ? w.end : end) - start);
    }
    struct chat_str *made = (struct chat_str *)out.s;
    made->ranges = cut;
    made->n_ranges = n;
    return out;
}

/* ---- growing text ---- */

void chat__text_init(struct chat_text *t, struct arena *a, size_t max)
{
    *t = (struct chat_text){.arena = a, .max = max < UINT32_MAX / 2 ? max : UINT32_MAX / 2};
}

static bool reserve(struct chat_text *t, size_t n)
{
    if (t->failed)
        return false;
    if (n > t->max - t->len)
        return !(t->failed = t->over = true);
    if (t->cap - t->len >= n)
        return true;
    size_t cap = t->cap ? t->cap * 2 : 64;
    if (cap < t->len + n)
        cap = t->len + n;
    char *p = arena_alloc(t->arena, cap);
    if (!p)
        return !(t->failed = true);
    if (t->len)
        memcpy(p, t->p, t->len);
    t->p = p;
    t->cap = cap;
    return true;
}

/* Marks bytes of the text; ranges come in order. */
static void mark(struct chat_text *t, size_t start, size_t end)
{
    if (t->n_ranges && t->ranges[t->n_ranges - 1].end == start) {
        t->ranges[t->n_ranges - 1].end = (uint32_t)end;
        return;
    }
    if (t->n_ranges == t->cap_ranges) {
        uint32_t cap = t->cap_ranges ? t->cap_ranges * 2 : 2;
        struct chat_range *more = arena_alloc(t->arena, cap * sizeof(*more));
        if (!more) {
            t->failed = true; /* unmarked text would be trusted */
            return;
        }
        if (t->n_ranges)
            memcpy(more, t->ranges, t->n_ranges * sizeof(*more));
        t->ranges = more;
        t->cap_ranges = cap;
    }
    t->ranges[t->n_ranges++] = (struct chat_range){(uint32_t)start, (uint32_t)end};
}

void chat__text_put(struct chat_text *t, const char *p, size_t n, bool request)
{
    if (n == 0 || !reserve(t, n))
        return;
    memcpy(t->p + t->len, p, n);
    if (request)
        mark(t, t->len, t->len + n);
    t->len += n;
}

void chat__text_puts(struct chat_text *t, const char *z)
{
    chat__text_put(t, z, strlen(z), false);
}

void chat__text_char(struct chat_text *t, uint32_t c, bool request)
{
    char bytes[4];
    bool valid = c < 0x110000 && (c < 0xd800 || c > 0xdfff);
    chat__text_put(t, bytes, chat__char_put(valid ? c : 0xfffd, bytes), request);
}

void chat__text_part(struct chat_text *t, const struct chat_str *s, size_t start, size_t end)
{
    size_t base = t->len;
    if (start >= end || !reserve(t, end - start))
        return;
    memcpy(t->p + base, s->p + start, end - start);
    t->len += end - start;
    for (uint32_t i = range_from(s, start); i < s->n_ranges && s->ranges[i].start < end; i++) {
        struct chat_range w = s->ranges[i];
        mark(t, base + (w.start > start ? w.start : start) - start, base + (w.end < end ? w.end : end) - start);
    }
}

void chat__text_str(struct chat_text *t, struct chat_value s)
{
    chat__text_part(t, s.s, 0, s.s->len);
}

struct chat_value chat__text_value(struct chat_text *t)
{
    struct chat_value v = t->failed ? (struct chat_value){0} : chat__str_n(t->arena, t->p ? t->p : "", t->len, CHAT_TRUSTED);
    if (v.type == CHAT_STRING) {
        struct chat_str *s = (struct chat_str *)v.s;
        s->ranges = t->ranges;
        s->n_ranges = t->n_ranges;
    }
    return v;
}
