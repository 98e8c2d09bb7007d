/* delays.c -- times of tasks from a file (--delays trace:FILE), and by tokens (--delays tokens).
 *
 * A file has one time in a line, and behind it the number of the group that it is for, or none for
 * a time of all groups.  A group uses its own times in order, and after the last one the first
 * again.  The groups without times of their own use those of all groups in turn: group g of G takes
 * number c G + g for its task c.  Times are divided by their mean, so their unit does not matter.
 *
 * The tokens of a task are known without reading data: a data set has the lengths of its documents,
 * and the order of samples is a function of the seed (data/sampler.h).  Other samples are equally
 * long, so that they count as one each.
 */
#include "train/core/delays.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "data/sampler.h"

enum { LINE_MOST = 96, ROWS_LEAST = 8, ROW_TASKS = 512 };

/* The smallest time of a file, relative to their mean. */
static const double SHARE_LEAST = 1e-6;

#define ALL_GROUPS UINT32_MAX

/* A time of a file. */
typedef struct {
    double   time;
    uint32_t group; /* or ALL_GROUPS */
} entry;

/* The times of a file, in the order of groups, of which the last is ALL_GROUPS. */
typedef struct {
    size_t *first; /* [groups + 3]: number of times before those of a group; scratch */
    double *times;
} trace;

/* The tokens of the tasks of some steps. */
typedef struct {
    lki_sampler sampler;
    uint64_t   *indices; /* [micro_batch] */
    uint32_t    rows;
    uint64_t   *steps;   /* [rows]: 1 + the step in a row; 0: none */
    double     *sizes;   /* [rows][groups]: relative to full tasks */
    uint32_t    width, micro_count;
    double      full;    /* tokens of a full task */
} tokens;

struct lki_delays {
    uint32_t groups;
    bool     traced;
    trace    trace;
    tokens   tokens;
};

/* ---- A file ------------------------------------------------------------------------------- */

/* The place of a line, for messages. */
typedef struct {
    const char *path;
    size_t      line;
} place;

static lk_status parse_group(entry *out, const char *text, uint32_t groups, const place *at)
{
    char                    *end;
    const unsigned long long group = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0')
        return lk_fail(LK_EFORMAT, "'%s', line %zu: '%s' is no number of a group; a line is a "
                                   "time, and behind it a group or nothing", at->path, at->line,
                       text);
    if (group >= groups)
        return lk_fail(LK_EFORMAT, "'%s', line %zu: there is no group %llu; the %u groups are "
                                   "numbered from 0", at->path, at->line, group, groups);
    out->group = (uint32_t)group;
    return LK_OK;
}

static lk_status parse_time(entry *out, const char *text, const place *at)
{
    char *end;
    out->time = strtod(text, &end);
    if (*end != '\0' || strspn(text, "0123456789+-.eE") != strlen(text))
        return lk_fail(LK_EFORMAT, "'%s', line %zu: '%s' is no time", at->path, at->line, text);
    if (!(out->time > 0) || isinf(out->time))
        return lk_fail(LK_EFORMAT, "'%s', line %zu: a time of %s; times are above 0 and finite",
                       at->path, at->line, text);
    return LK_OK;
}

/* Parses a line without its comment.  *there becomes false if it has no time. */
static lk_status parse_line(entry *out, bool *there, char *line, uint32_t groups, const place *at)
{
    static const char space[] = " \t\r";
    char             *rest;
    const char *time  = strtok_r(line, space, &rest);
    const char *group = time != NULL ? strtok_r(NULL, space, &rest) : NULL;
    const char *more  = group != NULL ? strtok_r(NULL, space, &rest) : NULL;
    *there     = time != NULL;
    out->group = ALL_GROUPS;
    if (time == NULL)
        return LK_OK;
    LK_TRY(parse_time(out, time, at));
    if (more != NULL)
        return lk_fail(LK_EFORMAT, "'%s', line %zu: '%s' is too much; a line is a time, and behind "
                                   "it a group or nothing", at->path, at->line, more);
    return group != NULL ? parse_group(out, group, groups, at) : LK_OK;
}

