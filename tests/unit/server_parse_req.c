/* SPDX-License-Identifier: Apache-2.0
 *
 * The completions body: for every field what is accepted, what it becomes, and for everything else the status, the
 * code and the field named. */
#include <cjson/cJSON.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "server/parse_req.h"
#include "tests/unit/fake_tokenizer.h"
#include "tests/unit/test.h"

static const struct tokenizer with_bos = {.bos = true}, without_bos = {.bos = false};
static const int32_t eog[] = {FAKE_EOS};

static struct parse_env env_of(const struct tokenizer *t) {
    return (struct parse_env){.tokenizer = t, .model_name = "demo", .model_alias = "alias", .n_ctx = 100, .max_n = 4, .max_prompts = 5, .max_choices = 12,
                              .max_piece_bytes = 6, .eog = eog, .n_eog = 1};
}

struct got { struct arena arena; struct gen_params p; struct parse_error e; int rc; };

static void parse_n(struct got *g, const struct tokenizer *t, const char *body, size_t n) {
    struct parse_env env = env_of(t);
    arena_init(&g->arena, 1 << 20);
    g->rc = parse_completion(&env, body, n, &g->arena, &g->p, &g->e);
}

/* Parses {"prompt":"hi", ...more}. */
static struct got field(const char *more) {
    struct got g;
    char body[8192];
    snprintf(body, sizeof body, "{\"prompt\":\"hi\"%s%s}", *more ? "," : "", more);
    parse_n(&g, &with_bos, body, strlen(body));
    return g;
}

#define OK(g) CHECKF((g).rc == 0, "%s", (g).e.message)
#define END(g) arena_clear(&(g).arena)

TEST(defaults) {
    struct got g = field("");
    OK(g);
    const struct kern_sample *s = &g.p.sample;
    CHECK(g.p.n == 1 && g.p.n_prompts == 1 && g.p.max_tokens == 16 && !g.p.max_tokens_given && g.p.min_tokens == 0);
    CHECK(s->temperature == 1 && s->top_p == 1 && s->top_k == 0 && s->min_p == 0 && s->repetition_penalty == 1 && s->frequency_penalty == 0);
    CHECK(s->presence_penalty == 0 && s->n_bias == 0 && s->n_top_logprobs == -1 && !s->allowed && !g.p.seed_given);
    CHECK(g.p.n_stops == 0 && g.p.n_stop_ids == 1 && g.p.stop_ids[0] == FAKE_EOS);
    CHECK(!g.p.echo && !g.p.stream && !g.p.include_usage && !g.p.continuous_usage && !g.p.ignore_eos && !g.p.no_prefix_cache);
    CHECK(g.p.prompts[0].n_ids == 3 && g.p.prompts[0].ids[0] == FAKE_BOS && g.p.prompts[0].ids[1] == 'h' && !g.p.prompts[0].text);
    struct got other = field("");
    CHECK(other.p.sample.seed != g.p.sample.seed);
    END(other);
    END(g);
}

static const char *const known[] = {"model", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "repeat_penalty", "frequency_penalty", "presence_penalty", "seed", "stop", "stop_token_ids", "logit_bias", "logprobs", "n", "best_of", "echo",
    "ignore_eos", "stream", "stream_options", "suffix", "cache_prompt", "lossy_experts", "priority", "t_max_predict_ms", "timeout"};
enum { N_KNOWN = sizeof known / sizeof *known };

TEST(null_is_absent) {
    char more[2000] = "";
    size_t n = 0;
    for (int i = 0; i < N_KNOWN; i++) n += (size_t)snprintf(more + n, sizeof more - n, "%s\"%s\":null", i ? "," : "", known[i]);
    struct got g = field(more);
    OK(g);
    CHECK(g.p.max_tokens == 16 && g.p.n == 1 && !g.p.seed_given && g.p.sample.temperature == 1);
    END(g);
}

