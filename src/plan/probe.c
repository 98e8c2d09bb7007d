/* probe.c -- measures the times of blocks and updates on this machine, with small models.
 *
 * One thread per worker of a host trains the same small models at the same time, so the times
 * include the slowdown when workers share caches and memory.  The engine's hooks time each call of
 * a block.  The time of a block is the median of its calls, averaged over the workers.  lki_fit()
 * fits the rates of a type to all of its blocks.
 *
 * Delays that are rare for a block are frequent for a step, which ends with its slowest worker.
 * Predicted passes are therefore scaled by the slowest worker's mean pass over the sum of medians.
 * Updates are timed with a strategy whose gradients are zeros.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/pool.h"
#include "base/sort.h"
#include "base/trace.h"
#include "plan/predict.h"
#include "plan/subject.h"

enum {
    REPEATS_MIN = 5,
    REPEATS_MAX = 25,
    POINTS_MAX  = 1024,
    TENSOR      = 1 << 20,
    LARGE       = 4 << 20
};
#define PROBE_SECONDS 0.15
#define TICK 1e-9 /* lower bound of times used as divisors */

/* ---- A worker ---------------------------------------------------------------------------- */

typedef struct probe probe;

/* The workers of one host: one thread per worker, all running the same code. */
typedef struct crew crew;
struct crew {
    uint32_t           workers;
    pthread_barrier_t  gate;
    uint32_t           repeats; /* the first worker sets the number for all workers */
    const lki_subject *subject;
    lk_comm          **comms; /* communicators, for updates */
    size_t             elements;
    uint32_t           uses; /* number of uses of every parameter */
    probe             *probes;
    void (*main)(probe *probe);
};

struct probe {
    crew      *crew;
    uint32_t   number;
    lk_status  status;
    lk_error   error;
    lk_exec   *exec;
    lk_engine *engine;
    float    **grads, **sums;
    uint64_t   begun;
    uint32_t   repeat;
    double    *times; /* times of blocks by block, direction and repeat, or of updates by repeat */
};

static double *time_at(const probe *p, uint32_t block, bool backward)
{
    return &p->times[(2 * block + backward) * REPEATS_MAX + p->repeat];
}

static void before(void *user, uint32_t block)
{
    (void)block;
    ((probe *)user)->begun = lki_trace_now();
}

static void after_forward(void *user, uint32_t block)
{
    probe *p                  = user;
    *time_at(p, block, false) = 1e-9 * (double)(lki_trace_now() - p->begun);
}

static void after_backward(void *user, uint32_t block)
{
    probe *p                 = user;
    *time_at(p, block, true) = 1e-9 * (double)(lki_trace_now() - p->begun);
}

static lk_status exec_open(probe *p)
{
    const lk_train_config *c = p->crew->subject->config;
    LK_TRY(lk_exec_open(&p->exec, c->threads, c->isa));
    return c->onednn != NULL ? lk_exec_use_onednn(p->exec, c->onednn) : LK_OK;
}

static lk_status worker_open(probe *p)
{
    const lki_subject *s = p->crew->subject;
    LK_TRY(exec_open(p));
    LK_TRY(lk_engine_open(&p->engine, s->model, p->exec, s->config->precision, s->samples, 1));
    LK_TRY(LKI_NEW(&p->times, 2 * (size_t)s->block_count * REPEATS_MAX, "a probe's times"));
    LK_TRY(LKI_NEW(&p->grads, s->term_count, "a probe's gradients"));
    LK_TRY(LKI_NEW(&p->sums, s->state_count + 1, "a probe's state"));
    for (uint32_t t = 0; t < s->term_count; t++)
        LK_TRY(LKI_NEW(&p->grads[t], lk_shape_count(s->params[s->terms[t].param].shape),
                       "a probe's gradients"));
    for (uint32_t i = 0; i < s->state_count; i++)
        LK_TRY(LKI_NEW(&p->sums[i], s->states[i].count, "a probe's state"));
    return LK_OK;
}

static void pass_once(probe *p)
{
    const lki_subject *s     = p->crew->subject;
    const lk_hooks hooks = { .user            = p,
                             .before_forward  = before,
                             .after_forward   = after_forward,
                             .before_backward = before,
                             .after_backward  = after_backward };
    const lk_walk  walk  = { .training = true,
                             .params   = (const float *const *)s->values,
                             .state    = (const float *const *)s->running,
                             .hooks    = &hooks };
    lk_pass        pass  = { .samples    = s->samples,
                             .x          = s->x,
                             .targets    = s->targets,
                             .grads      = p->grads,
                             .state_sums = p->sums };
    lk_engine_forward(p->engine, &walk, &pass, 1);
    lk_engine_backward(p->engine, &walk, &pass, 1);
}

