/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefix reuse: an index of computed KV blocks by content. A block's hash covers all tokens up to its end, so one probe
 * per page tells how far a new prompt agrees with something computed before. The hash only finds candidates; tokens are
 * compared before anything is shared. Blocks are elements of their sequence and linked into buckets, so publishing and
 * withdrawing allocate nothing. E only. */
#include "scheduler/internal.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

int prefix__init(struct prefix_index *x, uint32_t n_pages, uint32_t page_tokens) {
    uint64_t n_buckets = 64;

    while (n_buckets < n_pages)
        n_buckets *= 2;
    *x = (struct prefix_index){.mask = n_buckets - 1, .page_tokens = page_tokens};
    x->seed = clock_mono_ns();
    x->buckets = mem_zalloc(n_buckets, sizeof(struct prefix_block *));
    return x->buckets ? ST_OK : ST_NOMEM;
}

void prefix__clear(struct prefix_index *x) {
    mem_free(x->buckets);
    x->buckets = NULL;
}

static uint64_t hash_block(uint64_t h, const int32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)tokens[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}

void prefix__hash(const struct prefix_index *x, struct seq *q) {
    uint32_t n_blocks = q->n_tokens / x->page_tokens;

    for (uint32_t i = q->n_hashed; i < n_blocks; i++) {
        uint64_t h = i > 0 ? q->blocks[i - 1].hash : x->seed;

        q->blocks[i].hash = hash_block(h, q->tokens + (size_t)i * x->page_tokens, x->page_tokens);
        q->blocks[i].seq = q;
    }
    q->n_hashed = n_blocks;
}

void prefix__publish(struct prefix_index *x, struct seq *q) {
    uint32_t n_blocks = q->n_computed / x->page_tokens;

    if (!q->share || n_blocks <= q->n_published)
        return;
    prefix__hash(x, q);
    for (uint32_t i = q->n_published; i < n_blocks; i++) {
        struct prefix_block *b = &q->blocks[i], **bucket = &x->buckets[b->hash & x->mask];

        b->next = *bucket;
        b->link = bucket;
        if (b->next)
            b->next->link = &b->next;
        *bucket = b;
    }
    q->n_published = n_blocks;
}

void prefix__withdraw(struct seq *q) {
    for (uint32_t i = 0; i < q->n_published; i++) {
        struct prefix_block *b = &q->blocks[i];

        *b->link = b->next;
        if (b->next)
            b->next->link = b->link;
    }
    q->n_published = 0;
}

static bool same_start(const struct seq *a, const struct seq *b, size_t n_tokens) {
    return memcmp(a->tokens, b->tokens, n_tokens * sizeof *a->tokens) == 0;
}

static struct seq *owner_of(const struct prefix_index *x, const struct seq *q, uint32_t i_block) {
    uint64_t h = q->blocks[i_block].hash;

    for (struct prefix_block *b = x->buckets[h & x->mask]; b; b = b->next)
        if (b->hash == h && b->seq != q && b == &b->seq->blocks[i_block])
            return b->seq;
    return NULL;
}

uint32_t prefix__find(const struct prefix_index *x, struct seq *q, uint32_t max_tokens, struct seq **from) {
    uint32_t n_blocks = max_tokens / x->page_tokens, n = 0;

    *from = NULL;
    prefix__hash(x, q);
    /* whoever has a block has all before it, so the first miss ends the search */
    while (n < n_blocks) {
        struct seq *owner = owner_of(x, q, n);

        if (!owner)
            break;
        *from = owner;
        n++;
    }
    if (n > 0 && !same_start(q, *from, (size_t)n * x->page_tokens))
        n = 0; /* a collision: forgo the reuse */
    return n * x->page_tokens;
}

bool prefix__covers(const struct prefix_index *x, const struct seq *b, const struct seq *a) {
    uint32_t n = a->n_published;

    return n == 0 || (n <= b->n_published && a->blocks[n - 1].hash == b->blocks[n - 1].hash &&
                      same_start(a, b, (size_t)n * x->page_tokens));
}