/* Every field with every JSON type it does not take: 400 naming it. */
TEST(wrong_types_name_the_field) {
    static const char *const value[] = {"\"x\"", "1.5", "true", "[true]", "{\"a\":1}"};
    static const char *const takes[N_KNOWN][3] = {
        [0] = {"\"x\""}, [4] = {"1.5"}, [5] = {"1.5"}, [7] = {"1.5"}, [8] = {"1.5"}, [9] = {"1.5"}, [10] = {"1.5"}, [11] = {"1.5"},
        [13] = {"\"x\""}, [19] = {"true"}, [20] = {"true"}, [21] = {"true"}, [23] = {"\"x\""}, [24] = {"true"}, [28] = {"1.5"},
    };
    for (int i = 0; i < N_KNOWN; i++) {
        for (int v = 0; v < 5; v++) {
            if (takes[i][0] && strcmp(takes[i][0], value[v]) == 0) continue;
            char more[100];
            snprintf(more, sizeof more, "\"%s\":%s", known[i], value[v]);
            struct got g = field(more);
            CHECKF(g.rc == ST_INVALID && g.e.status == 400, "%s", more);
            CHECKF(strcmp(g.e.param, known[i]) == 0, "%s blames %s", more, g.e.param);
            CHECKF(g.e.code && strcmp(g.e.code, "invalid_value") == 0, "%s", more);
            CHECKF(strncmp(g.e.message, known[i], strlen(known[i])) == 0, "%s: %s", more, g.e.message);
            END(g);
        }
    }
}

/* Bounds: the last accepted and the first refused value on both sides. */
TEST(ranges) {
    static const struct { const char *more; bool ok; } v[] = {
        {"\"max_tokens\":0", true}, {"\"max_tokens\":-1", false}, {"\"max_tokens\":97", true}, {"\"max_tokens\":98", false}, {"\"max_tokens\":5.0", true},
        {"\"max_tokens\":5.5", false}, {"\"max_tokens\":2147483647", false}, {"\"max_tokens\":2147483648", false}, {"\"max_tokens\":9007199254740993", false},
        {"\"max_tokens\":1e999", false}, {"\"max_completion_tokens\":7", true}, {"\"max_tokens\":7,\"max_completion_tokens\":7", true},
        {"\"max_tokens\":7,\"max_completion_tokens\":8", false}, {"\"max_tokens\":null,\"max_completion_tokens\":8", true},
        {"\"min_tokens\":16", true}, {"\"min_tokens\":17", false}, {"\"min_tokens\":-1", false}, {"\"min_tokens\":20,\"max_tokens\":20", true},
        {"\"temperature\":0", true}, {"\"temperature\":2", true}, {"\"temperature\":2.0001", false}, {"\"temperature\":-0.1", false}, {"\"temperature\":1e999", false},
        {"\"top_p\":0", true}, {"\"top_p\":1", true}, {"\"top_p\":1.01", false}, {"\"top_p\":-0.01", false},
        {"\"top_k\":-1", true}, {"\"top_k\":0", true}, {"\"top_k\":2147483647", true}, {"\"top_k\":2147483648", false}, {"\"top_k\":-2", false},
        {"\"min_p\":0", true}, {"\"min_p\":1", true}, {"\"min_p\":1.1", false},
        {"\"repetition_penalty\":0", false}, {"\"repetition_penalty\":10", true}, {"\"repetition_penalty\":10.1", false},
        {"\"repetition_penalty\":1.1,\"repeat_penalty\":1.1", false},
        {"\"frequency_penalty\":-2", true}, {"\"frequency_penalty\":2.1", false}, {"\"presence_penalty\":2", true}, {"\"presence_penalty\":-2.1", false},
        {"\"n\":4", true}, {"\"n\":5", false}, {"\"n\":0", false}, {"\"best_of\":1", true}, {"\"best_of\":2", false}, {"\"n\":2,\"best_of\":1", false},
        {"\"n\":2,\"best_of\":2", true}, {"\"n\":2,\"best_of\":3", false}, {"\"logprobs\":0", true}, {"\"logprobs\":20", true}, {"\"logprobs\":21", false},
        {"\"logprobs\":-1", false},
        {"\"priority\":-10", true}, {"\"priority\":10", true}, {"\"priority\":-11", false}, {"\"priority\":11", false}, {"\"timeout\":0.001", true},
        {"\"timeout\":0", false}, {"\"timeout\":-1", false}, {"\"timeout\":86400", true}, {"\"timeout\":86401", false}, {"\"t_max_predict_ms\":-1", true},
        {"\"t_max_predict_ms\":-2", false}, {"\"t_max_predict_ms\":2147483648", false}, {"\"suffix\":\"\"", true}, {"\"suffix\":\"x\"", false}, {"\"user\":[1],\"metadata\":{},\"store\":7", true},
        {"\"Model\":5", true}, {"\"model\":\"demo\"", true}, {"\"model\":\"alias\"", true}, {"\"model\":\"\"", true},
        {"\"n\":1,\"n\":1", false}, {"\"n\":1,\"\\u006e\":2", false}, {"\"x\":1,\"x\":2", true},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct got g = field(v[i].more);
        CHECKF((g.rc == 0) == v[i].ok, "%s: %s", v[i].more, g.e.message);
        CHECKF(g.rc == 0 || (g.e.status == 400 && g.e.param[0]), "%s: %s", v[i].more, g.e.message);
        END(g);
    }
}

