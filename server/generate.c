/* SPDX-License-Identifier: Apache-2.0
 *
 * A call that generates: from body to scheduler and from events to the client, for every choice. What the endpoints do
 * differently is in their struct gen_format.
 *
 *   gen_start -> (worker) parse -> gen_parsed -> build, submit -> api_on_events: started, token, done -> answer
 *
 * Embeddings come the same way without tokens, and a worker writes their answer: numbers are too many for L.
 *
 * Rules that keep this short:
 * - All choices are submitted, or none stays submitted; nothing is sent before the first event (or, of a stream, before
 *   option sse-ping has passed), so a failure until then gets its real status, streaming or not.
 * - A client that goes away at any point only sets `gone` and cancels. Nothing is freed outside gen_settle and the
 *   end of a worker's part, so every function here may send without fearing that its gen disappears under it.
 * - Text leaves detok in the order it becomes safe; a stream takes it chunk by chunk, a whole response at the end,
 *   through the same writer. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "model/tokenizer.h"
#include "server/gen.h"
#include "server/limits.h"

enum { RETRY_AFTER_DRAIN_S = 5 };

#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof *(a)))

/* ---- life of a gen ---- */

static struct gen *gen_new(struct exchange *x, const struct gen_format *format) {
    struct api *api = x->server->api;
    struct gen *g = mem_zalloc(1, sizeof *g);

    if (!g) return NULL;
    g->server = x->server;
    g->x = x;
    g->format = format;
    arena_init(&g->arena, GEN_ARENA_BYTES);
    buf_init(&g->document, LIMIT_RESPONSE_BYTES);
    g->next = api->gens;
    if (g->next) g->next->prev = g;
    api->gens = g;
    api->n_live++;
    return g;
}

/* No choice is with the scheduler. Ends the exchange of a client that went away unanswered. */
void gen__free(struct gen *g) {
    struct api *api = g->server->api;

    if (g->x) exchange_end(g->x);
    for (uint32_t i = 0; i < g->n_choices; i++) {
        detok_clear(&g->choices[i].detok);
        chat_choice_clear(g->choices[i].chat);
        thinking_limit_close(g->choices[i].limit);
        grammar_state_close(g->choices[i].grammar);
    }
    grammar_drop(g->grammar);
    buf_clear(&g->document);
    arena_clear(&g->arena);
    if (g->prev) g->prev->next = g->next;
    else api->gens = g->next;
    if (g->next) g->next->prev = g->prev;
    api->n_live--;
    mem_free(g);
}

/* The exchange is about to be answered: it is the transport's again. */
static struct exchange *gen_detach(struct gen *g) {
    struct exchange *x = g->x;

    x->on_gone = x->on_silent = NULL;
    x->handler = NULL;
    g->x = NULL;
    return x;
}

/* Frees what nobody waits for any more. The last thing each entry point does with a gen. */
static void gen_settle(struct gen *g) {
    if (!g->on_worker && g->n_out == 0 && (g->gone || !g->x)) gen__free(g);
}

void gen__cancel(struct gen *g) {
    for (uint32_t i = 0; i < g->n_choices; i++) {
        if (g->choices[i].with_scheduler) sched_cancel(g->server->sched, &g->choices[i].req);
    }
}

static void gen_on_gone(struct exchange *x) {
    struct gen *g = x->handler;

    g->gone = true;
    gen__cancel(g);
}

/* It has waited so long that its client may think it lost: from here on a failure is an event of the stream. */
static void gen_on_silent(struct exchange *x) {
    const struct gen *g = x->handler;

    if (!g->on_worker && g->params.stream) sse_begin(x);
}

/* ---- failure ---- */

static void gen_answer_error(struct gen *g, const struct api_error *e) {
    struct buf *out = &g->server->api->scratch;

    if (!g->x || g->gone) return;
    if (!g->x->streaming) {
        reply_error(gen_detach(g), e);
        return;
    }
    buf_reset(out);
    if (g->format->events) {
        const char *name = g->format->events->put_error(out, g, e);
        sse_event(g->x, name, out->data, out->len);
        if (!g->gone) sse_close(gen_detach(g));
        return;
    }
    reply_put_error(g->x, out, e);
    sse_data(g->x, out->data, out->len);
    if (!g->gone) sse_end(gen_detach(g));
}

