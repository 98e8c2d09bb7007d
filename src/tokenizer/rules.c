/* rules.c -- reads the parts of tokenizer.json that say how text is changed before pairs are
 * merged: normalizer and pre_tokenizer, and those that must have no other value. */
#include <string.h>

#include "tokenizer/parse.h"

/* The end of messages, which says what can be done. */
#define ELSEWHERE "; or encode the text with another program, and give the ids as tokens:FILE"

/* The words that a value gives in messages: its type, or its JSON. */
static lk_status refuse(const char *name, const char *key, const json_t *value, const char *rather)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    char       *text = type == NULL ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    lk_status   status =
        lk_fail(LK_EUNSUPPORTED, "'%s': %s %.200s is not supported; it must be %s" ELSEWHERE, name,
                key, type != NULL ? type : text != NULL ? text : "of that kind", rather);
    free(text);
    return status;
}

static bool is_type(const json_t *value, const char *type)
{
    const char *has = json_string_value(json_object_get(value, "type"));
    return has != NULL && strcmp(has, type) == 0;
}

static bool is_empty(const json_t *value)
{
    return value == NULL || json_is_null(value) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

/* ---- Normalizer ---------------------------------------------------------------------------- */

static lk_status read_normalizer(lk_tokenizer *tokenizer, const json_t *value, const char *name)
{
    static const char rather[] = "NFC or null";
    if (is_empty(value))
        return LK_OK;
    if (is_type(value, "NFC")) {
        tokenizer->info.nfc = true;
        return LK_OK;
    }
    const json_t *list = json_object_get(value, "normalizers");
    if (!is_type(value, "Sequence") || !json_is_array(list))
        return refuse(name, "normalizer", value, rather);
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!is_type(json_array_get(list, i), "NFC"))
            return refuse(name, "normalizer", json_array_get(list, i), rather);
        tokenizer->info.nfc = true;
    }
    return LK_OK;
}

/* ---- Pre-tokenizer ------------------------------------------------------------------------- */

/* Checks a ByteLevel pre-tokenizer, and whether it splits text. */
static lk_status check_bytes(const json_t *value, bool splits, const char *name)
{
    const json_t *regex = json_object_get(value, "use_regex");
    if (!is_type(value, "ByteLevel"))
        return refuse(name, "pre_tokenizer", value,
                      "ByteLevel, or a sequence of Split or Digits and ByteLevel");
    if (json_is_true(json_object_get(value, "add_prefix_space")))
        return lk_fail(LK_EUNSUPPORTED, "'%s': add_prefix_space true of the pre_tokenizer "
                                        "ByteLevel is not supported" ELSEWHERE, name);
    if ((regex == NULL || json_is_true(regex)) != splits)
        return lk_fail(LK_EUNSUPPORTED, "'%s': use_regex %s of the pre_tokenizer ByteLevel is not "
                                        "supported %s" ELSEWHERE, name, splits ? "false" : "true",
                       splits ? "without a Split before it" : "after a Split");
    return LK_OK;
}

static lk_status use_split(lk_tokenizer *tokenizer, lki_split split)
{
    tokenizer->split = lki_splitters[split];
    (void)snprintf(tokenizer->info.split, sizeof tokenizer->info.split, "%s",
                   lki_split_names[split]);
    return LK_OK;
}

static lk_status read_split(lk_tokenizer *tokenizer, const json_t *value, const char *name)
{
    const json_t *pattern  = json_object_get(value, "pattern");
    const char   *regex    = json_string_value(json_object_get(pattern, "Regex"));
    const char   *behavior = json_string_value(json_object_get(value, "behavior"));
    if (!is_type(value, "Split"))
        return refuse(name, "pre_tokenizer", value, "Split or Digits, and ByteLevel");
    if (behavior == NULL || strcmp(behavior, "Isolated") != 0 ||
        json_is_true(json_object_get(value, "invert")))
        return lk_fail(LK_EUNSUPPORTED, "'%s': the pre_tokenizer Split must have behavior "
                                        "Isolated, and invert false" ELSEWHERE, name);
    if (regex == NULL)
        return refuse(name, "the pattern of Split", pattern, "a Regex");
    for (lki_split split = 0; split < LKI_SPLITS; split++)
        if (lki_split_patterns[split] != NULL && strcmp(regex, lki_split_patterns[split]) == 0)
            return use_split(tokenizer, split);
    return lk_fail(LK_EUNSUPPORTED, "'%s': text is split by the regular expression %.200s, which "
                                    "is not supported: it must be that of GPT-2, Llama 3 or "
                                    "Qwen 2" ELSEWHERE, name, regex);
}

