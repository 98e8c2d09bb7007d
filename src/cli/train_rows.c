/* train_rows.c -- the options of train in the tables of commands that do something else with what
 * they describe: bench step, plan. */
#include <stdlib.h>
#include <string.h>

#include "cli/train.h"

enum { ROWS_MAX = 120, BATCH = 32 };
#define RATE 1e-4

static bool is_among(const char *name, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

/* What is required of train has a default here. */
static void relax(lki_option *row)
{
    if (strcmp(row->name, "MODEL") == 0)
        return;
    row->required = false;
    if (strcmp(row->name, "data") == 0)
        row->preset = "synthetic, of the model's shape";
    else if (strcmp(row->name, "global-batch") == 0)
        row->preset = "32";
    else if (strcmp(row->name, "lr") == 0)
        row->preset = "1e-4";
}

lki_option *lki_train_rows(const char *const *left_out, const lki_option *own)
{
    lki_option *rows  = calloc(ROWS_MAX, sizeof *rows);
    const char *group = NULL; /* of rows that were left out: the next one's */
    size_t      count = 0;
    for (const lki_option *o = lki_train_table; rows != NULL && o->type != LKI_OPTION_END; o++) {
        group = o->group != NULL ? o->group : group;
        if (is_among(o->name, left_out))
            continue;
        rows[count]       = *o;
        rows[count].group = group;
        group             = NULL;
        relax(&rows[count++]);
    }
    for (const lki_option *o = own; rows != NULL && o->type != LKI_OPTION_END; o++)
        rows[count++] = *o;
    return rows; /* ends with a zeroed row: LKI_OPTION_END */
}

void lki_train_defaults(lk_train_config *config)
{
    if (config->data == NULL && strcmp(config->model, "gpt") == 0)
        config->data = "synthetic:tokens=1000000,vocab=50257";
    else if (config->data == NULL && strcmp(config->model, "resnet") == 0)
        config->data = "synthetic:images=2048,h=32,w=32,c=3,classes=10";
    else if (config->data == NULL)
        config->data = "synthetic:images=8192,h=28,w=28,c=1,classes=10";
    if (config->global_batch == 0)
        config->global_batch = BATCH;
    if (config->schedule.lr == 0)
        config->schedule.lr = RATE;
}
