/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields that every generating endpoint reads, checked one topic after the other; see parse_req.h for the rules. One
 * pass over the members of the body finds the fields; then each topic takes its own by number. cJSON sees only text
 * that json_prescan passed, so it can fail for memory alone, and its one global (an error position) only ever gets
 * the same zeros from every thread. */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/json.h"
#include "base/status.h"
#include "base/utf8.h"
#include "model/tokenizer.h"
#include "scheduler/request.h"
#include "server/parse_internal.h"

enum { C = PARSE_COMPLETION, M = PARSE_CHAT, B = C | M, T = PARSE_TEXT, E = PARSE_EMBEDDING };

static const struct { const char *name; uint8_t endpoints; } field_rows[N_FIELDS] = {
    [F_MODEL] = {"model", B | E}, [F_PROMPT] = {"prompt", C | T}, [F_MESSAGES] = {"messages", M | T}, [F_MAX_TOKENS] = {"max_tokens", B},
    [F_MAX_COMPLETION_TOKENS] = {"max_completion_tokens", B}, [F_MIN_TOKENS] = {"min_tokens", B},
    [F_TEMPERATURE] = {"temperature", B}, [F_TOP_P] = {"top_p", B}, [F_TOP_K] = {"top_k", B}, [F_MIN_P] = {"min_p", B},
    [F_REPETITION_PENALTY] = {"repetition_penalty", B}, [F_REPEAT_PENALTY] = {"repeat_penalty", B},
    [F_FREQUENCY_PENALTY] = {"frequency_penalty", B}, [F_PRESENCE_PENALTY] = {"presence_penalty", B}, [F_SEED] = {"seed", B},
    [F_STOP] = {"stop", B}, [F_STOP_TOKEN_IDS] = {"stop_token_ids", B}, [F_LOGIT_BIAS] = {"logit_bias", B},
    [F_LOGPROBS] = {"logprobs", B}, [F_TOP_LOGPROBS] = {"top_logprobs", M}, [F_N] = {"n", B}, [F_BEST_OF] = {"best_of", C}, [F_ECHO] = {"echo", C},
    [F_IGNORE_EOS] = {"ignore_eos", B}, [F_STREAM] = {"stream", B}, [F_STREAM_OPTIONS] = {"stream_options", B},
    [F_SUFFIX] = {"suffix", C}, [F_CACHE_PROMPT] = {"cache_prompt", B}, [F_LOSSY_EXPERTS] = {"lossy_experts", B},
    [F_PRIORITY] = {"priority", B | E}, [F_TIMEOUT] = {"timeout", B | E}, [F_T_MAX_PREDICT_MS] = {"t_max_predict_ms", B},
    [F_TOOLS] = {"tools", M}, [F_TOOL_CHOICE] = {"tool_choice", M}, [F_PARALLEL_TOOL_CALLS] = {"parallel_tool_calls", M},
    [F_ADD_GENERATION_PROMPT] = {"add_generation_prompt", M}, [F_CONTINUE_FINAL_MESSAGE] = {"continue_final_message", M},
    [F_CHAT_TEMPLATE_KWARGS] = {"chat_template_kwargs", M}, [F_REASONING_EFFORT] = {"reasoning_effort", M},
    [F_ENABLE_THINKING] = {"enable_thinking", M}, [F_THINKING] = {"thinking", M}, [F_THINKING_BUDGET] = {"thinking_token_budget", M},
    [F_RESPONSE_FORMAT] = {"response_format", B}, [F_GRAMMAR] = {"grammar", B}, [F_GUIDED_GRAMMAR] = {"guided_grammar", B}, [F_REGEX] = {"regex", B},
    [F_GUIDED_REGEX] = {"guided_regex", B}, [F_JSON_SCHEMA] = {"json_schema", B}, [F_GUIDED_JSON] = {"guided_json", B}, [F_CHOICE] = {"choice", B},
    [F_GUIDED_CHOICE] = {"guided_choice", B}, [F_STRUCTURED_OUTPUTS] = {"structured_outputs", B},
    [F_CONTENT] = {"content", T}, [F_TOKENS] = {"tokens", T}, [F_ADD_SPECIAL] = {"add_special", T}, [F_ADD_SPECIAL_TOKENS] = {"add_special_tokens", T},
    [F_PARSE_SPECIAL] = {"parse_special", T}, [F_WITH_PIECES] = {"with_pieces", T},
    [F_INPUT] = {"input", E}, [F_ENCODING_FORMAT] = {"encoding_format", E}, [F_DIMENSIONS] = {"dimensions", E},
    [F_REASONING_FORMAT] = {"reasoning_format", M}, [F_INCLUDE_REASONING] = {"include_reasoning", M},
};

