/* SPDX-License-Identifier: Apache-2.0
 *
 * The request parser without sockets: results, accounting of body bytes, and allocation failures at every place. The table
 * of framing cases is tests/e2e/http_cases.py, the independence of cuts is fuzz_http's. */
#include <string.h>

#include "base/alloc.h"
#include "server/http_parse.h"
#include "tests/unit/test.h"

static struct http_limits limits_of(uint64_t *total) {
    return (struct http_limits){.max_header_bytes = 1024, .max_body_bytes = 100, .body_total = total, .body_total_max = 150};
}

/* Feeds all of s; returns the last event, with *used the bytes taken in total. */
static enum parse_event feed(struct http_parse *p, const char *s, size_t *taken) {
    size_t n = strlen(s), used;
    enum parse_event ev;
    *taken = 0;
    do {
        ev = http_parse_feed(p, s + *taken, n - *taken, &used);
        *taken += used;
    } while (ev == PARSE_HEAD);
    return ev;
}

TEST(head_fields) {
    uint64_t total = 0;
    struct http_limits limits = limits_of(&total);
    struct http_parse p;
    size_t n, taken;
    http_parse_init(&p, &limits);
    CHECK(!http_parse_started(&p));
    CHECK(feed(&p, "\r\nHEAD http://h:1/a%20b?x=%41 HTTP/1.1\r\nhOST: h:1\r\nX-A: \t one two \t\r\nX-A: 2\r\n\r\nGET", &taken) == PARSE_COMPLETE);
    CHECK(http_parse_started(&p));
    CHECKF(taken == 79, "%zu", taken);
    CHECK(p.method == METHOD_HEAD && !p.http10 && p.keep_alive && !p.chunked && !p.has_length && !p.expect_continue);
    CHECKF(strcmp(p.path, "/a b") == 0, "%s", p.path);
    CHECK(strcmp(p.query, "x=%41") == 0);
    const char *v = http_parse_header(&p, "x-a", &n);
    CHECK(v != NULL && n == 7 && memcmp(v, "one two", 7) == 0);
    CHECK(http_parse_header(&p, "X", &n) == NULL && n == 0);
    http_parse_reset(&p);
    CHECK(!http_parse_started(&p) && p.head.data == NULL);
    http_parse_clear(&p);
}

TEST(trailers_are_not_headers) {
    uint64_t total = 0;
    struct http_limits limits = limits_of(&total);
    struct http_parse p;
    size_t n, taken;
    http_parse_init(&p, &limits);
    CHECK(feed(&p, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nAuthorization: x\r\n\r\n", &taken) == PARSE_COMPLETE);
    CHECK(p.body.len == 3 && memcmp(p.body.data, "abc", 3) == 0);
    CHECK(http_parse_header(&p, "Authorization", &n) == NULL);
    http_parse_clear(&p);
}

TEST(error_is_final) {
    uint64_t total = 0;
    struct http_limits limits = limits_of(&total);
    struct http_parse p;
    size_t taken;
    http_parse_init(&p, &limits);
    CHECK(feed(&p, "GET / HTTP/3.0\r\nHost: h\r\n\r\n", &taken) == PARSE_ERROR && p.error_status == 505);
    CHECK(feed(&p, "GET / HTTP/1.1\r\nHost: h\r\n\r\n", &taken) == PARSE_ERROR && taken == 0);
    CHECK(p.error_status == 505 && p.error_reason != NULL);
    http_parse_clear(&p);
}

TEST(body_bytes_are_counted) {
    uint64_t total = 0;
    struct http_limits limits = limits_of(&total);
    struct http_parse a, b;
    char text[256];
    size_t taken;
    http_parse_init(&a, &limits);
    http_parse_init(&b, &limits);
    snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n%080d", 0);
    CHECK(feed(&a, text, &taken) == PARSE_MORE && total == 80);
    CHECK(feed(&b, text, &taken) == PARSE_ERROR && b.error_status == 503); /* 160 of 150 */
    http_parse_clear(&b);
    CHECK(total == 80);
    http_parse_reset(&a);
    CHECK(total == 0);
    snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n");
    CHECK(feed(&a, text, &taken) == PARSE_ERROR && a.error_status == 413);
    http_parse_clear(&a);
}

TEST(allocation_failures) {
    static const char text[] = "POST /v1/x?y HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\nX: y\r\n\r\n";
    uint64_t total = 0, n_failed = 0;
    struct http_limits limits = limits_of(&total);
    enum parse_event ev = PARSE_ERROR;
    size_t taken;
    for (uint64_t n = 0; ev == PARSE_ERROR; n++) {
        struct http_parse p;
        http_parse_init(&p, &limits);
        mem_fail_after(n);
        ev = feed(&p, text, &taken);
        mem_fail_after(UINT64_MAX);
        int status = p.error_status;
        http_parse_clear(&p);
        CHECKF(ev == PARSE_COMPLETE || status == 503, "event %d, status %d after %llu allocations", ev, status, (unsigned long long)n);
        CHECK(total == 0);
        n_failed += ev == PARSE_ERROR;
    }
    CHECK(n_failed >= 3); /* head, path, body */
}

int main(void) {
    RUN(head_fields);
    RUN(trailers_are_not_headers);
    RUN(error_is_final);
    RUN(body_bytes_are_counted);
    RUN(allocation_failures);
    return test_failed_;
}
