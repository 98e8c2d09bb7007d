/* frame.c -- the header of a frame: an accepted header is within the limits, and encodes to the
 * same bytes. */
#include "fuzz.h"

#include <string.h>

#include "base/status.h"
#include "link/wire/crc32c.h"
#include "link/wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    unsigned char header[LKI_FRAME_BYTES], again[LKI_FRAME_BYTES];
    lki_frame     frame;

    if (bytes < sizeof header)
        return 0;
    memcpy(header, data, sizeof header);
    uint32_t sum = lki_crc32c(0, header, sizeof header - 4);
    for (size_t i = 0; i < 4 && data[bytes - 1] % 2 == 0; i++) /* corrects the checksum in half of
                                                                * the cases, because otherwise no
                                                                * input would be accepted */
        header[sizeof header - 4 + i] = (unsigned char)(sum >> 8 * i);
    if (lki_frame_decode(&frame, header) != LK_OK)
        return 0;
    lki_frame_encode(again, &frame);
    LK_ASSERT(memcmp(header, again, sizeof header) == 0);
    LK_ASSERT(frame.bytes <= LKI_FRAME_PIECE_BYTES);
    LK_ASSERT(frame.kind != LKI_FRAME_PIECE || frame.offset + frame.bytes <= frame.total);
    return 0;
}
