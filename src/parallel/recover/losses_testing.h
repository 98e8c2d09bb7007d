/* parallel/recover/losses_testing.h -- runs that lose ranks at any moment, for the tests of this
 * folder.
 *
 * Ranks are threads.  The linker replaces some functions of the library by the functions below,
 * which call the replaced ones (the tests' .wrap files): the start of a reduction, barriers, the
 * update of a slice, and the sum of two gradients.  An update and a sum are done in two halves.
 * Each call of a replacing function is a moment.  A victim counts its moments and ends at a given
 * one, by jumping out of the run.  Hosts are simulated, with separate arenas.
 */
#ifndef LKI_PARALLEL_RECOVER_LOSSES_TESTING_H
#define LKI_PARALLEL_RECOVER_LOSSES_TESTING_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "comm/group/thread_rebuild.h"
#include "comm/hosted_testing.h"
#include "device/half.h"
#include "parallel/durable.h"
#include "parallel/state.h"

enum { LEAVES = 8, STEPS = 2, RANKS_MAX = 8, PARAMS = 3, EPOCHS = 32, VICTIMS = 3, NEVER = -1 };

/* Suppresses reports of memory that a victim leaks by jumping out of lk_parallel_go_on(). */
LK_API const char *__lsan_default_suppressions(void); /* visible to the sanitizer */

const char *__lsan_default_suppressions(void)
{
    return "leak:lk_parallel_go_on\n";
}

/* ---- Moments ----------------------------------------------------------------------------- */

static _Thread_local struct {
    long    left; /* number of moments until this rank ends, or NEVER */
    long    seen;
    lk_parallel *opened; /* the object opened last, perhaps not yet returned to the caller */
    jmp_buf out;
} fate = { .left = NEVER };

static inline void moment(void)
{
    fate.seen++;
    if (fate.left > 0 && --fate.left == 0)
        longjmp(fate.out, 1);
}

lk_status __real_lk_barrier(lk_comm *comm);
lk_status __wrap_lk_barrier(lk_comm *comm);
lk_status __real_lk_tree_reduce_start(lk_request **out, lk_comm *comm, const lk_tree_op *op);
lk_status __wrap_lk_tree_reduce_start(lk_request **out, lk_comm *comm, const lk_tree_op *op);

void      __real_lki_merge(const lk_parallel *parallel, lk_dtype rounded, float *right,
                           const float *left, size_t count);
void      __wrap_lki_merge(const lk_parallel *parallel, lk_dtype rounded, float *right,
                           const float *left, size_t count);
void      __real_lki_clear(const lk_parallel *parallel, float *left, size_t count);
void      __wrap_lki_clear(const lk_parallel *parallel, float *left, size_t count);

lk_status __real_lki_ledger_describe(lk_parallel *parallel, const lk_parallel_options *options);
lk_status __wrap_lki_ledger_describe(lk_parallel *parallel, const lk_parallel_options *options);

void __wrap_lki_merge(const lk_parallel *parallel, lk_dtype rounded, float *right,
                      const float *left, size_t count)
{
    size_t half = count / 2;
    moment();
    __real_lki_merge(parallel, rounded, right, left, half);
    moment();
    __real_lki_merge(parallel, rounded, right + half, left + half, count - half);
    moment();
}

void __wrap_lki_clear(const lk_parallel *parallel, float *left, size_t count)
{
    moment();
    __real_lki_clear(parallel, left, count / 2);
    moment();
    __real_lki_clear(parallel, left + count / 2, count - count / 2);
}

static inline void second_half(float *const *state, size_t half,
                               float *out[LK_OPTIMIZER_STATES_MAX])
{
    for (int i = 0; i < LK_OPTIMIZER_STATES_MAX; i++)
        out[i] = state[i] == NULL ? NULL : state[i] + half;
}

/* Wraps an operation of the optimizer on a slice, and does it in two halves.  `G` and `P` are the
 * types of gradients and of values. */
