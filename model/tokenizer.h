/* SPDX-License-Identifier: Apache-2.0
 *
 * Text <-> token ids, from the vocabulary inside a GGUF: byte-level BPE ("gpt2" model with a named split
 * pattern) and SentencePiece BPE ("llama" model). Total: every byte string encodes, invalid UTF-8 included.
 * Immutable after open; encode is re-entrant (any thread), its scratch is allocated per call. */
#ifndef MOED_MODEL_TOKENIZER_H
#define MOED_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct gguf;
struct tokenizer; /* opaque */

enum tokenizer_flags {
    TOK_ADD_SPECIAL = 1,   /* BOS / EOS as the file's add_bos_token / add_eos_token say              */
    TOK_PARSE_SPECIAL = 2, /* text may contain control tokens ("<|im_start|>"); off for user text    */
};

/* ST_UNSUPPORTED names a tokenizer model or split pattern this build does not have. */
int tokenizer_open(struct tokenizer **out, const struct gguf *g, struct err *e); /* returns owned, free with tokenizer_close; copies what it needs */
void tokenizer_close(struct tokenizer *t);

/* An upper bound of ids for n_bytes of text, specials included. */
size_t tokenizer_max_ids(const struct tokenizer *t, size_t n_bytes);

/* Writes at most cap ids; returns the count (>= 0), or ST_NOMEM, or ST_LIMIT when cap is too small. O(n log n). */
int64_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, unsigned flags,
                         int32_t *ids, size_t cap);

/* Bytes of one token as they appear in generated text (byte-level decoded, SentencePiece spaces as ' ').
 * View, valid until close; *len = 0 for ids out of range. Control tokens give their name. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *len);

int32_t tokenizer_n_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t);            /* -1 when the file has none */
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_is_eog(const struct tokenizer *t, int32_t id);     /* ends a generation: eos, eot, eom and friends */
bool tokenizer_is_control(const struct tokenizer *t, int32_t id); /* not shown in the text                        */
int32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len); /* id of an exact vocabulary entry, -1 when absent */

#endif
