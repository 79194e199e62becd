/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer of server-sent events over a connection that keeps what is written: the first byte chooses HTTP/1.0 or 1.1, the rest are
 * texts, each one a document. What must hold: chunks are well framed, and a reader that knows nothing of us finds the same
 * documents under the same names, then the end. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"
#include "server/transport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                                                \
    do {                                                                                             \
        if (!(cond)) __builtin_trap();                                                               \
    } while (0)

enum { MAX_EVENTS = 32, MAX_BYTES = 1 << 20 };

/* ---- what sse.c writes to ---- */

static struct { struct buf bytes; bool finished; } wire;

uint64_t conn__now(const struct conn *c) {
    (void)c;
    return 1;
}

int conn__write(struct conn *c, const uv_buf_t *bufs, unsigned n) {
    (void)c;
    for (unsigned i = 0; i < n; i++) buf_append(&wire.bytes, bufs[i].base, bufs[i].len);
    return ST_OK;
}

size_t conn__unsent(const struct conn *c) {
    (void)c;
    return 0;
}

void conn__drop(struct conn *c, bool reset) {
    (void)c, (void)reset;
    __builtin_trap();
}

void exchange__finish(struct exchange_box *b) {
    (void)b;
    wire.finished = true;
}

void reply__head(struct exchange_box *b, int status, const char *content_type, struct buf *head) {
    b->status = status;
    buf_printf(head, "Content-Type: %s\r\n", content_type);
}

/* ---- what a client reads ---- */

/* The body of the response, out of its chunks. */
static void read_body(struct buf *out, bool chunked) {
    const char *p = wire.bytes.data, *end = p + wire.bytes.len, *head = memmem(p, wire.bytes.len, "\r\n\r\n", 4);

    REQUIRE(head);
    p = head + 4;
    if (!chunked) buf_append(out, p, (size_t)(end - p));
    while (chunked) {
        char *after;
        unsigned long n = strtoul(p, &after, 16);
        REQUIRE(after > p && after + 2 <= end && memcmp(after, "\r\n", 2) == 0 && n + 4 <= (size_t)(end - after));
        buf_append(out, after + 2, n);
        p = after + 2 + n;
        REQUIRE(memcmp(p, "\r\n", 2) == 0);
        p += 2;
        if (n == 0) break;
    }
    REQUIRE(!chunked || p == end);
}

/* The next event at *at: its name and data as the standard reads them. */
static bool read_event(const struct buf *body, size_t *at, struct buf *name, struct buf *text) {
    bool any = false;

    buf_reset(name);
    buf_reset(text);
    while (*at < body->len) {
        const char *line = body->data + *at, *lf = memchr(line, '\n', body->len - *at);
        REQUIRE(lf);
        size_t n = (size_t)(lf - line);
        *at += n + 1;
        if (n == 0) return any;
        REQUIRE(!memchr(line, '\r', n));
        if (n >= 6 && memcmp(line, "data: ", 6) == 0) buf_append(text, line + 6, n - 6);
        else if (n >= 7 && memcmp(line, "event: ", 7) == 0) buf_append(name, line + 7, n - 7);
        else __builtin_trap();
        any = true;
    }
    REQUIRE(!any);
    return false;
}

static bool same(const struct buf *a, const char *s, size_t n) {
    return a->len == n && (n == 0 || memcmp(a->data, s, n) == 0);
}

/* Writes each piece between zero bytes as a JSON string; returns how many. */
static uint32_t write_events(struct exchange *x, const uint8_t *data, size_t size, struct buf *docs, const char *const *names) {
    uint32_t n = 0;

    for (size_t i = 0; i < size && n < MAX_EVENTS; n++) {
        size_t len = 0;
        while (i + len < size && data[i + len]) len++;
        bool text = utf8_valid((const char *)data + i, len);
        buf_init(&docs[n], MAX_BYTES);
        json_put_string(&docs[n], text ? (const char *)data + i : "?", text ? len : 1);
        sse_event(x, names[n % 3], docs[n].data, docs[n].len);
        i += len + 1;
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[3] = {NULL, "content_block_delta", "response.output_text.delta"};
    static const char done[] = "[DONE]";
    struct config config = {.max_output_bytes = MAX_BYTES};
    const struct server_opts opts = {.config = &config};
    struct server server = {.opts = &opts};
    struct conn conn = {.server = &server};
    struct exchange_box box = {.x = {.server = &server, .conn = &conn, .http10 = size > 0 && (data[0] & 1)}};
    struct buf docs[MAX_EVENTS], body, name, text;
    size_t at = 0;

    if (size < 1 || size > MAX_BYTES / 16) return 0;
    buf_init(&wire.bytes, 2 * MAX_BYTES);
    buf_init(&body, 2 * MAX_BYTES);
    buf_init(&name, 256);
    buf_init(&text, MAX_BYTES);
    wire.finished = false;
    sse_begin(&box.x);
    uint32_t n = write_events(&box.x, data + 1, size - 1, docs, names);
    bool with_done = data[0] & 2;
    (with_done ? sse_end : sse_close)(&box.x);
    REQUIRE(wire.finished && !box.x.streaming);
    read_body(&body, box.chunked);
    for (uint32_t i = 0; i < n; i++) {
        const char *want = names[i % 3] ? names[i % 3] : "";
        REQUIRE(read_event(&body, &at, &name, &text) && same(&name, want, strlen(want)) && same(&text, docs[i].data, docs[i].len));
        buf_clear(&docs[i]);
    }
    if (with_done) REQUIRE(read_event(&body, &at, &name, &text) && same(&text, done, sizeof done - 1));
    REQUIRE(!read_event(&body, &at, &name, &text));
    buf_clear(&wire.bytes);
    buf_clear(&body);
    buf_clear(&name);
    buf_clear(&text);
    return 0;
}
