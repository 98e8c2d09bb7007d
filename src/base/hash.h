/* base/hash.h -- SHA-256 (nettle) for hashes that people compare, XXH3 (xxHash) for internal
 * checks. */
#ifndef LKI_HASH_H
#define LKI_HASH_H

#include <nettle/sha2.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sha256_ctx lki_sha256;

void lki_sha256_begin(lki_sha256 *hash);
void lki_sha256_add(lki_sha256 *hash, const void *data, size_t bytes);
void lki_sha256_end(lki_sha256 *hash, char hex[65]);

uint64_t lki_xxh3(const void *data, size_t bytes);
/* The versions of lki_xxh3() for different register widths. lki_xxh3() selects the widest that this
 * processor supports. */
uint64_t lki_xxh3_plain(const void *data, size_t bytes);
uint64_t lki_xxh3_avx2(const void *data, size_t bytes);
uint64_t lki_xxh3_avx512(const void *data, size_t bytes);

void lki_xxh3_128(const void *data, size_t bytes, char hex[33]);

#endif
