/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer of traces. Chunks go round between two threads: the engine's fills one with whole steps and hands it over,
 * the writing thread puts it into the file and hands it back. A step that does not fit into what is left of a chunk moves
 * to the next one; when there is none, the step is dropped, so that the file never holds a part of one. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/park.h"
#include "base/spsc.h"
#include "base/status.h"
#include "model/expert_bank.h"
#include "model/gguf.h"
#include "offload/trace.h"
#include "offload/trace_format.h"

enum { CHUNK_BYTES = 1 << 20, N_CHUNKS = 4, NO_CHUNK = N_CHUNKS };

struct trace_writer {
    struct trace_info info;
    struct spsc full, empty;    /* of chunk numbers: to and from the writing thread      */
    struct park park;           /* wakes the writing thread                              */
    pthread_t thread;
    atomic_bool stop;
    int fd;
    int io_errno;               /* of the first write that failed; the writing thread's until it is joined */
    bool has_full, has_empty, has_park, has_thread;
    /* the engine's thread: */
    uint32_t chunk;             /* being filled, or NO_CHUNK                             */
    uint32_t step_at;           /* where the running step begins in it                   */
    bool in_step, lost;         /* lost: the running step is being dropped               */
    uint32_t last_layer;
    uint32_t n_steps, n_dropped;
    uint32_t used[N_CHUNKS];    /* bytes; whose the chunk is, may touch it               */
    unsigned char bytes[N_CHUNKS][CHUNK_BYTES];
};

void trace_info_of(const struct model *m, struct trace_info *out) {
    const struct model_hparams *hp = model_hparams(m);
    const struct gguf *g = model_gguf(m);
    uint64_t experts = 0, n_routed = 0;
    *out = (struct trace_info){ .n_layers = hp->n_layers, .n_experts = hp->n_experts, .k = hp->n_experts_used };
    snprintf(out->model, sizeof out->model, "%s", model_name(m));
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        if (model_layer(m, i)->router) {
            struct expert x;
            expert_bank_get(m, i, 0, &x);
            experts += x.gate.n_bytes + x.up.n_bytes + x.down.n_bytes; /* of a packed model the same bytes, in records */
            out->routed[i / 8] |= (uint8_t)(1 << i % 8);
            n_routed++;
        }
    }
    out->expert_bytes = n_routed ? experts / n_routed : 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) { /* of the embedding a step reads a few rows */
        const struct tensor *t = gguf_tensor(g, i);
        out->dense_bytes += t != model_token_embd(m) || model_output(m) == t ? t->n_bytes : 0;
    }
    out->dense_bytes -= expert_bank_is_packed(m) ? 0 : experts * hp->n_experts;
}

/* ---- the writing thread ---- */

static void write_all(struct trace_writer *w, const unsigned char *p, size_t n) {
    while (n > 0 && !w->io_errno) {
        ssize_t done = write(w->fd, p, n);
        if (done > 0) {
            p += done;
            n -= (size_t)done;
        } else if (done == 0 || errno != EINTR) {
            w->io_errno = done == 0 ? EIO : errno;
        }
    }
}

static void write_full_chunks(struct trace_writer *w) {
    uint32_t c;
    while (spsc_pop(&w->full, &c)) {
        write_all(w, w->bytes[c], w->used[c]);
        spsc_push(&w->empty, &c); /* has room for all chunks */
    }
}

static void *writer_main(void *ctx) {
    struct trace_writer *w = ctx;
    bool stop = false;
    while (!stop) {
        park_wait(&w->park, UINT64_MAX);
        stop = atomic_load_explicit(&w->stop, memory_order_acquire); /* before the last look at the ring */
        write_full_chunks(w);
    }
    return NULL;
}

/* ---- open and close ---- */

