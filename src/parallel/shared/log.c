/* log.c -- writes and reads the file of a recorded run. */
#include "parallel/shared/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"

enum { REVISION = 1, HASH_BYTES = 8, BLOCKS_MAX = 16 };

static const char header_magic[8] = "lkshared", block_magic[4] = "lkbk";

/* ---- Writing ----------------------------------------------------------------------------- */

static lk_status write_header(const lk_shared_vector *v, int fd, const char *path)
{
    lki_log_header header = { .revision = REVISION,
                              .ranks    = v->ranks,
                              .count    = v->count,
                              .shift    = v->shift };
    memcpy(header.magic, header_magic, sizeof header.magic);
    if (pwrite(fd, &header, sizeof header, 0) != (ssize_t)sizeof header)
        return lk_fail(LK_EIO, "cannot write '%.200s': %s", path, strerror(errno));
    const int error = posix_fallocate(fd, 0, LKI_LOG_BLOCK);
    return error == 0 ? LK_OK : lk_fail(LK_EIO, "cannot write '%.200s': %s", path, strerror(error));
}

lk_status lki_log_open(lk_shared_vector *v, const char *path)
{
    if (v->rank != 0)
        LK_TRY(lk_barrier(v->comm)); /* rank 0 has created the file */
    const int create = v->rank == 0 ? O_CREAT | O_TRUNC : 0;
    v->log.fd        = open(path, O_RDWR | O_CLOEXEC | create, 0666);
    if (v->log.fd < 0)
        return lk_fail(LK_EIO, "cannot write '%.200s': %s", path, strerror(errno));
    if (v->rank != 0)
        return LK_OK;
    LK_TRY(write_header(v, v->log.fd, path));
    return lk_barrier(v->comm);
}

static void unmap(lki_shared_log *log)
{
    if (log->mapped != NULL)
        (void)munmap(log->mapped, (size_t)log->blocks * LKI_LOG_BLOCK);
    log->mapped = NULL;
}

void lki_log_close(lki_shared_log *log)
{
    unmap(log);
    if (log->fd >= 0)
        (void)close(log->fd);
    *log = (lki_shared_log){ .fd = -1 };
}

/* Claims consecutive blocks of the file and maps them: twice as many as before, so that ranks that
 * write much rarely call the system.  Those that stay unused are zero. */
static lk_status map_blocks(lk_shared_vector *v)
{
    lki_shared_log *log    = &v->log;
    const uint32_t  count  = log->blocks == 0           ? 1
                             : log->blocks < BLOCKS_MAX ? 2 * log->blocks
                                                        : BLOCKS_MAX;
    const uint32_t  number = 1 + atomic_fetch_add(&v->common->blocks, count);
    const off_t     at     = (off_t)number * LKI_LOG_BLOCK;
    const size_t    bytes  = (size_t)count * LKI_LOG_BLOCK;
    const int       error  = posix_fallocate(log->fd, at, (off_t)bytes);
    if (error != 0)
        return lk_fail(LK_EIO, "cannot extend the recording: %s; free space on its file system, or "
                               "train without recording", strerror(error));
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, log->fd, at);
    if (mapped == MAP_FAILED)
        return lk_fail(LK_EIO, "cannot map the recording: %s", strerror(errno));
#ifdef MADV_POPULATE_WRITE
    (void)madvise(mapped, bytes, MADV_POPULATE_WRITE); /* else each page faults once */
#endif
    unmap(log);
    log->mapped = mapped;
    log->blocks = count;
    log->block  = mapped;
    return LK_OK;
}

lk_status lki_log_new_block(lk_shared_vector *v)
{
    lki_shared_log *log  = &v->log;
    lki_log_block   head = { .rank = v->rank };
    if (log->block != NULL &&
        log->block + LKI_LOG_BLOCK < log->mapped + (size_t)log->blocks * LKI_LOG_BLOCK)
        log->block += LKI_LOG_BLOCK;
    else
        LK_TRY(map_blocks(v));
    memcpy(head.magic, block_magic, sizeof head.magic);
    memcpy(log->block, &head, sizeof head);
    log->used = sizeof head;
    return LK_OK;
}