/* One choice failed or was refused, so the call fails. */
static void gen_fail(struct gen *g, int status) {
    struct api_error e = {.status = status_http(status), .type = "server_error", .code = "internal_error",
                          .message = "the engine failed; the server log has the reason"};

    switch (status) {
    case ST_QUEUE_FULL:
        e = (struct api_error){.status = 429, .type = "rate_limit_error", .code = "queue_full",
                               .message = "too many requests are waiting; try again later",
                               .retry_after_s = g->x ? sched_retry_after_s(g->server->sched, g->x->tenant, g->priority) : 0};
        break;
    case ST_SHUTDOWN:
    case ST_CANCELLED:
        e = (struct api_error){.status = 503, .type = "unavailable_error", .code = "shutting_down",
                               .message = "the server is shutting down", .retry_after_s = RETRY_AFTER_DRAIN_S};
        break;
    case ST_NOMEM:
        e = (struct api_error){.status = 503, .type = "unavailable_error", .code = "out_of_memory",
                               .message = "not enough memory for this request", .retry_after_s = RETRY_AFTER_DRAIN_S};
        break;
    case ST_INVALID:
        e = (struct api_error){.status = 400, .type = "invalid_request_error", .code = "context_length_exceeded", .param = "max_tokens",
                               .message = "prompt and completion together need more KV cache than this server has (option kv-tokens)"};
        break;
    case ST_LIMIT:
        e = (struct api_error){.status = 500, .type = "server_error", .code = "response_too_large",
                               .message = "the response grew beyond what this server sends in one piece; stream it or lower max_tokens"};
        break;
    default: break;
    }
    gen__cancel(g);
    gen_answer_error(g, &e);
}

/* An expert that this choice needs cannot be read from the file; others go on. */
static void gen_fail_expert(struct gen *g, const struct event *ev) {
    char text[160];
    snprintf(text, sizeof text, "expert %u of layer %u cannot be read from the model file; the server log has the reason", ev->expert, ev->layer);
    gen__cancel(g);
    gen_answer_error(g, &(struct api_error){.status = status_http(ST_IO), .type = "server_error", .code = "expert_unreadable", .message = text});
}

/* ---- sending ---- */

/* Marks whose text is out with n_ready bytes: a token is shown with its text, never before it. */
static uint32_t marks_ready(const struct choice *c) {
    uint32_t k = c->n_shown, end = detok_shown_end(&c->detok);
    bool all = c->finished && !c->detok.stopped;

    while (c->marks && k < c->n_marks && (all || c->marks[k].bytes < end)) k++;
    return c->marks ? k : 0;
}

/* A chunk with the choice as it is; false when it does not fit. */
static bool send_chunk(struct choice *c, size_t n_text, uint32_t n_marks) {
    struct gen *g = c->gen;
    struct buf *out = &g->server->api->scratch;

    buf_reset(out);
    buf_append(out, g->head, g->head_len);
    buf_puts(out, "\"choices\":[");
    g->format->put_choice(out, c, n_text, n_marks);
    buf_putc(out, ']');
    if (g->params.include_usage) {
        buf_putc(out, ',');
        if (g->params.continuous_usage) g->format->put_usage(out, g);
        else buf_puts(out, "\"usage\":null");
    } else if (g->n_unfinished == 0) {
        buf_putc(out, ',');
        completion__put_timings(out, g);
    }
    buf_putc(out, '}');
    if (!out->failed) sse_data(g->x, out->data, out->len);
    return !out->failed;
}

