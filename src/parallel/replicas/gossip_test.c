/* gossip_test.c -- replicas that average with their neighbours only.
 *
 * Goal:    mixing is a mean of the weights before it, over neighbours that are a function of the
 *          replicas' numbers, so the bits are the same for any ranks and hosts, also in a run that
 *          continues with others.
 * Method:  a crew trains with gradients that are functions of step, replica and element.  Rank 0
 *          computes the same in plain loops, with neighbours written down here once more.
 * Control: means of new weights, and neighbours by rank, were seen to fail.
 */
#include <math.h>

#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"
#include "parallel/replicas/gossip.h"

enum { STEPS = 5, REPLICAS_MAX = 8, STATE = LKT_PARAMS };

static const double RATE = 0.01, TOLERANCE = 1e-6;

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 100, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

/* Weights and then running state, of each replica. */
typedef float values[LKT_PARAMS + 1][LKT_ELEMENTS_MAX];

typedef struct {
    lkt_crew    crew; /* first, so that hooks find the run */
    lk_replicas replicas;
    uint32_t    width; /* virtual workers of a replica */
    bool        begins; /* with `have` */
    double      drift;
    char        hash[65]; /* of the values of all replicas, after all steps */
    values      have[REPLICAS_MAX], want[REPLICAS_MAX], mean;
} run;

static size_t size_of(uint32_t value)
{
    return value == STATE ? lkt_running[0].count : lk_shape_count(model[value].shape);
}

/* ---- Neighbours -------------------------------------------------------------------------- */

static void neighbours_of(lki_neighbours *out, lk_replica_topology topology, uint32_t count,
                          uint64_t number)
{
    uint32_t order[64];
    lki_topology_neighbours(out, order, topology, count, 5, number);
}

/* Each replica has itself, ascending neighbours, and is a neighbour as often as it has any. */
static void must_preserve_the_mean(const lki_neighbours *n, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        double weight = 0;
        bool   own    = false;
        for (uint32_t i = 0; i < n[r].count; i++) {
            assert_true(n[r].of[i] < count && (i == 0 || n[r].of[i - 1] < n[r].of[i]));
            own = own || n[r].of[i] == r;
        }
        for (uint32_t s = 0; s < count; s++)
            for (uint32_t i = 0; i < n[s].count; i++)
                weight += n[s].of[i] == r ? 1.0 / n[s].count : 0;
        assert_true(own && fabs(weight - 1) < 1e-12);
    }
}

static bool has(const lki_neighbours *n, uint32_t replica)
{
    for (uint32_t i = 0; i < n->count; i++)
        if (n->of[i] == replica)
            return true;
    return false;
}

static void neighbours_are_those_of_the_topology(void **state)
{
    lki_neighbours n[64], again[64];
    (void)state;
    for (uint32_t count = 1; count <= 9; count++)
        for (uint64_t number = 1; number <= 5; number++) {
            const uint64_t around   = lki_max(1, lki_topology_distances(count));
            const uint32_t distance = 1u << (number - 1) % around;
            uint32_t       alone    = 0;
            neighbours_of(n, LK_TOPOLOGY_RING, count, number);
            must_preserve_the_mean(n, count);
            for (uint32_t r = 0; r < count; r++) {
                assert_int_equal(n[r].count, lki_min(count, 3));
                assert_true(has(&n[r], (r + 1) % count) && has(&n[(r + 1) % count], r));
            }
            neighbours_of(n, LK_TOPOLOGY_EXPONENTIAL, count, number);
            must_preserve_the_mean(n, count);
            for (uint32_t r = 0; r < count && count > 1; r++)
                assert_true(n[r].count == 2 && has(&n[r], (r + distance) % count));
            neighbours_of(n, LK_TOPOLOGY_PAIRS, count, number);
            must_preserve_the_mean(n, count);
            for (uint32_t r = 0; r < count; r++)
                alone += n[r].count == 1;
            assert_int_equal(alone, count % 2);
        }
    neighbours_of(n, LK_TOPOLOGY_PAIRS, 64, 1);
    neighbours_of(again, LK_TOPOLOGY_PAIRS, 64, 2);
    assert_memory_not_equal(n, again, sizeof n);
    neighbours_of(n, LK_TOPOLOGY_PAIRS, 2, 7);
    neighbours_of(again, LK_TOPOLOGY_RING, 2, 7);
    assert_memory_equal(n, again, 2 * sizeof *n);
}

