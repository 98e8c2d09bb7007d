/* launched_test.c -- tests how commands behave if the environment describes only half of a job.
 *
 * Goal:   a command that starts a job, or takes part in a job, refuses such an environment with
 *         status 2.  The message names the variables that are set and says how to continue.  No
 *         file changes.  Otherwise each of N processes would do the whole work, in the same files.
 *         Commands that only read work as usual.
 * Method: the command itself, with a log and a checkpoint of an earlier run, whose bytes are
 *         compared.  Environments that mean a single process, as in a batch script, are still
 *         accepted.
 */
#include "cli/command.h"

/* The options of runs that would overwrite the log and the checkpoint, or resume from the
 * checkpoint. */
#define OF_RUN                                                                                   \
    " mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --hidden 4 --global-batch 8 "         \
    "--lr 0.1 --quiet "
#define OF_BENCH " mlp --global-batch 8 --hidden 4 --steps 2 "
#define TRAIN "train" OF_RUN "--steps 3 --log log --checkpoint ck "

/* Prints the existing files, and a checksum of the earlier run's files. */
#define STATE "ls -R . ; cat log ck/*/* | cksum"

typedef struct {
    const char *names, *said, *what_to_do;
} environment;

static const environment halves[] = {
    { "RANK=0 WORLD_SIZE=4", "RANK=0 and WORLD_SIZE=4 are set, but not LOCAL_RANK",
      "unset RANK and WORLD_SIZE to run alone" },
    { "WORLD_SIZE=4", "WORLD_SIZE=4 is set, but not RANK", "unset WORLD_SIZE to run alone" },
    { "RANK=1", "RANK=1 is set, but not WORLD_SIZE", "unset RANK to run alone" },
    { "LOCAL_RANK=1", "LOCAL_RANK=1 is set, but not RANK", "unset LOCAL_RANK to run alone" },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1",
      "LOCAL_WORLD_SIZE=1 are set, but not MASTER_ADDR and MASTER_PORT", "to run alone" },
    { "RANK=9 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1",
      "RANK=9, WORLD_SIZE=4, LOCAL_RANK=1 and LOCAL_WORLD_SIZE=4: rank 9 of 4", "to run alone" },
    { "RANK=x WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1",
      "RANK=x in the environment must be a whole number", "to run alone" },
    { "PMI_RANK=0 PMI_SIZE=4", "PMI_RANK=0 and PMI_SIZE=4 are set, but not MPI_LOCALRANKID",
      "unset PMI_RANK and PMI_SIZE to run alone" },
    { "PMI_RANK=0", "PMI_RANK=0 is set, but not PMI_SIZE", "unset PMI_RANK to run alone" },
    { "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_RANK=1 is set, but not OMPI_COMM_WORLD_SIZE",
      "unset OMPI_COMM_WORLD_RANK to run alone" },
    { "SLURM_PROCID=2 SLURM_NTASKS=4", "SLURM_PROCID=2 is set, but not SLURM_STEP_NUM_TASKS",
      "unset SLURM_PROCID to run alone" },
    { "TF_CONFIG='{\"cluster\":{\"worker\":[\"h:1\",\"h:2\"]},\"task\":{\"type\":\"worker\","
      "\"index\":2}}'", "TF_CONFIG={\"cluster\"", "unset TF_CONFIG to run alone" },
    { "TF_CONFIG={", "TF_CONFIG={ in the environment: it is not JSON", "unset TF_CONFIG to run" },
    { "LOCKSTEP_CONTROL_FD=5", "LOCKSTEP_CONTROL_FD=5 is set, but not WORLD_SIZE",
      "unset LOCKSTEP_CONTROL_FD to run alone" },
    { "LOCKSTEP_SOCKET_FD=5", "LOCKSTEP_SOCKET_FD=5 is set, but not LOCKSTEP_CONTROL_FD",
      "unset LOCKSTEP_SOCKET_FD to run alone" },
    { "LOCKSTEP_ENTERS=1", "LOCKSTEP_ENTERS=1 is set, but not LOCKSTEP_CONTROL_FD",
      "unset LOCKSTEP_ENTERS to run alone" },
    { "HOROVOD_RANK=1 HOROVOD_SIZE=2", "HOROVOD_SIZE=2 are set by horovodrun",
      "unset HOROVOD_RANK and HOROVOD_SIZE to run alone" },
    { "PALS_RANKID=0", "PALS_RANKID=0 is set", "unset PALS_RANKID to run alone" },
    { "PBS_NODENUM=1 PBS_TASKNUM=00000002", "PBS_NODENUM=1 is set", "--node-rank $PBS_NODENUM" },
    { "JOB_COMPLETION_INDEX=0", "JOB_COMPLETION_INDEX=0 is set, but not WORLD_SIZE", "--nnodes 1" },
};

enum { HALVES = sizeof halves / sizeof halves[0] };

