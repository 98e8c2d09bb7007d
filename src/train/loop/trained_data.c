/* trained_data.c -- opens data as a trained model expects them; see trained_data.h. */
#include "train/loop/trained_data.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "data/batch.h"
#include "train/core/identity.h"
#include "train/saves/tokenizer.h"

/* Writes the means and deviations of the run's pixels as a value of `normalize`.  Returns false if
 * it has none. */
static bool write_numbers(const json_t *config, char text[256])
{
    static const char *const keys[] = { "pixel_mean", "pixel_deviation" };
    size_t                   used   = 0;
    for (uint32_t k = 0; k < 2; k++) {
        const json_t *list = json_object_get(config, keys[k]);
        if (json_array_size(list) == 0)
            return false;
        for (size_t i = 0; i < json_array_size(list) && used < 200; i++)
            used += (size_t)snprintf(text + used, 256 - used, "%s%.9g",
                                     i > 0 ? "," : k > 0 ? "/" : "",
                                     json_real_value(json_array_get(list, i)));
    }
    return true;
}

/* Fills in how the run's pixels become values. */
static void set_normalize(const json_t *config, char text[256], lk_dataset_options *out)
{
    const char *how = json_string_value(json_object_get(config, "normalize"));
    out->normalize  = how;
    if (write_numbers(config, text))
        out->normalize = text;
    else if (how != NULL && strcmp(how, "auto") == 0)
        out->normalize = "source";
}

/* Fills in the split of the run. */
static void set_split(const json_t *config, const lki_trained *trained, lk_dataset_options *out)
{
    out->validation = json_number_value(json_object_get(config, "validation"));
    out->split_seed = (uint64_t)json_integer_value(json_object_get(config, "split-seed"));
    out->fold       = (uint32_t)json_integer_value(json_object_get(config, "fold"));
    out->seed       = lk_checkpoint_describe(trained->checkpoint)->seed;
}

/* Reads a column of the table of the run, whose texts belong to the configuration.  The caller
 * frees the list of levels. */
static lk_status read_column(const json_t *object, const char *path, lk_column *out)
{
    const json_t *levels = json_object_get(object, "levels");
    const char  **list   = NULL;
    *out = (lk_column){ .name        = json_string_value(json_object_get(object, "name")),
                        .mean        = json_number_value(json_object_get(object, "mean")),
                        .deviation   = json_number_value(json_object_get(object, "deviation")),
                        .level_count = (uint32_t)json_array_size(levels) };
    bool whole = out->name != NULL && (out->level_count > 0 || out->deviation > 0);
    if (out->level_count > 0)
        LK_TRY(LKI_NEW(&list, out->level_count, "levels of a column"));
    out->levels = list;
    for (uint32_t i = 0; i < out->level_count; i++) {
        list[i] = json_string_value(json_array_get(levels, i));
        whole   = whole && list[i] != NULL;
    }
    return whole ? LK_OK
                 : lk_fail(LK_EFORMAT, "the columns in the checkpoint %s are damaged", path);
}

