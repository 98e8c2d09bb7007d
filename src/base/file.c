/* file.c -- mapping, replacing and locking files, and the clock. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOCK_TRIES = 40 };

/* Maps a file of any contents. */
static lk_status map_file(lki_map *out, const char *path)
{
    static const uint8_t nothing[1];
    *out   = (lki_map){ nothing, 0 };
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* O_NONBLOCK: a pipe must not block
                                                             * here */
    if (fd < 0)
        return lk_fail(LK_EIO, "cannot open '%s': %s%s", path, strerror(errno),
                       strstr(path, "://") != NULL ? "; nothing is downloaded: download it first, "
                                                     "and give the path of the file" : "");
    struct stat info;
    lk_status   status = LK_OK;
    if (fstat(fd, &info) != 0)
        status = lk_fail(LK_EIO, "cannot read '%s': %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = lk_fail(LK_EIO, "'%s' is not a regular file", path);
    else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = lk_fail(LK_EIO, "cannot map '%s': %s", path, strerror(errno));
        else
            *out = (lki_map){ data, (size_t)info.st_size };
    }
    (void)close(fd);
    return status;
}

/* Returns true if a file only says where git-lfs has its contents. */
static bool is_pointer(const lki_map *map)
{
    static const char version[] = "version https://git-lfs.github.com/spec/";
    return map->bytes >= sizeof version - 1 && memcmp(map->data, version, sizeof version - 1) == 0;
}

lk_status lki_map_open(lki_map *out, const char *path)
{
    LK_TRY(map_file(out, path));
    if (!is_pointer(out))
        return LK_OK;
    lki_map_close(out);
    return lk_fail(LK_EFORMAT, "'%s' is a pointer of git-lfs, and not the file itself: run "
                               "`git lfs pull` where it was cloned", path);
}

void lki_map_close(lki_map *map)
{
    if (map->bytes > 0)
        (void)munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (lki_map){ NULL, 0 };
}

bool lki_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool lki_is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

FILE *lki_file_draft(lki_draft_names *names, const char *path)
{
    char *real = realpath(path, NULL);
    int   used = snprintf(names->file, sizeof names->file, "%s", real != NULL ? real : path);
    free(real);
    names->draft[0] = '\0';
    if (used >= (int)sizeof names->file) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    (void)snprintf(names->draft, sizeof names->draft, "%s.%ld.new", names->file, (long)getpid());
    return fopen(names->draft, "wxe");
}

/* Writes, syncs and closes a draft, and gives it its name.  Returns false with errno set. */
static bool write_draft(FILE *file, const lki_draft_names *names, const void *data, size_t bytes)
{
    bool good = fwrite(data, 1, bytes, file) == bytes && fflush(file) == 0 &&
                fsync(fileno(file)) == 0;
    int  why  = errno;
    if (fclose(file) != 0 && good)
        return false;
    errno = why;
    return good && rename(names->draft, names->file) == 0;
}

lk_status lki_file_replace(const char *path, const void *data, size_t bytes)
{
    lki_draft_names names;
    FILE           *file = lki_file_draft(&names, path);
    if (file != NULL && write_draft(file, &names, data, bytes))
        return LK_OK;
    int why = errno;
    if (file != NULL)
        (void)unlink(names.draft);
    return lk_fail(LK_EIO, "cannot write '%s': %s", path, strerror(why));
}

/* Tries once to lock an open file.  Returns 0, EWOULDBLOCK if another process holds the lock, or
 * the errno of a file system without locks. */
static int try_lock(int fd, int kind)
{
    if (flock(fd, kind | LOCK_NB) == 0)
        return 0;
    return errno == EINTR ? EWOULDBLOCK : errno;
}

static void wait_for_lock(void)
{
    const struct timespec pause = { .tv_nsec = 50000000 };
    (void)nanosleep(&pause, NULL);
}

int lki_file_lock(int fd)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        int why = try_lock(fd, LOCK_EX);
        if (why != EWOULDBLOCK)
            return why;
        wait_for_lock();
    }
    return EWOULDBLOCK;
}

bool lki_is_same_file(const char *one, const char *other)
{
    struct stat first, second;
    return stat(one, &first) == 0 && stat(other, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

bool lki_file_is_current(int fd, const char *path)
{
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

/* Opens a file, which is made if it is not there. */
static int open_or_make(const char *path, bool *made)
{
    const int how = O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    int       fd  = open(path, how | O_EXCL, 0666);
    *made         = fd >= 0;
    return fd >= 0 || errno != EEXIST ? fd : open(path, how, 0666);
}

int lki_file_open_locked(int *out, const char *path, bool *made)
{
    *out = -1;
    for (int i = 0; i < LOCK_TRIES; i++) {
        int fd = open_or_make(path, made);
        if (fd < 0)
            return errno;
        if (try_lock(fd, LOCK_EX) != EWOULDBLOCK && lki_file_is_current(fd, path)) {
            *out = fd;
            return 0;
        }
        (void)close(fd);
        wait_for_lock();
    }
    return EWOULDBLOCK;
}

/* The lock is shared, so several processes can ask at the same time. */
bool lki_file_is_locked(const char *path)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            return false;
        bool held = try_lock(fd, LOCK_SH) == EWOULDBLOCK || !lki_file_is_current(fd, path);
        (void)close(fd);
        if (!held)
            return false;
        wait_for_lock();
    }
    return true;
}

bool lki_file_is_other(const char *path, const char *head)
{
    const size_t length = strlen(head);
    lki_map      map;
    if (!lki_is_file(path) || map_file(&map, path) != LK_OK)
        return false;
    bool other = map.bytes > 0 && (map.bytes < length || memcmp(map.data, head, length) != 0);
    lki_map_close(&map);
    return other;
}

double lki_wall_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double lki_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int64_t lki_now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
