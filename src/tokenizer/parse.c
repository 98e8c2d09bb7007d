/* parse.c -- reads the tokens and merges of tokenizer.json.
 *
 * In the file a token is written with one character per byte: a printable one of Latin-1 for
 * itself, and the 68 others as U+0100 to U+0143, in order.  A token with another character stands
 * for its own UTF-8, and no merge makes it.
 */
#include "tokenizer/parse.h"

#include <string.h>

#include "base/hash.h"
#include "base/memory.h"

typedef struct {
    lk_tokenizer *tokenizer;
    const char   *name;    /* of the file */
    const json_t *vocab, *merges, *added;
    size_t        entries; /* ids are below a multiple of the number of tokens */
    size_t        used;    /* bytes of tokenizer->memory */
    int16_t       bytes[0x144]; /* byte of a character; -1: none */
    uint8_t      *mapped;  /* [vocabulary]: 1 if all characters of the token are bytes */
} reader;

/* ---- Bytes as characters ------------------------------------------------------------------- */

static void map_bytes(int16_t bytes[0x144])
{
    int16_t next = 0x100;
    memset(bytes, 0xff, 0x144 * sizeof bytes[0]);
    for (int16_t b = 0; b < 256; b++) {
        bool itself = (b > ' ' && b <= '~') || (b > 0xa0 && b != 0xad);
        bytes[itself ? b : next++] = b;
    }
}

/* Writes the bytes of a token to `out`, which has room for `count`.  Returns their number; false in
 * *mapped if the token is written as it is. */
static size_t unmap(const reader *r, const char *text, size_t count, uint8_t *out, bool *mapped)
{
    const uint8_t *at = (const uint8_t *)text, *end = at + count;
    size_t         bytes = 0;
    *mapped              = true;
    while (at < end) {
        uint32_t c      = 0;
        size_t   length = lki_character(at, end, &c);
        if (length == 0 || c >= 0x144 || r->bytes[c] < 0) {
            memcpy(out, text, count);
            *mapped = false;
            return count;
        }
        out[bytes++] = (uint8_t)r->bytes[c];
        at += length;
    }
    return bytes;
}

/* ---- Tokens -------------------------------------------------------------------------------- */

static size_t power_above(size_t count)
{
    size_t power = 16;
    while (power < count)
        power *= 2;
    return power;
}

static void add_word(lk_tokenizer *t, int32_t id)
{
    const lki_span *text = &t->pieces[id];
    size_t          at   = (size_t)lki_xxh3(text->bytes, text->count) & t->word_mask;
    while (t->words[at] >= 0)
        at = (at + 1) & t->word_mask;
    t->words[at] = id;
}

/* Checks an id, and counts it and the bytes of its token. */
static lk_status count_token(reader *r, const char *token, size_t length, const json_t *id)
{
    lk_tokenizer *t     = r->tokenizer;
    json_int_t    value = json_integer_value(id);
    size_t        limit = 4 * r->entries + 1024;
    if (!json_is_integer(id) || value < 0 || (uint64_t)value >= limit || limit > INT32_MAX)
        return lk_fail(LK_EFORMAT, "'%s': the token \"%.60s\" has an id that is no number from 0 "
                                   "to %zu (there are %zu tokens)", r->name, token, limit - 1,
                       r->entries);
    if ((uint64_t)value >= t->info.vocabulary)
        t->info.vocabulary = (uint32_t)value + 1;
    r->used += length;
    return LK_OK;
}

static lk_status count_tokens(reader *r)
{
    const char *token;
    json_t     *id;
    size_t      index;
    r->entries = json_object_size(r->vocab) + json_array_size(r->added);
    json_object_foreach((json_t *)(uintptr_t)r->vocab, token, id)
        LK_TRY(count_token(r, token, strlen(token), id));
    json_array_foreach(r->added, index, id)
    {
        const json_t *content = json_object_get(id, "content");
        if (!json_is_string(content) || json_string_length(content) == 0)
            return lk_fail(LK_EFORMAT, "'%s': added token %zu has no content", r->name, index);
        LK_TRY(count_token(r, json_string_value(content), json_string_length(content),
                           json_object_get(id, "id")));
    }
    return LK_OK;
}

/* Writes the bytes of a token behind those before it. */
static lk_status write_token(reader *r, const char *token, size_t length, int32_t id, bool maps)
{
    lk_tokenizer *t      = r->tokenizer;
    uint8_t      *out    = t->memory + r->used;
    bool          mapped = false;
    size_t        bytes  = length;
    if (t->pieces[id].bytes != NULL)
        return lk_fail(LK_EFORMAT, "'%s': two tokens have the id %d; \"%.60s\" is the second",
                       r->name, id, token);
    if (maps)
        bytes = unmap(r, token, length, out, &mapped);
    else
        memcpy(out, token, length);
    t->pieces[id]  = (lki_span){ out, bytes };
    r->mapped[id]  = mapped;
    r->used       += bytes;
    if (mapped)
        add_word(t, id);
    return LK_OK;
}

