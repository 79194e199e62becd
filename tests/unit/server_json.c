/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON pre-scan (accepts exactly RFC 8259 minus what cJSON would misread, and names the byte) and the writer. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/json_walk.h"
#include "base/status.h"
#include "tests/unit/test.h"

static const struct json_limits limits = {64, 1000};

static int scan(const char *s, size_t n, struct err *e) {
    e->text[0] = '\0';
    return json_prescan(s, n, &limits, e);
}

TEST(accepts) {
    static const char *const good[] = {
        "{}", "[]", " \t\r\n{ } ", "null", "true", "false", "\"\"", "0", "-0", "-0.0e+1", "1E400", "123.456e-7", "[1,2,[3,{}]]",
        "{\"a\":1,\"a\":2}", "{\"\":{\"\":[[],{}]}}", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\uD83D\\uDE00\"",
        "\"\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF \x7F\"",
        "{\"a\" : [ true , false , null ] }", "123456789012345678901234567890123456789012345678901234567890123",
    };
    struct err e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECKF(scan(good[i], strlen(good[i]), &e) == 0, "%s: %s", good[i], e.text);
        cJSON *v = cJSON_ParseWithLengthOpts(good[i], strlen(good[i]), NULL, false);
        CHECKF(v, "cJSON refuses %s", good[i]);
        cJSON_Delete(v);
    }
}

struct bad { const char *text; size_t n; const char *says; };
#define BAD(s, says) {s, sizeof(s) - 1, says}

TEST(refuses_with_byte) {
    static const struct bad bad[] = {
        BAD("", "the text is empty at byte 0"), BAD("  ", "the text is empty at byte 2"), BAD("{", "ends inside an object at byte 1"),
        BAD("[", "ends where a value is due"), BAD("[1", "inside an array at byte 2"), BAD("[1,", "where a value is due at byte 3"),
        BAD("[1,]", "expected a value at byte 3"), BAD("{\"a\":1,}", "quoted key at byte 7"), BAD("{\"a\"}", "':' after a key at byte 4"),
        BAD("{\"a\":}", "expected a value at byte 5"), BAD("{a:1}", "quoted key at byte 1"), BAD("{'a':1}", "quoted key at byte 1"), BAD("{1:1}", "quoted key"),
        BAD("[1 2]", "expected ',' or ']' at byte 3"), BAD("{\"a\":1 \"b\":2}", "expected ',' or '}' at byte 7"), BAD("[1}", "expected ',' or ']'"),
        BAD("]", "expected a value at byte 0"), BAD("{}{}", "after the end of the value at byte 2"), BAD("{} x", "after the end of the value at byte 3"),
        BAD("nullx", "after the end"), BAD("nul", "unknown word"), BAD("True", "expected a value"), BAD("NaN", "expected a value"),
        BAD("Infinity", "expected a value"), BAD("-Infinity", "needs digits at byte 1"), BAD("+1", "expected a value"), BAD("01", "leading zero at byte 1"),
        BAD("-01", "leading zero"), BAD("1.", "after its point at byte 2"), BAD(".5", "expected a value"), BAD("1e", "in its exponent"),
        BAD("1e+", "in its exponent"), BAD("0x10", "after the end"), BAD("-", "needs digits"), BAD("1_000", "after the end"),
        BAD("\"a", "ends inside a string at byte 2"), BAD("\"\\", "ends inside a string"), BAD("\"\\x41\"", "unknown escape in a string at byte 2"),
        BAD("\"\\u12\"", "four hex digits at byte 5"), BAD("\"\\u12", "ends inside a \\u escape"), BAD("\"\\u0000\"", "\\u0000 is not accepted"),
        BAD("\"\\uD83D\"", "without its low half"), BAD("\"\\uD83Dx\"", "without its low half"), BAD("\"\\uD83D\\u0041\"", "without its low half"),
        BAD("\"\\uDE00\"", "without its high half"), BAD("\"a\nb\"", "raw control character in a string at byte 2"), BAD("\"\t\"", "raw control"),
        BAD("\"a\0b\"", "NUL byte in a string at byte 2"), BAD("\0", "a NUL byte at byte 0"), BAD("{}\0", "after the end of the value at byte 2"), BAD("[\"\\\0\"]", "unknown escape in a string at byte 3"),
        BAD("\xEF\xBB\xBF{}", "byte order mark is not accepted at byte 0"), BAD("\xFF\xFE{\0}\0", "expected a value"),
        BAD("\"\x80\"", "invalid UTF-8 in a string at byte 1"), BAD("\"\xC0\xAF\"", "invalid UTF-8"), BAD("\"\xC1\xBF\"", "invalid UTF-8"),
        BAD("\"\xE0\x9F\xBF\"", "invalid UTF-8"), BAD("\"\xED\xA0\x80\"", "invalid UTF-8"), BAD("\"\xF0\x8F\xBF\xBF\"", "invalid UTF-8"),
        BAD("\"\xF4\x90\x80\x80\"", "invalid UTF-8"), BAD("\"\xF5\x80\x80\x80\"", "invalid UTF-8"), BAD("\"\xE2\x82\"", "invalid UTF-8 in a string at byte 1"),
        BAD("\"\xE2\x82", "invalid UTF-8"), BAD("{\"\xFF\":1}", "invalid UTF-8"), BAD("/*c*/1", "expected a value"), BAD("[1,//\n2]", "expected a value"),
        BAD("1234567890123456789012345678901234567890123456789012345678901234", "longer than 63"), BAD("\v1", "expected a value"), BAD("\xC2\xA0""1", "expected a value"),
    };
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECKF(scan(bad[i].text, bad[i].n, &e) == ST_INVALID, "case %zu: %s is accepted", i, bad[i].text);
        CHECKF(strstr(e.text, bad[i].says), "case %zu: \"%s\" does not say \"%s\"", i, e.text, bad[i].says);
    }
}

