/* tokenizer_test.c -- tests that texts become the ids that Hugging Face's tokenizers gives them.
 *
 * Goal:   the ids of tests/tokenizers/cases.json, with four formats.  Ids depend neither on the
 *         places where a text is cut nor on threads.  Tokens together are the text.  Bytes that are
 *         in no character become the tokens of bytes.  What a file has that would give other ids is
 *         refused by name.
 * Method: tokenizers and ids that tests/tokenizers/make has written; changed copies of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "base/memory.h"
#include "tokenizer/ids_testing.h"

#define OK(call)                                                                                 \
    do {                                                                                         \
        if ((call) != LK_OK)                                                                     \
            fail_msg("%s: %s", #call, lk_error_last()->message);                                 \
    } while (0)

static const char *const formats[] = { "gpt2", "llama3", "qwen2", "smollm" };
enum { FORMATS = sizeof formats / sizeof formats[0] };

static char *path_of(char out[512], const char *name)
{
    (void)snprintf(out, 512, "%s/tests/tokenizers/%s.json", LK_TEST_SOURCE, name);
    return out;
}

static lk_tokenizer *open_format(const char *name)
{
    char          path[512];
    lk_tokenizer *tokenizer = NULL;
    OK(lk_tokenizer_open(&tokenizer, path_of(path, name)));
    return tokenizer;
}

static void encode(lk_encoder *encoder, const void *text, size_t bytes, size_t chunk, lki_ids *out)
{
    out->count = 0;
    OK(lki_encoder_run(encoder, text, bytes, chunk, lkt_keep_ids, out));
}

static json_t *read_cases(void)
{
    char         path[512];
    json_error_t error;
    json_t      *cases = json_load_file(path_of(path, "cases"), JSON_ALLOW_NUL, &error);
    if (cases == NULL)
        fail_msg("%s: %s", path, error.text);
    assert_true(json_array_size(cases) > 200);
    return cases;
}

static void assert_same(const lki_ids *got, const json_t *want, const char *format, size_t index)
{
    bool same = got->count == json_array_size(want);
    for (size_t i = 0; same && i < got->count; i++)
        same = got->ids[i] == json_integer_value(json_array_get(want, i));
    if (!same)
        fail_msg("%s: case %zu has other ids (%zu, expected %zu)", format, index, got->count,
                 json_array_size(want));
}

static void ids_are_those_of_tokenizers(void **state)
{
    (void)state;
    json_t *cases = read_cases(), *one;
    size_t  index;
    for (size_t f = 0; f < FORMATS; f++) {
        lk_tokenizer *tokenizer = open_format(formats[f]);
        lk_encoder   *encoder   = NULL;
        lki_ids       ids       = { .count = 0 };
        OK(lk_encoder_open(&encoder, tokenizer, 1));
        json_array_foreach(cases, index, one)
        {
            const json_t *text = json_object_get(one, "text");
            encode(encoder, json_string_value(text), json_string_length(text), 1 << 20, &ids);
            assert_same(&ids, json_object_get(one, formats[f]), formats[f], index);
        }
        lki_free(ids.ids);
        lk_encoder_free(encoder);
        lk_tokenizer_free(tokenizer);
    }
    json_decref(cases);
}

/* Joins the texts of all cases, so that each begins after what others end with. */
static size_t join(const json_t *cases, char *out)
{
    size_t  index, bytes = 0;
    json_t *one;
    json_array_foreach(cases, index, one)
    {
        const json_t *text   = json_object_get(one, "text");
        size_t        length = json_string_length(text);
        memcpy(out + bytes, json_string_value(text), length);
        bytes += length;
        if (index % 2 == 0)
            out[bytes++] = '\n';
    }
    return bytes;
}

static void check_text(const lk_tokenizer *tokenizer, const lki_ids *ids, const char *text,
                       size_t bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < ids->count; i++) {
        size_t      count = 0;
        const char *token = lk_tokenizer_bytes(tokenizer, (uint32_t)ids->ids[i], &count);
        assert_true(count > 0 && at + count <= bytes && memcmp(text + at, token, count) == 0);
        at += count;
    }
    assert_int_equal(at, bytes);
}