TEST(terms) {
    struct got g = field("\"priority\":-3,\"timeout\":1.5,\"t_max_predict_ms\":20");
    CHECK(g.rc == 0 && g.p.priority_given && g.p.priority == -3 && g.p.timeout_ms == 1500 && g.p.max_predict_ms == 20);
    END(g);
    g = field("\"t_max_predict_ms\":-1,\"timeout\":0.0012");
    CHECK(g.rc == 0 && !g.p.priority_given && g.p.timeout_ms == 2 && g.p.max_predict_ms == 0);
    END(g);
}

TEST(lossy_experts_as_far_as_allowed) {
    static const char *const names[] = {"off", "fewer", "cached", "both"};
    for (uint8_t allowed = 0; allowed < 4; allowed++) {
        for (uint8_t want = 0; want < 4; want++) {
            struct got g;
            struct parse_env env = env_of(&with_bos);
            char body[100];
            env.lossy = allowed;
            snprintf(body, sizeof body, "{\"prompt\":\"hi\",\"lossy_experts\":\"%s\"}", names[want]);
            arena_init(&g.arena, 1 << 20);
            g.rc = parse_completion(&env, body, strlen(body), &g.arena, &g.p, &g.e);
            if (want & ~allowed) {
                CHECK(g.rc == ST_INVALID && g.e.status == 400 && strcmp(g.e.param, "lossy_experts") == 0 && strstr(g.e.message, names[allowed]));
            } else {
                CHECKF(g.rc == 0, "%s", g.e.message);
                CHECK(g.p.lossy == want && parse_lossy(names[want]) == want);
            }
            END(g);
        }
    }
}

TEST(values_arrive) {
    struct got g = field("\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,\"repeat_penalty\":1.5,\"frequency_penalty\":-1,"
                         "\"presence_penalty\":0.75,\"max_tokens\":9,\"min_tokens\":3,\"n\":3,\"echo\":true,\"stream\":true,\"logprobs\":5,\"cache_prompt\":false,"
                         "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true,\"other\":[]}");
    OK(g);
    const struct kern_sample *s = &g.p.sample;
    CHECK(s->temperature == 0.5f && s->top_p == 0.25f && s->top_k == 40 && s->min_p == 0.125f && s->repetition_penalty == 1.5f);
    CHECK(s->frequency_penalty == -1 && s->presence_penalty == 0.75f && s->n_top_logprobs == 5);
    CHECK(g.p.max_tokens == 9 && g.p.max_tokens_given && g.p.min_tokens == 3 && g.p.n == 3);
    CHECK(g.p.echo && g.p.stream && g.p.include_usage && g.p.continuous_usage && g.p.no_prefix_cache);
    CHECK(g.p.prompts[0].n_bytes == 2 && memcmp(g.p.prompts[0].text, "hi", 2) == 0);
    END(g);
    g = field("\"top_p\":0,\"top_k\":-1");
    CHECK(g.rc == 0 && g.p.sample.top_p == FLT_MIN && g.p.sample.top_k == 0);
    END(g);
}

