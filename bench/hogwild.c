/* bench/hogwild.c -- measures a shared vector with two ranks beside one, and beside its peers.
 *
 *     hogwild [ROWS [TURNS]]
 *
 * Logistic regression, a row at a time: pull the weights of its features, compute, push.  The ranks
 * are threads.  Problems: rows with 30 of 2^20 features (equally frequent; or skewed, with some of
 * them in most rows), and ROWS / 50 dense rows of 4096 features.  Ways:
 *
 *     span N       lk_shared_vector with spans of N elements
 *     recorded N   the same, recorded to a file in the current directory, which is removed
 *     element      plain C: a relaxed atomic load and store of each element; changes can be lost
 *     mutex        plain C: a mutex around each row
 *     private      plain C: each rank has weights of its own, so its gain is what the machine gives
 *
 * Prints one line for each: microseconds a row with one rank; speed of two ranks, on cores 0 and 1,
 * over the mean of one rank on core 0 and one on core 1; speed of two ranks over that of two with
 * `element`.  Numbers are medians over turns, in which all ways run alternately.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "lockstep/shared_vector.h"
#include "usage.h"

enum { FEATURES = 1 << 20, NONZEROS = 30, WIDTH = 4096, TURNS_MAX = 50, TAKEN = 8,
       RANKS = 2, WAYS_MAX = 6 };

typedef enum { SPAN, RECORDED, ELEMENT, MUTEX, PRIVATE } kind;

typedef struct {
    const char *name;
    kind        kind;
    uint32_t    span;
} way;

typedef struct {
    const char *name;
    size_t      features, rows, width;
    uint32_t   *indices; /* [rows][width]; NULL: dense */
    uint32_t   *counts;  /* [rows] */
    float      *values;  /* [rows][width]; NULL: ones */
    float      *labels;  /* [rows] */
    const way  *ways;
    size_t      way_count;
} problem;

/* A run, which its ranks share. */
typedef struct {
    const problem   *of;
    const way       *how;
    uint32_t        *weights; /* [RANKS][features], of the peers */
    _Atomic size_t   next;
    pthread_mutex_t  lock;
    pthread_barrier_t start;
    double           seconds[RANKS];
} run;

typedef struct {
    run     *of;
    lk_comm *comm;
    uint32_t rank, core;
} member;

static void must(lk_status status)
{
    if (status == LK_OK)
        return;
    fprintf(stderr, "%s\n", lk_error_last()->message);
    exit(1);
}

/* Replaces the weights of a row by its changes. */
static void compute(const problem *p, size_t row, uint32_t count, float *w)
{
    const float *x     = p->values == NULL ? NULL : p->values + row * p->width;
    float        score = 0;
    for (uint32_t i = 0; i < count; i++)
        score += x == NULL ? w[i] : w[i] * x[i];
    const float error = 1 / (1 + expf(-score)) - p->labels[row];
    for (uint32_t i = 0; i < count; i++)
        w[i] = -0.01f * error * (x == NULL ? 1 : x[i]);
}

/* ---- Ways -------------------------------------------------------------------------------- */

static void step_by_elements(uint32_t *weights, const problem *p, size_t row, float *w)
{
    const uint32_t *indices = p->indices == NULL ? NULL : p->indices + row * p->width;
    const uint32_t  count   = p->counts[row];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = __atomic_load_n(&weights[indices == NULL ? i : indices[i]],
                                        __ATOMIC_RELAXED);
        memcpy(&w[i], &bits, sizeof bits);
    }
    compute(p, row, count, w);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *at   = &weights[indices == NULL ? i : indices[i]];
        uint32_t  bits = __atomic_load_n(at, __ATOMIC_RELAXED);
        float     value;
        memcpy(&value, &bits, sizeof bits);
        value += w[i];
        memcpy(&bits, &value, sizeof bits);
        __atomic_store_n(at, bits, __ATOMIC_RELAXED);
    }
}

static void train_plain(run *r, uint32_t rank, float *w)
{
    uint32_t *weights = r->weights + (r->how->kind == PRIVATE ? rank * r->of->features : 0);
    for (size_t first; (first = atomic_fetch_add(&r->next, TAKEN)) < r->of->rows;)
        for (size_t row = first; row < first + TAKEN && row < r->of->rows; row++) {
            if (r->how->kind == MUTEX)
                (void)pthread_mutex_lock(&r->lock);
            step_by_elements(weights, r->of, row, w);
            if (r->how->kind == MUTEX)
                (void)pthread_mutex_unlock(&r->lock);
        }
}

