/* tokenizer.c -- opens a tokenizer, and describes it. */
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "tokenizer/parse.h"

lk_status lk_tokenizer_parse(lk_tokenizer **out, const void *json, size_t bytes, const char *name)
{
    *out                    = NULL;
    lk_tokenizer *tokenizer = NULL;
    LK_TRY(lki_check_given("lk_tokenizer_parse", "json", json, bytes));
    LK_TRY(lki_check_given("lk_tokenizer_parse", "name", name, 1));
    LK_TRY(LKI_NEW(&tokenizer, 1, "a tokenizer"));
    lki_xxh3_128(json, bytes, tokenizer->info.hash);
    lk_status status = lki_unicode_open(&tokenizer->unicode);
    if (status == LK_OK)
        status = lki_tokenizer_read(tokenizer, json, bytes, name);
    if (status != LK_OK) {
        lk_tokenizer_free(tokenizer);
        return status;
    }
    *out = tokenizer;
    return LK_OK;
}

lk_status lk_tokenizer_open(lk_tokenizer **out, const char *path)
{
    lki_map map;
    *out = NULL;
    LK_TRY(lki_check_given("lk_tokenizer_open", "path", path, 1));
    LK_TRY(lki_map_open(&map, path));
    lk_status status = lk_tokenizer_parse(out, map.data, map.bytes, path);
    lki_map_close(&map);
    return status;
}

void lk_tokenizer_free(lk_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    lki_unicode_close(&tokenizer->unicode);
    lki_free(tokenizer->pieces);
    lki_free(tokenizer->memory);
    lki_free(tokenizer->merges);
    lki_free(tokenizer->words);
    lki_free(tokenizer->raw.list);
    lki_free(tokenizer->normal.list);
    lki_free(tokenizer);
}

const lk_tokenizer_info *lk_tokenizer_describe(const lk_tokenizer *tokenizer)
{
    return &tokenizer->info;
}

const char *lk_tokenizer_bytes(const lk_tokenizer *tokenizer, uint32_t id, size_t *bytes)
{
    const lki_span none = { (const uint8_t *)"", 0 };
    const lki_span text = id < tokenizer->info.vocabulary && tokenizer->pieces[id].bytes != NULL
                              ? tokenizer->pieces[id]
                              : none;
    *bytes = text.count;
    return (const char *)text.bytes;
}

int32_t lki_word_find(const lk_tokenizer *tokenizer, const uint8_t *bytes, size_t count)
{
    size_t at = (size_t)lki_xxh3(bytes, count) & tokenizer->word_mask;
    for (;; at = (at + 1) & tokenizer->word_mask) {
        int32_t id = tokenizer->words[at];
        if (id < 0 || (tokenizer->pieces[id].count == count &&
                       memcmp(tokenizer->pieces[id].bytes, bytes, count) == 0))
            return id;
    }
}
