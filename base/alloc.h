/* SPDX-License-Identifier: Apache-2.0
 *
 * The process allocator: malloc with counters and a fail-after-N hook for tests. Thread-safe.
 * Nothing below main.c aborts on a NULL: every caller returns ST_NOMEM. */
#ifndef MOED_BASE_ALLOC_H
#define MOED_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t n_bytes);                   /* returns owned, free with mem_free; NULL when out of memory */
void *mem_zalloc(size_t n, size_t size);           /* zeroed; NULL also when n * size overflows                  */
void *mem_realloc(void *p, size_t n_bytes);        /* takes p on success only                                    */
char *mem_strndup(const char *s, size_t n_bytes);  /* NUL-terminated copy                                        */
void mem_free(void *p);                            /* takes p; NULL is fine                                      */

/* Page-granular anonymous memory for big planned blocks (KV, scratch, weights); zeroed; hugepage-advised
 * when at least 2 MiB. Free with mem_unmap and the same size. NULL when the kernel refuses. */
void *mem_map(size_t n_bytes);
void mem_unmap(void *p, size_t n_bytes);

/* Address space that holds no memory until committed, for arenas whose size changes while they run. Commit makes
 * [0, n_bytes) usable, more than before zeroed, and gives what lies behind back to the kernel: all or nothing, ST_NOMEM
 * when it refuses. n_bytes must be whole pages. Only committed bytes count as mapped. */
void *mem_reserve(size_t n_bytes);                                          /* NULL when the kernel refuses */
int mem_commit(void *p, size_t committed_bytes, size_t n_bytes);            /* committed_bytes: what it is  */
void mem_unreserve(void *p, size_t committed_bytes, size_t n_bytes);

struct mem_stats {
    uint64_t n_calls;    /* alloc + zalloc + realloc + strndup calls that succeeded since start */
    uint64_t n_live;     /* blocks not yet freed                                                */
    uint64_t mapped_bytes; /* bytes now mapped through mem_map or committed                     */
};
void mem_stats(struct mem_stats *out);

/* Tests only: let `n` more allocations succeed, then fail every one until reset with n = UINT64_MAX. */
void mem_fail_after(uint64_t n);

#endif
