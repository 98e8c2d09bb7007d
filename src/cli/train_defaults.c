/* train_defaults.c -- values for the options of a run that are not given.
 *
 * Values that decide the result depend on the model and on the other options, never on the machine:
 * the same command gives the same bits everywhere.  They are read like options of the command line,
 * so other hosts, `lockstep resume` and messages see them as such.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/train.h"
#include "cli/values.h"

static const double RATE_FAR = 100; /* times the usual learning rate */

static const lki_option *row_of(const train_options *o, const char *name)
{
    const lki_option *row = o->command->options;
    while (row->type != LKI_OPTION_END && strcmp(row->name, name) != 0)
        row++;
    return row;
}

bool lki_is_given(const train_options *o, const char *name)
{
    const lki_option *row = row_of(o, name);
    return row->type != LKI_OPTION_END && o->file.given[row - o->command->options] != NULL;
}

/* Sets an option that is not given, as if `text` were on the command line.  Returns false if it is
 * given, or not one of the command's. */
static bool give(train_options *o, const char *name, const char *text)
{
    lki_message       error;
    const lki_option *row = row_of(o, name);
    if (row->type == LKI_OPTION_END || lki_is_given(o, name) ||
        !lki_value_read(row, text, o, &error))
        return false;
    o->file.given[row - o->command->options] = text;
    return true;
}

/* Does the same with a value that the first lines of the run report. */
static void choose(train_options *o, const char *name, const char *text)
{
    if (o->chosen_count == LKI_CHOSEN_MAX || !give(o, name, text))
        return;
    o->chosen[o->chosen_count].name   = name;
    o->chosen[o->chosen_count++].text = text;
}

/* ---- Values that decide the result --------------------------------------------------------- */

static const char *rate_of(lk_optimizer_kind kind)
{
    switch ((int)kind) {
    case LK_LARS: return "1";
    case LK_LAMB:
    case LK_ONEBIT_LAMB: return "2e-3";
    case LK_LION: return "1e-4";
    case LK_ADAGRAD:
    case LK_YOGI: return "1e-2";
    case LK_ADAMW:
    case LK_ONEBIT_ADAM: return "1e-3";
    default: return "0.1";
    }
}

/* Returns true if the model reads text. */
static bool reads_text(const train_options *o)
{
    return strcmp(o->config.model, "gpt") == 0 || strcmp(o->config.model, "llama") == 0;
}

/* Returns true if gradients may be clipped: none of the other rules, which may refuse or change
 * clipping, is used. */
static bool may_clip(const train_options *o)
{
    const lk_train_exchange *x = &o->config.exchange;
    return !lki_is_given(o, "clip-value") && x->compressor == NULL && x->clients.count == 0 &&
           x->async.mode == LK_ASYNC_OFF;
}

void lki_train_choose_model(const lki_command *command, void *target)
{
    train_options *o     = target;
    const char    *model = NULL;
    o->command           = command;
    if (o->config.init != NULL && lk_folder_model(&model, o->config.init) == LK_OK)
        (void)give(o, "MODEL", model);
}

/* Chooses adamw for text.  For other models, and for clients, a given learning rate is that of
 * plain sgd. */
void lki_train_choose(const lki_command *command, void *target)
{
    train_options *o = target;
    lki_train_choose_model(command, target);
    if (o->config.model == NULL)
        return; /* that of a program, or the reason is reported later */
    bool rate    = lki_is_given(o, "lr");
    bool text    = reads_text(o) && (!rate || o->config.exchange.clients.count == 0);
    bool free_to = !lki_is_given(o, "optimizer") && !lki_is_given(o, "momentum") &&
                   !lki_is_given(o, "nesterov") && !lki_is_given(o, "momentum-of");
    if (free_to && (text || !rate))
        choose(o, "optimizer", text ? "adamw" : "sgd");
    if (free_to && !text && !rate)
        choose(o, "momentum", "0.9");
    choose(o, "lr", free_to && !text ? "0.05" : rate_of(o->config.optimizer.kind));
    if (free_to && text && may_clip(o)) /* one spike costs dozens of steps; docs/training.md */
        choose(o, "clip-norm", "1");
}