TEST(seed_keeps_64_bits) {
    static const struct { const char *text; bool ok; int64_t v; } v[] = {
        {"0", true, 0}, {"-1", true, -1}, {"9223372036854775807", true, INT64_MAX}, {"-9223372036854775808", true, INT64_MIN}, {"9007199254740993", true, 9007199254740993},
        {"9223372036854775808", false, 0}, {"-9223372036854775809", false, 0}, {"7.0", true, 7}, {"1e3", true, 1000}, {"7.5", false, 0}, {"1e300", false, 0}, {"\"7\"", false, 0},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        char more[100];
        snprintf(more, sizeof more, "\"x\":{\"seed\":1,\"y\":[1,2]},\"seed\" :\t%s ,\"z\":3", v[i].text);
        struct got g = field(more);
        CHECKF((g.rc == 0) == v[i].ok, "%s: %s", v[i].text, g.e.message);
        if (v[i].ok) CHECKF(g.p.seed_given && (int64_t)g.p.sample.seed == v[i].v, "%s became %lld", v[i].text, (long long)g.p.sample.seed);
        END(g);
    }
}

TEST(stop_forms) {
    struct got g = field("\"stop\":\"END\"");
    CHECK(g.rc == 0 && g.p.n_stops == 1 && g.p.stops[0].n_bytes == 3 && memcmp(g.p.stops[0].text, "END", 3) == 0);
    END(g);
    g = field("\"stop\":[\"a\",\"a\",\"\\u20ac\"]");
    CHECK(g.rc == 0 && g.p.n_stops == 3 && g.p.stops[2].n_bytes == 3);
    END(g);
    g = field("\"stop\":[]");
    CHECK(g.rc == 0 && g.p.n_stops == 0);
    END(g);
    static const char *const bad[] = {"\"\"", "[\"\"]", "[null]", "[1]", "[\"a\",[\"b\"]]", "{}", "7"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char more[64];
        snprintf(more, sizeof more, "\"stop\":%s", bad[i]);
        g = field(more);
        CHECKF(g.rc == ST_INVALID && strcmp(g.e.param, "stop") == 0, "%s", more);
        END(g);
    }
    char more[2000];
    g = field("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\",\"14\",\"15\",\"16\"]");
    CHECK(g.rc == 0 && g.p.n_stops == 16);
    END(g);
    g = field("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]");
    CHECK(g.rc == ST_INVALID && strstr(g.e.message, "at most 16"));
    END(g);
    for (int n = 1024; n <= 1025; n++) {
        snprintf(more, sizeof more, "\"stop\":\"%0*d\"", n, 0);
        g = field(more);
        CHECKF((g.rc == 0) == (n == 1024), "%d bytes: %s", n, g.e.message);
        END(g);
    }
}

TEST(stop_token_ids_and_ignore_eos) {
    struct got g = field("\"stop_token_ids\":[1,265]");
    OK(g);
    CHECK(g.p.n_stop_ids == 3 && g.p.stop_ids[0] == 1 && g.p.stop_ids[1] == 265 && g.p.stop_ids[2] == FAKE_EOS && !g.p.ignore_eos);
    END(g);
    g = field("\"ignore_eos\":true");
    CHECK(g.rc == 0 && g.p.ignore_eos && g.p.n_stop_ids == 1 && g.p.sample.n_bias == 0);
    END(g);
    g = field("\"ignore_eos\":true,\"stop_token_ids\":[7],\"logit_bias\":{\"5\":1}");
    OK(g);
    CHECK(!g.p.ignore_eos && g.p.n_stop_ids == 1 && g.p.stop_ids[0] == 7);
    CHECK(g.p.sample.n_bias == 2 && g.p.sample.bias[1].id == FAKE_EOS && g.p.sample.bias[1].bias == -INFINITY);
    END(g);
    static const char *const bad[] = {"[-1]", "[266]", "[1.5]", "[\"1\"]", "[null]", "7", "[true]", "{}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char more[64];
        snprintf(more, sizeof more, "\"stop_token_ids\":%s", bad[i]);
        g = field(more);
        CHECKF(g.rc == ST_INVALID && strcmp(g.e.param, "stop_token_ids") == 0, "%s", more);
        END(g);
    }
}

