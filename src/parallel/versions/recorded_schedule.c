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
#include "base/hash.h"
#include "base/memory.h"

enum { LINE = 49, SHARDS_LINE = LKI_CELLS_AT + 1, HEADER_MOST = 256 };

static lk_status fail_file(const char *path, const char *what)
{
    const int why = errno;
    return lk_fail(LK_EIO, "the schedule %.900s cannot be %s: %s%s", path, what, strerror(why),
                   why == ENOSPC ? "; free some space, and go on with the same file" : "");
}

static lk_status fail_moved(const char *path, bool there)
{
    return lk_fail(LK_EIO, "the schedule %.200s was moved or removed during the run, and %s; move "
                           "it back, and start the run again, which repeats what the schedule has",
                   path, there ? "another file is in its place" : "there is no such file now");
}

/* Writes the first two lines of the file. */
static size_t write_header(char out[HEADER_MOST], const lk_async *o, const lki_recorded_run *run)
{
    if (run->shards > 0)
        return (size_t)snprintf(out, HEADER_MOST,
                                "lockstep schedule 1: groups %u, shards %u, virtual workers %u, "
                                "seed %" PRIu64 "\n%12s %5s %16s, for each shard: age, place, "
                                "check\n", o->groups, run->shards, run->virtual_workers,
                                run->seed, "task", "group", "hash");
    return (size_t)snprintf(out, HEADER_MOST,
                            "lockstep schedule 1: groups %u, aggregate %u, virtual workers %u, "
                            "seed %" PRIu64 "%s\n%12s %12s %5s %16s\n",
                            o->groups, o->aggregate, run->virtual_workers, run->seed,
                            o->drops_late ? ", without late gradients" : "", "task", "reads",
                            "group", "hash");
}

/* Returns the length of the first line, as far as it can be printed. */
static int printable(const uint8_t *data, size_t bytes)
{
    const size_t most   = lki_min(bytes, HEADER_MOST);
    int          length = 0;
    while ((size_t)length < most && data[length] >= ' ' && data[length] < 127)
        length++;
    return length;
}

static lk_status fail_line(const char *path, uint64_t at, const char *what)
{
    return lk_fail(LK_EFORMAT, "%.900s, line %" PRIu64 ": %s; the file was changed by something "
                               "else than the run, and only the lines before this one can be "
                               "trusted",
                   path, at + 3, what);
}

/* Fails unless what follows the first `count` lines of gradients can be the beginning of a line
 * that was being written when the run was killed. */
static lk_status check_rest(const char *path, uint64_t count, const uint8_t *rest, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (rest[i] == '\0' || strchr("0123456789abcdef -", rest[i]) == NULL)
            return fail_line(path, count, memchr(rest, '\n', bytes) != NULL
                                              ? "it has another length than the lines before it"
                                              : "it is not the beginning of a line of a gradient");
    return LK_OK;
}

/* Fails unless the file begins with the header. */
static lk_status check_header(const char *path, const uint8_t *data, size_t bytes,
                              const char *header, size_t header_bytes)
{
    const size_t first = (size_t)(strchr(header, '\n') - header); /* bytes of the first line */
    if (bytes >= header_bytes && memcmp(data, header, header_bytes) == 0)
        return LK_OK;
    if (bytes > first && memcmp(data, header, first) == 0 && data[first] == '\r')
        return lk_fail(LK_EFORMAT, "%.900s, line 1 ends with a carriage return: the file was "
                                   "converted after the run; remove all of them, as with "
                                   "dos2unix", path);
    if (bytes < header_bytes && memcmp(data, header, bytes) == 0)
        return lk_fail(LK_EFORMAT, "%.900s has %zu bytes and no gradient: the file was cut within "
                                   "its first two lines", path, bytes);
    if (bytes > first && memcmp(data, header, first + 1) == 0)
        return lk_fail(LK_EFORMAT, "%.900s, line 2 is not \"%.*s\", the names of the columns: the "
                                   "file was changed after the run",
                       path, (int)(header_bytes - first - 2), header + first + 1);
    return lk_fail(LK_EMISMATCH, "%.500s is not a schedule of this run: it begins with \"%.*s\", "
                                 "and the schedule would with \"%.*s\"; give another file, or the "
                                 "options of the run that has written it",
                   path, printable(data, bytes), (const char *)data,
                   (int)first, header);
}

