/* span/failure_test.c -- ranks on several hosts that leave, give up, die or do not call.  For ranks
 * that disagree see span/mismatch_test.c.
 *
 * Goal:   every rank receives the error, with the right status and a text that names the culprit.
 *         Every later call returns it again.  A failure on one host's board reaches the other
 *         hosts.
 * Method: hosted ranks, one per host (with the simulation's clock) and two.  An operation may be
 *         complete for one rank before another rank fails, so ranks continue until they receive the
 *         error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/hosted_testing.h"

enum { VICTIM = 1, LARGE = 100000, ROOM = LARGE * 8 };

static const hosted shapes[] = { { .hosts = 3, .each = 1 },
                                 { .hosts = 5, .each = 1, .seed = 3 },
                                 { .hosts = 2, .each = 2, .quarrels = true } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct {
    lk_comm *comm;
    float   *a, *b;
} room;

static lk_status do_barrier(room *r)
{
    return lk_barrier(r->comm);
}

static lk_status do_broadcast(room *r)
{
    return lk_broadcast(r->comm, r->a, 4096, 0);
}

static lk_status do_all_gather(room *r)
{
    return lk_all_gather(r->comm, r->a, r->b, 1000);
}

static lk_status do_all_reduce(room *r)
{
    return lk_all_reduce(r->comm, r->a, r->b, LARGE, LK_F32, LK_SUM);
}

static lk_status do_reduce(room *r)
{
    return lk_reduce(r->comm, r->a, r->b, 100, LK_F32, LK_SUM, 0);
}

static lk_status do_reduce_scatter(room *r)
{
    return lk_reduce_scatter(r->comm, r->a, r->b, 5000, LK_F64, LK_SUM);
}

static lk_status do_gather(room *r)
{
    return lk_gather(r->comm, r->a, r->b, 100, 0);
}

static lk_status do_scatter(room *r)
{
    return lk_scatter(r->comm, r->a, r->b, 100, 0);
}

static lk_status do_all_to_all(room *r)
{
    return lk_all_to_all(r->comm, r->a, r->b, 64);
}

typedef struct {
    const char *name;
    lk_status (*run)(room *r);
} operation;

static const operation operations[] = {
    { "barrier", do_barrier },       { "broadcast", do_broadcast },
    { "all_gather", do_all_gather }, { "all_reduce", do_all_reduce },
    { "reduce", do_reduce },         { "reduce_scatter", do_reduce_scatter },
    { "gather", do_gather },         { "scatter", do_scatter },
    { "all_to_all", do_all_to_all },
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* A failure: the operation in which it happens, and the error that every rank must receive. */
typedef struct {
    const operation *op;
    lk_status        expect;
    const char      *words[3];
    lki_sim         *sim;
} story;

static bool room_open(room *r, lk_comm *comm)
{
    *r = (room){ comm, calloc(1, ROOM), calloc(1, ROOM) };
    CHECK(r->a != NULL && r->b != NULL);
    return true;
}

static void room_close(room *r)
{
    free(r->a);
    free(r->b);
}

static bool is_told(lk_comm *comm, const story *s, lk_status st)
{
    char first[480];

    CHECK(st == s->expect && lk_error_last()->status == st);
    for (size_t i = 0; i < 3; i++)
        if (s->words[i] != NULL && strstr(lk_error_last()->message, s->words[i]) == NULL) {
            fprintf(stderr, "rank %u misses \"%s\"\n", lk_comm_rank(comm), s->words[i]);
            CHECK(strstr(lk_error_last()->message, s->words[i]) != NULL);
        }
    snprintf(first, sizeof first, "%s", lk_error_last()->message);
    CHECK(lk_barrier(comm) == st && strcmp(first, lk_error_last()->message) == 0);
    CHECK(lk_comm_local_size(comm, 0) > 0);
    return true;
}

/* Repeats the operation until it fails.  A rank that only sends detects the failure when no rank
 * receives its data any more. */
static lk_status go_on(room *r, const operation *op)
{
    lk_status st = LK_OK;
    for (int i = 0; i < 100000 && st == LK_OK; i++)
        st = op->run(r);
    return st == LK_OK ? lk_barrier(r->comm) : st;
}

