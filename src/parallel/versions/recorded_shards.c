/* recorded_shards.c -- the lines of a recorded schedule with shards.
 *
 * A line is checked so far that a replay of it cannot wait for ever: each task reads what tasks of
 * earlier lines have made.  Whether it is the line that was recorded is for the hashes to show.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "parallel/recorded_schedule.h"

enum { PLACE_AT = 7, PLACE_BYTES = LKI_CELL - PLACE_AT };

/* ---- Hashes ------------------------------------------------------------------------------ */

uint64_t lki_recorded_line_hash(uint64_t before, const lki_recorded_task *task, uint32_t shards,
                                const uint64_t *reads, uint64_t gradient)
{
    const uint64_t words[] = { before, task->task, task->group, gradient,
                               lki_xxh3(reads, shards * sizeof *reads) };
    return lki_xxh3(words, sizeof words);
}

uint64_t lki_recorded_order_hash(uint64_t before, uint64_t line, uint64_t place)
{
    const uint64_t words[] = { before, line, place };
    return lki_xxh3(words, sizeof words);
}

uint64_t lki_recorded_order_until(const lki_recorded_schedule *s, uint32_t groups, uint32_t shard,
                                  uint64_t end)
{
    uint64_t hash = 0;
    for (uint64_t place = 0; place < end; place++) {
        uint64_t at = place - place % groups;
        while (s->cells[at * s->shards + shard].place != place % groups)
            at++;
        hash = lki_recorded_order_hash(hash, s->tasks[at].hash, place);
    }
    return hash;
}

/* ---- Writing ----------------------------------------------------------------------------- */

lk_status lki_recorded_write_line(const lki_recorded_schedule *s, uint64_t at,
                                  const lki_recorded_task *task, uint32_t groups,
                                  const uint64_t *reads, const uint64_t *orders)
{
    char *out  = s->buffer;
    int   used = snprintf(out, s->line + 1, "%12" PRIu64 " %5u %016" PRIx64, task->task,
                          task->group, task->hash);
    LK_ASSERT(used == LKI_CELLS_AT);
    for (uint32_t k = 0; k < s->shards; k++) {
        char *cell = out + LKI_CELLS_AT + (size_t)k * LKI_CELL;
        used       = orders == NULL
                         ? snprintf(cell, LKI_CELL + 2, " %6" PRIu64 "    - ----", at - reads[k])
                         : snprintf(cell, LKI_CELL + 2, " %6" PRIu64 " %4u %04x", at - reads[k],
                                    (unsigned)(at % groups), (unsigned)(uint16_t)orders[k]);
        LK_ASSERT(used == LKI_CELL);
    }
    out[s->line - 1] = '\n';
    errno            = ENOSPC; /* of a short write */
    return pwrite(s->fd, out, s->line, (off_t)(s->header + at * s->line)) == (ssize_t)s->line
               ? LK_OK
               : lki_recorded_fail_write(s);
}

lk_status lki_recorded_write_place(const lki_recorded_schedule *s, uint64_t at, uint32_t shard,
                                   uint32_t place, uint16_t check)
{
    char        text[PLACE_BYTES + 16];
    const off_t where = (off_t)(s->header + at * s->line + LKI_CELLS_AT +
                                (size_t)shard * LKI_CELL + PLACE_AT);
    const int   bytes = snprintf(text, sizeof text, " %4u %04x", place, check);
    LK_ASSERT(bytes == PLACE_BYTES);
    errno = ENOSPC; /* of a short write */
    return pwrite(s->fd, text, PLACE_BYTES, where) == PLACE_BYTES ? LK_OK
                                                                  : lki_recorded_fail_write(s);
}

