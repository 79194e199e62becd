/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-level BPE, and the merge loop that SentencePiece BPE shares: the symbols of a word in a linked list, the
 * possible merges in a heap ordered by (priority, position). A word of n symbols costs O(n log n), whatever it
 * is made of. An entry of the heap is stale when its symbol has since died or has another pair. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "model/tokenizer_internal.h"

void tokenizer__emit(struct tok_run *r, int32_t id)
{
    if (r->status)
        return;
    if (r->n == r->cap) {
        r->status = ST_LIMIT;
        return;
    }
    r->ids[r->n++] = id;
}

int tokenizer__sym_reserve(struct tok_run *r, size_t n_sym)
{
    if (n_sym <= r->sym_cap)
        return 0;
    size_t cap = n_sym < 64 ? 64 : n_sym + n_sym / 2;
    mem_free(r->sym);
    mem_free(r->heap);
    r->sym_cap = 0;
    r->sym = mem_alloc(cap * sizeof(*r->sym));
    r->heap = mem_alloc(2 * cap * sizeof(*r->heap)); /* n - 1 pairs at first; a merge takes one and adds two */
    if (!r->sym || !r->heap)
        return r->status = ST_NOMEM;
    r->sym_cap = cap;
    return 0;
}

static void heap_push(struct tok_run *r, uint64_t key)
{
    size_t i = r->n_heap++;
    assert(r->n_heap <= 2 * r->sym_cap);
    for (; i > 0 && r->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = key;
}

static uint64_t heap_pop(struct tok_run *r)
{
    uint64_t top = r->heap[0], key = r->heap[--r->n_heap];
    size_t i = 0;
    for (size_t child = 1; child < r->n_heap; child = 2 * i + 1) {
        if (child + 1 < r->n_heap && r->heap[child + 1] < r->heap[child])
            child++;
        if (r->heap[child] >= key)
            break;
        r->heap[i] = r->heap[child];
        i = child;
    }
    r->heap[i] = key;
    return top;
}

/* What symbol i becomes together with the next one, and when. */
static void pair_set(struct tok_run *r, const char *word, size_t n_bytes, int32_t i)
{
    const struct tokenizer *t = r->t;
    struct tok_sym *s = &r->sym[i];
    s->merged = -1;
    if (s->next < 0)
        return;
    const struct tok_sym *next = &r->sym[s->next];
    if (t->kind == TOK_KIND_BPE) {
        const struct tok_merge *m = tokenizer__merge_find(t, s->id, next->id);
        if (m) {
            s->merged = m->id;
            s->prio = m->rank;
        }
    } else {
        size_t end = next->next < 0 ? n_bytes : r->sym[next->next].start;
        s->merged = tokenizer__text_find(t, word + s->start, end - s->start);
        if (s->merged >= 0)
            s->prio = t->prio[s->merged];
    }
    if (s->merged >= 0)
        heap_push(r, (uint64_t)s->prio << 32 | (uint32_t)i);
}

void tokenizer__sym_merge(struct tok_run *r, const char *word, size_t n_bytes, size_t n_sym)
{
    r->n_heap = 0;
    for (size_t i = 0; i < n_sym; i++) {
        r->sym[i].prev = (int32_t)i - 1;
        r->sym[i].next = i + 1 < n_sym ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i < n_sym; i++)
        pair_set(r, word, n_bytes, (int32_t)i);
    while (r->n_heap > 0) {
        uint64_t key = heap_pop(r);
        int32_t i = (int32_t)(uint32_t)key;
        struct tok_sym *s = &r->sym[i];
        if (s->merged < 0 || s->prio != key >> 32)
            continue;
        struct tok_sym *dead = &r->sym[s->next];
        s->id = s->merged;
        s->next = dead->next;
        dead->merged = -1;
        if (s->next >= 0)
            r->sym[s->next].prev = i;
        if (s->prev >= 0)
            pair_set(r, word, n_bytes, s->prev);
        pair_set(r, word, n_bytes, i);
    }
}

void tokenizer__bpe_word(struct tok_run *r, const char *p, size_t n)
{
    const struct tokenizer *t = r->t;
    if (r->status || n == 0)
        return;
    int32_t whole = n == 1 ? t->byte_id[(unsigned char)p[0]] : t->split->ignore_merges ? tokenizer__text_find(t, p, n) : -1;
    if (whole >= 0) {
        tokenizer__emit(r, whole);
        return;
    }
    if (tokenizer__sym_reserve(r, n))
        return;
    for (size_t i = 0; i < n; i++) {
        r->sym[i].start = (uint32_t)i;
        r->sym[i].id = t->byte_id[(unsigned char)p[i]];
    }
    tokenizer__sym_merge(r, p, n, n);
    for (int32_t i = 0; i >= 0; i = r->sym[i].next)
        if (r->sym[i].id >= 0) /* the vocabulary lacks this byte, so it is dropped: see tokenizer.h */
            tokenizer__emit(r, r->sym[i].id);
}

void tokenizer__bpe_text(struct tok_run *r, const char *p, size_t n)
{
    /* The patterns see valid UTF-8 only. Bytes between two valid runs are a word of their own: the references
     * take strings, which cannot hold them, so there is nothing to agree with; decoding gives them back. */
    for (size_t at = 0; at < n && !r->status;) {
        size_t valid = 0, bad = 0, len;
        while ((len = tokenizer__utf8_len(p + at + valid, n - at - valid)) > 0)
            valid += len;
        if (valid > 0) {
            size_t n_norm = valid;
            const char *norm = r->t->split->nfc ? tokenizer__nfc(r, p + at, valid, &n_norm) : p + at;
            tokenizer__split(r, norm, n_norm);
            at += valid;
        }
        while (at + bad < n && tokenizer__utf8_len(p + at + bad, n - at - bad) == 0)
            bad++;
        tokenizer__bpe_word(r, p + at, bad);
        at += bad;
    }
}
