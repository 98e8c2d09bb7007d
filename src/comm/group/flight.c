/* flight.c -- writing a rank's flight recorder file.
 *
 * An entry is built on the stack, hashed, and stored in the mapping.  An operation costs about 100
 * bytes and two readings of the clock.  The pages are allocated before the first entry.  A full
 * disk is thus reported as an error at once, and not by a signal later.  The kernel may write the
 * pages to the disk at any time.  This can delay a rank for as long as the disk takes, so recording
 * must be requested by the user.
 */
#include "comm/flight.h"
#include "comm/group/group.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"

struct lki_flight {
    lki_flight_header *header; /* start of the mapped file */
    lki_flight_group  *groups;
    lki_flight_entry  *entries;
    size_t             bytes;
    uint64_t           written; /* number of the last entry */
    uint64_t           notes;
    uint32_t           group_count;
    bool               failed;
};

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void store(uint64_t *word, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release);
}

/* ---- The directory ----------------------------------------------------------------------- */

bool lki_flight_is_rank(const char *name, uint32_t *rank)
{
    int end = 0;
    return sscanf(name, "rank-%u.flight%n", rank, &end) == 1 && end > 0 && name[end] == '\0' &&
           isdigit((unsigned char)name[5]);
}

/* Returns true if another process of this machine is writing a record. */
static bool is_being_written(const lki_flight_header *header)
{
    char boot[40], state;
    lki_boot_id(boot);
    return header->seal == lki_flight_header_seal(header) && header->left == 0 &&
           header->pid != (int32_t)getpid() && boot[0] != '\0' &&
           strncmp(boot, header->boot, sizeof boot) == 0 && header->process_started != 0 &&
           lki_process_started(header->pid, &state) == header->process_started && state != 'Z';
}

/* Fails if a file is no flight record, or one that another run is writing.  One whose rank was
 * killed at once is empty, or has only zeros. */
static lk_status check_old(const char *path)
{
    lki_flight_header header = { .magic = 0 };
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return LK_OK;
    ssize_t bytes = fd < 0 ? -1 : read(fd, &header, sizeof header);
    if (fd >= 0)
        (void)close(fd);
    if (bytes != 0 && (bytes < (ssize_t)sizeof header.magic ||
                       (header.magic != 0 && header.magic != LKI_FLIGHT_MAGIC)))
        return lk_fail(LK_EIO, "'%s' is a file of another kind, and would be overwritten by a "
                               "flight record: give another directory, or remove it", path);
    if (bytes == (ssize_t)sizeof header && is_being_written(&header))
        return lk_fail(LK_EIO, "another run is writing the flight record '%s': rank %u, process "
                               "%d; give each run its own directory", path, header.rank,
                       header.pid);
    return LK_OK;
}

/* Looks at the old records that a job replaces, and removes them if `removes` is true. */
static lk_status visit_records(DIR *folder, const char *directory, lki_roster roster, bool removes)
{
    char     path[4096];
    uint32_t rank;
    rewinddir(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (!lki_flight_is_rank(entry->d_name, &rank) ||
            (rank - roster.first >= roster.count && rank < roster.world) ||
            snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= (int)sizeof path)
            continue;
        if (removes)
            (void)unlink(path);
        else
            LK_TRY(check_old(path));
    }
    return LK_OK;
}

lk_status lki_flight_prepare(const char *directory, lki_roster roster)
{
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return lk_fail(LK_EIO, "cannot make the flight directory '%s': %s; give another one",
                       directory, strerror(errno));
    DIR *folder = opendir(directory);
    if (folder == NULL)
        return lk_fail(LK_EIO, "cannot read the flight directory '%s': %s", directory,
                       strerror(errno));
    lk_status status = visit_records(folder, directory, roster, false);
    if (status == LK_OK)
        status = visit_records(folder, directory, roster, true);
    (void)closedir(folder);
    LK_TRY(status);
    if (access(directory, W_OK | X_OK) != 0)
        return lk_fail(LK_EIO, "cannot write into the flight directory '%s': %s", directory,
                       strerror(errno));
    return LK_OK;
}

/* ---- Opening ----------------------------------------------------------------------------- */

/* Reads the first line of a small kernel file. */
static void read_line(const char *path, char *out, size_t bytes)
{
    FILE *file = fopen(path, "re");

    out[0] = '\0';
    if (file == NULL)
        return;
    if (fgets(out, (int)bytes, file) != NULL)
        out[strcspn(out, "\n")] = '\0';
    (void)fclose(file);
}

