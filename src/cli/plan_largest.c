/* plan_largest.c -- the largest model that fits, found by planning larger and smaller ones.
 *
 * A gpt grows in width, all heads alike, with as many layers; a model of which only the number of
 * parameters is known grows in these.  Nothing says how others would: of those it is what is in
 * proportion to the parameters that counts.
 */
#include <math.h>
#include <string.h>

#include "cli/plan.h"

/* How near the largest number of parameters is come to. */
#define NEAR 1e-6

#define MOST_PARAMETERS 1e15
#define MOST_WIDTHS     1e6 /* of heads */

typedef struct {
    lk_train_config config; /* of the strategy */
    uint32_t        hosts, heads;
    double          memory;
    double          fits, fits_bytes; /* the largest size known to fit, and what it takes */
    double          over, over_bytes; /* the smallest known not to; 0: none is */
    double          elements;         /* of the one that fits */
} search;

static bool grows(const lk_train_config *c)
{
    return strcmp(c->model, "bare") == 0 || strcmp(c->model, "gpt") == 0;
}

static bool is_bare(const search *s)
{
    return s->heads == 0;
}

/* Plans the model of that size; what cannot be planned does not fit. */
static void try_size(search *s, double size)
{
    lk_train_config config = s->config;
    lk_train_cost   cost;
    if (is_bare(s))
        config.model_options.parameters = (uint64_t)size;
    else
        config.model_options.width = (uint32_t)size * s->heads;
    lk_status status = lk_train_estimate(&config, s->hosts, &cost);
    double    bytes  = status == LK_OK ? (double)lk_train_cost_bytes(&cost) : (double)INFINITY;
    if (bytes <= s->memory) {
        s->fits       = size;
        s->fits_bytes = bytes;
        s->elements   = (double)cost.parameters;
    } else {
        s->over       = size;
        s->over_bytes = bytes;
    }
}

/* Memory is nearly a line over the size, so where that meets the limit is near; and a little beyond
 * it, on the side that was not come from, is the other end.  Now and then the middle. */
static double next_size(const search *s, uint32_t turn, bool fitted)
{
    double low = s->fits + 1, high = s->over - 1, near = fmax(1, NEAR * s->fits);
    double rise = (s->over_bytes - s->fits_bytes) / (s->over - s->fits);
    double size = s->fits + (s->memory - s->fits_bytes) / rise + (fitted ? near : -near);
    if (turn % 3 == 2 || !isfinite(size))
        size = (low + high) / 2;
    return fmin(fmax(floor(size), low), high);
}

static void close_in(search *s)
{
    bool fitted = true;
    for (uint32_t turn = 0; s->over - s->fits > fmax(1, NEAR * s->fits); turn++) {
        double size = next_size(s, turn, fitted);
        try_size(s, size);
        fitted = s->fits == size;
    }
}

static double layers_of(const search *s, double parameters)
{
    lk_model_options options = s->config.model_options;
    options.parameters       = (uint64_t)parameters;
    return ceil(parameters / (double)lk_model_resolve("bare", &options).largest_layer);
}

/* Where nobody says how large a layer is there is one more of them at some size, and all are
 * smaller, which may fit again. */
static bool try_one_more_layer(search *s)
{
    double layers = layers_of(s, s->fits), low = s->fits, high = 4 * s->fits;
    if (!is_bare(s) || s->config.model_options.largest_layer > 0 || s->fits < 1)
        return false;
    while (high - low > 1) {
        double middle = floor((low + high) / 2);
        bool   more   = layers_of(s, middle) > layers;
        low           = more ? low : middle;
        high          = more ? middle : high;
    }
    search more = *s;
    try_size(&more, high);
    if (more.fits < high)
        return false;
    *s = more;
    return true;
}

static void bracket(search *s, double size)
{
    const double most = is_bare(s) ? MOST_PARAMETERS : MOST_WIDTHS;
    for (s->over = 0; s->over == 0 && size <= most; size = ceil(1.5 * size))
        try_size(s, fmax(1, floor(size)));
    if (s->over == 0)
        s->over = s->fits + 1;
}

void lki_plan_largest(const plan_options *o, plan_row *row)
{
    const lk_train_config *c = &o->train.config;
    search                 s = { .config = *c, .hosts = lki_plan_hosts(o), .memory = o->memory };
    const lk_model_options model = lk_model_resolve(c->model, &c->model_options);
    double                 size  = (double)row->cost.parameters;

    if (o->memory == 0 || !grows(c))
        return;
    s.config.init = NULL; /* it is of this model */
    if (strcmp(c->model, "gpt") == 0) {
        s.heads = model.heads;
        size    = (double)model.width / s.heads;
    }
    bracket(&s, size * fmin(1, o->memory / row->whole));
    close_in(&s);
    while (try_one_more_layer(&s)) {
        bracket(&s, s.fits);
        close_in(&s);
    }
    row->largest       = s.elements;
    row->largest_width = (uint32_t)s.fits * s.heads;
}
