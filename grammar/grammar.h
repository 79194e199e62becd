/* SPDX-License-Identifier: Apache-2.0
 *
 * Structured output: a grammar is compiled once, then says at every step of a sequence which tokens may come next.
 *
 *   struct grammar_vocab    the tokens of a model as a byte trie; built once, immutable, any thread
 *   struct grammar          compiled for one vocabulary; immutable but for an internal cache of masks with a lock of its
 *                           own, so any thread may share it; reference-counted
 *   struct grammar_state    where one sequence stands; one thread at a time
 *
 * The way of a request through a server:
 *
 *   struct grammar_spec spec = {.parts = &(struct grammar_part){.kind = GRAMMAR_SCHEMA, .text = s, .n_bytes = n}, .n_parts = 1};
 *   grammar_compile(&g, vocab, &spec, &e)        worker thread; ST_INVALID, ST_UNSUPPORTED, ST_LIMIT are the client's fault
 *   grammar_state_open(&st, g)                   one per choice
 *   request.filter = grammar_state_filter(st)    scheduler: mask before each draw, accept after it
 *   grammar_state_close(st); grammar_drop(g)     after EVENT_DONE
 *
 * End-of-generation tokens are allowed exactly where the text so far is complete; other control tokens never, except in
 * the free text of a triggered grammar. The request's stop_ids should be the tokens marked GRAMMAR_EOG. A sequence that
 * reaches max_tokens is cut wherever it stands. Log-probabilities are those of the unmasked model.
 *
 * Texts are byte strings; classes and ranges in grammars and expressions mean Unicode code points, in UTF-8. Sizes,
 * nesting and work are bounded (ST_LIMIT names the limit); a mask or an accept whose work passes its bound, which takes
 * a grammar made for it, ends the sequence with ST_LIMIT. */
#ifndef MOED_GRAMMAR_GRAMMAR_H
#define MOED_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "grammar/token_filter.h"

/* ---- vocabulary ---- */

enum grammar_token_kind {
    GRAMMAR_TEXT,    /* stands for its bytes; an empty one is never allowed  */
    GRAMMAR_CONTROL, /* has no text                                         */
    GRAMMAR_EOG,     /* ends a generation                                   */
};

struct grammar_token {
    const char *bytes; /* borrowed for the call; as in generated text (tokenizer_piece) */
    uint32_t n_bytes;
    enum grammar_token_kind kind;
};

struct grammar_vocab; /* opaque */

/* returns owned, free with grammar_vocab_close after every grammar compiled for it. At most 2^22 tokens. */
int grammar_vocab_open(struct grammar_vocab **out, const struct grammar_token *tokens, uint32_t n_vocab, struct err *e);
void grammar_vocab_close(struct grammar_vocab *v); /* takes v; NULL is fine */

/* ---- grammar ---- */

enum grammar_kind {
    GRAMMAR_LITERAL, /* exactly these bytes                                                                          */
    GRAMMAR_GBNF,    /* llama.cpp's language: rules, "text", [classes], ., ( ), |, * + ? {m,n}, # comments; start `root`.
                        Any context-free grammar, left recursion and ambiguity included. Errors carry line:column      */
    GRAMMAR_REGEX,   /* the whole text must match. Literals, escapes, . (not a line feed), classes, \d \w \s (ASCII),
                        groups, |, * + ? {m,n} (lazy forms mean the same), ^ at the start, $ at the end. No look-around,
                        back-reference, \b, flags. Errors carry the column                                             */
    GRAMMAR_JSON,    /* any JSON object; text is not read                                                            */
    GRAMMAR_SCHEMA,  /* JSON that satisfies this JSON schema; docs/STRUCTURED.md says what is covered. Errors carry the
                        path of the keyword                                                                            */
};

struct grammar_part {
    enum grammar_kind kind;
    bool alternative;  /* this part begins another alternative; the parts before it are one                     */
    bool closed;       /* GRAMMAR_SCHEMA: a schema with `properties` that does not say otherwise allows no other keys,
                          as if it had additionalProperties: false                                              */
    const char *text;  /* [n_bytes], borrowed for the call                                                      */
    size_t n_bytes;
};

/* The language is a choice of alternatives, each a sequence of parts, e.g. `choice` is a literal part per text, all but
 * the first with `alternative`. A forced tool call is one alternative per tool: literal, schema, literal. */
struct grammar_spec {
    const struct grammar_part *parts;
    uint32_t n_parts;                  /* >= 1, at most 4096                                                    */
    uint32_t max_repeat;               /* the whole 1 .. max_repeat times, `separator` between; 0 means 1, UINT32_MAX no end */
    const char *separator;             /* NULL or NUL-terminated                                                */
    /* With any trigger the output is free text, which may end at any time, until one appears; the grammar starts behind
     * it, mid-token if need be. A text trigger is found in text only, a token trigger is a GRAMMAR_CONTROL or text id. */
    const char *const *triggers;       /* [n_triggers] NUL-terminated, not empty                                */
    uint32_t n_triggers;
    const int32_t *trigger_tokens;     /* [n_trigger_tokens]                                                    */
    uint32_t n_trigger_tokens;
    bool again;                        /* after the grammar comes free text again; else the end                 */
};

struct grammar; /* opaque */

/* returns owned with one reference, give back with grammar_drop. Borrows v until the last drop. Takes milliseconds for
 * large schemas: not for a thread that must not wait. */
int grammar_compile(struct grammar **out, const struct grammar_vocab *v, const struct grammar_spec *spec, struct err *e);
struct grammar *grammar_take(struct grammar *g); /* one more reference */
void grammar_drop(struct grammar *g);            /* NULL is fine */

/* Computes masks ahead, most useful first, for about budget_us: less waiting at the first tokens. */
void grammar_warm(struct grammar *g, uint32_t budget_us);

/* ---- state ---- */

struct grammar_state; /* opaque */

int grammar_state_open(struct grammar_state **out, struct grammar *g); /* returns owned, takes a reference of its own; 0 or ST_NOMEM */
int grammar_state_clone(struct grammar_state **out, const struct grammar_state *st);
void grammar_state_close(struct grammar_state *st); /* takes st; NULL is fine */

int grammar_state_mask(struct grammar_state *st, uint32_t *allowed); /* as token_filter_ops.mask */
/* ST_INVALID for a token that cannot come here: the state is as before. After an end-of-generation token only such are allowed. */
int grammar_state_accept(struct grammar_state *st, int32_t token);
/* The same for text that comes from elsewhere than tokens, such as a prefilled answer; all of it or nothing. */
int grammar_state_accept_text(struct grammar_state *st, const char *text, size_t n_bytes);
bool grammar_state_is_complete(const struct grammar_state *st); /* the output may end here                  */
bool grammar_state_is_free(const struct grammar_state *st);     /* triggered grammar, in free text          */

/* borrows st until the request ends */
struct token_filter grammar_state_filter(struct grammar_state *st);

#endif
