/* types.c -- the types of the weights in a Hugging Face folder; see types.h. */
#include "train/saves/types.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/directory.h"
#include "train/saves/save.h"

#define TYPES_NAME "weight_types.json"

lk_status lki_types_list(json_t **out, const lki_folder *folder)
{
    const lk_tensor *tensor;
    *out = json_object();
    for (size_t i = 0; *out != NULL && (tensor = lki_folder_at(folder, i)) != NULL; i++)
        (void)json_object_set_new(*out, lki_init_bare(tensor->name),
                                  json_string(lk_dtype_name(tensor->dtype)));
    return *out != NULL ? LK_OK : lk_fail(LK_ENOMEM, "the types of tensors");
}

lk_status lki_types_keep(const char *from, const char *to)
{
    char        path[LKI_PATH_BYTES];
    lki_folder *folder = NULL;
    json_t     *types  = NULL;
    LK_TRY(lki_directory_join(path, to, TYPES_NAME));
    LK_TRY(lki_folder_open(&folder, from));
    lk_status status = lki_types_list(&types, folder);
    char     *text   = types == NULL ? NULL : json_dumps(types, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (status == LK_OK)
        status = text == NULL ? lk_fail(LK_ENOMEM, "'%s'", path)
                              : lki_file_replace(path, text, strlen(text));
    free(text);
    json_decref(types);
    lki_folder_free(folder);
    return status;
}

lk_status lki_types_read(json_t **out, const char *run)
{
    char         path[LKI_PATH_BYTES];
    json_error_t error;
    *out = NULL;
    LK_TRY(lki_directory_join(path, run, TYPES_NAME));
    if (access(path, F_OK) != 0)
        return LK_OK;
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    return *out != NULL ? LK_OK
                        : lk_fail(LK_EFORMAT, "%s: line %d: %s; give the type of the weights as "
                                              "`dtype`", path, error.line, error.text);
}

lk_status lki_types_find(lk_dtype *dtype, const json_t *types, const char *param, const char *path)
{
    static const lk_dtype known[] = { LK_F32, LK_BF16, LK_F16 };
    const json_t         *type    = json_object_get(types, param);
    const char           *name    = json_string_value(type);
    if (type == NULL)
        return LK_OK;
    for (size_t i = 0; name != NULL && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, lk_dtype_name(known[i])) == 0) {
            *dtype = known[i];
            return LK_OK;
        }
    return lk_fail(LK_EFORMAT, "'%s': tensor '%s' is %s, not F32, BF16 or F16; give the type of "
                               "the weights as `dtype`", path, param,
                   name != NULL ? name : "of no type");
}
