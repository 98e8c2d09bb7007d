/* parallel/recorded_schedule.h -- the schedule of a live asynchronous run, in a file.  Defined in
 * versions/recorded_schedule.c.
 *
 * The file is text.  Its first line names the numbers of the run that a schedule belongs to, and
 * the second one the columns.  Then each gradient has a line, in the order of application: its
 * task, the version that the task has read, the group, and the XXH3 hash of the gradient and of the
 * line before it.  So the hash of a line stands for all of the schedule up to it.
 *
 * With shards (lk_async.consistency) lines are in the order in which gradients have been computed.
 * A line has the hash in place of the version, and then three numbers for each shard: the number of
 * this line less the version that the task has read, the place of the gradient among those of its
 * step, and 16 bits of a hash of the order so far.  The last two are written when the shard is
 * about to apply the gradient; there are dashes until then.
 */
#ifndef LKI_PARALLEL_RECORDED_SCHEDULE_H
#define LKI_PARALLEL_RECORDED_SCHEDULE_H

#include "base/status.h"
#include "lockstep/parallel.h"

/* A gradient of a recorded schedule. */
typedef struct {
    uint64_t task, reads, hash;
    uint64_t next; /* number of the group's next gradient; UINT64_MAX: there is none */
    uint32_t group;
    /* with lk_async.drops_late: the number of tasks without a gradient between this one and the
     * largest number before */
    uint32_t dropped;
} lki_recorded_task;

/* The part of a line that is of a shard. */
typedef struct { uint32_t age; uint16_t place, check; } lki_recorded_cell;

#define LKI_NOT_PLACED UINT16_MAX

/* In a line with shards, where the cells begin, and the bytes of a cell. */
enum { LKI_CELLS_AT = 35, LKI_CELL = 17 };

/* An open file, and the gradients that it had when it was opened. */
typedef struct {
    char              *path;
    int                fd;
    int                lock;   /* of the rank that has prepared the file; else -1 */
    bool               created; /* by this rank */
    size_t             header; /* bytes before the first gradient */
    uint64_t           count;
    lki_recorded_task *tasks; /* [count] */
    /* The rest is of schedules with shards. */
    uint32_t           shards; /* else 0 */
    size_t             line;   /* bytes of a line */
    char              *buffer; /* of a line */
    lki_recorded_cell *cells;  /* [count * shards] */
    uint64_t          *ends;   /* [shards]: number of gradients that have a place */
} lki_recorded_schedule;

#define LKI_RECORDED_CLOSED ((lki_recorded_schedule){ .fd = -1, .lock = -1 })

/* Returns true if the schedule is not simulated. */
static inline bool lki_is_live(const lk_async *options)
{
    return options->record != NULL || options->replay != NULL;
}

/* The numbers of a run, which its schedule depends on. */
typedef struct {
    uint32_t virtual_workers, shards;
    uint64_t seed;
    bool     goes_on; /* after a loss: the file must be there, and is not created */
} lki_recorded_run;

/* Creates the file of options->record if there is none, unless run->goes_on, and removes an
 * incomplete last line.  Locks the file until `out` is closed; LK_EINVAL if another run has locked
 * it.  Called by one rank of a host before lki_recorded_open(), with the same `out`.  A file of
 * something else stays as it is. */
LK_NODISCARD lk_status lki_recorded_prepare(lki_recorded_schedule *out, const lk_async *options,
                                            const lki_recorded_run *run);

/* Fails with LK_EIO if the path of an open schedule no longer leads to the same file. */
LK_NODISCARD lk_status lki_recorded_stays(const lki_recorded_schedule *schedule);

/* Gives `out` the lock of a schedule that is closed later, before lki_recorded_prepare(). */
LK_NODISCARD lk_status lki_recorded_inherit(lki_recorded_schedule *out,
                                            const lki_recorded_schedule *from);

/* Returns the hash of a line, after a line with the hash `before` (0: after none). */
uint64_t lki_recorded_hash(uint64_t before, uint64_t task, uint64_t reads, uint32_t group,
                           uint64_t gradient);