static void train_shared(const run *r, lk_shared_vector *v, float *w)
{
    const problem *p = r->of;
    uint64_t       row;
    bool           more;
    for (;;) {
        must(lk_shared_vector_next(v, &more, &row));
        if (!more)
            return;
        const uint32_t  count   = p->counts[row];
        const uint32_t *indices = p->indices == NULL ? NULL : p->indices + row * p->width;
        if (indices == NULL)
            must(lk_shared_vector_pull(v, 0, count, w));
        else
            must(lk_shared_vector_pull_at(v, indices, count, w));
        compute(p, row, count, w);
        if (indices == NULL)
            must(lk_shared_vector_push(v, 0, count, w, 1));
        else
            must(lk_shared_vector_push_at(v, indices, count, w, 1));
    }
}

static const char *path_of_recording(void)
{
    return "hogwild.recording";
}

static void *main_of(void *argument)
{
    member           *m = argument;
    run              *r = m->of;
    float            *w;
    lk_shared_vector *v = NULL;
    const bool        shared = r->how->kind == SPAN || r->how->kind == RECORDED;
    lk_shared_vector_options options = { .struct_size = sizeof options, .span = r->how->span };
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(m->core, &core);
    (void)sched_setaffinity(0, sizeof core, &core);
    if (r->how->kind == RECORDED)
        options.record = path_of_recording();
    must(LKI_NEW(&w, WIDTH, "weights of a row"));
    if (shared) {
        must(lk_shared_vector_open(&v, m->comm, r->of->features, &options));
        if (m->rank == 0) /* like the peers' weights, in the cache as far as they fit */
            memset(lk_shared_vector_data(v), 0, r->of->features * sizeof(float));
        must(lk_shared_vector_begin(v, r->of->rows));
    }
    (void)pthread_barrier_wait(&r->start);
    const double begun = lki_seconds();
    if (shared)
        train_shared(r, v, w);
    else
        train_plain(r, m->rank, w);
    r->seconds[m->rank] = lki_seconds() - begun;
    if (shared)
        must(lk_shared_vector_finish(v));
    lk_shared_vector_free(v);
    lki_free(w);
    return NULL;
}

/* Runs ranks on cores from `core` on.  Returns the seconds of the slower rank. */
static double measure(const problem *p, const way *how, uint32_t ranks, uint32_t core,
                      uint32_t *weights)
{
    lk_comm  *comms[RANKS];
    pthread_t threads[RANKS];
    member    members[RANKS];
    run       r = { .of = p, .how = how, .weights = weights };
    memset(weights, 0, RANKS * p->features * sizeof *weights);
    (void)pthread_mutex_init(&r.lock, NULL);
    (void)pthread_barrier_init(&r.start, NULL, ranks);
    must(lk_comm_open_threads(comms, ranks, NULL));
    for (uint32_t i = 0; i < ranks; i++) {
        members[i] = (member){ &r, comms[i], i, core + i };
        if (pthread_create(&threads[i], NULL, main_of, &members[i]) != 0)
            exit(1);
    }
    for (uint32_t i = 0; i < ranks; i++)
        (void)pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < ranks; i++)
        lk_comm_free(comms[i]);
    if (how->kind == RECORDED)
        (void)unlink(path_of_recording());
    (void)pthread_mutex_destroy(&r.lock);
    (void)pthread_barrier_destroy(&r.start);
    return ranks == 2 && r.seconds[1] > r.seconds[0] ? r.seconds[1] : r.seconds[0];
}

