/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the tokenizer from both sides: the input as a GGUF whose vocabulary is opened and used, and the input as
 * text for vocabularies known to be good, where encoding must succeed within tokenizer_max_ids and decode back. */
#include <stdio.h>

#include "base/log.h"
#include "model/tokenizer.h"
#include "tests/unit/vocab_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Encodes; with `exact`, traps unless the pieces join to the text. */
static void encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags, bool exact)
{
    size_t cap = tokenizer_max_ids(t, n), at = 0;
    int32_t *ids = malloc(cap * sizeof(*ids));
    int64_t n_ids = tokenizer_encode(t, text, n, flags, ids, cap);
    if (n_ids < 0)
        __builtin_trap();
    for (int64_t i = 0; i < n_ids; i++) {
        size_t len = 0;
        const char *p = tokenizer_piece(t, ids[i], &len);
        if (exact && (len > n - at || memcmp(p, text + at, len) != 0))
            __builtin_trap();
        if (!(flags & TOK_PARSE_SPECIAL) && tokenizer_is_control(t, ids[i]) && ids[i] != 0) /* 0: the unknown token */
            __builtin_trap();
        at += len;
    }
    if (exact && at != n)
        __builtin_trap();
    free(ids);
}

static struct tokenizer *good_vocabulary(const char *pre)
{
    struct vocab v = {0};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    vocab_bytes(&v, pre);
    vocab_merge(&v, "a a");
    vocab_merge(&v, "aa aa");
    vocab_merge(&v, "\xc4\xa0 a");
    vocab_token(&v, "<s>", VOCAB_CONTROL);
    vocab_token(&v, "<u>", VOCAB_USER);
    struct vocab_image image = vocab_write(&v);
    vocab_clear(&v);
    if (gguf_open_memory(&g, image.p, image.len, NULL) || tokenizer_open(&t, g, NULL))
        __builtin_trap();
    gguf_close(g);
    free(image.p);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const exact[] = {"gpt-2", "llama-bpe", "gpt-4o", "deepseek-llm", "deepseek-v3"};
    static struct tokenizer *good[5], *qwen;
    const char *text = (const char *)data;
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    log_setup(LOG_ERROR, LOG_TEXT);
    for (int i = 0; i < 5; i++) {
        if (!good[i])
            good[i] = good_vocabulary(exact[i]);
        encode(good[i], text, size, i & 1 ? TOK_PARSE_SPECIAL : 0, true);
    }
    if (!qwen)
        qwen = good_vocabulary("qwen2");
    encode(qwen, text, size, 0, false);
    if (gguf_open_memory(&g, data, size, NULL) == 0 && tokenizer_open(&t, g, NULL) == 0) {
        encode(t, text, size, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, false);
        tokenizer_close(t);
    }
    gguf_close(g);
    return 0;
}