/* Opens and reads the file of options->record or, to read only, of options->replay.  `out` is
 * LKI_RECORDED_CLOSED, or comes from lki_recorded_prepare().  Fails with LK_EFORMAT if the file is
 * damaged, with LK_EMISMATCH if it belongs to a run with other numbers, and with LK_EINVAL if a
 * replay has more steps than it. */
LK_NODISCARD lk_status lki_recorded_open(lki_recorded_schedule *out, const lk_async *options,
                                         const lki_recorded_run *run);

/* Reads a schedule that another host has in the file of options->record, and writes. */
LK_NODISCARD lk_status lki_recorded_take(lki_recorded_schedule *out, const lk_async *options,
                                         const lki_recorded_run *run, const void *text,
                                         size_t bytes);
void                   lki_recorded_close(lki_recorded_schedule *schedule);

/* Fails as lki_recorded_open() does with the file of options->replay, before there is a model.  The
 * number of shards is that which the file names.  `options` are complete. */
LK_NODISCARD lk_status lki_recorded_check(const lk_async *options, uint32_t virtual_workers,
                                          uint64_t seed);

/* Writes gradient number `at`, so that it is in the file even if this process is killed. */
LK_NODISCARD lk_status lki_recorded_write(const lki_recorded_schedule *schedule, uint64_t at,
                                          const lki_recorded_task *task);

/* Removes the file if this rank has created it. */
void lki_recorded_discard(const lki_recorded_schedule *schedule);

/* Writes gradient number `at` of a schedule with shards, before a shard applies it.  `reads` has
 * the versions that its task has read.  `orders` has the hashes of the orders of shards, if each
 * applies the gradient as number `at`; else NULL. */
LK_NODISCARD lk_status lki_recorded_write_line(const lki_recorded_schedule *schedule, uint64_t at,
                                               const lki_recorded_task *task, uint32_t groups,
                                               const uint64_t *reads, const uint64_t *orders);

/* Writes the place of gradient number `at` in the order of a shard. */
LK_NODISCARD lk_status lki_recorded_write_place(const lki_recorded_schedule *schedule, uint64_t at,
                                                uint32_t shard, uint32_t place, uint16_t check);

/* Gives all gradients of a schedule with shards places, in the order of lines after those that have
 * one.  Writes them to the file if `writes`. */
LK_NODISCARD lk_status lki_recorded_complete(lki_recorded_schedule *schedule, uint32_t groups,
                                             bool writes);

/* Returns the hash of a line with shards, as lki_recorded_hash() does. */
uint64_t lki_recorded_line_hash(uint64_t before, const lki_recorded_task *task, uint32_t shards,
                                const uint64_t *reads, uint64_t gradient);

/* Returns the hash of the order of a shard, after an order with the hash `before`, in which
 * gradient `place` is the one with hash `line`. */
uint64_t lki_recorded_order_hash(uint64_t before, uint64_t line, uint64_t place);

/* Returns the hash of the order of a shard up to place `end`. */
uint64_t lki_recorded_order_until(const lki_recorded_schedule *schedule, uint32_t groups,
                                  uint32_t shard, uint64_t end);

/* Reads the lines of a schedule with shards.  Defined in versions/recorded_shards.c, as are the
 * six above. */
LK_NODISCARD lk_status lki_recorded_read_shards(lki_recorded_schedule *schedule,
                                                const uint8_t *data, const lk_async *options);

/* Returns the bytes of a line. */
size_t lki_recorded_line_bytes(uint32_t shards);

/* Fails because of line `at` of the file. */
LK_NODISCARD lk_status lki_recorded_fail_line(const lki_recorded_schedule *schedule, uint64_t at,
                                              const char *what);

/* Fails because the file cannot be written. */
LK_NODISCARD lk_status lki_recorded_fail_write(const lki_recorded_schedule *schedule);

/* Waits until the file is on the disk. */
LK_NODISCARD lk_status lki_recorded_sync(const lki_recorded_schedule *schedule);

#endif
