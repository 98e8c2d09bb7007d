/* groups.c -- the exchange of compressed gradients between groups; see lk_exchange.
 *
 * The strategy has summed the gradients of each group on the host of its keeper.  Then:
 *
 *     ranks of a host      encode the tensors of the groups that the host keeps, one task for each
 *                          tensor and group.  A task adds the group's error before the first round,
 *                          and keeps the residual as its new error after the last
 *     all                  copy the messages of each keeper to all hosts
 *     ranks of a host      combine the messages of all groups, a tensor at a time
 *     owners               decode the spans that they update, after the last round
 *
 * A tensor that is left whole has its values as its message in round 0, and so has running state.
 * They are summed by the canonical tree over the groups, so without a compressor every bit is that
 * of a run without groups.
 *
 * Memory:  the model's arena has the messages of all groups, their combinations, and the errors of
 *          the groups that a host keeps.
 * Bytes:   each host sends the messages of its groups to every other host.
 */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/options.h"
#include "comm/worker.h"
#include "device/reduce.h"
#include "parallel/features/table.h"
#include "parallel/strategies/ddp.h"

typedef struct {
    uint32_t             count; /* G */
    const lk_compressor *by;    /* NULL: all tensors are left whole */
    lk_compression       options;
    bool                 feedback;
    uint32_t             rounds;
    lk_compress_key     *keys;                  /* [param_count] */
    size_t              *at[LK_ROUNDS_MAX];     /* [param_count + 2]: offsets in a message; the last
                                                 * two are those of running state and of the end */
    size_t               bytes[LK_ROUNDS_MAX];  /* of the message of a group */
    size_t               first[LK_ROUNDS_MAX];  /* offset of the messages in the model's arena */
    char                *messages[LK_ROUNDS_MAX]; /* [G][bytes]; in the arena, as the next two */
    char                *combined[LK_ROUNDS_MAX]; /* [bytes] */
    float               *errors;                /* [groups that the host keeps][elements] */
    uint32_t            *keepers;               /* [G]: ranks */
    uint32_t            *places;                /* [G]: number of a group among those of its host */
    float              **sums;                  /* [G]: gradient spaces of the groups that this host
                                                 * keeps, from the first step on; NULL: of others */
    size_t              *sent;                  /* [ranks]: bytes of the messages that a rank has */
    lki_tree_input      *inputs;                /* [G] */
    float               *leaves;                /* [G][LKI_NORM_BLOCK] */
} groups;

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
    else if (options->survives)
        what = "survives";
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
    else if (options->scaling.rule != 0)
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

/* Checks that no rank holds more sums than a merge counter has room for. */
static lk_status check_nodes(const lk_parallel *parallel, uint32_t cut)
{
    enum { NODES_MOST = LKI_NODES_MAX - 8 }; /* and those of a group that is computed */
    for (uint32_t r = 0; r < parallel->ranks; r++)
        if (lki_share_of(&parallel->dealing, r).count / cut > NODES_MOST)
            return lk_fail(LK_EINVAL,
                           "rank %u would hold the sums of %u groups, %d is the limit; use fewer "
                           "groups, or more workers",
                           r, lki_share_of(&parallel->dealing, r).count / cut, NODES_MOST);
    return LK_OK;
}

static size_t message_bytes(const groups *self, const lki_layout *layout, uint32_t param,
                            uint32_t round)
{
    size_t bytes = self->by == NULL ? 0
                                    : self->by->bytes(&self->options, &self->keys[param], 0);
    if (bytes == 0)
        return round == 0 ? layout->sizes[param] * sizeof(float) : 0;
    return self->by->bytes(&self->options, &self->keys[param], round);
}

static bool is_whole(const groups *self, uint32_t param)
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

static lk_status measure(const lk_parallel *parallel, groups *self)
{
    const lki_layout *layout = parallel->layout;
    const uint32_t    params = layout->param_count;
    LK_TRY(LKI_NEW(&self->keys, params, "tensors of groups"));
    for (uint32_t p = 0; p < params; p++)
        self->keys[p] = key_of(layout, p);
    for (uint32_t r = 0; r < self->rounds; r++) {
        size_t at = 0;
        LK_TRY(LKI_NEW(&self->at[r], params + 2, "messages of groups"));
        for (uint32_t p = 0; p < params; p++) {
            self->at[r][p] = at;
            at += message_bytes(self, layout, p, r);
        }
        self->at[r][params] = at;
        at += r == 0 ? parallel->micro_count * parallel->state_width * sizeof(float) : 0;
        self->at[r][params + 1] = at;
        self->bytes[r]          = at;
    }
    return LK_OK;
}

