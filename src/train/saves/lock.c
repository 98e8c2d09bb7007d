/* lock.c -- ensures that only one run at a time uses a checkpoint directory.
 *
 * Rank 0 holds a lock on DIR/.lock from before it reads the directory until it ends.  The lock
 * belongs to the open file (OFD), so the kernel releases it however the process ends, and a crash
 * leaves an unlocked file.  The file names its holder, and its modification time is the time of
 * locking.  The holder removes the file while it is still locked.  A process that gets the lock of
 * a removed file tries again.
 *
 * Locks between hosts may be lost.  The server of a shared file system passes a lock to another
 * host after a time without contact, and on some file systems locks are valid within one host only.
 * The signature in the file is still correct then, since every new holder signs.  So before each
 * checkpoint rank 0 checks that the signature is its own.  If a network failure splits a job in
 * two, only one part saves.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/directory.h"
#include "train/saves/lock.h"


enum { HOLDER_BYTES = 128 };

static struct flock whole_file(void)
{
    return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET };
}

/* Fails with LK_EIO.  The message names the lock's holder, if the holder has signed the file. */
static lk_status refuse(const char *dir, int fd)
{
    char        holder[HOLDER_BYTES + 1] = "", since[64] = "";
    struct stat info;
    struct tm   when;
    ssize_t     got = pread(fd, holder, HOLDER_BYTES, 0);

    holder[got > 0 ? got : 0]     = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    if (fstat(fd, &info) == 0 && gmtime_r(&info.st_mtime, &when) != NULL)
        (void)strftime(since, sizeof since, ", since %Y-%m-%d %H:%M:%S UTC", &when);
    return lk_fail(LK_EIO,
                   "another run is using '%s': %s%s; wait for its end, stop it, or give another "
                   "`checkpoint.folder` directory",
                   dir, holder[0] != '\0' ? holder : "it is just starting", since);
}

lk_status lki_lock_check(const char *dir)
{
    char         path[LKI_PATH_BYTES];
    struct flock lock = whole_file();
    LK_TRY(lki_directory_join(path, dir, LKI_LOCK_NAME));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return LK_OK; /* no run has used `dir`; lki_lock_take() reports other errors */
    bool      held   = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    lk_status status = held ? refuse(dir, fd) : LK_OK;
    (void)close(fd);
    return status;
}

/* Returns true if `path` still names the open file. */
static bool is_current(int fd, const char *path)
{
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

static int signature(char text[HOLDER_BYTES])
{
    char host[65] = "";
    (void)gethostname(host, sizeof host - 1);
    return snprintf(text, HOLDER_BYTES, "pid %ld on %s\n", (long)getpid(), host);
}

static void sign(int fd)
{
    char text[HOLDER_BYTES];
    int  length = signature(text);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)length, 0) != length)
        return; /* disk full: the lock is held without a signature */
}

lk_status lki_lock_take(int *out, const char *dir, lki_journal *journal)
{
    char         path[LKI_PATH_BYTES];
    struct flock lock = whole_file();

    LK_TRY(lki_directory_join(path, dir, LKI_LOCK_NAME));
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return lk_fail(LK_EIO, "cannot open '%s': %s", path, strerror(errno));
        int error = fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
        if (error == EAGAIN || error == EACCES) {
            lk_status status = refuse(dir, fd);
            (void)close(fd);
            return status;
        }
        if (error == 0 && !is_current(fd, path)) {
            (void)close(fd);
            continue;
        }
        if (error != 0)
            lki_journal_note(
                journal, "note: '%s' cannot be locked (%s): see to it that no other run uses it",
                dir, strerror(error));
        sign(fd);
        *out = fd;
        return LK_OK;
    }
}

/* Opens the lock file by its name again.  The old descriptor might not show changes by another
 * host. */
lk_status lki_lock_hold(int fd, const char *dir)
{
    char path[LKI_PATH_BYTES], holder[HOLDER_BYTES + 1], mine[HOLDER_BYTES];
    if (fd < 0)
        return LK_OK;
    LK_TRY(lki_directory_join(path, dir, LKI_LOCK_NAME));
    int named = open(path, O_RDONLY | O_CLOEXEC);
    if (named < 0)
        return LK_OK; /* nobody else has signed */
    ssize_t got = pread(named, holder, HOLDER_BYTES, 0);
    (void)close(named);
    holder[got > 0 ? got : 0] = '\0';
    (void)signature(mine);
    if (holder[0] == '\0' || strcmp(holder, mine) == 0)
        return LK_OK;
    holder[strcspn(holder, "\n")] = '\0';
    return lk_fail(LK_EIO,
                   "another run (%s) has taken '%s', and this one saves nothing there any more: "
                   "its lock was lost when it was cut off from the file system, or does not hold "
                   "between hosts",
                   holder, dir);
}

void lki_lock_drop(int fd, const char *dir)
{
    char path[LKI_PATH_BYTES];
    if (fd < 0)
        return;
    if (lki_directory_join(path, dir, LKI_LOCK_NAME) == LK_OK)
        (void)unlink(path);
    (void)close(fd);
}
