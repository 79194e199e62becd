/* SPDX-License-Identifier: Apache-2.0
 *
 * What sub-commands share: reading of option values, memory to plan with, and JSON text. Part of the composition root. */
#ifndef MOED_SERVER_CMD_COMMON_H
#define MOED_SERVER_CMD_COMMON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "engine/engine.h"

struct kern_ops;

/* Decimal digits up to *end; false when there are none or the value is outside [min, max]. */
bool cmd_parse_u32(const char *s, uint32_t min, uint32_t max, uint32_t *out, char **end);
bool cmd_parse_number(const char *s, uint32_t min, uint32_t max, uint32_t *out); /* the whole string */
/* "8g" and the like, k m g t as in moed.conf, up to 2^50; "12.5". false: not all of s is one. */
bool cmd_parse_bytes(const char *s, uint64_t *out);
bool cmd_parse_double(const char *s, double min, double max, double *out);
/* Comma-separated parts of s, each handed to parse with the index it has; false when one is refused or there are more than cap. */
bool cmd_parse_list(const char *s, uint32_t cap, uint32_t *n, bool (*parse)(void *ctx, uint32_t i, const char *part), void *ctx);

int cmd_pick_level(const char *name, const struct kern_ops **out, struct err *e); /* *out is static */
int cmd_pick_kv_type(const char *name, enum engine_kv_type *out, struct err *e);

/* The option ram, or when it is 0 what is free now, less a margin for the HTTP side, the page cache and everybody else. */
uint64_t cmd_ram_ceiling(uint64_t ram_bytes);

void cmd_json_string(FILE *f, const char *s);
/* The value of --json: a path, or "-" for standard output. NULL: *e says why; else end with cmd_json_close. */
FILE *cmd_json_open(const char *path, struct err *e);
int cmd_json_close(FILE *f, const char *path, struct err *e); /* ST_IO when something could not be written */

/* A file of up to 64 MiB; *text is NULL at first, returned owned (after an error too), free with mem_free; not NUL-terminated. */
int cmd_read_text(const char *path, char **text, size_t *len, struct err *e);

#endif
