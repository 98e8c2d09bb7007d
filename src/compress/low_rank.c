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
 * Cost:    three passes over the matrix, and one over it to decode.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
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

/* ---- Products ---------------------------------------------------------------------------- */

static float sum_lanes(float *lanes)
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}

static float dot(size_t count, const float *x, const float *y)
{
    float  lanes[LANES] = { 0 };
    size_t i            = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] += x[i + l] * y[i + l];
    for (size_t l = 0; i + l < count; l++)
        lanes[l] += x[i + l] * y[i + l];
    return sum_lanes(lanes);
}

/* p = M q */
static void multiply(const lk_compress_key *key, uint32_t rank, const float *m, const float *q,
                     float *p)
{
    for (size_t i = 0; i < key->rows; i++)
        for (uint32_t a = 0; a < rank; a++)
            p[a * key->rows + i] = dot(key->cols, m + i * key->cols, q + a * key->cols);
}

/* q = Mt p */
static void multiply_turned(const lk_compress_key *key, uint32_t rank, const float *m,
                            const float *p, float *q)
{
    memset(q, 0, rank * key->cols * sizeof *q);
    for (size_t i = 0; i < key->rows; i++)
        for (uint32_t a = 0; a < rank; a++) {
            const float  factor = p[a * key->rows + i];
            const float *row    = m + i * key->cols;
            float       *to     = q + a * key->cols;
            for (size_t j = 0; j < key->cols; j++)
                to[j] += factor * row[j];
        }
}

/* Writes elements [first, first + count) of row `i` of p qt. */
static void expand(const lk_compress_key *key, uint32_t rank, const float *p, const float *q,
                   size_t i, size_t first, size_t count, float *out)
{
    memset(out, 0, count * sizeof *out);
    for (uint32_t a = 0; a < rank; a++) {
        const float  factor = p[a * key->rows + i];
        const float *from   = q + a * key->cols + first;
        for (size_t j = 0; j < count; j++)
            out[j] += factor * from[j];
    }
}

/* m = m - p qt */
static void subtract(const lk_compress_key *key, uint32_t rank, const float *p, const float *q,
                     float *m)
{
    enum { PIECE = 512 };
    float said[PIECE];
    for (size_t i = 0; i < key->rows; i++)
        for (size_t j = 0; j < key->cols; j += PIECE) {
            size_t n  = lki_min(PIECE, key->cols - j);
            float *to = m + i * key->cols + j;
            expand(key, rank, p, q, i, j, n, said);
            for (size_t k = 0; k < n; k++)
                to[k] -= said[k];
        }
}

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const void *before, float *values, void *message)
{
    const uint32_t rank = rank_of(options, key);
    if (round == 0) {
        multiply(key, rank, values, before, message);
        return;
    }
    multiply_turned(key, rank, values, before, message);
    subtract(key, rank, before, message, values);
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
    const uint32_t rank = rank_of(options, key);
    for (size_t done = 0; done < count;) {
        size_t i = (first + done) / key->cols, j = (first + done) % key->cols;
        size_t n = lki_min(count - done, key->cols - j);
        expand(key, rank, messages[0], messages[1], i, j, n, out + done);
        done += n;
    }
}

const lk_compressor lki_compressor_powersgd = {
    .name    = "powersgd",
    .text    = "two factors of low rank of a matrix",
    .combine = LK_COMBINE_TREE,
    .rounds  = 2,
    .bytes   = bytes,
    .begin   = begin,
    .encode  = encode,
    .settle  = settle,
    .decode  = decode,
};
