/* SPDX-License-Identifier: Apache-2.0
 *
 * One unit of the output, in chunks: read from the source, brought into the packed layout, hashed, written. Records go
 * past the page cache where the file system allows it; what was read is let go from there, so that packing a model
 * larger than memory does not push out what others use. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "kernels/pack.h"
#include "offload/pack_internal.h"

int pack__read(int fd, const char *path, void *to, size_t n_bytes, uint64_t at, struct err *e) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pread(fd, (char *)to + done, n_bytes - done, (off_t)(at + done));
        if (n > 0) {
            done += (size_t)n;
        } else if (n == 0) {
            return err_set(e, ST_IO, "%s: file ends at %llu while it is read", path, (unsigned long long)(at + done));
        } else if (errno != EINTR) {
            return err_set(e, ST_IO, "%s: cannot read %zu bytes at %llu: %s", path, n_bytes, (unsigned long long)at, strerror(errno));
        }
    }
    return ST_OK;
}

/* Bytes on their way to the output. */
struct sink {
    const struct pack__stream *s;
    int fd;
    uint64_t at;               /* of buf in the output */
    unsigned char *buf;        /* aligned to 4096      */
    size_t fill;
    XXH3_state_t hash;
    struct err *e;
};

static int write_out(struct sink *k, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = k->s->write_at(k->fd, k->buf + done, n_bytes - done, (off_t)(k->at + done));
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno == EINVAL && k->fd == k->s->direct_fd) {
            k->fd = k->s->fd; /* another alignment than ours */
        } else if (n == 0 || errno != EINTR) {
            return err_set(k->e, ST_IO, "%s: cannot write %zu bytes at %llu: %s; what is done is kept, run again to resume", k->s->out,
                           n_bytes, (unsigned long long)k->at, strerror(n ? errno : EIO));
        }
    }
    k->at += n_bytes;
    return ST_OK;
}

/* n more bytes stand in buf; writes when there is a chunk, or all at the end. */
static int push(struct sink *k, size_t n, bool last) {
    XXH3_64bits_update(&k->hash, k->buf + k->fill, n);
    k->fill += n;
    if (k->fill < PACK__CHUNK && !last) {
        return ST_OK;
    }
    const size_t out = last ? k->fill : k->fill & ~(size_t)4095;
    int st = write_out(k, out);
    memmove(k->buf, k->buf + out, k->fill - out);
    k->fill -= out;
    return st;
}

/* Zeros up to an offset of the output, at most a page away. */
static int pad_to(struct sink *k, uint64_t at, bool last) {
    const size_t n = at - (k->at + k->fill);
    memset(k->buf + k->fill, 0, n);
    return push(k, n, last);
}

static int source_read(const struct sink *k, const struct tensor *t, size_t from, size_t n, void *to) {
    const struct pack__stream *s = k->s;
    int fd = s->source_fds[t->file];
    int st = pack__read(fd, gguf_file_path(s->plan->source, t->file), to, n, t->file_offset + from, k->e);
    posix_fadvise(fd, (off_t)(t->file_offset + from), (off_t)n, POSIX_FADV_DONTNEED);
    return st;
}

static int copy(struct sink *k, const struct tensor *t, size_t from, size_t n_bytes) {
    int st = ST_OK;
    for (size_t done = 0, n; !st && done < n_bytes; done += n) {
        n = n_bytes - done < PACK__CHUNK ? n_bytes - done : PACK__CHUNK;
        st = source_read(k, t, from + done, n, k->buf + k->fill);
        st = st ? st : push(k, n, false);
    }
    return st;
}

static int copy_packed(struct sink *k, const struct tensor *t, size_t from, size_t n_bytes, unsigned char *rows) {
    const size_t group = KERN_PACK_ROWS * dtype_row_bytes(dtype_info(t->dtype), t->ne[0]);
    const size_t most = group < PACK__CHUNK ? PACK__CHUNK / group * group : group;
    int st = ST_OK;
    for (size_t done = 0, n; !st && done < n_bytes; done += n) {
        n = n_bytes - done < most ? n_bytes - done : most;
        st = source_read(k, t, from + done, n, rows);
        for (size_t i = 0; !st && i < n; i += group) {
            kern_pack_rows(t->dtype, rows + i, t->ne[0], k->buf + k->fill);
            st = push(k, group, false);
        }
    }
    return st;
}

static int record(struct sink *k, uint32_t unit, unsigned char *rows) {
    const struct pack__plan *p = k->s->plan;
    const struct pack__layer *pl = &p->layers[unit / p->n_experts];
    const struct model_layer *l = model_layer(p->model, pl->layer);
    const uint32_t expert = unit % p->n_experts;
    const uint64_t start = k->at;
    const struct { const struct tensor *t; size_t at; } parts[] = {
        { l->gate_exps, pl->record.gate_at }, { l->up_exps, pl->record.up_at }, { l->down_exps, pl->record.down_at },
    };
    int st = ST_OK;
    for (int i = 0; !st && i < 3; i++) {
        const struct tensor *t = parts[i].t;
        const size_t n = t->n_bytes / p->n_experts;
        st = pad_to(k, start + parts[i].at, false);
        if (!st) {
            st = kern_pack_fits(t->dtype, t->ne[1]) ? copy_packed(k, t, expert * n, n, rows) : copy(k, t, expert * n, n);
        }
    }
    return st ? st : pad_to(k, start + pl->record.n_bytes, true);
}

static int dense(struct sink *k) {
    const struct pack__plan *p = k->s->plan;
    int st = ST_OK;
    for (uint64_t i = 0; !st && i < gguf_n_tensors(p->source); i++) {
        const struct tensor *t = gguf_tensor(p->source, i);
        if (!p->is_expert[i]) {
            st = pad_to(k, p->tensor_at[i], false);
            st = st ? st : copy(k, t, 0, t->n_bytes);
        }
    }
    return st ? st : pad_to(k, p->records_at, true);
}

/* Of the sink: less than a chunk, then a read or a group. */
static size_t sink_bytes(const struct pack__plan *p) {
    const size_t more = p->group_bytes > PACK__CHUNK ? p->group_bytes : PACK__CHUNK;
    return (PACK__CHUNK + more + (1 << 17) + 4095) & ~(size_t)4095; /* 1 << 17: above any alignment */
}

size_t pack__stream_memory(const struct pack__plan *p) {
    const size_t rows = p->group_bytes > PACK__CHUNK ? p->group_bytes : PACK__CHUNK;
    return sink_bytes(p) + ((rows + 4095) & ~(size_t)4095);
}

int pack__stream_unit(const struct pack__stream *s, uint32_t unit, unsigned char *memory, uint64_t *checksum, struct err *e) {
    const struct pack__plan *p = s->plan;
    const bool is_record = unit < p->n_records;
    struct sink k = { .s = s, .fd = s->fd, .buf = memory, .e = e };
    XXH3_INITSTATE(&k.hash);
    XXH3_64bits_reset(&k.hash);
    k.at = p->head.len;
    if (is_record) {
        const struct expert_record *r = &p->layers[unit / p->n_experts].record;
        k.at = r->file_offset + (uint64_t)(unit % p->n_experts) * r->n_bytes;
        k.fd = s->direct_fd >= 0 ? s->direct_fd : s->fd;
    }
    int st = is_record ? record(&k, unit, memory + sink_bytes(p)) : dense(&k);
    *checksum = XXH3_64bits_digest(&k.hash);
    return st;
}
