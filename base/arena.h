/* SPDX-License-Identifier: Apache-2.0
 *
 * Bump allocator with a hard cap: one per request, freed in one call. Not thread-safe; ownership moves
 * with the object that embeds it. Blocks are 16-byte aligned. */
#ifndef MOED_BASE_ARENA_H
#define MOED_BASE_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_chunk *head; /* newest chunk, private */
    size_t used_bytes;        /* handed out so far, all chunks */
    size_t cap_bytes;         /* hard cap on used_bytes */
};

void arena_init(struct arena *a, size_t cap_bytes);
void arena_clear(struct arena *a);                               /* frees everything; the arena can be used again */
void *arena_alloc(struct arena *a, size_t n_bytes);              /* NULL when over the cap or out of memory; view, lives until arena_clear */
void *arena_zalloc(struct arena *a, size_t n, size_t size);      /* zeroed; NULL on overflow too */
char *arena_strndup(struct arena *a, const char *s, size_t n);   /* NUL-terminated copy */

#endif
