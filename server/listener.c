/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of connections, which of them may come in, and the clock that ticks over them.
 *
 * At the connection limit accepting pauses: libuv stops polling the listening socket while an accepted
 * connection has not been taken, so the rest waits in the kernel's queue at no cost. The limit is kept below
 * RLIMIT_NOFILE, because running out of descriptors makes libuv accept and drop clients. The connection that
 * has been idle longest makes room first. */
#include <dirent.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "server/transport.h"

/* ---- accepting ---- */

static struct conn *longest_idle(const struct listener *l) {
    struct conn *oldest = NULL;
    for (struct conn *c = l->conns; c != NULL; c = c->next) { /* newest first, so a tie goes to the older one */
        if (conn__is_idle(c) && (oldest == NULL || c->since_ms <= oldest->since_ms)) oldest = c;
    }
    return oldest;
}

/* Takes what waits, from each socket in turn, so that a flood on one does not shut out the other. */
static void try_accept(struct server *s) {
    struct listener *l = s->listener;
    l->accept_paused = false;
    for (uint32_t i = 0; i < l->n_sockets && !l->accept_paused; i++) {
        struct listen_socket *k = &l->sockets[l->next_socket];
        if (k->waiting && (l->n_conns >= l->max_conns || conn__accept(k) == ST_NOMEM)) {
            l->accept_paused = true; /* tried again when a connection closes */
        } else {
            k->waiting = false;
            l->next_socket = (l->next_socket + 1) % l->n_sockets;
        }
    }
    if (!l->accept_paused || l->n_conns < l->max_conns) return;
    struct conn *idle = longest_idle(l);
    if (idle != NULL && !conn__has_input(idle)) { /* with input it is about to be busy, and is closed after its answer */
        s->http_stats->n_evicted++;
        conn__drop(idle, false);
    }
}

static void on_connection(uv_stream_t *stream, int status) {
    struct listen_socket *k = stream->data;
    k->waiting = k->waiting || status == 0;
    if (status != 0) log_warn("http", "accept: %s", uv_strerror(status));
    else try_accept(k->server);
}

/* ---- deferred work ---- */

void listener__forget_box(struct exchange_box *b) {
    struct exchange_box **at = &b->x.server->listener->gone;
    if (!b->gone_due) return;
    while (*at != b) at = &(*at)->gone_next;
    *at = b->gone_next;
    b->gone_due = false;
}

static void forget_ready(struct conn *c) {
    struct conn **at = &c->server->listener->ready;
    if (!c->ready) return;
    while (*at != c) at = &(*at)->ready_next;
    *at = c->ready_next;
    c->ready = false;
}

static void tick_some(struct server *s) {
    struct listener *l = s->listener;
    uint64_t now_ms = uv_now(&s->loop);
    for (int n = 0; l->tick_next != NULL && n < LIMIT_TICK_SLICE; n++) {
        struct conn *c = l->tick_next;
        l->tick_next = c->next;
        conn__tick(c, now_ms);
    }
    if (l->tick_next != NULL) listener__defer(s);
}

static void run_deferred(uv_idle_t *idle) {
    struct server *s = idle->data;
    struct listener *l = s->listener;
    uv_idle_stop(idle);
    tick_some(s);
    while (l->gone != NULL) {
        struct exchange_box *b = l->gone;
        listener__forget_box(b);
        if (b->x.on_gone != NULL) b->x.on_gone(&b->x); /* may free b */
    }
    struct conn *batch = l->ready; /* a connection that becomes ready again waits for the next round */
    l->ready = NULL;
    for (struct conn *c = batch; c != NULL; c = c->ready_next) c->ready = false;
    while (batch != NULL) { /* conn__ready frees no connection: that happens in the loop's closing phase */
        struct conn *c = batch;
        batch = c->ready_next;
        conn__ready(c);
    }
    server__check_done(s);
}

void listener__defer(struct server *s) {
    if (uv_is_closing((uv_handle_t *)&s->listener->deferred)) return; /* server_close finishes what is left */
    uv_idle_start(&s->listener->deferred, run_deferred);
}

void listener__defer_gone(struct exchange_box *b) {
    struct listener *l = b->x.server->listener;
    b->gone_due = true;
    b->gone_next = l->gone;
    l->gone = b;
    listener__defer(b->x.server);
}

void listener__defer_ready(struct conn *c) {
    struct listener *l = c->server->listener;
    if (!c->ready) {
        c->ready = true;
        c->ready_next = l->ready;
        l->ready = c;
    }
    listener__defer(c->server);
}

