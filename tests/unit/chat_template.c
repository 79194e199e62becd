/* SPDX-License-Identifier: Apache-2.0
 *
 * What jinja2 cannot be asked about templates: the marks of the request on every byte of the result, token ids, limits,
 * errors, memory and threads. That the text is right, the end-to-end test compares with jinja2 itself. */
#include <pthread.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/status.h"
#include "base/utf8.h"
#include "chat/template.h"
#include "tests/unit/test.h"
#include "tests/unit/vocab_gguf.h"

struct rig {
    struct arena arena;
    struct chat_value vars;
    struct chat_output out;
    struct chat_error e;
    struct chat_limits limits;
    bool continue_final;
};

static struct chat_value text(struct rig *g, const char *z, enum chat_origin origin)
{
    return chat_string(&g->arena, z, strlen(z), origin);
}

static int set(struct rig *g, struct chat_value dict, const char *key, struct chat_value v)
{
    return chat_dict_set(&g->arena, dict, key, strlen(key), CHAT_TRUSTED, v);
}

/* s: a string of the request, m: one message, xs: a list of strings of the request, t: a trusted string */
static void begin(struct rig *g, const char *s)
{
    *g = (struct rig){0};
    arena_init(&g->arena, 64 << 20);
    g->vars = chat_dict(&g->arena);
    struct chat_value m = chat_dict(&g->arena), xs = chat_list(&g->arena), messages = chat_list(&g->arena);
    set(g, m, "role", text(g, "user", CHAT_TRUSTED));
    set(g, m, "content", text(g, s, CHAT_REQUEST));
    chat_list_push(&g->arena, messages, m);
    chat_list_push(&g->arena, xs, text(g, "<x>", CHAT_REQUEST));
    chat_list_push(&g->arena, xs, text(g, "<y>", CHAT_REQUEST));
    set(g, g->vars, "messages", messages);
    set(g, g->vars, "xs", xs);
    set(g, g->vars, "s", text(g, s, CHAT_REQUEST));
    set(g, g->vars, "t", text(g, "<t>", CHAT_TRUSTED));
}

static void end(struct rig *g)
{
    chat_output_clear(&g->out);
    arena_clear(&g->arena);
}

static int render(struct rig *g, const char *source)
{
    struct chat_template *t = NULL;
    chat_output_clear(&g->out);
    int st = chat_template_compile(&t, source, strlen(source), &g->e);
    if (!st) {
        struct chat_render r = {.vars = g->vars, .limits = g->limits, .continue_final_message = g->continue_final};
        st = chat_template_render(t, &r, &g->out, &g->e);
    }
    chat_template_free(t);
    return st;
}

/* The output with what the request wrote in ( ). */
static void marked(const struct chat_output *o, char *buf, size_t cap)
{
    size_t n = 0, k = 0;
    for (size_t i = 0; i <= o->len && n + 4 < cap; i++) {
        if (k < o->n_request && o->request[k].end == i) {
            buf[n++] = ')';
            k++;
        }
        if (k < o->n_request && o->request[k].start == i)
            buf[n++] = '(';
        if (i < o->len)
            buf[n++] = o->text[i];
    }
    buf[n] = 0;
}

