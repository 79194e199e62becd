/* SPDX-License-Identifier: Apache-2.0
 *
 * Which texts belong to a grammar: GBNF, regular expressions, JSON schemas; and what is refused, with its message.
 * Equality with other implementations over many more: tests/e2e/test_grammar.py. */
#include "grammar_rig.h"

struct verdict { const char *text; int want; };

static void check_texts(const char *test_name_, enum grammar_kind kind, const char *grammar, const struct verdict *x) {
    struct grammar_vocab *v = rig_vocab();
    struct grammar *g;
    struct err e = {0};

    CHECKF(rig_compile(&g, v, kind, grammar, &e) == ST_OK, "%s: %s", grammar, e.text);
    for (; x->text; x++) {
        int got = rig_match(g, x->text, strlen(x->text));

        CHECKF(got == x->want, "%s on %s: %d, want %d", grammar, x->text, got, x->want);
    }
    grammar_drop(g);
    grammar_vocab_close(v);
}

#define TEXTS(kind, grammar, ...) check_texts(test_name_, kind, grammar, (const struct verdict[]){__VA_ARGS__, {NULL, 0}})

static void check_refused(const char *test_name_, enum grammar_kind kind, const char *grammar, int status, const char *message) {
    struct grammar_vocab *v = rig_vocab();
    struct grammar *g;
    struct err e = {0};
    int got = rig_compile(&g, v, kind, grammar, &e);

    CHECKF(got == status && strstr(e.text, message), "%s: %s (%d), want %s (%d)", grammar, e.text, got, message, status);
    grammar_drop(g);
    grammar_vocab_close(v);
}

#define REFUSED(kind, grammar, status, message) check_refused(test_name_, kind, grammar, status, message)

TEST(gbnf_texts) {
    TEXTS(GRAMMAR_GBNF, "root ::= \"a\" [b-d]* (\"x\" | \"yy\")?\n", {"a", 2}, {"abcd", 2}, {"abx", 2}, {"aby", 1}, {"", 1}, {"b", 0}, {"axx", 0});
    TEXTS(GRAMMAR_GBNF, "# sums\nroot ::= expr\nexpr ::= expr \"+\" term | term # left\nterm ::= [0-9]{1,3} | \"(\" expr \")\"",
          {"1+22+(3+4)", 2}, {"1+", 1}, {"((1", 1}, {"((1))", 2}, {"1234", 0}, {")", 0});
    TEXTS(GRAMMAR_GBNF, "root ::= s\ns ::= s s | \"a\" | \"\"", {"", 2}, {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 2}, {"ab", 0});
    TEXTS(GRAMMAR_GBNF, "root ::= x\nx ::= \"a\" x \"a\" | \"a\" x \"b\" | \"\"", {"aaab", 2}, {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 2}, {"ba", 0});
    TEXTS(GRAMMAR_GBNF, "root ::= a \"!\"\na ::= b | \"x\"\nb ::= a | \"y\"", {"x!", 2}, {"y!", 2}, {"!", 0});
    TEXTS(GRAMMAR_GBNF, "root ::= [^\"\\\\\\n] . \"\\x41\\u00e9\"", {"\xc3\xa9\nA\xc3\xa9", 2}, {"\"", 0}, {"x\xff", 0}, {"x\xe4\xbd\xa0", 1});
    TEXTS(GRAMMAR_GBNF, "root ::=\n  (\"a\"\n | \"b\"){2,}\r\n\r\n", {"ab", 2}, {"a", 1}, {"abba", 2});
    TEXTS(GRAMMAR_GBNF, "root ::= \"a\" tail\ntail ::= \"b\" tail | \"c\"", {"abbbc", 2}, {"ac", 2}, {"abb", 1});
}

