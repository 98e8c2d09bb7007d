/* memory_test.c -- checks that joint turns are as large as a limit of memory allows.
 *
 * Goal:    a run under a limit has the largest joint turns whose memory does not exceed it, and
 *          single turns if no size fits.  All ranks choose the same size, also if their limits
 *          differ.  Replicas are counted.
 * Method:  the memory of each size is computed, and is given as the limit, or a byte less.
 * Control: without a limit, and in a run that needs the gradient of each virtual worker.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/world_testing.h"
#include "lockstep/data.h"
#include "lockstep/train.h"
#include "train/loop/loop.h"

enum { RANKS = 2 };

typedef struct {
    lk_train_config config;
    lk_dataset     *dataset;
    lk_model       *model;
    lk_exec        *exec;
    lki_run_shape   shape;
    uint32_t        sizes[1];
} subject;

/* Opens an mlp with 32 virtual workers.  With more values per sample, large turns need more memory
 * for activations than they save in gradients. */
static void open_subject(subject *s, const char *source, uint32_t workers)
{
    *s = (subject){ .config = { .struct_size             = sizeof(lk_train_config),
                                .model                   = "mlp",
                                .data.source             = source,
                                .global_batch            = 256,
                                .micro_batch             = 8,
                                .virtual_workers         = 32,
                                .workers                 = workers,
                                .steps                   = 1,
                                .optimizer               = { .kind = LK_SGD },
                                .schedule                = { .lr = 0.1 },
                                .model_options           = { .hidden = { 128 }, .hidden_count = 1 },
                                .elastic.rebalance       = LK_REBALANCE_OFF,
                                .checkpoint.resume_step  = -1 },
                    .sizes = { workers } };
    assert_int_equal(lk_train_check(&s->config), LK_OK);
    lk_dataset_options data = lki_dataset_options(&s->config);
    assert_int_equal(lk_dataset_open(&s->dataset, source, &data), LK_OK);
    lk_model_options options = lki_model_options(&s->config, lk_dataset_describe(s->dataset));
    assert_int_equal(lk_model_build(&s->model, "mlp", &options), LK_OK);
    assert_int_equal(lk_exec_open(&s->exec, 1, NULL), LK_OK);
    s->shape = (lki_run_shape){ .config = &s->config,
                                .model  = s->model,
                                .exec   = s->exec,
                                .sizes  = s->sizes,
                                .hosts  = 1 };
}

static void close_subject(subject *s)
{
    lk_exec_free(s->exec);
    lk_model_free(s->model);
    lk_dataset_free(s->dataset);
}

/* Returns the memory of turns of up to `joint` virtual workers under a limit. */
static size_t bytes_of(subject *s, uint32_t joint)
{
    lk_train_cost cost;
    s->config.host_memory = SIZE_MAX;
    assert_int_equal(lki_run_cost(&cost, &s->shape, joint), LK_OK);
    return lk_train_cost_bytes(&cost);
}

static uint32_t choose(subject *s, size_t limit)
{
    s->config.host_memory = limit;
    return lki_joint_largest(lki_joint_fitting(&s->shape));
}

/* Compares the choice with the memory of all sizes. */
static uint32_t expect(subject *s, uint32_t most, size_t limit)
{
    uint32_t largest = 1;
    for (uint32_t joint = 2; joint <= most; joint *= 2)
        if (bytes_of(s, joint) <= limit)
            largest = joint;
    return largest;
}

#define SMALL "synthetic:images=256,h=4,w=4,c=1,classes=4"
#define LARGE "synthetic:images=256,h=64,w=64,c=1,classes=4"

static void the_largest_turns_that_fit_are_chosen(void **state)
{
    static const char *const sources[] = { SMALL, LARGE };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        subject s;
        open_subject(&s, sources[i], 1);
        uint32_t most = lki_joint_most(&s.config, s.model, s.exec), fewer = 0;
        assert_int_equal(most, 32);
        assert_int_equal(choose(&s, 0), most);
        for (uint32_t joint = 2; joint <= most; joint *= 2) {
            size_t bytes = bytes_of(&s, joint);
            assert_int_equal(choose(&s, bytes), expect(&s, most, bytes));
            assert_true(choose(&s, bytes) >= joint);
            assert_int_equal(choose(&s, bytes - 1), expect(&s, most, bytes - 1));
            assert_int_not_equal(choose(&s, bytes - 1), joint);
            fewer += choose(&s, bytes - 1) < joint && choose(&s, bytes) == joint;
        }
        assert_true(fewer > 0);
        assert_int_equal(choose(&s, 1), 1);
        close_subject(&s);
    }
}

