/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a call is let in before anything is computed for it: may it ask for its priority, and is its turn expected to come
 * while somebody still waits for it? A call that would be computed in vain takes the places of those that would not. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/gen.h"

static const uint64_t NS_PER_MS = 1000000;

void admission_set_terms(struct gen *g) {
    const struct exchange *x = g->x;
    uint32_t most_ms = g->server->opts->config->request_timeout_ms, ms = g->params.timeout_ms;

    if (ms == 0 || (most_ms != 0 && most_ms < ms)) ms = most_ms;
    g->deadline_ns = ms > 0 ? x->start_ns + ms * NS_PER_MS : 0;
    g->priority = (int8_t)(g->params.priority_given ? g->params.priority : x->best_priority > 0 ? x->best_priority : 0);
}

static int refuse_priority(const struct gen *g, struct admission_refusal *r) {
    snprintf(r->text, sizeof r->text, "priority: %d is more urgent than this API key may ask for, which is %d", g->priority, g->x->best_priority);
    r->error = (struct api_error){.status = 403, .code = "priority_not_allowed", .param = "priority", .message = r->text};
    return ST_INVALID;
}

static int refuse_wait(const struct gen *g, uint64_t wait_ns, int status, const char *code, const char *why, struct admission_refusal *r) {
    snprintf(r->text, sizeof r->text, "the wait for a place is %.1f s at present, %s", (double)wait_ns * 1e-9, why);
    r->error = (struct api_error){.status = status, .code = code, .message = r->text,
                                  .retry_after_s = sched_retry_after_s(g->server->sched, g->x->tenant, g->priority)};
    return ST_QUEUE_FULL;
}

int admission_check(const struct gen *g, struct admission_refusal *r) {
    const struct exchange *x = g->x;
    uint64_t wait_ns = sched_wait_ns(g->server->sched, x->tenant, g->priority), now = clock_mono_ns();

    if (g->priority < x->best_priority) return refuse_priority(g, r);
    if (wait_ns > g->server->opts->config->max_wait_ms * NS_PER_MS)
        return refuse_wait(g, wait_ns, 429, "queue_full", "more than this server lets requests wait; try again later", r);
    if (g->deadline_ns != 0 && now + wait_ns >= g->deadline_ns)
        return refuse_wait(g, wait_ns, 503, "deadline_exceeded", "longer than this request has time", r);
    /* Nothing comes before the whole answer, so that is when the client stops listening. A stream is kept alive. */
    if (!g->params.stream && x->read_timeout_ms != 0 && wait_ns > x->read_timeout_ms * NS_PER_MS)
        return refuse_wait(g, wait_ns, 503, "deadline_exceeded", "longer than its client listens", r);
    return 0;
}

void admission_expired(const struct gen *g, struct admission_refusal *r) {
    snprintf(r->text, sizeof r->text, "its time was over before the first token; the wait for a place is %.1f s at present",
             (double)sched_wait_ns(g->server->sched, g->x->tenant, g->priority) * 1e-9);
    r->error = (struct api_error){.status = 503, .code = "deadline_exceeded", .message = r->text,
                                  .retry_after_s = sched_retry_after_s(g->server->sched, g->x->tenant, g->priority)};
}
