/* groups_onebit.c -- onebit-adam and onebit-lamb: groups exchange momenta, and servers encode their
 * mean again.
 *
 * Before lk_exchange.start the strategy sums gradients as without groups, and the optimizer is
 * adamw or lamb.  Then the second moment is frozen, and a step is
 *
 *     keepers of groups    encode the momentum of each group, with an error of the group
 *                          (compress/onebit.c)
 *     hosts                send the parts of these messages to the host that serves them
 *     servers              decode and add them by the tree over the groups, add the error of the
 *                          server, and encode the mean: spans of at most 4096 elements, each with a
 *                          scale of its own
 *     all                  copy the servers' messages to all hosts, and decode the new momentum,
 *                          which all groups have in the next step
 *
 * The spans of all tensors are divided equally among the hosts, so there is one error of the
 * servers for an element, whatever keeps the optimizer's state.  A span is encoded as a whole, so
 * no bit depends on who serves it.
 *
 * Memory:  the momentum, the servers' messages, and the host's part of their error; all but the
 *          messages twice if ranks may be lost (groups_survive.c).
 * Bytes:   with H hosts, a host with g groups sends (H-1)/H of the bits of g models, and its part
 *          of the servers' messages to H-1 hosts.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "compress/signs.h"
#include "parallel/features/groups.h"
#include "parallel/strategies/ddp.h"
#include "parallel/strategies/shards.h"
#include "tensor/ops.h"

enum { WORD = 32, EXP_AVG = 1, EXP_AVG_SQ = 2 };

struct lki_onebit {
    size_t   *words;    /* [param_count + 1]: offset of each tensor's bits */
    size_t   *spans;    /* [param_count + 1]: number of its first span */
    size_t   *elements; /* [param_count + 1] */
    size_t    offset;   /* of `served` in the arena */
    size_t    begin;    /* elements that earlier hosts serve */
    uint32_t *absent;   /* in the arena, as the next two */
    char     *served;   /* messages of all spans */
    float    *errors[2]; /* [copies][elements that the host serves] */
    bool      prepared;
};

/* ---- Opening ----------------------------------------------------------------------------- */

lk_status lki_onebit_open(lk_parallel *parallel, lki_groups *self,
                          const lk_parallel_options *options, const lk_exchange *exchange)
{
    const char *name = lk_optimizer_name(options->optimizer.kind);
    if (exchange->compressor != NULL || exchange->feedback != LK_FEEDBACK_DEFAULT)
        return lk_fail(LK_EINVAL, "optimizer %s sends momenta in its own way: leave out "
                                  "`compressor` and `feedback` of the exchange", name);
    if (exchange->start < 2)
        return lk_fail(LK_EINVAL, "the exchange's `start` is %llu; %s needs steps before it, in "
                                  "which the second moment grows",
                       (unsigned long long)exchange->start, name);
    if (options->clip_value > 0)
        return lk_fail(LK_EUNSUPPORTED, "optimizer %s does not support `clip_value`: no rank has "
                                        "whole gradients", name);
    if (options->optimizer.kind == LK_ONEBIT_LAMB)
        LK_TRY(lki_lamb_open(parallel, self));
    LK_TRY(LKI_NEW(&self->onebit, 1, "servers of momenta"));
    const lk_optimizer optimizer = lk_optimizer_resolve(&options->optimizer);
    self->by                     = &lki_compressor_onebit;
    self->rule                   = &lki_rule_onebit;
    self->kept                   = lki_rule_kept(self->rule);
    self->momentum               = (float)optimizer.beta1;
    self->clip                   = options->clip_norm;
    parallel->effects.momenta    = true;
    return exchange->start == LK_START_AUTO
               ? lki_freeze_open(parallel, self, exchange, optimizer.beta2)
               : LK_OK;
}