TEST(limits_hold) {
    char text[300];
    struct err e;
    for (int depth = 63; depth <= 66; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        CHECKF((scan(text, 2 * (size_t)depth, &e) == 0) == (depth <= 64), "depth %d: %s", depth, e.text);
    }
    memset(text, '[', sizeof text);
    CHECK(scan(text, sizeof text, &e) == ST_INVALID && strstr(e.text, "nested too deeply at byte 64"));
    struct json_limits few = {64, 4};
    CHECK(json_prescan("[1,2,3]", 7, &few, &e) == 0);
    CHECK(json_prescan("[1,2,3,4]", 9, &few, &e) == ST_INVALID && strstr(e.text, "too many values at byte 7"));
}

/* Every prefix of a valid document is refused, and every single-byte change is refused or still read by cJSON. */
TEST(mutations_agree_with_cjson) {
    static const char doc[] = "{\"p\":[\"a\\u00e9\\n\xE2\x82\xAC\",-1.5e3,true],\"q\":{\"r\":null,\"s\":[[0]]}}";
    size_t n = sizeof doc - 1;
    struct err e;
    char copy[sizeof doc];
    for (size_t i = 0; i < n; i++) CHECKF(scan(doc, i, &e) == ST_INVALID, "prefix of %zu bytes", i);
    for (size_t i = 0; i < n; i++) {
        for (int c = 0; c < 256; c++) {
            memcpy(copy, doc, sizeof doc);
            copy[i] = (char)c;
            if (scan(copy, n, &e) != 0) continue;
            const char *end;
            cJSON *v = cJSON_ParseWithLengthOpts(copy, n, &end, false);
            CHECKF(v && end == copy + n, "byte %zu = %d", i, c);
            cJSON_Delete(v);
        }
    }
}

static bool writes(const char *in, size_t n, const char *want) {
    struct buf b;
    buf_init(&b, 1000);
    json_put_string(&b, in, n);
    bool same = b.len == strlen(want) && memcmp(b.data, want, b.len) == 0;
    if (!same) printf("# got %.*s, want %s\n", (int)b.len, b.data, want);
    buf_clear(&b);
    return same;
}

TEST(strings_are_escaped) {
    CHECK(writes(NULL, 0, "\"\""));
    CHECK(writes("a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\""));
    CHECK(writes("\0\x01\b\t\n\f\r\x1f\x7f", 9, "\"\\u0000\\u0001\\b\\t\\n\\f\\r\\u001f\x7f\""));
    CHECK(writes("\xC2\x85|\xE2\x80\xA8|\xE2\x80\xA9|\xE2\x80\xA7|\xC2\x86", 17, "\"\\u0085|\\u2028|\\u2029|\xE2\x80\xA7|\xC2\x86\""));
    CHECK(writes("x\xFFy\xE2\x82", 5, "\"x\xEF\xBF\xBDy\xEF\xBF\xBD\""));
    CHECK(writes("\xF0\x9F\x98\x80", 4, "\"\xF0\x9F\x98\x80\""));
}

TEST(numbers_round_trip) {
    static const double v[] = {0, -0.0, 1, -1.5, 0.1, 1e-7, 123456789, 9007199254740993.0, 1e300, 5e-324, 1.7976931348623157e308, 1.0 / 3};
    struct buf b;
    buf_init(&b, 100);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        buf_reset(&b);
        json_put_number(&b, v[i]);
        buf_putc(&b, '\0');
        CHECKF(strtod(b.data, NULL) == v[i], "%s", b.data);
        buf_reset(&b);
        json_put_float(&b, (float)v[i]);
        buf_putc(&b, '\0');
        CHECKF(isinf((float)v[i]) ? !strcmp(b.data, "null") : strtof(b.data, NULL) == (float)v[i], "%s", b.data);
    }
    buf_reset(&b);
    json_put_number(&b, NAN);
    json_put_number(&b, INFINITY);
    json_put_number(&b, 0.1);
    json_put_float(&b, 0.1f);
    CHECKF(b.len == 14 && memcmp(b.data, "nullnull0.10.1", 14) == 0, "%.*s", (int)b.len, b.data);
    buf_clear(&b);
}

