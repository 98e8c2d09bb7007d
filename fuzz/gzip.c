/* gzip.c -- any bytes as a gzip file: reading at once and in small pieces gives the same content,
 * or the same refusal. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "data/files.h"

enum { CONTENT_MAX = 1 << 16 }; /* no byte is read beyond this limit, so a bomb costs nothing */

/* Reads a file in pieces.  Returns true if all bytes before the limit were valid. */
static bool read_all(uint8_t *out, size_t *used, const uint8_t *data, size_t bytes, size_t piece)
{
    lki_gunzip *gunzip;
    lk_status   st = lki_gunzip_open(&gunzip, data, bytes, "input");
    size_t      got;

    *used = 0;
    LK_ASSERT(st == LK_OK);
    do {
        size_t want = piece < CONTENT_MAX - *used ? piece : CONTENT_MAX - *used;
        st          = lki_gunzip_read(gunzip, out + *used, want, &got);
        LK_ASSERT(got <= want);
        *used += got;
    } while (st == LK_OK && got == piece && *used < CONTENT_MAX);
    if (st == LK_OK && *used < CONTENT_MAX)
        st = lki_gunzip_finish(gunzip);
    lki_gunzip_close(gunzip);
    return st == LK_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t *whole = malloc(CONTENT_MAX), *pieces = malloc(CONTENT_MAX);
    size_t   length, length_of_pieces;

    LK_ASSERT(whole != NULL && pieces != NULL);
    bool good = read_all(whole, &length, data, bytes, CONTENT_MAX);
    LK_ASSERT(good == read_all(pieces, &length_of_pieces, data, bytes, 7));
    LK_ASSERT(!good || length == length_of_pieces);
    LK_ASSERT(memcmp(whole, pieces, length < length_of_pieces ? length : length_of_pieces) == 0);
    LK_ASSERT(!good || lki_is_gzip(data, bytes));
    free(whole);
    free(pieces);
    return 0;
}
