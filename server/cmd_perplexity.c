/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed perplexity`: exp of the mean negative log-probability the engine gives each token of a text after the ones
 * before it. The text is cut into windows of `context` tokens, each a sequence of its own; every token but a window's
 * first counts. The engine's prompt_logprobs are used, so what is measured is the path that serves requests.
 * No BOS is added: a window continues a text, and peers given the same ids see the same thing. */
#include "server/cmd_perplexity.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/version.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "server/cmd_common.h"

enum { SPIN_US = 200, MAX_BATCH = 512 };

struct ppl_opts {
    const char *model, *text, *json, *cpu_level, *kv_type, *activations, *repack;
    uint32_t threads, context, tokens;
};

struct ppl {
    struct ppl_opts o;
    struct model *model;
    struct tokenizer *tokenizer;
    struct pool *pool;
    struct engine *engine;
    const struct kern_ops *kern;
    int32_t *ids;                    /* [n_ids] */
    size_t n_ids;
    struct kern_sampled *logprobs;   /* [max_batch_tokens of the engine] */
    double *nll;                     /* [n_windows] sums over the counted positions of each window */
    size_t n_windows;
    double mean_nll;
    uint64_t n_counted;
    double seconds;
};

static const char USAGE[] =
    "usage: moed perplexity MODEL.gguf TEXT [options]\n"
    "  --context N         tokens of a window; every token but its first counts (default 512)\n"
    "  --tokens N          stop after N tokens of the text (default: all)\n"
    "  --threads N         CPU threads (default: physical cores)\n"
    "  --cpu-level L       auto, scalar, avx2, avxvnni, avx512, avx512bf16 or neon\n"
    "  --kv-type T         f16, bf16 or f32\n"
    "  --activations T     q8 or f32: inputs of quantised weights\n"
    "  --repack on|off     copy weights into the kernels' layout (default on)\n"
    "  --json FILE         also write the result as JSON ('-' = stdout instead of the text)\n";

static bool parse_option(struct ppl_opts *o, const char *name, const char *value) {
    if (!strcmp(name, "--threads")) return cmd_parse_number(value, 1, 1024, &o->threads);
    if (!strcmp(name, "--context")) return cmd_parse_number(value, 2, 1 << 20, &o->context);
    if (!strcmp(name, "--tokens")) return cmd_parse_number(value, 2, 1 << 30, &o->tokens);
    const struct { const char *name; const char **to; } strings[] = {
        { "--cpu-level", &o->cpu_level }, { "--kv-type", &o->kv_type }, { "--activations", &o->activations }, { "--json", &o->json },
        { "--repack", &o->repack },
    };
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        if (!strcmp(name, strings[i].name)) {
            *strings[i].to = value;
            return true;
        }
    }
    return false;
}

/* 0, or the exit code. */
static int parse_args(struct ppl_opts *o, int argc, char **argv) {
    *o = (struct ppl_opts){ .cpu_level = "auto", .kv_type = "f16", .activations = "q8", .repack = "on", .context = 512, .tokens = 1u << 30 };
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-' && !o->text) {
            *(o->model ? &o->text : &o->model) = argv[i];
        } else if (i + 1 < argc && parse_option(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "moed perplexity: bad option or value: %s%s%s\n%s", argv[i], i + 1 < argc ? " " : "",
                    i + 1 < argc ? argv[i + 1] : "", USAGE);
            return 2;
        }
    }
    if (strcmp(o->repack, "on") && strcmp(o->repack, "off")) {
        fprintf(stderr, "moed perplexity: --repack: expected on or off, found %s\n", o->repack);
        return 2;
    }
    bool known = !strcmp(o->activations, "q8") || !strcmp(o->activations, "f32");
    if (!known) {
        fprintf(stderr, "moed perplexity: --activations: expected q8 or f32, found %s\n", o->activations);
    } else if (!o->text) {
        fprintf(stderr, "%s", USAGE);
    }
    return known && o->text ? 0 : 2;
}

static int tokenize(struct ppl *p, struct err *e) {
    char *text = NULL;
    size_t len = 0;
    int st = cmd_read_text(p->o.text, &text, &len, e);
    size_t cap = st ? 0 : tokenizer_max_ids(p->tokenizer, len);
    int64_t n = 0;
    if (!st) {
        p->ids = mem_zalloc(cap + 1, sizeof *p->ids);
        n = p->ids ? tokenizer_encode(p->tokenizer, text, len, 0, p->ids, cap) : ST_NOMEM;
    }
    mem_free(text);
    if (n < 0) {
        return err_set(e, (int)n, "%s: cannot be tokenized: %s", p->o.text, status_name((int)n));
    }
    p->n_ids = (size_t)n < p->o.tokens ? (size_t)n : p->o.tokens;
    return !st && p->n_ids < 2 ? err_set(e, ST_INVALID, "%s: expected at least 2 tokens, found %zu", p->o.text, p->n_ids) : st;
}

static int open_engine(struct ppl *p, struct err *e) {
    uint32_t window = p->n_ids < p->o.context ? (uint32_t)p->n_ids : p->o.context;
    struct pool_opts po = { .n_threads = p->o.threads ? (int)p->o.threads : pool_default_threads(), .spin_us = SPIN_US };
    struct engine_opts eo = {
        .model = p->model, .n_ctx = window, .n_seqs = 1, .n_running = 1, .max_batch_tokens = window < MAX_BATCH ? window : MAX_BATCH,
        .exact = !strcmp(p->o.activations, "f32"), .repack = !strcmp(p->o.repack, "on"),
    };
    int st = cmd_pick_level(p->o.cpu_level, &p->kern, e);
    st = st ? st : cmd_pick_kv_type(p->o.kv_type, &eo.kv_type, e);
    st = st ? st : pool_open(&p->pool, &po, e);
    if (st) {
        return st;
    }
    eo.pool = p->pool;
    eo.kern = p->kern;
    p->logprobs = mem_zalloc(eo.max_batch_tokens, sizeof *p->logprobs);
    return p->logprobs ? engine_open(&p->engine, &eo, e) : err_set(e, ST_NOMEM, "out of memory");
}

static void ppl_close(struct ppl *p) {
    engine_close(p->engine);
    pool_close(p->pool);
    tokenizer_close(p->tokenizer);
    model_close(p->model);
    mem_free(p->ids);
    mem_free(p->logprobs);
    mem_free(p->nll);
}

static int run_window(struct ppl *p, const int32_t *ids, uint32_t n, uint32_t max_batch, double *nll) {
    const struct engine_ops *ops = engine_ops();
    int st = ops->kv_reserve(p->engine, 0, n);
    for (uint32_t pos = 0, chunk; !st && pos < n; pos += chunk) {
        chunk = n - pos < max_batch ? n - pos : max_batch;
        bool last = pos + chunk == n;
        struct batch_item it = { .pos = pos, .n_tokens = chunk, .tokens = ids + pos, .prompt_logprobs = p->logprobs,
                                 .next_token = last ? -1 : ids[pos + chunk] };
        st = ops->step(p->engine, &(struct batch){ &it, 1, chunk }, &(struct step_out){ .sampled = NULL });
        for (uint32_t i = 0; !st && i < chunk - last; i++) {
            *nll -= (double)p->logprobs[i].logprob;
        }
    }
    p->n_counted += n - 1;
    ops->kv_free(p->engine, 0);
    return st;
}

static int run_all(struct ppl *p, struct err *e) {
    struct engine_info info;
    engine_ops()->info(p->engine, &info);
    p->nll = mem_zalloc(p->n_ids / p->o.context + 1, sizeof *p->nll);
    int st = p->nll ? ST_OK : ST_NOMEM;
    uint64_t start = clock_mono_ns();
    for (size_t at = 0; !st && at + 1 < p->n_ids; at += p->o.context) {
        size_t left = p->n_ids - at;
        st = run_window(p, p->ids + at, left < p->o.context ? (uint32_t)left : p->o.context, info.max_batch_tokens,
                        &p->nll[p->n_windows++]);
    }
    p->seconds = (double)(clock_mono_ns() - start) * 1e-9;
    for (size_t i = 0; i < p->n_windows; i++) {
        p->mean_nll += p->nll[i] / (double)p->n_counted;
    }
    return st ? err_set(e, st, "engine: %s", status_name(st)) : ST_OK;
}

static void print_json(const struct ppl *p, FILE *f) {
    fprintf(f, "{\"moed\": \"%s\", \"model\": ", MOED_VERSION);
    cmd_json_string(f, p->o.model);
    fprintf(f, ", \"text\": ");
    cmd_json_string(f, p->o.text);
    fprintf(f, ", \"threads\": %d, \"cpu_level\": \"%s\", \"kv_type\": \"%s\", \"activations\": \"%s\", \"context\": %u,\n",
            pool_n_threads(p->pool), p->kern->name, p->o.kv_type, p->o.activations, p->o.context);
    fprintf(f, " \"tokens\": %zu, \"counted\": %" PRIu64 ", \"mean_nll\": %.9f, \"perplexity\": %.6f, \"tokens_per_s\": %.2f,\n \"window_nll\": [",
            p->n_ids, p->n_counted, p->mean_nll, exp(p->mean_nll), (double)p->n_ids / p->seconds);
    for (size_t i = 0; i < p->n_windows; i++) {
        fprintf(f, "%s%.17g", i ? ", " : "", p->nll[i]); /* whole, so that runs can be compared bit for bit */
    }
    fprintf(f, "]}\n");
}

static int report(const struct ppl *p, struct err *e) {
    bool to_stdout = p->o.json && !strcmp(p->o.json, "-");
    if (!to_stdout) {
        printf("perplexity %.4f over %" PRIu64 " of %zu tokens in windows of %u; %.1f tokens/s (%d threads, %s, KV %s, activations %s)\n",
               exp(p->mean_nll), p->n_counted, p->n_ids, p->o.context, (double)p->n_ids / p->seconds,
               pool_n_threads(p->pool), p->kern->name, p->o.kv_type, p->o.activations);
    }
    if (!p->o.json) {
        return ST_OK;
    }
    FILE *f = cmd_json_open(p->o.json, e);
    if (!f) {
        return e->code;
    }
    print_json(p, f);
    return cmd_json_close(f, p->o.json, e);
}

int cmd_perplexity(int argc, char **argv) {
    struct ppl p = { 0 };
    struct err e = { 0 };
    int code = parse_args(&p.o, argc, argv);
    if (code) {
        return code;
    }
    int st = model_open(&p.model, p.o.model, &e);
    st = st ? st : tokenizer_open(&p.tokenizer, model_gguf(p.model), &e);
    st = st ? st : tokenize(&p, &e);
    st = st ? st : open_engine(&p, &e);
    st = st ? st : run_all(&p, &e);
    st = st ? st : report(&p, &e);
    if (st) {
        fprintf(stderr, "moed perplexity: %s\n", e.text);
    }
    ppl_close(&p);
    return st ? 1 : 0;
}
