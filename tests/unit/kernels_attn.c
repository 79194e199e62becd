/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention: the scalar level against a double-precision oracle that knows nothing of pages, blocks, segments or online
 * softmax; every other level against the scalar one, bit for bit; and the invariances of each (chunking, company, segments
 * computed apart). The KV store of every level against the scalar conversions. */
#include "test.h"

#include <stdlib.h>

#include "kernels_level.h"
#include "kernels_rand.h"

enum { MAX_POS = 300, MAX_LONG = 2 * KERN_ATTN_SEGMENT + 200, MAX_HEADS = 24, MAX_DIM = 272,
       MAX_FLOATS = MAX_POS * MAX_HEADS * MAX_DIM };

/* One sequence with its own shuffled pages in a pool; unused slots of the pool hold NaN. */
struct world {
    struct kern_attn d;
    uint32_t n_pos;
    float k_size, v_size, q_size; /* 0: 1 */
    int32_t pages[MAX_LONG];
    float *k, *v;  /* [n_pos][n_kv_heads][dim], the values after rounding to the KV type */
    float *q, *out;
    void *k_pool, *v_pool;
};

static float q_[MAX_FLOATS + 16], out_[MAX_FLOATS + 16], again_[MAX_FLOATS + 16];
static float k_[MAX_FLOATS], v_[MAX_FLOATS];
static float k_pool_[2 * MAX_FLOATS], v_pool_[2 * MAX_FLOATS];
static float scratch_[1 << 17] __attribute__((aligned(64)));

/* x [n] after rounding to the KV type, the same way as the cache documents it. */
static void round_row(enum kern_kv_type t, float *x, uint32_t n) {
    float max = 0;
    for (uint32_t i = 0; i < n; i++) max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    for (uint32_t i = 0; i < n; i++) {
        if (t == KERN_KV_F16) x[i] = kern_f16_to_f32(kern_f32_to_f16(x[i]));
        if (t == KERN_KV_BF16) x[i] = kern_bf16_to_f32(kern_f32_to_bf16(x[i]));
        if (t == KERN_KV_Q8) x[i] = rintf(x[i] * (127.0f / max)) * (max / 127.0f);
    }
}

static float sized(uint64_t *s, float size) {
    return rng_normal(s) * (size != 0 ? size : 1);
}

static void world_make(const char *test_name_, struct world *w, const struct kern_ops *ops, uint64_t *s) {
    struct kern_attn *d = &w->d;
    struct kern_kv_store st = { .kv_type = d->kv_type, .k = k_pool_, .v = v_pool_, .page_tokens = d->page_tokens,
                                .n_kv_heads = d->n_kv_heads, .head_dim_k = d->head_dim_k, .head_dim_v = d->head_dim_v };
    uint32_t n_pages = (w->n_pos + d->page_tokens - 1) / d->page_tokens, nk = d->n_kv_heads * d->head_dim_k,
             nv = d->n_kv_heads * d->head_dim_v;
    const size_t k_bytes = n_pages * kern_kv_page_bytes(d->kv_type, d->page_tokens, d->n_kv_heads, d->head_dim_k);
    const size_t v_bytes = n_pages * kern_kv_page_bytes(d->kv_type, d->page_tokens, d->n_kv_heads, d->head_dim_v);
    CHECK(k_bytes <= sizeof k_pool_ && v_bytes <= sizeof v_pool_);
    memset(k_pool_, 0xFF, k_bytes); /* NaN in all types: of Q8, the scales */
    memset(v_pool_, 0xFF, v_bytes);
    for (uint32_t i = 0; i < n_pages; i++) w->pages[i] = (int32_t)i;
    for (uint32_t i = n_pages - 1; i > 0; i--) {
        uint32_t j = rng_below(s, i + 1);
        int32_t t = w->pages[i];
        w->pages[i] = w->pages[j];
        w->pages[j] = t;
    }
    for (uint32_t p = 0; p < w->n_pos; p++) {
        for (uint32_t i = 0; i < nk; i++) k_[p * nk + i] = sized(s, w->k_size);
        for (uint32_t i = 0; i < nv; i++) v_[p * nv + i] = sized(s, w->v_size);
        ops->kv_store(&st, w->pages[p / d->page_tokens], p % d->page_tokens, k_ + p * nk, v_ + p * nv);
        for (uint32_t h = 0; h < d->n_kv_heads; h++) {
            round_row(d->kv_type, k_ + p * nk + h * d->head_dim_k, d->head_dim_k);
            round_row(d->kv_type, v_ + p * nv + h * d->head_dim_v, d->head_dim_v);
        }
    }
    d->k = k_pool_;
    d->v = v_pool_;
    d->pages = w->pages;
    d->scale = 1 / sqrtf((float)d->head_dim_k);
    d->q_stride = d->n_heads * d->head_dim_k + rng_below(s, 3);
    d->out_stride = d->n_heads * d->head_dim_v + rng_below(s, 3);
    d->scratch = scratch_;
    w->q = q_ + rng_below(s, 16);
    w->out = out_ + rng_below(s, 16);
    for (uint32_t i = 0; i < w->n_pos * d->q_stride; i++) w->q[i] = sized(s, w->q_size);
}

