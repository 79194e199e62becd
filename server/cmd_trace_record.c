/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed trace record`: one sequence through the engine with its routing written to a file. The prompt is the beginning
 * of a text; the decode steps follow the text while it lasts (routing of written language, the same in every run) and
 * then what the model draws. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "offload/trace.h"
#include "server/cmd_common.h"
#include "server/cmd_trace.h"

enum { SPIN_US = 200, MAX_BATCH = 512 };

struct record_opts {
    const char *model, *text, *out, *repack;
    uint32_t prompt_tokens, tokens, threads, seed;
};

struct record {
    struct record_opts o;
    struct model *model;
    struct tokenizer *tokenizer;
    struct pool *pool;
    struct engine *engine;
    struct trace_writer *trace;
    int32_t *ids;              /* [n_ids + tokens] the text, then what is drawn */
    uint32_t n_ids, n_prompt;
    uint64_t n_dropped;
};

static const char USAGE[] =
    "usage: moed trace record MODEL.gguf -o FILE [options]\n"
    "  --prompt-file F     text that the sequence begins with (default: one token)\n"
    "  --prompt-tokens N   how much of it is computed as a prompt; decode then follows the text to its end, then what the\n"
    "                      model draws (default 256)\n"
    "  --tokens N          decode steps (default 256)\n"
    "  --seed N            of what is drawn, at temperature 1 (default 1)\n"
    "  --threads N         CPU threads (default: physical cores)\n"
    "  --repack on|off     copy weights into the kernels' layout (default on)\n";

static bool parse_option(struct record_opts *o, const char *name, const char *value) {
    if (!strcmp(name, "--prompt-tokens")) return cmd_parse_number(value, 1, 1 << 20, &o->prompt_tokens);
    if (!strcmp(name, "--tokens")) return cmd_parse_number(value, 1, 1 << 20, &o->tokens);
    if (!strcmp(name, "--threads")) return cmd_parse_number(value, 1, 1024, &o->threads);
    if (!strcmp(name, "--seed")) return cmd_parse_number(value, 0, UINT32_MAX, &o->seed);
    if (!strcmp(name, "--prompt-file")) return (o->text = value) != NULL;
    if (!strcmp(name, "-o")) return (o->out = value) != NULL;
    if (!strcmp(name, "--repack")) return (o->repack = value) && (!strcmp(value, "on") || !strcmp(value, "off"));
    return false;
}

/* 0, or the exit code. */
static int parse_args(struct record_opts *o, int argc, char **argv) {
    *o = (struct record_opts){ .repack = "on", .prompt_tokens = 256, .tokens = 256, .seed = 1 };
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-' && !o->model) {
            o->model = argv[i];
        } else if (i + 1 < argc && parse_option(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "moed trace record: bad option or value: %s%s%s\n%s", argv[i], i + 1 < argc ? " " : "",
                    i + 1 < argc ? argv[i + 1] : "", USAGE);
            return 2;
        }
    }
    if (!o->model || !o->out) {
        fprintf(stderr, "%s", USAGE);
        return 2;
    }
    return 0;
}

/* ids: the text, at most the prompt and the decode steps of it; room for all decode steps behind it. */
static int tokenize(struct record *r, struct err *e) {
    char *text = NULL;
    size_t len = 0;
    int st = r->o.text ? cmd_read_text(r->o.text, &text, &len, e) : ST_OK;
    size_t cap = st ? 0 : tokenizer_max_ids(r->tokenizer, len) + 1;
    int64_t n = 0;
    if (!st) {
        r->ids = mem_zalloc(cap + r->o.tokens + 1, sizeof *r->ids);
        n = r->ids ? tokenizer_encode(r->tokenizer, text, len, TOK_ADD_SPECIAL, r->ids, cap) : ST_NOMEM;
    }
    mem_free(text);
    if (st || n < 0) {
        return st ? st : err_set(e, (int)n, "%s: cannot be tokenized: %s", r->o.text ? r->o.text : "", status_name((int)n));
    }
    if (n == 0) {
        r->ids[0] = tokenizer_bos(r->tokenizer) >= 0 ? tokenizer_bos(r->tokenizer) : 0;
        n = 1;
    }
    r->n_prompt = (uint64_t)n < r->o.prompt_tokens ? (uint32_t)n : r->o.prompt_tokens;
    uint32_t most = r->n_prompt + r->o.tokens;
    r->n_ids = (uint64_t)n < most ? (uint32_t)n : most;
    return ST_OK;
}

static int open_engine(struct record *r, struct err *e) {
    struct pool_opts po = { .n_threads = r->o.threads ? (int)r->o.threads : pool_default_threads(), .spin_us = SPIN_US };
    struct trace_info info;
    trace_info_of(r->model, &info);
    if (!info.expert_bytes) {
        return err_set(e, ST_UNSUPPORTED, "%s: a dense model has no routing to record", r->o.model);
    }
    int st = pool_open(&r->pool, &po, e);
    st = st ? st : trace_writer_open(&r->trace, r->o.out, &info, e);
    if (st) {
        return st;
    }
    struct engine_opts eo = {
        .model = r->model, .pool = r->pool, .kern = kern_cpu_ops(kern_cpu_best()), .n_ctx = r->n_prompt + r->o.tokens, .n_seqs = 1,
        .n_running = 1, .max_batch_tokens = r->n_prompt < MAX_BATCH ? r->n_prompt : MAX_BATCH, .repack = !strcmp(r->o.repack, "on"),
        .trace = r->trace,
    };
    return engine_open(&r->engine, &eo, e);
}

/* ids [pos .. pos + n) through the engine; what it draws after them joins the text where the text has ended. */
static int step(struct record *r, uint32_t pos, uint32_t n) {
    const struct kern_sample params = { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = r->o.seed, .n_top_logprobs = -1 };
    const struct batch_item it = {
        .pos = pos, .n_tokens = n, .tokens = r->ids + pos, .sample = pos + n >= r->n_prompt, .params = &params, .history = r->ids,
        .n_history = pos + n, .n_prompt = r->n_prompt, .counter = pos + n - r->n_prompt, .next_token = -1,
    };
    struct kern_sampled drawn = { 0 };
    int st = engine_ops()->step(r->engine, &(struct batch){ &it, 1, n }, &(struct step_out){ .sampled = &drawn });
    if (!st && it.sample && pos + n == r->n_ids) {
        r->ids[r->n_ids++] = drawn.id;
    }
    return st;
}

static int run(struct record *r, struct err *e) {
    uint32_t end = r->n_prompt + r->o.tokens;
    int st = engine_ops()->kv_reserve(r->engine, 0, end);
    for (uint32_t pos = 0, n; !st && pos < r->n_prompt; pos += n) {
        n = r->n_prompt - pos < MAX_BATCH ? r->n_prompt - pos : MAX_BATCH;
        st = step(r, pos, n);
    }
    for (uint32_t pos = r->n_prompt; !st && pos < end; pos++) {
        st = step(r, pos, 1);
    }
    return st ? err_set(e, st, "engine: %s", status_name(st)) : ST_OK;
}

static int record_close(struct record *r, struct err *e) {
    engine_close(r->engine);
    int st = trace_writer_close(r->trace, &r->n_dropped, e);
    pool_close(r->pool);
    tokenizer_close(r->tokenizer);
    model_close(r->model);
    mem_free(r->ids);
    return st;
}

int cmd_trace_record(int argc, char **argv) {
    struct record r = { 0 };
    struct err e = { 0 }, closing = { 0 };
    int code = parse_args(&r.o, argc, argv);
    if (code) {
        return code;
    }
    int st = model_open(&r.model, r.o.model, &e);
    st = st ? st : tokenizer_open(&r.tokenizer, model_gguf(r.model), &e);
    st = st ? st : tokenize(&r, &e);
    st = st ? st : open_engine(&r, &e);
    st = st ? st : run(&r, &e);
    int closed = record_close(&r, &closing);
    if (st || closed) {
        fprintf(stderr, "moed trace record: %s\n", st ? e.text : closing.text);
        return 1;
    }
    printf("%s: %u prompt and %u decoded tokens, %llu steps dropped\n", r.o.out, r.n_prompt, r.o.tokens,
           (unsigned long long)r.n_dropped);
    return 0;
}
