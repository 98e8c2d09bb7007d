/* train/config.h -- values derived from a run's configuration, without a running session. */
#ifndef LKI_TRAIN_CONFIG_H
#define LKI_TRAIN_CONFIG_H

#include "lockstep/data.h"
#include "lockstep/models.h"
#include "lockstep/parallel.h"
#include "lockstep/train.h"

/* Returns true if any part of `what` (bits of lk_offloaded) is offloaded to files. */
static inline bool lki_in_files(const lk_train_config *config, unsigned what)
{
    unsigned all = config->offloaded == 0 ? LK_OFFLOADED_STATES : config->offloaded;
    return config->offload != NULL && (all & what) != 0;
}

/* Completes the configuration as lk_train_check() does.  With `runs` false, the data must exist,
 * but the model may exceed this machine's memory. */
LK_NODISCARD lk_status lki_train_complete(lk_train_config *config, bool runs);

/* Returns the model's options, with the fields that describe the data set filled in. */
lk_model_options lki_model_options(const lk_train_config *config, const lk_dataset_info *data);

lk_dataset_options lki_dataset_options(const lk_train_config *config);

/* Returns the number of positions in an epoch. */
uint64_t lki_positions(const lk_train_config *config, const lk_dataset_info *data);

/* Checks the options for the order of samples, and completes them. */
LK_NODISCARD lk_status lki_order_check(lk_train_config *config);

/* Returns the value of --order that selects `order`. */
const char *lki_order_name(lk_order order);

/* ---- The strategy (core/strategy.c) ------------------------------------------------------- */

/* Returns the ZeRO stage of a strategy: 0 for ddp, 3 for hybrid (among the hosts that share one
 * copy of the model). */
uint32_t lki_stage_of(const char *strategy);

/* Returns the type in which parameters are read: config->gather_dtype, or bf16 in bf16 runs that do
 * not offload parameters. */
lk_dtype lki_gather_dtype(const lk_train_config *config);

/* Returns true if virtual workers move between ranks (--rebalance). */
bool lki_rebalances(const lk_train_config *config);

/* Returns true if idle ranks compute virtual workers of other ranks (--speculate). */
bool lki_duplicates(const lk_train_config *config);

/* Completes the options of groups and compression.  Fails with LK_EINVAL if the configuration does
 * not support them.  Defined in core/exchange.c, as the next five. */
LK_NODISCARD lk_status lki_exchange_check(lk_train_config *config);

/* Sets the steps of each ratio of a warm-up to those of an epoch, if they are not given. */
LK_NODISCARD lk_status lki_exchange_check_span(lk_train_config *config, const lk_dataset *dataset,
                                               const lk_dataset_info *data);

/* Returns true if groups exchange momenta: with onebit-adam. */
bool lki_sends_momenta(const lk_train_config *config);

/* Returns true if a test decides when the second moment is frozen. */
bool lki_freezes_by_test(const lk_train_config *config);

/* Returns true if the run has groups. */
bool lki_exchanges(const lk_train_config *config);

/* Makes the options of the exchange; *out becomes NULL without one.  The caller frees it. */
LK_NODISCARD lk_status lki_exchange_of(const lk_train_config *config, lk_exchange **out);

/* Completes the options of replicas, before those of groups.  Fails with LK_EINVAL if the
 * configuration does not support them.  Defined in core/local.c, as the next two. */
LK_NODISCARD lk_status lki_local_check(lk_train_config *config);

/* Returns true if groups have weights of their own. */
bool lki_replicates(const lk_train_config *config);

/* Makes the options of replicas; *out becomes NULL without them.  The caller frees it. */
LK_NODISCARD lk_status lki_replicas_of(const lk_train_config *config, lk_replicas **out);

/* Completes the options of the outer optimizer, and returns it. */
LK_NODISCARD lk_status lki_outer_check(lk_train_config *config);
lk_optimizer           lki_outer_optimizer(const lk_train_config *config);

/* Returns true if steps are rounds of clients (federated averaging).  Defined in core/clients.c, as
 * the next three. */
bool lki_federates(const lk_train_config *config);

/* Completes the options of clients, and the batch and the virtual workers that follow from them.
 * Fails with LK_EINVAL if the configuration does not support them. */
LK_NODISCARD lk_status lki_clients_check(lk_train_config *config);

