/* SPDX-License-Identifier: Apache-2.0
 *
 * A binary semaphore with timeout: the token makes wake-before-wait safe. */
#include "base/park.h"

#include <errno.h>
#include <time.h>

#include "base/status.h"

int park_init(struct park *p) {
    pthread_condattr_t attr;
    p->token = false;
    if (pthread_mutex_init(&p->mutex, NULL)) return ST_NOMEM;
    if (pthread_condattr_init(&attr)) goto fail_mutex;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&p->cond, &attr);
    pthread_condattr_destroy(&attr);
    if (failed) goto fail_mutex;
    return 0;
fail_mutex:
    pthread_mutex_destroy(&p->mutex);
    return ST_NOMEM;
}

void park_clear(struct park *p) {
    pthread_cond_destroy(&p->cond);
    pthread_mutex_destroy(&p->mutex);
}

void park_wake(struct park *p) {
    pthread_mutex_lock(&p->mutex);
    p->token = true;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mutex);
}

static struct timespec park_deadline(uint64_t timeout_ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + timeout_ns % 1000000000u;
    t.tv_sec += (time_t)(timeout_ns / 1000000000u + ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return t;
}

bool park_wait(struct park *p, uint64_t timeout_ns) {
    bool forever = timeout_ns == UINT64_MAX;
    struct timespec deadline = forever ? (struct timespec){ 0 } : park_deadline(timeout_ns);
    pthread_mutex_lock(&p->mutex);
    int rc = 0;
    while (!p->token && rc != ETIMEDOUT) {
        rc = forever ? pthread_cond_wait(&p->cond, &p->mutex) : pthread_cond_timedwait(&p->cond, &p->mutex, &deadline);
    }
    bool woken = p->token;
    p->token = false;
    pthread_mutex_unlock(&p->mutex);
    return woken;
}
