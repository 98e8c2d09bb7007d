/* host_watchdog.c -- handles launchers of emulated hosts that do not run, or do not end in time.
 *
 * The other launchers detect a stopped launcher by its silence.  If no launcher runs, the parent
 * process detects that, and treats all hosts as lost.  A launcher that is killed after the end of
 * the job does not count as a lost host.  If no other launcher reports the end of the job, a worker
 * that has exited with 0 proves that the job has ended.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "launch/family.h"
#include "launch/job/nodes.h"

static const double LATE_S = 0.5; /* seconds; a longer delay between two checks means that this
                                   * process did not run */

void lki_family_kill(const lki_family *f)
{
    for (uint32_t i = 0; i < f->count; i++)
        if (f->hosts[i].pid > 0) {
            f->hosts[i].by_us = true;
            (void)kill(f->hosts[i].pid, SIGKILL);
        }
}

static void note_of_launcher(const lki_family *f, const lki_emulated *h, const char *what)
{
    uint32_t i = (uint32_t)(h - f->hosts);
    char     text[256];

    (void)snprintf(text, sizeof text, "the launcher of host%u (node %u, pid %d) has %s", i, i,
                   (int)h->pid, what);
    if (f->options->note != NULL)
        f->options->note(f->options->note_context, text);
}

/* Returns true if a worker is a zombie with exit status 0 that its launcher has not reported.  In
 * /proc/PID/stat, the first field after the process name is the state, and the 50th is the exit
 * status. */
static bool has_ended_well(long pid)
{
    enum { STATUS = 50 };
    char path[40], text[1024], *at;

    (void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    at          = strrchr(text, ')');
    bool zombie = at != NULL && strncmp(at, ") Z", 3) == 0;
    for (int field = 0; field < STATUS && at != NULL; field++)
        at = strchr(at + 1, ' ');
    return zombie && at != NULL && atoi(at) == 0;
}

static bool any_worker_is_done(pid_t launcher)
{
    char path[64];
    long pid;
    bool done = false;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)launcher, (int)launcher);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    while (!done && fscanf(file, "%ld", &pid) == 1)
        done = has_ended_well(pid);
    (void)fclose(file);
    return done;
}

/* Returns a host that has ended successfully, or NULL.  With leave_together such a host proves that
 * the whole job is done. */
const lki_emulated *lki_family_complete(const lki_family *f)
{
    const lki_emulated *seen = NULL;

    for (uint32_t i = 0; i < f->count && f->options->leave_together && seen == NULL; i++) {
        const lki_emulated *h    = &f->hosts[i];
        bool            well = h->reported && !h->left && h->said.status == LK_OK;
        if (h->done || (well && !h->said.result.failed))
            seen = h;
    }
    return seen;
}

static void look_who_is_done(lki_family *f)
{
    for (uint32_t i = 0; i < f->count; i++)
        if (f->hosts[i].pid > 0 && !f->hosts[i].by_us)
            f->hosts[i].done = any_worker_is_done(f->hosts[i].pid);
}

/* Kills launchers that have not ended.  Prints a note if the job was complete, because nothing else
 * would report the kill. */
void lki_family_end_late(lki_family *f)
{
    look_who_is_done(f);
    for (uint32_t i = 0; i < f->count && lki_family_complete(f) != NULL; i++)
        if (f->hosts[i].pid > 0 && !f->hosts[i].by_us)
            note_of_launcher(f, &f->hosts[i], "not ended with the others, and is killed");
    lki_family_kill(f);
}

/* Returns true if a host can detect the silence of other hosts, which a host cannot do before it
 * has entered the job. */
static bool misses_others(const lki_emulated *h)
{
    return h->pid > 0 && !lki_is_stopped(h->pid) && (!h->late || h->met);
}

static bool nobody_runs(const lki_family *f)
{
    uint32_t i = 0;
    while (i < f->count && !misses_others(&f->hosts[i]))
        i++;
    return i == f->count;
}

static void end_stopped(lki_family *f, double after_s)
{
    char what[128];

    (void)snprintf(what, sizeof what, "been stopped (by SIGSTOP or a debugger) for %g s, no other "
                   "host is left to miss it, and it is killed", after_s);
    look_who_is_done(f);
    for (uint32_t i = 0; i < f->count; i++) {
        lki_emulated *h = &f->hosts[i];
        if (h->pid == 0 || h->stopped || !lki_is_stopped(h->pid))
            continue;
        note_of_launcher(f, h, what);
        h->stopped    = true;
        f->first_lost = f->first_lost != NULL ? f->first_lost : h;
        (void)kill(h->pid, SIGKILL);
    }
}

/* Kills all launchers if all have been stopped for too long.  If one launcher runs, that launcher
 * detects the stopped ones. */
void lki_family_look(lki_family *f)
{
    double now = lki_seconds(), passed = now - f->looked_at;
    double enough = 1e-3 * lki_nodes_silence_ms(f->options->timeout_ms);

    if (passed < LKI_FAMILY_LOOK_S)
        return;
    f->looked_at = now;
    if (f->kill_at > 0 || !nobody_runs(f))
        f->stopped_s = 0;
    else if (passed < LKI_FAMILY_LOOK_S + LATE_S)
        f->stopped_s += passed;
    if (f->stopped_s >= enough)
        end_stopped(f, enough);
}
