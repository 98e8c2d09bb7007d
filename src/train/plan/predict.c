/* predict.c -- the time of a step, before it is made.
 *
 *      step = rounds x (forward + backward) + exposed communication + update + stall
 *
 * Forward and backward are sums over the model's blocks: of operations over a rate that is given,
 * or of work of five kinds (predict.h) times what blocks of that type have taken for it in other
 * models, a moment ago (probe.c).  Nothing here knows a machine.
 */
#include "train/plan/predict.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "nn/spill.h"
#include "parallel/virtual.h"
#include "train/session.h"

#define BUCKET_BYTES (25.0 * (1 << 20))
#define TINY         1e-300 /* no time is less: others are divided by it */

/* Elements, a whole number of blocks that travel together; and what may be counted one by one. */
enum { MANY = 1 << 20, MANY_BRANCHES = 1 << 16 };

/* ---- Communication ----------------------------------------------------------------------- */

/* Subtrees of gradients that travel in a step: whole on the host that has the most of them, and
 * all. */
typedef struct {
    double whole, all;
} branches;

/* Of one round, or without rounds of the step: `first` to before `end` of `dealt` virtual workers
 * to one host, of which those there are begin at `from`. */
static double branches_of(const lk_step_model *m, uint64_t from, uint64_t first, uint64_t end)
{
    uint64_t v = m->virtual_workers;
    return lki_virtual_branches(m->virtual_workers, (uint32_t)lki_min(v, from + first),
                                (uint32_t)lki_min(v, from + end));
}

/* Ranges are of v / n virtual workers for each worker; rounds of one.  Of very many rounds on very
 * many hosts the first tell. */
static branches count_branches(const lk_step_model *m)
{
    uint64_t n = m->workers, v = m->stage < 2 ? m->virtual_workers : n;
    uint64_t rounds = (m->virtual_workers + v - 1) / v;
    uint64_t told = lki_min(rounds, lki_max(1, MANY_BRANCHES / m->hosts));
    branches sum = { 0, 0 };
    for (uint64_t j = 0; j < told; j++)
        sum.all += branches_of(m, j * v, 0, v);
    for (uint64_t h = 0; h < m->hosts; h++) {
        uint64_t first = h * n / m->hosts * v / n, end = (h + 1) * n / m->hosts * v / n;
        double   has = 0;
        for (uint64_t j = 0; j < told; j++)
            has += branches_of(m, j * v, first, end);
        sum.whole = fmax(sum.whole, has);
    }
    sum.whole *= (double)rounds / (double)told;
    sum.all *= (double)rounds / (double)told;
    return sum;
}

/* What a pass sends: all of it so many times, as messages one after another for each bucket. */
typedef struct {
    double times, bytes;
} load;

static double bucket_count(const lk_step_model *m)
{
    double bucket = m->bucket_bytes > 0 ? m->bucket_bytes : BUCKET_BYTES, sum = 0;
    for (uint32_t i = 0; i < m->piece_count; i++)
        sum += m->pieces[i].buckets;
    return sum > 0 ? sum : fmax(1, ceil(m->gradient_bytes / bucket));
}

/* Of the link, for what a part of the buckets have of it. */
static double seconds_of(const lk_step_model *m, load use, double buckets, double part)
{
    double messages = buckets * ceil(log2(m->hosts)) * use.times;
    return messages * m->latency + part * use.bytes / m->bandwidth;
}

/* Of `busy` seconds of the link, those that are left when `window` seconds of computing are over.
 * Buckets become ready evenly: either the last one waits for its gradients, or all for each other.
 */
static double exposed_of(double busy, double window, double buckets)
{
    return fmax(busy / buckets, busy - window * (buckets - 1) / buckets);
}

/* How often a pass gathers a piece: 1 of those that are all alike. */
typedef struct {
    const lk_step_model *model;
    int                  turn; /* 0: the first of a step; 1: another; -1: nothing is left there */
    int                  backward;
} pass;

