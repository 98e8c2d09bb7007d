/* values.c -- converts the text of an option's value.
 *
 * Numbers are read strictly: every character must be part of the number, so "12x", " 12", "0x10",
 * "nan" and "1e999" are errors.  The target changes only if the whole value is valid.
 */
#include "cli/values.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lockstep/train.h"

/* clang-format off */
const lki_choice lki_weights_choices[] = {
    { .name = "model", .value = LK_WEIGHTS_MODEL },
    { .name = "ema", .value = LK_WEIGHTS_EMA },
    { .name = NULL },
};
const lki_range lki_range_positive     = { .low_open = true, .high = DBL_MAX,
                                           .text = "a number above 0" };
const lki_range lki_range_not_negative = { .high = DBL_MAX, .text = "a number of at least 0" };
const lki_range lki_range_not_below_1  = { .low = 1, .high = DBL_MAX,
                                           .text = "a number of at least 1" };
const lki_range lki_range_fraction     = { .high = 1, .high_open = true,
                                           .text = "a number of at least 0 and below 1" };
const lki_range lki_range_unit_open    = { .low_open = true, .high = 1, .high_open = true,
                                           .text = "a number above 0 and below 1" };
const lki_range lki_range_share        = { .low_open = true, .high = 1,
                                           .text = "a number above 0 and up to 1" };
/* clang-format on */

bool lki_refuse(lki_message *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return false;
}

bool lki_parse_u64(const char *text, size_t length, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return length > 0;
}

bool lki_parse_real(const char *text, size_t length, double *out)
{
    char copy[64], *end = NULL;
    if (length == 0 || length >= sizeof copy || strspn(text, "0123456789+-.eE") < length)
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    double value = strtod(copy, &end);
    if (*end != '\0' || !isfinite(value))
        return false;
    *out = value;
    return true;
}

/* Returns true if the text is a number but too large. */
static bool is_too_large(const char *text, size_t length)
{
    char copy[64], *end = NULL;
    if (length == 0 || length >= sizeof copy || strspn(text, "0123456789+-.eE") < length)
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return isinf(strtod(copy, &end)) && *end == '\0';
}

static bool in_range(const lki_range *range, double value)
{
    return (range->low_open ? value > range->low : value >= range->low) &&
           (range->high_open ? value < range->high : value <= range->high) &&
           (!range->whole || value == floor(value));
}

static bool read_real(const lki_option *option, const char *text, size_t length, double *out,
                      lki_message *error)
{
    if (lki_parse_real(text, length, out) && in_range(option->range, *out))
        return true;
    if (is_too_large(text, length))
        return lki_refuse(error, "is more than a number can be; it must be %s",
                          option->range->text);
    return lki_refuse(error, "must be %s", option->range->text);
}

static bool read_integer(const lki_option *option, const char *text, size_t length, uint64_t *out,
                         lki_message *error)
{
    bool fits = lki_parse_u64(text, length, out);
    if (fits && *out >= option->low && *out <= option->high)
        return true;
    bool digits    = length > 0 && strspn(text, "0123456789") >= length;
    bool too_large = digits && (!fits || *out > option->high);
    if (option->high >= UINT32_MAX && !too_large)
        return lki_refuse(error, "must be an integer of at least %llu",
                          (unsigned long long)option->low);
    return lki_refuse(error, "must be an integer from %llu to %llu",
                      (unsigned long long)option->low, (unsigned long long)option->high);
}

/* Reads one integer, or MIN:MAX with MIN at most MAX. */
static bool read_span(const lki_option *option, const char *text, unsigned char *target,
                      lki_message *error)
{
    const char *colon = strchr(text, ':'), *most = colon == NULL ? text : colon + 1;
    uint64_t    value = 0, least = 0;
    uint32_t    narrow;

    if (!lki_parse_u64(most, strlen(most), &value) || value < option->low || value > option->high)
        return lki_refuse(error, "must be an integer from %llu to %llu, or two: MIN:MAX",
                          (unsigned long long)option->low, (unsigned long long)option->high);
    if (colon != NULL && (!lki_parse_u64(text, (size_t)(colon - text), &least)
                          || least < option->low || least > value))
        return lki_refuse(error, "MIN:MAX must be integers from %llu to %llu, in order",
                          (unsigned long long)option->low, (unsigned long long)option->high);
    narrow = (uint32_t)value;
    memcpy(target + option->offset, &narrow, sizeof narrow);
    narrow = (uint32_t)least;
    memcpy(target + option->count_offset, &narrow, sizeof narrow);
    return true;
}

/* Reads a real and scales it to a whole number of bytes or milliseconds. */
static bool read_scaled(const lki_option *option, const char *text, double scale, double limit,
                        uint64_t *out, lki_message *error)
{
    double value = 0;
    if (!read_real(option, text, strlen(text), &value, error))
        return false;
    if (value * scale > limit)
        return lki_refuse(error, "must be at most %.0f", floor(limit / scale));
    *out = (uint64_t)(value * scale);
    if (*out == 0 && value > 0)
        *out = 1;
    return true;
}

