/* normalize.c -- Unicode's normalization form C.
 *
 * Almost all text is in form C.  Only an unstable character, with the stable one before it and the
 * unstable ones after it, is decomposed, put in canonical order and composed again.
 */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/unicode.h"

enum {
    SYLLABLES = 0xac00, LEADS = 0x1100, VOWELS = 0x1161, TAILS = 0x11a7, /* Hangul */
    LEAD_COUNT = 19, VOWEL_COUNT = 21, TAIL_COUNT = 28,
    SYLLABLE_COUNT = LEAD_COUNT * VOWEL_COUNT * TAIL_COUNT
};

const uint8_t *lki_unstable(const lki_unicode *unicode, const uint8_t *text, const uint8_t *end)
{
    while (text < end) {
        uint32_t character;
        if (*text < 0x80) {
            text++;
            continue;
        }
        size_t length = lki_character(text, end, &character);
        if (length > 0 && unicode->classes[character] >= LKI_UNSTABLE)
            return text;
        text += length > 0 ? length : 1;
    }
    return end;
}

/* ---- Parts --------------------------------------------------------------------------------- */

static int compare_run(const void *key, const void *run)
{
    const uint32_t       character = *(const uint32_t *)key;
    const lki_class_run *marks     = run;
    return (character > marks->last) - (character < marks->first);
}

static uint32_t combining_class(uint32_t character)
{
    const lki_class_run *run = bsearch(&character, lki_mark_runs, lki_mark_runs_count,
                                      sizeof *lki_mark_runs, compare_run);
    return run != NULL ? run->value : 0;
}

static int compare_form(const void *key, const void *form)
{
    const uint32_t whole = *(const uint32_t *)key, other = ((const lki_form *)form)->whole;
    return (whole > other) - (whole < other);
}

static const lki_form *find_form(const lki_form *forms, size_t count, uint32_t whole)
{
    return bsearch(&whole, forms, count, sizeof *forms, compare_form);
}

static lk_status add_part(lki_normalized *out, uint32_t character)
{
    LK_TRY(lki_reserve((void **)&out->parts, &out->part_capacity, out->part_count,
                       sizeof *out->parts, "parts of characters"));
    out->parts[out->part_count] = (lki_part){ character, combining_class(character),
                                              out->part_count };
    out->part_count++;
    return LK_OK;
}

/* Adds the parts of a character.  Only the first of two parts may have parts itself. */
static lk_status decompose(lki_normalized *out, uint32_t character)
{
    uint32_t seconds[8], count = 0, tail;
    if (character - SYLLABLES < SYLLABLE_COUNT) {
        uint32_t index = character - SYLLABLES;
        tail           = index % TAIL_COUNT;
        LK_TRY(add_part(out, LEADS + index / (VOWEL_COUNT * TAIL_COUNT)));
        LK_TRY(add_part(out, VOWELS + index / TAIL_COUNT % VOWEL_COUNT));
        return tail > 0 ? add_part(out, TAILS + tail) : LK_OK;
    }
    for (;;) {
        const lki_form *form = find_form(lki_composed, lki_composed_count, character);
        if (form == NULL)
            form = find_form(lki_changed, lki_changed_count, character);
        if (form == NULL)
            break;
        LK_ASSERT(count < sizeof seconds / sizeof seconds[0]);
        if (form->second != 0)
            seconds[count++] = form->second;
        character = form->first;
    }
    LK_TRY(add_part(out, character));
    while (count > 0)
        LK_TRY(add_part(out, seconds[--count]));
    return LK_OK;
}

