/* estimate.c -- estimates the memory that a run needs on each of its hosts.
 *
 * The arithmetic is that of a run (train/loop/memory.c).  Here it gets a model without values. */

#include "base/memory.h"
#include "base/options.h"
#include "nn/model.h"
#include "plan/predict.h"
#include "tensor/exec.h"
#include "train/config.h"

/* Divides workers among hosts by the rule that divides virtual workers among workers. */
static lk_status deal(const lk_train_config *c, uint32_t hosts, uint32_t **sizes, uint32_t *most)
{
    if (hosts == 0 || hosts > c->workers)
        return lk_fail(LK_EINVAL, "%u hosts for %u workers: each has at least one; raise `workers`",
                       hosts, c->workers);
    LK_TRY(LKI_NEW(sizes, hosts, "hosts"));
    *most = 0;
    for (uint64_t h = 0; h < hosts; h++) {
        (*sizes)[h] = (uint32_t)((h + 1) * c->workers / hosts - h * c->workers / hosts);
        *most       = (*sizes)[h] > *most ? (*sizes)[h] : *most;
    }
    return LK_OK;
}

lk_status lki_pieces_of(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                        lki_grad_piece **out, uint32_t *count)
{
    lk_parallel_options options = LK_PARALLEL_OPTIONS_INIT;
    uint32_t           *sizes   = NULL, most, params;
    const lk_param     *param   = lk_model_params(model, &params);

    *out             = NULL;
    lk_status status = deal(c, hosts, &sizes, &most);
    if (status == LK_OK)
        status = lki_parallel_options_of(c, model, NULL, &options);
    if (status == LK_OK)
        status = lki_pieces_make(out, count, param, params, &options, sizes, hosts);
    lki_parallel_options_free(&options);
    lki_free(sizes);
    return status;
}

lk_status lki_model_alone(lk_model **out, lk_train_config *config, bool *evaluates)
{
    lk_dataset *dataset = NULL;

    *out = NULL;
    LK_TRY(lki_train_complete(config, false));
    lk_dataset_options data = lki_dataset_options(config);
    LK_TRY(lk_dataset_open(&dataset, config->data.source, &data));
    lk_model_options options = lki_model_options(config, lk_dataset_describe(dataset));
    lk_status        status  = lk_model_build(out, config->model, &options);
    if (evaluates != NULL)
        *evaluates = lk_dataset_describe(dataset)->validation_count > 0;
    lk_dataset_free(dataset);
    return status;
}

/* Estimates the turns that a run chooses.  If no size fits, estimates the one that takes the least,
 * which is the lowest limit with which the run would start. */
static lk_status estimate_turns(const lki_run_shape *shape, lk_train_cost *out)
{
    const size_t  limit = shape->config->host_memory;
    lk_train_cost other;

    LK_TRY(lki_run_cost(out, shape, lki_joint_largest(lki_joint_fitting(shape))));
    if (limit == 0 || lk_train_cost_bytes(out) <= limit)
        return LK_OK;
    uint32_t most = lki_joint_most(shape->config, shape->model, shape->exec);
    for (uint32_t joint = 2; joint <= most; joint *= 2) {
        LK_TRY(lki_run_cost(&other, shape, joint));
        if (lk_train_cost_bytes(&other) < lk_train_cost_bytes(out))
            *out = other;
    }
    return LK_OK;
}

static lk_status estimate(lk_train_config *config, uint32_t hosts, lk_train_cost *out)
{
    lki_run_shape shape = { .config = config, .hosts = hosts };
    uint32_t     *sizes = NULL, most;
    lk_model     *model = NULL;
    lk_exec      *exec  = NULL;

    lk_status status = lki_model_alone(&model, config, &shape.evaluates);
    if (status == LK_OK)
        status = deal(config, hosts, &sizes, &most);
    if (status == LK_OK)
        status = lk_exec_open(&exec, config->threads, config->isa);
    shape.model = model;
    shape.exec  = exec;
    shape.sizes = sizes;
    if (status == LK_OK)
        status = estimate_turns(&shape, out);
    lk_exec_free(exec);
    lki_free(sizes);
    lk_model_free(model);
    return status;
}

lk_status lk_train_estimate(lk_train_config *config, uint32_t hosts, lk_train_cost *out)
{
    lk_train_config mine;

    *out = (lk_train_cost){ 0 };
    LK_TRY(lki_options_copy(&mine, sizeof mine, config, "lk_train_config"));
    lk_status status = estimate(&mine, hosts, out);
    lki_options_return(config, &mine);
    return status;
}
