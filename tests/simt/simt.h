/* SPDX-License-Identifier: Apache-2.0
 *
 * The emulated device: CUDA kernels run on the CPU, one fiber per CUDA thread, so that the very same .cu files can be
 * proven where there is no GPU. This header is what the stand-in toolkit (include/) and tests see of it.
 *
 * What it finds: a barrier that not all threads reach and any other deadlock (with file and line of every waiting
 * group), lanes that meet in different warp operations, reads of shared or device memory nobody wrote (poison), accesses
 * beyond an allocation (guard pages), misaligned vectors, copies read before they were waited for, an order of threads,
 * blocks or streams that changes a result (seeds), and under ThreadSanitizer a missing barrier as a data race.
 * What it cannot find: speed, registers, spills (ptxas tells), and what the memory model of the hardware allows beyond
 * the order of fibers, unless ThreadSanitizer sees it.
 *
 * A finding prints one report to stderr and aborts: it is a bug of the program under test. One host thread at a time is
 * inside the emulator (the runtime holds a lock). */
#ifndef MOED_TESTS_SIMT_SIMT_H
#define MOED_TESTS_SIMT_SIMT_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "simt_types.h"

/* Default arguments that name the caller's line. */
#define SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace simt {

struct site {
    const char *file;
    int line;
};

enum wait { RUNNABLE, SPINNING, AT_BARRIER, AT_WARP_OP, FINISHED };

struct async_copy {
    void *dst;
    const void *src;
    size_t size, n_read; /* the rest is zero filled */
    unsigned group;
};
enum { MAX_COPIES = 64 }; /* of a thread, in flight */

struct block;

struct fiber {
    void *sp;
    uint3 tid;
    unsigned index, lane, warp;
    block *blk;
    wait state;
    site at;
    async_copy copies[MAX_COPIES]; /* issued and not waited for, oldest first */
    unsigned n_copies, group;      /* the group that the next copy belongs to */
    void *sanitizer;                             /* ThreadSanitizer's or AddressSanitizer's idea of the fiber */
};

enum { WARP = 32, MAX_WORDS = 8 };

struct warp {
    unsigned n;            /* lanes it has                     */
    uint32_t live;         /* that have not returned           */
    uint32_t mask, arrived;
    site at;
    uint64_t epoch;
    uint64_t slot[2][WARP][MAX_WORDS]; /* by parity of the epoch: a lane reads while others already deposit the next */
};

struct block {
    uint3 bid;
    dim3 bdim, gdim;
    unsigned n, live, arrived;
    site at;               /* of the barrier that some wait at */
    uint64_t epoch;
    std::vector<fiber> fibers;
    std::vector<warp> warps;
    unsigned char *smem;   /* its end is followed by a guard page */
    size_t smem_bytes;
    uint64_t nth, turn[2]; /* blocks of this slot come one after the other, and ThreadSanitizer is told so: addresses, by parity */
};

extern fiber *self;        /* the running thread */

struct options {
    uint32_t seed;         /* 0: threads and blocks in order; else a random order of both, of waking and of streams */
    unsigned resident;     /* blocks that run at the same time; a cooperative launch has all of them */
};
extern options opt;

struct counters {
    uint64_t launches, blocks, switches, barriers;
};
extern counters count;

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t random_below(uint32_t n); /* of the seed's sequence */

/* One grid, to its end. smem_bytes is dynamic shared memory per block. */
void run_grid(dim3 grid, dim3 bdim, size_t smem_bytes, bool cooperative, const std::function<void()> &body);

/* ---- what a kernel's collectives are made of ---- */

void block_barrier(site at);
/* Every lane of mask deposits n words; the last to come runs `last` on all of them (may be NULL); each gets the slots. */
typedef void (*warp_fn)(uint64_t (*slot)[MAX_WORDS], uint32_t lanes);
uint64_t (*warp_exchange(const uint64_t *mine, unsigned n, uint32_t mask, site at, warp_fn last))[MAX_WORDS];
void yield_spinning(site at);
void cp_async(void *dst, const void *src, size_t size, size_t n_read, site at);
void cp_async_commit();
void cp_async_wait(unsigned n_left);

static inline void check_aligned(const void *p, size_t to, site at) {
    if ((uintptr_t)p % to) fail("misaligned access of %zu bytes at %p, %s:%d", to, p, at.file, at.line);
}

} // namespace simt

#endif