/* out for positions [p0, p1), calls of at most `chunk` tokens. q and out rows are indexed by position. */
static void run(const struct world *w, kern_attn_fn attn, uint32_t p0, uint32_t p1, uint32_t chunk, float *out) {
    for (uint32_t p = p0; p < p1; p += chunk) {
        struct kern_attn d = w->d;
        d.pos0 = p;
        d.n_tokens = p1 - p < chunk ? p1 - p : chunk;
        d.q = w->q + p * d.q_stride;
        d.out = out + p * d.out_stride;
        for (uint32_t h = 0; h < d.n_kv_heads; h++) attn(&d, h);
    }
}

static double max_abs(const float *x, uint32_t n) {
    double max = 0;
    for (uint32_t i = 0; i < n; i++) max = fmax(max, fabs((double)x[i]));
    return max;
}

/* Q8: what half a unit of every 16-bit q costs a score at most. */
static double q_rounding(const struct kern_attn *d, const float *q, uint32_t kv, uint32_t pos) {
    double most = fmin(32767, INT32_MAX / 127 / d->head_dim_k), worst = 0;
    for (uint32_t j = 0; j <= pos; j++) {
        double sum = 0;
        for (uint32_t i = 0; i < d->head_dim_k; i++) sum += fabs((double)k_[(j * d->n_kv_heads + kv) * d->head_dim_k + i]);
        worst = fmax(worst, sum);
    }
    return worst * 0.5 * max_abs(q, d->head_dim_k) / most * (double)d->scale;
}

