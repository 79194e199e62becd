/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON while it arrives: byte after byte, without going back, it is known that what came so far begins an object or an
 * array, and where that ends. What is refused is what the scan of base/json.h refuses, but for lone surrogates, \u0000, numbers
 * that are too long and invalid UTF-8, which this does not look for. Pure state, any thread. */
#ifndef MOED_BASE_JSON_WALK_H
#define MOED_BASE_JSON_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_walk {
    uint64_t objects;      /* bit d: what level d is; as depth and below: json_walk.c's own */
    uint32_t depth, max_depth;
    uint8_t state, n_left;
    bool key;              /* the string is a key */
    const char *word;      /* the rest of true, false, null */
    bool done, bad;        /* it has ended; the next byte cannot follow */
};

void json_walk_init(struct json_walk *w, uint32_t max_depth); /* up to 64 */
size_t json_walk(struct json_walk *w, const char *s, size_t n); /* bytes taken: fewer than n only when done or bad */

#endif
