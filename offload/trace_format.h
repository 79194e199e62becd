/* SPDX-License-Identifier: Apache-2.0
 *
 * What the writer and the reader of traces share: the file's constants (see trace.h) and its numbers. */
#ifndef MOED_OFFLOAD_TRACE_FORMAT_H
#define MOED_OFFLOAD_TRACE_FORMAT_H

#include <stdint.h>

#define TRACE__MAGIC "MOEDTRC1"

enum { TRACE__MAGIC_BYTES = 8, TRACE__LEB_BYTES = 5, TRACE__BYTE_IDS = 256 /* ids of up to so many experts are one byte */ };
enum trace__record { TRACE__STEP = 1, TRACE__ORDERED, TRACE__GROUPED, TRACE__END };

static inline unsigned char *trace__put_u32(unsigned char *p, uint32_t v) {
    for (int i = 0; i < 4; i++) {
        *p++ = (unsigned char)(v >> 8 * i);
    }
    return p;
}

static inline unsigned char *trace__put_u64(unsigned char *p, uint64_t v) {
    return trace__put_u32(trace__put_u32(p, (uint32_t)v), (uint32_t)(v >> 32));
}

static inline unsigned char *trace__put_leb(unsigned char *p, uint32_t v) {
    for (; v >= 0x80; v >>= 7) {
        *p++ = (unsigned char)(v | 0x80);
    }
    *p++ = (unsigned char)v;
    return p;
}

#endif
