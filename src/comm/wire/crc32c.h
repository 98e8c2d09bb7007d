/* comm/wire/crc32c.h -- CRC-32C (Castagnoli), by the processor's instruction where it has one. */
#ifndef LKI_COMM_CRC32C_H
#define LKI_COMM_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of `bytes` after what `sum` is of; begin with 0. */
uint32_t lki_crc32c(uint32_t sum, const void *data, size_t bytes);

/* The same, one byte after the other: what the fast one is compared with. */
uint32_t lki_crc32c_plain(uint32_t sum, const void *data, size_t bytes);

#endif
