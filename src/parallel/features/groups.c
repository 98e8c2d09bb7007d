/* groups.c -- the exchange of compressed gradients between groups; see lk_exchange.
 *
 * The strategy has summed the gradients of each group on the host of its keeper.  Then:
 *
 *     ranks of a host      encode the parts of the tensors of the groups that the host keeps
 *                          (groups_encode.c)
 *     all                  copy the messages of each keeper to all hosts
 *     ranks of a host      combine the messages of all groups, a tensor at a time
 *     owners               decode the spans that they update, after the last round
 *
 * A tensor that is left whole has its values as its message in round 0, those of each use apart,
 * and so has running state.  They are summed by the canonical tree over the groups, so without a
 * compressor every bit is that of a run without groups.  The uses of a tensor that is compressed
 * are added first.
 *
 * Memory:  the model's arena has the messages of all groups, their combinations, and the vectors of
 *          the groups that a host keeps.
 * Bytes:   each host sends the messages of its groups to every other host.
 */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/options.h"
#include "comm/worker.h"
#include "device/reduce.h"
#include "parallel/features/groups.h"
#include "parallel/strategies/ddp.h"

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status refuse(const lk_parallel *parallel, const lk_parallel_options *options)
{
    const char *what = NULL;
    if (parallel->ops != &lki_strategy_ddp && parallel->ops != &lki_strategy_zero1)
        return lk_fail(LK_EUNSUPPORTED,
                       "groups exchange gradients with strategy ddp or zero1, not with %s",
                       parallel->ops->name);
    if (options->lock_step)
        what = "lock_step";
    else if (options->audit > 0)
        what = "audit";
    else if (options->rebalance || options->duplicate || options->backups > 0)
        what = "rebalance, duplicate and backups";
    else if (options->hook != NULL)
        what = "hook";
    else if (options->noise_decay > 0)
        what = "noise_decay";
    else if (parallel->rounded != LK_F32)
        what = "comm_dtype";
    else if (options->unused != LK_UNUSED_ZERO)
        what = "unused (give LK_UNUSED_ZERO)";
    else if (options->scaling.rule > LK_SCALE_NONE)
        what = "scaling";
    return what == NULL ? LK_OK
                        : lk_fail(LK_EUNSUPPORTED, "groups do not yet go together with %s", what);
}

static lk_status check_count(const lk_parallel *parallel, uint32_t count)
{
    uint32_t width = count == 0 ? 0 : parallel->leaves / count;
    if (width > 0 && parallel->leaves % count == 0 && (width & (width - 1)) == 0)
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "%u groups of %u virtual workers: all groups must have the same number of "
                   "virtual workers, a power of two",
                   count, parallel->leaves);
}

/* Checks that no rank holds more sums than a merge counter has room for.  If ranks may be lost, the
 * last one holds all. */
static lk_status check_nodes(const lk_parallel *parallel, uint32_t cut)
{
    _Static_assert(LK_GROUPS_OF_RANK_MAX <= LKI_NODES_MAX - 8, "and a group that is computed");
    const lki_dealing alone = { .leaves = parallel->leaves, .ranks = 1 };
    const lki_dealing *most = parallel->ledger.kept ? &alone : &parallel->dealing;
    for (uint32_t r = 0; r < most->ranks; r++)
        if (lki_share_of(most, r).count / cut > LK_GROUPS_OF_RANK_MAX)
            return lk_fail(LK_EINVAL,
                           "rank %u would hold the sums of %u groups%s, %d is the limit; use fewer "
                           "groups%s",
                           r, lki_share_of(most, r).count / cut,
                           parallel->ledger.kept ? " if it survived all others" : "",
                           LK_GROUPS_OF_RANK_MAX, parallel->ledger.kept ? "" : ", or more workers");
    return LK_OK;
}

