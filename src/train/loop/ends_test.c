/* ends_test.c -- checks runs that end early, and the best checkpoints.
 *
 * Goal:    a limit of samples, tokens or epochs ends the run with the step that contains the last
 *          of them.  One rank's clock ends the run on all ranks after the same step.  Patience and
 *          the best checkpoints do not depend on interruptions.  An early end leaves the same files
 *          as a run with that many --steps.
 * Method:  compares limits with a step-by-step count.  Runs several ranks as threads, on one host
 *          and on two, with a clock that counts its readings.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>

#include "comm/hosted_testing.h"
#include "lockstep/train.h"
#include "train/core/stopping.h"

enum { RANKS_MAX = 8 };

static const hosted alone = { .hosts = 1, .each = 1 }, pair = { .hosts = 1, .each = 2 },
                    apart = { .hosts = 2, .each = 2, .fewer = 1, .seed = 7 };

static lk_train_config config_of(uint64_t steps)
{
    return (lk_train_config){ .struct_size            = sizeof(lk_train_config),
                              .model                  = "mlp",
                              .data.source            = "synthetic:images=60,h=6,w=6,c=1,classes=5",
                              .model_options          = { .hidden = { 33, 17 }, .hidden_count = 2 },
                              .data.validation        = 0.2,
                              .seed                   = 3,
                              .global_batch           = 24,
                              .micro_batch            = 1,
                              .virtual_workers        = 8,
                              .steps                  = steps,
                              .optimizer              = { .kind = LK_SGD, .momentum = 0.9 },
                              .schedule               = { .lr = 0.05 },
                              .checkpoint.resume_step = -1,
                              .quiet                  = true };
}

/* ---- Runs -------------------------------------------------------------------------------- */

typedef struct {
    lk_train_config config;
    uint32_t        late, looks; /* rank whose clock reaches the limit; number of readings before
                                  * that */
    lk_train_result result[RANKS_MAX];
} run;

typedef struct {
    uint32_t looks; /* 0: the clock stands still */
    uint32_t looked;
} stopwatch;

static double seconds_of(void *context)
{
    stopwatch *watch = context;
    return watch->looks > 0 && watch->looked++ >= watch->looks ? 100 : 0;
}

static bool train(lk_comm *comm, void *context)
{
    run            *r         = context;
    uint32_t        rank      = lk_comm_rank(comm);
    stopwatch       watch     = { .looks = rank == r->late ? r->looks : 0 };
    lk_train_config mine      = r->config;
    mine.limits.clock         = seconds_of;
    mine.limits.clock_context = &watch;
    if (lk_comm_host(comm, rank) != 0 && mine.checkpoint.folder != NULL)
        mine.checkpoint.folder = "/nowhere/on/this/host";
    lk_status status = lk_train_run(comm, &mine, &r->result[rank]);
    if (status != LK_OK)
        print_message("rank %u: %s\n", rank, lk_error_last()->message);
    return status == LK_OK;
}

