/* SPDX-License-Identifier: Apache-2.0
 *
 * What the pack_*.c files share. A *unit* is what is written, checksummed and noted in the journal as a whole: units
 * 0 .. n_records - 1 are the records, the one after them is the dense part. */
#ifndef MOED_OFFLOAD_PACK_INTERNAL_H
#define MOED_OFFLOAD_PACK_INTERNAL_H

#include "base/buf.h"
#include "model/expert_pack.h"
#include "model/gguf.h"
#include "offload/pack.h"

enum {
    PACK__CHUNK = 1 << 20,           /* bytes of a read or write                                     */
    PACK__BATCH_BYTES = 32 << 20,    /* written between two entries into the journal, at least       */
    PACK__BATCH_UNITS = 4096,        /* and units, at most                                           */
};

/* ---- pack_plan.c: the output, before a byte of it is written ---- */

struct pack__layer { uint32_t layer; struct expert_record record; /* of expert 0 */ };

struct pack__plan {
    const struct model *model;
    const struct gguf *source;
    struct pack__layer *layers;      /* owned, n_layers routed ones                                  */
    uint32_t n_layers, n_experts;
    uint32_t n_records;
    bool *is_expert;                 /* owned, [tensors of the source]                               */
    uint64_t *tensor_at;             /* owned, [tensors of the source]: offset in the output         */
    struct buf head;                 /* everything before the data section; checksums are zeros      */
    size_t checksums_at, dense_checksum_at, index_checksum_at; /* in head                            */
    uint64_t records_at, total_bytes;
    uint64_t source_hash;            /* of the heads of the source's files                           */
    uint64_t hash;                   /* of head, checksums zero: what the output will be             */
    size_t group_bytes;              /* 16 rows of the widest matrix                                 */
};
int pack__plan_make(const struct model *m, struct pack__plan *p, struct err *e);
void pack__plan_clear(struct pack__plan *p);
void pack__plan_seal(struct pack__plan *p, const uint64_t *checksums); /* [n_records + 1] into head */
uint64_t pack__unit_bytes(const struct pack__plan *p, uint32_t unit);

/* ---- pack_stream.c: one unit from the source to the output. Several at once, each with its own memory ---- */

struct pack__stream {
    const struct pack__plan *plan;
    const int *source_fds;           /* [files of the source]                                        */
    const char *out;                 /* for errors                                                   */
    int fd, direct_fd;               /* direct_fd past the page cache, or -1                         */
    ssize_t (*write_at)(int fd, const void *p, size_t n_bytes, off_t at);
};
size_t pack__stream_memory(const struct pack__plan *p); /* bytes, a multiple of 4096 */
/* memory: that many, aligned to 4096. */
int pack__stream_unit(const struct pack__stream *s, uint32_t unit, unsigned char *memory, uint64_t *checksum, struct err *e);

/* pread of all n bytes; past the end of the file is an error. */
int pack__read(int fd, const char *path, void *to, size_t n_bytes, uint64_t at, struct err *e);

/* ---- pack_journal.c ---- */

struct pack__journal { int fd; uint64_t seed; };
int pack__journal_open(struct pack__journal *j, int dir, const char *name, uint64_t source, uint64_t plan, struct err *e);
/* What the journal says is done: done and checksums [n_units]. *fresh: nothing about this source and plan; reset it. */
int pack__journal_read(struct pack__journal *j, uint32_t n_units, bool *done, uint64_t *checksums, bool *fresh, struct err *e);
int pack__journal_reset(struct pack__journal *j, struct err *e);
int pack__journal_add(struct pack__journal *j, const uint32_t *units, uint32_t n, const uint64_t *checksums, struct err *e);
void pack__journal_close(struct pack__journal *j);

#endif