/* With a power of two as R, a round of distances computes the mean of all. */
static void a_round_of_distances_reaches_all(void **state)
{
    enum { COUNT = 8 };
    double         of[COUNT][COUNT] = { 0 }, mixed[COUNT][COUNT];
    lki_neighbours n[COUNT];
    (void)state;
    for (uint32_t r = 0; r < COUNT; r++)
        of[r][r] = 1;
    for (uint64_t number = 1; number <= lki_topology_distances(COUNT); number++) {
        neighbours_of(n, LK_TOPOLOGY_EXPONENTIAL, COUNT, number);
        for (uint32_t r = 0; r < COUNT; r++)
            for (uint32_t s = 0; s < COUNT; s++)
                mixed[r][s] = (of[n[r].of[0]][s] + of[n[r].of[1]][s]) / 2;
        memcpy(of, mixed, sizeof of);
    }
    for (uint32_t r = 0; r < COUNT; r++)
        for (uint32_t s = 0; s < COUNT; s++)
            assert_true(fabs(of[r][s] - 1.0 / COUNT) < 1e-12);
}

/* Counts the copies that hosts send in many mixings of pairs. */
static void the_bytes_of_pairs_are_those_of_many_mixings(void **state)
{
    enum { MANY = 20000 };
    static const uint32_t sizes[] = { 2, 1, 3 };
    (void)state;
    for (uint32_t count = 4; count <= 7; count += 3) {
        lki_replicas replicas = { .options.count = count };
        lki_mixing   m;
        lki_world    three;
        uint64_t     told[3] = { 0 }, sent[3] = { 0 };
        assert_int_equal(lki_world_init(&three, sizes, 3), LK_OK);
        assert_int_equal(lki_mixing_init(&m, &replicas, &three), LK_OK);
        const double mixings = lki_mixing_count_sends(&m, LK_TOPOLOGY_PAIRS, told);
        for (uint64_t number = 1; number <= MANY; number++) {
            lki_topology_neighbours(m.neighbours, m.order, LK_TOPOLOGY_PAIRS, count, 5, number);
            lki_mixing_find_needs(&m);
            for (uint32_t h = 0; h < 3; h++)
                sent[h] += lki_mixing_sends(&m, h);
        }
        for (uint32_t h = 0; h < 3; h++)
            assert_true(fabs((double)sent[h] / MANY - (double)told[h] / mixings) < 0.05);
        lki_mixing_deinit(&m);
        lki_world_deinit(&three);
    }
}

/* ---- The crew ---------------------------------------------------------------------------- */

/* Returns a value in [-0.5, 0.5). */
static float noise_of(uint32_t virtual_worker, size_t i, uint32_t what)
{
    uint32_t bits = (uint32_t)i * 2654435761u + virtual_worker * 40503u + what * 2246822519u;
    bits ^= bits >> 15;
    return (float)(bits * 2246822519u >> 8) * 0x1p-24f - 0.5f;
}

static void make(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    (void)w;
    for (uint32_t t = 0; t < LKT_PARAMS; t++) {
        float *grad = lk_parallel_grad(p, 0, t);
        for (size_t i = 0; turn.micro_index == 0 && i < size_of(LKT_PARAMS - 1 - t); i++)
            grad[i] += noise_of(turn.virtual_worker, i, step * 100 + LKT_PARAMS - 1 - t);
        lk_parallel_grad_ready(p, 0, t);
    }
    for (size_t i = 0; i < size_of(STATE); i++)
        lk_parallel_state_sum(p, 0, 0)[i] += noise_of(turn.virtual_worker, i, step * 100 + STATE);
    const bool last = turn.micro_index == 1;
    lk_parallel_report(p, 0, 0, 1, last, 0);
}

