/* SPDX-License-Identifier: Apache-2.0
 *
 * Open, close, and the table of functions the scheduler sees. Everything the engine needs is carved here from one
 * mapped block of the planned size; a step allocates nothing. Entered by one thread, except stats. */
#include "engine/engine.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/internal.h"

static void setup_rope(struct engine *en) {
    const struct model_hparams *hp = en->hp;
    const struct tensor *factors = model_rope_factors(en->o.model);
    struct kern_rope_params params = {
        .n_dims = hp->rope_dim,
        .theta = hp->rope_theta,
        .factor = hp->rope_factor,
        .yarn = hp->rope_scaling == ROPE_SCALING_YARN,
        .ctx_orig = hp->rope_ctx_orig,
        .attn_factor = hp->rope_attn_factor,
        .factors = factors ? factors->data : NULL,
    };
    en->rope = (struct kern_rope){
        .neox = hp->rope_type == ROPE_NEOX,
        .n_dims = hp->rope_dim,
        .head_dim = hp->head_dim_k,
        .inv_freq = en->inv_freq,
    };
    kern_rope_init(&params, en->inv_freq, &en->rope.mscale);
}

static void setup_router(struct engine *en) {
    static const enum kern_gate gates[] = {
        [ROUTER_SOFTMAX] = KERN_GATE_SOFTMAX,
        [ROUTER_SIGMOID] = KERN_GATE_SIGMOID,
        [ROUTER_SOFTMAX_WEIGHT] = KERN_GATE_SOFTMAX_WEIGHT,
        [ROUTER_SQRT_SOFTPLUS] = KERN_GATE_SQRT_SOFTPLUS,
    };
    en->router = (struct kern_router){
        .gate = gates[en->hp->router_gating],
        .n_experts = en->hp->n_experts,
        .k = en->hp->n_experts_used,
        .norm = en->hp->router_norm,
        .scale = en->hp->router_scale,
    };
}

int engine_open(struct engine **out, const struct engine_opts *o, struct err *e) {
    struct engine__plan plan;
    int st = engine__plan_make(o, &plan, e);
    if (st) {
        return st;
    }
    struct engine *en = mem_zalloc(1, sizeof *en);
    if (!en) {
        return err_set(e, ST_NOMEM, "engine: out of memory");
    }
    en->o = *o;
    en->kern = o->kern;
    en->hp = model_hparams(o->model);
    en->plan = plan;
    uint64_t n_bytes = plan.mem.kv + plan.mem.scratch;
    en->block = mem_map(n_bytes);
    if (!en->block) {
        st = err_set(e, ST_NOMEM, "cannot map %llu bytes for KV and scratch; lower context, kv-tokens or max-running",
                     (unsigned long long)n_bytes);
        goto fail;
    }
    engine__layout(o, &en->plan, en, en->block);
    st = engine__weights_bind(o, en->layers, e);
    if (st) {
        goto fail;
    }
    en->head = engine__matrix_of(o, model_output(o->model));
    st = engine__weights_floats(model_output_norm(o->model), &en->out_norm, e);
    st = st ? st : engine__repack(en, e);
    st = st ? st : engine__records_check(en, e);
    st = st ? st : engine__experts_open(en, e);
    if (st) {
        goto fail;
    }
    bool tied = model_output(o->model) == model_token_embd(o->model);
    en->embd = tied ? en->head : engine__matrix_of(o, model_token_embd(o->model));
    setup_rope(en);
    setup_router(en);
    *out = en;
    return ST_OK;
fail:
    engine_close(en);
    return st;
}

void engine_close(struct engine *en) {
    if (!en) {
        return;
    }
    offload_close(en->store);
    if (en->block) {
        mem_unmap(en->block, en->plan.mem.kv + en->plan.mem.scratch);
    }
    mem_unmap(en->packed, en->plan.mem.repacked);
    mem_free(en);
}

void engine__step_done(struct engine *en, const struct batch *b) {
    atomic_fetch_add_explicit(&en->stats.n_steps, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&en->stats.n_tokens, b->n_tokens, memory_order_relaxed);
    for (uint32_t i = 0; i < b->n_items; i++) {
        if (en->s.outcome[i].status == ST_OK) {
            en->kv.n_done[b->items[i].seq] = b->items[i].pos + b->items[i].n_tokens;
        }
    }
}

/* Runs the layers. The outcome of each item is in s.outcome, what the store did in *experts. */
static void run_layers(struct engine__pass *p, struct step_experts *experts) {
    struct offload_stats before;
    memset(p->en->s.outcome, 0, p->batch->n_items * sizeof *p->en->s.outcome);
    engine__experts_begin(p, &before);
    engine__forward(p);
    engine__experts_end(p, &before, experts);
}

