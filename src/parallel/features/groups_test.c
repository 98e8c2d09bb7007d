/* groups_test.c -- the exchange of compressed gradients between groups.
 *
 * Goal:    without a compressor every bit is that of a run without groups, for any number of
 *          groups.  With one, the result depends on the number of groups, and not on ranks and
 *          hosts.  A run can be resumed by other ranks.  Bytes are sent as planned.
 * Method:  two small compressors, one for each way of combining, and all of the library with all
 *          rules of what a group keeps.
 * Control: a compressor that keys its messages by the number of ranks gives other results.
 */
#include "base/thorough_testing.h"
#include "compress/rules.h"
#include "parallel/crew_testing.h"

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

/* ---- A compressor that sends every second element -------------------------------------------- */

static size_t halves_bytes(const lk_compression *options, const lk_compress_key *key,
                           uint32_t round)
{
    (void)options;
    (void)round;
    return key->cols == 1 ? 0 : (key->rows * key->cols + 1) / 2 * sizeof(float);
}

static void halves_encode(const lk_compression *options, const lk_compress_key *key,
                          uint32_t round, const lk_compress_part *part,
                          const void *before, float *values, void *message)
{
    float  *sent  = message;
    size_t  count = key->rows * key->cols, parity = key->step % 2;
    (void)options;
    (void)round, (void)part, (void)before;
    for (size_t i = 0; i < (count + 1) / 2; i++)
        sent[i] = 0;
    for (size_t i = parity; i < count; i += 2) {
        sent[i / 2] = values[i];
        values[i]   = 0;
    }
}

static void halves_decode(const lk_compression *options, const lk_compress_key *key,
                          const void *const *messages, size_t first, size_t count, float *out)
{
    const float *sent = messages[0];
    (void)options;
    for (size_t i = 0; i < count; i++)
        out[i] = (first + i) % 2 == key->step % 2 ? sent[(first + i) / 2] : 0;
}

static const lk_compressor halves = { .name    = "halves",
                                      .combine = LK_COMBINE_GATHER,
                                      .rounds  = 1,
                                      .selects = true,
                                      .bytes   = halves_bytes,
                                      .encode  = halves_encode,
                                      .decode  = halves_decode };

/* ---- A compressor with two rounds whose messages are summed ---------------------------------- */

static size_t means_bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round)
{
    (void)options;
    return key->cols == 1 ? 0 : (round == 0 ? key->rows : key->cols) * sizeof(float);
}

static void means_begin(const lk_compression *options, const lk_compress_key *key, void *before)
{
    float *weights = before;
    (void)options;
    for (size_t j = 0; j < key->cols; j++)
        weights[j] = weights[j] == 0 ? 1 : weights[j];
}

/* Round 0 sends the sums of rows, weighted by the last step's round 1.  Round 1 sends the sums of
 * columns without the means of the rows. */
static void means_encode(const lk_compression *options, const lk_compress_key *key,
                         uint32_t round, const lk_compress_part *part,
                         const void *before, float *values, void *message)
{
    const float *read = before;
    float       *sent = message;
    (void)options, (void)part;
    for (size_t k = 0; k < (round == 0 ? key->rows : key->cols); k++)
        sent[k] = 0;
    for (size_t i = 0; i < key->rows; i++)
        for (size_t j = 0; j < key->cols; j++) {
            float *value = &values[i * key->cols + j];
            if (round == 0) {
                sent[i] += *value * (1 + 0.125f * read[j]);
            } else {
                sent[j] += *value / (float)key->rows;
                *value -= 0.25f * read[i];
            }
        }
}

static void means_settle(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                         void *combined)
{
    float *values = combined;
    (void)options;
    for (size_t i = 0; round == 0 && i < key->rows; i++)
        values[i] /= (float)key->cols;
}

static void means_decode(const lk_compression *options, const lk_compress_key *key,
                         const void *const *messages, size_t first, size_t count, float *out)
{
    const float *rows = messages[0], *cols = messages[1];
    (void)options;
    for (size_t i = 0; i < count; i++)
        out[i] = rows[(first + i) / key->cols] + cols[(first + i) % key->cols];
}

