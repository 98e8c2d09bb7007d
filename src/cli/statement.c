/* statement.c -- `lockstep verify FILE`.  See statement.h. */
#include "cli/statement.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/difference.h"
#include "cli/replay.h"
#include "cli/settings.h"
#include "cli/signature.h"
#include "cli/values.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/checkpoint.h"
#include "lockstep/data.h"

enum { PATH = 2048, FILES = 2 };

typedef struct {
    const char *file, *segments, *checkpoint, *signers, *identity, *data, *init, *workers, *threads;
    uint64_t    seed;
} statement_options;

#define AT(field) offsetof(statement_options, field)

static const lki_option table[] = {
    LKI_POSITIONAL("FILE", AT(file), true, "the statement; its signature is FILE.sig"),
    LKI_STRING("segments", "K", AT(segments), "1", "segments to replay, drawn at random, or all"),
    LKI_U64("seed", "S", AT(seed), 0, UINT64_MAX >> 16, "drawn at random, and printed",
            "seed of the draw"),
    LKI_STRING("signers", "FILE", AT(signers), NULL,
               "allowed signers, a line \"NAME ssh-ed25519 KEY\" for each; needs --identity"),
    LKI_STRING("identity", "NAME", AT(identity), NULL, "the signer that is expected"),
    LKI_STRING("checkpoint", "DIR", AT(checkpoint), "that of the run",
               "directory with the checkpoints, or some of them"),
    LKI_STRING("data", "SOURCE", AT(data), "that of the run", "the data, as for train"),
    LKI_STRING("init", "FILE|DIR", AT(init), "that of the run",
               "the weights with which the run began"),
    { .name = "workers", .type = LKI_OPTION_STRING, .value = "N", .letter = 'n',
      .offset = AT(workers), .preset = "as for train",
      .help = "worker processes of the replays" },
    LKI_STRING("threads", "T", AT(threads), "as for train", "threads per worker"),
    LKI_OPTIONS_END,
};

static const lki_command command = {
    .name     = "verify",
    .summary  = "verify a statement of attest",
    .usage    = "FILE [--segments K] [--seed S] [--signers FILE --identity NAME]",
    .about =
        "Verifies the signature, the chain of hashes, the data and the checkpoints that are\n"
        "there.  Then replays K segments between checkpoints, on any number of workers, and\n"
        "prints `equal`, or the first step, virtual worker and tensor that is not.  The last line\n"
        "is `not equal` if something differs, and `not verified` if something could not be\n"
        "compared.  The exit status is 0 if everything is equal, else 1.",
    .examples = "  lockstep verify run1.attest.json --segments 3 --seed 7 --workers 2",
    .options  = table,
};

/* The steps after `from`, up to the checkpoint number `index`. */
typedef struct {
    size_t   index;
    uint64_t from;
} segment;

typedef struct {
    const statement_options *options;
    lk_statement            *statement;
    const char              *run;
    bool                    *there; /* by checkpoint */
    segment                 *segments;
    size_t                   count;
    size_t                   missed; /* segments that could not be replayed or compared */
    size_t                   unread; /* files that could not be read */
} verification;

/* The result of a comparison.  FAILED: there was none, for a reason that is not the run's. */
typedef enum { EQUAL, DIFFERENT, FAILED } outcome;

/* Says on a terminal what takes long, in a line that the next one replaces; "" removes it. */
static void show(const char *work)
{
    if (lki_shows_progress())
        fprintf(stderr, "\r\033[K%s", work);
}

/* ---- Files --------------------------------------------------------------------------------- */

/* Splits "KIND:FILE[,FILE][?SETTINGS]", of which KIND may be missing, into paths in `text`.
 * Returns their number. */
static size_t split_source(const char *data, char text[PATH], const char *paths[FILES])
{
    size_t      length = strcspn(data, ":/");
    const bool  kind   = data[length] == ':';
    const char *ends   = kind ? lk_dataset_path_ends(data) : access(data, F_OK) == 0 ? "" : ",?";
    (void)snprintf(text, PATH, "%s", kind ? data + length + 1 : data);
    char        *rest  = text + strcspn(text, ends);
    const size_t count = *rest == ',' ? 2 : 1;
    paths[0]           = text;
    paths[1]           = count == 2 ? rest + 1 : NULL;
    *rest              = '\0';
    return count;
}

