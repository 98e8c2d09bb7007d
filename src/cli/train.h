/* cli/train.h -- what `train` shares with the commands that time it or tell what it takes. */
#ifndef LKI_CLI_TRAIN_H
#define LKI_CLI_TRAIN_H

#include "cli/nodes.h"
#include "lockstep/launch.h"
#include "lockstep/train.h"

typedef struct train_options train_options;

enum { LKI_MODE_PROCESSES, LKI_MODE_THREADS }; /* --worker-mode */
enum { LKI_UNSAID = -1 };                       /* --on-failure */

/* Everything that stands on the command line. */
struct train_options {
    lk_train_config config;
    lki_config_file file; /* of --config */
    const char     *kernels;
    char            module[LK_MODULE_PATH]; /* of theirs */
    const char     *flight;
    int             worker_mode;
    uint32_t        restart; /* times in a row without a newer checkpoint; 0 = never */
    int             on_failure; /* LKI_UNSAID until --workers MIN:MAX is known */
    lk_chaos        chaos;
    lki_nodes       nodes;
    lk_train_result result; /* rank 0's */

    const lki_command *command;                  /* whose mistakes they are */
    void (*print)(const train_options *options); /* on rank 0, when the run is complete */
};

/* The rows of a table whose struct begins with a train_options; the first is MODEL. */
extern const lki_option lki_train_table[];

/* For rows of that table: a rule of loss scaling, or a scale; what a dynamic one begins with; a
 * group of parameters. */
bool lki_read_loss_scale(const char *text, void *target, lki_message *error);
bool lki_read_rebalance(const char *text, void *target, lki_message *error);
bool lki_read_duplicate(const char *text, void *target, lki_message *error);
bool lki_read_initial_scale(const char *text, void *target, lki_message *error);
bool lki_read_group(const char *text, void *target, lki_message *error);

/* What is laid aside, and where. */
bool lki_read_offload(const char *text, void *target, lki_message *error);

/* What images go through, and a label that counts for nothing. */
bool lki_read_augment(const char *text, void *target, lki_message *error);
bool lki_read_ignored(const char *text, void *target, lki_message *error);

/* Train's rows but those named, and `own`; `relaxed`: of which none but MODEL is required.  The
 * caller's to free().  NULL without memory. */
lki_option *lki_train_rows(const char *const *left_out, const lki_option *own, bool relaxed);

/* Where --kernels is onednn, finds its module and has the config name it; LK_EUNSUPPORTED: there is
 * none. */
LK_NODISCARD lk_status lki_train_find_kernels(train_options *options);

/* Data, batch and learning rate where they were not given and do not matter. */
void lki_train_defaults(lk_train_config *config);

/* Before options are read. */
#define LKI_TRAIN_OPTIONS_INIT \
    { .config = { .resume_step = -1 }, .on_failure = LKI_UNSAID, .nodes = LKI_NODES_INIT }

/* A worker's part in a worker; elsewhere checks everything, starts workers with `argv` and watches
 * them.  Returns the exit status.  Frees what the options own. */
int lki_train_start(train_options *options, char **argv);

#endif
