/* trained_evaluate.c -- evaluates a trained model on data, each sample once, on several workers.
 *
 * The samples are divided into as many slices as the run had virtual workers.  A worker is a thread
 * with an engine of its own, and takes slice after slice.  The rows of a slice are summed in order,
 * and the slices by the canonical tree, so the bits are the same for any number of workers, and for
 * the run's own validation part those of the evaluation in the run (evaluate.c).
 */
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/float.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/pool.h"
#include "data/batch.h"
#include "lockstep/tokenizer.h"
#include "tensor/ops.h"
#include "train/core/identity.h"
#include "train/loop/loop.h"
#include "train/loop/trained_data.h"

enum { SLICES = 64, BATCH = 8 }; /* for a model without the configuration of a run */
enum { CONTEXT_MOST = 1024 };    /* unless it is given */

typedef struct {
    double         loss, count, hits, bytes;
    lki_error_sums errors;
} sums;

typedef struct {
    lk_exec   *exec;
    lk_engine *engine;
    void      *x;
    int32_t   *y;
    uint64_t  *indices;
} worker;

typedef struct {
    const lk_evaluate_options *options;
    lki_trained                trained;
    lk_tokenizer              *tokenizer; /* NULL: none */
    lk_dataset                *dataset;
    lk_exec                   *exec; /* of the caller, for loading */
    lki_pool                  *pool;
    worker                    *workers; /* [worker_count] */
    uint32_t                   worker_count, slices, micro_batch;
    lk_dtype                   precision;
    bool                       measures; /* errors, whose targets are numbers */
    sums                      *sums;     /* [slices] */
    atomic_uint_fast64_t       done;     /* samples */
    lk_status                 *statuses; /* [slices] */
    lk_error                  *errors;   /* [worker_count] */
} evaluation;

/* ---- A slice ----------------------------------------------------------------------------- */

/* Returns the bytes of the targets' text; the token between documents has none. */
static double count_bytes(const evaluation *e, const int32_t *y, size_t count)
{
    int32_t end   = lk_tokenizer_describe(e->tokenizer)->end;
    size_t  total = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        if (y[i] >= 0 && y[i] != end)
            (void)lk_tokenizer_bytes(e->tokenizer, (uint32_t)y[i], &bytes);
        total += bytes;
    }
    return (double)total;
}

/* Counts samples.  The calling thread, which is worker 0, reports them. */
static void advance(evaluation *e, const worker *w, uint32_t samples)
{
    const uint64_t done = atomic_fetch_add(&e->done, samples) + samples;
    if (e->options->progress != NULL && w == e->workers)
        e->options->progress(e->options->progress_context, done,
                             lk_dataset_describe(e->dataset)->validation_count);
}

static lk_status run_slice(evaluation *e, worker *w, size_t slice)
{
    const lk_dataset_info *data = lk_dataset_describe(e->dataset);
    uint64_t at = slice * data->validation_count / e->slices;
    uint64_t end = (slice + 1) * data->validation_count / e->slices;
    lk_walk  walk = { .params = e->trained.params, .state = e->trained.state };
    lk_pass  pass = { .x = w->x, .targets = w->y };
    double   bytes = 0;
    lki_error_sums errors = { 0 };

    for (; at < end; at += pass.samples) {
        pass.samples = (uint32_t)lki_min(e->micro_batch, end - at);
        for (uint32_t i = 0; i < pass.samples; i++)
            w->indices[i] = at + i;
        LK_TRY(lki_batch_read(e->dataset, true, 0, w->indices, pass.samples, w->x, w->y,
                              &pass.length));
        lk_engine_forward(w->engine, &walk, &pass, 1);
        if (e->tokenizer != NULL)
            bytes += count_bytes(e, w->y, (size_t)pass.samples *
                                              (pass.length > 0 ? pass.length : data->x.dims[0]));
        if (e->measures)
            lki_error_sums_add(&errors, w->engine, e->trained.model, pass.samples, w->y);
        advance(e, w, pass.samples);
    }
    e->sums[slice] = (sums){ pass.loss_sum, (double)pass.count, (double)pass.hits, bytes, errors };
    return LK_OK;
}

/* Stores the first error of the worker: errors are those of a thread. */
static void slice_task(void *context, size_t slice, uint32_t thread)
{
    evaluation *e = context;
    e->statuses[slice] = run_slice(e, &e->workers[thread], slice);
    if (e->statuses[slice] != LK_OK && e->errors[thread].status == LK_OK)
        e->errors[thread] = *lk_error_last();
}

/* ---- Opening ----------------------------------------------------------------------------- */