static void put_header(struct trace_writer *w) {
    const struct trace_info *t = &w->info;
    unsigned char *p = w->bytes[0], *start = p;
    uint32_t n_name = (uint32_t)strlen(t->model);
    memcpy(p, TRACE__MAGIC, TRACE__MAGIC_BYTES);
    p = trace__put_u32(p + TRACE__MAGIC_BYTES, t->n_layers);
    p = trace__put_u32(p, t->n_experts);
    p = trace__put_u32(p, t->k);
    p = trace__put_u64(p, t->expert_bytes);
    p = trace__put_u64(p, t->dense_bytes);
    p = trace__put_u32(p, n_name);
    memcpy(p, t->model, n_name);
    memcpy(p + n_name, t->routed, (t->n_layers + 7) / 8);
    p += n_name + (t->n_layers + 7) / 8;
    w->used[0] = (uint32_t)(p - start);
    w->step_at = w->used[0];
}

static int start(struct trace_writer *w, const char *path, struct err *e) {
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        return err_set(e, ST_IO, "trace: cannot write %s: %s", path, strerror(errno));
    }
    w->has_full = !spsc_init(&w->full, N_CHUNKS, sizeof(uint32_t));
    w->has_empty = !spsc_init(&w->empty, N_CHUNKS, sizeof(uint32_t));
    w->has_park = !park_init(&w->park);
    if (!w->has_full || !w->has_empty || !w->has_park) {
        return err_set(e, ST_NOMEM, "trace: out of memory");
    }
    put_header(w);
    for (uint32_t c = 1; c < N_CHUNKS; c++) {
        spsc_push(&w->empty, &c);
    }
    w->has_thread = !pthread_create(&w->thread, NULL, writer_main, w);
    return w->has_thread ? ST_OK : err_set(e, ST_NOMEM, "trace: no thread to write %s", path);
}

int trace_writer_open(struct trace_writer **out, const char *path, const struct trace_info *info, struct err *e) {
    struct trace_writer *w = mem_alloc(sizeof *w); /* not zeroed: chunks that are not used cost no memory */
    *out = NULL;
    if (!w) {
        return err_set(e, ST_NOMEM, "trace: out of memory");
    }
    memset(w, 0, offsetof(struct trace_writer, bytes));
    w->info = *info;
    w->fd = -1;
    int st = start(w, path, e);
    if (st) {
        trace_writer_close(w, NULL, NULL);
        return st;
    }
    *out = w;
    return ST_OK;
}

static void hand_over(struct trace_writer *w) {
    if (w->chunk != NO_CHUNK) {
        spsc_push(&w->full, &w->chunk); /* has room for all chunks */
        w->chunk = NO_CHUNK;
        park_wake(&w->park);
    }
}

static void end_step(struct trace_writer *w) {
    if (w->in_step) {
        w->n_steps += !w->lost;
        w->n_dropped += w->lost;
    }
    if (w->in_step && !w->lost) {
        w->step_at = w->used[w->chunk];
    }
    w->in_step = false;
}

/* After the thread is joined nobody else writes. */
static void put_end(struct trace_writer *w) {
    unsigned char end[16], *p = end;
    *p++ = TRACE__END;
    p = trace__put_leb(p, w->n_steps);
    p = trace__put_leb(p, w->n_dropped);
    write_all(w, end, (size_t)(p - end));
}

int trace_writer_close(struct trace_writer *w, uint64_t *n_dropped, struct err *e) {
    int st = ST_OK;
    if (n_dropped) {
        *n_dropped = w ? w->n_dropped : 0;
    }
    if (!w) {
        return ST_OK;
    }
    if (w->has_thread) {
        end_step(w);
        hand_over(w);
        atomic_store_explicit(&w->stop, true, memory_order_release); /* pairs with the acquire in writer_main */
        park_wake(&w->park);
        pthread_join(w->thread, NULL);
        put_end(w);
        if (n_dropped) {
            *n_dropped = w->n_dropped;
        }
    }
    if (w->fd >= 0 && close(w->fd) && !w->io_errno) {
        w->io_errno = errno;
    }
    if (w->io_errno) {
        st = err_set(e, ST_IO, "trace: writing failed: %s", strerror(w->io_errno));
    }
    if (w->has_park) park_clear(&w->park);
    if (w->has_empty) spsc_clear(&w->empty);
    if (w->has_full) spsc_clear(&w->full);
    mem_free(w);
    return st;
}

