/* gzip.c -- inflates a gzip file in memory, piece by piece.  Each call inflates only as many bytes
 * as requested.  The contents of several members (RFC 1952), as cat and bgzip write them, are one.
 *
 * The caller requests a number of bytes that it knows from a header, so a small file that inflates
 * to a terabyte costs nothing. zlib checks the content's CRC and length at its end.
 */
#include "data/files.h"

#include <limits.h>

#define ZLIB_CONST
#include <zlib.h>

#include "base/memory.h"

struct lki_gunzip {
    z_stream    stream;
    const char *path;
    size_t      input;  /* bytes not yet passed to zlib */
    size_t      before; /* bytes of content in the members before the current one */
    bool        opened; /* the stream is initialised */
    bool        ended;
};

bool lki_is_gzip(const uint8_t *data, size_t bytes)
{
    return bytes >= 2 && data[0] == 0x1f && data[1] == 0x8b;
}

lk_status lki_gunzip_open(lki_gunzip **out, const uint8_t *data, size_t bytes, const char *path)
{
    *out = NULL;
    lki_gunzip *gunzip = NULL;
    LK_TRY(LKI_NEW(&gunzip, 1, "gzip reader"));
    gunzip->path           = path;
    gunzip->input          = bytes;
    gunzip->stream.next_in = data;
    if (inflateInit2(&gunzip->stream, MAX_WBITS + 16) != Z_OK) { /* + 16: gzip format only */
        lki_free(gunzip);
        return lk_fail(LK_ENOMEM, "'%s': no memory for inflating", path);
    }
    gunzip->opened = true;
    *out = gunzip;
    return LK_OK;
}

void lki_gunzip_close(lki_gunzip *gunzip)
{
    if (gunzip == NULL)
        return;
    if (gunzip->opened)
        (void)inflateEnd(&gunzip->stream);
    lki_free(gunzip);
}

/* Passes more input to zlib, whose counts have 32 bits. */
static void refill(lki_gunzip *gunzip)
{
    if (gunzip->stream.avail_in == 0) {
        gunzip->stream.avail_in = (uInt)lki_min(gunzip->input, UINT_MAX);
        gunzip->input -= gunzip->stream.avail_in;
    }
}

/* Returns the number of bytes of the file that zlib has not read. */
static size_t left(const lki_gunzip *gunzip)
{
    return gunzip->stream.avail_in + gunzip->input;
}

/* Returns the number of bytes of content so far. */
static size_t content(const lki_gunzip *gunzip)
{
    return gunzip->before + gunzip->stream.total_out;
}

/* Begins the next member.  If there is none, the content has ended. */
static void end_member(lki_gunzip *gunzip)
{
    gunzip->ended = !lki_is_gzip(gunzip->stream.next_in, left(gunzip));
    if (gunzip->ended)
        return;
    gunzip->before = content(gunzip);
    (void)inflateReset(&gunzip->stream);
}

lk_status lki_gunzip_read(lki_gunzip *gunzip, uint8_t *out, size_t bytes, size_t *got)
{
    z_stream *z = &gunzip->stream;
    *got = 0;
    while (*got < bytes && !gunzip->ended) {
        refill(gunzip);
        uInt room    = (uInt)lki_min(bytes - *got, UINT_MAX);
        z->next_out  = out + *got;
        z->avail_out = room;
        int result   = inflate(z, Z_NO_FLUSH);
        *got += room - z->avail_out;
        if (result == Z_STREAM_END)
            end_member(gunzip);
        else if (result == Z_BUF_ERROR && z->avail_in == 0)
            return lk_fail(LK_EFORMAT, "'%s' is truncated: its gzip stream breaks off after %zu "
                                       "bytes of content", gunzip->path, content(gunzip));
        else if (result != Z_OK)
            return lk_fail(LK_EFORMAT, "'%s' is damaged after %zu bytes of content: %s",
                           gunzip->path, content(gunzip),
                           z->msg != NULL ? z->msg : "bad gzip data");
    }
    return LK_OK;
}

lk_status lki_gunzip_finish(lki_gunzip *gunzip)
{
    uint8_t one;
    size_t  got;
    LK_TRY(lki_gunzip_read(gunzip, &one, 1, &got));
    if (got != 0)
        return lk_fail(LK_EFORMAT, "'%s' has content after the %zu bytes that its header speaks "
                                   "of", gunzip->path, content(gunzip) - 1);
    if (left(gunzip) != 0)
        return lk_fail(LK_EFORMAT, "'%s' has %zu bytes after the end of its gzip stream",
                       gunzip->path, left(gunzip));
    return LK_OK;
}
