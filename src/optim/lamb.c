/* lamb.c -- the steps of onebit-lamb after the freeze; see lamb.h. */
#include "optim/lamb.h"

#include <math.h>

#include "tensor/ops.h"

enum { LANES = 16, FIRST = 0, SECOND, FRESH };

static const double KEEP = 0.9, LEAST = 0.5, MOST = 4, CHANGE = 0.1;

/* ---- Elements ---------------------------------------------------------------------------- */

void lki_lamb_refresh(const lk_optimizer *optimizer, const lk_update *update, size_t n,
                      const float *g, float *const *state)
{
    const lk_optimizer o     = lk_optimizer_resolve(optimizer);
    const float        beta1 = (float)o.beta1, inverse = (float)(1 / (1 - o.beta1));
    const float        beta2 = (float)o.beta2, rest = (float)(1 - o.beta2);
    const float        scale = update->scale, clip = update->clip;
    const float       *first = state[FIRST];
    float             *fresh = state[FRESH];
    for (size_t i = 0; i < n; i++) {
        const float gradient = (g[i] * scale * clip - beta1 * first[i]) * inverse;
        fresh[i]             = beta2 * fresh[i] + rest * (gradient * gradient);
    }
}

/* Returns the inverse of a bias correction, 1 - beta^updates. */
static double lift_of(const lk_optimizer *o, double beta, uint64_t updates)
{
    return o->uncorrected ? 1 : 1 / (1 - lki_powi(beta, updates));
}

/* Sums in the order of lanes, so that compilers can compute several at once. */
void lki_lamb_measure(const lk_optimizer *optimizer, const lk_update *update, size_t n,
                      float *const *state, double *squares, double *largest)
{
    const lk_optimizer o     = lk_optimizer_resolve(optimizer);
    const float        lift1 = (float)lift_of(&o, o.beta1, update->step + 1);
    const float        lift2 = (float)sqrt(lift_of(&o, o.beta2, update->frozen));
    const float        fresh = (float)sqrt(lift_of(&o, o.beta2, update->step + 1));
    const float        eps   = (float)o.eps;
    double             sums[LANES] = { 0 };
    float              most[LANES] = { 0 };
    for (size_t at = 0; at < n; at += LANES)
        for (size_t i = at; i < n && i < at + LANES; i++) {
            const float second = state[SECOND][i], under = sqrtf(second) * lift2 + eps;
            const float ratio  = under / (sqrtf(state[FRESH][i]) * fresh + eps);
            const float move   = state[FIRST][i] * lift1 / under;
            const float heeded = second > 0 ? ratio : 0;
            sums[i - at] += (double)move * (double)move;
            most[i - at] = heeded > most[i - at] ? heeded : most[i - at];
        }
    *squares = lki_tree_sum_f64(sums, LANES);
    *largest = 0;
    for (int i = 0; i < LANES; i++)
        *largest = (double)most[i] > *largest ? (double)most[i] : *largest;
}

/* ---- Tensors ----------------------------------------------------------------------------- */

static double limited(double value, double least, double most)
{
    return value < least ? least : value > most ? most : value;
}

static double frozen_trust(const lki_lamb_norms *norms, lki_lamb_ratio *ratio)
{
    const double share   = norms->moves > norms->momentum ? norms->momentum / norms->moves : 1;
    const double largest = norms->largest > 0 ? norms->largest : 1;
    const double last    = ratio->factor > 0 ? (double)ratio->factor : 1;
    const double mean    = ratio->mean > 0 ? (double)ratio->mean : 1;
    ratio->factor = (float)limited(limited(share * largest + (1 - share), LEAST, MOST),
                                   (1 - CHANGE) * last, (1 + CHANGE) * last);
    return mean * (double)ratio->factor;
}

double lki_lamb_trust(const lk_optimizer *optimizer, const lk_update *update,
                      const lki_lamb_norms *norms, lki_lamb_ratio *ratio)
{
    const double trust = lk_optimizer_trust(optimizer, update, norms->values, norms->moves);
    if (update->no_decay && !optimizer->decay_all)
        return trust;
    if (update->frozen > 0)
        return frozen_trust(norms, ratio);
    if (norms->values > 0 && norms->moves > 0)
        ratio->mean = (float)(ratio->mean > 0 ? KEEP * (double)ratio->mean + (1 - KEEP) * trust
                                              : trust);
    return trust;
}
