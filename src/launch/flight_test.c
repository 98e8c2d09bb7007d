/* flight_test.c -- tests flight records of workers that another launcher has started.
 *
 * The workers are this program, started with the environment that torchrun sets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/self_testing.h"
#include "lockstep/launch.h"

static char self[SELF_BYTES];

static int worker(void)
{
    lk_comm *comm;
    bool     good = lk_join(&comm) == LK_OK && lk_barrier(comm) == LK_OK;

    if (!good)
        fprintf(stderr, "%s\n", lk_error_last()->message);
    lk_comm_free(comm);
    return good ? 0 : 1;
}

static void foreign_workers_keep_records(void **state)
{
    char folder[] = "/tmp/lk-flight-XXXXXX", line[12000], path[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/rank-7.flight", folder); /* a file of an earlier, larger
                                                                    * job */
    FILE *old = fopen(path, "w");
    assert_non_null(old);
    (void)fclose(old);
    (void)snprintf(line, sizeof line,
                   "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=flight-%d "
                   "LOCKSTEP_FLIGHT=%s; RANK=1 LOCAL_RANK=1 %s worker & "
                   "RANK=0 LOCAL_RANK=0 %s worker && wait $!", (int)getpid(), folder, self, self);
    assert_int_equal(system(line), 0);
    assert_int_not_equal(unlink(path), 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)snprintf(path, sizeof path, "%s/rank-%u.flight", folder, rank);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(int argc, char **argv)
{
    if (self_is_worker(self, argc, argv))
        return worker();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(foreign_workers_keep_records),
    };
    return cmocka_run_group_tests_name("launch.flight", tests, NULL, NULL);
}
