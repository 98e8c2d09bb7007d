/* sparse_logistic.c -- logistic regression on sparse rows by Hogwild!, recorded and replayed.
 *
 * Each row has about 30 of a million features.  Workers take rows, read the weights of a row's
 * features, and add its gradient to them, without waiting for each other.  The result depends on
 * their speed.  A recorded run can be repeated, bit for bit, by any number of workers:
 *
 *     lockstep run -n 2 ./sparse_logistic --record run.log
 *     lockstep run -n 3 ./sparse_logistic --replay run.log
 *     ./sparse_logistic --replay run.log
 *
 * --rows changes the number of rows.  A replay needs the same rows, and the expf() of the same C
 * library: otherwise it fails, and names the first row whose gradient differs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/checkpoint.h>
#include <lockstep/launch.h>
#include <lockstep/shared_vector.h>

enum { FEATURES = 1 << 20, NONZEROS = 30, EPOCHS = 3 };

typedef struct {
    uint32_t index[NONZEROS]; /* ascending; the values are 1 */
    uint32_t count;
    float    label; /* 0 or 1 */
} row;

/* ---- Your data and model ------------------------------------------------------------------- */

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint32_t h = a * 2654435761u + b * 2246822519u + 12345u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    h *= 3266489917u;
    return h ^ h >> 16;
}

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Generates a row.  Some features are much more frequent than others.  The label is a linear
 * function of the features, with noise. */
static void make_row(uint32_t number, row *out)
{
    uint32_t all[NONZEROS];
    float    score = 0;
    for (uint32_t i = 0; i < NONZEROS; i++) {
        float u = (float)(mix(number, i) >> 8) / 16777216.0f;
        all[i]  = (uint32_t)(u * u * u * FEATURES);
    }
    qsort(all, NONZEROS, sizeof all[0], ascending);
    out->count = 0;
    for (uint32_t i = 0; i < NONZEROS; i++)
        if (out->count == 0 || out->index[out->count - 1] != all[i]) {
            out->index[out->count++] = all[i];
            score += (float)(mix(all[i], 77) % 2000) / 1000 - 1;
        }
    score      += (float)(mix(number, 99) % 2000) / 1000 - 1;
    out->label  = score > 0;
}

static float score_of(const float *weights, uint32_t count)
{
    float score = 0;
    for (uint32_t i = 0; i < count; i++)
        score += weights[i];
    return score;
}

/* ---- Training without locks ---------------------------------------------------------------- */

static lk_status train_epoch(lk_shared_vector *v, const row *rows, uint64_t count, float rate)
{
    float     weights[NONZEROS], grad[NONZEROS];
    uint64_t  task;
    bool      more   = true;
    lk_status status = lk_shared_vector_begin(v, count); /* [1] */
    while (status == LK_OK) {
        status = lk_shared_vector_next(v, &more, &task); /* [2] */
        if (status != LK_OK || !more)
            break;
        const row *r = &rows[task % count];
        status = lk_shared_vector_pull_at(v, r->index, r->count, weights); /* [3] */
        float error = 1 / (1 + expf(-score_of(weights, r->count))) - r->label;
        for (uint32_t i = 0; i < r->count; i++)
            grad[i] = error;
        if (status == LK_OK)
            status = lk_shared_vector_push_at(v, r->index, r->count, grad, -rate); /* [4] */
    }
    return status == LK_OK ? lk_shared_vector_finish(v) : status; /* [5] */
}

static double mean_loss(const float *weights, const row *rows, uint64_t count)
{
    double loss = 0;
    for (uint64_t i = 0; i < count; i++) {
        float mine[NONZEROS];
        for (uint32_t k = 0; k < rows[i].count; k++)
            mine[k] = weights[rows[i].index[k]];
        double score = (double)score_of(mine, rows[i].count);
        loss += log1p(exp(rows[i].label > 0 ? -score : score));
    }
    return loss / (double)count;
}

static lk_status train(lk_comm *comm, lk_shared_vector *v, uint64_t count)
{
    lk_status status = LK_OK;
    row      *rows   = malloc(count * sizeof *rows);
    if (rows == NULL)
        return lk_error_set(LK_ENOMEM, "no memory for the rows");
    for (uint64_t i = 0; i < count; i++)
        make_row((uint32_t)i, &rows[i]);
    for (int epoch = 1; epoch <= EPOCHS && status == LK_OK; epoch++) {
        status = train_epoch(v, rows, count, 0.3f / (float)epoch);
        if (status == LK_OK && lk_comm_rank(comm) == 0)
            printf("epoch %d  loss %.4f\n", epoch,
                   mean_loss(lk_shared_vector_data(v), rows, count));
        if (status == LK_OK)
            status = lk_barrier(comm); /* rank 0 has read the weights */
    }
    free(rows);
    return status;
}

static void print_hash(const lk_shared_vector *v, float *weights)
{
    lk_tensor tensor = { "weight", LK_F32, { 1, { FEATURES } }, weights };
    char      hex[65];
    lk_weights_hash(&tensor, 1, hex);
    printf("tasks %llu  weights %s\n", (unsigned long long)lk_shared_vector_tasks(v), hex);
}

static int usage(void)
{
    fprintf(stderr, "usage: sparse_logistic [--rows N] [--record FILE | --replay FILE]\n");
    return 2;
}

int main(int argc, char **argv)
{
    lk_shared_vector_options options = LK_SHARED_VECTOR_OPTIONS_INIT;
    lk_shared_vector        *v       = NULL;
    lk_comm                 *comm    = NULL;
    uint64_t                 rows    = 100000;

    options.span = 16; /* a row changes single elements */
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            return usage();
        if (strcmp(argv[i], "--rows") == 0)
            rows = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--record") == 0)
            options.record = argv[i + 1];
        else if (strcmp(argv[i], "--replay") == 0)
            options.replay = argv[i + 1];
        else
            return usage();
    }
    lk_status status = lk_join(&comm);
    if (status == LK_OK)
        status = lk_shared_vector_open(&v, comm, FEATURES, &options);
    if (status == LK_OK)
        status = train(comm, v, rows);
    if (status == LK_OK && lk_comm_rank(comm) == 0)
        print_hash(v, lk_shared_vector_data(v));
    if (status == LK_OK)
        status = lk_barrier(comm);
    if (status != LK_OK) {
        fprintf(stderr, "sparse_logistic: %s\n", lk_error_last()->message);
        if (comm != NULL)
            lk_comm_abort(comm);
    }
    lk_shared_vector_free(v);
    lk_comm_free(comm);
    return status != LK_OK;
}
