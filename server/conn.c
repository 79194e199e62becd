/* SPDX-License-Identifier: Apache-2.0
 *
 * One client connection: bytes in, requests one at a time, bytes out, and every way a connection ends.
 *
 * While an exchange is in flight the parser is not fed; pipelined bytes wait in `ahead`, and past 64 KiB reading
 * stops. Reading goes on otherwise, because that is how a vanished client is noticed in every phase.
 * A FIN while a response is pending counts as gone, although TCP would allow a half-close: the two look the same until
 * a write fails seconds later, no HTTP client library half-closes, and a retry storm of abandoned prompts is
 * what kills inference servers. A FIN after the last byte of a response is the normal end.
 *
 * TLS sits between the socket and all of this: what the socket gives goes through tls_input and tls_read before it is
 * looked at, what conn__write is given through tls_write before it is sent. Limits of output count what is sent.
 *
 * A connection that is refused keeps being read (and discarded) for a moment after its response: closing with
 * unread input makes the kernel send RST, which can destroy the answer before the client reads it. */
#include <poll.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/transport.h"

struct write_req {
    uv_write_t req; /* first; req.data = conn */
    char bytes[];
};

uint64_t conn__now(const struct conn *c) {
    return uv_now(&c->server->loop);
}

size_t conn__unsent(const struct conn *c) {
    return uv_stream_get_write_queue_size(&c->h.stream);
}

bool conn__is_idle(const struct conn *c) {
    return c->state == CONN_IDLE && c->ahead.len == 0 && conn__unsent(c) == 0;
}

static void set_state(struct conn *c, enum conn_state state) {
    c->state = state;
    c->since_ms = conn__now(c);
}

/* ---- end of life ---- */

static void on_closed(uv_handle_t *handle) {
    struct conn *c = handle->data;
    http_parse_clear(&c->parse);
    buf_clear(&c->ahead);
    tls_close(c->tls);
    listener__forget(c);
}

void conn__drop(struct conn *c, bool reset) {
    if (c->state == CONN_DEAD)
        return;
    set_state(c, CONN_DEAD);
    struct exchange_box *box = c->box;
    c->box = NULL;
    if (box != NULL)
        exchange__client_lost(box);
    if (c->tls != NULL && !reset)
        tls_shutdown(c->tls);
    if (!reset || c->h.stream.type != UV_TCP || uv_tcp_close_reset(&c->h.tcp, on_closed) != 0)
        uv_close((uv_handle_t *)&c->h, on_closed);
}

static void on_shutdown(uv_shutdown_t *req, int status) {
    struct conn *c = req->data;
    if (c->state == CONN_DEAD)
        return;
    c->shutdown_done = true;
    c->since_ms = conn__now(c);
    if (status != 0 || c->eof)
        conn__drop(c, false);
    listener__defer(c->server);
}

static void read_on(struct conn *c);

/* The last response is written or queued: flush, say FIN, discard what still comes. */
static void begin_close(struct conn *c) {
    set_state(c, CONN_CLOSING);
    buf_clear(&c->ahead);
    c->drained = 0;
    c->shutdown.data = c;
    if (c->tls != NULL)
        tls_shutdown(c->tls);
    if (uv_shutdown(&c->shutdown, &c->h.stream, on_shutdown) != 0)
        conn__drop(c, false);
    else
        read_on(c);
}

/* ---- writing ---- */

static void on_written(uv_write_t *req, int status) {
    struct conn *c = req->data;
    mem_free(req);
    if (c->state == CONN_DEAD)
        return;
    if (status != 0)
        conn__drop(c, false);
    else if (c->state == CONN_IDLE && c->ahead.len > 0 && conn__unsent(c) <= LIMIT_OUT_SYNC_BYTES)
        listener__defer_ready(c);
}

