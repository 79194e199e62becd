/* SPDX-License-Identifier: Apache-2.0
 *
 * Bump allocator over a list of chunks, each as large as all before it: thousands of requests that wait have small ones,
 * and a large one has few. A request bigger than a chunk gets its own chunk. */
#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

enum { ARENA_FIRST_BYTES = 1024, ARENA_LARGEST_BYTES = 32768, ARENA_ALIGN = 16 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t cap, used;
    _Alignas(16) unsigned char bytes[];
};

void arena_init(struct arena *a, size_t cap_bytes) {
    *a = (struct arena){ .cap_bytes = cap_bytes };
}

void arena_clear(struct arena *a) {
    for (struct arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    a->head = NULL;
    a->used_bytes = 0;
}

void *arena_alloc(struct arena *a, size_t n_bytes) {
    if (n_bytes > SIZE_MAX / 2) return NULL;
    size_t n = (n_bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (n > a->cap_bytes - a->used_bytes) return NULL;
    struct arena_chunk *c = a->head;
    if (!c || c->cap - c->used < n) {
        size_t cap = a->used_bytes < ARENA_FIRST_BYTES ? ARENA_FIRST_BYTES : a->used_bytes < ARENA_LARGEST_BYTES ? a->used_bytes : ARENA_LARGEST_BYTES;
        if (cap < n) cap = n;
        c = mem_alloc(sizeof *c + cap);
        if (!c) return NULL;
        *c = (struct arena_chunk){ .next = a->head, .cap = cap };
        a->head = c;
    }
    void *p = c->bytes + c->used;
    c->used += n;
    a->used_bytes += n;
    return p;
}

void *arena_zalloc(struct arena *a, size_t n, size_t size) {
    if (size && n > SIZE_MAX / size) return NULL;
    void *p = arena_alloc(a, n * size);
    if (p) memset(p, 0, n * size);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n) {
    char *copy = arena_alloc(a, n + 1);
    if (!copy) return NULL;
    memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}
