/* environment.c -- builds the environment of a worker: RANK and related names. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "launch/job/spawn.h"

static const char *const our_names[] = {
    "RANK",        "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "NODE_RANK",   "GROUP_RANK",  "MASTER_ADDR", "MASTER_PORT",
    "LOCKSTEP_CONTROL_FD", "LOCKSTEP_SOCKET_FD", "LOCKSTEP_KEY_FD", "LOCKSTEP_TIMEOUT_MS",
    "LOCKSTEP_FLIGHT", "LOCKSTEP_ENTERS", "LOCKSTEP_CONTINUES",
};

enum { OURS = sizeof our_names / sizeof our_names[0], NUMBER_BYTES = 48 };

/* An environment under construction.  The strings that `list` points to share one buffer. */
typedef struct {
    char **list;
    size_t used;
    char  *text, *end;
} block;

static bool has_name(const char *entry, const char *name)
{
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

static bool is_ours(const char *entry)
{
    for (size_t i = 0; i < OURS; i++)
        if (has_name(entry, our_names[i]))
            return true;
    return false;
}

static void put_text(block *to, const char *name, const char *value)
{
    int bytes = snprintf(to->text, (size_t)(to->end - to->text), "%s=%s", name, value) + 1;
    LK_ASSERT(bytes <= to->end - to->text);
    to->list[to->used++] = to->text;
    to->text += bytes;
}

static void put_number(block *to, const char *name, uint32_t value)
{
    char digits[16];
    (void)snprintf(digits, sizeof digits, "%u", value);
    put_text(to, name, digits);
}

static void put_ours(block *to, const lki_worker_facts *facts)
{
    put_number(to, "RANK", facts->rank);
    put_number(to, "WORLD_SIZE", facts->size);
    put_number(to, "LOCAL_RANK", facts->local_rank);
    put_number(to, "LOCAL_WORLD_SIZE", facts->local_size);
    put_number(to, "NODE_RANK", facts->node);
    put_number(to, "GROUP_RANK", facts->node);
    put_text(to, "MASTER_ADDR", facts->address);
    put_number(to, "MASTER_PORT", facts->port);
    put_number(to, "LOCKSTEP_CONTROL_FD", (uint32_t)facts->control_fd);
    put_number(to, "LOCKSTEP_SOCKET_FD", (uint32_t)facts->socket_fd);
    put_number(to, "LOCKSTEP_TIMEOUT_MS", facts->timeout_ms);
    if (facts->key_fd >= 0)
        put_number(to, "LOCKSTEP_KEY_FD", (uint32_t)facts->key_fd);
    if (facts->enters)
        put_number(to, "LOCKSTEP_ENTERS", 1);
    if (facts->continues)
        put_number(to, "LOCKSTEP_CONTINUES", 1);
    if (facts->flight != NULL)
        put_text(to, "LOCKSTEP_FLIGHT", facts->flight);
}

lk_status lki_environment_new(char ***out, char *const *inherited, const lki_worker_facts *facts)
{
    static char one_thread[] = "OMP_NUM_THREADS=1";
    size_t      count        = 0;
    bool        has_threads  = false;
    void       *memory       = NULL;

    *out = NULL;
    while (inherited[count] != NULL)
        count++;
    size_t pointers = (count + OURS + 2) * sizeof(char *);
    size_t texts    = OURS * NUMBER_BYTES + strlen(facts->address)
                   + (facts->flight != NULL ? strlen(facts->flight) : 0);
    LK_TRY(lki_alloc(&memory, pointers + texts, "a worker's environment"));

    block all = { .list = memory, .text = (char *)memory + pointers,
                  .end  = (char *)memory + pointers + texts };
    for (size_t i = 0; i < count; i++) {
        has_threads = has_threads || has_name(inherited[i], "OMP_NUM_THREADS");
        if (!is_ours(inherited[i]))
            all.list[all.used++] = inherited[i];
    }
    put_ours(&all, facts);
    if (!has_threads)
        all.list[all.used++] = one_thread;
    *out = all.list;
    return LK_OK;
}
