/* clients.c -- divides the training samples among clients, and draws what clients do in a round.
 *
 * A split is a table with the client of each sample.  From it the samples of each client are listed
 * in the order of the data set.
 *
 * Dirichlet: the proportions of a class are independent gamma variates divided by their sum
 *            (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; shapes
 *            below 1 by a variate of shape + 1 times U^(1/shape)).  Their logarithms are kept, as
 *            a small alpha makes most of them smaller than any float.  Random numbers are keyed by
 *            (seed, client, class, attempt), and no libm is used, so every machine draws the
 *            same.
 */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/options.h"
#include "data/source.h"
#include "data/stream.h"
#include "tensor/ops.h"

struct lk_clients {
    lk_clients_options options;
    uint64_t           count;   /* number of training samples */
    uint64_t          *first;   /* [M + 1]: of each client, in `samples` */
    uint64_t          *samples; /* [count]: indices in the data set, by client */
};

/* The work of a split. */
typedef struct {
    const lk_clients *clients;
    const lk_dataset *dataset;
    uint32_t         *owner;    /* [n]: the client of each sample */
    uint64_t         *sorted;   /* [n]: samples by class, then by index */
    uint64_t         *classes;  /* [class_count + 1]: first of each class, in `sorted` */
    uint32_t          class_count;
} division;

/* Returns the first of `total` things that part `part` of `parts` has. */
static uint64_t part_begin(uint64_t total, uint64_t parts, uint64_t part)
{
    return total / parts * part + lki_min(part, total % parts);
}

/* ---- Labels -------------------------------------------------------------------------------- */

static lk_status read_labels(const lk_dataset *dataset, uint32_t *labels)
{
    const lk_dataset_info *info = lk_dataset_describe(dataset);
    float                 *x    = NULL;
    LK_TRY(LKI_NEW(&x, lk_shape_count(info->x), "a sample"));
    lk_status status = LK_OK;
    for (uint64_t i = 0; status == LK_OK && i < info->train_count; i++) {
        int32_t label = 0;
        status        = lk_dataset_read(dataset, false, 0, i, x, &label);
        labels[i]     = (uint32_t)(label + 1); /* -1: ignored in the loss */
    }
    lki_free(x);
    return status;
}

/* Sorts samples by their labels. */
static void sort(division *d, const uint32_t *labels)
{
    const uint64_t n = d->clients->count;
    for (uint64_t i = 0; i < n; i++)
        d->classes[labels[i] + 1]++;
    for (uint32_t c = 0; c < d->class_count; c++)
        d->classes[c + 1] += d->classes[c];
    for (uint64_t i = 0; i < n; i++)
        d->sorted[d->classes[labels[i]]++] = i;
    for (uint32_t c = d->class_count; c > 0; c--)
        d->classes[c] = d->classes[c - 1];
    d->classes[0] = 0;
}

static lk_status sort_by_label(division *d)
{
    const lk_dataset_info *info   = lk_dataset_describe(d->dataset);
    uint32_t              *labels = NULL;
    if (info->tokens || info->numbers)
        return lk_fail(LK_EINVAL, "these samples are %s without labels, by which `split` shards "
                                  "and dirichlet divide them: use `split` iid or files",
                       info->tokens ? "text" : "numbers");
    d->class_count = info->classes + 1;
    LK_TRY(LKI_NEW(&d->classes, (size_t)d->class_count + 1, "classes"));
    LK_TRY(LKI_NEW(&d->sorted, info->train_count, "samples by label"));
    LK_TRY(LKI_NEW(&labels, info->train_count, "labels"));
    lk_status status = read_labels(d->dataset, labels);
    if (status == LK_OK)
        sort(d, labels);
    lki_free(labels);
    return status;
}

/* ---- Splits -------------------------------------------------------------------------------- */

static lk_status split_iid(division *d)
{
    const uint64_t n = d->clients->count, m = d->clients->options.count;
    for (uint32_t k = 0; k < m; k++)
        for (uint64_t p = part_begin(n, m, k); p < part_begin(n, m, k + 1); p++)
            d->owner[lki_permute(d->clients->options.seed, LKI_RNG_DIVIDE, 0, n, p)] = k;
    return LK_OK;
}

static lk_status split_shards(division *d)
{
    const lk_clients_options *o     = &d->clients->options;
    const uint64_t            n     = d->clients->count, each = (uint64_t)o->by;
    const uint64_t            parts = each * o->count;
    if (!(o->by >= 1 && o->by <= 1 << 20) || (double)each < o->by || parts > n)
        return lk_fail(LK_EINVAL,
                       "`split` shards:%g: %u clients with so many shards each need a sample for "
                       "each shard, and these data have %llu: give a whole number of at least 1, "
                       "or fewer clients",
                       o->by, o->count, (unsigned long long)n);
    LK_TRY(sort_by_label(d));
    for (uint64_t i = 0; i < parts; i++) {
        const uint64_t shard = lki_permute(o->seed, LKI_RNG_DIVIDE, 1, parts, i);
        for (uint64_t p = part_begin(n, parts, shard); p < part_begin(n, parts, shard + 1); p++)
            d->owner[d->sorted[p]] = (uint32_t)(i / each);
    }
    return LK_OK;
}

