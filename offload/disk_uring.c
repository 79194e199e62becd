/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk on io_uring. One thread submits, cancels and completes; wake comes through an eventfd that the ring itself
 * reads, so there is one place to wait. Demand reads carry a higher I/O priority for the schedulers that know it; what
 * really puts them first is that the store hands out few others at a time. */
#include <errno.h>
#include <liburing.h>
#include <linux/ioprio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "offload/disk.h"
#include "offload/disk_file.h"

enum { RING_ENTRIES = 2 * DISK_MAX_DEPTH + 2, PRIO_DEMAND = 0, PRIO_LOW = 7 };
static const uint64_t DATA_WAKE = UINT64_MAX, DATA_CANCEL = UINT64_MAX - 1; /* other user data: index of a job */

struct job {
    struct disk_read read;
    size_t got;
    bool used;
};

struct disk_uring {
    struct io_uring ring;
    bool has_ring, armed;         /* armed: a read of wake_fd is in the ring */
    int wake_fd;
    uint64_t wake_count;          /* where that read goes */
    struct disk_file *files;      /* owned */
    uint32_t n_files, depth;
    struct job jobs[DISK_MAX_DEPTH];
};

/* The ring has room for every read, every cancel of one, and the wake; only a burst of cancels can fill it. */
static struct io_uring_sqe *get_sqe(struct disk_uring *d) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&d->ring);
    if (!sqe) {
        io_uring_submit(&d->ring);
        sqe = io_uring_get_sqe(&d->ring);
    }
    return sqe;
}

/* false: no room in the ring. What the kernel does not take at once goes along with the next submit. */
static bool queue_read(struct disk_uring *d, uint32_t i) {
    const struct job *j = &d->jobs[i];
    const struct disk_read *r = &j->read;
    struct io_uring_sqe *sqe = get_sqe(d);
    if (!sqe) {
        return false;
    }
    io_uring_prep_read(sqe, d->files[r->file].fd, (char *)r->to + j->got, (unsigned)(r->n_bytes - j->got), r->offset + j->got);
    sqe->ioprio = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, r->demand ? PRIO_DEMAND : PRIO_LOW);
    io_uring_sqe_set_data64(sqe, i);
    io_uring_submit(&d->ring);
    return true;
}

static int uring_submit(void *self, const struct disk_read *r) {
    struct disk_uring *d = self;
    if (r->file >= d->n_files || r->n_bytes > UINT32_MAX / 2) {
        return ST_INVALID;
    }
    for (uint32_t i = 0; i < d->depth; i++) {
        if (!d->jobs[i].used) {
            d->jobs[i] = (struct job){ .read = *r };
            d->jobs[i].used = queue_read(d, i);
            return d->jobs[i].used ? ST_OK : ST_QUEUE_FULL;
        }
    }
    return ST_QUEUE_FULL;
}

static void uring_cancel(void *self, uint32_t tag) {
    struct disk_uring *d = self;
    for (uint32_t i = 0; i < d->depth; i++) {
        struct io_uring_sqe *sqe = d->jobs[i].used && d->jobs[i].read.tag == tag ? get_sqe(d) : NULL;
        if (sqe) {
            io_uring_prep_cancel64(sqe, i, 0);
            io_uring_sqe_set_data64(sqe, DATA_CANCEL);
            io_uring_submit(&d->ring);
        }
    }
}

static void arm_wake(struct disk_uring *d) {
    struct io_uring_sqe *sqe = d->armed ? NULL : get_sqe(d);
    if (sqe) {
        io_uring_prep_read(sqe, d->wake_fd, &d->wake_count, sizeof d->wake_count, 0);
        io_uring_sqe_set_data64(sqe, DATA_WAKE);
        io_uring_submit(&d->ring);
        d->armed = true;
    }
}

