/* predict.c -- predicts the time of a step.
 *
 * step = rounds x (forward + backward) + exposed communication + update + stall
 *
 * The inputs are a lk_step_model, which step_model.c fills in.  Nothing here depends on a
 * particular machine.
 */
#include "plan/predict.h"

#include <math.h>

#include "base/memory.h"
#include "parallel/virtual.h"

enum { MANY_BRANCHES = 1 << 16 }; /* number of subtrees up to which they are counted one by one */

/* ---- Communication ----------------------------------------------------------------------- */

/* Numbers of subtrees whose gradients are sent in a step: by the busiest host, and by all hosts. */
typedef struct {
    double whole, all;
} branches;

/* Counts the subtrees that cover the virtual workers from + first to from + end - 1.  Virtual
 * workers that do not exist are not counted. */
static double branches_of(const lk_step_model *m, uint64_t from, uint64_t first, uint64_t end)
{
    uint64_t v = m->virtual_workers;
    return lki_virtual_branches(m->virtual_workers, (uint32_t)lki_min(v, from + first),
                                (uint32_t)lki_min(v, from + end));
}

/* Counts the subtrees of all hosts.  Stages 0 and 1 have ranges of V / N virtual workers; stages 2
 * and 3 have rounds with one virtual worker per rank.  If there are too many rounds, counts only
 * the first ones and scales the result. */
