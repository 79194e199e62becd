/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer's promises, on vocabularies built here: total on every byte string, linear on hostile text, control
 * tokens out of reach of plain text, defaults of the switches, clear errors for broken vocabularies, no leak when
 * memory runs out, the same ids on many threads. Equality with the reference libraries: tests/e2e/test_tokenizer.py. */
#include "tests/unit/test.h"

#include <pthread.h>
#include <time.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "model/tokenizer.h"
#include "tests/unit/vocab_gguf.h"

static const char *const families[] = {
    "gpt-2", "smollm", "llama-bpe", "dbrx", "grok-2", "bailingmoe", "seed-coder", "gpt-4o", "minimax-m2",
    "tekken", "deepseek-llm", "deepseek-coder", "deepseek-v3", "olmo", "command-r", "qwen2", "qwen35",
};
enum { N_FAMILIES = sizeof(families) / sizeof(families[0]), N_EXACT = 13 /* the rest normalise to NFC */ };

static int open_vocab(const struct vocab *v, struct tokenizer **t, struct err *e)
{
    struct vocab_image image = vocab_write(v);
    struct gguf *g = NULL;
    int st = gguf_open_memory(&g, image.p, image.len, e);
    if (!st) {
        st = tokenizer_open(t, g, e);
        gguf_close(g);
    }
    free(image.p);
    return st;
}

/* Opens and clears the vocabulary; a failure fails the case. */
#define OPEN(t, v)                                                       \
    struct tokenizer *t = NULL;                                          \
    do {                                                                 \
        struct err e_ = {0};                                             \
        int st_ = open_vocab(&(v), &t, &e_);                             \
        vocab_clear(&(v));                                               \
        CHECKF(st_ == 0, "%s", e_.text);                                 \
    } while (0)

static const char *const merges[] = {
    "h e", "l l", "he ll", "hell o", "\xc4\xa0 hello", "\xc4\xa0 \xc4\xa0", "\xc4\xa0\xc4\xa0 \xc4\xa0\xc4\xa0", "a a", "aa aa",
    "aaaa aaaa", "1 1", "11 1", "\xc3\xb0 \xc5\x81", "\xc4\x8a \xc4\x8a", "! !", "\xc3\xa4 \xc2\xb8", "\xc3\xa4\xc2\xb8 \xc5\x83",
};

static struct vocab bpe_vocab(const char *pre)
{
    struct vocab v = {0};
    vocab_bytes(&v, pre);
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++)
        vocab_merge(&v, merges[i]);
    return v;
}

static struct vocab spm_vocab(bool with_bytes)
{
    struct vocab v = {.model = "llama"};
    static const struct { const char *s; float score; } pieces[] = {
        {"\xe2\x96\x81", -9}, {"a", -8}, {"b", -8}, {"c", -8}, {"ab", -2}, {"bc", -1}, {"abc", -3}, {"\xe2\x96\x81" "a", -2.5f},
        {"\xe2\x96\x81\xe2\x96\x81", -4}, {"\xc3\xa9", -8}, {"aa", -5}, {"aaaa", -6}, {"<", -9}, {"s", -9}, {">", -9}, {"<s", -1}, {"s>", -1},
    };
    vocab_token(&v, "<unk>", VOCAB_UNKNOWN);
    vocab_token(&v, "<s>", VOCAB_CONTROL);
    vocab_token(&v, "</s>", VOCAB_CONTROL);
    for (unsigned b = 0; with_bytes && b < 256; b++) {
        char s[8];
        snprintf(s, sizeof(s), "<0x%02X>", b);
        vocab_token(&v, s, VOCAB_BYTE);
    }
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        vocab_token_n(&v, pieces[i].s, strlen(pieces[i].s), VOCAB_NORMAL, pieces[i].score);
    return v;
}

/* Encodes with exactly tokenizer_max_ids of room; *n_ids and malloc'd ids. */
static int32_t *encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags, int64_t *n_ids)
{
    size_t cap = tokenizer_max_ids(t, n);
    int32_t *ids = malloc(cap * sizeof(*ids) + 1);
    *n_ids = tokenizer_encode(t, text, n, flags, ids, cap);
    return ids;
}

static bool decodes_to(const struct tokenizer *t, const int32_t *ids, int64_t n_ids, const char *text, size_t n)
{
    size_t at = 0;
    for (int64_t i = 0; i < n_ids; i++) {
        size_t len = 0;
        const char *p = tokenizer_piece(t, ids[i], &len);
        if (len == 0 || len > n - at || memcmp(p, text + at, len) != 0)
            return false;
        at += len;
    }
    return at == n;
}