static outcome check_data(const verification *v)
{
    char        text[PATH];
    const char *paths[FILES] = { NULL };
    const char *data         = v->options->data;
    size_t      count        = data != NULL ? split_source(data, text, paths) : 0;
    if (lk_statement_file_count(v->statement) == 0) {
        printf("data: the statement has the SHA-256 of no file; only replays compare them\n");
        return EQUAL;
    }
    show("hashing the data");
    lk_status status = lk_statement_check_files(v->statement, v->run, paths, count);
    show("");
    if (status == LK_OK)
        printf("data: equal\n");
    else if (status == LK_ECORRUPT)
        printf("data: not equal: %s\n", lk_error_last()->message);
    else
        printf("data: not compared: %s; %s\n", lk_error_last()->message,
               data != NULL ? "give another --data" : "--data says where they are");
    return status == LK_OK ? EQUAL : status == LK_ECORRUPT ? DIFFERENT : FAILED;
}

/* Returns true if a checkpoint is in the directory of the run. */
static bool has_checkpoint(const verification *v, uint64_t step)
{
    char path[PATH + 64];
    (void)snprintf(path, sizeof path, "%s/step-%08" PRIu64, v->run, step);
    return access(path, F_OK) == 0;
}

/* Compares a checkpoint with the statement.  Sets *there if it is equal. */
static outcome check_checkpoint(const verification *v, size_t index, bool *there)
{
    const uint64_t step = lk_statement_checkpoint_at(v->statement, index)->step;
    char           work[64];
    *there = false;
    if (!has_checkpoint(v, step)) {
        printf("checkpoint of step %" PRIu64 ": not there\n", step);
        return EQUAL;
    }
    (void)snprintf(work, sizeof work, "reading the checkpoint of step %" PRIu64, step);
    show(work);
    lk_status status = lk_statement_check(v->statement, index, v->run);
    show("");
    *there = status == LK_OK;
    if (status == LK_OK)
        return EQUAL;
    const bool differs = status == LK_ECORRUPT || status == LK_EFORMAT;
    printf("checkpoint of step %" PRIu64 ": not %s: %s\n", step, differs ? "equal" : "compared",
           lk_error_last()->message);
    return differs ? DIFFERENT : FAILED;
}

/* Compares all checkpoints that are there, and lists the segments that can be replayed. */
static bool check_checkpoints(verification *v)
{
    const lk_statement_checkpoint *c;
    uint64_t                       from = 0;
    size_t                         found = 0;
    bool                           good  = true;
    for (size_t i = 0; (c = lk_statement_checkpoint_at(v->statement, i)) != NULL; i++) {
        v->segments[v->count++] = (segment){ .index = i, .from = from };
        outcome result = check_checkpoint(v, i, &v->there[i]);
        v->unread += result == FAILED;
        good = good && result != DIFFERENT;
        found += v->there[i];
        from = v->there[i] ? c->step : from;
    }
    printf("checkpoints: %zu of %zu equal, so %zu segments can be replayed\n", found, v->count,
           v->count);
    return good;
}

/* ---- Replays ------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

static bool print_step(const verification *v, const lk_statement_step *step)
{
    if (step->step == 0)
        return true;
    char stated[LK_NUMBER_BYTES], replayed[LK_NUMBER_BYTES];
    lk_number_text(stated, step->stated);
    lk_number_text(replayed, step->loss);
    printf("  not equal: step %" PRIu64 " is the first with another loss: stated %s, replayed "
           "%s\n", step->step, stated, replayed);
    lk_number_text(stated, step->worker_stated);
    lk_number_text(replayed, step->worker_loss);
    if (step->worker != LK_NO_WORKER)
        printf("  not equal: virtual worker %" PRIu32 " is the first with another loss in step "
               "%" PRIu64 ": stated %s, replayed %s\n", step->worker, step->step, stated, replayed);
    else
        printf("  virtual worker: the statement does not show which; compare the gradients of "
               "lockstep verify %s --step %" PRIu64 " --virtual-worker K with those of the "
               "author\n", v->run, step->step);
    return false;
}

/* Compares the tensors of the checkpoint of a replay with those of the run, if it is there.
 * Not inlined, because the paths are large. */
__attribute__((noinline)) static outcome compare_tensors(const verification *v, const segment *s,
                                                         const char *folder)
{
    const uint64_t        step = lk_statement_checkpoint_at(v->statement, s->index)->step;
    char                  a[PATH + 64], b[PATH];
    bool                  same   = true;
    lki_difference_totals totals = { 0 };
    if (!v->there[s->index])
        return EQUAL;
    (void)snprintf(a, sizeof a, "%s/step-%08" PRIu64, v->run, step);
    (void)snprintf(b, sizeof b, "%s/step-%08" PRIu64, folder, step);
    if (lk_diff(a, b, lki_print_difference, &totals, &same) != LK_OK) {
        lki_print_error("verify");
        return FAILED;
    }
    lki_print_difference_totals(&totals);
    if (!same)
        printf("  (A is the run, B the replay)\n");
    return same ? EQUAL : DIFFERENT;
}

