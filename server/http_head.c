/* SPDX-License-Identifier: Apache-2.0
 *
 * What a complete request head means: version, method, framing headers, Host, Expect, target. Everything that two
 * HTTP implementations could read in two ways is an error here (RFC 9112 6.3, 3.2; RFC 9110 7.2). */
#include <string.h>
#include <strings.h>

#include "server/http_parse.h"

static const char *span_ptr(const struct http_parse *p, struct http_span s) {
    return p->head.data + s.off;
}

static bool name_is(const struct http_parse *p, const struct http_header *h, const char *name) {
    size_t n = strlen(name);
    return h->name.len == n && strncasecmp(span_ptr(p, h->name), name, n) == 0;
}

static uint32_t header_count(const struct http_parse *p, const char *name) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_headers; i++)
        n += name_is(p, &p->headers[i], name);
    return n;
}

const char *http_parse_header(const struct http_parse *p, const char *name, size_t *len) {
    for (uint32_t i = 0; i < p->n_headers; i++) {
        const struct http_header *h = &p->headers[i];
        if (name_is(p, h, name)) {
            *len = h->value.len;
            return span_ptr(p, h->value);
        }
    }
    *len = 0;
    return NULL;
}

static bool text_is(const char *s, size_t n, const char *word) {
    return s != NULL && n == strlen(word) && strncasecmp(s, word, n) == 0;
}

/* ---- request line ---- */

static int check_version(struct http_parse *p) {
    const char *v = p->head.data + p->method_len + 1 + p->target_len + 1; /* "HTTP/x.y" */
    if (v[5] != '1' || (v[7] != '0' && v[7] != '1'))
        return http__fail(p, 505, "Only HTTP/1.0 and HTTP/1.1 are served.");
    p->http10 = v[7] == '0';
    return 0;
}

static int check_method(struct http_parse *p) {
    static const char *const names[N_METHODS] = {
        [METHOD_GET] = "GET", [METHOD_HEAD] = "HEAD", [METHOD_POST] = "POST", [METHOD_PUT] = "PUT",
        [METHOD_DELETE] = "DELETE", [METHOD_PATCH] = "PATCH", [METHOD_OPTIONS] = "OPTIONS",
        [METHOD_TRACE] = "TRACE", [METHOD_CONNECT] = "CONNECT", [METHOD_QUERY] = "QUERY",
    };
    for (int i = METHOD_OTHER + 1; i < N_METHODS; i++)
        if (p->method_len == strlen(names[i]) && memcmp(p->head.data, names[i], p->method_len) == 0)
            p->method = (enum http_method)i;
    if (p->method == METHOD_OTHER)
        return http__fail(p, 501, "The method is not known.");
    if (p->method == METHOD_CONNECT || p->method == METHOD_QUERY) /* the target of one has a form of its own, the other is news to older llhttp */
        return http__fail(p, 405, "The method is not served.");
    return 0;
}

/* ---- Host ---- */

static bool host_chars(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  (c != 0 && strchr("-._~:[]%", c) != NULL);
        if (!ok)
            return false;
    }
    return true;
}

static int check_host(struct http_parse *p) {
    uint32_t n_hosts = header_count(p, "Host");
    if (n_hosts > 1)
        return http__fail(p, 400, "The request has more than one Host header.");
    if (header_count(p, "Authorization") > 1)
        return http__fail(p, 400, "The request has more than one Authorization header.");
    if (n_hosts == 0 && !p->http10)
        return http__fail(p, 400, "The request has no Host header.");
    size_t n;
    const char *host = http_parse_header(p, "Host", &n);
    if (host != NULL && !host_chars(host, n))
        return http__fail(p, 400, "The Host header is malformed.");
    return 0;
}

/* ---- target ---- */

static int hex_digit(char ch) {
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    ch = (char)(ch | 0x20);
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

/* Decodes exactly once. "%2F" stays as it is, so that it cannot match a route: to a proxy that filters by path it
 * is part of one segment. */
static int decode_path(struct http_parse *p, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '%') {
            int hi = i + 2 < n ? hex_digit(s[i + 1]) : -1, lo = i + 2 < n ? hex_digit(s[i + 2]) : -1;
            if (hi < 0 || lo < 0)
                return http__fail(p, 400, "The request target holds a malformed percent escape.");
            int byte = hi * 16 + lo;
            if (byte == 0)
                return http__fail(p, 400, "The request target holds an encoded NUL.");
            if (byte != '/') {
                c = (char)byte;
                i += 2;
            }
        }
        if (buf_putc(&p->text, c) != 0)
            return http__fail(p, 503, "The server is out of memory.");
    }
    return 0;
}

/* "http://authority/path": the authority must be the Host, else a proxy and we would serve different sites. */
static int strip_authority(struct http_parse *p, const char **s, size_t *n) {
    static const char scheme[] = "http://";
    size_t skip = sizeof scheme - 1, host_len;
    if (*n <= skip || strncasecmp(*s, scheme, skip) != 0)
        return http__fail(p, 400, "The request target is neither a path nor an http:// URI.");
    const char *authority = *s + skip;
    size_t len = 0;
    while (skip + len < *n && authority[len] != '/' && authority[len] != '?')
        len++;
    const char *host = http_parse_header(p, "Host", &host_len);
    if (len == 0 || !host_chars(authority, len))
        return http__fail(p, 400, "The authority of the request target is malformed.");
    if (host != NULL && (host_len != len || strncasecmp(host, authority, len) != 0))
        return http__fail(p, 400, "The authority of the request target is not the Host header.");
    *s = authority + len;
    *n -= skip + len;
    return 0;
}

