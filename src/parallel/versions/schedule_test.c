/* schedule_test.c -- the simulation of groups.
 *
 * Goal:    with a bound in versions no gradient is too stale, no group waits for ever, and none
 *          waits without need.  The prediction is that of a crew of which the answer is known.
 *          Ranks with different options are told.
 * Method:  an oracle that tries each task: it sorts the deadlines of all others, and looks whether
 *          all can be met.
 * Control: without the bound some gradients are too stale.
 */
#include "parallel/crew_testing.h"
#include "parallel/versions/internal.h"

enum { GROUPS_MOST = 12, GRADIENTS = 300 };

/* ---- The oracle --------------------------------------------------------------------------- */

/* Groups that have a task, or wait. */
typedef struct {
    uint32_t groups, aggregate, bound;
    uint64_t applied, begun, now;
    bool     flies[GROUPS_MOST];
    uint64_t reads[GROUPS_MOST], finish[GROUPS_MOST], done[GROUPS_MOST], task[GROUPS_MOST];
} naive;

/* Times that are often equal. */
static double odd_time(void *context, uint32_t group, uint64_t clock, uint64_t task)
{
    (void)context;
    (void)task;
    return 1 + (double)((group * 7 + clock * clock * 5) % 6) + (group == 1 ? 9 : 0);
}

/* Returns true if all tasks but that of `without` can meet their deadlines after `applied`. */
static bool can_meet(const naive *n, uint32_t without, uint64_t applied)
{
    for (uint64_t deadline = 0; deadline <= applied + GROUPS_MOST; deadline++) {
        uint64_t count = 0;
        for (uint32_t g = 0; g < n->groups; g++)
            count += g != without && n->flies[g] &&
                     (n->reads[g] + n->bound + 1) * n->aggregate <= deadline;
        if (count > 0 && applied + count > deadline)
            return false;
    }
    return true;
}

static void begin_all(naive *n)
{
    for (uint32_t g = 0; g < n->groups; g++) {
        if (n->flies[g])
            continue;
        n->flies[g] = true;
        n->reads[g] = n->applied / n->aggregate;
        if (!can_meet(n, UINT32_MAX, n->applied)) {
            n->flies[g] = false;
            continue;
        }
        n->finish[g] = n->now + (uint64_t)odd_time(NULL, g, n->done[g], 0);
        n->task[g]   = n->begun++;
    }
}

static uint32_t apply_one(naive *n)
{
    uint32_t next = UINT32_MAX;
    for (uint32_t g = 0; g < n->groups; g++)
        if (n->flies[g] && (next == UINT32_MAX || n->finish[g] < n->finish[next]) &&
            can_meet(n, g, n->applied + 1))
            next = g;
    assert_int_not_equal(next, UINT32_MAX);
    n->now         = n->finish[next] > n->now ? n->finish[next] : n->now;
    n->flies[next] = false;
    n->done[next]++;
    n->applied++;
    return next;
}

/* Compares a schedule with the oracle.  Returns the largest staleness. */
static uint64_t compare(uint32_t groups, uint32_t aggregate, uint32_t bound)
{
    const lk_async    options = { .struct_size = sizeof options, .groups = groups,
                                  .aggregate = aggregate, .bounded = true, .in_versions = true,
                                  .staleness = bound, .delays = LK_DELAYS_GIVEN,
                                  .time = odd_time };
    lki_task_schedule s;
    lk_async          read;
    naive             n    = { .groups = groups, .aggregate = aggregate, .bound = bound };
    uint64_t          most = 0;
    assert_int_equal(lki_async_read(&read, &options, groups), LK_OK);
    assert_int_equal(lki_task_schedule_open(&s, &read, 1, NULL), LK_OK);
    begin_all(&n);
    for (uint64_t at = 0; at < GRADIENTS; at++) {
        const lki_group_task got  = lki_task_schedule_next(&s);
        const uint32_t       want = apply_one(&n);
        assert_int_equal(got.group, want);
        assert_int_equal(got.reads, n.reads[want]);
        assert_int_equal(got.task, n.task[want]);
        most = lki_max(most, at / aggregate - got.reads);
        begin_all(&n);
    }
    for (uint32_t g = 0; g < groups; g++)
        assert_true(n.done[g] > GRADIENTS / groups / 8);
    lki_task_schedule_close(&s);
    return most;
}

static void no_gradient_is_staler_than_the_bound(void **state)
{
    (void)state;
    for (uint32_t groups = 1; groups <= GROUPS_MOST; groups++)
        for (uint32_t k = 1; k <= groups; k++)
            for (uint32_t more = 0; groups % k == 0 && more < 9; more += more + 1) {
                const uint32_t bound = groups / k - 1 + more;
                const uint64_t most  = compare(groups, k, bound);
                assert_true(most <= bound);
                if (more == 0) /* groups that have a task each force it */
                    assert_int_equal(most, bound);
            }
    assert_true(compare(8, 1, 100) > 8); /* the control */
}

/* A gradient that would be too stale is discarded.  A version has one of a group at most, so if it
 * has all there are none. */
