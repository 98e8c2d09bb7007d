/* cli/train.h -- declarations that `train` shares with the commands that time or plan a run. */
#ifndef LKI_CLI_TRAIN_H
#define LKI_CLI_TRAIN_H

#include "cli/nodes.h"
#include "cli/source.h"
#include "lockstep/launch.h"
#include "lockstep/train.h"

typedef struct train_options train_options;

enum { LKI_MODE_PROCESSES, LKI_MODE_THREADS }; /* --worker-mode */
enum { LKI_UNSAID = -1 };                       /* default of --on-failure */
enum { LKI_CHOSEN_MAX = 8 };

/* An option that was not given, and the value that was chosen for it. */
typedef struct {
    const char *name, *text;
} lki_chosen;

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
    bool            records; /* rank 0 writes the record of the run */
    bool            by_mpi; /* MPI has started this worker and carries the bytes between hosts */
    lk_train_result result; /* the result on rank 0 */

    lki_chosen chosen[LKI_CHOSEN_MAX];
    uint32_t   chosen_count;
    char       batch_text[24], threads_argument[24];
    char       source[LKI_SOURCE_BYTES]; /* --data with its kind */
    bool       assumed; /* no data are given, and synthetic ones are used */
    char      *tokenizer; /* the tokenizer in the folder of --init; to be freed, as file.text */

    const lki_command *command;                  /* the command named in errors */
    void (*print)(const train_options *options); /* called on rank 0 when the run is complete */
    lk_status (*run)(lk_comm *comm, train_options *options); /* runs a worker of a job, instead of
                                                              * lki_train_work(); may be NULL */
};

/* Rows for a struct whose first member is a train_options.  The first row is MODEL. */
extern const lki_option lki_train_table[];

/* Returns true if a built-in model has this name. */
bool lki_is_model(const char *name);

/* Names the command for which `train` reads options and reports errors: resume or verify, in a
 * variable of the environment, which workers inherit. */
#define LKI_TRAIN_FOR "LOCKSTEP_TRAIN_FOR"

/* Returns true if this process has been started by a launcher or MPI, or runs on a host other than
 * that of rank 0.  It may then write no files. */
bool lki_writes_elsewhere(const train_options *options);

/* Returns true if the weights of --init can be those of a new run, or are those with which a run
 * that continues began, as far as the path and the first bytes show. */
bool lki_train_check_init(const train_options *options, lki_message *error);

/* Finds out whether --init is given without a model and has none either (lki_command.check). */
size_t lki_train_check_model(const lki_command *command, const void *target, lki_message *errors,
                             size_t most);

/* Also finds what is wrong with the files and directories that a run is to write. */
size_t lki_train_check_options(const lki_command *command, const void *target,
                               lki_message *errors, size_t most);

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

/* Takes the model from the folder of --init if none is given.  `target`: train_options, or a struct
 * that begins with it.  For lki_command.choose. */
void lki_train_choose_model(const lki_command *command, void *target);

/* Also chooses an optimizer and a learning rate if they are not given. */
void lki_train_choose(const lki_command *command, void *target);

/* Chooses values for the other options that are not given: tokenizer, batch, steps. */
void lki_train_suit(train_options *options);

/* Divides the cores among the workers, if neither --workers nor --threads is given: sets
 * `threads`, and the argument for the workers.  The configuration must be complete. */
void lki_train_use_cores(train_options *options);

/* Prints the chosen values, the use of the cores, and whether the weights are kept. */
void lki_train_print_choices(const train_options *options);

/* Returns true if an option is given, by its full name, or has got a value by default. */
bool lki_is_given(const train_options *options, const char *name);

/* Sets defaults for data, batch and learning rate, for commands whose results do not depend on
 * them. */
void lki_train_defaults(train_options *options);

/* Returns true if a lost host can return, because other hosts have a copy of its part of the
 * model. */
bool lki_may_return(const train_options *options);

/* Returns the reason why --on-failure continue is impossible; NULL if it is possible or not
 * used. */
const char *lki_cannot_go_on(const train_options *options);

/* Returns the reason why a run with these options cannot start on so many hosts; NULL if it can. */
const char *lki_cannot_start(const train_options *options, uint32_t hosts);

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

/* Runs one rank of a run on `comm`.  The same communicator may be used for several runs. */
LK_NODISCARD lk_status lki_train_work(lk_comm *comm, train_options *options);

/* In a worker, runs the worker's part.  In any other process, checks the options, starts workers
 * with `argv` and watches them.  Frees the memory owned by the options.  Returns the exit
 * status. */
int lki_train_start(train_options *options, char **argv);

#endif
