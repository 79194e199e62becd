/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory the engine takes, decided before anything is reserved. One function lays out the block, run once
 * to count and once to carve, so the plan cannot differ from the reservation. Pure: looks at options and
 * hyper-parameters only. */
#include "engine/internal.h"

void *engine__carve(struct engine__carver *c, uint64_t n, uint64_t size) {
    uint64_t bytes, start = (c->used + 63) & ~UINT64_C(63);
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > UINT64_MAX / 4 || start > UINT64_MAX / 4) {
        c->overflow = true;
        return NULL;
    }
    c->used = start + bytes;
    return c->base ? c->base + start : NULL;
}

/* The widest of everything a layer may be: routed and dense layers share the FFN buffers. */
struct ffn_shape { uint64_t pairs_ff, pairs; unsigned act_forms; };

static struct ffn_shape ffn_shape(const struct engine_opts *o) {
    const struct model_hparams *hp = model_hparams(o->model);
    struct ffn_shape f = { 0 };
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        const struct model_layer *l = model_layer(o->model, i);
        uint64_t pairs = (uint64_t)o->max_batch_tokens * (l->router ? hp->n_experts_used : 1);
        uint64_t pairs_ff = pairs * (l->router ? hp->expert_ff_dim : hp->ff_dim);
        f.pairs = pairs > f.pairs ? pairs : f.pairs;
        f.pairs_ff = pairs_ff > f.pairs_ff ? pairs_ff : f.pairs_ff;
        f.act_forms |= engine__form_of(o, (l->router ? l->down_exps : l->ffn_down)->dtype);
    }
    return f;
}

/* Of any matrix: what one exact product needs per worker. */
static uint64_t widest_input(const struct model_hparams *hp) {
    uint64_t att = (uint64_t)hp->n_heads * hp->head_dim_v, widest = hp->n_embd;
    widest = widest > att ? widest : att;
    widest = widest > hp->ff_dim ? widest : hp->ff_dim;
    return widest > hp->expert_ff_dim ? widest : hp->expert_ff_dim;
}

static uint64_t worker_bytes(const struct engine_opts *o) {
    struct kern_attn attn = engine__attn_desc(o);
    attn.n_tokens = ENGINE__ATTN_ROWS;
    uint64_t need = kern_attn_scratch_floats(&attn) * sizeof(float);
    uint64_t ffn = UINT64_C(2) * ENGINE__FFN_CELLS * sizeof(float);
    uint64_t sample = kern_sample_workspace(model_hparams(o->model)->n_vocab);
    need = need > ffn ? need : ffn;
    need = need > sample ? need : sample;
    if (o->exact) { /* gate and up stand at the beginning while a product runs */
        uint64_t product = ffn + kern_gemm_exact_floats((uint32_t)widest_input(model_hparams(o->model))) * sizeof(float);
        need = need > product ? need : product;
    }
    return (need + 127) & ~UINT64_C(127); /* whole pairs of lines: no false sharing between workers */
}

/* Parts for as many rows as may be cut: at least one whole task, at least one row for every thread to be fed. */
static uint64_t part_floats(const struct engine_opts *o, uint32_t n_ctx) {
    struct kern_attn attn = engine__attn_desc(o);
    uint64_t threads = (uint64_t)pool_n_threads(o->pool), rows = ENGINE__ATTN_TASKS * threads / attn.n_kv_heads + 1;
    if (threads == 1 || kern_attn_segments(n_ctx) < 2 || attn.n_kv_heads >= ENGINE__ATTN_TASKS * threads) {
        return 0;
    }
    attn.n_tokens = 1;
    rows = rows < ENGINE__ATTN_ROWS ? ENGINE__ATTN_ROWS : rows;
    rows = rows > o->max_batch_tokens ? o->max_batch_tokens : rows;
    return rows * attn.n_kv_heads * kern_attn_segments(n_ctx) * kern_attn_part_floats(&attn);
}

static uint32_t logits_rows(const struct engine_opts *o) {
    uint64_t row = (uint64_t)model_hparams(o->model)->n_vocab * sizeof(float);
    uint64_t n = ENGINE__LOGITS_BYTES / row;
    n = n > ENGINE__LOGITS_ROWS ? ENGINE__LOGITS_ROWS : n;
    n = n > o->max_batch_tokens ? o->max_batch_tokens : n;
    return n ? (uint32_t)n : 1;
}

