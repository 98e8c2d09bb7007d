/* cli/train.h -- declarations that `train` shares with the commands that time or plan a run. */
#ifndef LKI_CLI_TRAIN_H
#define LKI_CLI_TRAIN_H

#include "cli/nodes.h"
#include "lockstep/launch.h"
#include "lockstep/train.h"

typedef struct train_options train_options;

enum { LKI_MODE_PROCESSES, LKI_MODE_THREADS }; /* --worker-mode */
enum { LKI_UNSAID = -1 };                       /* default of --on-failure */

/* All options of a command line. */
struct train_options {
    lk_train_config config;
    lki_config_file file; /* the config file of --config */
    const char     *kernels;
    char            module[LK_MODULE_PATH]; /* path of the onednn module */
    const char     *flight;
    const char     *tuning; /* file of lk_join_options.tuning */
    int             worker_mode;
    uint32_t        restart; /* maximum of restarts in a row without a newer checkpoint; 0: none */
    int             on_failure; /* LKI_UNSAID until --workers MIN:MAX has been evaluated */
    lk_chaos        chaos;
    lki_nodes       nodes;
    lk_mpi_mode     mpi;
    bool            by_mpi; /* MPI has started this worker and carries the bytes between hosts */
    lk_train_result result; /* the result on rank 0 */

    const lki_command *command;                  /* the command named in errors */
    void (*print)(const train_options *options); /* called on rank 0 when the run is complete */
};

/* Rows for a struct whose first member is a train_options.  The first row is MODEL. */
extern const lki_option lki_train_table[];

/* Reads --loss-scale: a rule, or a constant scale. */
bool lki_read_loss_scale(const char *text, void *target, lki_message *error);

/* Reads --rebalance. */
bool lki_read_rebalance(const char *text, void *target, lki_message *error);

/* Reads --speculate. */
bool lki_read_duplicate(const char *text, void *target, lki_message *error);

/* Reads --loss-scale-initial, the initial value of a dynamic scale. */
bool lki_read_initial_scale(const char *text, void *target, lki_message *error);

/* Reads --param-group, a group of parameters. */
bool lki_read_group(const char *text, void *target, lki_message *error);
bool lki_read_split(const char *text, void *target, lki_message *error);
/* Reads a number of steps, or auto. */
bool lki_read_freeze(const char *text, void *target, lki_message *error);
/* Reads a number, or none. */
bool lki_read_staleness(const char *text, void *target, lki_message *error);
/* Reads constant, lognormal:S or exponential. */
bool lki_read_delays(const char *text, void *target, lki_message *error);
bool lki_read_compensation(const char *text, void *target, lki_message *error);
/* Reads G:X,... */
bool lki_read_slow(const char *text, void *target, lki_message *error);
bool lki_read_ratios(const char *text, void *target, lki_message *error);

/* Reads --offload: the data to offload, and the directory. */
bool lki_read_offload(const char *text, void *target, lki_message *error);

/* Reads --augment. */
bool lki_read_augment(const char *text, void *target, lki_message *error);

/* Reads --ignore-label. */
bool lki_read_ignored(const char *text, void *target, lki_message *error);

/* Returns train's rows together with `own`; a row of `own` replaces train's row of the same name.
 * `left_out` (or NULL): headings of groups to leave out, ending with NULL.  `relaxed`: only MODEL
 * is required.  The caller frees the result.  Returns NULL if out of memory. */
lki_option *lki_train_rows(const char *const *left_out, const lki_option *own, bool relaxed);

/* Finds the module for --kernels onednn and stores its path in the configuration.  Fails with
 * LK_EUNSUPPORTED if there is no module. */
LK_NODISCARD lk_status lki_train_find_kernels(train_options *options);

/* Sets defaults for data, batch and learning rate, for commands whose results do not depend on
 * them. */
void lki_train_defaults(lk_train_config *config);

/* Initial values, before options are read. */
#define LKI_TRAIN_OPTIONS_INIT                                                                     \
    {                                                                                              \
        .config     = { .struct_size = sizeof(lk_train_config), .checkpoint.resume_step = -1 },    \
        .on_failure = LKI_UNSAID, .nodes = LKI_NODES_INIT                                          \
    }

/* Determines whether a launcher has started this process (*launched), and whether MPI carries the
 * bytes between hosts (options->by_mpi).  Returns a negative number or, after an error, the exit
 * status. */
int lki_train_find_launcher(train_options *options, bool *launched);

/* In a worker, runs the worker's part.  In any other process, checks the options, starts workers
 * with `argv` and watches them.  Frees the memory owned by the options.  Returns the exit
 * status. */
int lki_train_start(train_options *options, char **argv);

#endif
