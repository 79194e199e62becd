/* SPDX-License-Identifier: Apache-2.0
 *
 * The expert store: which experts are in memory, and how a missing one gets there. A slot arena of fixed size (the
 * budget is a ceiling) holds experts in the kernels' layout; readers fill slots from the file past the page cache; the
 * engine takes what is ready and computes it while the rest arrives.
 *
 * Entered by the engine's thread only, except where a function says "any thread". Reader threads stay behind this header.
 * Where an expert lies never changes what it computes: the store hands out the same bytes from any slot, checked.
 *
 * One (layer, step):
 *     offload_begin(o, layer, wants, n, ...);
 *     while ((n = offload_next(o, items, cap)) > 0) {   // blocks until at least one is ready; hits come first
 *         compute items[0 .. n)
 *         offload_release(o);                           // their slots may be evicted from now on
 *     }
 * With fewer free slots than wants it still ends: what is released makes room for what is missing. For that reason
 * offload_next first releases what it handed out before; a caller that computes everything at once passes cap >= n and
 * may see several rounds all the same. Open the store before the calling thread is pinned: its reader inherits the pin. */
#ifndef MOED_OFFLOAD_OFFLOAD_H
#define MOED_OFFLOAD_OFFLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "offload/policy.h"

struct model;
struct offload;      /* opaque */
struct offload_disk; /* offload/disk.h: where bytes come from; tests put a fake there */

enum offload_io { OFFLOAD_IO_AUTO, OFFLOAD_IO_URING, OFFLOAD_IO_THREADS };

struct offload_opts {
    const struct model *model;         /* borrowed until offload_close                                              */
    uint64_t ram_bytes;                /* slots and staging together; at least offload_min_bytes                      */
    bool packed;                       /* experts of a GGUF are brought into the layout of kernels/pack.h on arrival; a
                                          packed model always has it                                              */
    enum offload_policy policy;
    enum offload_io io;
    uint32_t queue_depth;              /* reads in flight; 0 = from a probe of the disk at open                      */
    bool prefetch;
    bool fill;                         /* slots that nothing needs yet are filled in the background, hottest first         */
    const char *heat_path;             /* NULL, or where learned heat is read at open and saved at close             */
    uint32_t heat_every_ms;            /* and so often in between, when there was a step; 0 = at close only          */
    struct offload_disk *disk;         /* NULL = the model's files; borrowed                                        */
};

struct offload_want { uint32_t expert, n_rows; };

struct offload_item {
    uint32_t expert;
    int status;                        /* 0, or ST_IO: could not be read or its checksum is wrong; pointers are NULL */
    const void *gate, *up, *down;      /* views into a slot, until offload_release or the next offload_next           */
};

struct offload_stats {                 /* since open; monotonic unless said */
    uint64_t hits, misses;             /* wanted experts found ready, or not                                        */
    uint64_t loads, load_bytes;        /* demand reads that arrived                                                 */
    uint64_t evictions;
    uint64_t prefetch_useful, prefetch_wasted, prefetch_useful_bytes, prefetch_wasted_bytes;
    uint64_t retries, failures;
    uint64_t stall_ns;                 /* engine waited in offload_next with nothing to compute                     */
    uint64_t slots, resident;          /* gauges */
    uint64_t budget_bytes, slot_bytes; /* gauges: the budget now, and what slots take of it                        */
    double read_bytes_per_s;           /* gauge: measured while reading, smoothed; before the first read the probe's */
    double probe_bytes_per_s;          /* what the disk gave at open; 0 when it was not probed                      */
    double plan_error;                 /* gauge: how far predictions of steps with misses are off, 0.1 = 10 %       */
    uint64_t plan_falls;               /* times that was too far to read in the planned order                      */
    uint32_t queue_depth;              /* reads in flight at most                                                   */
    bool uring;                        /* reads go through io_uring                                                 */
};

/* The least budget that works for a model: what one token needs of one layer. Pure; packed as in offload_opts. */
uint64_t offload_min_bytes(const struct model *m, bool packed);
/* The budget that makes every expert resident. Pure. */
uint64_t offload_all_bytes(const struct model *m, bool packed);

/* Experts that a budget holds; 0 below the minimum. Pure. */
uint32_t offload_slots(const struct model *m, bool packed, uint64_t ram_bytes);

int offload_open(struct offload **out, const struct offload_opts *o, struct err *e); /* returns owned, free with offload_close */
void offload_close(struct offload *o);  /* NULL is fine */

/* wants [n]: distinct experts of one layer. stream: a prefill touches most experts once; what it brings in must not push
 * out the working set of decode. Returns 0 or ST_INVALID. */
/* A step that was left early is ended by the next begin. */
int offload_begin(struct offload *o, uint32_t layer, const struct offload_want *wants, uint32_t n, bool stream);
uint32_t offload_next(struct offload *o, struct offload_item *items, uint32_t cap); /* 0: all wants were handed out */
void offload_release(struct offload *o);

/* A guess, best first; never delays a wanted expert, never pins, may be ignored. */
void offload_prefetch(struct offload *o, uint32_t layer, const uint32_t *experts, uint32_t n);

/* What of one layer is in memory or on the way: here [n_experts], 1 or 0. */
void offload_here(struct offload *o, uint32_t layer, uint8_t *here);

/* Any thread: the budget from the next offload_begin on. ST_INVALID when below the minimum. */
int offload_resize(struct offload *o, uint64_t ram_bytes, struct err *e);
void offload_stats(const struct offload *o, struct offload_stats *out); /* any thread */
/* Any thread: which experts are resident, one bit per key (layer * n_experts + expert), n_keys bits rounded up to bytes. */
void offload_resident(const struct offload *o, uint8_t *bits);

#endif