/* Streams what became safe to show, and the end of the choice. */
static void choice_send(struct choice *c) {
    struct gen *g = c->gen;
    size_t n_text = detok_ready(&c->detok);
    uint32_t n_marks = marks_ready(c);

    if (!g->x || g->gone || !g->x->streaming) return;
    if (n_text == 0 && n_marks <= c->n_shown && !c->finished && !(c->chat && chat_choice_has_news(c))) return;
    if (!(g->format->events ? g->format->events->send(c, n_text) : send_chunk(c, n_text, n_marks))) {
        gen_fail(g, ST_LIMIT);
        return;
    }
    detok_take(&c->detok, n_text);
    if (c->chat) chat_choice_sent(c);
    c->n_shown = n_marks;
}

/* What gen_answer does for an API with documents of its own. */
static void gen_answer_events(struct gen *g, struct buf *out) {
    const struct gen_events *f = g->format->events;
    bool streams = g->x->streaming;

    if (streams && f->end(g)) {
        if (!g->gone) sse_close(gen_detach(g));
        return;
    }
    if (!streams) f->put_whole(out, &g->choices[0], detok_ready(&g->choices[0].detok));
    if (streams || out->failed) gen_fail(g, ST_LIMIT);
    else reply_json(gen_detach(g), 200, out->data, out->len, NULL);
}

static void put_document(struct buf *out, const struct gen *g) {
    buf_append(out, g->head, g->head_len);
    buf_puts(out, "\"choices\":[");
    for (uint32_t i = 0; i < g->n_choices && !g->x->streaming; i++) {
        const struct choice *c = &g->choices[i];
        if (i) buf_putc(out, ',');
        g->format->put_choice(out, c, detok_ready(&c->detok), marks_ready(c));
    }
    buf_puts(out, "],");
    g->format->put_usage(out, g);
    buf_putc(out, ',');
    completion__put_timings(out, g);
    buf_putc(out, '}');
}

static void work_document(uv_work_t *work) {
    struct gen *g = work->data;

    g->format->put_embeddings(&g->document, g);
}

static void document_done(uv_work_t *work, int status) {
    struct gen *g = work->data;

    g->on_worker = false;
    if (status) gen_fail(g, ST_SHUTDOWN);
    else if (g->document.failed) gen_fail(g, ST_LIMIT);
    else if (!g->gone) reply_json(gen_detach(g), 200, g->document.data, g->document.len, NULL);
    gen_settle(g);
}

/* Every choice is finished: the usage chunk and the end of the stream, or the whole response. */
static void gen_answer(struct gen *g) {
    struct buf *out = &g->server->api->scratch;

    if (g->format->put_embeddings) {
        g->on_worker = true;
        if (uv_queue_work(&g->server->loop, &g->work, work_document, document_done) == 0) return;
        g->on_worker = false;
        gen_fail(g, ST_NOMEM);
        return;
    }
    buf_reset(out);
    if (!g->format->events) put_document(out, g);
    if (g->format->events) {
        gen_answer_events(g, out);
    } else if (out->failed) {
        gen_fail(g, ST_LIMIT);
    } else if (!g->x->streaming) {
        reply_json(gen_detach(g), 200, out->data, out->len, NULL);
    } else {
        if (g->params.include_usage) sse_data(g->x, out->data, out->len);
        if (!g->gone) sse_end(gen_detach(g));
    }
    if (out->cap > LIMIT_OUT_SYNC_BYTES) buf_clear(out);
}

static void gen_complete(struct gen *g) {
    struct api *api = g->server->api;
    uint64_t now = clock_mono_ns();

    hist_observe(&api->e2e, (double)(now - g->x->start_ns) * 1e-9);
    hist_observe(&api->prompt_tokens, g->prompt_tokens);
    hist_observe(&api->output_tokens, g->completion_tokens);
    log_debug("api", "%s: %u prompt tokens (%u cached), %u out, %.1f ms", g->x->request_id, g->prompt_tokens,
              g->cached_tokens, g->completion_tokens, (double)(now - g->x->start_ns) * 1e-6);
    gen_answer(g);
}

/* ---- events ---- */

/* Up to n more choices go to the scheduler. */
static int gen_submit(struct gen *g, uint32_t n) {
    int rc = 0;

    for (; n > 0 && g->n_submitted < g->n_choices; n--) {
        struct choice *c = &g->choices[g->n_submitted];
        if ((rc = sched_submit(g->server->sched, &c->req))) break;
        g->n_submitted++;
        c->with_scheduler = true;
        g->n_out++;
    }
    return rc;
}