static const lk_compressor means = { .name    = "means",
                                     .combine = LK_COMBINE_TREE,
                                     .rounds  = 2,
                                     .bytes   = means_bytes,
                                     .begin   = means_begin,
                                     .encode  = means_encode,
                                     .settle  = means_settle,
                                     .decode  = means_decode };

/* ---- Runs ------------------------------------------------------------------------------------ */

static void run(const lk_exchange *exchange, const char *strategy, uint32_t leaves, uint32_t ranks,
                uint32_t hosts, char hash[65])
{
    lkt_crew w         = lkt_make_crew(model, strategy, leaves, ranks);
    w.steps            = 4;
    w.options.unused   = LK_UNUSED_ZERO;
    w.options.exchange = exchange;
    if (hosts > 1) {
        w.hosts                = (hosted){ .hosts = hosts, .each = ranks / hosts };
        w.options.scaling.rule = LK_SCALE_NONE; /* as LK_SCALE_AUTO */
    }
    lkt_run_crew(&w, hash);
}

static void whole_gradients_change_no_bit(void **state)
{
    static const uint32_t leaves[] = { 1, 3, 8, 12 };
    (void)state;
    for (size_t l = lki_brief() ? 3 : 0; l < sizeof leaves / sizeof leaves[0]; l++) {
        char single[65], got[65];
        run(NULL, "single", leaves[l], 1, 1, single);
        for (uint32_t cut = 1; leaves[l] % cut == 0; cut *= 2) {
            lk_exchange exchange = LK_EXCHANGE_INIT;
            exchange.groups      = leaves[l] / cut;
            for (uint32_t ranks = 1; ranks <= 5 && ranks <= leaves[l]; ranks += 2) {
                run(&exchange, ranks == 3 ? "zero1" : "ddp", leaves[l], ranks, 1, got);
                assert_string_equal(got, single);
            }
            for (uint32_t hosts = 2; hosts <= 3 && hosts <= leaves[l]; hosts++) {
                run(&exchange, hosts == 2 ? "zero1" : "ddp", leaves[l], hosts, hosts, got);
                assert_string_equal(got, single);
            }
        }
    }
}

static void results_depend_on_groups_alone(void **state)
{
    static const lk_compressor *const all[] = { &halves, &means };
    (void)state;
    for (size_t c = 0; c < 2; c++) {
        char last[65];
        run(NULL, "ddp", 8, 1, 1, last);
        for (uint32_t groups = lki_brief() ? 4 : 1; groups <= 8; groups *= 2) {
            char        want[65], got[65];
            lk_exchange exchange = LK_EXCHANGE_INIT;
            exchange.groups      = groups;
            exchange.compressor  = all[c];
            run(&exchange, "ddp", 8, 1, 1, want);
            assert_string_not_equal(want, last);
            memcpy(last, want, sizeof last);
            for (uint32_t ranks = 2; ranks <= 8; ranks += 3) {
                run(&exchange, ranks % 2 == 0 ? "zero1" : "ddp", 8, ranks, 1, got);
                assert_string_equal(got, want);
            }
            for (uint32_t hosts = 2; hosts <= 4; hosts++) {
                run(&exchange, hosts % 2 == 0 ? "ddp" : "zero1", 8, 6 / hosts * hosts, hosts, got);
                assert_string_equal(got, want);
            }
        }
    }
}

/* ---- Methods of the library ------------------------------------------------------------------ */

/* Returns a compressor of the library with one of the rules that go with it; a name of NULL after
 * the last. */
