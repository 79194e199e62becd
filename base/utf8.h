/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8 as the Unicode standard defines it (no overlong forms, no surrogates, at most U+10FFFF), one byte at a
 * time. Both the JSON pre-scan (refuse) and the detokenizer (replace) stand on the same two questions, so a text
 * one of them passes is a text the other passes. Pure, any thread. */
#ifndef MOED_BASE_UTF8_H
#define MOED_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the sequence that starts with `lead`: 1..4, or 0 when no sequence starts so. */
static inline unsigned utf8_need(uint8_t lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0; /* continuation bytes, and the overlong C0 C1 */
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) return 3;
    return lead < 0xF5 ? 4 : 0;
}

/* May `next` follow seq[0..n), a well-formed but incomplete start? Only the second byte depends on the lead. */
static inline bool utf8_continues(const uint8_t *seq, unsigned n, uint8_t next) {
    uint8_t lo = 0x80, hi = 0xBF;

    if (n == 1) {
        switch (seq[0]) {
        case 0xE0: lo = 0xA0; break; /* overlong  */
        case 0xED: hi = 0x9F; break; /* surrogate */
        case 0xF0: lo = 0x90; break; /* overlong  */
        case 0xF4: hi = 0x8F; break; /* > 10FFFF  */
        default: break;
        }
    }
    return next >= lo && next <= hi;
}

/* Bytes of the character at p (n >= 1), or 0 when it is malformed or cut; *bad is then the length of the part to
 * replace by one U+FFFD, as Python's errors="replace" and the WHATWG decoder do ("maximal subpart"). */
static inline unsigned utf8_next(const uint8_t *p, size_t n, unsigned *bad) {
    unsigned need = utf8_need(p[0]), i = 1;

    if (need == 0) {
        *bad = 1;
        return 0;
    }
    while (i < need && i < n && utf8_continues(p, i, p[i])) i++;
    *bad = i;
    return i == need ? need : 0;
}

static inline bool utf8_valid(const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s;
    unsigned len, bad;

    for (size_t i = 0; i < n; i += len) {
        len = utf8_next(p + i, n - i, &bad);
        if (len == 0) return false;
    }
    return true;
}

/* Characters of valid UTF-8: every byte that is not a continuation starts one. */
static inline size_t utf8_count(const char *s, size_t n) {
    size_t chars = 0;

    for (size_t i = 0; i < n; i++) chars += ((uint8_t)s[i] & 0xC0) != 0x80;
    return chars;
}

#endif
