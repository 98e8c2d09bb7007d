/* estimate_test.c -- estimates before a run equal the memory and bytes of the run.
 *
 * Method: hosts of one rank each, over a simulated transport, take a step.  The bytes on their
 *         wires are compared with the estimate plus the bytes by which ranks agree, and the arenas
 *         with the estimated memory.  They are equal, except for the remainders of divisions into
 *         equal parts.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"
#include "comm/worker.h"
#include "device/quantise.h"
#include "parallel/offload/offload.h"
#include "parallel/replicas/internal.h"
#include "parallel/state.h"
#include "tensor/ops.h"

enum { HOSTS_MAX = 5 };

static const lk_param model[] = {
    { .name = "wte", .shape = { 2, { 75, 60 } }, .uses = 2, .bf16 = true },
    { .name = "w", .shape = { 2, { 90, 100 } }, .bf16 = true },
    { .name = "b", .shape = { 1, { 33 } } },
};
enum { PARAMS = 3 };

static const lk_parallel_state running[] = { { "mean", 7, 0, 0.1f } };

typedef struct {
    lk_parallel_options options;
    lk_parallel_cost    cost;
} job;

static uint64_t bytes_sent(const lk_comm *comm)
{
    return lki_wire_count(comm->self->wire).bytes_sent;
}

/* Takes a step with gradients of 0.  Sets *early to the bytes sent before the last micro-batch of
 * the first virtual worker. */
static bool take_step(lk_comm *comm, lk_parallel *p, uint64_t step, uint64_t *early)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    uint64_t         before = bytes_sent(comm);

    CHECK(lk_parallel_begin(p, step) == LK_OK);
    while (lk_parallel_next(p, &turn)) {
        if (turn.virtual_worker == p->share.first && turn.micro_index + 1 == p->micro_count)
            *early = bytes_sent(comm) - before;
        lk_parallel_report(p, 0, 1, 1, 1, 0);
        const lk_parallel *in_use = lki_in_use(p);
        for (uint32_t t = 0; !p->gathers && t < in_use->layout->term_count; t++)
            lk_parallel_grad_ready(p, 0, t); /* gathered terms are announced after they are read */
        lk_parallel_progress(p);
    }
    CHECK(lk_parallel_finish(p, 0.1, &result) == LK_OK);
    return true;
}

/* Returns the number of reductions of a bucket: one for all virtual workers, or one for each
 * subtree of a round. */
static uint64_t count_reductions(const lk_parallel *p)
{
    return p->ops->rounds ? p->rounds.first[p->rounds.rounds] : 1;
}

/* Returns the bytes of a step other than gradients and parameters: the sets of virtual workers of
 * each reduction, reports and, if spans are assigned to shards, sums of squares. */
static uint64_t bytes_to_agree(const lk_parallel *p)
{
    uint64_t reductions = (p->layout->bucket_count + (p->state_width > 0)) * count_reductions(p);
    uint64_t given      = 0;
    for (size_t i = 0; i < p->layout->span_count; i++)
        given += lki_giver(p, p->rank, p->layout->owners[p->layout->spans[i].owner].shard) ==
                 p->rank;
    return (p->ranks - 1) * (reductions * sizeof(uint64_t) + p->reported[p->rank]) +
           (p->shards - 1) * given * sizeof(double);
}

/* Returns the tolerance in bytes.  Pieces are divided into nearly equal parts, so each part may
 * differ a little from the estimate. */
static uint64_t left_over(const lk_parallel *p)
{
    uint64_t unit = lki_quantises(p->rounded) ? lk_rounded_bytes(p->rounded, 1) : sizeof(float);
    uint64_t cuts = p->micro_count;
    bool     apart = p->shards < p->ranks || p->shard_map.buddies;
    for (uint32_t b = 0; apart && b < p->layout->bucket_count; b++)
        cuts += p->layout->buckets[b].slice_count;
    lki_virtual_plan ranges;
    lki_virtual_plan_make(&ranges, p->leaves, p->ranks, p->rank);
    uint64_t sums = p->ops->rounds ? count_reductions(p) : ranges.node_count;
    return cuts * p->ranks * sums * 2 * unit;
}

/* Returns the bytes of all arenas that the strategy has opened on this host. */
static size_t arena_bytes(const lk_comm *comm)
{
    size_t bytes = 0;
    for (const lk_arena *a = comm->span->local->arenas; a != NULL; a = a->next)
        bytes += lk_arena_bytes(a);
    return bytes;
}

