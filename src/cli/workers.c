/* workers.c -- starting copies of this program. */
#include "cli/workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "lockstep/launch.h"

int lki_start_workers(char **argv, uint32_t workers, uint32_t timeout_ms)
{
    /* argv is the command's part of main's: the program's name stands before it. */
    static char self[] = "/proc/self/exe";
    size_t      count  = 0;
    while (argv[count] != NULL)
        count++;
    char **worker = calloc(count + 2, sizeof *worker);
    if (worker == NULL) {
        fprintf(stderr, "lockstep %s: out of memory\n", argv[0]);
        return LKI_EXIT_FAILURE;
    }
    worker[0] = self;
    memcpy(worker + 1, argv, count * sizeof *argv);

    lk_launch_options how    = { .workers = workers, .argv = worker, .timeout_ms = timeout_ms };
    lk_launch_result  result = { .exit_code = 0 };
    lk_status         status = lk_launch(&how, &result);
    free(worker);
    if (status != LK_OK) {
        fprintf(stderr, "lockstep %s: %s\n", argv[0], lk_error_last()->message);
        return LKI_EXIT_FAILURE;
    }
    if (result.failed && result.exit_code != LKI_EXIT_STOPPED)
        fprintf(stderr, "lockstep %s: %s\n", argv[0], result.cause);
    return result.exit_code;
}