static lk_status groups_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    groups      *self = NULL;
    lk_exchange  mine;

    if (options->exchange == NULL)
        return LK_OK;
    LK_TRY(refuse(parallel, options));
    LK_TRY(lki_options_copy(&mine, sizeof mine, options->exchange, "lk_exchange"));
    LK_TRY(LKI_NEW(&self, 1, "groups"));
    *out           = self;
    self->count    = mine.groups == 0 ? parallel->leaves : mine.groups;
    self->by       = mine.compressor;
    self->feedback = !mine.no_feedback;
    self->rounds   = self->by == NULL ? 1 : self->by->rounds;
    LK_TRY(check_count(parallel, self->count));
    if (mine.compression.struct_size == 0)
        mine.compression.struct_size = sizeof mine.compression;
    if (self->by != NULL)
        LK_TRY(lk_compression_resolve(&self->options, &mine.compression));
    LK_TRY(check_nodes(parallel, parallel->leaves / self->count));
    parallel->effects.cut        = parallel->leaves / self->count;
    parallel->effects.holds_back = true;
    parallel->effects.single     = true;
    return measure(parallel, self);
}

static void groups_close(void *context)
{
    groups *self = context;
    for (uint32_t r = 0; r < LK_ROUNDS_MAX; r++)
        lki_free(self->at[r]);
    lki_free(self->keys);
    lki_free(self->keepers);
    lki_free(self->places);
    lki_free(self->sums);
    lki_free(self->sent);
    lki_free(self->inputs);
    lki_free(self->leaves);
    lki_free(self);
}

static uint64_t groups_hash(const lk_parallel_options *options)
{
    const lk_exchange *x = options->exchange;
    if (x == NULL)
        return 0;
    const uint64_t words[] = { x->groups, x->no_feedback, x->compression.rank,
                               x->compression.cold_start, x->compression.seed,
                               x->compressor == NULL
                                   ? 0
                                   : lki_xxh3(x->compressor->name, strlen(x->compressor->name)) };
    const double   numbers[] = { x->compression.ratio, x->compression.min_rate };
    return lki_xxh3(words, sizeof words) ^ lki_xxh3(numbers, sizeof numbers);
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
    groups  *self = context;
    uint32_t most = 0;
    for (uint32_t r = 0; r < self->rounds; r++) {
        at             = lki_round_up(at, 64);
        self->first[r] = at;
        if (base != NULL)
            self->messages[r] = base + at;
        at += self->count * self->bytes[r];
        at = lki_round_up(at, 64);
        if (base != NULL)
            self->combined[r] = base + at;
        at = lki_round_up(at + self->bytes[r], 64);
    }
    for (uint32_t h = 0; h < parallel->world.hosts; h++)
        most = (uint32_t)lki_max(most, kept_before(parallel, h, self->count));
    if (base != NULL)
        self->errors = (float *)(void *)(base + at);
    return at + (self->by != NULL && self->feedback
                     ? most * parallel->layout->elements * sizeof(float)
                     : 0);
}

static lk_status groups_attach(lk_parallel *parallel, void *context)
{
    groups *self = context;
    LK_TRY(LKI_NEW(&self->keepers, self->count, "keepers of groups"));
    LK_TRY(LKI_NEW(&self->places, self->count, "places of groups"));
    LK_TRY(LKI_NEW(&self->sums, self->count, "sums of groups"));
    for (uint32_t g = 0; g < self->count; g++) {
        self->keepers[g] = lki_ddp_keeper(parallel, g);
        self->places[g]  = kept_before(parallel, host_of(parallel, g), g);
    }
    LK_TRY(LKI_NEW(&self->sent, parallel->ranks, "messages of ranks"));
    LK_TRY(LKI_NEW(&self->inputs, self->count, "messages of groups"));
    return LKI_NEW(&self->leaves, (size_t)self->count * LKI_NORM_BLOCK, "decoded messages");
}