/* Chooses the batch.  Its default has 16 virtual workers of one micro-batch (2 samples of
 * text, each of which has many tokens).  With a given number of virtual workers, or of samples per
 * micro-batch, it is the next multiple of both. */
static void choose_batch(train_options *o)
{
    bool     text  = reads_text(o);
    uint64_t most  = text ? 32 : 128, part = 1;
    if (lki_is_given(o, "global-batch") || o->config.exchange.clients.count > 0)
        return;
    if (!lki_is_given(o, "micro-batch") && !lki_is_given(o, "virtual-workers"))
        choose(o, "micro-batch", text ? "2" : "8");
    part *= o->config.micro_batch > 0 ? o->config.micro_batch : 1;
    part *= o->config.virtual_workers > 0 ? o->config.virtual_workers : 1;
    most = (most + part - 1) / part * part;
    (void)snprintf(o->batch_text, sizeof o->batch_text, "%llu", (unsigned long long)most);
    choose(o, "global-batch", o->batch_text);
}

static void choose_length(train_options *o)
{
    const char *source  = o->config.data.source;
    bool        limited = lki_is_given(o, "max-epochs") || lki_is_given(o, "max-samples") ||
                   lki_is_given(o, "max-tokens");
    bool        streams = source != NULL && strncmp(source, "stream:", 7) == 0;
    if (lki_is_given(o, "steps") || lki_is_given(o, "epochs") || streams ||
        o->config.exchange.clients.count > 0)
        return; /* a stream has no known length, and a round of clients no usual one */
    choose(o, "steps", "1000");
    if (!limited)
        choose(o, "max-epochs", "20");
}

/* Chooses the tokenizer of a folder of Hugging Face's, if the data are text. */
static void choose_tokenizer(train_options *o)
{
    const char *source = o->config.data.source, *folder = o->config.init;
    bool        text   = source != NULL && (strncmp(source, "text:", 5) == 0 ||
                                   (strncmp(source, "docs:", 5) == 0 && !strchr(source, '?')));
    if (folder == NULL || !text)
        return;
    if (asprintf(&o->tokenizer, "%s/tokenizer.json", folder) < 0) {
        o->tokenizer = NULL; /* which is undefined then, and freed later */
        return;
    }
    if (access(o->tokenizer, F_OK) == 0)
        choose(o, "tokenizer", o->tokenizer);
}

void lki_train_suit(train_options *o)
{
    choose_tokenizer(o);
    choose_batch(o);
    choose_length(o);
}

/* ---- The machine --------------------------------------------------------------------------- */

void lki_train_use_cores(train_options *o)
{
    uint32_t cores   = lk_allowance_read().cores;
    uint32_t workers = o->config.workers > 0 ? o->config.workers : 1;
    if (o->worker_mode == LKI_MODE_PROCESSES && !lki_is_given(o, "workers") &&
        !lki_is_given(o, "threads"))
        o->config.threads = cores > workers ? cores / workers : 1;
    if (lki_is_given(o, "threads") || o->config.threads <= 1)
        return;
    (void)snprintf(o->threads_argument, sizeof o->threads_argument, "--threads=%u",
                   o->config.threads);
}

