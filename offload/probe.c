/* SPDX-License-Identifier: Apache-2.0
 *
 * How many reads in flight the disk wants: at open, experts chosen at random are read at depth 1, 2, 4, ... for a moment
 * each, and the least depth within a few percent of the best is taken. */
#include "offload/internal.h"

enum { ROUND_NS = 25000000, ROUND_LEAST = 8, DEPTH_MOST = 32 };

struct probe {
    const struct offload *o;
    uint64_t rng;
    uint32_t in_flight, span;
    struct offload__recipe recipe;  /* of the expert being read */
};

static uint32_t next_random(uint64_t *rng) {
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*rng >> 33);
}

/* The next span of an expert chosen at random, to the beginning of an arena: nobody reads what comes there. */
static bool read_some(struct probe *p, uint64_t *n_bytes) {
    const struct offload *o = p->o;
    if (p->span == p->recipe.n_spans) {
        uint32_t layer;
        do {
            layer = next_random(&p->rng) % o->catalog.n_layers;
        } while (o->catalog.layer_class[layer] == OFFLOAD__CLASSES);
        o->catalog.recipe(o->catalog.ctx, layer, next_random(&p->rng) % o->catalog.n_experts, &p->recipe);
        p->span = 0;
    }
    const struct offload__span *s = &p->recipe.spans[p->span];
    unsigned char *to = p->recipe.staged ? o->stages : o->arena[o->catalog.n_classes - 1];
    if (o->disk->submit(o->disk->self, &(struct disk_read){ .file = s->file, .offset = s->offset, .n_bytes = s->n_bytes, .to = to,
                                                            .need = s->need, .tag = p->span })) {
        return false;
    }
    p->span++;
    p->in_flight++;
    *n_bytes += s->n_bytes;
    return true;
}

/* Bytes per second at a depth; 0: the disk fails. */
static double measure_depth(struct probe *p, uint32_t depth) {
    const struct offload_disk *d = p->o->disk;
    struct disk_done done[DISK_MAX_DEPTH];
    const uint64_t start_ns = d->now_ns(d->self);
    uint64_t n_bytes = 0, n_done = 0, now = start_ns;
    bool good = true;
    while (p->in_flight || (good && (now - start_ns < ROUND_NS || n_done < ROUND_LEAST))) {
        while (good && p->in_flight < depth && (now - start_ns < ROUND_NS || n_done + p->in_flight < ROUND_LEAST)) {
            good = read_some(p, &n_bytes);
        }
        const uint32_t n = d->complete(d->self, done, DISK_MAX_DEPTH, UINT64_C(1000000000));
        for (uint32_t i = 0; i < n; i++) {
            good = good && done[i].status == 0;
        }
        p->in_flight -= n;
        n_done += n;
        now = d->now_ns(d->self);
    }
    return good && now > start_ns ? (double)n_bytes * 1e9 / (double)(now - start_ns) : 0;
}

void offload__probe(struct offload *o) {
    struct probe p = { .o = o, .rng = o->catalog.identity };
    double rates[DEPTH_MOST + 1] = { 0 }, best = 0;
    uint32_t depth = 1;
    for (; depth <= o->depth && depth <= DEPTH_MOST; depth *= 2) {
        rates[depth] = measure_depth(&p, depth);
        if (rates[depth] <= 0) {
            return; /* reading experts will say what is wrong */
        }
        if (depth >= 4 && rates[depth] < 1.03 * best) {
            depth *= 2;
            break;
        }
        best = rates[depth] > best ? rates[depth] : best;
    }
    uint32_t least = 1;
    while (least * 2 < depth && rates[least] < 0.97 * best) {
        least *= 2;
    }
    /* Never below one expert's spans twice: one expert is read while another is packed. */
    o->depth = least > 2 * o->catalog.n_spans ? least : 2 * o->catalog.n_spans;
    o->probe_bytes_per_s = best;
}
