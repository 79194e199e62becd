/* SPDX-License-Identifier: Apache-2.0
 *
 * Grammars in a child process, for tests/e2e/test_grammar.py. Usage: grammar_gen VOCABULARY; the file holds per token a byte
 * of kind, a 32-bit length and the bytes. Requests on stdin, answers on stdout, all integers 32-bit little-endian:
 *   C kind closed len text          compile, becomes the grammar in use   -> status len message
 *   M len text                      does the text belong to it            -> 0 no, 1 a prefix, 2 complete
 *   G seed max_tokens               a random text under the mask          -> complete len text
 * While generating, tokens outside the mask are tried as well, and must be refused; a breach ends the process with 1. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "grammar/grammar.h"

struct gen {
    struct grammar_token *tokens;
    uint32_t n_vocab, *mask;
    struct grammar_vocab *v;
    struct grammar *g;
    uint64_t seed;
    uint32_t closers[512], n_closers; /* ends of generation, then single bytes that end things */
};

static uint32_t rnd(struct gen *g) {
    uint64_t z = g->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

static void die(const char *why) {
    fprintf(stderr, "grammar_gen: %s\n", why);
    exit(1);
}

static uint32_t read_u32(void) {
    uint32_t v;
    if (fread(&v, sizeof v, 1, stdin) != 1) die("short request");
    return v;
}

static char *read_text(uint32_t *n) {
    *n = read_u32();
    char *s = malloc(*n + 1);
    if (!s || fread(s, 1, *n, stdin) != *n) die("short request");
    s[*n] = 0;
    return s;
}

static void answer(int32_t v, const char *s, uint32_t n) {
    fwrite(&v, sizeof v, 1, stdout);
    if (s) {
        fwrite(&n, sizeof n, 1, stdout);
        fwrite(s, 1, n, stdout);
    }
    fflush(stdout);
}

static void read_vocabulary(struct gen *g, const char *path) {
    FILE *f = fopen(path, "rb");
    struct err e;
    uint32_t cap = 0, len;
    int kind;
    if (!f) die("cannot open the vocabulary");
    while ((kind = fgetc(f)) != EOF) {
        if (fread(&len, sizeof len, 1, f) != 1) die("short vocabulary");
        char *s = malloc(len + 1);
        if (!s || fread(s, 1, len, f) != len) die("short vocabulary");
        if (g->n_vocab == cap && !(g->tokens = realloc(g->tokens, (cap = cap ? cap * 2 : 1024) * sizeof *g->tokens))) die("memory");
        g->tokens[g->n_vocab++] = (struct grammar_token){ s, len, (enum grammar_token_kind)kind };
    }
    fclose(f);
    if (grammar_vocab_open(&g->v, g->tokens, g->n_vocab, &e)) die(e.text);
    g->mask = calloc(g->n_vocab / 32 + 1, sizeof *g->mask);
    for (const char *c = "!\"}],:0 "; *c; c++) /* ! stands for the ends of generation */
        for (uint32_t i = 0; i < g->n_vocab && g->n_closers < 512; i++)
            if (*c == '!' ? g->tokens[i].kind == GRAMMAR_EOG : g->tokens[i].n_bytes == 1 && g->tokens[i].bytes[0] == *c && g->tokens[i].kind == GRAMMAR_TEXT)
                g->closers[g->n_closers++] = i;
}

static bool allowed(const struct gen *g, uint32_t id) {
    return g->mask[id / 32] >> id % 32 & 1;
}

/* A token that tends to end what is open, or -1. */
static int32_t pick_closing(struct gen *g) {
    for (uint32_t i = 0; i < g->n_closers; i++)
        if (allowed(g, g->closers[i])) return (int32_t)g->closers[i];
    return -1;
}

static uint32_t n_allowed(const struct gen *g) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_vocab / 32 + 1; i++) n += (uint32_t)__builtin_popcount(g->mask[i]);
    return n;
}