/* Reads the entries of a file. */
static lk_status read_entries(const lki_map *map, const char *path, uint32_t groups,
                              entry **entries, size_t *count)
{
    const char *data     = (const char *)map->data;
    size_t      capacity = 0;
    place       at       = { path, 0 };
    for (size_t next = 0, begin = 0; begin < map->bytes; begin = next + 1) {
        char   line[LINE_MOST];
        entry  one;
        bool   there;
        const char  *end = memchr(data + begin, '\n', map->bytes - begin);
        next = end != NULL ? (size_t)(end - data) : map->bytes;
        const char  *comment = memchr(data + begin, '#', next - begin);
        const size_t length  = (comment != NULL ? (size_t)(comment - data) : next) - begin;
        at.line++;
        if (length >= sizeof line || memchr(data + begin, '\0', length) != NULL)
            return lk_fail(LK_EFORMAT, "'%s', line %zu: this is no line of a text with a time",
                           path, at.line);
        memcpy(line, data + begin, length);
        line[length] = '\0';
        LK_TRY(parse_line(&one, &there, line, groups, &at));
        if (!there)
            continue;
        LK_TRY(lki_reserve((void **)entries, &capacity, *count, sizeof one, "times of tasks"));
        (*entries)[(*count)++] = one;
    }
    return *count > 0 ? LK_OK : lk_fail(LK_EFORMAT, "'%s' has no times of tasks", path);
}

/* Sorts the entries by group, and divides them by their mean. */
static lk_status sort_entries(trace *out, const entry *entries, size_t count, const char *path,
                              uint32_t groups)
{
    double sum = 0, least = HUGE_VAL;
    LK_TRY(LKI_NEW(&out->first, (size_t)groups + 3, "times of tasks"));
    LK_TRY(LKI_NEW(&out->times, count, "times of tasks"));
    for (size_t i = 0; i < count; i++) {
        sum += entries[i].time;
        least = fmin(least, entries[i].time);
        out->first[lki_min(entries[i].group, groups) + 2]++;
    }
    if (!isfinite(sum) || !(least / (sum / (double)count) >= SHARE_LEAST))
        return lk_fail(LK_EFORMAT, "'%s': a time of %g is less than a millionth of the mean, which "
                                   "is %g; correct it, or leave it out",
                       path, least, sum / (double)count);
    for (uint32_t g = 0; g <= groups; g++)
        out->first[g + 2] += out->first[g + 1];
    for (size_t i = 0; i < count; i++) /* moves the beginning of each group to its end */
        out->times[out->first[lki_min(entries[i].group, groups) + 1]++] =
            entries[i].time / (sum / (double)count);
    return LK_OK;
}

static size_t count_of(const trace *t, uint32_t group)
{
    return t->first[group + 1] - t->first[group];
}

static lk_status read_trace(trace *out, const char *path, uint32_t groups, char hash[17])
{
    lki_map    map;
    lki_sha256 sum;
    entry     *entries = NULL;
    size_t     count   = 0;
    char       hex[65];

    LK_TRY(lki_map_open(&map, path));
    lki_sha256_begin(&sum);
    lki_sha256_add(&sum, map.data, map.bytes);
    lki_sha256_end(&sum, hex);
    (void)snprintf(hash, 17, "%.16s", hex);
    lk_status status = read_entries(&map, path, groups, &entries, &count);
    if (status == LK_OK)
        status = sort_entries(out, entries, count, path, groups);
    lki_free(entries);
    lki_map_close(&map);
    for (uint32_t g = 0; status == LK_OK && g < groups; g++)
        if (count_of(out, g) == 0 && count_of(out, groups) == 0)
            status = lk_fail(LK_EFORMAT, "'%s' has no time of group %u, and none of all groups",
                             path, g);
    return status;
}

static void free_trace(trace *t)
{
    lki_free(t->first);
    lki_free(t->times);
}

lk_status lki_trace_check(lk_train_config *c)
{
    lk_train_async *a    = &c->exchange.async;
    trace           read = { .first = NULL };
    if (a->delays != LK_DELAYS_GIVEN || a->trace == NULL)
        return LK_OK;
    const lk_status status = read_trace(&read, a->trace, c->exchange.groups, a->trace_hash);
    free_trace(&read);
    if (status == LK_OK)
        return LK_OK;
    const lk_error why = *lk_error_last();
    return lk_fail(why.status, "`exchange.async.delays`: %.1000s", why.message);
}

static lk_status open_trace(lki_delays *d, const lk_train_config *c)
{
    const lk_train_async *a = &c->exchange.async;
    char                  hash[17];
    LK_TRY(read_trace(&d->trace, a->trace, d->groups, hash));
    return strcmp(hash, a->trace_hash) == 0
               ? LK_OK
               : lk_fail(LK_EIO, "'%s' has changed since the run began", a->trace);
}

static double trace_time(const lki_delays *d, uint32_t group, uint64_t clock)
{
    const trace *t = &d->trace;
    if (count_of(t, group) > 0)
        return t->times[t->first[group] + clock % count_of(t, group)];
    return t->times[t->first[d->groups] + (clock * d->groups + group) % count_of(t, d->groups)];
}