/* The values of all replicas, loaded on all ranks or fetched by all. */
static void visit(lk_parallel *p, bool load, uint32_t count, values *of)
{
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t v = 0; v < LKT_PARAMS; v++)
            assert_int_equal(load ? lk_parallel_load_kept(p, v, 0, r, of[r][v])
                                  : lk_parallel_fetch_kept(p, v, 0, r, 0, size_of(v), of[r][v]),
                             LK_OK);
        assert_int_equal(load ? lk_parallel_load_replica_state(p, r, 0, of[r][STATE])
                              : lk_parallel_fetch_replica_state(p, r, 0, of[r][STATE]),
                         LK_OK);
    }
}

static void begin(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    static _Thread_local values mine[REPLICAS_MAX];
    run                        *r = (run *)(void *)w;
    if (step != w->first)
        return;
    if (r->begins)
        memcpy(mine, r->have, sizeof mine);
    assert_int_equal(lk_barrier(p->comm), LK_OK);
    if (r->begins)
        visit(p, true, r->replicas.count, mine);
    visit(p, false, r->replicas.count, mine);
    if (p->rank == 0)
        memcpy(r->want, mine, sizeof mine);
}

/* ---- The oracle -------------------------------------------------------------------------- */

/* Returns the mean of the noise of a replica's virtual workers. */
static float noise(const run *r, uint32_t replica, size_t i, uint32_t what)
{
    double sum = 0;
    for (uint32_t w = replica * r->width; w < (replica + 1) * r->width; w++)
        sum += (double)noise_of(w, i, what);
    return (float)(sum / r->width);
}

/* A step of sgd by each replica.  Each of two micro-batches moves running state by a tenth. */
static void step_all(run *r, uint32_t step)
{
    for (uint32_t g = 0; g < r->replicas.count; g++) {
        for (uint32_t v = 0; v < LKT_PARAMS; v++)
            for (size_t i = 0; i < size_of(v); i++)
                r->want[g][v][i] -= (float)RATE * noise(r, g, i, step * 100 + v);
        for (size_t i = 0; i < 2 * size_of(STATE); i++) {
            float *at = &r->want[g][STATE][i / 2];
            *at += 0.1f * (noise(r, g, i / 2, step * 100 + STATE) - *at);
        }
    }
}

/* Returns the mean of an element over a replica's neighbours. */
static double mean_of(const run *r, uint64_t number, uint32_t replica, uint32_t v, size_t i)
{
    const uint32_t count = r->replicas.count;
    const values  *of    = (const values *)r->want;
    const double   own   = (double)of[replica][v][i];
    lki_neighbours drawn[REPLICAS_MAX];
    if (r->replicas.topology == LK_TOPOLOGY_RING && count > 2)
        return (own + (double)of[(replica + 1) % count][v][i] +
                (double)of[(replica + count - 1) % count][v][i]) / 3;
    if (r->replicas.topology == LK_TOPOLOGY_RING)
        return (own + (double)of[(replica + 1) % count][v][i]) / 2;
    if (r->replicas.topology == LK_TOPOLOGY_EXPONENTIAL) {
        uint32_t distance = 1;
        for (uint64_t n = 1; n < number; n++)
            distance = 2 * distance < count ? 2 * distance : 1;
        return (own + (double)of[(replica + distance) % count][v][i]) / 2;
    }
    neighbours_of(drawn, LK_TOPOLOGY_PAIRS, count, number);
    for (uint32_t k = 0; k < drawn[replica].count; k++)
        if (drawn[replica].of[k] != replica)
            return (own + (double)of[drawn[replica].of[k]][v][i]) / 2;
    return own;
}

static void mix_all(run *r, uint64_t number)
{
    static values mixed[REPLICAS_MAX];
    for (uint32_t g = 0; g < r->replicas.count; g++)
        for (uint32_t v = 0; v <= STATE; v++)
            for (size_t i = 0; i < size_of(v); i++)
                mixed[g][v][i] = (float)mean_of(r, number, g, v, i);
    memcpy(r->want, mixed, sizeof mixed);
}