/* Returns a number in (0, 1]. */
static double unit(uint32_t word)
{
    return (double)((word >> 8) + 1) * 0x1p-24;
}

/* Draws a gamma variate of shape `alpha`, and returns its logarithm. */
static double draw_log_gamma(uint64_t seed, uint32_t client, uint32_t class, double alpha)
{
    const double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3, c = 1 / (3 * sqrt(d));
    for (uint32_t attempt = 0;; attempt++) {
        const lki_random r = lki_philox(seed, LKI_RNG_DIVIDE, client, class, attempt, 1);
        const double     x = sqrt(-2 * (double)lki_logf((float)unit(r.word[0]))) *
                         (double)lki_cosf((float)(6.283185307179586 * unit(r.word[1])));
        const double t = 1 + c * x, v = t * t * t;
        if (t <= 0)
            continue;
        const double log_v = (double)lki_logf((float)v);
        if ((double)lki_logf((float)unit(r.word[2])) >= 0.5 * x * x + d * (1 - v + log_v))
            continue;
        const double boost = alpha < 1 ? (double)lki_logf((float)unit(r.word[3])) / alpha : 0;
        return (double)lki_logf((float)d) + log_v + boost;
    }
}

/* Divides the samples of a class; shares[M] is room for the proportions. */
static void divide_class(division *d, uint32_t class, double *shares)
{
    const lk_clients_options *o     = &d->clients->options;
    const uint64_t           *of    = d->sorted + d->classes[class];
    const uint64_t            count = d->classes[class + 1] - d->classes[class];
    double                    most = -HUGE_VAL, sum = 0, before = 0;
    for (uint32_t k = 0; k < o->count; k++) {
        shares[k] = draw_log_gamma(o->seed, k, class, o->by);
        most      = shares[k] > most ? shares[k] : most;
    }
    for (uint32_t k = 0; k < o->count; k++) {
        const double below = shares[k] - most;
        shares[k]          = below < -80 ? 0 : (double)lki_expf((float)below);
        sum += shares[k];
    }
    uint64_t at = 0;
    for (uint32_t k = 0; k < o->count; k++) {
        before += shares[k];
        const uint64_t end = k + 1 == o->count ? count
                                               : lki_min((uint64_t)(before / sum * (double)count),
                                                         count);
        for (; at < end; at++)
            d->owner[of[lki_permute(o->seed, LKI_RNG_DIVIDE, 2 + (uint64_t)class, count, at)]] = k;
    }
}

static lk_status split_dirichlet(division *d)
{
    const lk_clients_options *o      = &d->clients->options;
    double                   *shares = NULL;
    if (!(o->by >= 1e-3 && o->by <= 1e6))
        return lk_fail(LK_EINVAL, "`split` dirichlet:%g: give a number from 0.001 (each class at "
                                  "few clients) to 1000000 (nearly iid)", o->by);
    LK_TRY(sort_by_label(d));
    LK_TRY(LKI_NEW(&shares, o->count, "shares of clients"));
    for (uint32_t c = 0; c < d->class_count; c++)
        if (d->classes[c + 1] > d->classes[c])
            divide_class(d, c, shares);
    lki_free(shares);
    return LK_OK;
}

