/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as a GGUF file. What opens is read completely (every key, every array element, both ends of
 * every tensor); what also binds to a model is read through the model, as the engine would. The checksum over the head
 * of a packed model is put right first: no mutation would, and what it covers is what is to be reached. Seeds:
 * seeds/gguf, made by tests/fixtures/make_gguf_seeds.py. */
#include <stdlib.h>

#include "model/expert_pack.h"
#include "model/model_internal.h"
#include "tests/unit/gguf_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Both ends of a record, through the bytes the head begins. */
static uint64_t touch_record(const struct model *m, uint32_t layer, uint32_t expert) {
    struct expert_record r;
    size_t n;
    const uint8_t *file = gguf_head(model_gguf(m), 0, &n);
    expert_bank_record(m, layer, expert, &r);
    return r.checksum + file[r.file_offset] + file[r.file_offset + r.n_bytes - 1];
}

static uint64_t touch_experts(const struct model *m) {
    const struct model_hparams *h = model_hparams(m);
    uint64_t sum = 0;
    for (uint32_t l = 0; l < h->n_layers; l++) {
        if (!model_layer(m, l)->router) continue;
        for (uint32_t i = 0; i < h->n_experts; i++) {
            struct expert x;
            expert_bank_get(m, l, i, &x);
            sum += ((const uint8_t *)x.gate.data)[0] + ((const uint8_t *)x.up.data)[x.up.n_bytes - 1];
            sum += ((const uint8_t *)x.down.data)[x.down.n_bytes - 1];
            if (expert_bank_is_packed(m)) sum += touch_record(m, l, i);
        }
    }
    return sum;
}

/* Where the value of the checksum lies when it is one; else NULL. */
static uint8_t *index_checksum(const struct gguf *g, uint8_t *data) {
    int key = gguf_find(g, EXPERT_PACK_KEY_INDEX_CHECKSUM);
    size_t n;
    if (key < 0 || gguf_key_type(g, key) != GGUF_I64) return NULL;
    const uint8_t *entry = gguf_key_entry(g, key, &n);
    return data + (entry - data) + n - sizeof(uint64_t);
}

static void put_checksum_right(uint8_t *data, size_t size) {
    struct gguf *g;
    size_t n;
    if (gguf_open_memory(&g, data, size, NULL)) return;
    uint8_t *at = index_checksum(g, data);
    gguf_head(g, 0, &n);
    gguf_close(g);
    if (!at) return;
    uint64_t sum = expert_pack_index_checksum(data, n, (size_t)(at - data));
    memcpy(at, &sum, sizeof sum);
}

static void touch(const uint8_t *data, size_t size) {
    struct gguf *g;
    struct model *m;
    struct err e;
    volatile uint64_t sum;
    if (gguf_open_memory(&g, data, size, &e)) return;
    sum = gguf_touch(g);
    if (model__open(&m, g, &e)) {
        gguf_close(g);
        return;
    }
    sum += touch_experts(m);
    (void)sum;
    model_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) return 0;
    if (size) memcpy(copy, data, size);
    put_checksum_right(copy, size);
    touch(copy, size);
    free(copy);
    return 0;
}