/* Checks Digits, whose numbers are those of Unicode 17.  The regular expressions after it, which
 * know only those of Unicode 16, split the others off in the same way. */
static lk_status use_digits(lk_tokenizer *tokenizer, const json_t *value, const char *name)
{
    static const uint32_t newer[][2] = { { 0x11de0, 0x11de9 }, { 0x16ff4, 0x16ff6 } };
    if (!json_is_true(json_object_get(value, "individual_digits")))
        return lk_fail(LK_EUNSUPPORTED, "'%s': individual_digits false of the pre_tokenizer Digits "
                                        "is not supported" ELSEWHERE, name);
    for (size_t i = 0; i < sizeof newer / sizeof newer[0]; i++)
        memset(tokenizer->unicode.classes + newer[i][0], LKI_NUMBER, newer[i][1] - newer[i][0] + 1);
    return use_split(tokenizer, LKI_SPLIT_DIGITS);
}

static lk_status read_pre_tokenizer(lk_tokenizer *tokenizer, const json_t *value, const char *name)
{
    const json_t *list = json_object_get(value, "pretokenizers");
    if (!is_type(value, "Sequence")) {
        LK_TRY(check_bytes(value, true, name));
        return use_split(tokenizer, LKI_SPLIT_GPT2);
    }
    if (json_array_size(list) != 2)
        return lk_fail(LK_EUNSUPPORTED, "'%s': the pre_tokenizer is a Sequence of %zu, not of "
                                        "Split or Digits and ByteLevel" ELSEWHERE, name,
                       json_array_size(list));
    const json_t *first  = json_array_get(list, 0);
    bool          digits = is_type(first, "Digits");
    LK_TRY((digits ? use_digits : read_split)(tokenizer, first, name));
    return check_bytes(json_array_get(list, 1), digits, name);
}

/* ---- The model's options ------------------------------------------------------------------- */

static lk_status check_model(lk_tokenizer *tokenizer, const json_t *model, const char *name)
{
    static const char *const empty[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const json_t            *dropout = json_object_get(model, "dropout");
    if (!json_is_object(model))
        return lk_fail(LK_EFORMAT, "'%s' has no model", name);
    if (json_object_get(model, "type") != NULL && !is_type(model, "BPE"))
        return refuse(name, "model", model, "BPE");
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
        if (!is_empty(json_object_get(model, empty[i])))
            return refuse(name, empty[i], json_object_get(model, empty[i]), "empty or null");
    if (!is_empty(dropout) && json_number_value(dropout) != 0)
        return refuse(name, "dropout", dropout, "null");
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return lk_fail(LK_EUNSUPPORTED, "'%s': byte_fallback true is not supported; tokens must be "
                                        "those of ByteLevel" ELSEWHERE, name);
    tokenizer->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    return LK_OK;
}

lk_status lki_rules_read(lk_tokenizer *tokenizer, const json_t *root, const char *name)
{
    const json_t *decoder = json_object_get(root, "decoder");
    LK_TRY(check_model(tokenizer, json_object_get(root, "model"), name));
    LK_TRY(read_normalizer(tokenizer, json_object_get(root, "normalizer"), name));
    LK_TRY(read_pre_tokenizer(tokenizer, json_object_get(root, "pre_tokenizer"), name));
    if (!is_type(decoder, "ByteLevel"))
        return refuse(name, "decoder", decoder, "ByteLevel");
    return LK_OK;
}
