/* train_rows.c -- the rows of train's options for other commands (bench step, plan, verify), and
 * functions that read some of train's values. */
#include <stdlib.h>
#include <string.h>

#include "cli/train.h"
#include "cli/values.h"

enum { BATCH = 32, VOCABULARY = 50257 };
#define RATE 1e-4

/* ---- Scales ------------------------------------------------------------------------------ */

/* Reads a scale whose multiplication is exact: a power of two. */
static bool read_scale(const char *text, double *out, lki_message *error)
{
    lk_loss_scaling scaling = { .rule = LK_SCALE_FIXED };
    if (!lki_parse_real(text, strlen(text), &scaling.initial) || scaling.initial == 0 ||
        lk_loss_scaling_check(&scaling) != LK_OK)
        return lki_refuse(error, "must be a power of two from 2^-24 to 2^32, such as 65536");
    *out = scaling.initial;
    return true;
}

bool lki_read_loss_scale(const char *text, void *target, lki_message *error)
{
    lk_loss_scaling *scaling = &((train_options *)target)->config.scaling;
    if (strcmp(text, "none") == 0)
        scaling->rule = LK_SCALE_NONE;
    else if (strcmp(text, "pytorch") == 0)
        scaling->rule = LK_SCALE_PYTORCH;
    else if (strcmp(text, "deepspeed") == 0)
        scaling->rule = LK_SCALE_DEEPSPEED;
    else if (strspn(text, "0123456789.+-eE") == strlen(text))
        scaling->rule = LK_SCALE_FIXED;
    else
        return lki_refuse(error, "must be pytorch, deepspeed, none, or a power of two, such as "
                                 "1024");
    return scaling->rule != LK_SCALE_FIXED || read_scale(text, &scaling->initial, error);
}

bool lki_read_initial_scale(const char *text, void *target, lki_message *error)
{
    return read_scale(text, &((train_options *)target)->config.scaling.initial, error);
}

bool lki_read_rebalance(const char *text, void *target, lki_message *error)
{
    lk_train_config *c     = &((train_options *)target)->config;
    const char      *drawn = "random:";
    size_t           most  = strlen(drawn);

    c->elastic.rebalance = LK_REBALANCE_ON;
    if (strcmp(text, "auto") == 0)
        c->elastic.rebalance = LK_REBALANCE_DEFAULT;
    else if (strcmp(text, "off") == 0)
        c->elastic.rebalance = LK_REBALANCE_OFF;
    else if (strncmp(text, drawn, most) == 0 &&
             lki_parse_u64(text + most, strlen(text + most), &c->elastic.rebalance_seed) &&
             c->elastic.rebalance_seed > 0)
        return true;
    else if (strcmp(text, "on") != 0)
        return lki_refuse(error, "must be auto, on, off, or random: and a seed of 1 or more");
    return true;
}

bool lki_read_duplicate(const char *text, void *target, lki_message *error)
{
    static const char *const names[] = { "off", "auto", "on" }; /* in the order of lk_duplicate */
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            ((train_options *)target)->config.elastic.duplicate = (lk_duplicate)i;
            return true;
        }
    return lki_refuse(error, "must be off, auto or on");
}

/* ---- Groups ------------------------------------------------------------------------------ */

/* Reads "lr=X" or "decay=Y"; each may occur once. */
static bool read_saying(const char *text, size_t length, lk_param_group *group)
{
    static const char *const keys[] = { "lr=", "decay=" };
    for (size_t k = 0; k < 2; k++) {
        size_t  key = strlen(keys[k]);
        double *to  = k == 0 ? &group->lr : &group->weight_decay;
        bool   *has = k == 0 ? &group->has_lr : &group->has_decay, again = *has;
        if (length <= key || strncmp(text, keys[k], key) != 0)
            continue;
        *has = true;
        return !again && lki_parse_real(text + key, length - key, to) && *to >= 0;
    }
    return false;
}