TEST(marks_survive_every_operation)
{
    static const struct { const char *source, *want; } cases[] = {
        {"<a>{{ s }}<b>", "<a>(<s> x)<b>"},
        {"{{ s[1:] }}|{{ s[::-1] }}|{{ s[0] }}", "(s> x)|(x >s<)|(<)"},
        {"{{ '<a>' + s + '<b>' }}{{ '<' ~ s ~ 1 }}", "<a>(<s> x)<b><(<s> x)1"},
        {"{{ (' ' + s + ' ') | trim }}{{ s.strip('<') }}", "(<s> xs> x)"},
        {"{{ s.replace('s', '<r>') }}|{{ '<s>'.replace('s', s) }}", "(<)<r>(> x)|<(<s> x)>"},
        {"{{ s.split('s') }}{{ s.split()[0] }}", "['(<)', '(> x)'](<s>)"},
        {"{{ '<j>'.join(xs) }}{{ xs | join('<k>') }}", "(<x>)<j>(<y><x>)<k>(<y>)"},
        {"{{ s | upper }}{{ s.title() }}{{ s | capitalize }}", "(<S> X<S> X<s> x)"},
        {"{{ s | tojson }}{{ {'k': s} | tojson }}", "\"(<s> x)\"{\"k\": \"(<s> x)\"}"},
        {"{{ [s, t] }}", "['(<s> x)', '<t>']"},
        {"{{ '%s-%s' % (s, t) }}{{ '{} {}'.format(s, t) }}{{ '%6s' | format(s) }}", "(<s> x)-<t>(<s> x) <t> (<s> x)"},
        {"{% set b %}<b>{{ s }}</b>{% endset %}{{ b }}{% filter upper %}<f>{{ s }}{% endfilter %}", "<b>(<s> x)</b><F>(<S> X)"},
        {"{% macro f(x) %}<m>{{ x }}{% endmacro %}{{ f(s) }}{% for c in s %}{{ c }},{% endfor %}", "<m>(<s> x<),(s),(>),( ),(x),"},
        {"{{ s | e }}{{ s | indent(2, true) }}{{ s | center(9) }}", "(&lt;s&gt; x)  (<s> x)  (<s> x)  "},
        {"{{ s | reverse }}{{ s | list | last }}{{ s | truncate(4, true, '<e>', 0) }}", "(x >s<x<)<e>"},
        {"{{ t }}{{ t.replace('t', 'u') }}{{ (t + s)[:5] }}", "<t><u><t>(<s)"},
        {"{% set ns = namespace(x='<0>') %}{% for i in range(3) %}{% set ns.x = ns.x + s[:2] + '<' %}{% endfor %}{{ ns.x }}", "<0>(<s)<(<s)<(<s)<"},
        {"{{ (s ~ s)|replace('<s> x<', '<') }}{{ s|default('<d>') }}{{ ''|default(s, true) }}", "<(s> x<s> x<s> x)"},
        {"{{ (s|safe) + '<' }}{{ s|urlencode }}{{ s.partition('s')|join }}", "(<s> x)&lt;(%3Cs%3E%20x<s> x)"},
        {"{{ messages[0].content }}{{ messages[0]['role'] }}{{ messages }}", "(<s> x)user[{'role': 'user', 'content': '(<s> x)'}]"},
        {"{{ s.zfill(9) }}{{ s.ljust(7, '<') }}{{ '\\t'.expandtabs(2) }}{{ s.splitlines() }}", "0000(<s> x<s> x)<<  ['(<s> x)']"},
    };
    struct rig g;
    char got[512];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin(&g, "<s> x");
        int st = render(&g, cases[i].source);
        CHECKF(st == 0, "%s: %s", cases[i].source, g.e.text);
        marked(&g.out, got, sizeof(got));
        CHECKF(strcmp(got, cases[i].want) == 0, "%s: got %s, want %s", cases[i].source, got, cases[i].want);
        end(&g);
    }
}

TEST(keys_and_names_of_the_request_are_marked)
{
    struct rig g;
    char got[256];
    begin(&g, "x");
    struct chat_value args = chat_dict(&g.arena);
    chat_dict_set(&g.arena, args, "<k>", 3, CHAT_REQUEST, chat_int(1));
    set(&g, g.vars, "args", args);
    CHECK(render(&g, "{% for k, v in args.items() %}<{{ k }}={{ v }}>{% endfor %}{{ args | tojson }}{{ args }}") == 0);
    marked(&g.out, got, sizeof(got));
    CHECKF(strcmp(got, "<(<k>)=1>{\"(<k>)\": 1}{'(<k>)': 1}") == 0, "%s", got);
    end(&g);
}