static double gathers_of(const pass *from, uint32_t piece)
{
    return from->turn < 0 ? 1 : from->model->pieces[piece].gathers[from->turn][from->backward];
}

/* Over its pieces, by what each has of the parameters. */
static double mean_gathers(const pass *from)
{
    double sum = from->model->piece_count == 0;
    for (uint32_t i = 0; i < from->model->piece_count; i++)
        sum += gathers_of(from, i) * from->model->pieces[i].parameters;
    return sum;
}

/* Of the link, for all that a pass gathers. */
static double gathering_seconds(const pass *from, load once)
{
    double sum = 0;
    if (from->model->piece_count == 0)
        return seconds_of(from->model, once, bucket_count(from->model), 1);
    for (uint32_t i = 0; i < from->model->piece_count; i++) {
        const lk_step_piece *p = &from->model->pieces[i];
        sum += gathers_of(from, i) * seconds_of(from->model, once, p->buckets, p->parameters);
    }
    return sum;
}

/* What is left of sums, and of what is gathered meanwhile, when backward is over: piece by piece,
 * each when it is made and the link is free, and made when there is room: two have it, or all. */
static double exposed_behind(const pass *from, load sums, load once, double window, bool two)
{
    const lk_step_model *m = from->model;
    double made = 0, sent = 0, before = 0, left = 1, buckets = bucket_count(m);
    if (m->piece_count == 0)
        return exposed_of(seconds_of(m, sums, buckets, 1) + seconds_of(m, once, buckets, 1), window,
                          buckets);
    for (uint32_t i = 0; i < m->piece_count; i++) {
        const lk_step_piece *p         = &m->pieces[i];
        double               free      = sent;
        double               gathering = seconds_of(m, once, p->buckets, p->parameters);
        made                           = fmax(made, two ? before : 0) + window * p->backward;
        left -= p->backward;
        sent = fmax(sent, made) + seconds_of(m, sums, p->buckets, p->gradients) +
               gathers_of(from, i) * gathering;
        before = free;
    }
    return fmax(sent, made + window * fmax(0, left)) - window;
}

/* Of what a pass gathers, `all` seconds without messages: the first piece is waited for, every
 * other one comes while the one before is computed with. */
static double exposed_before(const pass *from, double all, double messages, double window)
{
    const lk_step_model *m       = from->model;
    double               exposed = 0, computing = 0;
    if (m->piece_count == 0)
        return exposed_of(all + messages * bucket_count(m), window, bucket_count(m));
    for (uint32_t i = 0; i < m->piece_count; i++) {
        uint32_t             at = from->backward ? i : m->piece_count - 1 - i;
        const lk_step_piece *p  = &m->pieces[at];
        double               coming = p->parameters * all + p->buckets * messages;
        exposed += fmax(0, gathers_of(from, at) * coming - computing);
        computing = window * (from->backward ? p->backward : p->forward);
    }
    return exposed;
}

/* `count` turns: that begin a step, or another; of these so many send what they have summed. */
static void add_turns(lk_step_prediction *out, const lk_step_model *m, int turn, double count,
                      double sending, load sums, load once)
{
    const pass forward = { m, turn, 0 }, backward = { m, turn, 1 };
    double     micros = m->micro_count > 0 ? m->micro_count : 1, buckets = bucket_count(m);
    double     all = once.bytes / m->bandwidth, message = seconds_of(m, once, 1, 0);
    if (count == 0)
        return;
    out->sent += count * (mean_gathers(&forward) + mean_gathers(&backward)) * once.bytes +
                 sending * sums.bytes;
    out->communication +=
        count * (gathering_seconds(&forward, once) + gathering_seconds(&backward, once)) +
        sending * seconds_of(m, sums, buckets, 1);
    out->exposed +=
        count * exposed_before(&forward, all, message, m->forward / micros) +
        sending * exposed_behind(&backward, sums, once, m->backward / micros, micros == 1) +
        (count - sending) * exposed_before(&backward, all, message, m->backward / micros);
}

