/* SPDX-License-Identifier: Apache-2.0
 *
 * One tensor of a file: name, type, shape and the bytes. Views into the mapped file; immutable. */
#ifndef MOED_MODEL_TENSOR_H
#define MOED_MODEL_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "model/quant_fmt.h"

struct tensor {
    const char *name;      /* view into the open file's own table, NUL-terminated          */
    enum dtype dtype;
    uint32_t n_dims;       /* 1..4                                                          */
    uint64_t ne[4];        /* ne[0] is the contiguous dimension (row length); unused dims 1 */
    const void *data;      /* view into the mapping, valid until the file is closed; 8-byte aligned */
    size_t n_bytes;
    uint32_t file;         /* index of the split file                                       */
    uint64_t file_offset;  /* absolute offset in that file, for readers that bypass the mapping */
};

static inline uint64_t tensor_n_rows(const struct tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

#endif
