/* trace_merge.c -- merges the parts that the ranks have written into one Chrome trace.
 *
 * The format is that of chrome://tracing and ui.perfetto.dev: an object whose "traceEvents" are
 * complete events ("ph": "X") with a start and a duration in microseconds, and names of processes
 * and threads.  A rank becomes a process, and a track becomes a thread.  Times are relative to the
 * earliest span by the time of day, so hosts are aligned as well as their clocks are.  A part may
 * end anywhere, since its rank may have been killed.  Its complete spans are used.
 *
 * Parts are locked while they are read, as they were by their ranks.  A new run with the same trace
 * empties them, and a mapping must not lose its file.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "train/observe/observe.h"

typedef struct {
    int            lock; /* the file, open and locked */
    lki_map        map;
    lki_trace_head head;
    const char    *names;
    size_t         at; /* offset of the first batch */
    char           path[4096];
} part;

/* ---- Reading a part ---------------------------------------------------------------------- */

/* Reads the next batch; returns false at the end of the part.  Ignores an incomplete span at the
 * end, from a killed rank. */
static bool next_batch(const part *p, size_t *at, lki_trace_batch *batch,
                       const unsigned char **spans)
{
    if (p->map.bytes - *at < sizeof *batch)
        return false;
    memcpy(batch, p->map.data + *at, sizeof *batch);
    *at += sizeof *batch;
    *spans       = p->map.data + *at;
    size_t whole = (p->map.bytes - *at) / sizeof(lki_trace_span);
    if (batch->track == LKI_TRACK_LOST)
        return true;
    if (batch->count > whole)
        batch->count = (uint32_t)whole;
    *at += batch->count * sizeof(lki_trace_span);
    return batch->count > 0;
}

/* Limit of valid times in nanoseconds (about 97 years).  Larger times are damaged.  Sums and
 * differences of two valid times cannot overflow. */
static const int64_t TIME_MAX = INT64_MAX / 3;

static bool is_time(int64_t time)
{
    return time > -TIME_MAX && time < TIME_MAX;
}

static bool is_whole(lki_trace_span span)
{
    return span.kind < LKI_SPAN_KINDS && span.begun <= span.ended &&
           span.ended < (uint64_t)TIME_MAX;
}

static lki_trace_span span_at(const unsigned char *spans, size_t i)
{
    lki_trace_span span;
    memcpy(&span, spans + i * sizeof span, sizeof span);
    return span;
}

static lk_status part_read(part *p)
{
    LK_TRY(lki_map_open(&p->map, p->path));
    if (p->map.bytes < sizeof p->head)
        return LK_OK;
    memcpy(&p->head, p->map.data, sizeof p->head);
    p->names = (const char *)p->map.data + sizeof p->head;
    p->at    = sizeof p->head + (size_t)p->head.blocks * LKI_TRACE_NAME;
    if (memcmp(p->head.magic, LKI_TRACE_MAGIC, sizeof p->head.magic) != 0 ||
        !is_time(p->head.epoch_ns))
        return lk_fail(LK_EFORMAT, "'%s' is no part of a trace", p->path);
    return LK_OK;
}

static bool has_spans(const part *p)
{
    return p->map.bytes >= sizeof p->head && p->at < p->map.bytes;
}

/* Returns the earliest start in a part, by time of day.  Spans are ordered by their ends, so any
 * span may have the earliest start. */
static int64_t earliest(const part *p)
{
    int64_t              first = INT64_MAX;
    size_t               at    = p->at;
    lki_trace_batch      batch;
    const unsigned char *spans;
    while (has_spans(p) && next_batch(p, &at, &batch, &spans))
        for (size_t i = 0; batch.track != LKI_TRACK_LOST && i < batch.count; i++) {
            lki_trace_span span = span_at(spans, i);
            if (is_whole(span) && (int64_t)span.begun + p->head.epoch_ns < first)
                first = (int64_t)span.begun + p->head.epoch_ns;
        }
    return first;
}

/* ---- Writing ----------------------------------------------------------------------------- */

/* Writes the name of a block type without characters that JSON would escape, since users choose
 * these names. */
