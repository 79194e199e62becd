/* SPDX-License-Identifier: Apache-2.0
 *
 * Unicode normal form C, for the families whose tokenizer normalises its input (Qwen, OLMo): models saw only
 * composed text in training. Decompose, order the marks by class, compose; linear in the text, long runs of
 * marks included. Rules: Unicode Standard Annex 15; tables: tools/make_nfc_tables.py. */
#include <string.h>

#include "base/alloc.h"
#include "model/tokenizer_internal.h"
#include "model/tokenizer_nfc_tables.h"

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

enum { /* Hangul syllables are arithmetic */
    S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7,
    L_COUNT = 19, V_COUNT = 21, T_COUNT = 28, S_COUNT = L_COUNT * V_COUNT * T_COUNT,
};

/* The ideographs between have neither decompositions nor classes; most East Asian text ends here. */
static bool is_plain(uint32_t cp)
{
    return cp < 0xc0 || (cp >= 0x3100 && cp < 0xa66f);
}

static uint32_t class_of(uint32_t cp)
{
    size_t lo = 0, hi = LENGTH(nfc_class);
    if (cp < 0x300 || is_plain(cp))
        return 0;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > nfc_class[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < LENGTH(nfc_class) && cp >= nfc_class[lo][0] ? nfc_class[lo][2] : 0;
}

static const uint32_t *decomposition_of(uint32_t cp)
{
    size_t lo = 0, hi = LENGTH(nfc_decomposition);
    if (is_plain(cp))
        return NULL;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > nfc_decomposition[mid][0])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < LENGTH(nfc_decomposition) && nfc_decomposition[lo][0] == cp ? nfc_decomposition[lo] : NULL;
}

/* Appends the full decomposition, at most 4 code points; only the first of a pair decomposes further. */
static size_t decompose(uint32_t cp, uint32_t *out)
{
    uint32_t tail[4];
    size_t n = 0, n_tail = 0;
    if (cp >= S_BASE && cp < S_BASE + S_COUNT) {
        uint32_t s = cp - S_BASE;
        out[n++] = L_BASE + s / (V_COUNT * T_COUNT);
        out[n++] = V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT;
        if (s % T_COUNT)
            out[n++] = T_BASE + s % T_COUNT;
        return n;
    }
    for (const uint32_t *d; n_tail < 3 && (d = decomposition_of(cp)) != NULL; cp = d[1])
        if (d[2])
            tail[n_tail++] = d[2];
    out[n++] = cp;
    while (n_tail > 0)
        out[n++] = tail[--n_tail];
    return n;
}

static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a >= L_BASE && a < L_BASE + L_COUNT && b >= V_BASE && b < V_BASE + V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a >= S_BASE && a < S_BASE + S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE && b < T_BASE + T_COUNT)
        return a + (b - T_BASE);
    size_t lo = 0, hi = LENGTH(nfc_pair);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const uint32_t *d = nfc_decomposition[nfc_pair[mid]];
        if (d[1] < a || (d[1] == a && d[2] < b))
            lo = mid + 1;
        else
            hi = mid;
    }
    const uint32_t *d = lo < LENGTH(nfc_pair) ? nfc_decomposition[nfc_pair[lo]] : NULL;
    return d && d[1] == a && d[2] == b ? d[0] : 0;
}

/* Stable order by class of a run of marks: by insertion when short, by counting when somebody made it long. */
static void marks_sort(uint32_t *cp, size_t n, uint32_t *scratch)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            uint32_t mark = cp[i], class = class_of(mark);
            size_t at = i;
            for (; at > 0 && class_of(cp[at - 1]) > class; at--)
                cp[at] = cp[at - 1];
            cp[at] = mark;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[class_of(cp[i]) + 1]++;
    for (size_t c = 1; c <= 256; c++)
        start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++)
        scratch[start[class_of(cp[i])]++] = cp[i];
    memcpy(cp, scratch, n * sizeof(*cp));
}

static void order(uint32_t *cp, size_t n, uint32_t *scratch)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && class_of(cp[end]) != 0)
            end++;
        if (end - i > 1)
            marks_sort(cp + i, end - i, scratch);
        i = end + 1;
    }
}

/* In place; the new count. A mark joins the last starter unless one of its own class or higher stands between. */
static size_t compose_all(uint32_t *cp, size_t n)
{
    size_t n_out = 0, starter = SIZE_MAX;
    uint32_t last_class = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t class = class_of(cp[i]);
        bool adjacent = starter != SIZE_MAX && n_out == starter + 1;
        uint32_t joined = starter != SIZE_MAX && (adjacent || (last_class < class && last_class != 0)) ? compose(cp[starter], cp[i]) : 0;
        if (joined) {
            cp[starter] = joined;
            continue;
        }
        if (class == 0)
            starter = n_out;
        last_class = class;
        cp[n_out++] = cp[i];
    }
    return n_out;
}

static size_t utf8_put(char *out, uint32_t cp)
{
    unsigned char *p = (unsigned char *)out;
    if (cp < 0x80) {
        p[0] = (unsigned char)cp;
        return 1;
    }
    if (cp < 0x800) {
        p[0] = (unsigned char)(0xc0 | cp >> 6);
        p[1] = (unsigned char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        p[0] = (unsigned char)(0xe0 | cp >> 12);
        p[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3f));
        p[2] = (unsigned char)(0x80 | (cp & 0x3f));
        return 3;
    }
    p[0] = (unsigned char)(0xf0 | cp >> 18);
    p[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3f));
    p[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3f));
    p[3] = (unsigned char)(0x80 | (cp & 0x3f));
    return 4;
}

/* Below U+0300 every character is its own NFC form, and none combines. */
static bool is_nfc_at_sight(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] >= 0xcc)
            return false;
    return true;
}

const char *tokenizer__nfc(struct tok_run *r, const char *p, size_t n, size_t *n_out)
{
    *n_out = n;
    if (is_nfc_at_sight(p, n))
        return p;
    size_t n_cp = 0;
    uint32_t *cp = mem_alloc(2 * n * sizeof(*cp)); /* at most 3 code points from 2 bytes, 4 from 3 */
    uint32_t *scratch = mem_alloc(2 * n * sizeof(*scratch));
    mem_free(r->norm);
    r->norm_cap = 0;
    r->norm = mem_alloc(3 * n); /* the bound of the standard */
    if (!cp || !scratch || !r->norm) {
        r->status = ST_NOMEM;
        goto done;
    }
    r->norm_cap = 3 * n;
    for (size_t i = 0, len; i < n; i += len) {
        len = tokenizer__utf8_len(p + i, n - i);
        n_cp += decompose(tokenizer__utf8_cp(p + i, len), cp + n_cp);
    }
    order(cp, n_cp, scratch);
    n_cp = compose_all(cp, n_cp);
    *n_out = 0;
    for (size_t i = 0; i < n_cp; i++)
        *n_out += utf8_put(r->norm + *n_out, cp[i]);
done:
    mem_free(cp);
    mem_free(scratch);
    return r->status ? p : r->norm;
}
