/* options.c -- the names of compressors, and their options. */
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "compress/levels.h"
#include "compress/table.h"

#define ADDRESS(name) &lki_compressor_##name,
static const lk_compressor *const all[] = { LKI_COMPRESSORS(ADDRESS) };
#undef ADDRESS

#define TEXT(name) #name ", "
#define NAMES LKI_COMPRESSORS(TEXT)

const lk_compressor *lk_compressors(uint32_t index)
{
    return index < sizeof all / sizeof all[0] ? all[index] : NULL;
}

lk_status lk_compressor_find(const lk_compressor **out, const char *name)
{
    *out = NULL;
    LK_TRY(lki_check_given("lk_compressor_find", "name", name, 1));
    for (uint32_t i = 0; (*out = lk_compressors(i)) != NULL; i++)
        if (strcmp((*out)->name, name) == 0)
            return LK_OK;
    return lk_fail(LK_EINVAL, "there is no compressor '%s'; there are %.*s", name,
                   (int)sizeof NAMES - 3, NAMES);
}

static lk_status check_levels(const lk_compression *options)
{
    if (options->levels > LKI_LEVELS_MAX)
        return lk_fail(LK_EINVAL, "`levels` is %u; give at most %d", options->levels,
                       LKI_LEVELS_MAX);
    if (options->bucket % LKI_LEVEL_BLOCK != 0)
        return lk_fail(LK_EINVAL, "`bucket` is %u; give a multiple of %d", options->bucket,
                       LKI_LEVEL_BLOCK);
    if (!(options->clip > 0))
        return lk_fail(LK_EINVAL, "`clip` is %g; give standard deviations, more than 0",
                       options->clip);
    return LK_OK;
}

lk_status lk_compression_resolve(lk_compression *out, const lk_compression *options)
{
    LK_TRY(lki_options_copy(out, sizeof *out, options, "lk_compression"));
    if (out->rank == 0)
        out->rank = 4;
    if (out->min_rate == 0)
        out->min_rate = 2;
    if (out->ratio == 0)
        out->ratio = 0.01;
    if (out->levels == 0)
        out->levels = 7;
    if (out->bucket == 0)
        out->bucket = 512;
    if (out->clip == 0)
        out->clip = 2.5;
    if (!(out->min_rate >= 1))
        return lk_fail(LK_EINVAL,
                       "`min_rate` is %g; give at least 1, as factors may be as large as a tensor",
                       out->min_rate);
    if (!(out->ratio > 0 && out->ratio <= 1))
        return lk_fail(LK_EINVAL,
                       "`ratio` is %g; give the fraction of elements to send, above 0 and up to 1",
                       out->ratio);
    return check_levels(out);
}
