/* cmd_sample.c -- `lockstep sample`: generates text with a trained gpt or llama. */
#include <unistd.h>

#include "cli/commands.h"
#include "cli/text.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/train.h"

typedef struct {
    lk_sample_options sample;
} sample_options;

#define AT(field) offsetof(sample_options, sample.field)

/* clang-format off */
static const lki_choice weights[] = {
    { .name = "model", .value = LK_WEIGHTS_MODEL },
    { .name = "ema", .value = LK_WEIGHTS_EMA },
    { .name = NULL },
};
static const lki_option table[] = {
    LKI_POSITIONAL("CHECKPOINT", AT(path), true,
                   "a directory of checkpoints (uses the newest), a checkpoint, or a .safetensors "
                   "file"),
    LKI_STRING("prompt", "TEXT", AT(prompt), "a newline", "text to continue"),
    LKI_U32("tokens", "N", AT(tokens), 1, 1 << 24, "256", "number of tokens to generate"),
    LKI_STRING("tokenizer", "FILE", AT(tokenizer), "tokenizer.json beside the checkpoint",
               "the tokenizer.json of the model; a model of 256 tokens has bytes as tokens"),
    LKI_REAL("temperature", "T", AT(temperature), &lki_range_not_negative, "0.8",
             "0 always chooses the most likely token; 1 samples from the model's distribution"),
    LKI_U32("top-k", "K", AT(top_k), 1, 1 << 24, "all",
            "sample only from the K most likely tokens"),
    LKI_U64("seed", "N", AT(seed), 0, UINT64_MAX, "0",
            "seed for sampling; the same seed gives the same text"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "weights", "WHICH", AT(weights), weights,
               "ema, if there is one", "use the model's weights, or their moving average"),
    LKI_U32("heads", "N", AT(heads), 1, 1024, "as in the checkpoint",
            "number of attention heads of a gpt in a .safetensors file, which does not store it"),
    LKI_U32("threads", "N", AT(threads), 1, 1024, "1", "number of threads"),
    LKI_OPTIONS_END,
};
/* clang-format on */

static void print_bytes(void *text, const char *bytes, size_t count)
{
    if (text != NULL)
        lki_text_write(text, bytes, count, stdout);
    else
        (void)fwrite(bytes, 1, count, stdout);
    (void)fflush(stdout);
}

static int sample_main(int argc, char **argv)
{
    sample_options options = { .sample = {
                                   .struct_size = sizeof(lk_sample_options),
                                   .tokens = 256, .temperature = 0.8, .emit = print_bytes } };
    int            done    = lki_options_parse(&lki_command_sample, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_sample, NULL);
    if (done >= 0)
        return done;
    lki_text  text        = { .count = 0 };
    options.sample.context = isatty(STDOUT_FILENO) == 1 ? &text : NULL;
    lk_status status       = lk_sample(&options.sample);
    lki_text_end(&text, stdout);
    if (status != LK_OK) {
        lki_print_error("sample");
        return status == LK_EINVAL ? LKI_EXIT_USAGE : LKI_EXIT_FAILURE;
    }
    printf("\n");
    return 0;
}

const lki_command lki_command_sample = {
    .name     = "sample",
    .summary  = "generate text with a trained gpt or llama",
    .usage    = "CHECKPOINT [--prompt TEXT] [--tokens N] [--temperature T] [options]",
    .about    = "Continues a prompt with a gpt or llama of `lockstep train`.  Its tokens are\n"
                "bytes, or those of the run's --tokenizer, which is found beside the checkpoint.\n"
                "The same checkpoint, prompt, options and seed give the same text everywhere.\n"
                "Bytes that are not UTF-8 are shown as U+FFFD on a terminal, and with a tokenizer\n"
                "everywhere; a file gets the bytes of a byte-level model.",
    .examples = "  lockstep sample run1 --prompt \"static int \" --tokens 400 --seed 3",
    .options  = table,
    .main     = sample_main,
};
