/* SPDX-License-Identifier: Apache-2.0
 *
 * How work is cut for the pool. Cuts are along rows, output columns or (expert, columns), never along a sum, so
 * the results are the same bits for every number of threads. Tasks are claimed one by one, so a few per thread
 * balance uneven ones; more only cost cache reuse. */
#include "engine/internal.h"

#include <assert.h>

enum { TASKS_PER_THREAD = 4, GEMM_STRIP = 16, GEMM_STRIP_MOST = 256, MAX_GEMMS = 4 };

void engine__run(struct engine *en, uint32_t n_tasks, pool_fn fn, void *ctx) {
    if (n_tasks == 1) {
        fn(ctx, 0, 0); /* not worth waking anyone */
    } else if (n_tasks > 1) {
        pool_run(en->o.pool, (int)n_tasks, fn, ctx);
    }
}

struct rows_job {
    struct engine__pass *p;
    engine__rows_fn fn;
    uint32_t n_rows, per_task;
};

static void rows_task(void *ctx, int task, int worker) {
    const struct rows_job *j = ctx;
    (void)worker;
    uint32_t row0 = (uint32_t)task * j->per_task;
    uint32_t row1 = row0 + j->per_task < j->n_rows ? row0 + j->per_task : j->n_rows;
    j->fn(j->p, row0, row1);
}

void engine__run_rows(struct engine__pass *p, uint32_t n_rows, engine__rows_fn fn) {
    uint32_t tasks = (uint32_t)pool_n_threads(p->en->o.pool) * TASKS_PER_THREAD;
    struct rows_job j = { .p = p, .fn = fn, .n_rows = n_rows, .per_task = n_rows / tasks + 1 };
    engine__run(p->en, (n_rows + j.per_task - 1) / j.per_task, rows_task, &j);
}

uint32_t engine__strip(const struct engine *en, uint64_t n_columns, uint32_t multiple, uint32_t most) {
    uint64_t tasks = (uint64_t)pool_n_threads(en->o.pool) * TASKS_PER_THREAD;
    uint64_t strip = (n_columns / tasks + multiple - 1) / multiple * multiple;
    strip = strip > most ? most : strip;
    return strip < multiple ? multiple : (uint32_t)strip;
}

void engine__multiply(const struct engine *en, const struct kern_gemm *d, uint32_t row0, uint32_t row1, int worker) {
    if (en->o.exact && kern_gemm_wants_q8(d->dtype)) {
        float *scratch = (float *)engine__worker(en, worker) + 2 * ENGINE__FFN_CELLS;
        kern_gemm_exact(en->kern->gemm, d, row0, row1, scratch);
    } else if (engine__form_of(&en->o, d->dtype) == ENGINE__BF16) {
        en->kern->gemm_bf16(d, row0, row1);
    } else {
        en->kern->gemm(d, row0, row1);
    }
}

struct gemm_job {
    const struct engine *en;
    const struct kern_gemm *d;
    uint32_t n, strip;
    uint32_t first_task[MAX_GEMMS + 1];
};

static void gemm_task(void *ctx, int task, int worker) {
    const struct gemm_job *j = ctx;
    uint32_t i = 0;
    while ((uint32_t)task >= j->first_task[i + 1]) {
        i++;
    }
    uint32_t row0 = ((uint32_t)task - j->first_task[i]) * j->strip;
    uint32_t row1 = row0 + j->strip < j->d[i].n_out ? row0 + j->strip : j->d[i].n_out;
    engine__multiply(j->en, &j->d[i], row0, row1, worker);
}

void engine__run_gemms(struct engine *en, const struct kern_gemm *d, uint32_t n) {
    assert(n <= MAX_GEMMS);
    struct gemm_job j = { .en = en, .d = d, .n = n };
    uint64_t columns = 0;
    for (uint32_t i = 0; i < n; i++) {
        columns += d[i].n_out;
    }
    j.strip = engine__strip(en, columns, GEMM_STRIP, GEMM_STRIP_MOST);
    for (uint32_t i = 0; i < n; i++) {
        j.first_task[i + 1] = j.first_task[i] + (d[i].n_out + j.strip - 1) / j.strip;
    }
    engine__run(en, j.first_task[n], gemm_task, &j);
}

struct kern_gemm engine__gemm(const struct engine__matrix *m, const struct engine__rows *x, size_t row0, uint32_t n_rows, float *y) {
    const size_t stride = m->form == ENGINE__Q8 ? m->n_in / 32 : m->n_in, at = row0 * stride;
    return (struct kern_gemm){
        .dtype = m->dtype,
        .w = m->w,
        .row_bytes = m->row_bytes,
        .packed = m->packed,
        .n_in = m->n_in,
        .n_out = m->n_out,
        .x = m->form == ENGINE__Q8 ? (const void *)(x->q8 + at) : m->form == ENGINE__BF16 ? (const void *)(x->bf16 + at) : x->f32 + at,
        .x_stride = stride,
        .n_tokens = n_rows,
        .y = y,
        .y_stride = m->n_out,
    };
}

void engine__round(const struct engine *en, unsigned forms, const float *x, size_t n, const struct engine__rows *to, size_t at) {
    if (forms & ENGINE__Q8) {
        en->kern->quantize(x, n, to->q8 + at / 32);
    }
    if (forms & ENGINE__BF16) {
        kern_round_bf16(x, n, to->bf16 + at);
    }
}