lk_status lki_onebit_measure(const lk_parallel *parallel, lki_groups *self)
{
    const lki_layout *layout = parallel->layout;
    lki_onebit       *o      = self->onebit;
    const size_t      places = (size_t)layout->param_count + 1;
    LK_TRY(LKI_NEW(&o->words, places, "bits of tensors"));
    LK_TRY(LKI_NEW(&o->spans, places, "spans of tensors"));
    LK_TRY(LKI_NEW(&o->elements, places, "elements of tensors"));
    for (uint32_t p = 0; p < layout->param_count; p++) {
        const size_t size  = layout->sizes[p];
        o->words[p + 1]    = o->words[p] + (size + WORD - 1) / WORD;
        o->spans[p + 1]    = o->spans[p] + (size + LKI_NORM_BLOCK - 1) / LKI_NORM_BLOCK;
        o->elements[p + 1] = o->elements[p] + size;
    }
    return LK_OK;
}

void lki_onebit_close(lki_onebit *o)
{
    if (o == NULL)
        return;
    lki_free(o->words);
    lki_free(o->spans);
    lki_free(o->elements);
    lki_free(o);
}

/* ---- Places of spans --------------------------------------------------------------------- */

/* A place in the tensors: the beginning of a span, or the end of all. */
typedef struct {
    uint32_t param;
    size_t   inside; /* elements of the parameter before it */
} place;

static place place_of(const lk_parallel *parallel, const lki_onebit *o, size_t span)
{
    uint32_t param = 0;
    while (param < parallel->layout->param_count && o->spans[param + 1] <= span)
        param++;
    return (place){ param, (span - o->spans[param]) * LKI_NORM_BLOCK };
}

static size_t element_of(const lki_onebit *o, place at)
{
    return o->elements[at.param] + at.inside;
}

/* Returns the offset of a span's message among those of the servers. */
static size_t served_at(const lki_onebit *o, place at)
{
    const size_t spans = o->spans[at.param] + at.inside / LKI_NORM_BLOCK;
    return spans * sizeof(float) +
           (o->words[at.param] + at.inside / WORD) * sizeof(uint32_t);
}

/* Returns the number of the first span that a host serves. */
static size_t first_of(const lk_parallel *parallel, const lki_onebit *o, uint32_t host)
{
    LK_ASSERT(parallel->world.hosts > 0);
    return o->spans[parallel->layout->param_count] * host / parallel->world.hosts;
}

static place start_of(const lk_parallel *parallel, const lki_onebit *o, uint32_t host)
{
    return place_of(parallel, o, first_of(parallel, o, host));
}

static uint32_t here(const lk_parallel *parallel)
{
    return parallel->world.host_of[parallel->rank];
}

/* Returns the error of the servers at a place that this host serves. */
static float *error_at(const lki_onebit *o, uint32_t copy, place at)
{
    return o->errors[copy] + element_of(o, at) - o->begin;
}

size_t lki_onebit_lay_out(const lk_parallel *parallel, lki_groups *self, char *base, size_t at)
{
    lki_onebit    *o    = self->onebit;
    const uint32_t all  = parallel->layout->param_count;
    size_t         most = 0;
    o->begin            = parallel->comm == NULL
                              ? 0
                              : element_of(o, start_of(parallel, o, here(parallel)));
    o->absent           = lki_carve(base, &at, o->words[all] * sizeof *o->absent);
    at                  = lki_round_up(at, 64);
    o->offset           = at;
    o->served           = lki_carve(base, &at, served_at(o, (place){ all, 0 }));
    for (uint32_t h = 0; h < parallel->world.hosts; h++)
        most = lki_max(most, element_of(o, start_of(parallel, o, h + 1)) -
                                 element_of(o, start_of(parallel, o, h)));
    for (uint32_t c = 0; c < self->copies; c++)
        o->errors[c] = lki_carve(base, &at, most * sizeof(float));
    return at;
}

const uint32_t *lki_onebit_absent(const lki_groups *self, uint32_t param)
{
    return self->onebit->absent + self->onebit->words[param];
}

/* ---- The first step ---------------------------------------------------------------------- */

static void mark_absent(size_t count, const float *second, uint32_t *absent)
{
    memset(absent, 0, (count + WORD - 1) / WORD * sizeof *absent);
    for (size_t i = 0; i < count; i++)
        absent[i / WORD] |= (uint32_t)(second[i] == 0) << i % WORD;
}

