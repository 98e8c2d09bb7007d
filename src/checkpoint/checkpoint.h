/* checkpoint/checkpoint.h -- what the writer asks of the reader. */
#ifndef LKI_CHECKPOINT_H
#define LKI_CHECKPOINT_H

#include "lockstep/checkpoint.h"

/* Whether the manifest of a step verifies and every file is there with its size.  Reads no data. */
bool lki_checkpoint_complete(const char *step_path);

#endif