/* The last command would create files beside the existing ones. */
static const char *const refusing[] = {
    "train" OF_RUN "--steps 5 --log log",
    "train" OF_RUN "--steps 5 --log log --checkpoint ck --resume",
    TRAIN,
    TRAIN "--worker-mode threads",
    "verify" OF_RUN "--steps 3 --checkpoint ck --step 2 --virtual-worker 0",
    "run -n 2 touch ran",
    "bench all_reduce --workers 2 --bytes 4",
    "bench step" OF_BENCH,
    "bench step" OF_BENCH "--predict",
    "bench scaling" OF_BENCH,
    "train" OF_RUN "--steps 3 --checkpoint new --flight-recorder records --trace t.json",
    "plan" OF_RUN,
    "inspect ck --consolidate whole.safetensors",
    "sample ck --prompt a",
    "key secret",
    "top log",
};

enum { REFUSING = sizeof refusing / sizeof refusing[0] };

static command_result before;

static int train_once(void **state)
{
    static command_result r;
    if (make_folder(state) != 0)
        return 1;
    run_command(&r, *state, TRAIN);
    if (r.status != 0)
        return 1;
    (void)run_shell(&before, *state, STATE);
    return before.status;
}

static void assert_untouched(const char *folder, const char *names, const char *arguments)
{
    static command_result now;
    (void)run_shell(&now, folder, STATE);
    if (strcmp(now.out, before.out) != 0)
        fail_msg("%s lockstep %s: was\n%s\nis\n%s", names, arguments, before.out, now.out);
}

static void run_in(command_result *r, const char *folder, const char *names, const char *arguments)
{
    char line[2500];
    (void)snprintf(line, sizeof line, "%s %s %s", names, LK_TEST_COMMAND, arguments);
    (void)run_shell(r, folder, line);
}

static void an_incomplete_job_environment_is_refused(void **state)
{
    for (size_t i = 0; i < HALVES; i++)
        for (size_t k = 0; k < REFUSING; k++) {
            static command_result r;
            run_in(&r, *state, halves[i].names, refusing[k]);
            assert_untouched(*state, halves[i].names, refusing[k]);
            if (r.status != 2 || r.out[0] != '\0' || strncmp(r.err, "lockstep ", 9) != 0)
                fail_msg("%s lockstep %s: status %d, stdout '%s', stderr '%s'", halves[i].names,
                         refusing[k], r.status, r.out, r.err);
            assert_says(r.err, halves[i].said);
            assert_says(r.err, halves[i].what_to_do);
        }
}

/* Checks that --mpi does not bypass the refusal.  MPI determines the ranks only in processes that
 * it has started. */
static void mpi_does_not_bypass_the_refusal(void **state)
{
    static command_result r;
    run_in(&r, *state, "RANK=0 WORLD_SIZE=4", "bench barrier --mpi");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "RANK=0 and WORLD_SIZE=4 are set, but not LOCAL_RANK");
}

/* Complete jobs that these processes cannot join. */
static void a_job_that_cannot_be_joined_is_refused(void **state)
{
    static const environment jobs[] = {
        { "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 LOCKSTEP_MODULES=/nowhere",
          "set LOCKSTEP_RENDEZVOUS", "or let MPI carry the bytes: LOCKSTEP_MPI=on" },
        { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=1",
          "set LOCKSTEP_JOB_KEY_FILE", "LOCKSTEP_INSECURE=1" },
        { "LOCKSTEP_CONTROL_FD=55 LOCKSTEP_SOCKET_FD=56 LOCKSTEP_TIMEOUT_MS=1000 RANK=0 "
          "WORLD_SIZE=2", "LOCKSTEP_CONTROL_FD=55 is not open here", "to run alone" },
    };
    static const char *const joining[] = {
        TRAIN, ("train" OF_RUN "--steps 3 --checkpoint new --flight-recorder records --trace "
                               "t.json"),
        "bench step" OF_BENCH, "bench all_reduce --workers 2 --bytes 4",
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        for (size_t k = 0; k < sizeof joining / sizeof joining[0]; k++) {
            static command_result r;
            run_in(&r, *state, jobs[i].names, joining[k]);
            if (r.status != 2)
                fail_msg("%s lockstep %s: status %d, stderr '%s'", jobs[i].names, joining[k],
                         r.status, r.err);
            assert_says(r.err, jobs[i].said);
            assert_says(r.err, jobs[i].what_to_do);
            assert_untouched(*state, jobs[i].names, joining[k]);
        }
}

static void help_is_never_refused(void **state)
{
    static const char *const reading[] = {
        "train --help", "bench --help", "help plan", "doctor", "version",
        "run --nnodes 1 --help",
    };
    for (size_t i = 0; i < sizeof reading / sizeof reading[0]; i++) {
        static command_result r;
        run_in(&r, *state, "RANK=0 WORLD_SIZE=4", reading[i]);
        if (r.status != 0)
            fail_msg("lockstep %s: status %d, stderr '%s'", reading[i], r.status, r.err);
        if (strcmp(reading[i], "doctor") == 0)
            assert_says(r.out, "warn     launcher     RANK=0 and WORLD_SIZE=4 are set, but not");
    }
}

/* Checks that commands run as a single process in an allocation, in a job of one process, and with
 * variables left over from another job. */
static void single_processes_run_as_usual(void **state)
{
    static const char *const names[] = {
        "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4", /* sbatch */
        "SLURM_JOB_ID=7 SLURM_NTASKS=4",                                               /* salloc */
        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1 RANK=0",
        "RANK=0 WORLD_SIZE=1",
        "MASTER_ADDR=h MASTER_PORT=1 LOCKSTEP_RENDEZVOUS=tcp://h:1 TF_CONFIG='{}'",
        "PBS_NODENUM=0 PBS_TASKNUM=1 JOB_COMPLETION_INDEX=0 WORLD_SIZE=1",
    };
    static command_result r;
    char                  wanted[65], got[65];
    run_command(&r, *state, "train" OF_RUN "--steps 3");
    read_weights(&r, wanted);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        run_in(&r, *state, names[i], "train" OF_RUN "--steps 3");
        if (r.status != 0)
            fail_msg("%s: status %d, stderr '%s'", names[i], r.status, r.err);
        read_weights(&r, got);
        assert_string_equal(got, wanted);
        run_in(&r, *state, names[i], "run -n 2 --no-prefix sh -c 'echo $WORLD_SIZE'");
        assert_string_equal(r.out, "2\n2\n");
    }
    run_in(&r, *state, "JOB_COMPLETION_INDEX=3", "train" OF_RUN "--steps 3 --nnodes 1");
    read_weights(&r, got);
    assert_string_equal(got, wanted);
}

