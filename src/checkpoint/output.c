/* output.c -- writes a file block by block, and hashes each block while it is still in the cache.
 *
 * Cost: one copy into the block (1 MiB), XXH3-128 and SHA-256 over the block, one write().
 */
#include "checkpoint/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

lk_status lki_output_open(lki_output *out, const char *path, bool fresh)
{
    *out = (lki_output){ .path = path, .fd = -1 };
    LK_TRY(LKI_NEW(&out->block, LKI_BLOCK_BYTES, "a block to write"));
    out->blocks = json_array();
    if (out->blocks == NULL)
        return lk_fail(LK_ENOMEM, "the block hashes of '%s'", path);
    lki_sha256_begin(&out->hash);
    out->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (fresh ? O_EXCL : O_TRUNC), 0666);
    if (out->fd < 0)
        return lk_fail(LK_EIO, "cannot create '%s': %s", path, strerror(errno));
    return LK_OK;
}

static lk_status flush(lki_output *output)
{
    char hex[33];
    lki_xxh3_128(output->block, output->filled, hex);
    lki_sha256_add(&output->hash, output->block, output->filled);
    if (json_array_append_new(output->blocks, json_string(hex)) != 0)
        return lk_fail(LK_ENOMEM, "the block hashes of '%s'", output->path);

    for (size_t done = 0; done < output->filled;) {
        ssize_t wrote = write(output->fd, output->block + done, output->filled - done);
        if (wrote > 0)
            done += (size_t)wrote;
        else if (wrote == 0 || errno != EINTR)
            return lk_fail(LK_EIO, "cannot write '%s' at byte %llu: %s", output->path,
                           (unsigned long long)(output->bytes - output->filled + done),
                           wrote == 0 ? "nothing was accepted" : strerror(errno));
    }
    output->filled = 0;
    return LK_OK;
}

lk_status lki_output_add(lki_output *output, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        size_t part = lki_min(bytes, LKI_BLOCK_BYTES - output->filled);
        memcpy(output->block + output->filled, from, part);
        output->filled += part;
        output->bytes += part;
        from += part;
        bytes -= part;
        if (output->filled == LKI_BLOCK_BYTES)
            LK_TRY(flush(output));
    }
    return LK_OK;
}

lk_status lki_output_finish(lki_output *output, bool sync)
{
    if (output->filled > 0)
        LK_TRY(flush(output));
    lki_sha256_end(&output->hash, output->sha256);
    if (sync && fsync(output->fd) != 0)
        return lk_fail(LK_EIO, "cannot bring '%s' to the disk: fsync: %s", output->path,
                       strerror(errno));
    int fd     = output->fd;
    output->fd = -1;
    if (close(fd) != 0 && errno != EINTR)
        return lk_fail(LK_EIO, "cannot finish '%s': %s", output->path, strerror(errno));
    return LK_OK;
}

void lki_output_free(lki_output *output)
{
    if (output->fd >= 0)
        (void)close(output->fd);
    lki_free(output->block);
    json_decref(output->blocks);
    *output = (lki_output){ .fd = -1 };
}

lk_status lki_output_write(const char *path, bool fresh, const void *data, size_t bytes)
{
    lki_output output;
    lk_status  status = lki_output_open(&output, path, fresh);
    if (status == LK_OK)
        status = lki_output_add(&output, data, bytes);
    if (status == LK_OK)
        status = lki_output_finish(&output, true);
    lki_output_free(&output);
    return status;
}

/* Returns the text with the fewest digits from which all numbers can be read again. */
static char *dump(const json_t *object)
{
    static const size_t digits[] = { 9, 15, 17 };
    char               *text     = NULL;
    bool                same     = false;
    for (size_t i = 0; !same && i < sizeof digits / sizeof digits[0]; i++) {
        free(text);
        text = json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(digits[i]));
        json_t *again = text == NULL ? NULL : json_loads(text, JSON_ALLOW_NUL, NULL);
        same          = again != NULL && json_equal(again, object) == 1;
        json_decref(again);
    }
    return text;
}

lk_status lki_output_write_json(const char *path, const json_t *object)
{
    char *text = dump(object);
    if (text == NULL)
        return lk_fail(LK_ENOMEM, "'%s'", path);
    size_t length = strlen(text);
    text[length]  = '\n'; /* in place of the NUL */
    lk_status status = lki_output_write(path, true, text, length + 1);
    free(text);
    return status;
}