static int op_step(void *self, const struct batch *b, struct step_out *out) {
    struct engine *en = self;
    int st = engine__batch_check(en, b);
    if (st || b->n_items == 0) {
        return st;
    }
    struct engine__pass p = { .en = en, .batch = b };
    run_layers(&p, &out->experts);
    engine__pool(&p);
    engine__sample(&p, out);
    engine__step_done(en, b);
    if (out->items) {
        memcpy(out->items, en->s.outcome, b->n_items * sizeof *out->items);
    }
    return p.n_failed && !out->items ? ST_IO : ST_OK;
}

int engine_logits(struct engine *en, const struct batch_item *item, float *logits) {
    struct batch b = { .items = item, .n_items = 1, .n_tokens = item->n_tokens };
    int st = engine__batch_check(en, &b);
    if (st) {
        return st;
    }
    struct engine__pass p = { .en = en, .batch = &b, .all_logits = true };
    struct step_experts experts;
    run_layers(&p, &experts);
    engine__head(&p, 0, p.n_wants, logits);
    engine__step_done(en, &b);
    return p.n_failed ? ST_IO : ST_OK;
}

static int op_kv_reserve(void *self, seq_id id, uint32_t n_tokens) {
    struct engine *en = self;
    return n_tokens > en->plan.n_ctx ? ST_INVALID : engine__kv_reserve(&en->kv, id, n_tokens);
}

static void op_kv_free(void *self, seq_id id) {
    engine__kv_free(&((struct engine *)self)->kv, id);
}

static int op_kv_fork(void *self, seq_id from, seq_id to, uint32_t n_tokens) {
    return engine__kv_fork(&((struct engine *)self)->kv, from, to, n_tokens);
}

static void op_info(void *self, struct engine_info *out) {
    const struct engine *en = self;
    *out = (struct engine_info){
        .n_ctx = en->plan.n_ctx,
        .n_seqs = en->o.n_seqs,
        .page_tokens = ENGINE__PAGE_TOKENS,
        .n_pages = en->plan.n_pages,
        .max_batch_tokens = en->o.max_batch_tokens,
        .n_vocab = en->hp->n_vocab,
        .n_embd = en->hp->n_embd,
        .n_layers = en->hp->n_layers,
        .n_experts = en->hp->n_experts,
    };
}

static void op_stats(void *self, struct engine_stats *out) {
    struct engine *en = self;
    *out = (struct engine_stats){
        .kv_pages_total = en->plan.n_pages,
        .kv_pages_free = atomic_load_explicit(&en->kv.n_free, memory_order_relaxed),
        .n_steps = atomic_load_explicit(&en->stats.n_steps, memory_order_relaxed),
        .n_tokens = atomic_load_explicit(&en->stats.n_tokens, memory_order_relaxed),
        .moe_rows = atomic_load_explicit(&en->stats.moe_rows, memory_order_relaxed),
        .experts_read = atomic_load_explicit(&en->stats.experts_read, memory_order_relaxed),
        .guesses = atomic_load_explicit(&en->stats.guesses, memory_order_relaxed),
        .guesses_right = atomic_load_explicit(&en->stats.guesses_right, memory_order_relaxed),
    };
}

static bool op_experts(void *self, struct offload_stats *out) {
    const struct engine *en = self;
    if (en->store) {
        offload_stats(en->store, out);
    }
    return en->store != NULL;
}

static void op_experts_map(void *self, uint8_t *bits) {
    const struct engine *en = self;
    if (en->store) {
        offload_resident(en->store, bits);
    }
}

static int op_resize(void *self, uint64_t ram_bytes, struct err *e) {
    const struct engine *en = self;
    const struct engine_memory *m = &en->plan.mem;
    const uint64_t others = m->weights + m->kv + m->scratch + m->slack;
    if (!en->store) {
        return err_set(e, ST_UNSUPPORTED, "every expert is resident; start with experts stream to change the memory they take");
    }
    if (ram_bytes < others + m->experts_min) {
        return err_set(e, ST_INVALID, "ram: expected at least %llu bytes (all but experts %llu + experts %llu), found %llu",
                       (unsigned long long)(others + m->experts_min), (unsigned long long)others,
                       (unsigned long long)m->experts_min, (unsigned long long)ram_bytes);
    }
    uint64_t left = ram_bytes - others;
    return offload_resize(en->store, left < m->experts_all ? left : m->experts_all, e);
}

const struct engine_ops *engine_ops(void) {
    static const struct engine_ops ops = {
        .step = op_step,
        .kv_reserve = op_kv_reserve,
        .kv_free = op_kv_free,
        .kv_fork = op_kv_fork,
        .info = op_info,
        .stats = op_stats,
        .experts = op_experts,
        .experts_map = op_experts_map,
        .resize = op_resize,
    };
    return &ops;
}