static void write_name(FILE *out, const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes && name[i] != '\0'; i++)
        fputc(name[i] >= ' ' && name[i] < 127 && name[i] != '"' && name[i] != '\\' ? name[i] : '?',
              out);
}

static void write_track_name(FILE *out, const lki_trace_head *head, uint32_t track)
{
    uint32_t helpers = LKI_TRACK_LOADERS + head->loaders;
    fprintf(out,
            ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %u, \"tid\": %u, "
            "\"args\": {\"name\": \"",
            head->rank, track);
    if (track == LKI_TRACK_LOOP)
        fprintf(out, "steps\"}}");
    else if (track < helpers)
        fprintf(out, "loader %u\"}}", track - LKI_TRACK_LOADERS + 1);
    else
        fprintf(out, "thread %u\"}}", track - helpers + 1);
}

static void write_process(FILE *out, const part *p, bool first)
{
    fprintf(out,
            "%s\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %u, \"args\": "
            "{\"name\": \"rank %u (host %u, pid %u)\"}}",
            first ? "" : ",", p->head.rank, p->head.rank, p->head.host, p->head.pid);
    fprintf(out,
            ",\n{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %u, \"args\": "
            "{\"sort_index\": %u}}",
            p->head.rank, p->head.rank);
}

static void write_span(FILE *out, const part *p, uint32_t track, lki_trace_span span, int64_t zero)
{
    if (!is_whole(span))
        return;
    int64_t begun = (int64_t)span.begun + p->head.epoch_ns - zero;
    int64_t took  = (int64_t)(span.ended - span.begun);
    bool    block = (span.kind == LKI_SPAN_BLOCK_FORWARD || span.kind == LKI_SPAN_BLOCK_BACKWARD) &&
                 span.detail < p->head.blocks;
    fprintf(out,
            ",\n{\"ph\": \"X\", \"pid\": %u, \"tid\": %u, \"ts\": %lld.%03d, \"dur\": "
            "%lld.%03d, \"cat\": \"%s\", \"name\": \"",
            p->head.rank, track, (long long)(begun / 1000), (int)(begun % 1000),
            (long long)(took / 1000), (int)(took % 1000), lki_trace_text(span.kind));
    if (block)
        write_name(out, p->names + (size_t)span.detail * LKI_TRACE_NAME, LKI_TRACE_NAME);
    else if (span.kind == LKI_SPAN_STEP)
        fprintf(out, "step %u", span.detail);
    else
        fprintf(out, "%s", lki_trace_text(span.kind));
    fprintf(out, "\"}");
}

/* Writes the spans of a part.  Adds the number of dropped spans to *lost. */
static void write_part(FILE *out, const part *p, int64_t zero, uint64_t *lost)
{
    enum { NAMED_MAX = 256 };
    bool                 named[NAMED_MAX] = { false };
    size_t               at               = p->at;
    lki_trace_batch      batch;
    const unsigned char *spans;
    while (has_spans(p) && next_batch(p, &at, &batch, &spans)) {
        if (batch.track == LKI_TRACK_LOST) {
            *lost += batch.count;
            continue;
        }
        if (batch.track < NAMED_MAX && !named[batch.track])
            write_track_name(out, &p->head, batch.track);
        if (batch.track < NAMED_MAX)
            named[batch.track] = true;
        for (size_t i = 0; i < batch.count; i++)
            write_span(out, p, batch.track, span_at(spans, i), zero);
    }
}

static lk_status write_all(const char *path, const part *parts, uint32_t count)
{
    lki_draft_names names;
    int64_t         zero = INT64_MAX;
    uint64_t        lost = 0;

    for (uint32_t i = 0; i < count; i++) {
        int64_t first = earliest(&parts[i]);
        zero          = first < zero ? first : zero;
    }
    FILE *out = lki_file_draft(&names, path);
    if (out == NULL)
        return lk_fail(LK_EIO, "cannot write the trace '%s' as '%s': %s", path, names.draft,
                       strerror(errno));
    fputs(LKI_TRACE_OPENING, out);
    for (uint32_t i = 0; i < count; i++) {
        write_process(out, &parts[i], i == 0);
        write_part(out, &parts[i], zero, &lost);
    }
    fprintf(out, "\n], \"lost_spans\": %llu}\n", (unsigned long long)lost);
    bool failed = ferror(out) != 0;
    failed      = fclose(out) != 0 || failed;
    if (!failed && rename(names.draft, names.file) == 0)
        return LK_OK;
    lk_status status = lk_fail(LK_EIO, "cannot write the trace '%s': %s", path, strerror(errno));
    (void)unlink(names.draft);
    return status;
}