/* ---- Tokens ------------------------------------------------------------------------------- */

static lk_status open_tokens(lki_delays *d, const lk_train_config *c, const lk_dataset *dataset)
{
    const lk_dataset_info  *data    = lk_dataset_describe(dataset);
    tokens                 *t       = &d->tokens;
    const lk_loader_options options = { .struct_size     = sizeof options,
                                        .seed            = c->seed,
                                        .global_batch    = c->global_batch,
                                        .micro_batch     = c->micro_batch,
                                        .virtual_workers = c->virtual_workers,
                                        .drop_last       = c->drop_last,
                                        .order           = c->data.order };
    t->width       = c->virtual_workers / d->groups;
    t->micro_count = c->global_batch / c->virtual_workers / c->micro_batch;
    t->full        = (double)t->width * t->micro_count * c->micro_batch *
              (data->documents ? (double)lk_shape_count(data->x) : 1);
    t->rows = ROWS_LEAST + ROW_TASKS / d->groups;
    LK_TRY(LKI_NEW(&t->indices, c->micro_batch, "tokens of tasks"));
    LK_TRY(LKI_NEW(&t->steps, t->rows, "tokens of tasks"));
    LK_TRY(LKI_NEW(&t->sizes, (size_t)t->rows * d->groups, "tokens of tasks"));
    return lki_sampler_open(&t->sampler, dataset, &options);
}

/* Returns the tokens of a virtual worker in a step; without documents its samples. */
static uint64_t count_tokens(tokens *t, const lk_step_span *span, uint32_t v)
{
    const lk_dataset *dataset = t->sampler.dataset;
    const bool        varies  = lk_dataset_describe(dataset)->documents;
    uint64_t          sum     = 0;
    for (uint32_t m = 0; m < t->micro_count; m++) {
        const uint32_t count = lki_sampler_take(&t->sampler, span, v, m, t->indices);
        for (uint32_t i = 0; i < count; i++)
            sum += varies ? lk_dataset_length(dataset, false, t->indices[i]) : 1;
    }
    return sum;
}

/* Returns the sizes of a step's tasks.  Two simulations ask for those of several steps at a time
 * (parallel/versions), so some steps are kept. */
static const double *sizes_of(lki_delays *d, uint64_t step)
{
    tokens  *t     = &d->tokens;
    uint64_t row   = step % t->rows;
    double  *sizes = t->sizes + row * d->groups;
    if (t->steps[row] == step + 1)
        return sizes;
    const lk_step_span span = lki_sampler_step(&t->sampler, step);
    for (uint32_t g = 0; g < d->groups; g++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < t->width; i++)
            sum += count_tokens(t, &span, g * t->width + i);
        sizes[g] = (double)sum / t->full;
    }
    t->steps[row] = step + 1;
    return sizes;
}

bool lki_tokens_are_equal(const lk_train_config *c, const lk_dataset_info *data, bool *last)
{
    const uint64_t positions = lk_epoch_positions(c->data.order, data->train_count,
                                                  c->virtual_workers, c->drop_last);
    *last = !c->drop_last && positions % c->global_batch != 0;
    return !data->documents;
}

/* ---- Both --------------------------------------------------------------------------------- */

lk_status lki_delays_open(lki_delays **out, const lk_train_config *c, const lk_dataset *dataset)
{
    *out = NULL;
    if (!lki_is_async(c) || c->exchange.async.delays != LK_DELAYS_GIVEN)
        return LK_OK;
    LK_TRY(LKI_NEW(out, 1, "times of tasks"));
    (*out)->groups         = c->exchange.groups;
    (*out)->traced         = c->exchange.async.trace != NULL;
    const lk_status status = (*out)->traced ? open_trace(*out, c) : open_tokens(*out, c, dataset);
    if (status == LK_OK)
        return LK_OK;
    lki_delays_close(*out);
    *out = NULL;
    return status;
}

void lki_delays_close(lki_delays *d)
{
    if (d == NULL)
        return;
    free_trace(&d->trace);
    if (!d->traced)
        lki_sampler_close(&d->tokens.sampler);
    lki_free(d->tokens.indices);
    lki_free(d->tokens.steps);
    lki_free(d->tokens.sizes);
    lki_free(d);
}

double lki_delays_time(void *delays, uint32_t group, uint64_t clock, uint64_t task)
{
    lki_delays *d = delays;
    return d->traced ? trace_time(d, group, clock)
                     : sizes_of(d, task / d->groups)[task % d->groups];
}
