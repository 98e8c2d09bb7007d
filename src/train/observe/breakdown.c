/* breakdown.c -- divides the time of steps among their parts.
 *
 * Spans (trace intervals) nest, and an inner span is recorded before the outer one.  The own time
 * of a span is its duration minus that of the spans directly inside it.  To find the inner spans,
 * finished spans are on a stack until their outer span ends.  At the end of a measured step its
 * sums are added to the report's sums.  The sums of the ranks are combined at the end of the run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sort.h"
#include "nn/model.h"
#include "tensor/exec.h"
#include "train/observe/observe.h"

enum { OPEN_MAX = 4096 }; /* maximum number of spans that no outer span has claimed yet */
#define PEAK_SECONDS 0.1
enum { PEAK_TRIES = 3 };

/* Nanoseconds by kind and type: of one step, or of all measured steps. */
typedef struct {
    uint64_t kinds[LKI_SPAN_KINDS];
    uint64_t forward[LK_STEP_TYPES_MAX], backward[LK_STEP_TYPES_MAX];
} sums;

struct lki_breakdown {
    const lk_model *model;
    uint32_t        type_count;
    const char     *types[LK_STEP_TYPES_MAX]; /* the last entry stands for all further types */
    uint8_t        *type_of;                  /* of each block */
    uint64_t        first, steps, measured;
    double         *seconds; /* of each measured step */
    uint64_t        timed;
    double         *times;   /* seconds of each step that was timed without spans */
    uint64_t        from;    /* end of the last step before the first measured step */
    uint64_t        loading; /* nanoseconds of loader threads since `from` */
    sums            step, all;
    uint32_t        open_count;
    lki_trace_span  open[OPEN_MAX];
};

lk_status lki_breakdown_open(lki_breakdown **out, const lk_model *model, uint64_t first,
                             uint64_t steps)
{
    lki_breakdown *breakdown = NULL;
    *out                     = NULL;
    LK_TRY(LKI_NEW(&breakdown, 1, "a report of steps"));
    breakdown->model = model;
    breakdown->first = first;
    breakdown->steps = steps;
    lk_status status = LKI_NEW(&breakdown->type_of, model->block_count, "a report of steps");
    if (status == LK_OK)
        status = LKI_NEW(&breakdown->seconds, steps + 1, "a report of steps");
    if (status == LK_OK)
        status = LKI_NEW(&breakdown->times, steps + 1, "a report of steps");
    if (status != LK_OK) {
        lki_breakdown_free(breakdown);
        return status;
    }
    for (size_t b = 0; b < model->block_count; b++) {
        const char *name = model->blocks[b].type->name;
        uint32_t    t    = 0;
        while (t < breakdown->type_count && strcmp(breakdown->types[t], name) != 0)
            t++;
        if (t == breakdown->type_count && t + 1 < LK_STEP_TYPES_MAX)
            breakdown->types[breakdown->type_count++] = name;
        else if (t == breakdown->type_count)
            breakdown->types[t] = "others";
        breakdown->type_of[b] = (uint8_t)t;
    }
    *out = breakdown;
    return LK_OK;
}

void lki_breakdown_free(lki_breakdown *breakdown)
{
    if (breakdown == NULL)
        return;
    lki_free(breakdown->type_of);
    lki_free(breakdown->seconds);
    lki_free(breakdown->times);
    lki_free(breakdown);
}

/* ---- Adding spans ------------------------------------------------------------------------ */

static void end_step(lki_breakdown *breakdown, const lki_trace_span *span)
{
    if (span->detail <= breakdown->first) {
        breakdown->from    = span->ended;
        breakdown->loading = 0;
    }
    if (span->detail > breakdown->first && breakdown->measured < breakdown->steps) {
        breakdown->seconds[breakdown->measured++] = 1e-9 * (double)(span->ended - span->begun);
        for (size_t k = 0; k < LKI_SPAN_KINDS; k++)
            breakdown->all.kinds[k] += breakdown->step.kinds[k];
        for (size_t t = 0; t < LK_STEP_TYPES_MAX; t++) {
            breakdown->all.forward[t] += breakdown->step.forward[t];
            breakdown->all.backward[t] += breakdown->step.backward[t];
        }
    }
    memset(&breakdown->step, 0, sizeof breakdown->step);
    breakdown->open_count = 0;
}