TEST(gbnf_refused) {
    REFUSED(GRAMMAR_GBNF, "", ST_INVALID, "no rule is called root");
    REFUSED(GRAMMAR_GBNF, "root ::= x", ST_INVALID, "1:10: this rule is not defined");
    REFUSED(GRAMMAR_GBNF, "root ::= \"a\nroot ::= \"b\"", ST_INVALID, "2:");
    REFUSED(GRAMMAR_GBNF, "root ::= \"a\"\nroot ::= \"b\"", ST_INVALID, "2:1: this rule is defined twice");
    REFUSED(GRAMMAR_GBNF, "root ::= <[1]>", ST_UNSUPPORTED, "1:10: tokens");
    REFUSED(GRAMMAR_GBNF, "root ::= (\"a\"", ST_INVALID, "expected )");
    REFUSED(GRAMMAR_GBNF, "root ::= root \"a\"", ST_INVALID, "no text satisfies it");
    REFUSED(GRAMMAR_GBNF, "root ::= \"a\"{99999}", ST_LIMIT, "10000");
    REFUSED(GRAMMAR_GBNF, "root ::= [z-a]", ST_INVALID, "in order");
    REFUSED(GRAMMAR_GBNF, "root ::= ((((\"a\"{1000}){1000}){1000}){1000})", ST_LIMIT, "too");
}

TEST(regex_texts) {
    TEXTS(GRAMMAR_REGEX, "a(b|c)*d{2,3}?", {"add", 2}, {"abcbddd", 2}, {"ad", 1}, {"adddd", 0});
    TEXTS(GRAMMAR_REGEX, "^(?:\\d{4}-\\d\\d|[^\\w\\s]+)$", {"2024-12", 2}, {"!?", 2}, {"a", 0}, {"2024-", 1}, {" ", 0});
    TEXTS(GRAMMAR_REGEX, "\\u4f60.\\u{1F600}|\\ud83d\\ude00|\\x41", {"A", 2}, {"", 1}, {"\xf0\x9f\x98\x80", 2}, {"\xe4\xbd\xa0x\xf0\x9f\x98\x80", 2});
    TEXTS(GRAMMAR_REGEX, "^a|b$|c", {"a", 2}, {"b", 2}, {"c", 2}, {"ab", 0});
    TEXTS(GRAMMAR_REGEX, "x{1,y}", {"x{1,y}", 2});
    TEXTS(GRAMMAR_REGEX, "a{b", {"a{b", 2});
    TEXTS(GRAMMAR_REGEX, "(a?){3}(?P<n>b+)(?<m>)", {"b", 2}, {"aaab", 2}, {"aaaab", 0});
}

TEST(regex_refused) {
    REFUSED(GRAMMAR_REGEX, "a(?=b)", ST_UNSUPPORTED, "look-around");
    REFUSED(GRAMMAR_REGEX, "(a)\\1", ST_UNSUPPORTED, "column 5: a back-reference");
    REFUSED(GRAMMAR_REGEX, "\\bfoo", ST_UNSUPPORTED, "\\b");
    REFUSED(GRAMMAR_REGEX, "(?i)a", ST_UNSUPPORTED, "flags");
    REFUSED(GRAMMAR_REGEX, "a{,3}", ST_UNSUPPORTED, "column 3");
    REFUSED(GRAMMAR_REGEX, "a**", ST_INVALID, "two quantifiers");
    REFUSED(GRAMMAR_REGEX, "*a", ST_INVALID, "nothing to repeat");
    REFUSED(GRAMMAR_REGEX, "(a", ST_INVALID, "expected )");
    REFUSED(GRAMMAR_REGEX, "a)", ST_INVALID, "without its (");
    REFUSED(GRAMMAR_REGEX, "[b-a]", ST_INVALID, "in order");
    REFUSED(GRAMMAR_REGEX, "\\p{L}", ST_UNSUPPORTED, "\\p");
    REFUSED(GRAMMAR_REGEX, "a$b", ST_INVALID, "no text satisfies it");
    REFUSED(GRAMMAR_REGEX, "(a|b)*a(a|b){40}", ST_LIMIT, "more than");
}