/* Parameters are gathered before they are read, the first unit of a pass while nobody computes,
 * every other one while the one before is computed with; sums travel when they are whole, in the
 * backward pass of a virtual worker's last micro-batch. */
static void add_gathering(lk_step_prediction *out, const lk_step_model *m, load sums, double bytes)
{
    const load once   = { bytes > 0, bytes };
    double     micros = m->micro_count > 0 ? m->micro_count : 1, rounds = out->rounds;
    double     begins = micros == 1; /* a step's first turn sends */
    add_turns(out, m, 0, 1, begins, sums, once);
    add_turns(out, m, 1, rounds * micros - 1, rounds - begins, sums, once);
}

/* How many hosts have a model between them where they share it. */
static double sharing_of(const lk_step_model *m)
{
    bool groups = m->stage == 3 && m->shard_hosts > 0 && m->shard_hosts < m->hosts;
    return groups ? m->shard_hosts : m->hosts;
}

/* What the host that has the most sends of gradients in a round: of parts that others keep what it
 * has summed; of those that several keep, as all do with ddp, as much of what it makes as well. */
static load load_of_sums(const lk_step_model *m, double rounds)
{
    branches b = count_branches(m);
    double   h = m->hosts, k = sharing_of(m);
    double   shared = m->stage == 0 ? (h - 1) / h : m->buddies ? 1 / h : (h / k - 1) / h;
    double   others = m->stage == 0 ? 0 : (k - 1) / k - (m->buddies ? 1 / h : 0);
    double   whole = b.whole / rounds, all = b.all / rounds;
    return (load){ whole + (shared > 0 ? all : 0),
                   (whole * others + (whole + all) * shared) * m->gradient_bytes };
}

/* Gradients travel in the backward pass of the last micro-batch, with ddp their sums as well.
 * Parameters are gathered after the update, while nobody computes, or with zero3 in all passes. */
static void add_communication(lk_step_prediction *out, const lk_step_model *m)
{
    double k      = sharing_of(m);
    double p      = m->parameter_bytes > 0 ? m->parameter_bytes : m->gradient_bytes;
    double micros = m->micro_count > 0 ? m->micro_count : 1, buckets = bucket_count(m);
    double rounds = m->stage < 2 ? 1 : out->rounds; /* in which gradients travel */
    load   sums   = load_of_sums(m, rounds);

    p *= (k - 1) / k;
    if (m->stage == 3) {
        add_gathering(out, m, sums, p);
        return;
    }
    const load once  = { 1, p }, none = { 0 };
    const pass every = { m, -1, 1 };
    double     after = m->stage > 0 ? seconds_of(m, once, buckets, 1) : 0;
    double     bare  = exposed_behind(&every, sums, none, m->backward / micros,
                                      m->stage == 2 && micros == 1);
    double between     = fmax(0, bare - m->forward / micros); /* the next round hides more */
    out->sent          = rounds * sums.bytes + (m->stage > 0 ? p : 0);
    out->communication = rounds * seconds_of(m, sums, buckets, 1) + after;
    out->exposed       = (rounds - 1) * between + bare + after;
}

/* Each host has files of its part.  An update hides as much of what it reads and writes as it
 * lasts; forward and backward passes that of the units that they read, but for the first. */
static void add_files(lk_step_prediction *out, const lk_step_model *m)
{
    double parts = m->stage == 0 ? 1 : sharing_of(m), rate = parts * m->file_bandwidth;
    double micros = m->micro_count > 0 ? m->micro_count : 1, turns = out->rounds * micros;
    if (!(rate > 0))
        return;
    const pass forward = { m, -1, 0 }, backward = { m, -1, 1 };
    double     update = m->file_bytes / rate, each = m->pass_file_bytes / rate;
    out->files   = update + 2 * turns * each;
    out->stalled = fmax(0, update - m->update) +
                   turns * (exposed_before(&forward, each, 0, m->forward / micros) +
                            exposed_before(&backward, each, 0, m->backward / micros));
}

