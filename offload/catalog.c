/* SPDX-License-Identifier: Apache-2.0
 *
 * What an expert is made of: the spans of the file that hold it, and what becomes of their bytes. Three forms: a record of
 * a packed model goes straight into the slot; rows of a GGUF too, each matrix with the ragged ends that whole blocks of
 * the disk bring along; rows that are to be packed go through a staging buffer. */
#include "offload/internal.h"

#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "kernels/pack.h"
#include "model/expert_bank.h"
#include "model/gguf.h"

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* Room for n bytes that begin anywhere in a block of the disk. */
static size_t ragged_bytes(size_t n) {
    return round_up(n + DISK_ALIGN - 1, DISK_ALIGN);
}

static bool packs(const struct expert_matrix *m) {
    return kern_pack_fits(m->dtype, m->n_out);
}

/* The three matrices as rows of the file, read into [0, ...) of the slot or of a staging buffer. */
static void rows_recipe(const struct expert *x, bool staged, struct offload__recipe *out) {
    const struct expert_matrix *const all[OFFLOAD__PARTS] = { &x->gate, &x->up, &x->down };
    size_t region = 0, at = 0;
    *out = (struct offload__recipe){ .n_spans = OFFLOAD__PARTS, .staged = staged };
    for (int i = 0; i < OFFLOAD__PARTS; i++) {
        const struct expert_matrix *m = all[i];
        const size_t head = m->file_offset % DISK_ALIGN;
        out->spans[i] = (struct offload__span){
            .file = m->file,
            .offset = m->file_offset - head,
            .n_bytes = round_up(head + m->n_bytes, DISK_ALIGN),
            .need = head + m->n_bytes,
            .at = region,
        };
        out->parts[i] = (struct offload__part){
            .dtype = m->dtype, .n_in = m->n_in, .n_bytes = m->n_bytes, .from = region + head,
            .at = staged ? at : region + head, .pack = staged && packs(m),
        };
        region += ragged_bytes(m->n_bytes);
        at += round_up(m->n_bytes, 64);
    }
}

static void gguf_rows(const void *ctx, uint32_t layer, uint32_t expert, struct offload__recipe *out) {
    struct expert x;
    expert_bank_get(ctx, layer, expert, &x);
    rows_recipe(&x, false, out);
}

static void gguf_staged(const void *ctx, uint32_t layer, uint32_t expert, struct offload__recipe *out) {
    struct expert x;
    expert_bank_get(ctx, layer, expert, &x);
    rows_recipe(&x, true, out);
}

static void record(const void *ctx, uint32_t layer, uint32_t expert, struct offload__recipe *out) {
    struct expert_record r;
    expert_bank_record(ctx, layer, expert, &r);
    *out = (struct offload__recipe){
        .n_spans = 1,
        .spans = { { .file = r.file, .offset = r.file_offset, .n_bytes = r.n_bytes, .need = r.n_bytes } },
        .parts = { { .at = r.gate_at }, { .at = r.up_at }, { .at = r.down_at } },
        .checked = true,
        .checksum = r.checksum,
        .checked_bytes = r.n_bytes,
    };
}

/* Bytes of slot and of staging buffer that any expert of the layer needs. */
static void layer_bytes(const struct model *m, uint32_t layer, bool packed, size_t *slot, size_t *stage) {
    *stage = 0;
    if (expert_bank_is_packed(m)) {
        struct expert_record r;
        expert_bank_record(m, layer, 0, &r);
        *slot = r.n_bytes;
        return;
    }
    struct expert x;
    expert_bank_get(m, layer, 0, &x);
    const size_t n[OFFLOAD__PARTS] = { x.gate.n_bytes, x.up.n_bytes, x.down.n_bytes };
    size_t ragged = 0, tight = 0;
    for (int i = 0; i < OFFLOAD__PARTS; i++) {
        ragged += ragged_bytes(n[i]);
        tight += round_up(n[i], 64);
    }
    *slot = packed ? round_up(tight, DISK_ALIGN) : ragged;
    *stage = packed ? ragged : 0;
}

/* ---- classes of slot sizes ---- */

struct sizes { size_t bytes; uint32_t n_layers; };