static void choice_finish(struct choice *c, const char *reason) {
    struct gen *g = c->gen;

    if (c->chat) chat_choice_finish(c);
    if (c->chat && c->chat->reply.failed) {
        gen_fail(g, ST_LIMIT);
        return;
    }
    detok_finish(&c->detok);
    c->finished = true;
    if (c->detok.stopped) reason = "stop"; /* what was held back may have held a stop string */
    c->finish_reason = c->chat && c->chat->reply.n_calls > 0 && strcmp(reason, "stop") == 0 ? "tool_calls" : reason;
    g->n_unfinished--;
    choice_send(c);
    if (g->n_unfinished == 0 && g->x && !g->gone) gen_complete(g);
}

/* The prompt as the client gave it becomes the beginning of the text. With marks, every prompt token gets its place:
 * pieces are matched along the text, so that BOS and the space SentencePiece puts in front take none. */
static void choice_echo(struct choice *c) {
    const struct tokenizer *t = c->gen->server->opts->tokenizer;
    const struct gen_prompt *p = c->prompt;
    struct detok_mark at = {0, 0};
    size_t n, pos = 0;

    for (uint32_t i = 0; i < p->n_ids && (!p->text || c->marks); i++) {
        const char *piece = tokenizer_piece(t, p->ids[i], &n);
        if (!p->text) {
            detok_push(&c->detok, piece, tokenizer_is_control(t, p->ids[i]) ? 0 : n, false, &at);
        } else {
            if (n > 1 && *piece == ' ' && (pos == p->n_bytes || p->text[pos] != ' ')) piece++, n--;
            bool matches = n <= p->n_bytes - pos && memcmp(p->text + pos, piece, n) == 0;
            detok_push(&c->detok, p->text + pos, matches ? n : 0, false, &at);
            pos += matches ? n : 0;
        }
        if (c->marks) c->marks[c->n_marks++] = at;
    }
    if (p->text) detok_push(&c->detok, p->text + pos, p->n_bytes - pos, false, NULL);
}

static void on_started(struct choice *c, const struct event *ev, uint64_t now) {
    struct gen *g = c->gen;

    if (c->started) return; /* a preempted sequence starts again */
    c->started = true;
    c->last_token_ns = now;
    if (g->first_start_ns == 0) g->first_start_ns = now;
    g->last_start_ns = now;
    if (c->index % g->params.n == 0) g->cached_tokens += ev->cached;
    if (!g->x || g->gone) return;
    if (g->params.stream && !g->x->streaming) sse_begin(g->x);
    if (g->params.echo) choice_echo(c);
    choice_send(c);
}

static bool ends_sequence(const struct choice *c, int32_t id) {
    for (uint32_t i = 0; i < c->req.n_stop_ids && !c->req.ignore_eos; i++) {
        if (c->req.stop_ids[i] == id) return true;
    }
    return false;
}

/* Control tokens are no text, unless the reply's syntax is made of them. */
static void choice_take(struct choice *c, int32_t id, bool match, struct detok_mark *at) {
    const struct tokenizer *t = c->gen->server->opts->tokenizer;
    size_t n;
    const char *piece = tokenizer_piece(t, id, &n);

    if (ends_sequence(c, id)) n = 0;
    else if (tokenizer_is_control(t, id) && !(c->chat && chat_reply_wants(&c->chat->reply, piece, n))) n = 0;
    if (c->chat) chat_choice_push(c, piece, n, match, at);
    else detok_push(&c->detok, piece, n, match, at);
}

