/* cost.c -- the choice of the cheapest algorithm, with a cost model of four constants.
 *
 *      time = rounds * alpha + messages * omega + bytes sent * beta + bytes combined * gamma
 *
 * Ranks of one host share its network, so the bytes that they send to other hosts are added up.
 *
 * An algorithm reports its factors (lki_work) for its busiest rank.  With several segments, sending
 * and combining overlap, so the estimate is too high, but for all algorithms alike.  All ranks must
 * make the same choice.  The choice therefore depends only on common data: the problem, the
 * constants (rank 0's) and the options.
 *
 * An algorithm that is not exact is never chosen for a reduction.  The user may select it by name,
 * and its name is then part of the fingerprint of its operations.
 */
#include "comm/algorithm/cost.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/algorithm/schedule.h"

enum { FILE_BYTES_MAX = 64 << 10 }; /* size limit of a file; constants with comments need less than
                                     * a page */

/* The assumed constants: a network of 10 Gbit/s, the kernel's overhead, and one core that sums. */
static const lki_model assumed = { 40e-6, 4e-6, 1e-9, 0.15e-9 };

/* ---- Forcing an algorithm by name -------------------------------------------------------- */

typedef struct {
    const char *name;
    lki_op_kind kind, uneven;
    bool        divided;
} op_row;

static const op_row rows[] = {
    { "barrier", LKI_OP_BARRIER, LKI_OP_BARRIER, false },
    { "broadcast", LKI_OP_BROADCAST, LKI_OP_BROADCAST, false },
    { "all_gather", LKI_OP_ALL_GATHER, LKI_OP_ALL_GATHER_V, true },
    { "all_gather_v", LKI_OP_ALL_GATHER_V, LKI_OP_ALL_GATHER_V, true },
    { "gather", LKI_OP_GATHER, LKI_OP_GATHER, true },
    { "scatter", LKI_OP_SCATTER, LKI_OP_SCATTER, true },
    { "all_to_all", LKI_OP_ALL_TO_ALL, LKI_OP_ALL_TO_ALL_V, true },
    { "all_to_all_v", LKI_OP_ALL_TO_ALL_V, LKI_OP_ALL_TO_ALL_V, true },
    { "reduce", LKI_OP_REDUCE, LKI_OP_REDUCE, false },
    { "all_reduce", LKI_OP_ALL_REDUCE, LKI_OP_ALL_REDUCE, false },
    { "reduce_scatter", LKI_OP_REDUCE_SCATTER, LKI_OP_REDUCE_SCATTER_V, true },
    { "tree_reduce", LKI_OP_TREE_REDUCE, LKI_OP_TREE_REDUCE, false },
    { "reduce_scatter_v", LKI_OP_REDUCE_SCATTER_V, LKI_OP_REDUCE_SCATTER_V, true },
};
enum { ROWS = sizeof rows / sizeof rows[0] };

_Static_assert((int)LKI_OP_MESSAGE < (int)LKI_TUNING_OPS, "every operation has a place");

static bool is(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

static bool can(const lki_method *method, lki_op_kind kind, const lki_problem *here)
{
    lki_problem some = { .size = 4, .each = 2, .dtype = LK_F32, .width = 4, .bytes = 4,
                         .window = 4, .native = true };

    if (here != NULL)
        some = *here;
    some.kind = kind;
    return method->can(&some);
}

/* Returns an error with the reason and a list of the supported algorithms. */
static lk_status refuse(const op_row *row, const char *name, size_t length,
                        const lki_problem *here)
{
    char   names[160] = "", where[80] = "";
    size_t used       = 0;

    for (size_t k = 0; lki_methods[k] != NULL; k++)
        if (can(lki_methods[k], row->kind, here) && used < sizeof names - 24)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                     used == 0 ? "" : ", ", lki_methods[k]->name);
    if (here != NULL)
        (void)snprintf(where, sizeof where,
                       here->each > 1 ? " among %u ranks, %u on each host"
                                      : " where hosts do not have equally many ranks, two at least",
                       here->size, here->each);
    return lk_fail(LK_EINVAL, "algorithms: %s has no \"%.*s\"%s, but %s", row->name,
                   (int)lki_min(length, 100), name, where, names);
}

