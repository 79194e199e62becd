/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a packed model once and compares every checksum. The head's was compared when the model was opened. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "offload/pack_internal.h"

enum { TELL_UNITS = 256 };

struct verify {
    const struct model *model;
    struct expert_pack_info info;
    const char *path;
    int fd;
    uint32_t *layers;              /* owned, the routed ones                          */
    uint32_t n_experts, first;     /* first: unit of task 0                           */
    unsigned char *memory;         /* mem_map, [threads][PACK__CHUNK]                 */
    struct err *errs;              /* [threads], of the lowest bad unit of the thread */
    uint64_t *bad_unit;            /* [threads], UINT64_MAX: none                     */
    _Atomic uint64_t n_bad, done_bytes;
};

struct span { uint64_t at, n_bytes, checksum; };

static struct span span_of(const struct verify *v, uint32_t unit) {
    if (unit == v->info.n_records) {
        return (struct span){ v->info.dense_at, v->info.dense_bytes, v->info.dense_checksum };
    }
    struct expert_record r;
    expert_bank_record(v->model, v->layers[unit / v->n_experts], unit % v->n_experts, &r);
    return (struct span){ r.file_offset, r.n_bytes, r.checksum };
}

static int hash_span(const struct verify *v, const struct span *s, unsigned char *memory, uint64_t *hash, struct err *e) {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    int st = ST_OK;
    for (uint64_t done = 0, n; !st && done < s->n_bytes; done += n) {
        n = s->n_bytes - done < PACK__CHUNK ? s->n_bytes - done : PACK__CHUNK;
        st = pack__read(v->fd, v->path, memory, n, s->at + done, e);
        posix_fadvise(v->fd, (off_t)(s->at + done), (off_t)n, POSIX_FADV_DONTNEED);
        if (!st) {
            XXH3_64bits_update(&state, memory, n);
        }
    }
    *hash = XXH3_64bits_digest(&state);
    return st;
}

static void verify_task(void *ctx, int task, int worker) {
    struct verify *v = ctx;
    const uint32_t unit = v->first + (uint32_t)task;
    const struct span s = span_of(v, unit);
    uint64_t hash = 0;
    struct err e;
    int st = hash_span(v, &s, v->memory + (size_t)worker * PACK__CHUNK, &hash, &e);
    atomic_fetch_add_explicit(&v->done_bytes, s.n_bytes, memory_order_relaxed);
    if (!st && hash == s.checksum) {
        return;
    }
    atomic_fetch_add_explicit(&v->n_bad, 1, memory_order_relaxed);
    if (unit >= v->bad_unit[worker]) {
        return;
    }
    v->bad_unit[worker] = unit;
    if (st) {
        v->errs[worker] = e;
    } else if (unit == v->info.n_records) {
        err_set(&v->errs[worker], ST_INVALID, "%s: the dense tensors are corrupt: their checksum is %016llx, expected %016llx", v->path,
                (unsigned long long)hash, (unsigned long long)s.checksum);
    } else {
        err_set(&v->errs[worker], ST_INVALID, "%s: the record of layer %u, expert %u at offset %llu is corrupt: its checksum is %016llx, "
                "expected %016llx", v->path, v->layers[unit / v->n_experts], unit % v->n_experts, (unsigned long long)s.at,
                (unsigned long long)hash, (unsigned long long)s.checksum);
    }
}

static int open_verify(struct verify *v, size_t threads, struct err *e) {
    const struct model_hparams *hp = model_hparams(v->model);
    v->path = gguf_file_path(model_gguf(v->model), 0);
    v->n_experts = hp->n_experts;
    v->layers = mem_zalloc(hp->n_layers, sizeof *v->layers);
    v->errs = mem_zalloc(threads, sizeof *v->errs);
    v->bad_unit = mem_alloc(threads * sizeof *v->bad_unit);
    v->memory = mem_map(threads * PACK__CHUNK);
    if (!v->layers || !v->errs || !v->bad_unit || !v->memory) {
        return err_set(e, ST_NOMEM, "%s: out of memory", v->path);
    }
    memset(v->bad_unit, 0xff, threads * sizeof *v->bad_unit);
    for (uint32_t i = 0, n = 0; i < hp->n_layers; i++) {
        if (model_layer(v->model, i)->router) {
            v->layers[n++] = i;
        }
    }
    v->fd = open(v->path, O_RDONLY | O_CLOEXEC);
    return v->fd < 0 ? err_set(e, ST_IO, "%s: cannot open the file: %s", v->path, strerror(errno)) : ST_OK;
}

static void run_all(struct verify *v, struct pool *pool, offload_pack_tell tell, void *tell_ctx) {
    const uint64_t start = clock_mono_ns();
    struct offload_pack_progress progress = { .total_bytes = v->info.records_bytes + v->info.dense_bytes };
    const uint32_t n_units = (uint32_t)v->info.n_records + 1;
    for (; v->first < n_units; v->first += TELL_UNITS) {
        pool_run(pool, (int)(n_units - v->first < TELL_UNITS ? n_units - v->first : TELL_UNITS), verify_task, v);
        progress.done_bytes = atomic_load_explicit(&v->done_bytes, memory_order_relaxed);
        progress.seconds = (double)(clock_mono_ns() - start) * 1e-9;
        if (tell) {
            tell(tell_ctx, &progress);
        }
    }
}

/* Of the lowest bad unit, and how many there are. */
static int verdict(const struct verify *v, size_t threads, struct err *e) {
    const uint64_t n_bad = atomic_load_explicit(&v->n_bad, memory_order_relaxed);
    size_t first = 0;
    for (size_t i = 1; i < threads; i++) {
        first = v->bad_unit[i] < v->bad_unit[first] ? i : first;
    }
    if (!n_bad) {
        return ST_OK;
    }
    const struct err *why = &v->errs[first];
    return err_set(e, why->code, n_bad > 1 ? "%s (and %llu more)" : "%s", why->text, (unsigned long long)n_bad - 1);
}

int offload_pack_verify(const struct model *m, struct pool *pool, offload_pack_tell tell, void *tell_ctx, struct err *e) {
    const size_t threads = (size_t)pool_n_threads(pool);
    struct verify v = { .model = m, .fd = -1 };
    if (!expert_bank_is_packed(m)) {
        return err_set(e, ST_INVALID, "%s: is not a packed model: no key '%s'", gguf_file_path(model_gguf(m), 0), EXPERT_PACK_KEY_VERSION);
    }
    expert_pack_info(m, &v.info);
    int st = open_verify(&v, threads, e);
    if (!st) {
        run_all(&v, pool, tell, tell_ctx);
        st = verdict(&v, threads, e);
    }
    if (v.fd >= 0) {
        close(v.fd);
    }
    mem_unmap(v.memory, threads * PACK__CHUNK);
    mem_free(v.layers);
    mem_free(v.errs);
    mem_free(v.bad_unit);
    return st;
}