static void on_token(struct choice *c, const struct event *ev, uint64_t now) {
    struct gen *g = c->gen;
    struct detok_mark at = c->detok.end;

    if (c->finished || !g->x || g->gone) return; /* after a stop string, or nobody listens */
    if (c->n_tokens++ == 0) hist_observe(&g->server->api->ttft, (double)(now - g->x->start_ns) * 1e-9);
    else hist_observe(&g->server->api->itl, (double)(now - c->last_token_ns) * 1e-9);
    c->last_token_ns = g->last_token_ns = now;
    g->completion_tokens++;
    choice_take(c, ev->token, c->n_tokens > g->params.min_tokens, &at);
    if (c->marks) c->marks[c->n_marks++] = at;
    if (c->detok.text.failed || (c->chat && c->chat->reply.failed)) {
        gen_fail(g, ST_LIMIT);
    } else if (c->detok.stopped || (c->chat && chat_choice_is_done(c->chat))) {
        sched_cancel(g->server->sched, &c->req);
        choice_finish(c, "stop");
    } else {
        choice_send(c);
    }
}

/* Its time was over. What there is of the call is shown as cut; with nothing to show it is an error. */
static void gen_expire(struct choice *c) {
    struct gen *g = c->gen;
    struct admission_refusal r;

    if (g->first_start_ns != 0 && !g->params.embeds) {
        choice_finish(c, "length");
        return;
    }
    gen__cancel(g);
    admission_expired(g, &r);
    gen_answer_error(g, &r.error);
}

static void on_done(struct choice *c, const struct event *ev) {
    struct gen *g = c->gen;
    int rc;

    c->with_scheduler = false;
    g->n_out--;
    if (c->finished || !g->x || g->gone) return;
    if (ev->finish == FINISH_LENGTH && g->n_submitted < g->n_choices && (rc = gen_submit(g, 1))) {
        gen_fail(g, rc);
        return;
    }
    switch (ev->finish) {
    case FINISH_STOP: choice_finish(c, "stop"); break;
    case FINISH_LENGTH: choice_finish(c, "length"); break;
    case FINISH_CANCELLED: gen_fail(g, ST_CANCELLED); break;
    case FINISH_DEADLINE: gen_expire(c); break;
    default:
        if (ev->status == ST_IO) gen_fail_expert(g, ev);
        else gen_fail(g, ev->status ? ev->status : ST_INTERNAL);
        break;
    }
}

void api_on_events(struct server *s) {
    struct event ev[64];
    int n;

    while ((n = sched_poll(s->sched, ev, (int)COUNT(ev))) > 0) {
        uint64_t now = clock_mono_ns();
        for (int i = 0; i < n; i++) {
            struct choice *c = ev[i].request->user;
            switch (ev[i].type) {
            case EVENT_STARTED: on_started(c, &ev[i], now); break;
            case EVENT_TOKEN: on_token(c, &ev[i], now); break;
            default:
                on_done(c, &ev[i]);
                gen_settle(c->gen);
                break;
            }
        }
    }
}

/* ---- from parameters to requests ---- */

/* The filters of one sequence: the grammar, and around it the bound on the reasoning. */
static int choice_filter(struct choice *c) {
    struct gen *g = c->gen;
    const struct gen_chat *chat = &g->params.chat;
    struct token_filter f = {0};
    int rc = 0;

    if (g->grammar && (rc = grammar_state_open(&c->grammar, g->grammar)) == 0) f = grammar_state_filter(c->grammar);
    if (rc == 0 && g->params.is_chat && chat->thinking_budget != UINT32_MAX && chat->dialect.think) {
        struct thinking_limit_opts o = {.tokenizer = g->server->opts->tokenizer, .think = chat->dialect.think, .in_reasoning = chat->in_reasoning,
                                        .budget = chat->thinking_budget, .inner = f};
        if ((rc = thinking_limit_open(&c->limit, &o)) == 0) f = thinking_limit_filter(c->limit);
    }
    c->req.filter = f;
    return rc;
}

