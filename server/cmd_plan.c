/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed plan`: the engine's own memory plan for a model and a ceiling, and what decoding can reach with it. Nothing is
 * loaded: only the file's header is read. Two speeds bracket what is to be expected: made-up routing in which every
 * expert is as likely as any other, and made-up routing with the reuse measured on a real model; both are replayed
 * with the experts that fit (offload/simulate.h). Neither says more than the link and memory speeds given. */
#include "server/cmd_plan.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "offload/offload.h"
#include "offload/simulate.h"
#include "offload/synth.h"
#include "offload/trace.h"
#include "server/cmd_common.h"

enum { TOKENS = 300, WARM = 150 };

struct plan_opts {
    const char *model, *kv_type, *repack, *experts, *json;
    uint64_t ram, expert_ram;
    uint32_t context, running, batch_tokens, threads;
    double link, dram;
};

struct plan {
    struct plan_opts o;
    struct model *model;
    struct pool *pool;
    struct engine_opts eo;
    struct engine_memory m;
    struct trace_info info;
    uint32_t n_keys, n_slots;        /* experts of all layers, and how many stay in memory */
    struct sim_result uniform, reused;
};

static const char USAGE[] =
    "usage: moed plan MODEL.gguf [options]\n"
    "  --ram SIZE          ceiling of everything, e.g. 24g (default: what is free now less a margin)\n"
    "  --expert-ram SIZE   of it for streamed experts (default: what is left)\n"
    "  --experts WHERE     auto, resident or stream\n"
    "  --context N         tokens of one sequence (default: the model's, or what fits)\n"
    "  --max-running N     sequences decoded together (default 32)\n"
    "  --batch-tokens N    tokens computed in one step (default 512)\n"
    "  --kv-type T         f16, bf16, f32 or q8\n"
    "  --repack on|off     weights in the kernels' layout (default on)\n"
    "  --threads N         CPU threads (default: physical cores)\n"
    "  --link GB/s         what a missing expert is read with (default 3.5)\n"
    "  --dram GB/s         what memory is read with (default 20)\n"
    "  --json FILE         also write the plan as JSON ('-' = stdout instead of the text)\n";

static bool parse_option(struct plan_opts *o, const char *name, const char *value) {
    if (!strcmp(name, "--ram")) return cmd_parse_bytes(value, &o->ram);
    if (!strcmp(name, "--expert-ram")) return cmd_parse_bytes(value, &o->expert_ram);
    if (!strcmp(name, "--context")) return cmd_parse_number(value, 1, 1 << 24, &o->context);
    if (!strcmp(name, "--max-running")) return cmd_parse_number(value, 1, 4096, &o->running);
    if (!strcmp(name, "--batch-tokens")) return cmd_parse_number(value, 1, 1 << 16, &o->batch_tokens);
    if (!strcmp(name, "--threads")) return cmd_parse_number(value, 1, 1024, &o->threads);
    if (!strcmp(name, "--link")) return cmd_parse_double(value, 1e-3, 1e6, &o->link);
    if (!strcmp(name, "--dram")) return cmd_parse_double(value, 1e-3, 1e6, &o->dram);
    if (!strcmp(name, "--json")) return (o->json = value) != NULL;
    if (!strcmp(name, "--kv-type")) return (o->kv_type = value) != NULL;
    if (!strcmp(name, "--repack")) return (o->repack = value) && (!strcmp(value, "on") || !strcmp(value, "off"));
    if (!strcmp(name, "--experts")) return (o->experts = value) && (!strcmp(value, "auto") || !strcmp(value, "resident") || !strcmp(value, "stream"));
    return false;
}

/* 0, or the exit code. */
static int parse_args(struct plan_opts *o, int argc, char **argv) {
    *o = (struct plan_opts){ .kv_type = "f16", .repack = "on", .experts = "auto", .running = 32, .batch_tokens = 512, .link = 3.5, .dram = 20 };
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-' && !o->model) {
            o->model = argv[i];
        } else if (i + 1 < argc && parse_option(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "moed plan: bad option or value: %s%s%s\n%s", argv[i], i + 1 < argc ? " " : "", i + 1 < argc ? argv[i + 1] : "",
                    USAGE);
            return 2;
        }
    }
    if (!o->model) {
        fprintf(stderr, "%s", USAGE);
        return 2;
    }
    return 0;
}

/* The sizes `moed serve` would settle on. */
static int plan_memory(struct plan *p, struct err *e) {
    const struct plan_opts *o = &p->o;
    struct pool_opts po = { .n_threads = o->threads ? (int)o->threads : pool_default_threads() };
    p->eo = (struct engine_opts){
        .model = p->model, .kern = kern_cpu_ops(kern_cpu_best()), .n_ctx = o->context, .n_running = o->running, .n_seqs = 2 * o->running,
        .max_batch_tokens = o->batch_tokens > o->running ? o->batch_tokens : o->running, .ram_bytes = cmd_ram_ceiling(o->ram),
        .repack = !strcmp(o->repack, "on"), .expert_bytes = o->expert_ram,
        .experts = !strcmp(o->experts, "auto") ? ENGINE_EXPERTS_AUTO : !strcmp(o->experts, "stream") ? ENGINE_EXPERTS_STREAM : ENGINE_EXPERTS_RESIDENT,
    };
    int st = cmd_pick_kv_type(o->kv_type, &p->eo.kv_type, e);
    st = st ? st : pool_open(&p->pool, &po, e);
    p->eo.pool = p->pool;
    return st ? st : engine_plan_memory(&p->eo, &p->m, e);
}

static int replay(const struct plan *p, const struct synth_params *params, struct sim_result *out, struct err *e) {
    struct sim *s;
    int st = sim_open_synth(&s, &p->info, params, TOKENS, 1, e);
    if (st) {
        return st;
    }
    struct sim_opts so = { .policy = OFFLOAD_AUTO, .slots = p->n_slots, .link = p->o.link * 1e9, .dram = p->o.dram * 1e9, .warm_steps = WARM };
    st = sim_run(s, &so, out);
    sim_close(s);
    return st ? err_set(e, st, "out of memory") : ST_OK;
}

static int plan(struct plan *p, struct err *e) {
    int st = plan_memory(p, e);
    if (st) {
        return st;
    }
    trace_info_of(p->model, &p->info);
    for (uint32_t i = 0; i < p->info.n_layers; i++) {
        p->n_keys += trace_is_routed(&p->info, i) ? p->info.n_experts : 0;
    }
    if (!p->n_keys) {
        return ST_OK;
    }
    p->n_slots = p->m.experts ? offload_slots(p->model, p->eo.repack, p->m.experts) : p->n_keys;
    if (!p->m.experts) {
        return ST_OK;
    }
    st = replay(p, &SYNTH_UNIFORM, &p->uniform, e);
    return st ? st : replay(p, &SYNTH_QWEN3, &p->reused, e);
}

/* ---- report ---- */

static double bytes_of_experts(const struct plan *p) { return (double)p->info.expert_bytes * p->n_keys; }

/* Decode of one sequence with every weight in memory. */
static double resident_tokens_per_s(const struct plan *p) {
    double layers = p->info.n_experts ? (double)p->n_keys / p->info.n_experts : 0;
    return p->o.dram * 1e9 / ((double)p->info.dense_bytes + layers * p->info.k * (double)p->info.expert_bytes);
}

/* Every expert that is not there once per step of a long prompt. */
static double prompt_tokens_per_s(const struct plan *p) {
    double missing = bytes_of_experts(p) * (1 - (double)p->n_slots / p->n_keys);
    return missing > 0 ? p->eo.max_batch_tokens * p->o.link * 1e9 / missing : 0;
}

static double hit_rate(const struct sim_result *r) { return r->wanted ? (double)r->hits / (double)r->wanted : 0; }
static double tokens_per_s(const struct sim_result *r) { return r->seconds > 0 ? (double)r->tokens / r->seconds : 0; }

static void print_size(const char *what, uint64_t bytes, const char *note) { printf("  %-14s %10.3f GB  %s\n", what, (double)bytes / 1e9, note); }

static void print_memory(const struct plan *p) {
    const struct engine_memory *m = &p->m;
    char note[128];
    printf("memory, at most %.3f GB (%s):\n", (double)p->eo.ram_bytes / 1e9, p->o.ram ? "--ram" : "what is free now less a margin; --ram sets it");
    print_size("weights", m->weights, m->experts ? "without experts" : p->n_keys ? "all experts resident" : "dense");
    snprintf(note, sizeof note, "%u tokens in %s, context %u", m->kv_tokens, p->o.kv_type, m->n_ctx);
    print_size("KV cache", m->kv, note);
    print_size("scratch", m->scratch, "");
    if (m->experts) {
        snprintf(note, sizeof note, "%u of %u stay in memory (%.0f %%), the others are read from the file; at least %.3f GB, all %.3f GB", p->n_slots,
                 p->n_keys, 100.0 * p->n_slots / p->n_keys, (double)m->experts_min / 1e9, (double)m->experts_all / 1e9);
        print_size("experts", m->experts, note);
        print_size("program", m->slack, "what is not planned in detail");
    }
    print_size("together", m->total, "");
}

static void print_speed(const struct plan *p) {
    printf("decode of one sequence, with memory of %.1f GB/s and nothing but its bandwidth counted:\n", p->o.dram);
    printf("  %-30s at most %8.2f tokens/s\n", "every weight in memory", resident_tokens_per_s(p));
    if (p->m.experts) {
        printf("  %-30s about   %8.2f tokens/s  (%.1f %% hits, %.1f MB read a token)\n", "routing with a model's reuse", tokens_per_s(&p->reused),
               100 * hit_rate(&p->reused), p->reused.bytes / (double)p->reused.tokens / 1e6);
        printf("  %-30s about   %8.2f tokens/s  (%.1f %% hits, %.1f MB read a token)\n", "routing at random: the floor", tokens_per_s(&p->uniform),
               100 * hit_rate(&p->uniform), p->uniform.bytes / (double)p->uniform.tokens / 1e6);
        if (prompt_tokens_per_s(p) > 0) {
            printf("  %-30s at most %8.2f tokens/s\n", "a long prompt, link alone", prompt_tokens_per_s(p));
        }
        printf("the link: %.2f GB/s; reuse as published for Qwen3-30B-A3B. moed trace record and moed simulate do the same for your text.\n", p->o.link);
    }
}

static void print_text(const struct plan *p) {
    printf("%s: %s, %u layers\n", p->info.model, model_arch_name(p->model), p->info.n_layers);
    printf("tensors: %.3f GB dense", (double)p->info.dense_bytes / 1e9);
    if (p->n_keys) {
        printf(", %.3f GB of experts: %u of %u in %u layers, %.3f MB each, %.3f MB a layer", bytes_of_experts(p) / 1e9, p->info.k, p->info.n_experts,
               p->n_keys / p->info.n_experts, (double)p->info.expert_bytes / 1e6, (double)p->info.expert_bytes * p->info.n_experts / 1e6);
    }
    printf("\n");
    print_memory(p);
    print_speed(p);
}

static void json_speed(FILE *f, const char *name, const struct sim_result *r) {
    fprintf(f, ",\n \"%s\": {\"hit_rate\": %.6f, \"bytes_per_token\": %.1f, \"tokens_per_s\": %.4f}", name, hit_rate(r), r->bytes / (double)r->tokens,
            tokens_per_s(r));
}

static void print_json(const struct plan *p, FILE *f) {
    const struct engine_memory *m = &p->m;
    fprintf(f, "{\"model\": ");
    cmd_json_string(f, p->o.model);
    fprintf(f, ", \"dense_bytes\": %" PRIu64 ", \"expert_bytes\": %" PRIu64 ", \"experts\": %u, \"experts_in_memory\": %u,\n", p->info.dense_bytes,
            p->info.expert_bytes, p->n_keys, p->n_slots);
    fprintf(f, " \"ram_bytes\": %" PRIu64 ", \"total_bytes\": %" PRIu64 ", \"weight_bytes\": %" PRIu64 ", \"kv_bytes\": %" PRIu64
            ", \"scratch_bytes\": %" PRIu64 ", \"store_bytes\": %" PRIu64 ", \"store_min_bytes\": %" PRIu64 ", \"store_all_bytes\": %" PRIu64
            ", \"context\": %u, \"kv_tokens\": %u,\n", p->eo.ram_bytes, m->total, m->weights, m->kv, m->scratch, m->experts, m->experts_min,
            m->experts_all, m->n_ctx, m->kv_tokens);
    fprintf(f, " \"link_gb_per_s\": %.6g, \"dram_gb_per_s\": %.6g, \"resident_tokens_per_s\": %.4f", p->o.link, p->o.dram, resident_tokens_per_s(p));
    if (m->experts) {
        json_speed(f, "reuse", &p->reused);
        json_speed(f, "random", &p->uniform);
    }
    fprintf(f, "}\n");
}

static int report(const struct plan *p, struct err *e) {
    bool to_stdout = p->o.json && !strcmp(p->o.json, "-");
    if (!to_stdout) {
        print_text(p);
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

int cmd_plan(int argc, char **argv) {
    struct plan p = { 0 };
    struct err e = { 0 };
    int code = parse_args(&p.o, argc, argv);
    if (code) {
        return code;
    }
    int st = model_open(&p.model, p.o.model, &e);
    st = st ? st : plan(&p, &e);
    st = st ? st : report(&p, &e);
    if (st) {
        fprintf(stderr, "moed plan: %s\n", e.text);
    }
    pool_close(p.pool);
    model_close(p.model);
    return st ? 1 : 0;
}
