/* SPDX-License-Identifier: Apache-2.0
 *
 * One HTTP/1.x request out of a byte stream. No sockets, no libuv: tests and the fuzzer feed it directly.
 *
 * Two parsers have to agree. Ours is strict about bytes: it consumes the head, chunk-size lines and trailers one
 * byte at a time, so its verdict cannot depend on how the stream was cut into reads. llhttp then parses the
 * same pieces and decides the framing; it never sees a byte beyond the current message. The doubled check exists
 * because every llhttp version in the distributions accepts something a proxy in front of us may read
 * differently (obs-fold, empty names, a second Host), and that difference is how requests are smuggled.
 *
 * The first error is final: no byte after it is ever looked at as a request. Thread: L (or a test). */
#ifndef MOED_SERVER_HTTP_PARSE_H
#define MOED_SERVER_HTTP_PARSE_H

#include <llhttp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "server/limits.h"

enum http_method {
    METHOD_OTHER, METHOD_GET, METHOD_HEAD, METHOD_POST, METHOD_PUT, METHOD_DELETE, METHOD_PATCH, METHOD_OPTIONS,
    METHOD_TRACE, METHOD_CONNECT, METHOD_QUERY, N_METHODS,
};

struct http_limits {
    uint32_t max_header_bytes;   /* request line, headers and trailers together: 431           */
    uint64_t max_body_bytes;     /* 413                                                        */
    uint64_t *body_total;        /* NULL, or bytes in all bodies of the process, kept by parsers */
    uint64_t body_total_max;     /* 503 above                                                  */
};

struct http_span { uint32_t off, len; };              /* into head */
struct http_header { struct http_span name, value; };

enum parse_event {
    PARSE_MORE,      /* every byte was taken and the message is not complete                              */
    PARSE_HEAD,      /* the head is complete and valid; reported once, before any body byte is taken       */
    PARSE_COMPLETE,  /* the message is complete; reported until http_parse_reset                           */
    PARSE_ERROR,     /* error_status and error_reason are set; reported until http_parse_clear             */
};

struct http_parse {
    const struct http_limits *limits;  /* borrowed */
    /* results, valid from PARSE_HEAD on */
    enum http_method method;
    bool http10, keep_alive, chunked, expect_continue;
    uint64_t content_length;           /* 0 when chunked or absent                                       */
    bool has_length;
    const char *path;                  /* decoded once but for "%2F"; NUL-terminated, no NUL inside      */
    const char *query;                 /* raw, "" when absent                                            */
    struct buf body;
    int error_status;                  /* HTTP status of the answer                                      */
    const char *error_reason;          /* one sentence, static                                           */
    /* private */
    enum { PHASE_HEAD, PHASE_BODY, PHASE_CHUNK_LINE, PHASE_CHUNK_DATA, PHASE_TRAILER, PHASE_COMPLETE, PHASE_ERROR } phase;
    enum { LINE_START, LINE_START_LF, LINE_METHOD, LINE_TARGET, LINE_VERSION, LINE_REQUEST_LF, LINE_NAME_START,
           LINE_NAME, LINE_VALUE, LINE_VALUE_LF, LINE_END_LF, LINE_DONE } line;
    struct buf head, text;             /* raw head; decoded path and query                               */
    struct http_header headers[LIMIT_HEADERS];
    uint32_t n_headers, n_lines;       /* header lines; with trailers, which nothing looks up              */
    uint32_t method_len, target_len, version_len, n_crlf;
    uint64_t remaining;                /* bytes of the body or chunk (with its CRLF) not yet taken       */
    uint32_t n_chunks, chunk_digits, ext_bytes;
    bool in_ext, llhttp_done, llhttp_last_chunk;
    llhttp_t llhttp;
};

void http_parse_init(struct http_parse *p, const struct http_limits *limits); /* allocates nothing */
void http_parse_reset(struct http_parse *p);   /* ready for the next request; frees */
void http_parse_clear(struct http_parse *p);   /* frees; the parser must be initialised again */

/* Takes bytes up to the next event; *used says how many. After PARSE_HEAD call again, with zero bytes if need be. */
enum parse_event http_parse_feed(struct http_parse *p, const char *data, size_t n, size_t *used);

bool http_parse_started(const struct http_parse *p); /* a byte of a request line was seen */

/* http_head.c: checks a complete head, fills the results above. 0, or the HTTP status of the error, which it records. */
int http__head_check(struct http_parse *p);
int http__fail(struct http_parse *p, int status, const char *reason); /* records the first error; returns status */

/* Value of header `name` (any case), trimmed; NULL when absent. The first one of several. View into head. */
const char *http_parse_header(const struct http_parse *p, const char *name, size_t *len);

#endif