static bool read_list(const lki_option *option, const char *text, unsigned char *target,
                      lki_message *error)
{
    uint64_t values[64] = { 0 };
    uint32_t count      = 0;

    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        if (count == option->list_max || count == sizeof values / sizeof values[0])
            return lki_refuse(error, "must be at most %u integers", (unsigned)option->list_max);
        if (!read_integer(option, at, length, &values[count++], error)) {
            lki_message each = *error;
            return lki_refuse(error,
                              "must be integers with commas between them, as in 512,512; "
                              "each %.200s",
                              each.text);
        }
        at += length;
        if (*at == '\0')
            break;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (option->type == LKI_OPTION_U64_LIST) {
            memcpy(target + option->offset + i * sizeof(uint64_t), &values[i], sizeof(uint64_t));
        } else {
            uint32_t narrow = (uint32_t)values[i];
            memcpy(target + option->offset + i * sizeof narrow, &narrow, sizeof narrow);
        }
    }
    memcpy(target + option->count_offset, &count, sizeof count);
    return true;
}

static bool read_pair(const lki_option *option, const char *text, unsigned char *target,
                      lki_message *error)
{
    double values[2];
    size_t first = strcspn(text, ",");
    if (text[first] == '\0')
        return lki_refuse(error, "must be two numbers with a comma between them");
    if (!read_real(option, text, first, &values[0], error) ||
        !read_real(option, text + first + 1, strlen(text + first + 1), &values[1], error)) {
        lki_message each = *error;
        return lki_refuse(error, "must be two numbers, A,B; each %.200s", each.text);
    }
    memcpy(target + option->offset, values, sizeof values);
    return true;
}

static bool refuse_choice(const lki_option *option, const char *text, lki_message *error)
{
    const char *names[32];
    size_t      count = 0, used = 0;
    char        list[256] = "";

    for (const lki_choice *c = option->choices; c->name != NULL; c++) {
        if (c->later != NULL)
            continue;
        if (count < sizeof names / sizeof names[0])
            names[count++] = c->name;
        int wrote = snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", c->name);
        if (wrote > 0 && (size_t)wrote < sizeof list - used)
            used += (size_t)wrote;
    }
    const char *meant = lki_suggest(text, names, count);
    if (meant != NULL)
        return lki_refuse(error, "is none of: %s; did you mean %s?", list, meant);
    return lki_refuse(error, "is none of: %s", list);
}

static bool read_choice(const lki_option *option, const char *text, unsigned char *target,
                        lki_message *error)
{
    for (const lki_choice *c = option->choices; c->name != NULL; c++) {
        if (strcmp(c->name, text) != 0)
            continue;
        if (c->later != NULL)
            return lki_refuse(error, "%s", c->later);
        if (option->type == LKI_OPTION_NAME)
            memcpy(target + option->offset, &c->name, sizeof c->name);
        else
            memcpy(target + option->offset, &c->value, sizeof c->value);
        return true;
    }
    return refuse_choice(option, text, error);
}

static bool read_number(const lki_option *option, const char *text, unsigned char *target,
                        lki_message *error)
{
    unsigned char *field   = target + option->offset;
    uint64_t       integer = 0;
    uint32_t       narrow  = 0;
    double         real    = 0;
    float          single  = 0;
    size_t         bytes   = 0;

    switch ((int)option->type) {
    case LKI_OPTION_U32:
        if (!read_integer(option, text, strlen(text), &integer, error))
            return false;
        if (integer > UINT32_MAX)
            return lki_refuse(error, "must be at most %u", UINT32_MAX);
        narrow = (uint32_t)integer;
        memcpy(field, &narrow, sizeof narrow);
        return true;
    case LKI_OPTION_U64:
        if (!read_integer(option, text, strlen(text), &integer, error))
            return false;
        memcpy(field, &integer, sizeof integer);
        return true;
    case LKI_OPTION_REAL:
        if (!read_real(option, text, strlen(text), &real, error))
            return false;
        memcpy(field, &real, sizeof real);
        return true;
    case LKI_OPTION_FLOAT:
        if (!read_real(option, text, strlen(text), &real, error))
            return false;
        single = (float)real;
        memcpy(field, &single, sizeof single);
        return true;
    case LKI_OPTION_MEBIBYTES:
        if (!read_scaled(option, text, 1048576, 0x1p62, &integer, error))
            return false;
        bytes = (size_t)integer;
        memcpy(field, &bytes, sizeof bytes);
        return true;
    default: /* LKI_OPTION_SECONDS */
        if (!read_scaled(option, text, 1000, UINT32_MAX, &integer, error))
            return false;
        narrow = (uint32_t)integer;
        memcpy(field, &narrow, sizeof narrow);
        return true;
    }
}

bool lki_value_read(const lki_option *option, const char *text, void *target, lki_message *error)
{
    bool flag = strcmp(text, "true") == 0;
    switch ((int)option->type) {
    case LKI_OPTION_FLAG:
        memcpy((unsigned char *)target + option->offset, &flag, sizeof flag);
        return true;
    case LKI_OPTION_STRING:
    case LKI_OPTION_POSITIONAL:
        if (*text == '\0')
            return lki_refuse(error, "must not be empty");
        if (option->read != NULL)
            return option->read(text, target, error);
        memcpy((unsigned char *)target + option->offset, &text, sizeof text);
        return true;
    case LKI_OPTION_U32_LIST:
    case LKI_OPTION_U64_LIST: return read_list(option, text, target, error);
    case LKI_OPTION_U32_SPAN: return read_span(option, text, target, error);
    case LKI_OPTION_REAL_PAIR: return read_pair(option, text, target, error);
    case LKI_OPTION_CHOICE:
    case LKI_OPTION_NAME: return read_choice(option, text, target, error);
    case LKI_OPTION_CUSTOM: return option->read(text, target, error);
    default: return read_number(option, text, target, error);
    }
}

int lki_compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
