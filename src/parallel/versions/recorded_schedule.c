/* recorded_schedule.c -- reads and writes the file of a recorded schedule.
 *
 * Each line of a gradient has the same length, so ranks write each line at its place without a
 * common position in the file.
 */
#include "parallel/recorded_schedule.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

enum { LINE = 49, HEADER_MOST = 256 };

static lk_status fail_file(const char *path, const char *what)
{
    return lk_fail(LK_EIO, "the schedule %.900s cannot be %s: %s", path, what, strerror(errno));
}

/* Writes the first two lines of the file. */
static size_t write_header(char out[HEADER_MOST], const lk_async *o, const lki_recorded_run *run)
{
    return (size_t)snprintf(out, HEADER_MOST,
                            "lockstep schedule 1: groups %u, aggregate %u, virtual workers %u, "
                            "seed %" PRIu64 "\n%12s %12s %5s %16s\n",
                            o->groups, o->aggregate, run->virtual_workers, run->seed, "task",
                            "reads", "group", "gradient");
}

/* ---- Writing ----------------------------------------------------------------------------- */

lk_status lki_recorded_prepare(const lk_async *options, const lki_recorded_run *run)
{
    char         header[HEADER_MOST];
    const size_t bytes  = write_header(header, options, run);
    const int    fd     = open(options->record, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    lk_status    status = LK_OK;
    struct stat  info;
    if (fd < 0)
        return fail_file(options->record, "opened");
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        status = lk_fail(LK_EINVAL, "the schedule %.900s must be a regular file", options->record);
    else if (info.st_size == 0 && pwrite(fd, header, bytes, 0) != (ssize_t)bytes)
        status = fail_file(options->record, "written");
    else if (info.st_size > (off_t)bytes && (info.st_size - (off_t)bytes) % LINE != 0 &&
             ftruncate(fd, info.st_size - (info.st_size - (off_t)bytes) % LINE) != 0)
        status = fail_file(options->record, "written");
    (void)close(fd);
    return status;
}

lk_status lki_recorded_write(const lki_recorded_schedule *schedule, uint64_t at,
                             const lki_recorded_task *task)
{
    char        line[LINE + 32];
    const off_t place = (off_t)(schedule->header + at * LINE);
    const int   bytes = snprintf(line, sizeof line,
                                 "%12" PRIu64 " %12" PRIu64 " %5u %016" PRIx64 "\n", task->task,
                                 task->reads, task->group, task->hash);
    LK_ASSERT(bytes == LINE);
    errno = ENOSPC; /* of a short write */
    return pwrite(schedule->fd, line, LINE, place) == LINE ? LK_OK
                                                           : fail_file(schedule->path, "written");
}

lk_status lki_recorded_sync(const lki_recorded_schedule *schedule)
{
    return schedule->path == NULL || schedule->fd < 0 || fdatasync(schedule->fd) == 0
               ? LK_OK
               : fail_file(schedule->path, "written");
}

/* ---- Reading ----------------------------------------------------------------------------- */

static lk_status fail_line(const lki_recorded_schedule *s, uint64_t at, const char *what)
{
    return lk_fail(LK_EFORMAT, "%.900s, line %" PRIu64 ": %s", s->path, at + 3, what);
}

/* Reads one line. */
static bool read_line(const uint8_t *data, lki_recorded_task *out)
{
    char line[LINE + 1], end;
    memcpy(line, data, LINE);
    line[LINE] = '\0';
    return sscanf(line, "%12" SCNu64 " %12" SCNu64 " %5" SCNu32 " %16" SCNx64 "%c", &out->task,
                  &out->reads, &out->group, &out->hash, &end) == 5 && end == '\n';
}

/* Returns what is wrong with a gradient; NULL if nothing is.  `last` has 1 + the number of the last
 * gradient of each group. */
static const char *why_impossible(const lki_recorded_task *task, uint64_t at, const lk_async *o,
                                  const uint64_t *last)
{
    return task->group >= o->groups ? "there is no such group"
           : task->reads > at / o->aggregate
               ? "the task reads a version that is made later"
           : last[task->group] > task->reads * o->aggregate
               ? "the task reads a version that is older than the last gradient of its group"
               : NULL;
}

/* Reads all lines, and checks them.  `last` is scratch. */
static lk_status read_lines(lki_recorded_schedule *s, const uint8_t *data, const lk_async *o,
                            uint64_t *last)
{
    for (uint64_t at = 0; at < s->count; at++) {
        lki_recorded_task *task = &s->tasks[at];
        if (!read_line(data + at * LINE, task))
            return fail_line(s, at, "is not \"TASK READS GROUP HASH\", each at its column");
        const char *why = why_impossible(task, at, o, last);
        if (why != NULL)
            return fail_line(s, at, why);
        last[task->group] = at + 1;
    }
    for (uint32_t g = 0; g < o->groups; g++)
        last[g] = UINT64_MAX;
    for (uint64_t at = s->count; at-- > 0;) {
        lki_recorded_task *task = &s->tasks[at];
        task->next              = last[task->group];
        last[task->group]       = at;
    }
    return LK_OK;
}

/* Fails if a task has two gradients.  A task that was begun last may be missing. */
static lk_status check_tasks(const lki_recorded_schedule *s, const lk_async *o)
{
    const uint64_t most = s->count + o->groups;
    uint8_t       *seen;
    lk_status      status = LK_OK;
    LK_TRY(LKI_NEW(&seen, most, "tasks of a schedule"));
    for (uint64_t at = 0; at < s->count && status == LK_OK; at++) {
        const uint64_t task = s->tasks[at].task;
        if (task >= most)
            status = fail_line(s, at, "too many tasks before this one are missing");
        else if (seen[task] != 0)
            status = fail_line(s, at, "the task has a gradient in an earlier line, too");
        else
            seen[task] = 1;
    }
    lki_free(seen);
    return status;
}

static lk_status read_file(lki_recorded_schedule *s, const lki_map *map, const lk_async *o,
                           const lki_recorded_run *run)
{
    char header[HEADER_MOST];
    s->header = write_header(header, o, run);
    if (map->bytes < s->header || memcmp(map->data, header, s->header) != 0) {
        const uint8_t *end = memchr(map->data, '\n', lki_min(map->bytes, HEADER_MOST));
        return lk_fail(LK_EMISMATCH, "%.500s is not a schedule of this run.  It begins with "
                                     "\"%.*s\" instead of \"%.*s\"", s->path,
                       (int)(end != NULL ? end - map->data : 0), (const char *)map->data,
                       (int)(strchr(header, '\n') - header), header);
    }
    s->count = (map->bytes - s->header) / LINE;
    LK_TRY(LKI_NEW(&s->tasks, s->count + 1, "a schedule"));
    uint64_t *last;
    LK_TRY(LKI_NEW(&last, o->groups, "groups of a schedule"));
    lk_status status = read_lines(s, map->data + s->header, o, last);
    lki_free(last);
    return status == LK_OK ? check_tasks(s, o) : status;
}

lk_status lki_recorded_open(lki_recorded_schedule *s, const lk_async *options,
                            const lki_recorded_run *run)
{
    const char *path = options->record != NULL ? options->record : options->replay;
    lki_map     map;
    *s = (lki_recorded_schedule){ .fd = -1 };
    LK_TRY(LKI_NEW(&s->path, strlen(path) + 1, "a path"));
    memcpy(s->path, path, strlen(path));
    if (options->record != NULL) {
        s->fd = open(s->path, O_RDWR | O_CLOEXEC);
        if (s->fd < 0)
            return fail_file(s->path, "opened");
    }
    LK_TRY(lki_map_open(&map, s->path));
    lk_status status = read_file(s, &map, options, run);
    lki_map_close(&map);
    return status;
}

void lki_recorded_close(lki_recorded_schedule *s)
{
    if (s->path != NULL && s->fd >= 0)
        (void)close(s->fd);
    lki_free(s->path);
    lki_free(s->tasks);
    *s = (lki_recorded_schedule){ .fd = -1 };
}
