/* survive_async_test.c -- `train --async --on-failure continue`: workers are killed, and the others
 * go on.
 *
 * Goal:   with a simulated schedule the weights are those of the undisturbed run, and the log has
 *         each step once, even if rank 0 is killed.  A live run has each task in its schedule once,
 *         and a replay has its weights.  Lost workers are replaced.  Survivors of a live run whose
 *         schedule was moved or cut create no other, and name the death and what has happened.
 * Method: the command itself, hit at seeded moments.  parallel/versions/survive_test.c covers all
 *         moments of a task and of an update.
 */
#include "base/thorough_testing.h"
#include "faults/survivors.h"

#define VIRTUAL BUSY "--async virtual --delays lognormal:0.5 --steps 240 "
#define LIVE BUSY "--async live --steps 240 "

static void compute_weights(const char *folder, const char *arguments, char digits[65])
{
    static command_result r;
    char                  line[512];
    (void)snprintf(line, sizeof line, "%s --workers 1 --quiet", arguments);
    run_command(&r, folder, line);
    if (r.status != 0)
        fail_msg("%s: status %d: %s", line, r.status, r.err);
    read_weights(&r, digits);
}

static void forget_file(const char *folder, const char *name)
{
    static command_result r;
    char                  line[64];
    (void)snprintf(line, sizeof line, "rm -f %s", name);
    (void)run_shell(&r, folder, line);
}

/* Runs three workers, and kills one at a seeded moment.  Repeats it until the run goes on without
 * the worker. */
static void play(job *j, const char *folder, const char *arguments, uint32_t rank, uint64_t *seed)
{
    for (int tries = 0; tries < 50; tries++) {
        forget_file(folder, "log s");
        job_start(j, folder, 3, arguments);
        job_await_word(j, "step 24/"); /* of 240: the first line after that of step 1 */
        rest(seed);
        job_hit(j, j->worker[rank], SIGKILL);
        (void)job_wait(j);
        if (j->result.status != 0)
            fail_msg("status %d: %s", j->result.status, j->result.err);
        if (strstr(j->result.err, " took over the tasks in flight; ") != NULL)
            return;
    }
    fail_msg("rank %u was never lost during a run", rank);
}

/* Expects a number of lines, without repetitions, that a command prints. */
static void assert_lines(const char *folder, const char *command, const char *count)
{
    static command_result r;
    char                  line[256];
    (void)snprintf(line, sizeof line, "%s | sort -u | wc -l; %s | wc -l", command, command);
    (void)run_shell(&r, folder, line);
    (void)snprintf(line, sizeof line, "%s\n%s\n", count, count);
    assert_string_equal(r.out, line);
}

/* Expects that "log" and "want" differ in times, and in what concerns ranks, alone. */
static void assert_same_log(const char *folder)
{
    static command_result r;
    (void)run_shell(&r, folder,
                    "for f in want log; do sed -E '/\"(config|workers|membership)\"/d; "
                    "s/, \"time\": [0-9.]*//; s/\"samples_per_s.*_ms\": [0-9.]*//; "
                    "s/\"waited_ms\": [0-9.]*//; s/\"run.*//' $f > $f.bits; done; "
                    "cmp want.bits log.bits && wc -l < want.bits");
    if (r.status != 0 || atoi(r.out) < 2 * 240)
        fail_msg("%s%s", r.out, r.err);
}

static void a_simulated_schedule_does_not_change(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 11;
    compute_weights(*state, VIRTUAL "--log want", wanted);
    for (uint32_t rank = 0; rank < 3; rank += lki_brief() ? 3 : 1) {
        play(&j, *state, VIRTUAL GOES_ON "--log log", rank, &seed);
        assert_undisturbed(&j, wanted);
        assert_same_log(*state);
    }
}

static void a_live_run_can_be_replayed(void **state)
{
    static job j;
    char       got[65];
    uint64_t   seed = 12;
    play(&j, *state, LIVE GOES_ON "--record s", lki_brief() ? 0 : 1, &seed);
    compute_weights(*state, LIVE "--replay s", got);
    assert_undisturbed(&j, got);
    assert_lines(*state, "tail -n +3 s | cut -c1-12", "960");
    assert_lines(*state, "tail -n +3 s | awk '$1 < 960 {print $1}'", "960");
}

