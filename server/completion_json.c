/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON of /v1/completions: the same functions write a whole response and a stream chunk, so the two cannot
 * drift apart. A token whose bytes are not text by themselves is written "bytes:\xNN" in log-probabilities, as
 * OpenAI does: two halves of a character stay different keys. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "model/tokenizer.h"
#include "server/gen.h"
#include "base/utf8.h"

static void put_token(struct buf *out, const struct tokenizer *t, int32_t id) {
    size_t n;
    const char *piece = tokenizer_piece(t, id, &n);

    if (utf8_valid(piece, n)) {
        json_put_string(out, piece, n);
        return;
    }
    buf_puts(out, "\"bytes:");
    for (size_t i = 0; i < n; i++) buf_printf(out, "\\\\x%02x", (uint8_t)piece[i]);
    buf_putc(out, '"');
}

void completion__put_logprob(struct buf *out, float v) {
    json_put_float(out, isfinite(v) ? v : -9999.0f);
}

static bool same_piece(const struct tokenizer *t, int32_t a, int32_t b) {
    size_t na, nb;
    const char *pa = tokenizer_piece(t, a, &na), *pb = tokenizer_piece(t, b, &nb);

    return na == nb && memcmp(pa, pb, na) == 0;
}

/* {"token": logprob} of the best, and of the chosen one when it is not among them. Different ids may share their
 * text: the likelier one keeps the key. */
static void put_top(struct buf *out, const struct tokenizer *t, const struct kern_sampled *s) {
    bool chosen = false;

    buf_putc(out, '{');
    for (int32_t i = 0; i < s->n_top; i++) {
        bool twice = false;
        for (int32_t k = 0; k < i; k++) twice |= same_piece(t, s->top[i].id, s->top[k].id);
        if (twice) continue;
        if (i) buf_putc(out, ',');
        put_token(out, t, s->top[i].id);
        buf_putc(out, ':');
        completion__put_logprob(out, s->top[i].logprob);
        chosen |= same_piece(t, s->top[i].id, s->id);
    }
    if (!chosen) {
        if (s->n_top) buf_putc(out, ',');
        put_token(out, t, s->id);
        buf_putc(out, ':');
        completion__put_logprob(out, s->logprob);
    }
    buf_putc(out, '}');
}

/* Of mark i; NULL for the first token of a prompt, which nothing predicts. */
static const struct kern_sampled *sampled_of(const struct choice *c, uint32_t i) {
    if (i >= c->n_echoed) return &c->req.logprobs[i - c->n_echoed];
    return i ? &c->req.prompt_logprobs[i - 1] : NULL;
}

static void put_logprobs(struct buf *out, const struct choice *c, uint32_t from, uint32_t to) {
    const struct tokenizer *t = c->gen->server->opts->tokenizer;

    buf_puts(out, "{\"tokens\":[");
    for (uint32_t i = from; i < to; i++) {
        if (i > from) buf_putc(out, ',');
        put_token(out, t, i < c->n_echoed ? c->prompt->ids[i] : sampled_of(c, i)->id);
    }
    buf_puts(out, "],\"token_logprobs\":[");
    for (uint32_t i = from; i < to; i++) {
        const struct kern_sampled *s = sampled_of(c, i);
        if (i > from) buf_putc(out, ',');
        if (s) completion__put_logprob(out, s->logprob);
        else buf_puts(out, "null");
    }
    buf_puts(out, "],\"top_logprobs\":[");
    for (uint32_t i = from; i < to; i++) {
        const struct kern_sampled *s = sampled_of(c, i);
        if (i > from) buf_putc(out, ',');
        if (s) put_top(out, t, s);
        else buf_puts(out, "null");
    }
    buf_puts(out, "],\"text_offset\":[");
    for (uint32_t i = from; i < to; i++) buf_printf(out, i > from ? ",%u" : "%u", c->marks[i].chars);
    buf_puts(out, "]}");
}

void completion__put_choice(struct buf *out, const struct choice *c, size_t n_text, uint32_t n_marks) {
    buf_puts(out, "{\"text\":");
    json_put_string(out, c->detok.text.data, n_text);
    buf_printf(out, ",\"index\":%u,\"logprobs\":", c->index);
    if (n_marks > c->n_shown) put_logprobs(out, c, c->n_shown, n_marks);
    else buf_puts(out, "null");
    if (c->finish_reason) buf_printf(out, ",\"finish_reason\":\"%s\"}", c->finish_reason);
    else buf_puts(out, ",\"finish_reason\":null}");
}

void completion__put_usage(struct buf *out, const struct gen *g) {
    buf_printf(out, "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
               g->prompt_tokens, g->completion_tokens, g->prompt_tokens + g->completion_tokens, g->cached_tokens);
}

static void put_phase(struct buf *out, const char *name, uint32_t n, double ms) {
    buf_printf(out, "\"%s_n\":%u,\"%s_ms\":%.3f,\"%s_per_token_ms\":%.3f,\"%s_per_second\":%.3f", name, n, name, ms, name,
               n ? ms / n : 0, name, ms > 0 ? n * 1e3 / ms : 0);
}

static uint64_t get(const _Atomic uint64_t *c) {
    return atomic_load_explicit(c, memory_order_relaxed);
}

/* What the expert store did in the steps of the choices; nothing when every expert is resident. */
static void put_experts(struct buf *out, const struct gen *g) {
    const struct server_opts *o = g->server->opts;
    struct offload_stats st;
    uint64_t hits = 0, misses = 0, bytes = 0, stall_ns = 0;

    if (!o->ops->experts || !o->ops->experts(o->engine, &st)) return;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct request_experts *x = &g->choices[i].req.experts;
        hits += get(&x->hits);
        misses += get(&x->misses);
        bytes += get(&x->load_bytes);
        stall_ns += get(&x->stall_ns);
    }
    buf_printf(out, ",\"experts\":{\"hits\":%" PRIu64 ",\"misses\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"stall_ms\":%.3f}", hits, misses, bytes,
               (double)stall_ns * 1e-6);
}

/* prompt_ms runs from submission to the last choice's start, so it holds the wait in the queue. */
void completion__put_timings(struct buf *out, const struct gen *g) {
    uint64_t last = g->last_token_ns > g->first_start_ns ? g->last_token_ns : g->first_start_ns;

    buf_printf(out, "\"timings\":{\"cache_n\":%u,", g->cached_tokens);
    put_phase(out, "prompt", g->prompt_tokens - g->cached_tokens, (double)(g->last_start_ns - g->submit_ns) * 1e-6);
    buf_putc(out, ',');
    put_phase(out, "predicted", g->completion_tokens, (double)(last - g->first_start_ns) * 1e-6);
    put_experts(out, g);
    if (g->params.lossy) buf_printf(out, ",\"lossy_experts\":\"%s\"", parse_lossy_names[g->params.lossy]);
    buf_putc(out, '}');
}

