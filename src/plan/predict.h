/* plan/predict.h -- the work of blocks, and the measured rates that predict its time. */
#ifndef LKI_PLAN_PREDICT_H
#define LKI_PLAN_PREDICT_H

#include "lockstep/plan.h"
#include "nn/engine.h"
#include "parallel/pieces.h"

#define LKI_BUCKET_BYTES (25.0 * (1 << 20)) /* default bytes of gradients per bucket */

/* The kinds of work that one call of a block does in forward and backward. */
typedef enum {
    LKI_WORK_CALL,       /* 1 per call */
    LKI_WORK_FLOPS,      /* as in lk_engine_flops() */
    LKI_WORK_VALUES,     /* elements of the block's inputs and output */
    LKI_WORK_PARAMETERS, /* elements */
    LKI_WORK_INNER,      /* elements of intermediate values: scores, logits, windows */
    LKI_WORK_KINDS
} lki_work_kind;

typedef struct {
    double amount[LKI_WORK_KINDS];
} lki_work;

/* Returns the work of one block for a micro-batch of `samples` samples. */
lki_work lki_block_work(const lk_model *model, const lki_place *places, uint32_t block,
                        uint32_t samples);

/* Fits non-negative seconds per unit of work to measured times, by least squares of the relative
 * errors (coordinate descent). */
void lki_fit(double seconds[LKI_WORK_KINDS], const lki_work *works, const double *measured,
             size_t count);

enum { LKI_TYPES_MAX = 16, LKI_SIZES_MAX = 4 };

/* The rates of blocks of one type. */
typedef struct {
    const char *name;
    double      seconds[LKI_WORK_KINDS]; /* seconds per unit of each kind of work */
    double      forward;                 /* forward's fraction of the block's time */
} lki_type_rates;

struct lk_calibration {
    uint32_t       workers, type_count, size_count; /* size_count: at least 2 */
    lki_type_rates types[LKI_TYPES_MAX];
    double         elements[LKI_SIZES_MAX], update[LKI_SIZES_MAX]; /* by size: elements, seconds */
    double         held;  /* slowest worker's mean pass / sum of its blocks' medians; >= 1 */
    double         again; /* seconds per element to add another gradient term to a parameter */
    double         files; /* bytes per second of files in config->offload; 0: not offloaded */
};

/* Measures the rate of a file in `dir`, in bytes per second; 0 if `dir` is NULL. */
LK_NODISCARD lk_status lki_probe_files(double *rate, const char *dir);

/* Computes the pieces in which a run sends its gradients.  The caller frees them with
 * lki_free(). */
LK_NODISCARD lk_status lki_pieces_of(const lk_train_config *config, const lk_model *model,
                                     uint32_t hosts, lki_grad_piece **out, uint32_t *count);

/* Returns the seconds of an update, interpolated between measured sizes. */
double lki_update_seconds(const lk_calibration *calibration, double elements, double gradients);

/* Fills in the model of a step of a completed configuration without replicas, as
 * lk_train_model_step() does. */
LK_NODISCARD lk_status lki_model_step(lk_step_model *out, double *flops,
                                      const lk_train_config *config, const lk_model *model,
                                      uint32_t hosts, const lk_rates *rates,
                                      const lk_calibration *measured);

/* Completes the configuration and builds its model, which may be too large for this machine.
 * *evaluates (may be NULL) becomes true if there are validation samples. */
LK_NODISCARD lk_status lki_model_alone(lk_model **out, lk_train_config *config, bool *evaluates);

/* Returns the number of hosts that share one copy of the model. */
double lki_sharing_hosts(const lk_step_model *model);

#endif