static int check_target(struct http_parse *p) {
    const char *s = p->head.data + p->method_len + 1;
    size_t n = p->target_len;
    bool star = n == 1 && s[0] == '*' && p->method == METHOD_OPTIONS;
    if (!star && s[0] != '/' && strip_authority(p, &s, &n) != 0)
        return p->error_status;
    const char *mark = memchr(s, '?', n);
    size_t path_len = mark != NULL ? (size_t)(mark - s) : n;
    if (path_len == 0 && buf_putc(&p->text, '/') != 0) /* "http://host" means its root */
        return http__fail(p, 503, "The server is out of memory.");
    if (decode_path(p, s, path_len) != 0)
        return p->error_status;
    size_t query = p->text.len + 1;
    buf_putc(&p->text, '\0');
    if (mark != NULL)
        buf_append(&p->text, mark + 1, n - path_len - 1);
    if (buf_putc(&p->text, '\0') != 0)
        return http__fail(p, 503, "The server is out of memory.");
    p->path = p->text.data;
    p->query = p->text.data + query;
    return 0;
}

/* ---- framing ---- */

static int check_transfer_encoding(struct http_parse *p, bool has_length) {
    uint32_t n_te = header_count(p, "Transfer-Encoding");
    if (n_te == 0)
        return 0;
    if (has_length)
        return http__fail(p, 400, "The request has both Content-Length and Transfer-Encoding.");
    if (p->http10)
        return http__fail(p, 400, "Transfer-Encoding does not exist in HTTP/1.0.");
    if (n_te > 1)
        return http__fail(p, 400, "The request has more than one Transfer-Encoding header.");
    size_t n;
    const char *te = http_parse_header(p, "Transfer-Encoding", &n);
    if (!text_is(te, n, "chunked"))
        return http__fail(p, 501, "The only transfer coding served is chunked.");
    p->chunked = true;
    return 0;
}

static int check_length(struct http_parse *p) {
    uint32_t n_cl = header_count(p, "Content-Length");
    if (n_cl > 1)
        return http__fail(p, 400, "The request has more than one Content-Length header.");
    if (n_cl == 1) {
        size_t n;
        const char *s = http_parse_header(p, "Content-Length", &n);
        if (n == 0 || n > 18) /* 10^18 - 1 fits 64 bits and is above every body limit */
            return http__fail(p, 400, "Content-Length is not a number of at most 18 digits.");
        for (size_t i = 0; i < n; i++) {
            if (s[i] < '0' || s[i] > '9')
                return http__fail(p, 400, "Content-Length is not a number of at most 18 digits.");
            p->content_length = p->content_length * 10 + (uint64_t)(s[i] - '0');
        }
    }
    int rc = check_transfer_encoding(p, n_cl > 0);
    if (rc != 0)
        return rc;
    p->has_length = n_cl == 1 || p->chunked;
    if ((p->method == METHOD_GET || p->method == METHOD_HEAD) && (p->chunked || p->content_length > 0))
        return http__fail(p, 400, "A GET or HEAD request must not have a body.");
    if (p->content_length > p->limits->max_body_bytes)
        return http__fail(p, 413, "The request body is too large.");
    return 0;
}

static int check_expect(struct http_parse *p) {
    size_t n;
    const char *expect = http_parse_header(p, "Expect", &n);
    if (expect == NULL || p->http10) /* RFC 9110 10.1.1: ignored in HTTP/1.0 */
        return 0;
    if (header_count(p, "Expect") != 1 || !text_is(expect, n, "100-continue"))
        return http__fail(p, 417, "The only expectation served is 100-continue.");
    p->expect_continue = p->chunked || p->content_length > 0;
    return 0;
}

/* Is `token` in any Connection header's comma list? */
static bool connection_has(const struct http_parse *p, const char *token) {
    for (uint32_t i = 0; i < p->n_headers; i++) {
        const struct http_header *h = &p->headers[i];
        if (!name_is(p, h, "Connection"))
            continue;
        const char *s = span_ptr(p, h->value), *end = s + h->value.len;
        while (s < end) {
            const char *comma = memchr(s, ',', (size_t)(end - s));
            const char *stop = comma != NULL ? comma : end;
            const char *last = stop;
            while (s < last && (*s == ' ' || *s == '\t'))
                s++;
            while (last > s && (last[-1] == ' ' || last[-1] == '\t'))
                last--;
            if (text_is(s, (size_t)(last - s), token))
                return true;
            s = stop + 1;
        }
    }
    return false;
}

int http__head_check(struct http_parse *p) {
    static int (*const checks[])(struct http_parse *) = {check_version, check_method, check_host,
                                                         check_target,  check_length, check_expect};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (checks[i](p) != 0)
            return p->error_status;
    p->keep_alive = p->http10 ? connection_has(p, "keep-alive") && !connection_has(p, "close")
                              : !connection_has(p, "close");
    return 0;
}