static lk_status split_files(division *d)
{
    const lk_dataset *data  = d->dataset;
    const uint32_t    count = d->clients->options.count;
    if (data->source->file_of == NULL)
        return lk_fail(LK_EINVAL, "'%s' data do not tell which file a sample is from, so `split` "
                                  "files cannot divide them: use tar, docs or cifar10, or another "
                                  "split", data->source->name);
    const uint32_t files = data->source->file_count(data);
    if (files != count)
        return lk_fail(LK_EINVAL, "`split` files makes a client of each of %u files, but there are "
                                  "%u clients: give as many as files", files, count);
    for (uint64_t i = 0; i < d->clients->count; i++)
        d->owner[i] = data->source->file_of(data, data->info.documents
                                                      ? data->pieces[i].document
                                                      : lki_sample_place(data, false, i));
    return LK_OK;
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* Lists the samples of each client. */
static void list(lk_clients *clients, const uint32_t *owner)
{
    const uint32_t m = clients->options.count;
    for (uint64_t i = 0; i < clients->count; i++)
        clients->first[owner[i] + 1]++;
    for (uint32_t k = 0; k < m; k++)
        clients->first[k + 1] += clients->first[k];
    for (uint64_t i = 0; i < clients->count; i++)
        clients->samples[clients->first[owner[i]]++] = i;
    for (uint32_t k = m; k > 0; k--)
        clients->first[k] = clients->first[k - 1];
    clients->first[0] = 0;
}

static lk_status divide(division *d)
{
    const lk_clients *clients = d->clients;
    LK_TRY(LKI_NEW(&d->owner, clients->count, "the clients of samples"));
    switch (clients->options.split) {
    case LK_SPLIT_SHARDS: return split_shards(d);
    case LK_SPLIT_DIRICHLET: return split_dirichlet(d);
    case LK_SPLIT_FILES: return split_files(d);
    case LK_SPLIT_IID: return split_iid(d);
    default: return lk_fail(LK_EINVAL, "`split` %d is none of lk_split",
                            (int)clients->options.split);
    }
}

static lk_status fill(lk_clients *clients, const lk_dataset *dataset)
{
    const lk_clients_options *o = &clients->options;
    if (lki_dataset_is_stream(dataset))
        return lk_fail(LK_EINVAL, "a stream is read once and cannot be divided among clients: use "
                                  "files");
    if (o->count == 0 || o->count > 1 << 20 || o->count > clients->count)
        return lk_fail(LK_EINVAL, "%u clients cannot share %llu samples: give from 1 to as many "
                                  "clients as samples, and at most %d",
                       o->count, (unsigned long long)clients->count, 1 << 20);
    LK_TRY(LKI_NEW(&clients->first, (size_t)o->count + 1, "clients"));
    LK_TRY(LKI_NEW(&clients->samples, clients->count, "the samples of clients"));
    division  d      = { .clients = clients, .dataset = dataset };
    lk_status status = divide(&d);
    if (status == LK_OK)
        list(clients, d.owner);
    lki_free(d.owner);
    lki_free(d.sorted);
    lki_free(d.classes);
    return status;
}

lk_status lk_clients_open(lk_clients **out, const lk_dataset *dataset,
                          const lk_clients_options *options)
{
    LK_ASSERT(out != NULL && dataset != NULL);
    *out                = NULL;
    lk_clients *clients = NULL;
    LK_TRY(LKI_NEW(&clients, 1, "clients"));
    clients->count   = lk_dataset_describe(dataset)->train_count;
    lk_status status = lki_options_copy(&clients->options, sizeof clients->options, options,
                                        "lk_clients_options");
    if (status == LK_OK)
        status = fill(clients, dataset);
    if (status != LK_OK)
        lk_clients_free(clients);
    else
        *out = clients;
    return status;
}

void lk_clients_free(lk_clients *clients)
{
    if (clients == NULL)
        return;
    lki_free(clients->first);
    lki_free(clients->samples);
    lki_free(clients);
}

/* ---- Samples ------------------------------------------------------------------------------- */

uint64_t lk_clients_samples(const lk_clients *clients, uint32_t client)
{
    LK_ASSERT(client < clients->options.count);
    return clients->first[client + 1] - clients->first[client];
}

uint64_t lk_clients_most(const lk_clients *clients)
{
    uint64_t most = 0;
    for (uint32_t k = 0; k < clients->options.count; k++)
        most = lki_max(most, lk_clients_samples(clients, k));
    return most;
}

uint64_t lk_clients_least(const lk_clients *clients)
{
    uint64_t least = clients->count;
    for (uint32_t k = 0; k < clients->options.count; k++)
        least = lki_min(least, lk_clients_samples(clients, k));
    return least;
}

uint64_t lk_clients_sample(const lk_clients *clients, uint32_t client, uint64_t index)
{
    LK_ASSERT(index < lk_clients_samples(clients, client));
    return clients->samples[clients->first[client] + index];
}

uint64_t lk_clients_sample_at(const lk_clients *clients, uint32_t client, uint64_t round,
                              uint64_t epoch, uint64_t position)
{
    const uint64_t n    = lk_clients_samples(clients, client);
    const uint64_t seed = lk_clients_seed(clients, client, round);
    return lk_clients_sample(clients, client, lk_sample_at(seed, epoch, n, position));
}

/* ---- Rounds -------------------------------------------------------------------------------- */

static int compare(const void *one, const void *other)
{
    const uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

void lk_clients_choose(const lk_clients *clients, uint64_t round, uint32_t count, uint32_t *chosen)
{
    const uint32_t m    = clients->options.count;
    uint32_t       some = 0;
    for (uint32_t i = 0; i < m && some < count; i++) {
        const uint64_t client = lki_permute(clients->options.seed, LKI_RNG_CLIENTS, round, m, i);
        if (lk_clients_samples(clients, (uint32_t)client) > 0)
            chosen[some++] = (uint32_t)client;
    }
    qsort(chosen, some, sizeof *chosen, compare);
    for (; some < count; some++)
        chosen[some] = LK_NO_CLIENT;
}

static lki_random draw(const lk_clients *clients, uint32_t client, uint64_t round, uint32_t what)
{
    return lki_philox(clients->options.seed, LKI_RNG_CLIENT, client, (uint32_t)round,
                      (uint32_t)(round >> 32), what);
}

uint64_t lk_clients_stop(const lk_clients *clients, uint32_t client, uint64_t round,
                         double dropout, uint64_t steps)
{
    const lki_random r = draw(clients, client, round, 1);
    if ((double)r.word[0] * 0x1p-32 >= dropout)
        return steps;
    return (uint64_t)((double)r.word[1] * 0x1p-32 * (double)steps);
}

uint64_t lk_clients_seed(const lk_clients *clients, uint32_t client, uint64_t round)
{
    const lki_random r = draw(clients, client, round, 0);
    return (uint64_t)r.word[1] << 32 | r.word[0];
}