/* ---- Ranks that leave or die ------------------------------------------------------------- */

static bool leaves(lk_comm *comm, void *context)
{
    const story *s = context;
    room         r;

    lk_status st = lk_barrier(comm); /* may already fail with the other ranks' error */
    if (lk_comm_rank(comm) == VICTIM)
        return st == LK_OK;
    if (!room_open(&r, comm))
        return false;
    bool good = is_told(comm, s, st == LK_OK ? go_on(&r, s->op) : st);
    room_close(&r);
    return good;
}

static void a_leaving_rank_is_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++) {
        story s = { .op = &operations[i], .expect = LK_EPEER, .words = { "rank 1 ", "left" } };
        assert_true(hosted_all(shapes[i % SHAPES], leaves, &s));
    }
}

static bool dies(lk_comm *comm, void *context)
{
    story *s = context;
    room   r;

    if (!room_open(&r, comm))
        return false;
    lk_status st = s->op->run(&r);
    if (lk_comm_rank(comm) == VICTIM)
        lki_sim_kill(s->sim, VICTIM);
    st        = st == LK_OK ? go_on(&r, s->op) : st;
    bool good = lk_comm_rank(comm) == VICTIM ? st != LK_OK : is_told(comm, s, st);
    room_close(&r);
    return good;
}

static void a_dead_host_is_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++) {
        story  s = { .op = &operations[i], .expect = LK_EPEER, .words = { "rank 1 is gone" } };
        hosted h = shapes[i % 2];
        h.sim    = &s.sim;
        assert_true(hosted_all(h, dies, &s));
    }
}

static bool gives_up(lk_comm *comm, void *context)
{
    const story *s = context;
    room         r;

    if (!room_open(&r, comm))
        return false;
    lk_comm_note(comm, 12, "backward");
    if (lk_comm_rank(comm) == VICTIM) {
        CHECK(lk_broadcast(comm, r.a, 1, 99) == LK_EINVAL);
        lk_comm_abort(comm);
    }
    bool good = is_told(comm, s, go_on(&r, s->op));
    room_close(&r);
    return good;
}

/* Lets the last rank, which is not on the first host, give up. */
static void a_rank_that_gives_up_is_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++) {
        story s = { .op     = &operations[i],
                    .expect = LK_EPEER,
                    .words  = { "rank 1 (pid", "gave up at step 12 in backward",
                                "rank 99 in a group of" } };
        assert_true(hosted_all(shapes[i % SHAPES], gives_up, &s));
    }
}

static bool drops_a_request(lk_comm *comm, void *context)
{
    lk_request *request;
    room        r;

    if (!room_open(&r, comm))
        return false;
    lk_status st = lk_all_reduce_start(&request, comm, r.a, r.b, LARGE, LK_F32, LK_SUM);
    if (lk_comm_rank(comm) == VICTIM) {
        lk_request_free(request);
        request = NULL;
        st      = lk_barrier(comm);
    } else if (st == LK_OK) { /* false if the other ranks have already failed */
        st = lk_request_wait(request);
    }
    bool good = is_told(comm, context, st);
    lk_request_free(request);
    room_close(&r);
    return good;
}

static void a_freed_request_is_reported(void **state)
{
    story s = { .expect = LK_EPEER, .words = { "rank 1 freed its request of all_reduce #" } };
    (void)state;
    for (size_t k = 0; k < SHAPES; k++)
        assert_true(hosted_all(shapes[k], drops_a_request, &s));
}

/* Frees a communicator with an open request on one rank.  The other ranks wait for the request,
 * whose messages are announced and may be granted or not. */
