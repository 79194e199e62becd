/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader thread: takes what slots.c wants read, keeps the disk's queue full, and brings what arrived into its final
 * form. It is the only thread that talks to the disk, save for wake. While it packs one expert the engine, if it has
 * nothing to compute, packs another (store.c). */
#include "offload/internal.h"

#include <string.h>
#include <xxhash.h>

#include "base/log.h"
#include "kernels/pack.h"

enum { DONE_CAP = 64, WINDOW_BYTES = 4 << 20, SPAN_BITS = 2, SLOT_BITS = 20 };
static const uint64_t STUCK_NS = UINT64_C(30000000000); /* no completion for so long with reads in flight: give up on them */

static uint32_t tag_of(const struct offload__read *r) {
    return r->generation << (SLOT_BITS + SPAN_BITS) | r->slot << SPAN_BITS | r->span;
}

static void pack_part(const struct offload__part *p, const unsigned char *from, unsigned char *to) {
    const size_t group = KERN_PACK_ROWS * dtype_row_bytes(dtype_info(p->dtype), p->n_in);
    if (!p->pack) {
        memcpy(to, from, p->n_bytes);
        return;
    }
    for (size_t i = 0; i < p->n_bytes; i += group) {
        kern_pack_rows(p->dtype, from + i, p->n_in, to + i);
    }
}

bool offload__process(struct offload *o, uint32_t i) {
    struct offload__slot *x = &o->s.slots[i];
    struct offload__recipe r;
    unsigned char *slot = offload__slot_at(o, i);
    o->catalog.recipe(o->catalog.ctx, x->key / o->catalog.n_experts, x->key % o->catalog.n_experts, &r);
    if (r.checked && XXH3_64bits(slot, r.checked_bytes) != r.checksum) {
        return false;
    }
    for (int p = 0; p < OFFLOAD__PARTS; p++) {
        x->at[p] = r.parts[p].at;
        if (r.staged) {
            pack_part(&r.parts[p], o->stages + x->stage * o->catalog.stage_bytes + r.parts[p].from, slot + r.parts[p].at);
        }
    }
    return true;
}

/* ---- the disk's queue ---- */

static int submit(struct offload *o, const struct offload__read *r, uint32_t key) {
    struct offload__recipe recipe;
    o->catalog.recipe(o->catalog.ctx, key / o->catalog.n_experts, key % o->catalog.n_experts, &recipe);
    const struct offload__span *span = &recipe.spans[r->span];
    unsigned char *to = recipe.staged ? o->stages + r->stage * o->catalog.stage_bytes : offload__slot_at(o, r->slot);
    return o->disk->submit(o->disk->self, &(struct disk_read){
        .file = span->file, .offset = span->offset, .n_bytes = span->n_bytes, .to = to + span->at, .need = span->need,
        .tag = tag_of(r), .demand = r->demand,
    });
}

/* Submits without the mutex: pinning the pages of a big read takes long. The slot cannot be given away meanwhile, since
 * its read counts as in flight. */
static void submit_reads(struct offload *o) {
    pthread_mutex_lock(&o->mutex);
    for (;;) {
        struct offload__read r;
        const uint64_t now = o->disk->now_ns(o->disk->self);
        const bool idle = o->s.in_flight == 0;
        if (o->s.in_flight >= o->depth || !offload__slots_take(&o->s, now, &r)) {
            break;
        }
        const uint32_t key = o->s.slots[r.slot].key;
        pthread_mutex_unlock(&o->mutex);
        if (idle) {
            o->progress_ns = o->last_ns = now;
        }
        const int rc = submit(o, &r, key);
        pthread_mutex_lock(&o->mutex);
        if (rc == ST_QUEUE_FULL) {
            offload__slots_put_back(&o->s, r.slot);
            break;
        }
        if (rc) {
            offload__slots_read_done(&o->s, r.slot, r.generation, rc, now);
            pthread_cond_signal(&o->changed);
        }
    }
    pthread_mutex_unlock(&o->mutex);
}

