/* SPDX-License-Identifier: Apache-2.0
 *
 * Line logger: format into a stack buffer, then one write(2). */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOG_LINE_BYTES = 2048 };

/* The one allowed process-wide mutable state; set at start, read by every thread. */
static struct {
    atomic_int level, format;
} log_state = { .level = LOG_INFO, .format = LOG_TEXT };

void log_setup(enum log_level level, enum log_format format) {
    atomic_store_explicit(&log_state.level, (int)level, memory_order_relaxed);
    atomic_store_explicit(&log_state.format, (int)format, memory_order_relaxed);
}

int log_enabled(enum log_level level) {
    return (int)level <= atomic_load_explicit(&log_state.level, memory_order_relaxed);
}

/* Control bytes become '?', so that no client-supplied text can forge a line or move a terminal's cursor. */
static void log_sanitise(char *s) {
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
    }
}

static size_t log_escape_json(char *out, size_t cap, const char *s) {
    size_t n = 0;
    for (; *s && n + 2 < cap; s++) {
        if (*s == '"' || *s == '\\') out[n++] = '\\';
        out[n++] = *s;
    }
    out[n] = '\0';
    return n;
}

void log_line(enum log_level level, const char *area, const char *fmt, ...) {
    static const char *const names[] = { "error", "warn", "info", "debug" };
    if (!log_enabled(level)) return;
    int saved_errno = errno;
    char text[LOG_LINE_BYTES / 2], line[LOG_LINE_BYTES + 128], when[32];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    log_sanitise(text);

    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    int ms = (int)(now.tv_nsec / 1000000), n;
    if (atomic_load_explicit(&log_state.format, memory_order_relaxed) == LOG_JSON) {
        char escaped[LOG_LINE_BYTES];
        log_escape_json(escaped, sizeof escaped, text);
        n = snprintf(line, sizeof line, "{\"time\":\"%s.%03dZ\",\"level\":\"%s\",\"area\":\"%s\",\"msg\":\"%s\"}\n", when, ms,
                     names[level], area, escaped);
    } else {
        n = snprintf(line, sizeof line, "%s.%03dZ %-5s %s: %s\n", when, ms, names[level], area, text);
    }
    if (n > 0) {
        ssize_t ignored = write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
        (void)ignored; /* nowhere left to report a failing stderr */
    }
    errno = saved_errno;
}
