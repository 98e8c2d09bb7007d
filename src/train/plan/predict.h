/* train/plan/predict.h -- what a block's time is told from, and what was measured of it. */
#ifndef LKI_TRAIN_PREDICT_H
#define LKI_TRAIN_PREDICT_H

#include "nn/engine.h"
#include "lockstep/train.h"
#include "parallel/pieces.h"

/* What a call of a block, forward and backward, has to do. */
typedef enum {
    LKI_WORK_CALL,       /* 1 */
    LKI_WORK_FLOPS,      /* as lk_engine_flops() */
    LKI_WORK_VALUES,     /* elements of its inputs and its output */
    LKI_WORK_PARAMETERS, /* elements */
    LKI_WORK_INNER,      /* elements that exist between the two only: scores, logits, windows */
    LKI_WORK_KINDS
} lki_work_kind;

typedef struct {
    double amount[LKI_WORK_KINDS];
} lki_work;

lki_work lki_block_work(const lk_model *model, const lki_place *places, uint32_t block,
                        uint32_t samples);

/* Non-negative seconds for each unit of work that come nearest to what was measured, counted in
 * parts of it: least squares, by descent along one coordinate after another. */
void lki_fit(double seconds[LKI_WORK_KINDS], const lki_work *works, const double *measured,
             size_t count);

enum { LKI_TYPES_MAX = 16, LKI_SIZES_MAX = 4 };

/* Blocks of one type. */
typedef struct {
    const char *name;
    double      seconds[LKI_WORK_KINDS]; /* of each unit of work */
    double      forward;                 /* the part of them that is forward's */
} lki_type_rates;

struct lk_calibration {
    uint32_t       workers, type_count, size_count; /* sizes: at least 2 */
    lki_type_rates types[LKI_TYPES_MAX];
    double         elements[LKI_SIZES_MAX], update[LKI_SIZES_MAX]; /* of a size, and its seconds */
    double         held;  /* what the slowest worker's passes take over blocks' times; from 1 */
    double         again; /* seconds of each element of a gradient after a parameter's first */
    double         files; /* bytes a second of a file in config->offload; 0: there is none */
};

/* The same of a file in `dir`, or 0 for NULL. */
LK_NODISCARD lk_status lki_probe_files(double *rate, const char *dir);

/* In which pieces a run's gradients travel; the caller's to lki_free(). */
LK_NODISCARD lk_status lki_pieces_of(const lk_train_config *config, const lk_model *model,
                                     uint32_t hosts, lki_grad_piece **out, uint32_t *count);

/* Seconds of an update; straight lines between what was measured. */
double lki_update_seconds(const lk_calibration *calibration, double elements, double gradients);

/* ZeRO's stage, 0 for ddp; hybrid is stage 3 of the hosts that share a model. */
uint32_t lki_stage_of(const char *strategy);

#endif
