/* key.c -- derives keys for each purpose from a job's key (HKDF-SHA256, RFC 5869). */
#include "link/tls.h"

#include <nettle/hkdf.h>
#include <nettle/hmac.h>
#include <string.h>

static const unsigned char SALT[] = "lockstep keys 1"; /* separates these keys from keys that are
                                                        * derived from the job's key for other
                                                        * purposes */

void lki_key_derive(unsigned char out[LKI_KEY_BYTES], const unsigned char key[LKI_KEY_BYTES],
                    const char *purpose)
{
    struct hmac_sha256_ctx   hmac;
    unsigned char            master[SHA256_DIGEST_SIZE];
    nettle_hash_update_func *update = (nettle_hash_update_func *)hmac_sha256_update;
    nettle_hash_digest_func *digest = (nettle_hash_digest_func *)hmac_sha256_digest;

    hmac_sha256_set_key(&hmac, sizeof SALT - 1, SALT);
    hkdf_extract(&hmac, update, digest, sizeof master, LKI_KEY_BYTES, key, master);
    hmac_sha256_set_key(&hmac, sizeof master, master);
    hkdf_expand(&hmac, update, digest, sizeof master, strlen(purpose), (const uint8_t *)purpose,
                LKI_KEY_BYTES, out);
    explicit_bzero(&hmac, sizeof hmac);
    explicit_bzero(master, sizeof master);
}
