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
 * Nor do they depend on workers that are killed, if the launcher can have the others continue:
 *
 *     lockstep run -n 4 --on-failure continue ./compressed_gradients powersgd 4
 *
 * Compressors: powersgd, topk, randomk, sign, terngrad, qsgd, vote; none sends whole gradients.
 * The second argument is the number of groups: 1, 2, 4 or 8.  The third one is the feedback: ef14,
 * off, dgc, signum, ef21 or ef21-sgdm; the default is that of the compressor.
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

static const lk_param model[] = { { .name = "weight", .shape = { 2, { ROWS, COLS } } } };

static lk_parallel_options options_with(const lk_exchange *exchange)
{
    const lk_feedback feedback = lk_exchange_feedback(exchange);
    const int         own      = feedback == LK_FEEDBACK_DGC || feedback == LK_FEEDBACK_SIGNUM;
    return (lk_parallel_options){ .struct_size     = sizeof(lk_parallel_options),
                                  .virtual_workers = VIRTUAL_WORKERS,
                                  /* groups may have their own momentum */
                                  .optimizer = { .kind = LK_SGD, .momentum = own ? 0 : 0.9 },
                                  .unused    = LK_UNUSED_ZERO,
                                  .survives  = true,
                                  .exchange  = exchange };
}

static double learning_rate(const lk_exchange *exchange)
{
    const lk_feedback feedback = lk_exchange_feedback(exchange);
    if (exchange->compressor != NULL && strcmp(exchange->compressor->name, "vote") == 0)
        return 0.01; /* of a gradient of ones */
    return feedback == LK_FEEDBACK_DGC ? 1 : feedback == LK_FEEDBACK_SIGNUM ? 2 : 0.2;
}

static lk_status train(lk_parallel *p, double lr, uint64_t first, int speaks)
{
    lk_parallel_turn turn;
    lk_step_result   result = { 0 };
    lk_status        status = LK_OK;

    for (uint64_t step = first; step < STEPS && status == LK_OK; step++) {
        status = lk_parallel_begin(p, step);
        while (status == LK_OK && lk_parallel_next(p, &turn)) {
            unsigned sample = ((unsigned)step * VIRTUAL_WORKERS + turn.virtual_worker) * EACH;
            double   loss   = 0;
            for (unsigned i = sample; i < sample + EACH; i++)
                loss += add_gradient(lk_parallel_param(p, 0), i, lk_parallel_grad(p, 0, 0));
            lk_parallel_report(p, 0, loss, EACH, EACH, 0);
        }
        if (status == LK_OK)
            status = lk_parallel_finish(p, lr, &result);
        if (status == LK_OK && speaks && (step + 1) % 100 == 0) {
            printf("step %u  loss %.2e\n", (unsigned)step + 1, result.loss);
            fflush(stdout); /* this worker may be killed */
        }
    }
    return status;
}

/* Takes over the model in a group without the lost workers.  Sets *step to the next one.  Leaves
 * *comm as it is if there is no such group. */
static lk_status regroup(lk_comm **comm, lk_parallel **p, const lk_exchange *exchange,
                         uint64_t *step)
{
    lk_parallel_options  options = options_with(exchange);
    lk_parallel_standing standing;
    lk_parallel         *after = NULL;
    lk_comm             *next  = NULL;

    lk_status status = lk_comm_rebuild(&next, *comm, NULL);
    if (status != LK_OK)
        return status;
    status = lk_comm_take_arenas(next, *comm);
    if (status == LK_OK)
        status = lk_parallel_go_on(&after, *p, next, model, 1, &options, &standing);
    lk_comm_free(*comm);
    *comm = next;
    if (status != LK_OK)
        return status;
    lk_parallel_free(*p);
    *p    = after;
    *step = standing.steps;
    return LK_OK;
}

/* Trains to the end, whichever workers are lost. */
static lk_status train_through(lk_comm **comm, const lk_exchange *exchange, lk_parallel **p)
{
    lk_parallel_options options = options_with(exchange);
    double              lr      = learning_rate(exchange);
    uint64_t            step    = 0;

    lk_status status = lk_parallel_open(p, *comm, model, 1, &options);
    if (status != LK_OK)
        return status;
    status = train(*p, lr, step, lk_comm_rank(*comm) == 0);
    while (status != LK_OK && lk_comm_has_lost(*comm)) {
        const lk_comm *failed = *comm;
        status = regroup(comm, p, exchange, &step);
        if (status == LK_OK)
            status = train(*p, lr, step, lk_comm_rank(*comm) == 0);
        else if (*comm == failed)
            return status; /* the launcher does not have the others continue */
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
        status = train_through(&comm, &exchange, &p);
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