/* Prints which cores have no work of their own, and what would give it to them. */
static void print_cores(const train_options *o)
{
    const lk_train_config *c     = &o->config;
    const lk_allowance     mine  = lk_allowance_read();
    uint32_t               cores = mine.cores, threads = c->threads > 0 ? c->threads : 1;
    uint32_t               pieces = c->global_batch, most = 1;
    char                   shared[48] = "";
    fprintf(stderr, "workers: %u with %u thread%s each, on %u core%s", c->workers, threads,
            threads == 1 ? "" : "s", mine.bound_cores, mine.bound_cores == 1 ? "" : "s");
    if (mine.granted_cores > 0 && mine.granted_cores < mine.bound_cores)
        fprintf(stderr, ", of which the cgroup grants the time of %.1f", mine.granted_cores);
    fprintf(stderr, "\n");
    if (lki_is_given(o, "workers") || c->workers != c->virtual_workers || c->workers >= cores ||
        c->exchange.clients.count > 0 || lki_nodes_least(&o->nodes) > 0)
        return;
    while (most < cores && most < 4096 && most * 2 <= pieces && pieces % (most * 2) == 0)
        most *= 2;
    if (threads > 1)
        (void)snprintf(shared, sizeof shared, ", whose threads share the other cores");
    if (most <= c->workers)
        fprintf(stderr, "note: %u virtual worker%s for %u cores%s: a larger --global-batch, such "
                        "as %u, gives more (and another result)\n", c->virtual_workers,
                c->virtual_workers == 1 ? "" : "s", cores, shared, cores * c->micro_batch);
    else
        fprintf(stderr, "note: %u virtual worker%s for %u cores%s: --virtual-workers %u "
                        "--micro-batch %u gives every core its own work (and another result)\n",
                c->virtual_workers, c->virtual_workers == 1 ? "" : "s", cores, shared, most,
                c->global_batch / most > 8 ? 8 : c->global_batch / most);
}

/* Returns the name of the optimizer. */
static const char *optimizer_of(const train_options *o)
{
    const lki_choice *choice = row_of(o, "optimizer")->choices;
    while (choice->name != NULL && choice->value != (int)o->config.optimizer.kind)
        choice++;
    return choice->name != NULL ? choice->name : "the optimizer";
}

/* Prints a note if the learning rate is so large that it may be a mistake. */
static void print_rate(const train_options *o)
{
    const char *given = o->file.given[row_of(o, "lr") - o->command->options];
    const char *usual = rate_of(o->config.optimizer.kind);
    if (given != NULL && o->config.exchange.clients.count == 0 &&
        strtod(given, NULL) > RATE_FAR * strtod(usual, NULL))
        fprintf(stderr, "note: --lr %s is far above what %s usually takes, such as %s; if the loss "
                        "grows, lower it\n", given, optimizer_of(o), usual);
}

void lki_train_print_choices(const train_options *o)
{
    const char *source = o->config.data.source;
    if (o->config.quiet)
        return;
    if (source == o->source) /* its kind was recognised */
        fprintf(stderr, "data: %s\n", source);
    if (o->chosen_count > 0) {
        fprintf(stderr, "not given, so:");
        for (uint32_t i = 0; i < o->chosen_count; i++)
            fprintf(stderr, " --%s %s", o->chosen[i].name, o->chosen[i].text);
        fprintf(stderr, "  (V %u", o->config.virtual_workers);
        if (row_of(o, "micro-batch")->type != LKI_OPTION_END && !lki_is_given(o, "micro-batch"))
            fprintf(stderr, ", micro-batch %u", o->config.micro_batch);
        fprintf(stderr, ")\n");
    }
    if (o->chosen_count > 0 || !lki_is_given(o, "workers"))
        print_cores(o);
    print_rate(o);
    if (o->chosen_count > 0 && o->config.checkpoint.folder == NULL)
        fprintf(stderr, "note: the weights are not kept; --checkpoint DIR keeps them\n");
    else if (o->chosen_count > 0 && o->config.checkpoint.every == 0)
        fprintf(stderr, "note: the checkpoint is written at the end; --checkpoint-every N writes "
                        "more, so that a run that is killed can go on\n");
    else if (o->config.checkpoint.folder != NULL && o->config.checkpoint.every > 0)
        fprintf(stderr, "checkpoints: every %llu steps; if the run is killed, lockstep resume %s "
                        "continues it\n", (unsigned long long)o->config.checkpoint.every,
                o->config.checkpoint.folder);
}