static lk_status prepare_tensor(lk_parallel *parallel, lki_groups *self, uint32_t param,
                                float *values)
{
    const size_t count = parallel->layout->sizes[param];
    LK_TRY(lki_fetch(parallel, param, EXP_AVG_SQ, 0, count, values));
    if (parallel->local == 0)
        mark_absent(count, values, self->onebit->absent + self->onebit->words[param]);
    if (parallel->step > self->start)
        return LK_OK;
    LK_TRY(lki_fetch(parallel, param, EXP_AVG, 0, count, values));
    if (parallel->local == 0)
        memcpy(self->estimates[self->now] + parallel->layout->param_at[param], values,
               count * sizeof *values);
    return LK_OK;
}

lk_status lki_onebit_prepare(lk_parallel *parallel, lki_groups *self)
{
    const lki_layout *layout = parallel->layout;
    float            *values = NULL;
    size_t            widest = 0;
    lk_status         status = LK_OK;
    if (self->onebit->prepared)
        return LK_OK;
    for (uint32_t p = 0; p < layout->param_count; p++)
        widest = lki_max(widest, layout->sizes[p]);
    LK_TRY(LKI_NEW(&values, widest, "moments of a tensor"));
    for (uint32_t p = 0; p < layout->param_count && status == LK_OK; p++)
        status = prepare_tensor(parallel, self, p, values);
    lki_free(values);
    LK_TRY(status);
    self->onebit->prepared = true;
    return lk_barrier(parallel->comm);
}

/* ---- Messages of groups ------------------------------------------------------------------ */

enum { PARTS = 3 };

/* Bytes [first, end) of the message of a group. */
typedef struct {
    size_t first, end;
} part;

/* Returns the offset of a place's bits in the message of a group; that of a tensor's scale if they
 * are the tensor's first. */
static size_t bits_at(const lki_groups *self, place at)
{
    return self->at[0][at.param] +
           (at.inside > 0 ? sizeof(float) + at.inside / WORD * sizeof(uint32_t) : 0);
}

/* Lists what a host gets of a group's message: the bits of the spans that it serves with their
 * scales, the scale of the first tensor if only its end is served, and running state. */
static void list_parts(const lk_parallel *parallel, const lki_groups *self, uint32_t host,
                       part out[PARTS])
{
    const place  first = start_of(parallel, self->onebit, host);
    const place  end   = start_of(parallel, self->onebit, host + 1);
    const size_t scale = self->at[0][first.param];
    const bool   cut   = first.inside > 0 && bits_at(self, first) < bits_at(self, end);
    out[0]             = (part){ scale, cut ? scale + sizeof(float) : scale };
    out[1]             = (part){ bits_at(self, first), bits_at(self, end) };
    out[2]             = (part){ self->at[0][parallel->layout->param_count], self->bytes[0] };
}

/* Returns the rank of a host that sends or receives the message of a group. */
static uint32_t porter_of(const lk_parallel *parallel, uint32_t host, uint32_t group)
{
    const uint32_t local = group % parallel->world.sizes[host];
    uint32_t       rank  = 0;
    while (parallel->world.host_of[rank] != host || parallel->world.local_of[rank] != local)
        rank++;
    return rank;
}

/* Starts to send or to receive what a host gets of a group's message, if this rank does that. */
static lk_status start_parts(lk_parallel *parallel, const lki_groups *self, uint32_t group,
                             uint32_t host, lk_request **requests, size_t *count)
{
    const uint32_t keeper   = parallel->world.host_of[self->keepers[group]];
    const uint32_t sender   = porter_of(parallel, keeper, group);
    const uint32_t receiver = porter_of(parallel, host, group);
    char          *message  = self->messages[0] + group * self->bytes[0];
    part           parts[PARTS];
    if (keeper == host || (parallel->rank != sender && parallel->rank != receiver))
        return LK_OK;
    list_parts(parallel, self, host, parts);
    for (int i = 0; i < PARTS; i++) {
        const size_t bytes = parts[i].end - parts[i].first;
        if (bytes == 0)
            continue;
        LK_TRY(parallel->rank == sender
                   ? lk_send_start(&requests[*count], parallel->comm, message + parts[i].first,
                                   bytes, receiver)
                   : lk_recv_start(&requests[*count], parallel->comm, message + parts[i].first,
                                   bytes, sender));
        ++*count;
    }
    return LK_OK;
}

