/* encode_i4.c -- the encoder of blocks of 4-bit integers.
 *
 * Error:  at most 1/14 of the largest magnitude in the block.
 * Bytes:  4 for the factor, then one per two integers: element i in the low bits, i + 128 in the
 *         high bits.
 */
#include "device/blocks.h"

enum { LEVELS = 7, BYTES = LKI_QUANTISED / 2 };

LKI_BLOCK_PART void pack(const int8_t *integers, unsigned char *to)
{
    for (size_t i = 0; i < BYTES; i++)
        to[i] = (unsigned char)((integers[i] & 15) | (integers[BYTES + i] & 15) << 4);
}

LKI_BLOCK_PART void unpack(const unsigned char *from, int8_t *integers)
{
    for (size_t i = 0; i < BYTES; i++) {
        unsigned char both  = from[i];
        integers[i]         = (int8_t)(((both & 15) ^ 8) - 8);
        integers[BYTES + i] = (int8_t)((both >> 4 ^ 8) - 8);
    }
}

LKI_BLOCK_ENCODER(I4, LEVELS, BYTES)