/* A replay leaves out what came late, and what the lost worker was computing.  Shards are updated
 * in place. */
static void other_live_runs_can_be_replayed(void **state)
{
    static const char *const rules[] = { "--consistency shard --shards 3 --clip-norm 0.1 ",
                                         "--aggregate 2 --staleness versions:0 --drop-late " };
    static job               j;
    char                     got[65], line[512];
    uint64_t                 seed = 13;
    for (int i = 0; i < (lki_brief() ? 1 : 2); i++) {
        (void)snprintf(line, sizeof line, LIVE GOES_ON "%s--record s", rules[i]);
        play(&j, *state, line, 1, &seed);
        (void)snprintf(line, sizeof line, LIVE "%s--replay s", rules[i]);
        compute_weights(*state, line, got);
        assert_undisturbed(&j, got);
        assert_lines(*state, "tail -n +3 s | cut -c1-12", "960");
    }
}

typedef enum { MOVED, REPLACED, CUT } accident;

static void spoil(const char *folder, accident what)
{
    char path[64], moved[64];
    (void)snprintf(path, sizeof path, "%s/s", folder);
    (void)snprintf(moved, sizeof moved, "%s/moved", folder);
    assert_int_equal(what == CUT ? truncate(path, 301) : rename(path, moved), 0);
    if (what == REPLACED)
        (void)close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

/* Kills a worker of a live run whose schedule has been spoilt, and expects the end of the run, with
 * `words`, and no new schedule. */
static void assert_named(const char *folder, const char *rule, uint32_t rank, accident what,
                         const char *words)
{
    static job            j;
    static command_result r;
    char                  line[512], killed[64];
    forget_file(folder, "s");
    (void)snprintf(line, sizeof line, BUSY GOES_ON "--async live --steps 99999 %s--record s", rule);
    job_start(&j, folder, 3, line);
    job_await_word(&j, "step 1/");
    spoil(folder, what);
    job_hit(&j, j.worker[rank], SIGKILL);
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 1);
    (void)snprintf(killed, sizeof killed, ": rank %u (pid %d) was killed by SIGKILL at step ", rank,
                   (int)j.worker[rank]);
    assert_says(job_verdict(&j), killed);
    assert_says(job_verdict(&j), words);
    (void)run_shell(&r, folder, what == MOVED ? "test ! -e s" : what == REPLACED ? "test ! -s s"
                                                                                 : "test -s s");
    assert_int_equal(r.status, 0);
}

static void a_schedule_that_is_moved_or_cut_is_named(void **state)
{
    static const char shards[] = "--consistency shard --shards 3 ";
    assert_named(*state, shards, 0, MOVED, "the schedule s was moved or removed during the run, "
                                           "and there is no such file now");
    assert_named(*state, "", 1, REPLACED, "the schedule s was moved or removed during the run, "
                                          "and another file is in its place");
    if (lki_brief())
        return;
    assert_named(*state, "", 0, CUT, "changed during the run");
    assert_named(*state, shards, 2, CUT, "changed during the run");
}

/* Kills a worker of a run that is held at a step by its log, until another has entered. */
static void lost_workers_are_replaced(void **state)
{
    static job j;
    char       wanted[65];
    compute_weights(*state, VIRTUAL, wanted);
    job_begin(&j, *state, 3, VIRTUAL GOES_ON "--restart --log pipe --checkpoint ck");
    job_hit(&j, j.worker[1], SIGKILL);
    await_nth(&j, " took over ", 1);
    await_replacement(&j, 1, 1, "");
    await_nth(&j, " enters after step ", 1);
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    assert_says(j.result.err, "note: the run has lost 1 rank and went on with 3; 1 entered;");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_simulated_schedule_does_not_change, begin_afresh),
        cmocka_unit_test_setup(a_live_run_can_be_replayed, begin_afresh),
        cmocka_unit_test_setup(other_live_runs_can_be_replayed, begin_afresh),
        cmocka_unit_test_setup(a_schedule_that_is_moved_or_cut_is_named, begin_afresh),
        cmocka_unit_test_setup(lost_workers_are_replaced, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
