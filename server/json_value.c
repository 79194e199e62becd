/* SPDX-License-Identifier: Apache-2.0
 *
 * See json_value.h. One pass, recursion as deep as the text. */
#include "server/json_value.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"

struct reader {
    struct arena *a;
    const char *p, *end;
    enum chat_origin origin;
    struct buf scratch;
};

static void skip(struct reader *r) {
    while (r->p < r->end && strchr(" \t\r\n,:", *r->p)) r->p++;
}

/* A string literal, unescaped into scratch. */
static void read_literal(struct reader *r) {
    const char *from = r->p++;

    while (r->p < r->end && *r->p != '"') r->p += *r->p == '\\' ? 2 : 1;
    r->p++;
    buf_reset(&r->scratch);
    json_put_unescaped(&r->scratch, from, (size_t)(r->p - from));
}

static struct chat_value read_number(struct reader *r) {
    char text[64];
    size_t n = 0;
    bool is_float = false;

    while (r->p < r->end && strchr("+-.0123456789eE", *r->p)) {
        is_float |= strchr(".eE", *r->p) != NULL;
        if (n + 1 < sizeof text) text[n++] = *r->p;
        r->p++;
    }
    text[n] = '\0';
    errno = 0;
    long long i = is_float ? 0 : strtoll(text, NULL, 10);
    return is_float || errno ? chat_float(strtod(text, NULL)) : chat_int(i);
}

static struct chat_value read_value(struct reader *r);

/* Nothing more is read. */
static struct chat_value out_of_memory(struct reader *r) {
    r->p = r->end;
    return (struct chat_value){.type = CHAT_INVALID};
}

static struct chat_value read_list(struct reader *r) {
    struct chat_value list = chat_list(r->a);

    for (r->p++, skip(r); r->p < r->end && *r->p != ']'; skip(r)) {
        if (chat_list_push(r->a, list, read_value(r))) return out_of_memory(r);
    }
    r->p++;
    return list;
}

static struct chat_value read_dict(struct reader *r) {
    struct chat_value dict = chat_dict(r->a);

    for (r->p++, skip(r); r->p < r->end && *r->p != '}'; skip(r)) {
        read_literal(r);
        size_t n = r->scratch.len;
        char *key = arena_strndup(r->a, n ? r->scratch.data : "", n);
        skip(r);
        if (!key || r->scratch.failed || chat_dict_set(r->a, dict, key, n, r->origin, read_value(r))) return out_of_memory(r);
    }
    r->p++;
    return dict;
}

static struct chat_value read_value(struct reader *r) {
    switch (*r->p) {
    case '{': return read_dict(r);
    case '[': return read_list(r);
    case '"':
        read_literal(r);
        if (r->scratch.failed) return out_of_memory(r);
        return chat_string(r->a, r->scratch.len ? r->scratch.data : "", r->scratch.len, r->origin);
    case 't': r->p += 4; return chat_bool(true);
    case 'f': r->p += 5; return chat_bool(false);
    case 'n': r->p += 4; return chat_none();
    default: return read_number(r);
    }
}

struct chat_value json_value(struct arena *a, const char *p, size_t n, enum chat_origin origin) {
    struct reader r = {.a = a, .p = p, .end = p + n, .origin = origin};

    buf_init(&r.scratch, n + 1);
    skip(&r);
    struct chat_value v = read_value(&r);
    buf_clear(&r.scratch);
    return v;
}
