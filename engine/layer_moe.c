/* SPDX-License-Identifier: Apache-2.0
 *
 * The FFN half of a layer. Routed: choose experts, group (row, slot) pairs by expert, then two waves over the
 * pool: gate + up + SwiGLU + quantise for all experts, then down for all experts. A dense FFN is the same with one
 * expert that takes every row with weight 1. Outputs stay pair-major; the next norm adds them to x in slot order,
 * so a row's sum never depends on which experts its neighbours chose, nor on the order in which a store hands them
 * out (experts.c). */
#include "engine/internal.h"
#include "offload/trace.h"

static const float DEFAULT_SHARE = 0.75f, DEFAULT_MARGIN = 0.1f;

/* The model's router, or what a lossy item makes of it. In the last layer rows are wanted rows. */
static struct kern_router router_of(const struct engine__pass *p, uint32_t row) {
    const struct engine *en = p->en;
    struct kern_router r = en->router;
    const bool last = p->layer + 1 == en->hp->n_layers;
    const uint8_t lossy = p->lossy ? en->s.row_lossy[last ? en->s.wants[row].row : row] : 0;
    if (lossy & ENGINE_LOSSY_FEWER) {
        r.enough = en->o.lossy_share > 0 ? en->o.lossy_share : DEFAULT_SHARE;
    }
    if (lossy & ENGINE_LOSSY_CACHED && en->store) {
        r.prefer = en->s.ex.here;
        r.margin = en->o.lossy_margin > 0 ? en->o.lossy_margin : DEFAULT_MARGIN;
    }
    return r;
}

static void choose_experts(struct engine__pass *p, uint32_t row0, uint32_t row1) {
    const struct engine *en = p->en;
    const struct engine__scratch *s = &en->s;
    const size_t k = en->router.k;
    for (uint32_t i = row0; i < row1; i++) {
        const struct kern_router r = router_of(p, i);
        kern_route(&r, s->router_logits + (size_t)i * r.n_experts, s->ids + i * k, s->weights + i * k);
    }
}

static void count_moe(struct engine *en, uint64_t n_pairs, uint64_t n_active) {
    atomic_fetch_add_explicit(&en->stats.moe_rows, n_pairs, memory_order_relaxed);
    atomic_fetch_add_explicit(&en->stats.experts_read, n_active, memory_order_relaxed);
}

static void record(const struct engine__pass *p) {
    const struct engine *en = p->en;
    trace_write(en->o.trace, &(struct trace_routing){
        .layer = p->layer,
        .n_tokens = p->batch->n_tokens,
        .prefill = p->batch->n_tokens > p->batch->n_items,
        .n_rows = p->n_rows,
        .ids = en->s.ids,
        .first = en->s.first,
    });
}

static void route(struct engine__pass *p, const struct engine__layer *l) {
    struct engine *en = p->en;
    const struct engine__scratch *s = &en->s;
    const struct kern_gemm d = engine__gemm(&l->router, &s->xn, 0, p->n_rows, s->router_logits);
    engine__run_gemms(en, &d, 1);
    if (p->lossy & ENGINE_LOSSY_CACHED && en->store) {
        offload_here(en->store, p->layer, s->ex.here);
    }
    engine__run_rows(p, p->n_rows, choose_experts);
    kern_moe_group(&(struct kern_moe_group){
        .n_tokens = p->n_rows,
        .k = en->router.k,
        .n_experts = en->router.n_experts,
        .ids = s->ids,
        .first = s->first,
        .row_token = s->sorted_row,
        .pair_row = s->pair_sorted,
    });
    p->n_active = 0;
    for (uint32_t i = 0; i < en->router.n_experts; i++) {
        if (s->first[i + 1] > s->first[i]) {
            s->active[p->n_active++] = (int32_t)i;
        }
    }
    count_moe(en, (uint64_t)s->first[en->router.n_experts], p->n_active);
    if (en->o.trace && !p->lossy) {
        record(p);
    }
}

static void take_all_rows(struct engine__pass *p) {
    const struct engine__scratch *s = &p->en->s;
    s->active[0] = 0;
    s->first[0] = 0;
    s->first[1] = (int32_t)p->n_rows;
    p->n_active = 1;
}

/* The expert, columns and sorted pairs of one task. */
struct ffn_task {
    const struct engine__layer *l;
    const void *gate, *up, *down; /* this expert's matrices */
    uint32_t col0, col1;
    uint32_t pair0, pair1;
};

/* Expert of place i of the wave. */
static uint32_t wave_expert(const struct engine__pass *p, uint32_t i) {
    return p->given ? p->given[i].expert : (uint32_t)p->en->s.active[i];
}

static struct ffn_task ffn_task(const struct engine__pass *p, uint32_t task, uint32_t n_columns) {
    const struct engine *en = p->en;
    const struct engine__layer *l = &en->layers[p->layer];
    const uint32_t n_strips = (n_columns + p->strip - 1) / p->strip;
    const struct offload_item *given = p->given ? &p->given[task / n_strips] : NULL;
    const uint32_t expert = wave_expert(p, task / n_strips), col0 = task % n_strips * p->strip;
    return (struct ffn_task){
        .l = l,
        .gate = given ? given->gate : engine__expert(&l->gate, expert),
        .up = given ? given->up : engine__expert(&l->up, expert),
        .down = given ? given->down : engine__expert(&l->down, expert),
        .col0 = col0,
        .col1 = col0 + p->strip < n_columns ? col0 + p->strip : n_columns,
        .pair0 = (uint32_t)en->s.first[expert],
        .pair1 = (uint32_t)en->s.first[expert + 1],
    };
}