uint64_t lki_process_started(int32_t pid, char *state)
{
    char               path[40], line[512];
    unsigned long long ticks = 0;

    *state = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    read_line(path, line, sizeof line);
    const char *at = strrchr(line, ')'); /* the last parenthesis, because the process name before
                                          * it may contain any character */
    if (at == NULL || sscanf(at + 1, " %c", state) != 1)
        return 0;
    for (int field = 2; field < 22 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    return at != NULL && sscanf(at, "%llu", &ticks) == 1 ? ticks : 0;
}

void lki_boot_id(char out[40])
{
    read_line("/proc/sys/kernel/random/boot_id", out, 40);
}

static void fill_header(lki_flight_header *header, uint32_t rank, uint32_t world, uint32_t entries)
{
    char state;

    header->magic           = LKI_FLIGHT_MAGIC;
    header->version         = LKI_FLIGHT_VERSION;
    header->entry_bytes     = sizeof(lki_flight_entry);
    header->entry_count     = entries;
    header->group_count     = LKI_FLIGHT_GROUPS;
    header->rank            = rank;
    header->world           = world;
    header->pid             = (int32_t)getpid();
    header->process_started = lki_process_started(header->pid, &state);
    header->opened          = now_ns(CLOCK_MONOTONIC);
    header->wall_offset     = now_ns(CLOCK_REALTIME) - header->opened;
    lki_boot_id(header->boot);
    (void)gethostname(header->host, sizeof header->host - 1);
    header->seal = lki_flight_header_seal(header);
}

/* Creates a file at `path`.  Removes an old file first, which another process may be reading. */
static lk_status create_file(const char *path, size_t bytes, void **out)
{
    (void)unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return lk_fail(LK_EIO, "cannot make the flight record '%s': %s", path, strerror(errno));
    int error = posix_fallocate(fd, 0, (off_t)bytes);
    *out  = error == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    error = error == 0 && *out == MAP_FAILED ? errno : error;
    (void)close(fd);
    if (*out != MAP_FAILED)
        return LK_OK;
    (void)unlink(path);
    return lk_fail(LK_EIO, "cannot make the flight record '%s', %zu bytes: %s", path, bytes,
                   strerror(error));
}

lk_status lki_flight_open(lki_flight **out, const char *directory, uint32_t rank, uint32_t world,
                          uint32_t entries)
{
    lki_flight *flight;
    char        path[4096];
    size_t      bytes  = lki_flight_bytes(LKI_FLIGHT_GROUPS, entries);
    void       *memory = NULL;

    *out = NULL;
    if (snprintf(path, sizeof path, "%s/rank-%u.flight", directory, rank) >= (int)sizeof path)
        return lk_fail(LK_EINVAL, "the name of the flight directory is too long");
    LK_TRY(LKI_NEW(&flight, 1, "flight recorder"));
    lk_status st = create_file(path, bytes, &memory);
    if (st != LK_OK) {
        lki_free(flight);
        return st;
    }
    flight->bytes   = bytes;
    flight->header  = memory;
    flight->groups  = (lki_flight_group *)(void *)(flight->header + 1);
    flight->entries = (lki_flight_entry *)(void *)(flight->groups + LKI_FLIGHT_GROUPS);
    fill_header(flight->header, rank, world, entries);
    *out = flight;
    return LK_OK;
}

void lki_flight_close(lki_flight *flight)
{
    if (flight == NULL)
        return;
    store((uint64_t *)&flight->header->left, (uint64_t)now_ns(CLOCK_MONOTONIC));
    (void)munmap(flight->header, flight->bytes);
    lki_free(flight);
}

/* ---- Entries ----------------------------------------------------------------------------- */

/* Copies a struct into the file.  Its first field, the seal, is cleared first and written last. */
static void store_sealed(void *to, void *made, size_t bytes, uint64_t seal)
{
    store(to, 0);
    memcpy((unsigned char *)to + 8, (unsigned char *)made + 8, bytes - 8);
    store(to, seal);
}

static uint64_t write_entry(lki_flight *flight, lki_flight_entry *made)
{
    uint32_t          count = flight->header->entry_count;
    lki_flight_entry *entry = &flight->entries[flight->written % count];

    made->number = ++flight->written;
    made->at     = now_ns(CLOCK_MONOTONIC);
    store_sealed(entry, made, sizeof *made, lki_flight_entry_seal(made));
    return made->number;
}

/* Returns the entry with this number, or NULL if the entry was overwritten. */
static lki_flight_entry *entry_of(lki_flight *flight, uint64_t number)
{
    uint32_t count = flight->header->entry_count;
    if (number == 0 || number + count <= flight->written)
        return NULL;
    return &flight->entries[(number - 1) % count];
}

/* Adds the group of `comm` to the file.  All ranks of the group compute the same id for it.  The id
 * differs from the ids of their other groups. */
static void enter_group(lk_comm *comm)
{
    lki_flight      *flight = comm->self->flight;
    lki_flight_group made   = { .label = comm->group, .size = comm->size, .rank = comm->rank };

    made.id = comm->key ^ lki_xxh3(comm->world, comm->size * sizeof *comm->world);
    made.id |= 1; /* 0 means "not entered" */
    for (uint32_t i = 0; i < comm->size; i++)
        made.members[comm->world[i] / 64] |= UINT64_C(1) << comm->world[i] % 64;
    comm->flight_group = made.id;
    if (flight->group_count < LKI_FLIGHT_GROUPS)
        store_sealed(&flight->groups[flight->group_count++], &made, sizeof made,
                     lki_flight_seal(&made, sizeof made));
}

uint64_t lki_flight_begin(lk_comm *comm, lki_print print, uint64_t seq)
{
    if (comm->flight_group == 0)
        enter_group(comm);
    lki_flight_entry made = { .kind = LKI_FLIGHT_OPERATION, .rank = comm->rank };
    made.op               = (lki_flight_operation){
                      .what  = print.what,
                      .count = print.count,
                      .hash  = print.hash,
                      .group = comm->flight_group,
                      .label = comm->group,
                      .seq   = seq,
                      .step  = atomic_load_explicit(&comm->me->step, memory_order_relaxed),
    };
    return write_entry(comm->self->flight, &made);
}

void lki_flight_met(lki_flight *flight, uint64_t number)
{
    lki_flight_entry *entry = entry_of(flight, number);
    if (entry != NULL && entry->met == 0)
        store((uint64_t *)&entry->met, (uint64_t)now_ns(CLOCK_MONOTONIC));
}

void lki_flight_end(lki_flight *flight, uint64_t number, lki_fate fate)
{
    lki_flight_entry *entry = entry_of(flight, number);
    if (entry == NULL || entry->fate != LKI_FATE_OPEN)
        return;
    store((uint64_t *)&entry->ended, (uint64_t)now_ns(CLOCK_MONOTONIC));
    store(&entry->fate, (uint64_t)fate);
}

void lki_flight_write_note(lki_flight *flight, uint64_t step, const char *phase)
{
    lki_flight_entry made  = { .kind = LKI_FLIGHT_NOTE };
    lki_flight_place place = { .number = flight->notes + 1, .step = step };

    made.note.step = step;
    memcpy(made.note.phase, phase, strnlen(phase, LKI_PHASE_BYTES - 1));
    memcpy(place.phase, made.note.phase, sizeof place.phase);
    (void)write_entry(flight, &made);
    place.at = made.at;
    store_sealed(&flight->header->places[flight->notes++ % 2], &place, sizeof place,
                 lki_flight_seal(&place, sizeof place));
}

void lki_flight_failed(lki_flight *flight, lk_status status, const char *message)
{
    lki_flight_failure made = { .at = now_ns(CLOCK_MONOTONIC), .status = status };

    if (flight->failed)
        return;
    flight->failed = true;
    memcpy(made.text, message, strnlen(message, sizeof made.text - 1));
    store_sealed(&flight->header->failure, &made, sizeof made, lki_flight_seal(&made, sizeof made));
}

void lki_flight_went_on(lki_flight *flight)
{
    lki_flight_failure none  = { 0 };
    uint32_t           count = flight->header->entry_count;

    for (uint64_t n = flight->written; n > 0 && n + count > flight->written; n--)
        if (entry_of(flight, n)->kind == LKI_FLIGHT_OPERATION)
            lki_flight_end(flight, n, LKI_FATE_ABANDONED);
    flight->failed = false;
    store_sealed(&flight->header->failure, &none, sizeof none, 0);
}
