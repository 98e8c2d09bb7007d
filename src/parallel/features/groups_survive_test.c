/* groups_survive_test.c -- ranks that exchange compressed gradients are lost at any moment, and no
 * bit of the result changes.
 *
 * Goal:    a rank ends before, in the middle of or after the encoding of a tensor, the sum of
 *          messages, the decoding of a span or an update.  The values, the errors and what groups
 *          share are those of the undisturbed run, with every compressor.
 * Method:  losses_testing.h, with moments in the functions of a compressor and around them.  A rank
 *          that ends in the middle of a function leaves nonsense in what the function writes.
 * Control: some rank was lost in every function.
 */
#include "base/thorough_testing.h"
#include "parallel/recover/losses_testing.h"

/* ---- Moments in the exchange ----------------------------------------------------------------- */

enum { IN_BEGIN, IN_ENCODE, IN_SUM, IN_SETTLE, IN_DECODE, IN_ADD, IN_KEEP, PLACES };
enum { FOREVER = 1 << 30 };

static const lk_compressor *real; /* of the current plot */
static lk_compressor        torn; /* calls `real` */
static lk_feedback          rule; /* of the current plot */
static uint64_t             start; /* lk_exchange.start of the current plot */
static uint32_t             warmups; /* ratios of the warm-up, of a step each */
static _Atomic uint32_t     lost_in[PLACES];

/* The place where a victim ends that has no moment of its own, at the nth visit. */
static struct {
    int      place;
    uint32_t visit; /* 0: nowhere */
} doom;
static _Thread_local uint32_t visits;

/* Writes nonsense to the first half if the rank ends now, in the middle of a function. */
static void tear(int place, void *at, size_t bytes)
{
    if (fate.left > 0 && place == doom.place && ++visits == doom.visit)
        fate.left = 1;
    if (fate.left == 1) {
        memset(at, 0x7b, bytes / 2);
        atomic_fetch_add(&lost_in[place], 1);
    }
    moment();
}

static void torn_begin(const lk_compression *options, const lk_compress_key *key, void *before)
{
    tear(IN_BEGIN, before, real->bytes(options, key, real->rounds - 1));
    real->begin(options, key, before);
    moment();
}

static void torn_encode(const lk_compression *options, const lk_compress_key *key,
                        uint32_t round, const lk_compress_part *part,
                        const void *before, float *values, void *message)
{
    moment();
    if (fate.left == 1)
        memset(message, 0x7b, real->bytes(options, key, round) / 2);
    tear(IN_ENCODE, values, key->rows * key->cols * sizeof *values);
    real->encode(options, key, round, part, before, values, message);
    moment();
}

static void torn_settle(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                        void *combined)
{
    tear(IN_SETTLE, combined, real->bytes(options, key, round));
    real->settle(options, key, round, combined);
    moment();
}

static void torn_decode(const lk_compression *options, const lk_compress_key *key,
                        const void *const *messages, size_t first, size_t count, float *out)
{
    tear(IN_DECODE, out, count * sizeof *out);
    real->decode(options, key, messages, first, count, out);
}

void __real_lk_feedback_add(size_t count, const float *error, uint64_t samples, float *values);
void __wrap_lk_feedback_add(size_t count, const float *error, uint64_t samples, float *values);
void __real_lk_feedback_keep(size_t count, const float *residual, uint64_t samples, float *error);
void __wrap_lk_feedback_keep(size_t count, const float *residual, uint64_t samples, float *error);
void __real_lki_tree_sum_f32(lk_dtype rounded, uint32_t leaves, const lki_tree_input *inputs,
                             uint32_t input_count, size_t count, float *out);
void __wrap_lki_tree_sum_f32(lk_dtype rounded, uint32_t leaves, const lki_tree_input *inputs,
                             uint32_t input_count, size_t count, float *out);

void __wrap_lk_feedback_add(size_t count, const float *error, uint64_t samples, float *values)
{
    tear(IN_ADD, values, count * sizeof *values);
    __real_lk_feedback_add(count, error, samples, values);
}

void __wrap_lk_feedback_keep(size_t count, const float *residual, uint64_t samples, float *error)
{
    tear(IN_KEEP, error, count * sizeof *error);
    __real_lk_feedback_keep(count, residual, samples, error);
}

void __wrap_lki_tree_sum_f32(lk_dtype rounded, uint32_t leaves, const lki_tree_input *inputs,
                             uint32_t input_count, size_t count, float *out)
{
    tear(IN_SUM, out, count * sizeof *out);
    __real_lki_tree_sum_f32(rounded, leaves, inputs, input_count, count, out);
}

