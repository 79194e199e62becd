/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys, hosts and origins: who is let in, who is refused how, and what a bad file of keys says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/access.h"
#include "tests/unit/test.h"

#define ALICE "alice-0123456789abcdef"
#define BOB "bob-0123456789abcdef-0123456789"

static struct access_text text(const char *s) {
    return (struct access_text){ s, s != NULL ? strlen(s) : 0 };
}

/* Opens rules over a file of keys with this content; content NULL: no file. */
static int rules_open(struct access **a, struct config *cfg, const char *content, struct err *e) {
    static char path[32];
    cfg->api_key_file = (char *)"";
    if (content != NULL) {
        snprintf(path, sizeof path, "/tmp/moed-keys-XXXXXX");
        int fd = mkstemp(path);
        if (fd < 0 || write(fd, content, strlen(content)) != (ssize_t)strlen(content)) return ST_IO;
        close(fd);
        cfg->api_key_file = path;
    }
    int st = access_open(a, cfg, e);
    if (content != NULL) unlink(path);
    return st;
}

static struct config rules(const char *host, const char *hosts, const char *origins) {
    return (struct config){ .host = (char *)host, .allowed_hosts = (char *)hosts, .allowed_origins = (char *)origins };
}

static struct access_verdict ask(struct access *a, const char *authorization, const char *api_key, bool work, uint64_t now_ms) {
    struct access_verdict v;
    access_check(a, &(struct access_request){ .host = text("localhost"), .authorization = text(authorization), .api_key = text(api_key),
                                              .work = work, .now_ms = now_ms }, &v);
    return v;
}

TEST(keys) {
    struct config cfg = rules("127.0.0.1", "", "");
    struct access *a;
    struct err e = { 0 };
    CHECKF(rules_open(&a, &cfg, "# people\n" ALICE " name=alice\n\n  " BOB "\t# the other\n", &e) == 0, "%s", e.text);
    CHECK(access_n_keys(a) == 2);
    CHECK(ask(a, "Bearer " ALICE, NULL, false, 0).status == 0);
    CHECK(ask(a, "bearer   " BOB, NULL, false, 0).status == 0);
    CHECK(ask(a, NULL, BOB, false, 0).status == 0);
    CHECK(ask(a, "Bearer " ALICE, "x", false, 0).status == 401); /* x-api-key is the one that counts */
    static const char *const wrong[] = { NULL, "", "Bearer", "Bearer ", ALICE, "Basic " ALICE, "Bearer " ALICE "x", "Bearer alice-0123456789abcde",
                                         "Bearer " ALICE " " ALICE, "Bearer" ALICE };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct access_verdict v = ask(a, wrong[i], NULL, true, 0);
        CHECKF(v.status == 401 && v.key == -1, "%s", wrong[i] ? wrong[i] : "nothing");
    }
    char zeros[256];
    memset(zeros, 0, sizeof zeros);
    struct access_verdict v;
    access_check(a, &(struct access_request){ .host = text("localhost"), .api_key = { zeros, 0 } }, &v);
    CHECK(v.status == 401);
    access_check(a, &(struct access_request){ .host = text("localhost"), .api_key = { zeros, sizeof zeros } }, &v);
    CHECK(v.status == 401);
    access_check(a, &(struct access_request){ .host = text("localhost"), .open = true }, &v);
    CHECK(v.status == 0);
    access_close(a);
}

TEST(shares_of_keys) {
    struct config cfg = rules("127.0.0.1", "", "");
    struct access *a;
    struct err e = { 0 };
    CHECKF(rules_open(&a, &cfg, ALICE "\n" BOB " weight=7 concurrent=2 priority=-10\n", &e) == 0, "%s", e.text);
    struct access_verdict v = ask(a, NULL, ALICE, true, 1);
    CHECK(v.tenant == 0 && v.weight == 1 && v.best_priority == 0);
    v = ask(a, NULL, BOB, true, 1);
    CHECK(v.tenant == 1 && v.weight == 7 && v.best_priority == -10);
    /* the wait for a place of its own is told from how long its requests took */
    access_done(a, v.key, 9000);
    v = ask(a, NULL, BOB, true, 1);
    CHECK(ask(a, NULL, BOB, true, 1).status == 0);
    v = ask(a, NULL, BOB, true, 1);
    CHECKF(v.status == 429 && v.retry_after_s == 5, "%u s", v.retry_after_s);
    access_close(a);
}

