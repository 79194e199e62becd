/* SPDX-License-Identifier: Apache-2.0
 *
 * From the bytes of generated tokens to text that may be shown. Two things are held back: a UTF-8 sequence that is
 * not complete yet, and text that may turn out to be the start of a stop string. Invalid bytes become U+FFFD as
 * in Python's bytes.decode("utf-8", "replace"), so the text depends on the bytes alone, never on how they were cut
 * into tokens or chunks.
 *
 * A stop string ends the text at its start. When several match, the one completed first wins; among those completed
 * by the same byte, the longest. All stops are followed at once, one Knuth-Morris-Pratt state each: the largest
 * state is exactly what has to be held back. Plain state of one choice; one thread at a time. */
#ifndef MOED_SERVER_DETOK_H
#define MOED_SERVER_DETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"

enum { DETOK_MAX_STOPS = 16, DETOK_MAX_STOP_BYTES = 1024 };

struct detok_stop {
    const char *text;      /* [n_bytes], valid UTF-8, 1 <= n_bytes <= DETOK_MAX_STOP_BYTES         */
    uint16_t n_bytes;
    const uint16_t *fail;  /* [n_bytes + 1] longest proper border of the prefix; detok_stop_init   */
};

/* Borrows text for the life of `s`; the table lives in the arena. 0 or ST_NOMEM. */
int detok_stop_init(struct detok_stop *s, const char *text, size_t n_bytes, struct arena *a);

/* A place in the text: complete characters before it. */
struct detok_mark { uint32_t bytes, chars; };

struct detok {
    const struct detok_stop *stops;   /* [n_stops], borrowed                                       */
    uint32_t n_stops;
    uint16_t state[DETOK_MAX_STOPS];  /* matched prefix of each stop at the end of the text        */
    uint8_t tail[4], n_tail;          /* an incomplete sequence, not in `text` yet                 */
    bool stopped;                     /* a stop string matched: text is cut, pushes are ignored    */
    uint32_t matched;                 /* stopped: which of the stops                               */
    struct buf text;                  /* decoded and not taken; the last detok_held bytes may be a stop */
    struct detok_mark end;            /* end of the text, what was taken included                  */
};

void detok_init(struct detok *d, const struct detok_stop *stops, uint32_t n_stops, size_t max_bytes);
void detok_clear(struct detok *d);

/* Adds bytes; `match` off passes them without looking for stops (echoed prompt, min_tokens). *at, unless NULL: where
 * the character that the first byte belongs to begins. Sets text.failed when max_bytes is passed. */
void detok_push(struct detok *d, const char *bytes, size_t n, bool match, struct detok_mark *at);
void detok_finish(struct detok *d);                /* no more bytes: nothing stays held back                     */
size_t detok_ready(const struct detok *d);         /* bytes at text.data that may be shown                       */
uint32_t detok_shown_end(const struct detok *d);   /* text position (bytes) up to which text is ready or taken   */
void detok_take(struct detok *d, size_t n);        /* drops n <= detok_ready bytes: they were shown              */

#endif
