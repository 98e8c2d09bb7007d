/* trace_test.c -- tests that `lockstep train --trace` writes valid JSON however the run ended.
 * Trace intervals nest and account for the time of a step, and the weights are those of a run
 * without a trace. */
#include <jansson.h>

#include "base/thorough_testing.h"
#include "cli/command.h"

#define GPT                                                                                        \
    "train gpt --layers 2 --heads 2 --width 64 --context 32 --data "                               \
    "synthetic:tokens=20000,vocab=65 "                                                             \
    "--global-batch 8 --micro-batch 2 --virtual-workers 4 --clip-norm 1 --optimizer adamw "        \
    "--lr 1e-3 --quiet "

/* STEPS: more micro-batches than loaders prepare before tracing begins */
enum { EVENTS_MAX = 1 << 16, STEPS_MAX = 64, STEPS = 60 };

typedef struct {
    long        pid, tid;
    double      begun, ended;
    const char *category;
} event;

typedef struct {
    json_t *root;
    size_t  count;
    event  *events; /* complete events, sorted by process, track and beginning; of events with equal
                     * beginnings, the longest is first */
} trace;

static int by_place(const void *a, const void *b)
{
    const event *x = a, *y = b;
    if (x->pid != y->pid || x->tid != y->tid)
        return x->pid != y->pid ? (x->pid > y->pid ? 1 : -1) : (x->tid > y->tid ? 1 : -1);
    if (x->begun != y->begun)
        return x->begun > y->begun ? 1 : -1;
    return (x->ended < y->ended) - (x->ended > y->ended);
}

