/* SPDX-License-Identifier: Apache-2.0
 *
 * Line logger to stderr: one write(2) per line, so lines of several threads never mix. The level is the
 * one process-wide mutable state the house rules allow. Text logs start with an ISO time, a level and an
 * area; `json` format writes one JSON object per line. */
#ifndef MOED_BASE_LOG_H
#define MOED_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_TEXT, LOG_JSON };

void log_setup(enum log_level level, enum log_format format);
int log_enabled(enum log_level level);
void log_line(enum log_level level, const char *area, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define log_error(area, ...) log_line(LOG_ERROR, area, __VA_ARGS__)
#define log_warn(area, ...) log_line(LOG_WARN, area, __VA_ARGS__)
#define log_info(area, ...) log_line(LOG_INFO, area, __VA_ARGS__)
#define log_debug(area, ...) log_line(LOG_DEBUG, area, __VA_ARGS__)

#endif
