/* directory.c -- the file-system operations of a checkpoint other than writing files.
 *
 * A writer holds flock() on its temporary directory.  A process id would not show whether the
 * writer is alive: in containers every writer has the same small number, and on a shared file
 * system the writer may run on another host.  The lock disappears with the process.
 */
#include "checkpoint/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "lockstep/checkpoint.h"

lk_status lki_directory_join(char out[LKI_PATH_BYTES], const char *folder, const char *name)
{
    int length = snprintf(out, LKI_PATH_BYTES, "%s/%s", folder, name);
    if (length < 0 || length >= LKI_PATH_BYTES)
        return lk_fail(LK_EINVAL, "a path of more than %d bytes: '%.60s...'", LKI_PATH_BYTES - 1,
                       folder);
    return LK_OK;
}

lk_status lki_directory_above(char out[LKI_PATH_BYTES], const char *path)
{
    char *whole = realpath(path, NULL);
    if (whole == NULL)
        return lk_fail(LK_EIO, "cannot open '%s': %s", path, strerror(errno));
    const size_t length = strnlen(path, LKI_PATH_BYTES - 1);
    memmove(out, path, length);
    out[length]        = '\0';
    const char *given  = dirname(out); /* cuts `out`, or is "." */
    const char *actual = dirname(whole);
    /* a message has the path as it was given, if that is one */
    if (!lki_is_same_file(given, actual))
        given = actual;
    if (given != out)
        (void)snprintf(out, LKI_PATH_BYTES, "%s", given);
    free(whole);
    return LK_OK;
}

void lki_step_name(char out[LKI_STEP_NAME_BYTES], uint64_t step)
{
    (void)snprintf(out, LKI_STEP_NAME_BYTES, "step-%08" PRIu64, step);
}

bool lki_step_parse(uint64_t *step, const char *name)
{
    char same[LKI_STEP_NAME_BYTES];
    if (strncmp(name, "step-", 5) != 0 || strspn(name + 5, "0123456789") != strlen(name + 5))
        return false;
    *step = strtoull(name + 5, NULL, 10);
    lki_step_name(same, *step);
    return strcmp(same, name) == 0;
}

static int newest_first(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a < b) - (a > b);
}

/* Lists all steps of `dir`, newest first. */
static lk_status list_all(uint64_t **out, size_t *count, const char *dir)
{
    *out             = NULL;
    *count           = 0;
    size_t capacity  = 0;
    DIR   *directory = opendir(dir);
    if (directory == NULL)
        return lk_fail(LK_EIO, "cannot read the directory '%s': %s", dir, strerror(errno));

    lk_status      status = LK_OK;
    struct dirent *found;
    while (status == LK_OK && (found = readdir(directory)) != NULL) {
        uint64_t step;
        if (!lki_step_parse(&step, found->d_name))
            continue;
        status = lki_reserve((void **)out, &capacity, *count, sizeof **out, "a list of steps");
        if (status == LK_OK)
            (*out)[(*count)++] = step;
    }
    (void)closedir(directory);
    if (status != LK_OK) {
        lki_free(*out);
        *out = NULL;
    } else if (*count > 0) {
        qsort(*out, *count, sizeof **out, newest_first);
    }
    return status;
}

_Static_assert(LKI_STEP_NAME_BYTES == 32, "lk_checkpoint_goes_back() writes such a name");

/* Reads the file that says that steps are being set aside: "2 set-aside-1". */
bool lk_checkpoint_goes_back(const char *dir, uint64_t *step, char name[LKI_STEP_NAME_BYTES])
{
    char path[LKI_PATH_BYTES];
    name[0]    = '\0';
    FILE *file = lki_directory_join(path, dir, LKI_GOING_BACK) == LK_OK ? fopen(path, "re") : NULL;
    if (file == NULL)
        return false;
    const bool read = fscanf(file, "%" SCNu64 " %31[a-z0-9-]", step, name) == 2;
    (void)fclose(file);
    return read && strncmp(name, LKI_ASIDE_PREFIX, sizeof LKI_ASIDE_PREFIX - 1) == 0;
}

lk_status lki_steps_list(uint64_t **out, size_t *count, const char *dir)
{
    char     name[LKI_STEP_NAME_BYTES];
    uint64_t last;
    size_t   later = 0;
    LK_TRY(list_all(out, count, dir));
    if (!lk_checkpoint_goes_back(dir, &last, name))
        return LK_OK;
    while (later < *count && (*out)[later] > last)
        later++;
    *count -= later;
    if (*count > 0)
        memmove(*out, *out + later, *count * sizeof **out);
    return LK_OK;
}

