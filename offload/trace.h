/* SPDX-License-Identifier: Apache-2.0
 *
 * A routing trace: which experts every step chose, layer by layer, as a compact file that is replayed later
 * (offload/simulate.h). The writer belongs to the engine's thread and never makes it wait: it fills chunks of memory
 * which a thread of its own writes out; when no chunk is free, whole steps are dropped and counted. The reader trusts
 * nothing in the file.
 *
 * File: little endian; "LEB" is an unsigned LEB128 number below 2^32.
 *     header   "MOEDTRC1", u32 n_layers, n_experts, k, u64 expert_bytes, dense_bytes, u32 n, n bytes of the model's name,
 *              (n_layers + 7) / 8 bytes: bit i set when layer i is routed
 *     records  u8 kind, then
 *        1 step     u8 prefill, LEB n_tokens; the layers of the step follow in ascending order
 *        2 ordered  LEB layer, LEB n_rows, ids [n_rows, k] as the router ordered them: u8 up to 256 experts, else u16
 *        3 grouped  LEB layer, LEB n_rows, LEB n_distinct, then per expert, ascending: LEB distance to the one before
 *                   (the first: to -1), LEB rows
 *        4 end      LEB steps written, LEB steps dropped; the last one, missing where the recording was killed
 * Decode steps of up to TRACE_ORDERED_ROWS rows are ordered, everything else is grouped. */
#ifndef MOED_OFFLOAD_TRACE_H
#define MOED_OFFLOAD_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { TRACE_MAX_LAYERS = 1024, TRACE_MAX_EXPERTS = 4096, TRACE_MAX_ROWS = 1 << 16, TRACE_ORDERED_ROWS = 64, TRACE_MAX_NAME = 255 };

struct trace_info {
    uint32_t n_layers, n_experts, k;
    uint64_t expert_bytes;          /* of one expert (gate, up, down), mean over the routed layers     */
    uint64_t dense_bytes;           /* weights that every step reads whatever the routing says         */
    char model[TRACE_MAX_NAME + 1];
    uint8_t routed[TRACE_MAX_LAYERS / 8]; /* bit i: layer i has a router */
};
static inline bool trace_is_routed(const struct trace_info *t, uint32_t layer) {
    return t->routed[layer / 8] >> (layer % 8) & 1;
}

struct model;
void trace_info_of(const struct model *m, struct trace_info *out);

/* ---- writer: the engine's thread ---- */

struct trace_writer; /* opaque */

struct trace_routing {              /* of one layer in one step                                              */
    uint32_t layer;
    uint32_t n_tokens;              /* of the step                                                           */
    bool prefill;                   /* some sequence has more than one of them                               */
    uint32_t n_rows;                /* routed here; the last layer may route fewer than n_tokens             */
    const int32_t *ids;             /* [n_rows, k] borrowed                                                  */
    const int32_t *first;           /* [n_experts + 1] borrowed: expert e has first[e + 1] - first[e] rows; may be
                                       NULL for a decode step of up to TRACE_ORDERED_ROWS rows               */
};

/* Creates or empties the file and starts the writing thread. *out returned owned, free with trace_writer_close. */
int trace_writer_open(struct trace_writer **out, const char *path, const struct trace_info *info, struct err *e);
void trace_write(struct trace_writer *w, const struct trace_routing *r); /* a layer not above the last one begins a step */
/* Ends the file and joins the thread. NULL is fine. ST_IO when anything could not be written; *n_dropped (or NULL) is filled
 * in any case. */
int trace_writer_close(struct trace_writer *w, uint64_t *n_dropped, struct err *e);

/* ---- reader ---- */

struct trace; /* opaque */

struct trace_layer {                /* arrays are views, until the next call                                 */
    bool first;                     /* begins a step                                                         */
    bool prefill;
    uint32_t n_tokens;              /* of the step                                                           */
    uint32_t layer;
    uint32_t n_rows;
    uint32_t n_distinct;
    const uint32_t *experts;        /* [n_distinct] ascending                                                */
    const uint32_t *rows;           /* [n_distinct] rows of each                                             */
    const uint32_t *ids;            /* NULL, or [n_rows, k]                                                  */
};

struct trace_end { bool present; uint32_t n_steps, n_dropped; };

int trace_open(struct trace **out, const char *path, struct err *e); /* reads it all; owned, free with trace_close */
int trace_open_memory(struct trace **out, const void *bytes, size_t n_bytes, struct err *e); /* bytes borrowed until trace_close */
void trace_close(struct trace *t);
const struct trace_info *trace_info(const struct trace *t);
int trace_next(struct trace *t, struct trace_layer *out, struct err *e); /* 1: *out is filled; 0: the end; or a status */
void trace_rewind(struct trace *t);
const struct trace_end *trace_end(const struct trace *t);            /* filled once trace_next has returned 0 */

#endif
