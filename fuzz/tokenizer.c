/* tokenizer.c -- any bytes as a text, with three small tokenizers, and as a tokenizer.json.
 *
 * Tokens of a text are the text again, and do not depend on where it is cut.
 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/ids_testing.h"

static const char gpt2[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}";
static const char llama3[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","
    "\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
    "\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
    "\\\\s+(?!\\\\S)|\\\\s+\"}},{\"type\":\"ByteLevel\",\"use_regex\":false}]}";

/* Writes a tokenizer with all bytes and a few merges. */
static lk_tokenizer *make(const char *split, const char *normalizer)
{
    char   text[8192];
    size_t used = (size_t)snprintf(
        text, sizeof text,
        "{\"added_tokens\":[{\"id\":259,\"content\":\"<|endoftext|>\"},{\"id\":260,\"content\":"
        "\"<|\",\"normalized\":true}],\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":{\"type\":"
        "\"ByteLevel\"},\"model\":{\"merges\":[\"a a\",\"aa aa\",\"\xc4\xa0 a\"],\"vocab\":{"
        "\"aa\":256,\"aaaa\":257,\"\xc4\xa0" "a\":258", normalizer, split);
    for (unsigned b = 0, next = 256; b < 256; b++) {
        unsigned c = (b > 32 && b < 127) || (b > 160 && b != 173) ? b : next++;
        used += (size_t)snprintf(text + used, sizeof text - used, ",\"\\u%04x\":%u", c, b);
    }
    (void)snprintf(text + used, sizeof text - used, "}}}");
    lk_tokenizer *tokenizer = NULL;
    LK_ASSERT(lk_tokenizer_parse(&tokenizer, text, strlen(text), "made") == LK_OK);
    return tokenizer;
}

static void encode(const lk_tokenizer *tokenizer, const uint8_t *data, size_t bytes)
{
    lk_encoder *encoder = NULL;
    lki_ids     whole = { .count = 0 }, cut = { .count = 0 };
    size_t      at = 0, count = 0;
    LK_ASSERT(lk_encoder_open(&encoder, tokenizer, 1) == LK_OK);
    LK_ASSERT(lki_encoder_run(encoder, data, bytes, SIZE_MAX, lkt_keep_ids, &whole) == LK_OK);
    LK_ASSERT(lki_encoder_run(encoder, data, bytes, 5, lkt_keep_ids, &cut) == LK_OK);
    LK_ASSERT(whole.count == cut.count);
    for (size_t i = 0; i < whole.count; i++) {
        const char *token = lk_tokenizer_bytes(tokenizer, (uint32_t)whole.ids[i], &count);
        LK_ASSERT(whole.ids[i] == cut.ids[i] && count > 0);
        if (!tokenizer->info.nfc)
            LK_ASSERT(at + count <= bytes && memcmp(token, data + at, count) == 0);
        at += count;
    }
    LK_ASSERT(tokenizer->info.nfc || at == bytes);
    lki_free(whole.ids);
    lki_free(cut.ids);
    lk_encoder_free(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const splits[] = { gpt2, llama3, llama3 };
    for (size_t i = 0; i < 3; i++) {
        lk_tokenizer *tokenizer = make(splits[i], i == 2 ? "{\"type\":\"NFC\"}" : "null");
        encode(tokenizer, data, bytes);
        lk_tokenizer_free(tokenizer);
    }
    lk_tokenizer *read = NULL;
    if (lk_tokenizer_parse(&read, data, bytes, "input") == LK_OK)
        lk_tokenizer_free(read);
    return 0;
}