/* Runs, checks that all ranks have the same result, and returns it. */
static lk_train_result run_on(hosted h, run *r)
{
    r->config.workers = hosted_size(h);
    lk_status status  = lk_train_check(&r->config);
    if (status != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    assert_true(hosted_all(h, train, r));
    for (uint32_t rank = 1; rank < hosted_size(h); rank++) {
        assert_string_equal(r->result[rank].run, r->result[0].run);
        assert_int_equal(r->result[rank].steps, r->result[0].steps);
        assert_ptr_equal(r->result[rank].ended, r->result[0].ended);
    }
    return r->result[0];
}

static void assert_ended(const lk_train_result *result, uint64_t steps, const char *by)
{
    assert_int_equal(result->steps, steps);
    assert_string_equal(result->ended == NULL ? "" : result->ended, by);
}

/* Computes the hash of a run of `steps` steps. */
static void hash_of(uint64_t steps, char hash[65])
{
    run             r      = { .config = config_of(steps) };
    lk_train_result result = run_on(alone, &r);
    assert_ended(&result, steps, "");
    memcpy(hash, result.run, 65);
}

/* ---- Limits ------------------------------------------------------------------------------ */

/* Counts the steps up to a limit by adding them up, as the run does. */
static uint64_t walk(const lk_train_config *c, uint64_t samples, uint64_t most)
{
    uint64_t steps = 0;
    for (uint64_t seen = 0; seen < most; steps++)
        seen += lk_step_at(samples, c->global_batch, c->drop_last, steps).samples;
    return steps;
}

static void limits_are_converted_to_steps(void **state)
{
    const char *why;
    (void)state;
    for (uint64_t samples = 1; samples < 60; samples++)
        for (uint32_t batch = 1; batch < 9; batch++)
            for (uint64_t most = 1; most < 150; most += 7) {
                lk_dataset_info data = { .train_count = samples, .x = { 1, { 5 } } };
                lk_train_config c    = { .struct_size    = sizeof(lk_train_config),
                                         .steps          = 1000,
                                         .global_batch   = batch,
                                         .drop_last      = most % 2 == 0 && samples >= batch,
                                         .limits.samples = most };
                uint64_t        want = walk(&c, samples, most);
                assert_int_equal(lki_last_step(&c, &data, &why), want);
                assert_string_equal(why, "max-samples");
                c.limits.samples = 0;
                c.limits.tokens  = most * 5 - most % 5; /* the limit falls within a sample */
                assert_int_equal(lki_last_step(&c, &data, &why), want);
                assert_string_equal(why, "max-tokens");
                c.steps = want;
                assert_int_equal(lki_last_step(&c, &data, &why), want);
                assert_null(why);
            }
}

/* Checks limits of a run with 48 samples, which is two steps per epoch. */
static void a_limit_ends_the_run(void **state)
{
    run  limited = { .config = config_of(9) };
    char want[65];
    (void)state;
    limited.config.limits.samples = 49;
    hash_of(3, want);
    lk_train_result result = run_on(pair, &limited);
    assert_ended(&result, 3, "max-samples");
    assert_string_equal(result.run, want);
    assert_true(isfinite(result.validation_loss));
    limited                      = (run){ .config = config_of(9) };
    limited.config.limits.epochs = 1.2;
    result                       = run_on(apart, &limited);
    assert_ended(&result, 3, "max-epochs");
    assert_string_equal(result.run, want);
}

/* Checks that one rank's clock ends the run.  The clock is read once before the first step and once
 * after each step. */
static void the_clock_of_one_rank_ends_the_run_on_all(void **state)
{
    char want[65];
    (void)state;
    for (uint32_t late = 0; late < 3; late++) {
        run r                   = { .config = config_of(50), .late = late, .looks = 2 + late };
        r.config.limits.time_ms = 99999;
        hash_of(2 + late, want);
        lk_train_result result = run_on(apart, &r);
        assert_ended(&result, 2 + late, "max-time");
        assert_string_equal(result.run, want);
        r.config.limits.time_ms = 100001; /* a limit that the clock does not reach */
        r.config.steps          = 6;
        result                  = run_on(apart, &r);
        assert_ended(&result, 6, "");
    }
}

/* ---- Patience ---------------------------------------------------------------------------- */

static void patience_counts_evaluations_without_improvement(void **state)
{
    static const double   losses[] = { 3, 2, (double)NAN, 1.5, 1.5, 1.45, 1.2, 1.19 };
    static const uint64_t stale[]  = { 0, 0, 1, 0, 1, 2, 0, 1 };
    lk_train_config       c        = { .struct_size      = sizeof(lk_train_config),
                                       .limits.patience  = 2,
                                       .limits.min_delta = 0.1 };
    lki_stopping          w        = { 0 };
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        assert_false(
            lki_stopping_see(&w, &c, i + 1, losses[i], 0)); /* no best checkpoints are kept */
        assert_int_equal(w.stale, stale[i]);
        assert_int_equal(lki_stopping_tires(&w, &c), stale[i] >= 2);
    }
    assert_int_equal(w.lowest_step, 7);
}

