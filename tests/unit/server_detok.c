/* SPDX-License-Identifier: Apache-2.0
 *
 * The detokenizer against a slow oracle that sees the whole byte string at once: same text however the bytes are cut
 * into tokens and whenever the reader takes what is ready, no stop string ever shown, nothing held back for ever. */
#include <stdlib.h>

#include "server/detok.h"
#include "base/utf8.h"
#include "tests/unit/test.h"

enum { MAX_BYTES = 256 };

struct text { char s[3 * MAX_BYTES]; size_t n; };

/* Python's bytes.decode("utf-8", "replace"), written from the table of well-formed sequences rather than from utf8.h. */
static size_t oracle_char(const unsigned char *p, size_t n, bool *ok) {
    static const struct { unsigned char lo, hi, lo2, hi2; unsigned len; } row[] = {
        {0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
        {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
    };
    *ok = false;
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        if (p[0] < row[r].lo || p[0] > row[r].hi) continue;
        size_t k = 1;
        while (k < row[r].len && k < n && p[k] >= (k == 1 ? row[r].lo2 : 0x80) && p[k] <= (k == 1 ? row[r].hi2 : 0xBF)) k++;
        *ok = k == row[r].len;
        return k;
    }
    return 1;
}

static void oracle_decode(const char *bytes, size_t n, struct text *out) {
    out->n = 0;
    for (size_t i = 0, k; i < n; i += k) {
        bool ok;
        k = oracle_char((const unsigned char *)bytes + i, n - i, &ok);
        memcpy(out->s + out->n, ok ? bytes + i : "\xEF\xBF\xBD", ok ? k : 3);
        out->n += ok ? k : 3;
    }
}

/* First end of any stop; of those that end there the longest. */
static bool oracle_stop(struct text *t, const char *const *stops, size_t n_stops) {
    for (size_t end = 1; end <= t->n; end++) {
        size_t best = 0;
        for (size_t i = 0; i < n_stops; i++) {
            size_t n = strlen(stops[i]);
            if (n <= end && n > best && memcmp(t->s + end - n, stops[i], n) == 0) best = n;
        }
        if (best) {
            t->n = end - best;
            return true;
        }
    }
    return false;
}

struct run { const char *bytes; size_t n; const struct detok_stop *stops; size_t n_stops; };

/* Cuts by the bits of `cuts` (bit i: a token ends after byte i); takes what is ready after every token when `eager`. */
static bool run_cut(const struct run *r, uint64_t cuts, bool eager, struct text *shown, struct text *first_wrong) {
    struct detok d;
    detok_init(&d, r->stops, (uint32_t)r->n_stops, 4 * MAX_BYTES);
    shown->n = first_wrong->n = 0;
    for (size_t i = 0, from = 0; i < r->n && !d.stopped; i++) {
        if (i + 1 < r->n && !(cuts >> (i % 64) & 1)) continue;
        detok_push(&d, r->bytes + from, i + 1 - from, true, NULL);
        from = i + 1;
        size_t ready = detok_ready(&d);
        if (!eager) continue;
        memcpy(shown->s + shown->n, d.text.data ? d.text.data : "", ready);
        shown->n += ready;
        detok_take(&d, ready);
        if (detok_shown_end(&d) != shown->n) first_wrong->n = shown->n + 1;
    }
    detok_finish(&d);
    size_t ready = detok_ready(&d);
    memcpy(shown->s + shown->n, d.text.data ? d.text.data : "", ready);
    shown->n += ready;
    if (d.end.bytes != shown->n || d.end.chars != utf8_count(shown->s, shown->n)) first_wrong->n = shown->n + 1;
    bool stopped = d.stopped;
    detok_clear(&d);
    return stopped;
}

static const char *check_all_cuts(const char *bytes, size_t n, const char *const *stops, size_t n_stops, uint64_t seed) {
    struct detok_stop built[DETOK_MAX_STOPS];
    struct arena a;
    struct text want, got, wrong;
    const char *why = NULL;

    arena_init(&a, 1 << 20);
    for (size_t i = 0; i < n_stops; i++) {
        if (detok_stop_init(&built[i], stops[i], strlen(stops[i]), &a)) why = "no memory";
    }
    oracle_decode(bytes, n, &want);
    bool want_stop = oracle_stop(&want, stops, n_stops);
    struct run r = {bytes, n, built, n_stops};
    uint64_t n_cuts = n <= 9 ? 1ull << (n ? n - 1 : 0) : 24;
    for (uint64_t c = 0; c < n_cuts && !why; c++) {
        uint64_t cuts = n <= 9 ? c : c == 0 ? 0 : c == 1 ? UINT64_MAX : (seed = seed * 6364136223846793005u + 1442695040888963407u) >> 7;
        for (int eager = 0; eager < 2 && !why; eager++) {
            bool stopped = run_cut(&r, cuts, eager, &got, &wrong);
            if (stopped != want_stop) why = "stop seen differs";
            else if (got.n != want.n || memcmp(got.s, want.s, got.n) != 0) why = "text differs";
            else if (wrong.n) why = "position differs";
            else if (!utf8_valid(got.s, got.n)) why = "not UTF-8";
        }
    }
    arena_clear(&a);
    return why;
}

TEST(every_short_byte_string) {
    static const unsigned char alphabet[] = {'a', 0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF};
    enum { K = sizeof alphabet };
    char s[4];
    for (unsigned i = 0; i < K * K * K * K; i++) {
        unsigned v = i;
        for (int k = 0; k < 4; k++, v /= K) s[k] = (char)alphabet[v % K];
        const char *why = check_all_cuts(s, 4, NULL, 0, i);
        CHECKF(!why, "%s: %02x %02x %02x %02x", why, s[0] & 255, s[1] & 255, s[2] & 255, s[3] & 255);
    }
}

TEST(known_replacements) {
    static const struct { const char *in; size_t n; const char *want; } v[] = {
        {"\xE2\x82", 2, "\xEF\xBF\xBD"}, {"\xE2\x82""A", 3, "\xEF\xBF\xBD""A"}, {"\xF0\x80", 2, "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, {"\xF0\x9F\x98\xE2\x82\xAC", 6, "\xEF\xBF\xBD\xE2\x82\xAC"},
        {"\xC3\xC3\xA9", 3, "\xEF\xBF\xBD\xC3\xA9"}, {"a\0b", 3, NULL},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct run r = {v[i].in, v[i].n, NULL, 0};
        struct text got, wrong;
        run_cut(&r, UINT64_MAX, true, &got, &wrong);
        const char *want = v[i].want ? v[i].want : v[i].in;
        size_t n = v[i].want ? strlen(want) : v[i].n;
        CHECKF(got.n == n && memcmp(got.s, want, n) == 0, "case %zu", i);
    }
}

TEST(stops_any_cut) {
    static const struct { const char *bytes; const char *stops[4]; } v[] = {
        {"hello world", {"lo w"}}, {"aaab", {"aab"}}, {"ababac", {"abac"}}, {"abcabd", {"abd", "bca"}}, {"xabcx", {"abc", "b"}},
        {"xabcx", {"c", "abc", "bc"}}, {"foofoobar", {"foobar"}}, {"no stop", {"zzz"}}, {"end ST", {"STOP"}}, {"STOP", {"STOP"}},
        {"a\xE2\x82\xAC""b", {"\xE2\x82\xAC"}}, {"a\xE2\x82\xAC\xE2\x82", {"\xE2\x82\xAC\xEF\xBF\xBD"}}, {"\xFFx", {"\xEF\xBF\xBD"}},
        {"aXbYc", {"Y", "X"}}, {"aaaa", {"aa", "aaa"}}, {"\n\nUser:", {"\nUser:", "\n\n\n"}}, {"abab", {"ababa", "bab"}},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        size_t n_stops = 0;
        while (n_stops < 4 && v[i].stops[n_stops]) n_stops++;
        const char *why = check_all_cuts(v[i].bytes, strlen(v[i].bytes), v[i].stops, n_stops, i);
        CHECKF(!why, "%s: case %zu, \"%s\"", why, i, v[i].bytes);
    }
}

TEST(random_against_oracle) {
    static const char *const atoms[] = {"a", "b", "ab", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xE2", "\x82", "\xAC", "\xF0\x9F", "\xFF", "\n"};
    static const char *const stop_atoms[] = {"a", "b", "ab", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xEF\xBF\xBD", "\n"};
    uint64_t x = 12345;
    unsigned n_stopped = 0;
#define NEXT(n) ((unsigned)((x = x * 6364136223846793005u + 1442695040888963407u) >> 33) % (n))
    for (int round = 0; round < 4000; round++) {
        char bytes[MAX_BYTES], store[4][32];
        const char *stops[4];
        size_t n = 0, n_stops = NEXT(5);
        for (unsigned k = NEXT(30); k > 0; k--) {
            const char *at = atoms[NEXT(11)];
            memcpy(bytes + n, at, strlen(at));
            n += strlen(at);
        }
        for (size_t i = 0; i < n_stops; i++) {
            size_t len = 0;
            for (unsigned k = 1 + NEXT(4); k > 0; k--) {
                const char *at = stop_atoms[NEXT(7)];
                memcpy(store[i] + len, at, strlen(at));
                len += strlen(at);
            }
            store[i][len] = '\0';
            stops[i] = store[i];
        }
        struct text t;
        oracle_decode(bytes, n, &t);
        n_stopped += oracle_stop(&t, stops, n_stops);
        const char *why = check_all_cuts(bytes, n, stops, n_stops, x);
        CHECKF(!why, "%s in round %d", why, round);
    }
    CHECKF(n_stopped > 500 && n_stopped < 3500, "%u of 4000 rounds stop: the cases do not cover both", n_stopped);
}

TEST(marks_name_the_character) {
    struct detok d;
    struct detok_mark at;
    detok_init(&d, NULL, 0, 100);
    detok_push(&d, "h\xC3\xA9", 3, true, &at);
    CHECK(at.bytes == 0 && at.chars == 0);
    detok_push(&d, "\xF0\x9F", 2, true, &at);
    CHECK(at.bytes == 3 && at.chars == 2);
    detok_push(&d, "\x98\x80", 2, true, &at); /* second half of the same character */
    CHECK(at.bytes == 3 && at.chars == 2);
    detok_push(&d, "", 0, true, &at);
    CHECK(at.bytes == 7 && at.chars == 3);
    detok_push(&d, "\xE2\x82", 2, true, &at);
    CHECK(at.bytes == 7 && at.chars == 3);
    detok_push(&d, "!", 1, true, &at); /* the cut character became U+FFFD first */
    CHECK(at.bytes == 10 && at.chars == 4);
    detok_clear(&d);
}

TEST(no_match_while_switched_off) {
    struct arena a;
    struct detok d;
    struct detok_stop s;
    arena_init(&a, 1000);
    CHECK(detok_stop_init(&s, "ab", 2, &a) == 0);
    detok_init(&d, &s, 1, 100);
    detok_push(&d, "xaba", 4, false, NULL);
    CHECK(!d.stopped && detok_ready(&d) == 4);
    detok_push(&d, "b", 1, true, NULL); /* its 'a' was passed unseen */
    CHECK(!d.stopped && detok_ready(&d) == 5);
    detok_push(&d, "a", 1, true, NULL);
    CHECK(detok_ready(&d) == 5);
    detok_push(&d, "bcd", 3, true, NULL);
    CHECK(d.stopped && detok_ready(&d) == 5 && memcmp(d.text.data, "xabab", 5) == 0);
    detok_push(&d, "more", 4, true, NULL);
    CHECK(d.text.len == 5);
    detok_clear(&d);
    arena_clear(&a);
}

TEST(size_limit_is_reported) {
    struct detok d;
    detok_init(&d, NULL, 0, 4);
    detok_push(&d, "abcd", 4, true, NULL);
    CHECK(!d.text.failed);
    detok_push(&d, "e", 1, true, NULL);
    CHECK(d.text.failed && d.text.len == 4 && d.end.bytes == 4);
    detok_clear(&d);
}

int main(void) {
    RUN(every_short_byte_string);
    RUN(known_replacements);
    RUN(stops_any_cut);
    RUN(random_against_oracle);
    RUN(marks_name_the_character);
    RUN(no_match_while_switched_off);
    RUN(size_limit_is_reported);
    return test_failed_;
}