/* The wanted-th allowed token. */
static int32_t nth_allowed(const struct gen *g, uint32_t wanted) {
    for (uint32_t i = 0;; i++) {
        uint32_t bits = g->mask[i], n = (uint32_t)__builtin_popcount(bits);
        if (wanted >= n) {
            wanted -= n;
            continue;
        }
        for (; wanted > 0; wanted--) bits &= bits - 1;
        return (int32_t)(i * 32 + (uint32_t)__builtin_ctz(bits));
    }
}

static int32_t pick(struct gen *g, uint32_t i, uint32_t max) {
    bool hurry = i > max / 2 || rnd(g) % 4 == 0;
    int32_t id = hurry ? pick_closing(g) : -1;
    if (id >= 0) return id;
    uint32_t n = n_allowed(g);
    if (n == 0) die("nothing is allowed");
    return nth_allowed(g, rnd(g) % n);
}

/* Random tokens: the mask and accept must agree on them. */
static void cross_check(struct gen *g, const struct grammar_state *st) {
    for (int i = 0; i < 8; i++) {
        struct grammar_state *copy;
        uint32_t id = rnd(g) % g->n_vocab;
        if (grammar_state_clone(&copy, st)) die("memory");
        if ((grammar_state_accept(copy, (int32_t)id) == ST_OK) != allowed(g, id)) die("mask and accept disagree");
        grammar_state_close(copy);
    }
}

static void generate(struct gen *g) {
    struct grammar_state *st;
    g->seed = read_u32();
    uint32_t max = read_u32(), n = 0, cap = 0;
    bool complete = false;
    char *out = NULL;
    if (grammar_state_open(&st, g->g)) die("memory");
    for (uint32_t i = 0; i < max; i++) {
        if (grammar_state_mask(st, g->mask)) die("mask failed");
        if (i < 30) cross_check(g, st);
        int32_t id = pick(g, i, max);
        if (grammar_state_accept(st, id)) die("an allowed token was refused");
        if ((complete = g->tokens[id].kind == GRAMMAR_EOG)) break;
        if (n + g->tokens[id].n_bytes > cap && !(out = realloc(out, cap = 2 * (n + g->tokens[id].n_bytes)))) die("memory");
        memcpy(out + n, g->tokens[id].bytes, g->tokens[id].n_bytes);
        n += g->tokens[id].n_bytes;
    }
    answer(complete, out ? out : "", n);
    free(out);
    grammar_state_close(st);
}

static void compile(struct gen *g) {
    struct grammar_part part = { .kind = (enum grammar_kind)read_u32(), .closed = read_u32() };
    struct grammar_spec spec = { .parts = &part, .n_parts = 1 };
    struct err e = { 0 };
    uint32_t n;
    char *s = read_text(&n);
    part.text = s;
    part.n_bytes = n;
    grammar_drop(g->g);
    g->g = NULL;
    int status = grammar_compile(&g->g, g->v, &spec, &e);
    answer(status, e.text, status ? (uint32_t)strlen(e.text) : 0);
    free(s);
}

static void match(struct gen *g) {
    struct grammar_state *st;
    uint32_t n;
    char *s = read_text(&n);
    if (grammar_state_open(&st, g->g)) die("memory");
    int status = grammar_state_accept_text(st, s, n);
    answer(status ? 0 : grammar_state_is_complete(st) ? 2 : 1, NULL, 0);
    grammar_state_close(st);
    free(s);
}

int main(int argc, char **argv) {
    struct gen g = { 0 };
    int c;
    if (argc != 2) die("usage: grammar_gen VOCABULARY");
    read_vocabulary(&g, argv[1]);
    while ((c = getchar()) != EOF) {
        if (c == 'C') compile(&g);
        else if (!g.g) die("no grammar");
        else if (c == 'M') match(&g);
        else if (c == 'G') generate(&g);
        else die("unknown request");
    }
    grammar_drop(g.g);
    grammar_vocab_close(g.v);
    for (uint32_t i = 0; i < g.n_vocab; i++) free((char *)g.tokens[i].bytes);
    free(g.tokens);
    free(g.mask);
    return 0;
}
