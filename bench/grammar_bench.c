/* SPDX-License-Identifier: Apache-2.0
 *
 * CPU time per mask and per accepted token, as percentiles over random texts that obey a grammar. "first" is the first text
 * under a grammar just compiled (every mask new), "later" all texts after it. Usage: grammar_bench VOCABULARY [TEXTS]; the
 * vocabulary file is what bench/grammar_vocab.py writes. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/grammar.h"

enum { MAX_TOKENS = 200, MAX_TIMES = 1 << 20 };

static const struct { const char *name; enum grammar_kind kind; const char *text; } CASES[] = {
    { "json object", GRAMMAR_JSON, "" },
    { "schema, tool call", GRAMMAR_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"get_weather\"},\"arguments\":{\"type\":\"object\",\"properties\":{"
      "\"city\":{\"type\":\"string\"},\"unit\":{\"enum\":[\"celsius\",\"fahrenheit\"]},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14}},"
      "\"required\":[\"city\"],\"additionalProperties\":false}},\"required\":[\"name\",\"arguments\"],\"additionalProperties\":false}" },
    { "schema, records", GRAMMAR_SCHEMA,
      "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"format\":\"uuid\"},\"title\":{\"type\":\"string\",\"minLength\":1,"
      "\"maxLength\":80},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":10},\"score\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1},"
      "\"when\":{\"type\":[\"string\",\"null\"],\"format\":\"date-time\"},\"children\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/node\"}}},"
      "\"required\":[\"id\",\"title\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/node\"}" },
    { "schema, open object", GRAMMAR_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{}},\"required\":[\"a\"]}" },
    { "regex, e-mail", GRAMMAR_REGEX, "[a-z0-9._%+-]{1,40}@[a-z0-9-]+(\\.[a-z]{2,10}){1,3}" },
    { "gbnf, arithmetic", GRAMMAR_GBNF, "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | \"(\" ws expr \")\" ws\n"
      "ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n" },
    { "gbnf, free text", GRAMMAR_GBNF, "root ::= line+\nline ::= [^\\n]+ \"\\n\"\n" },
};

struct bench {
    struct grammar_token *tokens;
    uint32_t n_vocab, *mask;
    struct grammar_vocab *v;
    uint64_t seed;
    double *mask_us, *accept_us;
    uint32_t n_mask, n_accept;
};

/* CPU time of this thread: nothing here waits, so what others run beside it does not count. */
static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint32_t rnd(struct bench *b) {
    uint64_t z = b->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

static bool read_vocabulary(struct bench *b, const char *path) {
    FILE *f = fopen(path, "rb");
    uint32_t cap = 0, len;
    struct err e;
    int kind;
    while (f && (kind = fgetc(f)) != EOF) {
        char *s;
        if (fread(&len, sizeof len, 1, f) != 1 || !(s = malloc(len + 1)) || fread(s, 1, len, f) != len) return false;
        if (b->n_vocab == cap) b->tokens = realloc(b->tokens, (cap = cap ? 2 * cap : 1024) * sizeof *b->tokens);
        b->tokens[b->n_vocab++] = (struct grammar_token){ s, len, (enum grammar_token_kind)kind };
    }
    if (!f) return false;
    fclose(f);
    double t0 = now_us();
    if (grammar_vocab_open(&b->v, b->tokens, b->n_vocab, &e)) return false;
    printf("vocabulary: %u tokens, opened in %.0f ms\n", b->n_vocab, (now_us() - t0) / 1e3);
    b->mask = calloc(b->n_vocab / 32 + 1, sizeof *b->mask);
    return true;
}

/* A random allowed token; a quarter of the time one of few bytes, so that what is open gets closed. */
static int32_t pick(struct bench *b) {
    uint32_t start = rnd(b) % b->n_vocab, any = UINT32_MAX;
    bool wants_short = rnd(b) % 4 == 0;
    for (uint32_t i = 0, id = start; i < b->n_vocab; i++, id = id + 1 == b->n_vocab ? 0 : id + 1) {
        if (!(b->mask[id / 32] >> id % 32 & 1)) continue;
        if (any == UINT32_MAX) any = id;
        if (!wants_short) break;
        if (b->tokens[id].kind == GRAMMAR_EOG || (b->tokens[id].n_bytes == 1 && strchr("\"}],", b->tokens[id].bytes[0]))) return (int32_t)id;
    }
    return (int32_t)any;
}

static void one_text(struct bench *b, struct grammar *g) {
    struct grammar_state *st;
    if (grammar_state_open(&st, g)) return;
    for (int i = 0; i < MAX_TOKENS && b->n_mask < MAX_TIMES; i++) {
        double t0 = now_us();
        int status = grammar_state_mask(st, b->mask);
        b->mask_us[b->n_mask++] = now_us() - t0;
        if (status) {
            printf("mask failed: %d\n", status);
            break;
        }
        int32_t id = pick(b);
        t0 = now_us();
        status = grammar_state_accept(st, id);
        b->accept_us[b->n_accept++] = now_us() - t0;
        if (status || b->tokens[id].kind == GRAMMAR_EOG) break;
    }
    grammar_state_close(st);
}

static int by_value(const void *pa, const void *pb) {
    const double *a = pa, *b = pb;
    return *a < *b ? -1 : *a > *b;
}

static void print_times(const char *what, double *x, uint32_t n) {
    if (n == 0) return;
    qsort(x, n, sizeof *x, by_value);
    printf("  %-13s n %6u   p50 %8.1f  p90 %8.1f  p99 %8.1f  p99.9 %8.1f  max %8.1f us\n", what, n, x[n / 2], x[n * 9 / 10], x[n * 99 / 100],
           x[(uint64_t)n * 999 / 1000], x[n - 1]);
}

static void run_case(struct bench *b, size_t i, int n_texts) {
    struct grammar_part part = { .kind = CASES[i].kind, .text = CASES[i].text, .n_bytes = strlen(CASES[i].text) };
    struct grammar_spec spec = { .parts = &part, .n_parts = 1 };
    struct grammar *g;
    struct err e;
    double t0 = now_us();
    if (grammar_compile(&g, b->v, &spec, &e)) {
        printf("%s: %s\n", CASES[i].name, e.text);
        return;
    }
    printf("%s: compiled in %.1f ms\n", CASES[i].name, (now_us() - t0) / 1e3);
    b->n_mask = b->n_accept = 0;
    one_text(b, g);
    print_times("mask, first", b->mask_us, b->n_mask);
    b->n_mask = b->n_accept = 0;
    for (int k = 1; k < n_texts; k++) one_text(b, g);
    print_times("mask, later", b->mask_us, b->n_mask);
    print_times("accept", b->accept_us, b->n_accept);
    grammar_drop(g);
}

int main(int argc, char **argv) {
    struct bench b = { .seed = 1 };
    b.mask_us = malloc(MAX_TIMES * sizeof *b.mask_us);
    b.accept_us = malloc(MAX_TIMES * sizeof *b.accept_us);
    if (argc < 2 || !b.mask_us || !b.accept_us || !read_vocabulary(&b, argv[1])) {
        fprintf(stderr, "usage: grammar_bench VOCABULARY [TEXTS]\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) run_case(&b, i, argc > 2 ? (int)strtol(argv[2], NULL, 10) : 100);
    grammar_vocab_close(b.v);
    return 0;
}