/* Sets the number of repeats, from the duration of the first worker's first pass. */
static void agree(probe *p, double seconds)
{
    if (p->number == 0)
        p->crew->repeats = (uint32_t)fmax(REPEATS_MIN, fmin(REPEATS_MAX, PROBE_SECONDS / seconds));
    (void)pthread_barrier_wait(&p->crew->gate);
}

static void time_blocks(probe *p)
{
    p->status = worker_open(p);
    p->error  = *lk_error_last();
    (void)pthread_barrier_wait(&p->crew->gate);
    uint64_t begun = lki_trace_now();
    if (p->status == LK_OK)
        pass_once(p);
    agree(p, 1e-9 * (double)(lki_trace_now() - begun));
    for (p->repeat = 0; p->status == LK_OK && p->repeat < p->crew->repeats; p->repeat++)
        pass_once(p);
}

/* ---- Updates ----------------------------------------------------------------------------- */

static lk_status step_once(lk_parallel *parallel, uint64_t step)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    LK_TRY(lk_parallel_begin(parallel, step));
    while (lk_parallel_next(parallel, &turn))
        lk_parallel_report(parallel, 0, 1, 1, 1, 0);
    return lk_parallel_finish(parallel, 1e-6, &result);
}

/* Describes a set of parameters with about TENSOR elements each. */
static lk_status describe(const probe *p, lk_param **params, lk_parallel_term **terms,
                          uint32_t *count)
{
    const crew *c = p->crew;
    *count        = (uint32_t)((c->elements + TENSOR - 1) / TENSOR);
    LK_TRY(LKI_NEW(params, *count, "a probe's parameters"));
    LK_TRY(LKI_NEW(terms, *count * c->uses, "a probe's parameters"));
    for (uint32_t i = 0; i < *count; i++) {
        size_t elements      = c->elements * (i + 1) / *count - c->elements * i / *count;
        (*params)[i]         = (lk_param){ .shape = { 1, { elements } }, .uses = c->uses };
        (*params)[i].name[0] = (char)('a' + i);
        for (uint32_t use = 0; use < c->uses; use++)
            (*terms)[i * c->uses + use] = (lk_parallel_term){ .param = i, .use = use };
    }
    return LK_OK;
}

static lk_status update_open(lk_parallel **out, const probe *p, const lk_train_config *c)
{
    uint32_t          count  = 0;
    lk_param         *params = NULL;
    lk_parallel_term *terms  = NULL;
    lk_status         status = describe(p, &params, &terms, &count);
    uint32_t          rounds = (c->virtual_workers + c->workers - 1) / c->workers;

    lk_parallel_options options = { .struct_size        = sizeof options,
                                    .virtual_workers    = rounds * p->crew->workers,
                                    .bucket_bytes       = c->bucket_bytes,
                                    .first_bucket_bytes = c->first_bucket_bytes,
                                    .optimizer          = c->optimizer,
                                    .clip_norm          = c->clip_norm,
                                    .exec               = p->exec,
                                    .terms              = terms,
                                    .term_count         = count * p->crew->uses };
    if (status == LK_OK)
        status = lk_parallel_open(out, p->crew->comms[p->number], params, count, &options);
    lki_free(params);
    lki_free(terms);
    return status;
}

/* Returns the number of repeats of an update.  Large updates need fewer: their times vary less. */
static uint32_t update_repeats(const crew *c)
{
    return c->elements > LARGE ? REPEATS_MIN : REPEATS_MAX;
}

static lk_status steps(probe *p)
{
    const lk_train_config *c        = p->crew->subject->config;
    lk_parallel           *parallel = NULL;
    LK_TRY(exec_open(p));
    LK_TRY(LKI_NEW(&p->times, REPEATS_MAX, "a probe's times"));
    lk_status status = update_open(&parallel, p, c);
    for (p->repeat = 0; status == LK_OK && p->repeat < update_repeats(p->crew); p->repeat++) {
        uint64_t begun      = lki_trace_now();
        status              = step_once(parallel, p->repeat);
        p->times[p->repeat] = 1e-9 * (double)(lki_trace_now() - begun);
    }
    lk_parallel_free(parallel);
    return status;
}

static void time_updates(probe *p)
{
    p->status = steps(p);
    p->error  = *lk_error_last();
    if (p->status != LK_OK)
        lk_comm_abort(p->crew->comms[p->number]);
}

/* ---- A crew ------------------------------------------------------------------------------ */