static double number(const json_t *item, const char *key)
{
    const json_t *value = json_object_get(item, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static trace read_trace(const char *folder, const char *name)
{
    char         path[128];
    json_error_t error;
    trace        t = { .root = NULL };
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    t.root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (t.root == NULL)
        fail_msg("%s: %s", path, error.text);
    json_t *list = json_object_get(t.root, "traceEvents"), *item;
    assert_true(json_is_array(list) && json_array_size(list) < EVENTS_MAX);
    t.events = calloc(json_array_size(list) + 1, sizeof *t.events);
    size_t i;
    json_array_foreach(list, i, item)
    {
        if (strcmp(json_string_value(json_object_get(item, "ph")), "X") != 0)
            continue;
        double begun = number(item, "ts");
        t.events[t.count++] =
            (event){ .pid      = (long)number(item, "pid"),
                     .tid      = (long)number(item, "tid"),
                     .begun    = begun,
                     .ended    = begun + number(item, "dur"),
                     .category = json_string_value(json_object_get(item, "cat")) };
    }
    qsort(t.events, t.count, sizeof *t.events, by_place);
    return t;
}

static void close_trace(trace *t)
{
    json_decref(t->root);
    free(t->events);
}

static size_t count_of(const trace *t, long pid, const char *category)
{
    size_t count = 0;
    for (size_t i = 0; i < t->count; i++)
        count += t->events[i].pid == pid && strcmp(t->events[i].category, category) == 0;
    return count;
}

/* Checks that intervals of a track nest or are disjoint.  Times are rounded to a thousandth. */
static void assert_nested(const trace *t)
{
    enum { DEPTH = 16 };
    const event *open[DEPTH];
    size_t       depth = 0;
    for (size_t i = 0; i < t->count; i++) {
        const event *e = &t->events[i];
        while (depth > 0 && (open[depth - 1]->pid != e->pid || open[depth - 1]->tid != e->tid ||
                             open[depth - 1]->ended <= e->begun + 1e-4))
            depth--;
        if (depth > 0 && open[depth - 1]->ended < e->ended - 2e-3)
            fail_msg("'%s' at %f ends after '%s' around it", e->category, e->begun,
                     open[depth - 1]->category);
        assert_true(depth < DEPTH);
        open[depth++] = e;
    }
}

/* Returns the share of a step that its trace intervals cover. */
static double coverage(const trace *t, const event *step)
{
    double covered = 0, until = step->begun;
    for (size_t i = 0; i < t->count; i++) {
        const event *e = &t->events[i];
        if (e == step || e->pid != step->pid || e->tid != step->tid || e->begun < step->begun ||
            e->ended > step->ended + 1e-3 || e->ended <= until)
            continue;
        covered += e->ended - (e->begun > until ? e->begun : until);
        until = e->ended;
    }
    return covered / (step->ended - step->begun);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of coverage() over the steps of process `pid`.  A single step may be distorted
 * if the machine interrupts it. */
static double coverage_of_rank(const trace *t, long pid)
{
    double shares[STEPS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < t->count; i++)
        if (t->events[i].pid == pid && strcmp(t->events[i].category, "step") == 0)
            shares[count++] = coverage(t, &t->events[i]);
    qsort(shares, count, sizeof *shares, by_value);
    assert_true(count > 0);
    return shares[count / 2];
}

static void assert_whole(const char *folder, const char *name, long ranks, size_t steps)
{
    trace t = read_trace(folder, name);
    assert_nested(&t);
    assert_int_equal(number(t.root, "lost_spans"), 0);
    for (long rank = 0; rank < ranks; rank++) {
        assert_int_equal(count_of(&t, rank, "step"), steps);
        assert_true(count_of(&t, rank, "forward of a block") >= steps * 16);
        assert_true(count_of(&t, rank, "update") == steps);
        assert_true(count_of(&t, rank, "loading a micro-batch") > 0);
        assert_true(coverage_of_rank(&t, rank) >= 0.98);
    }
    close_trace(&t);
}

static void a_trace_accounts_for_every_step(void **state)
{
    static const char *const ways[] = { "--workers 1 --threads 2", "--workers 2",
                                        "--workers 2 --worker-mode threads --loader-threads 3",
                                        "--workers 2 --hosts 2" };
    static command_result    r;
    char                     without[65], with[65], line[512];
    run_command(&r, *state, GPT "--steps 60");
    read_weights(&r, without);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i += lki_brief() ? 3 : 1) {
        (void)snprintf(line, sizeof line, GPT "--steps 60 --trace t%zu.json %s", i, ways[i]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        read_weights(&r, with);
        assert_string_equal(with, without);
        (void)snprintf(line, sizeof line, "t%zu.json", i);
        assert_whole(*state, line, i == 0 ? 1 : 2, STEPS);
    }
    (void)run_shell(&r, *state, "! ls | grep part"); /* no part of a trace remains */
    assert_int_equal(r.status, 0);
}

/* Checks that helpers of the pool have separate tracks. */
static void each_thread_has_a_trace_track(void **state)
{
    trace  t       = read_trace(*state, "t0.json");
    size_t helpers = 0;
    for (size_t i = 0; i < t.count; i++)
        helpers += t.events[i].tid == 2 && strcmp(t.events[i].category, "work") == 0;
    assert_true(helpers > 0);
    close_trace(&t);
}

static void a_failed_run_leaves_a_trace(void **state)
{
    static command_result r;
    run_command(&r, *state, GPT "--steps 9 --lr 1e30 --optimizer sgd --trace failed.json");
    assert_int_equal(r.status, 3);
    trace t = read_trace(*state, "failed.json");
    assert_nested(&t);
    assert_true(count_of(&t, 0, "forward of a block") > 0);
    close_trace(&t);
}

static void the_trace_of_a_killed_rank_is_kept(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    LK_TEST_COMMAND " " GPT "--steps 100000 --workers 2 --trace killed.json & "
                                    "until [ $(stat -c %s killed.json.rank-1.part || echo 0) -gt "
                                    "60000 ]; do sleep 0.01; done 2>/dev/null; "
                                    "kill -9 $(cut -d' ' -f2 /proc/$!/task/$!/children); wait $!");
    assert_int_not_equal(r.status, 0);
    trace t = read_trace(*state, "killed.json");
    assert_nested(&t);
    assert_true(count_of(&t, 1, "step") > 0);
    close_trace(&t);
}

static void a_trace_that_cannot_be_written_is_an_error(void **state)
{
    static command_result r;
    run_command(&r, *state, GPT "--steps 2 --workers 2 --trace nowhere/t.json");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "nowhere/t.json");
}

/* Stops the first run in the middle of merging: its draft is named after the process, and is
 * there.  A run that has merged before it is stopped is started again. */
static void a_trace_that_is_being_merged_is_refused(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    "tries=0; while [ $((tries += 1)) -lt 50 ]; do rm -f slow.json; "
                    LK_TEST_COMMAND " " GPT "--steps 60 --workers 1 --trace slow.json >first "
                    "2>&1 & until [ -e slow.json ]; do for d in slow.json.*.new; do "
                    "[ -e $d ] || continue; pid=${d#slow.json.}; pid=${pid%.new}; kill -STOP $pid; "
                    "until [ -e slow.json ] || grep -qs '^State:.T' /proc/$pid/status; do :; done; "
                    "[ ! -e $d ] || break 3; kill -CONT $pid; done; done; wait $!; done; "
                    "timeout 100 " LK_TEST_COMMAND " " GPT "--steps 2 --workers 1 --trace "
                    "slow.json; echo $?; kill -CONT $pid; wait $!; echo $?");
    assert_string_equal(r.out, "1\n0\n");
    assert_says(r.err, "another run is writing the --trace 'slow.json'");
    trace t = read_trace(*state, "slow.json");
    assert_int_equal(count_of(&t, 0, "step"), 60);
    close_trace(&t);
}

