/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the files that experts are read from, past the page cache where the file system allows. */
#include "offload/disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "offload/disk.h"

/* Some file systems take the flag and refuse the read, so one is tried. */
static bool direct_reads_work(int fd) {
    void *p = mem_map(DISK_ALIGN);
    const bool ok = p && pread(fd, p, DISK_ALIGN, 0) > 0;
    mem_unmap(p, DISK_ALIGN);
    return ok;
}

static int open_file(struct disk_file *f, const char *path, struct err *e) {
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    f->direct = f->fd >= 0 && direct_reads_work(f->fd);
    if (f->direct) {
        return ST_OK;
    }
    if (f->fd >= 0) {
        close(f->fd);
    }
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) {
        return err_set(e, ST_IO, "%s: cannot open: %s", path, strerror(errno));
    }
    log_warn("offload", "%s: the file system refuses direct reads; reads go through the page cache and are dropped from it", path);
    return ST_OK;
}

int disk_files_open(struct disk_file **out, const char *const *paths, uint32_t n, struct err *e) {
    struct disk_file *files = mem_zalloc(n, sizeof *files);
    *out = NULL;
    if (!files) {
        return err_set(e, ST_NOMEM, "out of memory for %u files", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const int rc = open_file(&files[i], paths[i], e);
        if (rc) {
            disk_files_close(files, i);
            return rc;
        }
    }
    *out = files;
    return ST_OK;
}

void disk_files_close(struct disk_file *files, uint32_t n) {
    for (uint32_t i = 0; files && i < n; i++) {
        close(files[i].fd);
    }
    mem_free(files);
}

void disk_file_drop(const struct disk_file *f, uint64_t offset, size_t n_bytes) {
    if (!f->direct) {
        posix_fadvise(f->fd, (off_t)offset, (off_t)n_bytes, POSIX_FADV_DONTNEED); /* advice: a refusal costs page cache only */
    }
}