static lk_status send_messages(lk_parallel *parallel, const lki_groups *self)
{
    const uint32_t hosts    = parallel->world.hosts;
    lk_request   **requests = NULL;
    size_t         count    = 0;
    lk_status      status = LKI_NEW(&requests, (size_t)self->count * hosts * PARTS, "messages");
    for (uint32_t g = 0; g < self->count && status == LK_OK; g++)
        for (uint32_t h = 0; h < hosts && status == LK_OK; h++)
            status = start_parts(parallel, self, g, h, requests, &count);
    for (size_t i = 0; i < count && status == LK_OK; i++)
        status = lk_request_wait(requests[i]);
    for (size_t i = 0; i < count; i++)
        lk_request_free(requests[i]);
    lki_free(requests);
    return status;
}

lk_status lki_onebit_exchange(lk_parallel *parallel, const lki_groups *self)
{
    LK_TRY(lk_barrier(parallel->comm)); /* a message is sent by another rank than the encoder */
    if (parallel->world.hosts == 1)
        return LK_OK;
    LK_TRY(send_messages(parallel, self));
    return lk_barrier(parallel->comm);
}

uint64_t lki_onebit_sent(const lk_parallel *parallel, const lki_groups *self, uint32_t host)
{
    const lki_onebit *o     = self->onebit;
    uint64_t          bytes = 0;
    for (uint32_t g = 0; g < self->count; g++)
        for (uint32_t h = 0; h < parallel->world.hosts; h++) {
            part parts[PARTS];
            if (h == host || parallel->world.host_of[lki_ddp_keeper(parallel, g)] != host)
                continue;
            list_parts(parallel, self, h, parts);
            for (int i = 0; i < PARTS; i++)
                bytes += parts[i].end - parts[i].first;
        }
    return bytes + (parallel->world.hosts - 1) *
                       (served_at(o, start_of(parallel, o, host + 1)) -
                        served_at(o, start_of(parallel, o, host)));
}

/* ---- Servers ----------------------------------------------------------------------------- */

/* Encodes the mean of all groups' elements of a span. */
static void serve_span(const lk_parallel *parallel, const lki_groups *self, size_t index)
{
    const lki_onebit     *o       = self->onebit;
    const lki_param_span *span    = &parallel->layout->spans[index];
    const place           at      = { span->param, span->inside };
    const uint32_t       *absent  = lki_onebit_absent(self, span->param) + span->inside / WORD;
    const float          *before  = error_at(o, self->now, at);
    float                *error   = error_at(o, lki_groups_next(self), at);
    float                *mean    = self->leaves + (size_t)self->count * LKI_NORM_BLOCK;
    void                 *message = o->served + served_at(o, at);
    float                *said    = self->leaves; /* which the sum has read */

    lki_groups_decode(parallel, self, span, mean);
    for (size_t i = 0; i < span->count; i++)
        mean[i] = lki_onebit_lacks(absent, i) ? 0 : mean[i] / (float)self->samples + before[i];
    lki_onebit_encode(span->count, mean, absent, message);
    lki_signs_decode(NULL, NULL, &(const void *){ message }, 0, span->count, said);
    for (size_t i = 0; i < span->count; i++)
        error[i] = lki_onebit_lacks(absent, i) ? 0 : mean[i] - said[i];
}

/* Decodes a span of the new momentum. */
static void read_span(const lk_parallel *parallel, const lki_groups *self, size_t index)
{
    const lki_onebit     *o       = self->onebit;
    const lki_param_span *span    = &parallel->layout->spans[index];
    const void           *message = o->served + served_at(o, (place){ span->param, span->inside });
    const uint32_t       *absent  = lki_onebit_absent(self, span->param) + span->inside / WORD;
    float                *out     = self->estimates[lki_groups_next(self)] +
                 parallel->layout->param_at[span->param] + span->inside;
    lki_signs_decode(NULL, NULL, &message, 0, span->count, out);
    for (size_t i = 0; i < span->count; i++)
        out[i] = lki_onebit_lacks(absent, i) ? 0 : out[i];
}

