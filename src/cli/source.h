/* cli/source.h -- recognises the kind of a data source that is given as a path alone. */
#ifndef LKI_CLI_SOURCE_H
#define LKI_CLI_SOURCE_H

#include "cli/options.h"

enum { LKI_SOURCE_BYTES = 2112 };

/* Returns the source WORD:WHAT for `given`, which is `given` itself if it has its word.  Otherwise
 * `given` is a path, or two paths with a comma between them.  Its kind follows from the ending, the
 * first bytes, or the files in the folder, and the result is in `out`.  Returns NULL, with the
 * choices in the message, if the kind is not known or if there are several. */
const char *lki_source_of(const char *given, char out[LKI_SOURCE_BYTES], lki_message *error);

#endif