void listener__forget(struct conn *c) {
    struct server *s = c->server;
    struct listener *l = s->listener;
    forget_ready(c);
    if (l->tick_next == c) l->tick_next = c->next;
    if (c->prev != NULL) c->prev->next = c->next;
    else l->conns = c->next;
    if (c->next != NULL) c->next->prev = c->prev;
    mem_free(c);
    l->n_conns--;
    if (l->accept_paused && !l->closing) try_accept(s);
    if (s->draining || s->failed) listener__defer(s);
}

/* ---- time ---- */

static void on_tick(uv_timer_t *timer) {
    struct server *s = timer->data;
    struct listener *l = s->listener;
    if (l->tick_next == NULL) l->tick_next = l->conns;
    tick_some(s);
    if (l->accept_paused) try_accept(s);
    if (s->draining || s->failed) server__check_done(s);
    else if (l->conns == NULL) uv_timer_stop(timer);
}

void listener__tick_start(struct server *s) {
    struct listener *l = s->listener;
    if (!uv_is_active((uv_handle_t *)&l->tick)) uv_timer_start(&l->tick, on_tick, LIMIT_TICK_MS, LIMIT_TICK_MS);
}

void listener__close_idle(struct server *s) {
    for (struct conn *c = s->listener->conns, *next; c != NULL; c = next) {
        next = c->next;
        if (conn__is_idle(c)) conn__drop(c, false);
    }
}

/* ---- opening ---- */

static uint32_t count_open_files(void) {
    uint32_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL) return 64;
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n;
}

/* Raises the soft limit of open files as far as allowed and keeps max_conns below it. */
static int plan_connections(struct listener *l, const struct config *cfg, struct err *e) {
    struct rlimit lim;
    uint64_t used = count_open_files() + LIMIT_FD_RESERVE, want = used + cfg->max_connections;
    l->max_conns = cfg->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur >= want) return ST_OK;
    lim.rlim_cur = lim.rlim_max == RLIM_INFINITY || want < lim.rlim_max ? want : lim.rlim_max;
    setrlimit(RLIMIT_NOFILE, &lim);
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur >= want) return ST_OK;
    if (lim.rlim_cur <= used)
        return err_set(e, ST_LIMIT, "the limit of %llu open files leaves none for connections; raise it (ulimit -n)",
                       (unsigned long long)lim.rlim_cur);
    l->max_conns = (uint32_t)(lim.rlim_cur - used);
    log_warn("http", "max-connections lowered from %u to %u: the process may open %llu files (ulimit -n)", cfg->max_connections,
             l->max_conns, (unsigned long long)lim.rlim_cur);
    return ST_OK;
}

int listener__open(struct server *s, struct err *e) {
    const struct config *cfg = s->opts->config;
    struct listener *l = s->listener = mem_zalloc(1, sizeof *l);
    if (l == NULL || (l->read_buffer = mem_alloc(LIMIT_READ_BYTES)) == NULL) return err_set(e, ST_NOMEM, "out of memory");
    l->limits = (struct http_limits){.max_header_bytes = cfg->max_header_bytes, .max_body_bytes = cfg->max_body_bytes,
                                     .body_total = &l->body_bytes, .body_total_max = cfg->max_body_bytes * LIMIT_BODY_SHARE};
    if (getrandom(&l->id_salt, sizeof l->id_salt, 0) != sizeof l->id_salt) l->id_salt = uv_hrtime();
    int rc = plan_connections(l, cfg, e);
    if (rc != ST_OK) return rc;
    if (cfg->tls_cert[0] != '\0' && (rc = tls_context_open(&l->tls, cfg->tls_cert, cfg->tls_key, e)) != ST_OK) return rc;
    if (l->tls != NULL) tls_context_log(l->tls);
    uv_timer_init(&s->loop, &l->tick);
    uv_idle_init(&s->loop, &l->deferred);
    l->tick.data = l->deferred.data = s;
    l->handles = true;
    rc = sockets__open(s, on_connection, e);
    return rc == ST_OK ? signals__open(s, e) : rc;
}

static void close_handle(uv_handle_t *handle, void *ctx) {
    (void)ctx;
    if (uv_is_closing(handle)) return;
    if (handle->type == UV_TCP || handle->type == UV_NAMED_PIPE) conn__drop(handle->data, false);
    else uv_close(handle, NULL);
}

void listener__close(struct server *s) {
    if (s->listener != NULL && s->listener->handles) {
        s->listener->closing = true;
        signals__close(s);
        sockets__close(s); /* what remains of their kinds are connections */
        uv_walk(&s->loop, close_handle, NULL);
    }
    uv_run(&s->loop, UV_RUN_DEFAULT);
}

void listener__free(struct server *s) {
    if (s->listener != NULL) {
        mem_free(s->listener->read_buffer);
        tls_context_close(s->listener->tls);
    }
    mem_free(s->listener);
    s->listener = NULL;
}
