/* dataset.c -- opens a spec, splits off the validation part, and reads samples.
 *
 * Tokens:     a stream of `part` tokens has n = (part - T) / T windows of T tokens, each with the
 *             following token.  In training, window i starts at o + iT with o in [0, T) drawn per
 *             epoch, so that window borders move.  For every o, o + nT + 1 <= part, so n is the
 *             same in every epoch.  The validation part is the last floor(fraction * tokens)
 *             tokens, and its windows start at 0, so T + 1 tokens are enough if all are of it.
 * Arrays:     a permutation keyed by split_seed puts floor(fraction * samples) samples first, for
 *             validation (fold k uses the k-th run of that length).  The others are for training.
 *             No table is stored.  Without a validation part, samples keep the order of their
 *             files.
 * Documents:  split like arrays, as whole documents; documents.c makes samples of both parts.
 * Floor:      0.29 of 100 is 28.999... in binary.  So a millionth is added before rounding down,
 *             which gives the expected 29.
 */
#include "data/source.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "data/batch.h"
#include "data/pixels.h"
#include "data/stream.h"

static const lki_source *const sources[] = {
    &lki_source_text, &lki_source_tokens,  &lki_source_shards,    &lki_source_idx,
    &lki_source_npy,  &lki_source_cifar10, &lki_source_tar,       &lki_source_folder,
    &lki_source_docs, &lki_source_csv,     &lki_source_stream,    &lki_source_synthetic,
};

static lk_status find_source(const lki_source **out, const char *spec)
{
    const char *colon = strchr(spec, ':');
    size_t      length = colon != NULL ? (size_t)(colon - spec) : 0;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        if (length > 0 && strlen(sources[i]->name) == length &&
            memcmp(sources[i]->name, spec, length) == 0) {
            *out = sources[i];
            return LK_OK;
        }
    return lk_fail(LK_EINVAL, "unknown data source '%s'; write text:FILE, text:DIR, tokens:FILE, "
                              "shards:DIR, idx:IMAGES,LABELS, cifar10:DIR, csv:FILE, npy:X,Y, "
                              "tar:FILE|DIR, folder:DIR, docs:FILE|DIR, stream:FILE|- or "
                              "synthetic:SPEC",
                   spec);
}

enum { SHORT_CONTEXT = 8 }; /* the shortest context that messages recommend */

static uint64_t part_of(double fraction, uint64_t total)
{
    return (uint64_t)(fraction * (double)total + 1e-6);
}

/* *out becomes the number of windows in `tokens` tokens.  Returns LK_EFORMAT if the tokens do not
 * fill one window. */
static lk_status count_windows(uint64_t *out, const lk_dataset *dataset, const char *spec,
                               const char *part, uint64_t tokens)
{
    uint64_t context = dataset->options.context;
    char     lower[64] = "", change[64] = "";
    if (tokens / 2 >= SHORT_CONTEXT)
        (void)snprintf(lower, sizeof lower, ", lower `context` to at most %llu",
                       (unsigned long long)(tokens / 2));
    if (dataset->options.validation > 0)
        (void)snprintf(change, sizeof change, ", change `validation` (now %g)",
                       dataset->options.validation);
    if (tokens < 2 * context)
        return lk_fail(LK_EFORMAT,
                       "'%s' has %llu tokens, %llu of them for %s, but one window of `context` "
                       "%llu needs %llu; give more data%s%s",
                       spec, (unsigned long long)dataset->total, (unsigned long long)tokens, part,
                       (unsigned long long)context, (unsigned long long)(2 * context), lower,
                       change);
    *out = (tokens - context) / context;
    return LK_OK;
}

/* Makes all tokens the validation part. */
static lk_status hold_tokens(lk_dataset *dataset, const char *spec)
{
    const unsigned long long context = dataset->options.context, total = dataset->total;
    char                     lower[64] = "";
    if (total > SHORT_CONTEXT && !dataset->fixed)
        (void)snprintf(lower, sizeof lower, ", lower `context` to at most %llu", total - 1);
    if (total <= context)
        return lk_fail(LK_EFORMAT,
                       "'%s' has %llu tokens, but one sample of %llu tokens and the token after it "
                       "need %llu; give more data%s", spec, total, context, context + 1, lower);
    dataset->held_out              = total;
    dataset->info.validation_count = (total - 1) / context;
    return LK_OK;
}