/* The pieces of the ids, each in [], as one string in `out`. */
static const char *shown(const struct tokenizer *t, const char *text, unsigned flags, char *out, size_t n_out)
{
    int64_t n_ids = 0;
    int32_t *ids = encode(t, text, strlen(text), flags, &n_ids);
    size_t at = 0;
    for (int64_t i = 0; i < n_ids; i++) {
        size_t len = 0;
        const char *p = tokenizer_piece(t, ids[i], &len);
        at += (size_t)snprintf(out + at, n_out - at, "[%.*s]", (int)len, p);
    }
    out[at] = 0;
    free(ids);
    return out;
}

#define SHOWS(t, text, flags, expected)                                              \
    do {                                                                             \
        char out_[512];                                                              \
        shown(t, text, flags, out_, sizeof(out_));                                   \
        CHECKF(strcmp(out_, expected) == 0, "'%s' gives %s, not %s", text, out_, expected); \
    } while (0)

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Bytes, ASCII, multi-byte characters and cut ones, in turn. */
static size_t random_text(uint64_t *state, char *out, size_t cap)
{
    static const char *const atoms[] = {
        " ", "\n", "\r\n", "hello", "aaaa", "111", "'S", "\xc3\xa9", "e\xcc\x81", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "\xf0\x9f", "\xe4",
        "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80", "\xff", "\xe2\x80\x8d", "\xef\xbb\xbf", "!", "\xe2\x96\x81", "\xc2\xa0", "\t",
    };
    size_t n = 0, want = next_random(state) % (cap - 8);
    uint32_t style = next_random(state) % 3;
    while (n < want) {
        if (style == 0) {
            out[n++] = (char)next_random(state);
        } else if (style == 1) {
            out[n++] = (char)(32 + next_random(state) % 95);
        } else {
            const char *atom = atoms[next_random(state) % (sizeof(atoms) / sizeof(atoms[0]))];
            memcpy(out + n, atom, strlen(atom));
            n += strlen(atom);
        }
    }
    return n;
}

TEST(random_bytes_decode_back)
{
    uint64_t state = 42;
    for (int f = 0; f < N_EXACT; f++) {
        struct vocab v = bpe_vocab(families[f]);
        OPEN(t, v);
        for (int i = 0; i < 400; i++) {
            char text[120];
            size_t n = random_text(&state, text, sizeof(text));
            int64_t n_ids = 0;
            int32_t *ids = encode(t, text, n, 0, &n_ids);
            bool same = n_ids >= 0 && decodes_to(t, ids, n_ids, text, n);
            free(ids);
            CHECKF(same, "family %s, round %d: %lld ids", families[f], i, (long long)n_ids);
        }
        tokenizer_close(t);
    }
}

TEST(normalising_families_keep_composed_text_and_stray_bytes)
{
    static const char text[] = "caf\xc3\xa9 \xff\xf0\x9f hello \xe4\xb8\xad\xe4 1";
    for (int f = N_EXACT; f < N_FAMILIES; f++) {
        struct vocab v = bpe_vocab(families[f]);
        OPEN(t, v);
        int64_t n_ids = 0;
        int32_t *ids = encode(t, text, sizeof(text) - 1, 0, &n_ids);
        CHECK(decodes_to(t, ids, n_ids, text, sizeof(text) - 1));
        free(ids);
        ids = encode(t, "e\xcc\x81", 3, 0, &n_ids);
        CHECK(decodes_to(t, ids, n_ids, "\xc3\xa9", 2));
        free(ids);
        ids = encode(t, "\xf0\x9d\x85\xa0\xf0\x9d\x85\xa0", 8, 0, &n_ids); /* three times as long in NFC */
        CHECKF(n_ids == 24, "%lld ids", (long long)n_ids);
        free(ids);
        tokenizer_close(t);
    }
}

TEST(random_bytes_decode_back_with_sentencepiece)
{
    uint64_t state = 43;
    struct vocab v = spm_vocab(true);
    vocab_extra(&v, "add_space_prefix", GGUF_BOOL, 0);
    OPEN(t, v);
    for (int i = 0; i < 3000; i++) {
        char text[120];
        size_t n = random_text(&state, text, sizeof(text));
        if (memmem(text, n, "\xe2\x96\x81", 3)) /* reads as a space */
            continue;
        int64_t n_ids = 0;
        int32_t *ids = encode(t, text, n, 0, &n_ids);
        bool same = n_ids >= 0 && decodes_to(t, ids, n_ids, text, n);
        free(ids);
        CHECKF(same, "round %d: %lld ids", i, (long long)n_ids);
    }
    tokenizer_close(t);
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static const char *const hard_units[] = {
    "a", "A", " ", "\n", "\t", "1", "!", "\xf0\x9f\x98\x80", "\xe4\xb8\xad", "\xcc\x81", "\xcc\x81\xcc\xa3", "\xff", "\xe0\xbd\xb1\xe0\xbd\xb2",
    " \n", "a ", "'s", "aA", "\r\n", "\xe3\x80\x80", "e\xcc\x81", "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "<|im_", "\xe2\x96\x81", "\xc2\xbd", "-a",
};

static void repeat(char *text, size_t n, const char *unit)
{
    size_t len = strlen(unit);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % len];
}