/* Columns [col0, col1) of W x for n sorted pairs into y [n, stride]. */
static void wave1_gemm(const struct engine__pass *p, const struct engine__matrix *m, const void *w, const struct ffn_task *t,
                       uint32_t pair, uint32_t n, int worker, float *y) {
    const struct engine *en = p->en;
    const bool routed = t->l->router.w != NULL;
    struct kern_gemm d = engine__gemm(m, &en->s.xn, routed ? 0 : pair, n, y);
    d.w = (const unsigned char *)w + t->col0 * m->row_bytes;
    d.n_out = t->col1 - t->col0;
    d.y_stride = p->strip;
    d.gather = routed ? en->s.sorted_row + pair : NULL;
    engine__multiply(en, &d, 0, d.n_out, worker);
}

/* act[pair, col0 .. col1) = silu(gate) * up, rounded as the down matrix wants it. */
static void gate_up_task(void *ctx, int task, int worker) {
    const struct engine__pass *p = ctx;
    const struct engine *en = p->en;
    const struct ffn_task t = ffn_task(p, (uint32_t)task, en->layers[p->layer].gate.n_out);
    const size_t ff = t.l->gate.n_out, n_cols = t.col1 - t.col0;
    const enum engine__form form = t.l->down.form;
    const uint32_t rows = ENGINE__FFN_CELLS / p->strip;
    float *gate = engine__worker(en, worker), *up = gate + ENGINE__FFN_CELLS;
    for (uint32_t pair = t.pair0; pair < t.pair1; pair += rows) {
        uint32_t n = t.pair1 - pair < rows ? t.pair1 - pair : rows;
        wave1_gemm(p, &t.l->gate, t.gate, &t, pair, n, worker, gate);
        wave1_gemm(p, &t.l->up, t.up, &t, pair, n, worker, up);
        for (uint32_t i = 0; i < n; i++) {
            float *g = gate + (size_t)i * p->strip;
            size_t at = (pair + i) * ff + t.col0;
            en->kern->swiglu(g, up + (size_t)i * p->strip, n_cols, form == ENGINE__F32 ? en->s.act.f32 + at : g);
            engine__round(en, form, g, n_cols, &en->s.act, at);
        }
    }
}

static void down_task(void *ctx, int task, int worker) {
    const struct engine__pass *p = ctx;
    const struct engine *en = p->en;
    const struct ffn_task t = ffn_task(p, (uint32_t)task, en->hp->n_embd);
    const struct engine__matrix *m = &t.l->down;
    const size_t first = t.pair0;
    struct kern_gemm d = engine__gemm(m, &en->s.act, first, t.pair1 - t.pair0, en->s.down + first * m->n_out);
    d.w = t.down;
    engine__multiply(en, &d, t.col0, t.col1, worker);
}

static void run_wave(struct engine__pass *p, uint32_t n_columns, pool_fn fn) {
    const int32_t *first = p->en->s.first;
    uint32_t n_pairs = 0;
    for (uint32_t i = 0; i < p->n_active; i++) {
        uint32_t expert = wave_expert(p, i);
        n_pairs += (uint32_t)(first[expert + 1] - first[expert]);
    }
    const uint32_t most = n_pairs <= ENGINE__FEW_ROWS * p->n_active ? ENGINE__STRIP_FEW : ENGINE__STRIP;
    const uint32_t strip = engine__strip(p->en, (uint64_t)n_columns * p->n_active, 32, most);
    const uint32_t n_strips = (n_columns + strip - 1) / strip;
    p->strip = (n_columns / n_strips + 31) / 32 * 32; /* equal ones; a multiple of 32 and no longer than `strip` */
    engine__run(p->en, p->n_active * ((n_columns + p->strip - 1) / p->strip), fn, p);
}

void engine__ffn_waves(struct engine__pass *p) {
    const struct engine__layer *l = &p->en->layers[p->layer];
    run_wave(p, l->gate.n_out, gate_up_task);
    run_wave(p, l->down.n_out, down_task);
}

void engine__ffn(struct engine__pass *p) {
    const struct engine__layer *l = &p->en->layers[p->layer];
    if (l->router.w) {
        route(p, l);
    } else {
        take_all_rows(p);
    }
    if (p->en->store && l->router.w) {
        engine__experts_run(p);
    } else {
        engine__ffn_waves(p);
    }
    p->pending = ENGINE__PENDING_FFN;
}

void engine__ffn_add(const struct engine__pass *p, uint32_t row, float *x) {
    const struct engine *en = p->en;
    const struct engine__scratch *s = &en->s;
    const size_t n = en->hp->n_embd, k = en->router.k;
    if (!en->layers[p->layer - 1].router.w) {
        en->kern->axpy(1.0f, s->down + row * n, n, x);
        return;
    }
    for (size_t j = 0; j < k; j++) {
        const int32_t pair = s->pair_sorted[row * k + j]; /* -1: an empty slot */
        if (pair >= 0) {
            en->kern->axpy(s->weights[row * k + j], s->down + (size_t)pair * n, n, x);
        }
    }
}
