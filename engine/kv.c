/* SPDX-License-Identifier: Apache-2.0
 *
 * Paged KV cache: fixed pages from a free stack, one page table per sequence, reference counts for shared
 * prefixes. All memory is carved at open; nothing here allocates. Entered by the engine's thread only.
 * It does not know what a position means: prefix matching and eviction are the scheduler's. */
#include "engine/internal.h"

#include <assert.h>
#include <string.h>

static uint32_t pages_for(uint32_t n_tokens) {
    return n_tokens / ENGINE__PAGE_TOKENS + (n_tokens % ENGINE__PAGE_TOKENS != 0);
}

/* n_free is atomic only for the readers of engine_stats: one writer, so plain load and store suffice. */
static uint32_t n_free(const struct engine__kv *kv) {
    return atomic_load_explicit(&kv->n_free, memory_order_relaxed);
}

static int32_t page_take(struct engine__kv *kv) {
    uint32_t n = n_free(kv);
    assert(n > 0);
    atomic_store_explicit(&kv->n_free, n - 1, memory_order_relaxed);
    int32_t page = kv->free_pages[n - 1];
    assert(kv->refs[page] == 0);
    kv->refs[page] = 1;
    return page;
}

static void page_drop(struct engine__kv *kv, int32_t page) {
    assert(kv->refs[page] > 0);
    if (--kv->refs[page] > 0) {
        return;
    }
    uint32_t n = n_free(kv);
    kv->free_pages[n] = page;
    atomic_store_explicit(&kv->n_free, n + 1, memory_order_relaxed);
}

void engine__kv_init(struct engine__kv *kv, const struct engine__kv_shape *shape, struct engine__carver *c) {
    *kv = (struct engine__kv){
        .n_seqs = shape->n_seqs,
        .n_pages = shape->n_pages,
        .max_pages = pages_for(shape->n_ctx),
        .n_layers = shape->n_layers,
        .k_page_bytes = shape->k_page_bytes,
        .v_page_bytes = shape->v_page_bytes,
    };
    uint64_t n_pages = shape->n_pages, n_seqs = shape->n_seqs;
    kv->pool = engine__carve(c, n_pages * shape->n_layers, shape->k_page_bytes + shape->v_page_bytes);
    kv->table = engine__carve(c, n_seqs * kv->max_pages, sizeof *kv->table);
    kv->n_held = engine__carve(c, n_seqs, sizeof *kv->n_held);
    kv->n_done = engine__carve(c, n_seqs, sizeof *kv->n_done);
    kv->refs = engine__carve(c, n_pages, sizeof *kv->refs);
    kv->free_pages = engine__carve(c, n_pages, sizeof *kv->free_pages);
    if (!c->base) {
        return;
    }
    for (uint32_t i = 0; i < kv->n_pages; i++) { /* popped from the end: low pages first */
        kv->free_pages[i] = (int32_t)(kv->n_pages - 1 - i);
    }
    atomic_init(&kv->n_free, kv->n_pages);
}

int engine__kv_reserve(struct engine__kv *kv, seq_id id, uint32_t n_tokens) {
    if (id >= kv->n_seqs || pages_for(n_tokens) > kv->max_pages) {
        return ST_INVALID;
    }
    uint32_t want = pages_for(n_tokens), have = kv->n_held[id];
    if (want <= have) {
        return ST_OK;
    }
    if (want - have > n_free(kv)) {
        return ST_KV_FULL;
    }
    int32_t *table = kv->table + (size_t)id * kv->max_pages;
    for (uint32_t i = have; i < want; i++) {
        table[i] = page_take(kv);
    }
    kv->n_held[id] = want;
    return ST_OK;
}

void engine__kv_free(struct engine__kv *kv, seq_id id) {
    if (id >= kv->n_seqs) {
        return;
    }
    const int32_t *table = engine__kv_table(kv, id);
    for (uint32_t i = kv->n_held[id]; i-- > 0;) {
        page_drop(kv, table[i]);
    }
    kv->n_held[id] = 0;
    kv->n_done[id] = 0;
}

int engine__kv_fork(struct engine__kv *kv, seq_id from, seq_id to, uint32_t n_tokens) {
    if (from >= kv->n_seqs || to >= kv->n_seqs || from == to || kv->n_held[to] != 0) {
        return ST_INVALID;
    }
    if (n_tokens % ENGINE__PAGE_TOKENS != 0 || n_tokens > kv->n_done[from]) {
        return ST_INVALID; /* a page not full yet would be written by two sequences */
    }
    uint32_t n = n_tokens / ENGINE__PAGE_TOKENS;
    const int32_t *src = engine__kv_table(kv, from);
    int32_t *dst = kv->table + (size_t)to * kv->max_pages;
    for (uint32_t i = 0; i < n; i++) {
        dst[i] = src[i];
        kv->refs[src[i]]++;
    }
    kv->n_held[to] = n;
    kv->n_done[to] = n_tokens;
    return ST_OK;
}

bool engine__kv_writable(const struct engine__kv *kv, seq_id id, uint32_t pos, uint32_t n_tokens) {
    uint64_t end = (uint64_t)pos + n_tokens;
    if (id >= kv->n_seqs || n_tokens == 0 || pos > kv->n_done[id] ||
        end > (uint64_t)kv->n_held[id] * ENGINE__PAGE_TOKENS) {
        return false;
    }
    const int32_t *table = engine__kv_table(kv, id);
    for (uint32_t i = pos / ENGINE__PAGE_TOKENS; i < pages_for((uint32_t)end); i++) {
        if (kv->refs[table[i]] != 1) {
            return false;
        }
    }
    return true;
}

bool engine__kv_consistent(const struct engine__kv *kv) {
    uint64_t refs = 0, held = 0;
    uint32_t unused = 0;
    for (uint32_t p = 0; p < kv->n_pages; p++) {
        refs += kv->refs[p];
        unused += kv->refs[p] == 0;
    }
    for (uint32_t s = 0; s < kv->n_seqs; s++) {
        held += kv->n_held[s];
        for (uint32_t i = 0; i < kv->n_held[s]; i++) {
            if (kv->refs[engine__kv_table(kv, s)[i]] == 0) {
                return false;
            }
        }
    }
    for (uint32_t i = 0; i < n_free(kv); i++) {
        if (kv->refs[kv->free_pages[i]] != 0) {
            return false;
        }
    }
    return refs == held && unused == n_free(kv);
}

void *engine__kv_k(const struct engine__kv *kv, uint32_t layer) {
    return kv->pool + (size_t)layer * kv->n_pages * (kv->k_page_bytes + kv->v_page_bytes);
}

void *engine__kv_v(const struct engine__kv *kv, uint32_t layer) {
    return (unsigned char *)engine__kv_k(kv, layer) + (size_t)kv->n_pages * kv->k_page_bytes;
}