/* Opens a table, by the columns of the table on which the model was trained. */
static lk_status open_table(lk_dataset **out, const lki_trained *trained, const char *source,
                            lk_dataset_options *options)
{
    const json_t *list    = json_object_get(trained->config, "columns");
    const size_t  count   = json_array_size(list);
    lk_column    *columns = NULL;
    lk_status     status  = LK_OK;

    options->target  = json_string_value(json_object_get(trained->config, "target"));
    options->targets = lki_targets_of(trained->options.loss);
    LK_TRY(LKI_NEW(&columns, count + 1, "columns of a table"));
    for (size_t i = 0; status == LK_OK && i < count; i++)
        status = read_column(json_array_get(list, i), trained->path, &columns[i]);
    if (status == LK_OK)
        status = lki_dataset_open_as(out, source, options, columns, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        lki_free((void *)(uintptr_t)columns[i].levels);
    lki_free(columns);
    return status;
}

static lk_status check_fit(const lki_trained *t, const lk_evaluate_options *o,
                           const lk_dataset_info *data)
{
    const lk_model_options *m = &t->options;
    bool same = data->tokens == m->tokens && data->x.rank == m->input.rank &&
                memcmp(data->x.dims, m->input.dims, data->x.rank * sizeof data->x.dims[0]) == 0;
    if (!same)
        return lk_fail(LK_EINVAL,
                       "the samples of '%s' have another shape than those on which the %s of %s "
                       "was trained", o->source, t->name, o->path);
    if (data->classes > m->classes)
        return lk_fail(LK_EINVAL,
                       "'%s' has %u %s, but the model of %s only %u", o->source, data->classes,
                       data->tokens ? "tokens" : "classes", o->path, m->classes);
    if (data->validation_count == 0)
        return lk_fail(LK_EINVAL, "the run of %s had no validation part; give `source`", o->path);
    return LK_OK;
}

/* Returns true if a source is text, which a tokenizer may cut. */
static bool is_text(const char *source)
{
    return strncmp(source, "text:", 5) == 0 || strncmp(source, "docs:", 5) == 0;
}

/* Refuses the bytes of a text for a model whose tokens are not bytes. */
static lk_status check_bytes(const lki_trained *t, const lk_evaluate_options *o,
                             const lk_dataset *dataset)
{
    if (!lki_dataset_is_bytes(dataset) || !lki_tokenizer_is_used(&t->options, t->config))
        return LK_OK;
    if (json_is_true(json_object_get(t->config, "tokenizer")))
        return lk_fail(LK_EINVAL, "the model of '%s' was trained with a tokenizer, and no "
                                  "tokenizer.json lies beside it; give `tokenizer` FILE", o->path);
    return lk_fail(LK_EINVAL, "the model of '%s' has %u tokens, not the 256 of text without a "
                              "tokenizer, and no tokenizer.json lies %s; give `tokenizer` FILE",
                   o->path, t->options.classes, t->pretrained ? "there" : "beside it");
}

/* Opens the validation part of the run's data, or all of other data. */
static lk_status open_source(lk_dataset **out, const lki_trained *trained,
                             const lk_evaluate_options *options, lk_dataset_options *o)
{
    const bool table = json_object_get(trained->config, "columns") != NULL;
    if (!table)
        return options->own_part
                   ? lk_dataset_open(out, options->source, o)
                   : lki_dataset_open_whole(out, options->source, o, !trained->pretrained);
    LK_TRY(open_table(out, trained, options->source, o));
    if (!options->own_part)
        lki_dataset_hold_all(*out);
    return LK_OK;
}

/* Opens documents of token ids, which need no tokenizer that lies beside the model.  Fails if they
 * are text: text with an end= needs a tokenizer. */
static lk_status open_ids(lk_dataset **out, const lki_trained *trained,
                          const lk_evaluate_options *options, const lk_dataset_options *o)
{
    lk_dataset_options ids = *o;
    if (options->tokenizer != NULL || o->tokenizer == NULL ||
        strncmp(options->source, "docs:", 5) != 0 || strstr(options->source, "end=") == NULL)
        return LK_EINVAL;
    ids.tokenizer = NULL;
    return open_source(out, trained, options, &ids);
}

lk_status lki_trained_data_open(lk_dataset **out, const lki_trained *trained,
                                const lk_evaluate_options *options, const char *tokenizer)
{
    char               text[256];
    const json_t      *ignored = json_object_get(trained->config, "ignore-label");
    lk_dataset_options o       = { .struct_size = sizeof o,
                                   .tokenizer = is_text(options->source) ? tokenizer : NULL,
                                   .ignores = json_is_integer(ignored),
                                   .ignored = json_integer_value(ignored) };

    const bool         table   = strncmp(options->source, "csv:", 4) == 0;

    *out = NULL;
    if (strncmp(options->source, "stream:", 7) == 0)
        return lk_fail(LK_EINVAL, "'%s' is a stream, which only training reads; write it to a "
                                  "file, and give that file with its kind", options->source);
    if (table != (json_object_get(trained->config, "columns") != NULL))
        return lk_fail(LK_EINVAL, "'%s' is %s table, and the model of %s was %strained on one",
                       options->source, table ? "a" : "no", options->path, table ? "not " : "");
    o.context = 1; /* of tokens for a model of images, which check_fit() refuses */
    if (trained->options.tokens && trained->options.input.rank == 1)
        o.context = (uint32_t)trained->options.input.dims[0];
    set_normalize(trained->config, text, &o);
    if (options->own_part && trained->checkpoint != NULL)
        set_split(trained->config, trained, &o);
    if (open_ids(out, trained, options, &o) != LK_OK)
        LK_TRY(open_source(out, trained, options, &o));
    LK_TRY(check_bytes(trained, options, *out));
    if (options->own_part)
        LK_TRY(lki_data_compare_own(trained->config, options->source, lk_dataset_describe(*out),
                                    options->path));
    return check_fit(trained, options, lk_dataset_describe(*out));
}
