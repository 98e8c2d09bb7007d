/* plan_largest.c -- the largest model that fits, found by planning larger and smaller ones.
 *
 * A gpt grows in width, all heads alike, with as many layers; an mlp in all widths of its hidden
 * layers, in proportion; a model of which only the number of parameters is known in these.  A
 * resnet is of a few depths: of it, it is what is in proportion to the parameters that counts.
 */
#include <math.h>
#include <string.h>

#include "cli/plan.h"

/* How near the largest number of parameters is come to. */
#define NEAR 1e-6

/* What options take. */
#define MOST_PARAMETERS 1e15
#define MOST_WIDTH      0x1p20

typedef struct {
    lk_train_config  config; /* of the strategy */
    lk_model_options model;  /* as it was given, complete */
    uint32_t         hosts;
    double           memory;
    double           size;        /* of the model that was given */
    double           least, most; /* of any that can be said */
    double          fits, fits_bytes; /* the largest size known to fit, and what it takes */
    double          over, over_bytes; /* the smallest known not to; 0: none is */
    bool            refused;          /* that one: nobody can say what it takes */
    double          elements;         /* of the one that fits */
} search;

/* ---- Sizes: elements of a gpt's heads, an mlp's widest layer, or parameters --------------- */

static bool is_model(const search *s, const char *name)
{
    return strcmp(s->config.model, name) == 0;
}

static uint32_t widest_of(const lk_model_options *mlp)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < mlp->hidden_count; i++)
        most = mlp->hidden[i] > most ? mlp->hidden[i] : most;
    return most;
}

/* False: nothing says how this kind of model grows. */
static bool find_size(search *s)
{
    s->least = 1;
    if (is_model(s, "bare")) {
        s->size  = (double)s->model.parameters;
        s->least = fmax(1, (double)s->config.model_options.largest_layer);
        s->most  = MOST_PARAMETERS;
    } else if (is_model(s, "gpt")) {
        s->size = (double)s->model.width / s->model.heads;
        s->most = floor(MOST_WIDTH / s->model.heads);
    } else if (is_model(s, "mlp")) {
        s->size = widest_of(&s->model);
        s->most = MOST_WIDTH;
    } else
        return false;
    return true;
}

static void set_size(const search *s, lk_model_options *out, double size)
{
    if (is_model(s, "bare"))
        out->parameters = (uint64_t)size;
    else if (is_model(s, "gpt"))
        out->width = (uint32_t)size * s->model.heads;
    else {
        out->hidden_count = s->model.hidden_count;
        for (uint32_t i = 0; i < s->model.hidden_count; i++)
            out->hidden[i] = (uint32_t)fmax(1, round(size * s->model.hidden[i] / s->size));
    }
}

/* ---- The search -------------------------------------------------------------------------- */

/* Plans the model of that size; what cannot be planned does not fit. */
static void try_size(search *s, double size)
{
    lk_train_config config = s->config;
    lk_train_cost   cost;
    set_size(s, &config.model_options, size);
    lk_status status = lk_train_estimate(&config, s->hosts, &cost);
    double    bytes  = status == LK_OK ? (double)lk_train_cost_bytes(&cost) : (double)INFINITY;
    if (bytes <= s->memory) {
        s->fits       = size;
        s->fits_bytes = bytes;
        s->elements   = (double)cost.parameters;
    } else {
        s->over       = size;
        s->over_bytes = bytes;
        s->refused    = status == LK_EINVAL;
    }
}

/* Memory is nearly a line over the size, so where that meets the limit is near; and a little beyond
 * it, on the side that was not come from, is the other end.  Now and then the middle. */
static double next_size(const search *s, uint32_t turn, bool fitted)
{
    double low = s->fits + 1, high = s->over - 1, near = fmax(1, NEAR * s->fits);
    double rise = (s->over_bytes - s->fits_bytes) / (s->over - s->fits);
    double size = s->fits + (s->memory - s->fits_bytes) / rise + (fitted ? near : -near);
    if (turn % 3 == 2 || !isfinite(rise))
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
    if (!is_model(s, "bare") || s->config.model_options.largest_layer > 0 || s->fits < 1)
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
    s->over = 0;
    do {
        size = fmin(fmax(s->least, floor(size)), s->most);
        try_size(s, size);
        size = ceil(1.5 * size);
    } while (s->over == 0 && s->fits < s->most);
    if (s->over == 0) {
        s->over    = s->fits + 1;
        s->refused = true;
    }
}

void lki_plan_largest(const plan_options *o, plan_row *row)
{
    const lk_train_config *c = &o->train.config;
    search                 s = { .config = *c,
                                 .model  = lk_model_resolve(c->model, &c->model_options),
                                 .hosts  = lki_plan_hosts(o),
                                 .memory = o->memory };

    if (o->memory == 0 || !find_size(&s))
        return;
    s.config.init = NULL; /* it is of this model */
    s.fits        = s.least - 1;
    bracket(&s, s.size * fmin(1, o->memory / row->whole));
    close_in(&s);
    while (!s.refused && try_one_more_layer(&s)) {
        bracket(&s, s.fits);
        close_in(&s);
    }
    row->largest        = s.elements;
    row->larger_may_fit = s.refused;
    if (s.fits >= s.least)
        set_size(&s, &row->largest_model, s.fits);
}