TEST(limits_of_a_key) {
    struct config cfg = rules("127.0.0.1", "", "");
    struct access *a;
    struct err e = { 0 };
    CHECKF(rules_open(&a, &cfg, ALICE " concurrent=2\n" BOB " per-minute=3", &e) == 0, "%s", e.text);
    struct access_verdict one = ask(a, "Bearer " ALICE, NULL, true, 1), two = ask(a, "Bearer " ALICE, NULL, true, 1);
    CHECK(one.status == 0 && two.status == 0);
    struct access_verdict three = ask(a, "Bearer " ALICE, NULL, true, 1);
    CHECK(three.status == 429 && three.key == -1 && three.retry_after_s >= 1);
    CHECK(ask(a, "Bearer " ALICE, NULL, false, 1).status == 0); /* what starts nothing is not counted */
    access_done(a, one.key, 1);
    CHECK(ask(a, "Bearer " ALICE, NULL, true, 1).status == 0);
    for (int i = 0; i < 3; i++) CHECK(ask(a, NULL, BOB, true, 1000).status == 0);
    struct access_verdict v = ask(a, NULL, BOB, true, 1000);
    CHECKF(v.status == 429 && v.retry_after_s == 21, "%u", v.retry_after_s);
    CHECK(ask(a, NULL, BOB, true, 1000 + 19999).status == 429);
    CHECK(ask(a, NULL, BOB, true, 1000 + 20001).status == 0);
    CHECK(ask(a, NULL, BOB, true, 1000 + 20001).status == 429);
    for (int i = 0; i < 3; i++) CHECK(ask(a, NULL, BOB, true, 10000000).status == 0); /* never more than a minute's worth */
    CHECK(ask(a, NULL, BOB, true, 10000000).status == 429);
    access_close(a);
}

static int status_of(struct access *a, enum access_from from, const char *host, const char *origin, bool *cross) {
    struct access_verdict v;
    access_check(a, &(struct access_request){ .from = from, .host = text(host), .origin = text(origin) }, &v);
    *cross = v.cross_origin;
    return v.status;
}

