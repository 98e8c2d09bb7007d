/* custom_block.c -- a user-defined block type, in a model that trains on any number of workers.
 *
 * The block is a leaky ReLU after a learnable scale for each channel:
 *
 *     z = scale[c] * x        y = z > 0 ? z : slope * z
 *
 * Part one fills in the table that built-in blocks also use: plan() declares the inputs, output and
 * parameters, and forward() and backward() compute.  The engine provides all memory, and calls the
 * block for one micro-batch at a time, so the block does not depend on workers.  Part two builds a
 * small model with the block, and part three trains it.  The weights have the same bits in both
 * runs:
 *
 *     ./custom_block
 *     lockstep run -n 4 ./custom_block
 */
#include <stdio.h>
#include <string.h>

#include <lockstep/checkpoint.h>
#include <lockstep/launch.h>
#include <lockstep/nn.h>
#include <lockstep/parallel.h>

/* ---- Part one: the block ------------------------------------------------------------------ */

typedef struct {
    float slope; /* of the negative side */
} scaled_leaky_options;

static lk_status scaled_leaky_plan(lk_plan *plan)
{
    const lk_block             *block   = lk_plan_block(plan);
    const scaled_leaky_options *options = block->options;
    lk_shape                    x       = block->x[0];

    if (block->input_count != 1 || x.rank == 0)
        return lk_plan_fail(plan, "it reads one value with channels innermost");
    if (!(options->slope >= 0.0f && options->slope < 1.0f))
        return lk_plan_fail(plan, "slope %g is not in [0, 1)", (double)options->slope);
    lk_plan_output(plan, x);
    lk_plan_output_unread(plan); /* backward needs x, not y */
    return lk_plan_param(plan, "scale", (lk_shape){ 1, { x.dims[x.rank - 1] } }, LK_INIT_ONE, 0.0f,
                         true);
}

/* Returns the number of rows of a micro-batch: call->samples samples of the planned shape, one
 * after another. */
static size_t rows_of(const lk_block_call *call, size_t channels)
{
    return call->samples * lk_shape_count(call->block->y) / channels;
}

static size_t channels_of(const lk_block_call *call)
{
    lk_shape shape = call->block->y;
    return shape.dims[shape.rank - 1];
}

static void scaled_leaky_forward(const lk_block_call *call)
{
    const scaled_leaky_options *options  = call->block->options;
    const float                *x        = call->x[0];
    const float                *scale    = call->params[0];
    float                      *y        = call->y;
    size_t                      channels = channels_of(call), rows = rows_of(call, channels);

    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < channels; c++) {
            float z             = scale[c] * x[r * channels + c];
            y[r * channels + c] = z > 0.0f ? z : options->slope * z;
        }
    }
}

/* Computes gradients.  It adds to the parameters' gradients in the order of the rows, which
 * determines their bits.  dx is NULL if it is not needed.  If another block has already written dx,
 * this block adds to it. */
static void scaled_leaky_backward(const lk_block_call *call)
{
    const scaled_leaky_options *options  = call->block->options;
    const float                *x        = call->x[0];
    const float                *scale    = call->params[0], *dy = call->dy;
    float                      *dx       = call->dx[0];
    size_t                      channels = channels_of(call), rows = rows_of(call, channels);

    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < channels; c++) {
            size_t i  = r * channels + c;
            float  dz = dy[i] * (scale[c] * x[i] > 0.0f ? 1.0f : options->slope);
            call->grads[0][c] += dz * x[i];
            if (dx != NULL)
                dx[i] = (call->add[0] ? dx[i] : 0.0f) + dz * scale[c];
        }
    }
}

static const lk_block_type scaled_leaky = {
    .name     = "scaled_leaky",
    .plan     = scaled_leaky_plan,
    .forward  = scaled_leaky_forward,
    .backward = scaled_leaky_backward,
};

/* ---- Part two: a model with the block ----------------------------------------------------- */

enum { FEATURES = 2, HIDDEN = 32, CLASSES = 2, PARAMS_MAX = 8 };

/* Builds features -> linear -> scaled_leaky -> linear -> cross-entropy. */
static lk_status build_model(lk_model **out)
{
    const lk_linear_options    wide  = { .out = HIDDEN, .init = LK_INIT_UNIFORM, .scale = 0.7f };
    const lk_linear_options    last  = { .out = CLASSES, .init = LK_INIT_UNIFORM, .scale = 0.2f };
    const scaled_leaky_options leaky = { .slope = 0.1f };
    lk_value                   v     = 0; /* the model's input */

    lk_status status = lk_model_new(out, "rings", (lk_shape){ 1, { FEATURES } }, false);
    if (status == LK_OK)
        status = lk_model_add(&v, *out, &lk_block_linear, "wide", &wide, sizeof wide, &v, 1);
    if (status == LK_OK)
        status = lk_model_add(&v, *out, &scaled_leaky, "leaky", &leaky, sizeof leaky, &v, 1);
    if (status == LK_OK)
        status = lk_model_add(&v, *out, &lk_block_linear, "last", &last, sizeof last, &v, 1);
    if (status == LK_OK)
        status = lk_model_add(&v, *out, &lk_block_cross_entropy, "", NULL, 0, &v, 1);
    return status;
}

/* ---- Part three: training it ---------------------------------------------------------------- */

enum { BATCH = 128, VIRTUAL_WORKERS = 8, MICRO_BATCH = BATCH / VIRTUAL_WORKERS, STEPS = 300 };

/* All objects of this program, which are released in one place. */
typedef struct {
    lk_comm     *comm;
    lk_model    *model;
    lk_exec     *exec;
    lk_engine   *engine;
    lk_parallel *parallel;
    double       first_loss, last_loss;
} program;

