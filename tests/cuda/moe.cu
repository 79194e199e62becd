/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of an expert layer against the CPU's scalar level, bit for bit: products of all formats over ragged groups,
 * SwiGLU with rounding, the sum over slots, and a whole layer in a row. */
#include "rig.h"

#include <cmath>

static const enum dtype FORMATS[] = { DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
                                      DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4 };

static void put_half(uint8_t *at, uint64_t *s) {
    const uint16_t h = kern_f32_to_f16(rng_float(s, 0.05f));
    memcpy(at, &h, 2);
}

/* n_out rows of n_in weights: any bytes, but scales that are ordinary numbers. Packed. */
static std::vector<uint8_t> random_weights(enum dtype t, uint32_t n_in, uint32_t n_out, uint64_t *s) {
    const struct dtype_info *info = dtype_info((uint32_t)t);
    const size_t row_bytes = dtype_row_bytes(info, n_in);
    std::vector<uint8_t> rows(row_bytes * n_out), packed(rows.size());
    for (uint8_t &b : rows) b = (uint8_t)rng_next(s);
    for (size_t at = 0; at < rows.size(); at += info->block_bytes) {
        uint8_t *b = &rows[at];
        if (t == DTYPE_MXFP4) b[0] = (uint8_t)(rng_next(s) % 50 ? 115 + rng_next(s) % 10 : rng_next(s) % 3); /* 2^-128 too */
        else if (t == DTYPE_Q6_K) put_half(b + 208, s);
        else put_half(b, s);
        if (t == DTYPE_Q4_1 || t == DTYPE_Q5_1 || t == DTYPE_Q4_K || t == DTYPE_Q5_K) put_half(b + 2, s);
    }
    for (uint32_t r = 0; r < n_out; r += 16) kern_pack_rows(t, &rows[r * row_bytes], n_in, &packed[r * row_bytes]);
    return packed;
}

static std::vector<struct kern_q8> random_activations(uint32_t n_rows, uint32_t n_in, uint64_t *s) {
    std::vector<float> x(n_in);
    std::vector<struct kern_q8> q(n_rows * n_in / 32);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (float &v : x) v = rng_float(s, 1) * (rng_next(s) % 40 ? 1 : 30);
        kern_cpu_ops(KERN_SCALAR)->quantize(x.data(), n_in, &q[r * n_in / 32]);
    }
    return q;
}

/* Experts on the device, each in an allocation of its own, and the table of where they lie. */
struct experts {
    std::vector<std::vector<uint8_t>> host;
    std::vector<void *> where;
    device_array<void *> table;
    experts(enum dtype t, uint32_t n, uint32_t n_in, uint32_t n_out, uint64_t *s) : table(n) {
        for (uint32_t e = 0; e < n; e++) {
            host.push_back(random_weights(t, n_in, n_out, s));
            void *p = nullptr;
            if (cudaMalloc(&p, host[e].size()) != cudaSuccess) abort();
            cudaMemcpyAsync(p, host[e].data(), host[e].size(), cudaMemcpyHostToDevice, (cudaStream_t)stream_of_test());
            where.push_back(p);
        }
        table.set(where);
    }
    ~experts() {
        for (void *p : where) cudaFree(p);
    }
};

