/* groups_onebit_values_test.c -- the values of onebit-adam and onebit-lamb.
 *
 * Goal:    the values are those of 1-bit Adam and 1-bit LAMB in double precision, as DeepSpeed
 *          computes them, up to rounding, with the servers' scales for blocks of 4096 elements.  An
 *          automatic freeze is at the step at which the reference's second moment is stable.
 *          That of onebit-lamb multiplies momenta by DeepSpeed's factors, which is no difference.
 * Control: references give other values whose servers forget their error, or have a scale for a
 *          rank's slice, or whose lamb has no factor, one that changes at once, or the last ratio.
 */
#include <math.h>

#include "parallel/features/onebit_testing.h"

/* ---- The reference ----------------------------------------------------------------------- */

/* Names the mistakes that the reference makes on purpose. */
typedef enum {
    RIGHT,
    FORGETS_SERVER,
    SCALE_OF_SLICE,
    SHARES_ERROR,
    OF_ADAM,            /* the rest are of onebit-lamb */
    FIXED_FACTOR = OF_ADAM,
    SUDDEN_FACTOR,
    LAST_RATIO,
    MISTAKES
} mistake;

typedef struct {
    double p[LKT_ELEMENTS_MAX], m[LKT_ELEMENTS_MAX], v[LKT_ELEMENTS_MAX];
    double worker[LEAVES][LKT_ELEMENTS_MAX], server[LKT_ELEMENTS_MAX], mean[LKT_ELEMENTS_MAX];
    double f[LKT_ELEMENTS_MAX], u[LKT_ELEMENTS_MAX]; /* of onebit-lamb: optim/lamb.h */
    double ratio, factor;
    double scaling; /* DeepSpeed's scaling_coeff */
} tensor;

static tensor reference[LKT_PARAMS];
static double sums_of_v[STEPS + 1]; /* [n]: after n updates, corrected */

/* The mean gradient of a group, as make_silent() makes it; counts are 3. */
static double gradient_of(const tensor *t, uint32_t param, size_t i, uint32_t step, uint32_t group)
{
    const uint32_t width = LEAVES / GROUPS, term = LKT_PARAMS - 1 - param;
    double         sum   = 0;
    for (uint32_t v = group * width; v < (group + 1) * width; v++)
        sum += (double)lkt_noise((uint32_t)i, step * 100 + term, v, 0) + 0.01 * t->p[i];
    return param == 0 && i < SILENT && step < FREEZE ? 0
                                                     : (double)scale_of(step) * sum / (3 * width);
}

static double sign_of(double x)
{
    return x < 0 ? -1 : 1;
}

/* Compresses elements that are present to scale and sign, and writes the residual. */
static void compress_to(const tensor *t, size_t first, size_t count, const double *x, double *said,
                        double *error)
{
    double squares = 0, present = 0;
    for (size_t i = first; i < first + count; i++) {
        squares += t->v[i] == 0 ? 0 : x[i] * x[i];
        present += t->v[i] != 0;
    }
    const double scale = present == 0 ? 0 : sqrt(squares / present);
    for (size_t i = first; i < first + count; i++) {
        said[i]  = t->v[i] == 0 ? 0 : scale * sign_of(x[i]);
        error[i] = t->v[i] == 0 ? 0 : x[i] - said[i];
    }
}

/* Computes the new momentum of a tensor (DeepSpeed, compressed_allreduce()). */
static void reference_momentum(tensor *t, uint32_t param, size_t count, uint32_t step, mistake how)
{
    static double x[LKT_ELEMENTS_MAX], said[LKT_ELEMENTS_MAX];
    for (size_t i = 0; i < count; i++)
        t->mean[i] = how == FORGETS_SERVER ? 0 : t->server[i];
    for (uint32_t g = 0; g < GROUPS; g++) {
        double *error = t->worker[how == SHARES_ERROR ? 0 : g];
        for (size_t i = 0; i < count; i++)
            x[i] = t->scaling * (0.9 * t->m[i] + 0.1 * gradient_of(t, param, i, step, g)) +
                   error[i];
        compress_to(t, 0, count, x, said, error);
        for (size_t i = 0; i < count; i++)
            t->mean[i] += said[i] / GROUPS;
    }
    const size_t block = how == SCALE_OF_SLICE ? (count + 1) / 2 : BLOCK;
    for (size_t at = 0; at < count; at += block)
        compress_to(t, at, at + block < count ? block : count - at, t->mean, t->m, t->server);
    for (size_t i = 0; i < count; i++)
        t->m[i] /= t->scaling;
}

