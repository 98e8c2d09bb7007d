/* link/wire/crc32c.h -- CRC-32C (Castagnoli).  Uses the processor's CRC instruction if there is
 * one. */
#ifndef LKI_LINK_WIRE_CRC32C_H
#define LKI_LINK_WIRE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Returns the checksum of earlier data and `bytes` bytes at `data`.  `sum` is the checksum of the
 * earlier data, initially 0. */
uint32_t lki_crc32c(uint32_t sum, const void *data, size_t bytes);

/* Returns the same checksum as lki_crc32c(), computed one byte at a time.  Tests compare the
 * two. */
uint32_t lki_crc32c_plain(uint32_t sum, const void *data, size_t bytes);

#endif