static void add_span(lki_breakdown *breakdown, const lki_trace_span *span)
{
    uint64_t alone = span->ended - span->begun;
    while (breakdown->open_count > 0 &&
           breakdown->open[breakdown->open_count - 1].begun >= span->begun) {
        const lki_trace_span *inner = &breakdown->open[--breakdown->open_count];
        alone -= inner->ended - inner->begun;
    }
    breakdown->step.kinds[span->kind] += alone;
    if (span->kind == LKI_SPAN_BLOCK_FORWARD)
        breakdown->step.forward[breakdown->type_of[span->detail]] += alone;
    if (span->kind == LKI_SPAN_BLOCK_BACKWARD)
        breakdown->step.backward[breakdown->type_of[span->detail]] += alone;
    if (span->kind == LKI_SPAN_STEP)
        end_step(breakdown, span);
    else if (breakdown->open_count < OPEN_MAX)
        breakdown->open[breakdown->open_count++] = *span;
}

void lki_breakdown_time(lki_breakdown *breakdown, double seconds)
{
    if (breakdown->timed < breakdown->steps)
        breakdown->times[breakdown->timed++] = seconds;
}

void lki_breakdown_add(lki_breakdown *breakdown, const lki_trace_span *spans, size_t count)
{
    for (size_t i = 0; i < count; i++)
        add_span(breakdown, &spans[i]);
}

void lki_breakdown_add_loads(lki_breakdown *breakdown, const lki_trace_span *spans, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (spans[i].begun >= breakdown->from)
            breakdown->loading += spans[i].ended - spans[i].begun;
}

/* ---- The report -------------------------------------------------------------------------- */

/* The sums that ranks exchange. */
typedef struct {
    double parts[LK_STEP_PART_COUNT];
    double forward[LK_STEP_TYPES_MAX], backward[LK_STEP_TYPES_MAX];
    double loading, peak, pss;
} account;

static lk_step_part part_of(lki_span_kind kind)
{
    switch (kind) {
    case LKI_SPAN_DATA: return LK_STEP_DATA;
    case LKI_SPAN_BLOCK_FORWARD: return LK_STEP_FORWARD;
    case LKI_SPAN_BLOCK_BACKWARD: return LK_STEP_BACKWARD;
    case LKI_SPAN_FORWARD:
    case LKI_SPAN_BACKWARD: return LK_STEP_BETWEEN;
    case LKI_SPAN_MERGE: return LK_STEP_MERGE;
    case LKI_SPAN_REDUCE: return LK_STEP_REDUCE;
    case LKI_SPAN_WAIT: return LK_STEP_WAIT;
    case LKI_SPAN_NORM: return LK_STEP_NORM;
    case LKI_SPAN_UPDATE: return LK_STEP_UPDATE;
    case LKI_SPAN_CONTROL: return LK_STEP_CONTROL;
    case LKI_SPAN_LOG: return LK_STEP_LOG;
    case LKI_SPAN_EVALUATE: return LK_STEP_EVALUATE;
    case LKI_SPAN_CHECKPOINT:
    case LKI_SPAN_HASH: return LK_STEP_CHECKPOINT;
    case LKI_SPAN_STEP:
    case LKI_SPAN_LOAD:
    case LKI_SPAN_WORK:
    case LKI_SPAN_KINDS: break;
    }
    return LK_STEP_UNACCOUNTED;
}