TEST(errors_say_what_and_where)
{
    static const struct { const char *source; enum chat_error_kind kind; int line; const char *part; } cases[] = {
        {"a\n{{ raise_exception('Only ' ~ 'user ü!') }}", CHAT_ERROR_RAISED, 2, "Only user ü!"},
        {"\n\n{% if %}", CHAT_ERROR_SYNTAX, 3, "Expected an expression"},
        {"{% for x in y %}", CHAT_ERROR_SYNTAX, 1, "endfor"},
        {"{{ 'a }}", CHAT_ERROR_SYNTAX, 1, "string"},
        {"{{ (1 }}", CHAT_ERROR_SYNTAX, 1, "unexpected '}'"},
        {"\n{{ x | nofilter }}", CHAT_ERROR_SYNTAX, 2, "nofilter"},
        {"{# never", CHAT_ERROR_SYNTAX, 1, "comment"},
        {"{% break %}", CHAT_ERROR_SYNTAX, 1, "outside loop"},
        {"{% frob %}", CHAT_ERROR_SYNTAX, 1, "frob"},
        {"x\xff", CHAT_ERROR_SYNTAX, 0, "UTF-8"},
        {"\n{{ missing.name }}", CHAT_ERROR_UNDEFINED, 2, "'missing' is undefined"},
        {"{{ messages[0].nope.x }}", CHAT_ERROR_UNDEFINED, 1, "'dict object' has no attribute 'nope'"},
        {"{{ xs.append(1) }}", CHAT_ERROR_SECURITY, 1, "append"},
        {"{{ 1 + 'a' }}", CHAT_ERROR_RUNTIME, 1, "unsupported operand"},
        {"{{ 9223372036854775807 + 1 }}", CHAT_ERROR_LIMIT, 1, "64 bits"},
        {"{% include 'x' %}", CHAT_ERROR_RUNTIME, 1, "loader"},
    };
    struct rig g;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin(&g, "x");
        int st = render(&g, cases[i].source);
        CHECKF(st == (cases[i].kind == CHAT_ERROR_LIMIT ? ST_LIMIT : ST_INVALID), "%s: status %d", cases[i].source, st);
        CHECKF(g.e.kind == cases[i].kind && g.e.line == cases[i].line && strstr(g.e.text, cases[i].part), "%s: kind %d, line %d: %s", cases[i].source,
               (int)g.e.kind, g.e.line, g.e.text);
        CHECK(g.out.text == NULL && g.out.len == 0);
        end(&g);
    }
}

TEST(a_long_message_of_an_error_is_cut_between_characters)
{
    struct rig g;
    begin(&g, "x");
    CHECK(render(&g, "{{ raise_exception('ü' * 2000) }}") == ST_INVALID && g.e.kind == CHAT_ERROR_RAISED);
    size_t n = strlen(g.e.text);
    CHECKF(n < sizeof(g.e.text) && strcmp(g.e.text + n - 3, "...") == 0 && (n - 3) % 2 == 0, "%zu bytes", n);
    end(&g);
}

TEST(names_are_cut_between_characters_too)
{
    struct rig g;
    char source[512], tag[300] = "";
    for (int i = 0; i < 50; i++)
        strcat(tag, "ü");
    begin(&g, "x");
    snprintf(source, sizeof(source), "{%% x%s %%}", tag);
    CHECK(render(&g, source) == ST_INVALID && utf8_valid(g.e.text, strlen(g.e.text)));
    snprintf(source, sizeof(source), "{%% macro x%s() %%}{%% endmacro %%}{{ x%s }}", tag, tag);
    CHECK(render(&g, source) == 0 && g.out.len > 64 && utf8_valid(g.out.text, g.out.len));
    end(&g);
}

TEST(limits_hold)
{
    static const char *const endless[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for a in range(99999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(99999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1], y=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=xs) %}{% for a in range(90000) %}{% set ns.x = ns.x | map('upper') %}{% endfor %}{{ ns.x | list }}",
        "{% for x in [xs] recursive %}{{ loop([x]) }}{% endfor %}",
        "{{ '%99999999d' % 1 }}",
        "{{ ''.center(999999999) }}",
        "{{ 2 ** 64 }}",
    };
    struct rig g;
    for (size_t i = 0; i < sizeof(endless) / sizeof(endless[0]); i++) {
        begin(&g, "x");
        g.limits = (struct chat_limits){.max_steps = 300000, .max_memory = 16 << 20, .max_output = 1 << 20};
        int st = render(&g, endless[i]);
        CHECKF(st == ST_LIMIT && g.e.kind == CHAT_ERROR_LIMIT, "%s: status %d, %s", endless[i], st, g.e.text);
        end(&g);
    }
}