size_t lki_groups_message_bytes(const lki_groups *self, const lki_layout *layout, uint32_t param,
                            uint32_t round)
{
    size_t bytes = self->by == NULL ? 0
                                    : self->by->bytes(&self->options, &self->keys[param], 0);
    if (bytes == 0)
        return round > 0 ? 0
                         : lki_layout_uses(layout, param) * layout->sizes[param] * sizeof(float);
    return self->by->bytes(&self->options, &self->keys[param], round);
}

bool lki_groups_leave_whole(const lki_groups *self, uint32_t param)
{
    return self->by == NULL || self->by->bytes(&self->options, &self->keys[param], 0) == 0;
}

static lk_compress_key key_of(const lki_layout *layout, uint32_t param)
{
    lk_shape shape = layout->params[param].shape;
    size_t   rows  = shape.rank > 1 ? shape.dims[0] : layout->sizes[param];
    return (lk_compress_key){ .rows   = rows,
                              .cols   = rows == 0 ? 1 : layout->sizes[param] / rows,
                              .tensor = param };
}

static lk_status measure(const lk_parallel *parallel, lki_groups *self)
{
    const lki_layout *layout = parallel->layout;
    const uint32_t    params = layout->param_count;
    LK_TRY(LKI_NEW(&self->keys, params, "tensors of groups"));
    for (uint32_t p = 0; p < params; p++)
        self->keys[p] = key_of(layout, p);
    for (uint32_t r = 0; r < self->rounds; r++)
        LK_TRY(LKI_NEW(&self->at[r], params + 1, "messages of groups"));
    for (uint32_t stage = 0; stage <= self->warmups; stage++) {
        lki_groups_set_stage(parallel, self, stage);
        for (uint32_t r = 0; r < self->rounds; r++)
            self->room[r] = lki_max(self->room[r], self->bytes[r]);
    }
    return self->onebit == NULL ? LK_OK : lki_onebit_measure(parallel, self);
}

/* Checks a compressor, which may be the program's own. */
static lk_status check_compressor(const lk_compressor *c)
{
    bool rounds = c->combine == LK_COMBINE_TREE ? c->rounds >= 1 && c->rounds <= LK_ROUNDS_MAX
                                                : c->rounds == 1 && c->begin == NULL;
    if (c->name != NULL && c->bytes != NULL && c->encode != NULL && c->decode != NULL && rounds)
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "compressor '%s' must have a name, bytes(), encode() and decode(), 1 to %d "
                   "rounds or, with LK_COMBINE_GATHER, 1 round and no begin()",
                   c->name != NULL ? c->name : "", LK_ROUNDS_MAX);
}

/* Reads the exchange of the options, with all defaults filled in. */
static lk_status read_options(lk_exchange *out, const lk_parallel_options *options)
{
    LK_TRY(lki_options_copy(out, sizeof *out, options->exchange, "lk_exchange"));
    if (out->groups == 0)
        out->groups = options->virtual_workers;
    lk_compression given = out->compression;
    if (given.struct_size == 0)
        given.struct_size = sizeof given;
    return lk_compression_resolve(&out->compression, &given);
}

static lk_status check_start(const lk_parallel_options *options, const lk_exchange *exchange)
{
    const bool is_auto = exchange->start == LK_START_AUTO;
    if (is_auto && !lki_is_onebit(options->optimizer.kind))
        return lk_fail(LK_EINVAL, "the exchange's `start` LK_START_AUTO goes with optimizers "
                                  "onebit-adam and onebit-lamb");
    if (!is_auto && exchange->auto_after > 0)
        return lk_fail(LK_EINVAL, "the exchange's `auto_after` goes with `start` LK_START_AUTO");
    return LK_OK;
}