static int by_class(const void *a, const void *b)
{
    const lki_part *x = a, *y = b;
    if (x->combining != y->combining)
        return x->combining < y->combining ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Sorts each run of marks by their classes. */
static void put_in_order(lki_normalized *out)
{
    size_t first = 0;
    for (size_t i = 0; i <= out->part_count; i++) {
        if (i < out->part_count && out->parts[i].combining != 0)
            continue;
        if (i - first > 1)
            qsort(out->parts + first, i - first, sizeof *out->parts, by_class);
        first = i + 1;
    }
}

/* Returns the composition of two characters; 0 if there is none. */
static uint32_t composition(const lki_unicode *unicode, uint32_t first, uint32_t second)
{
    if (first - LEADS < LEAD_COUNT && second - VOWELS < VOWEL_COUNT)
        return SYLLABLES + ((first - LEADS) * VOWEL_COUNT + second - VOWELS) * TAIL_COUNT;
    if (first - SYLLABLES < SYLLABLE_COUNT && (first - SYLLABLES) % TAIL_COUNT == 0 &&
        second - TAILS - 1 < TAIL_COUNT - 1)
        return first + second - TAILS;
    size_t low = 0, high = lki_composed_count;
    while (low < high) {
        size_t          middle = low + (high - low) / 2;
        const lki_form *form   = &unicode->composed[middle];
        if (form->first < first || (form->first == first && form->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    const lki_form *form = &unicode->composed[low];
    return low < lki_composed_count && form->first == first && form->second == second ? form->whole
                                                                                      : 0;
}

static void compose(const lki_unicode *unicode, lki_normalized *out)
{
    lki_part *parts   = out->parts;
    size_t    count   = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < out->part_count; i++) {
        lki_part part    = parts[i];
        bool     blocked = starter == SIZE_MAX ||
                       (count - 1 > starter && parts[count - 1].combining >= part.combining);
        uint32_t whole = blocked ? 0
                                 : composition(unicode, parts[starter].character, part.character);
        if (whole != 0) {
            parts[starter].character = whole;
            continue;
        }
        if (part.combining == 0)
            starter = count;
        parts[count++] = part;
    }
    out->part_count = count;
}

/* ---- The text ------------------------------------------------------------------------------ */

static lk_status copy(lki_normalized *out, const uint8_t *from, size_t count)
{
    if (out->capacity - out->count < count) {
        uint8_t *grown    = NULL;
        size_t   capacity = 2 * (out->count + count) + 256;
        LK_TRY(lki_alloc_untouched((void **)&grown, capacity, "text in normalization form C"));
        if (out->count > 0)
            memcpy(grown, out->bytes, out->count);
        lki_free(out->bytes);
        out->bytes    = grown;
        out->capacity = capacity;
    }
    if (count > 0)
        memcpy(out->bytes + out->count, from, count);
    out->count += count;
    return LK_OK;
}

static lk_status write_character(lki_normalized *out, uint32_t c)
{
    uint8_t  bytes[4];
    unsigned length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (unsigned i = length; i-- > 1; c >>= 6)
        bytes[i] = (uint8_t)(0x80 | (c & 0x3f));
    bytes[0] = (uint8_t)(length == 1 ? c : (0xf00U >> length & 0xf0U) | c);
    return copy(out, bytes, length);
}

/* Returns the beginning of the character that ends at `end`, or `text` at the earliest.  Returns
 * `end` if the byte before it is in no character. */
static const uint8_t *step_back(const uint8_t *text, const uint8_t *end)
{
    uint32_t character;
    for (size_t length = 1; length <= 4 && length <= (size_t)(end - text); length++)
        if (lki_character(end - length, end, &character) == length)
            return end - length;
    return end;
}

/* Writes the characters from `*text` on that may change each other: the first, and all unstable
 * ones after it. */
static lk_status write_run(const lki_unicode *unicode, lki_normalized *out, const uint8_t **text,
                           const uint8_t *end)
{
    const uint8_t *at = *text;
    out->part_count   = 0;
    while (at < end) {
        uint32_t character;
        size_t   length = lki_character(at, end, &character);
        if (length == 0 || (at > *text && unicode->classes[character] < LKI_UNSTABLE))
            break;
        LK_TRY(decompose(out, character));
        at += length;
    }
    put_in_order(out);
    compose(unicode, out);
    for (size_t i = 0; i < out->part_count; i++)
        LK_TRY(write_character(out, out->parts[i].character));
    *text = at;
    return LK_OK;
}

lk_status lki_normalize(const lki_unicode *unicode, lki_normalized *out, const uint8_t *text,
                        const uint8_t *end)
{
    out->count = 0;
    while (text < end) {
        const uint8_t *unstable = lki_unstable(unicode, text, end);
        const uint8_t *from     = unstable < end ? step_back(text, unstable) : end;
        LK_TRY(copy(out, text, (size_t)(from - text)));
        text = from;
        if (text < end)
            LK_TRY(write_run(unicode, out, &text, end));
    }
    return LK_OK;
}

void lki_normalized_close(lki_normalized *normalized)
{
    lki_free(normalized->bytes);
    lki_free(normalized->parts);
}