/* Tokens choose experts: sorted on the device and on the host. */
struct routing {
    uint32_t n_tokens, k, n_experts, n_pairs;
    std::vector<int32_t> ids, first, row_token, pair_row;
    device_array<int32_t> d_ids, d_first, d_row_token, d_pair_row, d_n_tiles, d_scratch;
    device_array<struct kern_dev_tile> d_tiles;
    routing(uint32_t tokens, uint32_t top_k, uint32_t experts, std::vector<int32_t> chosen)
        : n_tokens(tokens), k(top_k), n_experts(experts), n_pairs(tokens * top_k), ids(chosen), first(experts + 1), row_token(n_pairs), pair_row(n_pairs),
          d_ids(ids), d_first(experts + 1), d_row_token(n_pairs), d_pair_row(n_pairs), d_n_tiles(1),
          d_scratch(kern_dev_group_scratch(n_pairs, experts)), d_tiles(kern_dev_max_tiles(n_pairs, experts, KERN_DEV_GEMM_ROWS)) {
        struct kern_moe_group h = { n_tokens, k, n_experts, ids.data(), first.data(), row_token.data(), pair_row.data() };
        struct kern_dev_group d = {};
        kern_moe_group(&h);
        d.n_tokens = n_tokens;
        d.k = k;
        d.n_experts = n_experts;
        d.ids = d_ids.p;
        d.first = d_first.p;
        d.row_token = d_row_token.p;
        d.pair_row = d_pair_row.p;
        d.tile_rows = KERN_DEV_GEMM_ROWS;
        d.tiles = d_tiles.p;
        d.n_tiles = d_n_tiles.p;
        d.scratch = d_scratch.p;
        if (kern_dev_group(&d, stream_of_test()) != ST_OK) abort();
    }
    uint32_t rows() const { return (uint32_t)first[n_experts]; }
};

static int device_gemm(const routing &r, const experts &w, enum dtype t, uint32_t n_in, uint32_t n_out, const struct kern_q8 *x, bool gather, float *y) {
    struct kern_dev_gemm d = {};
    d.dtype = t;
    d.n_in = n_in;
    d.n_out = n_out;
    d.w = (const void *const *)w.table.p;
    d.x = x;
    d.x_stride = n_in / 32;
    d.gather = gather ? r.d_row_token.p : nullptr;
    d.tiles = r.d_tiles.p;
    d.n_tiles = r.d_n_tiles.p;
    d.max_tiles = (uint32_t)r.d_tiles.n;
    d.y = y;
    d.y_stride = n_out;
    return kern_dev_gemm(&d, stream_of_test());
}

static std::vector<float> host_gemm(const routing &r, const experts &w, enum dtype t, uint32_t n_in, uint32_t n_out, const struct kern_q8 *x, bool gather) {
    std::vector<float> y((size_t)r.rows() * n_out);
    for (uint32_t e = 0; e < r.n_experts; e++) {
        struct kern_gemm d = {};
        d.dtype = t;
        d.w = w.host[e].data();
        d.row_bytes = dtype_row_bytes(dtype_info((uint32_t)t), n_in);
        d.packed = true;
        d.n_in = n_in;
        d.n_out = n_out;
        d.x = gather ? x : x + (size_t)r.first[e] * n_in / 32;
        d.x_stride = n_in / 32;
        d.gather = gather ? r.row_token.data() + r.first[e] : nullptr;
        d.n_tokens = (uint32_t)(r.first[e + 1] - r.first[e]);
        d.y = y.data() + (size_t)r.first[e] * n_out;
        d.y_stride = n_out;
        if (d.n_tokens) kern_cpu_ops(KERN_SCALAR)->gemm(&d, 0, n_out);
    }
    return y;
}

static std::vector<int32_t> random_ids(uint32_t n_tokens, uint32_t k, uint32_t n_experts, uint64_t *s) {
    std::vector<int32_t> ids;
    for (uint32_t t = 0; t < n_tokens; t++) {
        std::vector<int32_t> all(n_experts);
        for (uint32_t e = 0; e < n_experts; e++) all[e] = (int32_t)e;
        for (uint32_t j = 0; j < k; j++) {
            std::swap(all[j], all[j + rng_below(s, n_experts - j)]);
            ids.push_back(rng_next(s) % 20 ? all[j] : -1);
        }
    }
    return ids;
}

static void compare_gemm(const char *test_name_, const routing &r, enum dtype t, uint32_t n_in, uint32_t n_out, uint32_t round) {
    uint64_t s = round * 77 + 5;
    const bool gather = round % 2;
    const experts w(t, r.n_experts, n_in, n_out, &s);
    const std::vector<struct kern_q8> x = random_activations(gather ? r.n_tokens : r.n_pairs, n_in, &s);
    const device_array<struct kern_q8> dx(x);
    const device_array<float> y((size_t)r.rows() * n_out);
    order_of_round(round);
    CHECK(device_gemm(r, w, t, n_in, n_out, dx.p, gather, y.p) == ST_OK);
    const std::vector<float> got = y.get(), want = host_gemm(r, w, t, n_in, n_out, x.data(), gather);
    for (size_t i = 0; i < want.size(); i++)
        CHECKF(memcmp(&got[i], &want[i], 4) == 0, "%s, n_in %u, row %zu, column %zu: %a, want %a", dtype_info((uint32_t)t)->name, n_in, i / n_out, i % n_out,
               (double)got[i], (double)want[i]);
}

