/* added.c -- finds added tokens in a text. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

static int by_text(const void *a, const void *b)
{
    const lki_span *x = &((const lki_added *)a)->text, *y = &((const lki_added *)b)->text;
    size_t          common = x->count < y->count ? x->count : y->count;
    int             order  = memcmp(x->bytes, y->bytes, common);
    return order != 0 ? order : x->count < y->count ? -1 : x->count > y->count;
}

void lki_added_sort(lki_added_set *set)
{
    if (set->count > 0)
        qsort(set->list, set->count, sizeof *set->list, by_text);
    for (size_t i = 0; i < set->count; i++)
        set->begins[set->list[i].text.bytes[0]] = true;
}

/* Returns the first of list[low, high) whose byte number `depth` is at least `byte`.  All have the
 * bytes before it in common. */
static size_t lower_bound(const lki_added *list, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        size_t          middle = low + (high - low) / 2;
        const lki_span *text   = &list[middle].text;
        if (text->count <= depth || text->bytes[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns the longest added token that a text begins with. */
static const lki_added *longest(const lki_added_set *set, const uint8_t *text, const uint8_t *end)
{
    const lki_added *found = NULL;
    size_t           low = 0, high = set->count;
    for (size_t depth = 0; low < high && text + depth < end; depth++) {
        int byte = text[depth];
        low      = lower_bound(set->list, low, high, depth, byte);
        high     = lower_bound(set->list, low, high, depth, byte + 1);
        if (low < high && set->list[low].text.count == depth + 1)
            found = &set->list[low];
    }
    return found;
}

const lki_added *lki_added_find(const lki_added_set *set, const uint8_t *text, const uint8_t *end,
                                const uint8_t **at)
{
    if (set->count == 0)
        return NULL;
    for (; text < end; text++) {
        const lki_added *found = set->begins[*text] ? longest(set, text, end) : NULL;
        if (found != NULL) {
            *at = text;
            return found;
        }
    }
    return NULL;
}
