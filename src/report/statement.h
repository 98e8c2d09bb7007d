/* report/statement.h -- the hashes of a statement about a run, which attest.c makes and statement.c
 * verifies. */
#ifndef LKI_REPORT_STATEMENT_H
#define LKI_REPORT_STATEMENT_H

#include <jansson.h>

#include "lockstep/checkpoint.h"

#define LKI_STATEMENT_FORMAT "lockstep-statement"
enum { LKI_STATEMENT_VERSION = 2 };

/* Returns the text of a key, or "". */
const char *lki_text_at(const json_t *object, const char *key);

/* Returns the step of a checkpoint in a statement. */
uint64_t lki_step_of(const json_t *checkpoint);

/* Computes the SHA-256 of a file, and its size. */
LK_NODISCARD lk_status lki_hash_file(const char *path, char hex[65], uint64_t *bytes);

/* Makes the hashes of the fields: of each key, and of each key of the objects in `root`. */
json_t *lki_statement_fields(const json_t *root);

/* Sets the link of each checkpoint, or compares it.  Returns LK_ECORRUPT if the chain breaks, with
 * the field that was changed. */
LK_NODISCARD lk_status lki_statement_links(json_t *root, bool compare);

/* Appends the losses of the steps after `from`, up to `step`, to the hash of all losses that a run
 * keeps in its checkpoints; at step 0 it is "". */
void lki_loss_chain_extend(char chain[65], const json_t *losses, uint64_t from, uint64_t step);

/* Compares the hash of all losses in a checkpoint with that of losses.  Earlier versions have none.
 * Returns LK_ECORRUPT if they differ. */
LK_NODISCARD lk_status lki_loss_chain_check(const lk_checkpoint *checkpoint, const char *chain);

#endif
