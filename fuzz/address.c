/* address.c -- any text as an address, of a peer's record or of the rendezvous.
 *
 * An accepted address is written in a form that parses to the same address.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "launch/rendezvous/endpoint.h"

static void read_numeric(const char *text)
{
    lki_address address, again;
    char        back[LKI_ADDRESS_BYTES], twice[LKI_ADDRESS_BYTES];

    if (lki_address_parse(&address, text) != LK_OK)
        return;
    (void)lki_address_is_loopback(&address);
    lki_address_text(back, &address);
    if (strchr(back, '%') != NULL) /* an interface of this machine, meaningless elsewhere */
        return;
    LK_ASSERT(lki_address_parse(&again, back) == LK_OK && again.bytes == address.bytes);
    lki_address_text(twice, &again);
    LK_ASSERT(strcmp(back, twice) == 0);
}

static void read_endpoint(const char *text)
{
    lki_endpoint endpoint;

    if (lki_endpoint_parse(&endpoint, text) != LK_OK)
        return;
    long port = strtol(endpoint.port, NULL, 10);
    LK_ASSERT(port >= 1 && port <= 65535 && endpoint.host[0] != '\0');
    LK_ASSERT(strstr(text, endpoint.host) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);

    LK_ASSERT(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    read_numeric(text);
    read_endpoint(text);
    free(text);
    return 0;
}