static void forget(const char *dir)
{
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* Ends a run by patience after 4 evaluations, once without interruption and once with a stop and a
 * resume.  Expects equal results.  `min_delta` is so large that no evaluation counts as better.
 * Then resumes the ended run.  Expects no further step until its patience is raised. */
static void patience_continues_after_a_resume(void **state)
{
    char want[65], dir[] = "/tmp/lockstep-ends-XXXXXX";
    run  r = { .config = config_of(50) };
    (void)state;
    r.config.limits.patience  = 3;
    r.config.limits.min_delta = 1000;
    r.config.eval_every       = 2;
    hash_of(8, want);
    lk_train_result result = run_on(pair, &r);
    assert_ended(&result, 8, "patience");
    assert_string_equal(result.run, want);

    assert_non_null(mkdtemp(dir));
    r.config.checkpoint.folder = dir;
    r.config.limits.samples    = 5 * 24;
    result                     = run_on(apart, &r);
    assert_ended(&result, 5, "max-samples"); /* the evaluation of an early end does not count */
    r.config.limits.samples    = 0;
    r.config.checkpoint.resume = r.config.checkpoint.resume_required = true;
    for (int again = 0; again < 2; again++) {
        result = run_on(again == 0 ? pair : alone, &r);
        assert_ended(&result, 8, "patience");
        assert_string_equal(result.run, want);
    }
    r.config.limits.patience = 4;
    result                   = run_on(apart, &r);
    assert_ended(&result, 10, "patience");
    forget(dir);
}

/* ---- The best ---------------------------------------------------------------------------- */

static void the_best_checkpoints_are_in_order(void **state)
{
    static const double values[] = { 5, 4, (double)NAN, 4, 6, 3, 4.5 };
    static const bool   kept[]   = { true, true, false, true, false, true, false };
    lk_train_config     low = { .struct_size = sizeof(lk_train_config), .checkpoint.keep_best = 3 };
    lk_train_config     high = { .struct_size          = sizeof(lk_train_config),
                                 .checkpoint.keep_best = 3,
                                 .checkpoint.best_by   = LK_BEST_BY_ACCURACY };
    lki_stopping        a = { 0 }, b = { 0 };
    (void)state;
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(lki_stopping_see(&a, &low, i + 1, values[i], 0), kept[i]);
        assert_int_equal(lki_stopping_see(&b, &high, i + 1, 1, -values[i]), kept[i]);
    }
    static const uint64_t best[] = { 6, 2, 4 }; /* of equal evaluations the earlier is first */
    assert_int_equal(a.best_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(a.best[i].step, best[i]);
        assert_int_equal(b.best[i].step, best[i]);
    }
    low.checkpoint.keep_best = 1;
    assert_true(lki_stopping_see(&a, &low, 8, 2, 0));
    assert_int_equal(a.best_count, 1);
    assert_int_equal(a.best[0].step, 8);
}

/* Lets checkpoints fail in a run that keeps the 2 best and has losses 5 4 3 2 at steps 1 to 4.
 * Expects that displaced evaluations are restored. */
static void a_failed_checkpoint_is_not_among_the_best(void **state)
{
    lk_train_config c = { .struct_size = sizeof(lk_train_config), .checkpoint.keep_best = 2 };
    lki_stopping    w = { 0 };
    (void)state;
    for (uint32_t step = 1; step <= 3; step++)
        assert_true(lki_stopping_see(&w, &c, step, 6 - step, 0));
    lki_stopping_written(&w, 2);
    lki_stopping_refused(&w, &c, 3); /* step 1 is restored; its checkpoint still exists */
    assert_true(w.best_count == 2 && w.best[0].step == 2 && w.best[1].step == 1);
    assert_int_equal(w.displaced_count, 0);
    assert_true(lki_stopping_see(&w, &c, 3, 3, 0) && lki_stopping_see(&w, &c, 4, 2, 0));
    lki_stopping_refused(&w, &c, 3); /* while 4 is being copied: 2 is restored, 1 is not */
    assert_true(w.best_count == 2 && w.best[0].step == 4 && w.best[1].step == 2);
    assert_int_equal(w.displaced_count, 1);
    lki_stopping_written(&w, 4);
    assert_int_equal(w.displaced_count, 0);
    lki_stopping_refused(&w, &c, 4); /* there is no evaluation to restore */
    assert_true(w.best_count == 1 && w.best[0].step == 2);
}

/* Lists the steps that have checkpoints, as one line of text. */
static void list(const char *dir, char line[512])
{
    struct dirent **names;
    int             count = scandir(dir, &names, NULL, alphasort);
    size_t          used  = 0;
    line[0]               = '\0';
    for (int i = 0; i < count; i++) {
        if (strncmp(names[i]->d_name, "step-", 5) == 0)
            used += (size_t)snprintf(line + used, 512 - used, "%d ", atoi(names[i]->d_name + 5));
        free(names[i]);
    }
    free(names);
}

/* Lists the expected checkpoints: the newest one, and the two best ones. */
static void expect(const double *losses, uint64_t steps, char line[512])
{
    uint64_t best[2] = { 0, 0 };
    size_t   used    = 0;
    for (uint64_t i = 1; i <= steps; i++)
        if (best[0] == 0 || losses[i] < losses[best[0]]) {
            best[1] = best[0];
            best[0] = i;
        } else if (best[1] == 0 || losses[i] < losses[best[1]])
            best[1] = i;
    for (uint64_t i = 1; i <= steps; i++)
        if (i == best[0] || i == best[1] || i == steps)
            used += (size_t)snprintf(line + used, 512 - used, "%u ", (unsigned)i);
}

