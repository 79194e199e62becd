/* SPDX-License-Identifier: Apache-2.0
 *
 * What fuzz_grammar and fuzz_schema demand of a compiled grammar: the mask of every state reached at random is exactly what
 * accept takes; states can be cloned and dropped; an error has a message. */
#ifndef MOED_TESTS_MASK_WALK_H
#define MOED_TESTS_MASK_WALK_H

#include <stdlib.h>
#include <time.h>

#include "base/status.h"
#include "tests/unit/grammar_rig.h"

#define REQUIRE(cond)                                                                                \
    do {                                                                                             \
        if (!(cond)) __builtin_trap();                                                               \
    } while (0)

static void check_mask(const struct grammar_state *st, const uint32_t *mask, uint32_t from, clock_t start) {
    for (uint32_t i = 0; i < 16 && clock() - start < CLOCKS_PER_SEC / 4; i++) {
        uint32_t id = (from * 31 + i * 7) % RIG_VOCAB;
        struct grammar_state *copy;
        REQUIRE(grammar_state_clone(&copy, st) == ST_OK);
        int status = grammar_state_accept(copy, (int32_t)id);
        REQUIRE(status == ST_LIMIT || (status == ST_OK) == (mask[id / 32] >> id % 32 & 1));
        grammar_state_close(copy);
    }
}

static void walk(struct grammar *g, uint32_t seed) {
    uint32_t mask[RIG_WORDS];
    struct grammar_state *st;
    REQUIRE(grammar_state_open(&st, g) == ST_OK);
    clock_t start = clock(); /* masks of very ambiguous grammars use up their bound of work, which takes long in here */
    for (int i = 0; i < 12 && clock() - start < CLOCKS_PER_SEC / 4; i++, seed = seed * 1664525 + 1013904223) {
        if (grammar_state_mask(st, mask)) break;
        check_mask(st, mask, seed >> 16, start);
        uint32_t id = (seed >> 8) % RIG_VOCAB;
        while (!(mask[id / 32] >> id % 32 & 1)) id = (id + 1) % RIG_VOCAB;
        if (grammar_state_accept(st, (int32_t)id) || id == RIG_EOG) break;
    }
    grammar_state_close(st);
}

static void compile_and_walk(const struct grammar_spec *spec, uint32_t seed) {
    struct grammar_vocab *v;
    struct grammar *g;
    struct err e = {0};
    REQUIRE((v = rig_vocab()));
    if (grammar_compile(&g, v, spec, &e) == ST_OK) {
        walk(g, seed);
        walk(g, 12345);
        grammar_drop(g);
    } else {
        REQUIRE(e.code < 0 && e.text[0] && e.code != ST_INTERNAL);
    }
    grammar_vocab_close(v);
}

#endif