static bool takes_what_was_told(lk_comm *comm, void *context)
{
    const job   *j = context;
    lk_parallel *p;
    lk_comm     *again;
    uint64_t     all[HOSTS_MAX], most = 0;
    size_t       before_any = arena_bytes(comm);

    CHECK(lk_comm_split(&again, comm, 0, lk_comm_rank(comm)) == LK_OK);
    size_t arenas = arena_bytes(comm), split = arenas - before_any;
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &j->options) == LK_OK);
    size_t shared = j->cost.params + j->cost.optimizer + j->cost.tables -
                    lki_offload_params_memory(p) - lki_offload_states_memory(p);
    CHECK(lk_arena_bytes(p->arena) == shared);
    /* `split`: the bytes of the communicator that is opened for gathers */
    CHECK(arena_bytes(comm) - arenas - (p->gathers ? split : 0) ==
          shared + j->cost.gradients);
    uint64_t before = bytes_sent(comm), early = 0;
    if (!take_step(comm, p, 0, &early))
        return false;
    CHECK(p->gathers || early == 0); /* gradients are sent in the last micro-batch only */
    uint64_t sent = bytes_sent(comm) - before - bytes_to_agree(p);
    CHECK(lk_all_gather(comm, &sent, all, sizeof sent) == LK_OK);
    for (uint32_t h = 0; h < p->ranks; h++)
        most = all[h] > most ? all[h] : most;
    uint64_t told = j->cost.sent_gradients + j->cost.sent_params;
    CHECK(most <= told + left_over(p) && told <= most + left_over(p));
    lk_parallel_free(p);
    lk_comm_free(again);
    return true;
}

static void estimates_equal_the_memory_and_bytes_of_a_step(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3",
                                              "hybrid" };
    static const uint32_t    sizes[]      = { 1, 1, 1, 1, 1 };
    static const lk_dtype    types[]      = { LK_F32, LK_BF16, LK_I8, LK_F16, LK_I4 };
    (void)state;
    for (uint32_t hosts = 2; hosts <= HOSTS_MAX; hosts += lki_brief() ? 2 : 1)
        for (size_t s = 0; s < 5; s++)
            for (uint32_t leaves = 8; leaves <= 12; leaves += 4) {
                bool packs  = (hosts + s) % 2 == 0 && hosts < 5;
                bool pairs  = s > 0 && s < 4 && leaves == 12 && hosts < 5;
                bool narrow = leaves == 8 || (pairs && hosts < 4);
                lk_tree_algorithm by = (lk_tree_algorithm)((hosts + leaves / 4 + s / 2) % 3);
                job  j      = { .options = { .struct_size     = sizeof(lk_parallel_options),
                                       .strategy        = strategies[s],
                                       .virtual_workers = leaves,
                                       .micro_count     = leaves == 8 ? 3 : 0,
                                       .bucket_bytes    = hosts % 2 == 0 ? 0 : 17000,
                                       .unused          = pairs ? LK_UNUSED_ZERO : 0,
                                       .survives        = pairs,
                                       .buddies         = pairs,
                                       .unit_buffers    = leaves == 8 ? hosts % 4 : 3,
                                       .shard_hosts     = hosts == 4 ? 2 : leaves == 8 ? hosts : 0,
                                       .comm_dtype      = types[(hosts + s + leaves / 4) % 5],
                                       .scaling.rule    = LK_SCALE_NONE,
                                       .grad_algorithm  = by,
                                       .gather_dtype    = packs    ? LK_I8
                                                          : narrow ? LK_BF16 : LK_F32,
                                       .keep_gathered   = packs && leaves == 12,
                                       .offload         = hosts == 5 ? "/tmp" : NULL,
                                       .offloaded       = hosts == 5 && s == 3 ? leaves / 4 : 0,
                                       .optimizer       = { .kind = LK_ADAMW,
                                                            .ema  = hosts == 3 ? 0.9 : 0 },
                                       .states          = running,
                                       .state_count     = 1 } };
                assert_int_equal(lk_parallel_estimate(&j.cost, model, PARAMS, &j.options, sizes,
                                                      hosts), LK_OK);
                assert_true(hosted_all((hosted){ .hosts = hosts, .each = 1 }, takes_what_was_told,
                                       &j));
            }
}

