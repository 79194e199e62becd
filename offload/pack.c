/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs a model: plans the output, works through the units that the journal does not know, seals the head and renames.
 * Order of the disk: data, fdatasync, journal; then head, fsync, rename, fsync of the folder. A process or machine that
 * dies in between leaves a partial that the next run goes on with, and never a broken OUT. */
#include "offload/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "offload/pack_internal.h"

struct pack {
    const struct offload_pack_opts *o;
    struct pack__plan plan;
    int *source_fds;                 /* owned, [files of the source]                      */
    uint64_t source_id;              /* sizes, times and heads of the source's files      */
    int dir_fd;                      /* of OUT; the names below are in it                 */
    char *name, *partial, *journal_name; /* owned                                        */
    int fd, direct_fd;               /* the partial; direct_fd past the page cache or -1  */
    struct pack__journal journal;
    uint32_t n_units;
    bool *done;                      /* owned, [n_units]                                  */
    uint64_t *checksums;             /* owned, [n_units]                                  */
    unsigned char *memory;           /* mem_map, [threads][stream_memory]                 */
    size_t stream_memory;
    struct pack__stream stream;
    struct offload_pack_progress progress;
    uint64_t start_ns;
};

/* ---- files ---- */

static char *with_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    char *s = mem_alloc(n + m + 1);
    if (s) {
        memcpy(s, name, n);
        memcpy(s + n, suffix, m + 1);
    }
    return s;
}

