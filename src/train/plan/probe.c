/* probe.c -- what this machine takes for blocks and for updates, measured in small models.
 *
 * As many threads as workers would share a host each train the same small models at the same time,
 * so that what workers take from each other is in the times.  Each call of a block is timed by the
 * engine's hooks; of a block's times the median counts, and the workers' mean of these.  From all
 * blocks of a type its rates are fitted (lki_fit()).  What is rare for a block is not for a step,
 * which ends with its last worker: passes take as much more as the slowest one's mean passes did.
 * Updates are timed with a strategy of its own that has gradients of zeros, which nobody looks at.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>

#include "base/memory.h"
#include "base/pool.h"
#include "base/trace.h"
#include "lockstep/models.h"
#include "train/plan/predict.h"
#include "train/session.h"

enum {
    REPEATS_MIN = 5,
    REPEATS_MAX = 25,
    POINTS_MAX  = 1024,
    TENSOR      = 1 << 20,
    LARGE       = 4 << 20
};
#define PROBE_SECONDS 0.15
#define TICK 1e-9 /* no time is less: all are divided by */

/* ---- The small models -------------------------------------------------------------------- */

typedef struct {
    uint32_t         samples;
    lk_model_options options;
} probe_model;

#define GPT(m, layer_count, head_count, channels, places, words)                                   \
    {                                                                                              \
        m,                                                                                         \
        {                                                                                          \
            .layers = (layer_count), .heads = (head_count), .width = (channels), .tokens = true,   \
            .input = { 1, { places } }, .classes = (words)                                         \
        }                                                                                          \
    }
#define RESNET(m, layer_count, side, labels)                                                       \
    {                                                                                              \
        m,                                                                                         \
        {                                                                                          \
            .depth = (layer_count), .input = { 3, { side, side, 3 } }, .classes = (labels)         \
        }                                                                                          \
    }
#define MLP(m, in, first, second, labels)                                                          \
    {                                                                                              \
        m,                                                                                         \
        {                                                                                          \
            .input = { 1, { in } }, .hidden = { first, second }, .hidden_count = 2,                \
            .classes = (labels)                                                                    \
        }                                                                                          \
    }

static const probe_model gpts[] = {
    GPT(8, 1, 2, 72, 48, 97),    GPT(6, 2, 5, 160, 104, 390),   GPT(3, 1, 5, 320, 200, 1500),
    GPT(2, 1, 9, 576, 300, 640), GPT(3, 3, 11, 704, 40, 12000), GPT(1, 1, 7, 224, 640, 200),
    GPT(1, 1, 7, 448, 96, 5000), GPT(5, 1, 3, 96, 160, 300),    GPT(2, 1, 3, 192, 64, 40000),
};
static const probe_model resnets[] = {
    RESNET(14, 8, 20, 12), RESNET(3, 14, 28, 10), RESNET(40, 8, 12, 10),  RESNET(5, 8, 40, 10),
    RESNET(4, 18, 20, 10), RESNET(2, 18, 36, 90), RESNET(1, 18, 72, 900), RESNET(10, 18, 12, 20),
};
static const probe_model mlps[] = {
    MLP(24, 400, 96, 72, 12),    MLP(6, 1000, 300, 200, 20),  MLP(48, 640, 640, 400, 10),
    MLP(12, 1500, 900, 600, 90), MLP(100, 200, 240, 160, 30),
};

static const struct {
    const char        *name;
    const probe_model *models;
    size_t             count;
} families[] = {
    { "gpt", gpts, sizeof gpts / sizeof gpts[0] },
    { "resnet", resnets, sizeof resnets / sizeof resnets[0] },
    { "mlp", mlps, sizeof mlps / sizeof mlps[0] },
};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* ---- Values ------------------------------------------------------------------------------ */

static void fill_noise(float *to, size_t count, float center, float spread)
{
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        to[i] = center + spread * ((float)(state >> 8) / (float)(1 << 23) - 1);
    }
}