static bool leaves_a_group(lk_comm *comm, void *context)
{
    lk_request *request = NULL;
    lk_comm    *twin    = NULL;
    lk_status   st;
    room        r;

    if (!room_open(&r, comm))
        return false;
    st = lk_comm_split(&twin, comm, 0, lk_comm_rank(comm));
    if (st == LK_OK)
        st = lk_all_reduce_start(&request, twin, r.a, r.b, LARGE, LK_F32, LK_SUM);
    if (lk_comm_rank(comm) == VICTIM && st == LK_OK) {
        lk_comm_free(twin);
        twin = NULL;
        CHECK(lk_request_wait(request) == LK_EINVAL);
        CHECK(strstr(lk_error_last()->message, "communicator of this request") != NULL);
        st = lk_barrier(comm);
    } else if (st == LK_OK) { /* false if the other ranks have already failed */
        st = lk_request_wait(request);
    }
    bool good = is_told(comm, context, st);
    lk_request_free(request);
    lk_comm_free(twin);
    room_close(&r);
    return good;
}

static void a_rank_that_leaves_with_an_open_request_is_reported(void **state)
{
    story s = { .expect = LK_EPEER, .words = { "rank 1 left a group with its all_reduce #" } };
    (void)state;
    for (size_t k = 0; k < SHAPES; k++) {
        hosted h = shapes[k];
        for (h.seed = 0; h.seed < 8; h.seed++)
            assert_true(hosted_all(h, leaves_a_group, &s));
    }
}

/* Frees a communicator with open requests.  The memory of the requests must stay valid. */
static bool frees_early(lk_comm *comm, void *context)
{
    lk_comm    *twin;
    lk_request *requests[3];
    room        r;

    (void)context;
    if (lk_comm_split(&twin, comm, 0, lk_comm_rank(comm)) == LK_EPEER)
        return true; /* the other ranks have already failed */
    if (!room_open(&r, comm))
        return false;
    for (int i = 0; i < 3; i++) {
        lk_status st = lk_all_reduce_start(&requests[i], twin, r.a, r.b, LARGE, LK_F32, LK_SUM);
        CHECK(st == LK_OK || (st == LK_EPEER && requests[i] == NULL));
    }
    lk_comm_free(twin);
    for (int i = 0; i < 3; i++) {
        CHECK(requests[i] == NULL || lk_request_wait(requests[i]) == LK_EINVAL);
        lk_request_free(requests[i]);
    }
    room_close(&r);
    return true;
}

static void requests_outlive_a_communicator(void **state)
{
    (void)state;
    for (size_t k = 0; k < SHAPES; k++)
        assert_true(hosted_all(shapes[k], frees_early, NULL));
}

/* ---- Ranks that are late ----------------------------------------------------------------- */

/* Makes the victim wait for a message that is never sent, with a later deadline than the other
 * ranks.  They wait for the victim, or for a root that waits for the victim. */
static bool stays_away(lk_comm *comm, void *context)
{
    story *s = context;
    room   r;

    if (!room_open(&r, comm))
        return false;
    CHECK(lk_barrier(comm) == LK_OK);
    lk_comm_set_timeout(comm, 2000); /* in simulated time */
    lk_status st;
    if (lk_comm_rank(comm) == VICTIM) {
        lk_comm_set_timeout(comm, 1000000);
        st = lk_recv(comm, r.b, 4, 0);
    } else {
        st = go_on(&r, s->op);
    }
    bool good = is_told(comm, s, st);
    room_close(&r);
    return good;
}

static void a_timeout_names_the_missing_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++) {
        story s = { .op     = &operations[i],
                    .expect = LK_ETIMEOUT,
                    .words  = { "waited ", "rank 1 (", "last in message #0 (4 bytes" } };
        assert_true(hosted_all(shapes[i % 2], stays_away, &s));
    }
}

/* Makes some ranks compute without answering questions.  One rank on each host answers. */
static bool computes(lk_comm *comm, void *context)
{
    const story *s = context;

    lk_comm_note(comm, 7, "data");
    CHECK(lk_barrier(comm) == LK_OK);
    lk_comm_set_timeout(comm, 1000); /* applies to the next wait only */
    while (strchr(s->words[0], (char)('0' + lk_comm_rank(comm))) != NULL && !lki_failed(comm))
        (void)usleep(1000);
    CHECK(lk_barrier(comm) == LK_ETIMEOUT);
    const char *text = lk_error_last()->message;
    for (const char *c = s->words[0]; *c != '\0'; c++) {
        char who[] = { 'r', 'a', 'n', 'k', ' ', *c, ' ', '(', '\0' };
        CHECK(strstr(text, who) != NULL || strstr(text, " other") != NULL);
    }
    CHECK(strstr(text, s->words[1]) != NULL && strstr(text, s->words[2]) != NULL);
    const char *end = strstr(text, LKI_RAISE_TIMEOUT); /* the text is complete */
    CHECK(end != NULL && end[strlen(LKI_RAISE_TIMEOUT)] == '\0');
    CHECK(end[-1] == ')' || end[-1] == 's');
    return true;
}

