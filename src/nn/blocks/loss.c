/* loss.c -- the losses.  Softmax cross-entropy has one row of loss for each row of logits; mse,
 * huber and bce have one for each element.
 *
 * In training, forward replaces the logits by the gradient (softmax - onehot, unscaled), in the
 * pass that computes the loss.  Backward then does nothing.
 *
 * A block that contains the product for the logits never needs all logits at once.  Forward
 * processes chunks of rows, and does the backward work of a chunk immediately.
 *
 *      logits = x W'    loss, dlogits     dW += dlogits' x     dx = dlogits W, written over x
 *
 * Every element of dW is summed over the rows in order, and every other result belongs to one row,
 * so the bits are those of two separate blocks.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/half.h"
#include "nn/blocks/blocks.h"

static lk_status check_smoothing(const lk_plan *plan, float smoothing)
{
    if (!(smoothing >= 0 && smoothing < 1))
        return lk_plan_fail(plan, "label smoothing %g; at least 0 and below 1", (double)smoothing);
    return LK_OK;
}

static lk_status cross_entropy_plan(lk_plan *plan)
{
    const lk_cross_entropy_options *options = lk_plan_block(plan)->options;
    if (options != NULL) {
        LK_TRY(lki_plan_options(plan, sizeof *options));
        LK_TRY(check_smoothing(plan, options->smoothing));
    }
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

/* Returns the factor of the gradient that forward stores. */
static float loss_factor(const lk_block_call *call)
{
    return call->training ? call->loss_scale : 0;
}

static void weigh_row(lk_dtype dtype, size_t classes, uint32_t weight, void *row)
{
    float    *wide   = row;
    uint16_t *narrow = row;
    for (size_t i = 0; dtype == LK_F32 && i < classes; i++)
        wide[i] *= (float)weight;
    for (size_t i = 0; dtype == LK_BF16 && i < classes; i++)
        narrow[i] = lki_bf16_narrow(lki_bf16_widen(narrow[i]) * (float)weight);
}

/* Multiplies the gradients of rows first .. first + m - 1 by their weights, and rounds them again
 * if they are narrow.  A row of weight 0 becomes 0, whatever its logits are. */
static void weigh(const lk_block_call *call, size_t first, size_t m, size_t classes, void *logits)
{
    size_t bytes = classes * lk_dtype_bytes(call->dtype);
    for (size_t r = 0; call->training && call->weights != NULL && r < m; r++) {
        char    *row    = (char *)logits + r * bytes;
        uint32_t weight = call->weights[first + r];
        if (weight == 0)
            memset(row, 0, bytes);
        else if (weight > 1)
            weigh_row(call->dtype, classes, weight, row);
    }
}

static void cross_entropy_forward(const lk_block_call *call)
{
    const lk_cross_entropy_options *options = call->block->options;
    lk_shape                        x       = call->block->x[0];
    lki_softmax_xent(call->exec, call->dtype, call->samples * lki_rows(x), lki_width(x), call->y,
                     call->targets, call->loss, call->hit, loss_factor(call),
                     options != NULL && call->training ? options->smoothing : 0);
    weigh(call, 0, call->samples * lki_rows(x), lki_width(x), call->y);
}

static void loss_backward(const lk_block_call *call)
{
    LK_ASSERT(call->dx[0] == call->y);
}

const lk_block_type lk_block_cross_entropy = {
    .name     = "cross_entropy",
    .plan     = cross_entropy_plan,
    .forward  = cross_entropy_forward,
    .backward = loss_backward,
    .loss     = true,
    .bf16     = true,
    .by_position = true,
    .sums_parts = true,
};

/* ---- Losses of single elements ----------------------------------------------------------- */

static lk_status element_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    lk_shape x = lk_plan_block(plan)->x[0];
    if (x.rank == 0 || lk_shape_count(x) > INT32_MAX)
        return lk_plan_fail(plan, "it needs a row of numbers, not %s", lki_shape_describe(x).text);
    lk_plan_output(plan, x);
    return LK_OK;
}

