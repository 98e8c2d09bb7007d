/* nn/engine.h -- the fields of the engine, for the engine's files and tests. */
#ifndef LKI_NN_ENGINE_H
#define LKI_NN_ENGINE_H

#include "nn/cache.h"
#include "nn/spill.h"
#include "nn/layout.h"
#include "nn/packs.h"
#include "nn/parts.h"
#include "nn/statistics.h"

struct lk_engine {
    const lk_model *model; /* borrowed */
    lk_exec        *exec;  /* borrowed */
    uint32_t        micro_batch, contexts;
    uint32_t        positions; /* first dimension of all values; 0: values differ in it */
    uint32_t        length;    /* positions of the last forward pass; 0: all */
    lki_cache       cache;
    lki_layout      layout;
    unsigned char  *memory;      /* contexts x layout.context_bytes */
    lki_spill       spill; /* values that are stored in a file */
    /* scratch of one call, shared by all contexts because calls are sequential */
    unsigned char  *scratch;
    unsigned char  *wide; /* copies of a call's values, or the result of lk_engine_output() */
    float          *loss;        /* losses of the rows of the context whose loss block is running */
    uint8_t        *hits;
    /* [block_count]: first gradient term; terms of a block are neighbours */
    uint32_t       *first_terms;
    lki_statistics  statistics;
    lki_packs       packs;
    const float *const *frozen; /* borrowed: the values of the model's frozen parameters */
    unsigned char  *slots; /* sums of parameters' gradients and of state (parts.c) */
    /* the virtual workers whose samples a pass has; part_count 0: a single one */
    lki_pass_part *parts;
    uint32_t       part_count, part_ends[LKI_PARTS_MAX];
};

/* Returns the operations per sample of a training step in a block with the given place. */
double lki_block_flops(const lki_block_entry *entry, const lki_place *place);

/* Runs the block forward or, if the call has gradients, backward.  Values are copied if the block
 * accepts another type. */
void lki_engine_run(const lk_engine *engine, const lki_block_entry *entry,
                    const lk_block_call *call);

/* Does the same for the call of block `b` with all samples of a pass.  If they are those of several
 * virtual workers and the block cannot sum their gradients, it runs for each of them (parts.c). */
void lki_engine_run_parts(const lk_engine *engine, uint32_t b, const lk_block_call *call);

/* Adds the rows of loss to the sums of the pass or of its virtual workers (parts.c). */
void lki_engine_sum_rows(const lk_engine *engine, lk_pass *pass);

#endif
