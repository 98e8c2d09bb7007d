/* key.c -- creates a job's key, and reads it from a file or a descriptor.
 *
 * A key is 64 hexadecimal digits, so it can be copied as text.  A key is never passed as an
 * argument or in the environment, which others can read in /proc.  A key file that users other than
 * its owner can access is refused.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "lockstep/launch.h"

enum { DIGITS = 2 * LK_JOB_KEY_BYTES, PATIENCE_MS = 10000 };

/* Writes a new file that only its owner can read, or none.  Returns 0 or an errno. */
static int write_private(const char *path, const char *text, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    ssize_t wrote = write(fd, text, bytes);
    int     error = wrote == (ssize_t)bytes ? 0 : wrote < 0 ? errno : ENOSPC;
    if (close(fd) != 0 && error == 0)
        error = errno;
    if (error != 0)
        (void)unlink(path);
    return error;
}

/* Names a file, unless the name is taken.  Some file systems have no links, others no such rename.
 * Returns 0 or an errno. */
static int name_file(const char *draft, const char *path)
{
    if (link(draft, path) == 0)
        return 0;
    if (errno == EEXIST ||
        renameat2(AT_FDCWD, draft, AT_FDCWD, path, RENAME_NOREPLACE) != 0)
        return errno;
    return 0;
}

/* Writes the key beside its file, which thus never has a part of it, even if this process is
 * killed. */
lk_status lk_job_key_new(const char *path)
{
    unsigned char key[LK_JOB_KEY_BYTES];
    char          text[DIGITS + 2], draft[PATH_MAX];

    LK_TRY(lki_check_given("lk_job_key_new", "path", path, 1));
    if (snprintf(draft, sizeof draft, "%s.%ld.new", path, (long)getpid()) >= PATH_MAX)
        return lk_fail(LK_EINVAL, "the path of the key is too long");
    if (getrandom(key, sizeof key, 0) != (ssize_t)sizeof key)
        return lk_fail(LK_EIO, "no random numbers for a key: %s", strerror(errno));
    for (size_t i = 0; i < sizeof key; i++)
        (void)snprintf(text + 2 * i, 4, "%02x\n", key[i]);
    explicit_bzero(key, sizeof key);
    int error = write_private(draft, text, DIGITS + 1);
    explicit_bzero(text, sizeof text);
    if (error != 0)
        return lk_fail(LK_EIO, "cannot make %s: cannot write %s: %s", path, draft,
                       strerror(error));
    error = name_file(draft, path);
    (void)unlink(draft);
    return error == 0 ? LK_OK : lk_fail(LK_EIO, "cannot make %s: %s", path, strerror(error));
}

static lk_status check_file(int fd, const char *from)
{
    struct stat about;

    if (fstat(fd, &about) != 0)
        return lk_fail(LK_EINVAL, "cannot look at %s: %s", from, strerror(errno));
    if (!S_ISREG(about.st_mode))
        return LK_OK; /* a pipe has no access rights to check; its writer is trusted */
    if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return lk_fail(LK_EINVAL, "the job key in %s is open to others than its owner (mode %03o): "
                       "chmod 600 it, and use a new one where others are not trusted", from,
                       (unsigned)about.st_mode & 0777);
    if (about.st_uid != geteuid() && geteuid() != 0)
        return lk_fail(LK_EINVAL, "the job key in %s belongs to another user", from);
    return LK_OK;
}

/* Waits until a read does not block.  A named pipe may have no writer, and a program that asks for
 * a password may never answer. */
static lk_status await_bytes(int fd, int64_t end_ms, const char *from)
{
    struct pollfd source = {.fd = fd, .events = POLLIN};
    int64_t       left   = end_ms - lki_now_ms();
    int           ready  = poll(&source, 1, left > 0 ? (int)left : 0);

    if (ready > 0 || (ready < 0 && errno == EINTR))
        return LK_OK;
    return lk_fail(LK_EINVAL, "no job key came from %s within %d s", from, PATIENCE_MS / 1000);
}

/* Reads the key's digits and trailing white space, and refuses all other bytes. */
static lk_status read_digits(char text[DIGITS + 8], int fd, const char *from)
{
    size_t  used = 0;
    int64_t end  = lki_now_ms() + PATIENCE_MS;
    for (;;) {
        LK_TRY(await_bytes(fd, end, from));
        ssize_t got = read(fd, text + used, DIGITS + 7 - used);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got < 0)
            return lk_fail(LK_EINVAL, "cannot read the job key from %s: %s", from, strerror(errno));
        used += (size_t)got;
        if (got == 0 || used == DIGITS + 7)
            break;
    }
    text[used]    = '\0';
    size_t digits = strspn(text, "0123456789abcdefABCDEF");
    if (digits == DIGITS && used < DIGITS + 7 && DIGITS + strspn(text + DIGITS, "\r\n ") == used)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s holds no job key, which is %d hexadecimal digits; `lockstep key "
                   "FILE` makes one", from, DIGITS);
}

static lk_status open_source(int *fd, const char *from)
{
    char *end = NULL;

    if (strncmp(from, "fd:", 3) == 0) {
        long number = isdigit((unsigned char)from[3]) ? strtol(from + 3, &end, 10) : -1;
        if (number < 0 || number > INT32_MAX || *end != '\0' || fcntl((int)number, F_GETFD) < 0)
            return lk_fail(LK_EINVAL, "%s is no descriptor that is open here", from);
        *fd = (int)number;
        return LK_OK;
    }
    *fd = open(from, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    return *fd >= 0 ? LK_OK : lk_fail(LK_EINVAL, "cannot open the job key %s: %s", from,
                                      strerror(errno));
}

lk_status lk_job_key_read(unsigned char key[LK_JOB_KEY_BYTES], const char *from)
{
    char text[DIGITS + 8] = "";
    int  fd = -1;

    LK_TRY(lki_check_given("lk_job_key_read", "from", from, 1));
    LK_TRY(open_source(&fd, from));
    lk_status st = check_file(fd, from);
    if (st == LK_OK)
        st = read_digits(text, fd, from);
    (void)close(fd);
    for (size_t i = 0; i < LK_JOB_KEY_BYTES && st == LK_OK; i++) {
        const char two[3] = {text[2 * i], text[2 * i + 1], '\0'};
        key[i]            = (unsigned char)strtoul(two, NULL, 16);
    }
    explicit_bzero(text, sizeof text);
    return st;
}
