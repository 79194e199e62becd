/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the vocabulary of a GGUF into flat tables: pieces, the hash of text to id, the hash of merges, the
 * ordered list of special tokens. The file is hostile: counts, ids, lengths and hash clusters are bounded, an
 * entry that makes no sense (a merge of unknown tokens, a second token with the same text) is without effect. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/tokenizer_internal.h"

#define KEY "tokenizer.ggml."

/* Values of tokenizer.ggml.token_type. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

static int no_memory(struct err *e)
{
    return err_set(e, ST_NOMEM, "no memory for the tokenizer");
}

/* An array of the file with at least n elements. *index = -1 when absent. */
static int array_of(const struct gguf *g, const char *key, uint64_t n_min, enum gguf_type *type, int *index, struct err *e)
{
    uint64_t n = 0;
    *index = gguf_find(g, key);
    if (*index < 0)
        return 0;
    int st = gguf_get_array(g, key, type, &n, e);
    if (st)
        return st;
    if (n < n_min)
        return err_set(e, ST_INVALID, "%s has %llu entries, expected one for each of the %llu tokens", key,
                       (unsigned long long)n, (unsigned long long)n_min);
    return 0;
}

/* Byte-level vocabularies write byte b as a printable character: itself when Latin-1 prints it, else the next
 * free one from U+0100 on, in byte order. */
static int byte_of_char(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return (int)cp;
    if (cp < 256 || cp > 323)
        return -1;
    uint32_t k = cp - 256; /* 0..32, 127..160, 173 */
    return (int)(k < 33 ? k : k < 67 ? k + 94 : 173);
}

/* Writes at most n bytes; the count, or -1 when a character stands for no byte. */
static int64_t byte_level_decode(const char *s, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        size_t len = tokenizer__utf8_len(s + i, n - i);
        int byte = len ? byte_of_char(tokenizer__utf8_cp(s + i, len)) : -1;
        if (byte < 0)
            return -1;
        out[n_out++] = (char)byte;
        i += len;
    }
    return (int64_t)n_out;
}

static size_t spm_decode(const char *s, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        bool space = n - i >= 3 && memcmp(s + i, "\xe2\x96\x81", 3) == 0;
        out[n_out++] = space ? ' ' : s[i];
        i += space ? 3 : 1;
    }
    return n_out;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" gives 10; -1 for other texts. */
