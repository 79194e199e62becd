/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing and checking packed models (model/expert_pack.h, docs/PACK.md). Packing streams: memory does not grow with the
 * weights. It works in OUT.partial and notes finished records in OUT.partial.journal, so that a run that died is taken
 * up where it stopped, and renames at the end. One packer per OUT; entered by one thread, works on its pool. */
#ifndef MOED_OFFLOAD_PACK_H
#define MOED_OFFLOAD_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct model;
struct pool;

struct offload_pack_progress {
    uint64_t done_bytes, total_bytes;
    uint64_t resumed_bytes;            /* of done_bytes: by an earlier run */
    double seconds;                    /* of this run                      */
};
typedef void (*offload_pack_tell)(void *ctx, const struct offload_pack_progress *p); /* on the caller's thread */

struct offload_pack_opts {
    const struct model *model;         /* borrowed; not packed, with experts */
    const char *out;
    bool force;                        /* replace an existing OUT            */
    struct pool *pool;                 /* borrowed                           */
    offload_pack_tell tell;            /* NULL: not told                     */
    void *tell_ctx;
    ssize_t (*write_at)(int fd, const void *p, size_t n_bytes, off_t at); /* NULL = pwrite; tests put faults here */
};

/* ST_INVALID: nothing to pack, or OUT exists; ST_IO: the disk, and what was done stays for the next run. */
int offload_pack(const struct offload_pack_opts *o, struct err *e);

/* Reads all of a packed model and compares every checksum. ST_INVALID names the first that is wrong. */
int offload_pack_verify(const struct model *m, struct pool *pool, offload_pack_tell tell, void *tell_ctx, struct err *e);

#endif