/* ---- Problems ---------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void make_labels(problem *p)
{
    must(LKI_NEW(&p->counts, p->rows, "rows"));
    must(LKI_NEW(&p->labels, p->rows, "rows"));
    for (size_t row = 0; row < p->rows; row++)
        p->labels[row] = (float)(lki_philox(1, LKI_RNG_DATA, (uint32_t)row, 0, 0, 1).word[0] % 2);
}

static void make_sparse(problem *p, bool skewed)
{
    make_labels(p);
    must(LKI_NEW(&p->indices, p->rows * p->width, "rows"));
    for (size_t row = 0; row < p->rows; row++) {
        uint32_t all[NONZEROS], *out = p->indices + row * p->width;
        for (uint32_t i = 0; i < NONZEROS; i++) {
            float u = lki_random_unit(lki_philox(1, LKI_RNG_DATA, (uint32_t)row, i, 0, 2).word[0]);
            all[i]  = (uint32_t)((skewed ? u * u * u : u) * FEATURES);
        }
        qsort(all, NONZEROS, sizeof all[0], ascending);
        for (uint32_t i = 0; i < NONZEROS; i++)
            if (i == 0 || all[i] != all[i - 1])
                out[p->counts[row]++] = all[i];
    }
}

static void make_dense(problem *p)
{
    make_labels(p);
    must(LKI_NEW(&p->values, p->rows * p->width, "rows"));
    for (size_t i = 0; i < p->rows * p->width; i++)
        p->values[i] =
            lki_random_unit(lki_philox(1, LKI_RNG_DATA, (uint32_t)i, 0, 0, 3).word[0]) - 0.5f;
    for (size_t row = 0; row < p->rows; row++)
        p->counts[row] = (uint32_t)p->width;
}

static int by_value(const void *left, const void *right)
{
    const double x = *(const double *)left, y = *(const double *)right;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static void compare(const problem *p, size_t turns, uint32_t *weights)
{
    double one[WAYS_MAX][TURNS_MAX], gain[WAYS_MAX][TURNS_MAX], over[WAYS_MAX][TURNS_MAX];
    for (size_t t = 0; t < turns; t++) {
        double two[WAYS_MAX], peer = 0;
        for (size_t i = 0; i < p->way_count; i++) {
            const double a = measure(p, &p->ways[i], 1, 0, weights);
            two[i]         = measure(p, &p->ways[i], 2, 0, weights);
            const double b = measure(p, &p->ways[i], 1, 1, weights);
            one[i][t]      = 2 / (1 / a + 1 / b);
            gain[i][t]     = one[i][t] / two[i];
            peer           = p->ways[i].kind == ELEMENT ? two[i] : peer;
        }
        for (size_t i = 0; i < p->way_count; i++)
            over[i][t] = peer / two[i];
    }
    for (size_t i = 0; i < p->way_count; i++)
        printf("%-8s  %-13s  %8.3f us  %5.2f  %5.2f\n", p->name, p->ways[i].name,
               median(one[i], turns) / (double)p->rows * 1e6, median(gain[i], turns),
               median(over[i], turns));
}

int main(int count, char **words)
{
    static const way sparse[] = { { "span 16", SPAN, 16 }, { "span 64", SPAN, 64 },
                                  { "recorded 16", RECORDED, 16 }, { "element", ELEMENT, 0 },
                                  { "mutex", MUTEX, 0 }, { "private", PRIVATE, 0 } },
                     dense[] = { { "span 4096", SPAN, 4096 }, { "span 256", SPAN, 256 },
                                 { "recorded 4096", RECORDED, 4096 },
                                 { "element", ELEMENT, 0 }, { "mutex", MUTEX, 0 },
                                 { "private", PRIVATE, 0 } };
    check_arguments(count, words, 0, 2);
    const size_t rows  = count > 1 ? lki_max(50, strtoull(words[1], NULL, 10)) : 20000;
    const size_t turns = count > 2 ? strtoull(words[2], NULL, 10) : 7;
    problem      all[] = {
        { "equal", FEATURES, rows, NONZEROS, .ways = sparse, .way_count = 6 },
        { "skewed", FEATURES, rows, NONZEROS, .ways = sparse, .way_count = 6 },
        { "dense", WIDTH, rows / 50, WIDTH, .ways = dense, .way_count = 6 },
    };
    /* like an arena, in pages that processes can share */
    uint32_t *weights = mmap(NULL, RANKS * FEATURES * sizeof *weights, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (weights == MAP_FAILED)
        return 1;
    make_sparse(&all[0], false);
    make_sparse(&all[1], true);
    make_dense(&all[2]);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        compare(&all[i], turns < 1 ? 1 : lki_min(turns, TURNS_MAX), weights);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        lki_free(all[i].indices);
        lki_free(all[i].counts);
        lki_free(all[i].values);
        lki_free(all[i].labels);
    }
    return 0;
}