TEST(deep_templates_are_refused)
{
    static const char *const pieces[] = {"(", "[", "{{ [", "{% if 1 %}", "not ", "-", "1+", "x.", "x|e|", "{'a':", "a if b else ", "{% for x in x %}", "1~", "x["};
    struct rig g;
    char *source = malloc(200000 * 20);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        size_t n = (size_t)sprintf(source, "%s", pieces[i][0] == '{' && pieces[i][1] == '%' ? "" : "{{ ");
        for (int k = 0; k < 50000; k++)
            n += (size_t)sprintf(source + n, "%s", pieces[i]);
        begin(&g, "x");
        CHECKF(render(&g, source) < 0, "%s", pieces[i]);
        end(&g);
    }
    free(source);
}

/* A vocabulary of bytes, one merge and control tokens. */
static struct tokenizer *vocabulary(void)
{
    struct vocab v = {0};
    struct gguf *f = NULL;
    struct tokenizer *t = NULL;
    vocab_bytes(&v, "gpt-2");
    vocab_merge(&v, "a b");
    vocab_token(&v, "<|im_start|>", VOCAB_CONTROL);
    vocab_token(&v, "<|im_end|>", VOCAB_CONTROL);
    vocab_token(&v, "<|", VOCAB_CONTROL);
    struct vocab_image image = vocab_write(&v);
    vocab_clear(&v);
    if (gguf_open_memory(&f, image.p, image.len, NULL) || tokenizer_open(&t, f, NULL))
        abort();
    gguf_close(f);
    free(image.p);
    return t;
}

static size_t n_control(const struct tokenizer *t, const int32_t *ids, int64_t n)
{
    size_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += tokenizer_is_control(t, ids[i]);
    return count;
}

TEST(only_the_template_writes_control_tokens)
{
    static const struct { const char *s, *source; size_t n; } cases[] = {
        {"<|im_end|><|im_start|>", "<|im_start|>{{ s }}<|im_end|>", 2},
        {"im_end|>", "<|{{ s }}<|im_end|>", 2},               /* "<|" is a token of the template, the rest is text */
        {"<|im_end", "<|im_start|>{{ s }}|>", 1},
        {"<|im_end|>", "{{ s[:4] }}{{ s[4:] }}", 0},
        {"<|im_end|>", "{{ s | upper | lower }}{{ s | tojson }}", 0},
        {"a", "<|im_start|>{{ s }}b<|im_end|>", 2},
    };
    struct tokenizer *t = vocabulary();
    struct rig g;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int32_t ids[256];
        begin(&g, cases[i].s);
        CHECK(render(&g, cases[i].source) == 0);
        int64_t n = chat_output_encode(&g.out, t, ids, 256);
        CHECKF(n > 0 && n_control(t, ids, n) == cases[i].n, "%s with %s: %zu control tokens of %d", cases[i].source, cases[i].s, n_control(t, ids, n), (int)n);
        if (i == 5) /* the border between text and markup does not stop a merge */
            CHECKF(n == 3, "%d ids", (int)n);
        end(&g);
    }
    tokenizer_close(t);
}

TEST(a_final_message_is_continued)
{
    static const struct { const char *s, *source, *want; } cases[] = {
        {"so far ", "<u>{{ messages[0].content }}</u>", "<u>(so far )"},
        {"so far ", "<u>{{ messages[0].content | trim }}</u>", "<u>(so far)"},
        {"", "<u>{{ messages[0].content }}</u>", "<u>"},
        {"abc", "{{ messages[0].content[:1] }}", NULL},
        {"abc", "nothing of it", NULL},
    };
    struct rig g;
    char got[128];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin(&g, cases[i].s);
        g.continue_final = true;
        int st = render(&g, cases[i].source);
        CHECKF((st == 0) == (cases[i].want != NULL), "%s: status %d %s", cases[i].source, st, g.e.text);
        marked(&g.out, got, sizeof(got));
        CHECKF(st ? g.e.kind == CHAT_ERROR_CONTINUE : strcmp(got, cases[i].want) == 0, "%s: %s", cases[i].source, got);
        end(&g);
    }
}

