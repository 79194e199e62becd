/* SPDX-License-Identifier: Apache-2.0
 *
 * What the measuring sub-commands share: reading of option values, and JSON text. Part of the composition root. */
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

int cmd_pick_level(const char *name, const struct kern_ops **out, struct err *e); /* *out is static */
int cmd_pick_kv_type(const char *name, enum engine_kv_type *out, struct err *e);

void cmd_json_string(FILE *f, const char *s);

/* A file of up to 64 MiB; *text is NULL at first, returned owned (after an error too), free with mem_free; not NUL-terminated. */
int cmd_read_text(const char *path, char **text, size_t *len, struct err *e);

#endif
