/* train_refuse.c -- combinations of options that a run cannot have, beyond those that the library
 * refuses. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/record.h"
#include "cli/train.h"
#include "lockstep/checkpoint.h"
#include "lockstep/report.h"

static bool is_hybrid(const train_options *options)
{
    const char *strategy = options->config.strategy;
    return strategy != NULL && strcmp(strategy, "hybrid") == 0;
}

static bool is_ddp(const train_options *options)
{
    const char *strategy = options->config.strategy;
    return strategy == NULL || strcmp(strategy, "ddp") == 0;
}

/* Returns true if groups of virtual workers keep or share values from step to step, which a host
 * that enters lacks. */
static bool keeps_errors(const lk_train_config *config)
{
    lk_exchange exchange = { .feedback = config->exchange.feedback };
    if (config->optimizer.kind == LK_ONEBIT_ADAM || config->optimizer.kind == LK_ONEBIT_LAMB)
        return true;
    if (config->exchange.compressor == NULL ||
        lk_compressor_find(&exchange.compressor, config->exchange.compressor) != LK_OK)
        return false;
    return lk_exchange_feedback(&exchange) != LK_FEEDBACK_OFF || exchange.compressor->begin != NULL;
}

bool lki_may_return(const train_options *options)
{
    return (is_ddp(options) || is_hybrid(options) || options->config.buddies) &&
           !keeps_errors(&options->config);
}

/* Returns the number of workers on an emulated host. */
static uint32_t workers_on(const train_options *options, uint32_t host)
{
    uint64_t workers = options->config.workers, hosts = options->nodes.hosts;
    return (uint32_t)((host + 1) * workers / hosts - host * workers / hosts);
}

/* Returns the reason why hosts cannot join later; NULL if hosts can join later or need not. */
static const char *cannot_grow(const train_options *options)
{
    uint32_t least = lki_nodes_least(&options->nodes);
    if (least == 0)
        return NULL;
    if (!is_ddp(options) && !is_hybrid(options))
        return "--nnodes MIN:MAX (and --hosts) needs --strategy ddp or hybrid: the others divide "
               "the model among the hosts that are there at the start";
    if (keeps_errors(&options->config))
        return "--nnodes MIN:MAX (and --hosts) is not for compressed gradients: what groups keep "
               "is on the hosts that are there at the start";
    if (is_hybrid(options) && least < options->config.shard_hosts)
        return "--nnodes MIN:MAX (and --hosts) with --strategy hybrid needs a whole group to begin "
               "with: a MIN of at least --shard-size";
    return options->nodes.hosts > 1 && options->config.workers % options->nodes.hosts != 0
               ? "--hosts MIN:MAX needs as many workers on every host: give a --workers that MAX "
                 "divides" : NULL;
}

/* Returns the reason why --shard-size is impossible; NULL if it is possible or not used.  Hosts at
 * the same position of their groups need equal numbers of workers. */
static const char *cannot_group(const train_options *options, uint32_t hosts)
{
    uint32_t group = options->config.shard_hosts > 1 ? options->config.shard_hosts : 1;
    bool     files = options->config.offloaded & LK_OFFLOADED_PARAMETERS;
    if (!is_hybrid(options) || (group == 1 && !files))
        return NULL;
    if (hosts % group != 0)
        return "--shard-size must divide the number of hosts (--hosts, --nnodes): every group "
               "has a model of its own";
    for (uint32_t host = group; host < hosts && options->nodes.hosts > 1; host++)
        if (workers_on(options, host) != workers_on(options, host % group))
            return group == 1
                       ? "--offload parameters:DIR with --strategy hybrid needs as many workers on "
                         "every host: give a --workers that the number of hosts divides"
                       : "--shard-size needs as many workers in the same places of every group of "
                         "hosts: give a --workers that the number of hosts divides";
    return NULL;
}

/* Returns the reason why --restart is impossible; NULL if it is possible or not used. */
static const char *cannot_start_again(const train_options *options)
{
    if (options->restart == 0)
        return NULL;
    if (options->worker_mode == LKI_MODE_THREADS)
        return "--restart needs --worker-mode processes";
    return strncmp(options->config.data.source, "stream:", 7) == 0
               ? "--restart reads the data again, which a stream may not allow"
               : NULL;
}

const char *lki_cannot_go_on(const train_options *options)
{
    bool stream = strncmp(options->config.data.source, "stream:", 7) == 0;
    if (options->on_failure != LK_ON_FAILURE_CONTINUE)
        return NULL;
    if (stream)
        return "--on-failure continue cannot read a stream's last batch again; leave it out";
    if (options->worker_mode == LKI_MODE_THREADS)
        return "--on-failure continue needs --worker-mode processes: threads die together";
    if (options->config.workers > 1 &&
        options->config.model_options.batchnorm == LK_BATCHNORM_SYNC)
        return "--on-failure continue needs --batchnorm ghost; with sync, --restart starts all "
               "again from a checkpoint";
    return NULL;
}

