/* split.c -- the rules that split text into words before pairs are merged.
 *
 * Each rule is a regular expression; the function below it does what the expression does.  The
 * alternatives are tried in their order.  In white space, \s+(?!\S) leaves the last character to
 * the word that follows.  The rule `digits` takes each number out of the text, and splits what is
 * between numbers as GPT-2 does.
 */
#include "tokenizer/tokenizer.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const char *const lki_split_names[LKI_SPLITS]    = { "gpt2", "llama3", "qwen2", "digits" };
const char *const lki_split_patterns[LKI_SPLITS] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" REST,
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" REST,
    NULL,
};

/* Returns the class of the character at `text`, and its length. */
static inline uint32_t class_at(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                                size_t *length)
{
    uint32_t character = text[0];
    *length            = 1;
    if (character < 0x80)
        return classes[character];
    size_t bytes = lki_character(text, end, &character);
    if (bytes == 0)
        return LKI_OTHER;
    *length = bytes;
    return classes[character] & (LKI_UNSTABLE - 1);
}

/* Returns the end of the characters of one class from `text` on. */
static const uint8_t *run_of(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                             uint32_t class)
{
    size_t length;
    while (text < end && class_at(classes, text, end, &length) == class)
        text += length;
    return text;
}

/* Splits white space: all of it at the end of the text, else all but the last character. */
static const uint8_t *split_space(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                                  bool followed)
{
    const uint8_t *at = text, *last = text;
    size_t         length;
    while (at < end && class_at(classes, at, end, &length) == LKI_SPACE) {
        last = at;
        at += length;
    }
    return (at == end && !followed) || last == text ? at : last;
}

static uint8_t lower(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte + 'a' - 'A') : byte;
}

/* Returns the end of 's, 't, 're, 've, 'm, 'll or 'd; `text` if there is none.  In any case, U+017F
 * is an s. */
static const uint8_t *contraction(const uint8_t *text, const uint8_t *end, bool any_case)
{
    if (text[0] != '\'' || end - text < 2)
        return text;
    uint8_t one = any_case ? lower(text[1]) : text[1], two = 0;
    if (end - text > 2)
        two = any_case ? lower(text[2]) : text[2];
    if (one == 's' || one == 't' || one == 'm' || one == 'd')
        return text + 2;
    bool pair = (one == 'r' && two == 'e') || (one == 'v' && two == 'e') ||
                (one == 'l' && two == 'l') || (any_case && text[1] == 0xc5 && two == 0xbf);
    return pair ? text + 3 : text;
}

static const uint8_t *split_gpt2(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                                 bool followed)
{
    const uint8_t *at = contraction(text, end, false);
    size_t         length;
    if (at > text)
        return at;
    at             = text[0] == ' ' && end - text > 1 ? text + 1 : text;
    uint32_t class = class_at(classes, at, end, &length);
    if (class == LKI_SPACE)
        return split_space(classes, text, end, followed);
    return run_of(classes, at + length, end, class);
}

/* Splits at punctuation with line ends after it; returns `text` if there is none. */
static const uint8_t *split_others(const uint8_t *classes, const uint8_t *text, const uint8_t *end)
{
    const uint8_t *first = text[0] == ' ' ? text + 1 : text;
    const uint8_t *at    = run_of(classes, first, end, LKI_OTHER);
    if (at == first)
        return text;
    while (at < end && (*at == '\r' || *at == '\n'))
        at++;
    return at;
}

/* Splits white space up to its last line end, if it has one. */
static const uint8_t *split_lines(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                                  bool followed)
{
    const uint8_t *after = text;
    size_t         length;
    for (const uint8_t *at = text; at < end; at += length) {
        if (class_at(classes, at, end, &length) != LKI_SPACE)
            break;
        if (*at == '\r' || *at == '\n')
            after = at + 1;
    }
    return after > text ? after : split_space(classes, text, end, followed);
}

static inline const uint8_t *split_newer(const uint8_t *classes, const uint8_t *text,
                                         const uint8_t *end, bool followed, int digits)
{
    const uint8_t *at = contraction(text, end, true);
    size_t         length, next;
    if (at > text)
        return at;
    uint32_t class = class_at(classes, text, end, &length);
    at             = text + length;
    if (class == LKI_LETTER)
        return run_of(classes, at, end, LKI_LETTER);
    if (class == LKI_NUMBER) {
        while (--digits > 0 && at < end && class_at(classes, at, end, &length) == LKI_NUMBER)
            at += length;
        return at;
    }
    if (text[0] != '\r' && text[0] != '\n' && at < end &&
        class_at(classes, at, end, &next) == LKI_LETTER)
        return run_of(classes, at + next, end, LKI_LETTER);
    at = split_others(classes, text, end);
    return at > text ? at : split_lines(classes, text, end, followed);
}

static const uint8_t *split_llama3(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                                   bool followed)
{
    return split_newer(classes, text, end, followed, 3);
}

static const uint8_t *split_qwen2(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                                  bool followed)
{
    return split_newer(classes, text, end, followed, 1);
}

/* White space before a number is at the end of a text between numbers, so it is one word. */
static const uint8_t *split_digits(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                                   bool followed)
{
    size_t         length;
    const uint8_t *at = run_of(classes, text, end, LKI_SPACE);
    if (at < end && class_at(classes, at, end, &length) == LKI_NUMBER)
        return at > text ? at : at + length;
    return split_gpt2(classes, text, end, followed);
}

const lki_splitter lki_splitters[LKI_SPLITS] = { split_gpt2, split_llama3, split_qwen2,
                                                 split_digits };