TEST(schema_texts) {
    TEXTS(GRAMMAR_JSON, "", {"{}", 2}, {"{\"a\": [1, 2.5e3, \"\\u00e9\\\"\", null, {\"b\": false}]}", 2}, {"[]", 0}, {"{\"a\":1,}", 0}, {"{\n  \"a\": 1\n}", 2}, {"{      ", 0});
    TEXTS(GRAMMAR_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":3},\"n\":{\"type\":\"integer\"}},\"required\":[\"name\"],\"additionalProperties\":false}",
          {"{\"name\": \"abc\"}", 2}, {"{\"name\": \"abcd\"}", 0}, {"{\"name\":\"\\u00e9\\n\",\"n\":-12}", 2}, {"{\"n\":1}", 0}, {"{\"name\":\"\",\"n\":1.5}", 0}, {"{\"name\":\"\",}", 0}, {"{}", 0});
    TEXTS(GRAMMAR_SCHEMA, "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"l\":{\"$ref\":\"#/$defs/t\"},\"r\":{\"anyOf\":[{\"$ref\":\"#/$defs/t\"},{\"type\":\"null\"}]}},\"additionalProperties\":false}}}",
          {"{\"l\":{\"l\":{},\"r\":null},\"r\":{}}", 2}, {"{\"l\":null}", 0}, {"{\"r\":null}", 2}, {"{\"r\":null,\"l\":{}}", 0});
    TEXTS(GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"minimum\":-5,\"exclusiveMaximum\":120}", {"-5", 2}, {"-6", 0}, {"119", 2}, {"120", 0}, {"12", 2}, {"0", 2}, {"13", 2}, {"-1", 2}, {"00", 0}, {"99", 2});
    TEXTS(GRAMMAR_SCHEMA, "{\"type\":\"number\",\"minimum\":0.25,\"maximum\":10}", {"0.25", 2}, {"0.2", 1}, {"0.3", 2}, {"0.24", 0}, {"10", 2}, {"10.0", 2}, {"10.01", 0}, {"9.99", 2}, {"1e1", 0}, {"11", 0}, {"0.26", 2}, {"0.250", 2});
    TEXTS(GRAMMAR_SCHEMA, "{\"enum\":[\"a\\\"b\",1.50,null,[1,{\"k\":\"v\"}]]}", {"\"a\\\"b\"", 2}, {"1.50", 2}, {"null", 2}, {"[1, {\"k\": \"v\"}]", 2}, {"[1,{\"k\":\"v\"}]", 2}, {"1", 1}, {"2", 0});
    TEXTS(GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"b+$\",\"minLength\":2}", {"\"ab\"", 2}, {"\"b\"", 0}, {"\"a\"", 0}, {"\"\\u0062b\"", 2});
    TEXTS(GRAMMAR_SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"boolean\"},\"minItems\":2,\"maxItems\":3}",
          {"[null,true]", 2}, {"[null]", 0}, {"[null, true, false]", 2}, {"[null,true,false,true]", 0}, {"[true,true]", 0});
    TEXTS(GRAMMAR_SCHEMA, "{\"type\":\"object\",\"patternProperties\":{\"^s_\":{\"type\":\"string\"},\"_n$\":{\"type\":[\"integer\",\"string\"]}},\"additionalProperties\":{\"type\":\"boolean\"}}",
          {"{\"s_a\":\"x\"}", 2}, {"{\"s_a\":1}", 0}, {"{\"s_n\":1}", 0}, {"{\"s_n\":\"\"}", 2}, {"{\"a_n\":1}", 2}, {"{\"b\":true,\"a_n\":1}", 2}, {"{\"b\":1}", 0});
    TEXTS(GRAMMAR_SCHEMA, "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"minimum\":3}},\"required\":[\"a\"]},{\"properties\":{\"a\":{\"type\":\"integer\",\"maximum\":4},\"b\":true},\"additionalProperties\":false}]}",
          {"{\"a\":3}", 2}, {"{\"a\":2}", 0}, {"{\"a\":4,\"b\":[]}", 2}, {"{\"a\":5}", 0}, {"{\"a\":4,\"c\":1}", 0}, {"{}", 0});
    TEXTS(GRAMMAR_SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}", {"\"2024-02-29\"", 2}, {"\"2023-02-29\"", 0}, {"\"2023-04-31\"", 0}, {"\"2023-12-31\"", 2});
    TEXTS(GRAMMAR_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"null\"}},\"type\":\"object\",\"minProperties\":1}", {"{}", 0}, {"{\"a\":null}", 2}, {"{\"b\":1}", 2}, {"{\"a\":1}", 0}, {"{\"\\u0061\":1}", 0});
    TEXTS(GRAMMAR_SCHEMA, "true", {"1", 2}, {"{\"a\": []}", 2});
    TEXTS(GRAMMAR_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":true,\"c\":true},\"required\":[\"b\"],\"maxProperties\":2,\"additionalProperties\":false}",
          {"{\"b\":1}", 2}, {"{\"a\":1,\"b\":1}", 2}, {"{\"a\":1,\"b\":1,\"c\":1}", 0}, {"{\"b\":1,\"c\":1}", 2}, {"{\"a\":1,\"c\":1", 0});
}

