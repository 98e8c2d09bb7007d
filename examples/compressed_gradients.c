/* compressed_gradients.c -- gradients that are sent in fewer bytes, with the same bits anywhere.
 *
 * The model is a matrix that learns to multiply as another matrix does.  Its virtual workers are
 * divided into groups, which exchange compressed gradients.  The weights depend on the compressor
 * and on the number of groups, and not on the number of workers or hosts:
 *
 *     ./compressed_gradients powersgd 4
 *     lockstep run -n 3 ./compressed_gradients powersgd 4
 *     lockstep run -n 4 --hosts 2 ./compressed_gradients powersgd 4
 *
 * Compressors: powersgd, topk, randomk, sign, terngrad, qsgd, vote; none sends whole gradients.
 * The second argument is the number of groups: 1, 2, 4 or 8.  The third one is the feedback: ef14,
 * off, dgc, signum or ef21; the default is that of the compressor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/checkpoint.h>
#include <lockstep/launch.h>
#include <lockstep/parallel.h>

enum { ROWS = 48, COLS = 64, EACH = 4, VIRTUAL_WORKERS = 8, STEPS = 300 };

/* ---- Your model --------------------------------------------------------------------------- */

/* Returns number `i` of a sequence in [-1, 1). */
static float number(unsigned i)
{
    unsigned state = i * 2654435761u + 12345u;
    state ^= state >> 15;
    state = state * 2246822519u;
    state ^= state >> 13;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

/* Adds the gradient of the squared error of one sample to `grad`, and returns the error. */
static double add_gradient(const float *weight, unsigned sample, float *grad)
{
    double loss = 0;
    for (unsigned row = 0; row < ROWS; row++) {
        float error = 0;
        for (unsigned col = 0; col < COLS; col++) {
            float target = number(1000000u + row) * number(2000000u + col); /* of rank 1 */
            error += (weight[row * COLS + col] - target) * number(sample * COLS + col);
        }
        for (unsigned col = 0; col < COLS; col++)
            grad[row * COLS + col] += error * number(sample * COLS + col) / ROWS;
        loss += (double)(error * error) / ROWS;
    }
    return loss;
}

/* ---- Training on any number of workers ----------------------------------------------------- */

static lk_status train(lk_comm *comm, const lk_exchange *exchange, lk_parallel **out)
{
    static const lk_param params[] = { { .name  = "weight", .shape = { 2, { ROWS, COLS } } } };
    lk_parallel_options   options  = { .struct_size     = sizeof(lk_parallel_options),
                                       .virtual_workers = VIRTUAL_WORKERS,
                                       .optimizer       = { .kind = LK_SGD, .momentum = 0.9 },
                                       .unused          = LK_UNUSED_ZERO,
                                       .exchange        = exchange };
    lk_parallel_turn      turn;
    lk_step_result        result   = { 0 };
    const lk_feedback     feedback = lk_exchange_feedback(exchange);

    double                lr       = 0.2;

    if (feedback == LK_FEEDBACK_DGC || feedback == LK_FEEDBACK_SIGNUM) {
        options.optimizer.momentum = 0; /* groups have their own */
        lr                         = feedback == LK_FEEDBACK_DGC ? 1 : 2;
    }
    if (exchange->compressor != NULL && strcmp(exchange->compressor->name, "vote") == 0)
        lr = 0.01; /* of a gradient of ones */
    lk_status status = lk_parallel_open(out, comm, params, 1, &options);
    for (unsigned step = 0; step < STEPS && status == LK_OK; step++) {
        status = lk_parallel_begin(*out, step);
        while (status == LK_OK && lk_parallel_next(*out, &turn)) {
            unsigned first = (step * VIRTUAL_WORKERS + turn.virtual_worker) * EACH;
            double   loss  = 0;
            for (unsigned i = first; i < first + EACH; i++)
                loss += add_gradient(lk_parallel_param(*out, 0), i, lk_parallel_grad(*out, 0, 0));
            lk_parallel_report(*out, 0, loss, EACH, EACH, 0);
        }
        if (status == LK_OK)
            status = lk_parallel_finish(*out, lr, &result);
        if (status == LK_OK && lk_comm_rank(comm) == 0 && (step + 1) % 100 == 0)
            printf("step %u  loss %.2e\n", step + 1, result.loss);
    }
    return status;
}

int main(int argc, char **argv)
{
    const char  *name     = argc > 1 ? argv[1] : "powersgd";
    lk_comm     *comm     = NULL;
    lk_parallel *p        = NULL;
    lk_exchange  exchange = LK_EXCHANGE_INIT;
    lk_status    status   = LK_OK;

    exchange.compression = (lk_compression)LK_COMPRESSION_INIT;
    exchange.compression.ratio = 0.1; /* of topk and randomk */
    exchange.groups = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : VIRTUAL_WORKERS;
    if (strcmp(name, "none") != 0)
        status = lk_compressor_find(&exchange.compressor, name);
    if (status == LK_OK && argc > 3)
        status = lk_feedback_find(&exchange.feedback, argv[3]);
    if (status == LK_OK)
        status = lk_join(&comm);
    if (status == LK_OK)
        status = train(comm, &exchange, &p);
    if (status == LK_OK && lk_comm_rank(comm) == 0) {
        lk_tensor weights = { "weight", LK_F32, { 2, { ROWS, COLS } }, lk_parallel_param(p, 0) };
        char      hex[65];
        lk_weights_hash(&weights, 1, hex);
        printf("weights %s\n", hex);
    }
    if (status == LK_OK)
        status = lk_barrier(comm); /* no rank leaves while rank 0 still reads */
    if (status != LK_OK) {
        fprintf(stderr, "compressed_gradients: %s\n", lk_error_last()->message);
        if (comm != NULL)
            lk_comm_abort(comm);
    }
    lk_parallel_free(p);
    lk_comm_free(comm);
    return status != LK_OK;
}
