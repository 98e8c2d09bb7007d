/* suggest.c -- finds the name that a mistyped word most likely means. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "cli/options.h"

static bool differ(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

/* Returns the edit distance of two words: letters to insert, drop or replace, and neighbours to
 * swap.  Capitals are equal to small letters.  Returns 99 if a word has more than 32 characters. */
static size_t distance(const char *a, const char *b)
{
    size_t rows[3][33], na = strlen(a), nb = strlen(b); /* distances for the first i - 2, i - 1 and
                                                         * i letters of `a`, in rotation */
    if (na > 32 || nb > 32)
        return 99;
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        const size_t *above = rows[(i - 1) % 3], *two_above = rows[(i + 1) % 3];
        size_t       *row   = rows[i % 3];
        row[0]              = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = above[j - 1] + differ(a[i - 1], b[j - 1]);
            bool   swap = i > 1 && j > 1 && !differ(a[i - 1], b[j - 2]) &&
                        !differ(a[i - 2], b[j - 1]);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (swap && two_above[j - 2] + 1 < best)
                best = two_above[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[na % 3][nb];
}

const char *lki_suggest(const char *word, const char *const *names, size_t count)
{
    size_t best   = count; /* `count`: no word was found yet */
    size_t length = strlen(word), limit = length < 4 ? 1 : length < 8 ? 2 : 3;
    for (size_t i = 0; i < count; i++) {
        size_t d = distance(word, names[i]);
        if (d <= limit) {
            best  = i;
            limit = d == 0 ? 0 : d - 1;
        }
    }
    for (size_t i = 0; i < count && best == count && length >= 3; i++)
        if (strncasecmp(word, names[i], length) == 0 ||
            strncasecmp(word, names[i], strlen(names[i])) == 0)
            best = i;
    return best < count ? names[best] : NULL;
}

const char *lki_suggest_option(const lki_command *command, const char *name)
{
    const char *names[LKI_OPTIONS_MAX];
    size_t      count = 0;
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        if (lki_is_named(o) && o->type != LKI_OPTION_LATER && count < LKI_OPTIONS_MAX)
            names[count++] = o->name;
    return lki_suggest(name, names, count);
}

const char *lki_suggest_long(const lki_command *command, const char *word)
{
    const char *names[] = { "help", lki_suggest_option(command, word) };
    return lki_suggest(word, names, names[1] == NULL ? 1 : 2);
}
