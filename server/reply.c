/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole responses: status line, the headers every response has, one framing header, body. Nothing a client sent is
 * copied into a header except X-Request-Id, whose alphabet is checked. */
#include <assert.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/transport.h"

static const char *reason_phrase(int status) {
    static const struct { int status; const char *reason; } table[] = {
        {200, "OK"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"},
        {405, "Method Not Allowed"}, {408, "Request Timeout"}, {411, "Length Required"}, {413, "Content Too Large"},
        {414, "URI Too Long"}, {415, "Unsupported Media Type"}, {417, "Expectation Failed"}, {422, "Unprocessable Content"},
        {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"},
        {501, "Not Implemented"}, {503, "Service Unavailable"}, {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].status == status)
            return table[i].reason;
    return "Unknown";
}

/* IMF-fixdate, written by hand because strftime follows the locale. Renewed once per second. */
static const char *date_line(struct listener *l) {
    static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    int64_t now = clock_unix_s();
    struct tm t;
    time_t when = (time_t)now;
    if (now != l->date_s && gmtime_r(&when, &t) != NULL) {
        snprintf(l->date, sizeof l->date, "Date: %s, %02u %s %04u %02u:%02u:%02u GMT\r\n", days[t.tm_wday % 7],
                 (unsigned)t.tm_mday % 100, months[t.tm_mon % 12], (unsigned)(t.tm_year + 1900) % 10000,
                 (unsigned)t.tm_hour % 100, (unsigned)t.tm_min % 100, (unsigned)t.tm_sec % 100);
        l->date_s = now;
    }
    return l->date;
}

void reply__head(struct exchange_box *b, int status, const char *content_type, struct buf *head) {
    struct server *s = b->x.server;
    b->status = status;
    if (s->draining || s->failed || s->listener->accept_paused)
        b->keep_alive = false;
    buf_printf(head, "HTTP/1.1 %d %s\r\n%s", status, reason_phrase(status), date_line(s->listener));
    buf_printf(head, "X-Request-Id: %s\r\n", b->x.request_id);
    if (route__is_anthropic(b->route))
        buf_printf(head, "Request-Id: %s\r\n", b->x.request_id);
    if (!b->keep_alive)
        buf_puts(head, "Connection: close\r\n");
    else if (b->x.http10)
        buf_puts(head, "Connection: keep-alive\r\n");
    if (content_type != NULL)
        buf_printf(head, "Content-Type: %s\r\n", content_type);
    if (b->x.cors_origin != NULL)
        buf_printf(head, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\nAccess-Control-Expose-Headers: X-Request-Id, Retry-After\r\n",
                   b->x.cors_origin);
    if (status == 401)
        buf_puts(head, "WWW-Authenticate: Bearer\r\n");
}

static void respond(struct exchange *x, int status, const char *content_type, const char *body, size_t n, const char *extra) {
    struct exchange_box *b = (struct exchange_box *)x;
    struct buf head;
    assert(b->status == 0 && !x->streaming);
    buf_init(&head, 8 * 1024);
    reply__head(b, status, content_type, &head);
    if (extra != NULL)
        buf_puts(&head, extra);
    buf_printf(&head, "Content-Length: %zu\r\n\r\n", n);
    if (x->conn != NULL && head.failed) {
        conn__drop(x->conn, true);
    } else if (x->conn != NULL) {
        uv_buf_t bufs[2] = {uv_buf_init(head.data, (unsigned)head.len), uv_buf_init((char *)body, (unsigned)n)};
        conn__write(x->conn, bufs, x->head || n == 0 ? 1 : 2);
    }
    buf_clear(&head);
    exchange__finish(b);
}

void reply_json(struct exchange *x, int status, const char *body, size_t n_bytes, const char *extra) {
    respond(x, status, "application/json", body, n_bytes, extra);
}

void reply_text(struct exchange *x, int status, const char *content_type, const char *body, size_t n_bytes) {
    respond(x, status, content_type, body, n_bytes, NULL);
}

void reply__allow(struct exchange *x, const char *extra) {
    respond(x, 200, NULL, "", 0, extra);
}

/* ---- errors ---- */

static const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 408: return "timeout";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 501:
    case 505: return "not_supported_error";
    case 503: return "unavailable_error";
    default: return "invalid_request_error";
    }
}

static void put_string_or_null(struct buf *out, const char *s) {
    if (s == NULL)
        buf_puts(out, "null");
    else
        json_put_string(out, s, strlen(s));
}

static const char *anthropic_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
    }
}

static void put_anthropic_error(const struct exchange *x, struct buf *out, const struct api_error *e) {
    buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", anthropic_type(e->status));
    put_string_or_null(out, e->message);
    buf_printf(out, "},\"request_id\":\"%s\"}", x->request_id);
}

void reply_put_error(const struct exchange *x, struct buf *out, const struct api_error *e) {
    if (route__is_anthropic(((const struct exchange_box *)x)->route)) {
        put_anthropic_error(x, out, e);
        return;
    }
    buf_puts(out, "{\"error\":{\"message\":");
    put_string_or_null(out, e->message);
    buf_puts(out, ",\"type\":");
    put_string_or_null(out, e->type != NULL ? e->type : error_type(e->status));
    buf_puts(out, ",\"param\":");
    put_string_or_null(out, e->param);
    buf_puts(out, ",\"code\":");
    put_string_or_null(out, e->code);
    buf_puts(out, "}}");
}

static void reply_error_with(struct exchange *x, const struct api_error *e, const char *extra) {
    struct buf body, lines;
    buf_init(&body, 64 * 1024);
    buf_init(&lines, 1024);
    reply_put_error(x, &body, e);
    if (e->retry_after_s > 0)
        buf_printf(&lines, "Retry-After: %u\r\n", e->retry_after_s);
    if (extra != NULL)
        buf_puts(&lines, extra);
    buf_putc(&lines, '\0');
    if (body.failed || lines.failed) {
        static const char plain[] = "{\"error\":{\"message\":\"The error could not be described.\",\"type\":\"server_error\","
                                    "\"param\":null,\"code\":null}}";
        respond(x, e->status, "application/json", plain, sizeof plain - 1, NULL);
    } else {
        respond(x, e->status, "application/json", body.data, body.len, lines.data);
    }
    buf_clear(&body);
    buf_clear(&lines);
}

void reply_error(struct exchange *x, const struct api_error *e) {
    reply_error_with(x, e, NULL);
}

void reply__not_allowed(struct exchange *x, const char *allow) {
    struct api_error e = {.status = 405, .code = "method_not_allowed", .message = "This route does not serve that method."};
    char line[128];
    snprintf(line, sizeof line, "Allow: %s\r\n", allow);
    reply_error_with(x, &e, line);
}

void reply__refuse(struct conn *c, int status, const char *reason) {
    struct exchange_box *b = c->box != NULL ? c->box : exchange__begin(c);
    if (b == NULL) {
        conn__drop(c, true);
        return;
    }
    c->box = b;
    b->keep_alive = false;
    if (status == 405) {
        reply__not_allowed(&b->x, "GET, HEAD, OPTIONS, POST");
        return;
    }
    struct api_error e = {.status = status, .message = reason, .retry_after_s = status == 503 ? 1 : 0};
    reply_error(&b->x, &e);
}