/* ---- A step ------------------------------------------------------------------------------ */

static lk_status check(const lk_step_model *m)
{
    if (m->workers == 0 || m->virtual_workers < m->workers)
        return lk_fail(LK_EINVAL, "%u virtual workers for %u workers: each worker has at least one",
                       m->virtual_workers, m->workers);
    if (m->hosts == 0 || m->hosts > m->workers)
        return lk_fail(LK_EINVAL, "%u hosts for %u workers: each has at least one", m->hosts,
                       m->workers);
    if (m->stage > 3)
        return lk_fail(LK_EINVAL, "there is no stage %u of ZeRO", m->stage);
    if (!(m->forward >= 0 && m->backward >= 0 && m->forward + m->backward > 0 && m->update >= 0 &&
          m->gradient_bytes >= 0 && m->parameter_bytes >= 0 && m->latency >= 0 &&
          m->file_bytes >= 0 && m->pass_file_bytes >= 0 && m->file_bandwidth >= 0))
        return lk_fail(LK_EINVAL, "a step's times and bytes are not negative, and computing takes "
                                  "some");
    if (m->hosts > 1 && !(m->bandwidth > 0))
        return lk_fail(LK_EINVAL, "what %u hosts send takes a bandwidth to be told", m->hosts);
    return LK_OK;
}

lk_status lk_step_predict(lk_step_prediction *out, const lk_step_model *model)
{
    *out = (lk_step_prediction){ 0 };
    LK_TRY(check(model));
    double share = (double)model->virtual_workers / model->workers;

    out->rounds  = (model->virtual_workers + model->workers - 1) / model->workers;
    out->balance = share / out->rounds;
    out->compute = out->rounds * (model->forward + model->backward);
    if (model->hosts > 1)
        add_communication(out, model);
    add_files(out, model);
    double after    = model->update + out->stalled;
    out->seconds    = out->compute + out->exposed + after;
    out->efficiency = (share * (model->forward + model->backward) + after) / out->seconds;
    return LK_OK;
}

/* ---- The work of a model ----------------------------------------------------------------- */

static double elements_of(lk_shape shape)
{
    return (double)lk_shape_count(shape);
}

/* Elements that a block makes for itself, a sample. */
static double inner_of(const lki_block_entry *entry)
{
    const lk_block *block = &entry->block;
    lk_shape        x = block->x[0], y = block->y;
    double          forward = entry->type->flops != NULL ? entry->type->flops(block).forward : 0;

    if (entry->type == &lk_block_attention) {
        const lk_attention_options *options = block->options;
        return forward * (double)options->heads / 4 / (double)y.dims[y.rank - 1];
    }
    if (entry->type == &lk_block_conv)
        return forward / 2 / (double)y.dims[y.rank - 1];
    if (entry->type == &lk_block_linear_cross_entropy)
        return forward / 2 / (double)x.dims[x.rank - 1];
    return 0;
}

lki_work lki_block_work(const lk_model *model, const lki_place *places, uint32_t block,
                        uint32_t samples)
{
    const lki_block_entry *entry  = &model->blocks[block];
    double                 values = entry->type->loss ? 0 : elements_of(entry->block.y);
    lki_work               work   = { { [LKI_WORK_CALL] = 1 } };

    for (uint32_t i = 0; i < entry->block.input_count; i++)
        values += elements_of(entry->block.x[i]);
    work.amount[LKI_WORK_FLOPS]  = samples * lki_block_flops(entry, &places[block]);
    work.amount[LKI_WORK_VALUES] = samples * values;
    work.amount[LKI_WORK_INNER]  = samples * inner_of(entry);
    for (uint32_t i = 0; i < entry->block.param_count; i++)
        work.amount[LKI_WORK_PARAMETERS] += elements_of(model->params[entry->params[i]].shape);
    return work;
}

