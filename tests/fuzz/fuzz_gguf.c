/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as a GGUF file. What opens is read completely (every key, every array element, both ends of
 * every tensor); what also binds to a model is read through the model, as the engine would. Seeds: seeds/gguf, made
 * by tests/fixtures/make_gguf_seeds.py. */
#include "model/expert_bank.h"
#include "model/model_internal.h"
#include "tests/unit/gguf_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        }
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gguf *g;
    struct model *m;
    struct err e;
    volatile uint64_t sum;
    if (gguf_open_memory(&g, data, size, &e)) return 0;
    sum = gguf_touch(g);
    if (model__open(&m, g, &e)) {
        gguf_close(g);
        return 0;
    }
    sum += touch_experts(m);
    (void)sum;
    model_close(m);
    return 0;
}