/* Queues what is left of bufs after the first `skip` bytes. */
static int queue_rest(struct conn *c, const uv_buf_t *bufs, unsigned n_bufs, size_t skip, size_t total) {
    struct write_req *w = mem_alloc(sizeof *w + total - skip);
    if (w == NULL)
        return ST_NOMEM;
    size_t n = 0;
    for (unsigned i = 0; i < n_bufs; i++) {
        size_t cut = skip < bufs[i].len ? skip : bufs[i].len;
        memcpy(w->bytes + n, bufs[i].base + cut, bufs[i].len - cut);
        n += bufs[i].len - cut;
        skip -= cut;
    }
    w->req.data = c;
    uv_buf_t rest = uv_buf_init(w->bytes, (unsigned)n);
    if (conn__unsent(c) == 0) { /* the stall clock starts with the first byte that has to wait */
        c->progress_ms = conn__now(c);
        c->sent_seen = c->queued_bytes;
    }
    c->queued_bytes += n;
    if (uv_write(&w->req, &c->h.stream, &rest, 1, on_written) != 0) {
        mem_free(w);
        return ST_IO;
    }
    return ST_OK;
}

/* Bytes as the socket gets them. */
static int send_bytes(struct conn *c, const uv_buf_t *bufs, unsigned n_bufs) {
    size_t total = 0;
    for (unsigned i = 0; i < n_bufs; i++)
        total += bufs[i].len;
    int sent = uv_try_write(&c->h.stream, bufs, n_bufs);
    if (sent == UV_EAGAIN)
        sent = 0;
    if (sent < 0)
        return ST_IO;
    return (size_t)sent < total ? queue_rest(c, bufs, n_bufs, (size_t)sent, total) : ST_OK;
}

static int send_record(void *conn, const char *bytes, size_t n) {
    uv_buf_t b = uv_buf_init((char *)bytes, (unsigned)n);
    return send_bytes(conn, &b, 1);
}

int conn__write(struct conn *c, const uv_buf_t *bufs, unsigned n_bufs) {
    if (c == NULL || c->state >= CONN_CLOSING)
        return ST_CANCELLED;
    c->sent_any = true;
    int rc = c->tls != NULL ? tls_write(c->tls, bufs, n_bufs) : send_bytes(c, bufs, n_bufs);
    if (rc != ST_OK)
        conn__drop(c, true);
    return rc;
}

/* ---- requests ---- */

static void on_head(struct conn *c) {
    set_state(c, CONN_BODY);
    c->body_start_ms = c->since_ms;
    c->body_bytes = 0;
    c->box = exchange__begin(c);
    if (c->box == NULL) {
        conn__drop(c, true);
        return;
    }
    if (!route__check(&c->box->x, &c->parse) || !c->parse.expect_continue)
        return;
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    uv_buf_t b = uv_buf_init((char *)text, sizeof text - 1);
    conn__write(c, &b, 1);
}

static void on_complete(struct conn *c) {
    struct exchange_box *b = c->box;
    set_state(c, CONN_BUSY);
    b->body = c->parse.body;
    buf_init(&c->parse.body, c->parse.body.max_bytes);
    b->x.body = b->body.len > 0 ? b->body.data : "";
    b->x.body_len = b->body.len;
    b->keep_alive = c->parse.keep_alive;
    b->dispatched = true;
    b->x.start_ns = clock_mono_ns(); /* the upload is the client's time */
    c->write_ms = c->since_ms;
    route_dispatch(&b->x);
}

static void on_parse_error(struct conn *c) {
    c->server->http_stats->parse_errors[http_stats__code_index(c->parse.error_status)]++;
    reply__refuse(c, c->parse.error_status, c->parse.error_reason);
}

static bool output_stuck(const struct conn *c) {
    return conn__unsent(c) > LIMIT_OUT_SYNC_BYTES;
}

/* Keeps bytes that cannot be parsed yet. */
static void keep_ahead(struct conn *c, const char *data, size_t n) {
    if (buf_append(&c->ahead, data, n) != 0) {
        conn__drop(c, true);
        return;
    }
    if (c->ahead.len >= LIMIT_AHEAD_BYTES && !c->paused) {
        uv_read_stop(&c->h.stream);
        c->paused = true;
    }
}