static lk_status groups_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    lki_groups *self = NULL;
    lk_exchange mine;

    if (options->exchange == NULL && !lki_is_onebit(options->optimizer.kind))
        return LK_OK;
    if (options->exchange == NULL)
        return lk_fail(LK_EINVAL, "optimizer %s needs an exchange between groups",
                       lk_optimizer_name(options->optimizer.kind));
    LK_TRY(refuse(parallel, options));
    LK_TRY(read_options(&mine, options));
    LK_TRY(LKI_NEW(&self, 1, "groups"));
    *out          = self;
    self->count   = mine.groups;
    self->options = mine.compression;
    self->by      = mine.compressor;
    LK_TRY(check_start(options, &mine));
    self->start   = mine.start == 0 || mine.start == LK_START_AUTO ? mine.start : mine.start - 1;
    if (self->by != NULL)
        LK_TRY(check_compressor(self->by));
    LK_TRY(lki_is_onebit(options->optimizer.kind)
               ? lki_onebit_open(parallel, self, options, &mine)
               : lki_groups_read_rule(self, &mine));
    LK_TRY(lki_groups_read_stages(self, &mine));
    self->rounds = self->by == NULL ? 1 : self->by->rounds;
    LK_TRY(check_count(parallel, self->count));
    LK_TRY(check_nodes(parallel, parallel->leaves / self->count));
    parallel->effects.cut        = parallel->leaves / self->count;
    parallel->effects.cut_from   = self->start;
    parallel->effects.holds_back = true;
    LK_TRY(lki_groups_deal(parallel, self));
    LK_TRY(lki_groups_open_copies(parallel, self));
    LK_TRY(measure(parallel, self));
    return lki_groups_order(parallel, self);
}

static void groups_close(void *context)
{
    lki_groups *self = context;
    for (uint32_t r = 0; r < LK_ROUNDS_MAX; r++)
        lki_free(self->at[r]);
    lki_free(self->keys);
    lki_free(self->order);
    lki_free(self->bounds);
    lki_free(self->keepers);
    lki_free(self->places);
    lki_free(self->sums);
    lki_free(self->sent);
    lki_free(self->inputs);
    lki_free(self->factors);
    lki_free(self->leaves);
    lki_onebit_close(self->onebit);
    lki_free(self->freeze);
    lki_lamb_close(self->lamb);
    lki_free(self->whole);
    lki_free(self);
}

static uint64_t groups_hash(const lk_parallel_options *options)
{
    lk_exchange x;
    if (options->exchange == NULL || read_options(&x, options) != LK_OK)
        return 0;
    const char    *name    = x.compressor == NULL ? "" : x.compressor->name;
    const uint64_t words[] = { x.groups, x.start > 1 ? x.start : 1, x.auto_after,
                               lki_groups_hash_rule(&x),
                               x.compression.rank,
                               x.compression.cold_start, x.compression.seed,
                               x.compression.levels, x.compression.bucket,
                               lki_xxh3(name, strlen(name)) };
    const double   numbers[] = { x.compression.ratio, x.compression.min_rate, x.compression.clip };
    return lki_xxh3(words, sizeof words) ^ lki_xxh3(numbers, sizeof numbers) ^
           lki_groups_hash_stages(&x);
}

static uint32_t host_of(const lk_parallel *parallel, uint32_t group)
{
    return parallel->world.host_of[lki_ddp_keeper(parallel, group)];
}

/* Returns the number of groups before `end` that a host keeps. */
static uint32_t kept_before(const lk_parallel *parallel, uint32_t host, uint32_t end)
{
    uint32_t kept = 0;
    for (uint32_t g = 0; g < end; g++)
        kept += host_of(parallel, g) == host;
    return kept;
}