/* A model, and what all workers read. */
typedef struct {
    const lk_train_config *config;
    lk_model              *model;
    uint32_t               samples, block_count, param_count, state_count, term_count;
    const lk_param        *params;
    const lk_state        *states;
    const lk_grad_term    *terms;
    float                **values, **running;
    void                  *x;
    int32_t               *targets;
} subject;

static lk_status subject_input(subject *s, const lk_model_options *o)
{
    size_t count = s->samples * lk_shape_count(o->input);
    size_t rows  = (size_t)s->samples * lk_model_loss_rows(s->model);
    float *image = NULL;
    LK_TRY(LKI_NEW(&image, count, "a probe's input"));
    s->x = image;
    LK_TRY(LKI_NEW(&s->targets, rows, "a probe's targets"));
    for (size_t i = 0; i < rows; i++)
        s->targets[i] = (int32_t)(i * 7919 % o->classes);
    fill_noise(image, count, 0, 1);
    if (o->tokens)
        for (size_t i = 0; i < count; i++)
            ((int32_t *)s->x)[i] = (int32_t)(i * 104729 % o->classes);
    return LK_OK;
}

static lk_status subject_open(subject *s, const probe_model *probe, const lk_train_config *config)
{
    *s = (subject){ .config = config, .samples = probe->samples };
    LK_TRY(lk_model_build(&s->model, config->model, &probe->options));
    s->params      = lk_model_params(s->model, &s->param_count);
    s->states      = lk_model_states(s->model, &s->state_count);
    s->terms       = lk_model_terms(s->model, &s->term_count);
    s->block_count = lk_model_block_count(s->model);
    LK_TRY(LKI_NEW(&s->values, s->param_count, "a probe's parameters"));
    LK_TRY(LKI_NEW(&s->running, s->state_count + 1, "a probe's state"));
    for (uint32_t p = 0; p < s->param_count; p++) {
        size_t count = lk_shape_count(s->params[p].shape);
        LK_TRY(LKI_NEW(&s->values[p], count, "a probe's parameters"));
        fill_noise(s->values[p], count, s->params[p].init == LK_INIT_ONE, 0.05F);
    }
    for (uint32_t i = 0; i < s->state_count; i++) {
        LK_TRY(LKI_NEW(&s->running[i], s->states[i].count, "a probe's state"));
        fill_noise(s->running[i], s->states[i].count, s->states[i].initial, 0);
    }
    return subject_input(s, &probe->options);
}

static void free_rows(float **rows, uint32_t count)
{
    for (uint32_t i = 0; rows != NULL && i < count; i++)
        lki_free(rows[i]);
    lki_free(rows);
}

static void subject_close(subject *s)
{
    free_rows(s->values, s->param_count);
    free_rows(s->running, s->state_count);
    lki_free(s->x);
    lki_free(s->targets);
    lk_model_free(s->model);
}

/* ---- A worker ---------------------------------------------------------------------------- */

typedef struct probe probe;

/* The workers of one host: each its own thread, all doing the same. */
typedef struct crew crew;
struct crew {
    uint32_t          workers;
    pthread_barrier_t gate;
    uint32_t          repeats; /* the first worker says */
    const subject    *subject;
    lk_comm         **comms; /* of updates */
    size_t            elements;
    uint32_t          uses; /* of every parameter */
    probe            *probes;
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
    double    *times; /* (block, forward or backward, repeat); of updates: (repeat) */
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
    const subject *s = p->crew->subject;
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
    const subject *s     = p->crew->subject;
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

/* All agree how often, by what the first worker's first time took. */
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
        lk_parallel_report(parallel, 1, 1, 1, 0);
    return lk_parallel_finish(parallel, 1e-6, &result);
}