/* Of any matrix but the down matrices. */
static unsigned input_forms(const struct engine_opts *o) {
    unsigned forms = ENGINE__F32 | engine__form_of(o, model_output(o->model)->dtype);
    for (uint32_t i = 0; i < model_hparams(o->model)->n_layers; i++) {
        const struct model_layer *l = model_layer(o->model, i);
        const struct tensor *t[] = { l->wq, l->wk, l->wv, l->wo, l->router, l->ffn_gate, l->ffn_up, l->gate_exps, l->up_exps };
        for (size_t j = 0; j < sizeof t / sizeof t[0]; j++) {
            forms |= t[j] ? engine__form_of(o, t[j]->dtype) : 0;
        }
    }
    return forms;
}

static void layout_rows(struct engine__carver *c, struct engine__rows *x, uint64_t n, unsigned forms) {
    x->f32 = engine__carve(c, forms & ENGINE__F32 ? n : 0, sizeof *x->f32);
    x->q8 = engine__carve(c, forms & ENGINE__Q8 ? n / 32 : 0, sizeof *x->q8);
    x->bf16 = engine__carve(c, forms & ENGINE__BF16 ? n : 0, sizeof *x->bf16);
}

static void layout_experts(const struct engine_opts *o, struct engine__carver *c, struct engine__expert_scratch *x) {
    const struct model_hparams *hp = model_hparams(o->model);
    const uint64_t rows = ENGINE__GUESS_ROWS, n_experts = hp->n_experts, k = hp->n_experts_used;
    x->wants = engine__carve(c, n_experts, sizeof *x->wants);
    x->items = engine__carve(c, n_experts, sizeof *x->items);
    x->list = engine__carve(c, n_experts, sizeof *x->list);
    x->listed = engine__carve(c, n_experts, 1);
    x->here = engine__carve(c, n_experts, 1);
    x->told = engine__carve(c, hp->n_layers * n_experts, 1);
    layout_rows(c, &x->x, rows * hp->n_embd, input_forms(o));
    x->logits = engine__carve(c, rows * n_experts, sizeof *x->logits);
    x->ids = engine__carve(c, rows * k, sizeof *x->ids);
    x->weights = engine__carve(c, k, sizeof *x->weights);
}

static void layout_scratch(const struct engine_opts *o, const struct engine__plan *pl, struct engine__carver *c,
                           struct engine__scratch *s) {
    const struct model_hparams *hp = model_hparams(o->model);
    const struct ffn_shape f = ffn_shape(o);
    const uint64_t t = o->max_batch_tokens, f32 = sizeof(float);
    const uint64_t att = (uint64_t)hp->n_heads * hp->head_dim_v;

    s->row_token = engine__carve(c, t, sizeof *s->row_token);
    s->row_pos = engine__carve(c, t, sizeof *s->row_pos);
    s->row_seq = engine__carve(c, t, sizeof *s->row_seq);
    s->row_lossy = engine__carve(c, t, 1);
    s->seq_seen = engine__carve(c, o->n_seqs, 1);
    s->spans = engine__carve(c, t, sizeof *s->spans);
    s->wants = engine__carve(c, t, sizeof *s->wants);
    s->rope_cs = engine__carve(c, t * hp->rope_dim, f32);
    s->x = engine__carve(c, t * hp->n_embd, f32);
    layout_rows(c, &s->xn, t * hp->n_embd, input_forms(o));
    s->q = engine__carve(c, t * hp->n_heads * hp->head_dim_k, f32);
    s->k = engine__carve(c, t * hp->n_kv_heads * hp->head_dim_k, f32);
    s->v = engine__carve(c, t * hp->n_kv_heads * hp->head_dim_v, f32);
    layout_rows(c, &s->att, t * att, input_forms(o));
    s->parts = engine__carve(c, pl->part_floats, f32);
    s->proj = engine__carve(c, t * hp->n_embd, f32);
    s->router_logits = engine__carve(c, t * hp->n_experts, f32);
    s->ids = engine__carve(c, t * hp->n_experts_used, sizeof *s->ids);
    s->weights = engine__carve(c, t * hp->n_experts_used, f32);
    s->first = engine__carve(c, hp->n_experts + UINT64_C(2), sizeof *s->first);
    s->sorted_row = engine__carve(c, t * hp->n_experts_used, sizeof *s->sorted_row);
    s->pair_sorted = engine__carve(c, t * hp->n_experts_used, sizeof *s->pair_sorted);
    s->active = engine__carve(c, hp->n_experts + UINT64_C(1), sizeof *s->active);
    layout_rows(c, &s->act, f.pairs_ff, f.act_forms);
    s->down = engine__carve(c, f.pairs * hp->n_embd, f32);
    s->logits = engine__carve(c, (uint64_t)pl->logits_rows * hp->n_vocab, f32);
    s->outcome = engine__carve(c, o->n_seqs, sizeof *s->outcome);
    if (pl->stream) {
        layout_experts(o, c, &s->ex);
    }
    s->workers = engine__carve(c, (uint64_t)pool_n_threads(o->pool), pl->worker_bytes);
}