/* Lets ranks be silent.  Expects that other ranks of their hosts report the operations of the
 * silent ranks. */
static void silent_ranks_are_reported_by_ranks_of_their_host(void **state)
{
    static const char *const away[] = { "1", "3", "13", "13567" };
    (void)state;
    for (size_t i = 0; i < sizeof away / sizeof away[0]; i++) {
        story  s = { .words = { away[i], "last in barrier #",
                                "a thread of this process, at step 7 in data" } };
        hosted h = { .hosts = 2, .each = i == 3 ? 4 : 2 };
        assert_true(hosted_all(h, computes, &s));
    }
}

/* ---- Levels ------------------------------------------------------------------------------ */

/* Makes three calls in different orders on the two hosts.  No call may return data of another call:
 * a rank has the data that its call's root sent, or an error.  In the end all ranks have an
 * error. */
static bool calls_in_another_order(lk_comm *comm, void *context)
{
    static const uint32_t roots[2][3] = { { 0, 0, 1 }, { 1, 0, 0 } };
    const uint32_t       *root        = roots[lk_comm_host(comm, lk_comm_rank(comm))];
    lk_status             st          = LK_OK;
    (void)context;
    for (int i = 0; i < 3 && st == LK_OK; i++) {
        char value[2] = { (char)('0' + lk_comm_rank(comm)), "xyz"[i] };
        st            = lk_broadcast(comm, value, sizeof value, root[i]);
        CHECK(st != LK_OK || (value[0] == (char)('0' + root[i]) && value[1] == "xyz"[i]));
    }
    st = st == LK_OK ? lk_barrier(comm) : st;
    CHECK(st == LK_EMISMATCH);
    return true;
}

static void levels_do_not_mix_up_calls(void **state)
{
    hosted h = { .hosts = 2, .each = 2, .algorithms = "broadcast:levels", .quarrels = true };
    (void)state;
    assert_true(hosted_all(h, calls_in_another_order, NULL));
}

/* Frees an incomplete operation with levels.  Expects that its requests in smaller groups are freed
 * as well. */
static bool leaves_a_request_open(lk_comm *comm, void *context)
{
    lk_request *request = NULL;
    float      *data    = calloc(1 << 16, sizeof *data);
    (void)context;
    CHECK(data != NULL);
    if (lk_comm_rank(comm) == 0)
        lk_comm_abort(comm);
    else if (lk_all_reduce_start(&request, comm, data, data, 1 << 16, LK_F32, LK_SUM) == LK_OK)
        CHECK(lk_request_wait(request) != LK_OK);
    lki_requests_orphan(comm);
    lk_request_free(request);
    free(data);
    return true;
}

static void requests_over_levels_outlive_a_communicator(void **state)
{
    hosted h = { .hosts = 2, .each = 2, .algorithms = "all_reduce:levels", .quarrels = true };
    (void)state;
    for (h.seed = 1; h.seed <= 10; h.seed++)
        assert_true(hosted_all(h, leaves_a_request_open, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leaving_rank_is_reported),
        cmocka_unit_test(a_dead_host_is_reported),
        cmocka_unit_test(a_rank_that_gives_up_is_reported),
        cmocka_unit_test(a_freed_request_is_reported),
        cmocka_unit_test(a_rank_that_leaves_with_an_open_request_is_reported),
        cmocka_unit_test(requests_outlive_a_communicator),
        cmocka_unit_test(a_timeout_names_the_missing_rank),
        cmocka_unit_test(silent_ranks_are_reported_by_ranks_of_their_host),
        cmocka_unit_test(levels_do_not_mix_up_calls),
        cmocka_unit_test(requests_over_levels_outlive_a_communicator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
