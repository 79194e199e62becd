/* SPDX-License-Identifier: Apache-2.0
 *
 * The chat body: which messages, tools and template variables are accepted, what the template sees of them, and for
 * everything else the field that is named. */
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "server/parse_req.h"
#include "tests/unit/fake_tokenizer.h"
#include "tests/unit/test.h"

static const struct tokenizer tok = {.bos = true};
static const int32_t eog[] = {FAKE_EOS};

/* Shows everything it gets. */
static const char shows[] = "{% for m in messages %}{{ m | tojson }}{{ ';' }}{% endfor %}{% if tools %}T{{ tools | tojson }}{% endif %}"
                            "{% if add_generation_prompt %}G{% endif %}{% if reasoning_effort %}E{{ reasoning_effort }}{% endif %}"
                            "{% if thinking is defined %}K{{ thinking }}{% endif %}{% if x is defined %}X{{ x | tojson }}{% endif %}"
                            "{% if opened %}<think>{% endif %}{# </think> tool_calls #}";

struct got { struct arena arena; struct gen_params p; struct parse_error e; int rc; };

static struct chat_model *model_of(const char *text) {
    struct chat_model *m = NULL;
    struct err e = {0};
    if (chat_model_open(&m, &(struct chat_model_opts){.tokenizer = &tok, .text = text, .n_text = strlen(text), .syntax = "auto"}, &e)) {
        printf("FAIL model_of: %s\n", e.text);
        exit(1);
    }
    return m;
}

static struct got parse(const struct chat_model *m, const char *body, bool text) {
    struct parse_env env = {.tokenizer = &tok, .model_name = "demo", .model_alias = "", .n_ctx = 4000, .max_n = 4, .max_prompts = 5, .max_choices = 12,
                            .max_piece_bytes = 6, .eog = eog, .n_eog = 1, .chat = m};
    struct got g;
    char *exact = malloc(strlen(body)); /* a read past the end is seen */
    memcpy(exact, body, strlen(body));
    arena_init(&g.arena, 1 << 24);
    g.rc = (text ? parse_chat_text : parse_chat)(&env, exact, strlen(body), &g.arena, &g.p, &g.e);
    free(exact);
    return g;
}

#define END(g) arena_clear(&(g).arena)
#define HI "{\"role\":\"user\",\"content\":\"hi\"}"
#define SEEN "{\"role\": \"user\", \"content\": \"hi\"};"

TEST(what_the_template_sees) {
    static const struct { const char *body, *text; } v[] = {
        {"{\"messages\":[" HI "]}", SEEN "G"},
        {"{\"messages\":[{\"content\":\"hi\",\"role\":\"user\",\"name\":\"Jo\",\"z\":null}]}", "{\"role\": \"user\", \"content\": \"hi\", \"name\": \"Jo\"};G"},
        {"{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"text\":\"b\",\"type\":\"text\"}]}," HI "]}", "{\"role\": \"system\", \"content\": \"a\\nb\"};" SEEN "G"},
        {"{\"messages\":[" HI ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1.0,\\\"b\\\":9007199254740993}\"}}]},"
         "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"r\"}]}",
         SEEN "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1.0, \"b\": 9007199254740993}}}]};"
         "{\"role\": \"tool\", \"content\": \"r\", \"tool_call_id\": \"c\"};G"},
        {"{\"messages\":[" HI ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"w\",\"tool_calls\":null}," HI "]}",
         SEEN "{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"w\", \"thinking\": \"w\"};" SEEN "G"},
        {"{\"messages\":[" HI "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"x\":1.50,\"y\":-0}}}]}", SEEN "T[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"x\": 1.5, \"y\": 0}}}]G"},
        {"{\"messages\":[" HI "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"}", SEEN "G"},
        {"{\"messages\":[" HI "],\"add_generation_prompt\":false}", SEEN},
        {"{\"messages\":[" HI "],\"reasoning_effort\":\"high\",\"thinking\":{\"type\":\"enabled\"},\"chat_template_kwargs\":{\"x\":[1,\"\\u00e9\"]}}", SEEN "GEhighKTrueX[1, \"\xC3\xA9\"]"},
        {"{\"messages\":[" HI "],\"reasoning_effort\":\"none\"}", SEEN "GKFalse"},
        {"{\"messages\":[" HI "],\"enable_thinking\":true,\"chat_template_kwargs\":{\"thinking\":false}}", SEEN "GKFalse"},
        {"{\"m\\u0065ssages\":[{\"r\\u006fle\":\"us\\u0065r\",\"content\":\"\\ud83d\\ude00\"}]}", "{\"role\": \"user\", \"content\": \"\xF0\x9F\x98\x80\"};G"},
    };
    struct chat_model *m = model_of(shows);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct got g = parse(m, v[i].body, true);
        CHECKF(g.rc == 0, "%s: %s", v[i].body, g.e.message);
        CHECKF(g.p.prompts[0].n_bytes == strlen(v[i].text) && memcmp(g.p.prompts[0].text, v[i].text, g.p.prompts[0].n_bytes) == 0, "%s: %.*s", v[i].body, (int)g.p.prompts[0].n_bytes, g.p.prompts[0].text);
        END(g);
    }
    chat_model_close(m);
}