static void late_gradients_are_discarded(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 4; k *= 2)
        for (uint32_t bound = 0; bound < 3; bound++) {
            const lk_async    options = { .struct_size = sizeof options, .groups = 4,
                                          .aggregate = k, .bounded = true, .in_versions = true,
                                          .staleness = bound, .drops_late = true,
                                          .delays = LK_DELAYS_GIVEN, .time = odd_time };
            lki_task_schedule s;
            lk_async          read;
            uint64_t          dropped = 0, most = 0;
            assert_int_equal(lki_async_read(&read, &options, 4), LK_OK);
            assert_int_equal(lki_task_schedule_open(&s, &read, 1, NULL), LK_OK);
            for (uint64_t at = 0; at < GRADIENTS; at++) {
                const lki_group_task got = lki_task_schedule_next(&s);
                assert_true(at / k - got.reads <= bound);
                dropped += got.dropped;
                most = lki_max(most, got.task);
            }
            assert_int_equal(dropped, s.dropped);
            assert_true(k == 4 ? dropped == 0 : bound > 0 || dropped > 0);
            assert_true(most < GRADIENTS + dropped + 4);
            lki_task_schedule_close(&s);
        }
}

static void bounds_that_none_can_keep_are_refused(void **state)
{
    lk_async out, options = { .struct_size = sizeof options, .groups = 8, .aggregate = 2,
                              .bounded = true, .in_versions = true, .staleness = 2 };
    (void)state;
    assert_int_equal(lki_async_read(&out, &options, 8), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "have a staleness of 3 at least"));
    options.staleness = 3;
    assert_int_equal(lki_async_read(&out, &options, 8), LK_OK);
    options.bounded = false;
    assert_int_equal(lki_async_read(&out, &options, 8), LK_EINVAL);
    options = (lk_async){ .struct_size = sizeof options, .delays = LK_DELAYS_GIVEN };
    lki_task_schedule s;
    assert_int_equal(lki_async_read(&out, &options, 8), LK_OK);
    assert_int_equal(lki_task_schedule_open(&s, &out, 1, NULL), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "needs `async.time`"));
    lki_task_schedule_close(&s);
}

/* ---- Predictions --------------------------------------------------------------------------- */

static lk_async_forecast predict(uint32_t groups, uint32_t aggregate, bool synchronous,
                                 uint32_t workers)
{
    const lk_async    options = { .struct_size = sizeof options, .groups = groups,
                                  .aggregate = aggregate, .bounded = synchronous };
    lk_async_forecast out;
    assert_int_equal(lk_async_predict(&out, &options, groups, 1, workers), LK_OK);
    return out;
}

static bool is_near(double value, double want)
{
    return value > want - 0.01 && value < want + 0.01;
}

/* Tasks of a synchronous run come in rounds, whose last task the others wait for. */
static void predictions_are_those_of_known_crews(void **state)
{
    (void)state;
    lk_async_forecast f = predict(2, 2, true, 2);
    assert_true(f.staleness_mean == 0 && f.staleness_max == 0);
    assert_true(is_near(f.equal, 1) && is_near(f.slow, 2.0 / 2 / 1.5));
    assert_true(f.staleness_bins[0] > 0.999 && f.group_waiting <= 0);
    assert_true(is_near(f.equal_waiting, 0) && is_near(f.slow_waiting, 0.25));
    f = predict(6, 6, true, 4); /* two rounds for four workers: 6 of 8 places */
    assert_true(is_near(f.equal, 0.75) && is_near(f.equal_waiting, 0.25));
    f = predict(4, 1, false, 2);
    assert_true(is_near(f.staleness_mean, 3) && f.staleness_max == 3);
    for (uint32_t bin = 0; bin < LK_STALENESS_BINS; bin++) /* one gradient of each, then all of 3 */
        assert_true(is_near(4096 * f.staleness_bins[bin], bin < 2 ? 1 : bin == 2 ? 4094 : 0));
    assert_true(is_near(f.equal, 1) && is_near(f.slow, 1));
    assert_true(is_near(f.equal_waiting, 0) && is_near(f.slow_waiting, 0));
    f = predict(4, 1, false, 4);
    assert_true(is_near(f.equal, 1) && f.slow > 0.5 && f.slow < 0.99);
    f = predict(1, 1, false, 1);
    assert_true(f.staleness_max == 0 && is_near(f.equal, 1) && is_near(f.slow, 1));
    const lk_async half = { .struct_size = sizeof half, .groups = 2, .aggregate = 2,
                            .bounded = true, .slow_count = 1, .slow_group = { 1 },
                            .slow_factor = { 2 } };
    assert_int_equal(lk_async_predict(&f, &half, 2, 1, 1), LK_OK);
    assert_true(is_near(f.group_waiting, 0.25)); /* group 0 waits for half of its time */
    const lk_async none = { .struct_size = sizeof none, .groups = 4 };
    assert_int_equal(lk_async_predict(&f, &none, 4, 1, 5), LK_EINVAL);
}

