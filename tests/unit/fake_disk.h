/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk for tests: contents are a function of the offset, time is its own and jumps to the next event, faults come at
 * the rates asked for. And catalogs of experts that lie on it: records with checksums, or three spans that go through a
 * staging buffer. */
#ifndef MOED_TESTS_FAKE_DISK_H
#define MOED_TESTS_FAKE_DISK_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "offload/internal.h"

struct fake_faults {             /* of a thousand reads */
    uint32_t errors, shorts, wrong_bytes, stalls /* 40 s */, endless;
};

struct fake_read { struct disk_read r; uint64_t due; bool endless, cancelled, used; };

struct fake_disk {
    struct offload_disk disk;
    pthread_mutex_t mutex;       /* everything below */
    pthread_cond_t woken_up;
    uint64_t now, rng, latency_ns; /* latency: 0 .. 2 * latency_ns */
    bool woken, dead;
    uint32_t depth, n_demand, n_low;
    struct fake_faults faults;
    struct fake_read reads[DISK_MAX_DEPTH];
    uint64_t n_bytes;
};

static inline uint64_t fake_word(uint32_t file, uint64_t at) {
    uint64_t x = (at + ((uint64_t)file << 40)) * UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    return x * UINT64_C(0xbf58476d1ce4e5b9);
}

static inline void fake_fill(uint32_t file, uint64_t offset, void *to, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 8) {
        const uint64_t w = fake_word(file, offset + i);
        memcpy((char *)to + i, &w, 8);
    }
}

static inline uint32_t fake_rand(uint64_t *rng) {
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*rng >> 33);
}

static inline bool fake_chance(struct fake_disk *d, uint32_t of_thousand) {
    return of_thousand && fake_rand(&d->rng) % 1000 < of_thousand;
}

static inline int fake_submit(void *self, const struct disk_read *r) {
    struct fake_disk *d = self;
    int rc = ST_QUEUE_FULL;
    pthread_mutex_lock(&d->mutex);
    for (uint32_t i = 0; i < d->depth && rc; i++) {
        if (!d->reads[i].used) {
            d->reads[i] = (struct fake_read){ .r = *r, .used = true, .due = d->now + 1 };
            d->reads[i].due += d->latency_ns ? fake_rand(&d->rng) % (2 * d->latency_ns) : 0;
            d->reads[i].due += fake_chance(d, d->faults.stalls) ? UINT64_C(40000000000) : 0;
            d->reads[i].endless = fake_chance(d, d->faults.endless);
            *(r->demand ? &d->n_demand : &d->n_low) += 1;
            rc = ST_OK;
        }
    }
    pthread_mutex_unlock(&d->mutex);
    return rc;
}

static inline void fake_cancel(void *self, uint32_t tag) {
    struct fake_disk *d = self;
    pthread_mutex_lock(&d->mutex);
    for (uint32_t i = 0; i < d->depth; i++) {
        struct fake_read *x = &d->reads[i];
        if (x->used && x->r.tag == tag && (x->endless || fake_rand(&d->rng) % 2)) { /* best effort */
            x->cancelled = true;
            x->endless = false;
            x->due = d->now;
        }
    }
    pthread_mutex_unlock(&d->mutex);
}

static inline int fake_outcome(struct fake_disk *d, const struct fake_read *x) {
    if (x->cancelled) {
        return ST_CANCELLED;
    }
    if (d->dead || fake_chance(d, d->faults.errors)) {
        return ST_IO;
    }
    const bool is_short = fake_chance(d, d->faults.shorts);
    fake_fill(x->r.file, x->r.offset, x->r.to, is_short ? x->r.n_bytes / 2 : x->r.n_bytes);
    if (fake_chance(d, d->faults.wrong_bytes)) {
        ((char *)x->r.to)[fake_rand(&d->rng) % x->r.need] ^= 0x10;
    }
    d->n_bytes += x->r.n_bytes;
    return is_short ? ST_IO : ST_OK;
}

static inline uint32_t fake_collect(struct fake_disk *d, struct disk_done *done, uint32_t cap) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->depth && n < cap; i++) {
        struct fake_read *x = &d->reads[i];
        if (x->used && !x->endless && x->due <= d->now) {
            done[n++] = (struct disk_done){ x->r.tag, fake_outcome(d, x) };
            x->used = false;
        }
    }
    return n;
}

static inline uint64_t fake_next_due(const struct fake_disk *d) {
    uint64_t due = UINT64_MAX;
    for (uint32_t i = 0; i < d->depth; i++) {
        if (d->reads[i].used && !d->reads[i].endless && d->reads[i].due < due) {
            due = d->reads[i].due;
        }
    }
    return due;
}

static inline uint32_t fake_complete(void *self, struct disk_done *done, uint32_t cap, uint64_t timeout_ns) {
    struct fake_disk *d = self;
    pthread_mutex_lock(&d->mutex);
    uint32_t n = fake_collect(d, done, cap);
    const uint64_t until = timeout_ns > UINT64_MAX - d->now ? UINT64_MAX : d->now + timeout_ns;
    while (n == 0 && !d->woken && d->now < until) {
        const uint64_t due = fake_next_due(d);
        if (due == UINT64_MAX && until == UINT64_MAX) {
            pthread_cond_wait(&d->woken_up, &d->mutex);
            continue;
        }
        d->now = due < until ? due : until;
        n = fake_collect(d, done, cap);
    }
    d->woken = false;
    pthread_mutex_unlock(&d->mutex);
    return n;
}