static lk_status split_tokens(lk_dataset *dataset, const char *spec)
{
    lk_dataset_info *info = &dataset->info;
    if (dataset->whole)
        return hold_tokens(dataset, spec);
    if (dataset->options.fold > 1)
        return lk_fail(LK_EINVAL, "'%s': `fold` is for arrays with labels; of text the last part "
                                  "is held out", spec);
    dataset->held_out = part_of(dataset->options.validation, dataset->total);
    LK_TRY(count_windows(&info->train_count, dataset, spec, "training",
                         dataset->total - dataset->held_out));
    if (dataset->options.validation > 0)
        LK_TRY(count_windows(&info->validation_count, dataset, spec, "validation",
                             dataset->held_out));
    return LK_OK;
}

static lk_status split_samples(lk_dataset *dataset, const char *spec)
{
    lk_dataset_info *info  = &dataset->info;
    uint64_t         total = dataset->total;
    uint64_t         kept  = part_of(dataset->options.validation, total);
    if (dataset->options.validation > 0 && (kept == 0 || kept >= total))
        return lk_fail(LK_EFORMAT, "'%s' has %llu samples; `validation` %g keeps %llu of them and "
                                   "leaves %llu to train on; both must be at least 1",
                       spec, (unsigned long long)total, dataset->options.validation,
                       (unsigned long long)kept, (unsigned long long)(total - kept));
    info->validation_count = dataset->held_out > 0 ? dataset->held_out : kept;
    info->train_count      = total - info->validation_count;
    if (dataset->options.fold > 1 && (dataset->held_out > 0 || kept == 0))
        return lk_fail(LK_EINVAL, "'%s': `fold` %u needs `validation` FRACTION, of which it is one",
                       spec, dataset->options.fold);
    if (dataset->options.fold > 1 && dataset->options.fold > total / kept)
        return lk_fail(LK_EINVAL, "'%s': there is no `fold` %u; `validation` %g makes %llu of them",
                       spec, dataset->options.fold, dataset->options.validation,
                       (unsigned long long)(total / kept));
    return LK_OK;
}

static lk_status open_arrays(lk_dataset *dataset, const char *spec)
{
    const lki_source *source = dataset->source;
    dataset->info.targets = 1;
    LK_TRY(split_samples(dataset, spec));
    if (source->fit != NULL)
        LK_TRY(source->fit(dataset, spec));
    if (dataset->info.numbers && dataset->options.ignores)
        return lk_fail(LK_EINVAL, "'%s': `ignored` %lld is a class, and the targets are numbers",
                       spec, (long long)dataset->options.ignored);
    dataset->elements = lk_shape_count(dataset->info.x);
    if (source->fit == NULL)
        LK_TRY(lki_pixels_normalize(dataset, spec));
    return lki_weights_open(dataset, spec);
}