const char *parse__field_name(enum field k, unsigned *endpoints) {
    *endpoints = field_rows[k].endpoints;
    return field_rows[k].name;
}

int parse__fail(struct parse *p, const char *param, const char *fmt, ...) {
    char text[480];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->e->status = 400;
    p->e->code = param ? "invalid_value" : NULL;
    snprintf(p->e->param, sizeof p->e->param, "%s", param ? param : "");
    int n = snprintf(p->e->message, sizeof p->e->message, "%s%s%s", param ? param : "", param ? ": " : "", text);
    size_t len = (size_t)n < sizeof p->e->message ? (size_t)n : sizeof p->e->message - 1;
    while (len > 0 && !utf8_valid(p->e->message, len)) p->e->message[--len] = '\0'; /* a client's name, cut inside a character */
    return ST_INVALID;
}

int parse__no_memory(struct parse *p) {
    parse__fail(p, NULL, "not enough memory for this request");
    p->e->status = 503;
    return ST_NOMEM;
}

bool parse__integer(const cJSON *v, int64_t *out) {
    if (!cJSON_IsNumber(v) || !(fabs(v->valuedouble) <= 9007199254740992.0)) return false;
    *out = (int64_t)v->valuedouble;
    return (double)*out == v->valuedouble;
}

int parse__bool(struct parse *p, const cJSON *v, const char *name, bool *out) {
    if (!v || cJSON_IsNull(v)) return 0;
    if (!cJSON_IsBool(v)) return parse__fail(p, name, "must be true or false");
    *out = cJSON_IsTrue(v);
    return 0;
}

int parse__bool_field(struct parse *p, const struct fields *f, enum field k, bool *out) {
    return parse__bool(p, f->v[k], field_rows[k].name, out);
}

static int get_float(struct parse *p, const struct fields *f, enum field k, double lo, double hi, float *out) {
    const cJSON *v = f->v[k];

    if (!v) return 0;
    if (!cJSON_IsNumber(v)) return parse__fail(p, field_rows[k].name, "must be a number");
    if (!(v->valuedouble >= lo && v->valuedouble <= hi))
        return parse__fail(p, field_rows[k].name, "must be between %g and %g", lo, hi);
    *out = (float)v->valuedouble;
    return 0;
}

int parse__u32(struct parse *p, const struct fields *f, enum field k, int64_t lo, int64_t hi, uint32_t *out) {
    const cJSON *v = f->v[k];
    int64_t i;

    if (!v) return 0;
    if (!parse__integer(v, &i)) return parse__fail(p, field_rows[k].name, "must be an integer");
    if (i < lo || i > hi) return parse__fail(p, field_rows[k].name, "must be between %lld and %lld", (long long)lo, (long long)hi);
    *out = (uint32_t)i;
    return 0;
}

/* ---- topics ---- */

int parse__model(struct parse *p, const struct fields *f) {
    const cJSON *v = f->v[F_MODEL];

    if (!v) return 0;
    if (!cJSON_IsString(v)) return parse__fail(p, "model", "must be a string");
    const char *name = v->valuestring, *alias = p->env->model_alias;
    if (!*name || strcmp(name, p->env->model_name) == 0 || (alias && strcmp(name, alias) == 0)) return 0;
    parse__fail(p, "model", "this server has no model of that name; it serves \"%.200s\"", p->env->model_name);
    p->e->status = 404;
    p->e->code = "model_not_found";
    return ST_NOT_FOUND;
}