#define IN_HALVES(CALL, G, P)                                                                    \
    void __real_##CALL(const lk_optimizer *, const lk_exec *, const lk_update *, size_t, G *,    \
                       P *, float *const *);                                                     \
    void __wrap_##CALL(const lk_optimizer *, const lk_exec *, const lk_update *, size_t, G *,    \
                       P *, float *const *);                                                     \
    void __wrap_##CALL(const lk_optimizer *optimizer, const lk_exec *exec,                       \
                       const lk_update *update, size_t n, G *g, P *p, float *const *state)       \
    {                                                                                            \
        size_t half = n / 2;                                                                     \
        float *rest[LK_OPTIMIZER_STATES_MAX];                                                    \
        second_half(state, half, rest);                                                          \
        moment();                                                                                \
        __real_##CALL(optimizer, exec, update, half, g, p, state);                               \
        moment();                                                                                \
        __real_##CALL(optimizer, exec, update, n - half, g + half, p + half, rest);              \
        moment();                                                                                \
    }

IN_HALVES(lk_optimizer_update, const float, float)
IN_HALVES(lk_optimizer_direct, float, const float)

lk_status __wrap_lk_barrier(lk_comm *comm)
{
    moment();
    lk_status status = __real_lk_barrier(comm);
    moment();
    return status;
}

lk_status __wrap_lk_tree_reduce_start(lk_request **out, lk_comm *comm, const lk_tree_op *op)
{
    moment();
    return __real_lk_tree_reduce_start(out, comm, op);
}

/* The ledger's table of functions, with moments around its calls. */
static lki_durable    watched;
static pthread_once_t watched_once = PTHREAD_ONCE_INIT;

static lk_status watched_open(lk_parallel *parallel)
{
    fate.opened = parallel;
    return lki_durable_ledger.open(parallel);
}

static void watched_mark(lk_parallel *parallel, const lki_tally *tally)
{
    moment();
    lki_durable_ledger.mark(parallel, tally);
    moment();
}

static void watched_end_span(lk_parallel *parallel, size_t span, lki_entry *entry)
{
    moment();
    lki_durable_ledger.end_span(parallel, span, entry);
    moment();
}

static void watch(void)
{
    watched          = lki_durable_ledger;
    watched.open     = watched_open;
    watched.mark     = watched_mark;
    watched.end_span = watched_end_span;
}

lk_status __wrap_lki_ledger_describe(lk_parallel *parallel, const lk_parallel_options *options)
{
    lk_status status = __real_lki_ledger_describe(parallel, options);
    (void)pthread_once(&watched_once, watch);
    if (status == LK_OK && parallel->durable == &lki_durable_ledger)
        parallel->durable = &watched;
    return status;
}

/* ---- A run ------------------------------------------------------------------------------- */

typedef struct {
    lk_optimizer optimizer;
    const char  *strategy;
    uint32_t     ranks, hosts; /* hosts: 0 means one host and no network */
    uint32_t     shard_hosts;
    bool         buddies;
    lk_dtype     gathered;
    double       clip_value;
    const lk_exchange *exchange; /* NULL: no groups */
    bool         one_bucket; /* a single bucket, of which the last owner also has a part */
    struct {
        uint32_t rank; /* in the job */
        long     at;   /* the moment at which the rank ends, counted by the rank itself */
    } victims[VICTIMS];
    _Atomic uint64_t hash;   /* of the final values */
    _Atomic uint32_t unfinished; /* virtual workers that the survivors still had to compute */
    /* virtual workers that the victim still had to compute in its first step */
    _Atomic uint32_t lost;
    _Atomic uint64_t complete;   /* number of complete steps, as the surviving ranks found */
    _Atomic long     longest; /* maximum number of moments of any rank */
    pthread_barrier_t opened; /* no rank is lost before all have opened */
} plot;

static const size_t      sizes[PARAMS]  = { 5000, 7, 4097 };
static const lk_param    params[PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 100 } }, .init = LK_INIT_NORMAL, .scale = 0.5,
      .bf16 = true },
    { .name = "b", .shape = { 1, { 7 } }, .init = LK_INIT_NORMAL, .scale = 0.5 },
    { .name = "c", .shape = { 1, { 4097 } }, .init = LK_INIT_NORMAL, .scale = 0.5 },
};
static const lk_parallel_state states[] = { { "mean", 33, 0, 0.1F }, { "variance", 33, 1, 0.1F } };