static void process(struct conn *c, const char *data, size_t n) {
    size_t off = 0, used;
    c->in_process = true;
    while (c->state <= CONN_BODY && !(c->state == CONN_IDLE && output_stuck(c))) {
        enum parse_event ev = http_parse_feed(&c->parse, data + off, n - off, &used);
        off += used;
        if (c->state == CONN_BODY)
            c->body_bytes += used;
        if (ev == PARSE_MORE) {
            if (c->state == CONN_IDLE && http_parse_started(&c->parse)) {
                c->state = CONN_HEAD;
                if (c->sent_any) /* the first head of a connection is timed from the accept */
                    c->since_ms = conn__now(c);
            }
            break;
        }
        if (ev == PARSE_HEAD)
            on_head(c);
        else if (ev == PARSE_COMPLETE)
            on_complete(c);
        else
            on_parse_error(c);
    }
    c->in_process = false;
    if (off < n && c->state <= CONN_BUSY)
        keep_ahead(c, data + off, n - off);
}

/* The client sent FIN. What it asked for completely and synchronously is answered; nothing else is. */
static void after_eof(struct conn *c) {
    if (c->state == CONN_BUSY)
        conn__drop(c, false);
    else if (c->state == CONN_HEAD || c->state == CONN_BODY)
        reply__refuse(c, 400, "The connection was closed before the request was complete.");
    else if (c->state == CONN_CLOSING ? c->shutdown_done : conn__unsent(c) == 0 && c->ahead.len == 0)
        conn__drop(c, false);
    else if (c->state == CONN_IDLE && c->ahead.len == 0)
        begin_close(c);
}

void conn__ready(struct conn *c) {
    if (c->state != CONN_IDLE)
        return;
    struct buf ahead = c->ahead;
    buf_init(&c->ahead, ahead.max_bytes);
    process(c, ahead.data, ahead.len);
    buf_clear(&ahead);
    if (c->state < CONN_CLOSING && c->eof)
        after_eof(c);
    else if (c->state < CONN_CLOSING)
        read_on(c);
}

void conn__exchange_done(struct conn *c, bool keep_alive) {
    c->box = NULL;
    http_parse_reset(&c->parse);
    if (!keep_alive || c->server->draining || c->server->listener->accept_paused) {
        begin_close(c);
        return;
    }
    set_state(c, CONN_IDLE);
    if (!c->in_process && c->ahead.len > 0)
        listener__defer_ready(c);
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    (void)suggested;
    struct conn *c = handle->data;
    *out = uv_buf_init(c->server->listener->read_buffer, LIMIT_READ_BYTES);
}

static void received(struct conn *c, const char *data, size_t n) {
    if (c->state == CONN_BUSY || c->ahead.len > 0)
        keep_ahead(c, data, n);
    else
        process(c, data, n);
}

static void end_of_input(struct conn *c) {
    c->eof = true;
    uv_read_stop(&c->h.stream);
    after_eof(c);
}

/* Plain HTTP where TLS is spoken: told so, in plain HTTP. */
static void refuse_plain(struct conn *c) {
    tls_close(c->tls);
    c->tls = NULL;
    c->server->http_stats->n_tls_failed++;
    reply__refuse(c, 400, "This port speaks TLS: the address begins with https://.");
}

static void tls_broken(struct conn *c) {
    if (!tls_established(c->tls))
        c->server->http_stats->n_tls_failed++;
    log_debug("tls", "a connection is given up: %s", tls_error(c->tls));
    if (c->box != NULL) /* nobody is there to be answered */
        conn__drop(c, false);
    else
        begin_close(c); /* the alert goes out first */
}