static void run_probe(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    crew *c = context;
    c->main(&c->probes[index]);
}

static void close_probe(probe *p, const lki_subject *s)
{
    lki_free_rows(p->grads, s->term_count);
    lki_free_rows(p->sums, s->state_count);
    lki_free(p->times);
    lk_engine_free(p->engine);
    lk_exec_free(p->exec);
}

/* Runs `main` once per worker, in parallel.  The caller closes the probes. */
static lk_status run_crew(crew *c, lki_pool *pool, void (*main)(probe *probe))
{
    c->main = main;
    for (uint32_t i = 0; i < c->workers; i++)
        c->probes[i] = (probe){ .crew = c, .number = i };
    lki_pool_run(pool, c->workers, run_probe, c);
    for (uint32_t i = 0; i < c->workers; i++)
        if (c->probes[i].status != LK_OK)
            return lk_fail(c->probes[i].status, "%s", c->probes[i].error.message);
    return LK_OK;
}

static double median(double *times, uint32_t count)
{
    qsort(times, count, sizeof *times, lki_by_value);
    return times[count / 2];
}

/* ---- From times to rates ----------------------------------------------------------------- */

typedef struct {
    const char *type;
    lki_work    work;
    double      forward, backward;
} point;

typedef struct {
    lk_calibration *out;
    crew            crew;
    lki_pool       *pool;
    size_t          count;
    point           points[POINTS_MAX];
    lki_work        works[POINTS_MAX]; /* of the type being fitted */
    double          measured[POINTS_MAX];
    double          medians, slowest; /* times of a pass, summed over models: by the median of each
                                       * block; by the mean of the slowest worker */
} calibrating;

static double mean_pass(probe *p)
{
    double sum = 0;
    for (p->repeat = 0; p->repeat < p->crew->repeats; p->repeat++)
        for (uint32_t b = 0; b < p->crew->subject->block_count; b++)
            sum += *time_at(p, b, false) + *time_at(p, b, true);
    return sum / p->crew->repeats;
}

static void add_points(calibrating *c, const lki_subject *s)
{
    const lki_place *places  = c->crew.probes[0].engine->layout.places;
    double           slowest = mean_pass(&c->crew.probes[0]);
    for (uint32_t i = 1; i < c->crew.workers; i++)
        slowest = fmax(slowest, mean_pass(&c->crew.probes[i]));
    c->slowest += slowest;
    for (uint32_t b = 0; b < s->block_count && c->count < POINTS_MAX; b++) {
        point *at = &c->points[c->count++];
        *at       = (point){ .type = s->model->blocks[b].type->name,
                             .work = lki_block_work(s->model, places, b, s->samples) };
        for (uint32_t i = 0; i < c->crew.workers; i++) {
            probe *p  = &c->crew.probes[i];
            p->repeat = 0;
            at->forward += median(time_at(p, b, false), c->crew.repeats) / c->crew.workers;
            at->backward += median(time_at(p, b, true), c->crew.repeats) / c->crew.workers;
        }
        c->medians += at->forward + at->backward;
    }
}

static lk_status probe_blocks(calibrating *c, const lki_probe_model *model,
                              const lk_train_config *config)
{
    lki_subject s;
    lk_status   status = lki_subject_open(&s, model, config);
    c->crew.subject  = &s;
    if (status == LK_OK) {
        status = run_crew(&c->crew, c->pool, time_blocks);
        if (status == LK_OK)
            add_points(c, &s);
        for (uint32_t i = 0; i < c->crew.workers; i++)
            close_probe(&c->crew.probes[i], &s);
    }
    lki_subject_close(&s);
    return status;
}

static lk_status probe_update(calibrating *c, const lk_train_config *config, double elements,
                              uint32_t uses, double *seconds)
{
    lki_subject none = { .config = config };
    LK_TRY(lk_comm_open_threads(c->crew.comms, c->crew.workers, NULL));
    c->crew.subject  = &none;
    c->crew.elements = (size_t)elements;
    c->crew.uses     = uses;
    lk_status status = run_crew(&c->crew, c->pool, time_updates);
    if (status == LK_OK)
        *seconds = median(c->crew.probes[0].times, update_repeats(&c->crew));
    for (uint32_t i = 0; i < c->crew.workers; i++) {
        close_probe(&c->crew.probes[i], &none);
        lk_comm_free(c->crew.comms[i]);
    }
    return status;
}