/* Worst |out - truth| over the head, as a share of the bound in check_truth. */
static double head_error(const struct world *w, uint32_t pos, uint32_t head, const float *out) {
    static double p[MAX_LONG], v_scale[MAX_LONG];
    const struct kern_attn *d = &w->d;
    uint32_t kv = head / (d->n_heads / d->n_kv_heads);
    const float *q = w->q + pos * d->q_stride + head * d->head_dim_k;
    double max = -INFINITY, sum = 0, score_slack = 0, worst = 0;
    for (uint32_t j = 0; j <= pos; j++) {
        double dot = 0, mag = 0;
        for (uint32_t i = 0; i < d->head_dim_k; i++) {
            double x = (double)q[i] * (double)k_[(j * d->n_kv_heads + kv) * d->head_dim_k + i];
            dot += x;
            mag += fabs(x);
        }
        p[j] = dot * (double)d->scale;
        if (p[j] > max) max = p[j];
        if (mag > score_slack) score_slack = mag;
    }
    /* A score is off by (dim/8 + 6 + 1) roundings of sum |q k| at most, weights relatively by twice that (the
     * maximum moves too) plus exp (2 eps); the accumulation adds one rounding per key at most. */
    score_slack *= (double)d->scale * (d->head_dim_k / 8.0 + 7) * 0x1p-24;
    double unit = 0, unit_w = 0; /* Q8: half a unit of a 16-bit weight, as a share of the block's largest w = p * v_scale */
    if (d->kv_type == KERN_KV_Q8) {
        score_slack += q_rounding(d, q, kv, pos);
        unit = 0.5 / 32767;
    }
    for (uint32_t j = 0; j <= pos; j++) sum += p[j] = exp(p[j] - max);
    for (uint32_t j = 0; j <= pos; j++) {
        v_scale[j] = max_abs(v_ + (j * d->n_kv_heads + kv) * d->head_dim_v, d->head_dim_v) / 127;
        unit_w = fmax(unit_w, unit * p[j] / sum * v_scale[j]);
    }
    for (uint32_t i = 0; i < d->head_dim_v; i++) {
        double want = 0, mag = 0, codes = 0;
        for (uint32_t j = 0; j <= pos; j++) {
            double x = p[j] / sum * (double)v_[(j * d->n_kv_heads + kv) * d->head_dim_v + i];
            want += x;
            mag += fabs(x);
            codes += fabs((double)v_[(j * d->n_kv_heads + kv) * d->head_dim_v + i]) / v_scale[j];
        }
        double bound = mag * (4 * score_slack + (pos + 8.0) * 0x1p-24) + unit_w * codes;
        double e = fabs((double)out[pos * d->out_stride + head * d->head_dim_v + i] - want) / bound;
        if (!(e <= worst)) worst = e;
    }
    return worst;
}

static struct world random_world(uint64_t *s, int round) {
    static const uint32_t DIMS[] = { 128, 64, 80, 96, 8, 16, 24, 256, 192, 32, 5, 1, 17, 100 };
    static const uint32_t PAGES[] = { 32, 16, 1, 64, 7, 40, 33, 128 };
    struct world w = { .n_pos = 1 + rng_below(s, round % 8 ? 90 : MAX_POS) };
    static const uint32_t GROUPS[] = { 1, 2, 3, 4, 5, 6, 8, 8, 16, 13 };
    uint32_t group = GROUPS[rng_below(s, 10)];
    if (round % 14 == 13) { /* more heads per kv head than a row group holds */
        group = 65 + rng_below(s, 20);
        w.n_pos = 1 + rng_below(s, 20);
    }
    w.d.kv_type = (enum kern_kv_type)rng_below(s, 4);
    w.d.n_kv_heads = group > 6 ? 1 : 1 + rng_below(s, 2);
    w.d.n_heads = w.d.n_kv_heads * group;
    w.d.head_dim_k = DIMS[round % 14];
    w.d.head_dim_v = rng_below(s, 3) ? w.d.head_dim_k : DIMS[rng_below(s, 14)];
    w.d.page_tokens = PAGES[rng_below(s, 8)];
    return w;
}

static void level_truth(const char *test_name_, const struct kern_ops *ops) {
    uint64_t s = 21;
    for (int round = 0; round < 56; round++) {
        struct world w = random_world(&s, round);
        world_make(test_name_, &w, ops, &s);
        CHECK(kern_attn_scratch_floats(&w.d) + 1 < sizeof scratch_ / sizeof *scratch_);
        scratch_[kern_attn_scratch_floats(&w.d)] = 321;
        run(&w, ops->attn, 0, w.n_pos, w.n_pos, w.out);
        for (uint32_t p = 0; p < w.n_pos; p += w.n_pos < 40 ? 1 : 13)
            for (uint32_t h = 0; h < w.d.n_heads; h++) {
                double e = head_error(&w, p, h, w.out);
                CHECKF(e <= 1, "type %d dims %u/%u page %u heads %u/%u pos %u head %u: %g of the bound", w.d.kv_type,
                       w.d.head_dim_k, w.d.head_dim_v, w.d.page_tokens, w.d.n_heads, w.d.n_kv_heads, p, h, e);
            }
        CHECK(scratch_[kern_attn_scratch_floats(&w.d)] == 321);
    }
}

