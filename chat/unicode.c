/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python's str methods know of single characters, by binary search in generated tables. */
#include "chat/internal.h"
#include "chat/unicode_tables.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

unsigned chat__unicode(uint32_t c)
{
    size_t lo = 0, hi = COUNT(unicode_class); /* the last run that begins at or before c */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (unicode_class[mid] >> 9 <= c)
            lo = mid;
        else
            hi = mid;
    }
    return unicode_class[lo] & 511;
}

bool chat__is_space(uint32_t c)
{
    if (c < 128)
        return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

static bool run_find(const int32_t (*table)[4], size_t n, uint32_t c, uint32_t *out)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint32_t)table[mid][1] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == n || (uint32_t)table[lo][0] > c || (c - (uint32_t)table[lo][0]) % (uint32_t)table[lo][2] != 0)
        return false;
    *out = (uint32_t)((int32_t)c + table[lo][3]);
    return true;
}

size_t chat__to_case(uint32_t c, enum unicode_case how, uint32_t out[3])
{
    out[0] = c;
    if (c < 128) {
        if (how == CASE_LOWER ? c >= 'A' && c <= 'Z' : c >= 'a' && c <= 'z')
            out[0] = c ^ 32;
        return 1;
    }
    for (size_t i = 0; i < COUNT(unicode_special); i++)
        if (unicode_special[i][0] == c && unicode_special[i][1] == (uint32_t)how) {
            out[0] = unicode_special[i][2];
            out[1] = unicode_special[i][3];
            out[2] = unicode_special[i][4];
            return out[2] ? 3 : 2;
        }
    if (how == CASE_LOWER) {
        run_find(unicode_lower, COUNT(unicode_lower), c, out);
        if (c == 0x3a3)
            out[0] = 0x3c3; /* inside a word; chat__case knows where one ends */
        return 1;
    }
    if (how == CASE_TITLE) {
        if (run_find(unicode_title, COUNT(unicode_title), c, out))
            return 1;
        for (size_t i = 0; i < COUNT(unicode_special); i++) /* as upper case, which may be several characters */
            if (unicode_special[i][0] == c && unicode_special[i][1] == CASE_UPPER) {
                out[0] = unicode_special[i][2];
                out[1] = unicode_special[i][3];
                out[2] = unicode_special[i][4];
                return out[2] ? 3 : 2;
            }
    }
    run_find(unicode_upper, COUNT(unicode_upper), c, out);
    return 1;
}