static struct engine__kv_shape kv_shape(const struct engine_opts *o, const struct engine__plan *pl) {
    const struct model_hparams *hp = model_hparams(o->model);
    const enum kern_kv_type type = engine__attn_desc(o).kv_type;
    return (struct engine__kv_shape){
        .n_seqs = o->n_seqs,
        .n_pages = pl->n_pages,
        .n_ctx = pl->n_ctx,
        .n_layers = hp->n_layers,
        .k_page_bytes = kern_kv_page_bytes(type, ENGINE__PAGE_TOKENS, hp->n_kv_heads, hp->head_dim_k),
        .v_page_bytes = kern_kv_page_bytes(type, ENGINE__PAGE_TOKENS, hp->n_kv_heads, hp->head_dim_v),
    };
}

bool engine__layout(const struct engine_opts *o, struct engine__plan *pl, struct engine *en, unsigned char *base) {
    const struct model_hparams *hp = model_hparams(o->model);
    struct engine__carver c = { .base = base };
    struct engine__kv_shape shape = kv_shape(o, pl);
    pl->logits_rows = logits_rows(o);
    pl->part_floats = part_floats(o, pl->n_ctx);
    pl->worker_bytes = worker_bytes(o);
    engine__kv_init(&en->kv, &shape, &c);
    pl->mem.kv = c.used;
    layout_scratch(o, pl, &c, &en->s);
    en->layers = engine__carve(&c, hp->n_layers, sizeof *en->layers);
    en->inv_freq = engine__carve(&c, hp->rope_dim / 2, sizeof *en->inv_freq);
    c.used = (c.used + 4095) & ~UINT64_C(4095);
    pl->mem.scratch = c.used - pl->mem.kv;
    engine__repack_plan(o, pl->stream, &pl->mem);
    pl->mem.total = pl->mem.weights + c.used + pl->mem.experts + pl->mem.slack;
    pl->mem.n_ctx = pl->n_ctx;
    pl->mem.kv_tokens = pl->n_pages * ENGINE__PAGE_TOKENS;
    return !c.overflow && c.used <= SIZE_MAX / 2;
}

static bool count(const struct engine_opts *o, struct engine__plan *pl) {
    struct engine nowhere = { 0 };
    return engine__layout(o, pl, &nowhere, NULL);
}

static uint32_t pages_for(uint64_t n_tokens) {
    return (uint32_t)((n_tokens + ENGINE__PAGE_TOKENS - 1) / ENGINE__PAGE_TOKENS);
}

static int check_opts(const struct engine_opts *o, struct err *e) {
    const struct model_hparams *hp = model_hparams(o->model);
    if (o->n_running < 1 || o->n_running > o->n_seqs) {
        return err_set(e, ST_INVALID, "max-running: expected 1 to %u (sequence slots), found %u", o->n_seqs, o->n_running);
    }
    if (o->max_batch_tokens < 1 || o->max_batch_tokens > ENGINE__MAX_BATCH) {
        return err_set(e, ST_INVALID, "batch-tokens: expected 1 to %d, found %u", ENGINE__MAX_BATCH, o->max_batch_tokens);
    }
    if (o->n_ctx > hp->n_ctx_train) {
        return err_set(e, ST_INVALID, "context: expected at most %u (the model's own), found %u", hp->n_ctx_train, o->n_ctx);
    }
    if (o->kv_tokens && o->kv_tokens < o->n_ctx) {
        return err_set(e, ST_INVALID, "kv-tokens: expected at least one context (%u), found %u; raise it or lower context",
                       o->n_ctx, o->kv_tokens);
    }
    if (o->kv_tokens > INT32_MAX - ENGINE__PAGE_TOKENS) {
        return err_set(e, ST_INVALID, "kv-tokens: expected at most %d, found %u", INT32_MAX - ENGINE__PAGE_TOKENS, o->kv_tokens);
    }
    return ST_OK;
}