static void must_be_close(const values *a, const values *b, uint32_t count)
{
    for (uint32_t g = 0; g < count; g++)
        for (uint32_t v = 0; v <= STATE; v++)
            for (size_t i = 0; i < size_of(v); i++)
                if (fabs((double)a[g][v][i] - (double)b[g][v][i]) > TOLERANCE)
                    fail_msg("replica %u, value %u, element %zu: %g, not %g", g, v, i,
                             (double)a[g][v][i], (double)b[g][v][i]);
}

/* Computes the mean of all replicas and returns their drift from it. */
static double mean_of_all(const run *r, values mean)
{
    const uint32_t count  = r->replicas.count;
    double         square = 0;
    for (uint32_t v = 0; v <= STATE; v++)
        for (size_t i = 0; i < size_of(v); i++) {
            double sum = 0;
            for (uint32_t g = 0; g < count; g++)
                sum += (double)r->have[g][v][i];
            mean[v][i] = (float)(sum / count);
            for (uint32_t g = 0; g < count && v < LKT_PARAMS; g++)
                square += pow((double)r->have[g][v][i] - sum / count, 2);
        }
    return sqrt(square / count);
}

/* The outer weights become the mean when they are asked for. */
static void average(run *r, lk_parallel *p)
{
    static _Thread_local values outer;
    const lk_outer_step before = lk_parallel_outer_step(p);
    assert_int_equal(before.number, 0);
    assert_int_equal(lk_parallel_average(p), LK_OK);
    for (uint32_t v = 0; v < LKT_PARAMS; v++)
        assert_int_equal(lk_parallel_fetch(p, v, 0, 0, size_of(v), outer[v]), LK_OK);
    memcpy(outer[STATE], lk_parallel_state_data(p, 0), size_of(STATE) * sizeof(float));
    const lk_outer_step after = lk_parallel_outer_step(p);
    if (p->rank == 0) {
        const double drift = mean_of_all(r, r->mean);
        must_be_close((const values *)outer, (const values *)r->mean, 1);
        assert_int_equal(after.number, STEPS / r->replicas.local_steps);
        assert_true(fabs(after.drift - drift) < 1e-6 * (1 + drift));
        r->drift = after.drift;
    }
    assert_int_equal(lk_parallel_average(p), LK_OK); /* is done */
}

static void compare(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    static _Thread_local values mine[REPLICAS_MAX];
    run           *r    = (run *)(void *)w;
    const uint64_t each = r->replicas.local_steps;
    (void)result;
    visit(p, false, r->replicas.count, mine);
    if (p->rank == 0) {
        step_all(r, step);
        if ((step + 1) % each == 0 && r->replicas.count > 1)
            mix_all(r, (step + 1) / each);
        must_be_close((const values *)mine, (const values *)r->want, r->replicas.count);
        memcpy(r->want, mine, sizeof mine); /* so that differences do not add up */
        memcpy(r->have, mine, sizeof mine);
    }
    if (step + 1 < STEPS)
        return;
    average(r, p);
    if (p->rank == 0) {
        lki_sha256 hash;
        lki_sha256_begin(&hash);
        lki_sha256_add(&hash, r->have, sizeof r->have);
        lki_sha256_add(&hash, &r->drift, sizeof r->drift);
        lki_sha256_end(&hash, r->hash);
    }
}

/* Runs steps [first, steps).  Writes the hash of the outer weights and that of the replicas. */
static void run_it(run *r, const char *strategy, uint32_t ranks, uint32_t hosts, uint32_t first,
                   uint32_t steps, char hash[129])
{
    r->crew = lkt_make_crew(model, strategy, r->replicas.count * r->width, ranks);
    r->crew.first               = first;
    r->crew.steps               = steps;
    r->crew.values_only         = true;
    r->crew.options.unused      = LK_UNUSED_ZERO;
    r->crew.options.replicas    = &r->replicas;
    r->crew.options.optimizer   = (lk_optimizer){ .kind = LK_SGD };
    r->crew.options.clip_norm   = 0;
    r->crew.make                = make;
    r->crew.at_step             = begin;
    r->crew.at_result           = compare;
    if (hosts > 1)
        r->crew.hosts = (hosted){ .hosts = hosts, .each = (ranks + hosts - 1) / hosts,
                                  .fewer = (ranks + hosts - 1) / hosts * hosts - ranks };
    r->begins = first > 0;
    lkt_run_crew(&r->crew, hash);
    memcpy(hash + 64, r->hash, 65);
}