TEST(products_have_the_cpu_s_bits) {
    uint64_t s = 3;
    uint32_t round = 0;
    for (enum dtype t : FORMATS) {
        const uint32_t block = dtype_info((uint32_t)t)->block_elems;
        for (uint32_t n_in : { block, block == 256 ? 768u : 96u, 2304u }) {
            const uint32_t n_experts = 1 + rng_below(&s, 6), k = 1 + rng_below(&s, n_experts), n_tokens = n_in == 2304 ? 3 : 1 + rng_below(&s, 30);
            const routing r(n_tokens, k, n_experts, random_ids(n_tokens, k, n_experts, &s));
            compare_gemm(test_name_, r, t, n_in, n_in == 2304 ? 16 : 48, round++);
        }
    }
}

TEST(products_of_ragged_groups) {
    const routing all_to_one(37, 1, 4, std::vector<int32_t>(37, 2)), nobody(5, 2, 3, std::vector<int32_t>(10, -1)), one(1, 1, 512, { 511 });
    compare_gemm(test_name_, all_to_one, DTYPE_Q4_K, 256, 32, 1);
    compare_gemm(test_name_, nobody, DTYPE_Q8_0, 64, 16, 0);
    compare_gemm(test_name_, one, DTYPE_MXFP4, 32, 16, 2);
}

TEST(other_formats_are_refused) {
    struct kern_dev_gemm d = {};
    d.dtype = DTYPE_BF16;
    d.n_in = 32;
    d.n_out = 16;
    d.max_tiles = 1;
    CHECK(kern_dev_gemm(&d, stream_of_test()) == ST_UNSUPPORTED);
}

static std::vector<struct kern_q8> host_swiglu(const std::vector<float> &g, const float *u, uint32_t n) {
    const struct kern_ops *cpu = kern_cpu_ops(KERN_SCALAR);
    std::vector<struct kern_q8> q(g.size() / 32);
    std::vector<float> v(n);
    for (size_t at = 0; at < g.size(); at += n) {
        if (u) cpu->swiglu(&g[at], u + at, n, v.data());
        cpu->quantize(u ? v.data() : &g[at], n, &q[at / 32]);
    }
    return q;
}

static std::vector<struct kern_q8> device_swiglu(uint32_t n_rows, uint32_t n, const float *g, const float *u) {
    const device_array<struct kern_q8> y((size_t)n_rows * n / 32);
    struct kern_dev_swiglu d = { n_rows, n, g, u, y.p };
    if (kern_dev_swiglu(&d, stream_of_test()) != ST_OK) abort();
    return y.get();
}

static bool equal_q8(const std::vector<struct kern_q8> &a, const std::vector<struct kern_q8> &b) {
    for (size_t i = 0; i < b.size(); i++)
        if (memcmp(a[i].q, b[i].q, 32) || memcmp(a[i].sum, b[i].sum, 4) || (memcmp(&a[i].d, &b[i].d, 4) && !(a[i].d != a[i].d && b[i].d != b[i].d))) return false;
    return a.size() == b.size();
}

