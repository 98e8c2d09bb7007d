/* data/data_testing.h -- for tests: creates a temporary folder, and checks that opening a data set
 * fails as expected. */
#ifndef LKI_DATA_DATA_TESTING_H
#define LKI_DATA_DATA_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "lockstep/data.h"

#define LKT_OK(call)                                                                             \
    do {                                                                                         \
        if ((call) != LK_OK)                                                                     \
            fail_msg("%s: %s", #call, lk_error_last()->message);                                 \
    } while (0)

/* The setup of a test group: creates a folder and makes it the current directory.  The teardown
 * removes the folder. */
static inline int lkt_enter_folder(void **state)
{
    (void)state;
    static char folder[] = "/tmp/lockstep-data-XXXXXX";
    if (mkdtemp(folder) == NULL || chdir(folder) != 0)
        return -1;
    return 0;
}

static inline int lkt_leave_folder(void **state)
{
    (void)state;
    char folder[256], command[300];
    if (getcwd(folder, sizeof folder) == NULL || strstr(folder, "/lockstep-data-") == NULL)
        return -1;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return chdir("/") == 0 && system(command) == 0 ? 0 : -1;
}

static inline void lkt_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void lkt_write_text(const char *path, const char *text)
{
    lkt_write(path, text, strlen(text));
}

/* A pointer to options of a data set. */
#define LKT_DATASET(...)                                                                         \
    (&(lk_dataset_options){ .struct_size = sizeof(lk_dataset_options), __VA_ARGS__ })

/* Checks that opening fails with `status` and a message that contains both texts. */
static inline void lkt_refuses(const char *spec, const lk_dataset_options *options,
                               lk_status status, const char *first, const char *second)
{
    lk_dataset *dataset = (lk_dataset *)(uintptr_t)1;
    lk_status   got     = lk_dataset_open(&dataset, spec, options);
    if (got != status || dataset != NULL)
        fail_msg("%s: status %d (%s), expected %d", spec, (int)got,
                 got == LK_OK ? "opened" : lk_error_last()->message, (int)status);
    if (strstr(lk_error_last()->message, first) == NULL ||
        strstr(lk_error_last()->message, second) == NULL)
        fail_msg("%s: message '%s' lacks '%s' or '%s'", spec, lk_error_last()->message, first,
                 second);
}

/* Opens a data set or fails the test. */
static inline lk_dataset *lkt_open(const char *spec, const lk_dataset_options *options)
{
    lk_dataset *dataset = NULL;
    LKT_OK(lk_dataset_open(&dataset, spec, options));
    return dataset;
}

/* Returns the path of a file of real data; NULL if it does not exist. */
static inline const char *lkt_real_file(char *out, size_t bytes, const char *name)
{
    const char *folder = getenv("LOCKSTEP_TEST_DATA");
    if (folder != NULL)
        (void)snprintf(out, bytes, "%s/%s", folder, name);
    else
        (void)snprintf(out, bytes, "%s/../shared/data/%s", LK_TEST_SOURCE, name);
    return access(out, R_OK) == 0 ? out : NULL;
}

#endif
