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
    unsigned flags;
};

enum {
    BELOW = 1,     /* also everything below, as "/v1/models/{id}" */
    WORK = 2,      /* starts a generation: refused while draining */
    OPEN = 4,      /* needs no API key                            */
    ANTHROPIC = 8, /* errors in that API's envelope               */
};

static const struct route routes[] = {
    {"/", api_page, NULL, OPEN},
    {"/health", api_health, NULL, OPEN},
    {"/metrics", api_metrics, NULL, 0},
    {"/v1/models", api_models, NULL, BELOW},
    {"/v1/completions", NULL, api_completions, WORK},
    {"/v1/chat/completions", NULL, api_chat, WORK},
    {"/v1/messages", NULL, api_messages, WORK | ANTHROPIC},
    {"/v1/messages/count_tokens", NULL, api_count_tokens, ANTHROPIC},
    {"/v1/responses", NULL, api_responses, WORK},
    {"/v1/embeddings", NULL, api_embeddings, WORK},
    {"/tokenize", NULL, api_tokenize, 0},
    {"/detokenize", NULL, api_detokenize, 0},
    {"/apply-template", NULL, api_apply_template, 0},
    {"/props", api_props, NULL, 0},
    {"/openapi.json", api_openapi, NULL, 0},
    {"/admin/offload", api_offload_show, api_offload_set, 0},
};

/* What the official clients send beyond what browsers always allow. */
#define CORS_HEADERS "Authorization, Content-Type, X-Api-Key, X-Request-Id, Idempotency-Key, OpenAI-Organization, OpenAI-Project, " \
    "Anthropic-Version, Anthropic-Beta, Anthropic-Dangerous-Direct-Browser-Access, X-Stainless-Arch, X-Stainless-Lang, " \
    "X-Stainless-OS, X-Stainless-Package-Version, X-Stainless-Retry-Count, " \
    "X-Stainless-Runtime, X-Stainless-Runtime-Version, X-Stainless-Timeout, X-Stainless-Read-Timeout"

enum { N_ROUTES = sizeof routes / sizeof *routes };
_Static_assert((int)N_ROUTES < (int)HTTP_N_ROUTES, "http_stats has one row per route and one for the rest");

const char *route__name(int index) {
    return index >= 0 && index < N_ROUTES ? routes[index].path : "other";
}

const char *route__describe(int index, bool *get, bool *post, bool *below) {
    if (index >= N_ROUTES) return NULL;
    *get = routes[index].get != NULL;
    *post = routes[index].post != NULL;
    *below = routes[index].flags & BELOW;
    return routes[index].path;
}

bool route__is_anthropic(int index) {
    return index >= 0 && index < N_ROUTES && (routes[index].flags & ANTHROPIC);
}

static bool path_matches(const struct route *r, const char *path) {
    size_t n = strlen(r->path);
    if (strncmp(path, r->path, n) != 0)
        return false;
    return path[n] == '\0' || ((r->flags & BELOW) && path[n] == '/' && path[n + 1] != '\0');
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
    if ((r->flags & WORK) && x->server->failed)
        return refuse(x, 503, "engine_failed", "The engine failed; the server is restarting.");
    if ((r->flags & WORK) && x->server->draining)
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

static struct access_text header(const struct http_parse *p, const char *name) {
    struct access_text t;
    t.s = http_parse_header(p, name, &t.n);
    return t;
}

/* An Origin goes back into a header: printable and without blanks, as origins are. */
static bool plain_origin(struct access_text origin) {
    for (size_t i = 0; i < origin.n; i++)
        if (origin.s[i] <= ' ' || origin.s[i] > '~') return false;
    return true;
}

/* False: answered. */
static bool check_access(struct exchange *x, const struct http_parse *p, const struct route *r) {
    struct exchange_box *b = (struct exchange_box *)x;
    struct access_text origin = header(p, "Origin");
    struct access_verdict v;
    access_check(x->server->access, &(struct access_request){
        .host = header(p, "Host"), .origin = origin, .authorization = header(p, "Authorization"), .api_key = header(p, "X-Api-Key"),
        .open = p->method == METHOD_OPTIONS || (r != NULL && (r->flags & OPEN)), .work = r != NULL && (r->flags & WORK), .now_ms = uv_now(&x->server->loop), .from = x->from,
    }, &v);
    b->key = v.key;
    x->tenant = v.tenant;
    x->weight = v.weight;
    x->best_priority = v.best_priority;
    if (v.cross_origin && plain_origin(origin)) {
        x->cors_origin = arena_strndup(&x->arena, origin.s, origin.n);
        if (x->cors_origin == NULL) return refuse(x, 503, NULL, "The server is out of memory.");
    }
    if (v.status == 0) return true;
    reply_error(x, &(struct api_error){.status = v.status, .code = v.code, .message = v.message, .retry_after_s = v.retry_after_s});
    return false;
}

bool route__check(struct exchange *x, const struct http_parse *p) {
    struct exchange_box *b = (struct exchange_box *)x;
    int i = find(x->path);
    b->route = i;
    if (!check_access(x, p, i >= 0 ? &routes[i] : NULL)) return false;
    if (p->method == METHOD_OPTIONS) /* answered without a body in any case, "OPTIONS *" included */
        return i >= 0 || strcmp(x->path, "*") == 0 || refuse(x, 404, "not_found", "There is no such route.");
    if (i < 0)
        return refuse(x, 404, "not_found",
                      "There is no such route; this server has /v1/chat/completions, /v1/completions, /v1/messages, /v1/responses, /v1/embeddings, /v1/models, /tokenize, /detokenize, "
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
    char lines[1024];
    const char *methods = allowed_methods(b->route);
    int n = snprintf(lines, sizeof lines, "Allow: %s\r\n", methods);
    if (x->cors_origin != NULL) /* the answer to a preflight; browsers may remember it for ten minutes */
        snprintf(lines + n, sizeof lines - (size_t)n, "Access-Control-Allow-Methods: %s\r\nAccess-Control-Allow-Headers: %s\r\n"
                 "Access-Control-Max-Age: 600\r\n", methods, CORS_HEADERS);
    reply__allow(x, lines);
}
