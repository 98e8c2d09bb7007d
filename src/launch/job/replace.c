/* replace.c -- starts new workers in place of lost ones.
 *
 * When a worker was lost and the group continues without it, another process is started with the
 * same rank.  The replacement asks to enter when it is ready (comm/join/rebuild.c), and the group
 * admits it between two steps.  A replacement that is not admitted, or is lost before it has
 * completed two steps, counts as failed.  After options->replacements failures in a row the
 * launcher starts no more replacements, because the program or the machine must be at fault.  A
 * replacement that still waits when no group member is left is ended.
 */
#include <signal.h>

#include "launch/job/faults.h"
#include "launch/job/job.h"

enum { EXIT_STOPPED = 75, LASTING_STEPS = 2 };

static bool is_running(const lki_worker *worker)
{
    return worker->pid > 0 && worker->order == 0;
}

static bool is_member(const lki_job *job, uint32_t i)
{
    return lki_control_is_member(job->control, lki_rank_of_worker(job, i));
}

static bool group_lives(const lki_job *job)
{
    uint32_t i = 0;
    while (i < job->count && !(is_running(&job->workers[i]) && is_member(job, i)))
        i++;
    return i < job->count;
}

/* Returns true if a worker was lost and the group continues without it. */
static bool is_lost(const lki_job *job, uint32_t i)
{
    const lki_worker *worker = &job->workers[i];
    bool              left   = worker->signal == 0 &&
                (worker->status == 0 || worker->status == EXIT_STOPPED);
    return worker->order != 0 && !left && !worker->given_up && !is_member(job, i);
}

/* Counts failed replacements in a row.  Returns true if another replacement may be started. */
static bool may_be_replaced(lki_job *job, uint32_t i)
{
    const lki_worker *worker = &job->workers[i];
    lki_rank_view     view;

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    bool lasted   = !worker->enters ||
                  (worker->entered && view.noted && view.step >= worker->since + LASTING_STEPS);
    job->replaced = lasted ? 1 : job->replaced + 1;
    return job->replaced <= job->options->replacements;
}

static void replace(lki_job *job, uint32_t i)
{
    if (may_be_replaced(job, i) && lki_job_start_again(job, i) == LK_OK) {
        lki_faults_forget(job, i);
        return;
    }
    job->workers[i].given_up = true;
    if (job->replaced > job->options->replacements)
        lki_job_note(job, "rank %u is not replaced any more, since the last %u in a row did not "
                     "get in or were lost at once; the others continue", lki_rank_of_worker(job, i),
                     job->options->replacements);
    else
        lki_job_note(job, "rank %u is not replaced: %s; the others continue",
                     lki_rank_of_worker(job, i), lk_error_last()->message);
}

static void dismiss(lki_job *job)
{
    for (uint32_t i = 0; i < job->count; i++)
        if (is_running(&job->workers[i]) && !job->workers[i].by_us) {
            job->workers[i].by_us = true;
            (void)kill(job->workers[i].pid, SIGKILL);
        }
}

/* Marks the replacements that are ready.  The group sees the mark, and admits these workers after
 * its current step. */
static void note_ready(lki_job *job)
{
    lki_members waiting = lki_control_entrants(job->control);
    char        who[LKI_WHO_BYTES];

    for (uint32_t i = 0; i < job->count; i++) {
        uint32_t rank = lki_rank_of_worker(job, i);
        if (!lki_members_have(&waiting, rank) || job->workers[i].waits)
            continue;
        job->workers[i].waits = true;
        lki_control_who(job->control, rank, who);
        lki_job_note(job, "%s is ready to enter", who);
    }
}

void lki_replace_turn(lki_job *job)
{
    if (job->options->replacements == 0 || lki_control_epoch(job->control) == 0 || job->outside)
        return;
    if (!group_lives(job)) {
        dismiss(job);
        return;
    }
    for (uint32_t i = 0; i < job->count && job->stop_signal == 0 && job->kill_at <= 0; i++)
        if (is_lost(job, i))
            replace(job, i);
    note_ready(job);
}

void lki_replace_begin(lki_job *job)
{
    uint64_t      step = 0;
    lki_rank_view view;

    for (uint32_t i = 0; i < job->count; i++) {
        lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
        step = view.noted && view.step > step && is_member(job, i) ? view.step : step;
    }
    for (uint32_t i = 0; i < job->count; i++)
        if (job->workers[i].enters && !job->workers[i].entered && is_member(job, i)) {
            job->workers[i].entered = true;
            job->workers[i].since   = step;
        }
}