/* The same rows token by token, in random chunks and in one call: the same bits. The pool's slots past the last
 * stored position are NaN, so a kernel that touches the future of the sequence shows. */
static void level_invariance(const char *test_name_, const struct kern_ops *ops) {
    uint64_t s = 22;
    for (int round = 0; round < 28; round++) {
        struct world w = random_world(&s, round);
        world_make(test_name_, &w, ops, &s);
        memset(w.out, 0, w.n_pos * w.d.out_stride * sizeof(float)); /* gaps between rows must compare equal */
        memset(again_, 0, w.n_pos * w.d.out_stride * sizeof(float));
        run(&w, ops->attn, 0, w.n_pos, w.n_pos, w.out);
        run(&w, ops->attn, 0, w.n_pos, 1, again_);
        CHECKF(memcmp(w.out, again_, w.n_pos * w.d.out_stride * sizeof(float)) == 0, "one by one, round %d", round);
        for (int split = 0; split < 2; split++) {
            memset(again_, 0, w.n_pos * w.d.out_stride * sizeof(float));
            for (uint32_t p = 0, n; p < w.n_pos; p += n) {
                n = 1 + rng_below(&s, w.n_pos - p < 50 ? w.n_pos - p : 50);
                run(&w, ops->attn, p, p + n, n, again_);
            }
            CHECKF(memcmp(w.out, again_, w.n_pos * w.d.out_stride * sizeof(float)) == 0, "chunks, round %d", round);
        }
    }
}

/* Sizes from subnormal to where scores overflow, and faults in q: the bits of the scalar level. */
static void level_equal(const char *test_name_, const struct kern_ops *ops) {
    static const float Q[] = { 1, 30, 1e4f, 0x1p-130f, 1e30f, 1 }, K[] = { 1, 1, 100, 0x1p-120f, 1e9f, 0x1p-10f }, V[] = { 1, 1e-3f, 1e30f, 0x1p-140f, 1, 1e4f };
    const struct kern_ops *ref = kern_cpu_ops(KERN_SCALAR);
    uint64_t s = 26;
    for (int round = 0; round < 84; round++) {
        struct world w = random_world(&s, round);
        const int kind = round % 4 ? 0 : (int)rng_below(&s, 6);
        w.q_size = Q[kind], w.k_size = K[kind], w.v_size = V[kind];
        world_make(test_name_, &w, ops, &s);
        if (round % 12 == 0) w.q[rng_below(&s, w.n_pos * w.d.q_stride)] = round % 24 ? NAN : INFINITY;
        const uint32_t p0 = w.n_pos > 40 ? rng_below(&s, w.n_pos - 40) : 0, p1 = w.n_pos > 40 ? p0 + 40 : w.n_pos, n = (p1 - p0) * w.d.out_stride;
        memset(w.out + p0 * w.d.out_stride, 0, n * sizeof(float)); /* gaps between rows must compare equal */
        memset(again_, 0, w.n_pos * w.d.out_stride * sizeof(float));
        run(&w, ops->attn, p0, p1, 1 + rng_below(&s, 40), w.out);
        run(&w, ref->attn, p0, p1, 40, again_);
        CHECKF(first_difference(w.out + p0 * w.d.out_stride, again_ + p0 * w.d.out_stride, n) == n, "round %d: type %d dims %u/%u page %u heads %u/%u sizes %d",
               round, w.d.kv_type, w.d.head_dim_k, w.d.head_dim_v, w.d.page_tokens, w.d.n_heads, w.d.n_kv_heads, kind);
    }
}