static lk_status huber_plan(lk_plan *plan)
{
    const lk_huber_options *options = lk_plan_block(plan)->options;
    LK_TRY(lki_plan_options(plan, sizeof *options));
    if (!(options->delta > 0 && isfinite(options->delta)))
        return lk_plan_fail(plan, "its delta is %g; above 0", (double)options->delta);
    return element_plan(plan);
}

static void element_forward(const lk_block_call *call, lki_loss_kind kind, float delta)
{
    const lki_element_loss how = { .kind = kind, .delta = delta };
    size_t                 n   = lki_elements(call, call->block->x[0]);
    const void            *targets = call->targets; /* the bits of FP32 numbers */
    lki_element_losses(call->exec, call->dtype, &how, n, call->y, targets, call->loss, call->hit,
                       loss_factor(call));
    weigh(call, 0, n, 1, call->y);
}

static void mse_forward(const lk_block_call *call)
{
    element_forward(call, LKI_LOSS_MSE, 0);
}

static void huber_forward(const lk_block_call *call)
{
    const lk_huber_options *options = call->block->options;
    element_forward(call, LKI_LOSS_HUBER, options->delta);
}

static void bce_forward(const lk_block_call *call)
{
    element_forward(call, LKI_LOSS_BCE, 0);
}

#define ELEMENT_LOSS(name_, plan_)                                                               \
    const lk_block_type lk_block_##name_ = {                                                     \
        .name       = #name_,                                                                    \
        .plan       = plan_,                                                                     \
        .forward    = name_##_forward,                                                           \
        .backward   = loss_backward,                                                             \
        .loss       = true,                                                                      \
        .numbers    = true,                                                                      \
        .bf16       = true,                                                                      \
        .sums_parts = true,                                                                      \
    }

ELEMENT_LOSS(mse, element_plan);
ELEMENT_LOSS(huber, huber_plan);
ELEMENT_LOSS(bce, element_plan);

/* ---- Fused with the linear layer before it ---------------------------------------------- */

/* The maximum bytes of logits at a time.  A chunk packs the weight twice.  With GPT-2's vocabulary
 * and 667 rows per chunk, packing is about one percent of the chunk's time. */
#define LOGITS_BYTES ((size_t)128 << 20)

/* The rows of a chunk are a multiple of this, so that the chunks of a product of bf16 values over
 * the rows (decision 16) do not depend on the number of rows at a time. */
enum { ROWS_UNIT = 32 };

typedef struct {
    size_t       rows, in, classes, chunk;
    size_t       bytes; /* size of one logit */
    void        *logits;
    float        smoothing;
} head;

static size_t chunk_max(const lk_linear_cross_entropy_options *options, lk_dtype dtype)
{
    if (options->rows > 0)
        return lki_round_up(options->rows, ROWS_UNIT);
    return lki_max(ROWS_UNIT, LOGITS_BYTES / lk_dtype_bytes(dtype) / options->classes / ROWS_UNIT *
                                  ROWS_UNIT);
}

static lk_status linear_cross_entropy_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_linear_cross_entropy_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_block                        *block   = lk_plan_block(plan);
    const lk_linear_cross_entropy_options *options = block->options;
    lk_shape                               x       = block->x[0];

    if (x.rank == 0 || options->classes < 2 || options->classes > INT32_MAX ||
        lki_rows(x) > INT32_MAX)
        return lk_plan_fail(plan,
                            "it makes logits of 2 to %d classes from rows, not of %llu from %s",
                            INT32_MAX, (unsigned long long)options->classes,
                            lki_shape_describe(x).text);
    LK_TRY(check_smoothing(plan, options->smoothing));
    if (options->rows > INT32_MAX)
        return lk_plan_fail(plan, "%llu rows of logits at a time; at most %d",
                            (unsigned long long)options->rows, INT32_MAX);
    lk_shape weight = { 2, { options->classes, lki_width(x) } };
    if (options->shared != NULL)
        LK_TRY(lk_plan_param_shared(plan, options->shared, weight));
    else
        LK_TRY(lk_plan_param(plan, "weight", weight, LK_INIT_NORMAL, options->scale, false));
    x.rank--;
    lk_plan_output(plan, x);
    return LK_OK;
}

