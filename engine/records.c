/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of a packed model that are computed where they lie: brought into memory and compared with their checksums
 * before the first step, over the pool. A wrong weight is found here, not in an answer. Entered by the thread that opens
 * the engine. */
#include "engine/internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "model/expert_pack.h"

struct check {
    const struct model *m;
    uint32_t n_experts;
    _Atomic uint64_t bad;        /* a key, layer * n_experts + expert, whose record is wrong, or UINT64_MAX */
};

static int check_key(const struct check *c, uint64_t key, struct err *e) {
    const uint32_t layer = (uint32_t)(key / c->n_experts), expert = (uint32_t)(key % c->n_experts);
    return model_layer(c->m, layer)->router ? expert_bank_check(c->m, layer, expert, e) : ST_OK;
}

static void check_task(void *ctx, int task, int worker) {
    struct check *c = ctx;
    (void)worker;
    if (atomic_load_explicit(&c->bad, memory_order_relaxed) == UINT64_MAX && check_key(c, (uint64_t)task, NULL)) {
        atomic_store_explicit(&c->bad, (uint64_t)task, memory_order_relaxed);
    }
}

int engine__records_check(struct engine *en, struct err *e) {
    struct check c = { .m = en->o.model, .n_experts = en->hp->n_experts, .bad = UINT64_MAX };
    const uint64_t start = clock_mono_ns();
    if (!expert_bank_is_packed(c.m) || en->plan.stream) { /* the store checks what it reads */
        return ST_OK;
    }
    engine__run(en, en->hp->n_layers * c.n_experts, check_task, &c);
    const uint64_t bad = atomic_load_explicit(&c.bad, memory_order_relaxed);
    if (bad != UINT64_MAX) {
        return check_key(&c, bad, e); /* again, for the text */
    }
    struct expert_pack_info p;
    expert_pack_info(c.m, &p);
    const double s = (double)(clock_mono_ns() - start) * 1e-9;
    log_info("engine", "checked %.1f MiB of packed experts, %.1f s, %.0f MiB/s", (double)p.records_bytes / 0x1p20, s,
             (double)p.records_bytes / 0x1p20 / (s > 1e-9 ? s : 1e-9));
    return ST_OK;
}
