/* SPDX-License-Identifier: Apache-2.0
 *
 * malloc with relaxed atomic counters: one add per call, so the counters cost nothing measurable, and the
 * tests can prove "no allocation per step" and "nothing leaked" without an external tool. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"

/* Process-wide by nature: the allocator itself is. Written with relaxed atomics by every thread. */
static struct {
    atomic_uint_fast64_t n_calls, n_live, mapped_bytes;
    atomic_uint_fast64_t fail_after; /* allocations that may still succeed; UINT64_MAX = no fault injection */
} alloc_state = { .fail_after = UINT64_MAX };

static bool alloc_may(void) {
    uint_fast64_t left = atomic_load_explicit(&alloc_state.fail_after, memory_order_relaxed);
    if (left == UINT64_MAX) return true;
    do {
        if (left == 0) return false;
    } while (!atomic_compare_exchange_weak_explicit(&alloc_state.fail_after, &left, left - 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void *alloc_count(void *p, bool is_new) {
    if (!p) return NULL;
    atomic_fetch_add_explicit(&alloc_state.n_calls, 1, memory_order_relaxed);
    if (is_new) atomic_fetch_add_explicit(&alloc_state.n_live, 1, memory_order_relaxed);
    return p;
}

void *mem_alloc(size_t n_bytes) {
    if (!alloc_may()) return NULL;
    return alloc_count(malloc(n_bytes ? n_bytes : 1), true);
}

void *mem_zalloc(size_t n, size_t size) {
    if ((size && n > SIZE_MAX / size) || !alloc_may()) return NULL;
    return alloc_count(calloc(n ? n : 1, size ? size : 1), true);
}

void *mem_realloc(void *p, size_t n_bytes) {
    if (!alloc_may()) return NULL;
    return alloc_count(realloc(p, n_bytes ? n_bytes : 1), p == NULL);
}

char *mem_strndup(const char *s, size_t n_bytes) {
    char *copy = mem_alloc(n_bytes + 1);
    if (!copy) return NULL;
    memcpy(copy, s, n_bytes);
    copy[n_bytes] = '\0';
    return copy;
}

void mem_free(void *p) {
    if (!p) return;
    atomic_fetch_sub_explicit(&alloc_state.n_live, 1, memory_order_relaxed);
    free(p);
}

void *mem_map(size_t n_bytes) {
    if (n_bytes == 0 || !alloc_may()) return NULL;
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (n_bytes >= (2u << 20)) madvise(p, n_bytes, MADV_HUGEPAGE); /* advice only: a refusal costs speed, not correctness */
    atomic_fetch_add_explicit(&alloc_state.mapped_bytes, n_bytes, memory_order_relaxed);
    return p;
}

void mem_unmap(void *p, size_t n_bytes) {
    if (!p) return;
    munmap(p, n_bytes);
    atomic_fetch_sub_explicit(&alloc_state.mapped_bytes, n_bytes, memory_order_relaxed);
}

void *mem_reserve(size_t n_bytes) {
    if (n_bytes == 0 || !alloc_may()) return NULL;
    void *p = mmap(NULL, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int mem_commit(void *p, size_t committed_bytes, size_t n_bytes) {
    char *from = p;
    if (n_bytes > committed_bytes) {
        if (!alloc_may() || mprotect(from + committed_bytes, n_bytes - committed_bytes, PROT_READ | PROT_WRITE)) return ST_NOMEM;
        if (n_bytes >= (2u << 20)) madvise(p, n_bytes, MADV_HUGEPAGE);
    } else if (n_bytes < committed_bytes) { /* a fresh mapping over it: unlike advice, it certainly frees */
        void *got = mmap(from + n_bytes, committed_bytes - n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                         -1, 0);
        if (got == MAP_FAILED) return ST_NOMEM;
    }
    atomic_fetch_add_explicit(&alloc_state.mapped_bytes, n_bytes - committed_bytes, memory_order_relaxed);
    return ST_OK;
}

void mem_unreserve(void *p, size_t committed_bytes, size_t n_bytes) {
    if (!p) return;
    munmap(p, n_bytes);
    atomic_fetch_sub_explicit(&alloc_state.mapped_bytes, committed_bytes, memory_order_relaxed);
}

void mem_stats(struct mem_stats *out) {
    out->n_calls = atomic_load_explicit(&alloc_state.n_calls, memory_order_relaxed);
    out->n_live = atomic_load_explicit(&alloc_state.n_live, memory_order_relaxed);
    out->mapped_bytes = atomic_load_explicit(&alloc_state.mapped_bytes, memory_order_relaxed);
}

void mem_fail_after(uint64_t n) {
    atomic_store_explicit(&alloc_state.fail_after, n, memory_order_relaxed);
}
