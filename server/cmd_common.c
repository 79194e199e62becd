/* SPDX-License-Identifier: Apache-2.0
 *
 * What sub-commands share: reading of option values, memory to plan with, and JSON text. */
#include "server/cmd_common.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/kernels.h"
#include "server/sysinfo.h"

enum { MAX_TEXT = 64 << 20 };

bool cmd_parse_u32(const char *s, uint32_t min, uint32_t max, uint32_t *out, char **end) {
    errno = 0;
    unsigned long v = strtoul(s, end, 10);
    *out = (uint32_t)v;
    return *end != s && *s >= '0' && *s <= '9' && !errno && v >= min && v <= max;
}

bool cmd_parse_number(const char *s, uint32_t min, uint32_t max, uint32_t *out) {
    char *end;
    return cmd_parse_u32(s, min, max, out, &end) && *end == '\0';
}

bool cmd_parse_double(const char *s, double min, double max, double *out) {
    char *end;
    *out = strtod(s, &end);
    return end != s && *end == '\0' && *out >= min && *out <= max;
}

bool cmd_parse_bytes(const char *s, uint64_t *out) {
    static const char units[] = "kmgt";
    char *end;
    double v = strtod(s, &end);
    const char *unit = *end ? strchr(units, *end | 0x20) : NULL;
    if (unit) {
        v *= (double)(UINT64_C(1) << 10 * (unit - units + 1));
        end += 1 + (end[1] == 'b' || end[1] == 'B');
    }
    if (end == s || *end || !(v >= 0 && v <= 0x1p50)) {
        return false;
    }
    *out = (uint64_t)v;
    return true;
}

bool cmd_parse_list(const char *s, uint32_t cap, uint32_t *n, bool (*parse)(void *ctx, uint32_t i, const char *part), void *ctx) {
    char part[64];
    for (*n = 0; *n < cap; s++) {
        size_t len = strcspn(s, ",");
        if (len >= sizeof part) {
            return false;
        }
        memcpy(part, s, len);
        part[len] = '\0';
        if (!parse(ctx, (*n)++, part)) {
            return false;
        }
        s += len;
        if (!*s) {
            return true;
        }
    }
    return false;
}

int cmd_pick_level(const char *name, const struct kern_ops **out, struct err *e) {
    enum kern_level level = kern_cpu_best();
    if (strcmp(name, "auto") && !kern_level_find(name, &level)) {
        return err_set(e, ST_INVALID, "--cpu-level: expected auto, scalar, avx2, avxvnni, avx512, avx512bf16 or neon; found %s", name);
    }
    *out = kern_cpu_ops(level);
    return *out ? ST_OK : err_set(e, ST_INVALID, "--cpu-level: this CPU cannot run %s; auto would take %s", name,
                                  kern_level_name(kern_cpu_best()));
}

int cmd_pick_kv_type(const char *name, enum engine_kv_type *out, struct err *e) {
    static const char *const names[] = { [ENGINE_KV_F16] = "f16", [ENGINE_KV_BF16] = "bf16", [ENGINE_KV_F32] = "f32", [ENGINE_KV_Q8] = "q8" };
    for (int i = 0; i < 4; i++) {
        if (!strcmp(name, names[i])) {
            *out = (enum engine_kv_type)i;
            return ST_OK;
        }
    }
    return err_set(e, ST_INVALID, "--kv-type: expected f16, bf16, f32 or q8, found %s", name);
}

uint64_t cmd_ram_ceiling(uint64_t ram_bytes) {
    if (ram_bytes) {
        return ram_bytes;
    }
    uint64_t left = sys_ram_available(), margin = left / 16 + 128 * 1024 * 1024;
    return left > 2 * margin ? left - margin : left / 2;
}

FILE *cmd_json_open(const char *path, struct err *e) {
    FILE *f = strcmp(path, "-") ? fopen(path, "we") : stdout;
    if (!f) {
        err_set(e, ST_IO, "--json: cannot write %s: %s", path, strerror(errno));
    }
    return f;
}

int cmd_json_close(FILE *f, const char *path, struct err *e) {
    const bool failed = ferror(f) || (f == stdout ? fflush(f) : fclose(f)) != 0;
    return failed ? err_set(e, ST_IO, "--json: writing %s failed", path) : ST_OK;
}

void cmd_json_string(FILE *f, const char *s) {
    fputc('"', f);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        fprintf(f, c == '"' || c == '\\' ? "\\%c" : c < 0x20 ? "\\u%04x" : "%c", c);
    }
    fputc('"', f);
}

int cmd_read_text(const char *path, char **text, size_t *len, struct err *e) {
    FILE *f = fopen(path, "re");
    if (!f) {
        return err_set(e, ST_IO, "cannot read %s: %s", path, strerror(errno));
    }
    size_t cap = 0;
    int st = ST_OK;
    do {
        char *more = mem_realloc(*text, cap = cap ? 2 * cap : 1 << 16);
        if (!more) {
            st = err_set(e, ST_NOMEM, "out of memory");
            break;
        }
        *text = more;
        *len += fread(*text + *len, 1, cap - *len, f);
    } while (*len == cap && cap < MAX_TEXT);
    if (!st && ferror(f)) {
        st = err_set(e, ST_IO, "cannot read %s: %s", path, strerror(errno));
    } else if (!st && *len == MAX_TEXT) {
        st = err_set(e, ST_LIMIT, "%s: expected less than %d MiB", path, MAX_TEXT >> 20);
    }
    fclose(f);
    return st;
}
