/* SPDX-License-Identifier: Apache-2.0
 *
 * Paged KV against a model: thousands of random reserve / write / fork / free operations; after each the page
 * counts must be what plain sets of pages say, shared pages must not be writable, and at the end nothing is left. */
#include "tests/unit/test.h"

#include <stdlib.h>

#include "engine/internal.h"

enum { N_SEQS = 9, N_PAGES = 40, N_CTX = 400, MAX_PAGES = 13 };

static uint64_t rng_state;
static uint32_t rnd(uint32_t n) {
    rng_state = rng_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(rng_state >> 33) % n;
}

static void *kv_open(struct engine__kv *kv) {
    struct engine__kv_shape shape = {
        .n_seqs = N_SEQS, .n_pages = N_PAGES, .n_ctx = N_CTX, .n_layers = 2, .k_page_bytes = 256, .v_page_bytes = 128,
    };
    struct engine__carver c = { 0 };
    engine__kv_init(kv, &shape, &c);
    void *block = aligned_alloc(64, (c.used + 63) / 64 * 64);
    memset(block, 0, c.used);
    c = (struct engine__carver){ .base = block };
    engine__kv_init(kv, &shape, &c);
    return block;
}

/* The model: what each sequence must hold, kept apart from the code under test. */
struct ref { int32_t page[MAX_PAGES]; uint32_t n_pages, n_done; };

static uint32_t distinct_pages(const struct ref *refs) {
    uint8_t used[N_PAGES] = { 0 };
    uint32_t n = 0;
    for (int s = 0; s < N_SEQS; s++) {
        for (uint32_t i = 0; i < refs[s].n_pages; i++) {
            n += !used[refs[s].page[i]]++;
        }
    }
    return n;
}

static uint32_t holders(const struct ref *refs, int32_t page) {
    uint32_t n = 0;
    for (int s = 0; s < N_SEQS; s++) {
        for (uint32_t i = 0; i < refs[s].n_pages; i++) {
            n += refs[s].page[i] == page;
        }
    }
    return n;
}

static int do_reserve(struct engine__kv *kv, struct ref *refs, seq_id id, uint32_t n_tokens) {
    uint32_t want = (n_tokens + 31) / 32, have = refs[id].n_pages;
    int expect = want > MAX_PAGES ? ST_INVALID
               : want > have && want - have > N_PAGES - distinct_pages(refs) ? ST_KV_FULL
                                                                             : ST_OK;
    if (engine__kv_reserve(kv, id, n_tokens) != expect) {
        return -1;
    }
    for (uint32_t i = have; expect == ST_OK && i < want; i++) {
        int32_t page = engine__kv_table(kv, id)[i];
        if (page < 0 || page >= N_PAGES || holders(refs, page)) {
            return -1; /* handed out twice */
        }
        refs[id].page[i] = page;
        refs[id].n_pages = i + 1;
    }
    return 0;
}

static int do_write(struct engine__kv *kv, struct ref *refs, seq_id id) {
    struct ref *r = &refs[id];
    uint32_t pos = rnd(r->n_done + 2), n = 1 + rnd(60);
    bool expect = pos <= r->n_done && pos + n <= r->n_pages * 32;
    for (uint32_t i = pos / 32; expect && i < (pos + n + 31) / 32; i++) {
        expect = holders(refs, r->page[i]) == 1;
    }
    if (engine__kv_writable(kv, id, pos, n) != expect) {
        return -1;
    }
    if (expect) {
        r->n_done = kv->n_done[id] = pos + n;
    }
    return 0;
}

static int do_fork(struct engine__kv *kv, struct ref *refs, seq_id from, seq_id to) {
    uint32_t n = rnd(8) ? rnd(refs[from].n_done / 32 + 2) * 32 : rnd(200);
    bool ok = from != to && refs[to].n_pages == 0 && n % 32 == 0 && n <= refs[from].n_done;
    if (engine__kv_fork(kv, from, to, n) != (ok ? ST_OK : ST_INVALID)) {
        return -1;
    }
    if (ok) {
        refs[to] = refs[from];
        refs[to].n_pages = n / 32;
        refs[to].n_done = n;
    }
    return 0;
}