/* CPU seconds of one encode; the result must decode to as many bytes when `exact`. */
static double encode_seconds(const struct tokenizer *t, const char *text, size_t n, int64_t *n_ids)
{
    double t0 = cpu_seconds();
    int32_t *ids = encode(t, text, n, TOK_PARSE_SPECIAL, n_ids);
    free(ids);
    return cpu_seconds() - t0;
}

/* Quadratic work on 64 KiB is 4e9 steps, more than ten seconds; linear work takes some 10 ms. */
TEST(every_family_is_linear)
{
    enum { N = 1 << 16 };
    char *text = malloc(N + 1);
    for (int f = 0; f < N_FAMILIES; f++) {
        struct vocab v = bpe_vocab(families[f]);
        vocab_token(&v, "<|im_start|>", VOCAB_CONTROL);
        OPEN(t, v);
        for (size_t u = 0; u < sizeof(hard_units) / sizeof(hard_units[0]); u++) {
            int64_t n_ids = 0;
            repeat(text, N, hard_units[u]);
            text[N] = 'x'; /* look-aheads for the end of a run fail only there */
            double s = encode_seconds(t, text, N + 1, &n_ids);
            CHECKF(n_ids > 0 && s < 1.0, "%s, unit %zu: %lld ids in %.2f s", families[f], u, (long long)n_ids, s);
        }
        tokenizer_close(t);
    }
    free(text);
}

TEST(a_mebibyte_of_one_thing)
{
    enum { N = 1 << 20 };
    char *text = malloc(N);
    struct vocab bpe = bpe_vocab("gpt-2"), deepseek = bpe_vocab("deepseek-llm"), spm = spm_vocab(true);
    OPEN(a, bpe);
    OPEN(b, deepseek);
    OPEN(c, spm);
    const struct tokenizer *all[] = {a, b, c};
    for (int k = 0; k < 3; k++) {
        for (size_t u = 0; u < 8; u++) {
            int64_t n_ids = 0;
            repeat(text, N, hard_units[u]);
            double s = encode_seconds(all[k], text, N, &n_ids);
            CHECKF(n_ids > 0 && s < 8.0, "tokenizer %d, unit %zu: %lld ids in %.2f s", k, u, (long long)n_ids, s);
        }
    }
    tokenizer_close(a);
    tokenizer_close(b);
    tokenizer_close(c);
    free(text);
}

TEST(merges_apply_in_rank_order)
{
    struct vocab v = bpe_vocab("gpt-2");
    OPEN(t, v);
    SHOWS(t, "hello hello", 0, "[hello][ hello]");
    SHOWS(t, "hellhel", 0, "[hell][he][l]");
    SHOWS(t, "aaaaaaaaaaa", 0, "[aaaaaaaa][aa][a]");
    SHOWS(t, "\xe4\xb8\xad", 0, "[\xe4\xb8\xad]");
    SHOWS(t, "\xf0\x9f\xf0\x9f\xff", 0, "[\xf0\x9f][\xf0\x9f][\xff]");
    SHOWS(t, "", 0, "");
    tokenizer_close(t);
}

TEST(ignore_merges_takes_whole_words)
{
    struct vocab v = {0}, w = {0};
    vocab_bytes(&v, "llama-bpe");
    vocab_token(&v, "xyz", VOCAB_NORMAL); /* no merge leads there */
    vocab_bytes(&w, "gpt-2");
    vocab_token(&w, "xyz", VOCAB_NORMAL);
    OPEN(llama, v);
    OPEN(gpt, w);
    SHOWS(llama, "xyz", 0, "[xyz]");
    SHOWS(gpt, "xyz", 0, "[x][y][z]");
    tokenizer_close(llama);
    tokenizer_close(gpt);
}

static struct vocab special_vocab(const char *pre)
{
    struct vocab v = bpe_vocab(pre);
    vocab_token(&v, "<s>", VOCAB_CONTROL);
    vocab_token(&v, "<s>!", VOCAB_CONTROL);
    vocab_token(&v, "<|im_start|>", VOCAB_CONTROL);
    vocab_token(&v, "<user>", VOCAB_USER);
    vocab_token(&v, "<user>hello", VOCAB_USER);
    return v;
}

