/* lockstep/exchange.h -- groups of virtual workers that exchange compressed gradients.
 *
 * The virtual workers of a run are divided into G groups of neighbours.  Inside a group gradients
 * are summed as without groups.  Each group's sum is compressed (lockstep/compress.h), with an
 * error of the group or with another rule (lk_feedback).  The results are summed over the groups by
 * the canonical tree.
 *
 * So the result depends on G, but not on ranks and hosts.  Each host sends the messages of the
 * groups that it keeps: those whose first virtual worker it runs.
 *
 * With LK_ONEBIT_ADAM and LK_ONEBIT_LAMB groups exchange momenta instead, from `start` on, which
 * must be at least 2.  `compressor` and `feedback` are left out then; lk_parallel_options.clip_norm
 * is also the clip of groups.
 *
 * With strategies ddp and zero1.  Not with audit, rebalance, duplicate, backups, hook, noise_decay,
 * comm_dtype, scaling, lock_step, and LK_UNUSED_ZERO only.
 *
 * With survives, a host has two copies of what groups keep and share, and its virtual workers stay
 * on it.  lk_parallel_go_on() fails if what a group keeps was on a host that is lost (LK_EPEER), or
 * if a host enters (LK_EUNSUPPORTED).
 */
#ifndef LK_EXCHANGE_H
#define LK_EXCHANGE_H

#include "lockstep/compress.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_parallel lk_parallel;

enum { LK_WARMUP_RATIOS_MAX = 8 };

/* The groups whose sums one rank can hold: those whose virtual workers it runs or, with
 * options.survives, all groups. */
enum { LK_GROUPS_OF_RANK_MAX = 256 };

/* lk_exchange.start of these optimizers: v, the second moment, is frozen when it changes slowly.
 * The test is that of Tang et al. (2021):
 *
 *     |v(t)| / |v(t - D)| >= 0.96,    D = 1 / (1 - beta2), rounded
 *
 * |v(t)| is the sum of v after t updates, divided by 1 - beta2^t.  It is known in step t + 1, so
 * groups send momenta from step t + 2 on. */
#define LK_START_AUTO UINT64_MAX

/* The unit of the error that feedback ef14 keeps.  With LK_ERROR_SCALE_LR it is kept times the
 * learning rate, and divided by the rate of the step that it corrects (Karimireddy et al. 2019).  A
 * step of rate 0 neither uses nor changes it. */
typedef enum { LK_ERROR_SCALE_NONE = 0, LK_ERROR_SCALE_LR } lk_error_scale;

/* See lk_parallel_options.exchange. */
typedef struct {
    size_t               struct_size; /* LK_EXCHANGE_INIT */
    uint32_t             groups; /* G; V / G is a power of two.  0 = V */
    const lk_compressor *compressor; /* borrowed; NULL: gradients are sent whole */
    lk_compression       compression; /* struct_size may be 0; see lk_compression for defaults */
    lk_feedback          feedback; /* what a group keeps between steps */
    double               momentum; /* of feedback dgc, signum and ef21-sgdm; 0.9 */
    bool                 nesterov; /* of feedback dgc: Nesterov's momentum */
    lk_error_scale       error_scale; /* of feedback ef14 */
    double               clip;     /* largest norm of a group's mean gradient, times the root of G,
                                    * before the rule; 0 = any */
    uint64_t             start;    /* the first step, from 1, whose gradients are compressed; 0 = 1.
                                    * Earlier steps are those of a run without groups */
    /* Warm-up of compressors that select elements: ratio i replaces compression.ratio in
     * `warmup_span` steps, the first in those from `start` on. */
    uint32_t             warmup_count;
    double               warmup[LK_WARMUP_RATIOS_MAX];
    uint64_t             warmup_span;
    /* With `start` LK_START_AUTO: the steps, such as those of a learning rate's warm-up, before
     * which the second moment is not frozen. */
    uint64_t             auto_after;
} lk_exchange;

#define LK_EXCHANGE_INIT LK_OPTIONS_INIT(lk_exchange)

/* Returns the rule of an exchange, with that of the compressor as the default. */
LK_API lk_feedback lk_exchange_feedback(const lk_exchange *exchange);

/* The sizes of an exchange; all are 0 without groups. */
typedef struct {
    uint32_t groups;
    uint32_t compressed;  /* number of parameters that are compressed */
    size_t   sent_bytes;  /* of the messages of a group in the last step; before the first step, in
                           * a step after the warm-up */
    size_t   whole_bytes; /* of these messages if nothing were compressed */
    uint64_t start;       /* lk_exchange.start, at least 1; 0: LK_START_AUTO, and the second moment
                           * is not frozen yet */
} lk_exchange_size;

/* Returns these numbers, all 0 if the object has no exchange.  Local. */
LK_API lk_exchange_size lk_parallel_exchange_size(const lk_parallel *parallel);

/* ---- State for checkpoints ------------------------------------------------------------------- */

/* A run that is resumed with any number of workers continues with the same bits if it loads what
 * all groups keep and the shared values of all parameters, beside the values of lk_parallel_load().
 * A step that fails may have changed both, so they cannot be read after it. */

/* Returns G, or 0 without groups. */
LK_API uint32_t lk_parallel_groups(const lk_parallel *parallel);

/* Returns the name of what a group keeps of a parameter between steps, by its number from 0; NULL
 * after the last: "error" with ef14, "velocity" and "accumulated" with dgc, "momentum" with
 * signum, "estimate" with ef21, "estimate" and "momentum" with ef21-sgdm, "error" and
 * "server_error" with onebit-adam and onebit-lamb. */
LK_API const char *lk_parallel_kept_name(const lk_parallel *parallel, uint32_t param,
                                         uint32_t which);

/* Returns how many vectors `which` of a parameter there are: G, or 1 if it is that of no group. */
LK_API uint32_t lk_parallel_kept_groups(const lk_parallel *parallel, uint32_t which);

/* Copies elements [first, first + count) of what a group keeps of a parameter to `out` on every
 * rank.  Collective, between steps. */
LK_API LK_NODISCARD lk_status lk_parallel_fetch_kept(lk_parallel *parallel, uint32_t param,
                                                     uint32_t which, uint32_t group, size_t first,
                                                     size_t count, float *out);
/* Computes the norm of vector `which` of all parameters, for each group: norms[G].  Collective,
 * between steps. */
LK_API LK_NODISCARD lk_status lk_parallel_kept_norms(lk_parallel *parallel, uint32_t which,
                                                     double *norms);
/* Sets what a group keeps of a parameter.  Collective, between steps, with equal values on all
 * ranks. */
LK_API LK_NODISCARD lk_status lk_parallel_load_kept(lk_parallel *parallel, uint32_t param,
                                                    uint32_t which, uint32_t group,
                                                    const float *values);

/* Returns what the groups share of a parameter between steps, and its bytes; NULL if there is
 * nothing.  It is the factor of powersgd, with ef21 the mean of all groups' estimates, or with
 * onebit-adam and onebit-lamb the momentum.  If `param` is the number of parameters, returns what
 * they share of the whole model: with LK_START_AUTO the step of the freeze and the sums that its
 * test compares, and with onebit-lamb the ratios of tensors.  Floats, valid until the next step. */
LK_API const void *lk_parallel_shared(const lk_parallel *parallel, uint32_t param, size_t *bytes);
/* Sets what the groups share of a parameter.  Collective, between steps, with equal values on all
 * ranks. */
LK_API LK_NODISCARD lk_status lk_parallel_load_shared(lk_parallel *parallel, uint32_t param,
                                                      const void *shared);

#ifdef __cplusplus
}
#endif
#endif
