/* cmd_inspect.c -- `lockstep inspect`: prints the contents of a checkpoint and checks its
 * integrity.
 *
 * All data are first stored in one JSON object. --json prints this object; otherwise the object is
 * printed as text.  So both formats have the same contents.  Damage does not end the report.  The
 * report still has the manifest and all files, intact or not, and the exit status is 1.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/commands.h"
#include "cli/inspect.h"
#include "cli/text.h"
#include "cli/train.h"
#include "cli/values.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/checkpoint.h"

typedef struct {
    const char *path, *flight, *consolidate;
    uint32_t    rows;
    bool        json, tensors, verify, everything;
} inspect_options;

#define AT(field) offsetof(inspect_options, field)

static const lki_need any_path = { "CHECKPOINT", { NULL } }, any_flight = { "flight", { NULL } },
                      any_consolidate = { "consolidate", { NULL } };

static const lki_option table[] = {
    LKI_POSITIONAL("CHECKPOINT", AT(path), false,
                   "a directory of checkpoints (uses the newest), a checkpoint, or a .safetensors "
                   "file"),
    { .needs = &any_path, .name = "tensors", .type = LKI_OPTION_FLAG, .offset = AT(tensors),
      .help = "list every tensor with its type, shape and range of values" },
    { .needs = &any_path, .name = "verify", .type = LKI_OPTION_FLAG, .offset = AT(verify),
      .help = "read all data and check every hash (the default)" },
    { .needs = &any_path, .name = "consolidate", .type = LKI_OPTION_STRING, .value = "FILE",
      .offset = AT(consolidate),
      .help   = "write the model to a single new .safetensors file, using little memory" },
    { .needs = &any_consolidate, .name = "everything", .type = LKI_OPTION_FLAG,
      .offset = AT(everything),
      .help = "with --consolidate: also write optimizer state and running state" },
    LKI_STRING("flight", "DIR", AT(flight), NULL,
               "show the last operations of a job that ran with --flight-recorder DIR, instead of "
               "a checkpoint"),
    { .needs = &any_flight, .name = "last", .type = LKI_OPTION_U32, .value = "K",
      .offset = AT(rows), .high = UINT32_MAX, .preset = "20",
      .help = "with --flight: number of latest operations to list" },
    LKI_FLAG("json", AT(json), "print one JSON object"),
    LKI_OPTIONS_END,
};

static int fail_about(const inspect_options *options)
{
    lki_print_error_about("inspect", options->path, "or a .safetensors file");
    return LKI_EXIT_FAILURE;
}

static int fail_for_memory(void)
{
    fprintf(stderr, "lockstep inspect: out of memory\n");
    return LKI_EXIT_FAILURE;
}

/* ---- Tensors ------------------------------------------------------------------------------- */

static double half_value(uint16_t bits)
{
    int    exponent = (bits >> 10) & 31;
    double fraction = bits & 1023, value;
    if (exponent == 31)
        value = fraction != 0 ? (double)NAN : (double)INFINITY;
    else
        value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static double brain_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float    value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

static double value_at(const lk_tensor *tensor, uint64_t i)
{
    switch ((int)tensor->dtype) {
    case LK_F32: return (double)((const float *)tensor->data)[i];
    case LK_F16: return half_value(((const uint16_t *)tensor->data)[i]);
    case LK_BF16: return brain_value(((const uint16_t *)tensor->data)[i]);
    case LK_F64: return ((const double *)tensor->data)[i];
    case LK_I8: return ((const int8_t *)tensor->data)[i];
    case LK_U8: return ((const uint8_t *)tensor->data)[i];
    case LK_I16: return ((const int16_t *)tensor->data)[i];
    case LK_U16: return ((const uint16_t *)tensor->data)[i];
    case LK_I32: return ((const int32_t *)tensor->data)[i];
    case LK_U32: return ((const uint32_t *)tensor->data)[i];
    case LK_I64: return (double)((const int64_t *)tensor->data)[i];
    case LK_U64: return (double)((const uint64_t *)tensor->data)[i];
    default: return 0;
    }
}

static uint64_t count_of(const lk_tensor *tensor)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->shape.rank; i++)
        count *= tensor->shape.dims[i];
    return count;
}

