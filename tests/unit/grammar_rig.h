/* SPDX-License-Identifier: Apache-2.0
 *
 * A vocabulary of all bytes and some longer tokens, and grammars on it, for tests of grammar/. */
#ifndef MOED_TESTS_GRAMMAR_RIG_H
#define MOED_TESTS_GRAMMAR_RIG_H

#include "test.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/status.h"
#include "grammar/grammar.h"

static const char *const RIG_LONGER[] = {
    "ab", "abc", "aa", "aaa", "\"}", "\"}}", "\",", "\": \"", "{\"", "[]", "{}", "\"]", "}}", "]]", "}}}", ", \"", "  ", "    ", "\n  ",
    "true", "false", "null", "10", "123", "0.5", "name", "\"name\"", "\xc3\xa9", "\xe4\xbd\xa0\xe5\xa5\xbd", "\xf0\x9f\x98\x80",
    "\xe4\xbd", "\\n", "\\u00", "<tool>", "<tool>{", "ol>{", "x<to", "hello world", "abc", "",
};
enum { RIG_EOG = 256, RIG_CONTROL, RIG_FIRST_LONG, N_LONGER = sizeof RIG_LONGER / sizeof *RIG_LONGER, RIG_VOCAB = RIG_FIRST_LONG + N_LONGER, RIG_WORDS = (RIG_VOCAB + 31) / 32 };

/* NULL when memory is out. */
static inline struct grammar_vocab *rig_vocab_quiet(void) {
    static char bytes[256];
    static struct grammar_token t[RIG_VOCAB];
    struct grammar_vocab *v = NULL;
    struct err e = {0};

    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct grammar_token){&bytes[i], 1, GRAMMAR_TEXT};
    }
    t[RIG_EOG] = (struct grammar_token){"</s>", 4, GRAMMAR_EOG};
    t[RIG_CONTROL] = (struct grammar_token){"<|call|>", 8, GRAMMAR_CONTROL};
    for (int i = 0; i < N_LONGER; i++)
        t[RIG_FIRST_LONG + i] = (struct grammar_token){RIG_LONGER[i], (uint32_t)strlen(RIG_LONGER[i]), GRAMMAR_TEXT};
    return grammar_vocab_open(&v, t, RIG_VOCAB, &e) == ST_OK ? v : NULL;
}

static inline struct grammar_vocab *rig_vocab(void) {
    struct grammar_vocab *v = rig_vocab_quiet();

    if (!v)
        printf("FAIL rig: no vocabulary\n");
    return v;
}

static inline int rig_compile(struct grammar **g, const struct grammar_vocab *v, enum grammar_kind kind, const char *text, struct err *e) {
    struct grammar_part part = {.kind = kind, .text = text, .n_bytes = strlen(text)};
    struct grammar_spec spec = {.parts = &part, .n_parts = 1};

    *g = NULL;
    return grammar_compile(g, v, &spec, e);
}

/* 2 complete, 1 a prefix, 0 neither; negative: an error. */
static inline int rig_match(struct grammar *g, const char *text, size_t n) {
    struct grammar_state *st;
    int status = grammar_state_open(&st, g), verdict;

    if (status)
        return status;
    status = grammar_state_accept_text(st, text, n);
    verdict = status == ST_OK ? 1 + grammar_state_is_complete(st) : status == ST_INVALID ? 0 : status;
    grammar_state_close(st);
    return verdict;
}

#endif