/* Of neighbours in the sorted list, the pair that wastes least becomes one. */
static void merge_cheapest(struct sizes *v, uint32_t *n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i + 1 < *n; i++) {
        if ((v[i + 1].bytes - v[i].bytes) * v[i].n_layers < (v[best + 1].bytes - v[best].bytes) * v[best].n_layers) {
            best = i;
        }
    }
    v[best + 1].n_layers += v[best].n_layers;
    memmove(&v[best], &v[best + 1], (*n - best - 1) * sizeof *v);
    (*n)--;
}

static void insert_size(struct sizes *v, uint32_t *n, size_t bytes) {
    uint32_t at = 0;
    while (at < *n && v[at].bytes < bytes) {
        at++;
    }
    if (at == *n || v[at].bytes != bytes) {
        memmove(&v[at + 1], &v[at], (*n - at) * sizeof *v);
        v[at] = (struct sizes){ .bytes = bytes };
        (*n)++;
    }
    v[at].n_layers++;
    if (*n > OFFLOAD__CLASSES) {
        merge_cheapest(v, n);
    }
}

static void set_classes(struct offload__catalog *c, const size_t *slot_bytes) {
    struct sizes v[OFFLOAD__CLASSES + 1];
    uint32_t n = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (slot_bytes[l]) {
            insert_size(v, &n, slot_bytes[l]);
        }
    }
    c->n_classes = n;
    for (uint32_t k = 0; k < n; k++) {
        c->slot_bytes[k] = v[k].bytes;
    }
    for (uint32_t l = 0; l < c->n_layers; l++) {
        uint32_t k = 0;
        while (slot_bytes[l] && slot_bytes[l] > c->slot_bytes[k]) {
            k++;
        }
        c->layer_class[l] = slot_bytes[l] ? (uint8_t)k : OFFLOAD__CLASSES;
        if (slot_bytes[l]) {
            c->n_keys[k] += c->n_experts;
        }
    }
}

/* Shapes, places and a sample of the weights: two fine-tunes of one model differ in the sample. */
static uint64_t identity(const struct model *m, const struct offload__catalog *c) {
    const uint64_t total = gguf_total_bytes(model_gguf(m));
    XXH64_hash_t h = XXH3_64bits_withSeed(&total, sizeof total, ((uint64_t)c->n_layers << 32) | c->n_experts);
    uint32_t last = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (c->layer_class[l] < OFFLOAD__CLASSES) {
            struct expert x;
            expert_bank_get(m, l, 0, &x);
            const uint64_t facts[] = { l, x.gate.dtype, x.gate.n_in, x.gate.n_out, x.down.dtype, x.gate.file_offset, x.down.file_offset };
            h = XXH3_64bits_withSeed(facts, sizeof facts, h);
            last = l;
        }
    }
    struct expert x;
    expert_bank_get(m, last, 0, &x);
    return XXH3_64bits_withSeed(x.gate.data, x.gate.n_bytes < DISK_ALIGN ? x.gate.n_bytes : DISK_ALIGN, h);
}

int offload__catalog_init(struct offload__catalog *c, const struct model *m, bool packed, struct err *e) {
    const struct model_hparams *hp = model_hparams(m);
    const bool records = expert_bank_is_packed(m);
    *c = (struct offload__catalog){
        .n_layers = hp->n_layers, .n_experts = hp->n_experts, .n_used = hp->n_experts_used, .ctx = m,
        .recipe = records ? record : packed ? gguf_staged : gguf_rows, .n_spans = records ? 1 : OFFLOAD__PARTS,
    };
    if (!hp->n_experts || (uint64_t)hp->n_layers * hp->n_experts > OFFLOAD__MAX_KEYS) {
        return err_set(e, ST_UNSUPPORTED, "experts: a store needs 1..%d of them, the model has %llu", OFFLOAD__MAX_KEYS,
                       (unsigned long long)hp->n_layers * hp->n_experts);
    }
    c->layer_class = mem_zalloc(hp->n_layers, 1);
    size_t *slot_bytes = mem_zalloc(hp->n_layers, sizeof *slot_bytes);
    if (!c->layer_class || !slot_bytes) {
        mem_free(slot_bytes);
        offload__catalog_clear(c);
        return err_set(e, ST_NOMEM, "out of memory for the list of experts");
    }
    for (uint32_t l = 0; l < hp->n_layers; l++) {
        size_t stage = 0;
        if (model_layer(m, l)->router) {
            layer_bytes(m, l, packed, &slot_bytes[l], &stage);
        }
        c->stage_bytes = stage > c->stage_bytes ? stage : c->stage_bytes;
    }
    set_classes(c, slot_bytes);
    mem_free(slot_bytes);
    c->identity = identity(m, c);
    return ST_OK;
}

