/* SPDX-License-Identifier: Apache-2.0
 *
 * Formatting of human-readable errors. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *fmt, ...) {
    if (!e) return code;
    e->code = code;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n < 0) e->text[0] = '\0';
    if (n >= (int)sizeof e->text) memcpy(e->text + sizeof e->text - 4, "...", 4);
    return code;
}
