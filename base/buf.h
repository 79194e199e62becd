/* SPDX-License-Identifier: Apache-2.0
 *
 * Growable bytes with a mandatory maximum. A failed append sets a sticky `failed` flag, so a writer can
 * append many pieces and check once. Not thread-safe. */
#ifndef MOED_BASE_BUF_H
#define MOED_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data;       /* owned; not NUL-terminated */
    size_t len;
    size_t cap;       /* allocated */
    size_t max_bytes; /* len never passes this */
    bool failed;      /* an append was refused (limit or memory); content is then a valid prefix */
};

void buf_init(struct buf *b, size_t max_bytes); /* allocates nothing */
void buf_clear(struct buf *b);                  /* frees; keeps max_bytes */
void buf_reset(struct buf *b);                  /* len = 0, failed = false, keeps memory */
int buf_append(struct buf *b, const void *p, size_t n); /* 0, ST_LIMIT or ST_NOMEM */
int buf_puts(struct buf *b, const char *s);
int buf_putc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_reserve(struct buf *b, size_t n_more);  /* room for n_more bytes at data + len */
void buf_consume(struct buf *b, size_t n);      /* drops the first n bytes */

#endif
