/* levels.c -- random rounding to levels, for qsgd and terngrad. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "compress/levels.h"

float lki_level_scale(double squares, double scale)
{
    const uint32_t nan = 0x7fc00000; /* the one that is sent for all */
    float          out = scale < (double)FLT_MAX ? (float)scale : FLT_MAX;
    if (!isfinite(squares))
        memcpy(&out, &nan, sizeof out);
    return out;
}

void lki_levels_put(const lk_compression *options, const lk_compress_key *key, uint32_t levels,
                    float scale, size_t first, size_t count, float *values, uint32_t *bits)
{
    const lki_scan *scan    = lki_scan_best();
    const lki_lot   lot     = { options->seed, (uint32_t)key->step, key->tensor, key->group };
    const uint32_t  width   = lki_level_bits(levels);
    const double    inverse = scale > 0 ? levels / (double)scale : 0, unit = (double)scale / levels;
    for (size_t at = 0; at < count; at += LKI_LEVEL_BLOCK) {
        const size_t block = (first + at) / LKI_LEVEL_BLOCK;
        const size_t n     = lki_min(count - at, LKI_LEVEL_BLOCK);
        uint32_t    *words = bits + block * width;
        float        own[LKI_LEVEL_BLOCK] = { 0 }, said[LKI_LEVEL_BLOCK];
        memcpy(own, values + at, n * sizeof *own);
        scan->put(&lot, (uint32_t)block, own, inverse, levels, width, words);
        scan->get(words, width, unit, said);
        for (size_t i = 0; i < n; i++)
            values[at + i] -= said[i];
    }
}

void lki_levels_get(uint32_t levels, float scale, const uint32_t *bits, size_t first, size_t count,
                    float *out)
{
    const lki_scan *scan  = lki_scan_best();
    const uint32_t  width = lki_level_bits(levels);
    const double    unit  = (double)scale / levels;
    for (size_t done = 0; done < count;) {
        float           part[LKI_LEVEL_BLOCK];
        size_t          skip  = (first + done) % LKI_LEVEL_BLOCK;
        size_t          n     = lki_min(count - done, LKI_LEVEL_BLOCK - skip);
        const uint32_t *words = bits + (first + done) / LKI_LEVEL_BLOCK * width;
        scan->get(words, width, unit, n == LKI_LEVEL_BLOCK ? out + done : part);
        if (n < LKI_LEVEL_BLOCK)
            memcpy(out + done, part + skip, n * sizeof *out);
        done += n;
    }
}