/* Parameters of TENSOR elements and what is left. */
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

    lk_parallel_options options = { .virtual_workers    = rounds * p->crew->workers,
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

/* Large ones vary less, and take longer. */
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

static void close_probe(probe *p, const subject *s)
{
    free_rows(p->grads, s->term_count);
    free_rows(p->sums, s->state_count);
    lki_free(p->times);
    lk_engine_free(p->engine);
    lk_exec_free(p->exec);
}

/* Every worker runs `main` at the same time: each blocks its thread until all are there, so none
 * runs two.  The probes are the caller's to close. */
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

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, uint32_t count)
{
    qsort(times, count, sizeof *times, by_value);
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
    lki_work        works[POINTS_MAX]; /* of the type that is being fitted */
    double          measured[POINTS_MAX];
    double          medians, slowest; /* of a pass over each model: blocks'; a worker's mean */
} calibrating;

static double mean_pass(probe *p)
{
    double sum = 0;
    for (p->repeat = 0; p->repeat < p->crew->repeats; p->repeat++)
        for (uint32_t b = 0; b < p->crew->subject->block_count; b++)
            sum += *time_at(p, b, false) + *time_at(p, b, true);
    return sum / p->crew->repeats;
}

static void add_points(calibrating *c, const subject *s)
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

static lk_status probe_blocks(calibrating *c, const probe_model *model,
                              const lk_train_config *config)
{
    subject   s;
    lk_status status = subject_open(&s, model, config);
    c->crew.subject  = &s;
    if (status == LK_OK) {
        status = run_crew(&c->crew, c->pool, time_blocks);
        if (status == LK_OK)
            add_points(c, &s);
        for (uint32_t i = 0; i < c->crew.workers; i++)
            close_probe(&c->crew.probes[i], &s);
    }
    subject_close(&s);
    return status;
}

static lk_status probe_update(calibrating *c, const lk_train_config *config, double elements,
                              uint32_t uses, double *seconds)
{
    subject none = { .config = config };
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

/* Sizes up to the first that is not far below what is planned, or the last. */
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

/* The type of the first point that is left, from all points of it, which are then taken out. */
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

/* ---- All of it --------------------------------------------------------------------------- */

static lk_status calibrate(calibrating *c, const lk_train_config *config, double planned)
{
    size_t f = 0;
    while (f < FAMILIES && strcmp(families[f].name, config->model) != 0)
        f++;
    if (f == FAMILIES)
        return lk_fail(LK_EINVAL, "there is nothing to measure of a model '%s'", config->model);
    LK_TRY(lki_pool_open(&c->pool, c->crew.workers));
    LK_TRY(LKI_NEW(&c->crew.probes, c->crew.workers, "probes"));
    LK_TRY(LKI_NEW(&c->crew.comms, c->crew.workers, "probes"));
    for (size_t i = 0; i < families[f].count; i++)
        LK_TRY(probe_blocks(c, &families[f].models[i], config));
    while (c->count > 0 && c->out->type_count < LKI_TYPES_MAX)
        fit_type(c);
    c->out->held = fmax(1, c->slowest / c->medians);
    LK_TRY(probe_updates(c, config, planned));
    return lki_probe_files(&c->out->files, config->offload);
}

/* As many as there are on a host, and as this one has cores for. */
static uint32_t workers_here(const lk_train_config *config, uint32_t hosts)
{
    uint32_t threads = config->threads > 0 ? config->threads : 1;
    uint32_t here    = (config->workers + hosts - 1) / hosts;
    long     cores   = sysconf(_SC_NPROCESSORS_ONLN) / (long)threads;
    return cores < 1 ? 1 : here < (uint32_t)cores ? here : (uint32_t)cores;
}

lk_status lk_calibrate(lk_calibration **out, lk_train_config *config, uint32_t hosts)
{
    calibrating  *c = NULL;
    lk_train_cost cost;
    *out = NULL;
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

void lk_calibration_free(lk_calibration *calibration)
{
    lki_free(calibration);
}