/* Checks that a limit of half the memory gives half the turns, where activations are most of the
 * memory. */
static void a_byte_less_halves_large_turns(void **state)
{
    subject s;
    (void)state;
    open_subject(&s, LARGE, 1);
    size_t bytes = bytes_of(&s, 32);
    assert_int_equal(choose(&s, bytes), 32);
    assert_int_equal(choose(&s, bytes - 1), 16);
    close_subject(&s);
}

static void excluded_runs_keep_single_turns(void **state)
{
    subject s;
    (void)state;
    open_subject(&s, SMALL, 1);
    s.config.audit = 1;
    assert_int_equal(choose(&s, 0), 1);
    assert_int_equal(choose(&s, SIZE_MAX), 1);
    close_subject(&s);
}

/* The session of each rank chooses; the second rank has another limit. */
typedef struct {
    size_t   limits[RANKS];
    uint32_t chosen[RANKS];
} limits;

static bool choose_together(lk_comm *comm, void *context)
{
    limits  *l    = context;
    uint32_t rank = lk_comm_rank(comm);
    subject  s;

    open_subject(&s, LARGE, RANKS);
    s.config.host_memory = l->limits[rank];
    lki_session session  = lki_session_of(&s.config, comm, comm);
    session.dataset      = s.dataset;
    session.model        = s.model;
    session.exec         = s.exec;
    bool good            = lki_session_joint(&session) == LK_OK;
    l->chosen[rank]      = session.joint;
    close_subject(&s);
    return good;
}

static void ranks_choose_what_fits_on_all_hosts(void **state)
{
    subject s;
    (void)state;
    open_subject(&s, LARGE, RANKS);
    size_t sixteen = bytes_of(&s, 16);
    close_subject(&s);
    limits   cases[] = { { { 0, 0 }, { 0 } },
                         { { sixteen, 0 }, { 0 } },
                         { { sixteen, sixteen - 1 }, { 0 } },
                         { { 0, 1 }, { 0 } } };
    uint32_t wanted[] = { 16, 16, 8, 1 };
    for (size_t i = 0; i < 4; i++) {
        assert_true(world_all(RANKS, true, choose_together, &cases[i]));
        for (uint32_t r = 0; r < RANKS; r++)
            assert_int_equal(cases[i].chosen[r], wanted[i]);
    }
}

/* A model whose weights are a 40th of the machine's memory is accepted; 64 replicas or errors of it
 * on a host are refused. */
static void groups_must_fit_into_the_machine(void **state)
{
    const double    machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double    row     = sizeof(float) * (100 + 1 + 4); /* of a hidden neuron */
    lk_train_config config = { .struct_size     = sizeof config,
                               .model           = "mlp",
                               .data.source     = "synthetic:images=128,h=10,w=10,c=1,classes=4",
                               .global_batch    = 128,
                               .micro_batch     = 2,
                               .virtual_workers = 64,
                               .workers         = 2,
                               .steps           = 1,
                               .schedule        = { .lr = 0.1 },
                               .model_options   = { .hidden_count = 1 },
                               .checkpoint.resume_step = -1 };
    (void)state;
    config.model_options.hidden[0] = (uint32_t)(machine / 40 / row);
    assert_int_equal(lk_train_check(&config), LK_OK);
    config.exchange.local.steps = 2;
    config.workers_here         = 1;
    assert_int_equal(lk_train_check(&config), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "but the machine has"));
    config.exchange.local.steps = 0;
    config.exchange.groups      = 0;
    config.exchange.compressor  = "sign";
    config.workers_here         = 0;
    assert_int_equal(lk_train_check(&config), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "what groups keep"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_turns_that_fit_are_chosen),
        cmocka_unit_test(a_byte_less_halves_large_turns),
        cmocka_unit_test(excluded_runs_keep_single_turns),
        cmocka_unit_test(ranks_choose_what_fits_on_all_hosts),
        cmocka_unit_test(groups_must_fit_into_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