/* Writes the rules of a step, or those with which a group is opened (step STEPS). */
static inline void rules_of(lk_param_rule rules[PARAMS], uint64_t step)
{
    for (uint32_t p = 0; p < PARAMS; p++)
        rules[p] = (lk_param_rule){ .lr           = 1.0 / (double)(1 + p + step),
                                    .own_decay    = p == 1,
                                    .weight_decay = 0.3 * (double)(step + 1) };
}

static inline lk_parallel_options options_of(const plot *p)
{
    return (lk_parallel_options){ .struct_size     = sizeof(lk_parallel_options),
                                  .strategy        = p->strategy,
                                  .shard_hosts     = p->shard_hosts,
                                  .buddies         = p->buddies,
                                  .gather_dtype    = p->gathered,
                                  .virtual_workers = LEAVES,
                                  .micro_count     = 2,
                                  .bucket_bytes    = p->one_bucket ? 1 << 20 : 16384,
                                  .optimizer       = p->optimizer,
                                  .clip_norm       = p->clip_value > 0 ? 0 : 1,
                                  .clip_value      = p->clip_value,
                                  .seed            = 3,
                                  .states          = states,
                                  .state_count     = 2,
                                  .unused          = LK_UNUSED_ZERO,
                                  .exchange        = p->exchange,
                                  .survives        = true };
}

/* Returns a pseudo-random number that depends only on the arguments. */
static inline float number(uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t words[] = { a, b, c };
    return (float)(lki_xxh3(words, sizeof words) % 2001) / 1000.0F - 1.0F;
}

/* Returns an element of a parameter as ranks read it, rounded if the parameter allows that. */
static inline float element(const lk_parallel *parallel, uint32_t param, size_t i)
{
    const uint16_t *narrow = lk_parallel_param_bf16(parallel, param);
    const float    *wide   = lk_parallel_param(parallel, param);
    if (!params[param].bf16)
        return wide[i];
    return lki_bf16_widen(narrow != NULL ? narrow[i] : lki_bf16_narrow(wide[i]));
}

static inline void one_turn(lk_parallel *parallel, uint64_t step, lk_parallel_turn turn)
{
    uint64_t place = turn.virtual_worker * 2 + turn.micro_index;
    for (uint32_t t = PARAMS; t-- > 0;)
        lk_parallel_read(parallel, t); /* forward */
    for (uint32_t t = 0; t < PARAMS; t++) { /* terms are computed from last to first */
        lk_parallel_read(parallel, t);
        uint32_t p = PARAMS - 1 - t;
        float   *g = lk_parallel_grad(parallel, 0, t);
        for (size_t i = 0; i < sizes[p]; i++)
            g[i] += element(parallel, p, i) + number(step, place, i);
        lk_parallel_grad_ready(parallel, 0, t);
    }
    for (uint32_t s = 0; s < 2; s++)
        for (size_t i = 0; i < 33; i++)
            lk_parallel_state_sum(parallel, 0, s)[i] += number(step, place, 1000 * s + i);
    lk_parallel_report(parallel, 0, (double)number(step, place, 77), 3, 3, 1);
}

static inline lk_status run_steps(lk_parallel *parallel, uint64_t from)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    lk_param_rule    rules[PARAMS];
    for (uint64_t step = from; step < STEPS; step++) {
        rules_of(rules, step);
        LK_TRY(lk_parallel_set_rules(parallel, rules));
        LK_TRY(lk_parallel_begin(parallel, step));
        while (lk_parallel_next(parallel, &turn))
            one_turn(parallel, step, turn);
        LK_TRY(lk_parallel_finish(parallel, 0.01, &result));
    }
    return __real_lk_barrier(parallel->comm); /* no rank is lost after this barrier */
}

