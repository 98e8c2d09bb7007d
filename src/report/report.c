/* report.c -- the runs of a page: opens their logs and manifests, and follows them. */
#include "lockstep/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "lockstep/checkpoint.h"
#include "report/page.h"

enum { SAVED_MAX = 1000 }; /* manifests that are read of a run, the newest ones */

/* ---- One run ------------------------------------------------------------------------------- */

static lk_status add_saved(lki_report_run *run, uint64_t step)
{
    char           name[LKI_STEP_NAME_BYTES], path[LKI_PATH_BYTES];
    lk_checkpoint *checkpoint;
    lki_step_name(name, step);
    LK_TRY(lki_directory_join(path, run->directory, name));
    if (lk_checkpoint_open_manifest(&checkpoint, path, NULL, 0) != LK_OK)
        return LK_OK; /* damaged, or just being removed */
    const lk_checkpoint_info *info  = lk_checkpoint_describe(checkpoint);
    lki_saved_weights        *saved = &run->saved[run->saved_count++];
    saved->step                     = step;
    (void)snprintf(saved->weights, sizeof saved->weights, "%s", info->weights);
    json_decref(run->config);
    run->config = json_loads(info->config, 0, NULL);
    lk_checkpoint_free(checkpoint);
    return LK_OK;
}

/* Reads the manifests of a run, from the oldest to the newest. */
static lk_status read_saved(lki_report_run *run)
{
    uint64_t *steps = NULL;
    size_t    count = 0;
    if (run->directory == NULL)
        return LK_OK;
    LK_TRY(lki_steps_list(&steps, &count, run->directory));
    lki_free(run->saved);
    run->saved       = NULL;
    run->saved_count = 0;
    lk_status status = LKI_NEW(&run->saved, count + 1, "checkpoints of a run");
    for (size_t i = lki_min(count, SAVED_MAX); i-- > 0 && status == LK_OK;)
        status = add_saved(run, steps[i]);
    lki_free(steps);
    return status;
}

static lk_status copy_text(char **out, const char *text)
{
    *out = strdup(text);
    return *out != NULL ? LK_OK : lk_fail(LK_ENOMEM, "a path");
}

static lk_status open_target(lki_report_run *run, const lki_target *target)
{
    if (target->log[0] == '\0')
        return lki_no_log(target->path);
    LK_TRY(copy_text(&run->path, target->path));
    if (target->step_count > 0)
        LK_TRY(copy_text(&run->directory, target->path));
    LK_TRY(lki_run_log_open(&run->log, target->log));
    return read_saved(run);
}

static lk_status open_run(lki_report_run *run, const char *path)
{
    lki_target target;
    LK_TRY(lki_target_find(&target, path));
    lk_status status = open_target(run, &target);
    lki_target_free(&target);
    return status;
}

static void close_run(lki_report_run *run)
{
    lki_run_log_free(run->log);
    json_decref(run->config);
    lki_free(run->saved);
    free(run->directory);
    free(run->path);
}

/* ---- The report ---------------------------------------------------------------------------- */

lk_status lk_report_open(lk_report **out, const lk_report_options *options)
{
    lk_report_options o;
    lk_report        *report = NULL;
    *out                     = NULL;
    LK_TRY(lki_options_copy(&o, sizeof o, options, "lk_report_options"));
    if (o.run_count == 0)
        return lk_fail(LK_EINVAL, "`runs` is empty: a page needs at least one run");
    LK_TRY(LKI_NEW(&report, 1, "a report"));
    lk_status status = LKI_NEW(&report->runs, o.run_count, "runs of a report");
    if (status == LK_OK && o.flight != NULL)
        status = copy_text(&report->flight, o.flight);
    for (; status == LK_OK && report->run_count < o.run_count; report->run_count++) {
        status = open_run(&report->runs[report->run_count], o.runs[report->run_count]);
        if (status != LK_OK)
            close_run(&report->runs[report->run_count]);
        if (status != LK_OK)
            break;
    }
    if (status != LK_OK) {
        lk_report_free(report);
        return status;
    }
    *out = report;
    return LK_OK;
}

void lk_report_free(lk_report *report)
{
    if (report == NULL)
        return;
    for (size_t i = 0; i < report->run_count; i++)
        close_run(&report->runs[i]);
    lki_free(report->runs);
    free(report->flight);
    free(report->text);
    lki_free(report);
}

lk_status lk_report_update(lk_report *report, bool *changed)
{
    *changed = false;
    for (size_t i = 0; i < report->run_count; i++) {
        bool grown;
        LK_TRY(lki_run_log_update(report->runs[i].log, &grown));
        if (grown)
            LK_TRY(read_saved(&report->runs[i]));
        *changed = *changed || grown;
    }
    report->number += *changed;
    return LK_OK;
}

lk_status lk_report_page(lk_report *report, const char **text, size_t *bytes)
{
    free(report->text);
    report->text = NULL;
    LK_TRY(lki_page_make(report, false, &report->text, bytes));
    *text = report->text;
    return LK_OK;
}