static lk_status open_source(lk_dataset *dataset, const char *spec)
{
    const lk_dataset_options *options = &dataset->options;
    if (!(options->validation >= 0 && options->validation < 1))
        return lk_fail(LK_EINVAL, "`validation` %g is not a fraction: at least 0 and below 1",
                       options->validation);
    LK_TRY(find_source(&dataset->source, spec));
    if (options->tokenizer != NULL && dataset->source != &lki_source_text &&
        dataset->source != &lki_source_docs)
        return lk_fail(LK_EINVAL, "`tokenizer` '%s' is for text: and docs:, and '%s' is neither",
                       options->tokenizer, spec);
    const char *rest = strchr(spec, ':') + 1;
    if (*rest == '\0')
        return lk_fail(LK_EINVAL, "'%s' names no data after the colon", spec);
    if (options->target != NULL && dataset->source->fit == NULL)
        return lk_fail(LK_EINVAL, "`target` '%s' is for tables (csv:), and '%s' is none",
                       options->target, spec);
    LK_TRY(dataset->source->open(dataset, rest));
    LK_TRY(lki_augment_check(dataset, spec));
    if (!dataset->info.tokens)
        return open_arrays(dataset, spec);
    if (options->context == 0)
        return lk_fail(LK_EINVAL, "'%s' is a stream of tokens: give the length of a sample, "
                                  "`context`", spec);
    LK_TRY(lki_pixels_normalize(dataset, spec));
    dataset->elements     = options->context;
    dataset->info.targets = options->context;
    dataset->info.x   = (lk_shape){ .rank = 1, .dims = { options->context } };
    if (dataset->source->read_document != NULL) {
        LK_TRY(split_samples(dataset, spec));
        LK_TRY(lki_documents_cut(dataset, spec));
    } else {
        LK_TRY(split_tokens(dataset, spec));
    }
    return lki_weights_open(dataset, spec);
}

/* Opens a data set, for which the caller has allocated `dataset`, and set how it opens it.  Frees
 * that on failure. */
static lk_status open_new(lk_dataset **out, lk_dataset *dataset, const char *spec,
                          const lk_dataset_options *options)
{
    lk_status status = lki_options_copy(&dataset->options, sizeof dataset->options, options,
                                        "lk_dataset_options");
    if (status == LK_OK && spec == NULL)
        status = lk_fail(LK_EINVAL, "no data source is given; write text:FILE, for example");
    if (status == LK_OK)
        status = open_source(dataset, spec);
    dataset->known = NULL;
    if (status != LK_OK) {
        lk_dataset_free(dataset);
        return status;
    }
    *out = dataset;
    return LK_OK;
}

lk_status lki_dataset_open_as(lk_dataset **out, const char *spec,
                              const lk_dataset_options *options, const lk_column *columns,
                              uint32_t column_count)
{
    lk_dataset *dataset = NULL;
    *out = NULL;
    LK_TRY(LKI_NEW(&dataset, 1, "data set"));
    dataset->known       = columns;
    dataset->known_count = column_count;
    return open_new(out, dataset, spec, options);
}

lk_status lki_dataset_open_whole(lk_dataset **out, const char *spec,
                                 const lk_dataset_options *options, bool fixed)
{
    lk_dataset *dataset = NULL;
    *out = NULL;
    LK_TRY(LKI_NEW(&dataset, 1, "data set"));
    dataset->whole = true;
    dataset->fixed = fixed;
    LK_TRY(open_new(out, dataset, spec, options));
    lki_dataset_hold_all(*out);
    return LK_OK;
}

lk_status lk_dataset_open(lk_dataset **out, const char *spec, const lk_dataset_options *options)
{
    return lki_dataset_open_as(out, spec, options, NULL, 0);
}

void lk_dataset_free(lk_dataset *dataset)
{
    if (dataset == NULL)
        return;
    if (dataset->state != NULL)
        dataset->source->close(dataset);
    lki_file_watch_end(dataset);
    lki_free(dataset->cumulative);
    lki_free(dataset->loss_weights);
    lki_free(dataset->pieces);
    lki_free(dataset);
}

const lk_dataset_info *lk_dataset_describe(const lk_dataset *dataset)
{
    return &dataset->info;
}

bool lki_dataset_is_bytes(const lk_dataset *dataset)
{
    return dataset->bytes;
}

const char *lki_dataset_content(const lk_dataset *dataset)
{
    return dataset->content;
}

void lki_dataset_hold_all(lk_dataset *dataset)
{
    lk_dataset_info *info = &dataset->info;
    if (info->validation_count > 0)
        return;
    info->validation_count = info->train_count;
    info->train_count      = 0;
    dataset->held_out      = dataset->total;
}

