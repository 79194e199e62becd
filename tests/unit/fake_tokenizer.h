/* SPDX-License-Identifier: Apache-2.0
 *
 * A vocabulary small enough to read, behind the functions of model/tokenizer.h: one token per byte (id = byte), some
 * longer ones, two halves of an emoji, and control tokens. Encoding takes the longest match. For tests and the fuzzer
 * of server/; defining the functions here keeps the real tokenizer out of those programs. */
#ifndef MOED_TESTS_FAKE_TOKENIZER_H
#define MOED_TESTS_FAKE_TOKENIZER_H

#include <string.h>

#include "base/status.h"
#include "model/tokenizer.h"

enum { FAKE_BOS = 256, FAKE_EOS, FAKE_IM, FAKE_HE, FAKE_LL, FAKE_LO, FAKE_SPACE_W, FAKE_EMOJI_1, FAKE_EMOJI_2, FAKE_STOP, FAKE_N_VOCAB };

struct tokenizer { bool bos; };

static const struct { const char *text; size_t len; } fake_pieces[FAKE_N_VOCAB - 256] = {
    {"<bos>", 5}, {"<eos>", 5}, {"<|im|>", 6}, {"he", 2}, {"ll", 2}, {"lo", 2}, {" w", 2}, {"\xF0\x9F", 2}, {"\x98\x80", 2}, {"STOP", 4},
};

static const char fake_bytes[256] = {
#define ROW(a) (char)((a) + 0), (char)((a) + 1), (char)((a) + 2), (char)((a) + 3), (char)((a) + 4), (char)((a) + 5), (char)((a) + 6), (char)((a) + 7), \
               (char)((a) + 8), (char)((a) + 9), (char)((a) + 10), (char)((a) + 11), (char)((a) + 12), (char)((a) + 13), (char)((a) + 14), (char)((a) + 15)
    ROW(0), ROW(16), ROW(32), ROW(48), ROW(64), ROW(80), ROW(96), ROW(112), ROW(128), ROW(144), ROW(160), ROW(176), ROW(192), ROW(208), ROW(224), ROW(240),
#undef ROW
};

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *len) {
    (void)t;
    *len = id < 0 || id >= FAKE_N_VOCAB ? 0 : id < 256 ? 1 : fake_pieces[id - 256].len;
    return *len == 0 ? "" : id < 256 ? &fake_bytes[id] : fake_pieces[id - 256].text;
}

int32_t tokenizer_n_vocab(const struct tokenizer *t) { return (void)t, FAKE_N_VOCAB; }
int32_t tokenizer_bos(const struct tokenizer *t) { return t->bos ? FAKE_BOS : -1; }
int32_t tokenizer_eos(const struct tokenizer *t) { return (void)t, FAKE_EOS; }
bool tokenizer_is_eog(const struct tokenizer *t, int32_t id) { return (void)t, id == FAKE_EOS; }
bool tokenizer_is_control(const struct tokenizer *t, int32_t id) { return (void)t, id >= FAKE_BOS && id <= FAKE_IM; }
size_t tokenizer_max_ids(const struct tokenizer *t, size_t n_bytes) { return (void)t, n_bytes + 2; }

int64_t tokenizer_encode_guarded(const struct tokenizer *t, const char *text, size_t n_bytes, unsigned flags, const struct tokenizer_span *guarded,
                                 size_t n_guarded, int32_t *ids, size_t cap) {
    size_t n = 0, g = 0;

    if ((flags & TOK_ADD_SPECIAL) && t->bos && n_bytes > 0) ids[n++] = FAKE_BOS;
    for (size_t i = 0, len; i < n_bytes; i += len) {
        int32_t best = (uint8_t)text[i];
        len = 1;
        while (g < n_guarded && guarded[g].end <= i) g++;
        for (int32_t id = 256; id < FAKE_N_VOCAB; id++) {
            size_t k = fake_pieces[id - 256].len;
            bool special = id <= FAKE_IM, open = (flags & TOK_PARSE_SPECIAL) && (g == n_guarded || i + k <= guarded[g].start);
            if (k > len && k <= n_bytes - i && memcmp(text + i, fake_pieces[id - 256].text, k) == 0 && (!special || open))
                best = id, len = k;
        }
        if (n == cap) return ST_LIMIT;
        ids[n++] = best;
    }
    return (int64_t)n;
}

int64_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, unsigned flags, int32_t *ids, size_t cap) {
    return tokenizer_encode_guarded(t, text, n_bytes, flags, NULL, 0, ids, cap);
}

int32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len) {
    (void)t;
    if (len == 1) return (uint8_t)*piece;
    for (int32_t id = 256; id < FAKE_N_VOCAB; id++) {
        if (fake_pieces[id - 256].len == len && memcmp(fake_pieces[id - 256].text, piece, len) == 0) return id;
    }
    return -1;
}

#endif