/* Updates the moments of a step before the freeze. */
static void plain_moments(tensor *t, uint32_t param, size_t count, uint32_t step)
{
    for (size_t i = 0; i < count; i++) {
        double g = 0;
        for (uint32_t k = 0; k < GROUPS; k++)
            g += gradient_of(t, param, i, step, k) / GROUPS;
        t->m[i] = 0.9 * t->m[i] + 0.1 * g;
        t->v[i] = now->beta2 * t->v[i] + (1 - now->beta2) * g * g;
        t->f[i] = t->v[i];
        sums_of_v[step + 1] += t->v[i] / (1 - pow(now->beta2, step + 1));
    }
}

static double norm_of(size_t count, const double *x)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static double limit(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

/* Returns the factor of a frozen step, for momenta of norm `alone` in moves t->u. */
static double factor_of(const tensor *t, size_t count, uint32_t step, double alone, mistake how)
{
    const double before = 1 - pow(now->beta2, now->freeze), fresh = 1 - pow(now->beta2, step + 1);
    double       most = 0;
    for (size_t i = 0; i < count; i++)
        if (t->v[i] > 0)
            most = fmax(most, (sqrt(t->v[i] / before) + 1e-6) / (sqrt(t->f[i] / fresh) + 1e-6));
    const double share  = fmin(1, alone / norm_of(count, t->u));
    const double factor = limit(share * most + 1 - share, 0.5, 4);
    return how == FIXED_FACTOR    ? 1
           : how == SUDDEN_FACTOR ? factor
                                  : limit(factor, 0.9 * t->factor, 1.1 * t->factor);
}

/* Makes t->u, and returns the trust ratio. */
static double lamb_moves(tensor *t, uint32_t param, size_t count, uint32_t step, mistake how)
{
    const bool   frozen = step >= now->freeze;
    const double c1 = 1 - pow(0.9, step + 1);
    const double c2 = 1 - pow(now->beta2, frozen ? now->freeze : step + 1);
    const double decay = model[param].no_decay ? 0 : 0.01;
    for (size_t i = 0; i < count; i++)
        t->u[i] = t->m[i] / c1 / (sqrt(t->v[i] / c2) + 1e-6);
    const double alone = norm_of(count, t->u);
    for (size_t i = 0; i < count; i++)
        t->u[i] += decay * t->p[i];
    if (model[param].no_decay)
        return 1;
    if (frozen) {
        t->factor = factor_of(t, count, step, alone, how);
        return t->ratio * t->factor;
    }
    const double ratio = norm_of(count, t->p) / norm_of(count, t->u);
    t->ratio           = step == 0 || how == LAST_RATIO ? ratio : 0.9 * t->ratio + 0.1 * ratio;
    return ratio;
}

static void reference_step(tensor *t, uint32_t param, size_t count, uint32_t step, double lr,
                           mistake how)
{
    static double before[LKT_ELEMENTS_MAX];
    const double  seconds = step >= now->freeze ? now->freeze : step + 1;
    const double  c1 = 1 - pow(0.9, step + 1), c2 = 1 - pow(now->beta2, seconds);
    const double  decay = model[param].no_decay ? 0 : 0.01;
    memcpy(before, t->m, sizeof before);
    if (step < now->freeze)
        plain_moments(t, param, count, step);
    else
        reference_momentum(t, param, count, step, how);
    for (size_t i = 0; i < count && step >= now->freeze; i++) {
        const double g = (t->m[i] - 0.9 * before[i]) / 0.1;
        t->f[i]        = now->beta2 * t->f[i] + (1 - now->beta2) * g * g;
    }
    const bool   is_lamb = now->optimizer.kind == LK_ONEBIT_LAMB;
    const double ratio   = is_lamb ? lamb_moves(t, param, count, step, how) : 1;
    for (size_t i = 0; i < count; i++)
        t->p[i] = is_lamb ? t->p[i] - lr * ratio * t->u[i]
                          : t->p[i] * (1 - lr * decay) -
                                lr * t->m[i] / c1 / (sqrt(t->v[i]) / sqrt(c2) + 1e-8);
}

/* Finds the factors by which DeepSpeed multiplies momenta before they are encoded: those that give
 * all tensors the same root mean square, which is the mean of those at the freeze. */
static void find_scaling(void)
{
    double all[LKT_PARAMS], mean = 0;
    for (uint32_t p = 0; p < LKT_PARAMS; p++) {
        const size_t count = lk_shape_count(model[p].shape);
        all[p]             = norm_of(count, reference[p].m) / sqrt((double)count);
        mean += all[p] / LKT_PARAMS;
    }
    for (uint32_t p = 0; p < LKT_PARAMS; p++)
        reference[p].scaling = now->optimizer.kind == LK_ONEBIT_LAMB ? mean / all[p] : 1;
}

static float  trained[LKT_PARAMS][LKT_ELEMENTS_MAX], began[LKT_PARAMS][LKT_ELEMENTS_MAX];

static void take(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    for (uint32_t i = 0; i < LKT_PARAMS && step == 0; i++)
        memcpy(began[i], lk_parallel_param(p, i),
               lk_shape_count(w->model[i].shape) * sizeof(float));
}

static void take_last(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)result;
    for (uint32_t i = 0; i < LKT_PARAMS && step + 1 == STEPS; i++)
        memcpy(trained[i], lk_parallel_param(p, i),
               lk_shape_count(w->model[i].shape) * sizeof(float));
}

