/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's side of the expert store: a routed layer whose experts are handed out in groups as they arrive, what
 * becomes of rows whose expert cannot be read, and the guess at what the next layer will want. Where an expert
 * lies, when it comes and what was guessed changes no result: every pair has its own place in the outputs. */
#include "engine/internal.h"

#include <string.h>

#include "base/log.h"

enum { TRIAL_STEPS = 16, PAUSE_STEPS = 256 };
static const float GAIN_WEIGHT = 1.0f / 16;

/* Shape and format of the experts only: pages of the file are not to be touched. Those of a packed model are as they are. */
static void unbind(const struct engine *en, struct engine__matrix *m) {
    m->w = NULL;
    m->packed = m->packed || (en->o.repack && kern_pack_fits(m->dtype, m->n_out));
}

int engine__experts_open(struct engine *en, struct err *e) {
    if (!en->plan.stream) {
        return ST_OK;
    }
    for (uint32_t i = 0; i < en->hp->n_layers; i++) {
        struct engine__layer *l = &en->layers[i];
        if (l->router.w) {
            unbind(en, &l->gate);
            unbind(en, &l->up);
            unbind(en, &l->down);
        }
    }
    const struct offload_opts o = {
        .model = en->o.model,
        .ram_bytes = en->plan.mem.experts,
        .packed = en->o.repack,
        .policy = en->o.policy,
        .io = en->o.io,
        .queue_depth = en->o.queue_depth,
        .prefetch = en->o.prefetch,
        .fill = en->o.prefetch,
        .heat_path = en->o.heat_path,
        .heat_every_ms = en->o.heat_every_ms,
        .disk = en->o.disk,
    };
    return offload_open(&en->store, &o, e);
}

/* ---- a step ---- */

void engine__experts_begin(struct engine__pass *p, struct offload_stats *before) {
    const struct engine *en = p->en;
    if (en->store) {
        offload_stats(en->store, before);
        p->foretell = en->o.prefetch && !en->s.ex.quiet && en->s.ex.n_pause == 0;
    }
}

/* Guesses cost work even when the store reads none of them, and wrong reads delay right ones: where they lose they pause, so that
 * all they can cost is the trial after it. */
static void judge_guessing(struct engine__pass *p, const struct offload_stats *before, const struct offload_stats *now) {
    struct engine__expert_scratch *x = &p->en->s.ex;
    const uint64_t useful = now->prefetch_useful - before->prefetch_useful, wasted = now->prefetch_wasted - before->prefetch_wasted;
    x->quiet = now->misses == before->misses && useful == 0;
    if (x->n_pause) {
        x->n_pause--;
    } else if (p->foretell) {
        x->gain += ((float)useful - (float)wasted - x->gain) * GAIN_WEIGHT;
        x->n_tried++;
    }
    if (x->n_tried >= TRIAL_STEPS && x->gain <= 0) {
        x->n_pause = PAUSE_STEPS;
        x->n_tried = 0;
        x->gain = 0;
    }
}

void engine__experts_end(struct engine__pass *p, const struct offload_stats *before, struct step_experts *out) {
    struct offload_stats now;
    *out = (struct step_experts){ 0 };
    if (p->en->store) {
        offload_stats(p->en->store, &now);
        out->hits = now.hits - before->hits;
        out->misses = now.misses - before->misses;
        out->load_bytes = now.load_bytes - before->load_bytes;
        out->stall_ns = now.stall_ns - before->stall_ns;
        judge_guessing(p, before, &now);
    }
}

/* ---- failure ---- */

/* The item that row belongs to. In the last layer rows are wanted rows. */
static uint32_t item_of(const struct engine__pass *p, uint32_t row) {
    if (p->layer + 1 == p->en->hp->n_layers) {
        return p->en->s.wants[row].item;
    }
    uint32_t i = 0;
    for (uint32_t end = p->batch->items[0].n_tokens; end <= row; end += p->batch->items[i].n_tokens) {
        i++;
    }
    return i;
}

/* The rows of an expert that cannot be read go on with zeros, so that they disturb nobody, and their items have failed. */
static void fail_rows(struct engine__pass *p, uint32_t expert) {
    struct engine *en = p->en;
    const struct engine__scratch *s = &en->s;
    const size_t n_embd = en->hp->n_embd;
    uint8_t *told = &s->ex.told[p->layer * en->hp->n_experts + expert];
    if (!*told) {
        log_error("experts", "expert %u of layer %u cannot be read: requests that need it fail", expert, p->layer);
    }
    *told = 1;
    for (int32_t pair = s->first[expert]; pair < s->first[expert + 1]; pair++) {
        struct step_item *item = &s->outcome[item_of(p, (uint32_t)s->sorted_row[pair])];
        memset(s->down + (size_t)pair * n_embd, 0, n_embd * sizeof *s->down);
        if (item->status == ST_OK) {
            *item = (struct step_item){ .status = ST_IO, .layer = p->layer, .expert = expert };
            p->n_failed++;
        }
    }
}