/* ---- Replicas ------------------------------------------------------------------------------ */

/* Takes the two steps of a round.  Compares the bytes sent with the estimate for two steps; the
 * tolerance is that of two reports, and of what the ranks of an object agree about. */
static bool replicas_take_what_was_told(lk_comm *comm, void *context)
{
    const job   *j = context;
    lk_parallel *p;
    uint64_t     all[HOSTS_MAX], most = 0, early;

    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &j->options) == LK_OK);
    const lki_replicas *r      = p->replicas;
    size_t              shared = 0;
    for (uint32_t f = 0; f < r->options.fragments; f++)
        shared += lk_arena_bytes(r->fragments[f].outer->arena);
    for (uint32_t i = 0; i < r->served; i++)
        shared += lk_arena_bytes(r->of[i].model->arena);
    const lk_arena *slots = lki_comm_arena_named(comm, "gossip");
    shared += slots != NULL ? lk_arena_bytes(slots) : 0;
    CHECK(shared == j->cost.params + j->cost.optimizer + j->cost.tables);
    const uint64_t before = bytes_sent(comm);
    for (uint32_t step = 0; step < 2; step++)
        CHECK(take_step(comm, p, step, &early));
    uint64_t sent = bytes_sent(comm) - before;
    CHECK(lk_all_gather(comm, &sent, all, sizeof sent) == LK_OK);
    for (uint32_t h = 0; h < p->ranks; h++)
        most = all[h] > most ? all[h] : most;
    const uint64_t told = 2 * (j->cost.sent_gradients + j->cost.sent_params);
    CHECK(told <= most && most <= told + 3000 * p->ranks);
    lk_parallel_free(p);
    return true;
}

static void must_take_what_is_told(lk_replicas replicas)
{
    static const uint32_t sizes[] = { 1, 1, 1, 1 };
    for (uint32_t hosts = 2; hosts <= 4; hosts += 2)
        for (replicas.count = 1; replicas.count <= 8; replicas.count *= lki_brief() ? 4 : 2) {
            const bool steps   = replicas.topology == LK_TOPOLOGY_ALL;
            replicas.fragments = steps && replicas.count == 4 ? 2 : 1;
            job j = { .options = { .struct_size     = sizeof(lk_parallel_options),
                                   .strategy        = hosts == 2 ? "zero1"
                                                      : steps && replicas.count == 2 ? "zero3"
                                                                                     : "ddp",
                                   .virtual_workers = 8,
                                   .unused          = LK_UNUSED_ZERO,
                                   .optimizer       = { .kind = LK_ADAMW },
                                   .states          = running,
                                   .state_count     = 1,
                                   .replicas        = &replicas } };
            assert_int_equal(lk_parallel_estimate(&j.cost, model, PARAMS, &j.options, sizes, hosts),
                             LK_OK);
            assert_true(hosted_all((hosted){ .hosts = hosts, .each = 1 },
                                   replicas_take_what_was_told, &j));
        }
}

static void estimates_equal_the_memory_and_bytes_of_replicas(void **state)
{
    lk_replicas replicas = LK_REPLICAS_INIT;
    (void)state;
    replicas.local_steps = 2;
    replicas.topology    = LK_TOPOLOGY_RING;
    must_take_what_is_told(replicas);
    replicas.topology  = LK_TOPOLOGY_ALL;
    replicas.optimizer = (lk_optimizer){ .kind = LK_SGD, .momentum = 0.9, .nesterov = true };
    must_take_what_is_told(replicas);
}

/* Checks the fractions of the paper (Rajbhandari et al. 2020, 5.1), to within one norm block. */
static void optimizer_states_are_divided_over_hosts(void **state)
{
    static const uint32_t sizes[8]  = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static const lk_param large     = { .name = "w", .shape = { 2, { 4096, 1000 } } };
    lk_parallel_options   options   = { .struct_size = sizeof(lk_parallel_options),
                                        .virtual_workers = 8, .optimizer = { .kind = LK_ADAMW } };
    const size_t          params    = (size_t)4096 * 1000 * sizeof(float);
    lk_parallel_cost      cost;
    (void)state;
    for (uint32_t hosts = 1; hosts <= 8; hosts++) {
        const size_t slack = (size_t)2 * LKI_NORM_BLOCK * sizeof(float);
        options.strategy   = "ddp";
        assert_int_equal(lk_parallel_estimate(&cost, &large, 1, &options, sizes, hosts), LK_OK);
        assert_int_equal(cost.params, params);
        assert_int_equal(cost.optimizer, 2 * params);
        options.strategy = "zero1";
        assert_int_equal(lk_parallel_estimate(&cost, &large, 1, &options, sizes, hosts), LK_OK);
        assert_int_equal(cost.params, params);
        assert_in_range(cost.optimizer, 2 * params / hosts, 2 * params / hosts + 2 * slack);
    }
}

