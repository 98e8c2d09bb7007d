/* cmd_train.c -- the options of `lockstep train`. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chaos.h"
#include "cli/commands.h"
#include "cli/paths.h"
#include "cli/record.h"
#include "cli/train.h"
#include "cli/values.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/checkpoint.h"
#include "lockstep/launch.h"

#define AT(field) offsetof(train_options, field)

/* ---- Readers of special values ----------------------------------------------------------- */

bool lki_is_model(const char *name)
{
    for (uint32_t i = 0; lk_model_builtin(i) != NULL; i++)
        if (strcmp(name, lk_model_builtin(i)) == 0)
            return true;
    return false;
}

/* Reads MODEL. */
static bool read_model(const char *text, void *target, lki_message *error)
{
    const char *names[8], *meant;
    size_t      count = 0;
    for (; count < 8 && lk_model_builtin((uint32_t)count) != NULL; count++)
        names[count] = lk_model_builtin((uint32_t)count);
    ((train_options *)target)->config.model = text;
    if (lki_is_model(text) || strcmp(text, "bare") == 0) /* only the library and plan know bare */
        return true;
    if (strncmp(text, "resnet", 6) == 0 && text[6] != '\0')
        return lki_refuse(error, "there is no such model; write resnet --depth 20, 32, 56, 18, 50");
    if (lki_is_run(text))
        return lki_refuse(error, "is the directory of a run; to continue it, use lockstep resume "
                                 "%.120s", text);
    if (lki_has_file(text, "config.json") || lki_has_file(text, "model.safetensors"))
        return lki_refuse(error, "is the folder of a model; to start with its weights, write "
                                 "--init %.120s", text);
    if (access(text, F_OK) == 0)
        return lki_refuse(error, "there is no such model; there are gpt, llama, resnet and mlp; if "
                                 "it is the data, write gpt --data %.120s", text);
    meant = lki_suggest(text, names, count);
    return lki_refuse(error, "there is no such model; there are gpt, llama, resnet and mlp%s%s%s",
                      meant != NULL ? ", did you mean " : "", meant != NULL ? meant : "",
                      meant != NULL ? "?" : "");
}

/* Reads --data: a source, or a path whose kind is recognised. */
static bool read_source(const char *text, void *target, lki_message *error)
{
    train_options *options = target;
    options->config.data.source = lki_source_of(text, options->source, error);
    return options->config.data.source != NULL;
}

static bool read_resume(const char *text, void *target, lki_message *error)
{
    lk_train_config *config = &((train_options *)target)->config;
    uint64_t         step   = 0;

    config->checkpoint.resume_step = -1;
    if (*text != '\0' && strcmp(text, "auto") != 0) {
        if (!lki_parse_u64(text, strlen(text), &step) || step > INT64_MAX)
            return lki_refuse(error, "must be auto, the step of a checkpoint, or nothing");
        config->checkpoint.resume_step = (int64_t)step;
    }
    config->checkpoint.resume          = true;
    config->checkpoint.resume_required = strcmp(text, "auto") != 0;
    return true;
}

static bool read_restart(const char *text, void *target, lki_message *error)
{
    return lki_parse_restart(text, &((train_options *)target)->restart, error);
}

static bool read_chaos(const char *text, void *target, lki_message *error)
{
    return lki_parse_chaos(text, &((train_options *)target)->chaos, error);
}

static bool read_mpi(const char *text, void *target, lki_message *error)
{
    static const char *const names[] = { "auto", "on", "off" };
    train_options           *options = target;

    for (int mode = LK_MPI_AUTO; mode <= LK_MPI_OFF; mode++)
        if (strcmp(*text == '\0' ? "on" : text, names[mode]) == 0) {
            options->mpi = (lk_mpi_mode)mode;
            return true;
        }
    return lki_refuse(error, "must be on, off, auto, or nothing, which means on");
}

/* Reads --shard-replicas. */
static bool read_replicas(const char *text, void *target, lki_message *error)
{
    bool two = strcmp(text, "2") == 0;
    if (!two && strcmp(text, "1") != 0)
        return lki_refuse(error, "must be 1 or 2");
    ((train_options *)target)->config.buddies = two;
    return true;
}

/* ---- The table --------------------------------------------------------------------------- */

/* Converts the rows of train/options.def to rows of lki_option: first the headings, then the
 * rows. */
#define GROUP(name_, text_) static const char heading_of_##name_[] = text_;
#include "train/options.def"

/* clang-format off */
#define ROW(name_, type_, value_, at_, group_, scope_, default_, help_, ...)                     \
    { .name = name_, .type = LKI_OPTION_##type_, .value = value_, .offset = at_,                 \
      .group = heading_of_##group_, .scope = LKI_SCOPE_##scope_, .preset = default_,             \
      .help = help_, __VA_ARGS__ },
#define OPTION(name_, type_, value_, field_, group_, scope_, default_, help_, more_)             \
    ROW(name_, type_, value_, offsetof(train_options, config.field_), group_, scope_, default_,  \
        help_, more_)
