/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client can ask about text without generating any: /tokenize, /detokenize, /apply-template, /props. The work is
 * done on a worker when the body is large, as for the generating endpoints. */
#include <string.h>

#include "base/alloc.h"
#include "base/version.h"
#include "model/tokenizer.h"
#include "server/detok.h"
#include "server/gen.h"
#include "server/limits.h"

struct text_job {
    uv_work_t work;
    struct exchange *x;
    struct arena arena;
    struct buf out;             /* the answer               */
    struct parse_error error;
    bool unfinished;            /* cancelled at shutdown    */
    void (*run)(struct text_job *j, const struct parse_env *env);
};

/* ---- jobs ---- */

static void put_text_member(struct buf *out, const char *name, const char *s, size_t n) {
    buf_printf(out, "\"%s\":", name);
    json_put_string(out, s, n);
}

static void run_tokenize(struct text_job *j, const struct parse_env *env) {
    struct text_params p;
    size_t n;

    if (parse_tokenize(env, j->x->body, j->x->body_len, &j->arena, &p, &j->error)) return;
    buf_printf(&j->out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", p.n_ids, env->n_ctx);
    for (size_t i = 0; i < p.n_ids; i++) {
        if (i) buf_putc(&j->out, ',');
        if (!p.with_pieces) {
            buf_printf(&j->out, "%d", p.ids[i]);
            continue;
        }
        const char *piece = tokenizer_piece(env->tokenizer, p.ids[i], &n);
        buf_printf(&j->out, "{\"id\":%d,", p.ids[i]);
        put_text_member(&j->out, "piece", piece, n);
        buf_putc(&j->out, '}');
    }
    buf_puts(&j->out, "]}");
}

static void run_detokenize(struct text_job *j, const struct parse_env *env) {
    struct text_params p;
    struct detok d;
    size_t n;

    if (parse_detokenize(env, j->x->body, j->x->body_len, &j->arena, &p, &j->error)) return;
    detok_init(&d, NULL, 0, LIMIT_RESPONSE_BYTES);
    for (size_t i = 0; i < p.n_ids; i++) {
        const char *piece = tokenizer_piece(env->tokenizer, p.ids[i], &n);
        detok_push(&d, piece, n, false, NULL);
    }
    detok_finish(&d);
    buf_putc(&j->out, '{');
    put_text_member(&j->out, "content", d.text.data, d.text.len);
    buf_putc(&j->out, ',');
    put_text_member(&j->out, "prompt", d.text.data, d.text.len);
    buf_putc(&j->out, '}');
    if (d.text.failed) j->out.failed = true;
    detok_clear(&d);
}

static void run_template(struct text_job *j, const struct parse_env *env) {
    struct gen_params p;

    if (parse_chat_text(env, j->x->body, j->x->body_len, &j->arena, &p, &j->error)) return;
    buf_putc(&j->out, '{');
    put_text_member(&j->out, "prompt", p.prompts[0].text, p.prompts[0].n_bytes);
    buf_putc(&j->out, '}');
}

static void run_count(struct text_job *j, const struct parse_env *env) {
    struct gen_params p;

    if (parse_messages_tokens(env, j->x->body, j->x->body_len, &j->arena, &p, &j->error)) return;
    buf_printf(&j->out, "{\"input_tokens\":%u}", p.prompts[0].n_ids);
}

/* ---- the frame ---- */

static void finish(struct text_job *j) {
    const struct parse_error *e = &j->error;

    if (j->unfinished) reply_error(j->x, &(struct api_error){.status = 503, .code = "shutting_down", .message = "the server is shutting down", .retry_after_s = 5});
    else if (e->status) reply_error(j->x, &(struct api_error){.status = e->status, .code = e->code, .param = *e->param ? e->param : NULL, .message = e->message,
                                                              .type = e->status < 500 ? "invalid_request_error" : NULL, .retry_after_s = e->status == 503 ? 5 : 0});
    else if (j->out.failed) reply_error(j->x, &(struct api_error){.status = 503, .code = "out_of_memory", .message = "not enough memory for this request", .retry_after_s = 5});
    else reply_json(j->x, 200, j->out.data, j->out.len, NULL);
    buf_clear(&j->out);
    arena_clear(&j->arena);
    mem_free(j);
}

static void work_run(uv_work_t *work) {
    struct text_job *j = work->data;

    j->run(j, &j->x->server->api->env);
}

static void work_done(uv_work_t *work, int status) {
    struct text_job *j = work->data;

    j->unfinished = status != 0;
    finish(j);
}

static void start(struct exchange *x, void (*run)(struct text_job *j, const struct parse_env *env)) {
    struct text_job *j = mem_zalloc(1, sizeof *j);

    if (!j) {
        reply_error(x, &(struct api_error){.status = 503, .code = "out_of_memory", .message = "not enough memory for this request", .retry_after_s = 5});
        return;
    }
    j->x = x;
    j->run = run;
    j->work.data = j;
    arena_init(&j->arena, GEN_ARENA_BYTES);
    buf_init(&j->out, LIMIT_RESPONSE_BYTES);
    if (x->body_len >= PARSE_INLINE_BYTES && uv_queue_work(&x->server->loop, &j->work, work_run, work_done) == 0) return;
    work_run(&j->work);
    finish(j);
}

void api_tokenize(struct exchange *x) { start(x, run_tokenize); }
void api_count_tokens(struct exchange *x) { start(x, run_count); }
void api_detokenize(struct exchange *x) { start(x, run_detokenize); }
void api_apply_template(struct exchange *x) { start(x, run_template); }

/* ---- GET /props ---- */

void api_props(struct exchange *x) {
    const struct server_opts *o = x->server->opts;
    const struct chat_model *m = o->chat;
    const struct parse_env *env = &x->server->api->env;
    struct buf out;

    buf_init(&out, LIMIT_RESPONSE_BYTES);
    buf_putc(&out, '{');
    put_text_member(&out, "model_alias", o->model_name, strlen(o->model_name));
    buf_printf(&out, ",\"build_info\":\"moed-" MOED_VERSION "\",\"total_slots\":%u,\"default_generation_settings\":{\"n_ctx\":%u},\"modalities\":{\"vision\":false,\"audio\":false},",
               o->config->max_running, env->n_ctx);
    put_text_member(&out, "bos_token", m ? m->bos : "", m ? strlen(m->bos) : 0);
    buf_putc(&out, ',');
    put_text_member(&out, "eos_token", m ? m->eos : "", m ? strlen(m->eos) : 0);
    buf_printf(&out, ",\"tool_syntax\":\"%s\",\"reasoning\":%s,", m ? chat_syntax_name(m->dialect.syntax) : "none",
               m && (m->dialect.think || m->dialect.syntax == CHAT_SYNTAX_HARMONY) ? "true" : "false");
    put_text_member(&out, "chat_template", m && m->text ? m->text : "", m ? m->n_text : 0);
    buf_putc(&out, '}');
    if (out.failed) reply_error(x, &(struct api_error){.status = 503, .message = "The server is out of memory.", .retry_after_s = 1});
    else reply_json(x, 200, out.data, out.len, NULL);
    buf_clear(&out);
}
