/* observe.c -- the trace of a session: opens its tracks, and drains them into trace file and
 * report. */
#include "train/observe/observe.h"

#include "base/file.h"
#include "base/memory.h"
#include "comm/trace.h"
#include "data/loader.h"
#include "tensor/exec.h"

enum {
    SPANS_A_BLOCK = 16, /* per turn: forward, backward and the time between blocks */
    SPANS_MIN     = 1 << 12,
    SPANS_MAX     = 1 << 20,
};

/* The duration below which only a part of the steps is traced, since clock calls would slow them
 * down. */
static const double SHORT_SECONDS = 1e-3;

enum { APART, TIMED, WAYS };

struct lki_observer {
    lki_trace      *trace;
    lki_trace_part *part;      /* NULL: no --trace */
    lki_breakdown  *breakdown; /* NULL: no report */
    uint32_t        loaders;   /* number of threads */
    uint64_t        samples[WAYS], tokens[WAYS];
    double          begun; /* start of the current step; 0: none yet */
    bool            brief; /* a step shorter than SHORT_SECONDS has occurred */
    int             way;   /* TIMED: the current step is only timed; APART: it is traced */
};

/* Returns the number of spans to allocate for two steps of this rank, within limits. */
static size_t spans_of(const lki_session *s)
{
    size_t turns = (size_t)s->count * s->micro_count;
    size_t spans = 2 * SPANS_A_BLOCK * turns * lk_model_block_count(s->model);
    return spans < SPANS_MIN ? SPANS_MIN : lki_min(spans, SPANS_MAX);
}

/* Attaches the trace to the loop's thread and its helpers. */
static void attach_loop(lki_session *s, lki_trace *trace)
{
    lki_exec_trace(s->exec, trace, LKI_TRACK_LOADERS + s->observer->loaders);
    lki_comm_trace(s->comm, lki_trace_track(trace, LKI_TRACK_LOOP));
}

static void attach(lki_session *s, lki_trace *trace)
{
    attach_loop(s, trace);
    if (trace != NULL && s->loader != NULL)
        lki_loader_trace(s->loader, trace, LKI_TRACK_LOADERS);
}

void lki_observe_loader(const lki_session *s)
{
    if (s->observer != NULL && s->loader != NULL)
        lki_loader_trace(s->loader, s->observer->trace, LKI_TRACK_LOADERS);
}

lk_status lki_observe_open(lki_session *s)
{
    const lk_train_config *c      = s->config;
    lki_observer          *self   = NULL;
    bool                   report = c->report != NULL;

    if (c->trace == NULL && !report)
        return LK_OK;
    LK_TRY(LKI_NEW(&self, 1, "a trace"));
    s->observer   = self;
    self->loaders = c->data.loader_threads > 0 ? c->data.loader_threads : 1;
    LK_TRY(lki_trace_open(&self->trace,
                          LKI_TRACK_LOADERS + self->loaders + lk_exec_threads(s->exec) - 1,
                          spans_of(s)));
    if (c->trace != NULL)
        LK_TRY(lki_trace_part_open(&self->part, c->trace, s->rank, lk_comm_host(s->comm, s->rank),
                                   self->loaders, s->model));
    if (report)
        LK_TRY(lki_breakdown_open(&self->breakdown, s->model, s->progress.start + c->warm_up,
                                  c->steps - s->progress.start));
    attach(s, self->trace);
    return LK_OK;
}

static void sink(void *context, uint32_t track, const lki_trace_span *spans, size_t count)
{
    lki_observer *self = context;
    if (self->part != NULL)
        lki_trace_part_add(self->part, track, spans, count);
    if (self->breakdown != NULL && track == LKI_TRACK_LOOP)
        lki_breakdown_add(self->breakdown, spans, count);
    else if (self->breakdown != NULL && track < LKI_TRACK_LOADERS + self->loaders)
        lki_breakdown_add_loads(self->breakdown, spans, count);
}

void lki_observe_begin(lki_session *s, uint64_t done)
{
    lki_observer *self = s->observer;
    if (self == NULL || self->breakdown == NULL || self->part != NULL)
        return;
    double now = lki_seconds(), took = now - self->begun;
    self->brief = self->brief || (self->begun > 0 && took < SHORT_SECONDS);
    if (self->way == TIMED)
        lki_breakdown_time(self->breakdown, took);
    self->begun = now;
    int next    = self->brief && self->way == APART && done > s->progress.start + s->config->warm_up
                      ? TIMED
                      : APART;
    if (next != self->way)
        attach_loop(s, next == APART ? self->trace : NULL);
    self->way = next;
}

void lki_observe_turn(const lki_session *s)
{
    if (s->observer != NULL && s->observer->way == APART && lki_trace_presses(s->observer->trace))
        lki_observe_drain(s);
}

void lki_observe_drain(const lki_session *s)
{
    if (s->observer == NULL || s->observer->way == TIMED)
        return;
    uint64_t begun = lki_trace_begin(lki_exec_track(s->exec));
    lki_trace_drain(s->observer->trace, sink, s->observer);
    lki_trace_end(lki_exec_track(s->exec), LKI_SPAN_LOG, 0, begun);
}

void lki_observe_step(const lki_session *s, const lki_step_record *record)
{
    if (s->observer == NULL || record->step <= s->progress.start + s->config->warm_up)
        return;
    s->observer->samples[s->observer->way] += record->samples;
    s->observer->tokens[s->observer->way] += record->tokens;
}

lk_status lki_observe_report(lki_session *s, uint64_t done)
{
    lki_observer  *self  = s->observer;
    lk_step_report other = { .steps = 0 }, *report = s->rank == 0 ? s->config->report : &other;
    if (s->config->report == NULL)
        return LK_OK;
    lki_observe_begin(s, done); /* later spans belong to no step */
    self->way = APART;
    int way   = self->samples[TIMED] > 0 ? TIMED : APART;
    *report   = (lk_step_report){ .samples = self->samples[way], .tokens = self->tokens[way] };
    lki_observe_drain(s);
    report->lost = lki_trace_lost(self->trace);
    return lki_breakdown_report(self->breakdown, s->comm, s->exec, s->engine, s->config->precision,
                                report);
}

lk_status lki_observe_close(lki_session *s)
{
    lki_observer *self   = s->observer;
    lk_status     status = LK_OK;

    if (self == NULL)
        return LK_OK;
    if (self->trace != NULL) {
        lki_observe_drain(s);
        lki_observe_drain(s); /* the first drain has itself recorded a span */
        attach(s, NULL);
        status = lki_trace_part_close(self->part, lki_trace_lost(self->trace));
    }
    lki_breakdown_free(self->breakdown);
    lki_trace_free(self->trace);
    lki_free(self);
    s->observer = NULL;
    return status;
}
