/* layerwise_test.c -- LARS and LAMB against their papers' formulas in double precision.
 *
 * Goal:   trust ratios are computed from the norms of whole tensors (several spans long) and of the
 *         clipped mean gradient, and not used for parameters without decay.
 * Method: one worker, two virtual workers, a model of two tensors; the same steps in doubles.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "lockstep/parallel.h"

enum { LONG = 9001, SHORT = 5, ELEMENTS = LONG + SHORT, STEPS = 5, COUNT = 6 };
#define RATE 0.01

static const lk_param model[] = {
    { .name = "w", .shape = { 1, { LONG } }, .init = LK_INIT_NORMAL, .scale = 0.1f },
    { .name = "b", .shape = { 1, { SHORT } }, .init = LK_INIT_ONE, .no_decay = true },
};

static double gradient(uint32_t step, uint32_t v, uint32_t i)
{
    lki_random r = lki_philox(7, LKI_RNG_DATA, i, step, v, 0);
    return (double)lki_random_unit(r.word[0]) - 0.45;
}

typedef struct {
    double p[ELEMENTS], m[ELEMENTS], v[ELEMENTS], g[ELEMENTS], u[ELEMENTS];
    double clip_norm;
} plain;

static double norm(const double *x, size_t first, size_t end)
{
    double sum = 0;
    for (size_t i = first; i < end; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void mean_gradient(plain *s, uint32_t step)
{
    for (uint32_t i = 0; i < ELEMENTS; i++)
        s->g[i] = (gradient(step, 0, i) + gradient(step, 1, i)) / COUNT;
    double all = norm(s->g, 0, ELEMENTS);
    double by  = s->clip_norm > 0 && all > s->clip_norm ? s->clip_norm / (all + 1e-6) : 1;
    for (uint32_t i = 0; i < ELEMENTS; i++)
        s->g[i] *= by;
}

/* Computes v = m v + lr trust (g + wd w); w -= v. */
static void lars_tensor(plain *s, const lk_optimizer *o, size_t first, size_t end, bool excluded)
{
    double decay = excluded ? 0 : o->weight_decay, w = norm(s->p, first, end);
    double trust = excluded ? 1 : 0.001 * w / (norm(s->g, first, end) + decay * w);
    for (size_t i = first; i < end; i++) {
        s->m[i] = 0.9 * s->m[i] + RATE * trust * (s->g[i] + decay * s->p[i]);
        s->p[i] -= s->m[i];
    }
}

static void lamb_tensor(plain *s, const lk_optimizer *o, uint32_t step, size_t first, size_t end,
                        bool excluded)
{
    double decay = excluded ? 0 : o->weight_decay, w = norm(s->p, first, end);
    double c1 = o->uncorrected ? 1 : 1 - pow(0.9, step + 1);
    double c2 = o->uncorrected ? 1 : 1 - pow(0.999, step + 1);
    for (size_t i = first; i < end; i++) {
        s->m[i] = 0.9 * s->m[i] + 0.1 * s->g[i];
        s->v[i] = 0.999 * s->v[i] + 0.001 * s->g[i] * s->g[i];
        s->u[i] = s->m[i] / c1 / (sqrt(s->v[i] / c2) + 1e-6) + decay * s->p[i];
    }
    double trust = excluded ? 1 : w / norm(s->u, first, end);
    for (size_t i = first; i < end; i++)
        s->p[i] -= RATE * trust * s->u[i];
}

static void plain_step(plain *s, const lk_optimizer *o, uint32_t step)
{
    mean_gradient(s, step);
    for (int t = 0; t < 2; t++) {
        size_t first = t == 0 ? 0 : LONG, end = t == 0 ? LONG : ELEMENTS;
        bool   excluded = t == 1 && !o->decay_all;
        if (o->kind == LK_LARS)
            lars_tensor(s, o, first, end, excluded);
        else
            lamb_tensor(s, o, step, first, end, excluded);
    }
}

static void take_step(lk_parallel *p, uint32_t step)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    assert_int_equal(lk_parallel_begin(p, step), LK_OK);
    while (lk_parallel_next(p, &turn)) {
        /* terms are ordered from the last parameter to the first */
        for (uint32_t i = 0; i < ELEMENTS; i++)
            lk_parallel_grad(p, 0, i < LONG ? 1 : 0)[i < LONG ? i : i - LONG] +=
                (float)gradient(step, turn.virtual_worker, i);
        lk_parallel_report(p, 0, 1, COUNT / 2, COUNT / 2, 0);
    }
    assert_int_equal(lk_parallel_finish(p, RATE, &result), LK_OK);
}

static void follows(lk_optimizer optimizer, double clip_norm)
{
    static plain        s;
    lk_comm            *comm    = NULL;
    lk_parallel        *p       = NULL;
    lk_parallel_options options = { .struct_size = sizeof(lk_parallel_options),
                                    .virtual_workers = 2, .optimizer = optimizer,
                                    .clip_norm = clip_norm, .seed = 4 };
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, 2, &options), LK_OK);
    s = (plain){ .clip_norm = clip_norm };
    for (uint32_t i = 0; i < ELEMENTS; i++)
        s.p[i] = (double)lk_parallel_param(p, i < LONG ? 0 : 1)[i < LONG ? i : i - LONG];
    for (uint32_t step = 0; step < STEPS; step++) {
        take_step(p, step);
        plain_step(&s, &optimizer, step);
    }
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        double got = (double)lk_parallel_param(p, i < LONG ? 0 : 1)[i < LONG ? i : i - LONG];
        if (!(fabs(got - s.p[i]) < 2e-6))
            fail_msg("%s, element %u: %.9g, not %.9g", lk_optimizer_name(optimizer.kind), i, got,
                     s.p[i]);
    }
    lk_parallel_free(p);
    lk_comm_free(comm);
}

static void lars_follows_its_paper(void **state)
{
    (void)state;
    follows((lk_optimizer){ .kind = LK_LARS, .weight_decay = 0.05 }, 0);
    follows((lk_optimizer){ .kind = LK_LARS, .weight_decay = 0.05, .decay_all = true }, 2);
}

static void lamb_follows_its_paper(void **state)
{
    (void)state;
    follows((lk_optimizer){ .kind = LK_LAMB, .weight_decay = 0.1 }, 0);
    follows((lk_optimizer){ .kind = LK_LAMB, .weight_decay = 0.1, .decay_all = true }, 2);
    follows((lk_optimizer){ .kind = LK_LAMB, .uncorrected = true }, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lars_follows_its_paper),
        cmocka_unit_test(lamb_follows_its_paper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