/* ---- The model of a step ----------------------------------------------------------------- */

typedef struct {
    const lk_train_config *config;
    const lk_model        *model;
    const lki_place       *places;
    const lk_rates        *rates;
    const lk_calibration  *measured;
} step_source;

static const lki_type_rates *find_type(const lk_calibration *c, const char *name)
{
    for (uint32_t t = 0; c != NULL && t < c->type_count; t++)
        if (strcmp(c->types[t].name, name) == 0)
            return &c->types[t];
    return NULL;
}

/* Seconds of a call of a block: measured, or a third of its operations forward and two thirds
 * backward.  What is computed again before backward costs forward once more. */
static lk_step_piece time_block(const step_source *from, uint32_t b, double *flops)
{
    const lki_block_entry *entry = &from->model->blocks[b];
    lki_work work = lki_block_work(from->model, from->places, b, from->config->micro_batch);
    const lki_type_rates *type    = find_type(from->measured, entry->type->name);
    double                seconds = 0, share = 1.0 / 3;

    *flops += work.amount[LKI_WORK_FLOPS];
    if (type != NULL) {
        share = type->forward;
        for (int k = 0; k < LKI_WORK_KINDS; k++)
            seconds += type->seconds[k] * work.amount[k];
    } else if (from->rates->flops > 0)
        seconds = work.amount[LKI_WORK_FLOPS] / from->rates->flops;
    return (lk_step_piece){ .forward  = seconds * share,
                            .backward = from->places[b].again ? seconds : seconds * (1 - share) };
}

double lki_update_seconds(const lk_calibration *c, double elements, double gradients)
{
    uint32_t i = 0;
    while (i + 2 < c->size_count && elements > c->elements[i + 1])
        i++;
    double slope = (c->update[i + 1] - c->update[i]) / (c->elements[i + 1] - c->elements[i]);
    double line  = c->update[i] + slope * (elements - c->elements[i]);
    double least = c->update[0] * fmin(1, elements / c->elements[0]);
    return fmax(line, least) + c->again * fmax(0, gradients - elements);
}

/* Bytes that a worker moves for each element of the model, over what it moves in a second: it
 * clears its gradients and adds neighbours, then its share of the host's elements is summed over
 * the workers, read for the norm and updated. */
static double update_by_rate(const step_source *from, double elements, uint32_t workers)
{
    const lk_train_config *c      = from->config;
    uint32_t               rounds = (c->virtual_workers + c->workers - 1) / c->workers;
    double                 own    = rounds + 3 * (rounds - 1);
    double                 states = lk_optimizer_state_count(&c->optimizer);
    double                 shared = (workers + 5 + 2 * states) / workers;
    if (!(from->rates->memory_bandwidth > 0))
        return 0;
    return sizeof(float) * elements * (own + shared) / from->rates->memory_bandwidth;
}

uint32_t lki_stage_of(const char *strategy)
{
    if (strategy != NULL && strcmp(strategy, "hybrid") == 0)
        return 3;
    return strategy != NULL && strncmp(strategy, "zero", 4) == 0 ? (uint32_t)(strategy[4] - '0')
                                                                 : 0;
}

/* How many hosts have a model between them; 0: all. */
static uint32_t sharing_hosts(const lk_train_config *c)
{
    if (c->strategy == NULL || strcmp(c->strategy, "hybrid") != 0)
        return 0;
    return c->shard_hosts > 0 ? c->shard_hosts : 1;
}

static double gradient_elements(const lk_model *model)
{
    double sum = 0;
    for (size_t t = 0; t < model->term_count; t++)
        sum += elements_of(model->params[model->terms[t].param].shape);
    return sum;
}

/* Bytes that an update reads and writes of the optimizer's state and of parameters in files; lamb
 * goes over them twice and writes states alone, and lars and lamb read parameters for their norms.
 */