static void received_tls(struct conn *c, const char *data, size_t n) {
    bool letter = (data[0] >= 'A' && data[0] <= 'Z') || (data[0] >= 'a' && data[0] <= 'z'); /* records begin with 20 to 23 */
    if (!tls_started(c->tls) && letter) {
        refuse_plain(c);
        return;
    }
    enum tls_event ev = TLS_DATA;
    tls_input(c->tls, data, n);
    while (ev == TLS_DATA && c->state < CONN_CLOSING) { /* a connection that is closing ignores the rest */
        ev = tls_read(c->tls, &data, &n);
        if (ev == TLS_DATA)
            received(c, data, n);
    }
    tls_input(c->tls, NULL, 0);
    if (ev == TLS_CLOSED)
        end_of_input(c);
    else if (ev == TLS_FAILED)
        tls_broken(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
    struct conn *c = stream->data;
    if (n == 0 || c->state == CONN_DEAD)
        return;
    if (n == UV_EOF) {
        end_of_input(c);
        return;
    }
    if (n < 0) {
        conn__drop(c, false);
        return;
    }
    c->read_ms = conn__now(c);
    if (c->state == CONN_CLOSING) {
        c->drained += (size_t)n;
        if (c->drained > LIMIT_LINGER_BYTES)
            conn__drop(c, false);
    } else if (c->tls != NULL) {
        received_tls(c, b->base, (size_t)n);
    } else {
        received(c, b->base, (size_t)n);
    }
}

static void read_on(struct conn *c) {
    if (!c->paused || c->eof || c->ahead.len >= LIMIT_AHEAD_BYTES)
        return;
    c->paused = false;
    if (uv_read_start(&c->h.stream, on_alloc, on_read) != 0)
        conn__drop(c, true);
}

static int init_stream(struct conn *c, const struct listen_socket *k) {
    uv_loop_t *loop = &k->server->loop;
    return k->h.stream.type == UV_TCP ? uv_tcp_init(loop, &c->h.tcp) : uv_pipe_init(loop, &c->h.pipe, 0);
}

int conn__accept(struct listen_socket *k) {
    struct server *s = k->server;
    struct listener *l = s->listener;
    struct conn *c = mem_zalloc(1, sizeof *c);
    if (c == NULL || (k->tls && tls_open(&c->tls, l->tls, send_record, c) != ST_OK) || init_stream(c, k) != 0) {
        if (c != NULL)
            tls_close(c->tls);
        mem_free(c);
        return ST_NOMEM;
    }
    c->server = s;
    c->socket = k;
    c->h.stream.data = c;
    c->paused = true; /* until read_on */
    http_parse_init(&c->parse, &l->limits);
    buf_init(&c->ahead, LIMIT_AHEAD_BYTES + LIMIT_READ_BYTES + LIMIT_TLS_RECORD_BYTES); /* a record may have begun in the read before */
    c->next = l->conns;
    if (l->conns != NULL)
        l->conns->prev = c;
    l->conns = c;
    l->n_conns++;
    s->http_stats->n_accepted++;
    set_state(c, CONN_IDLE);
    if (uv_accept((uv_stream_t *)&k->h, &c->h.stream) != 0) {
        conn__drop(c, false);
        return ST_IO;
    }
    if (c->h.stream.type == UV_TCP) {
        uv_tcp_nodelay(&c->h.tcp, 1);       /* a token is a small packet that must not wait */
        uv_tcp_keepalive(&c->h.tcp, 1, 60); /* finds peers that vanished without a FIN      */
    }
    read_on(c);
    listener__tick_start(s);
    return ST_OK;
}

/* ---- time ---- */

static void timed_out(struct conn *c, enum http_timeout which) {
    c->server->http_stats->timeouts[which]++;
    if (which == TIMEOUT_HEAD)
        reply__refuse(c, 408, "The request head did not arrive in time.");
    else if (which == TIMEOUT_BODY)
        reply__refuse(c, 408, "The request body did not arrive in time.");
    else
        conn__drop(c, which == TIMEOUT_WRITE);
}

/* The handshake counts against the time of the first head, but has no more than its own. */
static bool handshake_too_slow(const struct conn *c, uint64_t age_ms) {
    uint32_t head_ms = c->server->opts->config->header_timeout_ms;
    return c->tls != NULL && !tls_established(c->tls) && age_ms > (head_ms < LIMIT_TLS_HANDSHAKE_MS ? head_ms : LIMIT_TLS_HANDSHAKE_MS);
}

/* True when bytes wait and none went out for write_timeout_ms. */
static bool write_stalled(struct conn *c, uint64_t now_ms) {
    size_t unsent = conn__unsent(c);
    if (unsent == 0)
        return false;
    uint64_t sent = c->queued_bytes - unsent;
    if (sent != c->sent_seen) {
        c->sent_seen = sent;
        c->progress_ms = now_ms;
    }
    return now_ms - c->progress_ms > c->server->opts->config->write_timeout_ms;
}

static bool body_too_slow(const struct conn *c, uint64_t now_ms) {
    uint64_t idle_ms = now_ms - c->read_ms, total_ms = now_ms - c->body_start_ms;
    uint64_t grace_ms = c->server->opts->config->body_timeout_ms;
    return idle_ms > grace_ms || total_ms > LIMIT_BODY_TOTAL_MS ||
           (total_ms > grace_ms && c->body_bytes * 1000 < total_ms * LIMIT_BODY_MIN_RATE);
}

static bool polls(const struct conn *c, short events) {
    uv_os_fd_t fd;
    if (uv_fileno((const uv_handle_t *)&c->h, &fd) != 0)
        return true;
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, 0) > 0;
}

