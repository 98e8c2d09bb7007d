/* lockstep/binding.h -- what a program in another language needs to call the library.
 *
 * A binding declares the structs of the headers a second time, and nothing warns if the two
 * declarations differ.  lk_layout() tells a binding how this library was compiled, so that it can
 * compare both when it loads the library.
 */
#ifndef LK_BINDING_H
#define LK_BINDING_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a constant text.  It has the version and every struct, enumerator and limit of base.h,
 * tensor.h, optim.h, comm.h, parallel.h, launch.h, data.h, checkpoint.h, compress.h and exchange.h.
 * A line is one of:
 *
 *     version LK_VERSION              the first line
 *     struct NAME BYTES               followed by the fields of the struct, in order
 *       FIELD OFFSET BYTES KIND       a field, indented by two blanks
 *     constant NAME VALUE             an enumerator or a limit; VALUE may be negative
 *
 * KIND is bool, int, uint, float, pointer (to data or to a function), text (an array of characters)
 * or struct.  An array of values has its length appended: uint[8].  Enums are int or uint.  Words
 * are separated by one or more blanks.  Lines and fields may be added in later versions. */
LK_API const char *lk_layout(void);

#ifdef __cplusplus
}
#endif
#endif /* LK_BINDING_H */