/* Computes the range and mean of the finite values, and counts the values that are not finite. */
static json_t *statistics(const lk_tensor *tensor)
{
    double   low = 0, high = 0, sum = 0;
    uint64_t finite = 0, count = count_of(tensor);
    for (uint64_t i = 0; i < count; i++) {
        double value = value_at(tensor, i);
        if (!isfinite(value))
            continue;
        low  = finite == 0 || value < low ? value : low;
        high = finite == 0 || value > high ? value : high;
        sum += value;
        finite++;
    }
    if (finite == 0)
        return json_pack("{s:n, s:n, s:n, s:I}", "min", "max", "mean", "nonfinite",
                         (json_int_t)count);
    double mean = sum / (double)finite; /* not finite if the sum overflows */
    return json_pack("{s:f, s:f, s:o, s:I}", "min", low, "max", high, "mean",
                     isfinite(mean) ? json_real(mean) : json_null(), "nonfinite",
                     (json_int_t)(count - finite));
}

static json_t *tensor_entry(const lk_tensor *tensor, const char *file)
{
    json_t *entry = json_object(), *shape = json_array();
    if (file != NULL)
        json_object_set_new(entry, "file", json_string(file));
    json_object_set_new(entry, "name", json_string(tensor->name));
    json_object_set_new(entry, "dtype", json_string(lk_dtype_name(tensor->dtype)));
    for (uint32_t i = 0; i < tensor->shape.rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape.dims[i]));
    json_object_set_new(entry, "shape", shape);
    json_object_set_new(entry, "count", json_integer((json_int_t)count_of(tensor)));
    if (tensor->data != NULL)
        json_object_update_new(entry, statistics(tensor));
    return entry;
}

/* Totals of the tensors and, if requested, a list of them. */
typedef struct {
    json_t  *list; /* NULL: not requested */
    uint64_t tensors, elements, parameters;
} totals;

static void add_tensor(totals *t, const lk_tensor *tensor, const char *file)
{
    t->tensors++;
    t->elements += count_of(tensor);
    if (file == NULL || strcmp(file, "model.safetensors") == 0)
        t->parameters += count_of(tensor);
    if (t->list != NULL)
        json_array_append_new(t->list, tensor_entry(tensor, file));
}

static void put_totals(json_t *report, totals *t)
{
    json_object_set_new(report, "tensor_count", json_integer((json_int_t)t->tensors));
    json_object_set_new(report, "elements", json_integer((json_int_t)t->elements));
    json_object_set_new(report, "parameters", json_integer((json_int_t)t->parameters));
    if (t->list != NULL)
        json_object_set_new(report, "tensors", t->list);
}

/* ---- The report ---------------------------------------------------------------------------- */

static bool put_files(json_t *report, const lk_checkpoint *checkpoint, bool verify)
{
    json_t                     *files = json_array();
    const lk_checkpoint_stored *file;
    bool                        good = true;
    for (size_t i = 0; (file = lk_checkpoint_file_at(checkpoint, i)) != NULL; i++) {
        json_t *entry = json_pack("{s:s, s:I, s:s}", "name", file->name, "bytes",
                                  (json_int_t)file->bytes, "sha256", file->sha256);
        const char *state = "unchecked";
        if (verify && lk_checkpoint_verify(checkpoint, i) == LK_OK) {
            state = "verified";
        } else if (verify) {
            state = "failed";
            good  = false;
            json_object_set_new(entry, "reason", json_string(lk_error_last()->message));
        }
        json_object_set_new(entry, "state", json_string(state));
        json_array_append_new(files, entry);
    }
    json_object_set_new(report, "files", files);
    return good;
}