/* Parses one "operation:algorithm" of `length` characters. */
static lk_status force(lki_tuning *t, const char *text, size_t length, const lki_problem *here)
{
    const char *colon  = memchr(text, ':', length);
    size_t      before = colon == NULL ? length : (size_t)(colon - text), row = 0, method = 0;

    while (row < ROWS && !is(rows[row].name, text, before))
        row++;
    if (colon == NULL || row == ROWS)
        return lk_fail(LK_EINVAL, "algorithms: \"%.*s\" should be OPERATION:ALGORITHM, such as "
                       "all_reduce:halving", (int)lki_min(length, 100), text);
    size_t after = length - before - 1;
    while (lki_methods[method] != NULL && !is(lki_methods[method]->name, colon + 1, after))
        method++;
    if (lki_methods[method] == NULL || !can(lki_methods[method], rows[row].kind, NULL))
        return refuse(&rows[row], colon + 1, after, NULL);
    if (lki_methods[method] == &lki_method_native && !t->native)
        return lk_fail(LK_EUNSUPPORTED, "algorithms: %s:native is a collective of MPI, which only "
                       "communicators of lk_comm_open_mpi() have", rows[row].name);
    if (here != NULL && !can(lki_methods[method], rows[row].kind, here))
        return refuse(&rows[row], colon + 1, after, here);
    t->forced[rows[row].kind] = t->forced[rows[row].uneven] = lki_methods[method];
    return LK_OK;
}

lk_status lki_tuning_force(lki_tuning *tuning, const char *text, const lki_problem *here)
{
    lki_tuning next = *tuning;

    memset(next.forced, 0, sizeof next.forced);
    while (text != NULL && *text != '\0') {
        size_t length = strcspn(text, ",");
        LK_TRY(force(&next, text, length, here));
        text += length + (text[length] == ',');
    }
    *tuning = next;
    return LK_OK;
}

void lki_tuning_forget(lki_tuning *tuning)
{
    tuning->model     = assumed;
    tuning->cores     = 0;
    tuning->of_a_file = false;
}

lk_status lki_tuning_init(lki_tuning *out, const lk_comm_options *options, uint32_t rank)
{
    *out = (lki_tuning){ .model     = assumed,
                         .of_a_file = options != NULL && options->tuning != NULL };
    if (options == NULL)
        return lki_tuning_force(out, NULL, NULL);
    LK_TRY(lki_tuning_force(out, options->algorithms, NULL));
    (void)snprintf(out->source, sizeof out->source, "those of a network of 10 Gbit/s");
    if (options->cache != NULL && strlen(options->cache) < 400)
        (void)snprintf(out->cache, sizeof out->cache, "%s", options->cache);
    if (!out->of_a_file || rank != 0)
        return LK_OK;
    (void)snprintf(out->source, sizeof out->source, "of %.400s", options->tuning);
    return lki_model_read(&out->given, options->tuning);
}

lk_status lki_tuning_find(uint32_t *kind, bool *divided, const char *name)
{
    for (size_t row = 0; row < ROWS; row++)
        if (strcmp(rows[row].name, name) == 0) {
            *kind    = rows[row].kind;
            *divided = rows[row].divided;
            return LK_OK;
        }
    return lk_fail(LK_EINVAL, "%.100s is no operation that has algorithms", name);
}

/* ---- Choosing ---------------------------------------------------------------------------- */

bool lki_tuning_sums(uint32_t kind)
{
    return kind == LKI_OP_ALL_REDUCE || kind == LKI_OP_REDUCE || kind == LKI_OP_REDUCE_SCATTER ||
           kind == LKI_OP_REDUCE_SCATTER_V || kind == LKI_OP_TREE_REDUCE;
}

