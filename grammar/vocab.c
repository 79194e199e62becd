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

/* ---- plain tokens ---- */

/* Code points of a plain text, 0 when it is not plain. */
static uint32_t plain_length(const char *s, uint32_t n) {
    uint32_t length = 0, cp;
    for (size_t at = 0; at < n; length++)
        if (!utf8__next(s, n, &at, &cp) || cp < 0x20 || cp == '"' || cp == '\\' || cp == 0x7F) return 0;
    return length;
}

/* Counting sort by length; then the nodes, by how many plain tokens stand before each place of the sorted vocabulary. */
static int find_plain(struct grammar_vocab *v, const struct sortable *tokens, uint32_t n) {
    uint32_t *before = mem_zalloc(n + 1u, sizeof *before);
    v->plain = mem_zalloc(v->n_words, sizeof *v->plain);
    v->plain_ids = mem_zalloc(n + 1u, sizeof *v->plain_ids);
    v->plain_end = mem_zalloc(MAX_TOKEN_BYTES + 2, sizeof *v->plain_end);
    if (!before || !v->plain || !v->plain_ids || !v->plain_end) {
        mem_free(before);
        return ST_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t length = plain_length(tokens[i].bytes, tokens[i].n_bytes);
        before[i + 1] = before[i] + (length > 0);
        if (length == 0) continue;
        v->plain[tokens[i].id / 32] |= 1u << tokens[i].id % 32;
        v->plain_end[length + 1]++;
        v->max_plain = length > v->max_plain ? length : v->max_plain;
    }
    for (uint32_t k = 1; k <= v->max_plain + 1; k++) v->plain_end[k] += v->plain_end[k - 1];
    for (uint32_t i = 0; i < n; i++)
        if (before[i + 1] > before[i]) v->plain_ids[v->plain_end[plain_length(tokens[i].bytes, tokens[i].n_bytes)]++] = tokens[i].id;
    v->n_plain = before[n];
    for (uint32_t i = 1; i < v->n_nodes; i++) {
        uint32_t from = v->nodes[i].tok, to = v->nodes[v->nodes[i].end].tok;
        v->nodes[i].plain = before[to] - before[from] == to - from;
    }
    mem_free(before);
    return ST_OK;
}

/* ---- interface ---- */

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
    if (find_plain(v, s, n_sorted)) goto fail;
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
    mem_free(v->plain);
    mem_free(v->plain_ids);
    mem_free(v->plain_end);
    mem_free(v);
}
