/* SPDX-License-Identifier: Apache-2.0
 *
 * The public face of the tokenizer: opening one from a GGUF, the special-token partition around the two
 * algorithms (tokenizer_bpe.c, tokenizer_spm.c), and what is known about single ids. */
#include "model/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "model/tokenizer_internal.h"

#define KEY "tokenizer.ggml."

size_t tokenizer__utf8_len(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    size_t len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (n < len)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90))
        return 0; /* overlong */
    if ((p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0; /* surrogate, or above U+10FFFF */
    return len;
}

uint32_t tokenizer__utf8_cp(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;
    switch (len) {
    case 1: return p[0];
    case 2: return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    case 3: return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    default: return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    }
}

/* A token id of the file. An absent key keeps `fallback` when that is in the vocabulary. Writers store -1 for
 * "none", as 2^32 - 1. */
static int id_read(const struct tokenizer *t, const struct gguf *g, const char *key, int32_t fallback, int32_t *out, struct err *e)
{
    uint32_t id = 0;
    *out = fallback < t->n_vocab ? fallback : -1;
    if (gguf_find(g, key) < 0)
        return 0;
    int64_t wide = 0;
    if (gguf_key_type(g, gguf_find(g, key)) != GGUF_ARRAY && gguf_array_i64(g, gguf_find(g, key), 0, &wide) == 0 && wide == -1) {
        *out = -1;
        return 0;
    }
    int st = gguf_get_u32(g, key, &id, e);
    if (st)
        return st;
    if (id == UINT32_MAX) {
        *out = -1;
        return 0;
    }
    if (id >= (uint32_t)t->n_vocab)
        return err_set(e, ST_INVALID, "%s is %u, but the vocabulary has %d tokens", key, id, t->n_vocab);
    *out = (int32_t)id;
    return 0;
}

static int ids_read(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    bool spm = t->kind == TOK_KIND_SPM; /* sentencepiece's own numbering is the default there */
    int st = id_read(t, g, KEY "bos_token_id", spm ? 1 : -1, &t->bos, e);
    if (!st)
        st = id_read(t, g, KEY "eos_token_id", spm ? 2 : -1, &t->eos, e);
    if (!st)
        st = id_read(t, g, KEY "unknown_token_id", spm ? 0 : -1, &t->unk, e);
    if (!st)
        st = id_read(t, g, KEY "eot_token_id", -1, &t->eot, e);
    if (!st)
        st = id_read(t, g, KEY "eom_token_id", -1, &t->eom, e);
    return st;
}

/* A switch of the file; absent keeps *out. */
static int bool_read(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    if (gguf_find(g, key) < 0)
        return 0;
    return gguf_get_bool(g, key, out, e);
}

static int switches_read(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    bool bos_said = gguf_find(g, KEY "add_bos_token") >= 0;
    t->add_bos = t->kind == TOK_KIND_SPM || t->split->add_bos;
    t->add_space_prefix = t->kind == TOK_KIND_SPM;
    int st = bool_read(g, KEY "add_bos_token", &t->add_bos, e);
    if (!st)
        st = bool_read(g, KEY "add_eos_token", &t->add_eos, e);
    if (!st && t->kind == TOK_KIND_SPM)
        st = bool_read(g, KEY "add_space_prefix", &t->add_space_prefix, e);
    if (!st && t->kind == TOK_KIND_SPM)
        st = bool_read(g, KEY "remove_extra_whitespaces", &t->squeeze_spaces, e);
    if (st)
        return st;
    if (t->add_bos && t->bos < 0) {
        if (bos_said)
            return err_set(e, ST_INVALID, KEY "add_bos_token is true, but " KEY "bos_token_id is missing");
        t->add_bos = false;
    }
    if (t->add_eos && t->eos < 0)
        return err_set(e, ST_INVALID, KEY "add_eos_token is true, but " KEY "eos_token_id is missing");
    return 0;
}

static int kind_read(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct gguf_str model = {0};
    int st = gguf_get_str(g, KEY "model", &model, e);
    if (st == ST_NOT_FOUND)
        return err_set(e, ST_INVALID, KEY "model is missing: the file has no tokenizer");
    if (st)
        return st;
    if (model.len == 4 && memcmp(model.s, "gpt2", 4) == 0)
        t->kind = TOK_KIND_BPE;
    else if (model.len == 5 && memcmp(model.s, "llama", 5) == 0)
        t->kind = TOK_KIND_SPM;
    else
        return err_set(e, ST_UNSUPPORTED, KEY "model is '%.*s', this build has 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)",
                       model.len > 64 ? 64 : (int)model.len, model.s);
    return 0;
}

static int pre_read(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct gguf_str pre = {0};
    int st = gguf_get_str(g, KEY "pre", &pre, e);
    if (st && st != ST_NOT_FOUND)
        return st;
    if (st == ST_NOT_FOUND || (pre.len == 7 && memcmp(pre.s, "default", 7) == 0)) {
        /* Written before the key existed. Most such vocabularies split as GPT-2 did; nothing in the file tells. */
        log_warn("tokenizer", KEY "pre is missing: text is split as gpt-2 does; convert the model again if another family made it");
        return tokenizer__split_open(t, "gpt-2", 5, e);
    }
    return tokenizer__split_open(t, pre.s, pre.len, e);
}

static int open_into(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    int st = kind_read(t, g, e);
    if (!st && t->kind == TOK_KIND_BPE)
        st = pre_read(t, g, e);
    if (!st)
        st = tokenizer__vocab_read(t, g, e);
    if (!st)
        st = ids_read(t, g, e);
    if (!st)
        st = switches_read(t, g, e);
    if (st)
        return st;
    tokenizer__eog_mark(t, g); /* before merges: none may produce a control token */
    st = t->kind == TOK_KIND_BPE ? tokenizer__merges_read(t, g, e) : tokenizer__scores_read(t, g, e);
    return st ? st : tokenizer__special_build(t, e);
}

int tokenizer_open(struct tokenizer **out, const struct gguf *g, struct err *e)
{
    *out = NULL;
    struct tokenizer *t = mem_zalloc(1, sizeof(*t));
    if (!t)
        return err_set(e, ST_NOMEM, "no memory for the tokenizer");
    int st = open_into(t, g, e);
    if (st) {
        tokenizer_close(t);
        return st;
    }
    *out = t;
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    tokenizer__split_close(t);
    mem_free(t->blob);
    mem_free(t->offset);
    mem_free(t->flags);
    mem_free(t->text_slot);
    mem_free(t->special);
    mem_free(t->merge);
    mem_free(t->prio);
    mem_free(t);
}

size_t tokenizer_max_ids(const struct tokenizer *t, size_t n_bytes)
{
    /* One id per byte, BOS and EOS. NFC makes UTF-8 at most three times as long; SentencePiece may put a space
     * before every part between control tokens, and such a token can be one byte. */
    size_t factor = t->split && t->split->nfc ? 3 : t->kind == TOK_KIND_SPM ? 2 : 1;
    return n_bytes > (SIZE_MAX - 4) / factor ? SIZE_MAX : n_bytes * factor + 4;
}

static void plain_text(struct tok_run *r, const char *p, size_t n)
{
    if (n == 0)
        return;
    if (r->t->kind == TOK_KIND_BPE)
        tokenizer__bpe_text(r, p, n);
    else
        tokenizer__spm_text(r, p, n);
}

/* The longest special token at text[i..n): a control token only where it ends before the next guarded byte. */
static int32_t special_at(const struct tokenizer *t, const char *text, size_t i, size_t n, unsigned flags, size_t open_end, size_t *len)
{
    unsigned control = flags & TOK_PARSE_SPECIAL && i < open_end ? TOKF_CONTROL : 0;
    unsigned user = t->kind == TOK_KIND_BPE ? TOKF_USER : 0; /* the SentencePiece side finds them after normalising */
    if (open_end == n || !control)
        return tokenizer__special_match(t, text + i, n - i, user | control, len);
    size_t len_user = 0, len_open = 0;
    int32_t id_user = tokenizer__special_match(t, text + i, n - i, user, &len_user);
    int32_t id_open = tokenizer__special_match(t, text + i, open_end - i, user | control, &len_open);
    *len = len_user > len_open ? len_user : len_open;
    return len_user > len_open ? id_user : id_open;
}

/* Cuts the text at special tokens: at every place the longest one, left to right, as the references do. */
static void partition(struct tok_run *r, const char *text, size_t n, unsigned flags, const struct tokenizer_span *guarded, size_t n_guarded)
{
    size_t begin = 0, g = 0;
    for (size_t i = 0; i < n && !r->status;) {
        while (g < n_guarded && guarded[g].end <= i)
            g++;
        size_t len = 0, open_end = g < n_guarded && guarded[g].start < n ? guarded[g].start : n;
        int32_t id = special_at(r->t, text, i, n, flags, open_end, &len);
        if (id < 0) {
            i++;
            continue;
        }
        plain_text(r, text + begin, i - begin);
        tokenizer__emit(r, id);
        i += len;
        begin = i;
    }
    plain_text(r, text + begin, n - begin);
}

int64_t tokenizer_encode_guarded(const struct tokenizer *t, const char *text, size_t n_bytes, unsigned flags,
                                 const struct tokenizer_span *guarded, size_t n_guarded, int32_t *ids, size_t cap)
{
    if (n_bytes >= TOK_MAX_TEXT_BYTES)
        return ST_LIMIT;
    struct tok_run r = {.t = t, .ids = ids, .cap = cap};
    if (t->kind == TOK_KIND_BPE)
        r.status = tokenizer__split_begin(&r, n_bytes);
    if (flags & TOK_ADD_SPECIAL && t->add_bos)
        tokenizer__emit(&r, t->bos);
    partition(&r, text, n_bytes, flags, guarded, n_guarded);
    if (flags & TOK_ADD_SPECIAL && t->add_eos)
        tokenizer__emit(&r, t->eos);
    tokenizer__split_end(&r);
    mem_free(r.sym);
    mem_free(r.heap);
    mem_free(r.norm);
    return r.status ? r.status : (int64_t)r.n;
}

int64_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, unsigned flags, int32_t *ids, size_t cap)
{
    return tokenizer_encode_guarded(t, text, n_bytes, flags, NULL, 0, ids, cap);
}

static bool in_vocab(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *len)
{
    if (!in_vocab(t, id)) {
        *len = 0;
        return "";
    }
    return tokenizer__piece(t, id, len);
}

int32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->n_vocab;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_is_eog(const struct tokenizer *t, int32_t id)
{
    return in_vocab(t, id) && t->flags[id] & TOKF_EOG;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    return in_vocab(t, id) && t->flags[id] & TOKF_CONTROL;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len)
{
    size_t match_len = 0;
    int32_t id = tokenizer__special_match(t, piece, len, TOKF_CONTROL | TOKF_USER, &match_len);
    if (id >= 0 && match_len == len)
        return id;
    id = tokenizer__text_find(t, piece, len);
    return id >= 0 || len != 1 ? id : t->byte_id[(unsigned char)piece[0]];
}