static size_t groups_lay_out(lk_parallel *parallel, void *context, char *base, size_t at)
{
    lki_groups  *self = context;
    uint32_t most = 0;
    for (uint32_t r = 0; r < self->rounds; r++) {
        at             = lki_round_up(at, 64);
        self->first[r] = at;
        if (base != NULL)
            self->messages[r] = base + at;
        at += self->count * self->room[r];
        at = lki_round_up(at, 64);
        if (r + 1 < self->rounds)
            self->combined[r] = lki_carve(base, &at, self->room[r]);
    }
    at = lki_groups_lay_out_shared(self, base, at);
    at = lki_round_up(at, alignof(lki_ticket));
    self->tickets = lki_carve(base, &at, LKI_TASK_KINDS * LK_ROUNDS_MAX * sizeof *self->tickets);
    for (uint32_t h = 0; h < parallel->world.hosts; h++)
        most = (uint32_t)lki_max(most, kept_before(parallel, h, self->count));
    size_t bytes = (size_t)most * self->kept * parallel->layout->elements * sizeof(float);
    at = lki_groups_lay_out_vectors(self, bytes, base, at);
    at = lki_groups_lay_out_squares(parallel, self, most, base, at);
    if (self->onebit != NULL)
        at = lki_onebit_lay_out(parallel, self, base, at);
    at = lki_freeze_lay_out(self, base, at);
    at = lki_lamb_lay_out(parallel, self, base, at);
    if (self->kept == 0 || !self->rule->estimates)
        return at;
    for (uint32_t c = 0; c < self->copies; c++)
        self->estimates[c] = lki_carve(base, &at, parallel->layout->elements * sizeof(float));
    return at;
}

static lk_status groups_attach(lk_parallel *parallel, void *context)
{
    lki_groups *self = context;
    lki_freeze_attach(parallel, self);
    lki_lamb_attach(parallel, self);
    LK_TRY(LKI_NEW(&self->whole, lki_freeze_count(self) + lki_lamb_count(parallel, self) + 1,
                   "what groups share"));
    LK_TRY(LKI_NEW(&self->keepers, self->count, "keepers of groups"));
    LK_TRY(LKI_NEW(&self->places, self->count, "places of groups"));
    LK_TRY(LKI_NEW(&self->sums, self->count, "sums of groups"));
    for (uint32_t g = 0; g < self->count; g++) {
        self->keepers[g] = lki_ddp_keeper(parallel, g);
        self->places[g]  = kept_before(parallel, host_of(parallel, g), g);
    }
    LK_TRY(LKI_NEW(&self->sent, parallel->ranks, "messages of ranks"));
    LK_TRY(LKI_NEW(&self->inputs, self->count, "messages of groups"));
    if (self->clip > 0)
        LK_TRY(LKI_NEW(&self->factors, self->count, "factors of groups"));
    return LKI_NEW(&self->leaves, ((size_t)self->count + 1) * LKI_NORM_BLOCK, "decoded messages");
}

/* ---- Combining --------------------------------------------------------------------------- */

uint64_t lki_groups_samples(const lk_parallel *parallel, const lki_groups *self, uint32_t group)
{
    const uint32_t cut   = parallel->leaves / self->count;
    uint64_t       count = 0;
    for (uint32_t v = group * cut; v < (group + 1) * cut; v++)
        count += lki_report_of(parallel, v)->count;
    return count;
}

char *lki_groups_combined(const lki_groups *self, uint32_t round, uint32_t param)
{
    char *all = round + 1 == self->rounds ? self->shared[lki_groups_next(self)]
                                          : self->combined[round];
    return all + self->at[round][param];
}

/* Sums `count` floats at `offset` of the messages of all groups. */
static void sum_messages(const lki_groups *self, uint32_t round, size_t offset, size_t count,
                         float *out)
{
    for (uint32_t g = 0; g < self->count; g++)
        self->inputs[g] = (lki_tree_input){
            g, 1, (const float *)(const void *)(self->messages[round] + g * self->bytes[round] +
                                                offset) };
    lki_tree_sum_f32(LK_F32, self->count, self->inputs, self->count, count, out);
}