static branches count_branches(const lk_step_model *m)
{
    uint64_t n = m->workers, v = m->stage < 2 ? m->virtual_workers : n;
    uint64_t rounds = (m->virtual_workers + v - 1) / v;
    uint64_t told   = lki_min(rounds, lki_max(1, MANY_BRANCHES / m->hosts));
    branches sum    = { 0, 0 };
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

/* The traffic of one pass: `bytes` in total, and `times` consecutive messages per bucket. */
typedef struct {
    double times, bytes;
} load;

static double bucket_count(const lk_step_model *m)
{
    double bucket = m->bucket_bytes > 0 ? m->bucket_bytes : LKI_BUCKET_BYTES, sum = 0;
    for (uint32_t i = 0; i < m->piece_count; i++)
        sum += m->pieces[i].buckets;
    return sum > 0 ? sum : fmax(1, ceil(m->gradient_bytes / bucket));
}

/* Returns the seconds that the link needs to send `buckets` buckets.  Together they have the
 * fraction `part` of the bytes of `use`. */
static double seconds_of(const lk_step_model *m, load use, double buckets, double part)
{
    double messages = buckets * ceil(log2(m->hosts)) * use.times;
    return messages * m->latency + part * use.bytes / m->bandwidth;
}

/* Returns the exposed seconds of a link that is busy for `busy` seconds, while `window` seconds of
 * computation make buckets ready at even intervals. */
static double exposed_of(double busy, double window, double buckets)
{
    return fmax(busy / buckets, busy - window * (buckets - 1) / buckets);
}

/* A pass through the model, for gathers_of(). */
typedef struct {
    const lk_step_model *model;
    int                  turn; /* 0: a step's first turn; 1: a later turn; -1: gathers all pieces */
    int                  backward;
} pass;

static double gathers_of(const pass *from, uint32_t piece)
{
    return from->turn < 0 ? 1 : from->model->pieces[piece].gathers[from->turn][from->backward];
}

/* Returns the mean number of times that the pass gathers a piece, weighted by the parameters of the
 * pieces. */
static double mean_gathers(const pass *from)
{
    double sum = from->model->piece_count == 0;
    for (uint32_t i = 0; i < from->model->piece_count; i++)
        sum += gathers_of(from, i) * from->model->pieces[i].parameters;
    return sum;
}

/* Returns the seconds that the link needs for all gathers of a pass. */
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

/* Returns the seconds that sums and gathers take after the end of backward.  If `two` is set, there
 * is memory for only two pieces, and computation waits until one is free. */
static double exposed_behind(const pass *from, load sums, load once, double window, bool two)
{
    const lk_step_model *m    = from->model;
    double               made = 0, sent = 0, before = 0, left = 1, buckets = bucket_count(m);
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

/* Returns the seconds that a pass waits for gathers.  The gathers take `all` seconds plus messages.
 * The pass waits for the whole first piece.  For each later piece it waits only for the part of the
 * gather that the computation of the previous piece does not hide. */
static double exposed_before(const pass *from, double all, double messages, double window)
{
    const lk_step_model *m       = from->model;
    double               exposed = 0, computing = 0;
    if (m->piece_count == 0)
        return exposed_of(all + messages * bucket_count(m), window, bucket_count(m));
    for (uint32_t i = 0; i < m->piece_count; i++) {
        uint32_t             at     = from->backward ? i : m->piece_count - 1 - i;
        const lk_step_piece *p      = &m->pieces[at];
        double               coming = p->parameters * all + p->buckets * messages;
        exposed += fmax(0, gathers_of(from, at) * coming - computing);
        computing = window * (from->backward ? p->backward : p->forward);
    }
    return exposed;
}

/* Adds `count` turns to the prediction.  `sending` of these turns send sums.  For `turn` see the
 * struct `pass`. */
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
    out->communication += count * (gathering_seconds(&forward, once) +
                                   gathering_seconds(&backward, once)) +
                          sending * seconds_of(m, sums, buckets, 1);
    out->exposed +=
        count * exposed_before(&forward, all, message, m->forward / micros) +
        sending * exposed_behind(&backward, sums, once, m->backward / micros, micros == 1) +
        (count - sending) * exposed_before(&backward, all, message, m->backward / micros);
}

/* Adds the communication of stage 3.  Nothing hides the gather of the first unit of a pass.  Every
 * other unit is gathered while the previous unit is computed. */
static void add_gathering(lk_step_prediction *out, const lk_step_model *m, load sums, double bytes)
{
    const load once   = { bytes > 0, bytes };
    double     micros = m->micro_count > 0 ? m->micro_count : 1, rounds = out->rounds;
    double     begins = micros == 1; /* 1 if the first turn of a step sends sums, else 0 */
    add_turns(out, m, 0, 1, begins, sums, once);
    add_turns(out, m, 1, rounds * micros - 1, rounds - begins, sums, once);
}

double lki_sharing_hosts(const lk_step_model *m)
{
    bool groups = m->stage == 3 && m->shard_hosts > 0 && m->shard_hosts < m->hosts;
    return groups ? m->shard_hosts : m->hosts;
}

/* Returns the gradient traffic of the busiest host in a round.  The host sends its sums to their
 * owners.  If several hosts store the same part of the model, as with ddp, the completed sums are
 * sent to the other hosts.  By linear every host that stores a part gets all gradients of it. */
static load load_of_sums(const lk_step_model *m, double rounds)
{
    branches b = count_branches(m);
    double   h = m->hosts, k = lki_sharing_hosts(m);
    double   shared = m->stage == 0 ? (h - 1) / h : m->buddies ? 1 / h : (h / k - 1) / h;
    double   others = m->stage == 0 ? 0 : (k - 1) / k - (m->buddies ? 1 / h : 0);
    double   whole = b.whole / rounds, all = b.all / rounds;
    double   parts = m->stage == 0 ? 1 : m->buddies ? h / 2 : k; /* of the model, on hosts */
    if (m->linear)
        return (load){ whole, whole * (h - 1) / parts * m->gradient_bytes };
    return (load){ whole + (shared > 0 ? all : 0),
                   (whole * others + (whole + all) * shared) * m->gradient_bytes };
}

/* Adds the communication of a step.  Gradients, and with ddp their sums, are sent in the backward
 * pass of the last micro-batch.  Parameters are gathered after the update, where nothing hides
 * them, or with stage 3 in all passes. */
static void add_communication(lk_step_prediction *out, const lk_step_model *m)
{
    double k      = lki_sharing_hosts(m);
    double p      = m->parameter_bytes > 0 ? m->parameter_bytes : m->gradient_bytes;
    double micros = m->micro_count > 0 ? m->micro_count : 1, buckets = bucket_count(m);
    double rounds = m->stage < 2 ? 1 : out->rounds; /* number of rounds that send gradients */
    load   sums   = load_of_sums(m, rounds);

    p *= (k - 1) / k;
    if (m->stage == 3) {
        add_gathering(out, m, sums, p);
        return;
    }
    const load once = { 1, p }, none = { 0 };
    const pass every   = { m, -1, 1 };
    double     after   = m->stage > 0 ? seconds_of(m, once, buckets, 1) : 0;
    double     bare    = exposed_behind(&every, sums, none, m->backward / micros,
                                        m->stage == 2 && micros == 1);
    /* the forward pass of the next round hides a part of `bare` */
    double     between = fmax(0, bare - m->forward / micros);
    out->sent          = rounds * sums.bytes + (m->stage > 0 ? p : 0);
    out->communication = rounds * seconds_of(m, sums, buckets, 1) + after;
    out->exposed       = (rounds - 1) * between + bare + after;
}

/* Adds the time of offloaded files, of which each host has a part.  The update hides file transfers
 * up to its own duration.  Passes hide the reads of all units except the first. */
static void add_files(lk_step_prediction *out, const lk_step_model *m)
{
    double parts = m->stage == 0 ? 1 : lki_sharing_hosts(m), rate = parts * m->file_bandwidth;
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
