/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights into the kernels' packed layout at open (kernels/pack.h). Every quantised matrix that a product reads is
 * copied from the mapped file into one arena, in runs of whole 16-row groups over the pool, and the file's pages are let
 * go behind it, so that memory never holds much more than one copy. Offsets inside a tensor stay what they were: an
 * expert is found as in the file. Everything else (norms, F32 to BF16, an embedding that is not the head, matrices whose
 * rows do not come out even) stays where it lies in the file. Entered by the thread that opens the engine. */
#include "engine/internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "model/gguf.h"

enum { PER_LAYER = 7, FIRST_FFN = 4, RUN_BYTES = 1 << 20, PROGRESS_MS = 3000 };

/* Tensor i of those a product reads; NULL: this layer has none. */
static const struct tensor *nth_tensor(const struct model *m, uint32_t i) {
    if (i / PER_LAYER == model_hparams(m)->n_layers) {
        return model_output(m);
    }
    const struct model_layer *l = model_layer(m, i / PER_LAYER);
    const struct tensor *const all[PER_LAYER] = {
        l->wq, l->wk, l->wv, l->wo, l->router ? l->gate_exps : l->ffn_gate, l->router ? l->up_exps : l->ffn_up,
        l->router ? l->down_exps : l->ffn_down,
    };
    return all[i % PER_LAYER];
}

static struct engine__matrix *nth_matrix(struct engine *en, uint32_t i) {
    if (i / PER_LAYER == en->hp->n_layers) {
        return &en->head;
    }
    struct engine__layer *l = &en->layers[i / PER_LAYER];
    struct engine__matrix *const all[PER_LAYER] = { &l->wq, &l->wk, &l->wv, &l->wo, &l->gate, &l->up, &l->down };
    return all[i % PER_LAYER];
}

static uint32_t n_tensors(const struct model *m) {
    return model_hparams(m)->n_layers * PER_LAYER + 1;
}

/* Experts of a packed model have no data here: they are in that layout already. */
static bool fits(const struct tensor *t) {
    return t && t->data && kern_pack_fits(t->dtype, t->ne[1]); /* ne[1] rows: no group spans two experts */
}

/* Room of a tensor in the arena: whole cache lines. */
static uint64_t room(const struct tensor *t) {
    return ((uint64_t)t->n_bytes + 63) & ~UINT64_C(63);
}

/* Tensor i holds experts: with a store they are its business. */
static bool is_expert(const struct model *m, uint32_t i) {
    return i / PER_LAYER < model_hparams(m)->n_layers && i % PER_LAYER >= FIRST_FFN && model_layer(m, i / PER_LAYER)->router;
}

void engine__repack_plan(const struct engine_opts *o, bool stream, struct engine_memory *mem) {
    mem->repacked = 0;
    mem->weights = engine__weights_bytes(o->model, !stream);
    for (uint32_t i = 0; i < n_tensors(o->model); i++) {
        const struct tensor *t = nth_tensor(o->model, i);
        if (stream && is_expert(o->model, i)) {
            mem->weights -= t->data ? t->n_bytes : 0; /* those of a packed model are no tensors of the file */
        } else if (o->repack && fits(t)) {
            mem->repacked += room(t); /* tensors lie side by side in files: no overflow */
            mem->weights += room(t) - t->n_bytes;
        }
    }
}

struct item {
    const struct tensor *t;
    unsigned char *to;
    size_t group_bytes;          /* 16 rows                        */
    uint64_t n_groups;
    uint64_t per_task;           /* groups                         */
    uint32_t first_task;
};

struct repack {
    const struct gguf *file;
    struct item *items;          /* owned, n_items, then an end    */
    uint32_t n_items;
    uint64_t total;
    _Atomic uint64_t done;       /* bytes, by every worker         */
    uint64_t start_ns, told_ns;  /* told_ns: by worker 0           */
};

static void tell_progress(struct repack *r, bool last) {
    const uint64_t now = clock_mono_ns();
    const double done = (double)atomic_load_explicit(&r->done, memory_order_relaxed), s = (double)(now - r->start_ns) * 1e-9;
    if (!last && now - r->told_ns < PROGRESS_MS * UINT64_C(1000000)) {
        return;
    }
    r->told_ns = now;
    log_info("engine", "%s %.1f of %.1f MiB, %.1f s, %.0f MiB/s", last ? "repacked" : "repacking", done / 0x1p20,
             (double)r->total / 0x1p20, s, done / 0x1p20 / (s > 1e-9 ? s : 1e-9));
}

