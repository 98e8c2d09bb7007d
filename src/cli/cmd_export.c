/* cmd_export.c -- `lockstep export`: writes a trained model as a folder of Hugging Face's. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/signals.h"
#include "cli/values.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/tokenizer.h"
#include "lockstep/train.h"

typedef struct {
    lk_export_options export;
    size_t            shard_bytes;
    int               dtype;
} export_options;

#define AT(field) offsetof(export_options, field)

/* clang-format off */
static const lki_choice types[] = {
    { .name = "f32", .value = LK_F32 },
    { .name = "bf16", .value = LK_BF16 },
    { .name = "f16", .value = LK_F16 },
    { .name = NULL },
};
static const lki_option table[] = {
    LKI_POSITIONAL("RUN", AT(export.path), true,
                   "a directory of checkpoints (uses the newest), a checkpoint, or a folder as "
                   "transformers writes it"),
    { .name = "out", .type = LKI_OPTION_STRING, .value = "DIR", .offset = AT(export.out),
      .required = true, .once = true, .help = "the folder to write, which must not exist" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "dtype", "TYPE", AT(dtype), types,
               "the type of each tensor in the folder, also of --init; else f32",
               "type of the weights; bf16 and f16 round them to nearest even"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "weights", "WHICH", AT(export.weights), lki_weights_choices,
               "ema, if there is one", "export the model's weights, or their moving average"),
    { .name = "shard-size", .type = LKI_OPTION_MEBIBYTES, .value = "MIB",
      .offset = AT(shard_bytes), .preset = "4768", .range = &lki_range_positive,
      .help = "largest size of a file of weights" },
    LKI_OPTIONS_END,
};
/* clang-format on */

/* Returns the name of the type of the weights; 0: they have several. */
static const char *name_of(lk_dtype dtype)
{
    const lki_choice *type = types;
    if (dtype == 0)
        return "several types";
    while (type[1].name != NULL && type->value != (int)dtype)
        type++;
    return type->name;
}

/* Prints a note if transformers gives a tokenizer other rules than it has: AutoTokenizer takes
 * those of Qwen for every qwen2, whatever tokenizer_config.json says. */
static void note_tokenizer(const char *folder, const char *type)
{
    char          path[4096];
    lk_tokenizer *tokenizer = NULL;
    if (strcmp(type, "qwen2") != 0 ||
        snprintf(path, sizeof path, "%s/tokenizer.json", folder) >= (int)sizeof path ||
        access(path, F_OK) != 0 || lk_tokenizer_open(&tokenizer, path) != LK_OK)
        return;
    const lk_tokenizer_info *info = lk_tokenizer_describe(tokenizer);
    if (strcmp(info->split, "qwen2") != 0 || !info->nfc)
        fprintf(stderr,
                "note: AutoTokenizer of transformers 5 splits text by the rules of Qwen for every "
                "qwen2, and the tokenizer of this one has others (%s%s): load it by "
                "PreTrainedTokenizerFast.from_pretrained(\"%s\"), or the ids are wrong\n",
                info->split, info->nfc ? "" : ", no NFC", folder);
    lk_tokenizer_free(tokenizer);
}

/* Returns true after Ctrl-C and the like.  Implements lk_export_options.stop. */
static bool stop(void *before)
{
    return lki_is_asked_to_end(before);
}

/* Exports while signals that end the command are held, so that one leaves no unfinished folder. */
static lk_status export_held(lk_export_options *options, lk_exported *result)
{
    sigset_t before;
    options->stop         = stop;
    options->stop_context = &before;
    lki_hold_signals(&before);
    lk_status status = lk_export(options, result);
    lki_release_signals(&before);
    return status;
}

static int export_main(int argc, char **argv)
{
    export_options options = { .export = LK_EXPORT_OPTIONS_INIT };
    lk_exported    result;
    int            done = lki_options_parse(&lki_command_export, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_export, NULL);
    if (done < 0)
        done = lki_check_trained(&lki_command_export, options.export.path);
    if (done >= 0)
        return done;
    options.export.dtype       = (lk_dtype)options.dtype;
    options.export.shard_bytes = options.shard_bytes;
    lk_status status           = export_held(&options.export, &result);
    if (status != LK_OK) {
        lki_print_error_about("export", options.export.path,
                              "or a folder as transformers writes it");
        return status == LK_EINVAL ? LKI_EXIT_USAGE : LKI_EXIT_FAILURE;
    }
    printf("%s: %s, %llu parameters in %s", options.export.out, result.type,
           (unsigned long long)result.parameters, name_of(result.dtype));
    if (result.step > 0) /* a folder has none */
        printf(", step %llu", (unsigned long long)result.step);
    printf("\n");
    note_tokenizer(options.export.out, result.type);
    return 0;
}

const lki_command lki_command_export = {
    .name     = "export",
    .summary  = "write a trained gpt or llama as a Hugging Face folder",
    .usage    = "RUN --out DIR [options]",
    .about    = "Writes config.json, model.safetensors and the tokenizer of the run to a new\n"
                "folder, which AutoModelForCausalLM.from_pretrained() of transformers loads: as\n"
                "GPT-2, Llama, Qwen2 or Qwen3, whichever has the model's parts.  A run that began\n"
                "with such a folder (train --init DIR) keeps its configuration.  Of a run with\n"
                "adapters (train --lora-rank) these alone are written, as PEFT does.\n"
                "RUN may also be such a folder, which is written again: as it is, or with another\n"
                "--dtype or --shard-size.",
    .examples = "  lockstep export run1 --out model --dtype bf16\n"
                "  lockstep export SmolLM2-135M --out small --dtype f16",
    .options  = table,
    .main     = export_main,
};
