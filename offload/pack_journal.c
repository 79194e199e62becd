/* SPDX-License-Identifier: Apache-2.0
 *
 * Which units of a partial output are done, with their checksums. An entry is added after its unit's data is on the disk,
 * so whatever stands here can be relied on. Every entry carries a hash bound to source and plan; reading stops at the
 * first that is torn or foreign, and writing goes on from there. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "offload/pack_internal.h"

struct entry { uint64_t unit, checksum, hash; };

enum { ENTRIES = 512 }; /* of one read or write */
static const uint64_t HEAD = UINT64_C(0x314b434150444f4d); /* "MODPACK1": unit of the first entry */

static struct entry make_entry(const struct pack__journal *j, uint64_t unit, uint64_t checksum) {
    struct entry x = { .unit = unit, .checksum = checksum };
    x.hash = XXH3_64bits_withSeed(&x, offsetof(struct entry, hash), j->seed);
    return x;
}

static bool is_intact(const struct pack__journal *j, const struct entry *x) {
    return make_entry(j, x->unit, x->checksum).hash == x->hash;
}

static int failed(struct err *e, const char *what) {
    return err_set(e, ST_IO, "cannot %s the journal of the packed file: %s", what, strerror(errno));
}

int pack__journal_open(struct pack__journal *j, int dir, const char *name, uint64_t source, uint64_t plan, struct err *e) {
    const uint64_t bound_to[2] = { source, plan };
    j->seed = XXH3_64bits(bound_to, sizeof bound_to);
    j->fd = openat(dir, name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    return j->fd < 0 ? failed(e, "open") : ST_OK;
}

int pack__journal_read(struct pack__journal *j, uint32_t n_units, bool *done, uint64_t *checksums, bool *fresh, struct err *e) {
    struct entry x[ENTRIES];
    off_t at = 0;
    bool more = true;
    *fresh = true;
    while (more) {
        ssize_t n = pread(j->fd, x, sizeof x, at);
        if (n < 0) {
            return failed(e, "read");
        }
        const size_t whole = (size_t)n / sizeof x[0];
        more = whole == ENTRIES;
        for (size_t i = 0; i < whole; i++, at += (off_t)sizeof x[0]) {
            const bool is_head = at == 0;
            if (!is_intact(j, &x[i]) || (is_head ? x[i].unit != HEAD : x[i].unit >= n_units)) {
                more = false;
                break;
            }
            if (is_head) {
                *fresh = false;
            } else {
                done[x[i].unit] = true;
                checksums[x[i].unit] = x[i].checksum;
            }
        }
    }
    if (ftruncate(j->fd, at) || lseek(j->fd, at, SEEK_SET) < 0) {
        return failed(e, "write");
    }
    return ST_OK;
}

static int append(struct pack__journal *j, const struct entry *x, size_t n, struct err *e) {
    const char *p = (const char *)x;
    for (size_t left = n * sizeof *x; left;) {
        ssize_t done = write(j->fd, p, left);
        if (done < 0 && errno != EINTR) {
            return failed(e, "write");
        }
        p += done > 0 ? done : 0;
        left -= done > 0 ? (size_t)done : 0;
    }
    return ST_OK;
}

int pack__journal_reset(struct pack__journal *j, struct err *e) {
    const struct entry head = make_entry(j, HEAD, 0);
    if (ftruncate(j->fd, 0) || lseek(j->fd, 0, SEEK_SET) < 0) {
        return failed(e, "write");
    }
    return append(j, &head, 1, e);
}

int pack__journal_add(struct pack__journal *j, const uint32_t *units, uint32_t n, const uint64_t *checksums, struct err *e) {
    struct entry x[ENTRIES];
    int st = ST_OK;
    for (uint32_t at = 0; !st && at < n; at += ENTRIES) {
        const uint32_t some = n - at < ENTRIES ? n - at : ENTRIES;
        for (uint32_t i = 0; i < some; i++) {
            x[i] = make_entry(j, units[at + i], checksums[units[at + i]]);
        }
        st = append(j, x, some, e);
    }
    return st;
}

void pack__journal_close(struct pack__journal *j) {
    if (j->fd >= 0) {
        close(j->fd);
    }
    j->fd = -1;
}