static int byte_token_value(struct gguf_str s)
{
    if (s.len != 6 || memcmp(s.s, "<0x", 3) != 0 || s.s[5] != '>')
        return -1;
    int hi = hex_digit(s.s[3]), lo = hex_digit(s.s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* Writes the piece of one token to `out` and sets its flags; the piece is never longer than the text. */
static size_t piece_read(struct tokenizer *t, int32_t id, struct gguf_str s, int64_t type, char *out)
{
    bool spm = t->kind == TOK_KIND_SPM;
    int byte = spm && (type == TYPE_BYTE || type < 0) ? byte_token_value(s) : -1;
    if (byte >= 0) {
        if (t->byte_id[byte] < 0)
            t->byte_id[byte] = id;
        *out = (char)byte;
        return 1;
    }
    if (type == TYPE_CONTROL || type == TYPE_UNKNOWN || type == TYPE_USER) {
        t->flags[id] = type == TYPE_USER ? TOKF_USER : TOKF_CONTROL;
        memcpy(out, s.s, s.len);
        return s.len;
    }
    int64_t n = spm ? (int64_t)spm_decode(s.s, s.len, out) : byte_level_decode(s.s, s.len, out);
    if (n < 0) { /* not in the byte alphabet: no text can give it */
        memcpy(out, s.s, s.len);
        return s.len;
    }
    if (n > 0 && type != TYPE_BYTE && (spm || type != TYPE_UNUSED))
        t->flags[id] = TOKF_TEXT;
    return (size_t)n;
}

static uint64_t text_hash(const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, then mixed because the low bits pick the slot */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    return (h ^ h >> 32) & UINT32_MAX; /* 32 bits, so that adding probes never wraps */
}

int32_t tokenizer__text_find(const struct tokenizer *t, const char *p, size_t n)
{
    if (n == 0 || n > t->max_text_bytes)
        return -1;
    uint64_t h = text_hash(p, n);
    for (uint64_t i = h; i <= h + TOK_MAX_PROBE; i++) {
        uint32_t slot = t->text_slot[i & t->text_mask];
        if (slot == 0)
            break;
        size_t len = 0;
        const char *piece = tokenizer__piece(t, (int32_t)(slot - 1), &len);
        if (len == n && t->flags[slot - 1] & TOKF_TEXT && memcmp(piece, p, n) == 0)
            return (int32_t)(slot - 1);
    }
    return -1;
}

static uint32_t mask_for(uint64_t n)
{
    uint32_t size = 16;
    while (size < n * 2)
        size *= 2;
    return size - 1;
}

static int text_hash_build(struct tokenizer *t, struct err *e)
{
    t->text_mask = mask_for((uint64_t)t->n_vocab);
    t->text_slot = mem_zalloc((size_t)t->text_mask + 1, sizeof(*t->text_slot));
    if (!t->text_slot)
        return no_memory(e);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t len = 0;
        const char *p = tokenizer__piece(t, id, &len);
        if (!(t->flags[id] & TOKF_TEXT))
            continue;
        if (len > t->max_text_bytes)
            t->max_text_bytes = (uint32_t)len;
        if (tokenizer__text_find(t, p, len) >= 0)
            continue; /* the first of equal tokens is the one text becomes */
        uint64_t i = text_hash(p, len);
        int n_probe = 0;
        while (t->text_slot[i & t->text_mask]) {
            if (++n_probe > TOK_MAX_PROBE)
                return err_set(e, ST_INVALID, KEY "tokens: %d tokens collide in one hash slot, the file is not a real vocabulary", n_probe);
            i++;
        }
        t->text_slot[i & t->text_mask] = (uint32_t)id + 1;
    }
    return 0;
}

static int vocab_alloc(struct tokenizer *t, const struct gguf *g, int tokens, uint64_t n, struct err *e)
{
    uint64_t n_bytes = 0;
    for (uint64_t i = 0; i < n; i++) {
        size_t len = gguf_array_str(g, tokens, i).len;
        if (len > TOK_MAX_PIECE_BYTES)
            return err_set(e, ST_INVALID, KEY "tokens[%llu] has %zu bytes, expected at most %d", (unsigned long long)i, len,
                           TOK_MAX_PIECE_BYTES);
        n_bytes += len;
    }
    if (n_bytes > UINT32_MAX)
        return err_set(e, ST_INVALID, KEY "tokens has %llu bytes of text, expected less than 4 GiB", (unsigned long long)n_bytes);
    t->n_vocab = (int32_t)n;
    t->blob = mem_alloc(n_bytes + 1);
    t->offset = mem_zalloc(n + 1, sizeof(*t->offset));
    t->flags = mem_zalloc(n, sizeof(*t->flags));
    return t->blob && t->offset && t->flags ? 0 : no_memory(e);
}

int tokenizer__vocab_read(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    enum gguf_type elem = GGUF_STRING, type_elem = GGUF_I32;
    uint64_t n = 0;
    int types = -1, tokens = gguf_find(g, KEY "tokens");
    if (tokens < 0)
        return err_set(e, ST_INVALID, KEY "tokens is missing: the file has no vocabulary");
    int st = gguf_get_array(g, KEY "tokens", &elem, &n, e);
    if (st)
        return st;
    if (elem != GGUF_STRING || n == 0 || n > TOK_MAX_VOCAB)
        return err_set(e, ST_INVALID, KEY "tokens: expected 1 to %d strings, found %llu elements of GGUF type %d", TOK_MAX_VOCAB,
                       (unsigned long long)n, (int)elem);
    st = array_of(g, KEY "token_type", n, &type_elem, &types, e);
    if (!st)
        st = vocab_alloc(t, g, tokens, n, e);
    if (st)
        return st;
    memset(t->byte_id, 0xff, sizeof(t->byte_id));
    for (uint64_t i = 0; i < n; i++) {
        int64_t type = -1; /* unsaid */
        if (types >= 0 && gguf_array_i64(g, types, i, &type))
            return err_set(e, ST_INVALID, KEY "token_type: expected integers");
        if (types >= 0 && type < 0)
            type = 0;
        t->offset[i + 1] = t->offset[i] + (uint32_t)piece_read(t, (int32_t)i, gguf_array_str(g, tokens, i), type, t->blob + t->offset[i]);
    }
    st = text_hash_build(t, e);
    for (int b = 0; !st && t->kind == TOK_KIND_BPE && b < 256; b++)
        t->byte_id[b] = tokenizer__text_find(t, &(char){(char)b}, 1);
    return st;
}

static uint64_t pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h >> 32; /* 32 bits, so that adding probes never wraps */
}