TEST(what_is_refused_and_named) {
#define M(x) "{\"messages\":[" x "]}"
#define A(x) M(HI ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":" x "}," HI)
#define W(x) "{\"messages\":[" HI "]," x "}"
#define F(x) "{\"type\":\"function\",\"function\":{" x "}}"
    static const struct { const char *body, *param; } v[] = {
        {"{}", "messages"}, {"{\"messages\":null}", "messages"}, {"{\"messages\":{}}", "messages"}, {"{\"messages\":\"x\"}", "messages"}, {M(""), "messages"}, {M("null"), "messages[0]"}, {M("123"), "messages[0]"},
        {M(HI ",[]"), "messages[1]"}, {M("{}"), "messages[0].role"}, {M("{\"role\":null,\"content\":\"\"}"), "messages[0].role"}, {M("{\"role\":5}"), "messages[0].role"}, {M("{\"role\":\"bot\",\"content\":\"\"}"), "messages[0].role"},
        {M("{\"role\":\"user\"}"), "messages[0].content"}, {M("{\"role\":\"user\",\"content\":null}"), "messages[0].content"}, {M("{\"role\":\"user\",\"content\":123}"), "messages[0].content"},
        {M("{\"role\":\"user\",\"content\":{}}"), "messages[0].content"}, {M("{\"role\":\"user\",\"content\":[]}"), "messages[0].content"}, {M("{\"role\":\"user\",\"content\":[{}]}"), "messages[0].content[0].type"},
        {M("{\"role\":\"user\",\"content\":[\"x\"]}"), "messages[0].content[0]"}, {M("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"), "messages[0].content[0].text"},
        {M("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image_url\"}]}"), "messages[0].content[1].type"}, {M("{\"role\":\"assistant\"}"), "messages[0].content"},
        {M(HI ",{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}"), "messages"}, {M("{\"role\":\"tool\",\"content\":\"x\"}"), "messages[0].tool_call_id"},
        {A("{}"), "messages[1].tool_calls"}, {A("[1]"), "messages[1].tool_calls"}, {A("[{}]"), "messages[1].tool_calls"}, {A("[" F("\"arguments\":\"{}\"") "]"), "messages[1].tool_calls"},
        {A("[" F("\"name\":\"f\",\"arguments\":\"{\"") "]"), "messages[1].tool_calls"}, {A("[" F("\"name\":\"f\",\"arguments\":\"[1]\"") "]"), "messages[1].tool_calls"}, {A("[" F("\"name\":\"f\",\"arguments\":5") "]"), "messages[1].tool_calls"},
        {W("\"tools\":{}"), "tools"}, {W("\"tools\":[1]"), "tools"}, {W("\"tools\":[{\"type\":\"custom\"}]"), "tools"}, {W("\"tools\":[" F("") "]"), "tools"}, {W("\"tools\":[" F("\"name\":\"a\\r\\nb\"") "]"), "tools"},
        {W("\"tools\":[" F("\"name\":\"f\",\"parameters\":[]") "]"), "tools"}, {W("\"tools\":[" F("\"name\":\"f\"") "," F("\"name\":\"f\"") "]"), "tools"}, {W("\"tool_choice\":\"required\""), "tool_choice"},
        {W("\"tool_choice\":\"sometimes\""), "tool_choice"}, {W("\"tools\":[" F("\"name\":\"f\"") "],\"tool_choice\":" F("\"name\":\"g\"")), "tool_choice"}, {W("\"tool_choice\":5"), "tool_choice"},
        {W("\"parallel_tool_calls\":1"), "parallel_tool_calls"}, {W("\"logprobs\":2"), "logprobs"}, {W("\"top_logprobs\":2"), "top_logprobs"}, {W("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs"},
        {W("\"chat_template_kwargs\":[]"), "chat_template_kwargs"}, {W("\"chat_template_kwargs\":{\"messages\":[]}"), "chat_template_kwargs"}, {W("\"add_generation_prompt\":0"), "add_generation_prompt"},
        {W("\"continue_final_message\":true,\"add_generation_prompt\":true"), "continue_final_message"}, {W("\"thinking\":5"), "thinking"}, {W("\"thinking\":{}"), "thinking"}, {W("\"reasoning_effort\":5"), "reasoning_effort"},
        {W("\"reasoning_format\":\"x\""), "reasoning_format"}, {W("\"max_tokens\":4000"), "max_tokens"}, {W("\"thinking_token_budget\":-1"), "thinking_token_budget"},
        {A("[{\"type\":\"custom\",\"function\":{\"name\":\"f\"}}]"), "messages[1].tool_calls"}, {M("{\"role\":\"assistant\",\"tool_calls\":[]}"), "messages[0].content"},
        {W("\"tools\":[" F("\"name\":\"f\",\"description\":{}") "]"), "tools"}, {W("\"tools\":[" F("\"name\":\"f\",\"strict\":1") "]"), "tools"},
        {W("\"tools\":[" F("\"name\":\"f\"") "],\"tool_choice\":{\"type\":\"tool\",\"function\":{\"name\":\"f\"}}"), "tool_choice"},
    };
    struct chat_model *m = model_of(shows);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct got g = parse(m, v[i].body, false);
        CHECKF(g.rc != 0 && g.e.status == 400, "%s", v[i].body);
        CHECKF(strcmp(g.e.param, v[i].param) == 0, "%s: blames %s: %s", v[i].body, g.e.param, g.e.message);
        END(g);
    }
    chat_model_close(m);
}