TEST(schema_refused) {
    REFUSED(GRAMMAR_SCHEMA, "{\"type\":\"objekt\"}", ST_INVALID, "#/type");
    REFUSED(GRAMMAR_SCHEMA, "{\"properties\":{\"a\":{\"not\":{}}},\"type\":\"object\"}", ST_UNSUPPORTED, "#/properties/a/not: this keyword");
    REFUSED(GRAMMAR_SCHEMA, "{\"multipleOf\":3}", ST_UNSUPPORTED, "#/multipleOf");
    REFUSED(GRAMMAR_SCHEMA, "{\"uniqueItems\":true}", ST_UNSUPPORTED, "#/uniqueItems");
    REFUSED(GRAMMAR_SCHEMA, "{\"minLenght\":1}", ST_UNSUPPORTED, "#/minLenght: unknown keyword");
    REFUSED(GRAMMAR_SCHEMA, "{\"format\":\"color\"}", ST_UNSUPPORTED, "#/format");
    REFUSED(GRAMMAR_SCHEMA, "{\"pattern\":\"(?=a)\"}", ST_UNSUPPORTED, "pattern: column 2");
    REFUSED(GRAMMAR_SCHEMA, "{\"$ref\":\"http://x/y\"}", ST_UNSUPPORTED, "#/$ref");
    REFUSED(GRAMMAR_SCHEMA, "{\"$ref\":\"#/a\"}", ST_INVALID, "points at nothing");
    REFUSED(GRAMMAR_SCHEMA, "{\"$ref\":\"#\"}", ST_OK, "");
    REFUSED(GRAMMAR_SCHEMA, "{\"oneOf\":[{\"type\":\"string\"},{\"maxLength\":3}]}", ST_UNSUPPORTED, "#/oneOf");
    REFUSED(GRAMMAR_SCHEMA, "{\"type\":\"string\",\"enum\":[1]}", ST_INVALID, "no text satisfies it");
    REFUSED(GRAMMAR_SCHEMA, "{\"enum\":[\"a\"],\"maxLength\":3}", ST_UNSUPPORTED, "#/maxLength");
    REFUSED(GRAMMAR_SCHEMA, "{\"a\":", ST_INVALID, "not JSON: 1:6");
    REFUSED(GRAMMAR_SCHEMA, "{\"maxLength\":100000}", ST_LIMIT, "");
    REFUSED(GRAMMAR_SCHEMA, "[]", ST_INVALID, "a schema is an object");
}

int main(void) {
    RUN(gbnf_texts);
    RUN(gbnf_refused);
    RUN(regex_texts);
    RUN(regex_refused);
    RUN(schema_texts);
    RUN(schema_refused);
    return test_failed_;
}