/* ---- Encoding ---------------------------------------------------------------------------- */

static char *message_of(const groups *self, uint32_t round, uint32_t group, uint32_t param)
{
    return self->messages[round] + group * self->bytes[round] + self->at[round][param];
}

/* Returns the divisor of the mean over a group: its part of the step's count. */
static uint64_t samples_of(const lk_parallel *parallel, uint32_t group)
{
    const uint32_t cut   = parallel->effects.cut;
    uint64_t       count = 0;
    for (uint32_t v = group * cut; v < (group + 1) * cut; v++)
        count += lki_report_of(parallel, v)->count;
    return count;
}

/* Returns a group's sum of the gradient of a parameter's first use. */
static float *values_of(const lk_parallel *parallel, const groups *self, uint32_t group,
                        uint32_t param)
{
    const lki_layout *layout = parallel->layout;
    return self->sums[group] + layout->term_at[layout->term_of[layout->first_use[param]]];
}

/* Adds the further uses of a parameter to its first use. */
static void add_uses(const lk_parallel *parallel, const groups *self, uint32_t group,
                     uint32_t param)
{
    const lki_layout *layout = parallel->layout;
    const uint32_t   *terms  = &layout->term_of[layout->first_use[param]];
    float            *all    = self->sums[group];
    for (uint32_t use = 1; use < lki_layout_uses(layout, param); use++)
        lki_merge_f32(LK_F32, layout->sizes[param], all + layout->term_at[terms[0]],
                      all + layout->term_at[terms[use]]);
}

static float *error_of(const lk_parallel *parallel, const groups *self, uint32_t group,
                       uint32_t param)
{
    return self->errors + self->places[group] * parallel->layout->elements +
           parallel->layout->param_at[param];
}

static void encode(const lk_parallel *parallel, const groups *self, uint32_t round, uint32_t group,
                   uint32_t param)
{
    const size_t    count   = parallel->layout->sizes[param];
    const uint64_t  samples = samples_of(parallel, group);
    const uint32_t  before  = round == 0 ? self->rounds - 1 : round - 1;
    float          *values  = values_of(parallel, self, group, param);
    float          *error   = error_of(parallel, self, group, param);
    lk_compress_key key     = self->keys[param];

    if (round == 0)
        add_uses(parallel, self, group, param);
    if (is_whole(self, param)) {
        if (round == 0)
            memcpy(message_of(self, 0, group, param), values, count * sizeof *values);
        return;
    }
    if (round == 0 && self->feedback)
        lk_feedback_add(count, error, samples, values);
    key.group = group;
    key.step  = parallel->step;
    self->by->encode(&self->options, &key, round, self->combined[before] + self->at[before][param],
                     values, message_of(self, round, group, param));
    if (round + 1 == self->rounds && self->feedback)
        lk_feedback_keep(count, values, samples, error);
}

/* Does this rank's tasks of a round. */
static void encode_mine(const lk_parallel *parallel, const groups *self, uint32_t round)
{
    const lki_layout *layout = parallel->layout;
    const size_t      states = parallel->micro_count * parallel->state_width;
    uint32_t          task   = 0;
    for (uint32_t g = 0; g < self->count; g++) {
        if (self->sums[g] == NULL)
            continue;
        for (uint32_t p = 0; p < layout->param_count; p++)
            if (task++ % parallel->locals == parallel->local)
                encode(parallel, self, round, g, p);
        if (round == 0 && states > 0 && task++ % parallel->locals == parallel->local)
            memcpy(message_of(self, 0, g, layout->param_count),
                   self->sums[g] + layout->grad_elements, states * sizeof(float));
    }
}

/* ---- Combining --------------------------------------------------------------------------- */

/* Sums `count` floats at `offset` of the messages of all groups. */
static void sum_messages(const groups *self, uint32_t round, size_t offset, size_t count,
                         float *out)
{
    for (uint32_t g = 0; g < self->count; g++)
        self->inputs[g] = (lki_tree_input){
            g, 1, (const float *)(const void *)(self->messages[round] + g * self->bytes[round] +
                                                offset) };
    lki_tree_sum_f32(LK_F32, self->count, self->inputs, self->count, count, out);
}

