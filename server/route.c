/* SPDX-License-Identifier: Apache-2.0
 *
 * The route table. Paths match exactly as decoded: no normalising, no trailing slash, so that a proxy that filters by
 * path and this server can never disagree. What can be refused is refused before the body is read. */
#include <string.h>
#include <strings.h>

#include "server/transport.h"

struct route {
    const char *path;
    route_fn get, post; /* NULL = the route does not serve it; get serves HEAD too */
    bool below;         /* also everything below, as "/v1/models/{id}"             */
    bool work;          /* starts a generation: refused while draining             */
};

static const struct route routes[] = {
    {"/", api_page, NULL, false, false},
    {"/health", api_health, NULL, false, false},
    {"/metrics", api_metrics, NULL, false, false},
    {"/v1/models", api_models, NULL, true, false},
    {"/v1/completions", NULL, api_completions, false, true},
    {"/v1/chat/completions", NULL, api_chat, false, true},
    {"/tokenize", NULL, api_tokenize, false, false},
    {"/detokenize", NULL, api_detokenize, false, false},
    {"/apply-template", NULL, api_apply_template, false, false},
    {"/props", api_props, NULL, false, false},
    {"/admin/offload", api_offload_show, api_offload_set, false, false},
};

enum { N_ROUTES = sizeof routes / sizeof *routes };
_Static_assert((int)N_ROUTES < (int)HTTP_N_ROUTES, "http_stats has one row per route and one for the rest");

const char *route__name(int index) {
    return index >= 0 && index < N_ROUTES ? routes[index].path : "other";
}

static bool path_matches(const struct route *r, const char *path) {
    size_t n = strlen(r->path);
    if (strncmp(path, r->path, n) != 0)
        return false;
    return path[n] == '\0' || (r->below && path[n] == '/' && path[n + 1] != '\0');
}

static int find(const char *path) {
    for (int i = 0; i < N_ROUTES; i++)
        if (path_matches(&routes[i], path))
            return i;
    return -1;
}

static bool is_json(const char *content_type) {
    size_t n = strcspn(content_type, "; \t");
    return n == 0 || (n == 16 && strncasecmp(content_type, "application/json", 16) == 0) ||
           (n > 5 && strncasecmp(content_type + n - 5, "+json", 5) == 0);
}

static bool refuse(struct exchange *x, int status, const char *code, const char *message) {
    struct api_error e = {.status = status, .code = code, .message = message, .retry_after_s = status == 503 ? 5 : 0};
    reply_error(x, &e);
    return false;
}

static bool check_post(struct exchange *x, const struct route *r, const struct http_parse *p) {
    if (r->work && x->server->failed)
        return refuse(x, 503, "engine_failed", "The engine failed; the server is restarting.");
    if (r->work && x->server->draining)
        return refuse(x, 503, "draining", "The server is shutting down.");
    if (!p->has_length)
        return refuse(x, 411, "length_required", "The request needs a Content-Length or a chunked body.");
    if (!is_json(x->content_type))
        return refuse(x, 415, "unsupported_media_type", "The Content-Type must be application/json.");
    return true;
}

/* Of route i, or of the server as a whole. */
static const char *allowed_methods(int i) {
    bool get = i < 0 || routes[i].get != NULL, post = i < 0 || routes[i].post != NULL;
    return get && post ? "GET, HEAD, POST, OPTIONS" : get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

bool route__check(struct exchange *x, const struct http_parse *p) {
    struct exchange_box *b = (struct exchange_box *)x;
    int i = find(x->path);
    b->route = i;
    if (p->method == METHOD_OPTIONS) /* answered without a body in any case, "OPTIONS *" included */
        return i >= 0 || strcmp(x->path, "*") == 0 || refuse(x, 404, "not_found", "There is no such route.");
    if (i < 0)
        return refuse(x, 404, "not_found",
                      "There is no such route; this server has /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, "
                      "/apply-template, /props, /health and /metrics.");
    if (routes[i].get != NULL && (p->method == METHOD_GET || p->method == METHOD_HEAD)) return true;
    if (routes[i].post != NULL && p->method == METHOD_POST) return check_post(x, &routes[i], p);
    reply__not_allowed(x, allowed_methods(i));
    return false;
}

void route_dispatch(struct exchange *x) {
    const struct exchange_box *b = (const struct exchange_box *)x;
    if (strcmp(x->method, "OPTIONS") != 0) {
        (strcmp(x->method, "POST") == 0 ? routes[b->route].post : routes[b->route].get)(x);
        return;
    }
    char allow[64];
    snprintf(allow, sizeof allow, "Allow: %s\r\n", allowed_methods(b->route));
    reply__allow(x, allow);
}