static int open_dir(struct pack *p, struct err *e) {
    const char *out = p->o->out, *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out;
    char *dir = slash ? mem_strndup(out, slash == out ? 1 : (size_t)(slash - out)) : mem_strndup(".", 1);
    p->name = with_suffix(name, "");
    p->partial = with_suffix(name, ".partial");
    p->journal_name = with_suffix(name, ".partial.journal");
    int st = ST_OK;
    if (!dir || !p->name || !p->partial || !p->journal_name) {
        st = err_set(e, ST_NOMEM, "%s: out of memory", out);
    } else if (!*name) {
        st = err_set(e, ST_INVALID, "%s: expected the name of a file", out);
    } else if ((p->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        st = err_set(e, ST_IO, "%s: cannot open its folder: %s", out, strerror(errno));
    }
    mem_free(dir);
    return st;
}

static int check_out(const struct pack *p, const struct stat *source, struct err *e) {
    struct stat st;
    if (fstatat(p->dir_fd, p->name, &st, 0)) {
        return errno == ENOENT ? ST_OK : err_set(e, ST_IO, "%s: %s", p->o->out, strerror(errno));
    }
    if (st.st_dev == source->st_dev && st.st_ino == source->st_ino) {
        return err_set(e, ST_INVALID, "%s: is the model itself; give another name for the packed file", p->o->out);
    }
    if (!p->o->force) {
        return err_set(e, ST_INVALID, "%s: exists already; --force replaces it", p->o->out);
    }
    return S_ISREG(st.st_mode) ? ST_OK : err_set(e, ST_INVALID, "%s: is not a regular file", p->o->out);
}

/* What tells this source from another of the same name. */
static int identify(const struct pack *p, uint64_t *id, struct err *e) {
    *id = p->plan.source_hash;
    for (uint32_t i = 0; i < gguf_n_files(p->plan.source); i++) {
        struct stat st;
        if (fstat(p->source_fds[i], &st)) {
            return err_set(e, ST_IO, "%s: %s", gguf_file_path(p->plan.source, i), strerror(errno));
        }
        const uint64_t facts[3] = { (uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec };
        *id = XXH3_64bits_withSeed(facts, sizeof facts, *id);
    }
    return ST_OK;
}

static int open_source(struct pack *p, struct err *e) {
    const uint32_t n = gguf_n_files(p->plan.source);
    p->source_fds = mem_alloc(n * sizeof *p->source_fds);
    if (!p->source_fds) {
        return err_set(e, ST_NOMEM, "%s: out of memory", p->o->out);
    }
    for (uint32_t i = 0; i < n; i++) {
        p->source_fds[i] = -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *path = gguf_file_path(p->plan.source, i);
        struct stat st;
        p->source_fds[i] = open(path, O_RDONLY | O_CLOEXEC);
        if (p->source_fds[i] < 0 || fstat(p->source_fds[i], &st)) {
            return err_set(e, ST_IO, "%s: cannot open the file: %s", path, strerror(errno));
        }
        int rc = check_out(p, &st, e);
        if (rc) {
            return rc;
        }
    }
    return identify(p, &p->source_id, e);
}

/* Before anything is written: what the partial does not have yet must be free. */
static int check_space(const struct pack *p, struct err *e) {
    struct stat st;
    struct statvfs fs;
    const uint64_t have = fstatat(p->dir_fd, p->partial, &st, 0) ? 0 : (uint64_t)st.st_blocks * 512;
    const uint64_t need = p->plan.total_bytes > have ? p->plan.total_bytes - have : 0;
    if (fstatvfs(p->dir_fd, &fs)) {
        return err_set(e, ST_IO, "%s: cannot ask its file system: %s", p->o->out, strerror(errno));
    }
    const uint64_t unused = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need > unused) {
        return err_set(e, ST_IO, "%s: no space: %llu more bytes are needed (%llu in all), the file system has %llu; make room and run again",
                       p->o->out, (unsigned long long)need, (unsigned long long)p->plan.total_bytes, (unsigned long long)unused);
    }
    return ST_OK;
}

/* Room on the disk for all of it now, so that it cannot run out half-way. */
static int begin_partial(struct pack *p, struct err *e) {
    int st = pack__journal_reset(&p->journal, e);
    if (st) {
        return st;
    }
    memset(p->done, 0, p->n_units);
    int rc = ftruncate(p->fd, 0) || fallocate(p->fd, 0, 0, (off_t)p->plan.total_bytes) ? errno : 0;
    if (rc == EOPNOTSUPP) {
        rc = ftruncate(p->fd, (off_t)p->plan.total_bytes) ? errno : 0;
    }
    return rc ? err_set(e, ST_IO, "%s: cannot reserve %llu bytes: %s", p->o->out, (unsigned long long)p->plan.total_bytes, strerror(rc)) : ST_OK;
}

static void count_resumed(struct pack *p) {
    for (uint32_t i = 0; i < p->n_units; i++) {
        p->progress.resumed_bytes += p->done[i] ? pack__unit_bytes(&p->plan, i) : 0;
    }
    p->progress.done_bytes = p->progress.resumed_bytes;
}

/* Ours alone: the lock, and the name still the file's, which another process may have finished and renamed before we
 * had the lock. */
static bool lock_partial(const struct pack *p, const struct stat *opened) {
    struct stat named;
    return !flock(p->fd, LOCK_EX | LOCK_NB) && !fstatat(p->dir_fd, p->partial, &named, AT_SYMLINK_NOFOLLOW) &&
           named.st_dev == opened->st_dev && named.st_ino == opened->st_ino;
}

static int open_partial(struct pack *p, struct err *e) {
    struct stat st;
    bool fresh = true;
    p->fd = openat(p->dir_fd, p->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (p->fd < 0 || fstat(p->fd, &st)) {
        return err_set(e, ST_IO, "%s.partial: cannot open it: %s", p->o->out, strerror(errno));
    }
    if (!lock_partial(p, &st)) {
        return err_set(e, ST_IO, "%s.partial: another process is packing it", p->o->out);
    }
    p->direct_fd = openat(p->dir_fd, p->partial, O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    int rc = pack__journal_open(&p->journal, p->dir_fd, p->journal_name, p->source_id, p->plan.hash, e);
    rc = rc ? rc : pack__journal_read(&p->journal, p->n_units, p->done, p->checksums, &fresh, e);
    if (!rc && (fresh || (uint64_t)st.st_size != p->plan.total_bytes)) {
        rc = begin_partial(p, e);
    }
    count_resumed(p);
    return rc;
}

/* ---- units ---- */

struct batch {
    struct pack *p;
    uint32_t units[PACK__BATCH_UNITS], n;
    struct err *errs;                /* [threads]              */
    int *status;                     /* [threads]              */
};

static void unit_task(void *ctx, int task, int worker) {
    struct batch *b = ctx;
    struct pack *p = b->p;
    if (b->status[worker]) {
        return;
    }
    const uint32_t unit = b->units[task];
    b->status[worker] = pack__stream_unit(&p->stream, unit, p->memory + (size_t)worker * p->stream_memory, &p->checksums[unit],
                                          &b->errs[worker]);
    if (!b->status[worker]) {
        p->done[unit] = true;
    }
}

/* Notes what is done, also when some of it failed. */
static int settle_batch(struct batch *b, struct err *e) {
    struct pack *p = b->p;
    uint32_t n = 0;
    int st = ST_OK;
    for (uint32_t i = 0; i < b->n; i++) {
        if (p->done[b->units[i]]) {
            b->units[n++] = b->units[i];
            p->progress.done_bytes += pack__unit_bytes(&p->plan, b->units[i]);
        }
    }
    for (int i = 0; !st && i < pool_n_threads(p->o->pool); i++) {
        st = b->status[i];
        if (st && e) {
            *e = b->errs[i];
        }
    }
    if (fdatasync(p->fd)) {
        return st ? st : err_set(e, ST_IO, "%s.partial: cannot bring it to the disk: %s", p->o->out, strerror(errno));
    }
    posix_fadvise(p->fd, 0, 0, POSIX_FADV_DONTNEED);
    int noted = pack__journal_add(&p->journal, b->units, n, p->checksums, st ? NULL : e);
    return st ? st : noted;
}

static void tell(struct pack *p) {
    p->progress.seconds = (double)(clock_mono_ns() - p->start_ns) * 1e-9;
    if (p->o->tell) {
        p->o->tell(p->o->tell_ctx, &p->progress);
    }
}

/* The dense part first: one thread copies it while the others begin with the records. */
static int run_units(struct pack *p, struct batch *b, struct err *e) {
    const uint32_t least = 2 * (uint32_t)pool_n_threads(p->o->pool);
    int st = ST_OK;
    tell(p);
    for (uint32_t i = 0; !st && i < p->n_units;) {
        uint64_t bytes = 0;
        for (b->n = 0; i < p->n_units && b->n < PACK__BATCH_UNITS && (b->n < least || bytes < PACK__BATCH_BYTES); i++) {
            const uint32_t unit = i ? i - 1 : p->n_units - 1;
            if (!p->done[unit]) {
                b->units[b->n++] = unit;
                bytes += pack__unit_bytes(&p->plan, unit);
            }
        }
        if (b->n) {
            pool_run(p->o->pool, (int)b->n, unit_task, b);
            st = settle_batch(b, e);
            tell(p);
        }
    }
    return st;
}

static int pack_units(struct pack *p, struct err *e) {
    const size_t threads = (size_t)pool_n_threads(p->o->pool);
    struct batch *b = mem_zalloc(1, sizeof *b);
    p->stream_memory = pack__stream_memory(&p->plan);
    p->memory = mem_map(threads * p->stream_memory);
    int st = ST_NOMEM;
    if (b) {
        b->p = p;
        b->errs = mem_zalloc(threads, sizeof *b->errs);
        b->status = mem_zalloc(threads, sizeof *b->status);
    }
    if (!b || !b->errs || !b->status || !p->memory) {
        err_set(e, st, "%s: out of memory: %zu bytes for each thread", p->o->out, p->stream_memory);
    } else {
        p->stream = (struct pack__stream){
            .plan = &p->plan, .source_fds = p->source_fds, .out = p->o->out, .fd = p->fd, .direct_fd = p->direct_fd,
            .write_at = p->o->write_at ? p->o->write_at : pwrite,
        };
        st = run_units(p, b, e);
    }
    if (b) {
        mem_free(b->errs);
        mem_free(b->status);
    }
    mem_free(b);
    mem_unmap(p->memory, threads * p->stream_memory);
    return st;
}

/* ---- the end ---- */

static int write_head(struct pack *p, struct err *e) {
    for (size_t done = 0; done < p->plan.head.len;) {
        ssize_t n = p->stream.write_at(p->fd, p->plan.head.data + done, p->plan.head.len - done, (off_t)done);
        if (n <= 0 && errno != EINTR) {
            return err_set(e, ST_IO, "%s: cannot write its head: %s; run again to resume", p->o->out, strerror(errno));
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return fsync(p->fd) ? err_set(e, ST_IO, "%s.partial: cannot bring it to the disk: %s", p->o->out, strerror(errno)) : ST_OK;
}

/* Refuses to replace a file that came into being meanwhile, where the file system can do that in one step. */
static int rename_out(struct pack *p, struct err *e) {
    int rc = -1;
    if (!p->o->force) {
        rc = renameat2(p->dir_fd, p->partial, p->dir_fd, p->name, RENAME_NOREPLACE);
    }
    if (p->o->force || (rc && (errno == EINVAL || errno == ENOSYS))) {
        rc = renameat(p->dir_fd, p->partial, p->dir_fd, p->name);
    }
    if (rc) {
        return err_set(e, ST_IO, "%s: cannot rename the finished file: %s", p->o->out, strerror(errno));
    }
    unlinkat(p->dir_fd, p->journal_name, 0);
    return fsync(p->dir_fd) ? err_set(e, ST_IO, "%s: cannot bring its name to the disk: %s", p->o->out, strerror(errno)) : ST_OK;
}

static int finish(struct pack *p, struct err *e) {
    uint64_t id = 0;
    int st = identify(p, &id, e);
    if (!st && id != p->source_id) {
        pack__journal_reset(&p->journal, NULL);
        st = err_set(e, ST_INVALID, "%s: was changed while it was packed; run again", gguf_file_path(p->plan.source, 0));
    }
    if (!st) {
        pack__plan_seal(&p->plan, p->checksums);
        st = write_head(p, e);
    }
    return st ? st : rename_out(p, e);
}

static void close_fd(int fd) {
    if (fd >= 0) {
        close(fd);
    }
}

static void pack_clear(struct pack *p) {
    pack__journal_close(&p->journal);
    close_fd(p->direct_fd);
    close_fd(p->fd);
    close_fd(p->dir_fd);
    for (uint32_t i = 0; p->source_fds && i < gguf_n_files(p->plan.source); i++) {
        close_fd(p->source_fds[i]);
    }
    mem_free(p->source_fds);
    mem_free(p->name);
    mem_free(p->partial);
    mem_free(p->journal_name);
    mem_free(p->done);
    mem_free(p->checksums);
    pack__plan_clear(&p->plan);
}

int offload_pack(const struct offload_pack_opts *o, struct err *e) {
    struct pack p = { .o = o, .dir_fd = -1, .fd = -1, .direct_fd = -1, .journal = { .fd = -1 }, .start_ns = clock_mono_ns() };
    int st = pack__plan_make(o->model, &p.plan, e);
    st = st ? st : open_dir(&p, e);
    st = st ? st : open_source(&p, e);
    st = st ? st : check_space(&p, e);
    if (!st) {
        p.n_units = p.plan.n_records + 1;
        p.progress.total_bytes = p.plan.total_bytes - p.plan.head.len;
        p.done = mem_zalloc(p.n_units, sizeof *p.done);
        p.checksums = mem_zalloc(p.n_units, sizeof *p.checksums);
        st = p.done && p.checksums ? ST_OK : err_set(e, ST_NOMEM, "%s: out of memory for %u records", o->out, p.n_units);
    }
    st = st ? st : open_partial(&p, e);
    st = st ? st : pack_units(&p, e);
    st = st ? st : finish(&p, e);
    pack_clear(&p);
    return st;
}
