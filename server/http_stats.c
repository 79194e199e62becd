/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of the HTTP front end. Every label has a fixed set of values, whatever clients send, so that a scan
 * for open paths cannot grow the exposition. */
#include "server/transport.h"

static const int codes[HTTP_N_CODES - 1] = {200, 400, 401, 403, 404, 405, 408, 411, 413, 414,
                                            415, 417, 429, 431, 499, 500, 501, 503, 505};

void http_stats__init(struct http_stats *st) {
    static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
    hist_init(&st->seconds, bounds, sizeof bounds / sizeof *bounds);
}

int http_stats__code_index(int status) {
    int i = 0;
    while (i < HTTP_N_CODES - 1 && codes[i] != status) i++;
    return i;
}

void http_stats__count(struct http_stats *st, int route, int status, uint64_t ns) {
    if (route < 0 || route >= HTTP_N_ROUTES) route = HTTP_N_ROUTES - 1;
    st->requests[route][http_stats__code_index(status)]++;
    hist_observe(&st->seconds, (double)ns * 1e-9);
}

static void put_code(struct buf *out, int index, uint64_t value) {
    if (index < HTTP_N_CODES - 1) buf_printf(out, "code=\"%d\"} %llu\n", codes[index], (unsigned long long)value);
    else buf_printf(out, "code=\"other\"} %llu\n", (unsigned long long)value);
}

static void put_counter(struct buf *out, const char *name, const char *help, uint64_t value) {
    buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n%s %llu\n", name, help, name, name, (unsigned long long)value);
}

static void put_connections(const struct server *s, struct buf *out) {
    static const char *const names[] = {"idle", "head", "body", "busy", "closing"};
    uint32_t counts[CONN_DEAD + 1] = {0};
    for (const struct conn *c = s->listener->conns; c != NULL; c = c->next) counts[c->state]++;
    buf_puts(out, "# HELP moed_http_connections Open client connections by what they are doing.\n"
                  "# TYPE moed_http_connections gauge\n");
    for (int i = 0; i < CONN_DEAD; i++) buf_printf(out, "moed_http_connections{state=\"%s\"} %u\n", names[i], counts[i]);
    buf_printf(out, "# HELP moed_http_connections_max Connections accepted at once.\n# TYPE moed_http_connections_max gauge\n"
               "moed_http_connections_max %u\n", s->listener->max_conns);
}

void http_stats__put(const struct server *s, struct buf *out) {
    static const char *const phases[N_TIMEOUTS] = {"tls", "head", "body", "idle", "write"};
    const struct http_stats *st = s->http_stats;
    put_connections(s, out);
    put_counter(out, "moed_http_connections_accepted_total", "Client connections accepted.", st->n_accepted);
    put_counter(out, "moed_http_connections_evicted_total", "Idle connections closed to make room for new ones.", st->n_evicted);
    buf_puts(out, "# HELP moed_http_requests_total Requests answered; code 499: the client left first.\n"
                  "# TYPE moed_http_requests_total counter\n");
    for (int r = 0; r < HTTP_N_ROUTES; r++) {
        for (int i = 0; i < HTTP_N_CODES; i++) {
            if (st->requests[r][i] == 0) continue;
            buf_printf(out, "moed_http_requests_total{route=\"%s\",", route__name(r));
            put_code(out, i, st->requests[r][i]);
        }
    }
    buf_puts(out, "# HELP moed_http_parse_errors_total Requests that were not acceptable HTTP.\n"
                  "# TYPE moed_http_parse_errors_total counter\n");
    for (int i = 0; i < HTTP_N_CODES; i++) {
        if (st->parse_errors[i] == 0) continue;
        buf_puts(out, "moed_http_parse_errors_total{");
        put_code(out, i, st->parse_errors[i]);
    }
    buf_puts(out, "# HELP moed_http_timeouts_total Connections that were too slow, by phase.\n"
                  "# TYPE moed_http_timeouts_total counter\n");
    for (int i = 0; i < N_TIMEOUTS; i++)
        buf_printf(out, "moed_http_timeouts_total{phase=\"%s\"} %llu\n", phases[i], (unsigned long long)st->timeouts[i]);
    put_counter(out, "moed_tls_handshakes_failed_total", "Connections to the TLS port that did not speak it.", st->n_tls_failed);
    put_counter(out, "moed_http_clients_gone_total", "Clients that left before their response was complete.", st->n_gone);
    put_counter(out, "moed_http_slow_readers_total", "Streams cancelled because the client did not read.", st->n_overflow);
    hist_put(&st->seconds, out, "moed_http_request_duration_seconds", "From a complete request to a complete response.");
}