static const char *method(uint32_t index, lk_exchange *out)
{
    static const lk_feedback rules[] = { LK_FEEDBACK_EF14, LK_FEEDBACK_OFF, LK_FEEDBACK_SIGNUM,
                                         LK_FEEDBACK_EF21, LK_FEEDBACK_EF21_SGDM,
                                         LK_FEEDBACK_DGC, LK_FEEDBACK_DGC };
    enum { RULES = sizeof rules / sizeof rules[0] };
    const lk_compressor *c = lk_compressors(index / RULES);
    *out                   = (lk_exchange)LK_EXCHANGE_INIT;
    if (c == NULL)
        return NULL;
    out->groups            = 4;
    out->compressor        = c;
    out->compression.ratio = 0.1;
    out->feedback          = rules[index % RULES];
    out->nesterov          = index % RULES == RULES - 1;
    out->clip              = out->nesterov ? 0.5 : 0;
    return c->name;
}

/* Returns true if a method is refused as it should be, so that there is nothing to run. */
static bool is_refused(const lk_exchange *exchange)
{
    const lki_rule     *rule    = lki_rule_of(exchange->feedback);
    const lk_compressor *by     = exchange->compressor;
    const bool          bad     = (rule->selects && !by->selects) ||
                                  (rule->needs_residual && by->conclude != NULL) ||
                                  (rule->estimates && by->begin != NULL);
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = 8,
                                    .unused          = LK_UNUSED_ZERO,
                                    .exchange        = exchange };
    lk_parallel_cost    cost;
    const uint32_t      alone = 1;
    assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &options, &alone, 1),
                     bad ? LK_EINVAL : LK_OK);
    return bad;
}

static void no_method_depends_on_ranks(void **state)
{
    static const uint32_t ranks[] = { 2, 3, 5, 8 };
    char                  last[65] = "", want[65], got[65];
    lk_exchange           exchange;
    (void)state;
    for (uint32_t m = 0; method(m, &exchange) != NULL; m++) {
        if (is_refused(&exchange) || (lki_brief() && m % 5 != 0))
            continue;
        run(&exchange, "ddp", 8, 1, 1, want);
        assert_string_not_equal(want, last);
        memcpy(last, want, sizeof last);
        for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
            run(&exchange, (m + r) % 2 == 0 ? "zero1" : "ddp", 8, ranks[r], 1, got);
            assert_string_equal(got, want);
        }
        for (uint32_t hosts = 2; hosts <= 3; hosts++) {
            run(&exchange, (m + hosts) % 2 == 0 ? "ddp" : "zero1", 8, hosts, hosts, got);
            assert_string_equal(got, want);
        }
    }
}

static void a_rank_may_hold_many_groups(void **state)
{
    char        want[65], got[65];
    lk_exchange exchange = LK_EXCHANGE_INIT;
    (void)state;
    exchange.groups     = 64;
    exchange.compressor = &means;
    run(&exchange, "ddp", 64, 4, 1, want);
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        run(&exchange, ranks == 1 ? "ddp" : "zero1", 64, ranks, ranks, got);
        assert_string_equal(got, want);
    }
}

/* ---- Resuming -------------------------------------------------------------------------------- */

enum { RESUMED_AT = 2 };

/* Everything that a checkpoint holds.  Threads of all ranks write equal values. */
static struct {
    float values[LKT_PARAMS][3][LKT_ELEMENTS_MAX], kept[LKT_PARAMS][2][8][LKT_ELEMENTS_MAX];
    float shared[LKT_PARAMS][LKT_ELEMENTS_MAX], running[7];
    bool  forgets; /* what groups keep is not loaded */
} saved;

static void save(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    static _Thread_local float out[LKT_ELEMENTS_MAX];
    if (step != RESUMED_AT)
        return;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        size_t count = lk_shape_count(w->model[i].shape), bytes;
        for (uint32_t which = 0; which < 3; which++) {
            assert_int_equal(lk_parallel_fetch(p, i, which, 0, count, out), LK_OK);
            if (p->rank == 0)
                memcpy(saved.values[i][which], out, count * sizeof *out);
        }
        for (uint32_t which = 0; lk_parallel_kept_name(p, i, which) != NULL; which++)
            for (uint32_t g = 0; g < lk_parallel_groups(p); g++) {
                assert_int_equal(lk_parallel_fetch_kept(p, i, which, g, 0, count, out), LK_OK);
                assert_int_equal(lk_parallel_fetch_kept(p, i, which, g, 1, count, out), LK_EINVAL);
                if (p->rank == 0)
                    memcpy(saved.kept[i][which][g], out, count * sizeof *out);
            }
        const void *shared = lk_parallel_shared(p, i, &bytes);
        if (p->rank == 0 && shared != NULL)
            memcpy(saved.shared[i], shared, bytes);
    }
    if (p->rank == 0)
        memcpy(saved.running, lk_parallel_state_data(p, 0), sizeof saved.running);
}

