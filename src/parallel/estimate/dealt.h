/* parallel/estimate/dealt.h -- estimates of one object, and of replicas, which have several. */
#ifndef LKI_PARALLEL_ESTIMATE_DEALT_H
#define LKI_PARALLEL_ESTIMATE_DEALT_H

#include "parallel/state.h"

/* Estimates lki_parallel_open_part(). */
LK_NODISCARD lk_status lki_estimate_dealt(lk_parallel_cost *out, const lk_param *params,
                                          uint32_t param_count, const lk_parallel_options *options,
                                          const uint32_t *host_sizes, uint32_t hosts,
                                          uint32_t joint, const uint32_t *bounds);

/* Makes an object that describes a strategy on some hosts, and nothing else: no values, no ranks.
 * The caller frees *out, also on failure. */
LK_NODISCARD lk_status lki_estimate_describe(lk_parallel **out, const lk_param *params,
                                             uint32_t param_count,
                                             const lk_parallel_options *options,
                                             const uint32_t *host_sizes, uint32_t hosts,
                                             const lki_part *part);

/* Estimates asynchronous training.  Defined in versions.c. */
LK_NODISCARD lk_status lki_estimate_versions(lk_parallel_cost *out, const lk_param *params,
                                             uint32_t                   param_count,
                                             const lk_parallel_options *options,
                                             const uint32_t *host_sizes, uint32_t hosts,
                                             uint32_t most);

/* Estimates replicas.  Defined in replicas.c. */
LK_NODISCARD lk_status lki_estimate_replicas(lk_parallel_cost *out, const lk_param *params,
                                             uint32_t                   param_count,
                                             const lk_parallel_options *options,
                                             const uint32_t *host_sizes, uint32_t hosts,
                                             uint32_t most);

#endif