/* Returns the hash of what groups keep and share; 0 without groups.  Collective. */
static inline uint64_t hash_of_groups(lk_parallel *parallel, float *values)
{
    uint64_t hash = 0;
    for (uint32_t p = 0; p <= PARAMS; p++) { /* the last: what is shared of the whole model */
        size_t bytes;
        for (uint32_t w = 0; lk_parallel_kept_name(parallel, p, w) != NULL; w++)
            for (uint32_t g = 0; g < lk_parallel_groups(parallel); g++) {
                if (lk_parallel_fetch_kept(parallel, p, w, g, 0, sizes[p], values) != LK_OK)
                    return 1;
                hash = 31 * hash + lki_xxh3(values, sizes[p] * sizeof(float));
            }
        const void *shared = lk_parallel_shared(parallel, p, &bytes);
        hash               = 31 * hash + (shared == NULL ? 0 : lki_xxh3(shared, bytes));
    }
    return hash;
}

/* Returns the hash of all values and losses, including those stored on other hosts.  Collective. */
static inline uint64_t hash_of(lk_parallel *parallel)
{
    static _Thread_local float values[5000];
    uint64_t hashes[PARAMS * (1 + LK_OPTIMIZER_STATES_MAX) + 4] = { 0 }, n = 0;
    for (uint32_t p = 0; p < PARAMS; p++)
        for (uint32_t w = 0; w <= lk_optimizer_state_count(&parallel->optimizer); w++) {
            if (lk_parallel_fetch(parallel, p, w, 0, sizes[p], values) != LK_OK)
                return 0;
            hashes[n++] = lki_xxh3(values, sizes[p] * sizeof(float));
        }
    for (uint32_t s = 0; s < 2; s++)
        hashes[n++] = lki_xxh3(lk_parallel_state_data(parallel, s), 33 * sizeof(float));
    hashes[n++] = hash_of_groups(parallel, values);
    hashes[n++] = lki_xxh3(lki_losses_of(parallel)->of, sizeof(double[LKI_LOSSES_MAX]));
    return lki_xxh3(hashes, n * sizeof hashes[0]);
}

/* The objects of one rank, which are freed wherever the rank ends. */
typedef struct {
    plot        *p;
    lk_comm     *local; /* the communicator from which the group of several hosts is opened */
    lki_link    *link;
    uint32_t    *host_of;
    /* failed: the group before `comm`, or NULL if that was `given` */
    lk_comm     *given, *failed, *comm;
    lk_parallel *parallel;
} member;

static inline lk_status find_group(member *r, lk_parallel_standing *standing)
{
    lk_parallel_options options = options_of(r->p);
    lk_param_rule       rules[PARAMS];
    lk_parallel        *next;
    lk_status           status;
    rules_of(rules, STEPS);
    options.rules = rules;
    do {
        lk_comm *group;
        LK_TRY(lk_comm_rebuild(&group, r->comm, NULL));
        if (r->failed != NULL)
            lk_comm_free(r->failed);
        r->failed = r->comm == r->given ? NULL : r->comm;
        r->comm   = group;
        LK_TRY(lk_comm_take_arenas(group, r->failed != NULL ? r->failed : r->given));
        status = lk_parallel_go_on(&next, r->parallel, group, params, PARAMS, &options, standing);
        fate.opened = status == LK_OK ? next : r->parallel;
    } while (status != LK_OK && lk_comm_has_lost(r->comm));
    LK_TRY(status);
    lk_parallel_free(r->parallel);
    r->parallel = next;
    return LK_OK;
}

static inline lk_status run(member *r)
{
    lk_parallel_standing standing = { .steps = 0 };
    lk_status            status   = run_steps(r->parallel, 0);
    while (status != LK_OK && lk_comm_has_lost(r->comm)) {
        LK_TRY(find_group(r, &standing));
        atomic_store(&r->p->unfinished, standing.unfinished);
        atomic_store(&r->p->complete, standing.steps);
        status = run_steps(r->parallel, standing.steps);
    }
    return status;
}

static inline long end_of(const plot *p, const lk_comm *comm)
{
    uint32_t me = lk_comm_rank(comm);
    for (int i = 0; i < VICTIMS; i++)
        if (p->victims[i].at > 0 && p->victims[i].rank == me)
            return p->victims[i].at;
    return NEVER;
}

/* Why a run could not continue, as the first of its ranks has found. */
static struct {
    _Atomic bool known;
    char         why[LKI_MESSAGE_BYTES];
} refusal;