TEST(special_tokens)
{
    struct vocab v = special_vocab("gpt-2");
    OPEN(t, v);
    SHOWS(t, "<s>hello<s>!", TOK_PARSE_SPECIAL, "[<s>][hello][<s>!]");
    SHOWS(t, "<s>hello", 0, "[<][s][>][hello]");
    SHOWS(t, "x<user>hell<user>hello", 0, "[x][<user>][hell][<user>hello]");
    SHOWS(t, "<|im_start|", TOK_PARSE_SPECIAL, "[<][|][i][m][_][s][t][a][r][t][|]");
    SHOWS(t, "<<s><s", TOK_PARSE_SPECIAL, "[<][<s>][<][s]");
    int32_t id = tokenizer_find(t, "<s>", 3);
    CHECK(id >= 0 && tokenizer_is_control(t, id) && !tokenizer_is_eog(t, id));
    id = tokenizer_find(t, " hello", 6);
    CHECK(id >= 0 && !tokenizer_is_control(t, id));
    id = tokenizer_find(t, "<user>", 6);
    CHECK(id >= 0 && !tokenizer_is_control(t, id));
    CHECK(tokenizer_find(t, "<s", 2) == -1 && tokenizer_find(t, "", 0) == -1 && tokenizer_find(t, "\n", 1) == 10);
    tokenizer_close(t);
}

/* Merges, whole words and pieces that spell a control token: none may produce it from plain text. */
TEST(plain_text_never_becomes_a_control_token)
{
    for (int f = 0; f < N_FAMILIES; f++) {
        struct vocab v = bpe_vocab(families[f]);
        vocab_merge(&v, "[ E");
        vocab_merge(&v, "[E O");
        vocab_merge(&v, "< |");
        vocab_merge_n(&v, "[EO T]", 6);
        vocab_token(&v, "T]", VOCAB_NORMAL);
        vocab_token(&v, "[EOT]", VOCAB_CONTROL);
        vocab_token(&v, "!?", VOCAB_CONTROL);
        vocab_merge_n(&v, "! ?", 3);
        vocab_token(&v, "<|im_end|>", VOCAB_NORMAL); /* control by its name, whatever the file says */
        vocab_merge_n(&v, "<| im_end|>", 11);
        vocab_token(&v, "im_end|>", VOCAB_NORMAL);
        OPEN(t, v);
        static const char text[] = "[EOT] !? <|im_end|>[EOT]!?\n!?";
        int64_t n_ids = 0;
        int32_t *ids = encode(t, text, sizeof(text) - 1, 0, &n_ids);
        for (int64_t i = 0; i < n_ids; i++)
            CHECKF(!tokenizer_is_control(t, ids[i]), "%s: id %d", families[f], ids[i]);
        CHECK(decodes_to(t, ids, n_ids, text, sizeof(text) - 1));
        free(ids);
        tokenizer_close(t);
    }
    struct vocab v = spm_vocab(true);
    OPEN(t, v);
    SHOWS(t, "<s>", 0, "[ ][<s][>]");
    SHOWS(t, "<s>", TOK_PARSE_SPECIAL, "[<s>]");
    tokenizer_close(t);
}

TEST(end_of_generation)
{
    struct vocab v = bpe_vocab("gpt-2"), w = bpe_vocab("gpt-4o");
    vocab_token(&v, "<|im_end|>", VOCAB_CONTROL);
    vocab_token(&v, "<|end|>", VOCAB_CONTROL);
    vocab_token(&v, "</s>", VOCAB_NORMAL); /* HTML */
    vocab_token(&v, "<|endoftext|>", VOCAB_NORMAL);
    vocab_token(&v, "STOP", VOCAB_NORMAL);
    vocab_extra(&v, "eos_token_id", GGUF_U32, v.n_tokens - 1);
    OPEN(t, v);
    CHECK(tokenizer_is_eog(t, tokenizer_find(t, "<|im_end|>", 10)) && tokenizer_is_eog(t, tokenizer_find(t, "<|end|>", 7)));
    CHECK(tokenizer_is_eog(t, tokenizer_find(t, "<|endoftext|>", 13)) && tokenizer_is_control(t, tokenizer_find(t, "<|endoftext|>", 13)));
    CHECK(!tokenizer_is_eog(t, tokenizer_find(t, "</s>", 4)) && !tokenizer_is_control(t, tokenizer_find(t, "</s>", 4)));
    CHECK(tokenizer_is_eog(t, tokenizer_eos(t)) && tokenizer_eos(t) == tokenizer_find(t, "STOP", 4));
    CHECK(!tokenizer_is_eog(t, 0) && !tokenizer_is_eog(t, -1) && !tokenizer_is_eog(t, 1 << 30));
    tokenizer_close(t);
    vocab_token(&w, "<|end|>", VOCAB_CONTROL);
    vocab_token(&w, "<|return|>", VOCAB_CONTROL);
    vocab_token(&w, "<|call|>", VOCAB_CONTROL);
    OPEN(oss, w);
    CHECK(!tokenizer_is_eog(oss, tokenizer_find(oss, "<|end|>", 7)) && tokenizer_is_control(oss, tokenizer_find(oss, "<|end|>", 7)));
    CHECK(tokenizer_is_eog(oss, tokenizer_find(oss, "<|return|>", 10)) && tokenizer_is_eog(oss, tokenizer_find(oss, "<|call|>", 8)));
    tokenizer_close(oss);
}

