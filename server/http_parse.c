/* SPDX-License-Identifier: Apache-2.0
 *
 * The byte level of a request: head, chunk-size and trailer lines as state machines, bodies by count.
 * See http_parse.h for the idea; http_head.c judges a complete head. Every limit is checked at the byte that
 * passes it, so a request is refused as early as possible and identically for every cut of the stream. */
#include "server/http_parse.h"

#include <string.h>

int http__fail(struct http_parse *p, int status, const char *reason) {
    if (p->error_status == 0) {
        p->error_status = status;
        p->error_reason = reason;
    }
    p->phase = PHASE_ERROR;
    return p->error_status;
}

static bool is_tchar(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static int hex_value(unsigned char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* ---- the request line ---- */

static int start_byte(struct http_parse *p, unsigned char c) {
    if (c == '\r' && p->n_crlf < LIMIT_LEADING_CRLF) {
        p->line = LINE_START_LF;
        return 0;
    }
    if (!is_tchar(c))
        return http__fail(p, 400, "The request does not start with a method.");
    p->line = LINE_METHOD;
    p->method_len = 1;
    return 0;
}

static int method_byte(struct http_parse *p, unsigned char c) {
    if (c == ' ') {
        p->line = LINE_TARGET;
        return 0;
    }
    if (!is_tchar(c))
        return http__fail(p, 400, "The method holds an invalid character.");
    if (++p->method_len > LIMIT_METHOD_BYTES)
        return http__fail(p, 501, "The method is not known.");
    return 0;
}

static int target_byte(struct http_parse *p, unsigned char c) {
    if (c == ' ') {
        if (p->target_len == 0)
            return http__fail(p, 400, "The request line holds two spaces in a row.");
        p->line = LINE_VERSION;
        return 0;
    }
    if (c <= 0x20 || c >= 0x7f || c == '#')
        return http__fail(p, 400, "The request target holds an invalid character.");
    if (++p->target_len > LIMIT_URI_BYTES)
        return http__fail(p, 414, "The request target is too long.");
    return 0;
}

/* "HTTP/" DIGIT "." DIGIT, then CR. Which digits are served is decided with the whole head. */
static int version_byte(struct http_parse *p, unsigned char c) {
    static const char pattern[] = "HTTP/0.0";
    uint32_t i = p->version_len;
    if (i == sizeof pattern - 1) {
        if (c != '\r')
            return http__fail(p, 400, "The request line does not end after the HTTP version.");
        p->line = LINE_REQUEST_LF;
        return 0;
    }
    if (pattern[i] == '0' ? (c < '0' || c > '9') : c != (unsigned char)pattern[i])
        return http__fail(p, 400, "The HTTP version is malformed.");
    p->version_len++;
    return 0;
}

/* ---- header and trailer lines ---- */

static int name_start_byte(struct http_parse *p, unsigned char c) {
    if (c == '\r') {
        p->line = LINE_END_LF;
        return 0;
    }
    if (c == ' ' || c == '\t')
        return http__fail(p, 400, "A header line starts with white space (folded headers are not accepted).");
    if (!is_tchar(c))
        return http__fail(p, 400, "A header has an empty or invalid name.");
    if (p->n_lines == LIMIT_HEADERS)
        return http__fail(p, 431, "The request has too many headers.");
    p->headers[p->n_lines++].name = (struct http_span){.off = (uint32_t)p->head.len - 1, .len = 1};
    p->line = LINE_NAME;
    return 0;
}

static int name_byte(struct http_parse *p, unsigned char c) {
    struct http_header *h = &p->headers[p->n_lines - 1];
    if (c == ':') {
        h->value = (struct http_span){.off = (uint32_t)p->head.len, .len = 0};
        p->line = LINE_VALUE;
        return 0;
    }
    if (!is_tchar(c))
        return http__fail(p, 400, "A header name holds an invalid character.");
    h->name.len++;
    return 0;
}

static int value_byte(struct http_parse *p, unsigned char c) {
    struct http_header *h = &p->headers[p->n_lines - 1];
    if (c == '\r') {
        const char *s = p->head.data + h->value.off;
        while (h->value.len > 0 && (s[h->value.len - 1] == ' ' || s[h->value.len - 1] == '\t'))
            h->value.len--;
        p->line = LINE_VALUE_LF;
        return 0;
    }
    if (c == ' ' || c == '\t') {
        if (h->value.len == 0)
            h->value.off++;
        else
            h->value.len++;
        return 0;
    }
    if (c < 0x20 || c == 0x7f)
        return http__fail(p, 400, "A header value holds a control character.");
    h->value.len++;
    return 0;
}

static int line_feed(struct http_parse *p, unsigned char c, int next) {
    if (c != '\n')
        return http__fail(p, 400, "A carriage return is not followed by a line feed.");
    p->line = next;
    return 0;
}

/* One byte of the head or of the trailer section; 0 or an HTTP status. */
static int head_byte(struct http_parse *p, char ch) {
    unsigned char c = (unsigned char)ch;
    switch (p->line) {
    case LINE_START_LF:
        p->n_crlf++;
        return line_feed(p, c, LINE_START);
    case LINE_START: {
        int rc = start_byte(p, c);
        if (rc != 0 || p->line == LINE_START_LF)
            return rc;
        break;
    }
    default:
        break;
    }
    if (p->head.len >= p->limits->max_header_bytes)
        return http__fail(p, 431, "The request head is too large.");
    if (buf_putc(&p->head, ch) != 0)
        return http__fail(p, 503, "The server is out of memory.");
    switch (p->line) {
    case LINE_METHOD: return p->head.len == 1 ? 0 : method_byte(p, c);
    case LINE_TARGET: return target_byte(p, c);
    case LINE_VERSION: return version_byte(p, c);
    case LINE_REQUEST_LF: return line_feed(p, c, LINE_NAME_START);
    case LINE_NAME_START: return name_start_byte(p, c);
    case LINE_NAME: return name_byte(p, c);
    case LINE_VALUE: return value_byte(p, c);
    case LINE_VALUE_LF: return line_feed(p, c, LINE_NAME_START);
    case LINE_END_LF: return line_feed(p, c, LINE_DONE);
    default: return http__fail(p, 500, "The request parser is in an unknown state.");
    }
}

/* ---- llhttp, the second opinion ---- */

static int on_headers_complete(llhttp_t *ll) {
    ll->upgrade = 0; /* Upgrade is ignored, as RFC 9110 7.8 allows; Java and curl offer h2c with ordinary requests */
    return 0;
}

static int on_body(llhttp_t *ll, const char *at, size_t n) {
    struct http_parse *p = ll->data;
    uint64_t *total = p->limits->body_total;
    if (p->body.len + n > p->limits->max_body_bytes)
        return http__fail(p, 413, "The request body is too large."), -1;
    if (total != NULL && *total + n > p->limits->body_total_max)
        return http__fail(p, 503, "Too many request bodies are being received at once; try again later."), -1;
    if (buf_append(&p->body, at, n) != 0)
        return http__fail(p, 503, "The server is out of memory."), -1;
    if (total != NULL)
        *total += n;
    return 0;
}

static int on_chunk_header(llhttp_t *ll) {
    struct http_parse *p = ll->data;
    p->remaining = ll->content_length;
    p->llhttp_last_chunk = ll->content_length == 0;
    return 0;
}

static int on_message_complete(llhttp_t *ll) {
    struct http_parse *p = ll->data;
    p->llhttp_done = true;
    return 0;
}

static const llhttp_settings_t llhttp_callbacks = {
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_chunk_header = on_chunk_header,
    .on_message_complete = on_message_complete,
};

static int llhttp_take(struct http_parse *p, const char *data, size_t n) {
    if (n == 0)
        return 0;
    if (llhttp_execute(&p->llhttp, data, n) == HPE_OK)
        return 0;
    return http__fail(p, 400, "The request is not valid HTTP/1.1.");
}

/* ---- bodies ---- */

static int head_done(struct http_parse *p) {
    p->n_headers = p->n_lines;
    int rc = http__head_check(p);
    if (rc == 0)
        rc = llhttp_take(p, p->head.data, p->head.len);
    if (rc != 0)
        return rc;
    bool has_body = p->chunked || p->content_length > 0;
    bool agreed = p->llhttp_done == !has_body && !(p->llhttp.flags & F_CHUNKED) == !p->chunked;
    if (!p->llhttp_done && !p->chunked)
        agreed = agreed && p->llhttp.content_length == p->content_length;
    if (!agreed)
        return http__fail(p, 400, "The length of the request body is ambiguous.");
    p->remaining = p->content_length;
    p->phase = p->chunked ? PHASE_CHUNK_LINE : has_body ? PHASE_BODY : PHASE_COMPLETE;
    return 0;
}

/* A byte of "SIZE[;extension]CRLF". llhttp checks the grammar of the whole line afterwards; here only what must
 * be known at once: lengths and bytes that could end the line for somebody else. */
static int chunk_line_byte(struct http_parse *p, char ch) {
    unsigned char c = (unsigned char)ch;
    if (p->line == LINE_VALUE_LF)
        return line_feed(p, c, LINE_DONE);
    if (c == '\r') {
        if (p->chunk_digits == 0)
            return http__fail(p, 400, "A chunk has no size.");
        p->line = LINE_VALUE_LF;
        return 0;
    }
    if (!p->in_ext && hex_value(c) >= 0) {
        if (++p->chunk_digits > LIMIT_CHUNK_DIGITS)
            return http__fail(p, 400, "A chunk size has too many digits.");
        return 0;
    }
    if (!p->in_ext && (c != ';' || p->chunk_digits == 0))
        return http__fail(p, 400, "A chunk size holds an invalid character.");
    p->in_ext = true;
    if ((c < 0x20 && c != '\t') || c == 0x7f)
        return http__fail(p, 400, "A chunk extension holds a control character.");
    if (++p->ext_bytes > LIMIT_CHUNK_EXT_BYTES)
        return http__fail(p, 400, "The chunk extensions are too long.");
    return 0;
}

/* After a whole chunk-size line: data with its CRLF follows, or the trailers. */
static int chunk_line_done(struct http_parse *p) {
    p->line = LINE_VALUE;
    p->chunk_digits = 0;
    p->in_ext = false;
    if (p->llhttp_last_chunk) {
        p->phase = PHASE_TRAILER;
        p->line = LINE_NAME_START;
        return 0;
    }
    if (p->remaining > p->limits->max_body_bytes - p->body.len)
        return http__fail(p, 413, "The request body is too large.");
    if (++p->n_chunks > LIMIT_CHUNK_SLACK + p->body.len / 16)
        return http__fail(p, 400, "The request body is cut into too many small chunks.");
    p->remaining += 2;
    p->phase = PHASE_CHUNK_DATA;
    return 0;
}

static void feed_chunk_line(struct http_parse *p, const char *data, size_t n, size_t *used) {
    size_t from = *used;
    int rc = 0;
    while (*used < n && p->line != LINE_DONE && rc == 0)
        rc = chunk_line_byte(p, data[(*used)++]);
    if (rc == 0 && llhttp_take(p, data + from, *used - from) == 0 && p->line == LINE_DONE)
        chunk_line_done(p);
}

static void feed_counted(struct http_parse *p, const char *data, size_t n, size_t *used) {
    size_t take = n - *used < p->remaining ? n - *used : (size_t)p->remaining;
    if (llhttp_take(p, data + *used, take) != 0)
        return;
    *used += take;
    p->remaining -= take;
    if (p->remaining > 0)
        return;
    if (p->phase == PHASE_CHUNK_DATA)
        p->phase = PHASE_CHUNK_LINE;
    else if (p->llhttp_done)
        p->phase = PHASE_COMPLETE;
    else
        http__fail(p, 400, "The length of the request body is ambiguous.");
}

/* Trailers are checked like headers and then ignored: llhttp is told of an empty trailer section. */
static void feed_trailer(struct http_parse *p, const char *data, size_t n, size_t *used) {
    while (*used < n && p->line != LINE_DONE)
        if (head_byte(p, data[(*used)++]) != 0)
            return;
    if (p->line != LINE_DONE || llhttp_take(p, "\r\n", 2) != 0)
        return;
    if (p->llhttp_done)
        p->phase = PHASE_COMPLETE;
    else
        http__fail(p, 400, "The end of the request body is ambiguous.");
}

enum parse_event http_parse_feed(struct http_parse *p, const char *data, size_t n, size_t *used) {
    *used = 0;
    if (p->phase == PHASE_HEAD) {
        while (*used < n && p->line != LINE_DONE)
            if (head_byte(p, data[(*used)++]) != 0)
                return PARSE_ERROR;
        if (p->line != LINE_DONE)
            return PARSE_MORE;
        p->line = LINE_VALUE;
        return head_done(p) == 0 ? PARSE_HEAD : PARSE_ERROR;
    }
    while (*used < n && p->phase != PHASE_COMPLETE && p->phase != PHASE_ERROR) {
        if (p->phase == PHASE_CHUNK_LINE)
            feed_chunk_line(p, data, n, used);
        else if (p->phase == PHASE_TRAILER)
            feed_trailer(p, data, n, used);
        else
            feed_counted(p, data, n, used);
    }
    return p->phase == PHASE_COMPLETE ? PARSE_COMPLETE : p->phase == PHASE_ERROR ? PARSE_ERROR : PARSE_MORE;
}

/* ---- life ---- */

static void start(struct http_parse *p) {
    struct buf head = p->head, text = p->text, body = p->body;
    const struct http_limits *limits = p->limits;
    memset(p, 0, sizeof *p);
    p->limits = limits;
    p->head = head;
    p->text = text;
    p->body = body;
    p->path = p->query = "";
    llhttp_init(&p->llhttp, HTTP_REQUEST, &llhttp_callbacks);
    p->llhttp.data = p;
}

void http_parse_init(struct http_parse *p, const struct http_limits *limits) {
    buf_init(&p->head, limits->max_header_bytes);
    buf_init(&p->text, LIMIT_URI_BYTES + 2);
    buf_init(&p->body, limits->max_body_bytes);
    p->limits = limits;
    start(p);
}

void http_parse_clear(struct http_parse *p) {
    if (p->limits->body_total != NULL)
        *p->limits->body_total -= p->body.len;
    buf_clear(&p->head);
    buf_clear(&p->text);
    buf_clear(&p->body);
}

void http_parse_reset(struct http_parse *p) {
    http_parse_clear(p);
    start(p);
}

bool http_parse_started(const struct http_parse *p) {
    return p->phase != PHASE_HEAD || p->line != LINE_START || p->n_crlf > 0;
}