static void mixing_is_that_of_the_oracle_on_any_ranks(void **state)
{
    static const struct {
        lk_replica_topology topology;
        uint32_t            count, width, each;
    } cases[] = { { LK_TOPOLOGY_RING, 8, 1, 1 },        { LK_TOPOLOGY_EXPONENTIAL, 8, 1, 1 },
                  { LK_TOPOLOGY_PAIRS, 4, 2, 1 },       { LK_TOPOLOGY_RING, 3, 4, 2 },
                  { LK_TOPOLOGY_EXPONENTIAL, 5, 1, 1 }, { LK_TOPOLOGY_PAIRS, 5, 1, 1 },
                  { LK_TOPOLOGY_RING, 2, 4, 1 },        { LK_TOPOLOGY_PAIRS, 1, 4, 1 } };
    static const uint32_t shapes[][2] = { { 2, 1 }, { 3, 1 }, { 5, 2 }, { 8, 1 }, { 4, 2 },
                                          { 3, 3 } };
    static run            r;
    char                  want[129], got[129];
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const uint32_t leaves = cases[c].count * cases[c].width;
        r = (run){ .width    = cases[c].width,
                   .replicas = { sizeof r.replicas, .count = cases[c].count,
                                 .local_steps = cases[c].each, .topology = cases[c].topology } };
        run_it(&r, "ddp", 1, 1, 0, STEPS, want);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if (shapes[i][0] > leaves || (i + c) % (lki_brief() ? 3 : 2) > 0)
                continue;
            run_it(&r, i % 2 == 0 ? "ddp" : "zero1", shapes[i][0], shapes[i][1], 0, STEPS, got);
            assert_string_equal(got, want);
        }
        if (c >= (lki_brief() ? 1 : 3))
            continue;
        run_it(&r, "zero1", 2, 2, 0, 3, got);
        run_it(&r, "ddp", 3, 1, 3, STEPS, got);
        assert_string_equal(got, want);
    }
}

/* ---- Refusals ---------------------------------------------------------------------------- */

static void refuse(const lk_parallel_options *options, const char *text)
{
    lkt_refuse(model, options, text);
}

static void what_goes_with_the_mean_of_all_only_is_refused(void **state)
{
    const lk_replicas ring = { sizeof ring, .count = 4, .topology = LK_TOPOLOGY_RING };
    const lk_exchange some = { .struct_size = sizeof some };
    lk_replicas       with = ring;
    lkt_crew          crew = lkt_make_crew(model, "ddp", 4, 1);
    (void)state;
    crew.options.unused   = LK_UNUSED_ZERO;
    crew.options.replicas = &with;
    with.dtype            = LK_BF16;
    refuse(&crew.options, "`replicas.topology` ring sends FP32 weights: leave out "
                          "`replicas.dtype`");
    with    = ring;
    with.lr = 0.5;
    refuse(&crew.options, "`replicas.lr`");
    with                    = ring;
    with.optimizer.momentum = 0.9;
    refuse(&crew.options, "`replicas.optimizer`");
    with          = ring;
    with.topology = LK_TOPOLOGY_PAIRS + 1;
    refuse(&crew.options, "there is no topology 4");
    with                  = ring;
    crew.options.exchange = &some;
    refuse(&crew.options, "leave out `exchange`");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_are_those_of_the_topology),
        cmocka_unit_test(a_round_of_distances_reaches_all),
        cmocka_unit_test(the_bytes_of_pairs_are_those_of_many_mixings),
        cmocka_unit_test(mixing_is_that_of_the_oracle_on_any_ranks),
        cmocka_unit_test(what_goes_with_the_mean_of_all_only_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
