/* SPDX-License-Identifier: Apache-2.0
 *
 * The state all generating endpoints share: what requests are checked against, the live generations, the histograms. */
#include <inttypes.h>

#include <cjson/cJSON.h>

#include "base/alloc.h"
#include "model/tokenizer.h"
#include "server/gen.h"
#include "server/limits.h"

static const double time_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
static const double token_bounds[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof *(a)))

static int find_eog(struct api *api, const struct tokenizer *t, struct err *e) {
    int32_t n_vocab = tokenizer_n_vocab(t);
    size_t len;

    for (int32_t id = 0; id < n_vocab; id++) {
        tokenizer_piece(t, id, &len);
        if (len > api->env.max_piece_bytes) api->env.max_piece_bytes = (uint32_t)len;
        api->env.n_eog += tokenizer_is_eog(t, id);
    }
    api->eog = mem_zalloc(api->env.n_eog + 1u, sizeof *api->eog);
    if (!api->eog) return err_set(e, ST_NOMEM, "server: no memory for the list of end tokens");
    for (int32_t id = 0, k = 0; id < n_vocab; id++) {
        if (tokenizer_is_eog(t, id)) api->eog[k++] = id;
    }
    api->env.eog = api->eog;
    return 0;
}

/* What a call of one tenant can ever get. */
static uint32_t most_choices(const struct server *s) {
    uint32_t n = sched_most_places(s->sched), queued = s->opts->config->max_queued;

    if (n > queued) n = queued;
    return n < GEN_MAX_CHOICES ? n : GEN_MAX_CHOICES;
}

int api_open(struct server *s, struct err *e) {
    const struct server_opts *o = s->opts;
    struct api *api = mem_zalloc(1, sizeof *api);
    struct engine_info info = {0};

    if (!api) return err_set(e, ST_NOMEM, "server: no memory for the API state");
    o->ops->info(o->engine, &info);
    api->env = (struct parse_env){.tokenizer = o->tokenizer, .model_name = o->model_name, .model_alias = o->config->model_alias,
                                  .n_ctx = info.n_ctx, .n_embd = info.n_embd, .max_n = o->config->max_n, .max_prompts = o->config->max_prompts,
                                  .max_choices = most_choices(s), .chat = o->chat,
                                  .lossy = (uint8_t)parse_lossy(o->config->lossy_experts) /* the option table lets nothing else through */};
    int rc = find_eog(api, o->tokenizer, e);
    static const struct chat_dialect none;
    if (rc == 0) rc = constraint_vocab_open(&api->vocab, o->tokenizer, o->chat ? &o->chat->dialect : &none, e);
    if (rc) {
        mem_free(api->eog);
        mem_free(api);
        return rc;
    }
    /* Once, before any worker runs: the parser's memory is counted like ours. */
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = mem_alloc, .free_fn = mem_free});
    buf_init(&api->scratch, LIMIT_RESPONSE_BYTES);
    hist_init(&api->ttft, time_bounds, COUNT(time_bounds));
    hist_init(&api->itl, time_bounds, COUNT(time_bounds));
    hist_init(&api->e2e, time_bounds, COUNT(time_bounds));
    hist_init(&api->prompt_tokens, token_bounds, COUNT(token_bounds));
    hist_init(&api->output_tokens, token_bounds, COUNT(token_bounds));
    s->api = api;
    return 0;
}

uint32_t api_n_live(const struct server *s) {
    return s->api->n_live;
}

void api_cancel_all(struct server *s) {
    for (struct gen *g = s->api->gens; g; g = g->next) {
        g->cancelled = true;
        gen__cancel(g);
    }
}

/* After sched_stop: no event arrives any more. */
void api_close(struct server *s) {
    if (!s->api) return;
    while (s->api->gens) gen__free(s->api->gens);
    buf_clear(&s->api->scratch);
    grammar_vocab_close(s->api->vocab);
    mem_free(s->api->eog);
    mem_free(s->api);
    s->api = NULL;
}

void api_metrics_put(struct server *s, struct buf *out) {
    const struct api *api = s->api;
    struct mem_stats mem;

    mem_stats(&mem);
    buf_printf(out, "# HELP moed_memory_blocks Heap blocks of our own in use\n# TYPE moed_memory_blocks gauge\nmoed_memory_blocks %" PRIu64 "\n", mem.n_live);
    buf_printf(out, "# HELP moed_generations_live API calls that generate and are not freed yet\n# TYPE moed_generations_live gauge\n"
                    "moed_generations_live %u\n", api->n_live);
    hist_put(&api->ttft, out, "moed_time_to_first_token_seconds", "From the end of the request to a choice's first token");
    hist_put(&api->itl, out, "moed_inter_token_latency_seconds", "Between two tokens of one choice");
    hist_put(&api->e2e, out, "moed_e2e_request_latency_seconds", "From the end of the request to its complete answer");
    hist_put(&api->prompt_tokens, out, "moed_request_prompt_tokens", "Prompt tokens of a finished request");
    hist_put(&api->output_tokens, out, "moed_request_output_tokens", "Generated tokens of a finished request");
}
