/* mpi_test.c -- tests errors that name a missing MPI or module.  Tests in tests/mpi need an
 * installed MPI.
 *
 * The linker replaces lki_mpi_open() (mpi_test.wrap).  The replacement opens a group of one rank,
 * like an MPI that reports one process, and changes the environment as such an MPI does.
 * lki_mpi_library_load() loads nothing, but in one test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi.h"
#include "launch/mpi_library.h"
#include "lockstep/launch.h"

static bool alone; /* lki_mpi_open() opens a group of one rank */
static bool loads; /* lki_mpi_library_load() is not replaced */

/* The linker's names. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
lk_status __real_lki_mpi_open(lk_comm **out, const lki_mpi_how *how,
                              const lk_comm_options *options);
lk_status __wrap_lki_mpi_open(lk_comm **out, const lki_mpi_how *how,
                              const lk_comm_options *options);

lk_status __wrap_lki_mpi_open(lk_comm **out, const lki_mpi_how *how,
                              const lk_comm_options *options)
{
    if (!alone)
        return __real_lki_mpi_open(out, how, options);
    if (getenv("PMI_ID") != NULL)
        (void)setenv("PMI_ID", "0", 1);
    return lk_comm_open_threads(out, 1, NULL);
}

lk_status __real_lki_mpi_library_load(const char *mpi, const char *const *names);
lk_status __wrap_lki_mpi_library_load(const char *mpi, const char *const *names);

lk_status __wrap_lki_mpi_library_load(const char *mpi, const char *const *names)
{
    return loads ? __real_lki_mpi_library_load(mpi, names) : LK_OK;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static void forget_everything(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_ID",
                                         "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
                                         "WORLD_SIZE", "LOCKSTEP_MODULES" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unsetenv(names[i]);
}

static void refuses(const char *variable, const char *first, const char *second)
{
    lk_comm *comm = (lk_comm *)&comm;

    forget_everything();
    if (variable != NULL) {
        (void)setenv(variable, "0", 1);
        (void)setenv("LOCKSTEP_MODULES", "/nowhere", 1);
    }
    assert_int_equal(lk_comm_open_mpi(&comm, NULL), LK_EUNSUPPORTED);
    assert_null(comm);
    if (strstr(lk_error_last()->message, first) == NULL
        || strstr(lk_error_last()->message, second) == NULL)
        fail_msg("%s", lk_error_last()->message);
    forget_everything();
}

static void missing_modules_are_named(void **state)
{
    (void)state;
    refuses(NULL, "OMPI_COMM_WORLD_RANK", "mpirun -n N");
    refuses("OMPI_COMM_WORLD_RANK", "no lockstep-mpi-openmpi.so (looked in /nowhere)",
            "libopenmpi-dev");
    refuses("PMIX_RANK", "no lockstep-mpi-openmpi.so", "LOCKSTEP_MODULES");
    refuses("PMI_RANK", "no lockstep-mpi-mpich.so", "libmpich-dev");
}

/* Creates a new folder with a file that has a module's name but is not a module. */
static void make_module(char folder[], char path[100])
{
    forget_everything();
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, 100, "%s/lockstep-mpi-mpich.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("this is text\n", file);
    (void)fclose(file);
    (void)setenv("PMI_RANK", "0", 1);
    (void)setenv("LOCKSTEP_MODULES", folder, 1);
}

static void remove_module(const char *folder, const char *path)
{
    forget_everything();
    (void)unlink(path);
    (void)rmdir(folder);
}

static void a_file_that_is_no_module_is_refused(void **state)
{
    char    folder[] = "/tmp/lockstep-mpi-XXXXXX", path[100];
    lk_comm *comm;

    (void)state;
    make_module(folder, path);
    assert_int_equal(lk_comm_open_mpi(&comm, NULL), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, path));
    remove_module(folder, path);
}

static void a_missing_library_of_mpi_is_named(void **state)
{
    static const char *const names[] = { "libnone.so.40", "libnone.so.41", NULL };
    char                     folder[] = "/tmp/lockstep-mpi-XXXXXX", path[100];
    lk_comm                 *comm;

    (void)state;
    make_module(folder, path);
    loads = true;
    (void)setenv("LOCKSTEP_MPI_LIBRARY", "/nowhere/libmpi.so", 1);
    assert_int_equal(lk_comm_open_mpi(&comm, NULL), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, "LOCKSTEP_MPI_LIBRARY=/nowhere/libmpi.so "));
    (void)unsetenv("LOCKSTEP_MPI_LIBRARY");
    assert_int_equal(lki_mpi_library_load("Some MPI", names), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, "the library of Some MPI, libnone.so.40 or "
                           "libnone.so.41, was not found (looked "));
    loads = false;
    remove_module(folder, path);
}

static void assert_refused(const char *wanted)
{
    lk_comm *comm = (lk_comm *)&comm;

    assert_int_equal(lk_comm_open_mpi(&comm, NULL), LK_EINVAL);
    assert_null(comm);
    if (strstr(lk_error_last()->message, wanted) == NULL)
        fail_msg("%s", lk_error_last()->message);
}

/* Joins while MPI reports one process and the environment reports several.  Expects a refusal,
 * because each process would be rank 0 of 1. */
