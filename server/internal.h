/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of server/ share. Everything here belongs to the loop thread L.
 *
 * The split: transport (listener.c sockets.c conn.c reply.c sse.c wake.c signals.c server.c) knows HTTP and sockets and
 * nothing of tokens; handlers (api_*.c with parse_req.c detok.c json.c) know the API and touch the
 * client only through the functions below.
 *
 * An exchange is one HTTP request and its response; a connection has at most one in flight, pipelined bytes wait.
 * A handler answers with exactly one reply_json / reply_text / reply_error, or sse_begin, sse_data..., sse_end. It may
 * do so later (from a scheduler event). When the client goes away first, on_gone is called once; the exchange
 * stays valid, writes are dropped, and the handler still ends it, with exchange_end or any reply (also inside on_gone).
 * on_gone is never called from inside a reply_ or sse_ function, always from the loop itself, so handlers may answer in
 * the middle of their own loops. After reply_*, sse_end and exchange_end the exchange is freed.
 * Already checked before a handler runs: route, method, draining (work is refused with 503), and for POST a length
 * (else 411) and a Content-Type that is absent or JSON (else 415). The body may still be empty. */
#ifndef MOED_SERVER_INTERNAL_H
#define MOED_SERVER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "config/config.h"
#include "scheduler/scheduler.h"
#include "server/access.h"
#include "server/server.h"

struct conn;
struct api;    /* api.c: live generations, by pointer */

struct exchange {
    struct server *server;
    struct conn *conn;              /* NULL once the client is gone                                       */
    const char *method;             /* "GET"; HEAD arrives as "GET" with `head` set                       */
    const char *path;               /* percent-decoded, without query; NUL-terminated, no NUL inside      */
    const char *query;              /* without '?'; "" when absent                                        */
    const char *content_type;       /* "" when absent                                                     */
    const char *cors_origin;        /* the other site that asks, when it may; else NULL                   */
    char request_id[129];           /* X-Request-Id when well-formed, else generated; sent back           */
    const char *body;               /* complete, view, valid until exchange_end                           */
    size_t body_len;
    enum access_from from;          /* network, loopback or Unix socket                                   */
    uint32_t tenant, weight;        /* on whose account work runs, and that one's share                   */
    int8_t best_priority;           /* the lowest that one may ask for                                    */
    uint32_t read_timeout_ms;       /* how long the client says it listens to silence; 0 = it does not say */
    bool head, http10;
    bool streaming;                 /* between sse_begin and sse_end                                      */
    struct arena arena;             /* everything the handler builds; freed by exchange_end               */
    uint64_t start_ns;              /* monotonic, when the request was complete                           */
    void *handler;                  /* handler's own                                                      */
    void (*on_gone)(struct exchange *x); /* NULL = nothing to cancel                                      */
    void (*on_silent)(struct exchange *x); /* NULL, or called when option sse-ping has passed without a byte: may sse_begin */
};

typedef void (*route_fn)(struct exchange *x);

struct server {
    const struct server_opts *opts;
    uv_loop_t loop;
    struct sched *sched;
    struct access *access;
    struct api *api;
    bool draining;                  /* SIGTERM seen: /health is 503, new work is refused                  */
    bool failed;                    /* the engine failed: /health is 503, the loop ends                   */
    int64_t start_unix_s;           /* of server_open                                                     */
    struct listener *listener;
    struct wake *wake;
    struct http_stats *http_stats;  /* counters for /metrics                                              */
};

/* route.c: the table of (method, path) -> handler; answers 404 and 405 itself. */
void route_dispatch(struct exchange *x);

/* reply.c: whole responses. Each ends the exchange. `extra` is NULL or complete header lines "Name: value\r\n". */
void reply_json(struct exchange *x, int status, const char *body, size_t n_bytes, const char *extra);
void reply_text(struct exchange *x, int status, const char *content_type, const char *body, size_t n_bytes);
struct api_error {
    int status;          /* HTTP */
    const char *type;    /* "invalid_request_error", ...; NULL = chosen from the status */
    const char *code;    /* "context_length_exceeded", ...; NULL = null in JSON         */
    const char *param;   /* field name; NULL = null in JSON                             */
    const char *message; /* one sentence                                                */
    uint32_t retry_after_s; /* 0 = no header                                            */
};
void reply_error(struct exchange *x, const struct api_error *e);
void reply_put_error(const struct exchange *x, struct buf *out, const struct api_error *e); /* its body: the envelope of the route's API */
void exchange_end(struct exchange *x); /* only when on_gone was called and nothing was replied */

/* sse.c: events. sse_data frames one JSON document as "data: ...\n\n"; sse_end sends "data: [DONE]\n\n" and the
 * last chunk in one write and ends the exchange. An error after sse_begin is an sse_data with an "error" object. */
void sse_begin(struct exchange *x);
void sse_data(struct exchange *x, const char *json, size_t n_bytes);
void sse_end(struct exchange *x);
void sse_event(struct exchange *x, const char *name, const char *json, size_t n_bytes); /* with an "event: name" line; NULL = sse_data */
void sse_close(struct exchange *x);                                                     /* sse_end without [DONE]                      */

/* wake.c: how any thread wakes the loop. wake_notify may be called on any thread (sched_opts.notify). */
int wake_open(struct wake **out, uv_loop_t *loop, void (*fn)(void *ctx), void *ctx);
void wake_notify(void *wake);
void wake_close(struct wake *w);

/* Handlers. */
void api_completions(struct exchange *x);
void api_chat(struct exchange *x);
void api_messages(struct exchange *x);
void api_count_tokens(struct exchange *x);
void api_responses(struct exchange *x);
void api_embeddings(struct exchange *x);
void api_openapi(struct exchange *x);
void api_tokenize(struct exchange *x);
void api_detokenize(struct exchange *x);
void api_apply_template(struct exchange *x);
void api_props(struct exchange *x);
void api_models(struct exchange *x);
void api_page(struct exchange *x);
void api_health(struct exchange *x);
void api_metrics(struct exchange *x);
void api_offload_show(struct exchange *x);
void api_offload_set(struct exchange *x);
int api_open(struct server *s, struct err *e);   /* fills s->api  */
void api_on_events(struct server *s);            /* drain sched_poll; called from the wake-up */
uint32_t api_n_live(const struct server *s);     /* generations not yet finished: drain waits for 0 */
void api_cancel_all(struct server *s);
void api_close(struct server *s);
void api_metrics_put(struct server *s, struct buf *out); /* generation histograms (ttft, itl, e2e) for /metrics */

#endif
