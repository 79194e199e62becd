/* SPDX-License-Identifier: Apache-2.0
 *
 * `moed inspect FILE`: what is in a GGUF file, for people. Any well-formed file can be shown; whether this build can
 * serve it, and if not why, is one line of the report. All text from the file is made printable first. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/expert_pack.h"
#include "model/gguf_internal.h"
#include "model/model_internal.h"

enum { N_TYPES = 64, TEXT_BYTES = 72, ARRAY_SHOWN = 4 };

static double mib(uint64_t n_bytes) { return (double)n_bytes / (1 << 20); }

static void print_header(const struct gguf *g, FILE *out) {
    struct gguf_str s = { "(missing)", 9 };
    char text[TEXT_BYTES];
    fprintf(out, "file              %s\n", gguf_file_path(g, 0));
    fprintf(out, "format            GGUF version %u, %u file%s, %.1f MiB\n", gguf_version(g), gguf_n_files(g),
            gguf_n_files(g) == 1 ? "" : "s", mib(gguf_total_bytes(g)));
    gguf_get_str(g, "general.architecture", &s, NULL);
    fprintf(out, "architecture      %s\n", gguf__printable(s, text, sizeof text));
    if (!gguf_get_str(g, "general.name", &s, NULL)) fprintf(out, "name              %s\n", gguf__printable(s, text, sizeof text));
}

static void print_hparams(const struct model *m, FILE *out) {
    static const char *const SCALING[] = { "none", "linear", "yarn" }, *const QK[] = { "none", "per head", "whole row" };
    static const char *const GATING[] = { "?", "softmax", "sigmoid", "softmax over the chosen", "sqrt(softplus)" };
    const struct model_hparams *h = model_hparams(m);
    fprintf(out, "layers            %u\n", h->n_layers);
    fprintf(out, "hidden size       %u\n", h->n_embd);
    fprintf(out, "vocabulary        %u\n", h->n_vocab);
    fprintf(out, "trained context   %u\n", h->n_ctx_train);
    fprintf(out, "attention         %u heads, %u kv heads, head size %u (k) %u (v), scale %g, qk norm %s\n", h->n_heads, h->n_kv_heads,
            h->head_dim_k, h->head_dim_v, (double)h->attn_scale, QK[h->qk_norm]);
    fprintf(out, "rope              %s, %u dimensions, theta %g, scaling %s", h->rope_type == ROPE_NORM ? "adjacent pairs" : "halves",
            h->rope_dim, (double)h->rope_theta, SCALING[h->rope_scaling]);
    if (h->rope_scaling != ROPE_SCALING_NONE) fprintf(out, " x%g", (double)h->rope_factor);
    if (h->rope_scaling == ROPE_SCALING_YARN)
        fprintf(out, " from %u, attention factor %g", h->rope_ctx_orig, (double)h->rope_attn_factor);
    fprintf(out, "%s\n", model_rope_factors(m) ? ", with frequency factors" : "");
    fprintf(out, "rms epsilon       %g\n", (double)h->rms_eps);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        if (model_layer(m, l)->router) continue;
        fprintf(out, "dense ffn         %u\n", h->ff_dim);
        break;
    }
    if (h->n_experts)
        fprintf(out, "router            %s, weights %s, scale %g\n", GATING[h->router_gating], h->router_norm ? "renormalised" : "as they are",
                (double)h->router_scale);
}

/* Experts are what an offloading server moves: their share of the file decides how much memory it needs. */
static void print_experts(const struct model *m, FILE *out) {
    const struct model_hparams *h = model_hparams(m);
    uint64_t total = 0, experts = 0, largest = 0;
    uint32_t n_moe = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(model_gguf(m)); i++) total += gguf_tensor(model_gguf(m), i)->n_bytes;
    for (uint32_t l = 0; l < h->n_layers; l++) {
        if (!model_layer(m, l)->router) continue;
        struct expert x;
        expert_bank_get(m, l, 0, &x);
        uint64_t n_bytes = x.gate.n_bytes + x.up.n_bytes + x.down.n_bytes;
        experts += n_bytes * h->n_experts;
        if (n_bytes > largest) largest = n_bytes;
        n_moe++;
    }
    if (!n_moe) {
        fprintf(out, "experts           none (dense model)\n");
        return;
    }
    if (expert_bank_is_packed(m)) total += experts; /* they are not among the tensors */
    fprintf(out, "experts           %u per layer in %u of %u layers, %u used per token, ffn %u\n", h->n_experts, n_moe, h->n_layers,
            h->n_experts_used, h->expert_ff_dim);
    fprintf(out, "expert bytes      %.3f MiB the largest, %.1f MiB all (%.1f %% of the weights), dense part %.1f MiB\n", mib(largest),
            mib(experts), 100.0 * (double)experts / (double)total, mib(total - experts));
    uint64_t dense = total - experts;
    if (model_output(m) != model_token_embd(m)) dense -= model_token_embd(m)->n_bytes; /* one row of it is read */
    fprintf(out, "read per token    %.1f MiB (dense part and the chosen experts)\n",
            mib(dense + experts / h->n_experts * h->n_experts_used));
}

static void print_pack(const struct model *m, FILE *out) {
    struct expert_pack_info p;
    struct expert_record r = { 0 };
    uint32_t l = 0;
    expert_pack_info(m, &p);
    while (!model_layer(m, l)->router) l++;
    expert_bank_record(m, l, 0, &r);
    fprintf(out, "packed            %" PRIu64 " records from offset %" PRIu64 ", %.1f MiB; the first: %zu bytes, gate at %zu, up at %zu, "
            "down at %zu\n", p.n_records, p.records_at, mib(p.records_bytes), r.n_bytes, r.gate_at, r.up_at, r.down_at);
    fprintf(out, "packed from       %s, %.1f MiB\n", p.source_name, mib(p.source_bytes));
}