/* Copies the messages of the servers of each host to all hosts. */
static lk_status share_served(lk_parallel *parallel, const lki_groups *self)
{
    const lki_onebit *o = self->onebit;
    LK_TRY(lk_barrier(parallel->comm));
    memset(self->sent, 0, parallel->ranks * sizeof *self->sent);
    for (uint32_t r = 0; r < parallel->ranks; r++)
        if (parallel->world.local_of[r] == 0) {
            const uint32_t host = parallel->world.host_of[r];
            self->sent[r]       = served_at(o, start_of(parallel, o, host + 1)) -
                            served_at(o, start_of(parallel, o, host));
        }
    return lk_arena_mirror(parallel->comm, parallel->arena, o->offset, self->sent);
}

lk_status lki_onebit_serve(lk_parallel *parallel, const lki_groups *self)
{
    const lki_onebit *o     = self->onebit;
    const size_t      first = first_of(parallel, o, here(parallel));
    const size_t      end   = first_of(parallel, o, here(parallel) + 1);
    for (size_t i = first + parallel->local; i < end; i += parallel->locals)
        serve_span(parallel, self, i);
    LK_TRY(share_served(parallel, self));
    for (size_t i = parallel->local; i < parallel->layout->span_count; i += parallel->locals)
        read_span(parallel, self, i);
    return LK_OK;
}

/* ---- Checkpoints ------------------------------------------------------------------------- */

/* Finds the elements [*from, *from + n) of [first, first + count) of a parameter that a host
 * serves, and returns n. */
static size_t part_of(const lk_parallel *parallel, const lki_onebit *o, uint32_t host,
                      uint32_t param, size_t first, size_t count, size_t *from)
{
    const size_t begin = element_of(o, start_of(parallel, o, host));
    const size_t end   = element_of(o, start_of(parallel, o, host + 1));
    const size_t mine  = o->elements[param] + first;
    const size_t left  = lki_max(begin, mine), right = lki_min(end, mine + count);
    *from              = right > left ? left - o->elements[param] : first;
    return right > left ? right - left : 0;
}

lk_status lki_onebit_fetch(lk_parallel *parallel, const lki_groups *self, uint32_t param,
                           size_t first, size_t count, float *out)
{
    const lki_onebit *o = self->onebit;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        const uint32_t host = parallel->world.host_of[r];
        size_t         from, n = part_of(parallel, o, host, param, first, count, &from);
        if (parallel->world.local_of[r] != 0 || n == 0)
            continue;
        if (parallel->rank == r)
            memcpy(out + (from - first),
                   error_at(o, self->now, (place){ param, from }), n * sizeof *out);
        LK_TRY(lk_broadcast(parallel->comm, out + (from - first), n * sizeof *out, r));
    }
    return LK_OK;
}

lk_status lki_onebit_norm(lk_parallel *parallel, const lki_groups *self, double *norm)
{
    const lki_onebit *o     = self->onebit;
    const size_t      spans = parallel->layout->span_count;
    const size_t      first = first_of(parallel, o, here(parallel));
    double           *all   = NULL;
    LK_TRY(LKI_NEW(&all, spans, "squares of spans"));
    for (size_t i = first; i < first_of(parallel, o, here(parallel) + 1); i++) {
        const lki_param_span *span = &parallel->layout->spans[i];
        all[i] = lki_block_sum_squares(parallel->exec, span->count,
                                       error_at(o, self->now, (place){ span->param,
                                                                       span->inside }));
    }
    memset(self->sent, 0, parallel->ranks * sizeof *self->sent);
    for (uint32_t r = 0; r < parallel->ranks; r++)
        if (parallel->world.local_of[r] == 0) {
            const uint32_t host = parallel->world.host_of[r];
            self->sent[r]       = (first_of(parallel, o, host + 1) - first_of(parallel, o, host)) *
                            sizeof *all;
        }
    lk_status status = lk_all_gather_v(parallel->comm, all + first, all, self->sent);
    *norm            = sqrt(lki_tree_sum_f64(all, spans));
    lki_free(all);
    return status;
}

void lki_onebit_load(const lk_parallel *parallel, const lki_groups *self, uint32_t param,
                     const float *values)
{
    const lki_onebit *o = self->onebit;
    size_t            from, n = part_of(parallel, o, here(parallel), param, 0,
                                        parallel->layout->sizes[param], &from);
    if (parallel->local == 0 && n > 0)
        memcpy(error_at(o, self->now, (place){ param, from }), values + from,
               n * sizeof *values);
}