static void read_window(const lk_dataset *dataset, bool validation, uint64_t epoch,
                        uint64_t index, int32_t *x, int32_t *y)
{
    uint32_t context = dataset->options.context;
    uint64_t start   = validation ? dataset->total - dataset->held_out
                                  : lki_window_offset(dataset->options.seed, epoch, context);
    uint64_t first   = start + index * context;
    dataset->source->read_tokens(dataset, first, context, x);
    memcpy(y, x + 1, (context - 1) * sizeof *y);
    dataset->source->read_tokens(dataset, first + context, 1, y + context - 1);
}

uint64_t lki_sample_place(const lk_dataset *dataset, bool validation, uint64_t index)
{
    const lk_dataset_info *info = &dataset->info;
    if (dataset->held_out > 0)
        return validation ? info->train_count + index : index;
    if (info->validation_count == 0)
        return index;
    uint64_t fold  = dataset->options.fold > 1 ? dataset->options.fold - 1 : 0;
    uint64_t place = fold * info->validation_count + (validation ? 0 : info->validation_count);
    return lki_permute(dataset->options.split_seed, LKI_RNG_SPLIT, 0, dataset->total,
                       (place + index) % dataset->total);
}

void lki_ignore(const lk_dataset *dataset, size_t count, int32_t *y)
{
    for (size_t i = 0; dataset->options.ignores && i < count; i++)
        if (lki_is_ignored(dataset, y[i]))
            y[i] = -1;
}

lk_status lki_sample_read(const lk_dataset *dataset, uint64_t place, const lki_draw *draw,
                          float *x, int32_t *label)
{
    const lki_source *source = dataset->source;
    return source->read_part != NULL ? source->read_part(dataset, place, draw, x, label)
                                     : source->read_sample(dataset, place, x, label);
}

static lk_status read_array(const lk_dataset *dataset, bool validation, uint64_t epoch,
                            uint64_t index, float *x, int32_t *y)
{
    const lki_draw draw  = { epoch, index };
    uint64_t       place = lki_sample_place(dataset, validation, index);
    bool           part  = dataset->options.augment.resized_crop > 0 &&
                dataset->source->read_part != NULL;
    if (validation)
        return lki_sample_read(dataset, place, NULL, x, y);
    LK_TRY(lki_sample_read(dataset, place, part ? &draw : NULL, x, y));
    return lki_augment_apply(dataset, &draw, part, x);
}

lk_status lk_dataset_read(const lk_dataset *dataset, bool validation, uint64_t epoch,
                          uint64_t index, void *x, int32_t *y)
{
    const lk_dataset_info *info  = &dataset->info;
    const uint64_t         count = validation ? info->validation_count : info->train_count;
    if (lki_dataset_is_stream(dataset))
        return lk_fail(LK_EINVAL, "a stream is read from its beginning on, by one reader");
    if (index >= count)
        return lk_fail(LK_EINVAL, "sample %llu of the %s part, which has %llu, numbered from 0",
                       (unsigned long long)index, validation ? "validation" : "training",
                       (unsigned long long)count);
    if (info->documents)
        return lki_documents_read(dataset, validation, &index, 1, dataset->options.context, x, y);
    if (info->tokens)
        read_window(dataset, validation, epoch, index, x, y);
    else
        LK_TRY(read_array(dataset, validation, epoch, index, x, y));
    lki_ignore(dataset, info->targets, y);
    return LK_OK;
}

lk_status lki_batch_read(const lk_dataset *dataset, bool validation, uint64_t epoch,
                         const uint64_t *indices, uint32_t count, void *x, int32_t *y,
                         uint32_t *length)
{
    bool   tokens  = dataset->info.tokens;
    size_t x_bytes = dataset->elements * (tokens ? sizeof(int32_t) : sizeof(float));
    size_t y_count = dataset->info.targets;
    *length        = 0;
    if (dataset->info.documents) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t of = lk_dataset_length(dataset, validation, indices[i]);
            *length     = of > *length ? of : *length;
        }
        return lki_documents_read(dataset, validation, indices, count, *length, x, y);
    }
    for (uint32_t i = 0; i < count; i++)
        LK_TRY(lk_dataset_read(dataset, validation, epoch, indices[i],
                               (uint8_t *)x + i * x_bytes, y + i * y_count));
    return LK_OK;
}