static int choice_build(struct gen *g, uint32_t index) {
    const struct gen_params *p = &g->params;
    struct choice *c = &g->choices[index];
    struct request *r = &c->req;
    uint32_t j = index % p->n;

    c->gen = g;
    c->index = index;
    c->prompt = &p->prompts[index / p->n];
    detok_init(&c->detok, p->stops, p->n_stops, LIMIT_RESPONSE_BYTES);
    if (p->is_chat && !(c->chat = chat_choice_new(g))) return ST_NOMEM;
    *r = (struct request){.prompt = c->prompt->ids, .n_prompt = c->prompt->n_ids,
                          .max_tokens = parse_room(&g->server->api->env, p, c->prompt),
                          .sample = p->sample, .stop_ids = p->stop_ids, .n_stop_ids = p->n_stop_ids,
                          .ignore_eos = p->ignore_eos, .min_tokens = p->min_tokens, .no_prefix_cache = p->no_prefix_cache, .lossy = p->lossy,
                          .group = g->server->api->last_group, .tenant = g->x->tenant, .weight = g->x->weight,
                          .priority = g->priority, .deadline_ns = g->deadline_ns, .predict_ns = p->max_predict_ms * UINT64_C(1000000), .user = c};
    r->sample.seed += p->seed_given ? j : index;
    if (p->embeds) {
        r->pooling = g->server->opts->pooling;
        r->pooled = arena_zalloc(&g->arena, g->server->api->env.n_embd, sizeof *r->pooled);
        return r->pooled ? 0 : ST_NOMEM;
    }
    int rc = choice_filter(c);
    if (rc || p->sample.n_top_logprobs < 0) return rc;
    c->n_echoed = p->echo ? c->prompt->n_ids : 0;
    r->logprobs = arena_alloc(&g->arena, (size_t)r->max_tokens * sizeof *r->logprobs);
    c->marks = arena_alloc(&g->arena, ((size_t)c->n_echoed + r->max_tokens) * sizeof *c->marks);
    if (c->n_echoed > 1) {
        r->prompt_logprobs = arena_alloc(&g->arena, (size_t)(c->n_echoed - 1) * sizeof *r->prompt_logprobs);
        r->n_prompt_top = p->sample.n_top_logprobs;
        if (!r->prompt_logprobs) return ST_NOMEM;
    }
    return r->logprobs && c->marks ? 0 : ST_NOMEM;
}

/* Log-probabilities are the one thing a small body can ask much memory for. */
static bool logprobs_fit(const struct gen *g) {
    const struct gen_params *p = &g->params;
    uint64_t n = 0;

    if (p->sample.n_top_logprobs < 0) return true;
    for (uint32_t i = 0; i < p->n_prompts; i++)
        n += parse_room(&g->server->api->env, p, &p->prompts[i]) + (uint64_t)(p->echo ? p->prompts[i].n_ids : 0);
    return n * p->n <= GEN_LOGPROB_BYTES / (sizeof(struct kern_sampled) + sizeof(struct detok_mark));
}

/* The beginning all documents of the call share. */
static int make_head(struct gen *g) {
    const struct gen_format *f = g->format;
    struct buf b;
    int rc = ST_NOMEM;

    buf_init(&b, 64 * 1024);
    buf_printf(&b, "{\"id\":\"%s", f->id_prefix);
    buf_puts(&b, g->x->request_id); /* [A-Za-z0-9._-] only */
    buf_printf(&b, "\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", g->params.stream ? f->chunk_object : f->object, clock_unix_s());
    json_put_string(&b, g->server->opts->model_name, strlen(g->server->opts->model_name));
    buf_puts(&b, ",\"system_fingerprint\":\"moed-" MOED_VERSION "\",");
    if (!b.failed && (g->head = arena_strndup(&g->arena, b.data, b.len))) {
        g->head_len = (uint32_t)b.len;
        rc = 0;
    }
    buf_clear(&b);
    return rc;
}

static int gen_build(struct gen *g) {
    const struct gen_params *p = &g->params;
    uint32_t n = p->n_prompts * p->n;

    g->choices = arena_zalloc(&g->arena, n, sizeof *g->choices);
    if (!g->choices) return ST_NOMEM;
    g->server->api->last_group++;
    for (uint32_t i = 0; i < n; i++) {
        g->n_choices = i + 1;
        int rc = choice_build(g, i);
        if (rc) return rc;
    }
    for (uint32_t i = 0; i < p->n_prompts; i++) g->prompt_tokens += p->prompts[i].n_ids;
    g->n_unfinished = n;
    return g->format->events || g->format->put_embeddings ? 0 : make_head(g);
}

