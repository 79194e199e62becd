/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes options: --dump-config, --help and the commented reference file. */
#include "config/internal.h"

#include <string.h>

static void print_value(const struct config *c, const struct option *o, FILE *out) {
    const void *field = (const char *)c + o->offset;
    switch (o->type) {
    case OPTION_STRING:
    case OPTION_ENUM: {
        const char *s = *(char *const *)field;
        fprintf(out, *s ? "%s" : "\"\"%s", s);
        break;
    }
    case OPTION_BOOL: fputs(*(const bool *)field ? "on" : "off", out); break;
    case OPTION_BYTES: fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)field); break;
    case OPTION_MS: fprintf(out, "%ums", (unsigned)*(const uint32_t *)field); break;
    default: fprintf(out, "%u", (unsigned)*(const uint32_t *)field); break;
    }
}

void config_dump(const struct config *c, FILE *out) {
    static const char *const origins[] = { "default", "file", "environment", "flag" };
    for (size_t i = 0; i < config__n_options; i++) {
        fprintf(out, "# from: %s\n%s ", origins[c->origin[i]], config__options[i].name);
        print_value(c, &config__options[i], out);
        fputc('\n', out);
    }
}

void config_help(FILE *out) {
    fputs("Options (flag, then MOED_* environment, then config file, then default):\n"
          "  -c, --config FILE        read options from FILE first (moed.conf is the documented reference)\n"
          "      --check-config       read everything, report the first error, and stop\n"
          "      --dump-config        print every option, its value and where it came from, and stop\n"
          "      --print-reference    print moed.conf, and stop\n"
          "  -V, --version   -h, --help\n",
          out);
    for (size_t i = 0; i < config__n_options; i++) {
        const struct option *o = &config__options[i];
        if (o->section) fprintf(out, "\n%s\n", o->section);
        char flag[40];
        snprintf(flag, sizeof flag, "%c%c%c --%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ', o->letter ? ',' : ' ', o->name);
        fprintf(out, "  %-24s %s", flag, o->brief);
        if (*o->fallback) fprintf(out, " [%s]", o->fallback);
        if (o->choices) fprintf(out, " (%s)", o->choices);
        fputc('\n', out);
    }
}

static void print_comment(const char *text, FILE *out) {
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, "\n");
        fprintf(out, "# %.*s\n", (int)n, s);
        s += n + (s[n] == '\n');
    }
}

void config_reference(FILE *out) {
    fputs("# moed configuration: every option with its default. `moed --print-reference` prints this file.\n"
          "#\n"
          "# One option per line: name, space, value. '#' starts a comment line. \"\" is an empty value.\n"
          "# Sizes take k, m, g, t (powers of 1024); times take ms, s, m, h.\n"
          "# Each option is also a flag (--max-running 64) and an environment variable (MOED_MAX_RUNNING=64).\n"
          "# Flags win over the environment, the environment over this file. Unknown names are errors.\n"
          "# `moed --config moed.conf --check-config` checks a file, `--dump-config` shows what is in force.\n",
          out);
    for (size_t i = 0; i < config__n_options; i++) {
        const struct option *o = &config__options[i];
        if (o->section) fprintf(out, "\n\n################################ %s ################################\n", o->section);
        fputc('\n', out);
        print_comment(o->text, out);
        if (o->choices) fprintf(out, "# One of: %s\n", o->choices);
        fprintf(out, "# %s %s\n", o->name, *o->fallback ? o->fallback : "\"\"");
    }
}
