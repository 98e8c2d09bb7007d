/* parallel/features/onebit_testing.h -- crews that train with onebit-adam and onebit-lamb, for the
 * tests groups_onebit*_test.c. */
#ifndef LKI_PARALLEL_FEATURES_ONEBIT_TESTING_H
#define LKI_PARALLEL_FEATURES_ONEBIT_TESTING_H

#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE, .no_decay = true },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

enum { LEAVES = 8, GROUPS = 4, FREEZE = 3, STEPS = 8, BLOCK = 4096, SILENT = 40 };

/* An optimizer, and the one whose steps are those before the freeze. */
typedef struct {
    lk_optimizer optimizer, plain;
    double       beta2;
    uint64_t     start, after; /* of lk_exchange */
    uint32_t     freeze;       /* steps before the freeze */
    uint32_t     resumed_at[2]; /* 0: none */
} method;

static const method methods[] = {
    { { .kind = LK_ONEBIT_ADAM, .weight_decay = 0.01 }, { .kind = LK_ADAMW, .weight_decay = 0.01 },
      0.999, FREEZE + 1, 0, FREEZE, { 5, 0 } },
    { { .kind = LK_ONEBIT_ADAM, .weight_decay = 0.01, .beta2 = 0.5 },
      { .kind = LK_ADAMW, .weight_decay = 0.01, .beta2 = 0.5 },
      0.5, LK_START_AUTO, 3, 5, { 6, 3 } },
    { { .kind = LK_ONEBIT_LAMB, .weight_decay = 0.01 }, { .kind = LK_LAMB, .weight_decay = 0.01 },
      0.999, FREEZE + 1, 0, FREEZE, { 5, 2 } },
    { { .kind = LK_ONEBIT_LAMB, .weight_decay = 0.01, .beta2 = 0.5 },
      { .kind = LK_LAMB, .weight_decay = 0.01, .beta2 = 0.5 },
      0.5, LK_START_AUTO, 3, 5, { 4, 0 } },
};
enum { METHODS = sizeof methods / sizeof methods[0] };

static const method *now; /* the method of the current run */

static inline lk_exchange exchange_of(uint32_t groups)
{
    lk_exchange x = LK_EXCHANGE_INIT;
    x.groups      = groups;
    x.start       = now->start;
    x.auto_after  = now->after;
    return x;
}

/* Returns the factor of the gradients of a step.  Later ones are smaller, so that the second moment
 * is not stable at once. */
static inline float scale_of(uint32_t step)
{
    return now->start == LK_START_AUTO && step > 0 ? 0.97f : 1;
}

/* Makes a turn in which some elements have no gradient before the freeze. */
static inline void make_silent(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    for (uint32_t t = 0; t < LKT_PARAMS; t++) {
        const uint32_t param = LKT_PARAMS - 1 - t;
        const float   *value = lk_parallel_param(p, param);
        float         *grad  = lk_parallel_grad(p, 0, t);
        const size_t   from  = param == 0 && step < FREEZE ? SILENT : 0;
        for (size_t i = from; i < lk_shape_count(w->model[param].shape); i++)
            grad[i] += scale_of(step) * (lkt_noise((uint32_t)i, step * 100 + t,
                                                   turn.virtual_worker, 0) + 0.01f * value[i]);
        lk_parallel_grad_ready(p, 0, t);
    }
    lk_parallel_report(p, 0, (double)lkt_noise(turn.virtual_worker, step, 9, 0), 3, 3, 1);
}

static inline lkt_crew crew_of(const lk_exchange *x, uint32_t steps, uint32_t ranks, uint32_t hosts)
{
    lkt_crew w          = lkt_make_crew(model, ranks % 2 == 0 ? "zero1" : "ddp", LEAVES, ranks);
    w.steps             = steps;
    w.make              = make_silent;
    w.options.unused    = LK_UNUSED_ZERO;
    w.options.exchange  = x;
    w.options.optimizer = now->optimizer;
    w.options.clip_norm = 0;
    w.options.micro_count = 1;
    if (hosts > 1)
        w.hosts = (hosted){ .hosts = hosts, .each = ranks / hosts };
    return w;
}

#endif