TEST(logit_bias_forms) {
    struct got g = field("\"logit_bias\":{\"9\":-100,\"3\":100,\"5\":-99.5,\"265\":0}");
    OK(g);
    CHECK(g.p.sample.n_bias == 4);
    CHECK(g.p.sample.bias[0].id == 3 && g.p.sample.bias[0].bias == 100 && g.p.sample.bias[1].bias == -99.5f);
    CHECK(g.p.sample.bias[2].id == 9 && g.p.sample.bias[2].bias == -INFINITY && g.p.sample.bias[3].id == 265);
    END(g);
    g = field("\"logit_bias\":{}");
    CHECK(g.rc == 0 && g.p.sample.n_bias == 0);
    END(g);
    static const char *const bad[] = {"{\"266\":1}", "{\"-1\":1}", "{\"a\":1}", "{\"\":1}", "{\"1.0\":1}", "{\" 1\":1}", "{\"1\":\"1\"}", "{\"1\":true}", "{\"1\":null}",
                                      "{\"1\":100.5}", "{\"1\":-101}", "{\"1\":1e999}", "{\"1\":1,\"1\":2}", "{\"1\":1,\"01\":2}", "{\"99999999999999999999\":1}", "[[1,2]]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char more[64];
        snprintf(more, sizeof more, "\"logit_bias\":%s", bad[i]);
        g = field(more);
        CHECKF(g.rc == ST_INVALID && strcmp(g.e.param, "logit_bias") == 0, "%s", more);
        END(g);
    }
}

TEST(stream_options_need_stream) {
    static const struct { const char *more; const char *param; } v[] = {
        {"\"stream_options\":{}", "stream_options"}, {"\"stream\":true,\"stream_options\":[]", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage"},
        {"\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":\"x\"}", "stream_options.continuous_usage_stats"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":true,\"include_usage\":false}", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":null}", NULL}, {"\"stream\":true,\"stream_options\":{}", NULL},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct got g = field(v[i].more);
        CHECKF(v[i].param ? g.rc == ST_INVALID && strcmp(g.e.param, v[i].param) == 0 : g.rc == 0, "%s: %s", v[i].more, g.e.message);
        END(g);
    }
}

TEST(model_unknown_is_404) {
    struct got g = field("\"model\":\"other\",\"n\":\"wrong too\"");
    CHECK(g.rc == ST_NOT_FOUND && g.e.status == 404 && strcmp(g.e.code, "model_not_found") == 0 && strcmp(g.e.param, "model") == 0);
    CHECK(strstr(g.e.message, "\"demo\""));
    END(g);
}

struct prompt_case { const char *prompt; const char *ids; /* NULL = 400 param prompt; "a b|c" = two prompts */ };

static void ids_text(const struct gen_params *p, char *out, size_t cap) {
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        for (uint32_t k = 0; k < p->prompts[i].n_ids; k++)
            n += (size_t)snprintf(out + n, cap - n, "%s%d", k ? " " : i ? "|" : "", p->prompts[i].ids[k]);
    }
}

static const char *check_prompt(const struct tokenizer *t, const struct prompt_case *c) {
    static char why[700];
    char body[600], ids[300];
    struct got g;
    snprintf(body, sizeof body, "{\"prompt\":%s}", c->prompt);
    parse_n(&g, t, body, strlen(body));
    why[0] = '\0';
    if (g.rc == 0) ids_text(&g.p, ids, sizeof ids);
    if ((g.rc == 0) != (c->ids != NULL)) snprintf(why, sizeof why, "rc %d %s", g.rc, g.e.message);
    else if (g.rc && (g.e.status != 400 || strcmp(g.e.param, "prompt") != 0)) snprintf(why, sizeof why, "%d %s", g.e.status, g.e.param);
    else if (g.rc == 0 && strcmp(ids, c->ids) != 0) snprintf(why, sizeof why, "ids %s", ids);
    END(g);
    return why[0] ? why : NULL;
}