/* Compares the checkpoint of a replay with the stated hash and, if it is there, that of the run. */
static outcome compare_end(const verification *v, const segment *s, const char *folder)
{
    const lk_statement_checkpoint *c = lk_statement_checkpoint_at(v->statement, s->index);
    lk_checkpoint                 *replayed;
    if (lk_checkpoint_open_step(&replayed, folder, c->step) != LK_OK) {
        lki_print_error("verify");
        return FAILED;
    }
    const bool equal = strcmp(lk_checkpoint_describe(replayed)->weights, c->weights) == 0;
    lk_checkpoint_free(replayed);
    if (!equal)
        printf("  not equal: the weights after step %" PRIu64 "\n", c->step);
    outcome tensors = compare_tensors(v, s, folder);
    return equal ? tensors : DIFFERENT;
}

/* Compares a replay with the statement and the run.  Not inlined, because the path is large. */
__attribute__((noinline)) static outcome compare(const verification *v, const segment *s,
                                                 const char *folder)
{
    const lk_statement_checkpoint *c = lk_statement_checkpoint_at(v->statement, s->index);
    char                           log[PATH];
    lk_statement_step              step;
    (void)snprintf(log, sizeof log, "%s/log.jsonl", folder);
    if (lk_statement_compare_log(v->statement, s->from, c->step, log, &step) != LK_OK) {
        lki_print_error("verify");
        return FAILED;
    }
    const bool losses = print_step(v, &step);
    outcome    end    = compare_end(v, s, folder);
    return losses ? end : DIFFERENT;
}

/* Returns true if a run trains adapters: it reads their base also when it goes on. */
static bool has_adapters(const lk_statement *statement)
{
    const char *text = lk_statement_command(statement);
    return strstr(text, "\"lora-rank\":") != NULL || strstr(text, "\"adapter\":") != NULL;
}

/* Replays a segment in a folder, and compares it. */
static outcome replay_in(const verification *v, const segment *s, const char *folder,
                         const sigset_t *before)
{
    const statement_options *o       = v->options;
    char                    *more[10] = { NULL };
    size_t                   count   = 0;
    const bool  begins  = s->from == 0 || has_adapters(v->statement);
    const char *given[] = { "--data",    o->data,    "--init",    begins ? o->init : NULL,
                            "--workers", o->workers, "--threads", o->threads };
    for (size_t i = 0; i < 8; i += 2)
        if (given[i + 1] != NULL) {
            more[count++] = (char *)(uintptr_t)given[i];
            more[count++] = (char *)(uintptr_t)given[i + 1];
        }
    lki_replay_part part = { .statement = v->statement, .run = v->run, .more = more,
                             .from = s->from,
                             .to = lk_statement_checkpoint_at(v->statement, s->index)->step };
    printf("segment %zu of %zu, steps %" PRIu64 "-%" PRIu64 ":\n", s->index + 1, v->count,
           s->from + 1, part.to);
    if (!lki_replay(&part, folder, before))
        return FAILED;
    outcome result = compare(v, s, folder);
    if (result == EQUAL)
        printf("  equal\n");
    return result;
}

/* Replays a segment, and returns false if it has other results.  A signal that arrives meanwhile
 * ends this process, once the temporary folder is gone. */
