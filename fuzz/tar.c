/* tar.c -- any bytes as an archive: every member found lies inside the archive, and is found again
 * by a walk that begins at its header. */
#include "fuzz.h"

#include <string.h>

#include "data/files.h"

static void find_again(const uint8_t *data, size_t bytes, const lki_tar_member *member)
{
    static lki_tar tar;
    lki_tar_member again = { NULL, 0, 0, NULL, 0 };
    bool           more  = false;
    lki_tar_begin(&tar, data, bytes, "input");
    tar.at = member->start;
    LK_ASSERT(lki_tar_next(&tar, &again, &more) == LK_OK && more);
    LK_ASSERT(strcmp(again.name, member->name) == 0 && again.offset == member->offset &&
              again.bytes == member->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static lki_tar tar;
    lki_tar_member member;
    bool           more = true;
    size_t         end  = 0;
    unsigned       sum  = 0;
    lki_tar_begin(&tar, data, bytes, "input");
    while (lki_tar_next(&tar, &member, &more) == LK_OK && more) {
        LK_ASSERT(strlen(member.name) <= LKI_TAR_NAME_MAX && member.start >= end);
        LK_ASSERT(member.offset >= member.start + 512 && member.offset <= bytes);
        LK_ASSERT(member.bytes <= bytes - member.offset && member.content == data + member.offset);
        for (size_t i = 0; i < member.bytes; i++)
            sum += member.content[i];
        find_again(data, bytes, &member);
        end = member.offset + member.bytes;
    }
    LK_ASSERT(sum <= 255 * bytes);
    return 0;
}