/* Returns the reason why --chaos is impossible; NULL if it is possible or not used. */
static const char *no_chaos(const train_options *options)
{
    bool ends = options->on_failure != LK_ON_FAILURE_CONTINUE && options->restart == 0;
    bool kills = options->chaos.kinds == 0 || (options->chaos.kinds & LK_CHAOS_KILL) != 0;
    if (!(options->chaos.rate > 0))
        return NULL;
    if (options->worker_mode == LKI_MODE_THREADS)
        return "--chaos needs --worker-mode processes: threads die together";
    return ends && kills ? "--chaos kills workers, which would end the run: give --on-failure "
                           "continue or --restart, or leave out killing (SEED,RATE,stop,slow)"
                         : NULL;
}

/* Returns the reason why a flag of the model that is off contradicts the folder of --init, which
 * has set it; NULL if none does. */
static const char *contradicts_folder(const train_options *options)
{
    const unsigned char *model = (const unsigned char *)&options->config.model_options;
    for (const lki_option *o = options->command->options;
         options->config.init != NULL && o->type != LKI_OPTION_END; o++) {
        const char          *given = options->file.given[o - options->command->options];
        const unsigned char *at    = (const unsigned char *)options + o->offset;
        bool ours = at >= model && at < model + sizeof options->config.model_options;
        if (ours && o->type == LKI_OPTION_FLAG && given != NULL && strcmp(given, "false") == 0 &&
            *(const bool *)at)
            return "the model in the folder of --init is made with a flag that is off: leave out "
                   "--no-tie, --no-qkv-bias and --no-qk-norm";
    }
    return NULL;
}

/* Finds the step from which a run continues. */
static bool find_step(const lk_train_checkpoint *c, uint64_t *step)
{
    lk_checkpoint *newest;
    *step = c->resume_step >= 0 ? (uint64_t)c->resume_step : 0;
    if (c->resume_step >= 0)
        return true;
    if (lk_checkpoint_open_manifest(&newest, c->folder, NULL, 0) != LK_OK)
        return false;
    *step = lk_checkpoint_describe(newest)->step;
    lk_checkpoint_free(newest);
    return true;
}

/* Returns true if a log has a step. */
static bool has_step(const char *log, uint64_t step)
{
    lk_log_check *check;
    if (lk_log_check_open(&check, log, step) != LK_OK)
        return false;
    const bool found = lk_log_check_has_step(check);
    lk_log_check_free(check);
    return found;
}

/* Returns true if the last line of a log is the end of a run.  It is shorter than what is read. */
static bool has_end(const char *log)
{
    char  tail[1024];
    FILE *file = fopen(log, "re");
    if (file == NULL)
        return false;
    if (fseek(file, -(long)(sizeof tail - 1), SEEK_END) != 0)
        rewind(file); /* it is shorter */
    size_t bytes = fread(tail, 1, sizeof tail - 1, file);
    (void)fclose(file);
    while (bytes > 0 && tail[bytes - 1] == '\n')
        bytes--;
    tail[bytes]      = '\0';
    const char *line = strrchr(tail, '\n');
    return strstr(line != NULL ? line : tail, "\"weights\":") != NULL;
}

/* Returns the reason why a run that continues would cut a log that is not its own; NULL if it would
 * not.  The library compares the contents, and takes the log of a run with the same options for
 * this one's, but the run has a record of its log.  Not inlined, because the paths are large. */
__attribute__((noinline)) static const char *cuts_another_log(const train_options *options)
{
    const lk_train_config *c = &options->config;
    char                   own[2048], text[2400], lost[48] = "the end of a run";
    struct stat            mine, given;
    uint64_t               step;
    if (!c->checkpoint.resume || c->checkpoint.folder == NULL || c->log == NULL ||
        c->files_elsewhere || !lki_record_log(c->checkpoint.folder, own, sizeof own) ||
        stat(own, &mine) != 0 || stat(c->log, &given) != 0 || !S_ISREG(given.st_mode) ||
        (mine.st_dev == given.st_dev && mine.st_ino == given.st_ino) ||
        !find_step(&c->checkpoint, &step))
        return NULL;
    const bool steps = has_step(c->log, step + 1);
    if (!steps && !has_end(c->log))
        return NULL;
    if (steps)
        (void)snprintf(lost, sizeof lost, "steps after %llu", (unsigned long long)step);
    (void)snprintf(text, sizeof text, "--log %.900s has %s, which would be cut, and the log of "
                   "this run is %.900s: leave --log out, or give a new one", c->log, lost, own);
    (void)lk_error_set(LK_EINVAL, text);
    return lk_error_last()->message;
}

const char *lki_cannot_start(const train_options *options, uint32_t hosts)
{
    const char *why = cannot_start_again(options);
    why             = why != NULL ? why : contradicts_folder(options);
    why             = why != NULL ? why : no_chaos(options);
    why             = why != NULL ? why : cannot_grow(options);
    why             = why != NULL ? why : cannot_group(options, hosts);
    why             = why != NULL ? why : cuts_another_log(options);
    if (why == NULL && lk_train_check_hosts(&options->config, hosts) != LK_OK)
        why = lk_error_last()->message;
    return why;
}