static void load(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    size_t bytes;
    (void)w;
    if (step != RESUMED_AT)
        return;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        for (uint32_t which = 0; which < 3; which++)
            assert_int_equal(lk_parallel_load(p, i, which, saved.values[i][which]), LK_OK);
        for (uint32_t which = 0; lk_parallel_kept_name(p, i, which) != NULL; which++)
            for (uint32_t g = 0; g < lk_parallel_groups(p) && !saved.forgets; g++)
                assert_int_equal(lk_parallel_load_kept(p, i, which, g, saved.kept[i][which][g]),
                                 LK_OK);
        if (lk_parallel_shared(p, i, &bytes) != NULL)
            assert_int_equal(lk_parallel_load_shared(p, i, saved.shared[i]), LK_OK);
    }
    assert_int_equal(lk_parallel_load_state(p, 0, saved.running), LK_OK);
}

/* Runs steps [first, 4), and writes the hash of the values. */
static void run_from(const lk_exchange *exchange, uint32_t ranks, uint32_t first, char hash[65])
{
    lkt_crew w         = lkt_make_crew(model, ranks == 2 ? "zero1" : "ddp", 8, ranks);
    w.first            = first;
    w.steps            = 4;
    w.values_only      = true;
    w.options.unused   = LK_UNUSED_ZERO;
    w.options.exchange = exchange;
    w.at_step          = first > 0 ? load : save;
    lkt_run_crew(&w, hash);
}

static void any_number_of_ranks_resumes(void **state)
{
    static const lk_compressor *const all[] = { &halves, &means };
    (void)state;
    for (size_t c = 0; c < 2; c++) {
        char        want[65], got[65];
        lk_exchange exchange = LK_EXCHANGE_INIT;
        exchange.groups      = 4;
        exchange.compressor  = all[c];
        run_from(&exchange, 3, 0, want);
        for (uint32_t ranks = 2; ranks <= (lki_brief() ? 5 : 8); ranks += 3) {
            run_from(&exchange, ranks, RESUMED_AT, got);
            assert_string_equal(got, want);
        }
        saved.forgets = true;
        run_from(&exchange, 3, RESUMED_AT, got);
        assert_string_not_equal(got, want);
        saved.forgets = false;
    }
}

static void any_number_of_ranks_resumes_a_method(void **state)
{
    char        want[65], got[65];
    lk_exchange exchange;
    (void)state;
    for (uint32_t m = 0; method(m, &exchange) != NULL; m++) {
        if (is_refused(&exchange) || (lki_brief() && m % 5 != 0))
            continue;
        const bool keeps = lki_rule_kept(lki_rule_of(lk_exchange_feedback(&exchange))) > 0;
        run_from(&exchange, 3, 0, want);
        run_from(&exchange, 2 + m % 4, RESUMED_AT, got);
        assert_string_equal(got, want);
        saved.forgets = true;
        run_from(&exchange, 3, RESUMED_AT, got);
        saved.forgets = false;
        assert_int_equal(strcmp(got, want) != 0, keeps);
    }
}

/* ---- Controls, bytes and refusals ------------------------------------------------------------ */

static uint32_t ranks_of_run;

static void ranked_encode(const lk_compression *options, const lk_compress_key *key,
                          uint32_t round, const lk_compress_part *part,
                          const void *before, float *values, void *message)
{
    lk_compress_key wrong = *key;
    wrong.step += ranks_of_run; /* what a message depends on must be in the key */
    halves_encode(options, &wrong, round, part, before, values, message);
}