/* Of every prefix: cut short while it is a beginning, never wrong; with a wrong byte behind it, wrong. */
TEST(scan_tells_cut_from_wrong) {
    static const char doc[] = " {\"a\": [1, -2.5e3, {\"b\\u00e9\\\"\": null}, true], \"c\": \"x\\ny\"} tail";
    size_t used, n = strlen(doc) - 5;
    CHECK(json_scan_value(doc, strlen(doc), &limits, &used) == 0 && used == n);
    for (size_t i = 0; i < n; i++) CHECKF(json_scan_value(doc, i, &limits, &used) == ST_LIMIT, "%.*s", (int)i, doc);
    static const char *const wrong[] = {"{x", "{\"a\"x", "{\"a\":x", "{\"a\":1x", "[1;", "\"\n", "\"\\x", "nulL", "}", "{\"a\":tru}", "[01", "{\"a\":1,}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) CHECKF(json_scan_value(wrong[i], strlen(wrong[i]), &limits, &used) == ST_INVALID, "%s", wrong[i]);
}

/* The walk refuses a byte exactly where the scan does, and ends where it does. */
TEST(walk_agrees_with_scan) {
    static const char *const parts[] = {"{", "}", "[", "]", ",", ":", "\"a\"", "\"", "\\", "u4a4e", "u4", "n", "0", "12", "-", ".", "e", "+", "true", "tru", "false", "null", " ", "\n", "{\"a\":", "\t1"};
    uint64_t rng = 1;
    int n_done = 0, n_cut = 0;
    for (int round = 0; round < 200000; round++) {
        const struct json_limits shallow = {4, 1000};
        char text[128];
        size_t n = 1, used;
        text[0] = round % 2 ? '{' : '[';
        for (int k = (int)(rng % 12); k >= 0; k--) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            const char *part = parts[(rng >> 33) % (sizeof parts / sizeof *parts)];
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
        }
        int rc = json_scan_value(text, n, &shallow, &used);
        struct json_walk w;
        json_walk_init(&w, 4);
        size_t half = n / 2, took = json_walk(&w, text, half);
        if (took == half) took += json_walk(&w, text + half, n - half);
        CHECKF(rc == 0 ? w.done && took == used : !w.done, "%.*s: scan %d at %zu, walk %zu", (int)n, text, rc, used, took);
        CHECKF(rc == ST_LIMIT ? took == n && !w.bad : rc == 0 || w.bad, "%.*s: scan %d at %zu, walk %zu", (int)n, text, rc, used, took);
        n_done += rc == 0;
        n_cut += rc == ST_LIMIT;
    }
    CHECK(n_done > 1000 && n_cut > 1000);
}

TEST(walks_members) {
    static const char doc[] = " { \"a\" : [1, {\"x\":\"],}\"}] ,\"b\\\"\":-1.5,\"c\":\"q\" , \"d\":{}, \"e\": null }";
    static const char *const want[][2] = {{"\"a\"", "[1, {\"x\":\"],}\"}]"}, {"\"b\\\"\"", "-1.5"}, {"\"c\"", "\"q\""}, {"\"d\"", "{}"}, {"\"e\"", "null"}};
    struct json_member m;
    size_t at = 0, k = 0;
    for (; json_next(doc, strlen(doc), &at, &m); k++) {
        CHECK(k < 5 && m.n_key == strlen(want[k][0]) && memcmp(m.key, want[k][0], m.n_key) == 0);
        CHECKF(m.n_value == strlen(want[k][1]) && memcmp(m.value, want[k][1], m.n_value) == 0, "%zu: %.*s", k, (int)m.n_value, m.value);
    }
    CHECK(k == 5);
    at = k = 0;
    for (; json_next("[ [1,2] , 3,\"a\" ]", 17, &at, &m); k++) CHECK(m.n_key == 0 && m.n_value == (uint8_t)"\5\1\3"[k]);
    CHECK(k == 3);
    at = 0;
    CHECK(!json_next("{}", 2, &at, &m));
    at = 0;
    CHECK(!json_next(" [ ] ", 5, &at, &m));
}

TEST(unescapes) {
    static const char lit[] = "\"a\\n\\t\\\"\\\\\\/\\b\\f\\r \\u0041\\u00e9\\u20ac\\ud83d\\ude00 \xC3\xA9\"", want[] = "a\n\t\"\\/\b\f\r A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 \xC3\xA9";
    struct buf b;
    buf_init(&b, 1000);
    json_put_unescaped(&b, lit, sizeof lit - 1);
    CHECKF(b.len == sizeof want - 1 && memcmp(b.data, want, b.len) == 0, "%.*s", (int)b.len, b.data);
    buf_clear(&b);
}

int main(void) {
    RUN(accepts);
    RUN(refuses_with_byte);
    RUN(limits_hold);
    RUN(mutations_agree_with_cjson);
    RUN(strings_are_escaped);
    RUN(numbers_round_trip);
    RUN(scan_tells_cut_from_wrong);
    RUN(walk_agrees_with_scan);
    RUN(walks_members);
    RUN(unescapes);
    return test_failed_;
}