/* Combines this rank's part of the tensors, if messages are summed. */
static void combine_mine(const lk_parallel *parallel, const groups *self, uint32_t round)
{
    for (uint32_t p = parallel->local; p < parallel->layout->param_count; p += parallel->locals) {
        lk_compress_key key  = self->keys[p];
        char           *into = self->combined[round] + self->at[round][p];
        if (is_whole(self, p))
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
static void begin_mine(const lk_parallel *parallel, const groups *self)
{
    const uint32_t last = self->rounds - 1;
    if (self->by == NULL || self->by->begin == NULL)
        return;
    for (uint32_t p = parallel->local; p < parallel->layout->param_count; p += parallel->locals) {
        lk_compress_key key = self->keys[p];
        key.step            = parallel->step;
        if (!is_whole(self, p))
            self->by->begin(&self->options, &key, self->combined[last] + self->at[last][p]);
    }
}

static lk_status exchange(lk_parallel *parallel, groups *self, uint32_t round)
{
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

static void decode_groups(const groups *self, const lk_compress_key *key, size_t first,
                          size_t count, float *out)
{
    for (uint32_t g = 0; g < self->count; g++) {
        lk_compress_key of      = *key;
        const void     *message = message_of(self, 0, g, key->tensor);
        float          *leaf    = self->leaves + (size_t)g * LKI_NORM_BLOCK;
        of.group                = g;
        self->by->decode(&self->options, &of, &message, first, count, leaf);
        self->inputs[g] = (lki_tree_input){ g, 1, leaf };
    }
    lki_tree_sum_f32(LK_F32, self->count, self->inputs, self->count, count, out);
}

static void decode(const lk_parallel *parallel, const groups *self, const lki_param_span *span,
                   float *out)
{
    const uint32_t  p   = span->param;
    lk_compress_key key = self->keys[p];
    const void     *of[LK_ROUNDS_MAX];

    if (is_whole(self, p)) {
        sum_messages(self, 0, self->at[0][p] + span->inside * sizeof(float), span->count, out);
        return;
    }
    key.step = parallel->step;
    for (uint32_t r = 0; r < self->rounds; r++)
        of[r] = self->combined[r] + self->at[r][p];
    if (self->by->combine == LK_COMBINE_TREE)
        self->by->decode(&self->options, &key, of, span->inside, span->count, out);
    else
        decode_groups(self, &key, span->inside, span->count, out);
}

static void decode_mine(const lk_parallel *parallel, const groups *self, lki_gradients *sums)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = 0; i < parallel->owned.count; i++) {
        const lki_param_span *span = &layout->spans[parallel->owned.spans[i]];
        decode(parallel, self, span, lki_gradient_of(parallel, sums, span, 0));
        for (uint32_t use = 1; use < lki_layout_uses(layout, span->param); use++)
            memset(lki_gradient_of(parallel, sums, span, use), 0, span->count * sizeof(float));
    }
    sum_messages(self, 0, self->at[0][layout->param_count],
                 parallel->micro_count * parallel->state_width, sums->states);
}

/* Finds the sums of the groups that this host keeps. */
static void find_sums(const lk_parallel *parallel, groups *self)
{
    const uint32_t here = parallel->world.host_of[parallel->rank];
    for (uint32_t g = 0; g < self->count; g++)
        if (self->sums[g] == NULL && host_of(parallel, g) == here)
            self->sums[g] = lki_ddp_group(parallel, g);
}

static lk_status groups_combine(lk_parallel *parallel, void *context, lki_gradients *sums)
{
    groups *self = context;
    char   *base = lk_arena_data(parallel->arena);

    find_sums(parallel, self);
    begin_mine(parallel, self);
    /* the counts of all groups, after which all sums of groups are complete */
    LK_TRY(lk_arena_mirror(parallel->comm, parallel->arena, (size_t)(parallel->reports - base),
                           parallel->reported));
    LK_TRY(lk_barrier(parallel->comm));
    for (uint32_t r = 0; r < self->rounds; r++) {
        encode_mine(parallel, self, r);
        LK_TRY(exchange(parallel, self, r));
    }
    decode_mine(parallel, self, sums);
    return LK_OK;
}

static uint64_t groups_sent(const lk_parallel *parallel, const void *context, uint32_t host)
{
    const groups *self  = context;
    uint64_t      bytes = 0;
    for (uint32_t r = 0; r < self->rounds; r++)
        bytes += self->bytes[r];
    return lki_ddp_groups_sent(parallel, host) +
           kept_before(parallel, host, self->count) * (parallel->world.hosts - 1) * bytes;
}

/* ---- State for checkpoints --------------------------------------------------------------- */

static groups *groups_of(const lk_parallel *parallel)
{
    return lki_feature_state(parallel, &lki_feature_groups);
}

uint32_t lk_parallel_groups(const lk_parallel *parallel)
{
    const groups *self = groups_of(parallel);
    return self == NULL ? 0 : self->count;
}

static bool has_error(const groups *self, uint32_t param)
{
    return self->feedback && !is_whole(self, param);
}

static lk_status check_error(const lk_parallel *parallel, uint32_t param, uint32_t group)
{
    if (param < parallel->layout->param_count && group < lk_parallel_groups(parallel))
        return LK_OK;
    return lk_fail(LK_EINVAL, "there is no error of parameter %u of group %u", param, group);
}

lk_status lk_parallel_fetch_error(lk_parallel *parallel, uint32_t param, uint32_t group,
                                  size_t first, size_t count, float *out)
{
    LK_TRY(check_error(parallel, param, group));
    const uint32_t keeper = groups_of(parallel)->keepers[group];
    memset(out, 0, count * sizeof *out);
    if (!has_error(groups_of(parallel), param))
        return LK_OK;
    if (parallel->rank == keeper)
        memcpy(out, error_of(parallel, groups_of(parallel), group, param) + first,
               count * sizeof *out);
    return lk_broadcast(parallel->comm, out, count * sizeof *out, keeper);
}

lk_status lk_parallel_load_error(lk_parallel *parallel, uint32_t param, uint32_t group,
                                 const float *error)
{
    LK_TRY(check_error(parallel, param, group));
    const lki_layout *layout = parallel->layout;
    LK_TRY(
        lki_verify_same_values(parallel, layout->params[param].name, error, layout->sizes[param]));
    const groups *self = groups_of(parallel);
    if (parallel->rank == self->keepers[group] && has_error(self, param))
        memcpy(error_of(parallel, self, group, param), error,
               layout->sizes[param] * sizeof *error);
    return lk_barrier(parallel->comm);
}

/* Returns the place of what groups share of a parameter; NULL if there is nothing. */
static void *shared_of(const lk_parallel *parallel, uint32_t param, size_t *bytes)
{
    const groups  *self = groups_of(parallel);
    const uint32_t last = self == NULL ? 0 : self->rounds - 1;
    *bytes              = 0;
    if (self == NULL || param >= parallel->layout->param_count || is_whole(self, param) ||
        self->by->begin == NULL)
        return NULL;
    *bytes = message_bytes(self, parallel->layout, param, last);
    return self->combined[last] + self->at[last][param];
}

const void *lk_parallel_shared(const lk_parallel *parallel, uint32_t param, size_t *bytes)
{
    return shared_of(parallel, param, bytes);
}

lk_status lk_parallel_load_shared(lk_parallel *parallel, uint32_t param, const void *shared)
{
    size_t bytes;
    void  *to = shared_of(parallel, param, &bytes);
    if (to == NULL)
        return lk_fail(LK_EINVAL, "groups share nothing of parameter %u", param);
    LK_TRY(lki_verify_same_values(parallel, parallel->layout->params[param].name, shared,
                                  bytes / sizeof(float)));
    if (parallel->local == 0)
        memcpy(to, shared, bytes);
    return lk_barrier(parallel->comm);
}

const lki_feature lki_feature_groups = {
    .name         = "groups",
    .open         = groups_open,
    .close        = groups_close,
    .hash_options = groups_hash,
    .lay_out      = groups_lay_out,
    .attach       = groups_attach,
    .sent         = groups_sent,
    .combine      = groups_combine,
};
