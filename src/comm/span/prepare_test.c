/* prepare_test.c -- the constants that rank 0 determines before the first choice, on all ranks.
 *
 * Goal:   constants come from the given file, else from the cache, else from a measurement, which
 *         is cached.  An unusable cache file is replaced.  All ranks have equal constants.  A
 *         simulation measures nothing by itself.  With shared cores, algorithms that send less are
 *         preferred.
 * Method: hosted_testing.h; lki_tuning_prepare() is called as for real links.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/hash.h"
#include "comm/algorithm/schedule.h"
#include "comm/span/tuning.h"
#include "comm/hosted_testing.h"

/* ---- Sources ----------------------------------------------------------------------------- */

typedef struct {
    char        cache[64]; /* cache directory */
    const char *tuning;    /* file of constants that the user gives */
    const char *expected;  /* this text and `and` must occur in rank 0's description of the
                            * source */
    const char *and;
    lki_model   model;     /* rank 0's model after the run */
} sources;

static bool prepares(lk_comm *comm, void *context)
{
    sources    *s      = context;
    lki_tuning *tuning = &comm->self->tuning;
    uint64_t    mine[HOSTED_MAX], all[HOSTED_MAX];

    CHECK(s->tuning != NULL || strcmp(tuning->source, "those of a network of 10 Gbit/s") == 0);
    (void)snprintf(tuning->cache, sizeof tuning->cache, "%s", s->cache);
    CHECK(lki_tuning_prepare(comm) == LK_OK);
    if (comm->rank == 0) {
        s->model = tuning->model;
        if (strstr(lk_comm_tuning(comm), s->expected) == NULL ||
            strstr(lk_comm_tuning(comm), s->and) == NULL)
            fprintf(stderr, "it says \"%s\"\n", lk_comm_tuning(comm));
        CHECK(strstr(lk_comm_tuning(comm), s->expected) != NULL);
        CHECK(strstr(lk_comm_tuning(comm), s->and) != NULL);
    }
    mine[0] = lki_xxh3(&tuning->model, sizeof tuning->model) ^
              lki_xxh3(&tuning->cores, sizeof tuning->cores);
    CHECK(lk_all_gather(comm, mine, all, sizeof *mine) == LK_OK);
    for (uint32_t rank = 0; rank < comm->size; rank++)
        CHECK(all[rank] == mine[0]);
    return true;
}

static void run(sources *s, const char *expected, const char *and, uint32_t hosts)
{
    s->expected = expected;
    s->and      = and;
    assert_true(hosted_all((hosted){ .hosts = hosts, .each = 5 - hosts, .tuning = s->tuning },
                           prepares, s));
}

/* Runs a shell command in which $D is the folder. */
static void shell(const char *command, const char *folder)
{
    assert_int_equal(setenv("D", folder, 1), 0);
    assert_int_equal(system(command), 0);
}

static void constants_are_measured_once(void **state)
{
    sources s = { .cache = "/tmp/lockstep-cache-XXXXXX" };

    (void)state;
    assert_non_null(mkdtemp(s.cache));
    strcat(s.cache, "/a/b"); /* neither folder exists yet */
    run(&s, "measured, and kept in ", s.cache, 3);
    lki_model first = s.model;
    run(&s, "of ", s.cache, 3);
    assert_true(fabs(s.model.beta / first.beta - 1) < 1e-3); /* the file has four digits */
    run(&s, "measured, and kept in ", s.cache, 2); /* a different set of hosts */

    shell("for f in $D/*; do echo 'alpha 1e-5' > $f; done", s.cache);
    run(&s, "measured (instead: ", "is not whole", 3);
    run(&s, "of ", "", 3);
    shell("for f in $D/*; do echo rubbish > $f; done", s.cache);
    run(&s, "measured (instead: ", "expected alpha", 3);
    run(&s, "of ", "", 3);
    shell("for f in $D/*; do : > $f; done", s.cache);
    run(&s, "measured (instead: ", "is not whole", 3);
    shell("test $(ls $D | wc -l) = 2 && rm -r $(dirname $(dirname $D))", s.cache);
}