/* Returns the largest difference of a value after all steps, over the largest change. */
static double difference(mistake how)
{
    double most = 0, change = 0;
    memset(sums_of_v, 0, sizeof sums_of_v);
    memset(reference, 0, sizeof reference);
    for (uint32_t p = 0; p < LKT_PARAMS; p++) {
        reference[p].factor = 1;
        for (size_t i = 0; i < lk_shape_count(model[p].shape); i++)
            reference[p].p[i] = (double)began[p][i];
    }
    for (uint32_t s = 0; s < STEPS; s++) {
        if (s == now->freeze)
            find_scaling();
        for (uint32_t p = 0; p < LKT_PARAMS; p++)
            reference_step(&reference[p], p, lk_shape_count(model[p].shape), s, 0.01, how);
    }
    for (uint32_t p = 0; p < LKT_PARAMS; p++) {
        const size_t count = lk_shape_count(model[p].shape);
        for (size_t i = 0; i < count; i++) {
            most   = fmax(most, fabs(reference[p].p[i] - (double)trained[p][i]));
            change = fmax(change, fabs((double)began[p][i] - (double)trained[p][i]));
        }
    }
    return most / change;
}

/* Checks that the freeze is at the first step at which the second moment is stable. */
static void check_freeze(void)
{
    const uint32_t span = (uint32_t)lround(1 / (1 - now->beta2));
    uint32_t       step = span + 1; /* as many updates */
    if (now->start != LK_START_AUTO)
        return;
    while (sums_of_v[step] < 0.96 * sums_of_v[step - span] || step + 1 < now->after)
        step++;
    print_message("sums %.3g %.3g %.3g %.3g %.3g\n", sums_of_v[1], sums_of_v[2], sums_of_v[3],
                  sums_of_v[4], sums_of_v[5]);
    assert_int_equal(step + 1, now->freeze);
}

static void values_are_those_of(const method *m)
{
    now                 = m;
    const lk_exchange x = exchange_of(GROUPS);
    lkt_crew          w = crew_of(&x, STEPS, 1, 1);
    char              hash[65];
    w.at_step   = take;
    w.at_result = take_last;
    lkt_run_crew(&w, hash);
    for (int i = RIGHT; i < (now->optimizer.kind == LK_ONEBIT_LAMB ? MISTAKES : OF_ADAM); i++) {
        const double most = difference((mistake)i);
        print_message("%s, mistake %d: %.2g\n", lk_optimizer_name(now->optimizer.kind), i, most);
        assert_true(i == RIGHT ? most < 1e-4 : most > 1e-2);
    }
    for (size_t i = 0; i < SILENT && now->freeze == FREEZE; i++) /* absent elements decay only */
        assert_true(fabsf(trained[0][i]) <= fabsf(began[0][i]));
    (void)difference(RIGHT);
    check_freeze();
}

static void values_are_those_of_the_reference(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < METHODS; i++)
        values_are_those_of(&methods[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_reference),
    };
    return cmocka_run_group_tests_name("parallel.features.groups_onebit_values", tests, NULL, NULL);
}