TEST(the_prompt_and_its_end) {
    struct chat_model *m = model_of(shows);
    struct got g = parse(m, W("\"max_tokens\":5,\"seed\":1"), false);
    CHECK(g.rc == 0 && g.p.is_chat && g.p.max_tokens == 5 && g.p.n_prompts == 1 && g.p.prompts[0].n_ids > 10 && !g.p.chat.in_reasoning);
    CHECK(g.p.chat.dialect.think && g.p.sample.n_top_logprobs == -1 && g.p.chat.thinking_budget == UINT32_MAX);
    END(g);
    g = parse(m, W("\"chat_template_kwargs\":{\"opened\":true},\"logprobs\":true"), false);
    CHECK(g.rc == 0 && g.p.chat.in_reasoning && g.p.sample.n_top_logprobs == 0 && !g.p.max_tokens_given);
    END(g);
    chat_model_close(m);
    m = model_of("{% for m in messages %}<|im|>{{ m.content }}{% if not loop.last or add_generation_prompt %};{% endif %}{% endfor %}{# </think> #}");
    g = parse(m, M(HI ",{\"role\":\"assistant\",\"content\":\"<think>so\"}"), false);
    CHECKF(g.rc == 0 && g.p.chat.in_reasoning, "%s", g.e.message);
    CHECK(g.p.prompts[0].ids[0] == FAKE_IM && g.p.prompts[0].ids[g.p.prompts[0].n_ids - 1] == 'o');
    END(g);
    g = parse(m, M("{\"role\":\"user\",\"content\":\"<|im|><eos>\"}"), false);
    CHECK(g.rc == 0);
    uint32_t n = 0;
    for (uint32_t i = 0; i < g.p.prompts[0].n_ids; i++) n += tokenizer_is_control(&tok, g.p.prompts[0].ids[i]);
    CHECK(n == 1); /* the template's own */
    END(g);
    chat_model_close(m);
}