/* Before the prompt: whether its limit leaves room for a token depends on max_tokens being 0. */
static int take_lengths(struct parse *p, const struct fields *f) {
    struct gen_params *o = p->out;
    uint32_t other = UINT32_MAX;
    int rc;

    o->max_tokens = UINT32_MAX;
    if ((rc = parse__u32(p, f, F_MAX_TOKENS, 0, INT32_MAX, &o->max_tokens))) return rc;
    if ((rc = parse__u32(p, f, F_MAX_COMPLETION_TOKENS, 0, INT32_MAX, &other))) return rc;
    if (other != UINT32_MAX && o->max_tokens != UINT32_MAX && other != o->max_tokens)
        return parse__fail(p, "max_completion_tokens", "differs from max_tokens, which means the same; give one of them");
    if (o->max_tokens == UINT32_MAX) o->max_tokens = other;
    o->max_tokens_given = o->max_tokens != UINT32_MAX;
    if (!o->max_tokens_given) o->max_tokens = p->endpoint == PARSE_CHAT ? INT32_MAX : PARSE_DEFAULT_MAX_TOKENS;
    if ((rc = parse__u32(p, f, F_MIN_TOKENS, 0, INT32_MAX, &o->min_tokens))) return rc;
    if (o->min_tokens > o->max_tokens)
        return parse__fail(p, "min_tokens", "is %u, more than max_tokens, which is %u", o->min_tokens, o->max_tokens);
    return 0;
}

static int take_sampling(struct parse *p, const struct fields *f) {
    struct kern_sample *s = &p->out->sample;
    uint32_t top_k = 0;
    int rc;

    s->temperature = s->top_p = s->repetition_penalty = 1;
    if ((rc = get_float(p, f, F_TEMPERATURE, 0, 2, &s->temperature))) return rc;
    if ((rc = get_float(p, f, F_TOP_P, 0, 1, &s->top_p))) return rc;
    if (s->top_p < FLT_MIN) s->top_p = FLT_MIN; /* 0: the smallest set there is, the best token */
    if ((rc = parse__u32(p, f, F_TOP_K, -1, INT32_MAX, &top_k))) return rc;
    s->top_k = top_k == UINT32_MAX ? 0 : (int32_t)top_k;
    if ((rc = get_float(p, f, F_MIN_P, 0, 1, &s->min_p))) return rc;
    if (f->v[F_REPETITION_PENALTY] && f->v[F_REPEAT_PENALTY])
        return parse__fail(p, "repeat_penalty", "means the same as repetition_penalty; give one of them");
    if ((rc = get_float(p, f, F_REPETITION_PENALTY, 0.01, 10, &s->repetition_penalty))) return rc;
    if ((rc = get_float(p, f, F_REPEAT_PENALTY, 0.01, 10, &s->repetition_penalty))) return rc;
    if ((rc = get_float(p, f, F_FREQUENCY_PENALTY, -2, 2, &s->frequency_penalty))) return rc;
    return get_float(p, f, F_PRESENCE_PENALTY, -2, 2, &s->presence_penalty);
}

/* Digits to int64 with overflow noticed; the sign may be there. */
static bool text_to_int64(const char *s, size_t n, int64_t *out) {
    bool neg = n > 0 && s[0] == '-';
    int64_t v = 0;

    if (n == (size_t)neg) return false;
    for (size_t i = neg; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        int digit = neg ? '0' - s[i] : s[i] - '0';
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, digit, &v)) return false;
    }
    *out = v;
    return true;
}

