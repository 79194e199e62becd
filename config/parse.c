/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads options: values, the file, the environment, the flags; later wins. Flags are scanned twice because
 * --config decides which file is read before them. */
#include "config/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum { CONFIG_LINE_BYTES = 4096, CONFIG_MAX_LINES = 10000 };

static int set_string(struct config *c, const struct option *o, const char *value, struct err *e) {
    char **field = (char **)((char *)c + o->offset);
    char *copy = mem_strndup(value, strlen(value));
    if (!copy) return err_set(e, ST_NOMEM, "out of memory for option %s", o->name);
    mem_free(*field);
    *field = copy;
    return 0;
}

static int set_enum(struct config *c, const struct option *o, const char *value, const char *where, struct err *e) {
    size_t len = strlen(value);
    for (const char *s = o->choices; *s;) {
        size_t n = strcspn(s, "|");
        if (n == len && memcmp(s, value, n) == 0) return set_string(c, o, value, e);
        s += n + (s[n] == '|');
    }
    return err_set(e, ST_INVALID, "%s: %s: expected one of %s, found \"%.60s\"", where, o->name, o->choices, value);
}

static int set_bool(struct config *c, const struct option *o, const char *value, const char *where, struct err *e) {
    bool *field = (bool *)((char *)c + o->offset);
    if (!strcmp(value, "on") || !strcmp(value, "true") || !strcmp(value, "yes") || !strcmp(value, "1")) {
        *field = true;
    } else if (!strcmp(value, "off") || !strcmp(value, "false") || !strcmp(value, "no") || !strcmp(value, "0")) {
        *field = false;
    } else {
        return err_set(e, ST_INVALID, "%s: %s: expected on or off, found \"%.60s\"", where, o->name, value);
    }
    return 0;
}

struct unit { const char *name; uint64_t factor; };

/* "16mb" -> 16 * 2^20. False on anything but digits and one known unit, or on overflow. */
static bool parse_number(const char *s, const struct unit *units, uint64_t *out) {
    if (*s < '0' || *s > '9') return false;
    uint64_t v = 0;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v)) return false;
    }
    for (; units->name; units++) {
        if (strcasecmp(s, units->name) == 0) return !__builtin_mul_overflow(v, units->factor, out);
    }
    return false;
}

static const struct unit BYTES[] = { { "", 1 }, { "b", 1 }, { "k", 1 << 10 }, { "kb", 1 << 10 }, { "m", 1 << 20 }, { "mb", 1 << 20 },
                                     { "g", 1 << 30 }, { "gb", 1 << 30 }, { "t", 1ull << 40 }, { "tb", 1ull << 40 }, { NULL, 0 } };

bool config_parse_bytes(const char *s, uint64_t *out) {
    return parse_number(s, BYTES, out);
}

static int set_number(struct config *c, const struct option *o, const char *value, const char *where, struct err *e) {
    static const struct unit plain[] = { { "", 1 }, { NULL, 0 } };
    static const struct unit times[] = { { "", 1 }, { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 }, { NULL, 0 } };
    const struct unit *units = o->type == OPTION_BYTES ? BYTES : o->type == OPTION_MS ? times : plain;
    const char *hint = o->type == OPTION_BYTES ? " bytes (units k m g t)" : o->type == OPTION_MS ? " milliseconds (units ms s m h)" : "";
    uint64_t v;
    if (!parse_number(value, units, &v) || v < o->min || v > o->max) {
        return err_set(e, ST_INVALID, "%s: %s: expected a number from %llu to %llu%s, found \"%.60s\"", where, o->name,
                       (unsigned long long)o->min, (unsigned long long)o->max, hint, value);
    }
    if (o->type == OPTION_BYTES) {
        *(uint64_t *)((char *)c + o->offset) = v;
    } else {
        *(uint32_t *)((char *)c + o->offset) = (uint32_t)v; /* the row's max fits: checked by a test */
    }
    return 0;
}

int config__set(struct config *c, const struct option *o, const char *value, enum option_origin origin, const char *where,
                struct err *e) {
    int st;
    switch (o->type) {
    case OPTION_STRING: st = set_string(c, o, value, e); break;
    case OPTION_ENUM: st = set_enum(c, o, value, where, e); break;
    case OPTION_BOOL: st = set_bool(c, o, value, where, e); break;
    default: st = set_number(c, o, value, where, e); break;
    }
    if (!st) c->origin[o - config__options] = (uint8_t)origin;
    return st;
}

