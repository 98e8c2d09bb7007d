/* trace_part.c -- a rank's part of a trace: appends its spans to a file of its own.
 *
 * Writing must cost little during the run, and the file must be usable however the run ends.  So
 * parts are binary and are appended batch by batch.  lk_trace_merge() makes one JSON file of them
 * after the ranks have ended.  lki_trace_part_close() reports a failed write; no step fails because
 * of its trace.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "nn/model.h"
#include "train/core/log_owner.h"
#include "train/observe/observe.h"

struct lki_trace_part {
    int  fd;
    int  error; /* errno of the first failed write */
    char path[4096];
};

lk_status lki_trace_part_path(char out[4096], const char *path, uint32_t rank)
{
    if (snprintf(out, 4096, "%s.rank-%u.part", path, rank) >= 4096)
        return lk_fail(LK_EINVAL, "`trace` has a path of %zu bytes", strlen(path));
    return LK_OK;
}

static void put(lki_trace_part *part, const void *head, size_t head_bytes, const void *body,
                size_t body_bytes)
{
    struct iovec pieces[2] = { { (void *)(uintptr_t)head, head_bytes },
                               { (void *)(uintptr_t)body, body_bytes } };
    ssize_t      wanted    = (ssize_t)(head_bytes + body_bytes), wrote;

    if (part->error != 0)
        return;
    do
        wrote = writev(part->fd, pieces, 2);
    while (wrote < 0 && errno == EINTR);
    if (wrote != wanted)
        part->error = wrote < 0 ? errno : ENOSPC;
}

static lk_status put_head(lki_trace_part *part, uint32_t rank, uint32_t host, uint32_t loaders,
                          const lk_model *model)
{
    struct timespec now;
    lki_trace_head  head  = { .rank    = rank,
                              .host    = host,
                              .pid     = (uint32_t)getpid(),
                              .parent  = (uint32_t)getppid(),
                              .blocks  = (uint32_t)model->block_count,
                              .loaders = loaders };
    char           *names = NULL;
    memcpy(head.magic, LKI_TRACE_MAGIC, sizeof head.magic);
    (void)clock_gettime(CLOCK_REALTIME, &now);
    head.epoch_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - (int64_t)lki_trace_now();
    LK_TRY(LKI_NEW(&names, model->block_count * LKI_TRACE_NAME, "names of a trace"));
    for (size_t b = 0; b < model->block_count; b++)
        (void)snprintf(names + b * LKI_TRACE_NAME, LKI_TRACE_NAME, "%.31s%s%.60s",
                       model->blocks[b].type->name, model->blocks[b].name[0] != '\0' ? " " : "",
                       model->blocks[b].name);
    put(part, &head, sizeof head, names, model->block_count * LKI_TRACE_NAME);
    lki_free(names);
    return LK_OK;
}

static lk_status refuse_other(const char *path)
{
    return lk_fail(LK_EIO, "'%s' is a link or a file of another kind, and would be overwritten by "
                           "a part of the trace: give another `trace`, or remove it", path);
}

/* Returns true if an open file is no part of a trace.  That of a rank which was killed at once is
 * empty. */
static bool is_other(int fd)
{
    char    head[sizeof LKI_TRACE_MAGIC - 1];
    ssize_t bytes = pread(fd, head, sizeof head, 0);
    return bytes != 0 &&
           (bytes < (ssize_t)sizeof head || memcmp(head, LKI_TRACE_MAGIC, sizeof head) != 0);
}

/* Opens the file and locks it until it is closed.  Two runs with one trace would mix parts.  The
 * file is emptied only under its lock, because the launcher of a run that has just ended may still
 * be reading it (trace_merge.c). */
static lk_status open_file(lki_trace_part *part, const char *path)
{
    bool made;
    int  why = lki_file_open_locked(&part->fd, part->path, &made);
    if (why == EWOULDBLOCK)
        return lki_output_in_use("trace", path);
    if (why == ELOOP || (why == 0 && is_other(part->fd)))
        return refuse_other(part->path);
    if (why == 0 && ftruncate(part->fd, 0) != 0)
        why = errno;
    return why == 0 ? LK_OK
                    : lk_fail(LK_EIO, "cannot write '%s': %s", part->path, strerror(why));
}

lk_status lki_trace_part_open(lki_trace_part **out, const char *path, uint32_t rank, uint32_t host,
                              uint32_t loaders, const lk_model *model)
{
    lki_trace_part *part = NULL;
    *out                 = NULL;
    LK_TRY(LKI_NEW(&part, 1, "a trace"));
    part->fd         = -1;
    lk_status status = lki_trace_part_path(part->path, path, rank);
    if (status == LK_OK)
        status = open_file(part, path);
    if (status == LK_OK)
        status = put_head(part, rank, host, loaders, model);
    if (status != LK_OK) {
        if (part->fd >= 0)
            (void)close(part->fd);
        lki_free(part);
        return status;
    }
    *out = part;
    return LK_OK;
}

void lki_trace_part_add(lki_trace_part *part, uint32_t track, const lki_trace_span *spans,
                        size_t count)
{
    lki_trace_batch batch = { track, (uint32_t)count };
    put(part, &batch, sizeof batch, spans, count * sizeof *spans);
}

lk_status lki_trace_part_close(lki_trace_part *part, uint64_t lost)
{
    lki_trace_batch batch  = { LKI_TRACK_LOST, (uint32_t)lki_min(lost, UINT32_MAX) };
    lk_status       status = LK_OK;

    if (part == NULL)
        return LK_OK;
    if (lost > 0)
        put(part, &batch, sizeof batch, NULL, 0);
    if (close(part->fd) != 0 && part->error == 0)
        part->error = errno;
    if (part->error != 0)
        status = lk_fail(LK_EIO, "cannot write '%s': %s; the trace ends there", part->path,
                         strerror(part->error));
    lki_free(part);
    return status;
}