/* Scores far apart: the weight is all on one key, whose value must come out exactly; and equal scores. */
static void level_extremes(const char *test_name_, const struct kern_ops *ops) {
    uint64_t s = 23;
    struct world w = { .n_pos = 100 };
    w.d = (struct kern_attn){ .kv_type = KERN_KV_F32, .n_heads = 4, .n_kv_heads = 1, .head_dim_k = 64,
                              .head_dim_v = 64, .page_tokens = 32 };
    world_make(test_name_, &w, ops, &s);
    for (uint32_t i = 0; i < 64; i++) w.q[99 * w.d.q_stride + i] = 1e4f * k_[41 * 64 + i]; /* head 0 wants key 41 */
    for (uint32_t i = 0; i < 64; i++) w.q[99 * w.d.q_stride + 64 + i] = 0;                 /* head 1 wants all equally */
    run(&w, ops->attn, 99, 100, 1, w.out);
    const float *out = w.out + 99 * w.d.out_stride;
    for (uint32_t i = 0; i < 64; i++) {
        double mean = 0;
        for (uint32_t j = 0; j < 100; j++) mean += (double)v_[j * 64 + i] / 100;
        CHECK(out[i] == v_[41 * 64 + i]);
        CHECK(fabs((double)out[64 + i] - mean) < 1e-5);
    }
    w.q[99 * w.d.q_stride + 128] = NAN; /* a fault stays visible, in its own head only */
    run(&w, ops->attn, 99, 100, 1, w.out);
    CHECK(isnan(out[128]) && isnan(out[128 + 63]) && isfinite(out[0]) && isfinite(out[64]) && isfinite(out[192]));
}

/* Around the borders of the segments: alone, in one call, and from parts computed in reverse order. */
static void level_segments(const char *test_name_, const struct kern_ops *ops) {
    static float parts[1 << 16];
    static const uint32_t SPANS[][2] = { { 1, 9 }, { 1018, 1024 }, { 1020, 1035 }, { 1024, 1025 }, { 2040, 2055 }, { 2048, 2049 }, { 2100, 2116 } };
    uint64_t s = 24;
    for (int round = 0; round < 8; round++) {
        struct world w = { .n_pos = MAX_LONG };
        w.d = (struct kern_attn){ .kv_type = (enum kern_kv_type)(round % 4), .n_heads = round < 4 ? 8 : 3, .n_kv_heads = 1,
                                  .head_dim_k = 32, .head_dim_v = round < 4 ? 32 : 40, .page_tokens = round % 2 ? 32 : 33 };
        world_make(test_name_, &w, ops, &s);
        for (size_t c = 0; c < sizeof SPANS / sizeof *SPANS; c++) {
            uint32_t p0 = SPANS[c][0], p1 = SPANS[c][1];
            size_t at = p0 * w.d.out_stride, bytes = (p1 - p0) * w.d.out_stride * sizeof(float);
            memset(w.out + at, 0, bytes);
            memset(again_ + at, 0, bytes);
            run(&w, ops->attn, p0, p1, p1 - p0, w.out);
            run(&w, ops->attn, p0, p1, 1, again_);
            CHECKF(memcmp(w.out + at, again_ + at, bytes) == 0, "one by one, round %d, span %zu", round, c);
            CHECKF(head_error(&w, p1 - 1, 2, w.out) <= 1, "truth, round %d, span %zu", round, c);
            memset(again_ + at, 0, bytes);
            run(&w, kern_cpu_ops(KERN_SCALAR)->attn, p1 - 1, p1, 1, again_);
            size_t last = (p1 - 1) * w.d.out_stride;
            CHECKF(first_difference(w.out + last, again_ + last, w.d.out_stride) == w.d.out_stride, "scalar, round %d, span %zu", round, c);
            memset(again_ + at, 0, bytes);
            struct kern_attn d = w.d;
            d.pos0 = p0;
            d.n_tokens = p1 - p0;
            d.q = w.q + p0 * d.q_stride;
            d.out = again_ + at;
            for (uint32_t i = kern_attn_segments(p1); i-- > 0;) {
                d.segment = i;
                d.part = parts + i * kern_attn_part_floats(&d);
                CHECK(d.part + kern_attn_part_floats(&d) <= parts + sizeof parts / sizeof *parts);
                ops->attn(&d, 0);
            }
            kern_attn_merge(&d, 0, parts);
            CHECKF(memcmp(w.out + at, again_ + at, bytes) == 0, "parts, round %d, span %zu", round, c);
        }
    }
}

