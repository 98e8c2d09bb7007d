/* statement.c -- `lockstep verify FILE`.  See statement.h. */
#include "cli/statement.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

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
    const char *file, *segments, *checkpoint, *signers, *identity, *data, *workers, *threads;
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
        "prints `equal`, or the first step, virtual worker and tensor that is not.  The exit\n"
        "status is 0 if everything is equal, and 1 if not, or if a replay ends with an error.",
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
    size_t                   missed; /* segments whose replay ended with an error */
} verification;

/* Says on a terminal what takes long, in a line that the next one replaces; "" removes it. */
static void show(const char *work)
{
    if (lki_shows_progress())
        fprintf(stderr, "\r\033[K%s", work);
}

/* ---- Files --------------------------------------------------------------------------------- */

static bool check_data(const verification *v)
{
    char        text[PATH]  = "";
    const char *paths[FILES] = { text };
    size_t      count        = 0;
    const char *data         = v->options->data;
    if (data != NULL) {
        size_t kind = strcspn(data, ":/");
        (void)snprintf(text, sizeof text, "%s", data[kind] == ':' ? data + kind + 1 : data);
        char *second = strchr(text, ',');
        count        = second != NULL ? 2 : 1;
        if (second != NULL) {
            *second  = '\0';
            paths[1] = second + 1;
        }
    }
    show("hashing the data");
    bool equal = lk_statement_check_files(v->statement, paths, count) == LK_OK;
    show("");
    if (equal) {
        printf("data: equal\n");
        return true;
    }
    printf("data: not equal: %s\n", lk_error_last()->message);
    return false;
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
        char          work[64];
        (void)snprintf(work, sizeof work, "reading the checkpoint of step %" PRIu64, c->step);
        show(work);
        lk_status status        = lk_statement_check(v->statement, i, v->run);
        show("");
        if (status == LK_EIO) {
            printf("checkpoint of step %" PRIu64 ": not there\n", c->step);
            continue;
        }
        v->there[i] = status == LK_OK;
        found += status == LK_OK;
        from = v->there[i] ? c->step : from;
        good = good && v->there[i];
        if (status != LK_OK)
            printf("checkpoint of step %" PRIu64 ": not equal: %s\n", c->step,
                   lk_error_last()->message);
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

/* Compares the checkpoint of a replay with the stated hash and, if it is there, that of the run. */
static bool compare_end(const verification *v, const segment *s, const char *folder)
{
    const lk_statement_checkpoint *c = lk_statement_checkpoint_at(v->statement, s->index);
    lk_checkpoint                 *replayed;
    char                           a[PATH + 64], b[PATH];
    bool                           equal = false, same = true;
    lki_difference_totals          totals = { 0 };
    if (lk_checkpoint_open_step(&replayed, folder, c->step) != LK_OK) {
        lki_print_error("verify");
        return false;
    }
    equal = strcmp(lk_checkpoint_describe(replayed)->weights, c->weights) == 0;
    lk_checkpoint_free(replayed);
    if (!equal)
        printf("  not equal: the weights after step %" PRIu64 "\n", c->step);
    (void)snprintf(a, sizeof a, "%s/step-%08" PRIu64, v->run, c->step);
    (void)snprintf(b, sizeof b, "%s/step-%08" PRIu64, folder, c->step);
    if (v->there[s->index] && lk_diff(a, b, lki_print_difference, &totals, &same) != LK_OK) {
        lki_print_error("verify");
        return false;
    }
    lki_print_difference_totals(&totals);
    if (!same)
        printf("  (A is the run, B the replay)\n");
    return equal && same;
}

static bool compare(const verification *v, const segment *s, const char *folder)
{
    const lk_statement_checkpoint *c = lk_statement_checkpoint_at(v->statement, s->index);
    char                           log[PATH];
    lk_statement_step              step;
    (void)snprintf(log, sizeof log, "%s/log.jsonl", folder);
    if (lk_statement_compare_log(v->statement, s->from, c->step, log, &step) != LK_OK) {
        lki_print_error("verify");
        return false;
    }
    bool losses = print_step(v, &step);
    return compare_end(v, s, folder) && losses;
}

/* Returns false if the replay of a segment has other results. */
static bool replay(verification *v, const segment *s)
{
    const lk_statement_checkpoint *c = lk_statement_checkpoint_at(v->statement, s->index);
    const statement_options       *o = v->options;
    const char *temporary = getenv("TMPDIR");
    char        folder[512], *more[8] = { NULL };
    size_t      count = 0;
    const char *given[] = { "--data", o->data, "--workers", o->workers, "--threads", o->threads };
    for (size_t i = 0; i < 6; i += 2)
        if (given[i + 1] != NULL) {
            more[count++] = (char *)(uintptr_t)given[i];
            more[count++] = (char *)(uintptr_t)given[i + 1];
        }
    (void)snprintf(folder, sizeof folder, "%s/lockstep-verify-XXXXXX",
                   temporary != NULL ? temporary : "/tmp");
    if (mkdtemp(folder) == NULL) {
        perror("lockstep verify: cannot make a temporary folder");
        return false;
    }
    printf("segment %zu of %zu, steps %" PRIu64 "-%" PRIu64 ":\n", s->index + 1,
           v->count, s->from + 1, c->step);
    lki_replay_part part = { .statement = v->statement, .run = v->run, .more = more,
                             .from = s->from, .to = c->step };
    bool made  = lki_replay(&part, folder);
    bool equal = !made || compare(v, s, folder);
    if (!made)
        v->missed++;
    else if (equal)
        printf("  equal\n");
    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return equal;
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

static int verify(verification *v, size_t wanted)
{
    size_t count = 0;
    while (lk_statement_checkpoint_at(v->statement, count) != NULL)
        count++;
    v->there    = calloc(count + 1, sizeof *v->there);
    v->segments = calloc(count + 1, sizeof *v->segments);
    bool good   = v->there != NULL && v->segments != NULL;
    if (!good)
        fprintf(stderr, "lockstep verify: out of memory\n");
    else {
        good = check_data(v);
        good = check_checkpoints(v) && good;
        good = replay_some(v, wanted < count ? wanted : count) && good;
        if (good && v->missed > 0)
            printf("not verified: %zu of the segments could not be replayed\n", v->missed);
        else
            printf(good ? "equal\n" : "not equal\n");
        good = good && v->missed == 0;
    }
    free(v->there);
    free(v->segments);
    return good ? 0 : LKI_EXIT_FAILURE;
}

int lki_verify_statement(int argc, char **argv)
{
    statement_options options = { .seed = UINT64_MAX };
    verification      v       = { .options = &options };
    size_t            wanted;
    char             *run;
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
    if (options.seed == UINT64_MAX && !draw_seed(&options.seed))
        return LKI_EXIT_FAILURE;
    if (!lki_verify_signature("verify", options.file, options.signers, options.identity))
        return LKI_EXIT_FAILURE;
    if (lk_statement_open(&v.statement, options.file) != LK_OK) {
        lki_print_error("verify");
        return LKI_EXIT_FAILURE;
    }
    v.run = options.checkpoint != NULL ? options.checkpoint : lk_statement_run(v.statement);
    if ((run = realpath(v.run, NULL)) != NULL)
        v.run = run;
    int status = verify(&v, wanted);
    lk_statement_free(v.statement);
    free(run);
    return status;
}