static void a_compressor_that_counts_ranks_is_seen(void **state)
{
    char          want[65], got[65];
    lk_compressor ranked   = halves;
    lk_exchange   exchange = LK_EXCHANGE_INIT;
    (void)state;
    ranked.encode       = ranked_encode;
    exchange.groups     = 4;
    exchange.compressor = &ranked;
    ranks_of_run        = 1;
    run(&exchange, "ddp", 8, ranks_of_run, 1, want);
    ranks_of_run = 2;
    run(&exchange, "ddp", 8, ranks_of_run, 1, got);
    assert_string_not_equal(got, want);
}

static uint64_t sent_in_step[8];

static void count_bytes(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    if (p->rank == 0 && step < w->steps)
        sent_in_step[step] = lki_wire_count(p->comm->self->wire).bytes_sent;
}

/* Returns the bytes that rank 0 sends in step 2 between `hosts` hosts of one rank, and those that a
 * plan knows. */
static uint64_t bytes_of_step(const lk_exchange *exchange, uint32_t hosts, uint64_t *planned)
{
    static const uint32_t ones[4] = { 1, 1, 1, 1 };
    lkt_crew              w       = lkt_make_crew(model, "ddp", 8, hosts);
    lk_parallel_cost      cost;
    char                  hash[65];
    w.steps            = 4;
    w.options.unused   = LK_UNUSED_ZERO;
    w.options.exchange = exchange;
    w.at_step          = count_bytes;
    w.hosts            = (hosted){ .hosts = hosts, .each = 1 };
    lkt_run_crew(&w, hash);
    assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &w.options, ones, hosts),
                     LK_OK);
    *planned = cost.sent_gradients;
    return sent_in_step[3] - sent_in_step[2];
}

static void bytes_are_as_planned(void **state)
{
    (void)state;
    for (uint32_t hosts = 2; hosts <= 4; hosts += 2)
        for (uint32_t groups = hosts; groups <= 8; groups *= 2) {
            uint64_t    planned[2];
            lk_exchange whole = LK_EXCHANGE_INIT, half = LK_EXCHANGE_INIT;
            whole.groups = half.groups = groups;
            half.compressor            = &halves;
            uint64_t more = bytes_of_step(&whole, hosts, &planned[0]) -
                            bytes_of_step(&half, hosts, &planned[1]);
            assert_int_equal(more, planned[0] - planned[1]);
            assert_int_equal(planned[0],
                             (hosts - 1) * groups / hosts * sizeof(float) *
                                 (50 * 90 + 33 + 6 * 5 * 7 + 2 * 16)); /* state is padded */
        }
}

static lk_status no_hook(const lk_bucket *bucket, void *context)
{
    (void)bucket;
    (void)context;
    return LK_OK;
}

static void other_features_are_refused(void **state)
{
    lk_exchange         exchange = LK_EXCHANGE_INIT;
    lk_parallel_options options  = { .struct_size     = sizeof(lk_parallel_options),
                                     .virtual_workers = 12,
                                     .unused          = LK_UNUSED_ZERO,
                                     .exchange        = &exchange };
    lk_parallel_options all[8];
    lk_parallel_cost    cost;
    const uint32_t      alone = 1;
    (void)state;
    for (size_t i = 0; i < 8; i++)
        all[i] = options;
    all[0].hook       = no_hook;
    all[1].audit      = 1;
    all[2].rebalance  = true;
    all[3].strategy   = "zero2";
    all[4].comm_dtype = LK_BF16;
    all[5].unused     = LK_UNUSED_SKIP;
    all[6].noise_decay = 0.9;
    all[7].scaling.rule = LK_SCALE_PYTORCH;
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &all[i], &alone, 1),
                         LK_EUNSUPPORTED);
    options.scaling.rule = LK_SCALE_NONE;
    assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &options, &alone, 1), LK_OK);
    options.virtual_workers = exchange.groups = 512; /* more sums than a rank may hold */
    assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &options, &alone, 1),
                     LK_EINVAL);
    options.virtual_workers = exchange.groups = 256;
    assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &options, &alone, 1), LK_OK);
    options.virtual_workers = 12;
    for (exchange.groups = 1; exchange.groups <= 13; exchange.groups++) {
        bool good = exchange.groups == 3 || exchange.groups == 6 || exchange.groups == 12;
        assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &options, &alone, 1),
                         good ? LK_OK : LK_EINVAL);
    }
}