static bool read_one_group(const char *text, size_t length, lk_param_group *group)
{
    const char *end = text + length, *colon = memchr(text, ':', length);
    *group          = (lk_param_group){ .has_lr = false };
    if (colon == NULL || colon == text || (size_t)(colon - text) >= sizeof group->pattern)
        return false;
    memcpy(group->pattern, text, (size_t)(colon - text));
    for (const char *at = colon + 1, *next; at <= end; at = next + 1) {
        next = memchr(at, ',', (size_t)(end - at));
        next = next == NULL ? end : next;
        if (!read_saying(at, (size_t)(next - at), group))
            return false;
    }
    return true;
}

bool lki_read_group(const char *text, void *target, lki_message *error)
{
    lk_train_config *config = &((train_options *)target)->config;
    for (const char *next; text != NULL; text = *next == ';' ? next + 1 : NULL) {
        next = text + strcspn(text, ";");
        if (config->group_count == LK_GROUPS_MAX)
            return lki_refuse(error, "there are more than %d groups", LK_GROUPS_MAX);
        if (!read_one_group(text, (size_t)(next - text), &config->groups[config->group_count++]))
            return lki_refuse(error, "must be PATTERN:lr=X,decay=Y, each once and one may be left "
                                     "out, such as '*.bias:lr=2' or 'wte.*:lr=0.1,decay=0'");
    }
    return true;
}

/* Reads iid, shards:S, dirichlet:ALPHA or files. */
bool lki_read_split(const char *text, void *target, lki_message *error)
{
    static const char *const names[] = { "iid", "shards:", "dirichlet:", "files" };
    lk_train_clients        *k = &((train_options *)target)->config.exchange.clients;
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t length = strlen(names[i]);
        const char  *number = text + length;
        if (strncmp(text, names[i], length) != 0)
            continue;
        k->split = (lk_split)i;
        if (names[i][length - 1] != ':' ? *number == '\0'
                                        : lki_parse_real(number, strlen(number), &k->split_by))
            return true;
    }
    return lki_refuse(error, "must be iid, shards:S, dirichlet:ALPHA or files, such as shards:2");
}

bool lki_read_freeze(const char *text, void *target, lki_message *error)
{
    uint64_t *steps = &((train_options *)target)->config.exchange.freeze_step;
    if (strcmp(text, "auto") == 0) {
        *steps = LK_START_AUTO;
        return true;
    }
    if (lki_parse_u64(text, strlen(text), steps) && *steps > 0 && *steps <= UINT64_MAX >> 16)
        return true;
    return lki_refuse(error, "must be auto, or a number of steps from 1 on");
}

/* Returns the text behind `prefix`; NULL if `text` does not begin with it. */
static const char *behind(const char *prefix, const char *text)
{
    const size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

bool lki_read_staleness(const char *text, void *target, lki_message *error)
{
    lk_train_async *a      = &((train_options *)target)->config.exchange.async;
    const char     *number = behind("versions:", text);
    uint64_t        most;
    a->staleness   = 0;
    a->in_versions = number != NULL;
    if (strcmp(text, "none") == 0)
        return true;
    number = number != NULL ? number : text;
    if (!lki_parse_u64(number, strlen(number), &most) || most > 1 << 30)
        return lki_refuse(error, "must be none, a number of tasks from 0 on, or versions:T with "
                                 "a number of versions, such as versions:8");
    a->staleness = (uint32_t)most + 1;
    return true;
}

bool lki_read_delays(const char *text, void *target, lki_message *error)
{
    static const struct { const char *name; lk_delays delays; } models[] = {
        { "constant", LK_DELAYS_CONSTANT },
        { "exponential", LK_DELAYS_EXPONENTIAL },
        { "tokens", LK_DELAYS_GIVEN },
    };
    lk_train_async *a      = &((train_options *)target)->config.exchange.async;
    const char     *spread = behind("lognormal:", text), *trace = behind("trace:", text);
    a->spread = 0;
    a->trace  = NULL;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strcmp(text, models[i].name) == 0) {
            a->delays = models[i].delays;
            return true;
        }
    a->delays = trace != NULL ? LK_DELAYS_GIVEN : LK_DELAYS_LOGNORMAL;
    a->trace  = trace;
    if (trace != NULL && trace[0] != '\0')
        return true;
    if (spread != NULL && lki_parse_real(spread, strlen(spread), &a->spread) && a->spread > 0 &&
        a->spread <= 4)
        return true;
    return lki_refuse(error, "must be constant, exponential, tokens, trace:FILE, or lognormal:S "
                             "with S above 0 and up to 4, such as lognormal:0.3");
}

