/* SPDX-License-Identifier: Apache-2.0
 *
 * The heat file: a head, one entry per expert, a checksum of all before it. Written beside its name, synced, renamed, so
 * that a reader sees the old one or the new one. It is only advice: whatever is wrong with it, the store starts cold. */
#include "offload/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/log.h"

struct head { char magic[8]; uint32_t version, n_keys; uint64_t identity, now; };
static const char MAGIC[8] = "MOEDHEAT";
enum { VERSION = 1, PATH_MOST = 4096 };

static size_t file_bytes(uint32_t n_keys) {
    return sizeof(struct head) + n_keys * sizeof(struct policy_entry) + sizeof(uint64_t);
}

/* The whole file, or NULL when it cannot be read or has another size. */
static unsigned char *read_file(const char *path, size_t want) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    unsigned char *p = fd < 0 ? NULL : mem_alloc(want + 1);
    size_t n = 0;
    while (p && n <= want) {
        const ssize_t got = read(fd, p + n, want + 1 - n);
        if (got <= 0 && !(got < 0 && errno == EINTR)) {
            break;
        }
        n += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    if (p && n != want) {
        mem_free(p);
        p = NULL;
    }
    return p;
}

static const char *wrong(const unsigned char *file, uint64_t identity, uint32_t n_keys, struct policy_entry *entries, struct head *h) {
    const size_t n = file_bytes(n_keys) - sizeof(uint64_t);
    uint64_t sum;
    memcpy(h, file, sizeof *h);
    memcpy(&sum, file + n, sizeof sum);
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) || h->version != VERSION) {
        return "it is no heat file of this version";
    }
    if (h->identity != identity || h->n_keys != n_keys) {
        return "it belongs to another model";
    }
    if (XXH3_64bits(file, n) != sum) {
        return "its checksum is wrong";
    }
    memcpy(entries, file + sizeof *h, n_keys * sizeof *entries);
    for (uint32_t k = 0; k < n_keys; k++) {
        if (!(entries[k].uses >= 0) || isinf(entries[k].uses) || entries[k].last > h->now) {
            return "an entry is out of range";
        }
    }
    return NULL;
}

bool offload__heat_load(const char *path, uint64_t identity, uint32_t n_keys, struct policy_entry *entries, uint64_t *now) {
    char tmp[PATH_MOST];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.tmp", path) < sizeof tmp && !access(tmp, F_OK)) {
        log_warn("offload", "%s: left by a run that ended while it saved; it is not read", tmp);
    }
    if (access(path, F_OK)) {
        return false; /* the first run, or none lived long enough to save */
    }
    struct head h;
    unsigned char *file = read_file(path, file_bytes(n_keys));
    const char *why = file ? wrong(file, identity, n_keys, entries, &h) : "it cannot be read, or its size is that of another model";
    mem_free(file);
    if (why) {
        log_warn("offload", "%s: %s; starting without heat", path, why);
        memset(entries, 0, n_keys * sizeof *entries);
        return false;
    }
    *now = h.now;
    return true;
}

static bool write_all(int fd, const unsigned char *p, size_t n) {
    while (n) {
        const ssize_t put = write(fd, p, n);
        if (put <= 0 && errno != EINTR) {
            return false;
        }
        p += put > 0 ? put : 0;
        n -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

/* The directory's entry is data of the directory. */
static bool sync_directory(const char *path) {
    char copy[PATH_MOST];
    snprintf(copy, sizeof copy, "%s", path);
    const int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

static int replace_file(const char *path, const unsigned char *file, size_t n, struct err *e) {
    char tmp[PATH_MOST];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.tmp", path) >= sizeof tmp) {
        return err_set(e, ST_INVALID, "%s: the name is too long", path);
    }
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool ok = fd >= 0 && write_all(fd, file, n) && fsync(fd) == 0;
    const int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (!ok) {
        unlink(tmp);
        return err_set(e, ST_IO, "%s: cannot write: %s", tmp, strerror(error));
    }
    ok = rename(tmp, path) == 0 && sync_directory(path);
    return ok ? ST_OK : err_set(e, ST_IO, "%s: cannot rename: %s", tmp, strerror(errno));
}

int offload__heat_save(const char *path, uint64_t identity, const struct policy *p, struct err *e) {
    const size_t n = file_bytes(p->n_keys), body = n - sizeof(uint64_t);
    unsigned char *file = mem_zalloc(1, n);
    if (!file) {
        return err_set(e, ST_NOMEM, "%s: out of memory", path);
    }
    struct head h = { .version = VERSION, .n_keys = p->n_keys, .identity = identity, .now = p->now };
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    memcpy(file, &h, sizeof h);
    for (uint32_t k = 0; k < p->n_keys; k++) { /* field by field: padding is not written */
        unsigned char *at = file + sizeof h + k * sizeof(struct policy_entry);
        memcpy(at + offsetof(struct policy_entry, uses), &p->entries[k].uses, sizeof p->entries[k].uses);
        memcpy(at + offsetof(struct policy_entry, last), &p->entries[k].last, sizeof p->entries[k].last);
    }
    const uint64_t sum = XXH3_64bits(file, body);
    memcpy(file + body, &sum, sizeof sum);
    const int rc = replace_file(path, file, n, e);
    mem_free(file);
    return rc;
}

struct ranked { double uses; uint32_t key; };

static int hotter(const void *pa, const void *pb) {
    const struct ranked *a = pa, *b = pb;
    return a->uses != b->uses ? (a->uses < b->uses ? 1 : -1) : (a->key > b->key) - (a->key < b->key);
}

void offload__heat_order(const struct policy *p, uint32_t *order) {
    struct policy by_uses = *p;
    by_uses.kind = OFFLOAD_LFU;
    struct ranked *all = mem_alloc(p->n_keys * sizeof *all);
    for (uint32_t k = 0; k < p->n_keys; k++) {
        order[k] = k;
        if (all) {
            all[k] = (struct ranked){ policy_score(&by_uses, k), k };
        }
    }
    if (all) {
        qsort(all, p->n_keys, sizeof *all, hotter);
        for (uint32_t k = 0; k < p->n_keys; k++) {
            order[k] = all[k].key;
        }
    }
    mem_free(all); /* without memory the order is that of the keys: slower, not wrong */
}
