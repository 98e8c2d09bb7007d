/* hosts_test.c -- checks that a run on several hosts has the hash of a run with one worker.
 *
 * Goal:    gpt, resnet (with running state) and mlp, with clipping and several micro-batches per
 *          virtual worker, give the hash of `single` on hosts of equal and of different sizes.
 *          Every rank runs exactly its virtual workers.  Runs resume checkpoints of several hosts
 *          on one host and vice versa.  A checkpoint has the same contents whether all hosts see
 *          the directory and write their shards, or only rank 0's host sees it.  gpt and resnet are
 *          evaluated with moving means.
 * Method:  ranks are threads, each host has control memory and arenas of its own, and a simulated
 *          link carries all data between hosts.  Rank 0 prints which rank ran which virtual
 *          workers.
 * Control: another tree gives another hash.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "base/thorough_testing.h"
#include "base/sanitized_testing.h"
#include "comm/hosted_testing.h"
#include "lockstep/checkpoint.h"
#include "lockstep/train.h"

enum { STEPS = 5, RANKS_MAX = 8, HASH = 96 };

static const char *const models[] = { "mlp", "gpt", "resnet" };
enum { MODELS = 3 };

static lk_train_config config_of(const char *model, uint32_t leaves)
{
    lk_train_config c = { .struct_size            = sizeof(lk_train_config),
                          .model                  = model,
                          .data.validation        = 0.2,
                          .seed                   = 3,
                          .global_batch           = 24,
                          .micro_batch            = 1,
                          .virtual_workers        = leaves,
                          .steps                  = STEPS,
                          .optimizer              = { .kind = LK_SGD, .momentum = 0.9 },
                          .schedule               = { .lr = 0.05 },
                          .clip_norm              = 0.5,
                          .checkpoint.resume_step = -1 };
    if (strcmp(model, "gpt") == 0) {
        c.data.source = "synthetic:tokens=2000,vocab=31";
        c.context     = 13;
        c.optimizer   = (lk_optimizer){ .kind = LK_ADAMW, .weight_decay = 0.1, .ema = 0.8 };
        c.groups[0]   = (lk_param_group){ .pattern = "h.*.bias", .has_lr = true, .lr = 2 };
        c.group_count = 1;
        c.schedule.lr = 1e-3;
        c.model_options =
            (lk_model_options){ .layers = 2, .heads = 2, .width = 24, .dropout = 0.1f };
    } else if (strcmp(model, "resnet") == 0) {
        c.data.source   = "synthetic:images=60,h=9,w=9,c=3,classes=4";
        c.model_options = (lk_model_options){ .depth = 8 };
        c.optimizer.ema = 0.7;
    } else {
        c.data.source   = "synthetic:images=60,h=6,w=6,c=1,classes=5";
        c.model_options = (lk_model_options){ .hidden = { 33, 17 }, .hidden_count = 2 };
    }
    return c;
}

/* ---- A run ------------------------------------------------------------------------------- */

typedef struct {
    lk_train_config config;
    const char     *elsewhere; /* checkpoint directory of the other hosts; NULL: rank 0's */
    lk_status       status[RANKS_MAX];
    lk_error        error[RANKS_MAX];
    lk_train_result result[RANKS_MAX];
} run;

static bool train(lk_comm *comm, void *context)
{
    run            *r    = context;
    uint32_t        rank = lk_comm_rank(comm);
    lk_train_config mine = r->config;

    if (lk_comm_host(comm, rank) != 0 && mine.checkpoint.folder != NULL)
        mine.checkpoint.folder = r->elsewhere != NULL ? r->elsewhere : mine.checkpoint.folder;
    r->status[rank] = lk_train_run(comm, &mine, &r->result[rank]);
    if (r->status[rank] != LK_OK)
        r->error[rank] = *lk_error_last();
    return r->status[rank] == LK_OK;
}

/* Redirects stderr to a file, in order to read the lines that rank 0 prints. */
static FILE *start_listening(int *stderr_before)
{
    FILE *said = tmpfile();
    assert_non_null(said);
    (void)fflush(stderr);
    *stderr_before = dup(STDERR_FILENO);
    assert_int_equal(dup2(fileno(said), STDERR_FILENO), STDERR_FILENO);
    return said;
}