static lk_status read_tokens(reader *r)
{
    lk_tokenizer *t     = r->tokenizer;
    size_t        words = power_above(2 * json_object_size(r->vocab) + 2);
    const char   *token;
    json_t       *id;
    LK_TRY(count_tokens(r));
    LK_TRY(LKI_NEW(&t->pieces, (size_t)t->info.vocabulary + 1, "tokens"));
    LK_TRY(LKI_NEW(&r->mapped, (size_t)t->info.vocabulary + 1, "kinds of tokens"));
    LK_TRY(LKI_NEW(&t->memory, r->used + 1, "the bytes of tokens"));
    LK_TRY(LKI_NEW(&t->words, words, "a table of tokens"));
    memset(t->words, 0xff, words * sizeof t->words[0]);
    t->word_mask = words - 1;
    r->used      = 0;
    json_object_foreach((json_t *)(uintptr_t)r->vocab, token, id)
        LK_TRY(write_token(r, token, strlen(token), (int32_t)json_integer_value(id), true));
    for (int b = 0; b < 256; b++) {
        uint8_t byte   = (uint8_t)b;
        t->byte_ids[b] = lki_word_find(t, &byte, 1);
        t->info.missing += t->byte_ids[b] < 0;
    }
    if (t->info.missing == 256)
        return lk_fail(LK_EFORMAT, "'%s' has no token for any byte, so no text has tokens",
                       r->name);
    return LK_OK;
}

/* ---- Merges -------------------------------------------------------------------------------- */

/* Returns the token that is written so; -1 if there is none. */
static int32_t find_token(const reader *r, const char *token, size_t length)
{
    char          text[512];
    const json_t *id = NULL;
    if (length >= sizeof text)
        return -1;
    memcpy(text, token, length);
    text[length] = '\0';
    id           = json_object_get(r->vocab, text);
    return id != NULL ? (int32_t)json_integer_value(id) : -1;
}

/* Finds the two halves of a merge: "a b", or ["a", "b"] in newer files. */
static bool split_merge(const json_t *merge, lki_span half[2])
{
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        if (space == NULL)
            return false;
        half[0] = (lki_span){ (const uint8_t *)text, (size_t)(space - text) };
        half[1] = (lki_span){ (const uint8_t *)space + 1, strlen(space + 1) };
        return true;
    }
    if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right))
        return false;
    half[0] = (lki_span){ (const uint8_t *)json_string_value(left), json_string_length(left) };
    half[1] = (lki_span){ (const uint8_t *)json_string_value(right), json_string_length(right) };
    return true;
}

static lk_status read_merge(reader *r, const json_t *merge, uint32_t rank)
{
    lki_span half[2];
    char     text[1024];
    if (!split_merge(merge, half))
        return lk_fail(LK_EFORMAT, "'%s': merge %u is not of two tokens", r->name, rank);
    int32_t left  = find_token(r, (const char *)half[0].bytes, half[0].count);
    int32_t right = find_token(r, (const char *)half[1].bytes, half[1].count);
    int32_t whole = -1;
    if (left >= 0 && right >= 0) {
        memcpy(text, half[0].bytes, half[0].count);
        memcpy(text + half[0].count, half[1].bytes, half[1].count);
        whole = find_token(r, text, half[0].count + half[1].count);
    }
    if (whole < 0 || !r->mapped[left] || !r->mapped[right])
        return lk_fail(LK_EFORMAT, "'%s': merge %u, of \"%.*s\" and \"%.*s\", has halves or a "
                                   "whole that are no tokens of bytes", r->name, rank,
                       (int)lki_min(half[0].count, 60), (const char *)half[0].bytes,
                       (int)lki_min(half[1].count, 60), (const char *)half[1].bytes);
    *lki_merge_find(r->tokenizer, left, right) = (lki_merge){ left, right, whole, rank };
    return LK_OK;
}

static lk_status read_merges(reader *r)
{
    lk_tokenizer *t     = r->tokenizer;
    size_t        count = json_array_size(r->merges), size = power_above(2 * count + 2);
    LK_TRY(LKI_NEW(&t->merges, size, "merges"));
    t->merge_mask = size - 1;
    for (size_t i = 0; i < size; i++)
        t->merges[i].rank = LKI_NO_RANK;
    for (size_t i = 0; i < count; i++)
        LK_TRY(read_merge(r, json_array_get(r->merges, i), (uint32_t)i));
    return LK_OK;
}

/* ---- Added tokens -------------------------------------------------------------------------- */

/* Puts the content of an added token that is matched in normalized text into form C. */
static lk_status check_form(const reader *r, const lki_span *text)
{
    const lki_unicode *unicode = &r->tokenizer->unicode;
    const uint8_t     *end     = text->bytes + text->count;
    if (!r->tokenizer->info.nfc || lki_unstable(unicode, text->bytes, end) == end)
        return LK_OK;
    return lk_fail(LK_EUNSUPPORTED,
                   "'%s': the added token \"%.*s\" has characters that the normalizer may change; "
                   "only tokens with normalized false may", r->name,
                   (int)lki_min(text->count, 60), (const char *)text->bytes);
}

