/* chaos.c -- parses --chaos. */
#include "cli/chaos.h"

#include <string.h>

#include "cli/values.h"

static const double RATE_MAX = 10000; /* faults per second */

/* Returns the kind of fault with this name; 0 if there is none. */
static uint32_t kind_of(const char *word, size_t length)
{
    static const struct {
        const char *name;
        uint32_t    kind;
    } kinds[] = { { "kill", LK_CHAOS_KILL }, { "stop", LK_CHAOS_STOP }, { "slow", LK_CHAOS_SLOW } };

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strlen(kinds[i].name) == length && memcmp(kinds[i].name, word, length) == 0)
            return kinds[i].kind;
    return 0;
}

bool lki_parse_chaos(const char *text, lk_chaos *out, lki_message *error)
{
    static const char what[] = "must be SEED,RATE with an integer and a number above 0 and up to "
                               "10000, such as 7,0.5, and behind it kill, stop or slow for some "
                               "kinds only";
    size_t seed = strcspn(text, ","), rate = text[seed] == ',' ? strcspn(text + seed + 1, ",") : 0;
    const char *at = text + seed + 1 + rate;

    *out = (lk_chaos){ .rate = 0 };
    if (rate == 0 || !lki_parse_u64(text, seed, &out->seed) ||
        !lki_parse_real(text + seed + 1, rate, &out->rate) || !(out->rate > 0) ||
        out->rate > RATE_MAX)
        return lki_refuse(error, "%s", what);
    while (*at == ',') {
        size_t   length = strcspn(++at, ",");
        uint32_t kind   = kind_of(at, length);
        if (kind == 0)
            return lki_refuse(error, "%s", what);
        out->kinds |= kind;
        at += length;
    }
    return true;
}