/* As many pages as `ceiling` leaves beside the rest of the plan, one smallest context at least. */
static bool shrink(const struct engine_opts *o, struct engine__plan *pl, uint64_t ceiling) {
    struct engine__kv_shape shape = kv_shape(o, pl);
    uint64_t per_page = (uint64_t)shape.n_layers * (shape.k_page_bytes + shape.v_page_bytes) + 8; /* 8: refs, free stack */
    uint64_t drop = (pl->mem.total - ceiling + 4096) / per_page + 1; /* 4096: alignment of what follows */
    uint32_t least = pages_for(o->n_ctx ? o->n_ctx : pl->n_ctx < ENGINE__MIN_CTX ? pl->n_ctx : ENGINE__MIN_CTX);
    pl->n_pages = pl->n_pages > drop && pl->n_pages - drop > least ? (uint32_t)(pl->n_pages - drop) : least;
    if (pl->n_ctx > pl->n_pages * ENGINE__PAGE_TOKENS) {
        pl->n_ctx = pl->n_pages * ENGINE__PAGE_TOKENS;
    }
    return count(o, pl);
}

/* The context and tokens that are wished for. */
static bool start_plan(const struct engine_opts *o, struct engine__plan *pl, bool stream) {
    const uint64_t most = INT32_MAX - ENGINE__PAGE_TOKENS;
    *pl = (struct engine__plan){ .stream = stream };
    pl->n_ctx = o->n_ctx ? o->n_ctx : model_hparams(o->model)->n_ctx_train;
    uint64_t tokens = o->kv_tokens ? o->kv_tokens : (uint64_t)o->n_running * pl->n_ctx;
    tokens = tokens > most ? most : tokens;
    pl->n_ctx = pl->n_ctx > tokens ? (uint32_t)tokens : pl->n_ctx;
    pl->n_pages = pages_for(tokens);
    return count(o, pl);
}

static int no_addresses(struct err *e) {
    return err_set(e, ST_NOMEM, "memory plan does not fit this machine's addresses; lower context, kv-tokens or batch-tokens");
}

static int plan_resident(const struct engine_opts *o, struct engine__plan *pl, struct err *e) {
    bool fits = start_plan(o, pl, false);
    if (fits && o->ram_bytes && pl->mem.total > o->ram_bytes && !o->kv_tokens) {
        fits = shrink(o, pl, o->ram_bytes);
    }
    if (!fits) {
        return no_addresses(e);
    }
    if (o->ram_bytes && pl->mem.total > o->ram_bytes) {
        return err_set(e, ST_NOMEM,
                       "%llu bytes of memory are missing: weights %llu + KV %llu (%u tokens, context %u) + scratch %llu, but ram "
                       "allows %llu; lower context, kv-tokens, max-running or batch-tokens, or raise ram%s",
                       (unsigned long long)(pl->mem.total - o->ram_bytes), (unsigned long long)pl->mem.weights,
                       (unsigned long long)pl->mem.kv, pl->mem.kv_tokens, pl->n_ctx, (unsigned long long)pl->mem.scratch,
                       (unsigned long long)o->ram_bytes, model_hparams(o->model)->n_experts ? ", or let experts be streamed" : "");
    }
    return ST_OK;
}

/* What the experts take of the ceiling before an automatic KV cache may grow: three quarters of what both share, since a
 * missing expert costs a read in every layer and a missing KV page only a wait. */
static uint64_t experts_first(const struct engine_opts *o, const struct engine__plan *pl) {
    const uint64_t others = pl->mem.weights + pl->mem.scratch + pl->mem.slack;
    const uint64_t share = o->ram_bytes > others ? (o->ram_bytes - others) / 4 * 3 : 0;
    uint64_t n = o->expert_bytes ? o->expert_bytes : share;
    n = n < pl->mem.experts_min ? pl->mem.experts_min : n;
    return n < pl->mem.experts_all ? n : pl->mem.experts_all;
}

