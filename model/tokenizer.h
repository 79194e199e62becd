/* SPDX-License-Identifier: Apache-2.0
 *
 * Text <-> token ids, from the vocabulary inside a GGUF: byte-level BPE ("gpt2" model with a named split
 * pattern) and SentencePiece BPE ("llama" model). Truth is the library a model was published with (tokenizers,
 * tiktoken, sentencepiece), not another GGUF reader.
 * Total: every byte string encodes, invalid UTF-8 included. Concatenating the pieces of the ids gives the text
 * back, byte for byte, for a byte-level vocabulary with all 256 bytes; families whose reference normalises
 * (Qwen, OLMo, Command R) give its NFC form, SentencePiece may add the leading space its model asks for.
 * A byte that a byte-level vocabulary lacks is dropped, as in `tokenizers` (its unknown token is usually the end of
 * text, which user text must not produce); SentencePiece without byte tokens gives its unknown token.
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

/* ST_UNSUPPORTED names a tokenizer model or split pattern this build does not have; ST_INVALID a broken vocabulary. */
int tokenizer_open(struct tokenizer **out, const struct gguf *g, struct err *e); /* returns owned, free with tokenizer_close; copies what it needs */
void tokenizer_close(struct tokenizer *t);                                        /* takes t; NULL is fine */

/* An upper bound of ids for n_bytes of text, specials included. */
size_t tokenizer_max_ids(const struct tokenizer *t, size_t n_bytes);

/* Writes at most cap ids; returns the count (>= 0), or ST_NOMEM, or ST_LIMIT when cap is too small or the text
 * has 512 MiB or more. O(n log n). Without TOK_PARSE_SPECIAL no text becomes a control token; tokens the file
 * marks user-defined are matched always, as in the reference libraries. */
int64_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, unsigned flags,
                         int32_t *ids, size_t cap);

/* The same for a text in parts of which no control token may begin, end or lie, whatever `flags` say: what a client
 * wrote inside a prompt. `guarded` is ordered and disjoint. The text between control tokens is encoded as one piece
 * across these borders, so ordinary text gives the ids it gives unguarded. */
struct tokenizer_span {
    size_t start, end; /* bytes, [start, end) */
};
int64_t tokenizer_encode_guarded(const struct tokenizer *t, const char *text, size_t n_bytes, unsigned flags,
                                 const struct tokenizer_span *guarded, size_t n_guarded, int32_t *ids, size_t cap);

/* Bytes of one token as they appear in generated text (byte-level decoded, SentencePiece spaces as ' ').
 * View, valid until close; *len = 0 for ids out of range. Control tokens give their name. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *len);

int32_t tokenizer_n_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t);            /* -1 when the file has none */
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_is_eog(const struct tokenizer *t, int32_t id);     /* ends a generation: eos, eot, eom and friends */
bool tokenizer_is_control(const struct tokenizer *t, int32_t id); /* not shown in the text                        */

/* The id whose piece is exactly these bytes, control and user-defined tokens first; -1 when absent. */
int32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len);

#endif
