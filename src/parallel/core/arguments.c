/* arguments.c -- copies and checks the arguments with which a strategy is opened or estimated. */
#include "base/options.h"
#include "device/encoder.h"
#include "parallel/offload/offload.h"
#include "parallel/state.h"

lk_status lki_parallel_take(lk_parallel_options *out, const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options)
{
    static const char call[] = "lk_parallel_options";

    LK_TRY(lki_options_copy(out, sizeof *out, options, call));
    LK_TRY(lki_check_given(call, "states", out->states, out->state_count));
    LK_TRY(lki_check_given(call, "groups", out->groups, out->group_count));
    LK_TRY(lki_check_given(call, "terms", out->terms, out->term_count));
    LK_TRY(lki_check_given(call, "reads", out->reads, out->read_count));
    if (out->comm_dtype == LK_F16 && out->scaling.rule == LK_SCALE_AUTO)
        return lk_fail(LK_EINVAL, "`comm_dtype` F16 needs a loss scale, without which small "
                                  "gradients become 0: choose `scaling.rule`, LK_SCALE_NONE if the "
                                  "gradients need none, or `comm_dtype` BF16");
    return lki_check_given("lk_parallel", "params", params, param_count);
}

lk_status lki_parallel_check(const lk_parallel *parallel, const lk_parallel_options *options)
{
    if (options->virtual_workers == 0)
        return lk_fail(LK_EINVAL, "`virtual_workers` is 0; give V, at least the number of workers");
    if (options->virtual_workers < parallel->ranks)
        return lk_fail(LK_EINVAL,
                       "%u workers are more than the %u virtual workers; raise "
                       "`virtual_workers` or lower `workers`",
                       parallel->ranks, options->virtual_workers);
    if (!(options->clip_norm >= 0))
        return lk_fail(LK_EINVAL, "`clip_norm` is %g; give a positive norm, or 0 for none",
                       options->clip_norm);
    if (!(options->clip_value >= 0))
        return lk_fail(LK_EINVAL, "`clip_value` is %g; give a positive limit, or 0 for none",
                       options->clip_value);
    if (options->clip_value > 0 && options->clip_norm > 0)
        return lk_fail(LK_EINVAL, "give `clip_norm` or `clip_value`, not both");
    if (options->clip_value > 0 && options->optimizer.kind == LK_LARS)
        return lk_fail(LK_EINVAL, "lars needs the norms of unclipped gradients: use `clip_norm` "
                                  "instead of `clip_value`");
    if (options->comm_dtype != 0 && options->comm_dtype != LK_F32 &&
        !lki_rounds(options->comm_dtype))
        return lk_fail(LK_EINVAL,
                       "`comm_dtype`: gradients are sent as " LKI_ENCODER_NAMES "or F32, not as %s",
                       lk_dtype_name(options->comm_dtype));
    if (options->grad_algorithm < LK_TREE_AUTO || options->grad_algorithm > LK_TREE_LINEAR)
        return lk_fail(LK_EINVAL, "`grad_algorithm` is %d; there are auto, direct and linear",
                       (int)options->grad_algorithm);
    if (options->gather_dtype != 0 && options->gather_dtype != LK_F32 &&
        options->gather_dtype != LK_BF16 && options->gather_dtype != LK_I8)
        return lk_fail(LK_EINVAL,
                       "`gather_dtype`: parameters are read as F32, BF16 or I8, not as %s",
                       lk_dtype_name(options->gather_dtype));
    if (options->gather_dtype == LK_I8 && options->offload != NULL &&
        options->offloaded & LK_OFFLOADED_PARAMETERS)
        return lk_fail(LK_EUNSUPPORTED, "parameters in files are not converted: leave out "
                                        "`gather_dtype`, or store only the optimizer's state in "
                                        "files");
    if (options->keep_gathered && options->gather_dtype != LK_I8)
        return lk_fail(LK_EINVAL,
                       "`keep_gathered` keeps parameters as blocks of I8: give "
                       "`gather_dtype` LK_I8, or as many `unit_buffers` as there are units");
    if (options->buddies && !options->survives)
        return lk_fail(LK_EINVAL, "buddies store a lost host's shard for the survivors: set "
                                  "survives, too, or leave out buddies");
    if (options->survives && options->offload != NULL)
        return lk_fail(LK_EUNSUPPORTED, "a rank's file is lost with the rank: leave out survives, "
                                        "or offload");
    return lk_optimizer_check(&options->optimizer);
}
