/* algorithm/cost.h -- the choice of an algorithm for a collective over hosts, and the cost
 * model. */
#ifndef LKI_COMM_COST_H
#define LKI_COMM_COST_H

#include "lockstep/comm.h"

struct lki_method;
struct lki_problem;

/* The constants of the cost model, in seconds.  `alpha` is the cost of a small message, and `omega`
 * the cost of each further message sent at the same time.  `beta` is the cost of a byte sent, and
 * `gamma` the cost of a byte of elements that is read to be combined. */
typedef struct {
    double alpha, omega, beta, gamma;
} lki_model;

enum { LKI_TUNING_OPS = 32 };

/* The state of the choice of algorithms.  Equal on every rank, because all must choose the same. */
typedef struct lki_tuning {
    lki_model                model;
    double                   cores;                  /* number of cores that all ranks share; 0 =
                                                      * one core per rank */
    const struct lki_method *forced[LKI_TUNING_OPS]; /* algorithm to use, by lki_op_kind; NULL = the
                                                      * cheapest */
    size_t                   segment_bytes;          /* 0 = the default */
    bool                     native;                 /* MPI is available */
    bool                     prepared;               /* lki_tuning_prepare() has run */
    bool                     of_a_file;              /* the model comes from a file */
    lki_model                given;                  /* constants that rank 0 has read from the
                                                      * file; all ranks adopt them together in
                                                      * lki_span_open() */
    char                     cache[512];             /* cache directory; "" = none */
    char                     source[1024];           /* text that describes the source of the model;
                                                      * on rank 0 only */
} lki_tuning;

/* Initialises the tuning from the options.  Only rank 0 reads a file.  LK_EINVAL if an algorithm
 * does not exist or does not support its operation. */
LK_NODISCARD lk_status lki_tuning_init(lki_tuning *out, const lk_comm_options *options,
                                       uint32_t rank);

/* Forces algorithms: "all_reduce:halving,all_gather:ring"; NULL = none.  `here` describes the ranks
 * and hosts; an algorithm that does not support them is LK_EINVAL.  With `here` NULL every
 * algorithm is accepted.  If a forced algorithm does not support a problem, the cheapest one is
 * used. */
LK_NODISCARD lk_status lki_tuning_force(lki_tuning *tuning, const char *algorithms,
                                        const struct lki_problem *here);

/* Returns the forced algorithm if it supports the problem, else the cheapest exact one. */
const struct lki_method *lki_tuning_choose(const lki_tuning *tuning,
                                           const struct lki_problem *problem);

/* Finds an operation (lki_op_kind) by name. *divided: its input or output is in parts. */
LK_NODISCARD lk_status lki_tuning_find(uint32_t *kind, bool *divided, const char *name);

/* Returns true if the operation reduces elements. */
bool lki_tuning_sums(uint32_t kind);

/* Returns true if the operation's input or output is in parts. */
bool lki_tuning_divides(uint32_t kind);

/* Returns the estimated seconds of the cheapest exact algorithm if `times` such operations run at
 * once and share the hosts' cores and network. */
double lki_tuning_least(const lki_tuning *tuning, const struct lki_problem *problem, double times);

/* Returns the estimated seconds of an algorithm. */
double lki_tuning_seconds(const lki_tuning *tuning, const struct lki_method *method,
                          const struct lki_problem *problem);

/* Resets the model and the cores to the defaults, which are equal on all ranks, until
 * lki_tuning_tell() sets them. */
void lki_tuning_forget(lki_tuning *tuning);

/* The set of all four constants, one bit per constant. */
#define LKI_MODEL_WHOLE 15u

/* Parses the text of a file of constants.  Constants that are missing in the text keep their
 * defaults.  *found becomes a set of the constants in the text, one bit per constant. */
LK_NODISCARD lk_status lki_model_parse(lki_model *out, unsigned *found, const char *text,
                                       size_t bytes, const char *path);

/* Reads a file of constants.  LK_EIO also if the path is not a regular file. */
LK_NODISCARD lk_status lki_model_read(lki_model *out, const char *path);

/* Reads a file of constants.  Returns an error unless the file has all four constants. */
LK_NODISCARD lk_status lki_model_read_whole(lki_model *out, const char *path);

/* Replaces a file of constants.  LK_EIO also if the path is not a regular file. */
LK_NODISCARD lk_status lki_model_write(const lki_model *model, const char *path);

#endif
