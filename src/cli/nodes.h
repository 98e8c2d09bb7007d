/* cli/nodes.h -- the options of commands whose workers may be on several hosts. */
#ifndef LKI_CLI_NODES_H
#define LKI_CLI_NODES_H

#include "cli/options.h"
#include "lockstep/launch.h"

typedef struct {
    uint32_t      hosts, count, number, join_ms; /* number: LKI_NODE_ANY if not given */
    uint32_t      hosts_least, least; /* MIN of MIN:MAX; 0: not given */
    const char   *rendezvous, *key_from;
    bool          insecure;
    const char   *bind;
    const lki_config_file *file; /* the config file that may have set these options; NULL: none */
    unsigned char key[LK_JOB_KEY_BYTES];
} lki_nodes;

#define LKI_NODE_ANY UINT32_MAX

/* Initial values of a lki_nodes. */
#define LKI_NODES_INIT { .number = LKI_NODE_ANY, .bind = "core" }

extern const lki_need   lki_need_nodes;
extern const lki_choice lki_binds[];

lk_bind lki_bind_of(const char *name);

/* Rows for a command's table.  `at_` is the offset of its lki_nodes.  The heading is that of
 * `train` (train/options.def). */
/* clang-format off */
#define LKI_NODE_AT(at_, field_) ((at_) + offsetof(lki_nodes, field_))
#define LKI_NODE_OPTIONS(at_)                                                                    \
    { .group = "workers and hosts", .name = "bind", .type = LKI_OPTION_NAME, .value = "WHERE",   \
      .scope = LKI_SCOPE_HOST, .offset = LKI_NODE_AT(at_, bind), .choices = lki_binds,           \
      .preset = "core",                                                                          \
      .help = "cores on which each worker runs: its own share of the cores, if there are "       \
              "enough (core; thread also binds each thread to a core of the share), the NUMA "   \
              "nodes of its share (numa), or all cores (none)" },                                \
    { .name = "hosts", .type = LKI_OPTION_U32_SPAN, .value = "H", .scope = LKI_SCOPE_HOST,       \
      .offset = LKI_NODE_AT(at_, hosts), .count_offset = LKI_NODE_AT(at_, hosts_least),          \
      .low = 1, .high = 1024, .preset = "1",                                                     \
      .help = "emulate H hosts on this machine, each with a part of the workers, memory of "     \
              "its own and TCP connections to the others; MIN:MAX as for --nnodes" },            \
    { .name = "nnodes", .type = LKI_OPTION_U32_SPAN, .value = "N", .scope = LKI_SCOPE_HOST,      \
      .offset = LKI_NODE_AT(at_, count), .count_offset = LKI_NODE_AT(at_, least),                \
      .low = 1, .high = 1024, .preset = "1",                                                     \
      .help = "number of hosts, on each of which the command is started; train: MIN:MAX begins " \
              "with MIN hosts (after waiting 5 s for more), and others may join until the run "  \
              "ends" },                                                                          \
    { .needs = &lki_need_nodes, .name = "node-rank", .type = LKI_OPTION_U32, .value = "R",       \
      .scope = LKI_SCOPE_HOST, .offset = LKI_NODE_AT(at_, number), .high = 1023,                 \
      .preset = "any free number",                                                               \
      .help = "number of this host, from 0; required on node 0, to which all other hosts "       \
              "connect" },                                                                       \
    { .needs = &lki_need_nodes, .name = "rendezvous", .type = LKI_OPTION_STRING,                 \
      .scope = LKI_SCOPE_HOST, .value = "tcp://HOST:PORT",                                       \
      .offset = LKI_NODE_AT(at_, rendezvous),                                                    \
      .help = "address of node 0, which all hosts must be able to reach" },                      \
    { .needs = &lki_need_nodes, .name = "job-key", .type = LKI_OPTION_STRING,                    \
      .scope = LKI_SCOPE_HOST, .value = "FILE|fd:N", .offset = LKI_NODE_AT(at_, key_from),       \
      .help = "file or file descriptor with the job's secret key; lockstep key FILE creates a "  \
              "key" },                                                                           \
    { .needs = &lki_need_nodes, .name = "insecure", .type = LKI_OPTION_FLAG,                     \
      .scope = LKI_SCOPE_HOST, .offset = LKI_NODE_AT(at_, insecure),                             \
      .help = "use no key: anyone on the network can read, change and join the job" },           \
    { .needs = &lki_need_nodes, .name = "join-timeout", .type = LKI_OPTION_SECONDS,              \
      .scope = LKI_SCOPE_HOST, .value = "S", .offset = LKI_NODE_AT(at_, join_ms),                \
      .range = &lki_range_positive, .preset = "300",                                             \
      .help = "seconds to wait for the other hosts, or for MIN of them" }
/* clang-format on */

/* Returns the number of hosts with which the job may begin if others may join later; 0: all. */
uint32_t lki_nodes_least(const lki_nodes *nodes);

/* Copies the options into `how`, reads the key, and selects stderr for notes.  Returns a negative
 * number to continue.  On failure prints an error and returns the exit status. */
int lki_nodes_apply(lki_nodes *nodes, const lki_command *command, lk_launch_options *how);

#endif
