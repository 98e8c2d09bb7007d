/* algorithm/cost.h -- which algorithm a collective over hosts takes, and the constants it knows. */
#ifndef LKI_COMM_COST_H
#define LKI_COMM_COST_H

#include <sched.h>

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
typedef struct lki_tuning {
    lki_model                model;
    double                   cores;                  /* that all ranks share; 0 = one each */
    const struct lki_method *forced[LKI_TUNING_OPS]; /* by lki_op_kind; NULL = the cheapest */
    size_t                   segment_bytes;          /* 0 = the default */
    bool                     native;                 /* there is an MPI to ask */
    bool                     prepared;               /* lki_tuning_prepare() has found it out */
    bool                     of_a_file;              /* the model comes from one: */
    lki_model                given;                  /* what rank 0 has read there; all take it over
                                                      * in lki_span_open(), at the same time */
    char                     cache[512];             /* a directory; "" = none */
    char                     source[1024];           /* of the model, in words, on rank 0 */
} lki_tuning;

/* Reads what the options say.  LK_EINVAL for algorithms that do not exist, or not for this; a file
 * is rank 0's to read. */
LK_NODISCARD lk_status lki_tuning_init(lki_tuning *out, const lk_comm_options *options,
                                       uint32_t rank);

/* "all_reduce:halving,all_gather:ring"; NULL = none.  `here`: how many ranks there are, on what
 * hosts; LK_EINVAL where an algorithm is not for these.  NULL = any: where it cannot be, the
 * cheapest is taken. */
LK_NODISCARD lk_status lki_tuning_force(lki_tuning *tuning, const char *algorithms,
                                        const struct lki_problem *here);

/* The cheapest that is exact, or the one that is asked for where it can. */
const struct lki_method *lki_tuning_choose(const lki_tuning *tuning,
                                           const struct lki_problem *problem);

/* An operation (lki_op_kind) by its name; whether what ranks give, or get, is in parts. */
LK_NODISCARD lk_status lki_tuning_find(uint32_t *kind, bool *divided, const char *name);

/* Whether it combines elements. */
bool lki_tuning_sums(uint32_t kind);

/* Whether what ranks give, or get, is in parts. */
bool lki_tuning_divides(uint32_t kind);

/* Seconds of the cheapest exact algorithm, where `times` such operations go on at once on cores and
 * network of the same hosts. */
double lki_tuning_least(const lki_tuning *tuning, const struct lki_problem *problem, double times);

/* By the model. */
double lki_tuning_seconds(const lki_tuning *tuning, const struct lki_method *method,
                          const struct lki_problem *problem);

/* Collective, over hosts that have just met: constants of a file, of the cache or measured, and
 * cores, as rank 0 finds them. */
LK_NODISCARD lk_status lki_tuning_prepare(lk_comm *comm);

/* What hosts have found out about each other is forgotten; and, collective: all get what rank 0
 * knows of it, or find it out, where there was no other host until now.  In between all ranks
 * choose alike, whether they have known it or not. */
void lki_tuning_forget(lki_tuning *tuning);
LK_NODISCARD lk_status lki_tuning_tell(lk_comm *comm, const lki_tuning *known);

/* Cores that ranks on these machines share; 0 if each has one. */
double lki_tuning_cores(uint32_t ranks, const uint64_t *machines, const cpu_set_t *cores);

/* A file of constants: what it does not have is assumed.  `found` gets a bit for each that it has.
 * LK_EIO for what is no regular file, too. */
#define LKI_MODEL_WHOLE 15u
LK_NODISCARD lk_status lki_model_parse(lki_model *out, unsigned *found, const char *text,
                                       size_t bytes, const char *path);
LK_NODISCARD lk_status lki_model_read(lki_model *out, const char *path);
LK_NODISCARD lk_status lki_model_read_whole(lki_model *out, const char *path); /* all constants */
LK_NODISCARD lk_status lki_model_write(const lki_model *model, const char *path);

#endif
