/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary as a trie over bytes, depth first in one array, so that a walk reads memory forwards and a subtree is
 * skipped by one jump. Tokens with the same bytes share a node. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/internal.h"

struct sortable { const char *bytes; uint32_t n_bytes; int32_t id; };

static int by_bytes(const void *pa, const void *pb) {
    const struct sortable *a = pa, *b = pb;
    uint32_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    int c = memcmp(a->bytes, b->bytes, n);
    if (c) return c;
    if (a->n_bytes != b->n_bytes) return a->n_bytes < b->n_bytes ? -1 : 1;
    return a->id - b->id;
}

static uint32_t common(const struct sortable *a, const struct sortable *b) {
    uint32_t i = 0;
    while (i < a->n_bytes && i < b->n_bytes && a->bytes[i] == b->bytes[i]) i++;
    return i;
}

/* tokens sorted. With v->nodes NULL only counts. */
static void build_trie(struct grammar_vocab *v, const struct sortable *tokens, uint32_t n) {
    uint32_t path[MAX_TOKEN_BYTES + 1] = { 0 }, depth = 0, n_nodes = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t keep = i ? common(&tokens[i - 1], &tokens[i]) : 0;
        for (; depth > keep; depth--)
            if (v->nodes) v->nodes[path[depth]].end = n_nodes;
        for (; depth < tokens[i].n_bytes; n_nodes++) {
            if (v->nodes) v->nodes[n_nodes] = (struct trie_node){ .tok = i, .byte = (uint8_t)tokens[i].bytes[depth] };
            path[++depth] = n_nodes;
        }
        if (v->nodes) v->ids[i] = tokens[i].id;
    }
    if (v->nodes) {
        for (; depth > 0; depth--) v->nodes[path[depth]].end = n_nodes;
        v->nodes[0] = (struct trie_node){ .end = n_nodes };
        v->nodes[n_nodes] = (struct trie_node){ .end = n_nodes, .tok = n };
    }
    v->n_nodes = n_nodes;
}

static int check(const struct grammar_token *tokens, uint32_t n, uint64_t *n_text, struct err *e) {
    if (n < 1 || n > 1u << 22) return err_set(e, ST_INVALID, "vocabulary: expected 1 to 2^22 tokens, found %u", n);
    *n_text = 0;
    for (uint32_t i = 0; i < n; i++) *n_text += tokens[i].kind == GRAMMAR_TEXT ? tokens[i].n_bytes : 0;
    if (*n_text > UINT32_MAX) return err_set(e, ST_LIMIT, "vocabulary: more than 4 GiB of text");
    return ST_OK;
}

static void fill(struct grammar_vocab *v, const struct grammar_token *tokens, struct sortable *s, uint32_t *n_sorted) {
    uint32_t at = 0, n = 0;
    for (uint32_t i = 0; i < v->n_vocab; i++) {
        const struct grammar_token *t = &tokens[i];
        v->text_at[i] = at;
        v->kind[i] = (uint8_t)t->kind;
        if (t->kind == GRAMMAR_EOG) v->eog[i / 32] |= 1u << i % 32;
        if (t->kind != GRAMMAR_TEXT) v->control[i / 32] |= 1u << i % 32;
        if (t->kind != GRAMMAR_TEXT || t->n_bytes == 0) continue;
        memcpy(v->text + at, t->bytes, t->n_bytes);
        if (t->n_bytes <= MAX_TOKEN_BYTES) {
            s[n++] = (struct sortable){ v->text + at, t->n_bytes, (int32_t)i };
            if (t->n_bytes > v->max_token_bytes) v->max_token_bytes = t->n_bytes;
        }
        at += t->n_bytes;
    }
    v->text_at[v->n_vocab] = at;
    *n_sorted = n;
}

int grammar_vocab_open(struct grammar_vocab **out, const struct grammar_token *tokens, uint32_t n_vocab, struct err *e) {
    uint64_t n_text = 0;
    uint32_t n_sorted = 0;
    int status = check(tokens, n_vocab, &n_text, e);
    if (status) return status;
    struct grammar_vocab *v = mem_zalloc(1, sizeof *v);
    struct sortable *s = mem_zalloc(n_vocab, sizeof *s);
    if (!v || !s) goto fail;
    v->n_vocab = n_vocab;
    v->n_words = (n_vocab + 31) / 32;
    v->ids = mem_zalloc(n_vocab, sizeof *v->ids);
    v->kind = mem_zalloc(n_vocab, 1);
    v->text_at = mem_zalloc(n_vocab + 1u, sizeof *v->text_at);
    v->text = mem_alloc(n_text + 1);
    v->eog = mem_zalloc(v->n_words, sizeof *v->eog);
    v->control = mem_zalloc(v->n_words, sizeof *v->control);
    if (!v->ids || !v->kind || !v->text_at || !v->text || !v->eog || !v->control) goto fail;
    fill(v, tokens, s, &n_sorted);
    qsort(s, n_sorted, sizeof *s, by_bytes);
    build_trie(v, s, n_sorted);
    v->nodes = mem_alloc((v->n_nodes + 1u) * sizeof *v->nodes);
    if (!v->nodes) goto fail;
    build_trie(v, s, n_sorted);
    mem_free(s);
    *out = v;
    return ST_OK;

fail:
    mem_free(s);
    grammar_vocab_close(v);
    return err_set(e, ST_NOMEM, "vocabulary: out of memory for %u tokens", n_vocab);
}

void grammar_vocab_close(struct grammar_vocab *v) {
    if (!v) return;
    mem_free(v->nodes);
    mem_free(v->ids);
    mem_free(v->kind);
    mem_free(v->text_at);
    mem_free(v->text);
    mem_free(v->eog);
    mem_free(v->control);
    mem_free(v);
}
