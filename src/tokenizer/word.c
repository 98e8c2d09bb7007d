/* word.c -- byte pair encoding of one word.
 *
 * A word begins as the tokens of its bytes; a byte without a token is left out.  As long as two
 * neighbours can be merged, the pair of the lowest rank is, and of several with this rank the
 * leftmost.  A short word looks at all its pairs each time, which is fast because they are few.  A
 * long word has a heap of pairs, so its time grows as n log n.  The tokens of frequent words are
 * kept in a table, in which a word replaces another with the same place.
 */
#include <string.h>

#include "base/memory.h"
#include "tokenizer/tokenizer.h"

enum { WORDS_LOG = 15, WORD_BYTES = 24, WORD_IDS = 9, SHORT = 64 };

struct lki_word {
    uint64_t text[WORD_BYTES / 8]; /* zero past the end */
    uint8_t  bytes, count;         /* bytes is 0 in an empty place */
    int32_t  ids[WORD_IDS];
};

struct lki_symbol {
    int32_t  id;             /* -1: merged into the one before it */
    uint32_t previous, next; /* NONE: at the ends of the word */
};

/* Two neighbours, named by the first and by their ids. */
struct lki_pair {
    uint32_t rank, place;
    int32_t  left, right;
};

#define NONE UINT32_MAX

lk_status lki_scratch_open(lki_scratch *scratch)
{
    *scratch = (lki_scratch){ .words = NULL };
    return LKI_NEW(&scratch->words, (size_t)1 << WORDS_LOG, "words and their tokens");
}

void lki_scratch_close(lki_scratch *scratch)
{
    lki_free(scratch->words);
    lki_free(scratch->symbols);
    lki_free(scratch->heap);
    lki_normalized_close(&scratch->normalized);
}

/* ---- Tables -------------------------------------------------------------------------------- */

lki_merge *lki_merge_find(const lk_tokenizer *tokenizer, int32_t left, int32_t right)
{
    uint64_t key  = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t   mask = tokenizer->merge_mask, at = (size_t)(key * 0x9e3779b97f4a7c15U >> 32) & mask;
    for (;; at = (at + 1) & mask) {
        lki_merge *merge = &tokenizer->merges[at];
        if (merge->rank == LKI_NO_RANK || (merge->left == left && merge->right == right))
            return merge;
    }
}

static uint32_t rank_of(const lk_tokenizer *tokenizer, int32_t left, int32_t right)
{
    return lki_merge_find(tokenizer, left, right)->rank;
}

/* ---- Short words --------------------------------------------------------------------------- */

/* Merges ids[count] in place.  Returns the number of ids that remain. */
static uint32_t merge_short(const lk_tokenizer *tokenizer, int32_t *ids, uint32_t count)
{
    uint32_t ranks[SHORT]; /* of the pair that begins here */
    for (uint32_t i = 0; i + 1 < count; i++)
        ranks[i] = rank_of(tokenizer, ids[i], ids[i + 1]);
    while (count > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < count; i++)
            best = ranks[i] < ranks[best] ? i : best;
        if (ranks[best] == LKI_NO_RANK)
            break;
        ids[best] = lki_merge_find(tokenizer, ids[best], ids[best + 1])->whole;
        count--;
        for (uint32_t i = best + 1; i < count; i++) {
            ids[i]   = ids[i + 1];
            ranks[i] = i + 1 < count ? ranks[i + 1] : LKI_NO_RANK;
        }
        if (best + 1 < count)
            ranks[best] = rank_of(tokenizer, ids[best], ids[best + 1]);
        if (best > 0)
            ranks[best - 1] = rank_of(tokenizer, ids[best - 1], ids[best]);
    }
    return count;
}

/* ---- Long words ---------------------------------------------------------------------------- */

static bool before(const lki_pair *a, const lki_pair *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->place < b->place);
}

static lk_status push(const lk_tokenizer *tokenizer, lki_scratch *scratch, size_t *count,
                      uint32_t place)
{
    const lki_symbol *symbols = scratch->symbols;
    if (place == NONE || symbols[place].next == NONE)
        return LK_OK;
    int32_t  left = symbols[place].id, right = symbols[symbols[place].next].id;
    lki_pair pair = { rank_of(tokenizer, left, right), place, left, right };
    if (pair.rank == LKI_NO_RANK)
        return LK_OK;
    LK_TRY(lki_reserve((void **)&scratch->heap, &scratch->heap_capacity, *count,
                       sizeof *scratch->heap, "pairs of a long word"));
    size_t at = (*count)++;
    for (; at > 0 && before(&pair, &scratch->heap[(at - 1) / 2]); at = (at - 1) / 2)
        scratch->heap[at] = scratch->heap[(at - 1) / 2];
    scratch->heap[at] = pair;
    return LK_OK;
}

static lki_pair pop(lki_pair *heap, size_t *count)
{
    lki_pair top = heap[0], last = heap[--*count];
    size_t   at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < *count && before(&heap[child + 1], &heap[child]))
            child++;
        if (child >= *count || !before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at       = child;
    }
    heap[at] = last;
    return top;
}

