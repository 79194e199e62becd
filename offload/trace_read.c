/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader of traces. Every number is checked against what is left of the file and against the header before it is
 * used; what trace_next returns can index arrays of the header's sizes without another look. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "offload/trace.h"
#include "offload/trace_format.h"

enum { MAX_FILE = 1 << 28 };

struct trace {
    const unsigned char *bytes;   /* [n_bytes] */
    size_t n_bytes, records_at, at;
    unsigned char *owned;         /* NULL when the bytes are the caller's */
    struct trace_info info;
    struct trace_end end;
    uint32_t *ids;                /* [TRACE_ORDERED_ROWS * k] */
    uint32_t *counts;             /* [n_experts] */
    uint32_t *seen;               /* [n_experts] last row that chose it, from 1 */
    uint32_t *experts, *rows;     /* [n_experts] */
    uint32_t n_steps, n_tokens;   /* n_tokens and prefill: of the running step */
    uint32_t next_layer;          /* the least the step may go on with */
    bool prefill;
};

static int bad(const struct trace *t, struct err *e, const char *what) {
    return err_set(e, ST_INVALID, "trace: byte %zu: %s", t->at, what);
}

static size_t left(const struct trace *t) { return t->n_bytes - t->at; }

static bool get_fixed(struct trace *t, uint32_t n_bytes, uint64_t *out) {
    if (left(t) < n_bytes) {
        return false;
    }
    *out = 0;
    for (uint32_t i = 0; i < n_bytes; i++) {
        *out |= (uint64_t)t->bytes[t->at++] << 8 * i;
    }
    return true;
}

static bool get_u32(struct trace *t, uint32_t *out) {
    uint64_t v;
    bool ok = get_fixed(t, 4, &v);
    *out = ok ? (uint32_t)v : 0;
    return ok;
}

static bool get_leb(struct trace *t, uint32_t *out) {
    uint64_t v = 0;
    for (uint32_t i = 0; i < TRACE__LEB_BYTES && left(t) > 0; i++) {
        unsigned char c = t->bytes[t->at++];
        v |= (uint64_t)(c & 0x7f) << 7 * i;
        if (!(c & 0x80)) {
            *out = (uint32_t)v;
            return v <= UINT32_MAX;
        }
    }
    return false;
}

static int get_header(struct trace *t, struct err *e) {
    struct trace_info *h = &t->info;
    uint32_t n_name = 0;
    if (t->n_bytes < TRACE__MAGIC_BYTES || memcmp(t->bytes, TRACE__MAGIC, TRACE__MAGIC_BYTES)) {
        return err_set(e, ST_INVALID, "not a routing trace of this version: expected a file that begins with %s", TRACE__MAGIC);
    }
    t->at = TRACE__MAGIC_BYTES;
    bool ok = get_u32(t, &h->n_layers) && get_u32(t, &h->n_experts) && get_u32(t, &h->k) && get_fixed(t, 8, &h->expert_bytes) &&
              get_fixed(t, 8, &h->dense_bytes) && get_u32(t, &n_name);
    if (!ok) {
        return bad(t, e, "the header is cut off");
    }
    if (h->n_layers < 1 || h->n_layers > TRACE_MAX_LAYERS || h->n_experts < 1 || h->n_experts > TRACE_MAX_EXPERTS || h->k < 1 ||
        h->k > h->n_experts || n_name > TRACE_MAX_NAME || h->expert_bytes > UINT64_C(1) << 40 || h->dense_bytes > UINT64_C(1) << 50) {
        return err_set(e, ST_INVALID, "trace: header: %u of %u experts in %u layers, a name of %u bytes: out of range", h->k, h->n_experts,
                       h->n_layers, n_name);
    }
    size_t n_routed = (h->n_layers + 7) / 8;
    if (left(t) < n_name + n_routed) {
        return bad(t, e, "the header is cut off");
    }
    for (uint32_t i = 0; i < n_name; i++) {
        unsigned char c = t->bytes[t->at++];
        h->model[i] = (char)(c >= ' ' && c != 127 ? c : '?'); /* it will be printed */
    }
    memcpy(h->routed, t->bytes + t->at, n_routed);
    t->at += n_routed;
    t->records_at = t->at;
    return ST_OK;
}