static double update_file_bytes(const lk_train_config *c, double elements)
{
    bool   lamb   = c->optimizer.kind == LK_LAMB, lars = c->optimizer.kind == LK_LARS;
    double states = lki_in_files(c, LK_OFFLOADED_STATES)
                        ? lk_optimizer_state_count(&c->optimizer) * (lamb ? 4 : 2) : 0;
    double params = lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? 2 + lamb + (lamb || lars) : 0;
    return (states + params) * sizeof(float) * elements;
}

/* Of parameters that a pass over the model reads by units. */
static double pass_file_bytes(const lk_train_config *c, double elements)
{
    return lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? sizeof(float) * elements : 0;
}

/* Of all parameters, as hosts send them to each other. */
static double parameter_bytes(const lk_train_config *c, const lk_model *model)
{
    const bool   quantised = c->gather_dtype == LK_I8 && lki_stage_of(c->strategy) == 3;
    const bool   narrow    = lki_gather_dtype(c) == LK_BF16;
    const double width     = (double)lk_rounded_bytes(quantised ? LK_I8 : LK_F32, MANY) / MANY;
    double       bytes     = 0;
    for (size_t p = 0; p < model->param_count; p++)
        bytes += (narrow && model->params[p].bf16 ? sizeof(uint16_t) : width) *
                 elements_of(model->params[p].shape);
    return bytes;
}

/* Of a micro-batch, and what part of it each piece's blocks take: those from its last one, which is
 * the first in the model, to before that of the piece before. */
static void fill_times(lk_step_model *out, const lki_grad_piece *pieces, const step_source *from,
                       double *flops)
{
    const lk_model *model = from->model;
    size_t          b     = model->block_count;
    for (uint32_t i = 0; i <= out->piece_count; i++) {
        uint32_t      first = i < out->piece_count ? model->terms[pieces[i].term].block : 0;
        lk_step_piece sum   = { 0 };
        while (b > first) {
            lk_step_piece block = time_block(from, (uint32_t)--b, flops);
            sum.forward += block.forward;
            sum.backward += block.backward;
        }
        out->forward += sum.forward;
        out->backward += sum.backward;
        if (i < out->piece_count) {
            out->pieces[i].forward  = sum.forward;
            out->pieces[i].backward = sum.backward;
        }
    }
    for (uint32_t i = 0; i < out->piece_count; i++) {
        out->pieces[i].forward /= fmax(out->forward, TINY);
        out->pieces[i].backward /= fmax(out->backward, TINY);
    }
}

static lk_status fill_pieces(lk_step_model *out, double *flops, const step_source *from)
{
    lki_grad_piece *pieces = NULL;
    double     elements = 0, dealt = 0;
    lk_status  status = lki_pieces_of(from->config, from->model, out->hosts, &pieces,
                                      &out->piece_count);
    if (status == LK_OK)
        status = LKI_NEW(&out->pieces, out->piece_count, "pieces of gradients");
    for (uint32_t i = 0; status == LK_OK && i < out->piece_count; i++) {
        elements += (double)pieces[i].elements;
        dealt += (double)pieces[i].dealt;
    }
    for (uint32_t i = 0; status == LK_OK && i < out->piece_count; i++) {
        out->pieces[i] = (lk_step_piece){ .buckets    = (double)pieces[i].buckets,
                                          .gradients  = (double)pieces[i].elements / elements,
                                          .parameters = (double)pieces[i].dealt / dealt };
        memcpy(out->pieces[i].gathers, pieces[i].gathers, sizeof pieces[i].gathers);
    }
    if (status == LK_OK)
        fill_times(out, pieces, from, flops);
    lki_free(pieces);
    return status;
}

