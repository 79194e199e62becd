/* SPDX-License-Identifier: Apache-2.0
 *
 * The prefix index by itself: what it finds, what it must not find, and that a hash collision cannot share wrong KV. */
#include "test.h"

#include "scheduler/internal.h"
#include "sched_client.h"

enum { PAGE = 4, N_CTX = 64 };

static const struct engine_info info = {.n_ctx = N_CTX, .n_seqs = 8, .page_tokens = PAGE, .n_pages = 64, .n_vocab = 1000};

static struct seq *make(struct job **j, const int32_t *tokens, uint32_t n) {
    struct seq *q = NULL;

    *j = job_new(tokens, n, 8);
    seq__new(&q, &(*j)->r, &info, true);
    return q;
}

static void destroy(struct seq *q, struct job *j) {
    prefix__withdraw(q);
    seq__free(q);
    job_free(j);
}

static void count_up(int32_t *t, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        t[i] = (int32_t)i;
}

TEST(prefix_longest_common_whole_blocks) {
    int32_t t[32];
    struct prefix_index x;
    struct job *ja, *jb;
    struct seq *a, *b, *from;

    count_up(t, 32);
    prefix__init(&x, 64, PAGE);
    a = make(&ja, t, 32);
    t[18] = 999;
    b = make(&jb, t, 32);
    CHECK(prefix__find(&x, b, 31, &from) == 0 && !from);
    a->n_computed = 11; /* two whole blocks */
    prefix__publish(&x, a);
    CHECK(prefix__find(&x, b, 31, &from) == 8 && from == a);
    a->n_computed = 32;
    prefix__publish(&x, a);
    CHECK(prefix__find(&x, b, 31, &from) == 16 && from == a); /* token 18 differs */
    CHECK(prefix__find(&x, b, 15, &from) == 12);
    CHECK(prefix__find(&x, b, 3, &from) == 0);
    prefix__withdraw(a);
    CHECK(prefix__find(&x, b, 31, &from) == 0);
    destroy(a, ja);
    destroy(b, jb);
    prefix__clear(&x);
}

TEST(prefix_same_block_elsewhere_is_not_a_prefix) {
    int32_t t[8] = {1, 2, 3, 4, 1, 2, 3, 4}, u[12] = {9, 9, 9, 9, 1, 2, 3, 4, 5, 5, 5, 5};
    struct prefix_index x;
    struct job *ja, *jb;
    struct seq *a, *b, *from;

    prefix__init(&x, 64, PAGE);
    a = make(&ja, t, 8);
    b = make(&jb, u, 12);
    a->n_computed = 8;
    prefix__publish(&x, a);
    CHECK(prefix__find(&x, b, 11, &from) == 0);
    destroy(a, ja);
    destroy(b, jb);
    prefix__clear(&x);
}

TEST(prefix_collision_shares_nothing) {
    int32_t t[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, u[9] = {1, 2, 3, 4, 5, 6, 7, 0, 9};
    struct prefix_index x;
    struct job *ja, *jb;
    struct seq *a, *b, *from;

    prefix__init(&x, 64, PAGE);
    a = make(&ja, t, 9);
    b = make(&jb, u, 9);
    prefix__hash(&x, a);
    prefix__hash(&x, b);
    CHECK(a->blocks[0].hash == b->blocks[0].hash && a->blocks[1].hash != b->blocks[1].hash);
    b->blocks[1].hash = a->blocks[1].hash; /* forged */
    a->n_computed = 8;
    prefix__publish(&x, a);
    CHECK(prefix__find(&x, b, 8, &from) == 0);
    CHECK(!prefix__covers(&x, a, b) || b->n_published == 0);
    b->n_computed = 8;
    prefix__publish(&x, b);
    CHECK(!prefix__covers(&x, a, b) && !prefix__covers(&x, b, a));
    destroy(a, ja);
    destroy(b, jb);
    prefix__clear(&x);
}

TEST(prefix_random_against_plain_search) {
    enum { N = 12 };
    struct prefix_index x;
    struct job *jobs[N];
    struct seq *seqs[N], *from;
    uint64_t state = 3;

    prefix__init(&x, 1, PAGE); /* few buckets: long chains */
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < N; i++) {
            int32_t t[40];
            uint32_t n = rnd_in(&state, 1, 40);

            for (uint32_t k = 0; k < n; k++)
                t[k] = rnd(&state) % 16 == 0;
            seqs[i] = make(&jobs[i], t, n);
            seqs[i]->n_computed = rnd_in(&state, 0, n);
            prefix__publish(&x, seqs[i]);
        }
        for (int i = 0; i < N; i++) {
            uint32_t most = seqs[i]->n_tokens - 1, want = 0, got;

            for (int k = 0; k < N; k++) {
                uint32_t n = 0, cap = seqs[k]->n_computed / PAGE * PAGE;

                while (k != i && n < cap && n < most && seqs[k]->tokens[n] == seqs[i]->tokens[n])
                    n++;
                want = n / PAGE * PAGE > want ? n / PAGE * PAGE : want;
            }
            got = prefix__find(&x, seqs[i], most, &from);
            CHECKF(got == want, "%u, expected %u", got, want);
            CHECK(got == 0 || from->n_computed >= got);
        }
        for (int i = 0; i < N; i++)
            destroy(seqs[(i * 5) % N], jobs[(i * 5) % N]);
        for (uint64_t i = 0; i <= x.mask; i++)
            CHECK(!x.buckets[i]);
    }
    prefix__clear(&x);
}

int main(void) {
    RUN(prefix_longest_common_whole_blocks);
    RUN(prefix_same_block_elsewhere_is_not_a_prefix);
    RUN(prefix_collision_shares_nothing);
    RUN(prefix_random_against_plain_search);
    return test_failed_;
}
