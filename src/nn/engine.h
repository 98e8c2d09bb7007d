/* nn/engine.h -- the engine's insides, for the engine and its tests. */
#ifndef LKI_NN_ENGINE_H
#define LKI_NN_ENGINE_H

#include "nn/spill.h"
#include "nn/layout.h"
#include "nn/packs.h"
#include "nn/statistics.h"

struct lk_engine {
    const lk_model *model; /* borrowed */
    lk_exec        *exec;  /* borrowed */
    uint32_t        micro_batch, contexts;
    uint32_t        positions; /* with which every value begins; 0: they do not all */
    lki_layout      layout;
    unsigned char  *memory;      /* contexts x layout.context_bytes */
    lki_spill       spill; /* what is in a file and not in memory */
    unsigned char  *scratch;     /* one for all: calls follow each other */
    unsigned char  *wide;        /* copies of a call's values; what lk_engine_output() gives */
    float          *loss;        /* a row each, of the context whose loss block runs */
    uint8_t        *hits;
    uint32_t       *first_terms; /* of each block: terms of a block are neighbours */
    lki_statistics  statistics;
    lki_packs       packs;
};

/* What a training step needs for one sample in a block that lies at `place`. */
double lki_block_flops(const lki_block_entry *entry, const lki_place *place);

#endif
