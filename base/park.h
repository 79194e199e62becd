/* SPDX-License-Identifier: Apache-2.0
 *
 * Sleep and wake of one thread, with a sticky token: a wake before the wait makes the wait return at once,
 * so no wake-up is lost. Any thread may wake; exactly one thread waits. */
#ifndef MOED_BASE_PARK_H
#define MOED_BASE_PARK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct park {
    pthread_mutex_t mutex;
    pthread_cond_t cond; /* on CLOCK_MONOTONIC */
    bool token;          /* guarded by mutex */
};

int park_init(struct park *p);
void park_clear(struct park *p);
void park_wake(struct park *p);
bool park_wait(struct park *p, uint64_t timeout_ns); /* true: woken, false: timeout. UINT64_MAX waits for ever */

#endif