bool lki_tuning_divides(uint32_t kind)
{
    for (size_t row = 0; row < ROWS; row++)
        if (rows[row].kind == kind)
            return rows[row].divided;
    return false;
}

/* Returns the seconds for `times` operations that share the cores of all ranks.  The work of one
 * operation takes `all` seconds on one core. */
static double share_of(const lki_tuning *tuning, const lki_problem *problem, double all,
                       double times)
{
    double cores = tuning->cores > 0 ? tuning->cores : problem->size * times;
    return all * times / cores;
}

/* Returns the estimated seconds of an algorithm.  Ranks of one host share its network, so the bytes
 * that they send to other hosts are added up. */
static double seconds_of(const lki_tuning *tuning, const lki_method *method,
                         const lki_problem *problem, double times)
{
    const lki_model *m = &tuning->model;
    double           each = problem->each, size = problem->size;
    double           share = each > 1 && size > each ? each * (size - each) / (size - 1) : times;

    if (problem->kind == LKI_OP_TREE_REDUCE)
        share = 1; /* its work counts the bytes of a host */
    if (method->seconds != NULL)
        return method->seconds(tuning, problem);
    lki_work w = method->work(problem);
    return w.rounds * m->alpha + w.combined * m->gamma +
           fmax(w.messages, share_of(tuning, problem, w.all_messages, times)) * m->omega +
           fmax(w.bytes * share, share_of(tuning, problem, w.all_bytes, times)) * m->beta;
}

double lki_tuning_seconds(const lki_tuning *tuning, const lki_method *method,
                          const lki_problem *problem)
{
    return seconds_of(tuning, method, problem, 1);
}

/* Returns true if a tree_reduce would send more bytes than by direct.  It then does so only on
 * request, so that plans of the bytes of gradients hold (parallel/estimate). */
static bool sends_more(const lki_method *method, const lki_problem *problem)
{
    return problem->kind == LKI_OP_TREE_REDUCE &&
           method->work(problem).all_bytes > lki_method_direct.work(problem).all_bytes;
}

static const lki_method *cheapest(const lki_tuning *tuning, const lki_problem *problem,
                                  double times, double *least)
{
    const lki_method *best = NULL;

    for (size_t i = 0; lki_methods[i] != NULL; i++) {
        const lki_method *method = lki_methods[i];
        if (!method->can(problem) || method->asked ||
            (!method->exact && lki_tuning_sums(problem->kind)) || sends_more(method, problem))
            continue;
        double seconds = seconds_of(tuning, method, problem, times);
        if (best == NULL || seconds < *least) {
            best   = method;
            *least = seconds;
        }
    }
    LK_ASSERT(best != NULL);
    return best;
}

double lki_tuning_least(const lki_tuning *tuning, const lki_problem *problem, double times)
{
    double seconds = 0;

    (void)cheapest(tuning, problem, times, &seconds);
    return seconds;
}

const lki_method *lki_tuning_choose(const lki_tuning *tuning, const lki_problem *problem)
{
    const lki_method *forced  = tuning->forced[problem->kind];
    double            seconds = 0;

    return forced != NULL && forced->can(problem) ? forced
                                                  : cheapest(tuning, problem, 1, &seconds);
}

/* ---- Files of constants ------------------------------------------------------------------ */

static const char *const names[4] = { "alpha", "omega", "beta", "gamma" };

static double *constant(lki_model *m, size_t i)
{
    double *const constants[4] = { &m->alpha, &m->omega, &m->beta, &m->gamma };
    return constants[i];
}

