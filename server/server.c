/* SPDX-License-Identifier: Apache-2.0
 *
 * The server as a whole: opens its parts in order, runs the loop, and decides when a shutdown is complete.
 *
 * Shutdown: the first signal drains. The listener stays open so that /health can say 503, new work is refused, and
 * the loop ends when no request is left and every answer is flushed. When drain_timeout_ms passes, what still runs is
 * cancelled and gets a moment to say so. A second signal ends the loop at once. An engine failure ends
 * it as soon as the requests in flight have been told. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/transport.h"

static void check_engine(struct server *s) {
    struct sched_stats st;
    if (s->failed) return;
    sched_stats(s->sched, &st);
    if (!st.engine_failed) return;
    s->failed = true;
    s->listener->cut_deadline_ms = uv_now(&s->loop) + LIMIT_CUT_MS;
    log_error("server", "the engine failed: requests in flight get 500, the process ends");
    listener__tick_start(s);
    listener__defer(s);
}

static void on_wake(void *ctx) {
    struct server *s = ctx;
    api_on_events(s);
    check_engine(s);
    if (s->draining) listener__defer(s);
}

/* ---- shutdown ---- */

static void announce(const struct server *s, enum server_phase phase) {
    if (s->opts->announce != NULL) s->opts->announce(s->opts->announce_ctx, phase);
}

static bool unsent_anywhere(const struct listener *l) {
    for (const struct conn *c = l->conns; c != NULL; c = c->next) {
        if (c->state == CONN_CLOSING ? !c->shutdown_done : c->state != CONN_DEAD && conn__unsent(c) > 0) return true;
    }
    return false;
}

void server__check_done(struct server *s) {
    struct listener *l = s->listener;
    uint64_t now_ms = uv_now(&s->loop);
    if (!s->draining && !s->failed) return;
    if (s->draining && !l->cut && now_ms >= l->drain_deadline_ms) {
        log_warn("server", "drain-timeout passed: cancelling %u requests", l->n_boxes);
        server__cut(s, false);
    }
    bool quiet = l->n_boxes == 0 && api_n_live(s) == 0 && !unsent_anywhere(l);
    if (quiet || (l->cut_deadline_ms != 0 && now_ms >= l->cut_deadline_ms)) uv_stop(&s->loop);
}

void server__drain(struct server *s) {
    s->draining = true;
    announce(s, SERVER_STOPPING);
    s->listener->drain_deadline_ms = uv_now(&s->loop) + s->opts->config->drain_timeout_ms;
    listener__close_idle(s);
    listener__tick_start(s);
    listener__defer(s);
}

void server__cut(struct server *s, bool at_once) {
    struct listener *l = s->listener;
    l->cut = l->cut || l->n_boxes > 0 || api_n_live(s) > 0;
    l->cut_deadline_ms = uv_now(&s->loop) + (at_once ? 0 : LIMIT_CUT_MS);
    api_cancel_all(s);
    if (at_once) uv_stop(&s->loop);
}

/* ---- SIGHUP ---- */

static void reloaded(const char *what, int rc, const struct err *e) {
    if (rc == ST_OK) log_info("server", "SIGHUP: %s: read again", what);
    else log_error("server", "SIGHUP: %s: %s; the old ones stay in force", what, e->text);
}

void server__reload(struct server *s) {
    struct tls_context *tls = s->listener->tls;
    struct err e = {0};
    int rc;
    announce(s, SERVER_RELOADING);
    if (tls != NULL) {
        rc = tls_context_reload(tls, &e);
        reloaded("certificate and key", rc, &e);
        if (rc == ST_OK) tls_context_log(tls);
    }
    if (s->opts->config->api_key_file[0] != '\0') {
        rc = access_reload(s->access, &e);
        reloaded("API keys", rc, &e);
        if (rc == ST_OK) log_info("server", "%u API keys", access_n_keys(s->access));
    }
    if (tls == NULL && s->opts->config->api_key_file[0] == '\0') log_info("server", "SIGHUP: nothing to read again: neither tls-cert nor api-key-file is set");
    announce(s, s->draining ? SERVER_STOPPING : SERVER_READY);
}