static void constants_are_measured_without_a_usable_cache(void **state)
{
    sources s = { .cache = "/dev/null/x" };

    (void)state;
    run(&s, "measured; ", "Not a directory", 3);
    s.cache[0] = '\0';
    run(&s, "measured", "", 3);
}

static void a_given_file_overrides_the_cache(void **state)
{
    sources s       = { .cache = "/tmp/lockstep-cache-XXXXXX" };
    char    path[80];

    (void)state;
    assert_non_null(mkdtemp(s.cache));
    (void)snprintf(path, sizeof path, "%s/mine", s.cache);
    assert_int_equal(lki_model_write(&(lki_model){ 1, 2, 3, 4 }, path), LK_OK);
    s.tuning = path;
    run(&s, "", "", 3);
    assert_true(s.model.alpha == 1 && s.model.gamma == 4);
    shell("test $(ls $D | wc -l) = 1 && rm -r $D", s.cache); /* nothing was cached */
}

/* ---- Cores ------------------------------------------------------------------------------- */

/* Counts the cores of four ranks.  Each is bound to a core of its own, or all to the same two. */
static double cores_of(const uint64_t *machines, bool alone, const uint64_t *containers,
                       double granted)
{
    lki_rank_cores of[4];
    for (size_t rank = 0; rank < 4; rank++) {
        of[rank] = (lki_rank_cores){ machines[rank], containers[rank], granted, { { 0 } } };
        CPU_SET(alone ? rank : 0, &of[rank].bound);
        if (!alone)
            CPU_SET(1, &of[rank].bound);
    }
    return lki_tuning_cores(4, of);
}

static void cores_are_counted(void **state)
{
    const uint64_t one[4] = { 7, 7, 7, 7 }, two[4] = { 7, 8, 7, 8 }, uneven[4] = { 7, 7, 7, 8 };

    (void)state;
    assert_true(cores_of(one, true, one, 0) == 0);  /* each rank is bound to a core */
    assert_true(cores_of(one, false, one, 0) == 2); /* four ranks share two cores */
    assert_true(cores_of(two, false, two, 0) == 0); /* each machine has two cores for two ranks */
    assert_true(fabs(cores_of(uneven, false, uneven, 0) - 4 * 2. / 3) < 1e-9);
    assert_true(cores_of(one, true, one, 4) == 0); /* limits of containers */
    assert_true(cores_of(one, true, one, 0.5) == 0.5);
    assert_true(cores_of(one, true, two, 2) == 0); /* two containers on a machine */
    assert_true(cores_of(one, true, two, 1) == 2);
    assert_true(cores_of(two, false, two, 1.5) == 3);
    assert_true(cores_of(one, false, one, 3) == 2); /* the cores are fewer than the limit */
}

/* ---- Choosing ---------------------------------------------------------------------------- */

static const char *chosen(const lki_tuning *tuning, lki_op_kind kind, uint32_t ranks, uint32_t each,
                          size_t bytes)
{
    const lki_problem p = { .kind = kind, .size = ranks, .each = each, .dtype = LK_F32,
                            .op = LK_SUM, .width = 4, .bytes = bytes, .window = SIZE_MAX };
    return lki_tuning_choose(tuning, &p)->name;
}

static const char *chosen_tree(const lki_tuning *tuning, uint32_t hosts, uint32_t branches,
                               size_t bytes)
{
    const lki_problem p = { .kind = LKI_OP_TREE_REDUCE, .size = hosts, .width = 4, .bytes = bytes,
                            .hosts = hosts, .branches = branches };
    return lki_tuning_choose(tuning, &p)->name;
}

/* Linear saves a round, and every host sums everything.  It is never chosen if it sends more bytes
 * than direct, unless it is selected. */
