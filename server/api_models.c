/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /v1/models and /v1/models/{id}: the one model this process serves. */
#include <string.h>
#include <strings.h>

#include "server/internal.h"

static void put_model(const struct server *s, struct buf *out) {
    struct engine_info info = {0};
    s->opts->ops->info(s->opts->engine, &info);
    buf_puts(out, "{\"id\":");
    json_put_string(out, s->opts->model_name, strlen(s->opts->model_name));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"moed\",\"max_model_len\":%u}", (long long)s->start_unix_s,
               info.n_ctx);
}

/* An id may hold '/', which arrives as itself or as "%2F" (the router leaves that form alone). */
static bool same_id(const char *given, const char *id) {
    for (; *id != '\0'; id++) {
        if (*given == *id) given++;
        else if (*id == '/' && strncasecmp(given, "%2f", 3) == 0) given += 3;
        else return false;
    }
    return *given == '\0';
}

void api_models(struct exchange *x) {
    static const char list[] = "/v1/models";
    const char *rest = x->path + sizeof list - 1;
    struct buf out;
    buf_init(&out, 64 * 1024);
    if (*rest == '\0') {
        buf_puts(&out, "{\"object\":\"list\",\"data\":[");
        put_model(x->server, &out);
        buf_puts(&out, "]}");
    } else if (same_id(rest + 1, x->server->opts->model_name)) {
        put_model(x->server, &out);
    } else {
        buf_clear(&out);
        reply_error(x, &(struct api_error){.status = 404, .type = "invalid_request_error", .code = "model_not_found", .param = "model",
                                           .message = "There is no such model; GET /v1/models lists the one served."});
        return;
    }
    if (out.failed) reply_error(x, &(struct api_error){.status = 503, .message = "The server is out of memory.", .retry_after_s = 1});
    else reply_json(x, 200, out.data, out.len, NULL);
    buf_clear(&out);
}