TEST(prompt_forms) {
    static const struct prompt_case with[] = {
        {"\"a\"", "256 97"}, {"\"hello w\"", "256 259 260 111 262"}, {"[\"a\",\"b\"]", "256 97|256 98"}, {"\"\"", "256"}, {"[\"a\",\"\"]", "256 97|256"}, {"[\"\"]", "256"},
        {"[1]", "1"}, {"[1,2,3]", "1 2 3"}, {"[[1],[2,3]]", "1|2 3"}, {"[265,0]", "265 0"}, {"\"<|im|>x<eos>\"", "256 258 120 257"}, {"[1.0]", "1"},
        {"null", NULL}, {"[]", NULL}, {"[[]]", NULL}, {"[[1],[]]", NULL}, {"[1,\"a\"]", NULL}, {"[\"a\",1]", NULL}, {"[\"a\",[1]]", NULL}, {"[[1],2]", NULL}, {"[[1],\"a\"]", NULL},
        {"[-1]", NULL}, {"[266]", NULL}, {"[1.5]", NULL}, {"[[1,true]]", NULL}, {"[true]", NULL}, {"[null]", NULL}, {"{}", NULL}, {"7", NULL}, {"true", NULL}, {"[[[1]]]", NULL},
        {"[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\"]", NULL}, {"[4294967297]", NULL},
    };
    static const struct prompt_case without[] = {{"\"a\"", "97"}, {"\"\"", NULL}, {"[\"a\",\"\"]", NULL}, {"[5]", "5"}};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        const char *why = check_prompt(&with_bos, &with[i]);
        CHECKF(!why, "%s: %s", with[i].prompt, why);
    }
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        const char *why = check_prompt(&without_bos, &without[i]);
        CHECKF(!why, "no BOS, %s: %s", without[i].prompt, why);
    }
    struct got g;
    parse_n(&g, &with_bos, "{}", 2);
    CHECK(g.rc == ST_INVALID && strcmp(g.e.param, "prompt") == 0);
    END(g);
}

/* Context of 100: what fits exactly, one more, and far too much, as text and as ids. */
TEST(context_limits) {
    static const struct { int n_ids; const char *max_tokens; bool ok; const char *param; } v[] = {
        {99, "null", true, NULL}, {100, "null", false, "prompt"}, {101, "null", false, "prompt"}, {100, "0", true, NULL}, {101, "0", false, "prompt"},
        {90, "10", true, NULL}, {90, "11", false, "max_tokens"}, {99, "1", true, NULL}, {5000, "1", false, "prompt"},
    };
    static char body[20000];
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        for (int text = 0; text < 2; text++) {
            size_t n = (size_t)snprintf(body, sizeof body, "{\"max_tokens\":%s,\"prompt\":%s", v[i].max_tokens, text ? "\"" : "[");
            for (int k = 0; k < v[i].n_ids; k++) n += (size_t)snprintf(body + n, sizeof body - n, "%s", text ? "x" : k ? ",5" : "5");
            n += (size_t)snprintf(body + n, sizeof body - n, text ? "\"}" : "]}");
            struct got g;
            parse_n(&g, &without_bos, body, n);
            CHECKF((g.rc == 0) == v[i].ok, "%d ids, max_tokens %s: %s", v[i].n_ids, v[i].max_tokens, g.e.message);
            if (!v[i].ok) {
                CHECKF(strcmp(g.e.code, "context_length_exceeded") == 0 && strcmp(g.e.param, v[i].param) == 0, "%s %s", g.e.code, g.e.param);
                CHECKF(strstr(g.e.message, "100"), "%s", g.e.message);
            } else {
                struct parse_env env = env_of(&without_bos);
                uint32_t room = parse_room(&env, &g.p, &g.p.prompts[0]);
                CHECKF(room == (g.p.max_tokens_given ? g.p.max_tokens : 100u - (uint32_t)v[i].n_ids), "room %u", room);
            }
            END(g);
        }
    }
}