void offload__catalog_clear(struct offload__catalog *c) {
    mem_free(c->layer_class);
    c->layer_class = NULL;
}

/* ---- budgets ---- */

static uint32_t least_slots(const struct offload__catalog *c, uint32_t k) {
    return c->n_used < c->n_keys[k] ? c->n_used : c->n_keys[k];
}

uint64_t offload__min_bytes(const struct offload__catalog *c) {
    uint64_t n = c->stage_bytes;
    for (uint32_t k = 0; k < c->n_classes; k++) {
        n += (uint64_t)least_slots(c, k) * c->slot_bytes[k];
    }
    return n;
}

static uint64_t expert_bytes(const struct offload__catalog *c) {
    uint64_t n = 0;
    for (uint32_t k = 0; k < c->n_classes; k++) {
        n += (uint64_t)c->n_keys[k] * c->slot_bytes[k];
    }
    return n;
}

uint64_t offload__all_bytes(const struct offload__catalog *c) {
    return expert_bytes(c) + (uint64_t)OFFLOAD__STAGES * c->stage_bytes;
}

/* Staging gets a sixteenth of the budget, one buffer at least; every class the same share of its experts. */
int offload__budget(const struct offload__catalog *c, uint64_t ram_bytes, struct offload__budget *out) {
    if (ram_bytes < offload__min_bytes(c)) {
        return ST_INVALID;
    }
    *out = (struct offload__budget){ 0 };
    if (c->stage_bytes) {
        const uint64_t spare = ram_bytes - offload__min_bytes(c) + c->stage_bytes, fair = ram_bytes / 16 > c->stage_bytes ? ram_bytes / 16 : c->stage_bytes;
        const uint64_t n = (fair < spare ? fair : spare) / c->stage_bytes;
        out->n_stages = n < OFFLOAD__STAGES ? (uint32_t)n : OFFLOAD__STAGES;
    }
    uint64_t left = ram_bytes - out->n_stages * c->stage_bytes;
    const double share = (double)left / (double)expert_bytes(c);
    for (uint32_t k = 0; k < c->n_classes; k++) {
        out->slots[k] = least_slots(c, k);
        left -= out->slots[k] * c->slot_bytes[k];
    }
    for (uint32_t k = 0; k < c->n_classes; k++) {
        const uint64_t want = share < 1 ? (uint64_t)(share * c->n_keys[k]) : c->n_keys[k], room = left / c->slot_bytes[k];
        const uint64_t more = want > out->slots[k] ? want - out->slots[k] : 0;
        out->slots[k] += (uint32_t)(more < room ? more : room);
        left -= (more < room ? more : room) * c->slot_bytes[k];
    }
    for (uint32_t k = c->n_classes; k-- > 0;) { /* what rounding left, the largest first */
        const uint64_t room = left / c->slot_bytes[k], more = c->n_keys[k] - out->slots[k];
        out->slots[k] += (uint32_t)(more < room ? more : room);
        left -= (more < room ? more : room) * c->slot_bytes[k];
    }
    out->slot_bytes = ram_bytes - out->n_stages * c->stage_bytes - left;
    return ST_OK;
}

static uint64_t of_model(const struct model *m, bool packed, uint64_t (*bytes)(const struct offload__catalog *)) {
    struct offload__catalog c;
    if (offload__catalog_init(&c, m, packed, NULL)) {
        return 0;
    }
    const uint64_t n = bytes(&c);
    offload__catalog_clear(&c);
    return n;
}

uint64_t offload_min_bytes(const struct model *m, bool packed) {
    return of_model(m, packed, offload__min_bytes);
}

uint64_t offload_all_bytes(const struct model *m, bool packed) {
    return of_model(m, packed, offload__all_bytes);
}

uint32_t offload_slots(const struct model *m, bool packed, uint64_t ram_bytes) {
    struct offload__catalog c;
    struct offload__budget b;
    uint32_t n = 0;
    if (offload__catalog_init(&c, m, packed, NULL)) {
        return 0;
    }
    if (!offload__budget(&c, ram_bytes, &b)) {
        for (uint32_t k = 0; k < c.n_classes; k++) {
            n += b.slots[k];
        }
    }
    offload__catalog_clear(&c);
    return n;
}