static int take_seed(struct parse *p, const struct fields *f) {
    const cJSON *v = f->v[F_SEED];
    int64_t seed;

    if (!v) {
        if (getrandom(&p->out->sample.seed, sizeof p->out->sample.seed, 0) != sizeof p->out->sample.seed)
            return parse__no_memory(p);
        return 0;
    }
    if (!cJSON_IsNumber(v)) return parse__fail(p, "seed", "must be an integer");
    if (!text_to_int64(f->raw[F_SEED].value, f->raw[F_SEED].n_value, &seed) && !parse__integer(v, &seed))
        return parse__fail(p, "seed", "must be an integer of 64 bits");
    p->out->sample.seed = (uint64_t)seed;
    p->out->seed_given = true;
    return 0;
}

static int take_one_stop(struct parse *p, const cJSON *v) {
    if (!cJSON_IsString(v)) return parse__fail(p, "stop", "must be a string or a list of strings");
    size_t n = strlen(v->valuestring);
    if (n == 0) return parse__fail(p, "stop", "a stop string must not be empty");
    if (n > DETOK_MAX_STOP_BYTES) return parse__fail(p, "stop", "a stop string has %zu bytes, at most %d are accepted", n, DETOK_MAX_STOP_BYTES);
    const char *text = arena_strndup(p->arena, v->valuestring, n);
    if (!text || detok_stop_init(&p->out->stops[p->out->n_stops], text, n, p->arena)) return parse__no_memory(p);
    p->out->n_stops++;
    return 0;
}

static int take_stop(struct parse *p, const struct fields *f) {
    const cJSON *v = f->v[F_STOP], *item;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 1, rc = 0;

    if (!v) return 0;
    if (n > DETOK_MAX_STOPS) return parse__fail(p, "stop", "has %d strings, at most %d are accepted", n, DETOK_MAX_STOPS);
    p->out->stops = arena_zalloc(p->arena, (size_t)n + 1, sizeof *p->out->stops);
    if (!p->out->stops) return parse__no_memory(p);
    if (!cJSON_IsArray(v)) return take_one_stop(p, v);
    cJSON_ArrayForEach(item, v) {
        if ((rc = take_one_stop(p, item))) return rc;
    }
    return 0;
}

/* What ends a sequence. ignore_eos lifts the vocabulary's end tokens only: with stop_token_ids of the client's own
 * the scheduler's all-or-nothing flag would lift those too, so end tokens are then banned through the bias. */
static int take_stop_ids(struct parse *p, const struct fields *f, bool *ban_eog) {
    const cJSON *v = f->v[F_STOP_TOKEN_IDS], *item;
    const struct parse_env *env = p->env;
    struct gen_params *o = p->out;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 0, rc;
    int32_t n_vocab = tokenizer_n_vocab(env->tokenizer);

    if (v && !cJSON_IsArray(v)) return parse__fail(p, "stop_token_ids", "must be a list of token ids");
    if (n > PARSE_MAX_STOP_IDS) return parse__fail(p, "stop_token_ids", "has %d ids, at most %d are accepted", n, PARSE_MAX_STOP_IDS);
    if ((rc = parse__bool_field(p, f, F_IGNORE_EOS, &o->ignore_eos))) return rc;
    *ban_eog = o->ignore_eos && n > 0;
    int32_t *ids = arena_zalloc(p->arena, (size_t)n + env->n_eog + 1, sizeof *ids);
    if (!ids) return parse__no_memory(p);
    cJSON_ArrayForEach(item, v) {
        int64_t id;
        if (!parse__integer(item, &id) || id < 0 || id >= n_vocab)
            return parse__fail(p, "stop_token_ids", "must be token ids from 0 to %d", n_vocab - 1);
        ids[o->n_stop_ids++] = (int32_t)id;
    }
    for (uint32_t i = 0; i < env->n_eog && !*ban_eog; i++) ids[o->n_stop_ids++] = env->eog[i];
    o->stop_ids = ids;
    if (*ban_eog) o->ignore_eos = false;
    return 0;
}

