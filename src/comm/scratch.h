/* comm/scratch.h -- sizes of a rank's scratch memory for elements received from other hosts. */
#ifndef LKI_COMM_SCRATCH_H
#define LKI_COMM_SCRATCH_H

enum {
    LKI_TASK_SEGMENT_BYTES = 1 << 20, /* default size of a segment */
    LKI_TASK_ROOMS         = 6,       /* number of segments for which the tasks of a rank have
                                       * scratch memory in total */
};

#endif