static void repack_task(void *ctx, int task, int worker) {
    struct repack *r = ctx;
    uint32_t lo = 0, hi = r->n_items;
    while (hi - lo > 1) { /* the last item that starts at or before the task */
        uint32_t mid = lo + (hi - lo) / 2;
        *(r->items[mid].first_task <= (uint32_t)task ? &lo : &hi) = mid;
    }
    const struct item *it = &r->items[lo];
    const uint64_t g0 = ((uint32_t)task - it->first_task) * it->per_task;
    const uint64_t n = it->n_groups - g0 < it->per_task ? it->n_groups - g0 : it->per_task;
    const size_t at = g0 * it->group_bytes, n_bytes = n * it->group_bytes;
    gguf_fetch(r->file, it->t, at, n_bytes);
    for (size_t i = at; i < at + n_bytes; i += it->group_bytes) {
        kern_pack_rows(it->t->dtype, (const unsigned char *)it->t->data + i, it->t->ne[0], it->to + i);
    }
    gguf_drop(r->file, it->t, at, n_bytes);
    atomic_fetch_add_explicit(&r->done, n_bytes, memory_order_relaxed);
    if (worker == 0) {
        tell_progress(r, false);
    }
}

/* Places every tensor in the arena, points its matrix there, and returns the number of tasks. */
static uint32_t place(struct engine *en, struct repack *r) {
    unsigned char *to = en->packed;
    uint32_t n_tasks = 0;
    for (uint32_t i = 0; i < n_tensors(en->o.model); i++) {
        const struct tensor *t = nth_tensor(en->o.model, i);
        if (!fits(t) || (en->plan.stream && is_expert(en->o.model, i))) {
            continue;
        }
        struct item *it = &r->items[r->n_items++];
        *it = (struct item){ .t = t, .to = to, .first_task = n_tasks };
        it->group_bytes = KERN_PACK_ROWS * dtype_row_bytes(dtype_info(t->dtype), t->ne[0]);
        it->n_groups = t->n_bytes / it->group_bytes;
        it->per_task = it->group_bytes < RUN_BYTES ? RUN_BYTES / it->group_bytes : 1;
        n_tasks += (uint32_t)((it->n_groups + it->per_task - 1) / it->per_task);
        struct engine__matrix *m = nth_matrix(en, i);
        m->w = to;
        m->packed = true;
        to += room(t);
        r->total += t->n_bytes;
    }
    return n_tasks;
}

static bool moved(const struct repack *r, const struct tensor *t) {
    for (uint32_t i = 0; i < r->n_items; i++) {
        if (r->items[i].t == t) {
            return true;
        }
    }
    return false;
}

static bool holds_experts(const struct model *m, const struct tensor *t) {
    for (uint32_t i = 0; i < n_tensors(m); i++) {
        if (nth_tensor(m, i) == t) {
            return is_expert(m, i);
        }
    }
    return false;
}

/* Lets the file go where it was copied, pages on the seams of runs too, which a neighbour may have brought back, and
 * brings in the rest, so that no first use is a page fault. Experts that the store reads are left alone. */
static void settle_file(const struct engine *en, const struct repack *r) {
    const bool stream = en->plan.stream;
    for (uint64_t i = 0; i < gguf_n_tensors(r->file); i++) {
        const struct tensor *t = gguf_tensor(r->file, i);
        if (moved(r, t)) {
            gguf_drop(r->file, t, 0, t->n_bytes);
        }
    }
    for (uint64_t i = 0; i < gguf_n_tensors(r->file); i++) {
        const struct tensor *t = gguf_tensor(r->file, i);
        if (!moved(r, t) && !(stream && holds_experts(en->o.model, t))) {
            gguf_fetch(r->file, t, 0, t->n_bytes);
        }
    }
}

int engine__repack(struct engine *en, struct err *e) {
    struct repack r = { .file = model_gguf(en->o.model), .start_ns = clock_mono_ns() };
    if (!en->o.repack && !en->plan.stream) {
        return ST_OK;
    }
    if (en->plan.stream) {
        gguf_no_readahead(r.file);
    }
    if (!en->plan.mem.repacked) {
        settle_file(en, &r);
        return ST_OK;
    }
    r.told_ns = r.start_ns;
    r.items = mem_zalloc(n_tensors(en->o.model), sizeof *r.items);
    en->packed = r.items ? mem_map(en->plan.mem.repacked) : NULL;
    if (!en->packed) {
        mem_free(r.items);
        return err_set(e, ST_NOMEM, "cannot map %llu bytes for the repacked weights; turn repack off to use them from the file",
                       (unsigned long long)en->plan.mem.repacked);
    }
    engine__run(en, place(en, &r), repack_task, &r);
    settle_file(en, &r);
    tell_progress(&r, true);
    mem_free(r.items);
    return ST_OK;
}