static lk_status refuse_added(const reader *r, const char *content, const char *why)
{
    return lk_fail(LK_EUNSUPPORTED, "'%s': the added token \"%.60s\" %s, which is not supported",
                   r->name, content, why);
}

static lk_status read_added(reader *r, const json_t *token, int32_t *next)
{
    static const char *const flags[] = { "single_word", "lstrip", "rstrip" };
    lk_tokenizer            *t       = r->tokenizer;
    const json_t            *value   = json_object_get(token, "content");
    const char              *content = json_string_value(value);
    size_t                   length  = json_string_length(value);
    int32_t                  id      = (int32_t)json_integer_value(json_object_get(token, "id"));
    const json_t            *known   = json_object_get(r->vocab, content);
    int32_t                  wanted  = known != NULL ? (int32_t)json_integer_value(known) : *next;
    bool                     normal  = json_is_true(json_object_get(token, "normalized"));
    lki_added_set           *set     = normal ? &t->normal : &t->raw;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (json_is_true(json_object_get(token, flags[i])))
            return refuse_added(r, content, flags[i]);
    if (memchr(content, '\n', length) != NULL)
        return refuse_added(r, content, "contains a line end");
    if (id != wanted)
        return lk_fail(LK_EFORMAT, "'%s': the added token \"%.60s\" has the id %d, but would get "
                                   "%d from Hugging Face's tokenizers", r->name, content, id,
                       wanted);
    const lki_span text = { t->memory + r->used, length };
    if (known == NULL) {
        LK_TRY(write_token(r, content, length, id, false));
        *next = id + 1;
    } else { /* the text that is matched is written as it is, not as bytes */
        memcpy(t->memory + r->used, content, length);
        r->used += length;
    }
    LK_TRY(lki_reserve((void **)&set->list, &set->capacity, set->count, sizeof *set->list,
                       "added tokens"));
    set->list[set->count++] = (lki_added){ text, id };
    return normal ? check_form(r, &text) : LK_OK;
}

/* Finds the token between documents among the added tokens. */
static int32_t find_end(const reader *r)
{
    static const char *const names[] = { "<|endoftext|>", "<|end_of_text|>", "</s>" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t  index;
        json_t *token;
        json_array_foreach(r->added, index, token)
        {
            const char *content = json_string_value(json_object_get(token, "content"));
            if (strcmp(content, names[i]) == 0)
                return (int32_t)json_integer_value(json_object_get(token, "id"));
        }
    }
    return -1;
}

static lk_status read_all_added(reader *r)
{
    int32_t next = (int32_t)json_object_size(r->vocab);
    size_t  index;
    json_t *token;
    json_array_foreach(r->added, index, token)
        LK_TRY(read_added(r, token, &next));
    lki_added_sort(&r->tokenizer->raw);
    lki_added_sort(&r->tokenizer->normal);
    r->tokenizer->info.end = find_end(r);
    return LK_OK;
}

/* ---- The file ------------------------------------------------------------------------------ */

/* If some bytes have no token, refuses a token that stands for them, and whole words that may have
 * them. */
static lk_status check_unknown(const reader *r, const json_t *token)
{
    const lk_tokenizer *t = r->tokenizer;
    if (t->info.missing == 0)
        return LK_OK;
    if (token != NULL && !json_is_null(token))
        return lk_fail(LK_EUNSUPPORTED, "'%s' has no token for %u of the 256 bytes, and unk_token "
                                        "is \"%.60s\"; only null is supported there", r->name,
                       t->info.missing, json_is_string(token) ? json_string_value(token) : "");
    return !t->ignore_merges
               ? LK_OK
               : lk_fail(LK_EUNSUPPORTED, "'%s' has no token for %u of the 256 bytes, and "
                                          "ignore_merges true is not supported there", r->name,
                         t->info.missing);
}

static lk_status read_root(reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    r->vocab            = json_object_get(model, "vocab");
    r->merges           = json_object_get(model, "merges");
    r->added            = json_object_get(root, "added_tokens");
    LK_TRY(lki_rules_read(r->tokenizer, root, r->name));
    if (!json_is_object(r->vocab) || !json_is_array(r->merges))
        return lk_fail(LK_EFORMAT, "'%s': the model has no vocab or no merges", r->name);
    LK_TRY(read_tokens(r));
    LK_TRY(check_unknown(r, json_object_get(model, "unk_token")));
    LK_TRY(read_merges(r));
    return read_all_added(r);
}

lk_status lki_tokenizer_read(lk_tokenizer *tokenizer, const void *json, size_t bytes,
                             const char *name)
{
    json_error_t error;
    reader       r    = { .tokenizer = tokenizer, .name = name };
    json_t      *root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return lk_fail(LK_EFORMAT, "'%s' is no tokenizer.json: line %d: %s", name, error.line,
                       error.text);
    map_bytes(r.bytes);
    lk_status status = read_root(&r, root);
    lki_free(r.mapped);
    json_decref(root);
    return status;
}
