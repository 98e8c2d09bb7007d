/* plan/subject.h -- small models with made-up values and inputs, for measuring a machine. */
#ifndef LKI_PLAN_SUBJECT_H
#define LKI_PLAN_SUBJECT_H

#include "lockstep/models.h"
#include "lockstep/train.h"

/* A small model, and the number of samples per micro-batch with which it is measured. */
typedef struct {
    uint32_t         samples;
    lk_model_options options;
} lki_probe_model;

/* The small models of one kind. */
typedef struct {
    const char            *name;
    const lki_probe_model *models;
    size_t                 count;
} lki_probe_family;

/* Returns the small models of a kind, such as "gpt", or NULL if there is no such kind. */
const lki_probe_family *lki_probe_family_of(const char *model);

/* A small model with the inputs that all workers read. */
typedef struct {
    const lk_train_config *config;
    lk_model              *model;
    uint32_t               samples, block_count, param_count, state_count, term_count;
    const lk_param        *params;
    const lk_state        *states;
    const lk_grad_term    *terms;
    float                **values, **running;
    void                  *x;
    int32_t               *targets;
} lki_subject;

/* Builds a small model and its inputs.  The caller calls lki_subject_close() also after a
 * failure. */
LK_NODISCARD lk_status lki_subject_open(lki_subject *subject, const lki_probe_model *probe,
                                        const lk_train_config *config);
void                   lki_subject_close(lki_subject *subject);

/* Frees `count` allocated rows and their table, which may be NULL. */
void lki_free_rows(float **rows, uint32_t count);

#endif
