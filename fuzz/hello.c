/* hello.c -- the first line of a stream: an accepted line has exactly the bytes that the writer
 * would produce for its contents. */
#include "fuzz.h"

#include <string.h>

#include "base/status.h"
#include "link/hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const lki_hello mine = { .epoch = 7, .to = 1 };
    lki_hello              hello;
    char                   text[LKI_HELLO_BYTES], back[LKI_HELLO_BYTES];

    if (bytes >= sizeof text)
        bytes = sizeof text - 1;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (!lki_hello_parse(&hello, text))
        return 0;
    lki_hello_text(back, &hello);
    LK_ASSERT(strcmp(text, back) == 0 && lki_hello_begins(text, strlen(text)));
    if (lki_hello_judge(&hello, &mine, 4, 2) == LKI_WELCOME)
        LK_ASSERT(hello.epoch == 7 && hello.to == 1 && hello.from != 1 && hello.from < 4
                  && hello.stream < 2);
    return 0;
}