/* Copies the part of a run, as one that is still running has it.  Expects that a run which fails
 * before it has parts, here when it logs its first line, leaves it as it is. */
static void a_run_that_fails_early_merges_no_parts_of_others(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    LK_TEST_COMMAND " " GPT "--steps 100000 --workers 1 --trace kept.json "
                    ">first 2>&1 & until [ -s kept.json.rank-0.part ]; do sleep 0.01; done; "
                    "cp kept.json.rank-0.part part; kill $!; wait $!; echo $?; "
                    "cp part kept.json.rank-0.part; rm kept.json; " LK_TEST_COMMAND " " GPT
                    "--steps 9 --workers 1 --log /dev/full --trace kept.json; echo $?; ls kept*");
    assert_string_equal(r.out, "75\n1\nkept.json.rank-0.part\n");
    assert_says(r.err, "cannot write the log '/dev/full'");
}

/* Puts files of the user where ranks have their parts.  Expects that they keep their contents. */
static void parts_replace_no_other_file(void **state)
{
    static const char *const files[] = { "echo precious >u.rank-0.part", "ln -s w u.rank-0.part",
                                         "mkfifo u.rank-0.part",
                                         "seq 999 >u.rank-0.part" };
    static command_result r;
    char                  line[1000];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(line, sizeof line,
                       "rm -f u.*; echo precious >w; %s; stat -c '%%i %%s' u.* w >before; timeout "
                       "100 " LK_TEST_COMMAND " " GPT "--steps 2 --workers 1 --trace u; echo $?; "
                       "stat -c '%%i %%s' u.* w | diff - before", files[i]);
        (void)run_shell(&r, *state, line);
        assert_string_equal(r.out, "1\n");
        assert_says(r.err, "'u.rank-0.part' is a link or a file of another kind");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_accounts_for_every_step),
        cmocka_unit_test(each_thread_has_a_trace_track),
        cmocka_unit_test(a_failed_run_leaves_a_trace),
        cmocka_unit_test(the_trace_of_a_killed_rank_is_kept),
        cmocka_unit_test(a_trace_that_cannot_be_written_is_an_error),
        cmocka_unit_test(a_trace_that_is_being_merged_is_refused),
        cmocka_unit_test(a_run_that_fails_early_merges_no_parts_of_others),
        cmocka_unit_test(parts_replace_no_other_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