static bool replay(verification *v, const segment *s)
{
    const char *temporary = getenv("TMPDIR");
    char        folder[512];
    sigset_t    before;
    outcome     result = FAILED;
    (void)snprintf(folder, sizeof folder, "%s/lockstep-verify-XXXXXX",
                   temporary != NULL ? temporary : "/tmp");
    lki_hold_signals(&before);
    if (mkdtemp(folder) == NULL)
        fprintf(stderr, "lockstep verify: cannot make a temporary folder in '%s': %s; set TMPDIR "
                        "to another directory\n", temporary != NULL ? temporary : "/tmp",
                strerror(errno));
    else {
        result = replay_in(v, s, folder, &before);
        (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
    lki_release_signals(&before);
    v->missed += result == FAILED;
    return result != DIFFERENT;
}

/* ---- The draw ------------------------------------------------------------------------------ */

/* Replays segments in the order that the seed gives; all of them in their own order. */
static bool replay_some(verification *v, size_t wanted)
{
    const uint64_t seed  = v->options->seed;
    bool           equal = true;
    printf("seed %" PRIu64 ": %zu of %zu segments\n", seed, wanted, v->count);
    for (size_t i = 0; i < wanted; i++) {
        size_t at = wanted == v->count ? i : (size_t)lk_sample_at(seed, 0, v->count, i);
        equal     = replay(v, &v->segments[at]) && equal;
    }
    return equal;
}

/* Draws a seed that nobody who made the statement could know. */
static bool draw_seed(uint64_t *seed)
{
    uint32_t word;
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) {
        perror("lockstep verify: the system gives no random numbers; give --seed");
        return false;
    }
    *seed = word;
    return true;
}

/* ---- The command --------------------------------------------------------------------------- */

/* Reads --segments.  Returns false unless it is a number above 0, or all. */
static bool read_segments(const char *text, size_t *out)
{
    char *end;
    *out = SIZE_MAX;
    if (text != NULL && strcmp(text, "all") == 0)
        return true;
    long long value = strtoll(text != NULL ? text : "1", &end, 10);
    *out            = value > 0 ? (size_t)value : 0;
    return value > 0 && *end == '\0';
}

/* Prints the last line.  Returns the exit status. */
static int conclude(const verification *v, bool good, outcome data)
{
    if (!good)
        printf("not equal\n");
    else if (data == FAILED)
        printf("not verified: the data could not be read\n");
    else if (v->missed > 0)
        printf("not verified: %zu of the segments could not be replayed\n", v->missed);
    else if (v->unread > 0)
        printf("not verified: %zu of the checkpoints could not be read\n", v->unread);
    else
        printf("equal\n");
    return good && data == EQUAL && v->missed + v->unread == 0 ? 0 : LKI_EXIT_FAILURE;
}

static int verify(verification *v, size_t wanted)
{
    size_t count = 0;
    int    status = LKI_EXIT_FAILURE;
    while (lk_statement_checkpoint_at(v->statement, count) != NULL)
        count++;
    v->there    = calloc(count + 1, sizeof *v->there);
    v->segments = calloc(count + 1, sizeof *v->segments);
    if (v->there == NULL || v->segments == NULL)
        fprintf(stderr, "lockstep verify: out of memory\n");
    else {
        outcome data = check_data(v);
        bool    good = check_checkpoints(v) && data != DIFFERENT;
        if (data != FAILED) /* else every replay fails */
            good = replay_some(v, wanted < count ? wanted : count) && good;
        status = conclude(v, good, data);
    }
    free(v->there);
    free(v->segments);
    return status;
}

/* Checks that files named by options can be read.  Prints an error if not. */
static bool check_files(const statement_options *o)
{
    if (o->checkpoint != NULL && access(o->checkpoint, X_OK) != 0)
        fprintf(stderr, "lockstep verify: cannot read the directory '%s': %s; give another "
                        "--checkpoint, with checkpoints of the run\n", o->checkpoint,
                strerror(errno));
    else if (o->signers != NULL && access(o->signers, R_OK) != 0)
        fprintf(stderr, "lockstep verify: cannot read the signers '%s': %s; give a file with a "
                        "line \"NAME ssh-ed25519 KEY\" for each\n", o->signers, strerror(errno));
    else
        return true;
    return false;
}

/* Returns the directory of the run: the one that was given, or stated, or else one of the same name
 * beside the statement.  To be freed. */
static char *find_run(const statement_options *o, const lk_statement *statement)
{
    const char *stated = lk_statement_run(statement), *name = strrchr(stated, '/');
    const char *slash  = strrchr(o->file, '/');
    char       *beside = NULL, *found = NULL;
    if (o->checkpoint != NULL)
        return realpath(o->checkpoint, NULL);
    if (access(stated, F_OK) != 0 && name != NULL &&
        asprintf(&beside, "%.*s%s", slash != NULL ? (int)(slash - o->file) : 1,
                 slash != NULL ? o->file : ".", name) >= 0)
        found = realpath(beside, NULL);
    free(beside);
    return found != NULL ? found : strdup(stated);
}

int lki_verify_statement(int argc, char **argv)
{
    statement_options options = { .seed = UINT64_MAX };
    verification      v       = { .options = &options };
    size_t            wanted;
    int               done = lki_options_parse(&command, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&command, NULL);
    if (done >= 0)
        return done;
    if (!read_segments(options.segments, &wanted))
        return lki_usage_error(&command, "--segments is '%s'; give a number from 1 on, or all",
                               options.segments);
    if ((options.signers == NULL) != (options.identity == NULL))
        return lki_usage_error(&command, "--signers and --identity need each other: the first has "
                                         "the keys, the second says whose is expected");
    if (!check_files(&options) || (options.seed == UINT64_MAX && !draw_seed(&options.seed)) ||
        !lki_verify_signature("verify", options.file, options.signers, options.identity))
        return LKI_EXIT_FAILURE;
    if (lk_statement_open(&v.statement, options.file) != LK_OK) {
        lki_print_error("verify");
        return LKI_EXIT_FAILURE;
    }
    char *run    = find_run(&options, v.statement);
    v.run        = run != NULL ? run : lk_statement_run(v.statement);
    int   status = verify(&v, wanted);
    lk_statement_free(v.statement);
    free(run);
    return status;
}
