/* SPDX-License-Identifier: Apache-2.0
 *
 * The packed layout: a quantised matrix as the vector kernels read it, 16 rows side by side in one sequential stream.
 * It is a permutation of the file's bytes within each run of 16 rows: same size, same position of row 16 n, so strides,
 * slices and experts are addressed as in the file.
 *
 * A block of the format (32 or 256 weights) is cut into units: 4-byte words, and what a multiple of 4 leaves (f16 scale
 * of Q4_0, Q5_0, Q8_0, IQ4_NL; e8m0 of MXFP4: at the start; f16 scale of Q6_K: at the end). Block b of 16 rows becomes a
 * group of 16 blocks' bytes, groups in order of b. Within it, the unit at offset o of size s of row r lies at
 * 16 * o + r * s: a vector of 16 words holds the same four code bytes of 16 rows, the scales of 16 rows lie together.
 * All functions are pure; any thread. */
#ifndef MOED_KERNELS_PACK_H
#define MOED_KERNELS_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/quant_fmt.h"

enum { KERN_PACK_ROWS = 16 };

/* The format is a quantised one and the rows come out even. */
bool kern_pack_fits(enum dtype dtype, uint64_t n_rows);

/* 16 consecutive rows of n_in weights, a multiple of the format's block, to the packed form and back; the memory must
 * not overlap. */
void kern_pack_rows(enum dtype dtype, const void *rows, size_t n_in, void *packed);
void kern_unpack_rows(enum dtype dtype, const void *packed, size_t n_in, void *rows);

/* Row `row` of a packed matrix to float, the bits of kern_dequant_row. */
void kern_dequant_packed_row(enum dtype dtype, const void *w, uint32_t row, size_t n_in, float *out);

#endif
