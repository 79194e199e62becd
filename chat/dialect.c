/* SPDX-License-Identifier: Apache-2.0
 *
 * Which family a model belongs to, by what its chat template writes; and the marks of each family. */
#include <string.h>

#include "chat/reply_internal.h"

#define DS(name) "<\xEF\xBD\x9Ctool\xE2\x96\x81" name "\xEF\xBD\x9C>" /* <｜tool▁name｜> */
#define DSML "\xEF\xBD\x9C" "DSML" "\xEF\xBD\x9C"

static const struct chat_mark hermes_marks[] = {{"<tool_call>", "</tool_call>", chat__parse_tool_call, chat__draft_tool_call}, {NULL, NULL, NULL, NULL}};
static const struct chat_mark qwen_marks[] = {{"<tool_call>", "</tool_call>", chat__parse_tool_call, chat__draft_tool_call},
                                              {"<seed:tool_call>", "</seed:tool_call>", chat__parse_tool_call, chat__draft_tool_call},
                                              {"<function=", "</function>", chat__parse_function_tag, chat__draft_function_tag}, {NULL, NULL, NULL, NULL}};
static const struct chat_mark mistral_marks[] = {{"[TOOL_CALLS]", NULL, chat__parse_mistral, chat__draft_mistral}, {NULL, NULL, NULL, NULL}};
static const struct chat_mark llama_marks[] = {{"", NULL, chat__parse_llama, chat__draft_llama}, {"<|python_tag|>", NULL, chat__parse_python_tag, chat__draft_llama}, {NULL, NULL, NULL, NULL}};
static const struct chat_mark deepseek_marks[] = {{DS("call\xE2\x96\x81" "begin"), DS("call\xE2\x96\x81" "end"), chat__parse_deepseek, chat__draft_deepseek}, {NULL, NULL, NULL, NULL}};
static const struct chat_mark kimi_marks[] = {{"<|tool_call_begin|>", "<|tool_call_end|>", chat__parse_kimi, chat__draft_kimi}, {NULL, NULL, NULL, NULL}};
static const struct chat_mark invoke_marks[] = {{"<minimax:tool_call>", "</minimax:tool_call>", chat__parse_invoke, chat__draft_invoke},
                                                {"<" DSML "tool_calls>", "</" DSML "tool_calls>", chat__parse_invoke, chat__draft_invoke}, {NULL, NULL, NULL, NULL}};

static const char *const qwen_skip[] = {"</tool_call>", NULL};
static const char *const deepseek_skip[] = {DS("calls\xE2\x96\x81" "begin"), DS("calls\xE2\x96\x81" "end"), NULL};
static const char *const kimi_skip[] = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", NULL};
static const char *const mistral_inner[] = {"[CALL_ID]", "[ARGS]", NULL};
static const char *const deepseek_inner[] = {DS("sep"), NULL};
static const char *const kimi_inner[] = {"<|tool_call_argument_begin|>", NULL};
static const char *const dsml_inner[] = {DSML, NULL};

