/* algorithm/cost.h -- which algorithm a collective over hosts takes, and the constants it knows. */
#ifndef LKI_COMM_COST_H
#define LKI_COMM_COST_H

#include "lockstep/comm.h"

struct lki_method;
struct lki_problem;

/* Seconds: a small message on its way; one more of several at the same time; a byte sent; a byte of
 * elements read to be combined. */
typedef struct {
    double alpha, omega, beta, gamma;
} lki_model;

enum { LKI_TUNING_OPS = 32 };

/* The same on every rank, as all must choose alike. */
typedef struct {
    lki_model                model;
    const struct lki_method *forced[LKI_TUNING_OPS]; /* by lki_op_kind; NULL = the cheapest */
    size_t                   segment_bytes;          /* 0 = the default */
    bool                     of_a_file;              /* the model is, on rank 0 */
    bool                     native;                 /* there is an MPI to ask */
} lki_tuning;

/* Reads what the options say.  LK_EINVAL for algorithms that do not exist, or not for this; a file
 * is rank 0's to read. */
LK_NODISCARD lk_status lki_tuning_init(lki_tuning *out, const lk_comm_options *options,
                                       uint32_t rank);

/* "all_reduce:halving,all_gather:ring"; NULL = none. */
LK_NODISCARD lk_status lki_tuning_force(lki_tuning *tuning, const char *algorithms);

/* The cheapest that is exact, or the one that is asked for where it can. */
const struct lki_method *lki_tuning_choose(const lki_tuning *tuning,
                                           const struct lki_problem *problem);

/* An operation (lki_op_kind) by its name; whether what ranks give, or get, is in parts. */
LK_NODISCARD lk_status lki_tuning_find(uint32_t *kind, bool *divided, const char *name);

/* Whether it combines elements. */
bool lki_tuning_sums(uint32_t kind);

/* By the model. */
double lki_tuning_seconds(const lki_tuning *tuning, const struct lki_method *method,
                          const struct lki_problem *problem);

/* A file of constants. */
LK_NODISCARD lk_status lki_model_read(lki_model *out, const char *path);
LK_NODISCARD lk_status lki_model_write(const lki_model *model, const char *path);

#endif