/* Reads a number, constant:L or adaptive:L. */
bool lki_read_compensation(const char *text, void *target, lki_message *error)
{
    lk_train_async *a        = &((train_options *)target)->config.exchange.async;
    const char     *adaptive = behind("adaptive:", text), *constant = behind("constant:", text);
    const char     *number   = adaptive != NULL ? adaptive : constant != NULL ? constant : text;
    a->adaptive = adaptive != NULL;
    if (lki_parse_real(number, strlen(number), &a->compensation) && a->compensation >= 0 &&
        (a->compensation > 0 || !a->adaptive))
        return true;
    return lki_refuse(error, "must be a number from 0 on, such as 0.04 or constant:0.04, or "
                             "adaptive:L with L above 0, such as adaptive:2");
}

bool lki_read_slow(const char *text, void *target, lki_message *error)
{
    lk_train_async *a = &((train_options *)target)->config.exchange.async;
    a->slow_count     = 0;
    for (const char *next; text != NULL; text = *next == ',' ? next + 1 : NULL) {
        const size_t group = strcspn(text, ":,");
        uint64_t     number;
        double       factor;
        next = text + strcspn(text, ",");
        if (a->slow_count == LK_SLOW_GROUPS_MAX || text[group] != ':' ||
            !lki_parse_u64(text, group, &number) || number >= 4096 ||
            !lki_parse_real(text + group + 1, (size_t)(next - text) - group - 1, &factor) ||
            !(factor >= 1e-3 && factor <= 1e6))
            return lki_refuse(error, "must be up to %d times GROUP:FACTOR, with commas between "
                                     "them and FACTOR from 0.001 to 1e6, such as 0:4,3:2",
                              LK_SLOW_GROUPS_MAX);
        a->slow_group[a->slow_count]    = (uint32_t)number;
        a->slow_factor[a->slow_count++] = factor;
    }
    return true;
}

/* Reads R,R... */
bool lki_read_ratios(const char *text, void *target, lki_message *error)
{
    lk_train_exchange *x = &((train_options *)target)->config.exchange;
    x->warmup_count      = 0;
    for (const char *next; text != NULL; text = *next == ',' ? next + 1 : NULL) {
        double ratio;
        next = text + strcspn(text, ",");
        if (x->warmup_count == LK_WARMUP_RATIOS_MAX ||
            !lki_parse_real(text, (size_t)(next - text), &ratio) || !(ratio > 0 && ratio <= 1))
            return lki_refuse(error, "must be up to %d numbers above 0 and up to 1, with commas "
                                     "between them", LK_WARMUP_RATIOS_MAX);
        x->warmup[x->warmup_count++] = ratio;
    }
    return true;
}

/* Reads KIND,KIND:DIR. */
bool lki_read_offload(const char *text, void *target, lki_message *error)
{
    static const struct { const char *name; lk_offloaded what; } kinds[] = {
        { "optimizer", LK_OFFLOADED_STATES },
        { "parameters", LK_OFFLOADED_PARAMETERS },
        { "activations", LK_OFFLOADED_ACTIVATIONS },
    };
    lk_train_config *config = &((train_options *)target)->config;
    const char      *colon = strchr(text, ':'), *at = text;
    bool             good  = colon != NULL && colon[1] != '\0';
    config->offload        = good ? colon + 1 : NULL;
    config->offloaded      = 0;
    while (good && at < colon) {
        size_t length = strcspn(at, ",:"), k = 0;
        while (k < sizeof kinds / sizeof kinds[0] &&
               (strlen(kinds[k].name) != length || memcmp(kinds[k].name, at, length) != 0))
            k++;
        good = k < sizeof kinds / sizeof kinds[0];
        config->offloaded |= good ? kinds[k].what : 0;
        at += length + 1;
    }
    if (!good || config->offloaded == 0)
        return lki_refuse(error, "must be optimizer, parameters, activations, or several with "
                                 "commas between them, and :DIR, a directory on a fast disk");
    return true;
}

