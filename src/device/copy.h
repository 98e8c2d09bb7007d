/* device/copy.h -- copies that do not pass through the cache. */
#ifndef LKI_DEVICE_COPY_H
#define LKI_DEVICE_COPY_H

#include <stddef.h>

/* memcpy() for what nobody will read before it has left the cache anyway: its lines are not
 * fetched to be overwritten, which is a third of what a copy moves.  Whoever waits for a flag
 * that is raised later sees the bytes. */
void lki_copy_far(void *to, const void *from, size_t bytes);

#endif
