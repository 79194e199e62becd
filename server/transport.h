/* SPDX-License-Identifier: Apache-2.0
 *
 * What the transport files (server.c listener.c sockets.c conn.c exchange.c reply.c sse.c route.c) share and the handlers never
 * see. All of it belongs to the loop thread L.
 *
 * Re-entrancy rule: a handler calls reply and sse functions from the middle of its own loops. So those functions never
 * call back into a handler. Whatever follows from them (the client turned out to be gone, the next pipelined request
 * can be read) is put on a list and done by listener__run_deferred in the next loop iteration. */
#ifndef MOED_SERVER_TRANSPORT_H
#define MOED_SERVER_TRANSPORT_H

#include "server/access.h"
#include "server/http_parse.h"
#include "server/internal.h"
#include "server/limits.h"
#include "server/metrics_hist.h"
#include "server/tls.h"

enum conn_state {
    CONN_IDLE,    /* between requests: not a byte of the next one                        */
    CONN_HEAD,    /* part of a head                                                      */
    CONN_BODY,    /* head done, part of a body                                           */
    CONN_BUSY,    /* an exchange is in flight                                            */
    CONN_CLOSING, /* the last response is written or queued; input is read and discarded */
    CONN_DEAD,    /* uv_close was called                                                 */
};

/* Where connections come from. */
struct listen_socket {
    union { uv_stream_t stream; uv_tcp_t tcp; uv_pipe_t pipe; } h; /* data = this               */
    struct server *server;
    enum access_from from;
    bool open;                 /* h is initialised                                              */
    bool waiting;              /* libuv holds a connection that has not been taken              */
    bool tls;                  /* its connections speak TLS                                     */
    bool made;                 /* the file of a Unix socket is ours: this one                   */
    dev_t dev;
    ino_t ino;
    char url[256];             /* for people                                                    */
};

struct conn {
    union { uv_stream_t stream; uv_tcp_t tcp; uv_pipe_t pipe; } h; /* first; data = conn        */
    uv_shutdown_t shutdown;
    const struct listen_socket *socket;
    struct tls *tls;           /* NULL = plain                                                  */
    struct server *server;
    struct conn *prev, *next;  /* list of all connections                                       */
    struct conn *ready_next;   /* list of connections whose next request can be read            */
    bool ready;                /* on that list                                                  */
    enum conn_state state;
    struct http_parse parse;
    struct buf ahead;          /* bytes read past the current request                           */
    struct exchange_box *box;  /* in flight (CONN_BUSY)                                         */
    bool in_process, paused;   /* inside conn__process; reading stopped                         */
    bool eof, shutdown_done, sent_any;
    uint64_t since_ms;         /* when `state` was entered                                      */
    uint64_t read_ms;          /* last byte from the client                                     */
    uint64_t body_start_ms, body_bytes;
    uint64_t queued_bytes;     /* ever handed to uv_write ...                                   */
    uint64_t sent_seen;        /* ... and of those, gone out when the tick last looked ...      */
    uint64_t progress_ms;      /* ... and when that number last moved                           */
    uint64_t write_ms;         /* last event or ping of a stream                                */
    size_t drained;            /* bytes discarded while CONN_CLOSING                            */
};

/* One request and its response. Outlives its connection when the client goes away first. */
struct exchange_box {
    struct exchange x;         /* first: handlers hold &x                                       */
    struct buf body;
    struct exchange_box *gone_next; /* list of boxes whose on_gone is due                       */
    bool gone_due;
    bool keep_alive, chunked;
    bool dispatched;           /* a handler has it: on_gone matters                            */
    int status;                /* of the response; 0 = none yet                                 */
    int route;                 /* index for metrics                                             */
    int key;                   /* API key to give back when it ends, or -1                      */
};

enum { MAX_SOCKETS = 8 };

struct listener {
    struct listen_socket sockets[MAX_SOCKETS];
    uint32_t n_sockets, next_socket;
    uv_timer_t tick;
    uv_idle_t deferred;
    uv_signal_t sigterm, sigint, sighup;
    struct conn *conns;        /* newest first                                                  */
    struct conn *ready;
    struct conn *tick_next;    /* where the round that looks at the time goes on; NULL = it is over */
    struct exchange_box *gone;
    uint32_t n_conns, max_conns;
    uint32_t n_boxes;          /* exchanges not ended, with or without a client                 */
    bool accept_paused;        /* a connection waits in libuv until one closes                  */
    bool handles;              /* initialised                                                  */
    bool closing;              /* accepts nothing any more                                      */
    struct tls_context *tls;   /* NULL = no TLS                                                 */
    struct http_limits limits;
    uint64_t body_bytes;       /* in all bodies of the process                                  */
    uint64_t next_id, id_salt; /* generated request ids                                         */
    uint64_t drain_deadline_ms, cut_deadline_ms; /* 0 = not draining, not cut                   */
    bool cut;                  /* the drain was cut short                                       */
    char date[40];             /* "Date: ...\r\n" of date_s                                     */
    int64_t date_s;
    char *read_buffer;         /* [LIMIT_READ_BYTES], shared: libuv hands it back before the next read */
};