static void check_output(FILE *said, int stderr_before, const hosted *h,
                         const lk_train_config *config)
{
    uint32_t leaves = config->virtual_workers, size = hosted_size(*h);
    bool     rounds = config->strategy != NULL && strcmp(config->strategy, "zero2") >= 0;
    char     line[512];
    uint32_t ranks = 0, next = 0;

    (void)fflush(stderr);
    (void)dup2(stderr_before, STDERR_FILENO);
    (void)close(stderr_before);
    rewind(said);
    while (fgets(line, sizeof line, said) != NULL) {
        unsigned rank, host = 0, first, last;
        if (sscanf(line, "rank %u (pid %*u on host %u) runs virtual workers %u-%u", &rank, &host,
                   &first, &last) != 4 &&
            sscanf(line, "rank %u (pid %*u) runs virtual workers %u-%u", &rank, &first, &last) != 3)
            continue;
        assert_int_equal(rank, ranks++);
        assert_int_equal(first, rounds ? rank : rank * leaves / size);
        assert_true(rounds || first == next);
        assert_true(rank >= hosted_first(*h, host) && rank < hosted_first(*h, host + 1));
        next += rounds ? (last - first) / size + 1 : last - first + 1;
    }
    (void)fclose(said);
    assert_int_equal(ranks, size);
    assert_int_equal(next, leaves);
}

/* Runs on the given hosts.  Returns the hash of the run and the validation loss, after checking
 * that they are equal on all ranks.  For `elsewhere` see struct run. */
static void run_seeing(hosted h, const lk_train_config *config, const char *elsewhere,
                       char hash[HASH])
{
    static run r;
    int        stderr_before;

    r                = (run){ .config = *config };
    r.config.workers = hosted_size(h);
    r.elsewhere      = elsewhere;
    assert_int_equal(lk_train_check(&r.config), LK_OK);
    FILE    *said = start_listening(&stderr_before);
    uint32_t good = hosted_run(h, train, &r);
    for (uint32_t rank = 0; rank < hosted_size(h); rank++)
        if (r.status[rank] != LK_OK)
            print_message("rank %u: %s\n", rank, r.error[rank].message);
    check_output(said, stderr_before, &h, config);
    assert_int_equal(good, hosted_size(h));
    for (uint32_t rank = 1; rank < hosted_size(h); rank++) {
        assert_string_equal(r.result[rank].run, r.result[0].run);
        assert_true(r.result[rank].validation_loss == r.result[0].validation_loss);
    }
    assert_int_equal(strlen(r.result[0].run), 64);
    (void)snprintf(hash, HASH, "%s %.17g", r.result[0].run, r.result[0].validation_loss);
}

static void run_on(hosted h, const lk_train_config *config, char hash[HASH])
{
    run_seeing(h, config, "/nowhere/on/this/host", hash);
}

static const hosted alone = { .hosts = 1, .each = 1 };

static const hosted shapes[] = {
    { .hosts = 2, .each = 1, .seed = 1 },
    { .hosts = 2, .each = 2, .seed = 2 },
    { .hosts = 2, .each = 3, .seed = 3 },
    { .hosts = 3, .each = 1, .seed = 4 },
    { .hosts = 2, .each = 2, .fewer_first = 1, .seed = 5 },
};
enum { SHAPES = LKI_SANITIZED ? 3 : sizeof shapes / sizeof shapes[0] };

static void check_model(const char *model)
{
    static const char *const strategies[] = { "zero1", "ddp", "zero2", "zero3" };
    for (uint32_t leaves = 8; leaves <= 12; leaves += lki_brief() ? 8 : 4) {
        char            want[HASH], got[HASH];
        lk_train_config config = config_of(model, leaves);
        config.strategy        = "single";
        run_on(alone, &config, want);
        for (size_t i = 0; i < SHAPES; i++) {
            config.bucket_bytes       = i % 2 == 0 ? 0 : 5000;
            config.first_bucket_bytes = config.bucket_bytes / 3;
            config.strategy           = strategies[(i + leaves / 4) % 4];
            run_on(shapes[i], &config, got);
            assert_string_equal(got, want);
        }
    }
}

static void mlp_has_the_bits_of_one_worker(void **state)
{
    (void)state;
    check_model(models[0]);
}

static void gpt_has_the_bits_of_one_worker(void **state)
{
    (void)state;
    check_model(models[1]);
}

static void resnet_has_the_bits_of_one_worker(void **state)
{
    (void)state;
    check_model(models[2]);
}

/* Returns the validation loss of a resnet whose weights are constant and whose running state
 * changes. */