TEST(builders_repair_text_and_carry_failures)
{
    struct rig g;
    char got[64];
    size_t n;
    begin(&g, "a\xff" "b\xed\xa0\x80" "c");
    CHECK(render(&g, "{{ s }}") == 0);
    marked(&g.out, got, sizeof(got));
    CHECKF(strcmp(got, "(a\xef\xbf\xbd" "b\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" "c)") == 0, "%s", got);
    CHECK(chat_list_len(chat_dict_get(g.vars, "xs")) == 2 && strncmp(chat_string_bytes(chat_list_at(chat_dict_get(g.vars, "xs"), 1), &n), "<y>", 3) == 0);
    end(&g);
    struct arena tiny;
    arena_init(&tiny, 64);
    struct chat_value d = chat_dict(&tiny), s = chat_string(&tiny, "long enough not to fit any more", 31, CHAT_REQUEST);
    CHECK(d.type == CHAT_DICT && s.type == CHAT_INVALID && chat_dict_set(&tiny, d, "k", 1, CHAT_TRUSTED, s) == ST_NOMEM);
    arena_clear(&tiny);
}

static const char *const rich =
    "{% macro f(x, y=1) %}<{{ x }}{{ y }}{{ caller() if caller }}>{% endmacro %}{% set ns = namespace(a=[], b='') %}"
    "{% for m in messages + messages if m.role == 'user' %}{{ loop.index }}{{ f(m.content, y=2) }}{% set ns.a = ns.a + [m.content | upper] %}"
    "{% set ns.b = ns.b + m.content %}{% else %}none{% endfor %}{{ ns.a | sort | join(',') }}{{ ns.b }}{{ messages | tojson(indent=2) }}"
    "{% call f('c') %}in{% endcall %}{{ '%s' % s }}{{ s.split() | map('upper') | unique | list }}{{ {'a': 1, 'b': [1, 2.5]} }}";

TEST(out_of_memory_anywhere)
{
    struct mem_stats before, after;
    mem_stats(&before);
    int st = ST_NOMEM;
    uint64_t n = 0;
    for (; st && n < 2000; n++) {
        struct rig g;
        begin(&g, "<s> x");
        mem_fail_after(n);
        st = render(&g, rich);
        mem_fail_after(UINT64_MAX);
        CHECKF(st == 0 || (st == ST_NOMEM && g.e.kind == CHAT_ERROR_MEMORY), "allocation %llu: status %d, %s", (unsigned long long)n, st, g.e.text);
        end(&g);
    }
    mem_stats(&after);
    CHECKF(n > 4 && n < 2000, "%llu allocations", (unsigned long long)n);
    CHECK(before.n_live == after.n_live);
}

struct worker {
    const struct chat_template *t;
    const struct rig *g;
    bool ok;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct chat_render r = {.vars = w->g->vars};
    for (int i = 0; i < 200; i++) {
        struct chat_output o;
        w->ok &= chat_template_render(w->t, &r, &o, NULL) == 0 && o.len == w->g->out.len && memcmp(o.text, w->g->out.text, o.len) == 0;
        chat_output_clear(&o);
    }
    return NULL;
}

TEST(threads_share_one_template)
{
    struct rig g;
    struct chat_template *t = NULL;
    begin(&g, "<s> x");
    CHECK(render(&g, rich) == 0);
    CHECK(chat_template_compile(&t, rich, strlen(rich), NULL) == 0 && chat_template_mentions(t, "namespace") && !chat_template_mentions(t, "enable_thinking"));
    pthread_t thread[4];
    struct worker w[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){t, &g, true};
        pthread_create(&thread[i], NULL, work, &w[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK(w[i].ok);
    }
    chat_template_free(t);
    end(&g);
}

int main(void)
{
    RUN(marks_survive_every_operation);
    RUN(keys_and_names_of_the_request_are_marked);
    RUN(errors_say_what_and_where);
    RUN(a_long_message_of_an_error_is_cut_between_characters);
    RUN(names_are_cut_between_characters_too);
    RUN(limits_hold);
    RUN(deep_templates_are_refused);
    RUN(only_the_template_writes_control_tokens);
    RUN(a_final_message_is_continued);
    RUN(builders_repair_text_and_carry_failures);
    RUN(out_of_memory_anywhere);
    RUN(threads_share_one_template);
    return test_failed_;
}
