/* parallel/recorded_schedule.h -- the schedule of a live asynchronous run, in a file.  Defined in
 * versions/recorded_schedule.c.
 *
 * The file is text.  Its first line names the numbers of the run that a schedule belongs to, and
 * the second one the columns.  Then each gradient has a line, in the order of application: its
 * task, the version that the task has read, the group, and the XXH3 hash of the gradient and of the
 * line before it.  So the hash of a line stands for all of the schedule up to it.
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
} lki_recorded_task;

/* An open file, and the gradients that it had when it was opened. */
typedef struct {
    char              *path;
    int                fd;
    int                lock;   /* of the rank that has prepared the file; else -1 */
    bool               created; /* by this rank */
    size_t             header; /* bytes before the first gradient */
    uint64_t           count;
    lki_recorded_task *tasks; /* [count] */
} lki_recorded_schedule;

#define LKI_RECORDED_CLOSED ((lki_recorded_schedule){ .fd = -1, .lock = -1 })

/* Returns true if the schedule is not simulated. */
static inline bool lki_is_live(const lk_async *options)
{
    return options->record != NULL || options->replay != NULL;
}

/* The numbers of a run, which its schedule depends on. */
typedef struct { uint32_t virtual_workers; uint64_t seed; } lki_recorded_run;

/* Creates the file of options->record if there is none, and removes an incomplete last line.
 * Locks the file until `out` is closed; LK_EINVAL if another run has locked it.  Called by one rank
 * of a host before lki_recorded_open(), with the same `out`.  A file of something else stays as it
 * is. */
LK_NODISCARD lk_status lki_recorded_prepare(lki_recorded_schedule *out, const lk_async *options,
                                            const lki_recorded_run *run);

/* Returns the hash of a line, after a line with the hash `before` (0: after none). */
uint64_t lki_recorded_hash(uint64_t before, uint64_t task, uint64_t reads, uint32_t group,
                           uint64_t gradient);

/* Opens and reads the file of options->record or, to read only, of options->replay.  `out` is
 * LKI_RECORDED_CLOSED, or comes from lki_recorded_prepare().  Fails with LK_EFORMAT if the file is
 * damaged, and with LK_EMISMATCH if it belongs to a run with other numbers. */
LK_NODISCARD lk_status lki_recorded_open(lki_recorded_schedule *out, const lk_async *options,
                                         const lki_recorded_run *run);
void                   lki_recorded_close(lki_recorded_schedule *schedule);

/* Writes gradient number `at`, so that it is in the file even if this process is killed. */
LK_NODISCARD lk_status lki_recorded_write(const lki_recorded_schedule *schedule, uint64_t at,
                                          const lki_recorded_task *task);

/* Removes the file if this rank has created it. */
void lki_recorded_discard(const lki_recorded_schedule *schedule);

/* Waits until the file is on the disk. */
LK_NODISCARD lk_status lki_recorded_sync(const lki_recorded_schedule *schedule);

#endif
