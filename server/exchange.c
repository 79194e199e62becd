/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of an exchange: born when a request head is valid (or to answer one that is not), handed to a handler when
 * the body is complete, freed when the response is. It outlives its connection when the client goes first. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/transport.h"

static bool id_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

/* The client's X-Request-Id when it cannot harm a log or a header, else one of ours. */
static void choose_id(struct exchange *x, const struct http_parse *p) {
    size_t n;
    const char *id = http_parse_header(p, "X-Request-Id", &n);
    bool ok = id != NULL && n >= 1 && n <= LIMIT_REQUEST_ID_BYTES;
    for (size_t i = 0; ok && i < n; i++)
        ok = id_char(id[i]);
    if (ok) {
        memcpy(x->request_id, id, n);
        x->request_id[n] = '\0';
        return;
    }
    struct listener *l = x->server->listener;
    snprintf(x->request_id, sizeof x->request_id, "req-%016llx-%llu", (unsigned long long)l->id_salt,
             (unsigned long long)++l->next_id);
}

static const char *header_copy(struct exchange *x, const struct http_parse *p, const char *name) {
    size_t n;
    const char *s = http_parse_header(p, name, &n);
    return s == NULL ? "" : arena_strndup(&x->arena, s, n);
}

/* How long a Stainless client (OpenAI's, Anthropic's) waits for a byte: "600", "0.5", or something that is no number. A day and
 * more is as good as no bound. */
static uint32_t read_timeout_ms(const struct http_parse *p) {
    enum { DAY_S = 86400 };
    size_t n;
    const char *s = http_parse_header(p, "X-Stainless-Read-Timeout", &n);
    uint32_t seconds = 0, i = 0;
    for (; s != NULL && i < n && s[i] >= '0' && s[i] <= '9' && seconds < DAY_S; i++) seconds = seconds * 10 + (uint32_t)(s[i] - '0');
    bool whole = i > 0 && (i == n || s[i] == '.') && seconds < DAY_S;
    return whole ? (seconds + (i < n)) * 1000 : 0; /* rounded up: a hint */
}

struct exchange_box *exchange__begin(struct conn *c) {
    struct exchange_box *b = mem_zalloc(1, sizeof *b);
    if (b == NULL)
        return NULL;
    const struct http_parse *p = &c->parse;
    const struct config *cfg = c->server->opts->config;
    struct exchange *x = &b->x;
    arena_init(&x->arena, LIMIT_ARENA_BASE_BYTES + (size_t)cfg->max_body_bytes * LIMIT_ARENA_PER_BODY);
    buf_init(&b->body, cfg->max_body_bytes);
    x->server = c->server;
    x->conn = c;
    x->from = c->socket->from;
    x->start_ns = clock_mono_ns();
    x->head = p->method == METHOD_HEAD;
    x->http10 = p->http10;
    x->method = p->method == METHOD_POST ? "POST" : p->method == METHOD_OPTIONS ? "OPTIONS" : "GET";
    x->path = arena_strndup(&x->arena, p->path, strlen(p->path));
    x->query = arena_strndup(&x->arena, p->query, strlen(p->query));
    x->content_type = header_copy(x, p, "Content-Type");
    x->read_timeout_ms = read_timeout_ms(p);
    x->body = "";
    /* Until the body is read the connection cannot be used again: the rest of it would be parsed as a request. */
    b->keep_alive = p->keep_alive && p->error_status == 0 && !p->chunked && p->content_length == 0;
    b->route = b->key = -1;
    c->server->listener->n_boxes++;
    choose_id(x, p);
    if (x->path == NULL || x->query == NULL || x->content_type == NULL) {
        x->conn = NULL;
        exchange__finish(b);
        return NULL;
    }
    return b;
}

void exchange__client_lost(struct exchange_box *b) {
    struct http_stats *st = b->x.server->http_stats;
    b->x.conn = NULL;
    if (!b->dispatched) { /* no handler knows it; when a reply is being written, that frees it */
        if (b->status == 0)
            exchange__finish(b);
        return;
    }
    st->n_gone++;
    log_debug("http", "%s: the client is gone", b->x.request_id);
    listener__defer_gone(b);
}

void exchange__finish(struct exchange_box *b) {
    struct server *s = b->x.server;
    struct conn *c = b->x.conn;
    bool keep_alive = b->keep_alive;
    uint64_t ns = clock_mono_ns() - b->x.start_ns;
    int status = b->status != 0 ? b->status : 499;
    http_stats__count(s->http_stats, b->route, status, ns);
    log_debug("http", "%s %s %s %d %.1f ms", b->x.request_id, b->x.method, route__name(b->route), status, (double)ns * 1e-6);
    access_done(s->access, b->key, ns / 1000000);
    listener__forget_box(b);
    s->listener->n_boxes--;
    s->listener->body_bytes -= b->body.len;
    arena_clear(&b->x.arena);
    buf_clear(&b->body);
    mem_free(b);
    if (c != NULL)
        conn__exchange_done(c, keep_alive);
    if (s->draining || s->failed)
        listener__defer(s);
}

void exchange_end(struct exchange *x) {
    struct exchange_box *b = (struct exchange_box *)x;
    if (x->conn != NULL) { /* nobody was told anything: the connection cannot go on */
        log_error("http", "%s: the handler ended without a response", x->request_id);
        b->dispatched = false;
        b->status = 500;
        conn__drop(x->conn, true);
    }
    exchange__finish(b);
}