/* Generates sample i: a point of the square, labelled by whether the point is inside a circle. */
static int32_t make_sample(uint32_t i, float x[FEATURES])
{
    uint32_t state  = i * 2654435761u + 97u;
    float    square = 0.0f;
    for (int f = 0; f < FEATURES; f++) {
        state = (state ^ (state >> 15)) * 2246822519u + 374761393u;
        x[f]  = (float)(state >> 8) / 8388608.0f - 1.0f;
        square += x[f] * x[f];
    }
    return square < 0.6f;
}

static lk_status open_all(program *self)
{
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = VIRTUAL_WORKERS,
                                    .seed            = 1,
                                    .optimizer       = { .kind = LK_SGD, .momentum = 0.9 } };
    lk_parallel_term    terms[PARAMS_MAX];
    uint32_t            param_count;

    lk_status status = lk_join(&self->comm);
    if (status == LK_OK)
        status = build_model(&self->model);
    if (status == LK_OK)
        status = lk_exec_open(&self->exec, 1, NULL);
    if (status == LK_OK)
        status = lk_engine_open(&self->engine, self->model, self->exec, LK_F32,
                                MICRO_BATCH, 1);
    if (status != LK_OK)
        return status;

    const lk_param     *params = lk_model_params(self->model, &param_count);
    const lk_grad_term *order  = lk_model_terms(self->model, &options.term_count);
    for (uint32_t t = 0; t < options.term_count; t++)
        terms[t] = (lk_parallel_term){ order[t].param, order[t].use };
    options.terms = terms;
    return lk_parallel_open(&self->parallel, self->comm, params, param_count, &options);
}

/* Called when the engine has finished a gradient, which may then be sent while backward
 * continues. */
static void grad_ready(void *user, uint32_t context, uint32_t term)
{
    program *self = user;
    lk_parallel_grad_ready(self->parallel, context, term);
}

/* Computes one turn of a virtual worker, forward and backward. */
static void run_turn(program *self, uint32_t step, lk_parallel_turn turn)
{
    const lk_hooks hooks = { .user = self, .grad_ready = grad_ready };
    const float   *params[PARAMS_MAX];
    float         *grads[PARAMS_MAX], x[MICRO_BATCH * FEATURES];
    int32_t        labels[MICRO_BATCH];
    uint32_t       param_count, term_count, slot = turn.virtual_worker * MICRO_BATCH;

    for (uint32_t i = 0; i < MICRO_BATCH; i++)
        labels[i] = make_sample(step * BATCH + slot + i, x + i * FEATURES);
    (void)lk_model_params(self->model, &param_count);
    (void)lk_model_terms(self->model, &term_count);
    for (uint32_t i = 0; i < param_count; i++)
        params[i] = lk_parallel_param(self->parallel, i); /* must be fetched in each step, because
                                                           * it may change */
    for (uint32_t t = 0; t < term_count; t++)
        grads[t] = lk_parallel_grad(self->parallel, 0, t);

    lk_walk walk = { .training = true, .seed = 1, .step = step, .params = params, .hooks = &hooks };
    lk_pass pass = {
        .samples = MICRO_BATCH, .first_slot = slot, .x = x, .targets = labels, .grads = grads
    };
    lk_engine_forward(self->engine, &walk, &pass, 1);
    lk_engine_backward(self->engine, &walk, &pass, 1);
    lk_parallel_report(self->parallel, 0, pass.loss_sum, pass.samples, pass.count, pass.hits);
}

static lk_status train(program *self)
{
    lk_status status = LK_OK;
    for (uint32_t step = 0; step < STEPS && status == LK_OK; step++) {
        lk_parallel_turn turn;
        lk_step_result   result = { 0 };

        status = lk_parallel_begin(self->parallel, step);
        while (status == LK_OK && lk_parallel_next(self->parallel, &turn))
            run_turn(self, step, turn);
        if (status == LK_OK)
            status = lk_parallel_finish(self->parallel, 0.2, &result);
        if (step == 0)
            self->first_loss = result.loss;
        self->last_loss = result.loss;
        if (status == LK_OK && lk_comm_rank(self->comm) == 0 && (step + 1) % 50 == 0)
            printf("step %u  loss %.4f  right %.0f%%\n", step + 1, result.loss,
                   100.0 * (double)result.hits / (double)result.count);
    }
    return status;
}

static void print_weights(const program *self)
{
    lk_tensor       tensors[PARAMS_MAX];
    char            hex[65];
    uint32_t        count;
    const lk_param *params = lk_model_params(self->model, &count);

    for (uint32_t i = 0; i < count; i++)
        tensors[i] = (lk_tensor){ params[i].name, LK_F32, params[i].shape,
                                  lk_parallel_param(self->parallel, i) };
    lk_weights_hash(tensors, count, hex);
    printf("weights %s\n", hex);
}

int main(void)
{
    program   self   = { 0 };
    lk_status status = open_all(&self);
    if (status == LK_OK)
        status = train(&self);
    if (status == LK_OK && lk_comm_rank(self.comm) == 0)
        print_weights(&self);
    if (status == LK_OK)
        status = lk_barrier(self.comm); /* no rank leaves while rank 0 still reads */
    if (status != LK_OK) {
        fprintf(stderr, "custom_block: %s\n", lk_error_last()->message);
        lk_comm_abort(self.comm);
    }
    bool learned = self.last_loss < self.first_loss / 2;
    if (status == LK_OK && !learned)
        fprintf(stderr, "custom_block: the loss went from %.4f to %.4f only\n", self.first_loss,
                self.last_loss);
    lk_parallel_free(self.parallel);
    lk_engine_free(self.engine);
    lk_exec_free(self.exec);
    lk_model_free(self.model);
    lk_comm_free(self.comm);
    return status != LK_OK || !learned;
}
