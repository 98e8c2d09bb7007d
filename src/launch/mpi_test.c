/* mpi_test.c -- without MPI: errors that say what is missing.  With it: tests/mpi. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lockstep/launch.h"

static void forget_everything(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_ID",
                                         "LOCKSTEP_MODULES" };
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

static void what_is_missing_is_named(void **state)
{
    (void)state;
    refuses(NULL, "OMPI_COMM_WORLD_RANK", "mpirun -n N");
    refuses("OMPI_COMM_WORLD_RANK", "no lockstep-mpi-openmpi.so (looked in /nowhere)",
            "libopenmpi-dev");
    refuses("PMIX_RANK", "no lockstep-mpi-openmpi.so", "LOCKSTEP_MODULES");
    refuses("PMI_RANK", "no lockstep-mpi-mpich.so", "libmpich-dev");
}

/* A file that is no module, and a library that is none of ours. */
static void what_is_no_module_is_refused(void **state)
{
    char    folder[] = "/tmp/lockstep-mpi-XXXXXX", path[100];
    lk_comm *comm;

    (void)state;
    forget_everything();
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/lockstep-mpi-mpich.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("this is text\n", file);
    (void)fclose(file);
    (void)setenv("PMI_RANK", "0", 1);
    (void)setenv("LOCKSTEP_MODULES", folder, 1);
    assert_int_equal(lk_comm_open_mpi(&comm, NULL), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, path));
    forget_everything();
    (void)unlink(path);
    (void)rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(what_is_no_module_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
