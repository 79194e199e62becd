/* SPDX-License-Identifier: Apache-2.0
 *
 * An error a human will read: a status code and one sentence, filled once where the fact is known
 * (which file, which field, expected, found, what to do). Plain value, owned by the caller, any thread. */
#ifndef MOED_BASE_ERR_H
#define MOED_BASE_ERR_H

#include "base/status.h"

struct err {
    int code;       /* enum status                       */
    char text[512]; /* NUL-terminated, cut with "..." when it would not fit */
};

/* Fills *e (ignored when e is NULL) and returns `code`, so that callers write `return err_set(...)`. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
