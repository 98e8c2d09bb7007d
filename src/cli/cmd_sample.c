/* cmd_sample.c -- `lockstep sample`: generates text with a trained gpt or llama. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/text.h"
#include "cli/values.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/train.h"

typedef struct {
    lk_sample_options sample;
    const char       *init; /* in place of sample.path */
    bool              raw;
} sample_options;

#define AT(field) offsetof(sample_options, sample.field)

/* clang-format off */
static const lki_choice precisions[] = {
    { .name = "fp32", .value = LK_F32 },
    { .name = "bf16", .value = LK_BF16 },
    { .name = NULL },
};
static const lki_option table[] = {
    LKI_TRAINED("RUN", AT(path), offsetof(sample_options, init), AT(adapter)),
    LKI_STRING("prompt", "TEXT", AT(prompt), "a newline",
               "text to continue; - reads it from standard input"),
    LKI_U32("tokens", "N", AT(tokens), 1, 1 << 24, "256", "largest number of tokens to generate"),
    LKI_U32("count", "N", AT(count), 1, 1 << 24, "1",
            "number of texts, each followed by a newline"),
    { .name = "tokenizer", .type = LKI_OPTION_STRING, .value = "FILE", .offset = AT(tokenizer),
      .preset = "tokenizer.json beside the weights", .once = true,
      .help = "the tokenizer.json of the model; a model of 256 tokens has bytes as tokens" },
    LKI_REAL("temperature", "T", AT(temperature), &lki_range_not_negative, "0.8",
             "0 always chooses the most likely token; 1 samples from the model's distribution"),
    LKI_U32("top-k", "K", AT(top_k), 1, 1 << 24, "all",
            "sample only from the K most likely tokens"),
    LKI_REAL("top-p", "P", AT(top_p), &lki_range_share, "1",
             "sample only from the most likely tokens that together have the probability P"),
    LKI_U64("seed", "N", AT(seed), 0, UINT64_MAX, "0",
            "seed for sampling; the same seed gives the same text"),
    LKI_FLAG("ignore-end", AT(ignore_end),
             "go on after the token between documents, where a text would otherwise end"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "weights", "WHICH", AT(weights), lki_weights_choices,
               "ema, if there is one", "use the model's weights, or their moving average"),
    LKI_U32("heads", "N", AT(heads), 1, 1024, "as in the checkpoint",
            "number of attention heads of a gpt in a .safetensors file, which does not store it"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "precision", "NAME", AT(precision), precisions, "fp32",
               "type of values and of the operands of matrix products: fp32 or bf16"),
    LKI_U32("threads", "N", AT(threads), 1, 1024, "the cores", "number of threads"),
    LKI_FLAG("no-cache", AT(no_cache),
             "compute the whole window again for every token; the text is the same"),
    LKI_FLAG("raw", offsetof(sample_options, raw),
             "write the bytes of a model without a tokenizer as they are, also if they are not "
             "UTF-8"),
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

static void end_text(void *text, uint32_t index)
{
    (void)index;
    if (text != NULL)
        lki_text_end(text, stdout);
    printf("\n");
    (void)fflush(stdout);
}

/* Reads standard input to its end.  Prints an error and returns NULL if it cannot be a prompt. */
static char *read_prompt(void)
{
    enum { MIB_MAX = 64, BYTES_MAX = MIB_MAX << 20 };
    char        *text = malloc(BYTES_MAX + 2); /* pages that nobody writes cost nothing */
    const size_t used = text != NULL ? fread(text, 1, BYTES_MAX + 1, stdin) : 0;

    if (text == NULL || ferror(stdin))
        fprintf(stderr, "lockstep sample: cannot read the prompt on standard input: %s\n",
                strerror(errno));
    else if (memchr(text, '\0', used) != NULL)
        fputs("lockstep sample: the prompt on standard input has a zero byte; give text\n", stderr);
    else if (used > BYTES_MAX)
        fprintf(stderr, "lockstep sample: the prompt on standard input has more than %d MiB; give "
                        "the end of it (tail -c), since a model reads at most its context\n",
                MIB_MAX);
    else {
        text[used] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

static int sample(lk_sample_options *options, bool raw)
{
    lki_text text    = { .controls = isatty(STDOUT_FILENO) != 1 };
    options->context = raw ? NULL : &text;
    if (options->threads == 0)
        options->threads = lk_allowance_read().cores;
    if (lk_sample(options) == LK_OK)
        return 0;
    lki_print_error_about("sample", options->path, "a folder as transformers writes it, or a "
                                                   ".safetensors file");
    return lk_error_last()->status == LK_EINVAL ? LKI_EXIT_USAGE : LKI_EXIT_FAILURE;
}

static int sample_main(int argc, char **argv)
{
    sample_options options = { .sample = { .struct_size = sizeof(lk_sample_options),
                                           .tokens = 256, .temperature = 0.8,
                                           .emit = print_bytes, .finished = end_text } };
    int            done    = lki_options_parse(&lki_command_sample, argc, argv, &options);
    char          *prompt  = NULL;
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_sample, NULL);
    if (done < 0)
        done = lki_take_init(&lki_command_sample, &options.sample.path, options.init);
    if (done < 0)
        done = lki_check_trained(&lki_command_sample, options.sample.path);
    if (done >= 0)
        return done;
    if (options.sample.prompt != NULL && strcmp(options.sample.prompt, "-") == 0) {
        prompt = read_prompt();
        if (prompt == NULL)
            return LKI_EXIT_USAGE;
        options.sample.prompt = prompt;
    }
    done = sample(&options.sample, options.raw);
    free(prompt);
    return done;
}

const lki_command lki_command_sample = {
    .name     = "sample",
    .summary  = "generate text with a trained gpt or llama",
    .usage    = "RUN [--prompt TEXT] [--tokens N] [--temperature T] [options]",
    .about    = "Continues a prompt with a gpt or llama of `lockstep train`.  Its tokens are\n"
                "bytes, or those of the run's --tokenizer, which is found beside the checkpoint.\n"
                "RUN may also be a folder as transformers writes it.\n"
                "The same checkpoint, prompt, options and seed give the same text everywhere,\n"
                "with any number of threads.  `lockstep generate` is the same command.\n"
                "The output is UTF-8: a byte that is in no character becomes U+FFFD.  --raw\n"
                "writes the bytes of a byte-level model as they are.",
    .examples = "  lockstep sample run1 --prompt \"static int \" --tokens 400 --seed 3\n"
                "  lockstep sample Qwen3-0.6B --adapter adapters --prompt \"The sea \"",
    .options  = table,
    .main     = sample_main,
    .other_name = "generate",
};