static int open_bytes(struct trace *t, struct err *e) {
    int st = get_header(t, e);
    if (st) {
        return st;
    }
    size_t n = t->info.n_experts;
    t->ids = mem_zalloc((size_t)TRACE_ORDERED_ROWS * t->info.k, sizeof *t->ids);
    t->counts = mem_zalloc(4 * n, sizeof *t->counts);
    if (!t->ids || !t->counts) {
        return err_set(e, ST_NOMEM, "trace: out of memory");
    }
    t->seen = t->counts + n;
    t->experts = t->seen + n;
    t->rows = t->experts + n;
    return ST_OK;
}

int trace_open_memory(struct trace **out, const void *bytes, size_t n_bytes, struct err *e) {
    struct trace *t = mem_zalloc(1, sizeof *t);
    *out = NULL;
    if (!t) {
        return err_set(e, ST_NOMEM, "trace: out of memory");
    }
    t->bytes = bytes;
    t->n_bytes = n_bytes;
    int st = open_bytes(t, e);
    if (st) {
        trace_close(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

static int read_file(const char *path, unsigned char **bytes, size_t *n, struct err *e) {
    FILE *f = fopen(path, "re");
    if (!f) {
        return err_set(e, ST_IO, "cannot read %s: %s", path, strerror(errno));
    }
    int st = ST_OK;
    size_t cap = 0;
    do {
        unsigned char *more = mem_realloc(*bytes, cap = cap ? 2 * cap : 1 << 16);
        if (!more) {
            st = err_set(e, ST_NOMEM, "out of memory reading %s", path);
            break;
        }
        *bytes = more;
        *n += fread(*bytes + *n, 1, cap - *n, f);
    } while (*n == cap && cap < MAX_FILE);
    if (!st && ferror(f)) {
        st = err_set(e, ST_IO, "cannot read %s: %s", path, strerror(errno));
    } else if (!st && *n == MAX_FILE) {
        st = err_set(e, ST_LIMIT, "%s: expected less than %d MiB", path, MAX_FILE >> 20);
    }
    fclose(f);
    return st;
}

int trace_open(struct trace **out, const char *path, struct err *e) {
    unsigned char *bytes = NULL;
    size_t n = 0;
    *out = NULL;
    int st = read_file(path, &bytes, &n, e);
    st = st ? st : trace_open_memory(out, bytes, n, e);
    if (st) {
        mem_free(bytes);
        return st;
    }
    (*out)->owned = bytes;
    return ST_OK;
}

void trace_close(struct trace *t) {
    if (t) {
        mem_free(t->owned);
        mem_free(t->ids);
        mem_free(t->counts);
        mem_free(t);
    }
}

const struct trace_info *trace_info(const struct trace *t) { return &t->info; }
const struct trace_end *trace_end(const struct trace *t) { return &t->end; }

void trace_rewind(struct trace *t) {
    t->at = t->records_at;
    t->end = (struct trace_end){ 0 };
    t->n_steps = 0;
    t->n_tokens = 0;
}

static int get_step(struct trace *t, struct err *e) {
    uint64_t prefill;
    if (!get_fixed(t, 1, &prefill) || prefill > 1 || !get_leb(t, &t->n_tokens)) {
        return bad(t, e, "a broken step");
    }
    if (t->n_tokens < 1 || t->n_tokens > TRACE_MAX_ROWS) {
        return bad(t, e, "a step of a size out of range");
    }
    t->prefill = prefill;
    t->next_layer = 0;
    t->n_steps++;
    return ST_OK;
}

static int get_ordered(struct trace *t, struct trace_layer *out, struct err *e) {
    const uint32_t k = t->info.k, wide = t->info.n_experts > TRACE__BYTE_IDS;
    if (out->n_rows > TRACE_ORDERED_ROWS || left(t) < ((size_t)out->n_rows * k << wide)) {
        return bad(t, e, "ordered experts that are cut off or too many");
    }
    memset(t->counts, 0, 2 * (size_t)t->info.n_experts * sizeof *t->counts); /* and seen */
    for (uint32_t i = 0; i < out->n_rows * k; i++) {
        uint32_t id = t->bytes[t->at++];
        id |= wide ? (uint32_t)t->bytes[t->at++] << 8 : 0;
        if (id >= t->info.n_experts || t->seen[id] == i / k + 1) {
            return bad(t, e, "an expert that does not exist, or twice in a row");
        }
        t->seen[id] = i / k + 1;
        t->counts[id]++;
        t->ids[i] = id;
    }
    for (uint32_t i = 0; i < t->info.n_experts; i++) {
        if (t->counts[i]) {
            t->experts[out->n_distinct] = i;
            t->rows[out->n_distinct++] = t->counts[i];
        }
    }
    out->ids = t->ids;
    return ST_OK;
}

static int get_grouped(struct trace *t, struct trace_layer *out, struct err *e) {
    uint64_t pairs = 0, expert = UINT64_MAX; /* the one before the first is -1 */
    if (!get_leb(t, &out->n_distinct) || out->n_distinct < 1 || out->n_distinct > t->info.n_experts) {
        return bad(t, e, "a number of experts out of range");
    }
    for (uint32_t i = 0; i < out->n_distinct; i++) {
        uint32_t step, rows;
        if (!get_leb(t, &step) || step < 1 || !get_leb(t, &rows) || rows < 1 || rows > out->n_rows) {
            return bad(t, e, "a broken expert");
        }
        expert += step;
        if (expert >= t->info.n_experts) {
            return bad(t, e, "an expert that does not exist");
        }
        pairs += rows;
        t->experts[i] = (uint32_t)expert;
        t->rows[i] = rows;
    }
    return pairs == (uint64_t)out->n_rows * t->info.k ? ST_OK : bad(t, e, "experts with more or fewer rows than the layer");
}

static int get_layer(struct trace *t, bool ordered, struct trace_layer *out, struct err *e) {
    if (t->n_tokens == 0) {
        return bad(t, e, "a layer outside a step");
    }
    if (!get_leb(t, &out->layer) || !get_leb(t, &out->n_rows)) {
        return bad(t, e, "a layer that is cut off");
    }
    if (out->layer < t->next_layer || out->layer >= t->info.n_layers || !trace_is_routed(&t->info, out->layer)) {
        return bad(t, e, "a layer out of order, or one without experts");
    }
    if (out->n_rows < 1 || out->n_rows > t->n_tokens) {
        return bad(t, e, "a layer with more rows than its step, or none");
    }
    t->next_layer = out->layer + 1;
    out->prefill = t->prefill;
    out->n_tokens = t->n_tokens;
    return ordered ? get_ordered(t, out, e) : get_grouped(t, out, e);
}

static int get_end(struct trace *t, struct err *e) {
    if (!get_leb(t, &t->end.n_steps) || !get_leb(t, &t->end.n_dropped) || t->end.n_steps != t->n_steps || left(t) > 0) {
        return bad(t, e, "an end that does not fit");
    }
    t->end.present = true;
    return 0;
}

int trace_next(struct trace *t, struct trace_layer *out, struct err *e) {
    *out = (struct trace_layer){ .experts = t->experts, .rows = t->rows };
    if (left(t) == 0) {
        return 0;
    }
    unsigned char kind = t->bytes[t->at++];
    if (kind == TRACE__STEP) {
        int st = get_step(t, e);
        if (st) {
            return st;
        }
        out->first = true;
        kind = left(t) > 0 ? t->bytes[t->at++] : 0; /* a step has a layer */
    } else if (kind == TRACE__END) {
        return get_end(t, e);
    }
    if (kind != TRACE__ORDERED && kind != TRACE__GROUPED) {
        return bad(t, e, out->first ? "a step without layers" : "an unknown record");
    }
    int st = get_layer(t, kind == TRACE__ORDERED, out, e);
    return st ? st : 1;
}