static inline unsigned char *put_number(unsigned char *at, uint64_t number)
{
    for (; number >= 128; number >>= 7)
        *at++ = (unsigned char)(number | 128);
    *at++ = (unsigned char)number;
    return at;
}

/* Maps differences to numbers, those near zero to small ones. */
static uint64_t fold(int64_t difference)
{
    return (uint64_t)difference << 1 ^ (uint64_t)(difference >> 63);
}

static int64_t unfold(uint64_t number)
{
    return (int64_t)(number >> 1 ^ (0 - (number & 1)));
}

/* Writes an entry except for its first byte, which becomes *first.  Returns its end. */
static inline unsigned char *put_entry(lki_shared_log *log, unsigned char *at, lki_log_kind kind,
                                       uint64_t value, uint64_t second, unsigned char *first)
{
    const bool span = kind == LKI_LOG_READ || kind == LKI_LOG_WRITE;
    if (span) {
        const uint64_t difference = fold((int64_t)(value - log->last));
        log->last                 = value;
        value                     = difference;
    } else
        log->last = 0;
    const uint64_t head = value * LKI_LOG_KINDS + (uint64_t)kind + 1;
    *first              = (unsigned char)(head < 128 ? head : head | 128);
    at                  = head < 128 ? at + 1 : put_number(at + 1, head >> 7);
    if (kind != LKI_LOG_HASH)
        return put_number(at, second + 1);
    memcpy(at, &second, HASH_BYTES);
    return at + HASH_BYTES;
}

/* Completes entries of `bytes` bytes, which are in the block except for their first byte, by
 * writing this byte. */
static void show(lki_shared_log *log, unsigned char first, size_t bytes)
{
    __atomic_store_n(log->block + log->used, first, __ATOMIC_RELEASE);
    log->used += bytes;
}

void lki_log_append(lki_shared_log *log, lki_log_kind kind, uint64_t value, uint64_t second)
{
    unsigned char *const  at = log->block + log->used;
    unsigned char         first;
    const unsigned char  *end = put_entry(log, at, kind, value, second, &first);
    show(log, first, (size_t)(end - at));
}

void lki_log_append_reads(lki_shared_log *log, const lki_span_version *reads, size_t count)
{
    unsigned char *at = log->block + log->used, first, other;
    if (count == 0)
        return;
    at = put_entry(log, at, LKI_LOG_READ, reads[0].span, reads[0].version, &first);
    for (size_t i = 1; i < count; i++) {
        unsigned char *const begin = at;
        at     = put_entry(log, at, LKI_LOG_READ, reads[i].span, reads[i].version, &other);
        *begin = other;
    }
    show(log, first, (size_t)(at - log->block) - log->used);
}

/* ---- Reading ----------------------------------------------------------------------------- */

static lk_status find_blocks(lki_log_file *file, const char *path)
{
    LK_TRY(LKI_NEW(&file->next, file->blocks, "blocks of a recording"));
    LK_TRY(LKI_NEW(&file->first, file->header.ranks, "ranks of a recording"));
    for (uint32_t b = file->blocks - 1; b > 0; b--) {
        lki_log_block head;
        memcpy(&head, file->map.data + (size_t)b * LKI_LOG_BLOCK, sizeof head);
        if (memcmp(head.magic, "\0\0\0", sizeof head.magic) == 0)
            continue; /* claimed, but not used */
        if (memcmp(head.magic, block_magic, sizeof head.magic) != 0 ||
            head.rank >= file->header.ranks)
            return lk_fail(LK_EFORMAT, "block %u of the recording '%.200s' is damaged", b, path);
        file->next[b]          = file->first[head.rank];
        file->first[head.rank] = b;
    }
    return LK_OK;
}