static lk_exchange exchange_of(const lk_compressor *by, uint32_t groups)
{
    lk_exchange exchange    = LK_EXCHANGE_INIT;
    exchange.groups         = groups;
    exchange.feedback       = rule;
    exchange.start          = start;
    exchange.warmup_count   = warmups;
    exchange.warmup[0]      = 0.3;
    exchange.warmup_span    = 1;
    exchange.compression    = (lk_compression)LK_COMPRESSION_INIT;
    exchange.compression.ratio = 0.05;
    real                    = by;
    if (by == NULL)
        return exchange;
    torn = *by;
    torn.encode = torn_encode;
    torn.decode = torn_decode;
    if (by->begin != NULL)
        torn.begin = torn_begin;
    if (by->settle != NULL)
        torn.settle = torn_settle;
    exchange.compressor = &torn;
    return exchange;
}

static void lose_with(plot p, const lk_compressor *by, uint32_t groups, long every)
{
    lk_exchange exchange = exchange_of(by, groups);
    p.exchange           = &exchange;
    lose_all_through(p, every * (LKI_SANITIZED ? 8 : 1) * (lki_brief() ? 4 : 1));
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void a_rank_may_be_lost_with_every_compressor(void **state)
{
    static const uint32_t groups[] = { 8, 2, 4, 1 }, ranks[] = { 3, 2, 5 };
    (void)state;
    for (uint32_t c = 0; lk_compressors(c) != NULL; c += lki_brief() ? 4 : 1)
        for (uint32_t i = lki_thorough() ? 0 : c % 3; i < 3; i += lki_thorough() ? 1 : 3) {
            const char *strategy = (c + i) % 2 == 0 ? "ddp" : "zero1";
            lose_with(plot_of(i == 1 ? lamb : adamw, strategy, ranks[i], 0, (c + i) % ranks[i]),
                      lk_compressors(c), groups[(c + i) % 4], 7);
        }
}

static void a_rank_may_be_lost_with_every_rule(void **state)
{
    static const lk_feedback rules[] = { LK_FEEDBACK_OFF, LK_FEEDBACK_SIGNUM, LK_FEEDBACK_DGC,
                                         LK_FEEDBACK_EF21, LK_FEEDBACK_EF21_SGDM };
    const lk_compressor     *topk;
    (void)state;
    assert_int_equal(lk_compressor_find(&topk, "topk"), LK_OK);
    for (uint32_t i = 0; i < 5; i++) {
        rule = rules[i];
        lose_with(plot_of(sgd, i % 2 == 0 ? "ddp" : "zero1", 3, 0, i % 3), topk, 8, 5);
    }
    lose_with(over(2, plot_of(adamw, "ddp", 4, 0, 1)), topk, 4, 9);
    rule = LK_FEEDBACK_DEFAULT;
}

/* Loses a rank before, at and after the first step that is compressed. */
static void a_rank_may_be_lost_around_the_start(void **state)
{
    const lk_compressor *topk, *powersgd;
    (void)state;
    assert_int_equal(lk_compressor_find(&topk, "topk"), LK_OK);
    assert_int_equal(lk_compressor_find(&powersgd, "powersgd"), LK_OK);
    start = STEPS;
    lose_with(plot_of(adamw, "ddp", 3, 0, 1), powersgd, 4, 5);
    lose_with(plot_of(lamb, "zero1", 5, 0, 0), topk, 8, 5);
    lose_with(over(2, plot_of(adamw, "zero1", 4, 0, 2)), powersgd, 2, 9);
    start   = 0;
    warmups = 1;
    lose_with(plot_of(adamw, "zero1", 3, 0, 2), topk, 4, 5);
    warmups = 0;
}

/* Loses a rank before and after the second moment is frozen. */
static void a_rank_may_be_lost_with_onebit(void **state)
{
    const lk_optimizer onebit = { .kind = LK_ONEBIT_ADAM };
    const lk_optimizer ratios = { .kind = LK_ONEBIT_LAMB, .weight_decay = 0.01 };
    (void)state;
    start = STEPS;
    lose_with(plot_of(onebit, "ddp", 3, 0, 1), NULL, 4, 3);
    lose_with(plot_of(onebit, "zero1", 5, 0, 0), NULL, 8, 3);
    lose_with(over(2, plot_of(onebit, "zero1", 4, 0, 2)), NULL, 4, 5);
    lose_with(over(2, plot_of(onebit, "ddp", 5, 0, 3)), NULL, 8, 5);
    lose_with(plot_of(ratios, "zero1", 3, 0, 0), NULL, 4, 3);
    lose_with(over(2, plot_of(ratios, "ddp", 4, 0, 2)), NULL, 4, 7);
    start = LK_START_AUTO;
    lose_with(over(2, plot_of(onebit, "zero1", 4, 0, 0)), NULL, 4, 9);
    start = 0;
}

/* Loses a rank at its first, third, ninth ... visit of a place.  Returns false if the compressor
 * has no such function. */
static bool lose_in(plot p, int place)
{
    uint64_t want   = undisturbed(&p);
    uint32_t before = atomic_load(&lost_in[place]), lost;
    p.victims[0].at = FOREVER;
    for (doom.visit = 1; doom.visit < 100; doom.visit *= 3) {
        doom.place = place;
        lost       = atomic_load(&lost_in[place]);
        if (play(&p) != want)
            fail_msg("%s, %s: lost at visit %u of place %d: %s", torn.name, p.strategy,
                     doom.visit, place, refusal.why);
        if (atomic_load(&lost_in[place]) == lost)
            break;
    }
    doom.visit = 0;
    return atomic_load(&lost_in[place]) > before;
}

/* Loses other ranks, because a rank calls only the functions of the tasks that it takes. */
static bool lose_anybody_in(int place)
{
    for (uint32_t i = 0; i < 30; i++) {
        lk_exchange exchange = exchange_of(lk_compressors(0), 4);
        plot        p        = plot_of(sgd, "ddp", 3, 0, i % 3);
        p.exchange           = &exchange;
        if (lose_in(p, place))
            return true;
    }
    return false;
}

static void a_rank_may_be_lost_in_every_function(void **state)
{
    bool in[PLACES] = { false };
    (void)state;
    for (uint32_t c = 0; lk_compressors(c) != NULL; c += lki_brief() ? 4 : 1)
        for (int place = 0; place < PLACES; place++) {
            lk_exchange exchange = exchange_of(lk_compressors(c), 4);
            plot        p        = plot_of(sgd, c % 2 == 0 ? "ddp" : "zero1", 3, 0, c % 3);
            p.exchange           = &exchange;
            in[place]            = lose_in(p, place) || in[place];
        }
    for (int place = 0; place < PLACES; place++)
        if (!in[place] && !lose_anybody_in(place))
            fail_msg("no rank was lost in place %d", place);
}

static void a_second_rank_may_be_lost_during_recovery(void **state)
{
    plot p = plot_of(adamw, "ddp", 4, 0, 0);
    (void)state;
    for (uint32_t c = 0; lk_compressors(c) != NULL; c += lki_brief() ? 4 : 1) {
        lk_exchange exchange = exchange_of(lk_compressors(c), 8);
        p.exchange           = &exchange;
        lose_two(p, c);
    }
}

/* ---- Several hosts --------------------------------------------------------------------------- */

/* Loses ranks of hosts.  Groups stay on their hosts, or keep no errors. */
static void ranks_of_several_hosts_may_be_lost(void **state)
{
    const lk_compressor *powersgd, *randomk;
    (void)state;
    assert_int_equal(lk_compressor_find(&powersgd, "powersgd"), LK_OK);
    assert_int_equal(lk_compressor_find(&randomk, "randomk"), LK_OK);
    lose_with(over(2, plot_of(adamw, "ddp", 4, 0, 0)), powersgd, 2, 9);
    lose_with(over(2, plot_of(adamw, "ddp", 5, 0, 4)), powersgd, 8, 9);
    lose_with(over(3, plot_of(sgd, "zero1", 6, 0, 2)), randomk, 8, 9);
    lose_with(over(2, plot_of(lamb, "zero1", 4, 0, 1)), randomk, 2, 9);
    lose_with(over(2, plot_of(sgd, "zero1", 4, 0, 3)), powersgd, 1, 9);
    lose_with(over(3, plot_of(adamw, "ddp", 3, 0, 2)), powersgd, 1, 9); /* a host without groups */
    rule = LK_FEEDBACK_OFF;
    lose_with(over(2, plot_of(lamb, "ddp", 5, 0, 3)), powersgd, 8, 9);
    lose_with(over(3, plot_of(adamw, "ddp", 3, 0, 0)), randomk, 8, 9);
    rule = LK_FEEDBACK_DEFAULT;
    lose_with(over(2, plot_of(sgd, "zero1", 4, 0, 2)), NULL, 8, 9);
}

/* Loses a host that has the errors of a group. */
static void refuse(plot p, uint32_t groups, const char *why)
{
    const lk_compressor *by = lk_compressors(0);
    lk_exchange          exchange = exchange_of(by, groups);
    p.exchange                    = &exchange;
    p.victims[0].at               = 60;
    assert_int_equal(play(&p), 0);
    if (strstr(refusal.why, why) == NULL)
        fail_msg("'%s' is without '%s'", refusal.why, why);
}

static void a_host_with_groups_may_not_be_lost(void **state)
{
    (void)state;
    refuse(over(2, plot_of(adamw, "ddp", 2, 0, 0)), 2,
           "what group 0 keeps was on a host that is lost: start again from a checkpoint");
    refuse(over(3, plot_of(adamw, "ddp", 3, 0, 1)), 8,
           "what group 2 keeps was on a host that is lost: start again from a checkpoint");
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Returns the bytes of tables as planned, which are those of the arena.  Sets *kept to the number
 * of vectors that a group keeps. */
static size_t tables_of(const lk_exchange *exchange, bool survives, size_t *kept)
{
    plot                p       = plot_of(adamw, "ddp", 2, 0, 0);
    const uint32_t      sizes_of[1] = { 1 };
    lk_parallel_options options;
    lk_parallel_cost    cost;
    lk_comm            *comm;
    lk_parallel        *parallel;
    p.exchange       = exchange;
    options          = options_of(&p);
    options.survives = survives;
    assert_int_equal(lk_parallel_estimate(&cost, params, PARAMS, &options, sizes_of, 1), LK_OK);
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&parallel, comm, params, PARAMS, &options), LK_OK);
    assert_int_equal(cost.params + cost.optimizer + cost.tables, lki_parallel_arena(parallel));
    for (*kept = 0; lk_parallel_kept_name(parallel, 0, (uint32_t)*kept) != NULL;)
        ++*kept;
    lk_parallel_free(parallel);
    lk_comm_free(comm);
    return cost.tables;
}

