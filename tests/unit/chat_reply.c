/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies of every family taken apart: whole, character by character, and cut in two at every place, taken at once or at
 * the end, always with the same result, and the calls shown while they are written are the calls that come out. What begins like a
 * call and is none comes out as content. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/status.h"
#include "base/utf8.h"
#include "chat/reply.h"
#include "tests/unit/test.h"

static const struct chat_param weather_params[] = {{"city", true}, {"days", false}, {"tags", false}, {"note", true}};
static const struct chat_param code_params[] = {{"code", true}};
static const struct chat_tool tools[] = {{"get_weather", weather_params, 4}, {"now", NULL, 0}, {"python", code_params, 1}};

enum { NO_TOOLS = 1, OPENED = 2 };

struct row {
    enum chat_syntax syntax;
    int flags;
    const char *in, *reasoning, *content;
    const char *calls; /* name(arguments) per call, joined by a space */
    const char *id;    /* of the first call; NULL = generated */
};

#define DSB "<\xEF\xBD\x9Ctool\xE2\x96\x81"
#define DSE "\xEF\xBD\x9C>"
#define D4 "\xEF\xBD\x9C" "DSML" "\xEF\xBD\x9C"

static const struct row rows[] = {
    /* no tools: text is text */
    {CHAT_SYNTAX_HERMES, NO_TOOLS, "hi <tool_call>{}</tool_call>\n", "", "hi <tool_call>{}</tool_call>\n", "", NULL},
    {CHAT_SYNTAX_LLAMA3, NO_TOOLS, "  {\"name\":\"now\",\"parameters\":{}} ", "", "  {\"name\":\"now\",\"parameters\":{}} ", "", NULL},
    /* reasoning */
    {CHAT_SYNTAX_HERMES, NO_TOOLS, "<think>\nwhy\n</think>\n\nbecause ", "why", "because ", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS, "\n <think>why</think>because", "why", "because", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS, "<think></think>because", "", "because", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS, "<think>never closed ", "never closed", "", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS, "<think>a < b </thin k></think></think>c", "a < b </thin k>", "</think>c", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS, "<thin", "", "<thin", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS, "a <think>b</think>", "", "a <think>b</think>", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS, " ", "", " ", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS | OPENED, "why\n\nstill</think>\n\nbecause\n", "why\n\nstill", "because\n", "", NULL},
    {CHAT_SYNTAX_HERMES, NO_TOOLS | OPENED, "why", "why", "", "", NULL},
    {CHAT_SYNTAX_HERMES, OPENED, "hm</think>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", "hm", "", "now({})", NULL},
    {CHAT_SYNTAX_LLAMA3, OPENED, "hm</think>\n{\"name\": \"now\", \"parameters\": {}}", "hm", "", "now({})", NULL},
    {CHAT_SYNTAX_LLAMA3, OPENED, "hm</think> <think>x", "hm", "<think>x", "", NULL},
    /* Hermes */
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xC3\xB6ln\"}}\n</tool_call>", "", "", "get_weather({\"city\": \"K\xC3\xB6ln\"})", NULL},
    {CHAT_SYNTAX_HERMES, 0, "Let me look.\n\n<tool_call>{\"name\":\"now\"}</tool_call>\n<tool_call>{\"arguments\":{\"days\":2},\"name\":\"get_weather\"}</tool_call>\n", "", "Let me look.",
     "now({}) get_weather({\"days\":2})", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"name\":\"now\",\"arguments\":\"{\\\"a\\\": \\\"\\u00e9\\\"}\"}</tool_call>", "", "", "now({\"a\": \"\xC3\xA9\"})", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>", "", "", "now({\"a\":\"</tool_call>\"})", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>[{\"name\":\"now\"},{\"name\":\"now\",\"arguments\":null}]</tool_call>", "", "", "now({}) now({})", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"name\":\"now\",\"arguments\":{}}", "", "", "now({})", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"id\":\"x1\",\"function\":{\"name\":\"now\",\"arguments\":{},\"id\":\"x2\"}}</tool_call> more ", "", "more", "now({})", "x2"},
    {CHAT_SYNTAX_HERMES, 0, "a\n<tool_call>{\"name\":\"now\",\"arguments\":{oops}}</tool_call> b ", "", "a\n<tool_call>{\"name\":\"now\",\"arguments\":{oops}}</tool_call> b ", "", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"name\":\"now\",\"arguments\":[1]}</tool_call>", "", "<tool_call>{\"name\":\"now\",\"arguments\":[1]}</tool_call>", "", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":\"cut", "", "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":\"cut", "", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"arguments\":{}}</tool_call>", "", "<tool_call>{\"arguments\":{}}</tool_call>", "", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>", "", "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>", "", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"name\":\"now\"} x</tool_call>", "", "<tool_call>{\"name\":\"now\"} x</tool_call>", "", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call></tool_call><tool_cal", "", "<tool_call></tool_call><tool_cal", "", NULL},
    {CHAT_SYNTAX_HERMES, 0, "<tool_call>{\"name\":\"now\"}</tool_call><tool_call>{broken</tool_call>", "", "<tool_call>{broken</tool_call>", "now({})", NULL},
    {CHAT_SYNTAX_HERMES, 0, "plain \n", "", "plain \n", "", NULL},
    /* Qwen3-Coder */
    {CHAT_SYNTAX_QWEN_XML, 0, "Ok.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nS\xC3\xA3o \"Paulo\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "", "Ok.",
     "get_weather({\"city\": \"S\xC3\xA3o \\\"Paulo\\\"\", \"days\": 3})", NULL},
    {CHAT_SYNTAX_QWEN_XML, 0, "<tool_call><function=get_weather><parameter=tags>[\"a\", 1]</parameter><parameter=days>True</parameter><parameter=city>12</parameter><parameter=odd>12</parameter></function></tool_call>",
     "", "", "get_weather({\"tags\": [\"a\", 1], \"days\": true, \"city\": \"12\", \"odd\": \"12\"})", NULL},
    {CHAT_SYNTAX_QWEN_XML, 0, "<tool_call>\n<function=get_weather>\n<parameter=note>\n</tool_call>\n  x\n\n</parameter>\n</function>\n</tool_call>", "", "", "get_weather({\"note\": \"</tool_call>\\n  x\\n\"})", NULL},
    {CHAT_SYNTAX_QWEN_XML, 0, "<function=now></function></tool_call><function=get_weather><parameter=days>x y</parameter></function>", "", "", "now({}) get_weather({\"days\": \"x y\"})", NULL},
    {CHAT_SYNTAX_QWEN_XML, 0, "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>", "", "", "now({})", NULL},
    {CHAT_SYNTAX_QWEN_XML, 0, "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>", "", "", "now({})", NULL},
    {CHAT_SYNTAX_QWEN_XML, 0, "<tool_call><function=now>junk</function></tool_call>", "", "<tool_call><function=now>junk</function></tool_call>", "", NULL},
    {CHAT_SYNTAX_QWEN_XML, 0, "<tool_call><function=now><parameter=a>1", "", "<tool_call><function=now><parameter=a>1", "", NULL},
    /* GLM */
    {CHAT_SYNTAX_GLM, 0, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>", "", "", "get_weather({\"city\": \"Oslo\", \"days\": 2})", NULL},
    {CHAT_SYNTAX_GLM, 0, "<tool_call>now</tool_call>", "", "", "now({})", NULL},
    {CHAT_SYNTAX_GLM, 0, "<tool_call>some words</tool_call>", "", "<tool_call>some words</tool_call>", "", NULL},
    {CHAT_SYNTAX_GLM, 0, "<tool_call>now<arg_key>a</arg_key></tool_call>", "", "<tool_call>now<arg_key>a</arg_key></tool_call>", "", NULL},
    /* Mistral */
    {CHAT_SYNTAX_MISTRAL, 0, "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefghi\"}, {\"name\": \"get_weather\", \"arguments\": {\"days\": 1}}]", "", "", "now({}) get_weather({\"days\": 1})", "abcdefghi"},
    {CHAT_SYNTAX_MISTRAL, 0, "Sure. [TOOL_CALLS]now[CALL_ID]Ab3456789[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{\"city\": \"[TOOL_CALLS]\"}", "", "Sure.", "now({}) get_weather({\"city\": \"[TOOL_CALLS]\"})", "Ab3456789"},
    {CHAT_SYNTAX_MISTRAL, 0, "[TOOL_CALLS]now{}", "", "", "now({})", NULL},
    {CHAT_SYNTAX_MISTRAL, 0, "[TOOL_CALLS]now{} and words", "", "[TOOL_CALLS]now{} and words", "", NULL},
    {CHAT_SYNTAX_MISTRAL, 0, "[TOOL_CALLS][{\"name\": \"now\"", "", "[TOOL_CALLS][{\"name\": \"now\"", "", NULL},
    {CHAT_SYNTAX_MISTRAL, 0, "[TOOL_CALLS][]", "", "[TOOL_CALLS][]", "", NULL},
    {CHAT_SYNTAX_MISTRAL, 0, "[TOOL_CALLS]", "", "[TOOL_CALLS]", "", NULL},
    /* Llama 3 */
    {CHAT_SYNTAX_LLAMA3, 0, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}", "", "", "get_weather({\"city\": \"Rome\"})", NULL},
    {CHAT_SYNTAX_LLAMA3, 0, "\n{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {\"a\": 1}}\n", "", "", "now({}) now({\"a\": 1})", NULL},
    {CHAT_SYNTAX_LLAMA3, 0, "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}", "", "", "now({})", NULL},
    {CHAT_SYNTAX_LLAMA3, 0, "<|python_tag|>get_weather.call(tags=['a'])", "", "", "python({\"code\":\"get_weather.call(tags=['a'])\"})", NULL},
    {CHAT_SYNTAX_LLAMA3, 0, "{\"name\": \"unknown\", \"parameters\": {}}", "", "{\"name\": \"unknown\", \"parameters\": {}}", "", NULL},
    {CHAT_SYNTAX_LLAMA3, 0, "{\"answer\": 42} is it", "", "{\"answer\": 42} is it", "", NULL},
    {CHAT_SYNTAX_LLAMA3, 0, "{ not json at all, and it goes on for a while longer than the first trial, so that it is let go early", "", "{ not json at all, and it goes on for a while longer than the first trial, so that it is let go early", "", NULL},
    {CHAT_SYNTAX_LLAMA3, 0, "words {\"name\": \"now\", \"parameters\": {}}", "", "words {\"name\": \"now\", \"parameters\": {}}", "", NULL},
    /* DeepSeek */
    {CHAT_SYNTAX_DEEPSEEK, 0, "Hm. " DSB "calls\xE2\x96\x81" "begin" DSE DSB "call\xE2\x96\x81" "begin" DSE "function" DSB "sep" DSE "get_weather\n```json\n{\"city\": \"Oslo\"}\n```" DSB "call\xE2\x96\x81" "end" DSE "\n"
     DSB "call\xE2\x96\x81" "begin" DSE "now" DSB "sep" DSE "{}" DSB "call\xE2\x96\x81" "end" DSE DSB "calls\xE2\x96\x81" "end" DSE, "", "Hm.", "get_weather({\"city\": \"Oslo\"}) now({})", NULL},
    {CHAT_SYNTAX_DEEPSEEK, 0, DSB "call\xE2\x96\x81" "begin" DSE "no separator" DSB "call\xE2\x96\x81" "end" DSE, "", DSB "call\xE2\x96\x81" "begin" DSE "no separator" DSB "call\xE2\x96\x81" "end" DSE, "", NULL},
    /* Kimi */
    {CHAT_SYNTAX_KIMI, 0, "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"days\": 1}<|tool_call_end|><|tool_calls_section_end|>", "", "", "get_weather({\"days\": 1})",
     "functions.get_weather:0"},
    /* MiniMax, DeepSeek V4 */
    {CHAT_SYNTAX_INVOKE, 0, "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Oslo</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>", "", "",
     "get_weather({\"city\": \"Oslo\", \"days\": 2}) now({})", NULL},
    {CHAT_SYNTAX_INVOKE, 0, "<" D4 "tool_calls>\n<" D4 "invoke name=\"f\">\n<" D4 "parameter name=\"a\" string=\"true\">1</" D4 "parameter>\n<" D4 "parameter name=\"b\" string=\"false\">{\"x\": 1}</" D4 "parameter>\n</" D4 "invoke>\n</" D4 "tool_calls>", "", "",
     "f({\"a\": \"1\", \"b\": {\"x\": 1}})", NULL},
    {CHAT_SYNTAX_INVOKE, 0, "<minimax:tool_call><invoke>x</invoke></minimax:tool_call>", "", "<minimax:tool_call><invoke>x</invoke></minimax:tool_call>", "", NULL},
    /* gpt-oss */
    {CHAT_SYNTAX_HARMONY, NO_TOOLS, "<|channel|>analysis<|message|>Easy. <|end|><|start|>assistant<|channel|>final<|message|>42.", "Easy.", "42.", "", NULL},
    {CHAT_SYNTAX_HARMONY, 0, "<|channel|>analysis<|message|>Look up.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Oslo\"}<|call|>", "Look up.", "",
     "get_weather({\"city\":\"Oslo\"})", NULL},
    {CHAT_SYNTAX_HARMONY, 0, "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}", "", "I will look.", "now({})", NULL},
    {CHAT_SYNTAX_HARMONY, 0, "<|channel|>commentary to=functions.now<|message|>{oops", "", "{oops", "", NULL},
    {CHAT_SYNTAX_HARMONY, 0, "just text <b", "", "just text <b", "", NULL},
    {CHAT_SYNTAX_HARMONY, 0, "<b>bold</b> words", "", "<b>bold</b> words", "", NULL},
    {CHAT_SYNTAX_HARMONY, 0, "assistants are nice", "", "assistants are nice", "", NULL},
    {CHAT_SYNTAX_HARMONY, 0, "assistan", "", "assistan", "", NULL},
    {CHAT_SYNTAX_HARMONY, NO_TOOLS, "<|channel|>analysis<|message|>cut", "cut", "", "", NULL},
    {CHAT_SYNTAX_HARMONY, NO_TOOLS, "<|channel|>final<|message|>a<|end|><|start|>assistant<|chan", "", "a", "", NULL},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const struct chat_think think = {"<think>", "</think>"};

/* The calls as a client of a stream puts them together. */
struct shown { char name[64], id[CHAT_ID_BYTES], args[1024]; bool ended, broken; uint32_t n_pieces; };
struct got { struct chat_reply r; char reasoning[2048], content[2048], calls[2048]; struct chat_call_cursor cursor; struct shown shown[8]; uint32_t n_shown; const char *wrong; };

static void take_calls(struct got *g, bool last) {
    struct chat_call_news n;
    while (chat_reply_next_call(&g->r, &g->cursor, last, &n)) {
        struct shown *s = &g->shown[n.index % 8];
        if (n.begins != (n.index == g->n_shown) || n.index > g->n_shown) g->wrong = "index";
        if (n.begins) {
            if (n.index > 0 && !g->shown[n.index - 1].ended) g->wrong = "the one before is open";
            g->n_shown++;
            snprintf(s->name, sizeof s->name, "%.*s", (int)n.n_name, n.name);
            snprintf(s->id, sizeof s->id, "%s", n.id);
        }
        if (s->ended) g->wrong = "more after the end";
        strncat(s->args, n.n_text ? n.text : "", n.n_text);
        s->n_pieces += n.n_text > 0;
        s->ended = n.ends;
        s->broken = n.broken;
    }
    if (last && g->n_shown && !g->shown[g->n_shown - 1].ended) g->wrong = "never ends";
}

/* Every call was shown as it is; of the broken ones a beginning of JSON is there. */
static const char *compare_calls(const struct got *g) {
    const struct json_limits limits = {64, 1000};
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < g->n_shown; i++) {
        const struct shown *s = &g->shown[i];
        const struct chat_call *c = NULL;
        size_t used;
        for (uint32_t k = 0; k < g->r.n_calls; k++) {
            if (strcmp(s->id, g->r.calls[k].id) == 0) c = &g->r.calls[k];
        }
        if (s->broken && *s->args && json_scan_value(s->args, strlen(s->args), &limits, &used) != ST_LIMIT) return "no beginning of JSON, or more than that";
        if (!c) continue;
        n_found++;
        if (s->broken || strlen(s->args) != c->n_arguments || memcmp(s->args, g->r.strings.data + c->arguments, c->n_arguments)) return "arguments";
        if (strlen(s->name) != c->n_name || memcmp(s->name, g->r.strings.data + c->name, c->n_name)) return "name";
    }
    return n_found == g->r.n_calls ? NULL : "too few";
}

static void take(struct got *g) {
    strncat(g->reasoning, g->r.reasoning.ready ? g->r.reasoning.text.data : "", g->r.reasoning.ready);
    chat_text_take(&g->r.reasoning, g->r.reasoning.ready);
    strncat(g->content, g->r.content.ready ? g->r.content.text.data : "", g->r.content.ready);
    chat_text_take(&g->r.content, g->r.content.ready);
}

static size_t char_len(const char *p, size_t n) {
    unsigned bad, len = utf8_next((const unsigned char *)p, n, &bad);
    return len ? len : bad;
}

/* cut 0: character by character; else the first piece ends there. */
static void run_row(struct got *g, const struct row *row, size_t cut, bool eager) {
    size_t n = strlen(row->in);
    struct chat_reply_opts o = {.dialect = {row->syntax, row->syntax == CHAT_SYNTAX_HARMONY ? NULL : &think}, .tools = tools, .n_tools = row->flags & NO_TOOLS ? 0 : 3,
                                .in_reasoning = row->flags & OPENED, .id_seed = 7, .max_bytes = 1 << 20};
    memset(g, 0, sizeof *g);
    chat_reply_init(&g->r, &o);
    for (size_t i = 0, len; i < n; i += len) {
        len = cut == 0 ? char_len(row->in + i, n - i) : i == 0 ? cut : n - cut;
        chat_reply_push(&g->r, row->in + i, len);
        if (eager) take(g), take_calls(g, false);
    }
    chat_reply_finish(&g->r);
    take(g);
    take_calls(g, true);
    for (uint32_t i = 0; i < g->r.n_calls; i++) {
        const struct chat_call *c = &g->r.calls[i];
        size_t at = strlen(g->calls);
        snprintf(g->calls + at, sizeof g->calls - at, "%s%.*s(%.*s)", i ? " " : "", (int)c->n_name, g->r.strings.data + c->name, (int)c->n_arguments, g->r.strings.data + c->arguments);
    }
}

static void check_row(const struct row *row, size_t cut, bool eager, const char *test_name_) {
    struct got g;
    run_row(&g, row, cut, eager);
    CHECKF(!g.r.failed, "%s", row->in);
    CHECKF(strcmp(g.reasoning, row->reasoning) == 0, "%s, cut %zu: reasoning \"%s\"", row->in, cut, g.reasoning);
    CHECKF(strcmp(g.content, row->content) == 0, "%s, cut %zu: content \"%s\"", row->in, cut, g.content);
    CHECKF(strcmp(g.calls, row->calls) == 0, "%s, cut %zu: calls \"%s\"", row->in, cut, g.calls);
    CHECKF(!g.wrong && !compare_calls(&g), "%s, cut %zu: shown calls: %s", row->in, cut, g.wrong ? g.wrong : compare_calls(&g));
    for (uint32_t i = 0; i < g.r.n_calls; i++) {
        bool given = i == 0 && row->id;
        size_t n = strlen(g.r.calls[i].id);
        CHECKF(given ? strcmp(g.r.calls[i].id, row->id) == 0 : n == (row->syntax == CHAT_SYNTAX_MISTRAL ? 9 : 29), "%s: id %s", row->in, g.r.calls[i].id);
        CHECK(i == 0 || strcmp(g.r.calls[i].id, g.r.calls[i - 1].id) != 0);
    }
    chat_reply_clear(&g.r);
}

TEST(whole) {
    for (int i = 0; i < N_ROWS; i++) check_row(&rows[i], strlen(rows[i].in), false, test_name_);
}

TEST(character_by_character) {
    for (int i = 0; i < N_ROWS; i++) {
        check_row(&rows[i], 0, false, test_name_);
        check_row(&rows[i], 0, true, test_name_);
    }
}

TEST(cut_at_every_place) {
    for (int i = 0; i < N_ROWS; i++) {
        size_t n = strlen(rows[i].in);
        for (size_t cut = char_len(rows[i].in, n); cut < n; cut += char_len(rows[i].in + cut, n - cut)) check_row(&rows[i], cut, true, test_name_);
    }
}

TEST(content_flows_before_the_end) {
    struct got g = {0};
    struct chat_reply_opts o = {.dialect = {CHAT_SYNTAX_HERMES, &think}, .tools = tools, .n_tools = 3, .max_bytes = 1 << 20};
    chat_reply_init(&g.r, &o);
    chat_reply_push(&g.r, "<think>I", 8);
    CHECK(g.r.reasoning.ready == 1 && chat_reply_in_reasoning(&g.r));
    chat_reply_push(&g.r, " see </thi", 10);
    CHECK(g.r.reasoning.ready == 5);
    chat_reply_push(&g.r, "nk>\n\nYes, <b", 12);
    CHECK(g.r.content.ready == 7 && !chat_reply_in_reasoning(&g.r));
    chat_reply_push(&g.r, "<tool_call>{\"name\":\"now\"}</tool_call>", 37);
    CHECK(g.r.n_calls == 1 && g.r.content.ready == 7);
    chat_reply_clear(&g.r);
}

/* What is shown of a call at the end of a text that stops inside it. */
TEST(arguments_flow) {
    static const struct { enum chat_syntax s; const char *in, *args; uint32_t index; } v[] = {
        {CHAT_SYNTAX_HERMES, "Hm <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xC3\xB6", "{\"city\": \"K\xC3\xB6", 0},
        {CHAT_SYNTAX_HERMES, "<tool_call>{\"name\":\"now\"}</tool_call><tool_call>{\"id\":\"x\",\"name\":\"now\",\"parameters\":{\"a\":[1,2", "{\"a\":[1,2", 1},
        {CHAT_SYNTAX_HERMES, "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":\"</tool_call>", "{\"a\":\"</tool_call>", 0},
        {CHAT_SYNTAX_HERMES, "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":oops}", "{\"a\":", 0},
        {CHAT_SYNTAX_QWEN_XML, "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3", "{\"city\": \"Oslo\"", 0},
        {CHAT_SYNTAX_QWEN_XML, "<function=get_weather>\n<para", "{", 0},
        {CHAT_SYNTAX_GLM, "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>", "{\"days\": 2", 0},
        {CHAT_SYNTAX_MISTRAL, "[TOOL_CALLS]now[CALL_ID]Ab3456789[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{\"city\": ", "{\"city\": ", 1},
        {CHAT_SYNTAX_LLAMA3, "{\"type\": \"function\", \"name\": \"now\", \"parameters\": {\"a\": tru", "{\"a\": tru", 0},
        {CHAT_SYNTAX_DEEPSEEK, DSB "call\xE2\x96\x81" "begin" DSE "function" DSB "sep" DSE "now\n```json\n{\"a\": 1", "{\"a\": 1", 0},
        {CHAT_SYNTAX_DEEPSEEK, DSB "call\xE2\x96\x81" "begin" DSE "now" DSB "sep" DSE "{\"a\"", "{\"a\"", 0},
        {CHAT_SYNTAX_KIMI, "<|tool_call_begin|>functions.now:3<|tool_call_argument_begin|>{\"a\": -", "{\"a\": -", 0},
        {CHAT_SYNTAX_INVOKE, "<minimax:tool_call><invoke name=\"now\">\n</invoke>\n<invoke name=\"get_weather\"><parameter name=\"days\">2</parameter>\n<para", "{\"days\": 2", 1},
        {CHAT_SYNTAX_HARMONY, "<|channel|>commentary to=functions.now<|message|>{\"a\": \"<|e", "{\"a\": \"<|e", 0},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct got g = {0};
        size_t n = strlen(v[i].in);
        struct chat_reply_opts o = {.dialect = {v[i].s, NULL}, .tools = tools, .n_tools = 3, .max_bytes = 1 << 20};
        chat_reply_init(&g.r, &o);
        for (size_t at = 0, len; at < n; at += len) {
            len = char_len(v[i].in + at, n - at);
            chat_reply_push(&g.r, v[i].in + at, len);
            take_calls(&g, false);
        }
        CHECKF(g.n_shown == v[i].index + 1 && !g.wrong, "%s: %u calls shown", v[i].in, g.n_shown);
        CHECKF(strcmp(g.shown[v[i].index].args, v[i].args) == 0 && !g.shown[v[i].index].ended, "%s: %s", v[i].in, g.shown[v[i].index].args);
        chat_reply_finish(&g.r);
        take_calls(&g, true);
        CHECKF(g.shown[v[i].index].broken && !g.wrong, "%s: not broken at the end", v[i].in);
        chat_reply_clear(&g.r);
    }
}

TEST(python_runs_where_a_tool_can) {
    static const struct row code = {CHAT_SYNTAX_LLAMA3, 0, "<|python_tag|>print(\"a\\n\")\nx = 1", "", "", "python({\"code\":\"print(\\\"a\\\\n\\\")\\nx = 1\"})", NULL};
    static const struct row call = {CHAT_SYNTAX_LLAMA3, 0, "<|python_tag|>brave_search.call(query=\"S, P\", n=2, ok=True, x='it\\'s', y=None)", "", "",
                                    "brave_search({\"query\":\"S, P\",\"n\":2,\"ok\":true,\"x\":\"it's\",\"y\":null})", NULL};
    check_row(&code, 0, true, test_name_);
    check_row(&call, 0, true, test_name_);
}

TEST(too_many_calls_are_content) {
    struct chat_reply r;
    struct chat_reply_opts o = {.dialect = {CHAT_SYNTAX_HERMES, NULL}, .tools = tools, .n_tools = 3, .max_bytes = 1 << 20};
    static const char call[] = "<tool_call>{\"name\":\"now\"}</tool_call>";
    chat_reply_init(&r, &o);
    for (int i = 0; i < CHAT_MAX_CALLS + 2; i++) chat_reply_push(&r, call, sizeof call - 1);
    chat_reply_finish(&r);
    CHECK(r.n_calls == CHAT_MAX_CALLS && r.content.ready == 2 * (sizeof call - 1));
    chat_reply_clear(&r);
}

TEST(limits_and_lost_memory_fail_cleanly) {
    for (uint64_t n = 0; n < 40; n++) {
        struct got g;
        mem_fail_after(n);
        run_row(&g, &rows[N_ROWS - 7], 0, true);
        mem_fail_after(UINT64_MAX);
        chat_reply_clear(&g.r);
    }
    struct chat_reply r;
    chat_reply_init(&r, &(struct chat_reply_opts){.max_bytes = 10});
    chat_reply_push(&r, "more than ten bytes", 19);
    CHECK(r.failed);
    chat_reply_clear(&r);
}

/* A header that never ends is text, and found to be so at the same place however it comes. */
TEST(endless_headers_are_text) {
    static char in[3000];
    struct row row = {CHAT_SYNTAX_HARMONY, NO_TOOLS, in, "", in, "", NULL};
    for (size_t n = 0; n + 12 < 1500; n += 11) memcpy(in + n, "<|channel|>", 11);
    strcat(in, " end");
    check_row(&row, strlen(in), true, test_name_);
    check_row(&row, 0, true, test_name_);
    check_row(&row, 1024, true, test_name_);
}

TEST(wanted_control_tokens) {
    static const struct { enum chat_syntax s; const char *piece; bool want; } v[] = {
        {CHAT_SYNTAX_HERMES, "<tool_call>", true}, {CHAT_SYNTAX_HERMES, "</tool_call>", true}, {CHAT_SYNTAX_HERMES, "<|im_end|>", false}, {CHAT_SYNTAX_HERMES, "<think>", true},
        {CHAT_SYNTAX_HERMES, "</think>", true}, {CHAT_SYNTAX_MISTRAL, "[TOOL_CALLS]", true}, {CHAT_SYNTAX_MISTRAL, "[ARGS]", true}, {CHAT_SYNTAX_LLAMA3, "<|python_tag|>", true},
        {CHAT_SYNTAX_LLAMA3, "<|eot_id|>", false}, {CHAT_SYNTAX_HARMONY, "<|channel|>", true}, {CHAT_SYNTAX_HARMONY, "<|endoftext|>", false}, {CHAT_SYNTAX_KIMI, "<|tool_calls_section_end|>", true},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct chat_reply r;
        chat_reply_init(&r, &(struct chat_reply_opts){.dialect = {v[i].s, &think}, .tools = tools, .n_tools = 1, .max_bytes = 100});
        CHECKF(chat_reply_wants(&r, v[i].piece, strlen(v[i].piece)) == v[i].want, "%s", v[i].piece);
        chat_reply_clear(&r);
    }
}

TEST(dialects) {
    static const struct { const char *text; enum chat_syntax s; const char *open; } v[] = {
        {"<|im_start|>{{ content }}<tool_call> </think>", CHAT_SYNTAX_HERMES, "<think>"},
        {"<tool_call>\n<function=example> <parameter=x>", CHAT_SYNTAX_QWEN_XML, NULL},
        {"<tool_call> <arg_key> <think></think>", CHAT_SYNTAX_GLM, "<think>"},
        {"[TOOL_CALLS] [THINK] [/THINK]", CHAT_SYNTAX_MISTRAL, "[THINK]"},
        {"<|start_header_id|> \"parameters\": dictionary", CHAT_SYNTAX_LLAMA3, NULL},
        {DSB "calls\xE2\x96\x81" "begin" DSE DSB "call\xE2\x96\x81" "begin" DSE " split('</think>')", CHAT_SYNTAX_DEEPSEEK, "<think>"},
        {"<|channel|>analysis<|message|> </think>", CHAT_SYNTAX_HARMONY, NULL},
        {"{{ messages }}", CHAT_SYNTAX_HERMES, NULL},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct chat_dialect d;
        chat_dialect_detect(&d, v[i].text, strlen(v[i].text));
        CHECKF(d.syntax == v[i].s && (v[i].open ? d.think && strcmp(d.think->open, v[i].open) == 0 : !d.think), "%s: %s", v[i].text, chat_syntax_name(d.syntax));
    }
    struct chat_dialect d = {CHAT_SYNTAX_HERMES, &think};
    CHECK(chat_dialect_in_reasoning(&d, "x<think>\n", 9) && !chat_dialect_in_reasoning(&d, "x<think>\n\n</think>\n\n", 20) && !chat_dialect_in_reasoning(&d, "", 0));
    for (int s = 0; s < CHAT_N_SYNTAXES; s++) {
        enum chat_syntax back;
        CHECK(chat_syntax_find(chat_syntax_name((enum chat_syntax)s), &back) && (int)back == s);
    }
}

int main(void) {
    RUN(whole);
    RUN(character_by_character);
    RUN(cut_at_every_place);
    RUN(content_flows_before_the_end);
    RUN(arguments_flow);
    RUN(python_runs_where_a_tool_can);
    RUN(too_many_calls_are_content);
    RUN(limits_and_lost_memory_fail_cleanly);
    RUN(endless_headers_are_text);
    RUN(wanted_control_tokens);
    RUN(dialects);
    return test_failed_;
}
