/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /health: readiness for load balancers and `moed healthcheck`. Never touches the engine. */
#include <string.h>

#include "server/internal.h"

void api_health(struct exchange *x) {
    const struct server *s = x->server;
    const char *body = s->failed ? "{\"status\":\"failed\"}" : s->draining ? "{\"status\":\"draining\"}" : "{\"status\":\"ok\"}";
    reply_json(x, s->failed || s->draining ? 503 : 200, body, strlen(body), NULL);
}
