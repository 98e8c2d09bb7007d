/* base/file.h -- reading files whole: mapped, never copied, never assumed to be there. */
#ifndef LKI_FILE_H
#define LKI_FILE_H

#include "base/status.h"

typedef struct { const uint8_t *data; size_t bytes; } lki_map;

/* Maps a regular file read-only.  An empty file is {NULL-safe data, 0}.  LK_EIO says why not. */
LK_NODISCARD lk_status lki_map_open(lki_map *out, const char *path);
void lki_map_close(lki_map *map);

/* A monotonic clock in seconds, for reports only: nothing that reaches parameters reads it. */
double lki_seconds(void);

#endif