static uint32_t number_of(const evaluation *e, const char *key, uint32_t otherwise)
{
    json_int_t number = json_integer_value(json_object_get(e->trained.config, key));
    return number > 0 && number <= UINT32_MAX ? (uint32_t)number : otherwise;
}

static lk_dtype precision_of(const evaluation *e)
{
    const char *name = json_string_value(json_object_get(e->trained.config, "precision"));
    if (name != NULL && strcmp(name, lk_precision_name(LK_BF16)) == 0)
        return LK_BF16;
    return name != NULL && strcmp(name, lk_precision_name(LK_F16)) == 0 ? LK_F16 : LK_F32;
}

static lk_status open_worker(evaluation *e, worker *w)
{
    const lk_dataset_info *data  = lk_dataset_describe(e->dataset);
    size_t                 each  = lk_shape_count(data->x);
    size_t                 bytes = each * (data->tokens ? sizeof(int32_t) : sizeof(float));
    LK_TRY(lk_exec_open(&w->exec, e->options->threads, e->options->isa));
    LK_TRY(lk_engine_open(&w->engine, e->trained.model, w->exec, e->precision, e->micro_batch, 1));
    lk_engine_set_frozen(w->engine, e->trained.frozen);
    LK_TRY(lki_alloc_array(&w->x, e->micro_batch, bytes, "evaluation samples"));
    LK_TRY(LKI_NEW(&w->indices, e->micro_batch, "evaluation samples"));
    return LKI_NEW(&w->y, (size_t)e->micro_batch * data->targets, "evaluation samples");
}

static lk_status open_workers(evaluation *e)
{
    e->worker_count = (uint32_t)lki_min(lki_max(e->options->workers, 1), e->slices);
    LK_TRY(LKI_NEW(&e->workers, e->worker_count, "workers"));
    LK_TRY(LKI_NEW(&e->errors, e->worker_count, "workers"));
    LK_TRY(LKI_NEW(&e->sums, e->slices, "evaluation sums"));
    LK_TRY(LKI_NEW(&e->statuses, e->slices, "evaluation sums"));
    for (uint32_t i = 0; i < e->worker_count; i++)
        LK_TRY(open_worker(e, &e->workers[i]));
    return lki_pool_open(&e->pool, e->worker_count);
}

/* Sets the tokens of a sample for a model that has no run. */
static lk_status choose_context(evaluation *e)
{
    uint64_t *tokens = &e->trained.options.input.dims[0];
    if (!e->trained.pretrained && e->options->context != 0)
        return lk_fail(LK_EINVAL, "`context` is for a folder as transformers writes it; '%s' has "
                                  "that of its run; leave it out", e->options->path);
    if (e->options->context > *tokens && e->trained.pretrained)
        return lk_fail(LK_EINVAL, "`context` is %u, but the model of '%s' has only %llu positions",
                       e->options->context, e->options->path, (unsigned long long)*tokens);
    if (e->trained.pretrained)
        *tokens = e->options->context != 0 ? e->options->context : lki_min(*tokens, CONTEXT_MOST);
    return LK_OK;
}

/* Returns the samples of a pass for a model that has no run: fewer of long samples, which take much
 * memory. */
static uint32_t batch_of(const lki_trained *t)
{
    const uint64_t tokens = t->pretrained ? t->options.input.dims[0] : 1;
    return (uint32_t)lki_max(1, lki_min(BATCH, CONTEXT_MOST / tokens));
}

/* Opens the tokenizer, which counts the bytes of the tokens.  Token ids may be those of a kind of
 * tokenizer that is not supported, and then nothing counts the bytes. */
static lk_status open_tokenizer(evaluation *e, const char *tokenizer)
{
    const bool given  = e->options->tokenizer != NULL;
    lk_status  status = tokenizer != NULL ? lk_tokenizer_open(&e->tokenizer, tokenizer) : LK_OK;
    return status == LK_EUNSUPPORTED && !given ? LK_OK : status;
}

