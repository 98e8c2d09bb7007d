/* base/file.h -- maps whole files into memory, replaces and locks files, and reads the clock. */
#ifndef LKI_FILE_H
#define LKI_FILE_H

#include <stdio.h>

#include "base/status.h"

typedef struct { const uint8_t *data; size_t bytes; } lki_map;

/* Maps a regular file read-only.  An empty file yields zero bytes and a pointer that is not NULL.
 * Returns LK_EIO, with the reason, if the file cannot be mapped, and LK_EFORMAT for a pointer of
 * git-lfs. */
LK_NODISCARD lk_status lki_map_open(lki_map *out, const char *path);
void lki_map_close(lki_map *map);

/* Returns true if the path is that of a directory, or of a link to one. */
bool lki_is_folder(const char *path);

/* Returns true if the path is that of a regular file, or of a link to one. */
bool lki_is_file(const char *path);

/* The names of a draft and of the file that it is to replace. */
typedef struct { char draft[4160], file[4128]; } lki_draft_names;

/* Opens a new file beside the one at `path`, or beside the one that a symbolic link names, which it
 * is to replace by rename().  Its name has the id of this process.  Returns NULL with errno set,
 * which is EEXIST if a file has that name. */
FILE *lki_file_draft(lki_draft_names *names, const char *path);

/* Replaces a file, or the one that a symbolic link names, by a draft beside it that is on disk.  So
 * a failure or a kill leaves what was there.  Returns LK_EIO, with the reason. */
LK_NODISCARD lk_status lki_file_replace(const char *path, const void *data, size_t bytes);

/* Locks an open file until all its descriptors are closed.  Tries for 2 seconds, as the processes
 * of a killed run may need a moment to end.  Returns 0, EWOULDBLOCK if another process holds the
 * lock, or the errno of a file system without locks. */
LK_NODISCARD int lki_file_lock(int fd);

/* Opens a file for appending, which is made if it is not there, and locks it until all its
 * descriptors are closed.  Fails with ELOOP if the path is that of a symbolic link.  Tries for 2
 * seconds, each time with the file that the path then names, because the holder of the lock may
 * replace or remove it.  Sets `made` to true if this call has made the file.  Returns 0,
 * EWOULDBLOCK if another process holds the lock, or the errno of open().  A file system without
 * locks is no failure. */
LK_NODISCARD int lki_file_open_locked(int *out, const char *path, bool *made);

/* Returns true if both paths are those of one file or directory, which is there. */
bool lki_is_same_file(const char *one, const char *other);

/* Returns true if a path still names an open file, which may have been replaced or removed. */
bool lki_file_is_current(int fd, const char *path);

/* Returns true if another process holds the lock of the file or directory that a path names.  Waits
 * up to 2 seconds for it, as lki_file_open_locked() does.  Does not lock it. */
bool lki_file_is_locked(const char *path);

/* Returns true if a path is that of a regular file with contents that do not begin with `head`. */
bool lki_file_is_other(const char *path, const char *head);

/* Returns the monotonic clock in seconds.  For reports and timeouts only: parameters must not
 * depend on the clock. */
double lki_seconds(void);

/* Returns the seconds since 1970, for logs only. */
double lki_wall_seconds(void);

/* Returns the monotonic clock in milliseconds, for deadlines. */
int64_t lki_now_ms(void);

#endif