lk_status lki_directory_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return lk_fail(LK_EIO, "cannot open the directory '%s': %s", path, strerror(errno));
    lk_status status = LK_OK;
    if (fsync(fd) != 0)
        status = lk_fail(LK_EIO, "cannot bring the directory '%s' to the disk: fsync: %s", path,
                         strerror(errno));
    (void)close(fd);
    return status;
}

/* Creates the first set-aside-N that is free.  An empty one was left by a crash. */
static lk_status make_aside(char name[LKI_STEP_NAME_BYTES], char path[LKI_PATH_BYTES],
                            const char *dir)
{
    for (uint32_t n = 1; n < UINT32_MAX; n++) {
        (void)snprintf(name, LKI_STEP_NAME_BYTES, LKI_ASIDE_PREFIX "%u", n);
        LK_TRY(lki_directory_join(path, dir, name));
        if (mkdir(path, 0777) == 0)
            break;
        if (errno != EEXIST)
            return lk_fail(LK_EIO, "cannot make the directory '%s': %s", path, strerror(errno));
        if (rmdir(path) == 0 && mkdir(path, 0777) == 0)
            break;
    }
    return LK_OK;
}

/* Moves one step of `dir` into the directory `aside` there. */
static lk_status move_step(const char *dir, const char *aside, uint64_t step)
{
    char name[LKI_STEP_NAME_BYTES], from[LKI_PATH_BYTES], to[LKI_PATH_BYTES];
    lki_step_name(name, step);
    LK_TRY(lki_directory_join(from, dir, name));
    LK_TRY(lki_directory_join(to, aside, name));
    return rename(from, to) == 0
               ? LK_OK : lk_fail(LK_EIO, "cannot move the checkpoint '%s' to '%s': %s", from, aside,
                                 strerror(errno));
}

/* Records that the steps after `step` are being set aside. */
static lk_status write_going_back(const char *dir, uint64_t step, const char *name)
{
    char path[LKI_PATH_BYTES], text[64];
    int  bytes = snprintf(text, sizeof text, "%" PRIu64 " %s\n", step, name);
    LK_TRY(lki_directory_join(path, dir, LKI_GOING_BACK));
    LK_TRY(lki_file_replace(path, text, (size_t)bytes));
    return lki_directory_sync(dir);
}

lk_status lki_steps_are_aside(const char *dir)
{
    char path[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(path, dir, LKI_GOING_BACK));
    LK_TRY(lki_directory_sync(dir)); /* what the run has recorded must not come after */
    if (unlink(path) == 0)
        return lki_directory_sync(dir);
    return errno == ENOENT ? LK_OK
                           : lk_fail(LK_EIO, "cannot remove '%s': %s", path, strerror(errno));
}

/* Returns true if a file is the draft NAME.PID.new, as lki_file_draft() makes it, of a process that
 * is gone.  One with the id of this process is of an earlier one. */
static bool is_left_draft(const char *file, const char *name)
{
    const size_t length = strlen(name);
    if (strncmp(file, name, length) != 0 || file[length] != '.')
        return false;
    const char  *digits = file + length + 1;
    const size_t count  = strspn(digits, "0123456789");
    if (count == 0 || count > 9 || digits[0] == '0' || strcmp(digits + count, ".new") != 0)
        return false;
    const pid_t process = (pid_t)strtol(digits, NULL, 10);
    return process == getpid() || (kill(process, 0) != 0 && errno == ESRCH);
}

/* Removes the drafts of a file in `dir` that killed processes have left.  The caller holds the lock
 * of the run's directory, so no process on another host has a draft there. */
static void sweep_drafts(const char *dir, const char *name)
{
    char           path[LKI_PATH_BYTES];
    struct dirent *found;
    DIR           *directory = opendir(dir);
    while (directory != NULL && (found = readdir(directory)) != NULL)
        if (is_left_draft(found->d_name, name) &&
            lki_directory_join(path, dir, found->d_name) == LK_OK)
            (void)unlink(path);
    if (directory != NULL)
        (void)closedir(directory);
}

/* Moves the steps after `step` into the directory `name`, and counts all that are there. */
static lk_status move_later(const char *dir, const char *name, uint64_t step, size_t *count)
{
    char      path[LKI_PATH_BYTES];
    uint64_t *steps  = NULL;
    size_t    all    = 0, later = 0;
    lk_status status = lki_directory_join(path, dir, name);
    if (status == LK_OK)
        status = list_all(&steps, &all, dir);
    while (steps != NULL && later < all && steps[later] > step)
        later++;
    /* The newest moves last: a launcher can see whether it is still there. */
    while (status == LK_OK && later-- > 0)
        status = move_step(dir, path, steps[later]);
    lki_free(steps);
    LK_TRY(status);
    LK_TRY(lki_directory_sync(path));
    LK_TRY(lki_directory_sync(dir));
    LK_TRY(list_all(&steps, count, path));
    lki_free(steps);
    return LK_OK;
}