const struct tok_merge *tokenizer__merge_find(const struct tokenizer *t, int32_t left, int32_t right)
{
    if (left < 0 || right < 0)
        return NULL;
    uint64_t h = pair_hash((uint32_t)left, (uint32_t)right);
    for (uint64_t i = h; i <= h + TOK_MAX_PROBE; i++) {
        const struct tok_merge *m = &t->merge[i & t->merge_mask];
        if (m->rank == UINT32_MAX)
            break;
        if (m->left == (uint32_t)left && m->right == (uint32_t)right)
            return m;
    }
    return NULL;
}

/* Resolves "left right". False: one of the three tokens is not in the vocabulary, as some converters leave it. */
static bool merge_parse(const struct tokenizer *t, struct gguf_str s, char *scratch, struct tok_merge *m)
{
    /* A part may be a space only in a vocabulary that is not byte-level, so the first byte is never the cut. */
    const char *cut = s.len > 2 ? memchr(s.s + 1, ' ', s.len - 2) : NULL;
    if (!cut || s.len > TOK_MAX_PIECE_BYTES)
        return false;
    int64_t n_left = byte_level_decode(s.s, (size_t)(cut - s.s), scratch);
    if (n_left <= 0)
        return false;
    int64_t n_right = byte_level_decode(cut + 1, s.len - (size_t)(cut + 1 - s.s), scratch + n_left);
    if (n_right <= 0)
        return false;
    int32_t left = tokenizer__text_find(t, scratch, (size_t)n_left);
    int32_t right = tokenizer__text_find(t, scratch + n_left, (size_t)n_right);
    int32_t id = tokenizer__text_find(t, scratch, (size_t)(n_left + n_right));
    *m = (struct tok_merge){.left = (uint32_t)left, .right = (uint32_t)right, .id = id};
    return left >= 0 && right >= 0 && id >= 0;
}

static int merge_insert(struct tokenizer *t, const struct tok_merge *m, struct err *e)
{
    uint64_t i = pair_hash(m->left, m->right);
    for (int n_probe = 0; n_probe <= TOK_MAX_PROBE; n_probe++, i++) {
        struct tok_merge *slot = &t->merge[i & t->merge_mask];
        if (slot->rank == UINT32_MAX) {
            *slot = *m;
            return 0;
        }
        if (slot->left == m->left && slot->right == m->right)
            return 0; /* said before, with a better rank */
    }
    return err_set(e, ST_INVALID, KEY "merges: %d merges collide in one hash slot, the file is not a real vocabulary", TOK_MAX_PROBE);
}

int tokenizer__merges_read(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    enum gguf_type elem = GGUF_STRING;
    uint64_t n = 0;
    int merges = gguf_find(g, KEY "merges");
    if (merges < 0)
        return err_set(e, ST_INVALID, KEY "merges is missing: a 'gpt2' vocabulary needs it");
    int st = gguf_get_array(g, KEY "merges", &elem, &n, e);
    if (st)
        return st;
    if (elem != GGUF_STRING || n > 4 * (uint64_t)TOK_MAX_VOCAB)
        return err_set(e, ST_INVALID, KEY "merges: expected at most %d strings, found %llu elements of GGUF type %d", 4 * TOK_MAX_VOCAB,
                       (unsigned long long)n, (int)elem);
    t->merge_mask = mask_for(n);
    t->merge = mem_zalloc((size_t)t->merge_mask + 1, sizeof(*t->merge));
    char *scratch = mem_alloc(TOK_MAX_PIECE_BYTES);
    if (!t->merge || !scratch) {
        mem_free(scratch);
        return no_memory(e);
    }
    for (uint64_t i = 0; i <= t->merge_mask; i++)
        t->merge[i].rank = UINT32_MAX;
    for (uint64_t i = 0; !st && i < n; i++) {
        struct tok_merge m;
        if (!merge_parse(t, gguf_array_str(g, merges, i), scratch, &m))
            continue;
        m.rank = (uint32_t)i;
        st = merge_insert(t, &m, e);
    }
    mem_free(scratch);
    return st;
}

