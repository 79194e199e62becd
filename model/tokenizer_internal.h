/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the tokenizer, shared by model/tokenizer*.c only. A token is its piece: the bytes it stands for in
 * text. Lookups by text go through one hash over the tokens merging may produce; control, unknown and byte
 * tokens are not in it, which is why plain text can never become one of them. */
#ifndef MOED_MODEL_TOKENIZER_INTERNAL_H
#define MOED_MODEL_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/gguf.h"
#include "model/tokenizer.h"

enum {
    TOK_MAX_VOCAB = 1 << 22,       /* the largest published vocabulary has 2^18 entries            */
    TOK_MAX_PIECE_BYTES = 1 << 16, /* bounds the work of one lookup; published ones stay below 2^9 */
    TOK_MAX_PROBE = 1024,          /* a longer cluster is a file made to collide                   */
    TOK_MAX_STAGES = 6,
    TOK_MAX_TEXT_BYTES = 1 << 29,
};

enum tok_kind { TOK_KIND_BPE, TOK_KIND_SPM };

enum tok_flags {
    TOKF_TEXT = 1,    /* merging may produce it: in the text hash                              */
    TOKF_CONTROL = 2, /* matched as a whole with TOK_PARSE_SPECIAL only; not shown             */
    TOKF_USER = 4,    /* matched as a whole always                                             */
    TOKF_EOG = 8,     /* ends a generation                                                     */
};

struct tok_merge { /* slot of the pair hash; rank is UINT32_MAX in an empty slot */
    uint32_t left, right, rank;
    int32_t id; /* what the pair becomes */
};

/* A family of split patterns: text is cut by the first stage, every part by the second, and so on. What lies
 * between two matches is a part too. */
struct tok_split {
    const char *stage[TOK_MAX_STAGES]; /* PCRE2, NULL after the last   */
    const char *names;                 /* values of tokenizer.ggml.pre, each surrounded by spaces */
    bool ignore_merges;                /* a whole word of the vocabulary is taken as it is        */
    bool add_bos;                      /* default of add_bos_token                                */
    bool nfc;                          /* the reference normalises to NFC first                   */
};

struct tokenizer {
    enum tok_kind kind;
    int32_t n_vocab;
    char *blob;           /* owned: all pieces back to back                                  */
    uint32_t *offset;     /* owned, [n_vocab + 1] into blob                                  */
    uint8_t *flags;       /* owned, [n_vocab] of enum tok_flags                              */
    uint32_t *text_slot;  /* owned, [text_mask + 1]: id + 1, 0 = empty                       */
    uint32_t text_mask;
    uint32_t max_text_bytes; /* longest TOKF_TEXT piece                                      */
    int32_t *special;     /* owned, [n_special]: CONTROL and USER ids ordered by piece       */
    uint32_t n_special;
    uint32_t special_first[257]; /* specials whose first byte is b: [b] .. [b + 1]           */
    int32_t byte_id[256]; /* the token of a single byte, or -1                               */
    int32_t bos, eos, eot, eom, unk; /* -1 = none                                            */
    bool add_bos, add_eos;

    struct tok_merge *merge; /* BPE: owned, [merge_mask + 1]                                 */
    uint32_t merge_mask;
    const struct tok_split *split;            /* BPE: static table                           */
    pcre2_general_context *pcre;              /* BPE: owned, allocates through base/alloc.h  */
    pcre2_code *stage[TOK_MAX_STAGES];        /* BPE: owned                                  */

    uint32_t *prio;          /* SPM: owned, [n_vocab]: 0 merges first                        */
    bool add_space_prefix;   /* SPM */
    bool squeeze_spaces;     /* SPM: trim, and one space for many                            */
};

struct tok_sym {
    int32_t prev, next; /* neighbours in the word, -1 at its ends                           */
    uint32_t start;     /* first byte in the word                                           */
    int32_t id;         /* -1: no token, so it merges with nothing                          */
    uint32_t prio;      /* of merging with next                                             */
    int32_t merged;     /* id that gives, -1: does not merge                                */
};

/* State of one encode call. */
struct tok_run {
    const struct tokenizer *t;
    int32_t *ids; /* borrowed */
    size_t cap, n;
    int status;            /* first failure; nothing is written after it */
    struct tok_sym *sym;   /* owned, [sym_cap]                           */
    uint64_t *heap;        /* owned, [2 * sym_cap]: prio << 32 | symbol  */
    size_t sym_cap, n_heap;
    char *norm;            /* owned, [norm_cap]: normalised text         */
    size_t norm_cap;
    pcre2_match_data *match;         /* owned */
    pcre2_match_context *match_ctx;  /* owned */
};

/* tokenizer_vocab.c */
int tokenizer__vocab_read(struct tokenizer *t, const struct gguf *g, struct err *e);
int tokenizer__merges_read(struct tokenizer *t, const struct gguf *g, struct err *e);
int tokenizer__scores_read(struct tokenizer *t, const struct gguf *g, struct err *e);
int tokenizer__special_build(struct tokenizer *t, struct err *e); /* after all flags are final */
int32_t tokenizer__text_find(const struct tokenizer *t, const char *p, size_t n);
const struct tok_merge *tokenizer__merge_find(const struct tokenizer *t, int32_t left, int32_t right);
/* Longest special token of `classes` (TOKF_CONTROL | TOKF_USER) that text p[0..n) starts with, or -1. */
int32_t tokenizer__special_match(const struct tokenizer *t, const char *p, size_t n, unsigned classes, size_t *len);

/* tokenizer_eog.c: marks the tokens that end a generation */
void tokenizer__eog_mark(struct tokenizer *t, const struct gguf *g);

/* tokenizer_split.c */
int tokenizer__split_open(struct tokenizer *t, const char *pre, size_t n_pre, struct err *e);
void tokenizer__split_close(struct tokenizer *t);
int tokenizer__split_begin(struct tok_run *r, size_t n_bytes);
void tokenizer__split_end(struct tok_run *r);
void tokenizer__split(struct tok_run *r, const char *p, size_t n); /* valid UTF-8; calls tokenizer__bpe_word */

/* tokenizer_nfc.c: the NFC form of valid UTF-8 into r->norm; a view, or p itself when nothing changes. */
const char *tokenizer__nfc(struct tok_run *r, const char *p, size_t n, size_t *n_out);

/* tokenizer_bpe.c */
void tokenizer__emit(struct tok_run *r, int32_t id);
int tokenizer__sym_reserve(struct tok_run *r, size_t n_sym);
void tokenizer__sym_merge(struct tok_run *r, const char *word, size_t n_bytes, size_t n_sym);
void tokenizer__bpe_word(struct tok_run *r, const char *p, size_t n);
void tokenizer__bpe_text(struct tok_run *r, const char *p, size_t n); /* no special tokens in it */

/* tokenizer_spm.c */
void tokenizer__spm_text(struct tok_run *r, const char *p, size_t n); /* no control tokens in it */

/* tokenizer.c: bytes of the well-formed UTF-8 character at p, 0 when there is none; and its code point. */
size_t tokenizer__utf8_len(const char *p, size_t n);
uint32_t tokenizer__utf8_cp(const char *p, size_t len);

static inline const char *tokenizer__piece(const struct tokenizer *t, int32_t id, size_t *len)
{
    *len = t->offset[id + 1] - t->offset[id];
    return t->blob + t->offset[id];
}

#endif