/* Checks that the data can be divided among the clients, and sets `most`. */
LK_NODISCARD lk_status lki_clients_check_data(lk_train_config *config, const lk_dataset *dataset);

/* Divides the data among the clients. */
LK_NODISCARD lk_status lki_clients_divide(lk_clients **out, const lk_train_config *config,
                                          const lk_dataset *dataset);

/* Completes the options of asynchronous training, before those of groups.  Fails with LK_EINVAL if
 * the configuration does not support them; a live run (`runs`) needs a file for its schedule.
 * Defined in core/async.c, as the next five. */
LK_NODISCARD lk_status lki_async_check(lk_train_config *config, bool runs);

/* Fails with LK_EINVAL if `hosts` hosts do not support the configured asynchronous training. */
LK_NODISCARD lk_status lki_async_check_hosts(const lk_train_config *config, uint32_t hosts);

/* Returns true if groups do not wait for each other. */
bool lki_is_async(const lk_train_config *config);

/* Makes the options of asynchronous training; *out becomes NULL without it.  The caller frees
 * it. */
LK_NODISCARD lk_status lki_async_of(const lk_train_config *config, lk_async **out);

/* Predicts the staleness and the throughput of a simulated schedule; all 0 without one. */
LK_NODISCARD lk_status lki_async_forecast(const lk_train_config *config, lk_async_forecast *out);

/* Returns true if the momentum of the optimizer and that of asynchrony may be too much together. */
bool lki_async_adds_momentum(const lk_train_config *config);

/* Returns the maximum number of virtual workers that a joint turn computes if memory is not
 * limited; 1 = none.  See core/joint.c. */
uint32_t lki_joint_most(const lk_train_config *config, const lk_model *model, const lk_exec *exec);

/* Fails with LK_EINVAL if the configuration does not support --rebalance, --speculate or
 * --backup-workers. */
LK_NODISCARD lk_status lki_pace_check(const lk_train_config *config);

/* Fills in the strategy's options from the configuration and the model.  The caller frees their
 * arrays with lki_parallel_options_free(). */
LK_NODISCARD lk_status lki_parallel_options_of(const lk_train_config *config, const lk_model *model,
                                               lk_exec *exec, lk_parallel_options *out);

/* As lki_parallel_options_of(), for the object in which a rank trains one client after another. */
LK_NODISCARD lk_status lki_client_options_of(const lk_train_config *config, const lk_model *model,
                                             lk_exec *exec, lk_parallel_options *out);
void                   lki_parallel_options_free(lk_parallel_options *options);

/* ---- Bytes ------------------------------------------------------------------------------- */

/* A run whose memory is computed. */
typedef struct {
    const lk_train_config *config;
    const lk_model        *model;
    const lk_exec         *exec;
    bool                   evaluates;
    const uint32_t        *sizes; /* [hosts]: number of workers of each host */
    uint32_t               hosts;
} lki_run_shape;

/* Computes the memory of a run with joint turns of up to `joint` virtual workers (1 = none), on the
 * host that needs the most.  Defined in loop/memory.c. */
LK_NODISCARD lk_status lki_run_cost(lk_train_cost *out, const lki_run_shape *run, uint32_t joint);

/* Returns the sizes of joint turns, powers of two up to lki_joint_most(), with which the run takes
 * at most config->host_memory.  A size is a bit of the result; 1 is always one of them.  Defined in
 * loop/memory.c. */
uint32_t lki_joint_fitting(const lki_run_shape *run);

/* Returns the largest of the sizes in `fitting`. */
uint32_t lki_joint_largest(uint32_t fitting);

/* Computes the bytes of packed weights on each host, for joint turns of up to `joint` virtual
 * workers.  *out becomes 0 if packing would not save time.  `gathers`: each host stores only a part
 * of the parameters.  Defined in core/shared_packs.c. */
LK_NODISCARD lk_status lki_pack_bytes(size_t *out, const lk_train_config *config,
                                      const lk_model *model, const lk_exec *exec, bool gathers,
                                      uint32_t joint);

/* Returns the bytes that a checkpoint writer copies with checkpoint_async.  params_part and
 * states_part are the bytes of this host's part of the parameters and of each optimizer state; 0 =
 * whole.  Defined in saves/background.c. */
size_t lki_snapshot_bytes(const lk_train_config *config, const lk_model *model, size_t params_part,
                          size_t states_part);

#endif
