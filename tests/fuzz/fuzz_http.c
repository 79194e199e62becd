/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of a connection through the request parser. The first byte chooses a cut; the rest is the stream. What must
 * hold besides "no crash": the sequence of requests and the verdict are the same whole, byte by byte and cut in
 * pieces; and an accepted head has the properties the connection code relies on. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "server/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                                                \
    do {                                                                                             \
        if (!(cond)) __builtin_trap();                                                               \
    } while (0)

enum { MAX_REQUESTS = 64 };

struct verdict {
    uint32_t n_requests, n_heads;
    int error_status;
    uint64_t hash; /* of methods, paths, queries and bodies */
    size_t taken;  /* bytes up to the end of the last complete request */
};

static void mix(struct verdict *v, const void *p, size_t n) {
    const unsigned char *s = p;
    for (size_t i = 0; i < n; i++) v->hash = (v->hash ^ s[i]) * 1099511628211u;
    v->hash = (v->hash ^ n) * 1099511628211u;
}

static void check_head(const struct http_parse *p) {
    size_t n;
    REQUIRE(p->method > METHOD_OTHER && p->method < N_METHODS && p->method != METHOD_CONNECT && p->method != METHOD_QUERY);
    REQUIRE(p->path[0] == '/' || strcmp(p->path, "*") == 0);
    REQUIRE(strlen(p->path) <= LIMIT_URI_BYTES + 1 && strlen(p->query) <= LIMIT_URI_BYTES);
    REQUIRE(p->content_length <= p->limits->max_body_bytes && !(p->chunked && p->http10));
    REQUIRE(p->http10 || http_parse_header(p, "Host", &n) != NULL);
    REQUIRE(p->n_headers <= LIMIT_HEADERS && p->head.len <= p->limits->max_header_bytes);
    for (uint32_t i = 0; i < p->n_headers; i++) {
        const struct http_header *h = &p->headers[i];
        REQUIRE(h->name.len > 0 && h->name.off + h->name.len < h->value.off + 1 && h->value.off + h->value.len < p->head.len);
        REQUIRE(memchr(p->head.data + h->value.off, '\r', h->value.len) == NULL);
        REQUIRE(memchr(p->head.data + h->value.off, '\n', h->value.len) == NULL);
    }
}

static void check_complete(const struct http_parse *p, struct verdict *v) {
    REQUIRE(p->body.len <= p->limits->max_body_bytes && (p->chunked || p->body.len == p->content_length));
    mix(v, &p->method, sizeof p->method);
    mix(v, p->path, strlen(p->path));
    mix(v, p->query, strlen(p->query));
    mix(v, p->body.data, p->body.len);
    v->n_requests++;
}

/* Feeds the stream in pieces of `step` bytes (0 = all at once), as a connection would. */
static struct verdict run(const struct http_limits *limits, const char *s, size_t n, size_t step) {
    struct verdict v = {.hash = 14695981039346656037u};
    struct http_parse p;
    size_t used;
    http_parse_init(&p, limits);
    for (size_t off = 0, end; v.error_status == 0 && v.n_requests < MAX_REQUESTS && off < n; off = end) {
        end = step == 0 || n - off < step ? n : off + step;
        for (size_t at = off;;) {
            enum parse_event ev = http_parse_feed(&p, s + at, end - at, &used);
            REQUIRE(used <= end - at);
            at += used;
            if (ev == PARSE_MORE) {
                REQUIRE(at == end);
                break;
            }
            if (ev == PARSE_ERROR) {
                v.error_status = p.error_status;
                REQUIRE(p.error_status >= 400 && p.error_status < 600 && p.error_reason != NULL);
                break;
            }
            if (ev == PARSE_HEAD) {
                check_head(&p);
                v.n_heads++;
                continue;
            }
            check_complete(&p, &v);
            v.taken = at;
            http_parse_reset(&p);
            if (v.n_requests == MAX_REQUESTS) break;
        }
    }
    http_parse_clear(&p);
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t total = 0;
    const struct http_limits limits = {.max_header_bytes = 2048, .max_body_bytes = 4096, .body_total = &total, .body_total_max = 6000};
    if (size < 1) return 0;
    const char *s = (const char *)data + 1;
    struct verdict whole = run(&limits, s, size - 1, 0);
    size_t steps[2] = {1, 2u + data[0]};
    REQUIRE(total == 0);
    for (int i = 0; i < 2; i++) {
        struct verdict v = run(&limits, s, size - 1, steps[i]);
        REQUIRE(v.n_requests == whole.n_requests && v.n_heads == whole.n_heads && v.error_status == whole.error_status);
        REQUIRE(v.hash == whole.hash && v.taken == whole.taken && total == 0);
    }
    return 0;
}
