/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks: exactly the tokens that accept takes, at every step of random texts; triggers; parts and repetition; states that
 * are clones; many threads on one grammar; memory that runs out. */
#include "grammar_rig.h"

#include <pthread.h>

#define SCHEMA "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"v\":{\"anyOf\":[{\"type\":\"number\",\"minimum\":0.5}," \
               "{\"$ref\":\"#\"},{\"type\":\"array\",\"items\":{\"enum\":[\"ab\",\"abc\",null]}}]}},\"required\":[\"name\"]}"
static const struct { enum grammar_kind kind; const char *text; } GRAMMARS[] = {
    {GRAMMAR_REGEX, " \\x00b| +a"}, /* states that differ in a zero byte only */
    {GRAMMAR_SCHEMA, SCHEMA},
    {GRAMMAR_JSON, ""},
    {GRAMMAR_GBNF, "root ::= root root | \"{\" root \"}\" | \"[\" root \"]\" | \"aa\" | \"\""},
    {GRAMMAR_GBNF, "root ::= x \"}\"\nx ::= \"a\" x \"a\" | \"a\" x \"}\" | \"b\" x | \"\""},
    {GRAMMAR_GBNF, "root ::= (line \"\\n\")*\nline ::= [^\\n]{0,6}"},
    {GRAMMAR_REGEX, "(?:[a-z]{1,9}(?:, \"|\\.)?)+[0-9\\u4f60\\u597d]*"},
};
enum { N_GRAMMARS = sizeof GRAMMARS / sizeof *GRAMMARS };