TEST(beginning_and_end_of_sequence)
{
    static const struct { const char *pre; int add_bos, add_eos; const char *expected; } cases[] = {
        {"gpt-2", -1, -1, "[hello]"},       {"llama-bpe", -1, -1, "[<B>][hello]"}, {"tekken", -1, -1, "[<B>][hello]"},
        {"qwen2", 1, 1, "[<B>][hello][<E>]"}, {"llama-bpe", 0, -1, "[hello]"},       {"qwen2", 0, 1, "[hello][<E>]"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct vocab v = bpe_vocab(cases[i].pre);
        vocab_token(&v, "<B>", VOCAB_CONTROL);
        vocab_token(&v, "<E>", VOCAB_CONTROL);
        vocab_extra(&v, "bos_token_id", GGUF_U32, v.n_tokens - 2);
        vocab_extra(&v, "eos_token_id", GGUF_U32, v.n_tokens - 1);
        if (cases[i].add_bos >= 0)
            vocab_extra(&v, "add_bos_token", GGUF_BOOL, (uint64_t)cases[i].add_bos);
        if (cases[i].add_eos >= 0)
            vocab_extra(&v, "add_eos_token", GGUF_BOOL, (uint64_t)cases[i].add_eos);
        OPEN(t, v);
        SHOWS(t, "hello", TOK_ADD_SPECIAL, cases[i].expected);
        SHOWS(t, "hello", 0, "[hello]");
        tokenizer_close(t);
    }
    struct vocab v = bpe_vocab("llama-bpe"); /* no BOS in the file: the default has nothing to add */
    OPEN(t, v);
    SHOWS(t, "hello", TOK_ADD_SPECIAL, "[hello]");
    CHECK(tokenizer_bos(t) == -1 && tokenizer_eos(t) == -1);
    tokenizer_close(t);
}

TEST(sentencepiece)
{
    struct vocab v = spm_vocab(true), w = spm_vocab(false);
    vocab_token(&v, "<sep>", VOCAB_USER);
    OPEN(t, v);
    SHOWS(t, "abc", 0, "[ a][bc]");
    SHOWS(t, "abc", TOK_ADD_SPECIAL, "[<s>][ a][bc]"); /* BOS by default, numbered as sentencepiece numbers it */
    SHOWS(t, "", TOK_ADD_SPECIAL, "[<s>]");
    SHOWS(t, "b b", 0, "[ ][b][ ][b]");
    SHOWS(t, "\xe2\x96\x81" "a", 0, "[ ][ a]"); /* -2.5 comes before -4 */
    SHOWS(t, "\xc3\xa9z", 0, "[ ][\xc3\xa9][z]");
    SHOWS(t, "ab<sep>ab", 0, "[ ][ab][<sep>][ab]");
    SHOWS(t, "ab<s>ab", TOK_PARSE_SPECIAL, "[ ][ab][<s>][ ][ab]");
    CHECK(tokenizer_bos(t) == 1 && tokenizer_eos(t) == 2 && tokenizer_is_eog(t, 2));
    CHECK(tokenizer_find(t, "z", 1) == 3 + 'z' && tokenizer_find(t, " a", 2) > 258);
    tokenizer_close(t);
    vocab_extra(&w, "add_bos_token", GGUF_BOOL, 0);
    vocab_extra(&w, "remove_extra_whitespaces", GGUF_BOOL, 1);
    OPEN(u, w);
    SHOWS(u, "  a   b \xe4\xb8\xad\xff\xe4\xb8\xad  ", TOK_ADD_SPECIAL, "[ a][ ][b][ ][<unk>]"); /* one for the run */
    SHOWS(u, "   ", 0, "");
    tokenizer_close(u);
}

TEST(bytes_without_token_are_dropped)
{
    struct vocab v = {.model = "gpt2", .pre = "gpt-2"};
    vocab_token(&v, "a", VOCAB_NORMAL);
    vocab_token(&v, "b", VOCAB_NORMAL);
    vocab_token(&v, "<unk>", VOCAB_UNKNOWN);
    vocab_extra(&v, "unknown_token_id", GGUF_U32, 2);
    vocab_merge(&v, "a b");
    OPEN(t, v);
    SHOWS(t, "zabz\xff\xc3\xa9 ab a?b", 0, "[ab][ab][a][b]");
    tokenizer_close(t);
}

TEST(room_is_checked)
{
    struct vocab v = bpe_vocab("gpt-2");
    OPEN(t, v);
    int32_t ids[4] = {-7, -7, -7, -7};
    CHECK(tokenizer_encode(t, "abcd", 4, 0, ids, 3) == ST_LIMIT && ids[3] == -7);
    CHECK(tokenizer_encode(t, "abcd", 4, 0, ids, 4) == 4 && ids[3] == 'd');
    CHECK(tokenizer_encode(t, "abcd", 0, 0, NULL, 0) == 0);
    CHECK(tokenizer_encode(t, "a", 1, 0, NULL, 0) == ST_LIMIT);
    CHECK(tokenizer_encode(t, "a", (size_t)1 << 40, 0, NULL, 0) == ST_LIMIT);
    size_t len = 9;
    CHECK(tokenizer_piece(t, -1, &len)[0] == 0 && len == 0);
    len = 9;
    CHECK(tokenizer_piece(t, tokenizer_n_vocab(t), &len)[0] == 0 && len == 0);
    tokenizer_close(t);
}

/* Entries that make no sense are without effect. */
TEST(odd_entries_are_tolerated)
{
    struct vocab v = bpe_vocab("gpt-2");
    static const char *const odd[] = {"", " ", "nospace", "a ", " a", "  ", "zz yy", "a b c", "\xff\xfe a", "h e"};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
        vocab_merge_n(&v, odd[i], strlen(odd[i]));
    vocab_token_n(&v, "", 0, VOCAB_NORMAL, 0);
    vocab_token_n(&v, "", 0, VOCAB_CONTROL, 0);
    vocab_token_n(&v, "", 0, VOCAB_USER, 0);
    vocab_token(&v, "\xff\xfe", VOCAB_NORMAL);
    vocab_token(&v, "\xff\xfe", VOCAB_CONTROL);
    vocab_token_n(&v, "a\0b", 3, VOCAB_NORMAL, 0);
    vocab_token(&v, "hello", VOCAB_NORMAL);
    vocab_token(&v, "hello", 77);
    vocab_token(&v, "<x>", VOCAB_CONTROL);
    vocab_token(&v, "<x>", VOCAB_CONTROL);
    vocab_extra(&v, "padding_token_id", GGUF_U32, 1u << 31);
    vocab_extra(&v, "eos_token_id", GGUF_U32, UINT32_MAX);
    vocab_extra(&v, "eot_token_id", GGUF_I32, UINT32_MAX);
    OPEN(t, v);
    SHOWS(t, "hello\xff<x>", TOK_PARSE_SPECIAL, "[hello][\xff][<x>]");
    CHECK(tokenizer_find(t, "hello", 5) < 300 && tokenizer_eos(t) == -1);
    tokenizer_close(t);
}

struct broken { const char *what; int status; const char *says; };

/* Applies the damage number `i` to a fresh vocabulary; the list ends at a NULL `what`. */
static struct broken break_vocab(struct vocab *v, int i)
{
    static char long_piece[(1 << 16) + 2];
    *v = i < 20 ? bpe_vocab("gpt-2") : spm_vocab(true);
    switch (i) {
    case 0: v->model = NULL; return (struct broken){"no model", ST_INVALID, "tokenizer.ggml.model is missing"};
    case 1: v->model = "bert"; return (struct broken){"other model", ST_UNSUPPORTED, "'bert'"};
    case 2: v->pre = "gpt-9"; return (struct broken){"other pattern", ST_UNSUPPORTED, "'gpt-9'"};
    case 3: v->pre = ""; return (struct broken){"empty pattern", ST_UNSUPPORTED, "gpt-2 olmo"};
    case 4: v->pre = "gpt-2 olmo"; return (struct broken){"two patterns", ST_UNSUPPORTED, "'gpt-2 olmo'"};
    case 5: v->no_tokens = true; return (struct broken){"no tokens", ST_INVALID, "tokens is missing"};
    case 6: v->short_types = 1; return (struct broken){"short types", ST_INVALID, "token_type has 272 entries"};
    case 7: v->no_merges = true; return (struct broken){"no merges", ST_INVALID, "merges is missing"};
    case 8: vocab_extra(v, "bos_token_id", GGUF_U32, 5000); return (struct broken){"large id", ST_INVALID, "bos_token_id is 5000"};
    case 9: vocab_extra(v, "eos_token_id", GGUF_U32, v->n_tokens); return (struct broken){"id = n", ST_INVALID, "eos_token_id"};
    case 10: vocab_extra(v, "add_bos_token", GGUF_BOOL, 1); return (struct broken){"no BOS", ST_INVALID, "bos_token_id is missing"};
    case 11: vocab_extra(v, "add_eos_token", GGUF_BOOL, 1); return (struct broken){"no EOS", ST_INVALID, "eos_token_id is missing"};
    case 12:
        memset(long_piece, 'a', sizeof(long_piece));
        vocab_token_n(v, long_piece, sizeof(long_piece), VOCAB_NORMAL, 0);
        return (struct broken){"long piece", ST_INVALID, "tokens[273] has 65538 bytes"};
    case 13: vocab_extra(v, "add_bos_token", GGUF_U32, 1); return (struct broken){"switch of another type", ST_INVALID, "add_bos_token"};
    case 14: vocab_extra(v, "bos_token_id", GGUF_F32, 0); return (struct broken){"id of another type", ST_INVALID, "bos_token_id"};
    case 15: vocab_clear(v); v->model = "gpt2"; v->pre = "gpt-2"; return (struct broken){"empty vocabulary", ST_INVALID, "found 0 elements"};
    case 20: v->no_scores = true; return (struct broken){"no scores", ST_INVALID, "scores is missing"};
    case 21: v->short_scores = 1; return (struct broken){"short scores", ST_INVALID, "scores has 275 entries"};
    case 22: vocab_extra(v, "unknown_token_id", GGUF_U32, 1u << 31); return (struct broken){"large unknown", ST_INVALID, "unknown_token_id"};
    default: return (struct broken){NULL, 0, NULL};
    }
}

TEST(broken_vocabularies_get_an_error)
{
    struct mem_stats before, after;
    mem_stats(&before);
    for (int i = 0; i < 23; i++) {
        struct vocab v;
        struct broken b = break_vocab(&v, i);
        struct err e = {0};
        struct tokenizer *t = NULL;
        int st = b.what ? open_vocab(&v, &t, &e) : 0;
        vocab_clear(&v);
        CHECKF(!b.what || (st == b.status && t == NULL), "%s: status %d, '%s'", b.what, st, e.text);
        CHECKF(!b.what || strstr(e.text, b.says), "%s: '%s' does not say '%s'", b.what, e.text, b.says);
    }
    mem_stats(&after);
    CHECK(before.n_live == after.n_live);
}

TEST(missing_pattern_splits_as_gpt2)
{
    struct vocab v = bpe_vocab(NULL), w = bpe_vocab("default");
    log_setup(LOG_ERROR, LOG_TEXT); /* it warns */
    OPEN(t, v);
    OPEN(u, w);
    log_setup(LOG_INFO, LOG_TEXT);
    SHOWS(t, "111 hello", 0, "[111][ hello]");
    SHOWS(u, "111 hello", 0, "[111][ hello]");
    tokenizer_close(t);
    tokenizer_close(u);
}

TEST(types_may_be_missing)
{
    struct vocab v = spm_vocab(true);
    v.no_types = true; /* byte tokens are known by their name then */
    OPEN(t, v);
    SHOWS(t, "abz", 0, "[ ][ab][z]");
    tokenizer_close(t);
}

/* More tokens in one hash slot than a lookup would search: refused. */
TEST(colliding_tokens_are_refused)
{
    struct vocab v = {.model = "gpt2", .pre = "gpt-2"};
    struct tokenizer *t = NULL;
    struct err e = {0};
    for (uint32_t i = 0; v.n_tokens < 1100; i++) {
        char s[16];
        snprintf(s, sizeof(s), "%x", i);
        uint64_t h = 0xcbf29ce484222325u;
        for (const char *p = s; *p; p++)
            h = (h ^ (unsigned char)*p) * 0x100000001b3u;
        if (((h ^ h >> 32) & 4095) == 0)
            vocab_token(&v, s, VOCAB_NORMAL);
    }
    int st = open_vocab(&v, &t, &e);
    vocab_clear(&v);
    CHECKF(st == ST_INVALID && strstr(e.text, "collide"), "status %d, '%s'", st, e.text);
}

static int open_and_encode(const struct gguf *g)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    static const char text[] = "hello <s>e\xcc\x81\xcc\x81 hellohello \xff 111!!";
    int st = tokenizer_open(&t, g, &e);
    if (st)
        return st == e.code ? st : ST_INTERNAL;
    int32_t ids[512];
    int64_t n = tokenizer_encode(t, text, sizeof(text) - 1, TOK_PARSE_SPECIAL, ids, 512);
    tokenizer_close(t);
    return n < 0 ? (int)n : 0;
}

