/* own_gradients.c -- a hand-written model, made data-parallel: bring your own gradients.
 *
 * The model is logistic regression, with its gradient written out below, and does not depend on
 * workers.  Lockstep adds only the lines marked [n].  Run the program directly, or on any number of
 * workers; the weights have the same bits:
 *
 *     ./own_gradients
 *     lockstep run -n 3 ./own_gradients
 */
#include <stdio.h>
#include <string.h>

#include <lockstep/checkpoint.h>
#include <lockstep/launch.h>
#include <lockstep/parallel.h>

enum { FEATURES = 16, SAMPLES = 4096, BATCH = 64, VIRTUAL_WORKERS = 8, STEPS = 200 };
enum { WEIGHT, BIAS, PARAMS };
enum { BIAS_TERM, WEIGHT_TERM }; /* gradients are numbered from the last parameter to the first */

/* ---- Your model --------------------------------------------------------------------------- */

/* Generates sample i of an artificial data set: noisy pixels, labelled by the brighter half. */
static int make_sample(unsigned i, float x[FEATURES])
{
    unsigned state = i * 2654435761u + 12345u;
    float    left = 0, right = 0;
    for (int f = 0; f < FEATURES; f++) {
        state = state * 1664525u + 1013904223u;
        x[f]  = (float)(state >> 8) / 8388608.0f - 1.0f;
        if (f < FEATURES / 2)
            left += x[f];
        else
            right += x[f];
    }
    return left > right;
}

/* Adds the gradient of the squared error of a rational function that replaces the logistic function
 * and needs no libm. */
static double add_gradient(const float *weight, const float *bias, const float *x, int label,
                           float *weight_grad, float *bias_grad)
{
    float z = bias[0];
    for (int f = 0; f < FEATURES; f++)
        z += weight[f] * x[f];
    float scale = 1.0f + (z < 0 ? -z : z);
    float error = 0.5f + 0.5f * z / scale - (float)label;
    float slope = error / (scale * scale);
    for (int f = 0; f < FEATURES; f++)
        weight_grad[f] += slope * x[f];
    bias_grad[0] += slope;
    return (double)(error * error);
}

/* ---- Training on any number of workers ----------------------------------------------------- */

static lk_status train(lk_comm *comm, lk_parallel **out)
{
    static const lk_param params[PARAMS] = {
        [WEIGHT] = { .name  = "weight",
                     .shape = { 1, { FEATURES } },
                     .init  = LK_INIT_NORMAL,
                     .scale = 0.1f },
        [BIAS]   = { .name = "bias", .shape = { 1, { 1 } } },
    };
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = VIRTUAL_WORKERS,
                                    .seed            = 1,
                                    .optimizer       = { .kind = LK_SGD, .momentum = 0.9 } };
    lk_parallel        *p;
    lk_parallel_turn    turn;
    lk_step_result      result = { 0 };
    float               x[FEATURES];

    lk_status status = lk_parallel_open(out, comm, params, PARAMS, &options); /* [1] */
    if (status != LK_OK)
        return status;
    p = *out;
    for (unsigned step = 0; step < STEPS && status == LK_OK; step++) {
        status = lk_parallel_begin(p, step);                    /* [2] */
        while (status == LK_OK && lk_parallel_next(p, &turn)) { /* [3] */
            unsigned each  = BATCH / VIRTUAL_WORKERS;
            unsigned first = step * BATCH + turn.virtual_worker * each;
            double   loss  = 0;
            for (unsigned i = first; i < first + each; i++) {
                int label = make_sample(i % SAMPLES, x);
                loss += add_gradient(lk_parallel_param(p, WEIGHT), lk_parallel_param(p, BIAS), x,
                                     label, lk_parallel_grad(p, 0, WEIGHT_TERM),
                                     lk_parallel_grad(p, 0, BIAS_TERM));
            }
            lk_parallel_report(p, 0, loss, each, each, 0); /* [4] */
        }
        if (status == LK_OK)
            status = lk_parallel_finish(p, 0.5, &result); /* [5] */
        if (status == LK_OK && lk_comm_rank(comm) == 0 && (step + 1) % 50 == 0)
            printf("step %u  loss %.4f\n", step + 1, result.loss);
    }
    return status;
}

int main(void)
{
    lk_comm     *comm   = NULL;
    lk_parallel *p      = NULL;
    lk_status    status = lk_join(&comm); /* [6] */
    if (status == LK_OK)
        status = train(comm, &p);
    if (status == LK_OK && lk_comm_rank(comm) == 0) {
        lk_tensor weights[PARAMS] = {
            { "weight", LK_F32, { 1, { FEATURES } }, lk_parallel_param(p, WEIGHT) },
            { "bias", LK_F32, { 1, { 1 } }, lk_parallel_param(p, BIAS) },
        };
        char hex[65];
        lk_weights_hash(weights, PARAMS, hex);
        printf("weights %s\n", hex);
    }
    if (status == LK_OK)
        status = lk_barrier(comm); /* no rank leaves while rank 0 still reads */
    if (status != LK_OK) {
        fprintf(stderr, "own_gradients: %s\n", lk_error_last()->message);
        lk_comm_abort(comm);
    }
    lk_parallel_free(p);
    lk_comm_free(comm);
    return status != LK_OK;
}
