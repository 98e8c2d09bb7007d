/* optim/lamb.h -- onebit-lamb: lamb until the second moment is frozen, and then without it.
 *
 * 1-bit LAMB (Li et al., 1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with
 * LAMB's Convergence Speed, 2021, algorithm 1), in the arithmetic of DeepSpeed's code.  t counts
 * updates from 1, and the freeze is after update T.  For each tensor, before the freeze:
 *
 *     u = (m / c1) / (sqrt(v / c2) + eps) + wd p,  c1 = 1 - b1^t,  c2 = 1 - b2^t      as lamb
 *     r = |p| / |u|;  p -= lr r u                                                     as lamb
 *     mean = r at t = 1, then 0.9 mean + 0.1 r;  f = v
 *
 * After it the groups' momenta give m (parallel/features/groups_onebit.c), with m' that before:
 *
 *     g = (m - b1 m') / (1 - b1)                   the gradient that m stands for
 *     f = b2 f + (1 - b2) g^2                      the fresh second moment
 *     d = sqrt(v / c) + eps,  c = 1 - b2^T         the denominator is frozen with v
 *     x = (m / c1) / d;  u = x + wd p
 *     q = max of d / (sqrt(f / c2) + eps)          over the elements whose v is not 0
 *     s = min(1, |x| / |u|);  q = s q + (1 - s)    weight decay is no part of x
 *     factor = q limited to [0.5, 4], then to [0.9, 1.1] times the factor before, first 1
 *     p -= lr mean factor u
 *
 * A tensor to which lamb gives no ratio (no_decay) has neither mean nor factor, so it is updated as
 * by onebit-adam.  A step in which |p| or |u| is 0 does not change the mean.  A mean that no step
 * has set is 1.
 *
 * Differences from DeepSpeed: r is not limited to [0.01, 10]; there is a bias correction, unless
 * `uncorrected` is set; and the mean begins with the first r, not with 0 (of which 0.9^T is left).
 * DeepSpeed also multiplies the momentum of each tensor by a `scaling_coeff` before encoding, and
 * divides by it afterwards, because one scale is sent for all tensors.  Here each tensor has its
 * own scale, and servers have one for a block.  Then such a factor changes nothing but roundings:
 * signs do not depend on it, and scales and errors are proportional to it.  So it is left out;
 * groups_onebit_values_test.c compares with a reference that has it.
 *
 * `mean` and `factor` are rounded to floats in every step, so that checkpoints have all of them.
 */
#ifndef LKI_OPTIM_LAMB_H
#define LKI_OPTIM_LAMB_H

#include "lockstep/optim.h"

/* The ratios of a tensor between steps.  0: not set yet. */
typedef struct {
    float mean, factor;
} lki_lamb_ratio;

/* The norms of p, u and x of a tensor, and q before s; see above. */
typedef struct {
    double values, moves, momentum, largest;
} lki_lamb_norms;

/* Updates f from the new m, which is g times scale and clip, and from state[0], which is m'. */
void lki_lamb_refresh(const lk_optimizer *optimizer, const lk_update *update, size_t n,
                      const float *g, float *const *state);

/* Sums the squares of x in FP64: 16 lanes and a tree.  Finds the largest q; 0 if v is 0 everywhere.
 * The states are those after lk_optimizer_direct(). */
void lki_lamb_measure(const lk_optimizer *optimizer, const lk_update *update, size_t n,
                      float *const *state, double *squares, double *largest);

/* Returns the ratio of a step, and sets *ratio, which is that of the step before.  Without
 * update->frozen only values and moves are read. */
double lki_lamb_trust(const lk_optimizer *optimizer, const lk_update *update,
                      const lki_lamb_norms *norms, lki_lamb_ratio *ratio);

#endif