/* Measures updates of growing sizes, up to the first size that is at least `planned`. */
static lk_status probe_updates(calibrating *c, const lk_train_config *config, double planned)
{
    static const double sizes[LKI_SIZES_MAX] = { 1.3e5, 1.1e6, 6.1e6, 2.3e7 };
    lk_calibration     *out                  = c->out;
    double              twice                = 0;
    uint32_t            i                    = 0;
    do {
        out->elements[i] = sizes[i];
        LK_TRY(probe_update(c, config, sizes[i], 1, &out->update[i]));
        i++;
    } while (i < 2 || (i < LKI_SIZES_MAX && planned > sizes[i - 1]));
    out->size_count = i;
    LK_TRY(probe_update(c, config, sizes[i - 1], 2, &twice));
    out->again = fmax(0, twice - out->update[i - 1]) / sizes[i - 1];
    return LK_OK;
}

/* Fits the rates of one block type, that of the first remaining point, to all points of that type.
 * Then removes these points. */
static void fit_type(calibrating *c)
{
    lki_type_rates *type    = &c->out->types[c->out->type_count++];
    double          forward = 0, all = 0;
    size_t          count = 0, kept = 0;

    type->name = c->points[0].type;
    for (size_t i = 0; i < c->count; i++) {
        const point *p = &c->points[i];
        if (strcmp(p->type, type->name) != 0) {
            c->points[kept++] = *p;
            continue;
        }
        c->works[count]      = p->work;
        c->measured[count++] = fmax(p->forward + p->backward, TICK);
        forward += p->forward;
        all += p->forward + p->backward;
    }
    c->count      = kept;
    type->forward = all > 0 ? forward / all : 0;
    lki_fit(type->seconds, c->works, c->measured, count);
}

/* ---- Calibration ------------------------------------------------------------------------- */

static lk_status calibrate(calibrating *c, const lk_train_config *config, double planned)
{
    const lki_probe_family *family = lki_probe_family_of(config->model);
    if (family == NULL)
        return lk_fail(LK_EINVAL, "there is nothing to measure of a model '%s'", config->model);
    LK_TRY(lki_pool_open(&c->pool, c->crew.workers));
    LK_TRY(LKI_NEW(&c->crew.probes, c->crew.workers, "probes"));
    LK_TRY(LKI_NEW(&c->crew.comms, c->crew.workers, "probes"));
    for (size_t i = 0; i < family->count; i++)
        LK_TRY(probe_blocks(c, &family->models[i], config));
    while (c->count > 0 && c->out->type_count < LKI_TYPES_MAX)
        fit_type(c);
    c->out->held = fmax(1, c->slowest / c->medians);
    LK_TRY(probe_updates(c, config, planned));
    return lki_probe_files(&c->out->files, config->offload);
}

/* Returns the number of workers per host, limited by the cores of this machine. */
static uint32_t workers_here(const lk_train_config *config, uint32_t hosts)
{
    uint32_t threads = config->threads > 0 ? config->threads : 1;
    uint32_t here    = (config->workers + hosts - 1) / hosts;
    uint32_t cores   = lk_allowance_read().cores / threads;
    return cores < 1 ? 1 : here < cores ? here : cores;
}

static lk_status measure(lk_calibration **out, lk_train_config *config, uint32_t hosts)
{
    calibrating  *c = NULL;
    lk_train_cost cost;
    LK_TRY(lk_train_estimate(config, hosts, &cost));
    LK_TRY(LKI_NEW(&c, 1, "a calibration"));
    c->crew.workers  = workers_here(config, hosts);
    lk_status status = LKI_NEW(&c->out, 1, "a calibration");
    if (status == LK_OK && pthread_barrier_init(&c->crew.gate, NULL, c->crew.workers) != 0)
        status = lk_fail(LK_ENOMEM, "out of memory for what threads meet at");
    else if (status == LK_OK) {
        c->out->workers = c->crew.workers;
        status          = calibrate(c, config, (double)cost.parameters);
        (void)pthread_barrier_destroy(&c->crew.gate);
    }
    lki_pool_free(c->pool);
    lki_free(c->crew.probes);
    lki_free(c->crew.comms);
    if (status == LK_OK)
        *out = c->out;
    else
        lki_free(c->out);
    lki_free(c);
    return status;
}

lk_status lk_calibrate(lk_calibration **out, lk_train_config *config, uint32_t hosts)
{
    lk_train_config mine;

    *out = NULL;
    LK_TRY(lki_options_copy(&mine, sizeof mine, config, "lk_train_config"));
    lk_status status = measure(out, &mine, hosts);
    lki_options_return(config, &mine);
    return status;
}

void lk_calibration_free(lk_calibration *calibration)
{
    lki_free(calibration);
}
