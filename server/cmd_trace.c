/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed trace show` and `moed trace make`: what a routing trace holds, and one with made-up routing. Recording is in
 * cmd_trace_record.c. */
#include "server/cmd_trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/status.h"
#include "offload/simulate.h"
#include "offload/synth.h"
#include "offload/trace.h"
#include "server/cmd_common.h"

static const char USAGE[] =
    "usage: moed trace record MODEL.gguf -o FILE [options]   run the model, record which experts it chooses\n"
    "       moed trace show FILE                             summary of a trace\n"
    "       moed trace make -o FILE [options]                made-up routing with the statistics of a real model\n"
    "         --layers N --experts N --used N                its shape (default 48, 128, 8: Qwen3-30B-A3B)\n"
    "         --expert-bytes SIZE --dense-bytes SIZE         its sizes (default 2.65m, 1g: that model in 4 bits)\n"
    "         --tokens N --seed N                            decode steps (default 1000), and which of many texts\n"
    "         --like NAME                                    qwen3 (default); popular: the same reuse with more of it fixed\n"
    "                                                        popularity; uniform: none but chance\n";

/* ---- show ---- */

static void show_head(const struct sim *s) {
    const struct trace_info *t = sim_info(s);
    printf("%s: %u of %u experts in %u of %u layers; %.2f MB an expert, %.2f GB of experts, %.2f GB dense\n", t->model, t->k, t->n_experts,
           sim_n_keys(s) / t->n_experts, t->n_layers, (double)t->expert_bytes / 1e6, (double)t->expert_bytes * sim_n_keys(s) / 1e9,
           (double)t->dense_bytes / 1e9);
}

static void show_summary(const struct sim *s, const struct sim_summary *u) {
    printf("decode: %" PRIu64 " steps, %" PRIu64 " tokens; %.2f experts a layer and step\n", u->steps, u->tokens, u->distinct);
    printf("prefill: %" PRIu64 " steps, %" PRIu64 " tokens; %.2f experts a layer and step\n", u->prefill_steps, u->prefill_tokens, u->prefill_distinct);
    printf("reuse in decode: %.1f %% in the next step, %.1f %% within 8; median distance %u steps\n", 100 * u->reuse_next, 100 * u->reuse_8,
           u->median_distance);
    printf("used at all: %u of %u experts (%.1f %%)\n", u->keys_used, sim_n_keys(s), 100.0 * u->keys_used / sim_n_keys(s));
}

/* Hit rates after a quarter of the steps. */
static int show_hits(const struct sim *s, const struct sim_summary *u, struct err *e) {
    static const int policies[] = { OFFLOAD_LRU, OFFLOAD_AUTO, SIM_BELADY }, percents[] = { 10, 25, 50 };
    for (int i = 0; i < 3; i++) {
        printf("hits with %d %% of the experts in memory:", percents[i]);
        for (int p = 0; p < 3; p++) {
            uint32_t slots = (uint32_t)((uint64_t)sim_n_keys(s) * (uint32_t)percents[i] / 100);
            struct sim_opts o = { .policy = policies[p], .slots = slots ? slots : 1, .link = 1, .dram = 1, .warm_steps = (uint32_t)(u->steps / 4) };
            struct sim_result r;
            int st = sim_run(s, &o, &r);
            if (st) {
                return err_set(e, st, "out of memory");
            }
            printf("%s %s %.1f %%", p ? "," : "", sim_policy_name(policies[p]), r.wanted ? 100.0 * (double)r.hits / (double)r.wanted : 0.0);
        }
        printf("\n");
    }
    return ST_OK;
}

static int show(const char *path) {
    struct err e = { 0 };
    struct trace *t = NULL;
    struct sim *s = NULL;
    struct sim_summary u;
    int st = trace_open(&t, path, &e);
    st = st ? st : sim_open(&s, t, &e);
    if (!st && (st = sim_summarize(s, &u))) {
        err_set(&e, st, "out of memory");
    }
    if (!st) {
        show_head(s);
        show_summary(s, &u);
        printf(trace_end(t)->present ? "dropped while recording: %u steps\n" : "the recording was cut\n", trace_end(t)->n_dropped);
        st = u.steps ? show_hits(s, &u, &e) : ST_OK;
    }
    if (st) {
        fprintf(stderr, "moed trace show: %s\n", e.text);
    }
    sim_close(s);
    trace_close(t);
    return st ? 1 : 0;
}

/* ---- make ---- */

struct make_opts { const char *out; const struct synth_params *like; struct synth_shape shape; uint64_t expert_bytes, dense_bytes; uint32_t tokens, seed; };

static const struct synth_params *params_of(const char *name) {
    return !strcmp(name, "qwen3") ? &SYNTH_QWEN3 : !strcmp(name, "popular") ? &SYNTH_POPULAR : !strcmp(name, "uniform") ? &SYNTH_UNIFORM : NULL;
}

static bool parse_make(struct make_opts *o, const char *name, const char *value) {
    if (!strcmp(name, "-o")) return (o->out = value) != NULL;
    if (!strcmp(name, "--like")) return (o->like = params_of(value)) != NULL;
    if (!strcmp(name, "--layers")) return cmd_parse_number(value, 1, TRACE_MAX_LAYERS, &o->shape.n_layers);
    if (!strcmp(name, "--experts")) return cmd_parse_number(value, 1, TRACE_MAX_EXPERTS, &o->shape.n_experts);
    if (!strcmp(name, "--used")) return cmd_parse_number(value, 1, TRACE_MAX_EXPERTS, &o->shape.k);
    if (!strcmp(name, "--tokens")) return cmd_parse_number(value, 1, 1 << 24, &o->tokens);
    if (!strcmp(name, "--seed")) return cmd_parse_number(value, 0, UINT32_MAX, &o->seed);
    if (!strcmp(name, "--expert-bytes")) return cmd_parse_bytes(value, &o->expert_bytes);
    if (!strcmp(name, "--dense-bytes")) return cmd_parse_bytes(value, &o->dense_bytes);
    return false;
}

static void write_token(struct trace_writer *w, const struct synth_shape *x, const int32_t *ids) {
    for (uint32_t l = 0; l < x->n_layers; l++) { /* one row is written in order: no counts are needed */
        trace_write(w, &(struct trace_routing){ .layer = l, .n_tokens = 1, .n_rows = 1, .ids = ids + l * x->k });
    }
}

static int make_file(const struct make_opts *o, struct err *e) {
    struct trace_info info = { .n_layers = o->shape.n_layers, .n_experts = o->shape.n_experts, .k = o->shape.k, .expert_bytes = o->expert_bytes,
                               .dense_bytes = o->dense_bytes, .model = "made up" };
    struct synth *s = NULL;
    struct trace_writer *w = NULL;
    memset(info.routed, 0xff, (info.n_layers + 7) / 8);
    int st = synth_open(&s, &o->shape, o->like, o->seed, e);
    int32_t *ids = st ? NULL : mem_zalloc((size_t)info.n_layers * info.k, sizeof *ids);
    if (!st && !ids) {
        st = err_set(e, ST_NOMEM, "out of memory");
    }
    st = st ? st : trace_writer_open(&w, o->out, &info, e);
    for (uint32_t t = 0; !st && t < o->tokens; t++) {
        synth_token(s, ids);
        write_token(w, &o->shape, ids);
    }
    uint64_t n_dropped = 0;
    int closed = trace_writer_close(w, &n_dropped, st ? NULL : e);
    mem_free(ids);
    synth_close(s);
    st = st ? st : closed;
    return !st && n_dropped ? err_set(e, ST_IO, "%s: the disk is too slow, %" PRIu64 " steps are missing", o->out, n_dropped) : st;
}

static int make(int argc, char **argv) {
    struct make_opts o = { .like = &SYNTH_QWEN3, .shape = { 48, 128, 8 }, .expert_bytes = 2650000, .dense_bytes = UINT64_C(1) << 30, .tokens = 1000, .seed = 1 };
    struct err e = { 0 };
    for (int i = 0; i < argc; i += 2) {
        if (i + 1 == argc || !parse_make(&o, argv[i], argv[i + 1])) {
            fprintf(stderr, "moed trace make: bad option or value: %s\n%s", argv[i], USAGE);
            return 2;
        }
    }
    if (!o.out) {
        fputs(USAGE, stderr);
        return 2;
    }
    if (make_file(&o, &e)) {
        fprintf(stderr, "moed trace make: %s\n", e.text);
        return 1;
    }
    printf("%s: %u tokens\n", o.out, o.tokens);
    return 0;
}

int cmd_trace(int argc, char **argv) {
    if (argc >= 1 && !strcmp(argv[0], "record")) {
        return cmd_trace_record(argc - 1, argv + 1);
    }
    if (argc >= 1 && !strcmp(argv[0], "make")) {
        return make(argc - 1, argv + 1);
    }
    if (argc == 2 && !strcmp(argv[0], "show") && argv[1][0] != '-') {
        return show(argv[1]);
    }
    fputs(USAGE, stderr);
    return 2;
}