/* Estimates memory with buddies.  Each host stores two shards.  With an odd number of hosts one
 * host stores three.  Sums grow accordingly, and so do parameters if hosts store only their shards
 * in FP32. */
static void buddies_store_one_more_shard(void **state)
{
    static const char *const strategies[] = { "zero1", "zero2", "zero3" };
    static const uint32_t    sizes[6]     = { 1, 1, 1, 1, 1, 1 };
    static const lk_param    large        = { .name  = "w",
                                              .shape = { 2, { 4096, 1200 } },
                                              .bf16  = true };
    const size_t             elements     = (size_t)4096 * 1200;
    (void)state;
    for (size_t s = 0; s < 6; s++)
        for (uint32_t hosts = 2; hosts <= 6; hosts++) {
            lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                            .strategy        = strategies[s % 3],
                                            .virtual_workers = hosts,
                                            .gather_dtype    = s < 3 ? LK_F32 : LK_BF16,
                                            .unused          = LK_UNUSED_ZERO,
                                            .survives        = true,
                                            .optimizer       = { .kind = LK_ADAMW } };
            lk_parallel_cost    alone, both;
            const size_t        parts = hosts % 2 == 0 ? 2 : 3, part = elements / hosts;
            if (1200 % hosts != 0)
                continue;
            assert_int_equal(lk_parallel_estimate(&alone, &large, 1, &options, sizes, hosts),
                             LK_OK);
            options.buddies = true;
            assert_int_equal(lk_parallel_estimate(&both, &large, 1, &options, sizes, hosts), LK_OK);
            assert_int_equal(alone.optimizer, 2 * part * sizeof(float));
            assert_int_equal(both.optimizer, parts * alone.optimizer);
            assert_int_equal(both.params - alone.params,
                             s >= 2 ? (parts - 1) * part * sizeof(float) : 0);
            if (hosts % 2 == 0)
                assert_int_equal(both.sent_gradients - alone.sent_gradients, part * sizeof(float));
            assert_int_equal(both.sent_params, alone.sent_params);
        }
}

/* With states in files a host has four chunks of 64 blocks for each rank in memory.  With
 * parameters in files a host has eight chunks and the unit buffers, even if it is the only host. */
static void offloaded_states_take_little_memory(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3" };
    static const uint32_t    sizes[]      = { 2, 2 };
    static const lk_param    large        = { .name = "w", .shape = { 2, { 4096, 3000 } } };
    const size_t             chunk        = 64 * LKI_NORM_BLOCK * 2 * sizeof(float);
    (void)state;
    for (size_t s = 0; s < 4; s++) {
        lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                        .strategy        = strategies[s],
                                        .virtual_workers = 8,
                                        .optimizer       = { .kind = LK_ADAMW } };
        lk_parallel_cost    whole, filed;
        assert_int_equal(lk_parallel_estimate(&whole, &large, 1, &options, sizes, 2), LK_OK);
        options.offload = "/tmp";
        assert_int_equal(lk_parallel_estimate(&filed, &large, 1, &options, sizes, 2), LK_OK);
        assert_int_equal(whole.files, 0);
        assert_int_equal(filed.files, whole.optimizer);
        assert_int_equal(filed.optimizer, 2 * 4 * chunk);
        assert_int_equal(filed.params, whole.params);
        assert_int_equal(filed.gradients, whole.gradients);
        assert_int_equal(filed.tables, whole.tables);
        assert_int_equal(filed.sent_params, whole.sent_params);
        options.offloaded = LK_OFFLOADED_PARAMETERS;
        lk_status status  = lk_parallel_estimate(&filed, &large, 1, &options, sizes, 2);
        assert_int_equal(status, s == 3 ? LK_OK : LK_EINVAL);
        if (s < 3)
            continue;
        const size_t bytes = (size_t)4096 * 3000 * sizeof(float);
        assert_int_equal(filed.files, bytes / 2);
        assert_int_equal(filed.params, bytes + 2 * 8 * chunk / 2);
        assert_int_equal(filed.optimizer, whole.optimizer);
        assert_int_equal(lk_parallel_estimate(&filed, &large, 1, &options, sizes, 1), LK_OK);
        assert_int_equal(filed.files, bytes);
        assert_int_equal(filed.params, bytes + 2 * 8 * chunk / 2);
        assert_int_equal(filed.sent_params, 0);
    }
}