TEST(random_operations) {
    struct engine__kv kv;
    void *block = kv_open(&kv);
    struct ref refs[N_SEQS] = { 0 };
    uint32_t n_full = 0, n_shared = 0;
    rng_state = 7;
    for (int step = 0; step < 60000; step++) {
        seq_id id = rnd(N_SEQS);
        uint32_t op = rnd(10), before = N_PAGES - distinct_pages(refs);
        if (op < 4) {
            CHECK(do_reserve(&kv, refs, id, refs[id].n_done + rnd(rnd(20) ? 120 : 900)) == 0);
            n_full += before == N_PAGES - distinct_pages(refs);
        } else if (op < 8) {
            CHECK(do_write(&kv, refs, id) == 0);
        } else if (op == 8) {
            CHECK(do_fork(&kv, refs, id, rnd(N_SEQS)) == 0);
        } else {
            engine__kv_free(&kv, id);
            refs[id] = (struct ref){ 0 };
        }
        for (uint32_t i = 0; i < refs[id].n_pages; i++) {
            CHECK(engine__kv_table(&kv, id)[i] == refs[id].page[i]);
            n_shared += holders(refs, refs[id].page[i]) > 1;
        }
        CHECK(kv.n_free == N_PAGES - distinct_pages(refs));
        CHECK(engine__kv_consistent(&kv));
    }
    CHECK(n_full > 100 && n_shared > 100); /* the run did reach the interesting states */
    for (seq_id id = 0; id < N_SEQS; id++) {
        engine__kv_free(&kv, id);
    }
    CHECK(kv.n_free == N_PAGES);
    CHECK(engine__kv_consistent(&kv));
    free(block);
}

TEST(bad_ids_and_sizes) {
    struct engine__kv kv;
    void *block = kv_open(&kv);
    CHECK(engine__kv_reserve(&kv, N_SEQS, 1) == ST_INVALID);
    CHECK(engine__kv_reserve(&kv, 0, UINT32_MAX) == ST_INVALID);
    CHECK(engine__kv_fork(&kv, N_SEQS, 0, 0) == ST_INVALID);
    CHECK(!engine__kv_writable(&kv, N_SEQS, 0, 1));
    CHECK(engine__kv_reserve(&kv, 0, 64) == ST_OK);
    CHECK(!engine__kv_writable(&kv, 0, 0, 0));
    CHECK(!engine__kv_writable(&kv, 0, 0, UINT32_MAX));
    CHECK(!engine__kv_writable(&kv, 0, 1, 1)); /* a hole */
    CHECK(engine__kv_writable(&kv, 0, 0, 64));
    engine__kv_free(&kv, N_SEQS); /* no-ops */
    engine__kv_free(&kv, 1);
    CHECK(engine__kv_consistent(&kv));
    free(block);
}

TEST(layers_do_not_overlap) {
    struct engine__kv kv;
    void *block = kv_open(&kv);
    memset(engine__kv_k(&kv, 0), 1, N_PAGES * 256);
    memset(engine__kv_v(&kv, 0), 2, N_PAGES * 128);
    memset(engine__kv_k(&kv, 1), 3, N_PAGES * 256);
    memset(engine__kv_v(&kv, 1), 4, N_PAGES * 128);
    for (int i = 0; i < N_PAGES * 256; i++) {
        CHECK(((char *)engine__kv_k(&kv, 0))[i] == 1 && ((char *)engine__kv_k(&kv, 1))[i] == 3);
    }
    for (int i = 0; i < N_PAGES * 128; i++) {
        CHECK(((char *)engine__kv_v(&kv, 0))[i] == 2 && ((char *)engine__kv_v(&kv, 1))[i] == 4);
    }
    CHECK(engine__kv_consistent(&kv));
    free(block);
}

int main(void) {
    RUN(random_operations);
    RUN(bad_ids_and_sizes);
    RUN(layers_do_not_overlap);
    return test_failed_;
}
