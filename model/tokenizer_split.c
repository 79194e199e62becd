/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits text into the words that BPE then merges, with the patterns of the published tokenizers, by PCRE2.
 * Three differences between PCRE2 and the engines the patterns were written for are settled here:
 *   \s   PCRE2 counts U+180E as a space and they do not: written out as White_Space;
 *   \p{Han} is a script extension in PCRE2 (no pattern here needs it);
 *   "\s+$" searched in a long run of spaces costs the square of its length: guarded by a look-behind.
 * Every pattern is linear in the text; match and heap limits are set to what linear needs, and a part that
 * fails on them is one word, so that encoding stays total. */
#include <string.h>

#include "base/alloc.h"
#include "model/tokenizer_internal.h"

#define SPACE "\\t-\\r\\x{85}\\p{Z}" /* White_Space, inside a class */
#define WS "[" SPACE "]"
#define NO_WS "[^" SPACE "]"
#define TAIL WS "*[\\r\\n]+|" WS "+(?!" NO_WS ")|" WS "+"
#define SHORT "(?i:'(?:[sdmt]|ll|ve|re))" /* 's 'd 'm 't 'll 've 're; i also takes U+017F for s */
#define SYMBOLS " ?[^" SPACE "\\p{L}\\p{N}]+"

#define GPT2 "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|" WS "+(?!" NO_WS ")|" WS "+"
#define CL100K(digits) SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "|" SYMBOLS "[\\r\\n]*|" TAIL
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(suffix, digits)                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix   \
    "|\\p{N}" digits "|" SYMBOLS "[\\r\\n/]*|" TAIL

/* DeepSeek LLM names the cased letters and its punctuation one by one. */
#define DEEPSEEK_CASED                                                                                         \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"            \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}"     \
    "\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}"            \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"          \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"          \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}"                     \
    "\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"                    \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"          \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"            \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                     \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                     \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"           \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"          \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"                         \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                     \
    "\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_PUNCT "!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}"
#define DEEPSEEK_EAST "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

#define ASCII_PUNCT "[!-/:-@\\[-`{-~]"
#define CJK_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK_V3                                                                                            \
    ASCII_PUNCT "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL

