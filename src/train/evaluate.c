/* evaluate.c -- the validation part, each sample once, by all workers.
 *
 * The part is cut into V fixed slices; each rank walks the slices of its virtual workers in
 * order, and sums and counts meet in the canonical tree: the same bits for every N.
 */
#include "base/memory.h"
#include "train/session.h"

typedef struct {
    void    *x;
    int32_t *y;
    size_t   x_bytes; /* of one sample */
    size_t   y_count; /* targets of one sample */
} samples;

static lk_status samples_open(samples *s, const lk_dataset_info *data, uint32_t micro_batch)
{
    s->x_bytes = lk_shape_count(data->x) * (data->tokens ? sizeof(int32_t) : sizeof(float));
    s->y_count = data->tokens ? lk_shape_count(data->x) : 1;
    LK_TRY(lki_alloc_array(&s->x, micro_batch, s->x_bytes, "evaluation samples"));
    return LKI_NEW(&s->y, micro_batch * s->y_count, "evaluation samples");
}

static void slice(lki_session *session, samples *s, const lk_walk *walk, uint64_t begin,
                  uint64_t end, double sums[3])
{
    lk_pass pass = { .x = s->x, .targets = s->y };
    for (uint64_t at = begin; at < end; at += pass.samples) {
        pass.samples = (uint32_t)lki_min(session->config->micro_batch, end - at);
        for (uint32_t i = 0; i < pass.samples; i++)
            lk_dataset_read(session->dataset, true, 0, at + i, (char *)s->x + i * s->x_bytes,
                            s->y + i * s->y_count);
        lk_engine_forward(session->engine, walk, &pass, 1);
    }
    sums[0] = pass.loss_sum;
    sums[1] = (double)pass.count;
    sums[2] = (double)pass.hits;
}

lk_status lki_evaluate(lki_session *session, double *loss, double *accuracy)
{
    const lk_dataset_info *data   = lk_dataset_describe(session->dataset);
    uint64_t               total  = data->validation_count;
    uint32_t               leaves = session->config->virtual_workers;
    samples                s      = { 0 };
    double                *mine = NULL, sums[3] = { 0 };
    lk_walk                walk = { .seed   = session->config->seed,
                                    .params = session->param_data,
                                    .state  = session->state_data };

    lk_status status = LKI_NEW(&mine, 3 * (size_t)session->count, "evaluation sums");
    if (status == LK_OK)
        status = samples_open(&s, data, session->config->micro_batch);
    for (uint32_t i = 0; status == LK_OK && i < session->count; i++) {
        uint64_t v = session->first + i;
        slice(session, &s, &walk, v * total / leaves, (v + 1) * total / leaves, mine + 3 * i);
    }
    if (status == LK_OK)
        status = lk_parallel_sum(session->parallel, mine, 3, sums);
    *loss     = sums[0] / sums[1];
    *accuracy = sums[2] / sums[1];
    lki_free(s.x);
    lki_free(s.y);
    lki_free(mine);
    return status;
}