/* Runs a rank.  The caller owns `member`, so longjmp() does not invalidate it. */
static inline void *live(void *argument)
{
    member             *r       = argument;
    plot               *p       = r->p;
    lk_parallel_options options = options_of(p);
    lk_param_rule       rules[PARAMS];
    lk_status           status = LK_OK;

    rules_of(rules, STEPS);
    options.rules = rules;
    if (r->link != NULL)
        status = lki_span_open(&r->given, r->local, r->link, r->host_of);
    r->comm = r->given;
    if (status == LK_OK)
        status = lk_parallel_open(&r->parallel, r->comm, params, PARAMS, &options);
    if (status != LK_OK)
        abort();
    (void)pthread_barrier_wait(&p->opened);
    fate.seen = 0;
    fate.left = end_of(p, r->comm);
    if (setjmp(fate.out) == 0) {
        status = run(r);
        if (status != LK_OK && !atomic_exchange(&refusal.known, true))
            (void)snprintf(refusal.why, sizeof refusal.why, "%s", lk_error_last()->message);
        atomic_store(&p->hash, status == LK_OK ? hash_of(r->parallel) : 0);
        atomic_store(&p->longest, fate.seen);
        (void)__real_lk_barrier(r->comm); /* other ranks may still fetch values of this rank */
    } else if (r->parallel->step == 0)
        atomic_store(&p->lost, r->parallel->share.count - r->parallel->turn.leaf);
    fate.left = NEVER;
    if (fate.opened != r->parallel) /* a rank is lost only after it has freed its groups */
        lk_parallel_free(fate.opened);
    lk_parallel_free(r->parallel);
    if (r->comm != r->given)
        lk_comm_free(r->comm);
    lk_comm_free(r->failed);
    lk_comm_free(r->given);
    return NULL;
}

/* One network per group, because groups follow each other. */
typedef struct {
    pthread_mutex_t     lock;
    uint32_t            ranks, host_of[RANKS_MAX];
    lki_sim            *sims[EPOCHS];
    lki_thread_rebuild *rebuild;
} network;

static inline lki_link *link_of(void *context, uint32_t rank, uint64_t epoch)
{
    network        *n       = context;
    lki_sim_options options = { .mode = LKI_SIM_FREE, .ranks = n->ranks, .streams = 2,
                                .seed = epoch };

    (void)pthread_mutex_lock(&n->lock);
    if (epoch >= EPOCHS
        || (n->sims[epoch] == NULL && lki_sim_new(&n->sims[epoch], &options) != LK_OK))
        abort();
    (void)pthread_mutex_unlock(&n->lock);
    return lki_sim_link(n->sims[epoch], rank);
}

/* Divides ranks between hosts as equally as possible. */
static inline void seat(plot *p, network *n, member *members, lk_comm **comms)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 20000 };

    *n = (network){ .lock = PTHREAD_MUTEX_INITIALIZER, .ranks = p->ranks };
    assert_int_equal(lki_thread_rebuild_new(&n->rebuild, p->ranks, link_of, n), LK_OK);
    for (uint32_t host = 0; host < p->hosts; host++) {
        uint32_t   first  = p->ranks * host / p->hosts;
        lki_roster roster = { .world = p->ranks,
                              .first = first,
                              .count = p->ranks * (host + 1) / p->hosts - first };
        assert_int_equal(lki_comm_open_seated(comms + first, roster, n->rebuild, &options), LK_OK);
        for (uint32_t r = first; r < first + roster.count; r++) {
            n->host_of[r] = host;
            members[r]    = (member){ .p       = p,
                                      .local   = comms[r],
                                      .link    = link_of(n, r, 0),
                                      .host_of = n->host_of };
        }
    }
}

/* Runs the plot.  Returns the hash of the result, or 0 if the run failed and `refusal` has the
 * reason. */
