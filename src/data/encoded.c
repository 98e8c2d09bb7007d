/* encoded.c -- text as token ids in memory.
 *
 * Each worker encodes the text for itself, with one thread.  `lockstep tokenize` does it once, and
 * workers then share the mapped file.
 */
#include "data/encoded.h"

#include <string.h>

#include "base/memory.h"
#include "data/source.h"

lk_status lki_encoded_open(lki_encoded *encoded, const char *path)
{
    *encoded = (lki_encoded){ .tokenizer = NULL };
    if (path == NULL)
        return LK_OK;
    LK_TRY(lk_tokenizer_open(&encoded->tokenizer, path));
    encoded->ids.width = lk_tokenizer_describe(encoded->tokenizer)->vocabulary > 65536 ? 4 : 2;
    return lk_encoder_open(&encoded->encoder, encoded->tokenizer, 1);
}

void lki_encoded_close(lki_encoded *encoded)
{
    lk_encoder_free(encoded->encoder);
    lk_tokenizer_free(encoded->tokenizer);
    lki_free((void *)(uintptr_t)encoded->ids.values);
}

void lki_encoded_finish(lki_encoded *encoded, lk_dataset_info *info)
{
    if (encoded->tokenizer == NULL)
        return;
    info->left_out = lk_encoder_left_out(encoded->encoder);
    memcpy(info->tokenizer_hash, lk_tokenizer_describe(encoded->tokenizer)->hash,
           sizeof info->tokenizer_hash);
    lk_encoder_free(encoded->encoder);
    encoded->encoder = NULL;
}

static lk_status make_room(lki_encoded *encoded, size_t more)
{
    lki_tokens *ids = &encoded->ids;
    if (encoded->capacity - ids->count >= more)
        return LK_OK;
    uint8_t *grown    = NULL;
    size_t   capacity = ids->count + ids->count / 2 + more + 1024;
    LK_TRY(lki_alloc_untouched((void **)&grown, capacity * ids->width, "token ids of the text"));
    if (ids->count > 0)
        memcpy(grown, ids->values, (size_t)ids->count * ids->width);
    lki_free((void *)(uintptr_t)ids->values);
    ids->values       = grown;
    encoded->capacity = capacity;
    return LK_OK;
}

static lk_status append(void *context, const int32_t *ids, size_t count)
{
    lki_encoded *encoded = context;
    LK_TRY(make_room(encoded, count));
    uint8_t *out = (uint8_t *)(uintptr_t)encoded->ids.values +
                   encoded->ids.count * encoded->ids.width;
    if (encoded->ids.width == 4 && count > 0)
        memcpy(out, ids, count * sizeof *ids);
    for (size_t i = 0; encoded->ids.width == 2 && i < count; i++) {
        uint16_t id = (uint16_t)ids[i];
        memcpy(out + 2 * i, &id, sizeof id);
    }
    encoded->ids.count += count;
    return LK_OK;
}

lk_status lki_encoded_add(lki_encoded *encoded, const void *text, size_t bytes)
{
    return lk_encoder_encode(encoded->encoder, text, bytes, append, encoded);
}

lk_status lki_encoded_hash(const lki_encoded *encoded, char hex[33])
{
    char hashes[2][33];
    memcpy(hashes[0], hex, sizeof hashes[0]);
    memcpy(hashes[1], lk_tokenizer_describe(encoded->tokenizer)->hash, sizeof hashes[1]);
    return lki_hash_of_hashes(hex, hashes, 2);
}