/* ---- metrics ---- */

enum { HTTP_N_ROUTES = 24, HTTP_N_CODES = 20 }; /* the last of each means "other" */
enum http_timeout { TIMEOUT_TLS, TIMEOUT_HEAD, TIMEOUT_BODY, TIMEOUT_IDLE, TIMEOUT_WRITE, N_TIMEOUTS };

struct http_stats {
    uint64_t n_accepted, n_evicted;                   /* idle connections closed to make room         */
    uint64_t requests[HTTP_N_ROUTES][HTTP_N_CODES];
    uint64_t parse_errors[HTTP_N_CODES];
    uint64_t timeouts[N_TIMEOUTS];
    uint64_t n_tls_failed;                            /* handshakes that came to nothing              */
    uint64_t n_gone, n_overflow;                      /* clients lost mid-request; of those, too slow */
    struct hist seconds;                              /* request complete to response complete        */
};
void http_stats__init(struct http_stats *st);
int http_stats__code_index(int status);
void http_stats__count(struct http_stats *st, int route, int status, uint64_t ns);
void http_stats__put(const struct server *s, struct buf *out); /* Prometheus text */

/* ---- listener.c ---- */
int listener__open(struct server *s, struct err *e);
void listener__close(struct server *s);               /* closes every handle and runs the loop dry */
void listener__free(struct server *s);                /* after the last exchange ended */
void listener__defer_ready(struct conn *c);
void listener__defer_gone(struct exchange_box *b);
void listener__defer(struct server *s);               /* run the deferred work soon */
void listener__forget(struct conn *c);                /* off all lists; frees c */
void listener__forget_box(struct exchange_box *b);    /* off the gone list */
void listener__tick_start(struct server *s);
void listener__close_idle(struct server *s);          /* every connection between requests */
void server__check_done(struct server *s);            /* server.c: stop the loop when nothing is left to wait for */
void server__drain(struct server *s);                 /* server.c: first SIGTERM or SIGINT */
void server__reload(struct server *s);                /* server.c: SIGHUP: certificate and API keys */
void server__cut(struct server *s, bool at_once);     /* server.c: second signal, or drain_timeout_ms passed */

/* ---- sockets.c ---- */
int sockets__open(struct server *s, uv_connection_cb on_connection, struct err *e);
void sockets__close(struct server *s);
struct listen_socket *sockets__add(struct listener *l);

/* ---- signals.c ---- */
int signals__open(struct server *s, struct err *e);
void signals__close(struct server *s); /* the loop must run once more to finish it */

/* ---- conn.c ---- */
int conn__accept(struct listen_socket *k);            /* takes the connection that waits there */
void conn__ready(struct conn *c);                     /* deferred: read the next request */
void conn__tick(struct conn *c, uint64_t now_ms);
void conn__drop(struct conn *c, bool reset);          /* close now; an exchange in flight loses its client */
void conn__exchange_done(struct conn *c, bool keep_alive);
int conn__write(struct conn *c, const uv_buf_t *bufs, unsigned n_bufs); /* copies what cannot be sent at once */
size_t conn__unsent(const struct conn *c);
bool conn__is_idle(const struct conn *c);             /* between requests, everything sent          */
bool conn__has_input(const struct conn *c);           /* bytes or a FIN wait in the socket          */
uint64_t conn__now(const struct conn *c);

/* ---- exchange.c ---- */
struct exchange_box *exchange__begin(struct conn *c); /* from c->parse; NULL when out of memory */
void exchange__client_lost(struct exchange_box *b);   /* conn is closing; on_gone becomes due */
void exchange__finish(struct exchange_box *b);        /* the response is complete: frees, tells the connection */

/* ---- reply.c ---- */
void reply__head(struct exchange_box *b, int status, const char *content_type, struct buf *head); /* common header lines; sets b->status */
void reply__refuse(struct conn *c, int status, const char *reason); /* answers a request whose head or body is no good, and closes */
void reply__not_allowed(struct exchange *x, const char *allow);     /* 405 */
void reply__allow(struct exchange *x, const char *extra);           /* 200 without content, for OPTIONS */

/* ---- route.c ---- */
const char *route__name(int index);                                     /* "other" for -1 */
const char *route__describe(int index, bool *get, bool *post, bool *below); /* NULL behind the last; for the test of openapi.json */
bool route__is_anthropic(int index);                                    /* errors in that API's envelope */
bool route__check(struct exchange *x, const struct http_parse *p);      /* before the body: false = answered */

#endif