static inline void fake_wake(void *self) {
    struct fake_disk *d = self;
    pthread_mutex_lock(&d->mutex);
    d->woken = true;
    pthread_cond_signal(&d->woken_up);
    pthread_mutex_unlock(&d->mutex);
}

static inline uint64_t fake_now(void *self) {
    struct fake_disk *d = self;
    pthread_mutex_lock(&d->mutex);
    const uint64_t now = d->now;
    pthread_mutex_unlock(&d->mutex);
    return now;
}

static inline void fake_init(struct fake_disk *d, uint64_t seed, uint32_t depth) {
    *d = (struct fake_disk){ .rng = seed * 2 + 1, .depth = depth, .latency_ns = 100000, .now = 1000 };
    d->disk = (struct offload_disk){ fake_submit, fake_cancel, fake_complete, fake_wake, fake_now, d };
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->woken_up, NULL);
}

static inline void fake_set(struct fake_disk *d, const struct fake_faults *faults, bool dead) {
    pthread_mutex_lock(&d->mutex);
    d->faults = *faults;
    d->dead = dead;
    pthread_mutex_unlock(&d->mutex);
}

static inline void fake_clear(struct fake_disk *d) {
    pthread_mutex_destroy(&d->mutex);
    pthread_cond_destroy(&d->woken_up);
}

/* ---- experts on it: layer l has records of 1 + l % 2 blocks; layer 0 has none when there are more than two ---- */

enum { FAKE_PART = 1024, FAKE_STRIDE = 1 << 20 };

struct fake_experts { uint32_t n_layers, n_experts; bool spans; };

static inline uint64_t fake_place(const struct fake_experts *x, uint32_t layer, uint32_t expert) {
    return ((uint64_t)layer * x->n_experts + expert) * FAKE_STRIDE;
}

static inline void fake_recipe(const void *ctx, uint32_t layer, uint32_t expert, struct offload__recipe *out) {
    const struct fake_experts *x = ctx;
    const size_t n = (1 + layer % 2) * DISK_ALIGN;
    const uint64_t at = fake_place(x, layer, expert);
    *out = (struct offload__recipe){ .n_spans = x->spans ? 3 : 1, .staged = x->spans, .checked = !x->spans };
    for (int i = 0; x->spans && i < OFFLOAD__PARTS; i++) {
        out->spans[i] = (struct offload__span){ 0, at + (uint64_t)i * (FAKE_STRIDE / 4), DISK_ALIGN, DISK_ALIGN, (size_t)i * DISK_ALIGN };
        out->parts[i] = (struct offload__part){ .n_in = 32, .n_bytes = FAKE_PART, .from = (size_t)i * DISK_ALIGN + 64, .at = (size_t)i * FAKE_PART };
    }
    if (!x->spans) {
        out->spans[0] = (struct offload__span){ 0, at, n, n, 0 };
        out->checked_bytes = n;
        for (int i = 0; i < OFFLOAD__PARTS; i++) {
            out->parts[i].at = (size_t)i * FAKE_PART;
        }
        unsigned char bytes[2 * DISK_ALIGN];
        fake_fill(0, at, bytes, n);
        out->checksum = XXH3_64bits(bytes, n);
    }
}

static inline void fake_catalog(struct offload__catalog *c, const struct fake_experts *x, uint32_t n_used) {
    *c = (struct offload__catalog){
        .n_layers = x->n_layers, .n_experts = x->n_experts, .n_used = n_used, .recipe = fake_recipe, .ctx = x, .n_classes = 2,
        .slot_bytes = { DISK_ALIGN, 2 * DISK_ALIGN }, .n_spans = x->spans ? 3 : 1, .identity = 42,
        .stage_bytes = x->spans ? 3 * DISK_ALIGN : 0, .layer_class = mem_zalloc(x->n_layers, 1),
    };
    for (uint32_t l = 0; l < x->n_layers; l++) {
        c->layer_class[l] = l == 0 && x->n_layers > 2 ? OFFLOAD__CLASSES : (uint8_t)(l % 2);
        if (c->layer_class[l] < OFFLOAD__CLASSES) {
            c->n_keys[l % 2] += x->n_experts;
        }
    }
}

static inline bool fake_right(const struct fake_experts *x, uint32_t layer, const struct offload_item *it) {
    const void *const parts[OFFLOAD__PARTS] = { it->gate, it->up, it->down };
    for (int i = 0; i < OFFLOAD__PARTS; i++) {
        unsigned char want[FAKE_PART];
        fake_fill(0, fake_place(x, layer, it->expert) + (uint64_t)i * (x->spans ? FAKE_STRIDE / 4 : FAKE_PART) + (x->spans ? 64 : 0),
                  want, FAKE_PART);
        if (memcmp(want, parts[i], FAKE_PART)) {
            return false;
        }
    }
    return true;
}

#endif
