/* loss.c -- softmax cross-entropy: one row of loss for each row of logits.
 *
 * When training, forward leaves the gradient (softmax - onehot, unscaled) where the logits were,
 * in the pass over them that makes the loss; backward has nothing left to do.
 */
#include "nn/blocks/blocks.h"

static lk_status cross_entropy_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    lk_shape x = lk_plan_block(plan)->x[0];
    if (x.rank == 0 || lki_width(x) < 2 || lki_width(x) > INT32_MAX || lki_rows(x) > INT32_MAX)
        return lk_plan_fail(plan,
                            "it needs logits of at least 2 classes, not %s; change the classes",
                            lki_shape_describe(x).text);
    x.rank--;
    lk_plan_output(plan, x);
    return LK_OK;
}

static void cross_entropy_forward(const lk_block_call *call)
{
    lk_shape x = call->block->x[0];
    lki_softmax_xent(call->exec, call->samples * lki_rows(x), lki_width(x), call->y, call->targets,
                     call->loss, call->hit, call->training);
}

static void cross_entropy_backward(const lk_block_call *call)
{
    LK_ASSERT(call->dx[0] == call->y);
}

const lk_block_type lk_block_cross_entropy = {
    .name     = "cross_entropy",
    .plan     = cross_entropy_plan,
    .forward  = cross_entropy_forward,
    .backward = cross_entropy_backward,
    .loss     = true,
};
