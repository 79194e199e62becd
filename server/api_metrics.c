/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /metrics: Prometheus text exposition 0.0.4. Everything is read from counters the loop thread owns or from atomics;
 * a scrape never waits for the engine and never resets anything. */
#include <inttypes.h>
#include <string.h>

#include "base/version.h"
#include "server/sysinfo.h"
#include "server/transport.h"

enum metric_kind { GAUGE, COUNTER };

static void put(struct buf *out, enum metric_kind kind, const char *name, const char *help, double value) {
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s ", name, help, name, kind == COUNTER ? "counter" : "gauge", name);
    if (value >= 0 && value < 9e15 && value == (double)(uint64_t)value) buf_printf(out, "%" PRIu64 "\n", (uint64_t)value);
    else buf_printf(out, "%.12g\n", value);
}

/* A label value: backslash and quote escaped, as the format asks; what is not printable ASCII may not be UTF-8 either. */
static void put_label(struct buf *out, const char *name, const char *value, const char *end) {
    buf_printf(out, "%s=\"", name);
    for (const char *s = value != NULL ? value : ""; *s != '\0'; s++) {
        if (*s < ' ' || *s > '~') buf_putc(out, '_');
        else if (*s == '\\' || *s == '"') buf_printf(out, "\\%c", *s);
        else buf_putc(out, *s);
    }
    buf_printf(out, "\"%s", end);
}

static void put_info(const struct server *s, struct buf *out) {
    buf_puts(out, "# HELP moed_build_info Constant 1; the labels say what runs.\n# TYPE moed_build_info gauge\nmoed_build_info{");
    put_label(out, "version", MOED_VERSION, "} 1\n");
    buf_puts(out, "# HELP moed_model_info Constant 1; the labels say which model.\n# TYPE moed_model_info gauge\nmoed_model_info{");
    put_label(out, "model", s->opts->model_name, ",");
    put_label(out, "arch", s->opts->arch, ",");
    put_label(out, "file", s->opts->file_name, "} 1\n");
}

static void put_scheduler(const struct sched_stats *st, struct buf *out) {
    put(out, GAUGE, "moed_requests_running", "Sequences in the batch.", st->n_running);
    put(out, GAUGE, "moed_requests_queued", "Sequences waiting for a place in the batch.", st->n_queued);
    put(out, COUNTER, "moed_requests_submitted_total", "Sequences handed to the scheduler.", (double)st->n_submitted);
    buf_printf(out, "# HELP moed_requests_finished_total Sequences that ended, by reason.\n# TYPE moed_requests_finished_total counter\n"
               "moed_requests_finished_total{reason=\"stop\"} %" PRIu64 "\nmoed_requests_finished_total{reason=\"length\"} %" PRIu64 "\n"
               "moed_requests_finished_total{reason=\"cancelled\"} %" PRIu64 "\nmoed_requests_finished_total{reason=\"error\"} %" PRIu64 "\n"
               "moed_requests_finished_total{reason=\"deadline\"} %" PRIu64 "\n",
               st->n_finished_stop, st->n_finished_length, st->n_cancelled, st->n_failed, st->n_expired);
    put(out, COUNTER, "moed_preemptions_total", "Sequences paused because the KV cache was full.", (double)st->n_preempted);
    put(out, COUNTER, "moed_prompt_tokens_total", "Prompt tokens of started sequences, cached ones included.", (double)st->prompt_tokens);
    put(out, COUNTER, "moed_prompt_tokens_cached_total", "Prompt tokens whose KV was reused.", (double)st->cached_tokens);
    put(out, COUNTER, "moed_generation_tokens_total", "Tokens generated.", (double)st->output_tokens);
    put(out, COUNTER, "moed_steps_total", "Engine steps.", (double)st->n_steps);
    put(out, COUNTER, "moed_step_seconds_total", "Time spent in engine steps.", (double)st->step_ns * 1e-9);
    put(out, GAUGE, "moed_step_tokens", "Tokens of the latest step.", st->last_batch_tokens);
    put(out, GAUGE, "moed_cached_sequences", "Finished sequences whose KV is kept for reuse.", st->n_cached_seqs);
    put(out, GAUGE, "moed_engine_failed", "1 after the engine failed.", st->engine_failed);
}

static void put_engine(const struct engine_stats *st, struct buf *out) {
    uint64_t used = st->kv_pages_total - st->kv_pages_free;
    put(out, GAUGE, "moed_kv_usage_ratio", "Share of the KV cache in use, 0 to 1.",
        st->kv_pages_total > 0 ? (double)used / (double)st->kv_pages_total : 0);
    put(out, GAUGE, "moed_kv_pages", "Pages of the KV cache.", (double)st->kv_pages_total);
    put(out, GAUGE, "moed_kv_pages_free", "Of these, free.", (double)st->kv_pages_free);
    put(out, COUNTER, "moed_engine_tokens_total", "Tokens that went through the layers.", (double)st->n_tokens);
    put(out, COUNTER, "moed_expert_rows_total", "(token, expert) pairs computed.", (double)st->moe_rows);
    put(out, COUNTER, "moed_expert_reads_total", "Distinct experts per layer and step, summed.", (double)st->experts_read);
}