/* Returns true if a launcher started the rank, or ran it in a thread.  0: any launcher. */
static bool is_of(const lki_trace_head *head, uint32_t launcher)
{
    return launcher == 0 || head->parent == launcher || head->pid == launcher;
}

/* Opens a part and locks it.  Sets `p->lock` to -1 if there is none, or if it is one of another
 * run.  A link is no part.  The ranks of this run have ended, so nobody else holds the lock of one
 * of its parts. */
static lk_status lock_part(part *p, uint32_t launcher)
{
    lki_trace_head head;
    p->lock = open(p->path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (p->lock < 0)
        return errno == ENOENT || errno == ELOOP
                   ? LK_OK
                   : lk_fail(LK_EIO, "cannot open '%s': %s", p->path, strerror(errno));
    bool whole = pread(p->lock, &head, sizeof head, 0) == (ssize_t)sizeof head;
    if ((!whole || is_of(&head, launcher)) && lki_file_lock(p->lock) != EWOULDBLOCK &&
        lki_file_is_current(p->lock, p->path))
        return LK_OK;
    (void)close(p->lock);
    p->lock = -1;
    return LK_OK;
}

static void part_close(part *p)
{
    lki_map_close(&p->map);
    (void)close(p->lock);
    *p = (part){ .at = 0 };
}

/* Opens the existing parts of the requested ranks. */
static lk_status find_parts(part *parts, uint32_t *found, const char *path, uint32_t first,
                            uint32_t count, uint32_t launcher)
{
    for (uint32_t i = 0; i < count; i++) {
        part *p = &parts[*found];
        LK_TRY(lki_trace_part_path(p->path, path, first + i));
        LK_TRY(lock_part(p, launcher));
        if (p->lock < 0)
            continue;
        ++*found; /* so that the caller closes it also after a failure */
        LK_TRY(part_read(p));
        if (p->names == NULL || !is_of(&p->head, launcher)) {
            if (p->map.bytes == 0) /* the rank ended before it had written anything */
                (void)unlink(p->path);
            part_close(p);
            --*found;
        }
    }
    return LK_OK;
}

/* Returns the path of a host's file.  Hosts after the first have a suffix, as they may share the
 * folder. */
static lk_status name_of_host(char out[4096], const char *path, uint32_t host)
{
    char suffix[32] = "";
    if (host != 0)
        (void)snprintf(suffix, sizeof suffix, ".host-%u", host);
    if (snprintf(out, 4096, "%s%s", path, suffix) >= 4096)
        return lk_fail(LK_EINVAL, "`trace` has a path of %zu bytes", strlen(path));
    return LK_OK;
}

lk_status lk_trace_merge(const char *path, uint32_t first, uint32_t count, uint32_t launcher)
{
    part    *parts = NULL;
    uint32_t found = 0;
    bool     alone = first != 0 || launcher != 0;
    char     name[4096];
    LK_TRY(lki_check_given("lk_trace_merge", "path", path, 1));
    LK_TRY(LKI_NEW(&parts, count, "parts of a trace"));
    lk_status status = find_parts(parts, &found, path, first, count, launcher);
    if (status == LK_OK && found > 0)
        status = name_of_host(name, path, alone ? parts[0].head.host : 0);
    if (status == LK_OK && found > 0)
        status = write_all(name, parts, found);
    for (uint32_t i = 0; i < found; i++) {
        if (status == LK_OK)
            (void)unlink(parts[i].path);
        part_close(&parts[i]);
    }
    lki_free(parts);
    return status;
}