static run best_run(const char *dir, uint64_t steps)
{
    run r                         = { .config = config_of(steps) };
    r.config.schedule.lr          = 3; /* makes losses rise and fall */
    r.config.eval_every           = 1;
    r.config.checkpoint.folder    = dir;
    r.config.checkpoint.keep      = 1;
    r.config.checkpoint.async     = steps % 2 == 0;
    r.config.checkpoint.keep_best = 2;
    r.config.checkpoint.resume    = true;
    return r;
}

/* Returns the validation loss of a run of `steps` steps. */
static double loss_after(uint64_t steps)
{
    run r                         = best_run(NULL, steps);
    r.config.checkpoint.keep_best = 0;
    r.config.checkpoint.resume = r.config.checkpoint.async = false;
    return run_on(alone, &r).validation_loss;
}

static void the_best_checkpoints_are_kept(void **state)
{
    enum { STEPS = 12 };
    static run first, then;
    double     losses[STEPS + 1];
    bool       falls = true;
    (void)state;
    for (uint64_t steps = 1; steps <= STEPS; steps++) {
        losses[steps] = loss_after(steps);
        falls         = falls && (steps == 1 || losses[steps] < losses[steps - 1]);
    }
    assert_false(falls); /* otherwise the newest checkpoint would always be the best */
    for (uint64_t stop = 1; stop < STEPS; stop += 3) {
        char dir[] = "/tmp/lockstep-ends-XXXXXX", got[512], want[512];
        assert_non_null(mkdtemp(dir));
        first = best_run(dir, stop);
        then  = best_run(dir, STEPS);
        (void)run_on(pair, &first);
        expect(losses, stop, want);
        list(dir, got);
        assert_string_equal(got, want);
        (void)run_on(apart, &then);
        expect(losses, STEPS, want);
        list(dir, got);
        assert_string_equal(got, want);
        forget(dir);
    }
}

/* ---- Refused options --------------------------------------------------------------------- */

static void refuses(const lk_train_config *config, const char *why)
{
    lk_train_config c = *config;
    assert_int_equal(lk_train_check(&c), LK_EINVAL);
    if (strstr(lk_error_last()->message, why) == NULL)
        fail_msg("no '%s' in: %s", why, lk_error_last()->message);
}

static void invalid_limits_are_refused(void **state)
{
    lk_train_config c = config_of(3);
    (void)state;
    c.limits.tokens = 5;
    refuses(&c, "`limits.tokens` is for text");
    c.limits.tokens   = 0;
    c.limits.patience = 2;
    refuses(&c, "`patience` counts evaluations; give `eval_every`");
    c.limits.patience  = 0;
    c.limits.min_delta = 1;
    refuses(&c, "`min_delta` needs `patience`");
    c.limits.min_delta = (double)NAN;
    refuses(&c, "`min_delta` nan is not");
    c.limits.min_delta     = 0;
    c.checkpoint.keep_best = 1;
    refuses(&c, "give `checkpoint.folder` DIR and `eval_every` N");
    c.eval_every           = 1;
    c.checkpoint.folder    = "/tmp/lockstep-is-not-made";
    c.checkpoint.keep_best = LK_BEST_MAX + 1;
    refuses(&c, "`keep_best` 65 is more than 64");
    c               = config_of(3);
    c.limits.epochs = -1;
    refuses(&c, "`limits.epochs` -1 is not");
}

static void a_config_that_was_not_checked_is_refused(void **state)
{
    const lk_train_config c = config_of(3), none = { .struct_size = sizeof none };
    lk_train_config       changed = c;
    lk_train_result       result;
    lk_comm              *comm;
    (void)state;
    assert_int_equal(lk_train_check(&changed), LK_OK);
    changed.micro_batch                    = 5; /* does not divide the batch */
    const lk_train_config *const configs[] = { &c, &none, &changed };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
        assert_int_equal(lk_train_run(comm, configs[i], &result), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, "lk_train_check() has not completed"));
        lk_comm_free(comm);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_converted_to_steps),
        cmocka_unit_test(a_limit_ends_the_run),
        cmocka_unit_test(the_clock_of_one_rank_ends_the_run_on_all),
        cmocka_unit_test(patience_counts_evaluations_without_improvement),
        cmocka_unit_test(patience_continues_after_a_resume),
        cmocka_unit_test(the_best_checkpoints_are_in_order),
        cmocka_unit_test(a_failed_checkpoint_is_not_among_the_best),
        cmocka_unit_test(the_best_checkpoints_are_kept),
        cmocka_unit_test(invalid_limits_are_refused),
        cmocka_unit_test(a_config_that_was_not_checked_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
