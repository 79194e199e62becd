/* SPDX-License-Identifier: Apache-2.0
 *
 * The file `moed pack` writes (docs/PACK.md): a GGUF whose stacked expert tensors are replaced by one record per routed
 * layer and expert behind the tensors' data, described by the keys below. What writer and reader must agree on is here,
 * and nothing else is. Pure functions; any thread. */
#ifndef MOED_MODEL_EXPERT_PACK_H
#define MOED_MODEL_EXPERT_PACK_H

#include "model/expert_bank.h"

enum {
    EXPERT_PACK_VERSION = 1,        /* of the keys, of the records and of kernels/pack.h */
    EXPERT_PACK_ALIGN = 4096,       /* of records                                        */
    EXPERT_PACK_PART_ALIGN = 64,    /* of gate, up and down within a record              */
};

/* Arrays of a layer's things are in the order of `layers`; records follow each other, layer by layer, expert by expert. */
#define EXPERT_PACK_KEY(name) "moed.pack." name
#define EXPERT_PACK_KEY_VERSION EXPERT_PACK_KEY("version")                  /* u32                                          */
#define EXPERT_PACK_KEY_ALIGN EXPERT_PACK_KEY("alignment")                  /* u32, EXPERT_PACK_ALIGN                       */
#define EXPERT_PACK_KEY_SHAPE EXPERT_PACK_KEY("shape")                      /* u32[3]: hidden size, expert ffn, experts     */
#define EXPERT_PACK_KEY_LAYERS EXPERT_PACK_KEY("layers")                    /* u32[L]: the routed layers, ascending         */
#define EXPERT_PACK_KEY_TYPES EXPERT_PACK_KEY("types")                      /* u32[3 L]: types of gate, up, down            */
#define EXPERT_PACK_KEY_RECORD_BYTES EXPERT_PACK_KEY("record_bytes")        /* u64[L]                                       */
#define EXPERT_PACK_KEY_RECORDS_AT EXPERT_PACK_KEY("records_at")            /* u64: offset of the first record              */
#define EXPERT_PACK_KEY_CHECKSUMS EXPERT_PACK_KEY("checksums")              /* i64[L experts]: XXH3-64 of each record       */
#define EXPERT_PACK_KEY_DENSE_CHECKSUM EXPERT_PACK_KEY("dense_checksum")    /* i64: XXH3-64 of [data section, records_at)   */
#define EXPERT_PACK_KEY_SOURCE_NAME EXPERT_PACK_KEY("source.name")          /* string: base name of the (first) file        */
#define EXPERT_PACK_KEY_SOURCE_BYTES EXPERT_PACK_KEY("source.bytes")        /* u64: of all its files                        */
#define EXPERT_PACK_KEY_SOURCE_HASH EXPERT_PACK_KEY("source.hash")          /* i64: XXH3-64 of its files' heads             */
#define EXPERT_PACK_KEY_INDEX_CHECKSUM EXPERT_PACK_KEY("index_checksum")    /* i64: XXH3-64 of the head, this taken as 0    */

/* The record of three matrices of these sizes: fills n_bytes and *_at, leaves the rest. */
void expert_pack_layout(size_t gate_bytes, size_t up_bytes, size_t down_bytes, struct expert_record *out);

/* XXH3-64 of head [n_bytes] with the 8 bytes at checksum_at taken as zeros. */
uint64_t expert_pack_index_checksum(const void *head, size_t n_bytes, size_t checksum_at);

struct expert_pack_info {
    uint64_t n_records, records_at, records_bytes;  /* records_bytes: of all, padding included */
    uint64_t dense_at, dense_bytes, dense_checksum;
    const char *source_name;                        /* printable view */
    uint64_t source_bytes;
};
void expert_pack_info(const struct model *m, struct expert_pack_info *out); /* packed models only */

#endif
