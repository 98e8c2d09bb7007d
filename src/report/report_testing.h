/* report/report_testing.h -- for tests: logs in a folder, and a log of a run of any length. */
#ifndef LKI_REPORT_REPORT_TESTING_H
#define LKI_REPORT_REPORT_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char lkt_folder[64];

static inline int lkt_make_folder(void **state)
{
    strcpy(lkt_folder, "/tmp/lockstep-report-XXXXXX");
    *state = mkdtemp(lkt_folder);
    return *state == NULL;
}

static inline int lkt_remove_folder(void **state)
{
    char line[96];
    (void)state;
    (void)snprintf(line, sizeof line, "rm -rf %s", lkt_folder);
    return system(line);
}

/* Returns the path of a file of the folder, valid until the fourth call after this one. */
static inline const char *lkt_path(const char *name)
{
    static char     paths[4][160];
    static unsigned at;
    char           *path = paths[at++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", lkt_folder, name);
    return path;
}

/* Writes a file, and returns its path. */
static inline const char *lkt_write(const char *name, const char *mode, const char *text)
{
    const char *path = lkt_path(name);
    FILE       *file = fopen(path, mode);
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
    return path;
}

#define LKT_STEP(step, loss, bits)                                                                 \
    "{\"step\": " #step ", \"epoch\": 0, \"loss\": " loss ", \"loss_bits\": \"" bits "\", "        \
    "\"lr\": 0.5, \"grad_norm\": 1.5, \"samples_per_s\": 7" #step ", \"step_ms\": 1.25, "          \
    "\"data_ms\": 0.25, \"compute_ms\": 0.5, \"finish_ms\": 0.25}\n"
#define LKT_ONE LKT_STEP(1, "2", "4000000000000000")
#define LKT_TWO LKT_STEP(2, "1", "3ff0000000000000")
#define LKT_EVALUATION "{\"step\": 2, \"val_loss\": 3, \"val_loss_bits\": \"4008000000000000\"}\n"
#define LKT_SAVED "{\"step\": 2, \"checkpoint\": 2, \"stall_ms\": 1, \"write_ms\": 1}\n"
#define LKT_THREE LKT_STEP(3, "0.5", "3fe0000000000000")
#define LKT_END "{\"step\": 3, \"weights\": \"aa\", \"run\": \"bb\"}\n"
/* A line of step 1 that adds the losses of two virtual workers: 2 and that of `bits`. */
#define LKT_WORKERS(bits)                                                                          \
    "{\"step\": 1, \"virtual_losses\": \"4000000000000000" bits "\"}\n"
#define LKT_LOG LKT_ONE LKT_TWO LKT_EVALUATION LKT_SAVED LKT_THREE LKT_END

#endif