TEST(out_of_memory_anywhere)
{
    struct vocab vocabs[] = {special_vocab("gpt-2"), special_vocab("qwen2"), special_vocab("deepseek-llm"), spm_vocab(true)};
    for (size_t k = 0; k < sizeof(vocabs) / sizeof(vocabs[0]); k++) {
        struct vocab_image image = vocab_write(&vocabs[k]);
        struct gguf *g = NULL;
        struct mem_stats before, after;
        CHECK(gguf_open_memory(&g, image.p, image.len, NULL) == 0);
        mem_stats(&before);
        int st = ST_NOMEM;
        uint64_t n = 0;
        for (; st && n < 1000; n++) {
            mem_fail_after(n);
            st = open_and_encode(g);
            mem_fail_after(UINT64_MAX);
            CHECKF(st == 0 || st == ST_NOMEM, "vocabulary %zu, allocation %llu: status %d", k, (unsigned long long)n, st);
        }
        mem_stats(&after);
        CHECKF(n > 8 && n < 1000, "%llu allocations", (unsigned long long)n);
        CHECK(before.n_live == after.n_live);
        gguf_close(g);
        free(image.p);
        vocab_clear(&vocabs[k]);
    }
}

struct worker { const struct tokenizer *t; bool ok; };

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t state = 99; /* the same texts on every thread */
    uint64_t sum = 0;
    for (int i = 0; i < 1500; i++) {
        char text[200];
        size_t n = random_text(&state, text, sizeof(text));
        int64_t n_ids = 0;
        int32_t *ids = encode(w->t, text, n, TOK_PARSE_SPECIAL, &n_ids);
        w->ok &= decodes_to(w->t, ids, n_ids, text, n);
        sum += (uint64_t)n_ids;
        free(ids);
    }
    return (void *)(uintptr_t)sum;
}