TEST(choices_are_bounded_together) {
    struct got g;
    const char *body = "{\"prompt\":[\"1\",\"2\",\"3\",\"4\"],\"n\":3}", *more = "{\"prompt\":[\"1\",\"2\",\"3\",\"4\"],\"n\":4}";
    parse_n(&g, &with_bos, body, strlen(body));
    OK(g);
    END(g);
    parse_n(&g, &with_bos, more, strlen(more));
    CHECK(g.rc == ST_INVALID && strcmp(g.e.param, "n") == 0);
    END(g);
}

TEST(bad_bodies) {
    static const char *const bad[] = {"", "{", "[]", "\"x\"", "null", "{} x", "{\"prompt\":\"\\u0000\"}", "{\"prompt\":\"\xFF\"}", "{\"prompt\":\"\\ud800\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct got g;
        parse_n(&g, &with_bos, bad[i], strlen(bad[i]));
        CHECKF(g.rc == ST_INVALID && g.e.status == 400 && strcmp(g.e.code, "invalid_json") == 0 && !g.e.param[0], "%s", bad[i]);
        END(g);
    }
}

/* Fail the n-th allocation for every n: an error each time, and no leak under ASan. */
TEST(out_of_memory_anywhere) {
    const char *body = "{\"prompt\":[\"hello\",\"you\"],\"stop\":[\"a\",\"b\"],\"stop_token_ids\":[1],\"logit_bias\":{\"1\":2},\"echo\":true}";
    int n = 0;
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = mem_alloc, .free_fn = mem_free});
    for (;; n++) {
        struct got g;
        mem_fail_after((uint64_t)n);
        parse_n(&g, &with_bos, body, strlen(body));
        mem_fail_after(UINT64_MAX);
        int rc = g.rc, status = g.e.status;
        END(g);
        if (rc == 0) break;
        CHECKF(rc == ST_NOMEM && status == 503, "allocation %d: %d %d", n, rc, status);
    }
    cJSON_InitHooks(NULL);
    CHECK(n >= 20);
}

/* Keys inside a field mean the same however they are written. */
TEST(escaped_keys_of_a_format) {
    static const char *const bodies[] = {
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"object\"}}}",
        "\"respons\\u0065_format\":{\"t\\u0079pe\":\"json_schema\",\"json_sch\\u0065ma\":{\"\\u0073chema\":{\"type\":\"object\"}}}",
        "\"structured_outputs\":{\"\\u006ason\":{\"type\":\"object\"}}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct got g = field(bodies[i]);
        OK(g);
        const struct grammar_part *part = g.p.constraint.parts;
        CHECKF(g.p.constraint.n_parts == 1 && part->kind == GRAMMAR_SCHEMA && part->n_bytes == 17 && memcmp(part->text, "{\"type\":\"object\"}", 17) == 0, "%s", bodies[i]);
        END(g);
    }
}

int main(void) {
    RUN(defaults);
    RUN(null_is_absent);
    RUN(wrong_types_name_the_field);
    RUN(ranges);
    RUN(terms);
    RUN(lossy_experts_as_far_as_allowed);
    RUN(values_arrive);
    RUN(seed_keeps_64_bits);
    RUN(stop_forms);
    RUN(stop_token_ids_and_ignore_eos);
    RUN(logit_bias_forms);
    RUN(stream_options_need_stream);
    RUN(model_unknown_is_404);
    RUN(prompt_forms);
    RUN(context_limits);
    RUN(choices_are_bounded_together);
    RUN(bad_bodies);
    RUN(out_of_memory_anywhere);
    RUN(escaped_keys_of_a_format);
    return test_failed_;
}
