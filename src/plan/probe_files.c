/* probe_files.c -- measures how fast an update can read and write files in a directory. */
#include "base/file.h"
#include "base/memory.h"
#include "base/store.h"
#include "plan/predict.h"

enum { PIECE = 2 << 20, PIECES = 64, BUFFERS = 4, AHEAD = 2 };

/* Reads piece k into buffer k mod 4 and writes it back while the next two pieces are read. */
static lk_status go_over(lki_store *store, uint8_t *buffers)
{
    for (uint32_t k = 0; k < PIECES + AHEAD; k++) {
        uint32_t here = k % BUFFERS, before = (k + BUFFERS - AHEAD) % BUFFERS;
        LK_TRY(lki_store_wait(store, here));
        if (k < PIECES)
            lki_store_start(store, here, false, buffers + (size_t)here * PIECE, PIECE,
                            (uint64_t)k * PIECE);
        LK_TRY(lki_store_wait(store, before));
        if (k >= AHEAD)
            lki_store_start(store, before, true, buffers + (size_t)before * PIECE, PIECE,
                            (uint64_t)(k - AHEAD) * PIECE);
    }
    for (uint32_t slot = 0; slot < BUFFERS; slot++)
        LK_TRY(lki_store_wait(store, slot));
    return LK_OK;
}

/* Measures the second pass, since the first pass has to create the file. */
lk_status lki_probe_files(double *rate, const char *dir)
{
    lki_store *store   = NULL;
    uint8_t   *buffers = NULL;
    *rate              = 0;
    if (dir == NULL)
        return LK_OK;
    LK_TRY(LKI_NEW(&buffers, BUFFERS * PIECE, "a probe of files")); /* uses huge pages */
    lk_status status = lki_store_open(&store, dir, (uint64_t)PIECES * PIECE);
    if (status == LK_OK)
        status = go_over(store, buffers);
    double begun = lki_seconds();
    if (status == LK_OK)
        status = go_over(store, buffers);
    *rate = 2.0 * PIECES * PIECE / (lki_seconds() - begun);
    lki_store_free(store);
    lki_free(buffers);
    return status;
}