/* Combines the tensors that no other rank of the host has taken, if messages are summed. */
static void combine_mine(const lk_parallel *parallel, const lki_groups *self, uint32_t round)
{
    const uint32_t params = parallel->layout->param_count;
    for (uint64_t i; (i = lki_groups_take(self, LKI_COMBINE, round)) < params;) {
        const uint32_t  p    = self->order[i];
        lk_compress_key key  = self->keys[p];
        char           *into = lki_groups_combined(self, round, p);
        if (lki_groups_leave_whole(self, p))
            continue;
        key.step = parallel->step;
        sum_messages(self, round, self->at[round][p],
                     self->by->bytes(&self->options, &key, round) / sizeof(float),
                     (float *)(void *)into);
        if (self->by->settle != NULL)
            self->by->settle(&self->options, &key, round, into);
    }
}

/* Prepares what the first round reads. */
static void begin_mine(const lk_parallel *parallel, const lki_groups *self)
{
    const uint32_t last = self->rounds - 1;
    if (self->by == NULL || self->by->begin == NULL)
        return;
    for (uint32_t p = parallel->local; p < parallel->layout->param_count; p += parallel->locals) {
        lk_compress_key key = self->keys[p];
        key.step            = parallel->step;
        if (lki_groups_leave_whole(self, p))
            continue;
        lki_groups_carry_shared(parallel, self, p);
        self->by->begin(&self->options, &key, lki_groups_combined(self, last, p));
    }
}

static lk_status exchange(lk_parallel *parallel, lki_groups *self, uint32_t round)
{
    if (self->onebit != NULL)
        return lki_onebit_exchange(parallel, self);
    memset(self->sent, 0, parallel->ranks * sizeof *self->sent);
    /* a rank sends messages that other ranks of its host have encoded */
    LK_TRY(lk_barrier(parallel->comm));
    for (uint32_t g = 0; g < self->count; g++)
        self->sent[self->keepers[g]] += self->bytes[round];
    LK_TRY(lk_arena_mirror(parallel->comm, parallel->arena, self->first[round], self->sent));
    if (self->by == NULL || self->by->combine != LK_COMBINE_TREE)
        return LK_OK;
    combine_mine(parallel, self, round);
    return lk_barrier(parallel->comm);
}

/* ---- Decoding ---------------------------------------------------------------------------- */

static void decode_groups(const lki_groups *self, const lk_compress_key *key, size_t first,
                          size_t count, float *out)
{
    for (uint32_t g = 0; g < self->count; g++) {
        lk_compress_key of      = *key;
        const void     *message = lki_groups_message(self, 0, g, key->tensor);
        float          *leaf    = self->leaves + (size_t)g * LKI_NORM_BLOCK;
        of.group                = g;
        self->by->decode(&self->options, &of, &message, first, count, leaf);
        self->inputs[g] = (lki_tree_input){ g, 1, leaf };
    }
    lki_tree_sum_f32(LK_F32, self->count, self->inputs, self->count, count, out);
}

void lki_groups_decode(const lk_parallel *parallel, const lki_groups *self,
                       const lki_param_span *span, float *out)
{
    const uint32_t  p   = span->param;
    lk_compress_key key = self->keys[p];
    const void     *of[LK_ROUNDS_MAX];

    key.step = parallel->step;
    for (uint32_t r = 0; r < self->rounds; r++)
        of[r] = lki_groups_combined(self, r, p);
    if (self->by->combine == LK_COMBINE_TREE)
        self->by->decode(&self->options, &key, of, span->inside, span->count, out);
    else
        decode_groups(self, &key, span->inside, span->count, out);
    if (self->by->conclude != NULL)
        self->by->conclude(&self->options, &key, self->samples, span->count, out);
}

