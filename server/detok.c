/* SPDX-License-Identifier: Apache-2.0
 *
 * See detok.h. The text grows by whole characters only, and stop strings are valid UTF-8, so a held-back suffix
 * always begins and ends at a character boundary. */
#include "server/detok.h"

#include <string.h>

#include "base/status.h"
#include "base/utf8.h"

int detok_stop_init(struct detok_stop *s, const char *text, size_t n_bytes, struct arena *a) {
    uint16_t *fail = arena_alloc(a, (n_bytes + 1) * sizeof *fail);

    if (!fail) return ST_NOMEM;
    fail[0] = fail[1] = 0;
    for (size_t i = 1, k = 0; i < n_bytes; i++) {
        while (k > 0 && text[i] != text[k]) k = fail[k];
        k += text[i] == text[k];
        fail[i + 1] = (uint16_t)k;
    }
    *s = (struct detok_stop){.text = text, .n_bytes = (uint16_t)n_bytes, .fail = fail};
    return 0;
}

void detok_init(struct detok *d, const struct detok_stop *stops, uint32_t n_stops, size_t max_bytes) {
    *d = (struct detok){.stops = stops, .n_stops = n_stops};
    buf_init(&d->text, max_bytes);
}

void detok_clear(struct detok *d) {
    buf_clear(&d->text);
}

static size_t detok_held(const struct detok *d) {
    size_t held = 0;

    for (uint32_t i = 0; i < d->n_stops; i++) {
        if (d->state[i] > held) held = d->state[i];
    }
    return d->stopped ? 0 : held;
}

/* Advances every stop by one byte; returns the length of the longest one it completes, 0 when none. */
static size_t match_byte(struct detok *d, char c) {
    size_t found = 0;

    for (uint32_t i = 0; i < d->n_stops; i++) {
        const struct detok_stop *s = &d->stops[i];
        uint16_t k = d->state[i];
        while (k > 0 && s->text[k] != c) k = s->fail[k];
        k += s->text[k] == c;
        d->state[i] = k;
        if (k == s->n_bytes && k > found) found = k, d->matched = i;
    }
    return found;
}

/* Appends one complete character. */
static void put_char(struct detok *d, const char *c, unsigned n, bool match) {
    size_t found = 0;

    if (buf_append(&d->text, c, n) != 0) return;
    d->end.bytes += n;
    d->end.chars++;
    for (unsigned i = 0; match && i < n; i++) found = match_byte(d, c[i]);
    if (found == 0) return;
    d->end.chars -= (uint32_t)utf8_count(d->text.data + d->text.len - found, found);
    d->end.bytes -= (uint32_t)found;
    d->text.len -= found;
    d->stopped = true;
}

static void put_replacement(struct detok *d, bool match) {
    d->n_tail = 0;
    put_char(d, "\xEF\xBF\xBD", 3, match);
}

void detok_push(struct detok *d, const char *bytes, size_t n, bool match, struct detok_mark *at) {
    for (size_t i = 0; i < n && !d->stopped; i++) {
        uint8_t c = (uint8_t)bytes[i];
        if (d->n_tail > 0 && !utf8_continues(d->tail, d->n_tail, c)) put_replacement(d, match);
        if (i == 0 && at) *at = d->end;
        if (d->stopped) return;
        d->tail[d->n_tail++] = c;
        unsigned need = utf8_need(d->tail[0]);
        if (need == 0) {
            put_replacement(d, match);
        } else if (d->n_tail == need) {
            d->n_tail = 0;
            put_char(d, (const char *)d->tail, need, match);
        }
    }
    if (n == 0 && at) *at = d->end;
}

void detok_finish(struct detok *d) {
    if (d->n_tail > 0 && !d->stopped) put_replacement(d, true);
    memset(d->state, 0, sizeof d->state);
}

size_t detok_ready(const struct detok *d) {
    return d->text.len - detok_held(d);
}

uint32_t detok_shown_end(const struct detok *d) {
    return d->end.bytes - (uint32_t)detok_held(d);
}

void detok_take(struct detok *d, size_t n) {
    buf_consume(&d->text, n);
}
