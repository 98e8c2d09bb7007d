/* statement_hash.c -- the hashes of a statement: fields, links, and the losses in checkpoints.  See
 * attest.c. */
#include "report/statement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "report/run_log.h"

enum { FIELD_DIGITS = 16, FIELD_NAME = 128 };

const char *lki_text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

uint64_t lki_step_of(const json_t *checkpoint)
{
    return (uint64_t)json_integer_value(json_object_get(checkpoint, "step"));
}

lk_status lki_hash_file(const char *path, char hex[65], uint64_t *bytes)
{
    lki_map    map;
    lki_sha256 hash;
    LK_TRY(lki_map_open(&map, path));
    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, map.data, map.bytes);
    lki_sha256_end(&hash, hex);
    *bytes = map.bytes;
    lki_map_close(&map);
    return LK_OK;
}

static void add_line(lki_sha256 *hash, const char *text)
{
    lki_sha256_add(hash, text, strlen(text));
    lki_sha256_add(hash, "\n", 1);
}

/* Computes the hash that the first link continues. */
static lk_status hash_origin(const json_t *root, char hex[65])
{
    lki_sha256 hash;
    json_t    *origin = json_copy((json_t *)(uintptr_t)root);
    (void)json_object_del(origin, "checkpoints");
    (void)json_object_del(origin, "losses");
    char *text = json_dumps(origin, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(origin);
    if (text == NULL)
        return lk_fail(LK_ENOMEM, "no memory for a statement");
    lki_sha256_begin(&hash);
    add_line(&hash, text);
    lki_sha256_end(&hash, hex);
    free(text);
    return LK_OK;
}

static json_t *hash_value(const json_t *value)
{
    char       hex[65];
    lki_sha256 hash;
    char      *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    lki_sha256_begin(&hash);
    add_line(&hash, text != NULL ? text : "");
    lki_sha256_end(&hash, hex);
    free(text);
    return json_stringn(hex, FIELD_DIGITS);
}

json_t *lki_statement_fields(const json_t *root)
{
    json_t     *fields = json_object(), *value, *inner;
    const char *key, *inner_key;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (strcmp(key, "checkpoints") == 0 || strcmp(key, "losses") == 0 ||
            strcmp(key, "fields") == 0)
            continue;
        json_t *hashes = json_is_object(value) ? json_object() : hash_value(value);
        json_object_foreach(value, inner_key, inner)
            (void)json_object_set_new(hashes, inner_key, hash_value(inner));
        (void)json_object_set_new(fields, key, hashes);
    }
    return fields;
}

/* Writes the first difference of two lists of hashes, such as "options.lr".  Returns false if they
 * are equal. */
static bool find_difference(const json_t *stated, const json_t *found, const char *head,
                            char *name, size_t bytes)
{
    const char   *key;
    json_t       *hash;
    const json_t *lists[] = { stated, found };
    for (size_t i = 0; i < 2; i++)
        json_object_foreach((json_t *)(uintptr_t)lists[i], key, hash)
        {
            const json_t *other = json_object_get(lists[1 - i], key);
            if (json_equal(hash, other))
                continue;
            (void)snprintf(name, bytes, "%s%s", head, key);
            if (!json_is_object(hash) || !json_is_object(other))
                return true;
            char inner[FIELD_NAME];
            (void)snprintf(inner, sizeof inner, "%.60s.", key);
            return find_difference(hash, other, inner, name, bytes);
        }
    return false;
}

/* Replaces `link` by the link of a checkpoint, after that of step `from`. */
static void hash_link(char link[65], const json_t *losses, uint64_t from, uint64_t step,
                      const char *weights, const char *manifest)
{
    lki_sha256 hash;
    char       step_text[32];
    lki_sha256_begin(&hash);
    add_line(&hash, link);
    for (uint64_t i = from; i < step && i < json_array_size(losses); i++) {
        const char *bits = json_string_value(json_array_get(losses, i));
        (void)snprintf(step_text, sizeof step_text, "%" PRIu64 " ", i + 1);
        lki_sha256_add(&hash, step_text, strlen(step_text));
        add_line(&hash, bits != NULL ? bits : "");
    }
    add_line(&hash, weights);
    add_line(&hash, manifest);
    lki_sha256_end(&hash, link);
}

void lki_loss_chain_extend(char chain[65], const json_t *losses, uint64_t from, uint64_t step)
{
    lki_sha256 hash;
    for (uint64_t i = from; i < step && i < json_array_size(losses); i++) {
        const char *bits = json_string_value(json_array_get(losses, i));
        lki_sha256_begin(&hash);
        lki_sha256_add(&hash, chain, strlen(chain));
        if (bits != NULL)
            lki_sha256_add(&hash, bits, lki_min(strlen(bits), LKI_LOSS_DIGITS));
        lki_sha256_end(&hash, chain);
    }
}

lk_status lki_loss_chain_check(const lk_checkpoint *checkpoint, const char *chain)
{
    const lk_checkpoint_info *info   = lk_checkpoint_describe(checkpoint);
    json_t                   *config = json_loads(info->config, 0, NULL);
    const char *own    = json_string_value(json_object_get(config, "loss-chain"));
    lk_status   status = LK_OK;
    if (own != NULL && own[0] != '\0' && strcmp(own, chain) != 0)
        status = lk_fail(LK_ECORRUPT,
                         "the checkpoint of step %" PRIu64 " is not of the run with these losses: "
                         "its hash of the losses of steps 1-%" PRIu64 " is %.16s..., and theirs is "
                         "%.16s...", info->step, info->step, own, chain);
    json_decref(config);
    return status;
}

/* Reports that a statement was changed: the field, or else where its chain breaks. */
static lk_status refuse_changed(const json_t *root, uint64_t from, uint64_t step)
{
    const json_t *stated = json_object_get(root, "fields");
    json_t       *found  = lki_statement_fields(root);
    char          name[FIELD_NAME];
    bool          named = json_is_object(stated) &&
                 find_difference(stated, found, "", name, sizeof name);
    json_decref(found);
    if (named)
        return lk_fail(LK_ECORRUPT, "the statement was changed: its '%s' is not what was stated, "
                                    "and the chain of hashes breaks", name);
    return lk_fail(LK_ECORRUPT,
                   "the statement was changed: its chain breaks at the checkpoint of step %" PRIu64
                   ", so a loss of steps %" PRIu64 "-%" PRIu64 " or a hash of that checkpoint is "
                   "not what was stated%s", step, from + 1, step,
                   stated == NULL && from == 0 ? ", or another field" : "");
}

lk_status lki_statement_links(json_t *root, bool compare)
{
    char      link[65];
    uint64_t  from = 0;
    size_t    i;
    json_t   *checkpoint, *losses = json_object_get(root, "losses");
    LK_TRY(hash_origin(root, link));
    json_array_foreach(json_object_get(root, "checkpoints"), i, checkpoint)
    {
        hash_link(link, losses, from, lki_step_of(checkpoint), lki_text_at(checkpoint, "weights"),
                  lki_text_at(checkpoint, "manifest"));
        if (compare && strcmp(link, lki_text_at(checkpoint, "link")) != 0)
            return refuse_changed(root, from, lki_step_of(checkpoint));
        from = lki_step_of(checkpoint);
        (void)json_object_set_new(checkpoint, "link", json_string(link));
    }
    return LK_OK;
}