static inline uint64_t play(plot *p)
{
    member    members[RANKS_MAX];
    lk_comm  *comms[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    network   n = { .ranks = 0 };

    p->hash        = 0;
    p->lost        = LEAVES;
    refusal.known  = false;
    refusal.why[0] = '\0';
    assert_int_equal(pthread_barrier_init(&p->opened, NULL, p->ranks), 0);
    if (p->hosts > 0)
        seat(p, &n, members, comms);
    else
        assert_int_equal(lk_comm_open_threads(comms, p->ranks, NULL), LK_OK);
    for (uint32_t i = 0; i < p->ranks; i++) {
        if (p->hosts == 0)
            members[i] = (member){ .p = p, .given = comms[i] };
        assert_int_equal(pthread_create(&threads[i], NULL, live, &members[i]), 0);
    }
    for (uint32_t i = 0; i < p->ranks; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    (void)pthread_barrier_destroy(&p->opened);
    lki_thread_rebuild_free(n.rebuild);
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++)
        lki_sim_free(n.sims[epoch]);
    return p->hash;
}

static inline uint64_t undisturbed(const plot *p)
{
    plot alone  = *p;
    alone.ranks = 1;
    alone.hosts = alone.shard_hosts = 0;
    memset(alone.victims, 0, sizeof alone.victims);
    return play(&alone);
}

/* ---- Losing ranks ---------------------------------------------------------------------- */

static const lk_optimizer sgd   = { .kind = LK_SGD, .momentum = 0.9, .ema = 0.9 },
                          adamw = { .kind = LK_ADAMW },
                          lamb  = { .kind = LK_LAMB, .weight_decay = 0.01 },
                          lars  = { .kind = LK_LARS, .momentum = 0.9, .trust = 0.1 },
                          still = { .kind = LK_OPTIMIZER_NONE };

static inline plot plot_of(lk_optimizer optimizer, const char *strategy, uint32_t ranks,
                           double clip_value, uint32_t victim)
{
    return (plot){ .optimizer  = optimizer,
                   .strategy   = strategy,
                   .ranks      = ranks,
                   .clip_value = clip_value,
                   .victims    = { { victim, NEVER }, { 0, NEVER } } };
}

/* Returns the distance between the moments at which a loss is tried, 1 to try all of them. */
static long stride(void)
{
    return lki_thorough() ? 1 : lki_brief() ? 9 : 3;
}

/* Runs the plot with a loss of each rank in turn, at each `every`-th moment or at one third of
 * these moments. */
static void lose_all_through(plot p, long every)
{
    uint64_t want = undisturbed(&p);
    assert_true(want != 0 && play(&p) == want);
    long moments = p.longest;
    assert_true(moments > 20);
    for (long at = 1; at <= moments; at += every * stride()) {
        p.victims[0].at = at;
        if (play(&p) != want)
            fail_msg("%s, %s: rank %u of %u lost at moment %ld: %s", p.strategy,
                     lk_optimizer_name(p.optimizer.kind), p.victims[0].rank, p.ranks, at,
                     refusal.why);
    }
}

static inline plot over(uint32_t hosts, plot p)
{
    p.hosts = hosts;
    return p;
}

static inline plot in_groups_of(uint32_t hosts, plot p)
{
    p.shard_hosts = hosts;
    return p;
}

static inline plot with_buddies(plot p)
{
    p.buddies = true;
    return p;
}

static inline plot read_as(lk_dtype dtype, plot p)
{
    p.gathered = dtype;
    return p;
}

/* Loses two ranks.  The second may be lost while it joins the group of survivors. */
static void lose_two(plot p, uint64_t seed)
{
    uint64_t want = undisturbed(&p);
    for (int i = 0; i < 10; i++) {
        seed                = lki_xxh3(&seed, sizeof seed);
        p.victims[0].rank = (uint32_t)(seed % 4);
        p.victims[1].rank = (uint32_t)((seed + 1 + seed / 4 % 3) % 4);
        p.victims[0].at     = 1 + (long)(seed >> 16 & 0xffff) % 50;
        p.victims[1].at     = p.victims[0].at + (long)(seed >> 32 & 0xffff) % 30;
        if (play(&p) != want)
            fail_msg("%d: ranks %u and %u lost at %ld and %ld", i, p.victims[0].rank,
                     p.victims[1].rank, p.victims[0].at, p.victims[1].at);
    }
}

#endif
