/* trained_data.c -- opens data as a trained model expects them; see trained_data.h. */
#include "train/loop/trained_data.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "data/batch.h"

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

lk_status lki_trained_data_open(lk_dataset **out, const lki_trained *trained,
                                const lk_evaluate_options *options, const char *tokenizer)
{
    char               text[256];
    const json_t      *ignored = json_object_get(trained->config, "ignore-label");
    lk_dataset_options o       = { .struct_size = sizeof o, .tokenizer = tokenizer,
                                   .ignores = json_is_integer(ignored),
                                   .ignored = json_integer_value(ignored) };

    *out      = NULL;
    if (strncmp(options->source, "csv:", 4) == 0 ||
        json_object_get(trained->config, "columns") != NULL)
        return lk_fail(LK_EUNSUPPORTED, "the model of %s and '%s': models of tables are evaluated "
                                        "during their training only (`eval_every`)",
                       options->path, options->source);
    o.context = 1; /* of tokens for a model of images, which check_fit() refuses */
    if (trained->options.tokens && trained->options.input.rank == 1)
        o.context = (uint32_t)trained->options.input.dims[0];
    set_normalize(trained->config, text, &o);
    if (options->own_part && trained->checkpoint != NULL)
        set_split(trained->config, trained, &o);
    LK_TRY(lk_dataset_open(out, options->source, &o));
    if (!options->own_part)
        lki_dataset_hold_all(*out);
    return check_fit(trained, options, lk_dataset_describe(*out));
}
