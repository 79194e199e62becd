/* SPDX-License-Identifier: Apache-2.0
 *
 * Options: precedence, units, errors that name file:line, and the committed reference file. */
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "config/config.h"
#include "config/internal.h"
#include "tests/unit/test.h"

static int load(struct config *c, char **argv, char **env, enum config_action *action, struct err *e) {
    int argc = 0;
    while (argv[argc]) argc++;
    return config_load(c, argc, argv, env, action, e);
}

static void write_file(char *path, const char *text) {
    memcpy(path, "/tmp/moed-conf-XXXXXX", 22);
    int fd = mkstemp(path);
    if (write(fd, text, strlen(text)) < 0) perror("write");
    close(fd);
}

TEST(defaults_are_valid_and_dump_reads_back) {
    struct config a, b;
    struct err e;
    enum config_action action;
    char *argv[] = { "m.gguf", NULL };
    CHECKF(load(&a, argv, NULL, &action, &e) == 0, "%s", e.text);
    CHECK(action == CONFIG_RUN && a.port == 8080 && a.max_body_bytes == 16u << 20 && a.prefix_cache && strcmp(a.model, "m.gguf") == 0);
    char *text = NULL, path[32];
    size_t n;
    FILE *f = open_memstream(&text, &n);
    config_dump(&a, f);
    fclose(f);
    write_file(path, text);
    char *again[] = { "-c", path, NULL };
    CHECKF(load(&b, again, NULL, &action, &e) == 0, "%s", e.text);
    CHECK(b.sse_ping_ms == a.sse_ping_ms && strcmp(b.model, "m.gguf") == 0 && strcmp(b.cpus, "") == 0 && b.ram_bytes == a.ram_bytes);
    unlink(path);
    free(text);
    config_clear(&a);
    config_clear(&b);
}

TEST(flag_beats_environment_beats_file) {
    struct config c;
    struct err e;
    enum config_action action;
    char path[32];
    write_file(path, "# comment\n\nport 1\nmax-running 1\nmax-queued 1 \n  model  \"/a b.gguf\"\nram 2g\nwarmup off\n");
    char *argv[] = { "--port=3", "-c", path, "--kv-type", "f32", NULL };
    char *env[] = { "MOED_PORT=2", "MOED_MAX_RUNNING=2", "HOME=/", NULL };
    CHECKF(load(&c, argv, env, &action, &e) == 0, "%s", e.text);
    CHECK(c.port == 3 && c.max_running == 2 && c.max_queued == 1 && c.ram_bytes == 2ull << 30 && !c.warmup);
    CHECK(strcmp(c.model, "/a b.gguf") == 0 && strcmp(c.kv_type, "f32") == 0);
    unlink(path);
    config_clear(&c);
}

TEST(errors_name_place_value_and_remedy) {
    static const struct { const char *file, *flag, *env, *want[3]; } table[] = {
        { "model x\nmax-runing 3\n", NULL, NULL, { ":2:", "max-runing", "did you mean \"max-running\"" } },
        { "port 70000\n", NULL, NULL, { ":1:", "0 to 65535", "70000" } },
        { "port 80x\n", NULL, NULL, { ":1:", "port", "80x" } },
        { "port\n", NULL, NULL, { ":1:", "port", "expected a value" } },
        { "port -1\n", NULL, NULL, { ":1:", "port", "-1" } },
        { "max-body 99999999999999999999\n", NULL, NULL, { ":1:", "max-body", "units" } },
        { "max-body 18446744073709551615g\n", NULL, NULL, { ":1:", "max-body", "units" } },
        { "kv-type f8\n", NULL, NULL, { "kv-type", "f16|bf16|f32|q8", "f8" } },
        { "warmup maybe\n", NULL, NULL, { "warmup", "on or off", "maybe" } },
        { "", "--nonsense=1", NULL, { "command line", "nonsense", "" } },
        { "", "--port", NULL, { "command line", "--port", "expected a value" } },
        { "", "-Z", NULL, { "command line", "-Z", "" } },
        { "", NULL, "MOED_PROT=1", { "MOED_PROT", "no such option", "" } },
        { "", NULL, "MOED_PORT=x", { "MOED_PORT", "port", "x" } },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct config c;
        struct err e = { 0 };
        enum config_action action;
        char path[32];
        write_file(path, table[i].file);
        char *argv[] = { "-c", path, (char *)(uintptr_t)table[i].flag, NULL };
        char *env[] = { (char *)(uintptr_t)table[i].env, NULL };
        CHECKF(load(&c, argv, env, &action, &e) != 0, "row %zu", i);
        unlink(path);
        for (int w = 0; w < 3; w++) CHECKF(strstr(e.text, table[i].want[w]), "row %zu: \"%s\" lacks \"%s\"", i, e.text, table[i].want[w]);
        config_clear(&c);
    }
}

TEST(missing_file_and_missing_model) {
    struct config c;
    struct err e;
    enum config_action action;
    char *argv[] = { "-c", "/nonexistent/moed.conf", NULL };
    CHECK(load(&c, argv, NULL, &action, &e) == ST_IO && strstr(e.text, "/nonexistent/moed.conf"));
    char *none[] = { NULL };
    CHECK(load(&c, none, NULL, &action, &e) == ST_INVALID && strstr(e.text, "--model"));
    char *check[] = { "--check-config", NULL };
    CHECK(load(&c, check, NULL, &action, &e) == 0 && action == CONFIG_CHECK);
    config_clear(&c);
}

TEST(numbers_fit_their_fields) {
    for (size_t i = 0; i < config__n_options; i++) {
        const struct option *o = &config__options[i];
        if (o->type == OPTION_U32 || o->type == OPTION_MS) CHECKF(o->max <= UINT32_MAX && o->min <= o->max, "%s", o->name);
        CHECKF(o->brief && o->text && o->fallback, "%s", o->name);
    }
}

TEST(reference_file_is_the_table) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    config_reference(f);
    fclose(f);
    FILE *ref = fopen("moed.conf", "re");
    CHECKF(ref != NULL, "run from the project root");
    char *have = mem_zalloc(1, n + 2);
    size_t got = fread(have, 1, n + 1, ref);
    fclose(ref);
    bool same = got == n && memcmp(have, text, n) == 0;
    mem_free(have);
    free(text);
    CHECKF(same, "moed.conf is not what `moed --print-reference` prints");
}

TEST(allocation_failure_is_reported) {
    char *argv[] = { "m.gguf", NULL };
    for (uint64_t n = 0;; n++) {
        struct config c;
        struct err e;
        enum config_action action;
        mem_fail_after(n);
        int st = load(&c, argv, NULL, &action, &e);
        mem_fail_after(UINT64_MAX);
        config_clear(&c);
        if (st == 0) break;
        CHECK(st == ST_NOMEM && n < 100);
    }
    struct mem_stats s;
    mem_stats(&s);
    CHECK(s.n_live == 0);
}

int main(void) {
    RUN(defaults_are_valid_and_dump_reads_back);
    RUN(flag_beats_environment_beats_file);
    RUN(errors_name_place_value_and_remedy);
    RUN(missing_file_and_missing_model);
    RUN(numbers_fit_their_fields);
    RUN(reference_file_is_the_table);
    RUN(allocation_failure_is_reported);
    return test_failed_;
}
