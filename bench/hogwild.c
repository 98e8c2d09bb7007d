/* bench/hogwild.c -- measures a shared vector with several ranks beside one, and beside its peers.
 *
 *     hogwild [ROWS [TURNS [SECONDS]]]      200000 rows, at most 9 turns, about 75 s
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
 * Each way runs with 1, 2, 4, 8 and 16 ranks, as far as there are cores, each on a core of its own;
 * hardware threads of a core that has a rank come last.  Prints one line for each way: microseconds
 * a row with one rank; the speed of each number of ranks over that of one rank, which is the mean
 * of one on the first core and one on the last; and the speed of the most ranks over that of as
 * many with `element`.  Numbers are medians over turns, in which all ways run alternately.  A new
 * turn begins as long as it will end within SECONDS.
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
#include "base/sort.h"
#include "lockstep/shared_vector.h"
#include "usage.h"

enum { FEATURES = 1 << 20, NONZEROS = 30, WIDTH = 4096, TURNS_MAX = 50, TAKEN = 8,
       RANKS_MAX = 16, COUNTS_MAX = 5, WAYS_MAX = 6, PROBLEMS = 3 };

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
    uint32_t        *weights; /* [RANKS_MAX][features], of the peers */
    pthread_barrier_t start;
    double           seconds[RANKS_MAX];
    _Alignas(LKI_LINE) _Atomic size_t  next;
    _Alignas(LKI_LINE) pthread_mutex_t lock;
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

/* The cores that ranks run on, in this order, and the numbers of ranks. */
typedef struct {
    uint32_t cores[CPU_SETSIZE], core_count;
    uint32_t counts[COUNTS_MAX], count;
} machine;

/* Runs ranks, the first one on the machine's core number `first`.  Returns the seconds of the
 * slowest rank. */
static double measure(const problem *p, const way *how, const machine *m, uint32_t ranks,
                      uint32_t first, uint32_t *weights)
{
    lk_comm  *comms[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    member    members[RANKS_MAX];
    run       r     = { .of = p, .how = how, .weights = weights };
    double    worst = 0;
    memset(weights, 0, (how->kind == PRIVATE ? ranks : 1) * p->features * sizeof *weights);
    (void)pthread_mutex_init(&r.lock, NULL);
    (void)pthread_barrier_init(&r.start, NULL, ranks);
    must(lk_comm_open_threads(comms, ranks, NULL));
    for (uint32_t i = 0; i < ranks; i++) {
        members[i] = (member){ &r, comms[i], i, m->cores[first + i] };
        if (pthread_create(&threads[i], NULL, main_of, &members[i]) != 0)
            exit(1);
    }
    for (uint32_t i = 0; i < ranks; i++)
        (void)pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < ranks; i++) {
        lk_comm_free(comms[i]);
        worst = r.seconds[i] > worst ? r.seconds[i] : worst;
    }
    if (how->kind == RECORDED)
        (void)unlink(path_of_recording());
    (void)pthread_mutex_destroy(&r.lock);
    (void)pthread_barrier_destroy(&r.start);
    return worst;
}

/* Returns true if `core` is the first hardware thread of its core, or nothing is known of it. */
static bool is_first_thread(uint32_t core)
{
    char     path[128];
    uint32_t first = core;
    (void)snprintf(path, sizeof path,
                   "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", core);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return true;
    if (fscanf(file, "%u", &first) != 1)
        first = core;
    (void)fclose(file);
    return first == core;
}

static void find_cores(machine *m)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        exit(1);
    for (int first = 1; first >= 0; first--)
        for (uint32_t core = 0; core < CPU_SETSIZE; core++)
            if (CPU_ISSET(core, &set) && is_first_thread(core) == (first == 1))
                m->cores[m->core_count++] = core;
    for (uint32_t ranks = 1; ranks <= lki_min(m->core_count, RANKS_MAX); ranks *= 2)
        m->counts[m->count++] = ranks;
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

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, lki_by_value);
    return values[count / 2];
}

/* Seconds of each way, in each turn; `one` is of one rank. */
typedef struct {
    double one[WAYS_MAX][TURNS_MAX], all[WAYS_MAX][COUNTS_MAX][TURNS_MAX];
} times;

