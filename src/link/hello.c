/* hello.c -- formats, strictly parses and judges hellos. */
#include "link/hello.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char PREFIX[] = "lockstep:";

const char *lki_refusal_text(lki_refusal refusal)
{
    static const char *const TEXTS[] = { "it is welcome",
#define REFUSAL_TEXT(name, text) text,
                                         LKI_REFUSAL_TABLE(REFUSAL_TEXT)
#undef REFUSAL_TEXT
    };
    return (unsigned)refusal < LKI_REFUSALS ? TEXTS[refusal] : "for a reason unknown to us";
}

void lki_hello_text(char out[LKI_HELLO_BYTES], const lki_hello *hello)
{
    char job[2 * LKI_JOB_BYTES + 1];

    for (size_t i = 0; i < LKI_JOB_BYTES; i++)
        snprintf(job + 2 * i, 3, "%02x", hello->job[i]);
    snprintf(out, LKI_HELLO_BYTES, "%s%s:%" PRIu64 ":%u>%u:%u", PREFIX, job, hello->epoch,
             hello->from, hello->to, hello->stream);
}

/* Parses a decimal number of at most `max` without leading zeros.  Returns the text after the
 * number, or NULL if there is no such number. */
static const char *take_number(uint64_t *out, const char *text, uint64_t max)
{
    if (text == NULL || text[0] < '0' || text[0] > '9' ||
        (text[0] == '0' && text[1] >= '0' && text[1] <= '9'))
        return NULL;
    for (*out = 0; *text >= '0' && *text <= '9'; text++) {
        uint64_t digit = (uint64_t)(*text - '0');
        if (*out > (max - digit) / 10)
            return NULL;
        *out = *out * 10 + digit;
    }
    return text;
}

/* Returns `text` after the prefix `expected`, or NULL if `text` does not begin with `expected`. */
static const char *take(const char *text, const char *expected)
{
    size_t bytes = strlen(expected);
    return text != NULL && strncmp(text, expected, bytes) == 0 ? text + bytes : NULL;
}

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static const char *take_job(unsigned char out[LKI_JOB_BYTES], const char *text)
{
    for (size_t i = 0; text != NULL && i < LKI_JOB_BYTES; i++) {
        int high = hex_value(text[0]), low = high < 0 ? -1 : hex_value(text[1]);
        if (low < 0)
            return NULL;
        out[i] = (unsigned char)(high * 16 + low);
        text += 2;
    }
    return text;
}

bool lki_hello_parse(lki_hello *out, const char *text)
{
    uint64_t from = 0, to = 0, stream = 0;

    *out        = (lki_hello){ 0 };
    text        = take_job(out->job, take(text, PREFIX));
    text        = take_number(&out->epoch, take(text, ":"), UINT64_MAX);
    text        = take_number(&from, take(text, ":"), UINT32_MAX);
    text        = take_number(&to, take(text, ">"), UINT32_MAX);
    text        = take_number(&stream, take(text, ":"), UINT32_MAX);
    out->from   = (uint32_t)from;
    out->to     = (uint32_t)to;
    out->stream = (uint32_t)stream;
    return text != NULL && *text == '\0';
}

bool lki_hello_begins(const char *text, size_t bytes)
{
    return memcmp(text, PREFIX, bytes < sizeof PREFIX - 1 ? bytes : sizeof PREFIX - 1) == 0;
}

lki_refusal lki_hello_judge(const lki_hello *hello, const lki_hello *mine, uint32_t ranks,
                            uint32_t streams)
{
    if (memcmp(hello->job, mine->job, sizeof mine->job) != 0)
        return LKI_REFUSED_JOB;
    if (hello->epoch != mine->epoch)
        return LKI_REFUSED_EPOCH;
    if (hello->to != mine->to || hello->from == mine->to || hello->from >= ranks)
        return LKI_REFUSED_RANK;
    if (hello->stream >= streams)
        return LKI_REFUSED_STREAM;
    return LKI_WELCOME;
}