/* The end of a job, or false: the kernel gave a part, and the rest was asked for. */
static bool job_done(struct disk_uring *d, uint32_t i, int res, struct disk_done *done) {
    struct job *j = &d->jobs[i];
    if (res > 0) {
        j->got += (size_t)res;
        if (j->got < j->read.need && res % DISK_ALIGN == 0 && queue_read(d, i)) {
            return false;
        }
    }
    *done = (struct disk_done){ j->read.tag, j->got >= j->read.need ? ST_OK : res == -ECANCELED ? ST_CANCELLED : ST_IO };
    j->used = false;
    disk_file_drop(&d->files[j->read.file], j->read.offset, j->read.n_bytes);
    return true;
}

/* Takes what is there. Returns whether there was a reason to return to the caller. */
static bool collect(struct disk_uring *d, struct disk_done *done, uint32_t cap, uint32_t *n) {
    struct io_uring_cqe *cqe;
    bool woken = false;
    while (*n < cap && !io_uring_peek_cqe(&d->ring, &cqe)) {
        const uint64_t data = io_uring_cqe_get_data64(cqe);
        const int res = cqe->res;
        io_uring_cqe_seen(&d->ring, cqe);
        if (data == DATA_WAKE) {
            d->armed = false;
            woken = true;
        } else if (data < d->depth) {
            *n += job_done(d, (uint32_t)data, res, &done[*n]);
        }
    }
    return *n || woken;
}

static uint32_t uring_complete(void *self, struct disk_done *done, uint32_t cap, uint64_t timeout_ns) {
    struct disk_uring *d = self;
    const uint64_t start_ns = clock_mono_ns();
    uint32_t n = 0;
    while (!collect(d, done, cap, &n)) {
        const uint64_t spent = clock_mono_ns() - start_ns;
        if (spent >= timeout_ns) {
            break;
        }
        arm_wake(d);
        const uint64_t left = timeout_ns - spent < UINT64_C(3600000000000) ? timeout_ns - spent : UINT64_C(3600000000000);
        struct __kernel_timespec ts = { .tv_sec = (long long)(left / 1000000000), .tv_nsec = (long long)(left % 1000000000) };
        struct io_uring_cqe *cqe;
        io_uring_submit_and_wait_timeout(&d->ring, &cqe, 1, &ts, NULL); /* whatever it says, the ring is looked at again */
    }
    return n;
}

static void uring_wake(void *self) {
    struct disk_uring *d = self;
    const uint64_t one = 1;
    while (write(d->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static uint64_t uring_now_ns(void *self) {
    (void)self;
    return clock_mono_ns();
}

int disk_uring_open(struct offload_disk *out, const struct disk_opts *o, struct err *e) {
    struct disk_uring *d = mem_zalloc(1, sizeof *d);
    *out = (struct offload_disk){ uring_submit, uring_cancel, uring_complete, uring_wake, uring_now_ns, d };
    if (!d) {
        return err_set(e, ST_NOMEM, "out of memory for the ring of reads");
    }
    d->depth = o->depth < DISK_MAX_DEPTH ? o->depth : DISK_MAX_DEPTH;
    d->n_files = o->n_files;
    d->wake_fd = eventfd(0, EFD_CLOEXEC);
    int rc = io_uring_queue_init(RING_ENTRIES, &d->ring, 0);
    d->has_ring = rc == 0;
    if (d->wake_fd < 0 || rc) {
        disk_uring_close(out);
        return err_set(e, ST_UNSUPPORTED, "io_uring: %s", strerror(rc ? -rc : errno));
    }
    rc = disk_files_open(&d->files, o->paths, o->n_files, e);
    if (rc) {
        disk_uring_close(out);
    }
    return rc;
}

void disk_uring_close(struct offload_disk *out) {
    struct disk_uring *d = out->self;
    if (!d) {
        return;
    }
    if (d->has_ring) {
        io_uring_queue_exit(&d->ring);
    }
    if (d->wake_fd >= 0) {
        close(d->wake_fd);
    }
    disk_files_close(d->files, d->n_files);
    mem_free(d);
    out->self = NULL;
}