/* Scores become integers in merge order: the highest score is the smallest number. */
static uint32_t prio_of_score(float score)
{
    uint32_t bits = 0;
    if (isnan(score))
        return UINT32_MAX;
    score += 0.0f; /* -0 and 0 are one score */
    memcpy(&bits, &score, sizeof(bits));
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

int tokenizer__scores_read(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    enum gguf_type elem = GGUF_F32;
    int scores = -1;
    int st = array_of(g, KEY "scores", (uint64_t)t->n_vocab, &elem, &scores, e);
    if (st)
        return st;
    if (scores < 0)
        return err_set(e, ST_INVALID, KEY "scores is missing: a 'llama' vocabulary needs it");
    t->prio = mem_alloc((size_t)t->n_vocab * sizeof(*t->prio));
    if (!t->prio)
        return no_memory(e);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        int64_t whole = 0;
        if (elem == GGUF_F32)
            t->prio[id] = prio_of_score(gguf_array_f32(g, scores, (uint64_t)id));
        else if (gguf_array_i64(g, scores, (uint64_t)id, &whole) == 0)
            t->prio[id] = prio_of_score((float)whole);
        else
            return err_set(e, ST_INVALID, KEY "scores: expected numbers");
    }
    return 0;
}

static int special_compare(const void *a, const void *b, void *ctx)
{
    const struct tokenizer *t = ctx;
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    size_t n_left = 0, n_right = 0;
    const char *l = tokenizer__piece(t, left, &n_left), *r = tokenizer__piece(t, right, &n_right);
    int order = memcmp(l, r, n_left < n_right ? n_left : n_right);
    if (order)
        return order;
    return n_left != n_right ? (n_left < n_right ? -1 : 1) : (left < right ? -1 : left > right);
}

static bool special_same(const struct tokenizer *t, int32_t a, int32_t b)
{
    size_t n_a = 0, n_b = 0;
    const char *l = tokenizer__piece(t, a, &n_a), *r = tokenizer__piece(t, b, &n_b);
    return n_a == n_b && memcmp(l, r, n_a) == 0;
}

int tokenizer__special_build(struct tokenizer *t, struct err *e)
{
    uint32_t n = 0;
    for (int32_t id = 0; id < t->n_vocab; id++)
        n += (t->flags[id] & (TOKF_CONTROL | TOKF_USER)) != 0;
    t->special = mem_alloc((n + 1) * sizeof(*t->special));
    if (!t->special)
        return no_memory(e);
    n = 0;
    for (int32_t id = 0; id < t->n_vocab; id++)
        if (t->flags[id] & (TOKF_CONTROL | TOKF_USER) && t->offset[id + 1] > t->offset[id])
            t->special[n++] = id;
    qsort_r(t->special, n, sizeof(*t->special), special_compare, t);
    for (uint32_t i = 0; i < n; i++) /* of equal texts the first id stays */
        if (t->n_special == 0 || !special_same(t, t->special[t->n_special - 1], t->special[i]))
            t->special[t->n_special++] = t->special[i];
    uint32_t at = 0;
    for (uint32_t b = 0; b <= 256; b++) {
        while (at < t->n_special && (unsigned char)t->blob[t->offset[t->special[at]]] < b)
            at++;
        t->special_first[b] = at;
    }
    return 0;
}

/* First of the specials [lo, hi), which agree before byte `depth`, whose byte there is >= b. */
static uint32_t special_bound(const struct tokenizer *t, uint32_t lo, uint32_t hi, size_t depth, int b)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)t->blob[t->offset[t->special[mid]] + depth] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int32_t tokenizer__special_match(const struct tokenizer *t, const char *p, size_t n, unsigned classes, size_t *len)
{
    int32_t best = -1;
    if (n == 0)
        return -1;
    uint32_t lo = t->special_first[(unsigned char)p[0]], hi = t->special_first[(unsigned char)p[0] + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        int32_t id = t->special[lo];
        if (t->offset[id + 1] - t->offset[id] == depth) { /* the shortest sorts first */
            if (t->flags[id] & classes) {
                best = id;
                *len = depth;
            }
            lo++;
        }
        if (depth == n)
            break;
        int b = (unsigned char)p[depth];
        lo = special_bound(t, lo, hi, depth, b);
        hi = special_bound(t, lo, hi, depth, b + 1);
    }
    return best;
}