TEST(hosts_and_origins) {
    static const struct { const char *bound, *hosts, *origins, *host, *origin; int status; bool cross; } cases[] = {
        { "127.0.0.1", "", "", "localhost:8080", NULL, 0, false },
        { "127.0.0.1", "", "", "LOCALHOST", NULL, 0, false },
        { "127.0.0.1", "", "", "127.0.0.1:8080", NULL, 0, false },
        { "::1", "", "", "[::1]:8080", NULL, 0, false },
        { "127.0.0.1", "", "", NULL, NULL, 0, false },
        { "127.0.0.1", "", "", "evil.example", NULL, 403, false },
        { "127.0.0.1", "", "", "localhost.evil.example:8080", NULL, 403, false },
        { "127.0.0.1", "", "", "", NULL, 403, false },
        { "127.0.0.1", "", "", ":8080", NULL, 403, false },
        { "0.0.0.0", "", "", "any.example:1", NULL, 0, false },
        { "0.0.0.0", "llm.example, other", "", "llm.example:443", NULL, 0, false },
        { "0.0.0.0", "llm.example, other", "", "other", NULL, 0, false },
        { "0.0.0.0", "llm.example, other", "", "localhost", NULL, 403, false },
        { "127.0.0.1", "*", "", "evil.example", NULL, 0, false },
        { "", "", "", "whatever", NULL, 0, false }, /* the Unix socket */
        { "", "llm.example", "", "whatever", NULL, 403, false },
        { "", "", "", "whatever", "http://evil.example", 403, false },
        { "127.0.0.1", "", "", "localhost:8080", "http://localhost:8080", 0, false },
        { "127.0.0.1", "", "", "localhost:8080", "https://localhost:8080", 0, false },
        { "127.0.0.1", "", "", "localhost:8080", "http://localhost:8081", 403, false },
        { "127.0.0.1", "", "", "localhost:8080", "null", 403, false },
        { "127.0.0.1", "", "", "localhost:8080", "", 403, false },
        { "127.0.0.1", "", "https://chat.example", "localhost", "https://chat.example", 0, true },
        { "127.0.0.1", "", "https://chat.example", "localhost", "http://chat.example", 403, false },
        { "127.0.0.1", "", "*", "localhost", "http://whoever.example", 0, true },
        { "127.0.0.1", "", "*", "evil.example", "http://evil.example", 403, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config cfg = rules(cases[i].bound, cases[i].hosts, cases[i].origins);
        struct access *a;
        struct err e = { 0 };
        bool cross;
        CHECKF(rules_open(&a, &cfg, NULL, &e) == 0, "%s", e.text);
        enum access_from from = *cases[i].bound == '\0' ? ACCESS_UNIX : access_is_loopback(cases[i].bound) ? ACCESS_LOOPBACK : ACCESS_NETWORK;
        int status = status_of(a, from, cases[i].host, cases[i].origin, &cross);
        CHECKF(status == cases[i].status && cross == cases[i].cross, "case %zu: %d", i, status);
        access_close(a);
    }
}

/* Puts content into the file that a was opened with, and reads it again. */
static int reload(struct access *a, struct config *cfg, const char *content, struct err *e) {
    FILE *f = fopen(cfg->api_key_file, "w");
    if (f == NULL || fputs(content, f) < 0 || fclose(f) != 0) return ST_IO;
    int st = access_reload(a, e);
    unlink(cfg->api_key_file);
    return st;
}

TEST(reading_the_file_again) {
    struct config cfg = rules("127.0.0.1", "", "");
    struct access *a;
    struct err e = { 0 };
    CHECKF(rules_open(&a, &cfg, ALICE " concurrent=2\n" BOB "\n", &e) == 0, "%s", e.text);
    struct access_verdict alice = ask(a, NULL, ALICE, true, 1), bob = ask(a, NULL, BOB, true, 1);
    CHECK(alice.status == 0 && bob.status == 0);
    for (int i = 0; i < 3; i++) { /* what is wrong changes nothing */
        static const char *const bad[] = { "", "short\n", "carol-0123456789abcdef\nshort\n" };
        CHECK(reload(a, &cfg, bad[i], &e) != 0);
        CHECK(access_n_keys(a) == 2 && ask(a, NULL, BOB, false, 1).status == 0 && ask(a, NULL, "carol-0123456789abcdef", false, 1).status == 401);
    }
    /* Bob is gone, others came, Alice may run one: which she does. */
    CHECKF(reload(a, &cfg, "carol-0123456789abcdef\ndave-00123456789abcdef concurrent=1\n" ALICE " concurrent=1\n", &e) == 0, "%s", e.text);
    CHECK(access_n_keys(a) == 3);
    CHECK(ask(a, NULL, BOB, false, 1).status == 401 && ask(a, NULL, "", false, 1).status == 401);
    CHECK(ask(a, NULL, ALICE, true, 1).status == 429);
    access_done(a, alice.key, 1);
    CHECK(ask(a, NULL, ALICE, true, 1).status == 0);
    struct access_verdict dave = ask(a, NULL, "dave-00123456789abcdef", true, 1);
    CHECK(dave.status == 0 && ask(a, NULL, "dave-00123456789abcdef", true, 1).status == 429);
    access_done(a, bob.key, 1); /* of a key that is not there any more: nobody else's place */
    CHECK(ask(a, NULL, "dave-00123456789abcdef", true, 1).status == 429);
    CHECKF(reload(a, &cfg, BOB " concurrent=1\n", &e) == 0, "%s", e.text);
    bob = ask(a, NULL, BOB, true, 1);
    CHECK(bob.status == 0 && ask(a, NULL, BOB, true, 1).status == 429 && access_n_keys(a) == 1);
    access_done(a, dave.key, 1);
    CHECK(ask(a, NULL, BOB, true, 1).status == 429);
    for (int i = 0; i < 100; i++) { /* places are used again */
        char text_[128];
        snprintf(text_, sizeof text_, "key-%03d-0123456789abcdef\nkey-%03d-0123456789abcdef\n", 2 * i, 2 * i + 1);
        CHECKF(reload(a, &cfg, text_, &e) == 0, "%s", e.text);
    }
    CHECK(access_n_keys(a) == 2);
    access_close(a);
}

TEST(bad_files) {
    static const struct { const char *content, *says; } cases[] = {
        { "", "holds no key" },
        { "# only a comment\n", "holds no key" },
        { "short\n", ":1: a key has 16 to 256 characters, this one 5" },
        { ALICE "\n" BOB " concurrent=0\n", ":2: expected name=TEXT" },
        { ALICE " per-minute=12x\n", ":1: expected name=TEXT" },
        { ALICE " per-minute=99999999999\n", ":1: expected name=TEXT" },
        { ALICE " admin\n", "found \"admin\"" },
        { ALICE " weight=0\n", "weight=N (1 to 1000)" },
        { ALICE " priority=11\n", "priority=N (-10 to 10)" },
        { ALICE " priority=-\n", "priority=N (-10 to 10)" },
        { ALICE " priority=--1\n", "priority=N (-10 to 10)" },
        { ALICE " priority=\n", "priority=N (-10 to 10)" },
        { ALICE " weight=1001\n", "weight=N (1 to 1000)" },
        { "0123456789abcdef\xc3\xa9\n", ":1: a key is printable ASCII" },
    };
    struct config cfg = rules("127.0.0.1", "", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct access *a = NULL;
        struct err e = { 0 };
        CHECKF(rules_open(&a, &cfg, cases[i].content, &e) != 0, "case %zu is taken", i);
        CHECKF(strstr(e.text, cases[i].says) != NULL, "case %zu: %s", i, e.text);
        CHECKF(strstr(e.text, "0123456789") == NULL, "case %zu shows a key: %s", i, e.text);
    }
    cfg.api_key_file = (char *)"/nonexistent/keys";
    struct access *a = NULL;
    struct err e = { 0 };
    CHECK(access_open(&a, &cfg, &e) == ST_IO && strstr(e.text, "/nonexistent/keys") != NULL);
}

int main(void) {
    RUN(keys);
    RUN(shares_of_keys);
    RUN(limits_of_a_key);
    RUN(hosts_and_origins);
    RUN(reading_the_file_again);
    RUN(bad_files);
    return test_failed_;
}
