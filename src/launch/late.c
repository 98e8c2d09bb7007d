/* late.c -- launchers of emulated hosts that do not run, or do not end with the others.
 *
 * One that is stopped is silent, and missed by the others.  Where none runs the one above looks at
 * them, and they are lost as if they had missed each other.  One that is killed when all has been
 * done has lost nothing: that a worker of it has ended well says so, if nobody else does.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "launch/family.h"
#include "launch/nodes.h"

static const double LATE_S = 0.5; /* who sleeps so much longer did not run himself */

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

/* Whether a worker has ended well, which its launcher has not said.  What stands in /proc/PID/stat
 * of it begins to count behind the name: the state comes first, the status is the 50th. */
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

/* Who has ended well has seen that all is done, where all leave together. */
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

/* Where the others have done all, nothing else would say it. */
void lki_family_end_late(lki_family *f)
{
    look_who_is_done(f);
    for (uint32_t i = 0; i < f->count && lki_family_complete(f) != NULL; i++)
        if (f->hosts[i].pid > 0 && !f->hosts[i].by_us)
            note_of_launcher(f, &f->hosts[i], "not ended with the others, and is killed");
    lki_family_kill(f);
}

/* One that has come late and is not in misses nobody. */
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

/* As soon as one runs it misses the others itself, after the same time. */
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