bool conn__has_input(const struct conn *c) {
    return polls(c, POLLIN);
}

static void tick_busy(struct conn *c, uint64_t now_ms) {
    uint32_t ping_ms = c->server->opts->config->sse_ping_ms;
    uint64_t silent_since_ms = c->write_ms > c->since_ms ? c->write_ms : c->since_ms; /* write_ms may be of the request before */
    struct exchange *x = &c->box->x;
    if (c->paused && !c->eof && polls(c, POLLRDHUP)) { /* with reading stopped no read reports the FIN */
        conn__drop(c, false);
    } else if (ping_ms == 0 || now_ms - silent_since_ms < ping_ms) {
        return;
    } else if (!x->streaming && x->on_silent != NULL) {
        x->on_silent(x);
    } else if (x->streaming) {
        static const char chunk[] = "8\r\n: ping\n\n\r\n", plain[] = ": ping\n\n";
        bool chunked = c->box->chunked;
        uv_buf_t b = uv_buf_init((char *)(chunked ? chunk : plain), chunked ? sizeof chunk - 1 : sizeof plain - 1);
        c->write_ms = now_ms;
        conn__write(c, &b, 1);
    }
}

void conn__tick(struct conn *c, uint64_t now_ms) {
    const struct config *cfg = c->server->opts->config;
    uint64_t age_ms = now_ms - c->since_ms;
    if (c->state == CONN_DEAD)
        return;
    if (write_stalled(c, now_ms)) {
        timed_out(c, TIMEOUT_WRITE);
        return;
    }
    switch (c->state) {
    case CONN_IDLE:
        if (handshake_too_slow(c, age_ms))
            timed_out(c, TIMEOUT_TLS);
        else if (conn__unsent(c) == 0 && age_ms > (c->sent_any ? cfg->keepalive_timeout_ms : cfg->header_timeout_ms))
            timed_out(c, TIMEOUT_IDLE);
        break;
    case CONN_HEAD:
        if (age_ms > cfg->header_timeout_ms)
            timed_out(c, TIMEOUT_HEAD);
        break;
    case CONN_BODY:
        if (body_too_slow(c, now_ms))
            timed_out(c, TIMEOUT_BODY);
        break;
    case CONN_BUSY:
        tick_busy(c, now_ms);
        break;
    default:
        if (c->shutdown_done && age_ms > LIMIT_LINGER_MS)
            conn__drop(c, false);
        break;
    }
}