static void a_tree_reduce_is_linear_where_that_is_faster(void **state)
{
    lki_tuning slow = { .model = { 1e-3, 3e-6, 8e-9, 0.1e-9 } };

    (void)state;
    assert_string_equal(chosen_tree(&slow, 2, 2, 1 << 20), "linear");
    assert_string_equal(chosen_tree(&slow, 2, 2, 100 << 20), "direct");
    assert_string_equal(chosen_tree(&slow, 2, 3, 4096), "direct");
    assert_string_equal(chosen_tree(&slow, 3, 3, 4096), "direct");
    slow.model.gamma = 1e-6;
    assert_string_equal(chosen_tree(&slow, 2, 2, 1 << 20), "direct");
    assert_int_equal(lki_tuning_force(&slow, "tree_reduce:linear", NULL), LK_OK);
    assert_string_equal(chosen_tree(&slow, 3, 3, 1 << 20), "linear");
    assert_int_equal(lki_tuning_force(&slow, "tree_reduce:halving", NULL), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "tree_reduce has no \"halving\", but direct, "
                                                     "linear"));
}

static void choices_are_those_of_the_constants(void **state)
{
    /* Ranks on two cores of one machine, over loopback; and ranks with a core each. */
    const lki_tuning crowded = { .model = { 16e-6, 14e-6, 0.9e-9, 7e-12 }, .cores = 2 };
    const lki_tuning free    = { .model = crowded.model };
    const lki_tuning slow    = { .model = { 30e-6, 3e-6, 8e-9, 0.1e-9 } };

    (void)state;
    assert_string_equal(chosen(&free, LKI_OP_ALL_REDUCE, 4, 0, 4), "linear");
    assert_string_equal(chosen(&crowded, LKI_OP_ALL_REDUCE, 8, 0, 4), "tree");
    assert_string_equal(chosen(&crowded, LKI_OP_ALL_REDUCE, 4, 0, 1 << 20), "halving");
    assert_string_equal(chosen(&crowded, LKI_OP_ALL_REDUCE, 4, 2, 4), "levels");
    assert_string_equal(chosen(&crowded, LKI_OP_ALL_REDUCE, 4, 2, 1 << 20), "levels");
    assert_string_equal(chosen(&slow, LKI_OP_ALL_REDUCE, 3, 0, 1 << 20), "direct");
    assert_string_equal(chosen(&slow, LKI_OP_BROADCAST, 16, 0, 1 << 20), "tree");
    assert_string_equal(chosen(&slow, LKI_OP_BROADCAST, 2, 0, 1 << 20), "linear");
    assert_string_equal(chosen(&slow, LKI_OP_ALL_GATHER, 8, 4, 1 << 20), "levels");
}

/* Checks that the algorithm `levels` costs as much as its exchange between the hosts, and one small
 * message. */
static void the_cost_of_levels_is_that_between_hosts(void **state)
{
    const lki_tuning  slow = { .model = { 30e-6, 3e-6, 8e-9, 0 } };
    const lki_problem all  = { .kind = LKI_OP_ALL_REDUCE, .size = 8, .each = 4, .dtype = LK_F32,
                               .op = LK_SUM, .width = 4, .bytes = 1 << 20, .window = SIZE_MAX };
    double between = 30e-6 + 3e-6 + (1 << 20) * 8e-9; /* the linear algorithm, with all slices at
                                                       * once */

    (void)state;
    assert_true(fabs(lki_tuning_seconds(&slow, &lki_method_levels, &all) - between - 30e-6)
                < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_counted),
        cmocka_unit_test(a_tree_reduce_is_linear_where_that_is_faster),
        cmocka_unit_test(choices_are_those_of_the_constants),
        cmocka_unit_test(the_cost_of_levels_is_that_between_hosts),
        cmocka_unit_test(constants_are_measured_once),
        cmocka_unit_test(constants_are_measured_without_a_usable_cache),
        cmocka_unit_test(a_given_file_overrides_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
