/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON text without a tree: a scan that decides before any allocation whether text is RFC 8259 JSON every parser reads
 * the same way, and writers that escape. Pure, any thread, no recursion. */
#ifndef MOED_BASE_JSON_H
#define MOED_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct json_limits { uint32_t max_depth, max_nodes; }; /* depth at most 64 */

/* The whole text is one value: 0, or ST_INVALID with the byte offset. */
int json_prescan(const char *s, size_t n, const struct json_limits *lim, struct err *e);

/* The value s begins with, space before it included: 0 and its length in *used; ST_LIMIT when the text ends inside it
 * and more text could complete it; ST_INVALID when nothing could, *used then is the place. */
int json_scan_value(const char *s, size_t n, const struct json_limits *lim, size_t *used);

/* Walks the members of the object or array `s`, which passed a scan; *at is 0 before the first. Gives views of the key (with its
 * quotes; empty in an array) and of the value; false behind the last. */
struct json_member { const char *key, *value; size_t n_key, n_value; };
bool json_next(const char *s, size_t n, size_t *at, struct json_member *out);

/* The string literal `s` (quotes included, passed a scan) without its escapes, as UTF-8. */
void json_put_unescaped(struct buf *out, const char *s, size_t n);

void json_put_string(struct buf *out, const char *s, size_t n); /* quotes included; s is valid UTF-8 */
void json_put_number(struct buf *out, double v);                /* shortest round-trip; null when not finite */
void json_put_float(struct buf *out, float v);                  /* the same for a float: at most 9 digits    */

#endif
