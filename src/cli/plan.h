/* cli/plan.h -- what the parts of `lockstep plan` share: its options, and what was found out. */
#ifndef LKI_CLI_PLAN_H
#define LKI_CLI_PLAN_H

#include "cli/train.h"

typedef struct {
    train_options train; /* first: its table is part of ours */
    bool          json, paper, measure;
    double        memory;   /* of a host; under paper, of a worker */
    lk_rates      rates;
    uint32_t      most_workers;
    const char   *plot;

    /* of a model of which only sizes are known, or under paper */
    double   parameters, largest_layer, activation_bytes;
    uint32_t sample_tokens;

    double forward_ms, backward_ms, gradient_bytes; /* under paper */
} plan_options;

enum { PLAN_ROWS_MAX = 8, PLAN_POINTS_MAX = 32, PLAN_WHY_BYTES = 256, PLAN_REASON_BYTES = 512 };

/* A strategy. */
typedef struct {
    const char        *strategy;
    lk_train_cost      cost;
    double             whole, largest; /* bytes of a host; elements that would fit */
    lk_model_options   largest_model;  /* of a gpt that has so many the width, of an mlp ... */
    bool               larger_may_fit; /* than the largest: they cannot be planned */
    bool               fits;
    lk_step_model      model; /* if the step is timed */
    lk_step_prediction step;
} plan_row;

/* A strategy that cannot do what another does. */
typedef struct {
    const char *strategy;
    char        why[PLAN_REASON_BYTES];
} plan_refusal;

/* The chosen strategy with more or fewer workers. */
typedef struct {
    uint32_t           workers, hosts;
    bool               dealt; /* there are virtual workers for all: */
    lk_step_prediction each, same; /* the same batch for each worker; the same for all */
} plan_point;

typedef struct {
    plan_row     rows[PLAN_ROWS_MAX];
    uint32_t     row_count, chosen; /* chosen: row_count if none fits */
    plan_refusal refused[PLAN_ROWS_MAX];
    uint32_t     refused_count;
    bool         timed;
    double       flops;             /* of a step, if timed */
    char         why[PLAN_WHY_BYTES];
    plan_point   points[PLAN_POINTS_MAX];
    uint32_t     point_count;
    double       alone; /* seconds of the same batch on one worker */
} plan_table;

uint32_t lki_plan_hosts(const plan_options *options);

/* The exit status for what failed. */
int lki_plan_fail(const plan_options *options, lk_status status);

void lki_plan_print(const plan_options *options, const plan_table *plan);
void lki_plan_print_json(const plan_options *options, const plan_table *plan);

/* With --memory: the largest model that the row's strategy has room for. */
void lki_plan_largest(const plan_options *options, plan_row *row);

/* `--plot`: memory and efficiency in an SVG file.  The exit status. */
int lki_plan_plot(const plan_options *options, const plan_table *plan);

/* `--paper`.  The exit status. */
int lki_plan_paper(plan_options *options);

#endif