static void only_survival_takes_memory(void **state)
{
    size_t kept;
    (void)state;
    for (uint32_t c = 0; lk_compressors(c) != NULL; c += lki_brief() ? 4 : 1) {
        const size_t elements = 5008 + 16 + 4112;
        lk_exchange  whole    = exchange_of(NULL, 4);
        size_t       ledger   = tables_of(&whole, true, &kept) - tables_of(&whole, false, &kept);
        lk_exchange  exchange = exchange_of(lk_compressors(c), 4);
        size_t       once     = tables_of(&exchange, false, &kept);
        size_t       more     = tables_of(&exchange, true, &kept) - once - ledger;
        size_t       errors   = kept * 4 * elements * sizeof(float);
        if (real->begin == NULL)
            assert_int_equal(more, errors);
        else
            assert_in_range(more, errors + 1, errors + elements * sizeof(float));
    }
}

static void the_last_rank_may_hold_all_groups(void **state)
{
    lk_exchange         exchange = exchange_of(lk_compressors(0), 512);
    plot                p        = plot_of(adamw, "ddp", 4, 0, 0);
    const uint32_t      four     = 4;
    lk_parallel_options options;
    lk_parallel_cost    cost;
    (void)state;
    p.exchange              = &exchange;
    options                 = options_of(&p);
    options.virtual_workers = 512;
    assert_int_equal(lk_parallel_estimate(&cost, params, PARAMS, &options, &four, 1), LK_EINVAL);
    options.survives = false;
    assert_int_equal(lk_parallel_estimate(&cost, params, PARAMS, &options, &four, 1), LK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_may_be_lost_with_every_compressor),
        cmocka_unit_test(a_rank_may_be_lost_with_every_rule),
        cmocka_unit_test(a_rank_may_be_lost_around_the_start),
        cmocka_unit_test(a_rank_may_be_lost_with_onebit),
        cmocka_unit_test(a_rank_may_be_lost_in_every_function),
        cmocka_unit_test(a_second_rank_may_be_lost_during_recovery),
        cmocka_unit_test(ranks_of_several_hosts_may_be_lost),
        cmocka_unit_test(a_host_with_groups_may_not_be_lost),
        cmocka_unit_test(only_survival_takes_memory),
        cmocka_unit_test(the_last_rank_may_hold_all_groups),
    };
    return cmocka_run_group_tests_name("parallel.features.groups_survive", tests, NULL, NULL);
}
