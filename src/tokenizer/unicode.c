/* unicode.c -- expands the tables of classes, and reads characters. */
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static int by_parts(const void *a, const void *b)
{
    const lki_form *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->second < y->second ? -1 : x->second > y->second;
}

static void mark(lki_unicode *unicode, uint32_t first, uint32_t last)
{
    for (uint32_t c = first; c <= last; c++)
        unicode->classes[c] |= LKI_UNSTABLE;
}

lk_status lki_unicode_open(lki_unicode *unicode)
{
    *unicode = (lki_unicode){ .classes = NULL };
    LK_TRY(LKI_NEW(&unicode->classes, LKI_UNICODE_END, "classes of characters"));
    LK_TRY(LKI_NEW(&unicode->composed, lki_composed_count, "compositions"));
    for (size_t i = 0; i < lki_class_runs_count; i++) {
        const lki_class_run *run = &lki_class_runs[i];
        memset(unicode->classes + run->first, (int)run->value, run->last - run->first + 1);
    }
    memcpy(unicode->composed, lki_composed, lki_composed_count * sizeof lki_composed[0]);
    qsort(unicode->composed, lki_composed_count, sizeof lki_composed[0], by_parts);
    for (size_t i = 0; i < lki_mark_runs_count; i++)
        mark(unicode, lki_mark_runs[i].first, lki_mark_runs[i].last);
    for (size_t i = 0; i < lki_composed_count; i++)
        mark(unicode, lki_composed[i].second, lki_composed[i].second);
    for (size_t i = 0; i < lki_changed_count; i++)
        mark(unicode, lki_changed[i].whole, lki_changed[i].whole);
    mark(unicode, 0x1161, 0x1175); /* vowels and final consonants of Hangul */
    mark(unicode, 0x11a8, 0x11c2);
    return LK_OK;
}

void lki_unicode_close(lki_unicode *unicode)
{
    lki_free(unicode->classes);
    lki_free(unicode->composed);
}

size_t lki_character(const uint8_t *text, const uint8_t *end, uint32_t *character)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t              c       = text[0];
    *character                    = c;
    if (c < 0x80)
        return 1;
    size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || (size_t)(end - text) < length)
        return 0;
    c &= 0x7fU >> length;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (text[i] & 0x3fU);
    }
    if (c < least[length] || c >= LKI_UNICODE_END || (c >= 0xd800 && c < 0xe000))
        return 0;
    *character = c;
    return length;
}
