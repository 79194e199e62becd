/* SPDX-License-Identifier: Apache-2.0
 *
 * kern_dev_group against kern_moe_group, and the list of tiles against its definition. All is exact. */
#include "rig.h"

static void compare(const char *test_name_, uint32_t n_tokens, uint32_t k, uint32_t n_experts, const std::vector<int32_t> &ids, uint32_t tile_rows, uint32_t round) {
    const uint32_t n_pairs = n_tokens * k, max_tiles = kern_dev_max_tiles(n_pairs, n_experts, tile_rows);
    device_array<int32_t> d_ids(ids), first(n_experts + 1), row_token(n_pairs), pair_row(n_pairs), n_tiles(1);
    device_array<int32_t> scratch(kern_dev_group_scratch(n_pairs, n_experts));
    device_array<struct kern_dev_tile> tiles(max_tiles);
    struct kern_dev_group d = {};
    d.n_tokens = n_tokens;
    d.k = k;
    d.n_experts = n_experts;
    d.ids = d_ids.p;
    d.first = first.p;
    d.row_token = row_token.p;
    d.pair_row = pair_row.p;
    d.tile_rows = tile_rows;
    d.tiles = tiles.p;
    d.n_tiles = n_tiles.p;
    d.scratch = scratch.p;
    order_of_round(round);
    CHECK(kern_dev_group(&d, stream_of_test()) == ST_OK);

    std::vector<int32_t> want_first(n_experts + 1), want_token(n_pairs), want_row(n_pairs);
    struct kern_moe_group h = {};
    h.n_tokens = n_tokens;
    h.k = k;
    h.n_experts = n_experts;
    h.ids = ids.data();
    h.first = want_first.data();
    h.row_token = want_token.data();
    h.pair_row = want_row.data();
    kern_moe_group(&h);
    CHECK(first.get() == want_first && pair_row.get() == want_row);
    std::vector<int32_t> got = row_token.get();
    got.resize((size_t)want_first[n_experts]); /* beyond, nothing is written */
    want_token.resize(got.size());
    CHECK(got == want_token);

    if (!tile_rows) return;
    const std::vector<struct kern_dev_tile> t = tiles.get();
    uint32_t at = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        for (int32_t row = want_first[e]; row < want_first[e + 1]; row += (int32_t)tile_rows, at++) {
            const int32_t left = want_first[e + 1] - row, n = left < (int32_t)tile_rows ? left : (int32_t)tile_rows;
            CHECKF(at < max_tiles, "%u tiles are too few for %u pairs", max_tiles, n_pairs);
            CHECK(t[at].expert == (int32_t)e && t[at].first == row && t[at].n == n);
        }
    }
    CHECK((uint32_t)n_tiles.get()[0] == at);
}

TEST(group_equals_cpu_on_random_shapes) {
    uint64_t s = 7;
    for (uint32_t round = 0; round < rounds(150); round++) {
        const uint32_t k = 1 + (uint32_t)rng_next(&s) % 16, n_tokens = (uint32_t)rng_next(&s) % (round % 8 ? 70 : 400);
        const uint32_t n_experts = 1 + (uint32_t)rng_next(&s) % (round % 4 ? 64 : 512);
        const uint32_t used = 1 + (uint32_t)rng_next(&s) % n_experts, empty = (uint32_t)rng_next(&s) % 3;
        std::vector<int32_t> ids(n_tokens * k);
        for (int32_t &id : ids) id = empty && rng_next(&s) % 8 < empty ? -1 : (int32_t)(rng_next(&s) % used);
        compare(test_name_, n_tokens, k, n_experts, ids, (uint32_t[]){ 0, 8, 16, 64 }[rng_next(&s) % 4], round);
    }
}

TEST(group_edge_shapes) {
    compare(test_name_, 0, 8, 128, {}, 16, 0); /* no token */
    std::vector<int32_t> ids(4096, 63);
    compare(test_name_, 512, 8, 64, ids, 16, 1); /* one expert takes all */
    ids.assign(4096, -1);
    compare(test_name_, 512, 8, 64, ids, 16, 2); /* nobody wants any */
    ids.assign(1024, 0);
    compare(test_name_, 128, 8, 1, ids, 8, 3); /* exactly one chunk */
    ids.assign(1025, 0);
    compare(test_name_, 1025, 1, 1, ids, 8, 4); /* and one more */
    for (uint32_t i = 0; i < 1025; i++) ids[i] = (int32_t)(1023 - i % 1024);
    compare(test_name_, 1025, 1, 1024, ids, 8, 5);
    ids.resize(10240);
    for (uint32_t i = 0; i < ids.size(); i++) ids[i] = (int32_t)(i * 7 % 512);
    compare(test_name_, 640, 16, 512, ids, 32, 6);
}

/* The worst case of the bound: every expert's last tile has one row. */
TEST(tiles_fit_their_bound) {
    for (uint32_t rows = 1; rows <= 16; rows *= 4) {
        std::vector<int32_t> ids;
        for (uint32_t e = 0; e < 32; e++)
            for (uint32_t i = 0; i < 3 * rows + 1; i++) ids.push_back((int32_t)e);
        compare(test_name_, (uint32_t)ids.size(), 1, 32, ids, rows, rows);
    }
}

int main() {
    RUN(group_equals_cpu_on_random_shapes);
    RUN(group_edge_shapes);
    RUN(tiles_fit_their_bound);
    return test_failed_;
}
