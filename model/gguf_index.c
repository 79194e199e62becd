/* SPDX-License-Identifier: Apache-2.0
 *
 * Name lookup for metadata keys and tensors: FNV-1a and linear probing at a load of at most one half. A file could
 * choose names that collide, which would make opening quadratic, so a run longer than MAX_PROBES is refused; the
 * longest run measured with 2^18 ordinary tensor names is 30. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/gguf_internal.h"

enum { MAX_PROBES = 1024 };

static uint32_t hash_name(const char *s) {
    uint64_t h = 14695981039346656037u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

static const char *entry_name(const void *entries, size_t stride, uint32_t i) {
    const char *name;
    memcpy(&name, (const char *)entries + i * stride, sizeof name);
    return name;
}

int gguf__index_build(struct gguf__index *ix, const void *entries, size_t stride, uint32_t n, uint32_t *dup) {
    uint32_t n_slots = 16;
    while (n_slots < 2 * n) n_slots *= 2;
    ix->slots = mem_zalloc(n_slots, sizeof *ix->slots);
    if (!ix->slots) return ST_NOMEM;
    ix->mask = n_slots - 1;
    for (uint32_t i = 0; i < n; i++) {
        const char *name = entry_name(entries, stride, i);
        uint32_t at = hash_name(name) & ix->mask;
        for (int probes = 0; ix->slots[at]; at = (at + 1) & ix->mask) {
            *dup = i;
            if (!strcmp(entry_name(entries, stride, ix->slots[at] - 1), name)) return ST_INVALID;
            if (++probes > MAX_PROBES) return ST_LIMIT;
        }
        ix->slots[at] = i + 1;
    }
    return ST_OK;
}

int64_t gguf__index_find(const struct gguf__index *ix, const void *entries, size_t stride, const char *name) {
    if (!ix->slots) return -1;
    for (uint32_t at = hash_name(name) & ix->mask; ix->slots[at]; at = (at + 1) & ix->mask) {
        uint32_t i = ix->slots[at] - 1;
        if (!strcmp(entry_name(entries, stride, i), name)) return i;
    }
    return -1;
}

void gguf__index_clear(struct gguf__index *ix) {
    mem_free(ix->slots);
    *ix = (struct gguf__index){ 0 };
}