const struct chat_syntax_row chat__syntaxes[CHAT_N_SYNTAXES] = {
    [CHAT_SYNTAX_NONE] = {.name = "none", .id_chars = 24, .id_prefix = "call_"},
    [CHAT_SYNTAX_HERMES] = {.name = "hermes", .marks = hermes_marks, .id_chars = 24, .id_prefix = "call_"},
    [CHAT_SYNTAX_QWEN_XML] = {.name = "qwen-xml", .marks = qwen_marks, .skip = qwen_skip, .id_chars = 24, .id_prefix = "call_"},
    [CHAT_SYNTAX_GLM] = {.name = "glm", .marks = hermes_marks, .id_chars = 24, .id_prefix = "call_"},
    [CHAT_SYNTAX_MISTRAL] = {.name = "mistral", .marks = mistral_marks, .inner = mistral_inner, .id_chars = 9, .id_prefix = ""}, /* its templates insist on 9 */
    [CHAT_SYNTAX_LLAMA3] = {.name = "llama3", .marks = llama_marks, .bare = true, .id_chars = 24, .id_prefix = "call_"},
    [CHAT_SYNTAX_DEEPSEEK] = {.name = "deepseek", .marks = deepseek_marks, .skip = deepseek_skip, .inner = deepseek_inner, .id_chars = 24, .id_prefix = "call_"},
    [CHAT_SYNTAX_KIMI] = {.name = "kimi", .marks = kimi_marks, .skip = kimi_skip, .inner = kimi_inner, .id_chars = 24, .id_prefix = "call_"},
    [CHAT_SYNTAX_INVOKE] = {.name = "invoke", .marks = invoke_marks, .inner = dsml_inner, .id_chars = 24, .id_prefix = "call_"},
    [CHAT_SYNTAX_HARMONY] = {.name = "harmony", .id_chars = 24, .id_prefix = "call_"},
};

static const struct chat_think thinks[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"<|channel>thought\n", "<channel|>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|inner_prefix|>", "<|inner_suffix|>"},
};

const char *chat_syntax_name(enum chat_syntax s) {
    return s < CHAT_N_SYNTAXES ? chat__syntaxes[s].name : "none";
}

bool chat_syntax_find(const char *name, enum chat_syntax *out) {
    for (int i = 0; i < CHAT_N_SYNTAXES; i++) {
        if (strcmp(chat__syntaxes[i].name, name) != 0) continue;
        *out = (enum chat_syntax)i;
        return true;
    }
    return false;
}

/* Most telling first: several families mention <tool_call>. */
static enum chat_syntax find_syntax(const char *t, size_t n) {
    static const struct { enum chat_syntax syntax; const char *has, *also; } rows[] = {
        {CHAT_SYNTAX_HARMONY, "<|channel|>", "<|message|>"},
        {CHAT_SYNTAX_DEEPSEEK, DS("call\xE2\x96\x81" "begin"), NULL},
        {CHAT_SYNTAX_INVOKE, "minimax:tool_call>", NULL},
        {CHAT_SYNTAX_INVOKE, DSML, NULL},
        {CHAT_SYNTAX_KIMI, "<|tool_call_begin|>", NULL},
        {CHAT_SYNTAX_MISTRAL, "[TOOL_CALLS]", NULL},
        {CHAT_SYNTAX_QWEN_XML, "<function=", "<parameter="},
        {CHAT_SYNTAX_GLM, "<arg_key>", NULL},
        {CHAT_SYNTAX_HERMES, "<tool_call>", NULL},
        {CHAT_SYNTAX_LLAMA3, "<|python_tag|>", NULL},
        {CHAT_SYNTAX_LLAMA3, "\"parameters\"", "<|start_header_id|>"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (chat__find(t, n, rows[i].has) && (!rows[i].also || chat__find(t, n, rows[i].also))) return rows[i].syntax;
    }
    return CHAT_SYNTAX_HERMES; /* the plainest, and the one most fine-tunes saw */
}

void chat_dialect_detect(struct chat_dialect *out, const char *template_text, size_t n) {
    *out = (struct chat_dialect){.syntax = find_syntax(template_text, n)};
    for (size_t i = 0; i < sizeof thinks / sizeof *thinks && out->syntax != CHAT_SYNTAX_HARMONY && !out->think; i++) {
        if (chat__find(template_text, n, thinks[i].close)) out->think = &thinks[i];
    }
}

bool chat_dialect_in_reasoning(const struct chat_dialect *d, const char *prompt, size_t n) {
    if (!d->think) return false;
    while (n > 0 && chat__space(prompt[n - 1])) n--;
    struct text_view open = chat__trim(d->think->open, strlen(d->think->open));
    return n >= open.n && memcmp(prompt + n - open.n, open.p, open.n) == 0;
}