/* ---- Rows -------------------------------------------------------------------------------- */

static bool is_among(const char *name, const lki_option *rows)
{
    for (; rows->type != LKI_OPTION_END; rows++)
        if (strcmp(rows->name, name) == 0)
            return true;
    return false;
}

/* Returns true if a heading is in the list `groups`. */
static bool is_left_out(const char *group, const char *const *groups)
{
    for (; group != NULL && groups != NULL && *groups != NULL; groups++)
        if (strcmp(*groups, group) == 0)
            return true;
    return false;
}

/* Removes rows that need an option which is not in the table. */
static void drop_needy(lki_option *rows)
{
    lki_option *to = rows;
    for (const lki_option *o = rows; o->type != LKI_OPTION_END; o++)
        if (o->needs == NULL || is_among(o->needs->name, rows))
            *to++ = *o;
    while (to->type != LKI_OPTION_END)
        *to++ = (lki_option)LKI_OPTIONS_END;
}

/* Makes an option optional if it has a default for commands that do not require it. */
static void relax(lki_option *row)
{
    row->required = row->required && row->otherwise == NULL;
    if (row->otherwise != NULL)
        row->preset = row->otherwise;
}

static size_t count_rows(const lki_option *rows)
{
    size_t count = 0;
    while (rows[count].type != LKI_OPTION_END)
        count++;
    return count;
}

lki_option *lki_train_rows(const char *const *left_out, const lki_option *own, bool relaxed)
{
    lki_option *rows  = calloc(count_rows(lki_train_table) + count_rows(own) + 1, sizeof *rows);
    const char *group = lki_train_table[0].group;
    size_t      count = 0;
    for (const lki_option *o = lki_train_table; rows != NULL && o->type != LKI_OPTION_END; o++) {
        group = o->group != NULL ? o->group : group;
        if (is_left_out(group, left_out) || is_among(o->name, own))
            continue;
        rows[count]           = *o;
        rows[count].group     = group;
        rows[count].inherited = true;
        if (relaxed)
            relax(&rows[count]);
        count++;
    }
    for (const lki_option *o = own; rows != NULL && o->type != LKI_OPTION_END; o++)
        rows[count++] = *o;
    if (rows != NULL)
        drop_needy(rows); /* its last row is zeroed: LKI_OPTION_END */
    return rows;
}

/* Writes the synthetic data that are used if none are given.  The vocabulary of text is that of the
 * model, by --vocabulary or the folder of --init, or else that of GPT-2. */
static const char *synthetic(train_options *o)
{
    const lk_train_config *c          = &o->config;
    const bool             text       = !strcmp(c->model, "gpt") || !strcmp(c->model, "llama");
    uint32_t               vocabulary = c->model_options.vocabulary;
    lk_model_options       folder     = LK_MODEL_OPTIONS_INIT;
    if (strcmp(c->model, "resnet") == 0)
        return "synthetic:images=2048,h=32,w=32,c=3,classes=10";
    if (!text)
        return "synthetic:images=8192,h=28,w=28,c=1,classes=10";
    if (vocabulary == 0 && c->init != NULL && lk_folder_options(&folder, c->init) == LK_OK)
        vocabulary = folder.vocabulary;
    (void)snprintf(o->source, sizeof o->source, "synthetic:tokens=1000000,vocab=%u",
                   vocabulary > 0 ? vocabulary : VOCABULARY);
    return o->source;
}

void lki_train_defaults(train_options *o)
{
    lk_train_config *config = &o->config;
    o->assumed              = config->data.source == NULL;
    if (o->assumed)
        config->data.source = synthetic(o);
    if (config->global_batch == 0 && config->exchange.clients.count == 0)
        config->global_batch = BATCH;
    if (config->schedule.lr == 0)
        config->schedule.lr = RATE;
}
