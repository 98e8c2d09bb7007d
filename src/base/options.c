/* options.c -- copies options structs, which may be older or newer than this library. */
#include "base/options.h"

#include <string.h>

#include "base/status.h"

/* The limit of struct_size.  A struct_size that was never set is often a large number. */
enum { BYTES_MAX = 1 << 16, NAME_MAX_BYTES = 40 };

static size_t size_of(const void *options)
{
    size_t bytes;
    memcpy(&bytes, options, sizeof bytes);
    return bytes;
}

static lk_status refuse_size(size_t bytes, const char *type)
{
    char   name[NAME_MAX_BYTES];
    size_t i = 0;

    for (; type[i] != '\0' && i + 1 < sizeof name; i++)
        name[i] = (char)(type[i] >= 'a' && type[i] <= 'z' ? type[i] - 'a' + 'A' : type[i]);
    name[i] = '\0';
    return lk_fail(LK_EINVAL, "%s.struct_size is %zu: begin with %s_INIT", type, bytes, name);
}

static bool is_zero(const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != 0)
            return false;
    return true;
}

lk_status lki_options_copy(void *mine, size_t bytes, const void *given, const char *type)
{
    LK_ASSERT(bytes >= sizeof bytes && bytes <= BYTES_MAX);
    memset(mine, 0, bytes);
    memcpy(mine, &bytes, sizeof bytes);
    if (given == NULL)
        return LK_OK;
    const size_t size = size_of(given);
    if (size < sizeof size || size > BYTES_MAX)
        return refuse_size(size, type);
    if (size > bytes && !is_zero((const unsigned char *)given + bytes, size - bytes))
        return lk_fail(LK_EUNSUPPORTED,
                       "%s has %zu bytes that this library does not know; it is "
                       "older than the program",
                       type, size - bytes);
    memcpy((unsigned char *)mine + sizeof size, (const unsigned char *)given + sizeof size,
           (size < bytes ? size : bytes) - sizeof size);
    return LK_OK;
}

void lki_options_return(void *given, const void *mine)
{
    const size_t theirs = size_of(given), ours = size_of(mine);

    memcpy((unsigned char *)given + sizeof ours, (const unsigned char *)mine + sizeof ours,
           (theirs < ours ? theirs : ours) - sizeof ours);
}