/* How many single-character edits apart two short names are, capped; for "did you mean". */
static int name_distance(const char *a, const char *b) {
    enum { MAX = 40 };
    size_t na = strlen(a), nb = strlen(b);
    if (na >= MAX || nb >= MAX) return MAX;
    int row[MAX + 1];
    for (size_t j = 0; j <= nb; j++) row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int above = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best) best = above + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[nb];
}

static int unknown_option(const char *where, const char *name, struct err *e) {
    const char *near = NULL;
    int best = 4;
    for (size_t i = 0; i < config__n_options; i++) {
        int d = name_distance(name, config__options[i].name);
        if (d < best) {
            best = d;
            near = config__options[i].name;
        }
    }
    if (near) return err_set(e, ST_INVALID, "%s: unknown option \"%.60s\"; did you mean \"%s\"?", where, name, near);
    return err_set(e, ST_INVALID, "%s: unknown option \"%.60s\"; see moed.conf or moed help for the list", where, name);
}

static char *trim(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    size_t n = strlen(s);
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\t' || s[n - 1] == '\r' || s[n - 1] == '\n')) s[--n] = '\0';
    return s;
}

/* One line "name value"; '#' starts a comment line. A value may be quoted with "..." to keep spaces or be empty. */
static int parse_line(struct config *c, char *line, const char *where, struct err *e) {
    char *name = trim(line);
    if (!*name || *name == '#') return 0;
    size_t len = strcspn(name, " \t");
    char *value = trim(name + len);
    if (name[len]) name[len] = '\0';
    const struct option *o = config__find(name, len);
    if (!o) return unknown_option(where, name, e);
    size_t n = strlen(value);
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') {
        value[n - 1] = '\0';
        value++;
    } else if (n == 0) {
        return err_set(e, ST_INVALID, "%s: %s: expected a value after the name (write \"\" for an empty one)", where, name);
    }
    return config__set(c, o, value, ORIGIN_FILE, where, e);
}

static int parse_file(struct config *c, const char *path, struct err *e) {
    FILE *f = fopen(path, "re");
    if (!f) return err_set(e, ST_IO, "config file %s: %s", path, strerror(errno));
    char line[CONFIG_LINE_BYTES], where[512];
    int st = 0;
    for (int n = 1; !st && fgets(line, sizeof line, f); n++) {
        snprintf(where, sizeof where, "%.400s:%d", path, n);
        if (n > CONFIG_MAX_LINES || (!strchr(line, '\n') && !feof(f))) {
            st = err_set(e, ST_LIMIT, "%s: expected at most %d lines of %d bytes: is this a config file?", where, CONFIG_MAX_LINES,
                         CONFIG_LINE_BYTES);
        } else {
            st = parse_line(c, line, where, e);
        }
    }
    if (!st && ferror(f)) st = err_set(e, ST_IO, "config file %s: %s", path, strerror(errno));
    fclose(f);
    return st;
}

/* Every MOED_* variable must be an option: a misspelt one would silently do nothing. */
static int parse_environment(struct config *c, char **environ_, struct err *e) {
    for (char **v = environ_; v && *v; v++) {
        if (strncmp(*v, "MOED_", 5) != 0) continue;
        const char *eq = strchr(*v, '=');
        if (!eq) continue;
        char where[128];
        snprintf(where, sizeof where, "environment %.*s", (int)(eq - *v < 100 ? eq - *v : 100), *v);
        const struct option *found = NULL;
        for (size_t i = 0; i < config__n_options && !found; i++) {
            char name[64];
            config__env_name(&config__options[i], name, sizeof name);
            if (strlen(name) == (size_t)(eq - *v) && strncmp(name, *v, (size_t)(eq - *v)) == 0) found = &config__options[i];
        }
        if (!found) return err_set(e, ST_INVALID, "%s: no such option; see moed.conf for the list", where);
        int st = config__set(c, found, eq + 1, ORIGIN_ENV, where, e);
        if (st) return st;
    }
    return 0;
}