static double loss_with(double ema, lk_weights weights)
{
    char            hash[HASH];
    lk_train_config config = config_of("resnet", 8);
    config.schedule.lr     = 1e-30;
    config.optimizer.ema   = ema;
    config.eval_weights    = weights;
    run_on(shapes[1], &config, hash);
    return atof(hash + 65);
}

/* Evaluates with moving means of running state.  Expects the last value for a decay rate near 0,
 * and a different value for a decay rate near 1. */
static void the_moving_mean_covers_running_state(void **state)
{
    double model = loss_with(0.5, LK_WEIGHTS_MODEL), forgets = loss_with(1e-9, LK_WEIGHTS_EMA);
    double keeps = loss_with(1 - 1e-9, LK_WEIGHTS_EMA);
    (void)state;
    assert_true(fabs(forgets - model) < 1e-5);
    assert_true(fabs(keeps - model) > 1e-3);
}

/* Runs the same samples with a different tree.  Expects a different hash. */
static void another_tree_has_other_bits(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m += lki_brief() ? MODELS : 1) {
        char            eight[HASH], twelve[HASH];
        lk_train_config config = config_of(models[m], 8);
        run_on(shapes[1], &config, eight);
        config.virtual_workers = 12;
        run_on(shapes[1], &config, twelve);
        assert_string_not_equal(eight, twelve);
    }
}

/* ---- Checkpoints ------------------------------------------------------------------------- */

/* Returns true if the checkpoint of step 2 has files of host 1.  Also computes the hash of its
 * contents. */
static bool has_parts(const char *dir, char sha256[65])
{
    char                        path[64];
    lk_checkpoint              *c;
    const lk_checkpoint_stored *file;
    lk_consolidate_options      options = { .struct_size = sizeof(lk_consolidate_options),
                                            .path = path, .everything = true };
    bool                        parts   = false;

    (void)snprintf(path, sizeof path, "%s/whole.safetensors", dir);
    (void)unlink(path);
    assert_int_equal(lk_checkpoint_open_step(&c, dir, 2), LK_OK);
    assert_int_equal(lk_checkpoint_consolidate(c, &options, sha256), LK_OK);
    for (size_t i = 0; (file = lk_checkpoint_file_at(c, i)) != NULL; i++) {
        assert_int_equal(lk_checkpoint_verify(c, i), LK_OK);
        parts |= strstr(file->name, "-host1") != NULL;
    }
    lk_checkpoint_free(c);
    return parts;
}

typedef struct {
    char sha256[65]; /* of the model's first checkpoint of step 2; "": none yet */
    bool async;      /* the next checkpoint is written in the background */
} written;

/* Trains two steps on the hosts `first`, and the remaining steps on the hosts `then` with another
 * strategy. */