static const struct tok_split splits[] = {
    {.names = " gpt-2 phi-2 jais trillion granite-docling exaone4 modern-bert mellum gigachat a.x-4.0"
              " jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe ",
     .stage = {GPT2}},
    {.names = " olmo mpt ", .stage = {GPT2}, .nfc = true}, /* both are GPT-NeoX's */
    {.names = " smollm starcoder refact codeshell exaone minerva-7b mellum2 ", .stage = {"\\p{N}", GPT2}},
    {.names = " command-r ", .stage = {"\\p{N}", GPT2}, .nfc = true},
    {.names = " llama-bpe llama3 llama-v3 falcon3 falcon-h1 midm-2.0 lfm2 jina-v5-nano ",
     .stage = {CL100K("{1,3}")}, .ignore_merges = true, .add_bos = true},
    {.names = " dbrx smaug-bpe glm4 chatglm-bpe ", .stage = {CL100K("{1,3}")}},
    {.names = " qwen2 deepseek-r1-qwen f2llmv2 ", .stage = {CL100K("")}, .nfc = true},
    {.names = " grok-2 hunyuan solar-open stablelm2 megrez kormo ", .stage = {CL100K("")}},
    {.names = " qwen35 ",
     .stage = {SHORT "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL},
     .nfc = true},
    {.names = " bailingmoe bailingmoe2 llada-moe ",
     .stage = {SHORT "|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}|" SYMBOLS "[\\r\\n]*|" WS "*[\\r\\n]|" WS "+(?!" NO_WS ")|" WS "+"}},
    {.names = " seed-coder ",
     .stage = {SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" SYMBOLS "|" TAIL}},
    {.names = " gpt-4o llama4 kanana2 ", .stage = {O200K(SHORT "?", "{1,3}")}, .ignore_merges = true},
    {.names = " minimax-m2 ", .stage = {O200K(SHORT "?", "{1,3}")}},
    {.names = " tekken ", .stage = {O200K("", "")}, .ignore_merges = true, .add_bos = true},
    {.names = " deepseek-llm ",
     .stage = {"[\\r\\n]", WS "?[" DEEPSEEK_CASED "]+", WS "?[" DEEPSEEK_PUNCT "]+", "(?<!" WS ")" WS "++$", DEEPSEEK_EAST, "\\p{N}"}},
    {.names = " deepseek-coder ",
     .stage = {"[\\r\\n]", WS "?\\p{L}+", WS "?\\p{P}+", DEEPSEEK_EAST, "\\p{N}"}},
    {.names = " deepseek-v3 deepseek-r1 hunyuan-dense joyai-llm hy_v4 ", .stage = {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK_V3}},
};

enum { N_SPLITS = sizeof(splits) / sizeof(splits[0]) };

static void *pcre_alloc(size_t n_bytes, void *ctx)
{
    (void)ctx;
    return mem_alloc(n_bytes);
}

static void pcre_free(void *p, void *ctx)
{
    (void)ctx;
    mem_free(p);
}

static bool names_hold(const char *names, const char *name, size_t n)
{
    if (n == 0 || memchr(name, ' ', n) || memchr(name, 0, n))
        return false;
    for (const char *at = names; *at; at++)
        if (at[0] == ' ' && strncmp(at + 1, name, n) == 0 && at[1 + n] == ' ')
            return true;
    return false;
}

static int unknown_pre(const char *pre, size_t n_pre, struct err *e)
{
    char known[400] = "";
    size_t at = 0;
    for (int i = 0; i < N_SPLITS; i++) { /* the first name of each family */
        const char *name = splits[i].names + 1;
        size_t n = strcspn(name, " ");
        if (at + n + 2 > sizeof(known))
            break;
        memcpy(known + at, name, n);
        at += n;
        known[at++] = ' ';
    }
    known[at ? at - 1 : 0] = 0;
    return err_set(e, ST_UNSUPPORTED, "tokenizer.ggml.pre '%.*s' is a split pattern this build does not have; it has %s and their aliases",
                   n_pre > 48 ? 48 : (int)n_pre, pre, known);
}

static int stage_compile(struct tokenizer *t, int i, pcre2_compile_context *ctx, struct err *e)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    t->stage[i] = pcre2_compile((PCRE2_SPTR)t->split->stage[i], PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &at, ctx);
    if (!t->stage[i] && code == PCRE2_ERROR_HEAP_FAILED)
        return err_set(e, ST_NOMEM, "no memory for the tokenizer");
    if (!t->stage[i])
        return err_set(e, ST_INTERNAL, "split pattern %d of '%s' does not compile: PCRE2 error %d at %zu", i, t->split->names + 1, code,
                       (size_t)at);
    pcre2_jit_compile(t->stage[i], PCRE2_JIT_COMPLETE); /* without JIT the interpreter gives the same, slower */
    return 0;
}

int tokenizer__split_open(struct tokenizer *t, const char *pre, size_t n_pre, struct err *e)
{
    for (int i = 0; i < N_SPLITS && !t->split; i++)
        if (names_hold(splits[i].names, pre, n_pre))
            t->split = &splits[i];
    if (!t->split)
        return unknown_pre(pre, n_pre, e);
    t->pcre = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *ctx = t->pcre ? pcre2_compile_context_create(t->pcre) : NULL;
    int st = ctx ? 0 : err_set(e, ST_NOMEM, "no memory for the tokenizer");
    for (int i = 0; !st && i < TOK_MAX_STAGES && t->split->stage[i]; i++)
        st = stage_compile(t, i, ctx, e);
    pcre2_compile_context_free(ctx);
    return st;
}

void tokenizer__split_close(struct tokenizer *t)
{
    for (int i = 0; i < TOK_MAX_STAGES; i++)
        pcre2_code_free(t->stage[i]);
    pcre2_general_context_free(t->pcre);
}

int tokenizer__split_begin(struct tok_run *r, size_t n_bytes)
{
    r->match = pcre2_match_data_create(1, r->t->pcre);
    r->match_ctx = pcre2_match_context_create(r->t->pcre);
    if (!r->match || !r->match_ctx)
        return ST_NOMEM;
    uint64_t steps = (uint64_t)n_bytes * 3 * 16 + 100000; /* NFC can treble the text */
    pcre2_set_match_limit(r->match_ctx, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    pcre2_set_heap_limit(r->match_ctx, 64 * 1024); /* KiB */
    return 0;
}

void tokenizer__split_end(struct tok_run *r)
{
    pcre2_match_data_free(r->match);
    pcre2_match_context_free(r->match_ctx);
}

static void split_stage(struct tok_run *r, int stage, const char *p, size_t n)
{
    const pcre2_code *code = stage < TOK_MAX_STAGES ? r->t->stage[stage] : NULL;
    if (!code || r->status) {
        tokenizer__bpe_word(r, p, n);
        return;
    }
    for (size_t at = 0; at < n;) {
        int rc = pcre2_match(code, (PCRE2_SPTR)p, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, r->match, r->match_ctx);
        size_t from = n, to = n;
        if (rc == PCRE2_ERROR_NOMEMORY)
            r->status = ST_NOMEM;
        if (rc >= 0) {
            const PCRE2_SIZE *span = pcre2_get_ovector_pointer(r->match);
            from = span[0]; /* copied: the next stage uses the same match data */
            to = span[1];
        }
        if (from > at)
            split_stage(r, stage + 1, p + at, from - at);
        if (to > from)
            split_stage(r, stage + 1, p + from, to - from);
        at = to;
    }
}

void tokenizer__split(struct tok_run *r, const char *p, size_t n)
{
    split_stage(r, 0, p, n);
}