/* ---- the engine's thread ---- */

/* Room for n more bytes of the running step, in this chunk or in the next one. NULL: the step is lost. */
static unsigned char *room(struct trace_writer *w, size_t n) {
    uint32_t from = w->chunk, step_bytes = from == NO_CHUNK ? 0 : w->used[from] - w->step_at, to;
    if (from != NO_CHUNK && n <= CHUNK_BYTES - w->used[from]) {
        return w->bytes[from] + w->used[from];
    }
    if (n > CHUNK_BYTES - step_bytes || !spsc_pop(&w->empty, &to)) {
        if (from != NO_CHUNK) {
            w->used[from] = w->step_at;
        }
        return NULL;
    }
    if (from != NO_CHUNK) {
        memcpy(w->bytes[to], w->bytes[from] + w->step_at, step_bytes);
        w->used[from] = w->step_at;
        hand_over(w);
    }
    w->chunk = to;
    w->used[to] = step_bytes;
    w->step_at = 0;
    return w->bytes[to] + step_bytes;
}

static unsigned char *put_ordered(const struct trace_writer *w, const struct trace_routing *r, unsigned char *p) {
    uint32_t n = r->n_rows * w->info.k;
    for (uint32_t i = 0; i < n; i++) {
        *p++ = (unsigned char)r->ids[i];
        if (w->info.n_experts > TRACE__BYTE_IDS) {
            *p++ = (unsigned char)(r->ids[i] >> 8);
        }
    }
    return p;
}

static unsigned char *put_grouped(const struct trace_writer *w, const struct trace_routing *r, unsigned char *p) {
    uint32_t n_distinct = 0, last = 0;
    for (uint32_t i = 0; i < w->info.n_experts; i++) {
        n_distinct += r->first[i + 1] > r->first[i];
    }
    p = trace__put_leb(p, n_distinct);
    for (uint32_t i = 0; i < w->info.n_experts; i++) {
        if (r->first[i + 1] > r->first[i]) {
            p = trace__put_leb(p, i + 1 - last);
            p = trace__put_leb(p, (uint32_t)(r->first[i + 1] - r->first[i]));
            last = i + 1;
        }
    }
    return p;
}

static void put_layer(struct trace_writer *w, const struct trace_routing *r) {
    bool ordered = !r->prefill && r->n_rows <= TRACE_ORDERED_ROWS;
    uint64_t pairs = (uint64_t)r->n_rows * w->info.k, most = pairs < w->info.n_experts ? pairs : w->info.n_experts;
    size_t body = ordered ? 2 * pairs : TRACE__LEB_BYTES * (1 + 2 * most);
    unsigned char *p = room(w, 2 * (1 + 2 * TRACE__LEB_BYTES) + body);
    if (!p) {
        w->lost = true;
        return;
    }
    unsigned char *from = p;
    if (!w->in_step) {
        *p++ = TRACE__STEP;
        *p++ = r->prefill;
        p = trace__put_leb(p, r->n_tokens);
    }
    *p++ = ordered ? TRACE__ORDERED : TRACE__GROUPED;
    p = trace__put_leb(p, r->layer);
    p = trace__put_leb(p, r->n_rows);
    p = ordered ? put_ordered(w, r, p) : put_grouped(w, r, p);
    w->used[w->chunk] += (uint32_t)(p - from);
}

void trace_write(struct trace_writer *w, const struct trace_routing *r) {
    if (w->in_step && r->layer <= w->last_layer) {
        end_step(w);
    }
    if (!w->in_step) {
        w->lost = false;
    }
    if (!w->lost) {
        put_layer(w, r);
    }
    w->in_step = true;
    w->last_layer = r->layer;
}
