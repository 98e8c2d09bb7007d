/* encode_i8.c -- the encoder of blocks of 8-bit integers.
 *
 * Error:  at most 1/254 of the largest magnitude in the block.
 * Bytes:  4 for the factor, then one per integer.
 */
#include "device/blocks.h"

enum { LEVELS = 127, BYTES = LKI_QUANTISED };

LKI_BLOCK_PART void pack(const int8_t *integers, unsigned char *to)
{
    memcpy(to, integers, BYTES);
}

LKI_BLOCK_PART void unpack(const unsigned char *from, int8_t *integers)
{
    memcpy(integers, from, BYTES);
}

LKI_BLOCK_ENCODER(I8, LEVELS, BYTES)
