/* paper.c -- what others' formulas say, as they are published; lockstep/parallel.h has whose. */
#include <math.h>

#include "base/status.h"
#include "lockstep/parallel.h"

/* ---- DeepSpeed's estimators -------------------------------------------------------------- */

/* Bytes a parameter: 2 of the gradient in 16 bits, 4 in 32, 4 of the parameter, 8 of Adam; a
 * reserve of half as much for what the estimators call additional buffers. */
enum { ALL_STATES = 18, OFFLOADED = 16, HALF = 2, SINGLE = 4 };
#define RESERVE 1.5

lk_deepspeed_bytes lk_deepspeed_estimate(uint32_t stage, lk_offload offload, bool created_whole,
                                         double parameters, double largest_layer, uint32_t nodes,
                                         uint32_t gpus_of_node)
{
    LK_ASSERT(stage == 2 || stage == 3);
    const double p = parameters, layer = SINGLE * largest_layer;
    const double local = gpus_of_node, gpus = local * nodes;
    const double copies = SINGLE * local; /* of whole models, on a node */

    if (stage == 2 && offload == LK_OFFLOAD_NONE)
        return (lk_deepspeed_bytes){ p * copies * RESERVE,
                                     HALF * p + floor(ALL_STATES * p / gpus) };
    if (stage == 2)
        return (lk_deepspeed_bytes){ p * fmax(SINGLE * gpus, OFFLOADED) * RESERVE, HALF * p };
    if (offload == LK_OFFLOAD_NONE)
        return (lk_deepspeed_bytes){ (created_whole ? p * copies : layer * local) * RESERVE,
                                     layer + floor(ALL_STATES * p / gpus) };
    double kept = (offload == LK_OFFLOAD_ALL ? ALL_STATES : OFFLOADED) / (double)nodes;
    return (lk_deepspeed_bytes){ p * (created_whole ? fmax(copies, kept) : kept) * RESERVE,
                                 offload == LK_OFFLOAD_ALL ? layer
                                                           : layer + floor(HALF * p / gpus) };
}

/* ---- FSDP -------------------------------------------------------------------------------- */

lk_fsdp_traffic lk_fsdp_paper_traffic(double bytes, uint32_t workers, uint32_t local)
{
    LK_ASSERT(local > 0 && workers % local == 0);
    const double others = (workers - 1.0) / workers;
    return (lk_fsdp_traffic){ 2 * bytes * others, 3 * bytes * others, 2 * bytes * others / local };
}
