/* late_host.c -- the launcher of a late host, which replaces a host that the job has lost.
 *
 * The workers of a late host start with the ranks of the lost host and wait to enter, like
 * replacements (replace.c).  Replacements on other hosts are admitted by a launcher that is in the
 * group, but this host's launcher is not.  So this launcher informs node 0 when all its workers are
 * ready, and receives the members of every new group.  The host enters with the first group that
 * contains its workers (rebuild.c).  Until then a failure on this host does not affect other hosts.
 * If a worker of this host ends, all workers of this host are ended, and the other hosts continue.
 */
#include <stdio.h>

#include "launch/job/executor.h"

static uint32_t count_of(const lki_job *job, const lki_members *members)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < job->count; i++)
        count += lki_members_have(members, lki_rank_of_worker(job, i));
    return count;
}

void lki_late_host_open(lki_job *job)
{
    const lki_standing *standing = lki_rendezvous_standing(job->rendezvous);
    lki_roster          here     = job->roster;
    char                to[24]   = "";

    if (standing == NULL)
        return;
    job->outside  = true;
    job->standing = *standing;
    job->epoch    = standing->epoch;
    lki_control_follow(job->control, standing->epoch, standing->since);
    if (here.count > 1)
        (void)snprintf(to, sizeof to, " to %u", here.first + here.count - 1);
    lki_job_note(job, "the job is under way: this host takes the place of node %u, as rank%s %u%s, "
                 "when its workers are ready", lki_rendezvous_self(job->rendezvous),
                 here.count > 1 ? "s" : "", here.first, to);
}

bool lki_late_host_stays(lki_job *job, uint64_t epoch, const lki_members *members)
{
    if (job->outside && count_of(job, members) > 0)
        job->outside = false;
    if (!job->outside)
        return false;
    for (uint32_t rank = 0; rank < job->roster.world; rank++) {
        uint64_t *since = &job->standing.since[rank];
        bool      in    = lki_members_have(members, rank);
        *since          = !in ? 0 : *since != 0 ? *since : 1 + epoch;
    }
    job->epoch = epoch;
    lki_control_follow(job->control, epoch, job->standing.since);
    return true;
}

void lki_late_host_turn(lki_job *job)
{
    lki_saying ours = {.kind = LKI_SAY_GO_ON, .epoch = job->epoch, .admits = true};

    if (!job->outside)
        return;
    if ((job->over || job->executor->lost(job)) && job->ended < job->started)
        lki_job_fail(job);
    ours.entrants = lki_control_entrants(job->control);
    if (job->ready || count_of(job, &ours.entrants) < job->count)
        return;
    job->ready = true;
    job->executor->say(job, &ours);
}