/* Checks that a rank needs 4 bytes per element of its part for each partial sum, and memory for two
 * buckets, and that it sends as much as with whole gradients (the ZeRO paper, 5.2 and 7.2.1). */
static void gradients_are_divided_over_hosts(void **state)
{
    static const uint32_t sizes[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    enum { LAYERS = 10, WIDTH = 512 };
    lk_param            layers[LAYERS];
    lk_parallel_options options = { .struct_size        = sizeof(lk_parallel_options),
                                    .virtual_workers    = 8,
                                    .optimizer          = { .kind = LK_ADAMW },
                                    .bucket_bytes       = 1,
                                    .first_bucket_bytes = 1 };
    const size_t        layer   = WIDTH * WIDTH * sizeof(float), all = LAYERS * layer;
    (void)state;
    for (size_t i = 0; i < LAYERS; i++)
        layers[i] = (lk_param){ .name = "w", .shape = { 2, { WIDTH, WIDTH } } };
    for (uint32_t hosts = 1; hosts <= 8; hosts *= 2) {
        static const size_t partials[9] = { [1] = 4, [2] = 3, [4] = 2, [8] = 1 };
        lk_parallel_cost    cost;
        options.strategy = "zero2";
        assert_int_equal(lk_parallel_estimate(&cost, layers, LAYERS, &options, sizes, hosts),
                         LK_OK);
        assert_int_equal(cost.optimizer, 2 * all / hosts);
        assert_int_equal(cost.gradients, 2 * layer + partials[hosts] * all / hosts);
        if (hosts == options.virtual_workers)
            assert_int_equal(cost.sent_gradients + cost.sent_params, 2 * all / hosts * (hosts - 1));
    }
}

/* Rounding halves the bytes of gradients, but not of parameters. */
static void rounded_gradients_send_half_the_bytes(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3" };
    static const uint32_t    sizes[]      = { 1, 1, 1, 1 };
    (void)state;
    for (size_t s = 0; s < 4; s++) {
        lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                        .strategy        = strategies[s],
                                        .virtual_workers = 8,
                                        .optimizer       = { .kind = LK_ADAMW } };
        lk_parallel_cost    whole, half;
        assert_int_equal(lk_parallel_estimate(&whole, model, PARAMS, &options, sizes, 4), LK_OK);
        options.comm_dtype = LK_BF16;
        assert_int_equal(lk_parallel_estimate(&half, model, PARAMS, &options, sizes, 4), LK_OK);
        assert_true(whole.sent_gradients > 0);
        assert_int_equal(2 * half.sent_gradients, whole.sent_gradients);
        assert_int_equal(half.sent_params, whole.sent_params);
        assert_int_equal(half.gradients, whole.gradients);
    }
}

/* Parameters are sharded except for the units that are being read.  A turn gathers all units for
 * its forward pass.  For its backward pass it gathers them again, except for those still in a unit
 * buffer.  This is nearly 3P elements in all if every worker has one virtual worker (7.2.2). */