static uint32_t rnd(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

static bool has(const uint32_t *mask, uint32_t id) {
    return mask[id / 32] >> id % 32 & 1;
}

/* NULL, or what is wrong with the mask at this state. */
static const char *wrong_mask(const struct grammar_state *st, const uint32_t *mask) {
    static _Thread_local char what[80];

    for (uint32_t id = 0; id < RIG_VOCAB; id++) {
        struct grammar_state *copy;
        bool taken;

        if (grammar_state_clone(&copy, st))
            return "no memory";
        taken = grammar_state_accept(copy, (int32_t)id) == ST_OK;
        grammar_state_close(copy);
        if (taken == has(mask, id))
            continue;
        snprintf(what, sizeof what, "token %u: mask says %d, accept %d", id, has(mask, id), taken);
        return what;
    }
    return NULL;
}

/* Random tokens under the mask; NULL or what went wrong. */
static const char *random_text(struct grammar *g, uint64_t seed, bool thorough) {
    uint32_t mask[RIG_WORDS], id;
    struct grammar_state *st;
    const char *wrong = NULL;

    if (grammar_state_open(&st, g))
        return "no memory";
    for (int i = 0; i < 60 && !wrong; i++) {
        if (grammar_state_mask(st, mask)) {
            wrong = "nothing can follow";
            break;
        }
        wrong = thorough ? wrong_mask(st, mask) : NULL;
        do
            id = rnd(&seed) % RIG_VOCAB;
        while (!has(mask, id));
        if (!wrong && grammar_state_accept(st, (int32_t)id))
            wrong = "an allowed token was refused";
        if (id == RIG_EOG)
            break;
    }
    grammar_state_close(st);
    return wrong;
}

TEST(mask_is_what_accept_takes) {
    struct grammar_vocab *v = rig_vocab();
    struct err e = {0};

    for (int i = 0; i < N_GRAMMARS; i++) {
        struct grammar *g;

        CHECKF(rig_compile(&g, v, GRAMMARS[i].kind, GRAMMARS[i].text, &e) == ST_OK, "%s", e.text);
        grammar_warm(g, i % 2 ? 1000 : 0);
        for (uint64_t seed = 0; seed < 12; seed++) {
            const char *wrong = random_text(g, seed, true);
            CHECKF(!wrong, "%s: %s", GRAMMARS[i].text, wrong);
        }
        grammar_drop(g);
    }
    grammar_vocab_close(v);
}

static struct grammar_state *open_spec(const struct grammar_vocab *v, const struct grammar_spec *spec, struct err *e) {
    struct grammar_state *st = NULL;
    struct grammar *g;

    if (grammar_compile(&g, v, spec, e) != ST_OK)
        return NULL;
    if (grammar_state_open(&st, g))
        st = NULL;
    grammar_drop(g); /* the state has a reference of its own */
    return st;
}

static int32_t token(const char *s) {
    for (int i = 0; i < N_LONGER; i++)
        if (strcmp(RIG_LONGER[i], s) == 0)
            return RIG_FIRST_LONG + i;
    return strlen(s) == 1 ? (uint8_t)s[0] : -1;
}

static const char *const TRIGGERS[] = {"<tool>", "!!"};
static const struct grammar_part BRACED = {.kind = GRAMMAR_GBNF, .text = "root ::= \"{\" [ab]+ \"}\"", .n_bytes = 22};

TEST(text_triggers) {
    struct grammar_vocab *v = rig_vocab();
    struct grammar_spec spec = {.parts = &BRACED, .n_parts = 1, .triggers = TRIGGERS, .n_triggers = 2, .again = true};
    struct err e = {0};
    uint32_t mask[RIG_WORDS];
    struct grammar_state *st = open_spec(v, &spec, &e);

    CHECKF(st, "%s", e.text);
    CHECK(grammar_state_is_free(st) && grammar_state_is_complete(st));
    CHECK(grammar_state_mask(st, mask) == ST_OK && !wrong_mask(st, mask));
    CHECK(has(mask, RIG_EOG) && has(mask, RIG_CONTROL) && has(mask, (uint32_t)token("hello world")) && has(mask, (uint32_t)token("<tool>{")));
    CHECK(grammar_state_accept(st, RIG_CONTROL) == ST_OK && grammar_state_accept(st, token("x<to")) == ST_OK);
    CHECK(grammar_state_is_free(st));
    CHECK(grammar_state_mask(st, mask) == ST_OK && !wrong_mask(st, mask) && has(mask, (uint32_t)token("ol>{")) && has(mask, 'z'));
    CHECK(grammar_state_accept(st, token("ol>{")) == ST_OK && !grammar_state_is_free(st) && !grammar_state_is_complete(st));
    CHECK(grammar_state_mask(st, mask) == ST_OK && !wrong_mask(st, mask));
    CHECK(has(mask, 'a') && has(mask, (uint32_t)token("ab")) && !has(mask, 'z') && !has(mask, RIG_EOG) && !has(mask, RIG_CONTROL));
    CHECK(grammar_state_accept(st, 'z') == ST_INVALID && grammar_state_accept_text(st, "ab}", 3) == ST_OK);
    CHECK(grammar_state_is_free(st) && grammar_state_is_complete(st) && grammar_state_accept_text(st, "free! !!{b", 10) == ST_OK);
    CHECK(!grammar_state_is_free(st));
    grammar_state_close(st);
    grammar_vocab_close(v);
}

TEST(the_end_behind_a_triggered_grammar) {
    struct grammar_vocab *v = rig_vocab();
    struct grammar_spec spec = {.parts = &BRACED, .n_parts = 1, .triggers = TRIGGERS, .n_triggers = 2};
    struct err e = {0};
    uint32_t mask[RIG_WORDS];
    struct grammar_state *st = open_spec(v, &spec, &e);

    CHECK(st && grammar_state_accept_text(st, "!!{a}", 5) == ST_OK && grammar_state_is_complete(st) && !grammar_state_is_free(st));
    CHECK(grammar_state_mask(st, mask) == ST_OK && has(mask, RIG_EOG) && !has(mask, 'a') && grammar_state_accept(st, 'a') == ST_INVALID);
    CHECK(grammar_state_accept(st, RIG_EOG) == ST_OK && grammar_state_mask(st, mask) == ST_OK && has(mask, RIG_EOG) && !has(mask, 'a'));
    CHECK(grammar_state_accept_text(st, "a", 1) == ST_INVALID);
    grammar_state_close(st);
    grammar_vocab_close(v);
}

TEST(token_triggers) {
    struct grammar_vocab *v = rig_vocab();
    struct grammar_part part = {.kind = GRAMMAR_JSON};
    int32_t trigger = RIG_CONTROL;
    struct grammar_spec spec = {.parts = &part, .n_parts = 1, .trigger_tokens = &trigger, .n_trigger_tokens = 1};
    struct err e = {0};
    uint32_t mask[RIG_WORDS];
    struct grammar_state *st = open_spec(v, &spec, &e);

    CHECKF(st, "%s", e.text);
    CHECK(grammar_state_accept_text(st, "{ free <|call|> text", 20) == ST_OK && grammar_state_is_free(st));
    CHECK(grammar_state_mask(st, mask) == ST_OK && !wrong_mask(st, mask) && has(mask, RIG_CONTROL));
    CHECK(grammar_state_accept(st, RIG_CONTROL) == ST_OK && !grammar_state_is_free(st));
    CHECK(grammar_state_mask(st, mask) == ST_OK && !wrong_mask(st, mask) && has(mask, '{') && !has(mask, 'f') && !has(mask, RIG_CONTROL));
    CHECK(grammar_state_accept_text(st, "{}", 2) == ST_OK && grammar_state_is_complete(st));
    grammar_state_close(st);
    trigger = RIG_VOCAB;
    CHECK(!open_spec(v, &spec, &e) && strstr(e.text, "trigger_tokens"));
    grammar_vocab_close(v);
}

TEST(parts_and_repetition) {
    struct grammar_vocab *v = rig_vocab();
    const struct grammar_part parts[] = {
        {.kind = GRAMMAR_LITERAL, .text = "f(", .n_bytes = 2}, {.kind = GRAMMAR_SCHEMA, .text = "{\"type\":\"integer\"}", .n_bytes = 18},
        {.kind = GRAMMAR_LITERAL, .text = ")", .n_bytes = 1}, {.kind = GRAMMAR_REGEX, .alternative = true, .text = "g+", .n_bytes = 2},
        {.kind = GRAMMAR_LITERAL, .alternative = true, .text = "gh", .n_bytes = 2},
    };
    struct grammar_spec spec = {.parts = parts, .n_parts = 5, .max_repeat = 3, .separator = ";"};
    static const struct { const char *text; int want; } X[] = {
        {"f(12)", 2}, {"ggg", 2}, {"gh", 2}, {"ggh", 0}, {"gh;f(-1);g", 2}, {"gh;", 1}, {"g;g;g;g", 0}, {"f(x)", 0}, {"", 1},
    };
    struct grammar *g;
    struct err e = {0};

    CHECKF(grammar_compile(&g, v, &spec, &e) == ST_OK, "%s", e.text);
    for (size_t i = 0; i < sizeof X / sizeof *X; i++)
        CHECKF(rig_match(g, X[i].text, strlen(X[i].text)) == X[i].want, "%s", X[i].text);
    grammar_drop(g);
    spec.max_repeat = UINT32_MAX;
    CHECK(grammar_compile(&g, v, &spec, &e) == ST_OK && rig_match(g, "g;g;g;g;g;gh", 12) == 2);
    grammar_drop(g);
    spec.n_parts = 0;
    CHECK(grammar_compile(&g, v, &spec, &e) == ST_LIMIT);
    grammar_vocab_close(v);
}

/* Stacks are cleaned up as a text goes on: a long list must cost no more than a short one. */
TEST(a_long_text_stays_small) {
    struct grammar_vocab *v = rig_vocab();
    struct grammar *g;
    struct grammar_state *st;
    struct err e = {0};
    uint32_t mask[RIG_WORDS];
    static const char BEGIN[] = "[{\"a\":[[\"x\"]]}", MORE[] = ", {\"a\": [[1, 2], {\"b\":\"c\"}]}";

    CHECK(rig_compile(&g, v, GRAMMAR_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"}}}}", &e) == ST_OK);
    CHECK(grammar_state_open(&st, g) == ST_OK && grammar_state_accept_text(st, BEGIN, strlen(BEGIN)) == ST_OK);
    for (int i = 0; i < 60000; i++)
        CHECK(grammar_state_accept_text(st, MORE, strlen(MORE)) == ST_OK);
    CHECK(grammar_state_mask(st, mask) == ST_OK && !wrong_mask(st, mask));
    CHECK(grammar_state_accept_text(st, "]", 1) == ST_OK && grammar_state_is_complete(st));
    grammar_state_close(st);
    grammar_drop(g);
    grammar_vocab_close(v);
}

struct worker { struct grammar *g; pthread_t thread; uint64_t seed; const char *wrong; };

static void *work(void *arg) {
    struct worker *w = arg;

    for (int i = 0; i < 20 && !w->wrong; i++)
        w->wrong = random_text(w->g, w->seed + (uint64_t)i, false);
    grammar_drop(w->g);
    return NULL;
}

TEST(one_grammar_many_threads) {
    struct grammar_vocab *v = rig_vocab();
    struct worker w[4];
    struct grammar *g;
    struct err e = {0};

    CHECK(rig_compile(&g, v, GRAMMAR_SCHEMA, SCHEMA, &e) == ST_OK);
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){.g = grammar_take(g), .seed = (uint64_t)i * 100};
        CHECK(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
    }
    grammar_drop(g);
    for (int i = 0; i < 4; i++) {
        pthread_join(w[i].thread, NULL);
        CHECKF(!w[i].wrong, "%s", w[i].wrong);
    }
    grammar_vocab_close(v);
}

TEST(memory_that_runs_out) {
    struct mem_stats before, after;
    uint64_t n = 0;
    bool done = false;

    mem_stats(&before);
    for (; !done && n < 4000; n++) {
        struct grammar_vocab *v;
        struct grammar *g = NULL;
        struct err e;
        uint64_t seed = 3;

        mem_fail_after(n);
        v = rig_vocab_quiet();
        if (v && rig_compile(&g, v, GRAMMAR_SCHEMA, SCHEMA, &e) == ST_OK)
            done = !random_text(g, seed, false);
        mem_fail_after(UINT64_MAX);
        grammar_drop(g);
        grammar_vocab_close(v);
    }
    mem_stats(&after);
    CHECKF(done && n > 20, "after %lu allocations", (unsigned long)n);
    CHECK(after.n_live == before.n_live);
}

int main(void) {
    RUN(mask_is_what_accept_takes);
    RUN(text_triggers);
    RUN(the_end_behind_a_triggered_grammar);
    RUN(token_triggers);
    RUN(parts_and_repetition);
    RUN(a_long_text_stays_small);
    RUN(one_grammar_many_threads);
    RUN(memory_that_runs_out);
    return test_failed_;
}