static int refuse_stream(const struct engine_opts *o, const struct engine__plan *pl, uint64_t experts, struct err *e) {
    if (experts < pl->mem.experts_min) {
        return err_set(e, ST_NOMEM, "%llu bytes of memory are missing for experts: one layer's step needs %llu, expert-ram allows %llu; raise expert-ram",
                       (unsigned long long)(pl->mem.experts_min - experts), (unsigned long long)pl->mem.experts_min, (unsigned long long)experts);
    }
    return err_set(e, ST_NOMEM,
                   "%llu bytes of memory are missing: weights without experts %llu + KV %llu (%u tokens, context %u) + scratch %llu + "
                   "program %llu + experts %llu (%llu would do), but ram allows %llu; lower context, kv-tokens, max-running, batch-tokens%s, or raise ram",
                   (unsigned long long)(pl->mem.total - o->ram_bytes), (unsigned long long)pl->mem.weights, (unsigned long long)pl->mem.kv,
                   pl->mem.kv_tokens, pl->n_ctx, (unsigned long long)pl->mem.scratch, (unsigned long long)pl->mem.slack,
                   (unsigned long long)pl->mem.experts, (unsigned long long)pl->mem.experts_min, (unsigned long long)o->ram_bytes,
                   o->expert_bytes ? " or expert-ram" : "");
}

static int plan_stream(const struct engine_opts *o, struct engine__plan *pl, struct err *e) {
    if (!start_plan(o, pl, true)) {
        return no_addresses(e);
    }
    pl->mem.slack = ENGINE__SLACK;
    pl->mem.experts_min = offload_min_bytes(o->model, o->repack);
    pl->mem.experts_all = offload_all_bytes(o->model, o->repack);
    pl->mem.experts = o->ram_bytes ? experts_first(o, pl) : o->expert_bytes ? o->expert_bytes : pl->mem.experts_all;
    bool fits = count(o, pl);
    if (fits && o->ram_bytes && pl->mem.total > o->ram_bytes && !o->kv_tokens) {
        fits = shrink(o, pl, o->ram_bytes);
    }
    if (!fits) {
        return no_addresses(e);
    }
    if (o->expert_bytes && o->expert_bytes < pl->mem.experts_min) {
        return refuse_stream(o, pl, o->expert_bytes, e);
    }
    if (!o->ram_bytes) {
        return ST_OK;
    }
    if (!o->expert_bytes) { /* what is left, or less than the first share when KV of a fixed size needs more */
        const uint64_t others = pl->mem.total - pl->mem.experts, left = o->ram_bytes > others ? o->ram_bytes - others : 0;
        pl->mem.experts = left > pl->mem.experts_all ? pl->mem.experts_all : left < pl->mem.experts_min ? pl->mem.experts_min : left;
        pl->mem.total = others + pl->mem.experts;
    }
    return pl->mem.total > o->ram_bytes ? refuse_stream(o, pl, pl->mem.experts, e) : ST_OK;
}

/* Resident experts are worth more than a long context that nobody asked for, but not any context. */
static bool good_context(const struct engine_opts *o, const struct engine__plan *pl) {
    const uint32_t wished = model_hparams(o->model)->n_ctx_train;
    return o->n_ctx || pl->n_ctx >= (wished < ENGINE__GOOD_CTX ? wished : ENGINE__GOOD_CTX);
}

int engine__plan_make(const struct engine_opts *o, struct engine__plan *pl, struct err *e) {
    const bool experts = model_hparams(o->model)->n_experts > 0;
    *pl = (struct engine__plan){ 0 };
    int st = check_opts(o, e);
    if (st) {
        return st;
    }
    if (experts && o->experts == ENGINE_EXPERTS_STREAM) {
        return plan_stream(o, pl, e);
    }
    if (experts && o->experts == ENGINE_EXPERTS_AUTO && o->expert_bytes && o->expert_bytes < offload_all_bytes(o->model, o->repack)) {
        return plan_stream(o, pl, e);
    }
    st = plan_resident(o, pl, e);
    if (experts && o->experts == ENGINE_EXPERTS_AUTO && (st == ST_NOMEM || (!st && !good_context(o, pl)))) {
        return plan_stream(o, pl, e);
    }
    return st;
}

int engine_plan_memory(const struct engine_opts *o, struct engine_memory *out, struct err *e) {
    struct engine__plan pl;
    int st = engine__plan_make(o, &pl, e);
    *out = pl.mem;
    return st;
}
