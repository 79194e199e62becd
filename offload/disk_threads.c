/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk of threads that block in pread, one per read in flight: for kernels that refuse io_uring. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "offload/disk.h"
#include "offload/disk_file.h"

enum job_state { JOB_FREE, JOB_QUEUED, JOB_RUNNING, JOB_DONE };

struct job {
    struct disk_read read;
    enum job_state state;
    int status;
    uint64_t order;               /* of submission */
};

struct disk_threads {
    struct disk_file *files;      /* owned */
    uint32_t n_files, depth, n_started;
    pthread_mutex_t mutex;        /* everything below */
    pthread_cond_t work, finished; /* finished: on CLOCK_MONOTONIC */
    struct job jobs[DISK_MAX_DEPTH];
    uint64_t order;
    bool woken, stopping;
    pthread_t threads[DISK_MAX_DEPTH];
};

static int read_span(const struct disk_file *f, const struct disk_read *r) {
    size_t got = 0;
    while (got < r->need) {
        const ssize_t n = pread(f->fd, (char *)r->to + got, r->n_bytes - got, (off_t)(r->offset + got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0 || (f->direct && n % DISK_ALIGN && got + (size_t)n < r->need)) {
            return ST_IO; /* an error, or the end of the file */
        }
        got += (size_t)n;
    }
    disk_file_drop(f, r->offset, r->n_bytes);
    return ST_OK;
}

/* Demand before the rest, in order of submission. With the mutex. */
static struct job *next_job(struct disk_threads *d) {
    struct job *best = NULL;
    for (uint32_t i = 0; i < d->depth; i++) {
        struct job *j = &d->jobs[i];
        if (j->state == JOB_QUEUED && (!best || j->read.demand > best->read.demand ||
                                       (j->read.demand == best->read.demand && j->order < best->order))) {
            best = j;
        }
    }
    return best;
}

static void *thread_main(void *self) {
    struct disk_threads *d = self;
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        struct job *j = next_job(d);
        if (j) {
            j->state = JOB_RUNNING;
            pthread_mutex_unlock(&d->mutex);
            const int status = read_span(&d->files[j->read.file], &j->read);
            pthread_mutex_lock(&d->mutex);
            j->status = status;
            j->state = JOB_DONE;
            pthread_cond_signal(&d->finished);
        } else if (d->stopping) {
            break;
        } else {
            pthread_cond_wait(&d->work, &d->mutex);
        }
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

static int threads_submit(void *self, const struct disk_read *r) {
    struct disk_threads *d = self;
    int rc = ST_QUEUE_FULL;
    if (r->file >= d->n_files) {
        return ST_INVALID;
    }
    pthread_mutex_lock(&d->mutex);
    for (uint32_t i = 0; i < d->depth && rc; i++) {
        if (d->jobs[i].state == JOB_FREE) {
            d->jobs[i] = (struct job){ .read = *r, .state = JOB_QUEUED, .order = d->order++ };
            pthread_cond_signal(&d->work);
            rc = ST_OK;
        }
    }
    pthread_mutex_unlock(&d->mutex);
    return rc;
}

static void threads_cancel(void *self, uint32_t tag) {
    struct disk_threads *d = self;
    pthread_mutex_lock(&d->mutex);
    for (uint32_t i = 0; i < d->depth; i++) {
        struct job *j = &d->jobs[i];
        if (j->state == JOB_QUEUED && j->read.tag == tag) {
            j->status = ST_CANCELLED;
            j->state = JOB_DONE;
            pthread_cond_signal(&d->finished);
        }
    }
    pthread_mutex_unlock(&d->mutex);
}

static uint32_t collect(struct disk_threads *d, struct disk_done *done, uint32_t cap) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->depth && n < cap; i++) {
        struct job *j = &d->jobs[i];
        if (j->state == JOB_DONE) {
            done[n++] = (struct disk_done){ j->read.tag, j->status };
            j->state = JOB_FREE;
        }
    }
    return n;
}

static uint32_t threads_complete(void *self, struct disk_done *done, uint32_t cap, uint64_t timeout_ns) {
    struct disk_threads *d = self;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t wait_ns = timeout_ns < UINT64_C(3600000000000) ? timeout_ns : UINT64_C(3600000000000); /* an hour is no hang */
    const uint64_t ns = (uint64_t)until.tv_nsec + wait_ns;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&d->mutex);
    uint32_t n = collect(d, done, cap);
    int rc = timeout_ns ? 0 : ETIMEDOUT;
    while (n == 0 && !d->woken && !rc) {
        rc = pthread_cond_timedwait(&d->finished, &d->mutex, &until);
        n = collect(d, done, cap);
    }
    d->woken = false;
    pthread_mutex_unlock(&d->mutex);
    return n;
}

static void threads_wake(void *self) {
    struct disk_threads *d = self;
    pthread_mutex_lock(&d->mutex);
    d->woken = true;
    pthread_cond_signal(&d->finished);
    pthread_mutex_unlock(&d->mutex);
}

static uint64_t threads_now_ns(void *self) {
    (void)self;
    return clock_mono_ns();
}

static void init_locks(struct disk_threads *d) {
    pthread_condattr_t attr; /* none of these fails on Linux */
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->finished, &attr);
    pthread_condattr_destroy(&attr);
}

int disk_threads_open(struct offload_disk *out, const struct disk_opts *o, struct err *e) {
    struct disk_threads *d = mem_zalloc(1, sizeof *d);
    *out = (struct offload_disk){ threads_submit, threads_cancel, threads_complete, threads_wake, threads_now_ns, d };
    if (!d) {
        return err_set(e, ST_NOMEM, "out of memory for the threads that read experts");
    }
    if (o->depth < 1 || o->depth > DISK_MAX_DEPTH) {
        mem_free(d);
        out->self = NULL;
        return err_set(e, ST_INVALID, "reads in flight: expected 1..%d, got %u", DISK_MAX_DEPTH, o->depth);
    }
    d->depth = o->depth;
    d->n_files = o->n_files;
    init_locks(d);
    int rc = disk_files_open(&d->files, o->paths, o->n_files, e);
    while (!rc && d->n_started < d->depth) {
        if (pthread_create(&d->threads[d->n_started], NULL, thread_main, d)) {
            rc = err_set(e, ST_NOMEM, "cannot start %u threads that read experts", d->depth);
        } else {
            d->n_started++;
        }
    }
    if (rc) {
        disk_threads_close(out);
    }
    return rc;
}

void disk_threads_close(struct offload_disk *out) {
    struct disk_threads *d = out->self;
    if (!d) {
        return;
    }
    pthread_mutex_lock(&d->mutex);
    d->stopping = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->mutex);
    for (uint32_t i = 0; i < d->n_started; i++) {
        pthread_join(d->threads[i], NULL);
    }
    disk_files_close(d->files, d->n_files);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->finished);
    pthread_mutex_destroy(&d->mutex);
    mem_free(d);
    out->self = NULL;
}
