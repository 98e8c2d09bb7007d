/* train_data.c -- train's options about data whose values have a form of their own. */
#include <string.h>

#include "cli/train.h"
#include "cli/values.h"

/* One word of --augment. */
static bool read_word(const char *text, size_t length, lk_augment *out)
{
    static const char crop[] = "crop=";
    uint64_t          pixels = 0;
    if (length == 4 && memcmp(text, "flip", length) == 0 && !out->flip)
        return out->flip = true;
    size_t head = strlen(crop);
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
    ((train_options *)target)->config.augment = augment;
    return good || lki_refuse(error, "must be crop=PIXELS or flip or both, as in crop=4,flip, or "
                                     "none");
}