static void print_tokenizer(const struct gguf *g, FILE *out) {
    struct gguf_str s = { "(missing)", 9 }, pre = { "", 0 };
    enum gguf_type type;
    uint64_t n = 0;
    char a[TEXT_BYTES], b[TEXT_BYTES];
    gguf_get_str(g, "tokenizer.ggml.model", &s, NULL);
    gguf_get_str(g, "tokenizer.ggml.pre", &pre, NULL);
    gguf_get_array(g, "tokenizer.ggml.tokens", &type, &n, NULL);
    gguf__printable(pre, b, sizeof b);
    fprintf(out, "tokenizer         %s%s%s, %" PRIu64 " tokens\n", gguf__printable(s, a, sizeof a), b[0] ? ", pre " : "", b, n);
}

static void print_types(const struct gguf *g, FILE *out) {
    struct { uint64_t n, elems, n_bytes; } by_type[N_TYPES] = { { 0 } };
    uint64_t elems = 0, n_bytes = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i); /* gguf_open admits only ids of the format table, all below N_TYPES */
        by_type[t->dtype].n++;
        by_type[t->dtype].elems += t->ne[0] * tensor_n_rows(t);
        by_type[t->dtype].n_bytes += t->n_bytes;
        elems += t->ne[0] * tensor_n_rows(t);
        n_bytes += t->n_bytes;
    }
    fprintf(out, "\n%-10s %8s %16s %14s %10s\n", "type", "tensors", "weights", "MiB", "bits/w");
    for (uint32_t type = 0; type < N_TYPES; type++) {
        if (!by_type[type].n) continue;
        fprintf(out, "%-10s %8" PRIu64 " %16" PRIu64 " %14.3f %10.3f%s\n", dtype__known(type)->name, by_type[type].n, by_type[type].elems,
                mib(by_type[type].n_bytes), 8.0 * (double)by_type[type].n_bytes / (double)by_type[type].elems,
                dtype_info(type) ? "" : "  (not supported)");
    }
    if (elems)
        fprintf(out, "%-10s %8" PRIu64 " %16" PRIu64 " %14.3f %10.3f\n", "all", gguf_n_tensors(g), elems, mib(n_bytes),
                8.0 * (double)n_bytes / (double)elems);
}

static void print_element(const struct gguf *g, int key, enum gguf_type elem, uint64_t i, FILE *out) {
    char text[TEXT_BYTES];
    int64_t v = 0;
    float f = 0;
    struct gguf_str s = gguf_array_str(g, key, i);
    if (elem == GGUF_STRING)
        fprintf(out, "\"%s\"%s", gguf__printable(s, text, sizeof text), s.len >= sizeof text ? "..." : "");
    else if (elem == GGUF_F32)
        fprintf(out, "%g", (double)gguf_array_f32(g, key, i));
    else if (!gguf_array_i64(g, key, i, &v))
        fprintf(out, "%" PRId64, v);
    else if (!gguf_get_f32(g, gguf_key(g, key), &f, NULL))
        fprintf(out, "%g", (double)f);
    else
        fprintf(out, "?"); /* u64 above INT64_MAX, or an f64 that is not a float */
}

static void print_keys(const struct gguf *g, FILE *out) {
    fprintf(out, "\n%d keys\n", gguf_n_keys(g));
    for (int i = 0; i < gguf_n_keys(g); i++) {
        enum gguf_type elem = gguf_key_type(g, i);
        uint64_t n = 1;
        fprintf(out, "  %-44s ", gguf_key(g, i));
        if (elem == GGUF_ARRAY) {
            gguf_get_array(g, gguf_key(g, i), &elem, &n, NULL);
            fprintf(out, "[%" PRIu64 " %s] ", n, gguf__type_name(elem));
        }
        for (uint64_t j = 0; j < n && j < ARRAY_SHOWN; j++) {
            if (j) fprintf(out, ", ");
            print_element(g, i, elem, j, out);
        }
        fprintf(out, "%s\n", n > ARRAY_SHOWN ? ", ..." : "");
    }
}

static void print_tensors(const struct gguf *g, FILE *out) {
    fprintf(out, "\n%" PRIu64 " tensors\n", gguf_n_tensors(g));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        char shape[96];
        int at = 0;
        for (uint32_t d = 0; d < t->n_dims; d++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%" PRIu64, d ? " x " : "", t->ne[d]);
        fprintf(out, "  %-44s %-8s %-28s %14zu bytes", t->name, dtype__known(t->dtype)->name, shape, t->n_bytes);
        if (gguf_n_files(g) > 1) fprintf(out, "  file %u", t->file + 1);
        fprintf(out, "\n");
    }
}

int model_inspect(const char *path, FILE *out, struct err *e) {
    struct gguf *g;
    struct model *m;
    struct err why;
    int rc = gguf_open(&g, path, e);
    if (rc) return rc;
    print_header(g, out);
    rc = model__open(&m, g, &why);
    fprintf(out, "this build        %s%s\n", rc ? "cannot serve it: " : "can serve it", rc ? why.text : "");
    if (!rc) {
        print_hparams(m, out);
        print_experts(m, out);
        if (expert_bank_is_packed(m)) print_pack(m, out);
    }
    print_tokenizer(g, out);
    print_types(g, out);
    print_keys(g, out);
    print_tensors(g, out);
    if (m) model_close(m);
    else gguf_close(g);
    return ferror(out) ? err_set(e, ST_IO, "cannot write the report") : ST_OK;
}
