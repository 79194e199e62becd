/* SPDX-License-Identifier: Apache-2.0
 *
 * GET and POST /admin/offload: the expert store of the running server. POST {"ram": "12g"} sets a new ceiling for the
 * process; what changes is the share of the experts, from the next layer on, and no answer. Both are served only with
 * option admin, which is on by itself where only this machine can reach the server. */
#include <inttypes.h>
#include <string.h>

#include <arpa/inet.h>
#include <cjson/cJSON.h>

#include "base/alloc.h"
#include "base/log.h"
#include "server/internal.h"
#include "server/access.h"
#include "server/limits.h"

static const struct json_limits LIMITS = {.max_depth = 4, .max_nodes = 16};

static void refuse(struct exchange *x, int status, const char *code, const char *param, const char *message) {
    reply_error(x, &(struct api_error){.status = status, .code = code, .param = param, .message = message});
}

/* False: answered. */
static bool may(struct exchange *x) {
    const struct config *c = x->server->opts->config;
    bool on = strcmp(c->admin, "auto") == 0 ? x->from != ACCESS_NETWORK : strcmp(c->admin, "on") == 0;
    if (!on) refuse(x, 403, "admin_off", NULL, "The admin routes are off; option admin turns them on.");
    return on;
}

/* One string per layer, a digit per expert: 1 where it is in memory. */
static void put_map(struct buf *out, const struct engine_info *info, const uint8_t *bits) {
    buf_puts(out, ",\"map\":[");
    for (uint32_t layer = 0; layer < info->n_layers; layer++) {
        buf_puts(out, layer > 0 ? ",\"" : "\"");
        for (uint32_t i = 0; i < info->n_experts; i++) {
            uint64_t key = (uint64_t)layer * info->n_experts + i;
            buf_putc(out, bits[key / 8] >> (key % 8) & 1 ? '1' : '0');
        }
        buf_putc(out, '"');
    }
    buf_putc(out, ']');
}

static void put_state(struct buf *out, const struct server_opts *o, const struct offload_stats *st, const uint8_t *bits) {
    struct engine_info info;
    o->ops->info(o->engine, &info);
    buf_printf(out, "{\"experts\":\"streamed\",\"budget_bytes\":%" PRIu64 ",\"slot_bytes\":%" PRIu64 ",\"slots\":%" PRIu64 ",\"resident\":%" PRIu64
               ",\"hits\":%" PRIu64 ",\"misses\":%" PRIu64 ",\"load_bytes\":%" PRIu64 ",\"evictions\":%" PRIu64 ",\"failures\":%" PRIu64
               ",\"stall_ms\":%.3f,\"read_bytes_per_second\":%.0f,\"queue_depth\":%u,\"io\":\"%s\"",
               st->budget_bytes, st->slot_bytes, st->slots, st->resident, st->hits, st->misses, st->load_bytes, st->evictions, st->failures,
               (double)st->stall_ns * 1e-6, st->read_bytes_per_s, st->queue_depth, st->uring ? "uring" : "threads");
    put_map(out, &info, bits);
    buf_putc(out, '}');
}

static void reply_state(struct exchange *x) {
    const struct server_opts *o = x->server->opts;
    struct offload_stats st;
    struct engine_info info;
    struct buf out;
    if (o->ops->experts == NULL || !o->ops->experts(o->engine, &st)) {
        static const char resident[] = "{\"experts\":\"resident\"}";
        reply_json(x, 200, resident, sizeof resident - 1, NULL);
        return;
    }
    o->ops->info(o->engine, &info);
    uint8_t *bits = arena_zalloc(&x->arena, ((size_t)info.n_layers * info.n_experts + 7) / 8, 1);
    buf_init(&out, LIMIT_METRICS_BYTES);
    if (bits != NULL) {
        o->ops->experts_map(o->engine, bits);
        put_state(&out, o, &st, bits);
    }
    if (bits == NULL || out.failed) refuse(x, 503, "out_of_memory", NULL, "The server is out of memory.");
    else reply_json(x, 200, out.data, out.len, NULL);
    buf_clear(&out);
}

void api_offload_show(struct exchange *x) {
    if (may(x)) reply_state(x);
}

/* "ram" as option ram is written, or a number of bytes. */
static bool read_ram(const cJSON *body, uint64_t *ram) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(body, "ram");
    if (cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble < 9e15) {
        *ram = (uint64_t)v->valuedouble;
        return (double)*ram == v->valuedouble;
    }
    return cJSON_IsString(v) && config_parse_bytes(v->valuestring, ram);
}

void api_offload_set(struct exchange *x) {
    const struct server_opts *o = x->server->opts;
    uint64_t ram = 0;
    struct err e = {0};
    if (!may(x)) return;
    /* A page in a browser can send anything else to a loopback address without asking first. */
    if (x->content_type[0] == '\0') {
        refuse(x, 415, "unsupported_media_type", NULL, "The Content-Type must be application/json.");
        return;
    }
    bool ok = json_prescan(x->body, x->body_len, &LIMITS, &e) == ST_OK;
    cJSON *body = ok ? cJSON_ParseWithLength(x->body, x->body_len) : NULL;
    ok = body != NULL && read_ram(body, &ram);
    cJSON_Delete(body);
    if (!ok) {
        refuse(x, 400, "invalid_value", "ram", e.text[0] != '\0' ? e.text : "ram: expected a number of bytes, or a string such as \"12g\"");
        return;
    }
    int rc = o->ops->resize != NULL ? o->ops->resize(o->engine, ram, &e) : err_set(&e, ST_UNSUPPORTED, "this engine has no expert store");
    if (rc != ST_OK) {
        refuse(x, rc == ST_UNSUPPORTED ? 409 : 400, rc == ST_UNSUPPORTED ? "not_streamed" : "invalid_value", "ram", e.text);
        return;
    }
    log_info("experts", "ceiling set to %" PRIu64 " bytes by POST /admin/offload", ram);
    reply_state(x);
}
