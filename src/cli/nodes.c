/* nodes.c -- the options of commands whose workers may be on several hosts. */
#include "cli/nodes.h"

#include <string.h>

#include "cli/settings.h"
#include "cli/words.h"

const lki_need lki_need_nodes = { "nnodes", { NULL } };

const lki_choice lki_binds[] = {
    { .name = "core", .value = LK_BIND_CORES },     { .name = "numa", .value = LK_BIND_NUMA },
    { .name = "thread", .value = LK_BIND_THREADS }, { .name = "none", .value = LK_BIND_NONE },
    { .name = NULL },
};

enum { GO_ON = -1 };

static void print_note(void *command, const char *text)
{
    const char *name = ((const lki_command *)command)->name;
    char        words[LKI_WORDS_BYTES];
    lki_words(words, sizeof words, text);
    fprintf(stderr, "%slockstep %s: note: %s\n", lki_line_start(name), name, words);
}

lk_bind lki_bind_of(const char *name)
{
    const lki_choice *choice = lki_binds;

    while (strcmp(choice->name, name) != 0)
        choice++;
    return (lk_bind)choice->value;
}

uint32_t lki_nodes_least(const lki_nodes *nodes)
{
    if (nodes->hosts > nodes->hosts_least && nodes->hosts_least > 0)
        return nodes->hosts_least;
    return nodes->count > nodes->least ? nodes->least : 0;
}

int lki_nodes_apply(lki_nodes *nodes, const lki_command *command, lk_launch_options *how)
{
    how->note         = print_note;
    how->note_context = (void *)(uintptr_t)command;
    if (nodes->hosts > 1 && nodes->count > 1)
        return lki_usage_error_of(command, nodes->file,
                                  "--hosts %u emulates hosts on this one, --nnodes %u are real "
                                  "ones: leave out one of the two", nodes->hosts, nodes->count);
    if (nodes->hosts > how->workers)
        return lki_usage_error_of(command, nodes->file,
                                  "--hosts %u are more than the %u workers; raise --workers",
                                  nodes->hosts, how->workers);
    how->hosts       = nodes->hosts;
    how->bind        = lki_bind_of(nodes->bind);
    how->hosts_least = lki_nodes_least(nodes);
    if (nodes->count <= 1)
        return GO_ON;
    if (nodes->rendezvous == NULL)
        return lki_usage_error_of(command, nodes->file,
                                  "--nnodes %u needs --rendezvous tcp://HOST:PORT, with an "
                                  "address of node 0", nodes->count);
    if ((nodes->key_from == NULL) != nodes->insecure)
        return lki_usage_error_of(command, nodes->file,
                                  "--nnodes %u needs one of --job-key FILE (lockstep key FILE "
                                  "creates one) and --insecure", nodes->count);
    if (nodes->number != LKI_NODE_ANY && nodes->number >= nodes->count)
        return lki_usage_error_of(command, nodes->file,
                                  "--node-rank %u: of %u nodes the last is %u", nodes->number,
                                  nodes->count, nodes->count - 1);
    if (nodes->key_from != NULL && lk_job_key_read(nodes->key, nodes->key_from) != LK_OK)
        return lki_usage_error_of(command, nodes->file, "--job-key: %s", lk_error_last()->message);
    if (nodes->insecure)
        fprintf(stderr, "lockstep %s: --insecure: anybody on the network can read, change and join "
                        "this job\n", command->name);
    how->nodes      = nodes->count;
    how->node       = nodes->number == LKI_NODE_ANY ? -1 : (int32_t)nodes->number;
    how->rendezvous = nodes->rendezvous;
    how->join_ms    = nodes->join_ms;
    how->insecure   = nodes->insecure;
    how->job_key    = nodes->insecure ? NULL : nodes->key;
    return GO_ON;
}
