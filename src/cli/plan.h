/* cli/plan.h -- declarations that the files of `lockstep plan` share: options and printing. */
#ifndef LKI_CLI_PLAN_H
#define LKI_CLI_PLAN_H

#include "cli/train.h"
#include "lockstep/plan.h"

typedef struct {
    train_options         train; /* first member, as train's table has offsets in it */
    lk_train_plan_options plan;
    bool                  json;

    /* A model given by its sizes. */
    double   parameters, largest_layer, activation_bytes;
    uint32_t sample_tokens;
} plan_options;

void lki_plan_print(const plan_options *options, const lk_train_plan *plan);
void lki_plan_print_json(const plan_options *options, const lk_train_plan *plan);

#endif