#define COMMAND_OPTION(name_, type_, value_, field_, group_, scope_, default_, help_, more_)     \
    ROW(name_, type_, value_, offsetof(train_options, field_), group_, scope_, default_, help_,  \
        more_)
#define NODE_OPTIONS LKI_NODE_OPTIONS(offsetof(train_options, nodes)),

#define FROM(low_, high_) .low = low_, .high = high_,
#define RANGE(range_) .range = &lki_range_##range_,
#define COUNT(field_, most_)                                                                     \
    .count_offset = offsetof(train_options, config.field_), .list_max = most_,
#define CHOICES(list_) .choices = (const lki_choice[]){ list_ { .name = NULL } },
#define NAMED(name_, value_) { .name = name_, .value = value_ },
#define INVARIANT(name_, value_) CHOICE_OF(name_, value_, LK_LABEL_INVARIANT)
#define REPLAYED(name_, value_) CHOICE_OF(name_, value_, LK_LABEL_RECORDED)
#define TIMED(name_, value_) CHOICE_OF(name_, value_, LK_LABEL_TIMED)
#define CHOICE_OF(name_, value_, label_) { .name = name_, .value = value_, .label = label_ },
#define REFUSED(name_, value_, why_) { .name = name_, .value = value_, .later = why_ },
#define LABEL(label_) .label = LK_LABEL_##label_,
#define READ(function_) .read = function_,
#define WRITE(function_)
#define NEEDS(option_) .needs = &(const lki_need){ option_, { NULL } },
#define WITH(option_, ...) .needs = &(const lki_need){ option_, { __VA_ARGS__ } },
#define ALIAS(name_) .alias = name_,
#define ALIAS_OF(name_, value_) .alias = name_, .alias_value = value_,
#define COMMON .common = true,
#define UNLESS(option_) .unless = option_,
#define REQUIRED .required = true,
#define ELSE(default_) .otherwise = default_,
#define LETTER(letter_) .letter = letter_,
#define VALUE_OPTIONAL .value_optional = true,
#define ONCE .once = true,
#define INTO(option_)
#define RECORDED
#define RECORDED_IF(option_)
#define RECORDED_WITH(option_, ...)
#define MAY_CHANGE
#define MAY_COME
#define LOGGED
#define ALL_RANKS
#define IDENTITY(text_)
#define NOTED(text_)

const lki_option lki_train_table[] = {
#include "train/options.def"
    LKI_OPTIONS_END,
};
/* clang-format on */

/* ---- The command ------------------------------------------------------------------------- */

static void print_weights(const train_options *options)
{
    printf("weights %s\n", options->result.weights);
}

/* Returns the command in whose name the options are read, and errors are reported. */
static lki_command named_command(void)
{
    static const char *const others[] = { "resume", "verify" };
    lki_command              command  = lki_command_train;
    const char              *name     = getenv(LKI_TRAIN_FOR);
    for (size_t i = 0; name != NULL && i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i]) == 0)
            command.name = others[i];
    return command;
}

static int train_main(int argc, char **argv)
{
    train_options     options = LKI_TRAIN_OPTIONS_INIT;
    const lki_command command = named_command();
    int               result  = lki_options_parse(&command, argc, argv, &options);
    options.command           = &command;
    options.print             = print_weights;
    if (result < 0)
        result = lki_train_start(&options, argv);
    else
        free(options.file.text);
    return result;
}

const lki_command lki_command_train = {
    .name    = "train",
    .summary = "train a model on this machine's cores",
    .usage   = "MODEL --data SOURCE [options]",
    .about =
        "Trains a built-in model with N worker processes.  Batch, optimizer, learning rate and\n"
        "steps have defaults that suit the model; the first lines say them.  The result is a\n"
        "function of the options about model, data, batch, optimizer, learning rate, precision,\n"
        "evaluation and stopping, and of the other rules.  All other options, such as the number\n"
        "of workers and hosts, the strategy and the instruction set, change the speed, but not\n"
        "one bit of the weights.\n"
        "Progress goes to stderr; the last line of stdout is `weights` and the hash of the\n"
        "trained weights.  Ctrl-C saves (with --checkpoint) and exits with status 75; --resume\n"
        "continues from there.\n"
        "\n"
        "Started by mpirun, srun or torchrun, it joins their job.  An environment that describes\n"
        "half of a job, such as RANK without WORLD_SIZE, is refused with status 2.",
    .examples =
        "  lockstep train --init Qwen3-0.6B --data notes --lr 1e-5 --checkpoint run2\n"
        "  lockstep train gpt --data book.txt --checkpoint run1\n"
        "  lockstep train gpt --data text:book.txt --validation 0.1 --workers 2 \\\n"
        "      --global-batch 32 --steps 500 --optimizer adamw --lr 1e-3 --checkpoint run1\n"
        "  lockstep train resnet --data idx:images.gz,labels.gz --validation 0.2 \\\n"
        "      --global-batch 128 --epochs 5 --momentum 0.9 --lr 0.1 --schedule cosine\n"
        "  lockstep train mlp --config mlp.toml --seed 7",
    .options = lki_train_table,
    .main    = train_main,
    .check   = lki_train_check_options,
    .choose  = lki_train_choose,
};