/* A parameter with two uses, whose sums over V are added at the end. */
static void uses_are_summed_apart(void **state)
{
    static const lk_param tied = { .name  = "t",
                                   .shape = { 2, { 30, 40 } },
                                   .uses  = 2,
                                   .init  = LK_INIT_UNIFORM,
                                   .scale = 0.1f };
    lk_exchange           exchange = LK_EXCHANGE_INIT;
    lk_parallel_options   options  = { .struct_size     = sizeof(lk_parallel_options),
                                       .virtual_workers = 8,
                                       .unused          = LK_UNUSED_ZERO };
    float                 want[1200], got[1200];
    (void)state;
    for (exchange.groups = 1; exchange.groups <= 8; exchange.groups *= 2)
        for (int with = 0; with < 2; with++) {
            lk_comm         *comm;
            lk_parallel     *p;
            lk_parallel_turn turn;
            lk_step_result   result;
            options.exchange = with ? &exchange : NULL;
            assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
            assert_int_equal(lk_parallel_open(&p, comm, &tied, 1, &options), LK_OK);
            assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
            while (lk_parallel_next(p, &turn)) {
                for (uint32_t t = 0; t < 2; t++)
                    for (uint32_t i = 0; i < 1200; i++)
                        lk_parallel_grad(p, 0, t)[i] += lkt_noise(i, t, turn.virtual_worker, 3);
                lk_parallel_report(p, 0, 1, 3, 3, 1);
            }
            assert_int_equal(lk_parallel_finish(p, 0.1, &result), LK_OK);
            memcpy(with ? got : want, lk_parallel_param(p, 0), sizeof want);
            if (with) {
                assert_memory_equal(got, want, sizeof want);
                assert_null(lk_parallel_kept_name(p, 0, 0));
            }
            lk_parallel_free(p);
            lk_comm_free(comm);
        }
}

static void invalid_compressors_are_refused(void **state)
{
    lk_exchange         exchange = LK_EXCHANGE_INIT;
    lk_parallel_options options  = { .struct_size     = sizeof(lk_parallel_options),
                                     .virtual_workers = 4,
                                     .unused          = LK_UNUSED_ZERO,
                                     .exchange        = &exchange };
    lk_compressor       all[4]   = { halves, halves, means, means };
    lk_parallel_cost    cost;
    const uint32_t      alone = 1;
    (void)state;
    all[0].rounds = 2;
    all[1].begin  = means_begin;
    all[2].rounds = LK_ROUNDS_MAX + 1;
    all[3].decode = NULL;
    for (size_t i = 0; i < 4; i++) {
        exchange.compressor = &all[i];
        assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &options, &alone, 1),
                         LK_EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_gradients_change_no_bit),
        cmocka_unit_test(results_depend_on_groups_alone),
        cmocka_unit_test(no_method_depends_on_ranks),
        cmocka_unit_test(a_rank_may_hold_many_groups),
        cmocka_unit_test(any_number_of_ranks_resumes),
        cmocka_unit_test(any_number_of_ranks_resumes_a_method),
        cmocka_unit_test(a_compressor_that_counts_ranks_is_seen),
        cmocka_unit_test(bytes_are_as_planned),
        cmocka_unit_test(other_features_are_refused),
        cmocka_unit_test(uses_are_summed_apart),
        cmocka_unit_test(invalid_compressors_are_refused),
    };
    return cmocka_run_group_tests_name("parallel.features.groups", tests, NULL, NULL);
}