static void linear_cross_entropy_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                                         uint32_t samples, size_t *saved, size_t *scratch)
{
    const lk_linear_cross_entropy_options *options = block->options;
    size_t rows = lki_min(chunk_max(options, dtype), samples * lki_rows(block->x[0]));
    (void)exec;
    *saved   = 0;
    *scratch = rows * options->classes * lk_dtype_bytes(dtype);
}

/* Computes rows first .. first + m - 1.  The rows of x are in y. */
static void head_chunk(const lk_block_call *call, const head *h, size_t first, size_t m)
{
    void         *x      = (char *)call->y + first * h->in * h->bytes;
    lki_gemm_args logits = { .operands = call->dtype, .result = call->dtype, .transpose_b = true,
                             .m = m, .n = h->classes, .k = h->in, .a = x, .c = h->logits };
    lki_weight_of(call, 0, &logits);
    lki_gemm(call->exec, &logits);
    lki_softmax_xent(call->exec, call->dtype, m, h->classes, h->logits, call->targets + first,
                     call->loss + first, call->hit + first, loss_factor(call), h->smoothing);
    weigh(call, first, m, h->classes, h->logits);
    if (!call->training)
        return;
    lki_gemm_args weight = { .operands = call->dtype, .transpose_a = true,
                             .accumulate = first > 0 || !call->write[0], .m = h->classes,
                             .n = h->in, .k = m, .a = h->logits, .b = x,
                             .c = call->forward_grads[0] };
    if (weight.c != NULL)
        lki_gemm(call->exec, &weight);
    lki_gemm_args input = { .operands = call->dtype, .result = call->dtype, .m = m, .n = h->in,
                            .k = h->classes, .a = h->logits, .c = x };
    lki_weight_of(call, 0, &input);
    lki_gemm(call->exec, &input);
}

static void linear_cross_entropy_forward(const lk_block_call *call)
{
    const lk_linear_cross_entropy_options *options = call->block->options;
    head h = { .rows = call->samples * lki_rows(call->block->x[0]),
               .in = lki_width(call->block->x[0]), .classes = options->classes,
               .bytes = lk_dtype_bytes(call->dtype), .logits = call->scratch,
               .smoothing = call->training ? options->smoothing : 0 };
    size_t most = chunk_max(options, call->dtype), chunks = (h.rows + most - 1) / most;

    /* chunks of nearly equal size */
    h.chunk = lki_round_up((h.rows + chunks - 1) / chunks, ROWS_UNIT);
    for (size_t first = 0; first < h.rows; first += h.chunk)
        head_chunk(call, &h, first, lki_min(h.chunk, h.rows - first));
}

static lk_block_flops linear_cross_entropy_flops(const lk_block *block)
{
    const lk_linear_cross_entropy_options *options = block->options;
    double each = 2 * (double)lki_rows(block->x[0]) * (double)lki_width(block->x[0]) *
                  (double)options->classes;
    return (lk_block_flops){ .forward = each, .weights = each, .input = each };
}

const lk_block_type lk_block_linear_cross_entropy = {
    .name         = "linear_cross_entropy",
    .plan         = linear_cross_entropy_plan,
    .buffers      = linear_cross_entropy_buffers,
    .forward      = linear_cross_entropy_forward,
    .backward     = loss_backward,
    .loss         = true,
    .bf16         = true,
    .by_position  = true,
    .bf16_params  = 1,
    .flops        = linear_cross_entropy_flops,
    .params_unread= true,
    .writes_grads = true,
};
