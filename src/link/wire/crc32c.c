/* crc32c.c -- CRC-32C: the remainder modulo x^32 + x^28 + x^27 + x^26 + ... (0x1edc6f41).  The bits
 * of every byte and of the result are in reversed order.
 *
 * The plain version processes a nibble at a time with a table of 16 entries.  The fast version uses
 * the processor's instruction for 8 bytes.  This instruction has a latency of three cycles, but the
 * processor can start one in every cycle.  Long data is therefore processed in three independent
 * chains over neighbouring blocks of bytes.  To join two chains, the remainder of the first is
 * shifted over the bytes of the second.  This shift is a multiplication by x^(8 * bytes).
 */
#include "link/wire/crc32c.h"

#include <string.h>

enum { BLOCK_BYTES = 8192 };

uint32_t lki_crc32c_plain(uint32_t sum, const void *data, size_t bytes)
{
    static const uint32_t nibbles[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const unsigned char *at = data;

    sum = ~sum;
    for (size_t i = 0; i < bytes; i++) {
        sum ^= at[i];
        sum = sum >> 4 ^ nibbles[sum & 15];
        sum = sum >> 4 ^ nibbles[sum & 15];
    }
    return ~sum;
}

#if defined __x86_64__

#define FAST __attribute__((target("sse4.2")))

static int fast_here(void)
{
    return __builtin_cpu_supports("sse4.2");
}

static const uint32_t polynomial = 0x82f63b78; /* reversed: bit 31 is x^0 */

FAST static uint32_t take_word(uint32_t sum, const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return (uint32_t)__builtin_ia32_crc32di(sum, word);
}

FAST static uint32_t take_byte(uint32_t sum, unsigned char byte)
{
    return __builtin_ia32_crc32qi(sum, byte);
}

/* Returns a * b modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (uint32_t bit = UINT32_C(1) << 31; bit != 0; bit >>= 1) {
        product ^= (a & bit) != 0 ? b : 0;
        b = (b & 1) != 0 ? b >> 1 ^ polynomial : b >> 1;
    }
    return product;
}

/* Computes x^(8 * BLOCK_BYTES) by squaring x log2(8 * BLOCK_BYTES) times. */
static uint32_t over_a_block(void)
{
    uint32_t power = UINT32_C(1) << 30;

    for (size_t exponent = 1; exponent < (size_t)8 * BLOCK_BYTES; exponent *= 2)
        power = multiply(power, power);
    return power;
}

/* Processes three blocks of BLOCK_BYTES bytes each. */
FAST static uint32_t take_blocks(uint32_t sum, const unsigned char *at, uint32_t over)
{
    uint32_t chains[3] = { sum, 0, 0 };

    for (size_t i = 0; i < BLOCK_BYTES; i += 8) {
        chains[0] = take_word(chains[0], at + i);
        chains[1] = take_word(chains[1], at + BLOCK_BYTES + i);
        chains[2] = take_word(chains[2], at + (size_t)2 * BLOCK_BYTES + i);
    }
    return multiply(multiply(chains[0], over) ^ chains[1], over) ^ chains[2];
}

FAST static uint32_t fast(uint32_t sum, const unsigned char *at, size_t bytes)
{
    const size_t three = (size_t)3 * BLOCK_BYTES;
    uint32_t     over  = bytes >= three ? over_a_block() : 0;

    sum = ~sum;
    for (; bytes >= three; at += three, bytes -= three)
        sum = take_blocks(sum, at, over);
    for (; bytes >= 8; at += 8, bytes -= 8)
        sum = take_word(sum, at);
    for (; bytes > 0; at++, bytes--)
        sum = take_byte(sum, *at);
    return ~sum;
}

uint32_t lki_crc32c(uint32_t sum, const void *data, size_t bytes)
{
    return fast_here() ? fast(sum, data, bytes) : lki_crc32c_plain(sum, data, bytes);
}

#else

uint32_t lki_crc32c(uint32_t sum, const void *data, size_t bytes)
{
    return lki_crc32c_plain(sum, data, bytes);
}

#endif