static void a_lone_mpi_process_of_a_larger_job_is_refused(void **state)
{
    char     folder[] = "/tmp/lockstep-mpi-XXXXXX", path[100];
    lk_comm *comm;

    (void)state;
    make_module(folder, path);
    alone = true;
    assert_refused("PMI_RANK=0 is set, but not PMI_SIZE");
    (void)setenv("MPI_LOCALRANKID", "0", 1);
    (void)setenv("MPI_LOCALNRANKS", "3", 1);
    (void)setenv("PMI_SIZE", "3", 1);
    assert_refused("to MPI this process is alone, but mpiexec says that it is rank 0 of 3");
    (void)setenv("MPI_LOCALNRANKS", "1", 1);
    (void)setenv("PMI_SIZE", "1", 1);
    assert_int_equal(lk_comm_open_mpi(&comm, NULL), LK_OK);
    lk_comm_free(comm);
    forget_everything();
    (void)setenv("LOCKSTEP_MODULES", folder, 1);
    (void)setenv("PMI_ID", "2", 1);
    assert_refused("PMI_ID=2 is set, but not the number of processes");
    alone = false;
    remove_module(folder, path);
    (void)setenv("WORLD_SIZE", "4", 1);
    assert_refused("WORLD_SIZE=4 is set, but not RANK");
    forget_everything();
}

/* ---- Choosing ---------------------------------------------------------------------------- */

/* Sets the variables of mpiexec for rank 0 of 4, `here` of which are on this host. */
static void set_mpiexec(const char *here)
{
    (void)setenv("PMI_RANK", "0", 1);
    (void)setenv("PMI_SIZE", "4", 1);
    (void)setenv("MPI_LOCALRANKID", "0", 1);
    (void)setenv("MPI_LOCALNRANKS", here, 1);
}

static bool chooses(lk_mpi_mode mode)
{
    bool chosen = false;

    if (lk_mpi_chosen(&chosen, mode) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return chosen;
}

static void refuses_mode(lk_mpi_mode mode, const char *wanted)
{
    bool chosen;

    assert_int_equal(lk_mpi_chosen(&chosen, mode), LK_EINVAL);
    if (strstr(lk_error_last()->message, wanted) == NULL)
        fail_msg("%s", lk_error_last()->message);
}

static void mpi_is_chosen_for_several_hosts_of_its_launcher(void **state)
{
    static const char *const of_tcp[] = { "LOCKSTEP_RENDEZVOUS", "LOCKSTEP_JOB_KEY_FILE",
                                          "LOCKSTEP_INSECURE" };
    char folder[] = "/tmp/lockstep-mpi-XXXXXX", path[100];

    (void)state;
    make_module(folder, path);
    set_mpiexec("2");
    assert_true(chooses(LK_MPI_AUTO) && chooses(LK_MPI_ON) && !chooses(LK_MPI_OFF));
    char text[500];
    assert_int_equal(lk_launcher_describe(text, sizeof text), LK_OK); /* needs no address */
    assert_non_null(strstr(text, "MPI between hosts"));
    for (size_t i = 0; i < sizeof of_tcp / sizeof of_tcp[0]; i++) {
        (void)setenv(of_tcp[i], "1", 1);
        assert_true(!chooses(LK_MPI_AUTO) && chooses(LK_MPI_ON));
        (void)unsetenv(of_tcp[i]);
    }
    set_mpiexec("4"); /* one host, then two emulated ones */
    assert_true(!chooses(LK_MPI_AUTO) && chooses(LK_MPI_ON));
    (void)setenv("LOCKSTEP_MPI_HOSTS", "2", 1);
    assert_true(chooses(LK_MPI_AUTO));
    (void)unlink(path);
    assert_true(!chooses(LK_MPI_AUTO) && chooses(LK_MPI_ON));
    (void)unsetenv("LOCKSTEP_MPI_HOSTS");
    remove_module(folder, path);
}

static void the_environment_decides_if_the_program_does_not(void **state)
{
    (void)state;
    forget_everything();
    set_mpiexec("4");
    (void)setenv("LOCKSTEP_MPI", "on", 1);
    assert_true(chooses(LK_MPI_AUTO) && !chooses(LK_MPI_OFF));
    (void)setenv("LOCKSTEP_MPI", "off", 1);
    assert_true(!chooses(LK_MPI_AUTO) && chooses(LK_MPI_ON));
    (void)setenv("LOCKSTEP_MPI", "yes", 1);
    refuses_mode(LK_MPI_AUTO, "LOCKSTEP_MPI=yes must be on, off or auto");
    (void)unsetenv("LOCKSTEP_MPI");
    forget_everything();
}

static void mpi_is_refused_without_its_launcher(void **state)
{
    (void)state;
    forget_everything();
    assert_false(chooses(LK_MPI_AUTO));
    refuses_mode(LK_MPI_ON, "was not started by MPI");
    (void)setenv("SLURM_PROCID", "0", 1);
    refuses_mode(LK_MPI_ON, "or let srun serve pmix (Open MPI) or pmi2 (MPICH)");
    (void)unsetenv("SLURM_PROCID");
    set_mpiexec("2");
    (void)setenv("LOCKSTEP_CONTROL_FD", "3", 1);
    assert_false(chooses(LK_MPI_AUTO));
    refuses_mode(LK_MPI_ON, "lockstep run has started this process");
    (void)unsetenv("LOCKSTEP_CONTROL_FD");
    forget_everything();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_modules_are_named),
        cmocka_unit_test(a_file_that_is_no_module_is_refused),
        cmocka_unit_test(a_missing_library_of_mpi_is_named),
        cmocka_unit_test(a_lone_mpi_process_of_a_larger_job_is_refused),
        cmocka_unit_test(mpi_is_chosen_for_several_hosts_of_its_launcher),
        cmocka_unit_test(the_environment_decides_if_the_program_does_not),
        cmocka_unit_test(mpi_is_refused_without_its_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
