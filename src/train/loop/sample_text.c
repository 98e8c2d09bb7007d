/* sample_text.c -- text of a sample; see sample_text.h. */
#include "train/loop/sample_text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/status.h"
#include "checkpoint/directory.h"
#include "tokenizer/unicode.h"

/* Writes the path of a file in a directory.  Returns false if the file does not exist. */
static bool find_file(char out[LKI_PATH_BYTES], const char *folder, const char *name)
{
    return snprintf(out, LKI_PATH_BYTES, "%s/%s", folder, name) < LKI_PATH_BYTES &&
           access(out, F_OK) == 0;
}

/* Looks in the directory, or in the one that has the file, and then in that of the run. */
bool lki_sample_text_find(char out[LKI_PATH_BYTES], const char *path)
{
    char folder[LKI_PATH_BYTES];
    if (snprintf(folder, sizeof folder, "%s", path) >= LKI_PATH_BYTES ||
        (!lki_is_folder(path) && lki_directory_above(folder, path) != LK_OK))
        return false;
    if (find_file(out, folder, "tokenizer.json"))
        return true;
    const bool step = find_file(out, folder, LKI_MANIFEST_NAME) &&
                      !find_file(out, folder, "config.json");
    return step && lki_directory_above(folder, folder) == LK_OK &&
           find_file(out, folder, "tokenizer.json");
}

lk_status lki_sample_text_open(lki_sample_text *text, const char *path, uint32_t *vocabulary)
{
    *text = (lki_sample_text){ .tokenizer = NULL, .end = -1 };
    if (path == NULL)
        return LK_OK;
    LK_TRY(lk_tokenizer_open(&text->tokenizer, path));
    *vocabulary = lk_tokenizer_describe(text->tokenizer)->vocabulary;
    text->end   = lk_tokenizer_describe(text->tokenizer)->end;
    return LK_OK;
}

void lki_sample_text_close(lki_sample_text *text)
{
    lk_tokenizer_free(text->tokenizer);
    lki_free(text->prompt);
}

const char *lki_sample_prompt(const lk_sample_options *options)
{
    return options->prompt != NULL ? options->prompt : "\n";
}

static lk_status keep(void *context, const int32_t *ids, size_t count)
{
    lki_sample_text *text = context;
    for (size_t i = 0; i < count; i++) {
        LK_TRY(lki_reserve((void **)&text->prompt, &text->capacity, text->count,
                           sizeof *text->prompt, "tokens of a prompt"));
        text->prompt[text->count++] = ids[i];
    }
    return LK_OK;
}

lk_status lki_sample_text_prompt(lki_sample_text *text, const char *prompt)
{
    lk_encoder *encoder = NULL;
    if (text->tokenizer == NULL) {
        for (const char *c = prompt; *c != '\0'; c++) {
            int32_t token = (uint8_t)*c;
            LK_TRY(keep(text, &token, 1));
        }
        return LK_OK;
    }
    LK_TRY(lk_encoder_open(&encoder, text->tokenizer, 1));
    lk_status status = lk_encoder_encode(encoder, prompt, strlen(prompt), keep, text);
    if (status == LK_OK && lk_encoder_left_out(encoder) > 0)
        status = lk_fail(LK_EINVAL, "the tokenizer has no token for %llu of the prompt's bytes: "
                                    "give a prompt without them",
                         (unsigned long long)lk_encoder_left_out(encoder));
    lk_encoder_free(encoder);
    return status;
}

/* Returns true if bytes may be the beginning of a character. */
static bool may_begin(const char *bytes, size_t count)
{
    uint8_t lead = (uint8_t)bytes[0];
    size_t  all  = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || count >= all)
        return false;
    for (size_t i = 1; i < count; i++)
        if (((uint8_t)bytes[i] & 0xc0) != 0x80)
            return false;
    return true;
}

/* Emits the characters of what is held; all of it if `last`. */
static void flush(lki_sample_text *text, const lk_sample_options *options, bool last)
{
    size_t at = 0;
    while (at < text->held_count) {
        const char    *from = text->held + at;
        size_t         left = text->held_count - at;
        uint32_t       character;
        const uint8_t *bytes  = (const uint8_t *)from;
        size_t         length = lki_character(bytes, bytes + left, &character);
        if (length == 0 && !last && may_begin(from, left))
            break;
        options->emit(options->context, length > 0 ? from : "\xef\xbf\xbd",
                      length > 0 ? length : 3);
        at += length > 0 ? length : 1;
    }
    text->held_count -= at;
    memmove(text->held, text->held + at, text->held_count);
}

void lki_sample_text_emit(lki_sample_text *text, const lk_sample_options *options, int32_t token)
{
    char byte = (char)token;
    if (text->tokenizer == NULL) {
        options->emit(options->context, &byte, 1);
        return;
    }
    size_t      count = 0;
    const char *bytes = lk_tokenizer_bytes(text->tokenizer, (uint32_t)token, &count);
    for (size_t i = 0; i < count; i++) {
        text->held[text->held_count++] = bytes[i];
        flush(text, options, false);
    }
}

void lki_sample_text_end(lki_sample_text *text, const lk_sample_options *options)
{
    flush(text, options, true);
}
