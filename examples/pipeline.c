/* pipeline.c -- data-parallel groups inside a pipeline of two stages.
 *
 * The model is a perceptron with one hidden layer.  The front stage has the hidden layer, and the
 * back stage has the output.  The ranks form a mesh: a micro-batch flows along the pipeline axis,
 * and the gradients of each stage are averaged along the data axis.  A rank sends the hidden values
 * of its next micro-batch while the other stage computes the one before.  The weights have the same
 * bits for any size of the data axis, and for one rank that computes both stages:
 *
 *     ./pipeline
 *     lockstep run -n 2 ./pipeline
 *     lockstep run -n 6 ./pipeline
 */
#include <stdio.h>
#include <string.h>

#include <lockstep/checkpoint.h>
#include <lockstep/launch.h>
#include <lockstep/parallel.h>

enum { FEATURES = 16, HIDDEN = 24, SAMPLES = 3072, EACH = 8, VIRTUAL_WORKERS = 12, STEPS = 200 };
enum { FRONT, BACK, STAGES };
enum { WEIGHT, BIAS, PARAMS };           /* of a stage */
enum { BIAS_TERM, WEIGHT_TERM };         /* gradients are numbered from the last parameter */

static const lk_param params[STAGES][PARAMS] = {
    [FRONT] = { { .name  = "front.weight",
                  .shape = { 2, { HIDDEN, FEATURES } },
                  .init  = LK_INIT_NORMAL,
                  .scale = 0.3f },
                { .name = "front.bias", .shape = { 1, { HIDDEN } } } },
    [BACK]  = { { .name  = "back.weight",
                  .shape = { 1, { HIDDEN } },
                  .init  = LK_INIT_NORMAL,
                  .scale = 0.3f },
                { .name = "back.bias", .shape = { 1, { 1 } } } },
};

/* The values between the stages, for one micro-batch. */
typedef struct {
    float hidden[EACH][HIDDEN], grad[EACH][HIDDEN];
} micro_batch;

typedef struct {
    lk_mesh     *mesh;
    lk_comm     *data, *pipeline;
    lk_parallel *stages[STAGES]; /* NULL: on another rank of the pipeline */
    micro_batch  micros[VIRTUAL_WORKERS];
    lk_request  *sends[VIRTUAL_WORKERS];
} trainer;

/* ---- Your model --------------------------------------------------------------------------- */

/* Generates sample i of an artificial data set, and returns its target. */
static float make_sample(unsigned i, float x[FEATURES])
{
    unsigned state = (i % SAMPLES) * 2654435761u + 12345u;
    float    sum   = 0;
    for (int f = 0; f < FEATURES; f++) {
        state = state * 1664525u + 1013904223u;
        x[f]  = (float)(state >> 8) / 8388608.0f - 1.0f;
        sum  += f < FEATURES / 2 ? x[f] : -x[f];
    }
    return sum < 0 ? -sum : sum;
}

static void front_forward(const lk_parallel *p, unsigned first, micro_batch *m)
{
    const float *weight = lk_parallel_param(p, WEIGHT), *bias = lk_parallel_param(p, BIAS);
    float        x[FEATURES];
    for (unsigned s = 0; s < EACH; s++) {
        (void)make_sample(first + s, x);
        for (int h = 0; h < HIDDEN; h++) {
            float z = bias[h];
            for (int f = 0; f < FEATURES; f++)
                z += weight[h * FEATURES + f] * x[f];
            m->hidden[s][h] = z > 0 ? z : 0;
        }
    }
}

/* Adds the gradients of the output, and computes those of the hidden values.  Returns the loss. */
static double back(lk_parallel *p, unsigned index, unsigned first, micro_batch *m)
{
    const float *weight = lk_parallel_param(p, WEIGHT), *bias = lk_parallel_param(p, BIAS);
    float       *weight_grad = lk_parallel_grad(p, index, WEIGHT_TERM);
    float       *bias_grad   = lk_parallel_grad(p, index, BIAS_TERM);
    float        x[FEATURES];
    double       loss = 0;
    for (unsigned s = 0; s < EACH; s++) {
        float error = bias[0] - make_sample(first + s, x);
        for (int h = 0; h < HIDDEN; h++)
            error += weight[h] * m->hidden[s][h];
        for (int h = 0; h < HIDDEN; h++) {
            weight_grad[h] += error * m->hidden[s][h];
            m->grad[s][h]   = error * weight[h];
        }
        bias_grad[0] += error;
        loss         += 0.5 * (double)error * (double)error;
    }
    return loss;
}