/* Tells the disk what nobody wants any more; when the store closes, that is everything. Rare, so the slots are searched. */
static void cancel_unwanted(struct offload *o) {
    pthread_mutex_lock(&o->mutex);
    for (uint32_t i = 0; (o->s.n_unwanted || o->stopping) && i < o->s.n_keys; i++) {
        struct offload__slot *x = &o->s.slots[i];
        if (x->in_flight == 0 || x->told || !(x->unwanted || o->stopping)) {
            continue;
        }
        for (uint32_t span = 0; span < x->next_span; span++) {
            o->disk->cancel(o->disk->self, tag_of(&(struct offload__read){ .slot = i, .span = span, .generation = x->generation }));
        }
        x->told = true;
    }
    pthread_mutex_unlock(&o->mutex);
}

/* Bytes over the time in which something was in flight, smoothed. */
static void measure(struct offload *o, uint64_t now, uint64_t n_bytes) {
    o->window_ns += now - o->last_ns;
    o->last_ns = now;
    o->window_bytes += n_bytes;
    if (o->window_bytes >= WINDOW_BYTES && o->window_ns) {
        const double rate = (double)o->window_bytes * 1e9 / (double)o->window_ns;
        o->read_bytes_per_s += o->read_bytes_per_s > 0 ? 0.2 * (rate - o->read_bytes_per_s) : rate;
        o->window_bytes = o->window_ns = 0;
    }
}

static void take_done(struct offload *o, const struct disk_done *done, uint32_t n) {
    const uint64_t now = o->disk->now_ns(o->disk->self);
    pthread_mutex_lock(&o->mutex);
    uint64_t n_bytes = 0;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t slot = done[k].tag >> SPAN_BITS & ((1u << SLOT_BITS) - 1);
        n_bytes += done[k].status ? 0 : o->s.slot_bytes[o->s.slots[slot].class] / o->s.n_spans;
        offload__slots_read_done(&o->s, slot, done[k].tag >> (SPAN_BITS + SLOT_BITS), done[k].status, now);
    }
    measure(o, now, n_bytes);
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->mutex);
    o->progress_ns = now;
}

/* One expert that arrived, so that completions are looked at between any two. */
static bool process_one(struct offload *o) {
    pthread_mutex_lock(&o->mutex);
    const uint32_t i = offload__slots_claim(&o->s);
    pthread_mutex_unlock(&o->mutex);
    if (i == OFFLOAD__NONE) {
        return false;
    }
    const bool good = offload__process(o, i);
    const uint64_t now = o->disk->now_ns(o->disk->self);
    pthread_mutex_lock(&o->mutex);
    offload__slots_settle(&o->s, i, good, now);
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->mutex);
    return true;
}

/* How long to wait for the disk; and when it gave nothing back for too long, what it holds is given up. */
static uint64_t wait_ns(struct offload *o) {
    const uint64_t now = o->disk->now_ns(o->disk->self);
    pthread_mutex_lock(&o->mutex);
    uint64_t until = offload__slots_retry_at(&o->s, now);
    const bool waits = o->s.in_flight > 0 && (o->s.n_left > 0 || o->s.draining);
    if (waits && now - o->progress_ns >= STUCK_NS) {
        log_error("offload", "the disk gave nothing back for %llu s: %u reads are given up",
                  (unsigned long long)(STUCK_NS / 1000000000), o->s.in_flight);
        offload__slots_stuck(&o->s);
        pthread_cond_signal(&o->changed);
        o->progress_ns = now;
    }
    if (waits && o->progress_ns + STUCK_NS < until) {
        until = o->progress_ns + STUCK_NS;
    }
    pthread_mutex_unlock(&o->mutex);
    return until == UINT64_MAX ? UINT64_MAX : until > now ? until - now : 0;
}

static bool stopped(struct offload *o) {
    pthread_mutex_lock(&o->mutex);
    const bool yes = o->stopping && o->s.in_flight == 0;
    pthread_mutex_unlock(&o->mutex);
    return yes;
}

void *offload__reader_main(void *store) {
    struct offload *o = store;
    struct disk_done done[DONE_CAP];
    while (!stopped(o)) {
        submit_reads(o);
        cancel_unwanted(o);
        const bool busy = process_one(o);
        const uint32_t n = o->disk->complete(o->disk->self, done, DONE_CAP, busy ? 0 : wait_ns(o));
        if (n) {
            take_done(o, done, n);
        }
    }
    return NULL;
}
