/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the file's rows and the packed layout of pack.h. One row's block at a time: its units are copied to or from
 * every 16th place of the group. Packing is memory-bound work of the load, so words are moved as words. */
#include "kernels/pack.h"

#include <string.h>

#include "kernels/internal.h"

/* Where the units of a block lie. */
struct units {
    size_t odd_at, odd_bytes; /* the one unit that is no word, or 0 bytes */
    size_t words_at, words_end;
};

static struct units units_of(enum dtype dtype) {
    size_t n = dtype_info((uint32_t)dtype)->block_bytes, odd = n % 4;
    if (dtype == DTYPE_Q6_K)
        return (struct units){ n - odd, odd, 0, n - odd };
    return (struct units){ 0, odd, odd, n };
}

static void put_block(const struct units *u, const uint8_t *block, unsigned r, uint8_t *group) {
    memcpy(group + KERN_PACK_ROWS * u->odd_at + r * u->odd_bytes, block + u->odd_at, u->odd_bytes);
    for (size_t at = u->words_at; at < u->words_end; at += 4)
        memcpy(group + KERN_PACK_ROWS * at + 4 * r, block + at, 4);
}

static void take_block(const struct units *u, const uint8_t *group, unsigned r, uint8_t *block) {
    memcpy(block + u->odd_at, group + KERN_PACK_ROWS * u->odd_at + r * u->odd_bytes, u->odd_bytes);
    for (size_t at = u->words_at; at < u->words_end; at += 4)
        memcpy(block + at, group + KERN_PACK_ROWS * at + 4 * r, 4);
}

bool kern_pack_fits(enum dtype dtype, uint64_t n_rows) {
    return kern_gemm_wants_q8(dtype) && n_rows % KERN_PACK_ROWS == 0;
}

void kern_pack_rows(enum dtype dtype, const void *rows, size_t n_in, void *packed) {
    const struct dtype_info *t = dtype_info((uint32_t)dtype);
    const struct units u = units_of(dtype);
    const size_t n_blocks = n_in / t->block_elems, bytes = t->block_bytes;
    for (size_t b = 0; b < n_blocks; b++)
        for (unsigned r = 0; r < KERN_PACK_ROWS; r++)
            put_block(&u, (const uint8_t *)rows + (r * n_blocks + b) * bytes, r, (uint8_t *)packed + b * KERN_PACK_ROWS * bytes);
}

void kern_unpack_rows(enum dtype dtype, const void *packed, size_t n_in, void *rows) {
    const struct dtype_info *t = dtype_info((uint32_t)dtype);
    const struct units u = units_of(dtype);
    const size_t n_blocks = n_in / t->block_elems, bytes = t->block_bytes;
    for (size_t b = 0; b < n_blocks; b++)
        for (unsigned r = 0; r < KERN_PACK_ROWS; r++)
            take_block(&u, (const uint8_t *)packed + b * KERN_PACK_ROWS * bytes, r, (uint8_t *)rows + (r * n_blocks + b) * bytes);
}

void kern__packed_block(enum dtype dtype, const void *w, uint32_t row, size_t n_in, size_t block, void *out) {
    const struct dtype_info *t = dtype_info((uint32_t)dtype);
    const struct units u = units_of(dtype);
    const size_t n_blocks = n_in / t->block_elems, group = row / KERN_PACK_ROWS * n_blocks + block;
    take_block(&u, (const uint8_t *)w + group * KERN_PACK_ROWS * t->block_bytes, row % KERN_PACK_ROWS, out);
}

void kern_dequant_packed_row(enum dtype dtype, const void *w, uint32_t row, size_t n_in, float *out) {
    const size_t elems = dtype_info((uint32_t)dtype)->block_elems;
    _Alignas(4) uint8_t block[KERN__BLOCK_MOST];
    for (size_t b = 0; b < n_in / elems; b++) {
        kern__packed_block(dtype, w, row, n_in, b, block);
        kern_dequant_row(dtype, block, elems, out + b * elems);
    }
}