static double pss_bytes(void)
{
    char   line[128];
    double kib  = 0;
    FILE  *file = fopen("/proc/self/smaps_rollup", "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "Pss:", 4) == 0)
            kib = strtod(line + 4, NULL);
    (void)fclose(file);
    return 1024 * kib;
}

static account account_of(const lki_breakdown *breakdown, lk_exec *exec, lk_dtype precision)
{
    account mine  = { .pss = pss_bytes() };
    double  steps = breakdown->measured > 0 ? (double)breakdown->measured : 1;
    for (int k = 0; k < LKI_SPAN_KINDS; k++)
        mine.parts[part_of((lki_span_kind)k)] += 1e-9 * (double)breakdown->all.kinds[k] / steps;
    for (uint32_t t = 0; t < LK_STEP_TYPES_MAX; t++) {
        mine.forward[t]  = 1e-9 * (double)breakdown->all.forward[t] / steps;
        mine.backward[t] = 1e-9 * (double)breakdown->all.backward[t] / steps;
    }
    mine.loading = 1e-9 * (double)breakdown->loading / (steps + (double)breakdown->timed);
    for (int i = 0; i < PEAK_TRIES; i++) {
        double peak = lk_exec_peak(exec, precision, PEAK_SECONDS);
        mine.peak   = peak > mine.peak ? peak : mine.peak;
    }
    return mine;
}

static void fill_times(lki_breakdown *breakdown, lk_step_report *report)
{
    double  *times = breakdown->timed > 0 ? breakdown->times : breakdown->seconds;
    uint64_t n     = breakdown->timed > 0 ? breakdown->timed : breakdown->measured;
    report->steps  = n;
    for (uint64_t i = 0; i < n; i++)
        report->seconds += times[i];
    qsort(times, n, sizeof *times, lki_by_value);
    report->median  = n > 0 ? times[n / 2] : 0;
    report->fastest = n > 0 ? times[0] : 0;
    report->slowest = n > 0 ? times[n - 1] : 0;
}

static void fill_types(const lki_breakdown *breakdown, const lk_engine *engine,
                       lk_step_report *report)
{
    double samples = report->steps > 0 ? (double)report->samples / (double)report->steps : 0;

    report->type_count = breakdown->type_count;
    if (breakdown->types[LK_STEP_TYPES_MAX - 1] != NULL)
        report->type_count = LK_STEP_TYPES_MAX;
    for (uint32_t t = 0; t < report->type_count; t++)
        (void)snprintf(report->types[t].name, sizeof report->types[t].name, "%s",
                       breakdown->types[t]);
    for (uint32_t b = 0; b < breakdown->model->block_count; b++) {
        lk_step_blocks *type = &report->types[breakdown->type_of[b]];
        type->blocks++;
        type->flops += samples * lk_engine_flops(engine, b);
        report->flops += samples * lk_engine_flops(engine, b);
    }
}

lk_status lki_breakdown_report(lki_breakdown *breakdown, lk_comm *comm, lk_exec *exec,
                               const lk_engine *engine, lk_dtype precision, lk_step_report *report)
{
    uint32_t ranks = lk_comm_size(comm);
    account *all   = NULL, mine;

    fill_times(breakdown, report);
    fill_types(breakdown, engine, report);
    LK_TRY(LKI_NEW(&all, ranks, "a report of steps"));
    lk_status status = lk_barrier(comm); /* all ranks then measure their peaks at the same time */
    if (status == LK_OK) {
        mine   = account_of(breakdown, exec, precision);
        status = lk_all_gather(comm, &mine, all, sizeof mine);
    }
    for (uint32_t r = 0; status == LK_OK && r < ranks; r++) {
        for (uint32_t i = 0; i < LK_STEP_PART_COUNT; i++)
            report->parts[i] += all[r].parts[i] / ranks;
        for (uint32_t t = 0; t < report->type_count; t++) {
            report->types[t].forward += all[r].forward[t] / ranks;
            report->types[t].backward += all[r].backward[t] / ranks;
        }
        report->loading += all[r].loading / ranks;
        report->peak += all[r].peak;
        report->pss_bytes += (uint64_t)all[r].pss;
    }
    lki_free(all);
    return status;
}
