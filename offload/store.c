/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's side of the store: open and close, the step, the budget. Decisions are slots.c's, made under one mutex
 * that nobody holds for long; with every expert resident a step costs three short visits to it. */
#include "offload/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "model/gguf.h"
#include "model/model.h"

enum { DEFAULT_DEPTH = 8, PROBE_DEPTH = 32, BATCH = 64 };

void *offload__slot_at(const struct offload *o, uint32_t i) {
    const uint32_t c = o->s.slots[i].class;
    return o->arena[c] + (size_t)(i - o->s.first[c]) * o->catalog.slot_bytes[c];
}

/* Makes the arenas fit a budget. Classes that shrink go first, so that the sum is never above the larger of both. */
static int commit(struct offload *o, const struct offload__budget *b) {
    for (int grow = 0; grow < 2; grow++) {
        for (uint32_t c = 0; c < o->catalog.n_classes; c++) {
            const size_t n = b->slots[c] * o->catalog.slot_bytes[c];
            if ((n > o->committed[c]) == grow && mem_commit(o->arena[c], o->committed[c], n)) {
                return ST_NOMEM;
            }
            o->committed[c] = (n > o->committed[c]) == grow ? n : o->committed[c];
        }
        const size_t n = b->n_stages * o->catalog.stage_bytes;
        if ((n > o->stages_committed) == grow && n != o->stages_committed) {
            if (mem_commit(o->stages, o->stages_committed, n)) {
                return ST_NOMEM;
            }
            o->stages_committed = n;
        }
    }
    return ST_OK;
}

static int map_arenas(struct offload *o) {
    const struct offload__catalog *c = &o->catalog;
    for (uint32_t k = 0; k < c->n_classes; k++) {
        if (!(o->arena[k] = mem_reserve(c->n_keys[k] * c->slot_bytes[k]))) {
            return ST_NOMEM;
        }
    }
    if (c->stage_bytes && !(o->stages = mem_reserve(OFFLOAD__STAGES * c->stage_bytes))) {
        return ST_NOMEM;
    }
    return commit(o, &o->budget);
}

static void unmap_arenas(struct offload *o) {
    const struct offload__catalog *c = &o->catalog;
    for (uint32_t k = 0; k < c->n_classes; k++) {
        mem_unreserve(o->arena[k], o->committed[k], c->n_keys[k] * c->slot_bytes[k]);
    }
    mem_unreserve(o->stages, o->stages_committed, OFFLOAD__STAGES * c->stage_bytes);
}

/* ---- life ---- */

/* io_uring where the kernel allows it, else threads. */
static int open_disk(struct offload *o, const struct disk_opts *d, struct err *e) {
    struct err why;
    int rc = ST_UNSUPPORTED;
    o->disk = &o->own;
    if (o->o.io != OFFLOAD_IO_THREADS) {
        rc = disk_uring_open(&o->own, d, &why);
        o->own_uring = rc == ST_OK;
    }
    if (rc == ST_UNSUPPORTED) {
        if (o->o.io != OFFLOAD_IO_THREADS) {
            log_warn("offload", "%s: experts are read by threads", why.text);
        }
        rc = disk_threads_open(&o->own, d, &why);
        o->own_threads = rc == ST_OK;
    }
    return rc ? err_set(e, rc, "%s", why.text) : ST_OK;
}

