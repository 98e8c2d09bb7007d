/* file.c -- reading one flight recorder file, which may be damaged.
 *
 * The file may be truncated, damaged, of an unexpected size, or just being written.  No data is
 * trusted before its seal has been verified.  Invalid parts are dropped and reported in one line.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "flight/flight.h"

/* Makes a text of unknown origin safe to print: terminated, without control characters. */
static void make_printable(char *text, size_t bytes)
{
    text[bytes - 1] = '\0';
    for (char *c = text; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

static void complain(lki_flight_file *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Records a problem.  Only the first problem is kept, because later ones are consequences. */
static void complain(lki_flight_file *file, const char *format, ...)
{
    va_list args;

    if (file->problem[0] != '\0')
        return;
    va_start(args, format);
    (void)vsnprintf(file->problem, sizeof file->problem, format, args);
    va_end(args);
}

/* Returns true for a valid time of a clock that began at 0.  The sum of two valid times does not
 * overflow. */
static bool is_time(int64_t t)
{
    return t >= 0 && t < INT64_MAX / 4;
}

/* ---- The header -------------------------------------------------------------------------- */

static bool check_header(lki_flight_file *file, size_t bytes)
{
    const lki_flight_header *h = &file->header;

    if (bytes < sizeof *h)
        complain(file, "it ends after %zu bytes, in its header", bytes);
    else if (h->magic != LKI_FLIGHT_MAGIC)
        complain(file, "it is no flight record, or its beginning is damaged");
    else if (h->version != LKI_FLIGHT_VERSION || h->entry_bytes != sizeof(lki_flight_entry))
        complain(file, "it is of another version of lockstep (%u, this is %d)", h->version,
                 LKI_FLIGHT_VERSION);
    else if (h->seal != lki_flight_header_seal(h))
        complain(file, "its header is damaged");
    else if (h->entry_count == 0 || h->entry_count > LKI_FLIGHT_ENTRIES_MAX ||
             h->group_count > LKI_FLIGHT_GROUPS_MAX || h->world == 0 || h->world > LKI_RANKS_MAX ||
             h->rank >= h->world || !is_time(h->opened) || h->wall_offset >= INT64_MAX / 4 ||
             h->wall_offset <= -INT64_MAX / 4)
        complain(file, "its header makes no sense: rank %u of %u, %u entries", h->rank, h->world,
                 h->entry_count);
    else
        return true;
    return false;
}

static void take_header(lki_flight_file *file)
{
    lki_flight_header *h = &file->header;

    for (int i = 0; i < 2; i++)
        if (h->places[i].seal == lki_flight_seal(&h->places[i], sizeof h->places[i]) &&
            h->places[i].number > file->place.number && is_time(h->places[i].at))
            file->place = h->places[i];
    if (!is_time(h->left)) {
        complain(file, "when its rank left is damaged");
        h->left = 0;
    }
    if (h->failure.seal != lki_flight_seal(&h->failure, sizeof h->failure) ||
        !is_time(h->failure.at)) {
        if (h->failure.seal != 0)
            complain(file, "what it says about a failure is damaged");
        memset(&h->failure, 0, sizeof h->failure);
    }
    make_printable(h->boot, sizeof h->boot);
    make_printable(h->host, sizeof h->host);
    make_printable(h->failure.text, sizeof h->failure.text);
    make_printable(file->place.phase, sizeof file->place.phase);
}

/* ---- Groups and entries ------------------------------------------------------------------ */

/* Returns the number of complete items of `size` bytes that the file has from offset `at` on, at
 * most `count`. */
static uint32_t whole(size_t bytes, size_t at, size_t size, uint32_t count)
{
    size_t there = bytes > at ? (bytes - at) / size : 0;
    return there < count ? (uint32_t)there : count;
}

static bool is_group(const lki_flight_group *group)
{
    return group->seal == lki_flight_seal(group, sizeof *group) && group->size >= 1 &&
           group->size <= LKI_RANKS_MAX && group->rank < group->size;
}

static lk_status take_groups(lki_flight_file *file, const unsigned char *data, size_t bytes)
{
    uint32_t count = whole(bytes, sizeof file->header, sizeof *file->groups,
                           file->header.group_count);

    LK_TRY(LKI_NEW(&file->groups, (size_t)count + 1, "groups of a flight record"));
    for (uint32_t i = 0; i < count; i++) {
        lki_flight_group *group = &file->groups[file->group_count];
        memcpy(group, data + sizeof file->header + i * sizeof *group, sizeof *group);
        if (is_group(group))
            file->group_count++;
        else if (group->seal != 0)
            complain(file, "what it says about group %u is damaged", i);
    }
    return LK_OK;
}

static bool is_entry(const lki_flight_entry *entry, uint32_t place, uint32_t count)
{
    return entry->seal == lki_flight_entry_seal(entry) && entry->number > 0 &&
           entry->number < INT64_MAX && (entry->number - 1) % count == place &&
           is_time(entry->at) &&
           (entry->kind == LKI_FLIGHT_OPERATION || entry->kind == LKI_FLIGHT_NOTE);
}

/* Clears invalid times of an entry.  The time fields have no seal, so an invalid time means damage.
 * Returns false if a time was invalid. */
static bool clean_entry(lki_flight_entry *e)
{
    bool good = e->fate <= LK_FLIGHT_ABANDONED && is_time(e->met) && is_time(e->ended) &&
                (e->met == 0 || e->met >= e->at) &&
                (e->fate == LK_FLIGHT_OPEN || e->ended >= e->at);
    if (!good) {
        e->met  = 0;
        e->fate = LK_FLIGHT_OPEN;
    }
    if (e->fate == LK_FLIGHT_OPEN)
        e->ended = 0;
    if (e->kind == LKI_FLIGHT_NOTE)
        make_printable(e->note.phase, sizeof e->note.phase);
    return good;
}

static int by_number(const void *a, const void *b)
{
    const lki_flight_entry *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* Incomplete entries: their number, and the index of the last one. */
typedef struct {
    uint32_t count, place;
} broken;

/* Reports damaged entries.  A ring holds entries of one generation before its head and of the
 * previous generation after it.  The entry at the head may be incomplete, because its writer is
 * running or was killed.  Entries more than one generation old were read before the writer
 * overwrote them, and are dropped. */
static void judge_entries(lki_flight_file *file, uint32_t there, broken bad)
{
    uint32_t capacity = file->header.entry_count, old = 0;
    uint64_t last = file->entry_count == 0 ? 0 : file->entries[file->entry_count - 1].number;
    bool     torn = bad.count == 1 && bad.place == last % capacity;

    while (old < file->entry_count && file->entries[old].number + capacity <= last)
        old++;
    file->entry_count -= old;
    memmove(file->entries, file->entries + old, file->entry_count * sizeof *file->entries);
    file->lost = last - file->entry_count;

    uint64_t wanted  = last < capacity ? last : capacity;
    uint64_t missing = wanted - file->entry_count;
    uint64_t damaged = missing > old + torn ? missing - old - torn : bad.count - torn;
    if (there < capacity)
        complain(file, "it was cut short: %u of %u entries are there", there, capacity);
    else if (damaged > 0)
        complain(file, "%llu of its entries are damaged", (unsigned long long)damaged);
}

static bool is_blank(const unsigned char *data, size_t bytes)
{
    unsigned char any = 0;
    for (size_t i = 0; i < bytes; i++)
        any |= data[i];
    return any == 0;
}

static lk_status take_entries(lki_flight_file *file, const unsigned char *data, size_t bytes)
{
    const lki_flight_header      *h     = &file->header;
    size_t                        at    = lki_flight_bytes(h->group_count, 0);
    uint32_t                      there = whole(bytes, at, sizeof *file->entries, h->entry_count);
    uint32_t                      odd   = 0;
    broken                        bad   = { 0, 0 };

    LK_TRY(LKI_NEW(&file->entries, (size_t)there + 1, "entries of a flight record"));
    for (uint32_t i = 0; i < there; i++) {
        lki_flight_entry *entry = &file->entries[file->entry_count];
        memcpy(entry, data + at + i * sizeof *entry, sizeof *entry);
        if (is_entry(entry, i, h->entry_count)) {
            odd += !clean_entry(entry);
            file->entry_count++;
        } else if (!is_blank(data + at + i * sizeof *entry, sizeof *entry)) {
            bad = (broken){ bad.count + 1, i };
        }
    }
    qsort(file->entries, file->entry_count, sizeof *file->entries, by_number);
    if (odd > 0)
        complain(file, "the times of %u entries are damaged", odd);
    judge_entries(file, there, bad);
    return LK_OK;
}

/* ---- The file ---------------------------------------------------------------------------- */

lk_status lki_flight_parse(lki_flight_file *out, const char *name, const void *data, size_t bytes)
{
    *out = (lki_flight_file){ .readable = false };
    (void)snprintf(out->name, sizeof out->name, "%.31s", name);
    memcpy(&out->header, data, lki_min(bytes, sizeof out->header));
    if (!check_header(out, bytes)) {
        memset(&out->header, 0, sizeof out->header);
        return LK_OK;
    }
    out->readable = true;
    take_header(out);
    lk_status st = take_groups(out, data, bytes);
    if (st == LK_OK)
        st = take_entries(out, data, bytes);
    if (st != LK_OK)
        lki_flight_file_deinit(out);
    return st;
}

void lki_flight_file_deinit(lki_flight_file *file)
{
    lki_free(file->groups);
    lki_free(file->entries);
    *file = (lki_flight_file){ .readable = false };
}

/* ---- The directory ----------------------------------------------------------------------- */

enum { FILE_BYTES_MAX = 256 << 20, TRIES = 3 };

/* Reads the file instead of mapping it.  If the file is truncated during the read, the result is a
 * short file instead of a signal. */
static lk_status read_whole(int fd, void **out, size_t *bytes)
{
    struct stat about;

    *out = NULL;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size > FILE_BYTES_MAX)
        return lk_fail(LK_EIO, "it is not a regular file of a sane size");
    LK_TRY(lki_alloc(out, (size_t)about.st_size, "flight record"));
    ssize_t got = 1;
    for (*bytes = 0; *bytes < (size_t)about.st_size && got > 0; *bytes += got > 0 ? (size_t)got : 0)
        do
            got = pread(fd, (unsigned char *)*out + *bytes, (size_t)about.st_size - *bytes,
                        (off_t)*bytes);
        while (got < 0 && errno == EINTR);
    if (got >= 0)
        return LK_OK;
    lki_free(*out);
    return lk_fail(LK_EIO, "%s", strerror(errno));
}

static lk_status read_record(lki_flight_file *out, int folder, const char *name)
{
    void  *data  = NULL;
    size_t bytes = 0;
    int    fd    = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    *out         = (lki_flight_file){ .readable = false };
    lk_status st = fd < 0 ? lk_fail(LK_EIO, "%s", strerror(errno)) : read_whole(fd, &data, &bytes);
    if (fd >= 0)
        (void)close(fd);
    if (st == LK_EIO) {
        (void)snprintf(out->name, sizeof out->name, "%.31s", name);
        complain(out, "it cannot be read: %.150s", lk_error_last()->message);
        return LK_OK;
    }
    LK_TRY(st);
    st = lki_flight_parse(out, name, data, bytes);
    lki_free(data);
    return st;
}

/* Sets whether the rank's process exists, and its state, if the file was written on this
 * machine. */
static void look_at_process(lki_flight_file *file)
{
    char boot[40], state;

    lki_boot_id(boot);
    file->here = boot[0] != '\0' && strcmp(boot, file->header.boot) == 0;
    if (file->here && file->header.process_started != 0 &&
        lki_process_started(file->header.pid, &state) == file->header.process_started)
        file->process = state;
}

/* Reads a file.  If the file looks damaged while its writer is running, reads the file again,
 * because the writer may have been changing the file. */
static lk_status read_calmly(lki_flight_file *out, int folder, const char *name)
{
    for (int i = 0;; i++) {
        LK_TRY(read_record(out, folder, name));
        look_at_process(out);
        if (out->problem[0] == '\0' || !out->readable || out->process == 0 || i == TRIES)
            return LK_OK;
        lki_flight_file_deinit(out);
    }
}

static lk_status read_directory(DIR *folder, lki_flight_file **files, size_t *count)
{
    size_t    capacity = 0;
    lk_status st       = LK_OK;

    for (struct dirent *entry; st == LK_OK && (entry = readdir(folder)) != NULL;) {
        uint32_t rank;
        void    *list = *files;
        if (!lki_flight_is_rank(entry->d_name, &rank))
            continue;
        st     = lki_reserve(&list, &capacity, *count, sizeof **files, "flight records");
        *files = list;
        if (st == LK_OK)
            st = read_calmly(&(*files)[*count], dirfd(folder), entry->d_name);
        *count += st == LK_OK;
    }
    return st;
}

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns the current time.  Uses the clock offset of a file that was written on this machine, if
 * there is one, so that later changes of the time of day have no effect. */
static int64_t now_of(const lki_flight_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (files[i].readable && files[i].here)
            return now_ns(CLOCK_MONOTONIC) + files[i].header.wall_offset;
    return now_ns(CLOCK_REALTIME);
}

lk_status lk_flight_open(lk_flight **out, const char *directory)
{
    lki_flight_file *files  = NULL;
    size_t           count  = 0;
    DIR             *folder = NULL;

    *out = NULL;
    LK_TRY(lki_check_given("lk_flight_open", "directory", directory, 1));
    folder = opendir(directory);
    if (folder == NULL)
        return lk_fail(LK_EIO, "cannot read the flight directory '%s': %s", directory,
                       strerror(errno));
    lk_status st = read_directory(folder, &files, &count);
    (void)closedir(folder);
    if (st == LK_OK && count == 0)
        st = lk_fail(LK_EFORMAT, "there is no flight record (rank-0.flight and so on) in '%s'",
                     directory);
    if (st == LK_OK)
        return lki_flight_merge(out, files, count, now_of(files, count));
    for (size_t i = 0; i < count; i++)
        lki_flight_file_deinit(&files[i]);
    lki_free(files);
    return st;
}
