/* SPDX-License-Identifier: Apache-2.0
 *
 * Growable bytes with a maximum. Growth doubles, so appends are amortised O(1). */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

void buf_init(struct buf *b, size_t max_bytes) {
    *b = (struct buf){ .max_bytes = max_bytes };
}

void buf_clear(struct buf *b) {
    mem_free(b->data);
    buf_init(b, b->max_bytes);
}

void buf_reset(struct buf *b) {
    b->len = 0;
    b->failed = false;
}

int buf_reserve(struct buf *b, size_t n_more) {
    if (b->failed) return ST_LIMIT;
    if (n_more > b->max_bytes - b->len) {
        b->failed = true;
        return ST_LIMIT;
    }
    if (b->cap - b->len >= n_more) return 0;
    size_t cap = b->cap ? b->cap * 2 : 256;
    if (cap < b->len + n_more) cap = b->len + n_more;
    if (cap > b->max_bytes) cap = b->max_bytes;
    char *data = mem_realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return ST_NOMEM;
    }
    b->data = data;
    b->cap = cap;
    return 0;
}

int buf_append(struct buf *b, const void *p, size_t n) {
    if (n == 0) return b->failed ? ST_LIMIT : 0;
    int st = buf_reserve(b, n);
    if (st) return st;
    memcpy(b->data + b->len, p, n);
    b->len += n;
    return 0;
}

int buf_puts(struct buf *b, const char *s) {
    return buf_append(b, s, strlen(s));
}

int buf_putc(struct buf *b, char c) {
    return buf_append(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...) {
    char small[256];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    int st = n < 0 ? ST_INTERNAL : 0;
    if (!st && (size_t)n < sizeof small) {
        st = buf_append(b, small, (size_t)n);
    } else if (!st && (st = buf_reserve(b, (size_t)n + 1)) == 0) { /* + 1: vsnprintf writes a NUL behind */
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return st;
}

void buf_consume(struct buf *b, size_t n) {
    if (n >= b->len) {
        b->len = 0;
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}