/* ---- Writing ----------------------------------------------------------------------------- */

size_t lki_recorded_line_bytes(uint32_t shards)
{
    return shards > 0 ? SHARDS_LINE + (size_t)shards * LKI_CELL : LINE;
}

uint64_t lki_recorded_hash(uint64_t before, uint64_t task, uint64_t reads, uint32_t group,
                           uint64_t gradient)
{
    const uint64_t words[] = { before, task, reads, group, gradient };
    return lki_xxh3(words, sizeof words);
}

static lk_status lock(int fd, const char *path)
{
    errno = lki_file_lock(fd);
    if (errno == EWOULDBLOCK)
        return lk_fail(LK_EINVAL, "another run is writing the schedule %.900s: give each run its "
                                  "own file", path);
    return errno == 0 ? LK_OK : fail_file(path, "locked");
}

/* Writes the header of a file that `may_be_new`, and removes an incomplete last line of `line`
 * bytes. */
static lk_status trim(const lki_recorded_schedule *s, const char *path, const char *header,
                      size_t line, bool may_be_new)
{
    const size_t bytes = strlen(header);
    const int    fd    = s->lock;

    lki_map     map;
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return lk_fail(LK_EINVAL, "the schedule %.900s must be a regular file", path);
    LK_TRY(lki_map_open(&map, path));
    const size_t    torn   = map.bytes > bytes ? (map.bytes - bytes) % line : 0;
    const bool      begins = may_be_new && map.bytes < bytes &&
                             memcmp(map.data, header, map.bytes) == 0;
    const size_t    end    = map.bytes - torn;
    lk_status       status = begins ? LK_OK
                                    : check_header(path, map.data, map.bytes, header, bytes);
    if (status == LK_OK && torn > 0)
        status = check_rest(path, (end - bytes) / line, (const uint8_t *)map.data + end, torn);
    lki_map_close(&map);
    if (status != LK_OK)
        return status;
    errno = ENOSPC; /* of a short write */
    if (begins && pwrite(fd, header, bytes, 0) != (ssize_t)bytes)
        return fail_file(path, "written");
    return torn == 0 || ftruncate(fd, (off_t)end) == 0 ? LK_OK : fail_file(path, "written");
}

lk_status lki_recorded_stays(const lki_recorded_schedule *s)
{
    struct stat open_one, now;
    if (fstat(s->fd, &open_one) != 0)
        return fail_file(s->path, "examined");
    if (stat(s->path, &now) != 0)
        return fail_moved(s->path, false);
    return now.st_dev == open_one.st_dev && now.st_ino == open_one.st_ino
               ? LK_OK
               : fail_moved(s->path, true);
}

/* The lock belongs to both descriptors, and lasts until both are closed. */
lk_status lki_recorded_inherit(lki_recorded_schedule *s, const lki_recorded_schedule *from)
{
    s->lock = fcntl(from->lock, F_DUPFD_CLOEXEC, 0);
    return s->lock >= 0 ? LK_OK : fail_file(from->path, "locked");
}