/* ---- life ---- */

int server_check_options(const struct config *cfg, struct err *e) {
    struct access *access = NULL;
    struct tls_context *tls = NULL;
    int rc = access_open(&access, cfg, e);
    if (rc == ST_OK && cfg->tls_cert[0] != '\0') rc = tls_context_open(&tls, cfg->tls_cert, cfg->tls_key, e);
    tls_context_close(tls);
    access_close(access);
    return rc;
}

static int start_scheduler(struct server *s, struct err *e) {
    const struct config *cfg = s->opts->config;
    int rc = wake_open(&s->wake, &s->loop, on_wake, s);
    if (rc != ST_OK) return err_set(e, rc, "cannot create the wake-up of the event loop");
    struct sched_opts o = {
        .ops = s->opts->ops, .engine = s->opts->engine, .max_running = cfg->max_running, .max_queued = cfg->max_queued,
        .n_tenants = access_n_keys(s->access) > 0 ? ACCESS_MAX_KEYS : 1, .batch_tokens = cfg->batch_tokens, .prefix_cache = cfg->prefix_cache, .notify = wake_notify, .notify_ctx = s->wake,
        .enter = s->opts->engine_enter, .enter_ctx = s->opts->engine_enter_ctx,
    };
    return sched_start(&s->sched, &o, e);
}

static void warn_if_open(const struct server *s) {
    const struct listener *l = s->listener;
    for (uint32_t i = 0; i < l->n_sockets && access_n_keys(s->access) == 0; i++)
        if (l->sockets[i].from == ACCESS_NETWORK)
            log_warn("server", "everybody who reaches %s may use this server; option api-key-file asks for keys", l->sockets[i].url);
}

int server_open(struct server **out, const struct server_opts *o, struct err *e) {
    struct server *s = mem_zalloc(1, sizeof *s);
    struct server_opts *copy = mem_alloc(sizeof *copy);
    struct http_stats *stats = mem_zalloc(1, sizeof *stats);
    if (s == NULL || copy == NULL || stats == NULL || uv_loop_init(&s->loop) != 0) {
        mem_free(s);
        mem_free(copy);
        mem_free(stats);
        return err_set(e, ST_NOMEM, "out of memory for the HTTP server");
    }
    *copy = *o;
    s->opts = copy;
    s->http_stats = stats;
    s->loop.data = s;
    s->start_unix_s = clock_unix_s();
    http_stats__init(stats);
    int rc = access_open(&s->access, o->config, e);
    if (rc == ST_OK) rc = listener__open(s, e);
    if (rc == ST_OK) warn_if_open(s);
    if (rc == ST_OK) rc = start_scheduler(s, e);
    if (rc == ST_OK) rc = api_open(s, e);
    if (rc != ST_OK) {
        server_close(s);
        return rc;
    }
    *out = s;
    return ST_OK;
}

int server_run(struct server *s) {
    uv_run(&s->loop, UV_RUN_DEFAULT);
    if (s->failed) return ST_INTERNAL;
    return s->listener->cut ? ST_CANCELLED : ST_OK;
}

/* The engine first: once it has nothing left, every request has its last event and the handlers can finish. */
void server_close(struct server *s) {
    if (s == NULL) return;
    if (s->api != NULL) api_cancel_all(s);
    if (s->sched != NULL) sched_quiesce(s->sched);
    if (s->api != NULL) api_on_events(s);
    if (s->sched != NULL) sched_stop(s->sched);
    s->sched = NULL;
    if (s->wake != NULL) wake_close(s->wake);
    listener__close(s); /* also waits for bodies still being parsed on a worker */
    if (s->api != NULL) api_close(s);
    listener__free(s);
    if (uv_loop_close(&s->loop) != 0) log_error("server", "the event loop still has handles at exit");
    access_close(s->access);
    mem_free((void *)s->opts);
    mem_free(s->http_stats);
    mem_free(s);
}