TEST(swiglu_and_rounding_have_the_cpu_s_bits) {
    uint64_t s = 21;
    for (uint32_t round = 0; round < rounds(60); round++) {
        const uint32_t n_rows = rng_below(&s, 7), n = 32 * (1 + rng_below(&s, 24));
        const float spread = (float[]){ 1, 8, 90, 1e-20f, 1e-33f }[round % 5];
        std::vector<float> g(n_rows * n), u(n_rows * n);
        for (float &v : g) v = rng_float(&s, spread);
        for (float &v : u) v = rng_float(&s, spread);
        if (n_rows && round % 7 == 0) g[rng_below(&s, n)] = (float[]){ NAN, INFINITY, -INFINITY }[round % 3];
        const device_array<float> dg(g), du(u);
        order_of_round(round % 5);
        CHECKF(equal_q8(device_swiglu(n_rows, n, dg.p, du.p), host_swiglu(g, u.data(), n)), "round %u", round);
        CHECKF(equal_q8(device_swiglu(n_rows, n, dg.p, nullptr), host_swiglu(g, nullptr, n)), "round %u, plain", round);
    }
}

/* Norm, rounding, gate and up, SwiGLU, down, sum: a layer as the engine walks it, from the same bits to the same bits. */
TEST(a_whole_layer_has_the_cpu_s_bits) {
    enum { D = 256, FF = 96, E = 8, K = 3, T = 21 };
    uint64_t s = 99;
    const struct kern_ops *cpu = kern_cpu_ops(KERN_SCALAR);
    const routing r(T, K, E, random_ids(T, K, E, &s));
    const experts gate(DTYPE_Q4_K, E, D, FF, &s), up(DTYPE_Q5_K, E, D, FF, &s), down(DTYPE_Q5_0, E, FF, D, &s);
    std::vector<float> x(T * D), norm_w(D), w(T * K), normed(T * D);
    for (float &v : x) v = rng_float(&s, 2);
    for (float &v : norm_w) v = rng_float(&s, 1);
    for (float &v : w) v = (float)rng_below(&s, 1000) / 1000;
    const device_array<float> dx(x), dn(norm_w), dw(w), dnormed(T * D), dg(r.rows() * FF), du(r.rows() * FF), dd(r.rows() * D);

    struct kern_dev_rms_norm norm = { T, D, dx.p, dn.p, 1e-6f, dnormed.p };
    CHECK(kern_dev_rms_norm(&norm, stream_of_test()) == ST_OK);
    const device_array<struct kern_q8> dq(device_swiglu(T, D, dnormed.p, nullptr));
    CHECK(device_gemm(r, gate, DTYPE_Q4_K, D, FF, dq.p, true, dg.p) == ST_OK && device_gemm(r, up, DTYPE_Q5_K, D, FF, dq.p, true, du.p) == ST_OK);
    const device_array<struct kern_q8> dh(device_swiglu(r.rows(), FF, dg.p, du.p));
    CHECK(device_gemm(r, down, DTYPE_Q5_0, FF, D, dh.p, false, dd.p) == ST_OK);
    struct kern_dev_combine sum = { T, K, D, r.d_pair_row.p, dw.p, dd.p, dx.p };
    CHECK(kern_dev_combine(&sum, stream_of_test()) == ST_OK);

    for (uint32_t t = 0; t < T; t++) cpu->rms_norm(&x[t * D], norm_w.data(), 1e-6f, D, &normed[t * D]);
    const std::vector<struct kern_q8> q = host_swiglu(normed, nullptr, D);
    const std::vector<float> g = host_gemm(r, gate, DTYPE_Q4_K, D, FF, q.data(), true), u = host_gemm(r, up, DTYPE_Q5_K, D, FF, q.data(), true);
    const std::vector<float> out = host_gemm(r, down, DTYPE_Q5_0, FF, D, host_swiglu(g, u.data(), FF).data(), false);
    for (uint32_t i = 0; i < T * K; i++)
        if (r.pair_row[i] >= 0) cpu->axpy(w[i], &out[(size_t)r.pair_row[i] * D], D, &x[i / K * D]);
    CHECK(memcmp(dx.get().data(), x.data(), x.size() * 4) == 0);
}

int main() {
    RUN(products_have_the_cpu_s_bits);
    RUN(products_of_ragged_groups);
    RUN(other_formats_are_refused);
    RUN(swiglu_and_rounding_have_the_cpu_s_bits);
    RUN(a_whole_layer_has_the_cpu_s_bits);
    return test_failed_;
}