static int open_files(struct offload *o, struct err *e) {
    const struct gguf *g = model_gguf(o->o.model);
    const uint32_t n = gguf_n_files(g);
    const char **paths = mem_alloc(n * sizeof *paths);
    if (!paths) {
        return err_set(e, ST_NOMEM, "out of memory for the names of %u files", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        paths[i] = gguf_file_path(g, i);
    }
    o->depth = o->o.queue_depth ? o->o.queue_depth : PROBE_DEPTH;
    o->depth = o->depth < DISK_MAX_DEPTH ? o->depth : DISK_MAX_DEPTH;
    const int rc = open_disk(o, &(struct disk_opts){ .paths = paths, .n_files = n, .depth = o->depth }, e);
    mem_free(paths);
    if (!rc && !o->o.queue_depth) {
        offload__probe(o);
    }
    return rc;
}

static uint32_t n_slots(const struct offload *o) {
    uint32_t n = 0;
    for (uint32_t c = 0; c < o->catalog.n_classes; c++) {
        n += o->budget.slots[c];
    }
    return n;
}

/* What an earlier run learned, and the order in which empty slots are filled. */
static int warm(struct offload *o, struct err *e) {
    struct policy *p = &o->s.policy;
    const bool learned = o->o.heat_path && offload__heat_load(o->o.heat_path, o->catalog.identity, p->n_keys, p->entries, &p->now);
    if (learned) {
        log_info("offload", "%s: heat of an earlier run", o->o.heat_path);
    }
    if (!o->o.fill) {
        return ST_OK;
    }
    o->fill_order = mem_alloc(p->n_keys * sizeof *o->fill_order);
    if (!o->fill_order) {
        return err_set(e, ST_NOMEM, "out of memory for the order of experts");
    }
    offload__heat_order(p, o->fill_order);
    o->s.fill_order = o->fill_order;
    return ST_OK;
}

static void stop_saver(struct offload *o) {
    if (!o->heat_copy) {
        return;
    }
    pthread_mutex_lock(&o->mutex);
    o->stopping = true;
    pthread_cond_signal(&o->saving);
    pthread_mutex_unlock(&o->mutex);
    pthread_join(o->saver, NULL);
    mem_free(o->heat_copy);
    o->heat_copy = NULL;
}

/* Heat outlives a process that is killed. */
static int start_saver(struct offload *o, struct err *e) {
    if (!o->o.heat_path || !o->o.heat_every_ms) {
        return ST_OK;
    }
    o->heat_copy = mem_zalloc(o->s.policy.n_keys, sizeof *o->heat_copy);
    if (!o->heat_copy || pthread_create(&o->saver, NULL, offload__saver_main, o)) {
        mem_free(o->heat_copy);
        o->heat_copy = NULL;
        return err_set(e, ST_NOMEM, "cannot start the thread that saves the heat of experts");
    }
    return ST_OK;
}

static int start(struct offload *o, struct err *e) {
    if (offload__budget(&o->catalog, o->ram_bytes, &o->budget)) {
        return err_set(e, ST_INVALID, "ram: the expert store needs at least %llu bytes, it was given %llu",
                       (unsigned long long)offload__min_bytes(&o->catalog), (unsigned long long)o->ram_bytes);
    }
    if (map_arenas(o) || offload__slots_init(&o->s, &o->catalog, &o->budget, o->o.policy)) {
        return err_set(e, ST_NOMEM, "cannot map %llu bytes for experts", (unsigned long long)o->ram_bytes);
    }
    const uint32_t n = o->catalog.n_experts;
    o->planned = mem_zalloc(n, sizeof *o->planned);
    o->plan_order = mem_zalloc(n, sizeof *o->plan_order);
    o->ordered = mem_zalloc(n, sizeof *o->ordered);
    if (!o->planned || !o->plan_order || !o->ordered) {
        return err_set(e, ST_NOMEM, "out of memory for the plan of a step");
    }
    o->disk = o->o.disk;
    o->depth = o->o.queue_depth ? o->o.queue_depth : DEFAULT_DEPTH;
    int rc = warm(o, e);
    rc = rc || o->disk ? rc : open_files(o, e);
    if (rc) {
        return rc;
    }
    o->s.low_most = o->depth / 4 > 2 ? o->depth / 4 : 2;
    log_info("offload", "%u slots in %.1f MiB, %u reads in flight%s, %.0f MB/s", n_slots(o), (double)o->budget.slot_bytes / 0x1p20,
             o->depth, o->own_uring ? " through io_uring" : "", o->probe_bytes_per_s / 1e6);
    o->progress_ns = o->last_ns = o->disk->now_ns(o->disk->self);
    rc = start_saver(o, e);
    if (!rc && pthread_create(&o->reader, NULL, offload__reader_main, o)) {
        rc = err_set(e, ST_NOMEM, "cannot start the reader thread of the expert store");
        stop_saver(o);
    }
    return rc;
}

static void destroy(struct offload *o) {
    if (o->own_threads) {
        disk_threads_close(&o->own);
    }
    if (o->own_uring) {
        disk_uring_close(&o->own);
    }
    offload__slots_clear(&o->s);
    mem_free(o->fill_order);
    mem_free(o->planned);
    mem_free(o->plan_order);
    mem_free(o->ordered);
    mem_free(o->heat_path);
    unmap_arenas(o);
    offload__catalog_clear(&o->catalog);
    pthread_cond_destroy(&o->changed);
    pthread_cond_destroy(&o->saving);
    pthread_mutex_destroy(&o->mutex);
    mem_free(o);
}

int offload__open(struct offload **out, const struct offload_opts *opts, struct offload__catalog *c, struct err *e) {
    *out = NULL;
    struct offload *o = mem_zalloc(1, sizeof *o);
    if (!o) {
        offload__catalog_clear(c);
        return err_set(e, ST_NOMEM, "out of memory for the expert store");
    }
    o->o = *opts;
    o->heat_path = opts->heat_path ? mem_strndup(opts->heat_path, strlen(opts->heat_path)) : NULL;
    o->o.heat_path = o->heat_path;
    o->catalog = *c;
    o->ram_bytes = opts->ram_bytes;
    pthread_condattr_t attr;
    pthread_mutex_init(&o->mutex, NULL); /* none of these fails on Linux */
    pthread_cond_init(&o->changed, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&o->saving, &attr);
    pthread_condattr_destroy(&attr);
    const int rc = start(o, e);
    if (rc) {
        destroy(o);
        return rc;
    }
    *out = o;
    return ST_OK;
}

int offload_open(struct offload **out, const struct offload_opts *o, struct err *e) {
    struct offload__catalog c;
    *out = NULL;
    const int rc = offload__catalog_init(&c, o->model, o->packed, e);
    return rc ? rc : offload__open(out, o, &c, e);
}

void offload_close(struct offload *o) {
    if (!o) {
        return;
    }
    pthread_mutex_lock(&o->mutex);
    offload__slots_end(&o->s);
    offload__slots_drop_loads(&o->s);
    o->s.draining = o->stopping = true;
    pthread_mutex_unlock(&o->mutex);
    o->disk->wake(o->disk->self);
    pthread_join(o->reader, NULL);
    stop_saver(o);
    struct err e;
    if (o->o.heat_path && offload__heat_save(o->o.heat_path, o->catalog.identity, &o->s.policy, &e)) {
        log_warn("offload", "%s", e.text);
    }
    destroy(o);
}

/* ---- the step ---- */

static void move_bytes(void *store, uint32_t from, uint32_t to) {
    const struct offload *o = store;
    memcpy(offload__slot_at(o, to), offload__slot_at(o, from), o->catalog.slot_bytes[o->s.slots[from].class]);
}

/* Applies a resize: waits for the reads in flight, moves what stays together, gives the rest back. With the mutex. */
static void apply_resize(struct offload *o, uint64_t ram_bytes) {
    struct offload__budget b;
    o->s.draining = true;
    offload__slots_end(&o->s);
    offload__slots_drop_loads(&o->s);
    o->disk->wake(o->disk->self);
    while ((o->s.in_flight || o->s.n_filled) && !o->s.n_dead) {
        pthread_cond_wait(&o->changed, &o->mutex);
    }
    o->s.draining = false;
    if (o->s.n_dead) { /* at a later step */
        uint64_t none = 0;
        atomic_compare_exchange_strong(&o->wanted_bytes, &none, ram_bytes);
        return;
    }
    offload__budget(&o->catalog, ram_bytes, &b); /* offload_resize asked the same */
    struct offload__budget less = b;
    for (uint32_t c = 0; c < o->catalog.n_classes; c++) {
        less.slots[c] = b.slots[c] < o->budget.slots[c] ? b.slots[c] : o->budget.slots[c];
    }
    offload__slots_resize(&o->s, &less, move_bytes, o);
    if (commit(o, &b)) {
        log_warn("offload", "cannot map %llu bytes for experts: the store stays smaller", (unsigned long long)ram_bytes);
        less.n_stages = o->catalog.stage_bytes ? (uint32_t)(o->stages_committed / o->catalog.stage_bytes) : 0;
        b = less;
    }
    offload__slots_resize(&o->s, &b, move_bytes, o);
    o->budget = b;
    o->ram_bytes = ram_bytes;
}

int offload_begin(struct offload *o, uint32_t layer, const struct offload_want *wants, uint32_t n, bool stream) {
    if (layer >= o->catalog.n_layers || o->catalog.layer_class[layer] == OFFLOAD__CLASSES || n > o->catalog.n_experts) {
        return ST_INVALID;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (wants[i].expert >= o->catalog.n_experts) {
            return ST_INVALID;
        }
    }
    pthread_mutex_lock(&o->mutex);
    const uint64_t ram_bytes = atomic_exchange_explicit(&o->wanted_bytes, 0, memory_order_relaxed);
    if (ram_bytes) {
        apply_resize(o, ram_bytes);
    }
    const uint64_t work = o->s.work;
    offload__slots_begin(&o->s, layer, offload__order(o, layer, wants, n), n, stream);
    const bool more = o->s.work != work;
    pthread_mutex_unlock(&o->mutex);
    if (more) {
        o->disk->wake(o->disk->self);
    }
    return ST_OK;
}

static void fill_item(const struct offload *o, uint32_t w, struct offload_item *it) {
    const struct offload__want *x = &o->s.wants[w];
    if (x->slot == OFFLOAD__NONE) {
        *it = (struct offload_item){ .expert = x->expert, .status = ST_IO };
        return;
    }
    const unsigned char *at = offload__slot_at(o, x->slot);
    const size_t *part = o->s.slots[x->slot].at;
    *it = (struct offload_item){ .expert = x->expert, .gate = at + part[0], .up = at + part[1], .down = at + part[2] };
}

/* Nothing to compute: packs something that arrived, or waits. With the mutex. */
static void wait_or_help(struct offload *o) {
    const uint64_t t0 = o->disk->now_ns(o->disk->self);
    const uint32_t i = offload__slots_claim(&o->s);
    if (i == OFFLOAD__NONE) {
        pthread_cond_wait(&o->changed, &o->mutex);
    } else {
        pthread_mutex_unlock(&o->mutex);
        const bool good = offload__process(o, i);
        const uint64_t now = o->disk->now_ns(o->disk->self);
        pthread_mutex_lock(&o->mutex);
        offload__slots_settle(&o->s, i, good, now);
        o->disk->wake(o->disk->self);
    }
    o->stall_ns += o->disk->now_ns(o->disk->self) - t0;
}

uint32_t offload_next(struct offload *o, struct offload_item *items, uint32_t cap) {
    uint32_t wants[BATCH];
    cap = cap < BATCH ? cap : BATCH;
    pthread_mutex_lock(&o->mutex);
    offload__order_computed(o);
    const uint64_t work = o->s.work;
    uint32_t n = offload__slots_next(&o->s, wants, cap);
    if (o->s.work != work) {
        o->disk->wake(o->disk->self);
    }
    while (n == 0 && cap && o->s.n_left) {
        wait_or_help(o);
        n = offload__slots_next(&o->s, wants, cap);
    }
    for (uint32_t i = 0; i < n; i++) {
        fill_item(o, wants[i], &items[i]);
    }
    offload__order_handed(o, wants, n);
    pthread_mutex_unlock(&o->mutex);
    return n;
}

void offload_release(struct offload *o) {
    pthread_mutex_lock(&o->mutex);
    const uint64_t work = o->s.work;
    offload__slots_release(&o->s);
    const bool more = o->s.work != work;
    pthread_mutex_unlock(&o->mutex);
    if (more) {
        o->disk->wake(o->disk->self);
    }
}

void offload_prefetch(struct offload *o, uint32_t layer, const uint32_t *experts, uint32_t n) {
    bool good = o->o.prefetch && layer < o->catalog.n_layers && o->catalog.layer_class[layer] < OFFLOAD__CLASSES;
    for (uint32_t i = 0; good && i < n; i++) {
        good = experts[i] < o->catalog.n_experts;
    }
    if (!good) {
        return;
    }
    pthread_mutex_lock(&o->mutex);
    const uint64_t work = o->s.work;
    offload__slots_guess(&o->s, layer, experts, n);
    const bool more = o->s.work != work;
    pthread_mutex_unlock(&o->mutex);
    if (more) {
        o->disk->wake(o->disk->self);
    }
}

void offload_here(struct offload *o, uint32_t layer, uint8_t *here) {
    const struct offload__slots *s = &o->s;
    pthread_mutex_lock(&o->mutex);
    for (uint32_t i = 0; i < s->n_experts; i++) {
        const uint32_t slot = s->slot_of[layer * s->n_experts + i];
        here[i] = slot != OFFLOAD__NONE && !s->slots[slot].unwanted;
    }
    pthread_mutex_unlock(&o->mutex);
}

/* ---- any thread ---- */

int offload_resize(struct offload *o, uint64_t ram_bytes, struct err *e) {
    struct offload__budget b;
    if (offload__budget(&o->catalog, ram_bytes, &b)) {
        return err_set(e, ST_INVALID, "ram: the expert store needs at least %llu bytes, it was given %llu",
                       (unsigned long long)offload__min_bytes(&o->catalog), (unsigned long long)ram_bytes);
    }
    atomic_store_explicit(&o->wanted_bytes, ram_bytes, memory_order_relaxed);
    return ST_OK;
}

void offload_stats(const struct offload *store, struct offload_stats *out) {
    struct offload *o = (struct offload *)(uintptr_t)store; /* the mutex is no part of what is const */
    pthread_mutex_lock(&o->mutex);
    *out = o->s.stats;
    out->stall_ns = o->stall_ns;
    out->slots = n_slots(o);
    out->resident = o->s.n_resident;
    out->budget_bytes = o->ram_bytes;
    out->slot_bytes = o->budget.slot_bytes;
    out->read_bytes_per_s = o->read_bytes_per_s > 0 ? o->read_bytes_per_s : o->probe_bytes_per_s;
    out->plan_error = o->loop.error;
    out->plan_falls = o->loop.n_falls;
    out->probe_bytes_per_s = o->probe_bytes_per_s;
    out->queue_depth = o->depth;
    out->uring = o->own_uring;
    pthread_mutex_unlock(&o->mutex);
}

void offload_resident(const struct offload *store, uint8_t *bits) {
    struct offload *o = (struct offload *)(uintptr_t)store;
    memset(bits, 0, (o->s.n_keys + 7) / 8);
    pthread_mutex_lock(&o->mutex);
    for (uint32_t k = 0; k < o->s.n_keys; k++) {
        const uint32_t i = o->s.slot_of[k];
        if (i != OFFLOAD__NONE && o->s.slots[i].state == SLOT_READY) {
            bits[k / 8] |= (uint8_t)(1u << (k % 8));
        }
    }
    pthread_mutex_unlock(&o->mutex);
}
