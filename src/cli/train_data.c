/* train_data.c -- functions that read the values of train's options for data. */
#include <string.h>

#include "cli/train.h"
#include "cli/values.h"

/* Reads one comma-separated word of --augment. */
static bool read_word(const char *text, size_t length, lk_augment *out)
{
    static const char crop[] = "crop=", resized[] = "resized-crop=";
    uint64_t          pixels = 0;
    size_t            head = strlen(crop), long_head = strlen(resized);
    if (length == 4 && memcmp(text, "flip", length) == 0 && !out->flip)
        return out->flip = true;
    if (length > long_head && memcmp(text, resized, long_head) == 0 && out->resized_crop == 0)
        return lki_parse_real(text + long_head, length - long_head, &out->resized_crop) &&
               out->resized_crop > 0 && out->resized_crop <= 1;
    if (out->crop > 0 || length <= head || memcmp(text, crop, head) != 0 ||
        !lki_parse_u64(text + head, length - head, &pixels) || pixels == 0 || pixels > UINT16_MAX)
        return false;
    out->crop = (uint32_t)pixels;
    return true;
}

bool lki_read_augment(const char *text, void *target, lki_message *error)
{
    lk_augment augment = { .crop = 0 };
    bool       good    = true;
    bool       more    = strcmp(text, "none") != 0;
    while (good && more) {
        size_t length = strcspn(text, ",");
        good          = read_word(text, length, &augment);
        more          = text[length] == ',';
        text += length + 1;
    }
    ((train_options *)target)->config.data.augment = augment;
    return good || lki_refuse(error, "must be crop=PIXELS or resized-crop=SHARE (above 0, at most "
                                     "1), or flip, or one of these and flip, as in crop=4,flip, or "
                                     "none");
}

bool lki_read_ignored(const char *text, void *target, lki_message *error)
{
    lk_train_config *config = &((train_options *)target)->config;
    bool             below  = *text == '-';
    uint64_t         size   = 0;
    if (!lki_parse_u64(text + below, strlen(text + below), &size) || size > INT32_MAX)
        return lki_refuse(error, "must be a whole number from -%d to %d, such as 255 or -100",
                          INT32_MAX, INT32_MAX);
    config->data.ignores = true;
    config->data.ignored = below ? -(int64_t)size : (int64_t)size;
    return true;
}
