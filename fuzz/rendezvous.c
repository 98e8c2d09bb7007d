/* rendezvous.c -- letters between launchers: an accepted letter is written again as the same bytes,
 * and no letter is accepted before it is complete. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "launch/rendezvous/letter.h"

static size_t write_again(unsigned char *out, const lki_letter *letter)
{
    size_t used = lki_letter_write(out, letter);
    if (letter->kind == LKI_LETTER_ROSTER)
        for (uint32_t i = 0; i < letter->job.nodes; i++) {
            char     host[LKI_HOST_BYTES];
            uint32_t workers = lki_letter_host(letter, i, host);
            used += lki_letter_add_host(out + used, workers, host);
        }
    if (letter->kind == LKI_LETTER_INTRODUCTIONS)
        for (uint32_t i = 0; i < letter->workers.count; i++) {
            lki_introduction worker = lki_letter_introduction(letter, i);
            used += lki_letter_add_introduction(out + used, &worker);
        }
    if (letter->kind == LKI_LETTER_STANDING)
        for (uint32_t i = 0; i < letter->standing.count; i++)
            used += lki_letter_add_since(out + used, lki_letter_since(letter, i));
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lki_letter     letter, cut;
    size_t         used = 1, none;
    unsigned char *out  = malloc(LKI_LETTER_BYTES_MAX);

    LK_ASSERT(out != NULL);
    while (used > 0 && lki_letter_read(&letter, data, bytes, LKI_LETTER_BYTES_MAX, &used) == LK_OK
           && used > 0) {
        LK_ASSERT(used <= bytes && used <= LKI_LETTER_BYTES_MAX);
        LK_ASSERT(write_again(out, &letter) == used && memcmp(out, data, used) == 0);
        LK_ASSERT(lki_letter_read(&cut, data, used - 1, LKI_LETTER_BYTES_MAX, &none) == LK_OK);
        LK_ASSERT(none == 0);
        if (used > LKI_HELLO_BYTES_MAX)
            LK_ASSERT(lki_letter_read(&cut, data, used, LKI_HELLO_BYTES_MAX, &none) != LK_OK);
        data += used;
        bytes -= used;
    }
    free(out);
    return 0;
}