TEST(threads_share_one_tokenizer)
{
    struct vocab v = bpe_vocab("deepseek-v3");
    OPEN(t, v);
    pthread_t thread[4];
    struct worker w[4];
    void *sum[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){t, true};
        CHECK(pthread_create(&thread[i], NULL, work, &w[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], &sum[i]);
    for (int i = 0; i < 4; i++)
        CHECK(w[i].ok && sum[i] == sum[0]);
    tokenizer_close(t);
}

TEST(a_large_vocabulary_opens_fast)
{
    struct vocab v = {0};
    vocab_bytes(&v, "qwen2");
    for (size_t i = 0; v.n_tokens < 250000; i++) { /* words of letters, each from a shorter one */
        char pair[64], letter[3] = {' ', (char)('a' + i % 26), 0};
        size_t parent = i / 26 < 26 ? 'a' + i / 26 : 256 + i / 26 - 26;
        snprintf(pair, sizeof(pair), "%s%s", v.token[parent].s, letter);
        vocab_merge(&v, pair);
    }
    struct vocab_image image = vocab_write(&v);
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    vocab_clear(&v);
    CHECK(gguf_open_memory(&g, image.p, image.len, NULL) == 0);
    double t0 = cpu_seconds();
    CHECK(tokenizer_open(&t, g, NULL) == 0);
    double s = cpu_seconds() - t0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    CHECKF(s < 3.0, "%.3f s", s);
#else
    CHECKF(s < 0.3, "%.3f s", s);
#endif
    gguf_close(g);
    free(image.p);
    SHOWS(t, "zzzz", 0, "[zz][zz]");
    tokenizer_close(t);
}

int main(void)
{
    RUN(random_bytes_decode_back);
    RUN(normalising_families_keep_composed_text_and_stray_bytes);
    RUN(random_bytes_decode_back_with_sentencepiece);
    RUN(every_family_is_linear);
    RUN(a_mebibyte_of_one_thing);
    RUN(merges_apply_in_rank_order);
    RUN(ignore_merges_takes_whole_words);
    RUN(special_tokens);
    RUN(plain_text_never_becomes_a_control_token);
    RUN(end_of_generation);
    RUN(beginning_and_end_of_sequence);
    RUN(sentencepiece);
    RUN(bytes_without_token_are_dropped);
    RUN(room_is_checked);
    RUN(odd_entries_are_tolerated);
    RUN(broken_vocabularies_get_an_error);
    RUN(missing_pattern_splits_as_gpt2);
    RUN(types_may_be_missing);
    RUN(colliding_tokens_are_refused);
    RUN(out_of_memory_anywhere);
    RUN(threads_share_one_tokenizer);
    RUN(a_large_vocabulary_opens_fast);
    return test_failed_;
}