/* Takes the failed ones out of the group. */
static uint32_t keep_good(struct engine__pass *p, struct offload_item *items, uint32_t n) {
    uint32_t n_good = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].status == ST_OK) {
            items[n_good++] = items[i];
        } else {
            fail_rows(p, items[i].expert);
        }
    }
    return n_good;
}

/* ---- what the next layer will want ---- */

/* How much of the guess for this layer came true, if there was one. The store judges by itself what is worth reading. */
static void count_guess(struct engine__pass *p) {
    struct engine *en = p->en;
    struct engine__expert_scratch *x = &en->s.ex;
    const uint32_t k = en->hp->n_experts_used;
    uint64_t n_right = 0;
    if (!x->n_guessed || x->layer != p->layer) {
        return;
    }
    for (uint32_t i = 0; i < x->n_guessed * k; i++) {
        const int32_t id = x->ids[i];
        n_right += en->s.first[id + 1] > en->s.first[id];
    }
    atomic_fetch_add_explicit(&en->stats.guesses, x->n_guessed * k, memory_order_relaxed);
    atomic_fetch_add_explicit(&en->stats.guesses_right, n_right, memory_order_relaxed);
    x->n_guessed = 0;
}

/* The next layer's router on the rows as they are before this layer's FFN: most of what it will see is there already.
 * Of n_next rows that go on some, spread over all. */
static void route_ahead(struct engine__pass *p, const struct engine__layer *next, bool wanted_only, uint32_t n_next) {
    struct engine *en = p->en;
    struct engine__expert_scratch *x = &en->s.ex;
    const size_t n = en->hp->n_embd, k = en->router.k;
    const uint32_t n_rows = n_next < ENGINE__GUESS_ROWS ? n_next : ENGINE__GUESS_ROWS;
    for (size_t i = 0; i < n_rows; i++) {
        const size_t nth = i * n_next / n_rows, row = wanted_only ? en->s.wants[nth].row : nth;
        en->kern->rms_norm(en->s.x + row * n, next->ffn_norm, en->hp->rms_eps, n, x->x.f32 + i * n);
        engine__round(en, next->router.form, x->x.f32 + i * n, n, &x->x, i * n);
    }
    const struct kern_gemm d = engine__gemm(&next->router, &x->x, 0, n_rows, x->logits);
    engine__run_gemms(en, &d, 1);
    for (size_t i = 0; i < n_rows; i++) {
        kern_route(&en->router, x->logits + i * en->router.n_experts, x->ids + i * k, x->weights);
    }
    x->n_guessed = n_rows;
    x->layer = p->layer + 1;
}

/* Rank by rank, so that the surest come first. */
static uint32_t list_guess(const struct engine *en) {
    const struct engine__expert_scratch *x = &en->s.ex;
    const uint32_t k = en->router.k;
    uint32_t n = 0;
    memset(x->listed, 0, en->router.n_experts);
    for (uint32_t j = 0; j < k; j++) {
        for (uint32_t i = 0; i < x->n_guessed; i++) {
            const uint32_t id = (uint32_t)x->ids[i * k + j];
            if (!x->listed[id]) {
                x->listed[id] = 1;
                x->list[n++] = id;
            }
        }
    }
    return n;
}

static bool most_wanted(const struct engine__pass *p) {
    return 2 * p->n_active > p->en->router.n_experts;
}

/* Called while this layer's own reads are under way. Of a prefill that wants most experts the store reads the next layer
 * without being told. */
static void look_ahead(struct engine__pass *p) {
    struct engine *en = p->en;
    const uint32_t next = p->layer + 1;
    if (!p->foretell || next >= en->hp->n_layers || !en->layers[next].router.w) {
        return;
    }
    const bool wanted_only = next + 1 == en->hp->n_layers;
    const uint32_t n_rows = wanted_only ? p->n_wants : p->n_rows;
    if (n_rows && !(n_rows > ENGINE__GUESS_ROWS && most_wanted(p))) {
        route_ahead(p, &en->layers[next], wanted_only, n_rows);
        offload_prefetch(en->store, next, en->s.ex.list, list_guess(en));
    }
}

/* ---- a layer ---- */

void engine__experts_run(struct engine__pass *p) {
    struct engine *en = p->en;
    struct engine__expert_scratch *x = &en->s.ex;
    const uint32_t n_wants = p->n_active;
    count_guess(p);
    for (uint32_t i = 0; i < n_wants; i++) {
        const uint32_t expert = (uint32_t)en->s.active[i];
        x->wants[i] = (struct offload_want){ .expert = expert, .n_rows = (uint32_t)(en->s.first[expert + 1] - en->s.first[expert]) };
    }
    offload_begin(en->store, p->layer, x->wants, n_wants, most_wanted(p));
    look_ahead(p);
    for (uint32_t n; (n = offload_next(en->store, x->items, n_wants)) > 0;) {
        p->n_active = keep_good(p, x->items, n);
        p->given = x->items;
        if (p->n_active) {
            engine__ffn_waves(p);
        }
        offload_release(en->store);
    }
    p->given = NULL;
}
