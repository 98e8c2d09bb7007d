/* device/copy.h -- copies that bypass the cache. */
#ifndef LKI_DEVICE_COPY_H
#define LKI_DEVICE_COPY_H

#include <stddef.h>

/* Copies like memcpy(), for data that is read only after it has left the cache.  Does not fetch the
 * destination's lines, which saves a third of the memory traffic.  If the caller then sets a flag,
 * a reader that sees the flag also sees the bytes. */
void lki_copy_far(void *to, const void *from, size_t bytes);

#endif
