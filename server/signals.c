/* SPDX-License-Identifier: Apache-2.0
 *
 * SIGTERM and SIGINT: the first one drains, the second one stops at once. SIGHUP reads certificate and keys again. SIGPIPE is ignored: a write to a closed
 * socket is an ordinary error here. Once the loop is over nothing is left to stop: later signals are ignored, so that
 * the exit code tells how the run ended and not that a supervisor was impatient. */
#include <signal.h>

#include "base/log.h"
#include "server/transport.h"

static void on_signal(uv_signal_t *handle, int signum) {
    struct server *s = handle->data;
    log_info("server", "signal %d: %s", signum, s->draining ? "stopping at once" : "draining, /health is 503 now");
    if (s->draining)
        server__cut(s, true);
    else
        server__drain(s);
}

static void on_hangup(uv_signal_t *handle, int signum) {
    (void)signum;
    server__reload(handle->data);
}

int signals__open(struct server *s, struct err *e) {
    struct listener *l = s->listener;
    signal(SIGPIPE, SIG_IGN);
    int rc = uv_signal_init(&s->loop, &l->sigterm);
    if (rc == 0)
        rc = uv_signal_init(&s->loop, &l->sigint);
    if (rc == 0)
        rc = uv_signal_init(&s->loop, &l->sighup);
    l->sigterm.data = l->sigint.data = l->sighup.data = s;
    if (rc == 0)
        rc = uv_signal_start(&l->sigterm, on_signal, SIGTERM);
    if (rc == 0)
        rc = uv_signal_start(&l->sigint, on_signal, SIGINT);
    if (rc == 0)
        rc = uv_signal_start(&l->sighup, on_hangup, SIGHUP);
    if (rc != 0)
        return err_set(e, ST_IO, "cannot watch signals: %s", uv_strerror(rc));
    return ST_OK;
}

/* Closing restores the default action, which kills: it is replaced at once. */
static void close_one(uv_signal_t *handle, int signum) {
    if (handle->type != UV_SIGNAL) return; /* opening did not come that far */
    uv_close((uv_handle_t *)handle, NULL);
    signal(signum, SIG_IGN);
}

void signals__close(struct server *s) {
    close_one(&s->listener->sigterm, SIGTERM);
    close_one(&s->listener->sigint, SIGINT);
    close_one(&s->listener->sighup, SIGHUP);
}