/* Every level stores the bits of the scalar conversions, in its place only; faults stay visible. */
static void level_store(const char *test_name_, const struct kern_ops *ops) {
    const struct kern_ops *ref = kern_cpu_ops(KERN_SCALAR);
    uint64_t s = 25;
    for (int round = 0; round < 400; round++) {
        struct kern_kv_store st = { .kv_type = (enum kern_kv_type)(round % 4), .page_tokens = 1 + rng_below(&s, 5),
                                    .n_kv_heads = 1 + rng_below(&s, 3), .head_dim_k = 1 + rng_below(&s, 70), .head_dim_v = 1 + rng_below(&s, 70) };
        uint32_t nk = st.n_kv_heads * st.head_dim_k, nv = st.n_kv_heads * st.head_dim_v, offset = rng_below(&s, st.page_tokens);
        for (uint32_t i = 0; i < nk; i++) k_[i] = rng_normal(&s) * ldexpf(1, (int)rng_below(&s, 60) - 40);
        for (uint32_t i = 0; i < nv; i++) v_[i] = rng_normal(&s) * (round % 7 ? 1 : 0x1p-120f);
        if (round % 5 == 0) k_[rng_below(&s, nk)] = round % 2 ? NAN : -INFINITY;
        size_t k_bytes = 2 * kern_kv_page_bytes(st.kv_type, st.page_tokens, st.n_kv_heads, st.head_dim_k);
        size_t v_bytes = 2 * kern_kv_page_bytes(st.kv_type, st.page_tokens, st.n_kv_heads, st.head_dim_v);
        memset(k_pool_, 0x5A, k_bytes), memset(v_pool_, 0x5A, v_bytes), memset(q_, 0x5A, k_bytes), memset(again_, 0x5A, v_bytes);
        st.k = k_pool_, st.v = v_pool_;
        ops->kv_store(&st, 1, offset, k_, v_);
        st.k = q_, st.v = again_;
        ref->kv_store(&st, 1, offset, k_, v_);
        CHECKF(memcmp(k_pool_, q_, k_bytes) == 0 && memcmp(v_pool_, again_, v_bytes) == 0, "round %d", round);
    }
    struct kern_kv_store st = { .kv_type = KERN_KV_Q8, .k = k_pool_, .v = v_pool_, .page_tokens = 1, .n_kv_heads = 1, .head_dim_k = 4, .head_dim_v = 4 };
    ops->kv_store(&st, 0, 0, (float[4]){ 1, -127, 63.5f, 0.4f }, (float[4]){ 1, NAN, 2, 3 });
    const int8_t *k = (const int8_t *)k_pool_, *v = (const int8_t *)v_pool_;
    CHECK(k[0] == 1 && k[1] == -127 && k[2] == 64 && k[3] == 0 && k_pool_[1] == 1);
    CHECK(v[0] == 0 && v[1] == 0 && v[2] == 0 && v[3] == 0 && isnan(v_pool_[1]));
}

int main(void) {
    for (int i = KERN_SCALAR; i < KERN_N_LEVELS; i++) {
        enum kern_level level = (enum kern_level)i;
        if (!level_runs(level)) continue;
        if (level == KERN_SCALAR)
            run_level("attn_truth", level_truth, level);
        else
            run_level("attn_equal", level_equal, level);
        run_level("attn_invariance", level_invariance, level);
        run_level("attn_extremes", level_extremes, level);
        run_level("attn_segments", level_segments, level);
        run_level("kv_store", level_store, level);
    }
    return test_failed_;
}
