/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds a GGUF that holds only a vocabulary, in memory, for tests of the tokenizer. A test fills a struct vocab;
 * vocab_bytes() starts one with the 256 byte tokens of byte-level BPE. No error handling: a test may abort. */
#ifndef MOED_TESTS_VOCAB_GGUF_H
#define MOED_TESTS_VOCAB_GGUF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf.h"

enum { VOCAB_NORMAL = 1, VOCAB_UNKNOWN, VOCAB_CONTROL, VOCAB_USER, VOCAB_UNUSED, VOCAB_BYTE };

struct vocab_text { char *s; size_t len; };

struct vocab {
    const char *model, *pre; /* NULL leaves the key out */
    struct vocab_text *token;
    int32_t *type;
    float *score;
    size_t n_tokens;
    struct vocab_text *merge;
    size_t n_merges;
    bool no_types, no_scores, no_merges, no_tokens;
    size_t short_types, short_scores; /* how many entries are left out */
    struct { const char *key; uint32_t type; uint64_t value; } extra[16]; /* "bos_token_id" and the like */
    size_t n_extra;
};

struct vocab_image { unsigned char *p; size_t len, cap; };

static inline void vocab_put(struct vocab_image *v, const void *p, size_t n)
{
    if (v->len + n > v->cap) {
        v->cap = (v->len + n) * 2;
        v->p = realloc(v->p, v->cap);
    }
    if (n > 0)
        memcpy(v->p + v->len, p, n);
    v->len += n;
}

static inline void vocab_put_int(struct vocab_image *v, uint64_t value, size_t n_bytes)
{
    vocab_put(v, &value, n_bytes); /* little-endian, as the project's machines are */
}

static inline void vocab_put_str(struct vocab_image *v, const char *s, size_t len)
{
    vocab_put_int(v, len, 8);
    vocab_put(v, s, len);
}

static inline void vocab_put_key(struct vocab_image *v, const char *key, uint32_t type)
{
    char name[128];
    snprintf(name, sizeof(name), "tokenizer.ggml.%s", key);
    vocab_put_str(v, name, strlen(name));
    vocab_put_int(v, type, 4);
}

static inline void vocab_put_array(struct vocab_image *v, const char *key, uint32_t elem, size_t n)
{
    vocab_put_key(v, key, GGUF_ARRAY);
    vocab_put_int(v, elem, 4);
    vocab_put_int(v, n, 8);
}

static inline void vocab_token_n(struct vocab *v, const char *s, size_t len, int32_t type, float score)
{
    size_t n = v->n_tokens++;
    if ((n & (n - 1)) == 0) { /* room doubles: sanitizers copy on every realloc */
        size_t room = n ? 2 * n : 1;
        v->token = realloc(v->token, room * sizeof(*v->token));
        v->type = realloc(v->type, room * sizeof(*v->type));
        v->score = realloc(v->score, room * sizeof(*v->score));
    }
    v->token[n] = (struct vocab_text){malloc(len + 1), len};
    memcpy(v->token[n].s, s, len);
    v->token[n].s[len] = 0;
    v->type[n] = type;
    v->score[n] = score;
}

static inline void vocab_token(struct vocab *v, const char *s, int32_t type)
{
    vocab_token_n(v, s, strlen(s), type, 0);
}

static inline void vocab_merge_n(struct vocab *v, const char *s, size_t len)
{
    size_t n = v->n_merges++;
    if ((n & (n - 1)) == 0)
        v->merge = realloc(v->merge, (n ? 2 * n : 1) * sizeof(*v->merge));
    v->merge[n] = (struct vocab_text){malloc(len + 1), len};
    memcpy(v->merge[n].s, s, len);
}

/* Adds the merge "left right" and the token it gives. */
static inline void vocab_merge(struct vocab *v, const char *pair)
{
    char joined[256];
    size_t cut = strcspn(pair, " ");
    snprintf(joined, sizeof(joined), "%.*s%s", (int)cut, pair, pair + cut + 1);
    vocab_merge_n(v, pair, strlen(pair));
    vocab_token(v, joined, VOCAB_NORMAL);
}

static inline void vocab_extra(struct vocab *v, const char *key, uint32_t type, uint64_t value)
{
    v->extra[v->n_extra].key = key;
    v->extra[v->n_extra].type = type;
    v->extra[v->n_extra++].value = value;
}

/* The byte alphabet of byte-level BPE: byte b is token b. */
static inline void vocab_bytes(struct vocab *v, const char *pre)
{
    unsigned spare = 256;
    v->model = "gpt2";
    v->pre = pre;
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        unsigned cp = printable ? b : spare++;
        char s[3] = {(char)cp, 0, 0};
        if (cp >= 128) {
            s[0] = (char)(0xc0 | cp >> 6);
            s[1] = (char)(0x80 | (cp & 63));
        }
        vocab_token(v, s, VOCAB_NORMAL);
    }
}

static inline void vocab_clear(struct vocab *v)
{
    for (size_t i = 0; i < v->n_tokens; i++)
        free(v->token[i].s);
    for (size_t i = 0; i < v->n_merges; i++)
        free(v->merge[i].s);
    free(v->token);
    free(v->type);
    free(v->score);
    free(v->merge);
    *v = (struct vocab){0};
}

/* The file's bytes; free .p. */
static inline struct vocab_image vocab_write(const struct vocab *v)
{
    struct vocab_image out = {0};
    bool bpe = v->model && strcmp(v->model, "gpt2") == 0;
    uint64_t n_keys = (v->model != NULL) + (v->pre != NULL) + !v->no_tokens + !v->no_types + (!v->no_scores && !bpe) + (!v->no_merges && bpe) + v->n_extra;
    vocab_put(&out, "GGUF", 4);
    vocab_put_int(&out, 3, 4);
    vocab_put_int(&out, 0, 8);
    vocab_put_int(&out, n_keys, 8);
    if (v->model) {
        vocab_put_key(&out, "model", GGUF_STRING);
        vocab_put_str(&out, v->model, strlen(v->model));
    }
    if (v->pre) {
        vocab_put_key(&out, "pre", GGUF_STRING);
        vocab_put_str(&out, v->pre, strlen(v->pre));
    }
    if (!v->no_tokens) {
        vocab_put_array(&out, "tokens", GGUF_STRING, v->n_tokens);
        for (size_t i = 0; i < v->n_tokens; i++)
            vocab_put_str(&out, v->token[i].s, v->token[i].len);
    }
    if (!v->no_types) {
        vocab_put_array(&out, "token_type", GGUF_I32, v->n_tokens - v->short_types);
        vocab_put(&out, v->type, (v->n_tokens - v->short_types) * 4);
    }
    if (!v->no_scores && !bpe) {
        vocab_put_array(&out, "scores", GGUF_F32, v->n_tokens - v->short_scores);
        vocab_put(&out, v->score, (v->n_tokens - v->short_scores) * 4);
    }
    if (!v->no_merges && bpe) {
        vocab_put_array(&out, "merges", GGUF_STRING, v->n_merges);
        for (size_t i = 0; i < v->n_merges; i++)
            vocab_put_str(&out, v->merge[i].s, v->merge[i].len);
    }
    for (size_t i = 0; i < v->n_extra; i++) {
        vocab_put_key(&out, v->extra[i].key, v->extra[i].type);
        vocab_put_int(&out, v->extra[i].value, v->extra[i].type == GGUF_BOOL ? 1 : 4);
    }
    return out;
}

#endif