static json_t *report_of(const lk_checkpoint *checkpoint, const inspect_options *options,
                         bool *good)
{
    const lk_checkpoint_info *info   = lk_checkpoint_describe(checkpoint);
    json_t                   *report = json_object();
    char                      seed[24];
    (void)snprintf(seed, sizeof seed, "%" PRIu64, info->seed);
    json_object_set_new(report, "path", json_string(lk_checkpoint_path(checkpoint)));
    json_object_set_new(report, "step", json_integer((json_int_t)info->step));
    json_object_set_new(report, "seed", json_string(seed)); /* may be too large for JSON numbers */
    json_object_set_new(report, "exactness_id", json_string(info->exactness_id));
    json_object_set_new(report, "weights", json_string(info->weights));
    json_object_set_new(report, "config", json_loads(info->config, 0, NULL));
    *good = put_files(report, checkpoint, options->verify);

    lk_checkpoint *whole = NULL; /* opened with its data only if all files are intact */
    if (options->verify && *good &&
        lk_checkpoint_open(&whole, lk_checkpoint_path(checkpoint), NULL, 0) != LK_OK) {
        *good = false;
        json_object_set_new(report, "reason", json_string(lk_error_last()->message));
    }
    totals           t    = { .list = options->tensors ? json_array() : NULL };
    const lk_checkpoint *from = whole != NULL && options->tensors ? whole : checkpoint;
    const lk_tensor     *tensor;
    for (size_t i = 0; (tensor = lk_checkpoint_tensor(from, i)) != NULL; i++)
        add_tensor(&t, tensor, lk_checkpoint_tensor_file(from, i));
    put_totals(report, &t);
    char hash[65]; /* hash of the stored model, for comparison with the manifest's */
    if (whole != NULL && lk_checkpoint_weights_hash(whole, hash))
        json_object_set_new(report, "model_hash", json_string(hash));
    json_t *groups = whole != NULL ? lki_inspect_groups(whole) : NULL;
    if (groups != NULL)
        json_object_set_new(report, "groups", groups);
    lk_checkpoint_free(whole);
    return report;
}

static json_t *report_of_file(const lk_safetensors *file, const inspect_options *options)
{
    json_t *report = json_object();
    char    hex[65];
    json_object_set_new(report, "path", json_string(options->path));
    if (lk_safetensors_count(file) > 0) {
        lk_weights_hash(lk_safetensors_at(file, 0), lk_safetensors_count(file), hex);
        json_object_set_new(report, "model_hash", json_string(hex));
    }
    totals           t = { .list = options->tensors ? json_array() : NULL };
    const lk_tensor *tensor;
    for (size_t i = 0; (tensor = lk_safetensors_at(file, i)) != NULL; i++)
        add_tensor(&t, tensor, NULL);
    put_totals(report, &t);
    return report;
}

/* ---- Text ---------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static long long number_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

/* Prints JSON with numbers as short as people write them, which jansson does not. */
static void print_json(const json_t *value) /* NOLINT(misc-no-recursion) */
{
    const char *separator = "", *key;
    json_t     *member;
    if (json_is_real(value)) {
        char number[LK_NUMBER_BYTES];
        lk_number_text(number, json_real_value(value));
        printf("%s", number);
    } else if (json_is_array(value)) {
        printf("[");
        for (size_t i = 0; i < json_array_size(value); i++, separator = ",") {
            printf("%s", separator);
            print_json(json_array_get(value, i));
        }
        printf("]");
    } else if (json_is_object(value)) {
        printf("{");
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
        {
            json_t *name = json_string(key);
            printf("%s", separator);
            print_json(name);
            printf(":");
            print_json(member);
            json_decref(name);
            separator = ",";
        }
        printf("}");
    } else {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        printf("%s", text != NULL ? text : "?");
        free(text);
    }
}

static void print_value(const json_t *value)
{
    if (json_is_string(value))
        lki_print_safely(json_string_value(value));
    else
        print_json(value);
}

/* Returns the current name of an option.  Checkpoints have the option's first name. */
static const char *name_of(const char *key)
{
    for (const lki_option *o = lki_train_table; o->type != LKI_OPTION_END; o++)
        if (o->alias != NULL && strcmp(o->alias, key) == 0)
            return o->name;
    return key;
}

