/* settings.c -- parses the arguments of a spec: settings of the form NAME=NUMBER, and pairs of
 * paths. */
#include "data/source.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static const lki_setting *find(const lki_setting *table, const char *text, size_t length)
{
    for (; table->key != NULL; table++)
        if (strlen(table->key) == length && memcmp(table->key, text, length) == 0)
            return table;
    return NULL;
}

/* Parses decimal digits up to `end`; returns false on overflow. */
static bool parse_number(uint64_t *out, const char *text, const char *end)
{
    uint64_t value = 0;
    if (text == end)
        return false;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

/* Writes the known settings, e.g. "vocab=N, width=N". */
static void list_settings(const lki_setting *table, char *out, size_t bytes)
{
    size_t used = 0;
    out[0]      = '\0';
    for (; table->key != NULL && used < bytes; table++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%s=N", used > 0 ? ", " : "",
                                 table->key);
}

static lk_status parse_one(const char *text, const char *end, const lki_setting *table,
                           uint64_t *seen, const char *spec)
{
    const char        *equals = memchr(text, '=', (size_t)(end - text));
    const lki_setting *row = equals != NULL ? find(table, text, (size_t)(equals - text)) : NULL;
    uint64_t           value;
    if (row == NULL) {
        char known[128];
        list_settings(table, known, sizeof known);
        return lk_fail(LK_EINVAL, "'%s': '%.*s' is no setting of this source; there are %s", spec,
                       (int)(end - text), text, known);
    }
    uint64_t bit = UINT64_C(1) << (row - table);
    if ((*seen & bit) != 0)
        return lk_fail(LK_EINVAL, "'%s' gives %s twice", spec, row->key);
    *seen |= bit;
    if (!parse_number(&value, equals + 1, end) || value < row->min || value > row->max)
        return lk_fail(LK_EINVAL, "'%s': %s must be a whole number from %llu to %llu, not '%.*s'",
                       spec, row->key, (unsigned long long)row->min, (unsigned long long)row->max,
                       (int)(end - equals - 1), equals + 1);
    *row->value = value;
    return LK_OK;
}

lk_status lki_settings_parse(const char *text, char separator, const lki_setting *table,
                             const char *spec)
{
    uint64_t seen = 0;
    for (;;) {
        const char *end = strchr(text, separator);
        LK_TRY(parse_one(text, end != NULL ? end : text + strlen(text), table, &seen, spec));
        if (end == NULL)
            return LK_OK;
        text = end + 1;
    }
}

static lk_status copy(char **out, const char *text, size_t length)
{
    LK_TRY(LKI_NEW(out, length + 1, "path"));
    memcpy(*out, text, length);
    return LK_OK;
}

lk_status lki_split_pair(char *path[2], const char *text, const char *form)
{
    path[0] = path[1] = NULL;
    const char *comma = strchr(text, ',');
    if (comma == NULL || comma == text || comma[1] == '\0' || strchr(comma + 1, ',') != NULL)
        return lk_fail(LK_EINVAL, "'%s' is not two paths with one comma between them: write %s",
                       text, form);
    LK_TRY(copy(&path[0], text, (size_t)(comma - text)));
    return copy(&path[1], comma + 1, strlen(comma + 1));
}

const char *lk_dataset_path_ends(const char *spec)
{
    static const struct {
        const char *kind, *ends;
    } kinds[] = { { "text:", "" }, { "cifar10:", "" }, { "csv:", "" }, { "idx:", "," },
                  { "npy:", "," } };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strncmp(spec, kinds[i].kind, strlen(kinds[i].kind)) == 0)
            return kinds[i].ends;
    return "?";
}