static lk_status fill_model(lk_step_model *out, double *flops, const step_source *from,
                            uint32_t hosts)
{
    const lk_train_config *c        = from->config;
    double                 elements = (double)lk_model_param_elements(from->model), sum = 0;
    uint32_t               here = (c->workers + hosts - 1) / hosts;
    double width  = (double)lk_rounded_bytes(c->comm_dtype, MANY) / MANY; /* of an element */
    double bucket = c->bucket_bytes > 0 ? (double)c->bucket_bytes : BUCKET_BYTES;

    *out = (lk_step_model){ .workers         = c->workers,
                            .hosts           = hosts,
                            .virtual_workers = c->virtual_workers,
                            .micro_count    = c->global_batch / c->virtual_workers / c->micro_batch,
                            .stage          = lki_stage_of(c->strategy),
                            .shard_hosts    = sharing_hosts(c),
                            .buddies        = c->buddies && (sharing_hosts(c) == 0 ||
                                                             sharing_hosts(c) == hosts),
                            .gradient_bytes  = width * gradient_elements(from->model),
                            .parameter_bytes = parameter_bytes(c, from->model),
                            .bucket_bytes    = width / sizeof(float) * bucket,
                            .bandwidth       = from->rates->bandwidth,
                            .latency         = from->rates->latency,
                            .file_bytes      = update_file_bytes(c, elements),
                            .pass_file_bytes = pass_file_bytes(c, elements),
                            .file_bandwidth  = from->rates->file_bandwidth };
    double held   = from->measured != NULL ? from->measured->held : 1;
    LK_TRY(fill_pieces(out, &sum, from));
    out->forward *= held * out->micro_count;
    out->backward *= held * out->micro_count;
    if (!(out->file_bandwidth > 0) && from->measured != NULL)
        out->file_bandwidth = from->measured->files;
    out->update = from->measured != NULL
                      ? lki_update_seconds(from->measured, elements, gradient_elements(from->model))
                      : update_by_rate(from, elements, here);
    if (flops != NULL)
        *flops = sum * out->micro_count * c->virtual_workers;
    return LK_OK;
}

/* Of activations, of all workers that share a model; what forward writes backward reads. */
static double spilled_bytes(const lki_layout *layout, const lk_step_model *m)
{
    uint64_t each;
    double   here = ceil((double)m->workers / m->hosts);
    (void)lki_spill_bytes(layout->aside_count, layout->aside_bytes, 1, &each);
    return here * (m->stage == 0 ? 1 : sharing_of(m)) * (double)each;
}

static lk_status model_step(lk_step_model *out, double *flops, step_source *from, uint32_t hosts)
{
    const lk_train_config *c      = from->config;
    lk_exec               *exec   = NULL;
    lki_layout             layout = { 0 };
    LK_TRY(lk_exec_open(&exec, c->threads, c->isa));
    bool      files  = lki_in_files(c, LK_OFFLOADED_ACTIVATIONS);
    lk_status status = lki_layout_init(&layout, from->model, exec, c->precision, c->micro_batch,
                                       files);
    from->places     = layout.places;
    if (status == LK_OK)
        status = fill_model(out, flops, from, hosts);
    if (status == LK_OK)
        out->pass_file_bytes += spilled_bytes(&layout, out);
    lki_layout_deinit(&layout);
    lk_exec_free(exec);
    return status;
}

lk_status lk_train_model_step(lk_step_model *out, double *flops, lk_train_config *config,
                              uint32_t hosts, const lk_rates *rates, const lk_calibration *measured)
{
    lk_model *model;

    *out = (lk_step_model){ 0 };
    LK_TRY(lki_model_alone(&model, config, NULL));
    step_source from   = { config, model, NULL, rates, measured };
    lk_status   status = model_step(out, flops, &from, hosts);
    if (status != LK_OK)
        lk_step_model_deinit(out);
    lk_model_free(model);
    return status;
}

void lk_step_model_deinit(lk_step_model *model)
{
    lki_free(model->pieces);
    model->pieces      = NULL;
    model->piece_count = 0;
}