/* Returns true if no byte is left out of a text. */
static bool has_all(const lk_tokenizer *tokenizer)
{
    return lk_tokenizer_describe(tokenizer)->missing == 0;
}

static void cuts_and_threads_change_nothing(void **state)
{
    (void)state;
    static char text[1 << 16];
    json_t     *cases = read_cases();
    size_t      bytes = join(cases, text);
    for (size_t f = 0; f < FORMATS; f++) {
        lk_tokenizer *tokenizer = open_format(formats[f]);
        lk_encoder   *one = NULL, *several = NULL;
        lki_ids       want = { .count = 0 }, got = { .count = 0 };
        OK(lk_encoder_open(&one, tokenizer, 1));
        OK(lk_encoder_open(&several, tokenizer, 3));
        encode(one, text, bytes, SIZE_MAX, &want);
        if (has_all(tokenizer) && !lk_tokenizer_describe(tokenizer)->nfc)
            check_text(tokenizer, &want, text, bytes);
        for (size_t chunk = 1; chunk < 200; chunk = 3 * chunk + 1) {
            encode(several, text, bytes, chunk, &got);
            assert_int_equal(got.count, want.count);
            assert_memory_equal(got.ids, want.ids, want.count * sizeof *want.ids);
        }
        lki_free(want.ids);
        lki_free(got.ids);
        lk_encoder_free(one);
        lk_encoder_free(several);
        lk_tokenizer_free(tokenizer);
    }
    json_decref(cases);
}

/* Characters that are cut off, longer than they need be, surrogates, or beyond the last one. */
static void bytes_of_no_character_are_tokens(void **state)
{
    (void)state;
    static const char text[] = "a\xff\xfe"
                               "b \xe4\xb8 \xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80\x80'\xc5";
    for (size_t f = 0; f < FORMATS; f++) {
        lk_tokenizer *tokenizer = open_format(formats[f]);
        lk_encoder   *encoder   = NULL;
        lki_ids       ids       = { .count = 0 };
        OK(lk_encoder_open(&encoder, tokenizer, 1));
        encode(encoder, text, sizeof text - 1, 1 << 20, &ids);
        if (has_all(tokenizer)) {
            check_text(tokenizer, &ids, text, sizeof text - 1);
            assert_int_equal(ids.ids[1], tokenizer->byte_ids[0xff]);
        }
        lki_free(ids.ids);
        lk_encoder_free(encoder);
        lk_tokenizer_free(tokenizer);
    }
}

/* U+1F600 has bytes without a token.  Words are short, long and of other bytes
 * alone. */
static void bytes_without_a_token_are_left_out(void **state)
{
    (void)state;
    static const char rare[] = "\xf0\x9f\x98\x80";
    lk_tokenizer     *tokenizer = open_format("smollm");
    lk_encoder       *encoder   = NULL;
    lki_ids           ids       = { .count = 0 };
    char              text[256], kept[256];
    OK(lk_encoder_open(&encoder, tokenizer, 3));
    for (int repeats = 0; repeats < 60; repeats += 1 + repeats) {
        uint64_t before = lk_encoder_left_out(encoder), missing = 0;
        char    *out    = kept;
        int      bytes  = snprintf(text, sizeof text, "then%s%*sn the \n%s 1", rare, repeats, "n",
                                   rare);
        memset(text + 4 + sizeof rare - 1, 'n', (size_t)repeats);
        for (int i = 0; i < bytes; i++) {
            bool has = tokenizer->byte_ids[(uint8_t)text[i]] >= 0;
            if (has)
                *out++ = text[i];
            missing += !has;
        }
        encode(encoder, text, (size_t)bytes, 8, &ids);
        assert_int_equal(lk_encoder_left_out(encoder), before + missing);
        assert_true(missing > 0);
        check_text(tokenizer, &ids, kept, (size_t)(out - kept));
    }
    lki_free(ids.ids);
    lk_encoder_free(encoder);
    lk_tokenizer_free(tokenizer);
}