static void decode_mine(const lk_parallel *parallel, const lki_groups *self, lki_gradients *sums)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = 0; i < parallel->owned.count; i++) {
        const lki_param_span *span  = &layout->spans[parallel->owned.spans[i]];
        const bool            whole = lki_groups_leave_whole(self, span->param);
        for (uint32_t use = 0; use < lki_layout_uses(layout, span->param); use++) {
            float *out = lki_gradient_of(parallel, sums, span, use);
            size_t at  = use * layout->sizes[span->param] + span->inside;
            if (whole)
                sum_messages(self, 0, self->at[0][span->param] + at * sizeof *out, span->count,
                             out);
            else if (use == 0 && self->estimates[0] != NULL)
                lki_groups_read_estimates(parallel, self, span, out);
            else if (use == 0)
                lki_groups_decode(parallel, self, span, out);
            else
                memset(out, 0, span->count * sizeof *out);
        }
    }
    if (!parallel->ledger.kept || parallel->local == 0) /* all ranks of a host have the same sums */
        sum_messages(self, 0, self->at[0][layout->param_count],
                     parallel->micro_count * parallel->state_width, sums->states);
}

/* Finds the sums of the groups that this host keeps. */
static void find_sums(const lk_parallel *parallel, lki_groups *self)
{
    const uint32_t here = parallel->world.host_of[parallel->rank];
    for (uint32_t g = 0; g < self->count; g++)
        if ((self->sums[g] == NULL || self->joint != parallel->joint) &&
            host_of(parallel, g) == here)
            self->sums[g] = lki_ddp_group(parallel, g);
    self->joint = parallel->joint;
}

static lk_status groups_combine(lk_parallel *parallel, void *context, lki_gradients *sums)
{
    lki_groups *self = context;
    char   *base = lk_arena_data(parallel->arena);

    if (parallel->step < self->start) /* the strategy has summed all virtual workers */
        return LK_OK;
    lki_groups_find_stage(parallel, self);
    if (self->onebit != NULL)
        LK_TRY(lki_onebit_prepare(parallel, self));
    find_sums(parallel, self);
    begin_mine(parallel, self);
    if (parallel->local == 0)
        lki_groups_reset(self);
    /* the counts of all groups, after which all sums of groups are complete */
    LK_TRY(lk_arena_mirror(parallel->comm, parallel->arena, (size_t)(parallel->reports - base),
                           parallel->reported));
    LK_TRY(lk_barrier(parallel->comm));
    self->samples = 0;
    for (uint32_t g = 0; g < self->count; g++)
        self->samples += lki_groups_samples(parallel, self, g);
    LK_TRY(lki_groups_measure(parallel, self));
    for (uint32_t r = 0; r < self->rounds; r++) {
        lki_groups_encode(parallel, self, r);
        LK_TRY(exchange(parallel, self, r));
    }
    if (self->onebit != NULL)
        LK_TRY(lki_onebit_serve(parallel, self));
    else if (self->estimates[0] != NULL)
        lki_groups_move_estimates(parallel, self);
    if (self->estimates[0] != NULL) {
        LK_TRY(lk_barrier(parallel->comm));
    }
    decode_mine(parallel, self, sums);
    return LK_OK;
}

static uint64_t groups_sent(const lk_parallel *parallel, const void *context, uint32_t host)
{
    const lki_groups *self  = context;
    uint64_t      bytes = 0;
    for (uint32_t r = 0; r < self->rounds; r++)
        bytes += self->bytes[r];
    if (self->onebit != NULL)
        return lki_ddp_groups_sent(parallel, host) + lki_onebit_sent(parallel, self, host);
    return lki_ddp_groups_sent(parallel, host) +
           kept_before(parallel, host, self->count) * (parallel->world.hosts - 1) * bytes;
}

const lki_feature lki_feature_groups = {
    .name          = "groups",
    .open          = groups_open,
    .close         = groups_close,
    .hash_options  = groups_hash,
    .lay_out       = groups_lay_out,
    .attach        = groups_attach,
    .sent          = groups_sent,
    .combine       = groups_combine,
    .reports       = lki_groups_reports,
    .before_update = lki_groups_before_update,
    .ratios        = lki_groups_ratios,
    .restore       = lki_groups_restore,
};
