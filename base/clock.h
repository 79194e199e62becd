/* SPDX-License-Identifier: Apache-2.0
 *
 * Monotonic and wall time. Any thread. */
#ifndef MOED_BASE_CLOCK_H
#define MOED_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_mono_ns(void); /* CLOCK_MONOTONIC, for every duration and deadline */
int64_t clock_unix_s(void);   /* wall time in seconds, only for `created` fields and log lines */

#endif