static void take_turn(const problem *p, const machine *m, size_t turn, uint32_t *weights,
                      times *out)
{
    for (size_t i = 0; i < p->way_count; i++) {
        const way   *how  = &p->ways[i];
        const double last = measure(p, how, m, 1, m->counts[m->count - 1] - 1, weights);
        for (uint32_t c = 0; c < m->count; c++)
            out->all[i][c][turn] = measure(p, how, m, m->counts[c], 0, weights);
        out->one[i][turn]    = 2 / (1 / out->all[i][0][turn] + 1 / last);
        out->all[i][0][turn] = out->one[i][turn];
    }
}

/* Returns the median of a[i] / b[i]. */
static double ratio(const double *a, const double *b, size_t turns)
{
    double ratios[TURNS_MAX];
    for (size_t t = 0; t < turns; t++)
        ratios[t] = a[t] / b[t];
    return median(ratios, turns);
}

static void print_times(const problem *p, const machine *m, times *found, size_t turns)
{
    const double *peer = found->all[0][m->count - 1];
    for (size_t i = 0; i < p->way_count; i++)
        peer = p->ways[i].kind == ELEMENT ? found->all[i][m->count - 1] : peer;
    for (size_t i = 0; i < p->way_count; i++) {
        double one[TURNS_MAX];
        memcpy(one, found->one[i], sizeof one);
        printf("%-8s  %-13s  %8.3f us", p->name, p->ways[i].name,
               median(one, turns) / (double)p->rows * 1e6);
        for (uint32_t c = 1; c < m->count; c++)
            printf("  %5.2f", ratio(found->one[i], found->all[i][c], turns));
        printf("  %5.2f\n", ratio(peer, found->all[i][m->count - 1], turns));
    }
}

/* Takes turns until `most` of them or `seconds` are over. */
static void compare(const problem *all, const machine *m, size_t most, double seconds,
                    uint32_t *weights)
{
    times       *found;
    const double begun   = lki_seconds();
    double       longest = 0;
    size_t       turns   = 0;
    must(LKI_NEW(&found, PROBLEMS, "times"));
    while (turns < most && (turns == 0 || lki_seconds() - begun + longest < seconds)) {
        const double since = lki_seconds();
        for (size_t i = 0; i < PROBLEMS; i++)
            take_turn(&all[i], m, turns, weights, &found[i]);
        turns++;
        longest = lki_seconds() - since > longest ? lki_seconds() - since : longest;
    }
    printf("%zu turns; time of a row; speed of", turns);
    for (uint32_t c = 1; c < m->count; c++)
        printf(" %u,", m->counts[c]);
    printf(" ranks over one; of the most ranks over element\n");
    for (size_t i = 0; i < PROBLEMS; i++)
        print_times(&all[i], m, &found[i], turns);
    lki_free(found);
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
    check_arguments(count, words, 0, 3);
    const size_t rows    = count > 1 ? lki_max(50, strtoull(words[1], NULL, 10)) : 200000;
    const size_t turns   = count > 2 ? strtoull(words[2], NULL, 10) : 9;
    const double seconds = count > 3 ? strtod(words[3], NULL) : 75;
    machine      m       = { 0 };
    problem      all[PROBLEMS] = {
        { "equal", FEATURES, rows, NONZEROS, .ways = sparse, .way_count = 6 },
        { "skewed", FEATURES, rows, NONZEROS, .ways = sparse, .way_count = 6 },
        { "dense", WIDTH, rows / 50, WIDTH, .ways = dense, .way_count = 6 },
    };
    find_cores(&m);
    /* like an arena, in pages that processes can share */
    const size_t bytes = m.counts[m.count - 1] * (size_t)FEATURES * sizeof(uint32_t);
    uint32_t    *weights = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (weights == MAP_FAILED)
        return 1;
    make_sparse(&all[0], false);
    make_sparse(&all[1], true);
    make_dense(&all[2]);
    compare(all, &m, turns < 1 ? 1 : lki_min(turns, TURNS_MAX), seconds, weights);
    for (size_t i = 0; i < PROBLEMS; i++) {
        lki_free(all[i].indices);
        lki_free(all[i].counts);
        lki_free(all[i].values);
        lki_free(all[i].labels);
    }
    return 0;
}