static void parameters_are_divided_over_hosts(void **state)
{
    static const uint32_t sizes[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    enum { LAYERS = 16, WIDTH = 512 };
    lk_param            layers[LAYERS];
    lk_parallel_options options = { .struct_size        = sizeof(lk_parallel_options),
                                    .strategy           = "zero3",
                                    .virtual_workers    = 8,
                                    .optimizer          = { .kind = LK_ADAMW },
                                    .bucket_bytes       = 1,
                                    .first_bucket_bytes = 1 };
    const size_t        layer   = WIDTH * WIDTH * sizeof(float), all = LAYERS * layer;
    lk_parallel_cost    cost;
    (void)state;
    for (size_t i = 0; i < LAYERS; i++)
        layers[i] = (lk_param){ .name = "w", .shape = { 2, { WIDTH, WIDTH } } };
    for (uint32_t buffers = 1; buffers <= LAYERS; buffers *= 2) {
        options.unit_buffers = buffers;
        assert_int_equal(lk_parallel_estimate(&cost, layers, LAYERS, &options, sizes, 8), LK_OK);
        assert_int_equal(cost.params, all / 8 + buffers * layer);
        assert_int_equal(cost.optimizer, 2 * all / 8);
        assert_int_equal(cost.gradients, 2 * layer + all / 8);
        assert_int_equal(cost.sent_gradients, all / 8 * 7);
        assert_int_equal(cost.sent_params, (2 * all - buffers * layer) / 8 * 7);
    }
    lk_parallel_cost same;
    options.strategy = "FULL_SHARD";
    assert_int_equal(lk_parallel_estimate(&same, layers, LAYERS, &options, sizes, 8), LK_OK);
    assert_memory_equal(&same, &cost, sizeof same);
    assert_int_equal(lk_parallel_estimate(&cost, layers, LAYERS, &options, sizes, 1), LK_OK);
    assert_int_equal(cost.params, all); /* one copy for the host; nothing is gathered */
}

/* Checks groups of 2 hosts out of 4.  Each host sends half of the gradients to its neighbour, and
 * twice half of its shard's gradients to the other group. */
static void hosts_of_hybrid_groups_send_the_estimated_bytes(void **state)
{
    static const uint32_t sizes[4] = { 1, 1, 1, 1 };
    const size_t          elements = 1 << 20, bytes = elements * sizeof(float);
    const lk_param        one      = { .name = "w", .shape = { 1, { elements } } };
    lk_parallel_options   options  = { .struct_size = sizeof(lk_parallel_options),
                                       .strategy = "HYBRID_SHARD", .virtual_workers = 4 };
    lk_parallel_cost      cost;
    (void)state;
    assert_int_equal(lk_parallel_estimate(&cost, &one, 1, &options, sizes, 4), LK_OK);
    assert_int_equal(cost.params, bytes);
    assert_int_equal(cost.sent_gradients, 2 * bytes / 4 * 3); /* equal to ddp */
    assert_int_equal(cost.sent_params, 0);
    options.shard_hosts = 2;
    assert_int_equal(lk_parallel_estimate(&cost, &one, 1, &options, sizes, 4), LK_OK);
    assert_int_equal(cost.params, bytes / 2 + bytes);
    assert_int_equal(cost.sent_gradients, bytes / 2 + 2 * (bytes / 2 / 2));
    /* the last unit remains in its buffer for the backward pass */
    assert_int_equal(cost.sent_params, bytes / 2);
    options.shard_hosts = 3;
    assert_int_equal(lk_parallel_estimate(&cost, &one, 1, &options, sizes, 4), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "4 hosts cannot be cut into groups of 3"));
    static const uint32_t uneven[4] = { 1, 2, 2, 1 };
    options.shard_hosts     = 2;
    options.virtual_workers = 6;
    assert_int_equal(lk_parallel_estimate(&cost, &one, 1, &options, uneven, 4), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, "as many workers on hosts 0 and 2"));
}

static void an_estimate_fails_like_opening(void **state)
{
    static const uint32_t sizes[] = { 3, 3 };
    lk_parallel_options   options = { .struct_size     = sizeof(lk_parallel_options),
                                      .virtual_workers = 4 };
    lk_parallel_cost      cost;
    (void)state;
    assert_int_equal(lk_parallel_estimate(&cost, model, PARAMS, &options, sizes, 2), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "raise `virtual_workers`"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(estimates_equal_the_memory_and_bytes_of_a_step),
        cmocka_unit_test(estimates_equal_the_memory_and_bytes_of_replicas),
        cmocka_unit_test(optimizer_states_are_divided_over_hosts),
        cmocka_unit_test(buddies_store_one_more_shard),
        cmocka_unit_test(offloaded_states_take_little_memory),
        cmocka_unit_test(gradients_are_divided_over_hosts),
        cmocka_unit_test(rounded_gradients_send_half_the_bytes),
        cmocka_unit_test(parameters_are_divided_over_hosts),
        cmocka_unit_test(hosts_of_hybrid_groups_send_the_estimated_bytes),
        cmocka_unit_test(an_estimate_fails_like_opening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