/* Gives the gradients that have none places in the order of a shard. */
static lk_status complete_shard(lki_recorded_schedule *s, uint32_t groups, uint32_t shard,
                                bool writes)
{
    uint64_t hash = lki_recorded_order_until(s, groups, shard, s->ends[shard]);
    for (uint64_t at = 0; at < s->count; at++) {
        lki_recorded_cell *cell = &s->cells[at * s->shards + shard];
        if (cell->place != LKI_NOT_PLACED)
            continue;
        hash  = lki_recorded_order_hash(hash, s->tasks[at].hash, s->ends[shard]);
        *cell = (lki_recorded_cell){ .age   = cell->age,
                                     .place = (uint16_t)(s->ends[shard]++ % groups),
                                     .check = (uint16_t)hash };
        if (writes)
            LK_TRY(lki_recorded_write_place(s, at, shard, cell->place, cell->check));
    }
    return LK_OK;
}

lk_status lki_recorded_complete(lki_recorded_schedule *s, uint32_t groups, bool writes)
{
    for (uint32_t k = 0; k < s->shards; k++)
        LK_TRY(complete_shard(s, groups, k, writes));
    return LK_OK;
}

/* ---- Reading ----------------------------------------------------------------------------- */

/* Reads a cell.  A place that was not written to its end does not count. */
static bool read_cell(const uint8_t *data, lki_recorded_cell *out)
{
    char     text[LKI_CELL + 1], end;
    unsigned place, check;
    memcpy(text, data, LKI_CELL);
    text[LKI_CELL] = '\0';
    *out           = (lki_recorded_cell){ .place = LKI_NOT_PLACED };
    if (text[0] != ' ' || text[PLACE_AT] != ' ' ||
        sscanf(text, "%6" SCNu32, &out->age) != 1)
        return false;
    if (memchr(text + PLACE_AT, '-', PLACE_BYTES) != NULL)
        return true;
    if (sscanf(text + PLACE_AT, "%4u %4x%c", &place, &check, &end) != 2 || place > 9999)
        return false;
    out->place = (uint16_t)place;
    out->check = (uint16_t)check;
    return true;
}

static bool read_line(const lki_recorded_schedule *s, const uint8_t *data, uint64_t at)
{
    char               text[LKI_CELLS_AT + 1], end;
    lki_recorded_task *task = &s->tasks[at];
    memcpy(text, data, LKI_CELLS_AT);
    text[LKI_CELLS_AT] = '\0';
    if (sscanf(text, "%12" SCNu64 " %5" SCNu32 " %16" SCNx64 "%c", &task->task, &task->group,
               &task->hash, &end) != 3 || data[s->line - 1] != '\n')
        return false;
    for (uint32_t k = 0; k < s->shards; k++)
        if (!read_cell(data + LKI_CELLS_AT + (size_t)k * LKI_CELL,
                       &s->cells[at * s->shards + k]))
            return false;
    return true;
}

/* The state of a shard while lines are read. */
typedef struct {
    uint64_t *last; /* [groups]: 1 + the last place of a group; 0: none */
    /* [groups]: 1 + the last line that has one of the first places of the step */
    uint64_t *until;
} shard_lines;

/* Reads the places of a shard in a step, whose lines are from `first` on, `count` of them.  Returns
 * false if they are not the first ones of the step, each once. */
static bool read_places(const lki_recorded_schedule *s, const lk_async *o, uint32_t shard,
                        uint64_t first, uint64_t count, uint64_t *until)
{
    uint64_t placed = 0, end = 0;
    memset(until, 0, o->groups * sizeof *until);
    for (uint64_t at = first; at < first + count; at++) {
        const uint32_t place = s->cells[at * s->shards + shard].place;
        if (place == LKI_NOT_PLACED)
            continue;
        if (place >= o->groups || until[place] != 0)
            return false;
        until[place] = at + 1;
        end          = lki_max(end, (uint64_t)place + 1);
        placed++;
    }
    if (placed > 0 && s->ends[shard] != first)
        return false; /* an earlier step is not complete */
    s->ends[shard] += placed;
    for (uint32_t place = 0; place < o->groups; place++)
        until[place] = until[place] == 0 ? UINT64_MAX
                       : place > 0       ? lki_max(until[place - 1], until[place])
                                         : until[place];
    return placed == end;
}

