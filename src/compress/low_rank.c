/* low_rank.c -- powersgd: sends two factors of low rank (Vogels, Karimireddy, Jaggi, PowerSGD:
 * Practical Low-Rank Gradient Compression for Distributed Optimization, 2019, algorithms 1 and 2).
 *
 * With M the rows x cols matrix of a group, and Q the factor of the step before:
 *
 *     round 0    P = sum of M Q over the groups, then made orthonormal
 *     round 1    Q = sum of Mt P over the groups; the residual of a group is M - P (Mt P)t
 *     decode     P Qt
 *
 * The residual is that of the group's own message.  Its sum over the groups is that of the averaged
 * residual, so it is the same method, and it is known before Q is.
 *
 * Factors are stored by columns: `rank` vectors of `rows` or `cols` elements.  A column of P that
 * is 0, as for a parameter that is not used, stays 0, and so does that of Q.  Before the next step
 * the column of Q is drawn again, or it would stay 0 for ever.
 *
 * Order:   products along a row are summed in 16 lanes and a tree over them; all other sums are in
 *          ascending order.
 * Cost:    three passes over the matrix, and one over it to decode.  The caller adds the errors of
 *          a part of P before its product, so that the part is in a cache, and keeps them in
 *          another pass.  To keep them in that of the residual, 8 rows at a time, took 20 % more.
 */
#include <math.h>

#include "base/memory.h"
#include "base/rng.h"
#include "compress/chosen.h"
#include "compress/scan.h"
#include "compress/table.h"

enum { LANES = 16 };

static uint32_t rank_of(const lk_compression *options, const lk_compress_key *key)
{
    return (uint32_t)lki_min(options->rank, lki_min(key->rows, key->cols));
}

static size_t bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round)
{
    const uint32_t rank  = rank_of(options, key);
    const double   whole = (double)key->rows * (double)key->cols;
    if (key->rows < 2 || key->cols < 2 ||
        ((double)key->rows + (double)key->cols) * rank * options->min_rate >= whole)
        return 0;
    return (round == 0 ? key->rows : key->cols) * rank * sizeof(float);
}

/* Draws a column of Q: uniform in [-1, 1). */
static void draw(const lk_compression *options, const lk_compress_key *key, uint32_t column,
                 float *out)
{
    for (size_t j = 0; j < key->cols; j += 4) {
        lki_random lot = lki_philox(options->seed, LKI_RNG_COMPRESS, (uint32_t)(j / 4),
                                    (uint32_t)key->step, key->tensor, column);
        for (size_t k = 0; k < 4 && j + k < key->cols; k++)
            out[j + k] = 2 * lki_random_unit(lot.word[k]) - 1;
    }
}

static bool is_zero(size_t count, const float *x)
{
    size_t zeros = 0;
    while (zeros < count && x[zeros] == 0)
        zeros++;
    return zeros == count;
}

/* Draws the columns of Q that are 0: all of them in the first step. */
static void begin(const lk_compression *options, const lk_compress_key *key, void *before)
{
    for (uint32_t a = 0; a < rank_of(options, key); a++) {
        float *column = (float *)before + a * key->cols;
        if (options->cold_start || is_zero(key->cols, column))
            draw(options, key, a, column);
    }
}

/* An element of P depends on one row, so the parts of round 0 are rows.  An element of Q depends on
 * all rows.  Parts of some columns were tried: runs of 384 columns took 1.4 times as long, and
 * shorter ones more. */
static bool part(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                 uint32_t index, lk_compress_part *out)
{
    const size_t all = key->rows * key->cols;
    (void)options;
    return lki_part_of(all, round == 0 ? key->cols : all, index, out);
}

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values, void *message)
{
    const lki_scan *by   = lki_scan_best();
    const uint32_t  rank = rank_of(options, key);
    if (round == 0) {
        const size_t first = part->first / key->cols, count = part->count / key->cols;
        by->multiply(key->rows, key->cols, rank, first, count, values, before, message);
        return;
    }
    by->multiply_turned(key->rows, key->cols, rank, values, before, message);
    by->subtract_product(key->rows, key->cols, rank, before, message, values);
}

/* ---- Combined factors -------------------------------------------------------------------- */

static double dot_double(size_t count, const float *x, const float *y)
{
    double lanes[LANES] = { 0 };
    size_t i            = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] += (double)x[i + l] * (double)y[i + l];
    for (size_t l = 0; i + l < count; l++)
        lanes[l] += (double)x[i + l] * (double)y[i + l];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}

/* Removes from column `a` its parts along the columns before it. */
static void project(size_t rows, uint32_t a, float *p)
{
    float *column = p + a * rows;
    for (uint32_t b = 0; b < a; b++) {
        const float *other = p + b * rows;
        const double part  = dot_double(rows, column, other);
        for (size_t i = 0; i < rows; i++)
            column[i] = (float)((double)column[i] - part * (double)other[i]);
    }
}

/* Makes the columns orthonormal by the modified Gram-Schmidt method, twice.  A column that depends
 * on those before it becomes 0, and one with a value that is not finite becomes NaN. */
static void orthonormalise(size_t rows, uint32_t rank, float *p)
{
    for (uint32_t a = 0; a < rank; a++) {
        float       *column = p + a * rows;
        const double given  = dot_double(rows, column, column);
        project(rows, a, p);
        project(rows, a, p);
        const double left  = dot_double(rows, column, column);
        const bool   depends = isfinite(given) && left <= 1e-10 * given;
        const double scale   = depends ? 0 : 1 / sqrt(left);
        for (size_t i = 0; i < rows; i++)
            column[i] = (float)((double)column[i] * scale);
    }
}

static void settle(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   void *combined)
{
    if (round == 0)
        orthonormalise(key->rows, rank_of(options, key), combined);
}

static void decode(const lk_compression *options, const lk_compress_key *key,
                   const void *const *messages, size_t first, size_t count, float *out)
{
    lki_scan_best()->expand(key->rows, key->cols, rank_of(options, key), messages[0], messages[1],
                            first, count, out);
}

const lk_compressor lki_compressor_powersgd = {
    .name    = "powersgd",
    .text    = "two factors of low rank of a matrix",
    .combine = LK_COMBINE_TREE,
    .rounds  = 2,
    .bytes   = bytes,
    .begin   = begin,
    .part    = part,
    .encode  = encode,
    .settle  = settle,
    .decode  = decode,
};