/* Starts our launcher in a task of srun, and in a worker of a second launcher of ours.  Expects
 * that the inner launcher starts the job that its command line describes. */
static void a_launcher_may_run_under_another_launcher(void **state)
{
    static command_result r;
    run_in(&r, *state,
           "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 "
           "SLURM_STEP_TASKS_PER_NODE='1(x2)'", "run -n 2 --no-prefix sh -c 'echo $WORLD_SIZE'");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "2\n2\n");
    run_command(&r, *state, "run -n 1 --no-prefix " LK_TEST_COMMAND
                            " run -n 2 --no-prefix sh -c 'echo $WORLD_SIZE'"); /* the inner
                                                                                * launcher */
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "2\n2\n");
}

/* Runs a command as the two workers of another launcher. */
static void run_as_two(command_result *r, const char *folder, const char *arguments)
{
    char line[1200];
    (void)snprintf(line, sizeof line,
                   "run() { RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 %s %s; }; "
                   "run 1 & run 0; s=$?; wait; exit $s", LK_TEST_COMMAND, arguments);
    run_shell(r, folder, line);
    if (r->status != 0)
        fail_msg("%s: status %d, stderr '%s'", arguments, r->status, r->err);
}

/* Checks that a run keeps its options whoever has started its workers, since it says that `lockstep
 * resume` continues it. */
static void options_are_kept_under_another_launcher(void **state)
{
    static command_result r;
    run_as_two(&r, *state,
               "train" OF_RUN "--steps 3 --virtual-workers 2 --checkpoint two --mpi=off");
    run_command(&r, *state, "resume two --steps 4");
    assert_int_equal(r.status, 0);
    run_as_two(&r, *state, "resume two --steps 5");
    run_command(&r, *state, "resume two --workers 1"); /* to the steps of the last command */
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "grep -e steps -e mpi two/command.json");
    assert_string_equal(r.out, "  \"steps\": \"5\",\n");
}

/* Options that another launcher does not follow are named once. */
static void options_without_effect_are_named(void **state)
{
    static const char     note[] = "note: another launcher has started the workers, so these "
                                   "options have no effect: ";
    static command_result r;
    run_as_two(&r, *state, "train" OF_RUN "--steps 1 --virtual-workers 2");
    assert_says_not(r.err, note);
    run_as_two(&r, *state, "train" OF_RUN "--steps 1 --virtual-workers 2 --checkpoint idle "
                           "--restart --on-failure continue --timeout 20");
    const char *said = strstr(r.err, note);
    assert_non_null(said);
    assert_int_equal(strncmp(said + strlen(note), "--on-failure, --restart\n", 24), 0);
    assert_null(strstr(said + 1, note));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_incomplete_job_environment_is_refused),
        cmocka_unit_test(mpi_does_not_bypass_the_refusal),
        cmocka_unit_test(a_job_that_cannot_be_joined_is_refused),
        cmocka_unit_test(help_is_never_refused),
        cmocka_unit_test(single_processes_run_as_usual),
        cmocka_unit_test(a_launcher_may_run_under_another_launcher),
        cmocka_unit_test(options_are_kept_under_another_launcher),
        cmocka_unit_test(options_without_effect_are_named),
    };
    return cmocka_run_group_tests(tests, train_once, remove_folder);
}
