/* plan_paper.c -- `lockstep plan --paper`: what others' formulas say of so many parameters.
 *
 * Model states and traffic by the ZeRO paper, traffic between hosts by FSDP's, DeepSpeed's
 * estimators; and a step's time, where what computing takes is known from elsewhere.
 */
#include <string.h>

#include "cli/plan.h"

enum { STAGES = 4 };
#define GIB ((double)(1 << 30))

static double state_bytes(const lk_optimizer *optimizer)
{
    return 4 + 4 * lk_optimizer_state_count(optimizer); /* with the FP32 weights */
}

/* A step of a stage, if what computing takes was given. */
static lk_status time_stage(const plan_options *o, double parameters, uint32_t stage,
                            lk_step_prediction *out)
{
    const lk_train_config *c     = &o->train.config;
    lk_step_model          model = {
                 .workers         = c->workers,
                 .hosts           = lki_plan_hosts(o),
                 .virtual_workers = c->virtual_workers > 0 ? c->virtual_workers : c->workers,
                 .stage           = stage,
                 .forward         = 1e-3 * o->forward_ms,
                 .backward        = 1e-3 * o->backward_ms,
                 .gradient_bytes  = o->gradient_bytes > 0 ? o->gradient_bytes : 2 * parameters,
                 .bucket_bytes    = (double)c->bucket_bytes,
                 .bandwidth       = o->rates.bandwidth,
                 .latency         = o->rates.latency,
    };
    return lk_step_predict(out, &model);
}

static bool is_timed(const plan_options *o)
{
    return o->forward_ms > 0 || o->backward_ms > 0;
}

/* Rows: stage, what is offloaded, whether each process builds the model. */
static const struct {
    const char *name;
    uint32_t    stage;
    lk_offload  offload;
    bool        whole;
} estimators[] = {
    { "zero2, offload optimizer", 2, LK_OFFLOAD_OPTIMIZER, true },
    { "zero2", 2, LK_OFFLOAD_NONE, true },
    { "zero3, offload all, zero.Init", 3, LK_OFFLOAD_ALL, false },
    { "zero3, offload all", 3, LK_OFFLOAD_ALL, true },
    { "zero3, offload optimizer, zero.Init", 3, LK_OFFLOAD_OPTIMIZER, false },
    { "zero3, offload optimizer", 3, LK_OFFLOAD_OPTIMIZER, true },
    { "zero3, zero.Init", 3, LK_OFFLOAD_NONE, false },
    { "zero3", 3, LK_OFFLOAD_NONE, true },
};

static void print_others(const plan_options *o, double parameters)
{
    uint32_t workers = o->train.config.workers, hosts = lki_plan_hosts(o), local = workers / hosts;
    if (workers % hosts != 0)
        return;
    if (hosts > 1) {
        lk_fsdp_traffic t = lk_fsdp_paper_traffic(2 * parameters, workers, local);
        printf("\nFSDP, GB that a worker sends: replicated %.6g, sharded %.6g; sharded inside %u "
               "and replicated, between hosts %.6g\n",
               t.replicated / 1e9, t.sharded / 1e9, local, t.hybrid / 1e9);
    }
    if (!(o->largest_layer > 0))
        return;
    printf("\n%-37s %14s %14s\n", "DeepSpeed's estimators", "a node, GiB", "a GPU, GiB");
    for (size_t i = 0; i < sizeof estimators / sizeof estimators[0]; i++) {
        lk_deepspeed_bytes b = lk_deepspeed_estimate(estimators[i].stage, estimators[i].offload,
                                                     estimators[i].whole, parameters,
                                                     o->largest_layer, hosts, local);
        printf("%-37s %14.2f %14.2f\n", estimators[i].name, b.cpu / GIB, b.gpu / GIB);
    }
}

static void print_paper(const plan_options *o, double parameters)
{
    static const char *const names[STAGES] = { "baseline", "zero1 (os)", "zero2 (os+g)",
                                               "zero3 (os+g+p)" };
    const lk_train_config   *c             = &o->train.config;
    double                   k             = state_bytes(&c->optimizer);
    printf("%.6g parameters, %u workers, K %g: model states of a worker (ZeRO, section 5)\n\n",
           parameters, c->workers, k);
    printf("%-16s %14s %14s%s%s\n", "", "GB", "elements sent",
           is_timed(o) ? "     step, ms efficiency" : "", o->memory > 0 ? "   largest model" : "");
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        double bytes = lk_zero_paper_bytes(stage, parameters, c->workers, k);
        printf("%-16s %14.4f %14.6g", names[stage], bytes / 1e9, (stage < 3 ? 2 : 3) * parameters);
        lk_step_prediction step;
        if (is_timed(o) && time_stage(o, parameters, stage, &step) == LK_OK)
            printf(" %12.3f %10.3f", 1e3 * step.seconds, step.efficiency);
        if (o->memory > 0)
            printf("   %.6g", o->memory / (bytes / parameters));
        printf("\n");
    }
    print_others(o, parameters);
}

static void print_paper_json(const plan_options *o, double parameters)
{
    const lk_train_config *c = &o->train.config;
    double                 k = state_bytes(&c->optimizer);
    printf("{\"parameters\": %.17g, \"workers\": %u, \"state_bytes\": %g, \"stages\": [",
           parameters, c->workers, k);
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        double bytes = lk_zero_paper_bytes(stage, parameters, c->workers, k);
        printf("%s{\"stage\": %u, \"bytes\": %.17g, \"elements_sent\": %.17g",
               stage > 0 ? ", " : "", stage, bytes, (stage < 3 ? 2 : 3) * parameters);
        lk_step_prediction step;
        if (is_timed(o) && time_stage(o, parameters, stage, &step) == LK_OK)
            printf(", \"step_ms\": %.6f, \"efficiency\": %.6f", 1e3 * step.seconds,
                   step.efficiency);
        if (o->memory > 0)
            printf(", \"largest\": %.17g", o->memory / (bytes / parameters));
        printf("}");
    }
    printf("]}\n");
}

/* The model is asked only if the number of its parameters was not given. */
int lki_plan_paper(plan_options *o)
{
    double parameters = o->parameters;
    if (o->train.config.workers == 0)
        return lki_usage_error(o->train.command, "--paper needs --workers N");
    if (parameters == 0) {
        lk_train_config config = o->train.config;
        lk_train_cost   cost;
        config.workers   = 1;
        lk_status status = lk_train_estimate(&config, 1, &cost);
        if (status != LK_OK)
            return lki_plan_fail(o, status);
        parameters = (double)cost.parameters;
    }
    lk_step_prediction step; /* what a stage cannot have, none can */
    lk_status          status = is_timed(o) ? time_stage(o, parameters, 0, &step) : LK_OK;
    if (status != LK_OK)
        return lki_plan_fail(o, status);
    if (o->json)
        print_paper_json(o, parameters);
    else
        print_paper(o, parameters);
    return 0;
}