static void gen_parsed(struct gen *g, int status) {
    const struct parse_error *pe = &g->error;
    struct admission_refusal refusal;

    g->on_worker = false;
    if (g->gone) {
        gen_settle(g);
        return;
    }
    admission_set_terms(g);
    if (status) {
        gen_answer_error(g, &(struct api_error){.status = pe->status, .code = pe->code, .param = *pe->param ? pe->param : NULL,
                                                .type = pe->status < 500 ? "invalid_request_error" : "unavailable_error",
                                                .message = pe->message, .retry_after_s = pe->status == 503 ? RETRY_AFTER_DRAIN_S : 0});
    } else if (g->cancelled) {
        gen_fail(g, ST_SHUTDOWN);
    } else if (!logprobs_fit(g)) {
        gen_answer_error(g, &(struct api_error){.status = 400, .type = "invalid_request_error", .code = "invalid_value", .param = "logprobs",
                                                .message = "logprobs: so many tokens with log-probabilities need too much memory; lower max_tokens, n or the number of prompts"});
    } else if (admission_check(g, &refusal)) {
        gen_answer_error(g, &refusal.error);
    } else {
        int rc = gen_build(g);
        g->submit_ns = clock_mono_ns();
        /* Many texts to embed must not fill the queue: each that is done makes room for the next. */
        if (rc == 0) rc = gen_submit(g, g->params.embeds ? g->server->opts->config->max_running : g->n_choices);
        if (rc) gen_fail(g, rc);
    }
    gen_settle(g);
}

/* ---- entry ---- */

/* On W, or on L for small bodies: touches params, error and arena, nothing of the server's but api->env. */
static void work_parse(uv_work_t *work) {
    struct gen *g = work->data;

    g->format->parse(&g->server->api->env, g->x->body, g->x->body_len, &g->arena, &g->params, &g->error);
}

static void compile(struct gen *g) {
    const struct constraint *c = &g->params.constraint;
    struct parse_error *pe = &g->error;
    struct err e = {0};

    if (pe->status || c->n_parts == 0) return;
    int rc = constraint_compile(&g->grammar, g->server->api->vocab, c, &g->params.chat.dialect, &e);
    if (rc == 0) return;
    *pe = (struct parse_error){.status = rc == ST_NOMEM ? 503 : 400, .code = rc == ST_NOMEM ? "out_of_memory" : "invalid_value"};
    snprintf(pe->param, sizeof pe->param, "%s", c->param);
    snprintf(pe->message, sizeof pe->message, "%s: %.440s", c->param, e.text);
}

static void work_parse_and_compile(uv_work_t *work) {
    work_parse(work);
    compile(work->data);
}

static void work_compile(uv_work_t *work) {
    compile(work->data);
}

static void work_parsed(uv_work_t *work, int status) {
    struct gen *g = work->data;

    if (status) g->cancelled = true; /* never started: uv_cancel at shutdown */
    gen_parsed(g, g->error.status);
}

void gen_start(struct exchange *x, const struct gen_format *format) {
    struct server *s = x->server;
    struct gen *g;

    if (!(g = gen_new(x, format))) {
        reply_error(x, &(struct api_error){.status = 503, .type = "unavailable_error", .code = "out_of_memory",
                                           .message = "not enough memory for this request", .retry_after_s = RETRY_AFTER_DRAIN_S});
        return;
    }
    x->handler = g;
    x->on_gone = gen_on_gone;
    x->on_silent = gen_on_silent;
    g->on_worker = true;
    g->work.data = g;
    if (x->body_len >= PARSE_INLINE_BYTES && uv_queue_work(&s->loop, &g->work, work_parse_and_compile, work_parsed) == 0) return;
    work_parse(&g->work);
    if (g->error.status == 0 && g->params.constraint.n_parts > 0 && uv_queue_work(&s->loop, &g->work, work_compile, work_parsed) == 0) return;
    compile(g);
    gen_parsed(g, g->error.status);
}