lk_status lki_steps_set_aside(char name[LKI_STEP_NAME_BYTES], size_t *count, const char *dir,
                              uint64_t step)
{
    char       path[LKI_PATH_BYTES];
    uint64_t   last  = UINT64_MAX, *steps = NULL;
    const bool begun = lk_checkpoint_goes_back(dir, &last, name);
    *count           = 0;
    sweep_drafts(dir, LKI_GOING_BACK);
    sweep_drafts(dir, LK_RUN_COMMAND);
    LK_TRY(list_all(&steps, count, dir));
    const bool later = *count > 0 && steps[0] > step;
    lki_free(steps);
    *count = 0;
    if (!begun && !later)
        return LK_OK;
    if (!begun) {
        LK_TRY(make_aside(name, path, dir));
    } else if (lki_directory_join(path, dir, name) == LK_OK) {
        (void)mkdir(path, 0777); /* mostly there; if it cannot be made, moving fails */
        sweep_drafts(path, LKI_ASIDE_LOG);
    }
    step             = lki_min(step, last);
    lk_status status = write_going_back(dir, step, name);
    if (status == LK_OK)
        status = move_later(dir, name, step, count);
    if (status == LK_OK || begun)
        return status;
    lk_error why = *lk_error_last();
    (void)lki_steps_put_back(dir, name);
    return lki_fail_again(&why);
}

bool lki_steps_put_back(const char *dir, const char *name)
{
    char      path[LKI_PATH_BYTES], log[LKI_PATH_BYTES];
    uint64_t *steps = NULL;
    size_t    count = 0;
    if (lki_directory_join(path, dir, name) != LK_OK ||
        lki_directory_join(log, path, LKI_ASIDE_LOG) != LK_OK ||
        list_all(&steps, &count, path) != LK_OK)
        return false;
    (void)unlink(log);
    for (size_t i = 0; i < count; i++)
        (void)move_step(path, dir, steps[i]);
    lki_free(steps);
    const bool removed = rmdir(path) == 0;
    return lki_steps_are_aside(dir) == LK_OK && removed;
}

/* Creates one directory whose parent exists.  `slash` is the last slash of `path`, or NULL. */
static lk_status make_one(char *path, char *slash)
{
    if (lki_is_folder(path))
        return LK_OK;
    if (mkdir(path, 0777) != 0) /* not an error if another process has created the directory */
        return errno == EEXIST ? LK_OK
                               : lk_fail(LK_EIO, "cannot make the directory '%s': %s", path,
                                         strerror(errno));
    if (slash == NULL)
        return lki_directory_sync(".");
    if (slash == path)
        return lki_directory_sync("/");
    *slash           = '\0';
    lk_status status = lki_directory_sync(path);
    *slash           = '/';
    return status;
}

lk_status lki_directory_make(const char *path)
{
    char  copy[LKI_PATH_BYTES];
    char *slash = NULL;
    if (path[0] == '\0' || strlen(path) >= sizeof copy)
        return lk_fail(LK_EINVAL, "a directory's path of %zu bytes", strlen(path));
    memcpy(copy, path, strlen(path) + 1);
    for (char *at = copy + 1; *at != '\0'; at++) {
        if (*at != '/' || at[-1] == '/')
            continue;
        *at = '\0';
        LK_TRY(make_one(copy, slash));
        *at   = '/';
        slash = at;
    }
    if (copy[0] == '/' && slash == NULL)
        slash = copy;
    if (slash == NULL || slash[1] != '\0')
        LK_TRY(make_one(copy, slash));
    if (!lki_is_folder(path))
        return lk_fail(LK_EIO, "'%s' is not a directory", path);
    return LK_OK;
}

void lki_directory_remove(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL)
        return;
    char           file[LKI_PATH_BYTES];
    struct dirent *found;
    while ((found = readdir(directory)) != NULL)
        if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0 &&
            snprintf(file, sizeof file, "%s/%s", path, found->d_name) < (int)sizeof file)
            (void)unlink(file);
    (void)closedir(directory);
    (void)rmdir(path);
}

void lki_directory_sweep(const char *dir)
{
    DIR *directory = opendir(dir);
    if (directory == NULL)
        return;
    char           path[LKI_PATH_BYTES];
    struct dirent *found;
    while ((found = readdir(directory)) != NULL) {
        if (strncmp(found->d_name, LKI_TEMPORARY_PREFIX, sizeof LKI_TEMPORARY_PREFIX - 1) != 0 ||
            snprintf(path, sizeof path, "%s/%s", dir, found->d_name) >= (int)sizeof path)
            continue;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            lki_directory_remove(path);
        (void)close(fd);
    }
    (void)closedir(directory);
}
