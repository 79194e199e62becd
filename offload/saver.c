/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that saves what was learned about experts while the store is open. It copies under the mutex and writes without
 * it, so that neither a step nor a read waits for the disk's sync. */
#include "offload/internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/log.h"

static struct timespec time_in(uint32_t ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const uint64_t ns = (uint64_t)t.tv_nsec + ms * UINT64_C(1000000);
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

void *offload__saver_main(void *store) {
    struct offload *o = store;
    struct timespec until = time_in(o->o.heat_every_ms);
    pthread_mutex_lock(&o->mutex);
    uint64_t saved = o->s.policy.now;
    while (!o->stopping) {
        if (pthread_cond_timedwait(&o->saving, &o->mutex, &until) != ETIMEDOUT) {
            continue;
        }
        until = time_in(o->o.heat_every_ms);
        if (o->s.policy.now == saved) {
            continue; /* no step since */
        }
        struct policy copy = o->s.policy;
        copy.entries = memcpy(o->heat_copy, copy.entries, copy.n_keys * sizeof *copy.entries);
        pthread_mutex_unlock(&o->mutex);
        struct err e;
        if (offload__heat_save(o->o.heat_path, o->catalog.identity, &copy, &e)) {
            log_warn("offload", "%s", e.text);
        }
        pthread_mutex_lock(&o->mutex);
        saved = copy.now;
    }
    pthread_mutex_unlock(&o->mutex);
    return NULL;
}