static lk_status open_evaluation(evaluation *e)
{
    const lk_evaluate_options *o = e->options;
    char                       found[4096];
    if (o->path == NULL || o->source == NULL)
        return lk_fail(LK_EINVAL, "evaluate: no checkpoint or no data given");
    LK_TRY(lki_trained_open(&e->trained, o->path, o->heads, o->adapter, o->tokenizer));
    LK_TRY(choose_context(e));
    const char *tokenizer = lki_trained_tokenizer(&e->trained, o->tokenizer, found);
    LK_TRY(lki_trained_data_open(&e->dataset, &e->trained, o, tokenizer));
    LK_TRY(open_tokenizer(e, tokenizer));
    e->trained.options.numbers = lk_dataset_describe(e->dataset)->numbers;
    e->measures    = lki_measures_errors(e->trained.options.loss, e->trained.options.numbers);
    e->precision   = precision_of(e);
    e->micro_batch = number_of(e, "micro-batch", batch_of(&e->trained));
    e->slices      = number_of(e, "virtual-workers", SLICES);
    LK_TRY(lk_exec_open(&e->exec, 1, o->isa));
    LK_TRY(lki_trained_load(&e->trained, e->exec, o->weights, LK_F32));
    return open_workers(e);
}

static void close_evaluation(evaluation *e)
{
    lki_pool_free(e->pool);
    for (uint32_t i = 0; e->workers != NULL && i < e->worker_count; i++) {
        lk_engine_free(e->workers[i].engine);
        lk_exec_free(e->workers[i].exec);
        lki_free(e->workers[i].x);
        lki_free(e->workers[i].y);
        lki_free(e->workers[i].indices);
    }
    lki_free(e->workers);
    lki_free(e->errors);
    lki_free(e->sums);
    lki_free(e->statuses);
    lk_dataset_free(e->dataset);
    lk_tokenizer_free(e->tokenizer);
    lki_trained_close(&e->trained);
    lk_exec_free(e->exec);
}

/* ---- The result -------------------------------------------------------------------------- */

/* Returns the sum of a field over the slices, by the canonical tree. */
static lk_status sum_field(const evaluation *e, size_t offset, double *out)
{
    double *column;
    LK_TRY(LKI_NEW(&column, e->slices, "evaluation sums"));
    for (uint32_t i = 0; i < e->slices; i++)
        column[i] = *(const double *)(const void *)((const char *)&e->sums[i] + offset);
    *out = lki_tree_sum_f64(column, e->slices);
    lki_free(column);
    return LK_OK;
}

static lk_status sum_up(const evaluation *e, lk_evaluation *out)
{
    const lk_dataset_info *data = lk_dataset_describe(e->dataset);
    sums                   all;
    for (uint32_t i = 0; i < e->slices; i++)
        if (e->statuses[i] != LK_OK)
            for (uint32_t w = 0; w < e->worker_count; w++)
                if (e->errors[w].status != LK_OK)
                    return lk_error_set(e->errors[w].status, e->errors[w].message);
    LK_TRY(sum_field(e, offsetof(sums, loss), &all.loss));
    LK_TRY(sum_field(e, offsetof(sums, count), &all.count));
    LK_TRY(sum_field(e, offsetof(sums, hits), &all.hits));
    LK_TRY(sum_field(e, offsetof(sums, bytes), &all.bytes));
    LK_TRY(sum_field(e, offsetof(sums, errors.absolute), &all.errors.absolute));
    LK_TRY(sum_field(e, offsetof(sums, errors.squares), &all.errors.squares));
    if (!(all.count > 0))
        return lk_fail(LK_EINVAL, "none of the %llu samples of '%s' counts for anything, by their "
                                  "labels", (unsigned long long)data->validation_count,
                       e->options->source);
    bool bytes = data->tokens && e->tokenizer == NULL && data->classes == 256;
    *out = (lk_evaluation){ .samples  = data->validation_count,
                            .left_out = data->left_out,
                            .count    = (uint64_t)all.count,
                            .bytes    = (uint64_t)(bytes ? all.count : all.bytes),
                            .loss     = all.loss / all.count,
                            .accuracy = e->measures ? (double)NAN : all.hits / all.count,
                            .rmse = e->measures ? sqrt(all.errors.squares / all.count)
                                                : (double)NAN,
                            .mae  = e->measures ? all.errors.absolute / all.count : (double)NAN,
                            .tokens   = data->tokens };
    if (out->bytes > 0)
        out->bits_per_byte = all.loss / (double)out->bytes / 0.693147180559945309417;
    return LK_OK;
}

lk_status lk_evaluate(const lk_evaluate_options *options, lk_evaluation *out)
{
    lk_evaluate_options mine;

    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_evaluate_options"));
    evaluation e    = { .options = &mine };
    uint64_t   mode = lki_float_mode();
    lki_float_mode_set(LKI_FLOAT_STANDARD);
    lk_status status = open_evaluation(&e);
    if (status == LK_OK) {
        lki_pool_run(e.pool, e.slices, slice_task, &e);
        status = sum_up(&e, out);
    }
    lki_float_mode_set(mode);
    close_evaluation(&e);
    return status;
}
