/* SPDX-License-Identifier: Apache-2.0
 *
 * SentencePiece BPE: characters merge into the highest-scored piece first; a character that is no piece falls
 * back to its byte tokens, or to the unknown token (one for a run of them, as sentencepiece gives).
 * Pieces are held with ' ' where sentencepiece writes U+2581, and U+2581 in the text is a space as well, as it
 * is there. User-defined pieces are cut out first and do not merge with their neighbours. */
#include <string.h>

#include "base/alloc.h"
#include "model/tokenizer_internal.h"

/* Returns whether the word ends in an unknown token; after_unk says whether the text before it did. */
static bool spm_fallback(struct tok_run *r, const char *p, size_t n, bool after_unk)
{
    const struct tokenizer *t = r->t;
    bool bytes = true;
    for (size_t i = 0; i < n; i++)
        bytes &= t->byte_id[(unsigned char)p[i]] >= 0;
    for (size_t i = 0; bytes && i < n; i++)
        tokenizer__emit(r, t->byte_id[(unsigned char)p[i]]);
    if (!bytes && t->unk >= 0 && !after_unk)
        tokenizer__emit(r, t->unk);
    return !bytes;
}

static bool spm_word(struct tok_run *r, const char *p, size_t n, bool after_unk)
{
    const struct tokenizer *t = r->t;
    if (n == 0 || r->status || tokenizer__sym_reserve(r, n))
        return after_unk;
    size_t n_sym = 0;
    for (size_t i = 0; i < n;) {
        size_t len = tokenizer__utf8_len(p + i, n - i);
        if (len == 0)
            len = 1; /* a stray byte is a character of its own */
        r->sym[n_sym].start = (uint32_t)i;
        r->sym[n_sym++].id = tokenizer__text_find(t, p + i, len);
        i += len;
    }
    tokenizer__sym_merge(r, p, n, n_sym);
    for (int32_t i = 0; i >= 0; i = r->sym[i].next) {
        size_t end = r->sym[i].next < 0 ? n : r->sym[r->sym[i].next].start;
        if (r->sym[i].id < 0) {
            after_unk = spm_fallback(r, p + r->sym[i].start, end - r->sym[i].start, after_unk);
            continue;
        }
        tokenizer__emit(r, r->sym[i].id);
        after_unk = false;
    }
    return after_unk;
}

/* The text as sentencepiece would merge it, in r->norm; its length, or -1 without memory. */
static int64_t spm_normalise(struct tok_run *r, const char *p, size_t n)
{
    const struct tokenizer *t = r->t;
    size_t n_out = 0;
    if (r->norm_cap < n + 1) {
        mem_free(r->norm);
        r->norm_cap = 0;
        r->norm = mem_alloc(n + 1);
        if (!r->norm) {
            r->status = ST_NOMEM;
            return -1;
        }
        r->norm_cap = n + 1;
    }
    bool pending = t->add_space_prefix;
    for (size_t i = 0; i < n;) {
        bool mark = n - i >= 3 && memcmp(p + i, "\xe2\x96\x81", 3) == 0;
        char byte = mark ? ' ' : p[i];
        i += mark ? 3 : 1;
        if (t->squeeze_spaces && byte == ' ' && !mark) {
            pending |= n_out > 0;
            continue;
        }
        if (pending)
            r->norm[n_out++] = ' ';
        pending = false;
        r->norm[n_out++] = byte;
    }
    while (t->squeeze_spaces && n_out > 0 && r->norm[n_out - 1] == ' ')
        n_out--;
    return (int64_t)n_out;
}

void tokenizer__spm_text(struct tok_run *r, const char *p, size_t n)
{
    int64_t n_norm = r->status ? -1 : spm_normalise(r, p, n);
    size_t begin = 0;
    bool after_unk = false;
    if (n_norm < 0)
        return;
    for (size_t i = 0; i < (size_t)n_norm && !r->status;) {
        size_t len = 0;
        int32_t id = tokenizer__special_match(r->t, r->norm + i, (size_t)n_norm - i, TOKF_USER, &len);
        if (id < 0) {
            i++;
            continue;
        }
        spm_word(r, r->norm + begin, i - begin, after_unk);
        tokenizer__emit(r, id);
        after_unk = false;
        i += len;
        begin = i;
    }
    spm_word(r, r->norm + begin, (size_t)n_norm - begin, after_unk);
}