TEST(tools_are_known_to_the_parsers) {
    struct chat_model *m = model_of(shows);
    struct got g = parse(m, W("\"tools\":[" F("\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":[\"null\",\"string\"]},\"c\":{\"type\":\"integer\"},\"d\":{}}}") "," F("\"name\":\"g\"") "],"
                              "\"tool_choice\":" F("\"name\":\"g\"") ",\"parallel_tool_calls\":false"), false);
    CHECKF(g.rc == 0, "%s", g.e.message);
    const struct gen_chat *c = &g.p.chat;
    CHECK(c->n_tools == 2 && c->choice == TOOL_CHOICE_NAMED && c->chosen == 1 && c->one_call);
    CHECK(c->tools[0].n_params == 4 && c->tools[0].params[0].is_string && c->tools[0].params[1].is_string && !c->tools[0].params[2].is_string && !c->tools[0].params[3].is_string);
    END(g);
    chat_model_close(m);
}

TEST(a_template_without_tools_has_them_explained) {
    struct chat_model *m = model_of("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}");
    static const char *const bodies[2] = {M(HI), M("{\"role\":\"system\",\"content\":\"Be kind.\"}," HI)}, *const starts[2] = {"[system]You can call", "[system]Be kind.\n\nYou can call"};
    CHECK(!m->takes_tools && m->dialect.syntax == CHAT_SYNTAX_HERMES);
    for (int i = 0; i < 2; i++) {
        char body[500];
        snprintf(body, sizeof body, "%.*s,\"tools\":[" F("\"name\":\"f\"") "," F("\"name\":\"g\"") "]}", (int)strlen(bodies[i]) - 1, bodies[i]);
        struct got g = parse(m, body, true);
        CHECKF(g.rc == 0, "%s", g.e.message);
        char text[2000];
        snprintf(text, sizeof text, "%.*s", (int)g.p.prompts[0].n_bytes, g.p.prompts[0].text);
        CHECKF(strncmp(text, starts[i], strlen(starts[i])) == 0 && strstr(text, "\"f\"") && strstr(text, "\"g\"") && strstr(text, "</tool_call>[user]hi"), "%s", text);
        END(g);
    }
    chat_model_close(m);
}

/* Templates disagree on the form of a call's arguments. */
TEST(arguments_in_the_form_the_template_wants) {
    static const struct { const char *text; bool as_text; } v[] = {
        {"{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}", false},
        {"{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}", true},
        {"{% for m in messages %}{% for c in m.tool_calls or [] %}{{ 'x' + c.function.arguments }}{% endfor %}{% endfor %}", true},
        {"{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}{% endfor %}{% endfor %}{% endfor %}", false},
        {"{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}{% endfor %}{% endfor %}", false},
        {"{{ messages[0].content }}", false},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct chat_model *m = model_of(v[i].text);
        CHECKF(m->string_arguments == v[i].as_text, "%s", v[i].text);
        chat_model_close(m);
    }
}

TEST(template_errors_are_the_clients) {
    static const struct { const char *text, *want; } v[] = {
        {"{{ raise_exception('roles must alternate') }}", "the model's chat template says: roles must alternate"},
        {"\n{{ messages[0].nope.deeper }}", "line 2"},
        {"", "an empty prompt"},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct chat_model *m = model_of(v[i].text);
        struct got g = parse(m, M(HI), false);
        CHECKF(g.rc && g.e.status == 400 && strstr(g.e.message, v[i].want), "%s: %s", v[i].text, g.e.message);
        END(g);
        chat_model_close(m);
    }
    struct chat_model *none = NULL;
    struct err e;
    CHECK(chat_model_open(&none, &(struct chat_model_opts){.tokenizer = &tok, .syntax = "auto"}, &e) == 0 && !none->plain);
    struct got g = parse(none, M(HI), false);
    CHECK(g.rc && g.e.status == 400 && strstr(g.e.message, "chat-template"));
    END(g);
    chat_model_close(none);
    CHECK(chat_model_open(&none, &(struct chat_model_opts){.tokenizer = &tok, .text = "{% if %}", .n_text = 8, .syntax = "auto"}, &e) == ST_INVALID && strstr(e.text, "does not compile"));
}

TEST(lost_memory_is_503) {
    struct chat_model *m = model_of(shows);
    int n_503 = 0;
    for (uint64_t n = 0; n < 400; n++) {
        mem_fail_after(n);
        struct got g = parse(m, W("\"tools\":[" F("\"name\":\"f\"") "],\"chat_template_kwargs\":{\"x\":[1,{\"a\":\"b\"}]}"), false);
        mem_fail_after(UINT64_MAX);
        CHECKF(g.rc == 0 || g.e.status == 503, "after %d allocations: %d %s", (int)n, g.e.status, g.e.message);
        n_503 += g.rc != 0;
        END(g);
    }
    CHECK(n_503 > 3 && n_503 < 400);
    chat_model_close(m);
}

int main(void) {
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = mem_alloc, .free_fn = mem_free});
    RUN(what_the_template_sees);
    RUN(what_is_refused_and_named);
    RUN(the_prompt_and_its_end);
    RUN(tools_are_known_to_the_parsers);
    RUN(a_template_without_tools_has_them_explained);
    RUN(arguments_in_the_form_the_template_wants);
    RUN(template_errors_are_the_clients);
    RUN(lost_memory_is_503);
    return test_failed_;
}
