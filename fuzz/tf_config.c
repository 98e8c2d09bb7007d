/* tf_config.c -- any text as the value of TF_CONFIG, and as srun's list of tasks per node. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "comm/roster.h"
#include "launch/foreign.h"
#include "launch/slurm.h"

static void read_config(const char *text)
{
    lki_foreign job = { .by = NULL };

    if (lki_tf_config_read(&job, text) != LK_OK || job.by == NULL)
        return;
    LK_ASSERT(job.size >= 1 && job.size <= LKI_RANKS_MAX && job.rank < job.size);
    LK_ASSERT(job.local_rank < job.local_size && job.local_rank <= job.rank);
    LK_ASSERT(job.rank - job.local_rank + job.local_size <= job.size);
    LK_ASSERT(strncmp(job.rendezvous, "tcp://", 6) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);

    LK_ASSERT(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    read_config(text);
    for (uint32_t node = 0; node < 3; node++)
        LK_ASSERT(lki_slurm_tasks(text, node) <= LKI_RANKS_MAX);
    free(text);
    return 0;
}