static int compare_bias(const void *a, const void *b) {
    const struct kern_logit_bias *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static int take_one_bias(struct parse *p, const cJSON *v, struct kern_logit_bias *out) {
    int32_t n_vocab = tokenizer_n_vocab(p->env->tokenizer);
    int64_t id;

    if (!text_to_int64(v->string, strlen(v->string), &id) || id < 0 || id >= n_vocab)
        return parse__fail(p, "logit_bias", "a key is no token id from 0 to %d", n_vocab - 1);
    if (!cJSON_IsNumber(v)) return parse__fail(p, "logit_bias", "the bias of token %lld must be a number", (long long)id);
    if (!(fabs(v->valuedouble) <= 100)) return parse__fail(p, "logit_bias", "the bias of token %lld must be between -100 and 100", (long long)id);
    *out = (struct kern_logit_bias){(int32_t)id, v->valuedouble == -100 ? -INFINITY : (float)v->valuedouble};
    return 0;
}

static int take_bias(struct parse *p, const struct fields *f, bool ban_eog) {
    const cJSON *v = f->v[F_LOGIT_BIAS], *item;
    uint32_t n = v ? (uint32_t)cJSON_GetArraySize(v) : 0, n_ban = ban_eog ? p->env->n_eog : 0, k = 0;
    int rc;

    if (v && !cJSON_IsObject(v)) return parse__fail(p, "logit_bias", "must be an object from token id to bias");
    if (n > PARSE_MAX_BIAS) return parse__fail(p, "logit_bias", "has %u entries, at most %d are accepted", n, PARSE_MAX_BIAS);
    if (n + n_ban == 0) return 0;
    struct kern_logit_bias *bias = arena_zalloc(p->arena, n + n_ban, sizeof *bias);
    if (!bias) return parse__no_memory(p);
    cJSON_ArrayForEach(item, v) {
        if ((rc = take_one_bias(p, item, &bias[k++]))) return rc;
    }
    qsort(bias, n, sizeof *bias, compare_bias);
    for (uint32_t i = 1; i < n; i++) {
        if (bias[i].id == bias[i - 1].id) return parse__fail(p, "logit_bias", "token %d is given twice", bias[i].id);
    }
    for (uint32_t i = 0; i < n_ban; i++) bias[k++] = (struct kern_logit_bias){p->env->eog[i], -INFINITY};
    p->out->sample.bias = bias;
    p->out->sample.n_bias = k;
    return 0;
}

/* Completions have one number, chat a switch and a number. */
static int take_logprobs(struct parse *p, const struct fields *f) {
    uint32_t top = UINT32_MAX;
    bool on = false;
    int rc;

    p->out->sample.n_top_logprobs = -1;
    if (p->endpoint == PARSE_COMPLETION) {
        if ((rc = parse__u32(p, f, F_LOGPROBS, 0, KERN_MAX_TOP_LOGPROBS, &top))) return rc;
        if (top != UINT32_MAX) p->out->sample.n_top_logprobs = (int32_t)top;
        return 0;
    }
    if ((rc = parse__bool_field(p, f, F_LOGPROBS, &on))) return rc;
    if ((rc = parse__u32(p, f, F_TOP_LOGPROBS, 0, KERN_MAX_TOP_LOGPROBS, &top))) return rc;
    if (!on && top != UINT32_MAX && top > 0) return parse__fail(p, "top_logprobs", "needs logprobs to be true");
    if (on) p->out->sample.n_top_logprobs = top == UINT32_MAX ? 0 : (int32_t)top;
    return 0;
}

static int take_choices(struct parse *p, const struct fields *f) {
    const cJSON *suffix = f->v[F_SUFFIX];
    uint32_t best_of;
    int rc;

    p->out->n = 1;
    if ((rc = parse__u32(p, f, F_N, 1, p->env->max_n, &p->out->n))) return rc;
    best_of = p->out->n;
    if ((rc = parse__u32(p, f, F_BEST_OF, 1, INT32_MAX, &best_of))) return rc;
    if (best_of != p->out->n)
        return parse__fail(p, "best_of", "must equal n (%u): drawing more choices than are returned is not supported", p->out->n);
    if ((rc = take_logprobs(p, f))) return rc;
    if (suffix && !cJSON_IsString(suffix)) return parse__fail(p, "suffix", "must be a string");
    if (suffix && *suffix->valuestring) return parse__fail(p, "suffix", "inserting text before a suffix is not supported");
    return 0;
}

static int take_stream(struct parse *p, const struct fields *f) {
    struct gen_params *o = p->out;
    const cJSON *v = f->v[F_STREAM_OPTIONS], *item;
    bool cache = true, seen_usage = false, seen_continuous = false;
    int rc;

    if ((rc = parse__bool_field(p, f, F_ECHO, &o->echo))) return rc;
    if ((rc = parse__bool_field(p, f, F_STREAM, &o->stream))) return rc;
    if ((rc = parse__bool_field(p, f, F_CACHE_PROMPT, &cache))) return rc;
    o->no_prefix_cache = !cache;
    if (!v) return 0;
    if (!cJSON_IsObject(v)) return parse__fail(p, "stream_options", "must be an object");
    if (!o->stream) return parse__fail(p, "stream_options", "is accepted only when stream is true");
    cJSON_ArrayForEach(item, v) {
        bool usage = strcmp(item->string, "include_usage") == 0, continuous = strcmp(item->string, "continuous_usage_stats") == 0;
        if ((usage && seen_usage) || (continuous && seen_continuous)) return parse__fail(p, "stream_options", "a field is given twice");
        seen_usage |= usage;
        seen_continuous |= continuous;
        if (usage && (rc = parse__bool(p, item, "stream_options.include_usage", &o->include_usage))) return rc;
        if (continuous && (rc = parse__bool(p, item, "stream_options.continuous_usage_stats", &o->continuous_usage))) return rc;
    }
    return 0;
}

const char *const parse_lossy_names[4] = {"off", "fewer", "cached", "both"};

int parse_lossy(const char *name) {
    int bits = 3;

    while (bits >= 0 && strcmp(name, parse_lossy_names[bits]) != 0) bits--;
    return bits;
}

static int take_lossy(struct parse *p, const struct fields *f) {
    const char *const *names = parse_lossy_names;
    const cJSON *v = f->v[F_LOSSY_EXPERTS];

    if (!v) return 0;
    const int want = cJSON_IsString(v) ? parse_lossy(v->valuestring) : -1;
    if (want < 0) return parse__fail(p, "lossy_experts", "must be \"off\", \"fewer\", \"cached\" or \"both\"");
    if (want & ~p->env->lossy)
        return parse__fail(p, "lossy_experts", "\"%s\" is not allowed by this server; its option lossy-experts is \"%s\"", names[want], names[p->env->lossy]);
    p->out->lossy = (uint8_t)want;
    return 0;
}

int parse__terms(struct parse *p, const struct fields *f) {
    struct gen_params *o = p->out;
    uint32_t priority = 0;
    float seconds = 0;
    int rc;

    if ((rc = parse__u32(p, f, F_PRIORITY, SCHED_PRIORITY_MIN, SCHED_PRIORITY_MAX, &priority))) return rc;
    o->priority_given = f->v[F_PRIORITY] != NULL;
    o->priority = (int8_t)(int32_t)priority;
    if ((rc = get_float(p, f, F_TIMEOUT, 0.001, 86400, &seconds))) return rc;
    o->timeout_ms = (uint32_t)ceilf(seconds * 1000);
    if ((rc = parse__u32(p, f, F_T_MAX_PREDICT_MS, -1, INT32_MAX, &o->max_predict_ms))) return rc;
    if (o->max_predict_ms == UINT32_MAX) o->max_predict_ms = 0;
    return 0;
}

/* After the prompt: every choice has to fit. */
int parse__room(struct parse *p) {
    const struct gen_params *o = p->out;

    if ((uint64_t)o->n_prompts * o->n > p->env->max_choices)
        return parse__fail(p, o->n > 1 ? "n" : "prompt", "%u prompts with %u choices each are more than the %u choices one request may have",
                           o->n_prompts, o->n, p->env->max_choices);
    for (uint32_t i = 0; i < o->n_prompts && o->max_tokens_given; i++) {
        uint64_t total = (uint64_t)o->prompts[i].n_ids + o->max_tokens;
        if (total <= p->env->n_ctx) continue;
        parse__fail(p, "max_tokens", "%u tokens of prompt and %u of completion are %llu, but the context holds %u", o->prompts[i].n_ids,
                    o->max_tokens, (unsigned long long)total, p->env->n_ctx);
        p->e->code = "context_length_exceeded";
        return ST_INVALID;
    }
    return 0;
}

uint32_t parse_room(const struct parse_env *env, const struct gen_params *p, const struct gen_prompt *prompt) {
    uint32_t left = env->n_ctx - prompt->n_ids;

    return p->max_tokens < left ? p->max_tokens : left;
}

/* ---- the body ---- */

/* The tree and the text are walked side by side: integers beyond 2^53 and floats like 1.0 are only in the text. */
static int collect(struct parse *p, const cJSON *root, const char *body, size_t n, struct fields *f) {
    bool seen[N_FIELDS] = {false};
    struct json_member raw;
    const cJSON *item;
    size_t at = 0;

    cJSON_ArrayForEach(item, root) {
        json_next(body, n, &at, &raw);
        for (int k = 0; k < N_FIELDS; k++) {
            if (!(field_rows[k].endpoints & p->endpoint) || strcmp(item->string, field_rows[k].name) != 0) continue;
            if (seen[k]) return parse__fail(p, field_rows[k].name, "is given twice");
            seen[k] = true;
            f->v[k] = cJSON_IsNull(item) ? NULL : item;
            f->raw[k] = raw;
        }
    }
    return 0;
}

int parse__common(struct parse *p, const struct fields *f) {
    bool ban_eog = false;
    int rc;

    if ((rc = parse__model(p, f))) return rc;
    if ((rc = take_lengths(p, f))) return rc;
    if ((rc = take_sampling(p, f))) return rc;
    if ((rc = take_seed(p, f))) return rc;
    if ((rc = take_stop(p, f))) return rc;
    if ((rc = take_stop_ids(p, f, &ban_eog))) return rc;
    if ((rc = take_bias(p, f, ban_eog))) return rc;
    if ((rc = take_choices(p, f))) return rc;
    if ((rc = take_lossy(p, f))) return rc;
    if ((rc = parse__terms(p, f))) return rc;
    return take_stream(p, f);
}

int parse__body(struct parse *p, const char *body, size_t n_bytes, int (*take)(struct parse *p, const struct fields *f)) {
    static const struct json_limits limits = {PARSE_MAX_DEPTH, PARSE_MAX_NODES};
    struct fields f = {0};
    struct err why;

    *p->e = (struct parse_error){0};
    *p->out = (struct gen_params){0};
    int rc = json_prescan(body, n_bytes, &limits, &why);
    if (rc) {
        parse__fail(p, NULL, "the body is not acceptable JSON: %s", why.text);
        p->e->code = "invalid_json";
        return rc;
    }
    cJSON *root = cJSON_ParseWithLengthOpts(body, n_bytes, NULL, false);
    if (!root) return parse__no_memory(p);
    if (!cJSON_IsObject(root)) {
        rc = parse__fail(p, NULL, "the body must be a JSON object");
        p->e->code = "invalid_json";
    } else {
        rc = collect(p, root, body, n_bytes, &f);
        if (rc == 0) rc = take(p, &f);
    }
    cJSON_Delete(root);
    return rc;
}