static void front_backward(lk_parallel *p, unsigned index, unsigned first, const micro_batch *m)
{
    float *weight_grad = lk_parallel_grad(p, index, WEIGHT_TERM);
    float *bias_grad   = lk_parallel_grad(p, index, BIAS_TERM);
    float  x[FEATURES];
    for (unsigned s = 0; s < EACH; s++) {
        (void)make_sample(first + s, x);
        for (int h = 0; h < HIDDEN; h++) {
            float slope = m->hidden[s][h] > 0 ? m->grad[s][h] : 0;
            for (int f = 0; f < FEATURES; f++)
                weight_grad[h * FEATURES + f] += slope * x[f];
            bias_grad[h] += slope;
        }
    }
}

/* ---- The pipeline -------------------------------------------------------------------------- */

/* Computes this rank's micro-batches of a step, one for each of its virtual workers.  All ranks of
 * a pipeline have the same virtual workers, because their data axes have the same size. */
static lk_status run_stages(trainer *t, unsigned step, uint32_t first, uint32_t count)
{
    lk_parallel *front = t->stages[FRONT], *rear = t->stages[BACK];
    const bool   apart  = front == NULL || rear == NULL;
    lk_status    status = LK_OK;
    for (uint32_t i = 0; front != NULL && i < count && status == LK_OK; i++) {
        front_forward(front, (step * VIRTUAL_WORKERS + first + i) * EACH, &t->micros[i]);
        if (apart)
            status = lk_send_start(&t->sends[i], t->pipeline, t->micros[i].hidden,
                                   sizeof t->micros[i].hidden, BACK);
    }
    for (uint32_t i = 0; rear != NULL && i < count && status == LK_OK; i++) {
        if (apart)
            status = lk_recv(t->pipeline, t->micros[i].hidden, sizeof t->micros[i].hidden, FRONT);
        if (status != LK_OK)
            break;
        double loss = back(rear, i, (step * VIRTUAL_WORKERS + first + i) * EACH, &t->micros[i]);
        lk_parallel_report(rear, i, loss, EACH, EACH, 0);
        if (apart)
            status = lk_send_start(&t->sends[i], t->pipeline, t->micros[i].grad,
                                   sizeof t->micros[i].grad, FRONT);
    }
    for (uint32_t i = 0; front != NULL && i < count && status == LK_OK; i++) {
        if (apart)
            status = lk_recv(t->pipeline, t->micros[i].grad, sizeof t->micros[i].grad, BACK);
        if (status != LK_OK)
            break;
        front_backward(front, i, (step * VIRTUAL_WORKERS + first + i) * EACH, &t->micros[i]);
        lk_parallel_report(front, i, 0, EACH, EACH, 0); /* the back stage reports the loss */
    }
    for (uint32_t i = 0; apart && i < count; i++) {
        if (status == LK_OK)
            status = lk_request_wait(t->sends[i]);
        lk_request_free(t->sends[i]);
        t->sends[i] = NULL;
    }
    return status;
}

static lk_status run_step(trainer *t, unsigned step)
{
    lk_step_result   result = { 0 };
    lk_parallel_turn turn;
    uint32_t         first = 0, count = 0, stride;
    lk_status        status = LK_OK;
    for (int stage = 0; stage < STAGES && status == LK_OK; stage++)
        if (t->stages[stage] != NULL) {
            status = lk_parallel_begin(t->stages[stage], step);
            if (status == LK_OK && lk_parallel_next(t->stages[stage], &turn))
                lk_parallel_share(t->stages[stage], &first, &count, &stride);
        }
    if (status == LK_OK)
        status = run_stages(t, step, first, count);
    for (int stage = 0; stage < STAGES && status == LK_OK; stage++)
        if (t->stages[stage] != NULL)
            status = lk_parallel_finish(t->stages[stage], 0.05, &result);
    if (status == LK_OK && t->stages[BACK] != NULL && lk_comm_rank(t->data) == 0 &&
        (step + 1) % 50 == 0)
        printf("step %u  loss %.4f\n", step + 1, result.loss);
    return status;
}

