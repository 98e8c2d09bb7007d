/* text.c -- bytes of a model as UTF-8; see text.h. */
#include "cli/text.h"

#include <string.h>

#define UNKNOWN "\xef\xbf\xbd" /* U+FFFD */

/* Returns the bytes of the character that begins with `c`; 0 if none does. */
static size_t length_of(unsigned char c)
{
    return c < 0x80 ? 1 : c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3
           : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
}

/* Returns true if `c` may follow the held bytes: no overlong forms, surrogates, or values above
 * U+10FFFF. */
static bool may_follow(const lki_text *t, unsigned char c)
{
    unsigned char low = 0x80, high = 0xbf;
    if (t->count == 1 && t->held[0] == 0xe0)
        low = 0xa0;
    if (t->count == 1 && t->held[0] == 0xed)
        high = 0x9f;
    if (t->count == 1 && t->held[0] == 0xf0)
        low = 0x90;
    if (t->count == 1 && t->held[0] == 0xf4)
        high = 0x8f;
    return c >= low && c <= high;
}

static void write_byte(lki_text *t, unsigned char c, FILE *out)
{
    if (t->count > 0 && !may_follow(t, c))
        lki_text_end(t, out);
    if (t->count == 0) {
        t->wanted    = length_of(c);
        bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
        if (t->wanted == 0 || (control && !t->controls)) {
            fputs(UNKNOWN, out);
            return;
        }
    }
    t->held[t->count++] = c;
    if (t->count < t->wanted)
        return;
    bool control = t->wanted == 2 && t->held[0] == 0xc2 && t->held[1] < 0xa0; /* C1 */
    if (control && !t->controls)
        fputs(UNKNOWN, out);
    else
        (void)fwrite(t->held, 1, t->count, out);
    t->count = 0;
}

void lki_text_write(lki_text *text, const char *bytes, size_t count, FILE *out)
{
    for (size_t i = 0; i < count; i++)
        write_byte(text, (unsigned char)bytes[i], out);
}

void lki_text_end(lki_text *text, FILE *out)
{
    if (text->count > 0)
        fputs(UNKNOWN, out);
    text->count = 0;
}

void lki_print_safely(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++)
        putchar(*c < 32 || *c == 127 ? '?' : *c);
}