static void print_config(const json_t *config)
{
    printf("configuration\n");
    for (void *at = json_object_iter((json_t *)(uintptr_t)config); at != NULL;
         at       = json_object_iter_next((json_t *)(uintptr_t)config, at)) {
        printf("  %-24s ", name_of(json_object_iter_key(at)));
        print_value(json_object_iter_value(at));
        printf("\n");
    }
}

static void print_files(const json_t *files)
{
    printf("files\n");
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        printf("  %-28s %14lld bytes  %-9s  sha256 %s\n", text_of(file, "name"),
               number_of(file, "bytes"), text_of(file, "state"), text_of(file, "sha256"));
    }
}

static void print_tensor(const json_t *tensor)
{
    char         *shape = json_dumps(json_object_get(tensor, "shape"), JSON_COMPACT);
    const json_t *mean  = json_object_get(tensor, "mean");
    printf("  %-22s ", text_of(tensor, "file"));
    lki_print_safely(text_of(tensor, "name"));
    printf("  %s %s  %lld", text_of(tensor, "dtype"), shape != NULL ? shape : "?",
           number_of(tensor, "count"));
    if (json_is_number(json_object_get(tensor, "min")))
        printf("  min %.6g max %.6g", json_number_value(json_object_get(tensor, "min")),
               json_number_value(json_object_get(tensor, "max")));
    if (json_is_number(mean))
        printf(" mean %.6g", json_number_value(mean));
    if (number_of(tensor, "nonfinite") > 0)
        printf("  NOT FINITE: %lld", number_of(tensor, "nonfinite"));
    printf("\n");
    free(shape);
}

static void print_report(const json_t *report)
{
    const char *model = text_of(report, "model_hash"), *weights = text_of(report, "weights");
    printf("%-14s %s\n", weights[0] != '\0' ? "checkpoint" : "file", text_of(report, "path"));
    if (weights[0] != '\0') {
        printf("%-14s %lld\n%-14s %s\n%-14s ", "step", number_of(report, "step"), "seed",
               text_of(report, "seed"), "exactness id");
        lki_print_safely(text_of(report, "exactness_id"));
        printf("\n");
        print_config(json_object_get(report, "config"));
        print_files(json_object_get(report, "files"));
    }
    lki_inspect_print_groups(json_object_get(report, "groups"));
    if (json_object_get(report, "tensors") != NULL)
        printf("tensors\n");
    for (size_t i = 0; i < json_array_size(json_object_get(report, "tensors")); i++)
        print_tensor(json_array_get(json_object_get(report, "tensors"), i));
    printf("%-14s %lld tensors, %lld elements, of them %lld in the model\n", "in all",
           number_of(report, "tensor_count"), number_of(report, "elements"),
           number_of(report, "parameters"));
    if (weights[0] == '\0')
        printf("%-14s %s (all tensors in the file's order)\n", "weights", model);
    else
        printf("%-14s %s%s%s\n", "weights", weights,
               model[0] == '\0'               ? ""
               : strcmp(model, weights) == 0 ? " (as the model hashes now)"
                                             : "\n               but model.safetensors hashes to ",
               model[0] == '\0' || strcmp(model, weights) == 0 ? "" : model);
}

static void print_reasons(const json_t *report)
{
    const json_t *files = json_object_get(report, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *reason = text_of(json_array_get(files, i), "reason");
        if (reason[0] != '\0')
            fprintf(stderr, "lockstep inspect: %s\n", reason);
    }
    if (text_of(report, "reason")[0] != '\0')
        fprintf(stderr, "lockstep inspect: %s\n", text_of(report, "reason"));
}

static int show(json_t *report, const inspect_options *options, bool good)
{
    if (report == NULL)
        return fail_for_memory();
    if (!options->json) {
        print_report(report);
    } else {
        char *text = json_dumps(report, JSON_COMPACT);
        if (text == NULL)
            return fail_for_memory();
        printf("%s\n", text);
        free(text);
    }
    print_reasons(report);
    return good ? 0 : LKI_EXIT_FAILURE;
}

/* ---- The command --------------------------------------------------------------------------- */

