/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous reads of spans of files into memory: the store's only way to the disk. Real ones (disk_uring.c, disk_threads.c)
 * bypass the page cache; tests put a fake with its own clock, stalls and faults in their place.
 *
 * Threads: submit and cancel from one thread (the store's); complete from the same or another one thread. */
#ifndef MOED_OFFLOAD_DISK_H
#define MOED_OFFLOAD_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DISK_ALIGN = 4096 };   /* offsets, sizes and addresses of reads are multiples of it */

struct disk_read {
    uint32_t file;            /* index as in gguf_file_path                                              */
    uint64_t offset;          /* multiple of DISK_ALIGN                                                   */
    size_t n_bytes;           /* multiple of DISK_ALIGN; the tail may lie beyond the end of the file      */
    void *to;                 /* aligned to DISK_ALIGN; the reader's until it completes                   */
    size_t need;              /* bytes that must arrive; fewer is a short read                            */
    uint32_t tag;             /* comes back in the completion                                             */
    bool demand;              /* before any read that is not                                              */
};

struct disk_done { uint32_t tag; int status; }; /* 0, ST_IO, or ST_CANCELLED */

struct offload_disk {
    int (*submit)(void *self, const struct disk_read *r);       /* 0, or ST_QUEUE_FULL: its depth is in flight */
    void (*cancel)(void *self, uint32_t tag);                   /* best effort; the read still completes once     */
    /* Up to cap completions; waits at most timeout_ns for the first. */
    uint32_t (*complete)(void *self, struct disk_done *done, uint32_t cap, uint64_t timeout_ns);
    void (*wake)(void *self);                                   /* any thread: a complete that waits, or the next, returns at once */
    uint64_t (*now_ns)(void *self);                             /* the clock that costs and stalls are measured by */
    void *self;
};

/* The disk of real files. */
struct disk_opts {
    const char *const *paths; /* [n_files], borrowed for the call */
    uint32_t n_files;
    uint32_t depth;           /* reads in flight, 1 .. DISK_MAX_DEPTH */
};
enum { DISK_MAX_DEPTH = 64 };
int disk_threads_open(struct offload_disk *out, const struct disk_opts *o, struct err *e); /* returns owned, free with disk_threads_close */
void disk_threads_close(struct offload_disk *d);                                            /* waits for reads in flight                  */
int disk_uring_open(struct offload_disk *out, const struct disk_opts *o, struct err *e);    /* ST_UNSUPPORTED: the kernel refuses io_uring */
void disk_uring_close(struct offload_disk *d);

#endif