static lk_status open_stages(trainer *t, lk_comm *comm)
{
    const lk_mesh_axis  axes[]  = { { "data", 0 }, { "pipeline", lk_comm_size(comm) > 1 ? 2 : 1 } };
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = VIRTUAL_WORKERS,
                                    .lock_step       = true,
                                    .optimizer       = { .kind = LK_SGD, .momentum = 0.9 } };
    lk_status           status  = lk_mesh_open(&t->mesh, comm, axes, 2);
    if (status != LK_OK)
        return status;
    t->data     = lk_mesh_axis_comm(t->mesh, "data");
    t->pipeline = lk_mesh_axis_comm(t->mesh, "pipeline");
    for (uint32_t stage = 0; stage < STAGES && status == LK_OK; stage++) {
        options.seed = 1 + stage;
        if (lk_comm_size(t->pipeline) == 1 || lk_comm_rank(t->pipeline) == stage)
            status = lk_parallel_open(&t->stages[stage], t->data, params[stage], PARAMS, &options);
    }
    return status;
}

/* ---- The result ---------------------------------------------------------------------------- */

/* Prints the hash of both stages.  The front's rank receives the weights of the back. */
static lk_status print_hash(trainer *t)
{
    float     weight[HIDDEN], bias[1];
    lk_status status = LK_OK;
    if (lk_comm_rank(t->data) != 0)
        return LK_OK;
    if (t->stages[FRONT] == NULL) {
        status = lk_send(t->pipeline, lk_parallel_param(t->stages[BACK], WEIGHT), sizeof weight,
                         FRONT);
        return status != LK_OK ? status
                               : lk_send(t->pipeline, lk_parallel_param(t->stages[BACK], BIAS),
                                         sizeof bias, FRONT);
    }
    if (t->stages[BACK] != NULL) {
        memcpy(weight, lk_parallel_param(t->stages[BACK], WEIGHT), sizeof weight);
        memcpy(bias, lk_parallel_param(t->stages[BACK], BIAS), sizeof bias);
    } else {
        status = lk_recv(t->pipeline, weight, sizeof weight, BACK);
        if (status == LK_OK)
            status = lk_recv(t->pipeline, bias, sizeof bias, BACK);
    }
    const lk_tensor all[] = {
        { "front.weight", LK_F32, params[FRONT][WEIGHT].shape,
          lk_parallel_param(t->stages[FRONT], WEIGHT) },
        { "front.bias", LK_F32, params[FRONT][BIAS].shape,
          lk_parallel_param(t->stages[FRONT], BIAS) },
        { "back.weight", LK_F32, params[BACK][WEIGHT].shape, weight },
        { "back.bias", LK_F32, params[BACK][BIAS].shape, bias },
    };
    char hex[65];
    lk_weights_hash(all, sizeof all / sizeof *all, hex);
    if (status == LK_OK)
        printf("weights %s\n", hex);
    return status;
}

int main(void)
{
    static trainer t;
    lk_comm       *comm   = NULL;
    lk_status      status = lk_join(&comm);
    if (status == LK_OK)
        status = open_stages(&t, comm);
    for (unsigned step = 0; step < STEPS && status == LK_OK; step++)
        status = run_step(&t, step);
    if (status == LK_OK)
        status = print_hash(&t);
    if (status == LK_OK)
        status = lk_barrier(comm); /* no rank leaves while another still reads */
    if (status != LK_OK) {
        fprintf(stderr, "pipeline: %s\n", lk_error_last()->message);
        lk_comm_abort(comm);
    }
    for (int stage = 0; stage < STAGES; stage++)
        lk_parallel_free(t.stages[stage]);
    lk_mesh_free(t.mesh);
    lk_comm_free(comm);
    return status != LK_OK;
}