/* Reads one line, which sets a constant.  Sets the bit of this constant in *found. */
static lk_status read_line(lki_model *out, const char *line, const char *path, unsigned number,
                           unsigned *found)
{
    char *end;

    for (size_t i = 0; i < 4; i++) {
        size_t length = strlen(names[i]);
        if (strncmp(line, names[i], length) != 0 || line[length] != ' ')
            continue;
        double value = strtod(line + length, &end);
        if (end == line + length || *end != '\0' || !(value > 0 && value < 10))
            break;
        *constant(out, i) = value;
        *found |= 1u << i;
        return LK_OK;
    }
    return lk_fail(LK_EFORMAT, "%s:%u: expected alpha, omega, beta or gamma and its seconds", path,
                   number);
}

lk_status lki_model_parse(lki_model *out, unsigned *found, const char *text, size_t bytes,
                          const char *path)
{
    unsigned number = 0;

    *out   = assumed;
    *found = 0;
    for (const char *at = text, *end = text + bytes; at < end;) {
        char        line[200] = "";
        const char *stop      = memchr(at, '\n', (size_t)(end - at));
        size_t      length    = (size_t)((stop != NULL ? stop : end) - at);
        number++;
        if (length > 0 && *at != '#') {
            if (length < sizeof line && memchr(at, '\0', length) == NULL)
                memcpy(line, at, length); /* a longer line, or one with a zero byte, is rejected
                                           * below */
            LK_TRY(read_line(out, line, path, number, found));
        }
        at += length + 1;
    }
    return LK_OK;
}

/* Reads a regular file.  Any other file could block the reader or be endless. */
static lk_status read_model(lki_model *out, const char *path, unsigned *found)
{
    lki_map   map;
    lk_status st = lki_map_open(&map, path);

    if (st != LK_OK)
        return lk_fail(st, "tuning file: %.400s", lk_error_last()->message);
    st = map.bytes <= FILE_BYTES_MAX
             ? lki_model_parse(out, found, (const char *)map.data, map.bytes, path)
             : lk_fail(LK_EFORMAT, "%.400s is no tuning file: it has %zu bytes", path, map.bytes);
    lki_map_close(&map);
    return st;
}

lk_status lki_model_read(lki_model *out, const char *path)
{
    unsigned found;

    return read_model(out, path, &found);
}

lk_status lk_comm_read_tuning(const char *path, double *latency, double *bandwidth)
{
    lki_model constants;

    LK_TRY(lki_check_given("read_tuning", "path", path, 1));
    LK_TRY(lki_model_read(&constants, path));
    *latency   = constants.alpha;
    *bandwidth = 1 / constants.beta;
    return LK_OK;
}

lk_status lki_model_read_whole(lki_model *out, const char *path)
{
    unsigned found;

    LK_TRY(read_model(out, path, &found));
    return found == LKI_MODEL_WHOLE ? LK_OK
                                    : lk_fail(LK_EFORMAT, "%s is not whole: it should have alpha, "
                                              "omega, beta and gamma", path);
}

lk_status lki_model_write(const lki_model *model, const char *path)
{
    lki_model   copy = *model;
    struct stat about;
    char        fresh[PATH_MAX];

    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return lk_fail(LK_EIO, "tuning file %s: there is something that is no regular file", path);
    (void)snprintf(fresh, sizeof fresh, "%.4000s.%d", path, (int)getpid());
    FILE *file = fopen(fresh, "we");
    if (file == NULL)
        return lk_fail(LK_EIO, "tuning file %s: %s", path, strerror(errno));
    bool good = fputs("# seconds: a message, one more at once, a byte sent, a byte summed\n", file)
                >= 0;
    for (size_t i = 0; i < 4; i++)
        good = fprintf(file, "%s %.4g\n", names[i], *constant(&copy, i)) > 0 && good;
    if (fclose(file) == 0 && good && rename(fresh, path) == 0)
        return LK_OK;
    int why = errno;
    (void)unlink(fresh);
    return lk_fail(LK_EIO, "tuning file %s cannot be written: %s", path, strerror(why));
}