/* ---- Ranks --------------------------------------------------------------------------------- */

static double offset_time(void *context, uint32_t group, uint64_t clock, uint64_t task)
{
    return *(const double *)context + odd_time(NULL, group, clock, task);
}

static const lk_param vector = { .name = "w", .shape = { 1, { 40 } } };

/* A rank that opens a model with options of its own. */
typedef struct {
    lk_comm            *comm;
    lk_parallel_options options;
    lk_status           status;
} opener;

static void *open_alone(void *context)
{
    opener      *o = context;
    lk_parallel *p = NULL;
    o->status = lk_parallel_open(&p, o->comm, &vector, 1, &o->options);
    lk_parallel_free(p);
    return NULL;
}

/* Opens two ranks, and returns the status of the first. */
static lk_status open_both(const lk_async *one, const lk_async *other, double decay)
{
    const lk_async *async[] = { one, other };
    opener          o[2];
    lk_comm        *comms[2];
    assert_int_equal(lk_comm_open_threads(comms, 2, NULL), LK_OK);
    for (uint32_t r = 0; r < 2; r++) {
        o[r] = (opener){ .comm    = comms[r],
                         .options = { .struct_size     = sizeof(lk_parallel_options),
                                      .virtual_workers = 8 } };
        o[r].options.unused = LK_UNUSED_ZERO;
        o[r].options.async  = async[r];
        o[r].options.optimizer.mean_square = r == 0 ? 0.95 : decay;
    }
    lkt_run_ranks(open_alone, o, sizeof *o, 2);
    for (uint32_t r = 0; r < 2; r++)
        lk_comm_free(comms[r]);
    return o[0].status;
}

static void different_options_are_told(void **state)
{
    double         least = 0.5, other = 0.25;
    const lk_async base = { .struct_size = sizeof base, .bounded = true, .staleness = 9,
                            .delays = LK_DELAYS_GIVEN, .time = offset_time,
                            .time_context = &least };
    lk_async       versions = base, times = base;
    (void)state;
    versions.in_versions = true;
    times.time_context   = &other;
    assert_int_equal(open_both(&base, &base, 0.95), LK_OK);
    assert_int_equal(open_both(&base, &versions, 0.95), LK_EMISMATCH);
    assert_int_equal(open_both(&base, &times, 0.95), LK_EMISMATCH);
    assert_int_equal(open_both(&base, &base, 0.9), LK_EMISMATCH);
}

/* ---- The picture -------------------------------------------------------------------------- */

/* Compares the tasks of a panel, in the order in which they end, with a schedule.  Reads up to the
 * title of the next panel. */
static void compare_panel(FILE *picture, int top, const lk_async *options)
{
    lki_task_schedule s;
    lk_async          read;
    char              line[256];
    int               y = 0, tasks = 0;
    uint32_t          late = 0, reads, staleness;
    assert_int_equal(lki_async_read(&read, options, 4), LK_OK);
    assert_int_equal(lki_task_schedule_open(&s, &read, 1, NULL), LK_OK);
    while (fgets(line, sizeof line, picture) != NULL && strstr(line, ">the same") == NULL) {
        const char *label = strstr(line, ">reads ");
        (void)sscanf(line, "<rect x=\"%*d\" y=\"%d\"", &y);
        if (label == NULL)
            continue;
        tasks++;
        const int numbers = sscanf(label, ">reads %u: %u<", &reads, &staleness);
        if (numbers == 1) {
            late++;
            continue;
        }
        assert_int_equal(numbers, 2);
        const uint64_t       version = lki_task_schedule_version(&s);
        const lki_group_task got     = lki_task_schedule_next(&s);
        assert_int_equal(got.group, (y - top) / 26);
        assert_int_equal(got.reads, reads);
        assert_int_equal(version - got.reads, staleness);
        assert_int_equal(got.dropped, late);
        late = 0;
    }
    assert_true(tasks >= 18);
    lki_task_schedule_close(&s);
}

/* tools/timeline, which draws the picture, has a simulation of its own. */
static void the_picture_in_the_docs_shows_the_schedule(void **state)
{
    lk_async options = { .struct_size = sizeof options, .groups = 4, .slow_count = 3,
                         .slow_group  = { 0, 1, 2 }, .slow_factor = { 2.6, 1.3, 1.7 } };
    FILE    *picture = fopen(LK_TEST_SOURCE "/docs/timeline.svg", "r");
    (void)state;
    assert_non_null(picture);
    compare_panel(picture, 34, &options);
    options.aggregate = 2;
    options.bounded = options.in_versions = options.drops_late = true;
    compare_panel(picture, 202, &options);
    (void)fclose(picture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_gradient_is_staler_than_the_bound),
        cmocka_unit_test(late_gradients_are_discarded),
        cmocka_unit_test(bounds_that_none_can_keep_are_refused),
        cmocka_unit_test(predictions_are_those_of_known_crews),
        cmocka_unit_test(different_options_are_told),
        cmocka_unit_test(the_picture_in_the_docs_shows_the_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
