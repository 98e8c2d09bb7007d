/* parallel/replicas/replicas_testing.h -- runs with replicas, and all that they have at the end. */
#ifndef LKI_PARALLEL_REPLICAS_TESTING_H
#define LKI_PARALLEL_REPLICAS_TESTING_H

#include <math.h>

#include "base/memory.h"
#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"
#include "parallel/replicas/internal.h"

enum { LEAVES = 8, STEPS = 7 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

static const lk_replicas diloco = {
    .struct_size = sizeof(lk_replicas),
    .count       = 4,
    .local_steps = 3,
    .optimizer   = { .kind = LK_SGD, .momentum = 0.9, .nesterov = true },
    .lr          = 0.7,
};

/* Streaming: all three parameters apart; two fragments, sent in one step each; one that is sent
 * until the step before the next. */
static const lk_replicas streaming[] = {
    { .struct_size = sizeof(lk_replicas), .count = 4, .local_steps = 3, .fragments = 3,
      .optimizer = { .kind = LK_SGD, .momentum = 0.9, .nesterov = true }, .lr = 0.7 },
    { .struct_size = sizeof(lk_replicas), .count = 2, .local_steps = 4, .fragments = 2, .delay = 1,
      .alpha = 0.25, .optimizer = { .kind = LK_SGD, .momentum = 0.9 }, .lr = 0.7 },
    { .struct_size = sizeof(lk_replicas), .count = 8, .local_steps = 3, .delay = 2 },
};

/* ---- What replicas have ------------------------------------------------------------------ */

/* A run whose last step stores what replicas have, and whose first step may load it. */
typedef struct {
    lkt_crew crew; /* first, so that hooks find the run */
    float   *saved;  /* values of all replicas, after those of the outer weights; NULL: none */
    float   *begins; /* the same to begin with; NULL: a new run */
    char     hash[65];
} run;

typedef void visit_function(lk_parallel *p, bool load, uint32_t param, uint32_t which,
                            uint32_t group, float *at);

static inline void visit_outer(lk_parallel *p, bool load, uint32_t param, uint32_t which,
                               uint32_t group, float *at)
{
    const size_t count = lk_shape_count(model[param].shape);
    (void)group;
    assert_int_equal(load ? lk_parallel_load(p, param, which, at)
                          : lk_parallel_fetch(p, param, which, 0, count, at),
                     LK_OK);
}

static inline void visit_kept(lk_parallel *p, bool load, uint32_t param, uint32_t which,
                              uint32_t group, float *at)
{
    const size_t count = lk_shape_count(model[param].shape);
    assert_int_equal(load ? lk_parallel_load_kept(p, param, which, group, at)
                          : lk_parallel_fetch_kept(p, param, which, group, 0, count, at),
                     LK_OK);
}

/* Stores or loads the running state of the outer weights and of all replicas. */
static inline size_t visit_states(lk_parallel *p, bool load, float *values)
{
    const size_t count = lkt_running[0].count;
    if (lk_parallel_state_count(p) == 0)
        return 0;
    if (load)
        assert_int_equal(lk_parallel_load_state(p, 0, values), LK_OK);
    else
        memcpy(values, lk_parallel_state_data(p, 0), count * sizeof *values);
    for (uint32_t g = 0; g < lk_parallel_groups(p); g++) {
        float *at = values + (1 + g) * count;
        assert_int_equal(load ? lk_parallel_load_replica_state(p, g, 0, at)
                              : lk_parallel_fetch_replica_state(p, g, 0, at),
                         LK_OK);
    }
    return (1 + lk_parallel_groups(p)) * count;
}

/* Stores or loads all values, in a fixed order.  Returns their number. */
static inline size_t visit_all(lk_parallel *p, bool load, float *values)
{
    const uint32_t states = lk_optimizer_state_count(&p->optimizer);
    size_t         at     = 0;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        const size_t count = lk_shape_count(model[i].shape);
        for (uint32_t w = 0; w <= states; w++, at += count)
            visit_outer(p, load, i, w, 0, values + at);
        for (uint32_t w = 0; lk_parallel_kept_name(p, i, w) != NULL; w++)
            for (uint32_t g = 0; g < lk_parallel_groups(p); g++, at += count)
                visit_kept(p, load, i, w, g, values + at);
    }
    return at + visit_states(p, load, values + at);
}

enum { VALUES_MAX = 400000 };

static inline void load_first(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    run *r = (run *)(void *)w;
    if (step == w->first && r->begins != NULL) {
        assert_int_equal(lk_parallel_resume(p, step), LK_OK);
        (void)visit_all(p, true, r->begins);
    }
}

static inline void save_last(lkt_crew *w, lk_parallel *p, uint32_t step,
                             const lk_step_result *result)
{
    run   *r      = (run *)(void *)w;
    float *values = NULL;
    (void)result;
    if (step + 1 < w->steps)
        return;
    assert_int_equal(LKI_NEW(&values, VALUES_MAX, "values"), LK_OK);
    const size_t count = visit_all(p, false, values);
    assert_true(count <= VALUES_MAX);
    if (p->rank == 0) {
        lki_sha256 hash;
        lki_sha256_begin(&hash);
        lki_sha256_add(&hash, values, count * sizeof *values);
        lki_sha256_end(&hash, r->hash);
        if (r->saved != NULL)
            memcpy(r->saved, values, count * sizeof *values);
    }
    lki_free(values);
}

static inline run make_run(const lk_replicas *replicas, const char *strategy, uint32_t ranks,
                           uint32_t hosts)
{
    run r = { .crew = lkt_make_crew(model, strategy, LEAVES, ranks) };
    r.crew.steps            = STEPS;
    r.crew.options.unused   = LK_UNUSED_ZERO;
    r.crew.options.replicas = replicas;
    if (replicas->delay > 0)
        r.crew.options.state_count = 0;
    r.crew.at_step          = load_first;
    r.crew.at_result        = save_last;
    if (hosts > 1)
        r.crew.hosts = (hosted){ .hosts = hosts, .each = ranks / hosts };
    return r;
}

/* Returns the hash of the run's results followed by that of all values. */
static inline void hash_run(run *r, char hash[129])
{
    lkt_run_crew(&r->crew, hash);
    memcpy(hash + 64, r->hash, 65);
}

static inline void hash_with(const lk_replicas *replicas, const char *strategy, uint32_t ranks,
                             uint32_t hosts, char hash[129])
{
    run r = make_run(replicas, strategy, ranks, hosts);
    hash_run(&r, hash);
}

#endif
