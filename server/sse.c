/* SPDX-License-Identifier: Apache-2.0
 *
 * Server-sent events. HTTP/1.1 gets chunks, HTTP/1.0 a body that ends with the connection. Every event is written at
 * once when the socket takes it; what it does not take is counted, and a client that lets more than
 * max_output_bytes pile up loses its connection and its generation: the engine never waits for a reader. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "server/transport.h"

void sse_begin(struct exchange *x) {
    struct exchange_box *b = (struct exchange_box *)x;
    struct buf head;
    assert(b->status == 0 && !x->streaming);
    x->streaming = true;
    b->chunked = !x->http10;
    if (x->http10)
        b->keep_alive = false;
    buf_init(&head, 4096);
    reply__head(b, 200, "text/event-stream; charset=utf-8", &head);
    buf_puts(&head, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    buf_puts(&head, b->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    if (x->conn != NULL && head.failed) {
        conn__drop(x->conn, true);
    } else if (x->conn != NULL) {
        uv_buf_t part = uv_buf_init(head.data, (unsigned)head.len);
        x->conn->write_ms = conn__now(x->conn);
        conn__write(x->conn, &part, 1);
    }
    buf_clear(&head);
}

void sse_event(struct exchange *x, const char *name, const char *json, size_t n_bytes) {
    struct exchange_box *b = (struct exchange_box *)x;
    struct conn *c = x->conn;
    char line[64] = "", prefix[96];
    assert(x->streaming && memchr(json, '\n', n_bytes) == NULL);
    if (c == NULL)
        return;
    if (name != NULL)
        snprintf(line, sizeof line, "event: %s\n", name);
    int n = b->chunked ? snprintf(prefix, sizeof prefix, "%zx\r\n%sdata: ", n_bytes + strlen(line) + 8, line)
                       : snprintf(prefix, sizeof prefix, "%sdata: ", line);
    uv_buf_t parts[3] = {
        uv_buf_init(prefix, (unsigned)n),
        uv_buf_init((char *)json, (unsigned)n_bytes),
        uv_buf_init((char *)"\n\n\r\n", b->chunked ? 4 : 2),
    };
    c->write_ms = conn__now(c);
    if (conn__write(c, parts, 3) != ST_OK)
        return;
    if (conn__unsent(c) > x->server->opts->config->max_output_bytes) {
        x->server->http_stats->n_overflow++;
        log_info("http", "%s: the client reads too slowly, %zu bytes unsent: cancelled", x->request_id, conn__unsent(c));
        conn__drop(c, true);
    }
}

void sse_data(struct exchange *x, const char *json, size_t n_bytes) {
    sse_event(x, NULL, json, n_bytes);
}

static void finish(struct exchange *x, const char *chunked, const char *plain) {
    struct exchange_box *b = (struct exchange_box *)x;
    const char *last = b->chunked ? chunked : plain;
    assert(x->streaming);
    x->streaming = false;
    if (x->conn != NULL && *last != '\0') {
        uv_buf_t part = uv_buf_init((char *)last, (unsigned)strlen(last));
        conn__write(x->conn, &part, 1);
    }
    exchange__finish(b);
}

void sse_end(struct exchange *x) {
    finish(x, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", "data: [DONE]\n\n");
}

void sse_close(struct exchange *x) {
    finish(x, "0\r\n\r\n", "");
}