/* Merges the pair that begins at `place`, and adds the two pairs that it becomes a part of. */
static lk_status merge_at(const lk_tokenizer *tokenizer, lki_scratch *scratch, size_t *count,
                          const lki_pair *pair)
{
    lki_symbol *left = &scratch->symbols[pair->place], *right = &scratch->symbols[left->next];
    left->id         = lki_merge_find(tokenizer, pair->left, pair->right)->whole;
    left->next       = right->next;
    right->id        = -1;
    if (left->next != NONE)
        scratch->symbols[left->next].previous = pair->place;
    LK_TRY(push(tokenizer, scratch, count, left->previous));
    return push(tokenizer, scratch, count, pair->place);
}

static lk_status merge_long(const lk_tokenizer *tokenizer, lki_scratch *scratch,
                            const uint8_t *word, size_t bytes, lki_ids *out)
{
    size_t   pairs = 0;
    uint32_t count = 0;
    if (bytes >= NONE)
        return lk_fail(LK_EINVAL, "a word of %zu bytes is too long: words have less than 4 GiB",
                       bytes);
    if (scratch->symbol_capacity < bytes) {
        lki_free(scratch->symbols);
        scratch->symbols         = NULL;
        scratch->symbol_capacity = 0;
        LK_TRY(LKI_NEW(&scratch->symbols, bytes, "parts of a long word"));
        scratch->symbol_capacity = bytes;
    }
    lki_symbol *symbols = scratch->symbols;
    for (size_t i = 0; i < bytes; i++)
        if (tokenizer->byte_ids[word[i]] >= 0) {
            symbols[count] = (lki_symbol){ tokenizer->byte_ids[word[i]], count - 1, count + 1 };
            count++;
        }
    if (count == 0)
        return LK_OK;
    symbols[0].previous = symbols[count - 1].next = NONE;
    for (uint32_t i = 0; i < count; i++)
        LK_TRY(push(tokenizer, scratch, &pairs, i));
    while (pairs > 0) {
        lki_pair          pair = pop(scratch->heap, &pairs);
        const lki_symbol *left = &symbols[pair.place];
        if (left->id == pair.left && left->next != NONE && symbols[left->next].id == pair.right)
            LK_TRY(merge_at(tokenizer, scratch, &pairs, &pair));
    }
    LK_TRY(lki_ids_room(out, count));
    for (uint32_t i = 0; i != NONE; i = symbols[i].next)
        out->ids[out->count++] = symbols[i].id;
    return LK_OK;
}

/* ---- Words --------------------------------------------------------------------------------- */

lk_status lki_ids_room(lki_ids *out, size_t more)
{
    if (out->capacity - out->count >= more)
        return LK_OK;
    int32_t *grown    = NULL;
    size_t   capacity = 2 * (out->count + more) + 64;
    LK_TRY(lki_alloc_untouched((void **)&grown, capacity * sizeof *grown, "token ids"));
    if (out->count > 0)
        memcpy(grown, out->ids, out->count * sizeof *grown);
    lki_free(out->ids);
    out->ids      = grown;
    out->capacity = capacity;
    return LK_OK;
}

/* Encodes a word of at most SHORT bytes; `out` has room for them. */
static void encode_short(const lk_tokenizer *tokenizer, const uint8_t *word, size_t bytes,
                         lki_ids *out)
{
    int32_t *ids   = out->ids + out->count;
    int32_t  whole = tokenizer->ignore_merges ? lki_word_find(tokenizer, word, bytes) : -1;
    if (whole >= 0) {
        ids[0] = whole;
        out->count++;
        return;
    }
    uint32_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        ids[count] = tokenizer->byte_ids[word[i]];
        count += ids[count] >= 0;
    }
    out->count += merge_short(tokenizer, ids, count);
}

static lki_word *place_of(lki_scratch *scratch, const uint64_t text[WORD_BYTES / 8])
{
    uint64_t hash = (text[0] * 0x9e3779b97f4a7c15U) ^ (text[1] * 0xc2b2ae3d27d4eb4fU) ^
                    (text[2] * 0x165667b19e3779f9U);
    return &scratch->words[(hash ^ hash >> 29) * 0x9e3779b97f4a7c15U >> (64 - WORDS_LOG)];
}

lk_status lki_word_encode(const lk_tokenizer *tokenizer, lki_scratch *scratch, const uint8_t *word,
                          size_t bytes, lki_ids *out)
{
    uint64_t text[WORD_BYTES / 8] = { 0 };
    if (bytes > SHORT) {
        int32_t whole = tokenizer->ignore_merges ? lki_word_find(tokenizer, word, bytes) : -1;
        if (whole < 0)
            return merge_long(tokenizer, scratch, word, bytes, out);
        LK_TRY(lki_ids_room(out, 1));
        out->ids[out->count++] = whole;
        return LK_OK;
    }
    LK_TRY(lki_ids_room(out, SHORT));
    if (bytes > WORD_BYTES) {
        encode_short(tokenizer, word, bytes, out);
        return LK_OK;
    }
    memcpy(text, word, bytes);
    lki_word *known = place_of(scratch, text);
    if (known->bytes == bytes && memcmp(known->text, text, sizeof text) == 0) {
        memcpy(out->ids + out->count, known->ids, sizeof known->ids);
        out->count += known->count;
        return LK_OK;
    }
    size_t first = out->count;
    encode_short(tokenizer, word, bytes, out);
    size_t count = out->count - first;
    if (count > WORD_IDS)
        return LK_OK;
    memcpy(known->text, text, sizeof text);
    memcpy(known->ids, out->ids + first, count * sizeof *known->ids);
    known->bytes = (uint8_t)bytes;
    known->count = (uint8_t)count;
    return LK_OK;
}
