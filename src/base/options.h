/* base/options.h -- copies options structs of programs that were compiled with another version of
 * the library.
 *
 * Every options struct begins with its size (LK_OPTIONS_INIT() in lockstep/base.h).  A public
 * function first copies the caller's struct into a local struct, and reads only the copy.
 *
 * A new option must be appended beyond the old size of its struct.  Padding at the end of the
 * struct counts as part of that size, and callers need not clear it.
 */
#ifndef LKI_OPTIONS_H
#define LKI_OPTIONS_H

#include "lockstep/base.h"

/* Copies the options `given` into `mine`, which has `bytes` bytes, and sets the struct_size of
 * `mine` to `bytes`.  Bytes that `given` lacks become zero.  If `given` is NULL, all options become
 * zero.  Returns LK_EINVAL if struct_size is out of range.  Returns LK_EUNSUPPORTED if `given` sets
 * options that this library does not know.  Messages name the struct by `type`. */
LK_NODISCARD lk_status lki_options_copy(void *mine, size_t bytes, const void *given,
                                        const char *type);

/* Copies options that a function has completed from `mine` back to the caller's struct `given`.
 * Copies as many bytes as `given` has, except its struct_size. */
void lki_options_return(void *given, const void *mine);

#endif