static void changes_hosts(hosted first, hosted then, const char *from, const char *model, bool seen,
                          written *w, const char *want)
{
    char            dir[]  = "/tmp/lockstep-hosts-XXXXXX", command[64], got[HASH], sha256[65];
    lk_train_config config = config_of(model, 8);

    assert_non_null(mkdtemp(dir));
    config.checkpoint.folder = dir;
    config.steps             = w->async ? 3 : 2;
    config.checkpoint.every  = w->async ? 2 : 0;
    config.checkpoint.async  = w->async;
    config.strategy          = from;
    config.bucket_bytes      = strcmp(model, "resnet") == 0 ? 100000 : 3000; /* < large tensors */
    run_seeing(first, &config, seen ? NULL : "/nowhere/on/this/host", got);
    assert_string_not_equal(got, want);
    assert_true(has_parts(dir, sha256) == (seen && first.hosts > 1));
    if (w->sha256[0] != '\0')
        assert_string_equal(sha256, w->sha256);
    memcpy(w->sha256, sha256, sizeof sha256);
    w->async                 = !w->async;
    config.checkpoint.async  = false;
    config.checkpoint.resume = config.checkpoint.resume_required = true;
    config.steps                                                 = STEPS;
    config.strategy                                              = "ddp";
    run_on(then, &config, got);
    assert_string_equal(got, want);
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void checkpoints_resume_on_other_hosts(void **state)
{
    const hosted three = { .hosts = 1, .each = 3 };
    (void)state;
    for (size_t m = 0; m < MODELS; m += lki_brief() ? MODELS : LKI_SANITIZED ? 2 : 1) {
        char            want[HASH];
        written         w      = { .async = m == 1 };
        lk_train_config config = config_of(models[m], 8);
        run_on(alone, &config, want);
        changes_hosts(three, shapes[1], "zero1", models[m], true, &w, want);
        changes_hosts(shapes[m == 1 ? 1 : 3], three, m == 1 ? "zero2" : "zero1", models[m], m != 1,
                      &w, want);
        changes_hosts(shapes[4], shapes[3], "zero3", models[m], m > 0, &w, want);
    }
}

/* ---- Errors ------------------------------------------------------------------------------ */

static bool train_without_a_place(lk_comm *comm, void *context)
{
    run     *r    = context;
    run      mine = { .config = r->config, .elsewhere = r->elsewhere };
    uint32_t rank = lk_comm_rank(comm);
    (void)train(comm, &mine);
    CHECK(mine.status[rank] != LK_OK);
    CHECK(strstr(mine.error[rank].message, "rank 2 on host 1 has not written its part of the "
                                           "checkpoint: cannot ") != NULL);
    return true;
}

/* Lets host 1 fail to write its shard.  Expects an error that names host 1.  Host 1 sees the
 * directory's lock but not the other hosts' files, as on a full disk. */
static void a_host_that_cannot_write_is_named(void **state)
{
    char dir[] = "/tmp/lockstep-hosts-XXXXXX", there[64], log[64], command[320];
    run  r     = { .config = config_of("mlp", 8), .elsewhere = there };
    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(there, sizeof there, "%s/there", dir);
    (void)snprintf(log, sizeof log, "%s/log", dir);
    (void)snprintf(command, sizeof command, "mkdir %s && ln -s ../.lock %s/.lock", there, there);
    assert_int_equal(system(command), 0);
    r.config.quiet             = true;
    r.config.checkpoint.folder = dir;
    r.config.strategy          = "zero3";
    r.config.log               = log;
    r.config.workers           = hosted_size(shapes[1]);
    for (int async = 0; async < 2; async++) {
        r.config.checkpoint.every = async ? 2 : 0;
        r.config.checkpoint.async = async == 1;
        assert_int_equal(lk_train_check(&r.config), LK_OK);
        assert_true(hosted_all(shapes[1], train_without_a_place, &r));
        (void)snprintf(command, sizeof command,
                       "test $(ls -d %s/step-* %s/.tmp-* 2>&- | wc -l) = 0"
                       " && test $(grep -c 'has not written its part' %s) = %d && rm %s",
                       dir, dir, log, async ? 2 : 0, log);
        assert_int_equal(system(command), 0);
    }
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static bool asks_to_stop(void *context)
{
    (void)context;
    return true;
}

static bool train_until_host_1_is_asked(lk_comm *comm, void *context)
{
    run *r    = context;
    run  mine = { .config = r->config };
    if (lk_comm_rank(comm) == 1)
        mine.config.calls.stop = asks_to_stop;
    uint32_t rank = lk_comm_rank(comm);
    (void)train(comm, &mine);
    CHECK(mine.status[rank] == LK_ESTOPPED && mine.result[rank].steps == 1);
    return true;
}

static bool train_with_other_data(lk_comm *comm, void *context)
{
    run     *r    = context;
    run      mine = { .config = r->config };
    uint32_t rank = lk_comm_rank(comm);
    if (lk_comm_host(comm, rank) == 1)
        mine.config.data.source = "synthetic:images=61,h=6,w=6,c=1,classes=5";
    (void)train(comm, &mine);
    CHECK(mine.status[rank] != LK_OK);
    CHECK(strstr(mine.error[rank].message, "hosts 0 and 1 have different data") != NULL);
    return true;
}

static void an_error_or_request_of_one_host_reaches_all(void **state)
{
    run r = { .config = config_of("mlp", 8) };
    (void)state;
    r.config.quiet = true;
    for (size_t i = 0; i < SHAPES; i += lki_brief() ? 2 : 1) {
        r.config.workers = hosted_size(shapes[i]);
        assert_int_equal(lk_train_check(&r.config), LK_OK);
        assert_true(hosted_all(shapes[i], train_with_other_data, &r));
        assert_true(hosted_all(shapes[i], train_until_host_1_is_asked, &r));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_has_the_bits_of_one_worker),
        cmocka_unit_test(gpt_has_the_bits_of_one_worker),
        cmocka_unit_test(resnet_has_the_bits_of_one_worker),
        cmocka_unit_test(the_moving_mean_covers_running_state),
        cmocka_unit_test(another_tree_has_other_bits),
        cmocka_unit_test(checkpoints_resume_on_other_hosts),
        cmocka_unit_test(a_host_that_cannot_write_is_named),
        cmocka_unit_test(an_error_or_request_of_one_host_reaches_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