/* One sample of a metric that tells tiers apart: there is one tier beside the file. */
static void put_tier(struct buf *out, enum metric_kind kind, const char *name, const char *help, double value) {
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s{tier=\"ram\"} %.12g\n", name, help, name, kind == COUNTER ? "counter" : "gauge", name, value);
}

static void put_prefetch(struct buf *out, const char *name, const char *help, uint64_t useful, uint64_t wasted) {
    buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n%s{tier=\"ram\",result=\"useful\"} %" PRIu64 "\n%s{tier=\"ram\",result=\"wasted\"} %" PRIu64 "\n",
               name, help, name, name, useful, name, wasted);
}

/* The expert store; nothing when every expert is resident. */
static void put_experts(const struct server *s, const struct engine_stats *engine, struct buf *out) {
    struct offload_stats st;
    if (s->opts->ops->experts == NULL || !s->opts->ops->experts(s->opts->engine, &st)) return;
    put_tier(out, COUNTER, "moed_expert_hits_total", "Experts that were there when a layer wanted them.", (double)st.hits);
    put_tier(out, COUNTER, "moed_expert_misses_total", "Experts that had to be read first.", (double)st.misses);
    put_tier(out, COUNTER, "moed_expert_loads_total", "Reads that a layer waited for.", (double)st.loads);
    put_tier(out, COUNTER, "moed_expert_load_bytes_total", "Bytes of these reads.", (double)st.load_bytes);
    put_tier(out, COUNTER, "moed_expert_evictions_total", "Experts that gave way to others.", (double)st.evictions);
    put_prefetch(out, "moed_expert_prefetch_total", "Experts read ahead, by what became of them.", st.prefetch_useful, st.prefetch_wasted);
    put_prefetch(out, "moed_expert_prefetch_bytes_total", "Bytes of these.", st.prefetch_useful_bytes, st.prefetch_wasted_bytes);
    put(out, COUNTER, "moed_expert_guesses_total", "Experts of the next layer foretold.", (double)engine->guesses);
    put(out, COUNTER, "moed_expert_guesses_right_total", "Of these, wanted there.", (double)engine->guesses_right);
    put_tier(out, COUNTER, "moed_expert_read_retries_total", "Reads that failed and were tried again.", (double)st.retries);
    put_tier(out, COUNTER, "moed_expert_read_failures_total", "Experts given up: requests that needed them failed.", (double)st.failures);
    put_tier(out, COUNTER, "moed_expert_stall_seconds_total", "Time the engine had nothing to compute for lack of an expert.", (double)st.stall_ns * 1e-9);
    put_tier(out, GAUGE, "moed_expert_plan_error", "How far predicted times of steps with misses are off, smoothed; 0.1 is 10 %.", st.plan_error);
    put_tier(out, COUNTER, "moed_expert_plan_falls_total", "Times predictions were too far off to read in the planned order.", (double)st.plan_falls);
    put_tier(out, GAUGE, "moed_expert_slots", "Experts that fit.", (double)st.slots);
    put_tier(out, GAUGE, "moed_expert_resident", "Experts that are there.", (double)st.resident);
    put_tier(out, GAUGE, "moed_expert_budget_bytes", "Memory for experts.", (double)st.budget_bytes);
    put_tier(out, GAUGE, "moed_expert_slot_bytes", "Of it, taken by experts.", (double)st.slot_bytes);
    put_tier(out, GAUGE, "moed_expert_read_bytes_per_second", "Speed of the disk, measured while reading.", st.read_bytes_per_s);
}

static void put_process(struct buf *out) {
    struct sys_process p;
    sys_process(&p);
    put(out, GAUGE, "process_resident_memory_bytes", "Resident memory.", (double)p.rss_bytes);
    put(out, GAUGE, "process_virtual_memory_bytes", "Virtual memory.", (double)p.virtual_bytes);
    put(out, COUNTER, "process_cpu_seconds_total", "User and system time.", p.cpu_s);
    put(out, GAUGE, "process_open_fds", "Open file descriptors.", (double)p.open_fds);
    put(out, GAUGE, "process_max_fds", "Limit of open file descriptors.", (double)p.max_fds);
    put(out, GAUGE, "process_start_time_seconds", "Start of the process, Unix time.", p.start_unix_s);
    put(out, GAUGE, "process_threads", "Threads.", (double)p.n_threads);
    buf_printf(out, "# HELP process_page_faults_total Page faults.\n# TYPE process_page_faults_total counter\n"
               "process_page_faults_total{kind=\"major\"} %" PRIu64 "\nprocess_page_faults_total{kind=\"minor\"} %" PRIu64 "\n",
               p.major_faults, p.minor_faults);
}

void api_metrics(struct exchange *x) {
    struct server *s = x->server;
    struct sched_stats st;
    struct buf out;
    sched_stats(s->sched, &st);
    buf_init(&out, LIMIT_METRICS_BYTES);
    put_info(s, &out);
    put_scheduler(&st, &out);
    put_engine(&st.engine, &out);
    put_experts(s, &st.engine, &out);
    http_stats__put(s, &out);
    api_metrics_put(s, &out);
    put_process(&out);
    if (out.failed) reply_error(x, &(struct api_error){.status = 503, .message = "The server is out of memory.", .retry_after_s = 1});
    else reply_text(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.len);
    buf_clear(&out);
}