lk_status lki_log_map(lki_log_file *out, const char *path)
{
    *out = (lki_log_file){ 0 };
    LK_TRY(lki_map_open(&out->map, path));
    lki_log_header *header = &out->header;
    if (out->map.bytes >= LKI_LOG_BLOCK)
        memcpy(header, out->map.data, sizeof *header);
    out->blocks = (uint32_t)(out->map.bytes / LKI_LOG_BLOCK);
    if (memcmp(header->magic, header_magic, sizeof header->magic) != 0 ||
        header->revision != REVISION || header->shift > 32 || header->ranks == 0 ||
        header->ranks > LKI_RANKS_MAX)
        return lk_fail(LK_EFORMAT, "'%.200s' is not a recording of a shared vector, or one of "
                                   "another version of Lockstep", path);
    return find_blocks(out, path);
}

void lki_log_unmap(lki_log_file *file)
{
    lki_map_close(&file->map);
    lki_free(file->next);
    lki_free(file->first);
}

lki_log_cursor lki_log_begin(const lki_log_file *file, uint32_t rank)
{
    const uint64_t block = file->first[rank];
    return (lki_log_cursor){ block == 0 ? 0 : block * LKI_LOG_BLOCK + sizeof(lki_log_block),
                             0, false };
}

/* Reads a number before `end`.  Returns NULL if it is incomplete: no number of several bytes ends
 * with a zero. */
static const uint8_t *get_number(const uint8_t *at, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (unsigned bits = 0; at < end && bits < 64; bits += 7) {
        const uint8_t byte = *at++;
        *out |= (uint64_t)(byte & 127) << bits;
        if (byte < 128)
            return byte == 0 ? NULL : at;
    }
    return NULL;
}

static const uint8_t *get_entry(const uint8_t *at, const uint8_t *end, lki_log_cursor *cursor,
                                lki_log_entry *out)
{
    uint64_t head, second;
    if ((at = get_number(at, end, &head)) == NULL)
        return NULL;
    out->kind  = (lki_log_kind)((head - 1) % LKI_LOG_KINDS);
    out->value = (head - 1) / LKI_LOG_KINDS;
    if (out->kind == LKI_LOG_HASH) {
        if (end - at < HASH_BYTES)
            return NULL;
        memcpy(&out->second, at, HASH_BYTES);
        at += HASH_BYTES;
    } else {
        if ((at = get_number(at, end, &second)) == NULL)
            return NULL;
        out->second = second - 1;
    }
    if (out->kind == LKI_LOG_READ || out->kind == LKI_LOG_WRITE)
        cursor->last = out->value = cursor->last + (uint64_t)unfold(out->value);
    else
        cursor->last = 0;
    return at;
}

/* Returns true if entries may end at `at`.  `torn` is true if it has a part of an entry. */
static bool may_end(const lki_log_file *file, uint64_t at, bool torn)
{
    const uint64_t block = at / LKI_LOG_BLOCK, end = (block + 1) * LKI_LOG_BLOCK;
    uint8_t        rest  = 0;
    for (uint64_t i = torn ? at + LKI_LOG_ENTRY_MAX : at; i < end; i++)
        rest |= file->map.data[i];
    return rest == 0 && !(torn && file->next[block] != 0);
}

bool lki_log_read(const lki_log_file *file, lki_log_cursor *cursor, lki_log_entry *out)
{
    const uint8_t *data = file->map.data;
    while (cursor->at != 0) {
        const uint64_t block = cursor->at / LKI_LOG_BLOCK, end = (block + 1) * LKI_LOG_BLOCK;
        if (cursor->at < end && data[cursor->at] != 0) {
            const uint8_t *at = get_entry(data + cursor->at, data + end, cursor, out);
            if (at == NULL) {
                cursor->damaged = !may_end(file, cursor->at, true);
                break;
            }
            cursor->at = (uint64_t)(at - data);
            return true;
        }
        if (!may_end(file, cursor->at, false)) {
            cursor->damaged = true;
            break;
        }
        cursor->at = file->next[block] == 0 ? 0
                                            : (uint64_t)file->next[block] * LKI_LOG_BLOCK +
                                                  sizeof(lki_log_block);
    }
    return false;
}