static int inspect_file(const inspect_options *options)
{
    lk_safetensors *file;
    const char     *name = strrchr(options->path, '/');
    if (strcmp(name != NULL ? name + 1 : options->path, "manifest.json") == 0) {
        fprintf(stderr, "lockstep inspect: '%s' is a part of a checkpoint: name the directory that "
                        "it is in\n", options->path);
        return LKI_EXIT_FAILURE;
    }
    if (lk_safetensors_open(&file, options->path) != LK_OK)
        return fail_about(options);
    json_t *report = report_of_file(file, options);
    int     result = show(report, options, true);
    json_decref(report);
    lk_safetensors_free(file);
    return result;
}

static int inspect_checkpoint(const inspect_options *options)
{
    lk_checkpoint *checkpoint;
    char           notes[4096] = "";
    lk_status status = lk_checkpoint_open_manifest(&checkpoint, options->path, notes, sizeof notes);
    fputs(notes, stderr);
    if (status != LK_OK)
        return fail_about(options);
    bool    good;
    json_t *report = report_of(checkpoint, options, &good);
    int     result = show(report, options, good);
    json_decref(report);
    lk_checkpoint_free(checkpoint);
    return result;
}

static int inspect_main(int argc, char **argv)
{
    inspect_options options = { .verify = true, .rows = 20 };
    int             done    = lki_options_parse(&lki_command_inspect, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_inspect, NULL);
    if (done >= 0)
        return done;
    if ((options.path != NULL) == (options.flight != NULL))
        return lki_usage_error(&lki_command_inspect, "give either CHECKPOINT or --flight DIR");
    if (options.flight != NULL)
        return lki_inspect_flight(options.flight, options.rows, options.json);
    if (options.consolidate != NULL && (options.json || options.tensors))
        return lki_usage_error(&lki_command_inspect,
                               "--consolidate prints neither --json nor --tensors");
    if (options.consolidate != NULL)
        return lki_inspect_consolidate(options.path, options.consolidate, options.everything);
    struct stat info;
    if (stat(options.path, &info) != 0) {
        fprintf(stderr, "lockstep inspect: cannot find '%s': %s\n", options.path, strerror(errno));
        return LKI_EXIT_FAILURE;
    }
    return S_ISDIR(info.st_mode) ? inspect_checkpoint(&options) : inspect_file(&options);
}

const lki_command lki_command_inspect = {
    .name    = "inspect",
    .summary = "show and verify a checkpoint; show the last operations of a job",
    .usage   = "CHECKPOINT [--tensors] [--no-verify] [--json]\n"
               "       lockstep inspect CHECKPOINT --consolidate FILE [--everything]\n"
               "       lockstep inspect --flight DIR [--last K] [--json]",
    .about =
        "Shows step, seed, exactness id, weights hash, configuration, files and tensors of a\n"
        "checkpoint, after reading all of it and checking every hash.  Damage is reported with\n"
        "its file, block and tensor, and the exit status is 1.  In a directory of checkpoints the\n"
        "newest one with an intact manifest is used.  A plain .safetensors file has no hashes to\n"
        "check: its tensors are shown and hashed.  --no-verify reads the manifest only.\n"
        "\n"
        "--consolidate copies the model, which may be spread over several files, into one new\n"
        "file for any reader of safetensors.  It checks every hash on the way, takes a few MiB of\n"
        "memory for a model of any size, and leaves either a complete file or none.\n"
        "\n"
        "--flight reads the records that train, run or bench write with --flight-recorder DIR,\n"
        "while the workers run or after they have died.  It shows where each rank is, which ranks\n"
        "wait for which, disagree or are late, and the last operations with the spread of their\n"
        "arrivals.",
    .examples = "  lockstep inspect run1\n"
                "  lockstep inspect run1/step-00000100 --tensors\n"
                "  lockstep inspect run1 --json | python3 -m json.tool\n"
                "  lockstep inspect run1 --consolidate weights.safetensors\n"
                "  lockstep inspect gpt2/model.safetensors --tensors\n"
                "  lockstep inspect --flight records --last 50",
    .options = table,
    .main    = inspect_main,
};