static void a_tokenizer_describes_itself(void **state)
{
    (void)state;
    static const char *const ends[] = { "<|endoftext|>", "<|end_of_text|>", "<|endoftext|>",
                                         "<|endoftext|>" };
    for (size_t f = 0; f < FORMATS; f++) {
        lk_tokenizer            *tokenizer = open_format(formats[f]);
        const lk_tokenizer_info *info      = lk_tokenizer_describe(tokenizer);
        size_t                   bytes     = 0;
        const char *end = lk_tokenizer_bytes(tokenizer, (uint32_t)info->end, &bytes);
        assert_string_equal(info->split, f == 3 ? "digits" : formats[f]);
        assert_true(info->nfc == (f == 2) && info->vocabulary >= 500);
        assert_true((info->missing > 0) == (f == 3));
        assert_int_equal(strlen(info->hash), 32);
        assert_int_equal(bytes, strlen(ends[f]));
        assert_memory_equal(end, ends[f], bytes);
        (void)lk_tokenizer_bytes(tokenizer, info->vocabulary, &bytes);
        assert_int_equal(bytes, 0);
        lk_tokenizer_free(tokenizer);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------ */

/* A tokenizer in which the first `from` is replaced by `to`, and a part of the message that refuses
 * it. */
typedef struct {
    const char *format, *from, *to, *message;
} damage;

/* The first are tokenizers of other kinds, and the others are damaged. */
static const damage damages[] = {
    { "gpt2", "\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model Unigram is not supported" },
    { "gpt2", "\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback true" },
    { "gpt2", "\"dropout\":null", "\"dropout\":0.1", "dropout 0.1" },
    { "gpt2", "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"",
      "end_of_word_suffix \"</w>\"" },
    { "gpt2", "\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}",
      "normalizer Lowercase" },
    { "qwen2", "{\"type\":\"NFC\"}",
      "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"NFKC\"}]}",
      "normalizer NFKC" },
    { "gpt2", "\"pre_tokenizer\":{\"type\":\"ByteLevel\"",
      "\"pre_tokenizer\":{\"type\":\"Metaspace\"",
      "pre_tokenizer Metaspace" },
    { "gpt2", "\"add_prefix_space\":false", "\"add_prefix_space\":true", "add_prefix_space true" },
    { "gpt2", "\"use_regex\":true", "\"use_regex\":false", "use_regex false" },
    { "llama3", "\"use_regex\":false", "\"use_regex\":true", "use_regex true" },
    { "llama3", "{1,3}", "{1,4}", "{1,4}| ?[^\\s\\p{L}\\p{N}]+" },
    { "llama3", "\"Isolated\"", "\"Removed\"", "behavior Isolated" },
    { "llama3", "\"type\":\"Split\"", "\"type\":\"Punctuation\"",
      "pre_tokenizer Punctuation is not supported; it must be Split or Digits, and ByteLevel; or "
      "encode the text with another program, and give the ids as tokens:FILE" },
    { "smollm", "\"individual_digits\":true", "\"individual_digits\":false",
      "individual_digits false" },
    { "smollm", "\"use_regex\":true", "\"use_regex\":false", "use_regex false" },
    { "smollm", "\"unk_token\":null", "\"unk_token\":\"<|endoftext|>\"",
      "of the 256 bytes, and unk_token is \"<|endoftext|>\"" },
    { "smollm", "\"ignore_merges\":false", "\"ignore_merges\":true", "and ignore_merges true" },
    { "gpt2", "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"",
      "decoder WordPiece" },
    { "llama3", "\"lstrip\":false", "\"lstrip\":true", "<|begin_of_text|>\" lstrip" },
    { "qwen2", "\"single_word\":false", "\"single_word\":true", "single_word" },
    { "qwen2", "\"content\":\"<tool>\"", "\"content\":\"a\\nb\"", "line end" },
    { "qwen2", "\"content\":\"<tool>\"", "\"content\":\"e\\u0301\"", "normalizer may change" },
    { "gpt2", "\"!\":1", "\"!\":2", "two tokens have the id 2" },
    { "gpt2", "\"!\":1", "\"!\":-1", "no number from 0" },
    { "gpt2", "\"!\":1", "\"!\":999999", "no number from 0" },
    { "llama3", "\"id\":560", "\"id\":563", "would get 560" },
    { "gpt2", "\"merges\":[", "\"merges\":[[\"!\",\"qq\"],", "merge 0, of \"!\" and \"qq\"" },
    { "gpt2", "\"merges\":[", "\"merges\":[\"!\",", "merge 0 is not of two tokens" },
    { "gpt2", "\"model\":{", "\"other\":{", "has no model" },
    { "gpt2", "\"vocab\":{", "\"words\":{", "no vocab" },
    { "gpt2", "{", "[", "is no tokenizer.json" },
};

static void other_tokenizers_are_refused(void **state)
{
    size_t other_kinds = 0;
    (void)state;
    while (strstr(damages[other_kinds].message, "two tokens") == NULL)
        other_kinds++;
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const damage *d = &damages[i];
        char          path[512];
        lki_map       map;
        OK(lki_map_open(&map, path_of(path, d->format)));
        const char *at = memmem(map.data, map.bytes, d->from, strlen(d->from));
        if (at == NULL)
            fail_msg("%s has no %s", d->format, d->from);
        size_t        head = (size_t)(at - (const char *)map.data), bytes = 0;
        lk_tokenizer *tokenizer = NULL;
        char         *text      = malloc(map.bytes + strlen(d->to));
        assert_non_null(text);
        memcpy(text, map.data, head);
        memcpy(text + head, d->to, strlen(d->to));
        bytes = map.bytes - head - strlen(d->from);
        memcpy(text + head + strlen(d->to), at + strlen(d->from), bytes);
        lk_status status = lk_tokenizer_parse(&tokenizer, text, head + strlen(d->to) + bytes, "x");
        const lk_status wanted = i < other_kinds ? LK_EUNSUPPORTED : LK_EFORMAT;
        if (status != wanted || strstr(lk_error_last()->message, d->message) == NULL)
            fail_msg("%s instead of %s in %s: %s", d->to, d->from, d->format,
                     status == LK_OK ? "accepted" : lk_error_last()->message);
        free(text);
        lki_map_close(&map);
    }
}

/* Both forms of merges: the package writes pairs, and older versions of it wrote one string. */
static void old_files_are_read(void **state)
{
    (void)state;
    char         path[512];
    json_error_t error;
    json_t *root = json_load_file(path_of(path, "gpt2"), 0, &error), *merges = json_object_get(
        json_object_get(root, "model"), "merges");
    for (size_t i = 0; i < json_array_size(merges); i++) {
        json_t *pair = json_array_get(merges, i);
        (void)json_array_set_new(merges, i, json_sprintf("%s %s",
                                 json_string_value(json_array_get(pair, 0)),
                                 json_string_value(json_array_get(pair, 1))));
    }
    char         *text = json_dumps(root, 0);
    lk_tokenizer *old = NULL, *now = open_format("gpt2");
    OK(lk_tokenizer_parse(&old, text, strlen(text), "old"));
    for (size_t i = 0; i <= now->merge_mask; i++)
        if (now->merges[i].rank != LKI_NO_RANK)
            assert_memory_equal(lki_merge_find(old, now->merges[i].left, now->merges[i].right),
                                &now->merges[i], sizeof now->merges[i]);
    lk_tokenizer_free(old);
    lk_tokenizer_free(now);
    free(text);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_tokenizers),
        cmocka_unit_test(cuts_and_threads_change_nothing),
        cmocka_unit_test(bytes_of_no_character_are_tokens),
        cmocka_unit_test(bytes_without_a_token_are_left_out),
        cmocka_unit_test(a_tokenizer_describes_itself),
        cmocka_unit_test(other_tokenizers_are_refused),
        cmocka_unit_test(old_files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