/* Returns what is wrong with what a task has read of a shard; NULL if nothing is.  Its step begins
 * with line `first`. */
static const char *why_impossible(const lki_recorded_schedule *s, uint64_t at, uint32_t shard,
                                  uint64_t first, const shard_lines *of)
{
    const lki_recorded_cell *cell = &s->cells[at * s->shards + shard];
    if (cell->age > at)
        return "the task reads a version before the first one";
    const uint64_t reads = at - cell->age;
    if (reads < of->last[s->tasks[at].group])
        return "the task reads a version that is older than the last gradient of its group";
    return reads > first && of->until[reads - first - 1] > at
               ? "the task reads a version that is made later"
               : NULL;
}

/* Checks the lines of a step for one shard. */
static lk_status check_step(const lki_recorded_schedule *s, const lk_async *o, uint32_t shard,
                            uint64_t first, uint64_t count, const shard_lines *of)
{
    if (!read_places(s, o, shard, first, count, of->until))
        return lki_recorded_fail_line(s, first, "in the step that begins here, gradients do not "
                                                "have the first places of a shard, each once");
    for (uint64_t at = first; at < first + count; at++) {
        const lki_recorded_cell *cell = &s->cells[at * s->shards + shard];
        const char              *why  = why_impossible(s, at, shard, first, of);
        if (why != NULL)
            return lki_recorded_fail_line(s, at, why);
        of->last[s->tasks[at].group] = cell->place == LKI_NOT_PLACED ? UINT64_MAX
                                                                     : first + cell->place + 1;
    }
    return LK_OK;
}

static lk_status check_shard(const lki_recorded_schedule *s, const lk_async *o, uint32_t shard,
                             const shard_lines *of)
{
    memset(of->last, 0, o->groups * sizeof *of->last);
    for (uint64_t first = 0; first < s->count; first += o->groups)
        LK_TRY(check_step(s, o, shard, first, lki_min(o->groups, s->count - first), of));
    return LK_OK;
}

/* Leaves out what a replay cannot apply: the lines of a step that is not complete. */
static void leave_out_rest(lki_recorded_schedule *s, const lk_async *o)
{
    for (uint32_t k = 0; k < s->shards; k++)
        s->count = lki_min(s->count, s->ends[k] - s->ends[k] % o->groups);
}

lk_status lki_recorded_read_shards(lki_recorded_schedule *s, const uint8_t *data,
                                   const lk_async *o)
{
    LK_TRY(LKI_NEW(&s->buffer, s->line + 2, "a line of a schedule"));
    LK_TRY(LKI_NEW(&s->ends, s->shards, "shards of a schedule"));
    LK_TRY(LKI_NEW(&s->cells, s->count * s->shards + 1, "a schedule"));
    for (uint64_t at = 0; at < s->count; at++) {
        if (!read_line(s, data + at * s->line, at))
            return lki_recorded_fail_line(s, at, "it is not \"TASK GROUP HASH\", and for each "
                                                 "shard \"AGE PLACE CHECK\", each at its column");
        if (s->tasks[at].group >= o->groups)
            return lki_recorded_fail_line(s, at, "there is no such group");
    }
    shard_lines of = { 0 };
    lk_status   status = LKI_NEW(&of.last, o->groups, "groups of a schedule");
    if (status == LK_OK)
        status = LKI_NEW(&of.until, o->groups, "groups of a schedule");
    for (uint32_t k = 0; k < s->shards && status == LK_OK; k++)
        status = check_shard(s, o, k, &of);
    lki_free(of.last);
    lki_free(of.until);
    if (status == LK_OK && o->replay != NULL)
        leave_out_rest(s, o);
    return status;
}
