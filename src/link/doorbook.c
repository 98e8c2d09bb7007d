/* doorbook.c -- counts refused connections, and limits the rate of reports. */
#include "link/doorbook.h"

#include <stdio.h>
#include <string.h>

static void host_of(char out[LKI_ADDRESS_BYTES], const char *address)
{
    const char *colon = strrchr(address, ':');
    int length = colon != NULL ? (int)(colon - address) : (int)strlen(address);
    (void)snprintf(out, LKI_ADDRESS_BYTES, "%.*s", length, address);
}

static lki_doorbook_entry *entry_of(lki_doorbook *book, lki_refusal why, const char *address)
{
    char     host[LKI_ADDRESS_BYTES];
    uint32_t i = 0;

    host_of(host, address);
    while (i < book->count && (book->entries[i].why != why
                               || strcmp(book->entries[i].host, host) != 0))
        i++;
    if (i < book->count)
        return &book->entries[i];
    if (i + 1 >= LKI_DOORBOOK_PLACES) { /* table full, as in a flood from many hosts */
        i = LKI_DOORBOOK_PLACES - 1;
        (void)snprintf(host, sizeof host, "many hosts");
    }
    lki_doorbook_entry *entry = &book->entries[i];
    if (i == book->count) {
        *entry = (lki_doorbook_entry){ .told_ms = -1 };
        book->count++;
    }
    entry->why = why;
    memcpy(entry->host, host, sizeof host);
    return entry;
}

static void tell(lki_doorbook_entry *entry, int64_t now_ms, char text[LKI_DOORBOOK_TEXT_BYTES])
{
    char count[40] = "a connection";

    if (entry->untold > 1)
        (void)snprintf(count, sizeof count, "%llu connections", (unsigned long long)entry->untold);
    (void)snprintf(text, LKI_DOORBOOK_TEXT_BYTES, "refused %s from %s: %s%s%s", count, entry->host,
                   lki_refusal_text(entry->why), entry->more[0] != '\0' ? ": " : "", entry->more);
    entry->untold  = 0;
    entry->told_ms = now_ms;
}

static bool is_due(const lki_doorbook_entry *entry, int64_t now_ms)
{
    return entry->untold > 0
           && (entry->told_ms < 0 || now_ms - entry->told_ms >= LKI_DOORBOOK_REPEAT_MS);
}

bool lki_doorbook_enter(lki_doorbook *book, lki_refusal why, const char *address, const char *more,
                        int64_t now_ms, char text[LKI_DOORBOOK_TEXT_BYTES])
{
    lki_doorbook_entry *entry = entry_of(book, why, address);

    entry->untold++;
    (void)snprintf(entry->more, sizeof entry->more, "%s", more);
    if (!is_due(entry, now_ms))
        return false;
    tell(entry, now_ms, text);
    return true;
}

bool lki_doorbook_next(lki_doorbook *book, int64_t now_ms, lki_refusal *why,
                       char text[LKI_DOORBOOK_TEXT_BYTES])
{
    for (uint32_t i = 0; i < book->count; i++)
        if (is_due(&book->entries[i], now_ms)) {
            *why = book->entries[i].why;
            tell(&book->entries[i], now_ms, text);
            return true;
        }
    return false;
}
