/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizes for a test in another language: `model_tokenize FILE.gguf`, then on stdin records of
 * {u32 flags, u32 length, bytes}, answered on stdout by {i64 count or status, i32 ids..., u32 length, decoded
 * bytes}, all little-endian. The first output is {i32 n_vocab, bos, eos, i64 open time in ns}; an open error goes
 * to stderr as "STATUS: text" with exit status 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

static void put(const void *p, size_t n)
{
    if (n && fwrite(p, 1, n, stdout) != n)
        exit(2);
}

/* Reads one record, false at the end of the input. */
static int answer(const struct tokenizer *t)
{
    uint32_t head[2];
    if (fread(head, sizeof(head), 1, stdin) != 1)
        return 0;
    char *text = malloc(head[1] + 1u);
    size_t cap = tokenizer_max_ids(t, head[1]);
    int32_t *ids = malloc(cap * sizeof(*ids));
    if (!text || !ids || fread(text, 1, head[1], stdin) != head[1])
        exit(2);
    int64_t n = tokenizer_encode(t, text, head[1], head[0], ids, cap);
    put(&n, sizeof(n));
    put(ids, n > 0 ? (size_t)n * sizeof(*ids) : 0);
    uint32_t n_bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t len = 0;
        tokenizer_piece(t, ids[i], &len);
        n_bytes += (uint32_t)len;
    }
    put(&n_bytes, sizeof(n_bytes));
    for (int64_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *p = tokenizer_piece(t, ids[i], &len);
        put(p, len);
    }
    fflush(stdout);
    free(text);
    free(ids);
    return 1;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    if (argc != 2)
        return 2;
    int st = gguf_open(&g, argv[1], &e);
    uint64_t t0 = clock_mono_ns();
    if (!st)
        st = tokenizer_open(&t, g, &e);
    int64_t open_ns = (int64_t)(clock_mono_ns() - t0);
    if (st) {
        fprintf(stderr, "%s: %s\n", status_name(st), e.text);
        gguf_close(g);
        return 1;
    }
    int32_t about[3] = {tokenizer_n_vocab(t), tokenizer_bos(t), tokenizer_eos(t)};
    put(about, sizeof(about));
    put(&open_ns, sizeof(open_ns));
    fflush(stdout);
    while (answer(t))
        ;
    tokenizer_close(t);
    gguf_close(g);
    return 0;
}