struct flags { int argc; char **argv; int at; };

/* Value of the flag at f->at: "--name=value" or the next word. NULL when there is none. */
static const char *flag_value(struct flags *f, const char *eq) {
    if (eq) return eq + 1;
    return f->at + 1 < f->argc ? f->argv[++f->at] : NULL;
}

static bool flag_action(const char *arg, enum config_action *action) {
    static const struct { const char *name; enum config_action action; } table[] = {
        { "--check-config", CONFIG_CHECK }, { "--dump-config", CONFIG_DUMP }, { "--print-reference", CONFIG_REFERENCE },
        { "--help", CONFIG_HELP }, { "-h", CONFIG_HELP }, { "--version", CONFIG_VERSION }, { "-V", CONFIG_VERSION },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(arg, table[i].name) == 0) {
            *action = table[i].action;
            return true;
        }
    }
    return false;
}

static bool flag_is_config(const char *arg, size_t len) {
    return (len == 2 && !memcmp(arg, "-c", 2)) || (len == 8 && !memcmp(arg, "--config", 8));
}

static const struct option *flag_option(const char *arg, size_t len) {
    if (len > 2 && arg[1] == '-') return config__find(arg + 2, len - 2);
    for (size_t i = 0; len == 2 && i < config__n_options; i++) {
        if (config__options[i].letter == arg[1]) return &config__options[i];
    }
    return NULL;
}

/* pass 0 finds --config and the action, pass 1 sets options. */
static int parse_flags(struct config *c, struct flags *f, int pass, const char **file, enum config_action *action, struct err *e) {
    for (f->at = 0; f->at < f->argc; f->at++) {
        const char *arg = f->argv[f->at];
        if (flag_action(arg, action)) continue;
        if (arg[0] != '-' || !arg[1]) { /* the one positional argument is the model */
            int st = pass ? config__set(c, config__find("model", 5), arg, ORIGIN_FLAG, "command line", e) : 0;
            if (st) return st;
            continue;
        }
        const char *eq = strchr(arg, '=');
        size_t len = eq ? (size_t)(eq - arg) : strlen(arg);
        const struct option *o = flag_option(arg, len);
        bool is_config = flag_is_config(arg, len);
        if (!o && !is_config) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)(len < 60 ? len : 60), arg);
            return unknown_option("command line", name + (len > 2 && arg[1] == '-' ? 2 : 0), e);
        }
        const char *value = flag_value(f, eq);
        if (!value) return err_set(e, ST_INVALID, "command line: %s: expected a value", arg);
        if (is_config) *file = value;
        char where[80];
        snprintf(where, sizeof where, "%.*s", (int)(len < 70 ? len : 70), arg);
        int st = pass && !is_config ? config__set(c, o, value, ORIGIN_FLAG, where, e) : 0;
        if (st) return st;
    }
    return 0;
}

int config_load(struct config *c, int argc, char **argv, char **environ_, enum config_action *action, struct err *e) {
    memset(c, 0, sizeof *c);
    *action = CONFIG_RUN;
    struct flags flags = { argc, argv, 0 };
    const char *file = NULL;
    int st = 0;
    for (size_t i = 0; i < config__n_options && !st; i++) {
        st = config__set(c, &config__options[i], config__options[i].fallback, ORIGIN_DEFAULT, "built-in default", e);
    }
    if (!st) st = parse_flags(c, &flags, 0, &file, action, e);
    if (!st && file) st = parse_file(c, file, e);
    if (!st) st = parse_environment(c, environ_, e);
    if (!st) st = parse_flags(c, &flags, 1, &file, action, e);
    if (!st && *action == CONFIG_RUN && !*c->model) {
        st = err_set(e, ST_INVALID, "model: no file given; use --model FILE, MOED_MODEL, or `model` in the config file");
    }
    if (st) config_clear(c);
    return st;
}

void config_clear(struct config *c) {
    for (size_t i = 0; i < config__n_options; i++) {
        const struct option *o = &config__options[i];
        if (o->type != OPTION_STRING && o->type != OPTION_ENUM) continue;
        char **field = (char **)((char *)c + o->offset);
        mem_free(*field);
        *field = NULL;
    }
}