static lk_status open_and_lock(lki_recorded_schedule *s, const lk_async *options, bool goes_on)
{
    const int create = goes_on ? 0 : O_CREAT;
    if (!goes_on)
        s->lock = open(options->record, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    s->created = s->lock >= 0;
    if (!s->created)
        s->lock = open(options->record, O_RDWR | create | O_CLOEXEC, 0666);
    if (s->lock < 0)
        return goes_on && errno == ENOENT ? fail_moved(options->record, false)
                                          : fail_file(options->record, "opened");
    return lock(s->lock, options->record);
}

lk_status lki_recorded_prepare(lki_recorded_schedule *s, const lk_async *options,
                               const lki_recorded_run *run)
{
    char header[HEADER_MOST];
    (void)write_header(header, options, run);
    if (s->lock < 0)
        LK_TRY(open_and_lock(s, options, run->goes_on));
    return trim(s, options->record, header, lki_recorded_line_bytes(run->shards), !run->goes_on);
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

void lki_recorded_discard(const lki_recorded_schedule *schedule)
{
    if (schedule->created)
        (void)unlink(schedule->path);
}

lk_status lki_recorded_fail_write(const lki_recorded_schedule *schedule)
{
    return fail_file(schedule->path, "written");
}

lk_status lki_recorded_sync(const lki_recorded_schedule *schedule)
{
    return schedule->path == NULL || schedule->fd < 0 || fdatasync(schedule->fd) == 0
               ? LK_OK
               : fail_file(schedule->path, "written");
}

/* ---- Reading ----------------------------------------------------------------------------- */

lk_status lki_recorded_fail_line(const lki_recorded_schedule *s, uint64_t at, const char *what)
{
    return fail_line(s->path, at, what);
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

/* Finds the next gradient of the group of each gradient.  `last` is scratch. */
static void link_groups(const lki_recorded_schedule *s, const lk_async *o, uint64_t *last)
{
    for (uint32_t g = 0; g < o->groups; g++)
        last[g] = UINT64_MAX;
    for (uint64_t at = s->count; at-- > 0;) {
        lki_recorded_task *task = &s->tasks[at];
        task->next              = last[task->group];
        last[task->group]       = at;
    }
}

/* Reads all lines, and checks them.  `last` is scratch. */
static lk_status read_lines(lki_recorded_schedule *s, const uint8_t *data, const lk_async *o,
                            uint64_t *last)
{
    for (uint64_t at = 0; at < s->count; at++) {
        lki_recorded_task *task = &s->tasks[at];
        if (!read_line(data + at * LINE, task))
            return lki_recorded_fail_line(s, at, "it is not \"TASK READS GROUP HASH\", each at its "
                                                 "column");
        const char *why = why_impossible(task, at, o, last);
        if (why != NULL)
            return lki_recorded_fail_line(s, at, why);
        last[task->group] = at + 1;
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
            status = lki_recorded_fail_line(s, at, "too many tasks before this one are missing");
        else if (seen[task] != 0)
            status = lki_recorded_fail_line(s, at, "the task has a gradient in an earlier line, "
                                                   "too");
        else
            seen[task] = 1;
    }
    lki_free(seen);
    return status;
}

static int compare_tasks(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Returns how many of the `count` tasks, which are sorted, are below `task`. */
static uint64_t count_below(const uint64_t *sorted, uint64_t count, uint64_t task)
{
    uint64_t first = 0;
    while (count > 0) {
        const uint64_t half = count / 2;
        if (sorted[first + half] < task) {
            first += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return first;
}

/* Does what check_tasks() does, if late gradients were discarded: they have no line.  Counts
 * them. */
static lk_status count_dropped(lki_recorded_schedule *s)
{
    uint64_t *sorted, end = 0, missing = 0;
    lk_status status = LK_OK;
    LK_TRY(LKI_NEW(&sorted, s->count + 1, "tasks of a schedule"));
    for (uint64_t at = 0; at < s->count; at++)
        sorted[at] = s->tasks[at].task;
    qsort(sorted, s->count, sizeof *sorted, compare_tasks);
    for (uint64_t at = 0; at < s->count && status == LK_OK; at++) {
        const uint64_t task  = s->tasks[at].task;
        const uint64_t below = count_below(sorted, s->count, task);
        if (below + 1 < s->count && sorted[below + 1] == task)
            status = lki_recorded_fail_line(s, at, "the task has a gradient in another line, too");
        if (task < end)
            continue;
        s->tasks[at].dropped = (uint32_t)(task - below - missing);
        missing              = task - below;
        end                  = task + 1;
    }
    lki_free(sorted);
    return status;
}

static lk_status read_file(lki_recorded_schedule *s, const uint8_t *data, size_t bytes,
                           const lk_async *o, const lki_recorded_run *run)
{
    char header[HEADER_MOST];
    s->header = write_header(header, o, run);
    LK_TRY(check_header(s->path, data, bytes, header, s->header));
    s->shards = run->shards;
    s->line   = lki_recorded_line_bytes(run->shards);
    s->count  = (bytes - s->header) / s->line;
    const size_t end = s->header + s->count * s->line;
    LK_TRY(check_rest(s->path, s->count, data + end, bytes - end));
    LK_TRY(LKI_NEW(&s->tasks, s->count + 1, "a schedule"));
    uint64_t *last;
    LK_TRY(LKI_NEW(&last, o->groups, "groups of a schedule"));
    lk_status status = s->shards > 0 ? lki_recorded_read_shards(s, data + s->header, o)
                                     : read_lines(s, data + s->header, o, last);
    if (status == LK_OK)
        link_groups(s, o, last);
    lki_free(last);
    if (status != LK_OK)
        return status;
    return o->drops_late ? count_dropped(s) : check_tasks(s, o);
}

static lk_status keep_path(lki_recorded_schedule *s, const char *path)
{
    LK_TRY(LKI_NEW(&s->path, strlen(path) + 1, "a path"));
    memcpy(s->path, path, strlen(path));
    return LK_OK;
}

lk_status lki_recorded_take(lki_recorded_schedule *s, const lk_async *options,
                            const lki_recorded_run *run, const void *text, size_t bytes)
{
    LK_TRY(keep_path(s, options->record));
    return read_file(s, text, bytes, options, run);
}

lk_status lki_recorded_open(lki_recorded_schedule *s, const lk_async *options,
                            const lki_recorded_run *run)
{
    const char *path = options->record != NULL ? options->record : options->replay;
    lki_map     map;
    LK_TRY(keep_path(s, path));
    if (options->record != NULL) {
        s->fd = open(s->path, O_RDWR | O_CLOEXEC);
        if (s->fd < 0)
            return run->goes_on && errno == ENOENT ? fail_moved(s->path, false)
                                                   : fail_file(s->path, "opened");
    }
    LK_TRY(lki_map_open(&map, s->path));
    lk_status status = read_file(s, map.data, map.bytes, options, run);
    lki_map_close(&map);
    if (status == LK_OK && options->replay != NULL && options->steps * options->groups > s->count)
        return lk_fail(LK_EINVAL, "%.900s has the gradients of %" PRIu64 " steps, but the run has "
                                  "%" PRIu64 ": lower `steps`", path, s->count / options->groups,
                       options->steps);
    return status;
}

/* Returns the number of shards that the first line of a file names; 0 if it names none. */
static uint32_t shards_of(const lki_map *map)
{
    char     line[HEADER_MOST] = "";
    uint32_t shards            = 0;
    memcpy(line, map->data, lki_min(map->bytes, sizeof line - 1));
    return sscanf(line, "lockstep schedule 1: groups %*u, shards %9" SCNu32, &shards) == 1 ? shards
                                                                                          : 0;
}

lk_status lki_recorded_check(const lk_async *options, uint32_t virtual_workers, uint64_t seed)
{
    lki_recorded_schedule s   = LKI_RECORDED_CLOSED;
    lki_recorded_run      run = { .virtual_workers = virtual_workers, .seed = seed };
    lki_map               map;
    LK_TRY(lki_map_open(&map, options->replay));
    if (options->consistency == LK_CONSISTENCY_SHARD)
        run.shards = (uint32_t)lki_min(shards_of(&map), options->shards);
    else if (options->consistency == LK_CONSISTENCY_SPAN)
        run.shards = shards_of(&map);
    run.shards = options->consistency != LK_CONSISTENCY_MODEL && run.shards == 0 ? 1 : run.shards;
    lki_map_close(&map);
    const lk_status status = lki_recorded_open(&s, options, &run);
    lki_recorded_close(&s);
    return status;
}

void lki_recorded_close(lki_recorded_schedule *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    if (s->lock >= 0)
        (void)close(s->lock);
    lki_free(s->path);
    lki_free(s->tasks);
    lki_free(s->buffer);
    lki_free(s->cells);
    lki_free(s->ends);
    *s = LKI_RECORDED_CLOSED;
}
