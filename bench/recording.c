/* bench/recording.c -- the time that recording takes in a live asynchronous run of one worker.
 *
 *     recording [STEPS]      12; each of eight tasks
 *
 * Trains a small gpt with --async live, and its schedule recorded to a file in the current
 * directory, which is removed.  The functions that make and write a line of the schedule are
 * replaced by ones that call them and add up their time by the processor's clock of the thread:
 * the hash of the gradient, the hash of the line, and writing the line.  Prints the milliseconds of
 * processor time of a task, the microseconds of these three for each task, and their sum in percent
 * of the task; the first step does not count.  Reading the clock is part of these times.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "lockstep/train.h"
#include "parallel/versions/internal.h"
#include "usage.h"

enum { GROUPS = 8 };

typedef enum { GRADIENT, LINE, WRITE, PARTS } part;

/* One thread trains, so the replaced functions need no lock. */
static struct {
    double   seconds[PARTS];
    uint64_t tasks;
    double   begun, ended; /* when the last lines of the first step and of the run were written */
} counted;

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Replaced functions (recording.wrap) --------------------------------------------------- */

uint64_t __real_lki_gradient_hash(const lki_versions *versions, const lki_gradients *sums);
uint64_t __wrap_lki_gradient_hash(const lki_versions *versions, const lki_gradients *sums);
uint64_t __real_lki_line_hash(const lki_versions *versions, uint64_t at, uint64_t gradient);
uint64_t __wrap_lki_line_hash(const lki_versions *versions, uint64_t at, uint64_t gradient);
lk_status __real_lki_recorded_write(const lki_recorded_schedule *schedule, uint64_t at,
                                    const lki_recorded_task *task);
lk_status __wrap_lki_recorded_write(const lki_recorded_schedule *schedule, uint64_t at,
                                    const lki_recorded_task *task);

uint64_t __wrap_lki_gradient_hash(const lki_versions *versions, const lki_gradients *sums)
{
    const double   begun = now();
    const uint64_t hash  = __real_lki_gradient_hash(versions, sums);
    counted.seconds[GRADIENT] += now() - begun;
    return hash;
}

uint64_t __wrap_lki_line_hash(const lki_versions *versions, uint64_t at, uint64_t gradient)
{
    const double   begun = now();
    const uint64_t hash  = __real_lki_line_hash(versions, at, gradient);
    counted.seconds[LINE] += now() - begun;
    return hash;
}

/* Ends what is counted of a task.  Counting begins anew after the first step. */
lk_status __wrap_lki_recorded_write(const lki_recorded_schedule *schedule, uint64_t at,
                                    const lki_recorded_task *task)
{
    const double    begun  = now();
    const lk_status status = __real_lki_recorded_write(schedule, at, task);
    counted.ended = now();
    counted.seconds[WRITE] += counted.ended - begun;
    counted.tasks++;
    if (at + 1 == GROUPS) {
        memset(&counted, 0, sizeof counted);
        counted.begun = now();
    }
    return status;
}

/* ---- The run ------------------------------------------------------------------------------- */

static lk_status train(const char *schedule, uint64_t steps)
{
    lk_comm        *comm;
    lk_train_result result;
    lk_train_config config = { .struct_size     = sizeof config,
                               .model           = "gpt",
                               .data.source     = "synthetic:tokens=200000,vocab=256",
                               .model_options   = { .layers = 2, .heads = 4, .width = 192 },
                               .context         = 64,
                               .global_batch    = 128,
                               .micro_batch     = 4,
                               .virtual_workers = GROUPS,
                               .workers         = 1,
                               .threads         = 1,
                               .steps           = steps,
                               .schedule        = { .lr = 1e-3 },
                               .exchange.async  = { .mode   = LK_ASYNC_LIVE,
                                                    .record = schedule },
                               .checkpoint.resume_step = -1,
                               .elastic.duplicate = LK_DUPLICATE_OFF,
                               .quiet             = true };
    LK_TRY(lk_train_check(&config));
    LK_TRY(lk_comm_open_threads(&comm, 1, NULL));
    const lk_status status = lk_train_run(comm, &config, &result);
    lk_comm_free(comm);
    return status;
}

int main(int count, char **words)
{
    static const char *const names[PARTS] = { "hash of the gradient", "hash of the line",
                                              "writing the line" };
    check_arguments(count, words, 0, 1);
    const uint64_t steps = count > 1 ? strtoull(words[1], NULL, 10) : 12;
    char           schedule[64];
    double         sum = 0;
    (void)snprintf(schedule, sizeof schedule, "recording-%ld.schedule", (long)getpid());
    const lk_status status = train(schedule, steps < 2 ? 2 : steps);
    (void)unlink(schedule);
    if (status != LK_OK) {
        fprintf(stderr, "recording: %s\n", lk_error_last()->message);
        return 1;
    }
    const double tasks = (double)counted.tasks, seconds = counted.ended - counted.begun;
    printf("task %.3f ms\n", 1e3 * seconds / tasks);
    for (part p = 0; p < PARTS; p++) {
        printf("%s %.2f us\n", names[p], 1e6 * counted.seconds[p] / tasks);
        sum += counted.seconds[p];
    }
    printf("recording %.3f %%\n", 100 * sum / seconds);
    return 0;
}
