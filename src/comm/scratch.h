/* comm/scratch.h -- what a rank of several hosts has for others' elements until they are summed. */
#ifndef LKI_COMM_SCRATCH_H
#define LKI_COMM_SCRATCH_H

enum {
    LKI_TASK_SEGMENT_BYTES = 1 << 20, /* by default */
    LKI_TASK_ROOMS         = 6,       /* segments of all of a rank's tasks that need scratch */
};

#endif
