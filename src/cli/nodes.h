/* cli/nodes.h -- the options of a command whose workers may be on several hosts. */
#ifndef LKI_CLI_NODES_H
#define LKI_CLI_NODES_H

#include "cli/options.h"
#include "lockstep/launch.h"

typedef struct {
    uint32_t      hosts, count, number, join_ms; /* number: LKI_NODE_ANY unless given */
    uint32_t      hosts_least, least; /* MIN of MIN:MAX; 0 = not given */
    const char   *rendezvous, *key_from;
    bool          insecure;
    const char   *bind;
    const lki_config_file *file; /* that may have given some of them; NULL: none */
    unsigned char key[LK_JOB_KEY_BYTES];
} lki_nodes;

#define LKI_NODE_ANY UINT32_MAX

/* A lki_nodes before its options are read. */
#define LKI_NODES_INIT { .number = LKI_NODE_ANY, .bind = "core" }

extern const lki_need   lki_need_nodes;
extern const lki_choice lki_binds[];

lk_bind lki_bind_of(const char *name);

/* Rows for a command's table; `at_` is where its lki_nodes stands in its struct. */
/* clang-format off */
#define LKI_NODE_AT(at_, field_) ((at_) + offsetof(lki_nodes, field_))
#define LKI_NODE_OPTIONS(at_)                                                                    \
    LKI_CHOICE(LKI_OPTION_NAME, "bind", "WHERE", LKI_NODE_AT(at_, bind), lki_binds, "core",      \
               "where workers run: core, each on its share of the cores, if there are enough; "  \
               "numa, on the memory nodes of that share; none, anywhere"),                       \
    { .group = "several hosts (the command is started on each, or emulates them)",               \
      .name = "hosts", .type = LKI_OPTION_U32_SPAN, .value = "H",                                \
      .offset = LKI_NODE_AT(at_, hosts), .count_offset = LKI_NODE_AT(at_, hosts_least),          \
      .low = 1, .high = 1024, .preset = "1",                                                     \
      .help = "emulate so many hosts on this one: each has its share of the workers, memory of " \
              "its own, and TCP to the others; MIN:MAX as --nnodes" },                           \
    { .name = "nnodes", .type = LKI_OPTION_U32_SPAN, .value = "N",                               \
      .offset = LKI_NODE_AT(at_, count), .count_offset = LKI_NODE_AT(at_, least),                \
      .low = 1, .high = 1024, .preset = "1",                                                     \
      .help = "how many hosts the job has; train: MIN:MAX begins when MIN are there "            \
              "(and have waited 5 s for more), and others may join it until it ends" },          \
    { .needs = &lki_need_nodes, .name = "node-rank", .type = LKI_OPTION_U32, .value = "R",       \
      .offset = LKI_NODE_AT(at_, number), .high = 1023, .preset = "any that is free",            \
      .help = "the number of this one; it must be given on node 0, where the others meet" },     \
    { .needs = &lki_need_nodes, .name = "rendezvous", .type = LKI_OPTION_STRING,                 \
      .value = "tcp://HOST:PORT", .offset = LKI_NODE_AT(at_, rendezvous),                        \
      .help = "an address of node 0 that all hosts can reach" },                                 \
    { .needs = &lki_need_nodes, .name = "job-key", .type = LKI_OPTION_STRING,                    \
      .value = "FILE|fd:N", .offset = LKI_NODE_AT(at_, key_from),                                \
      .help = "where the job's secret key is read; lockstep key FILE makes one" },               \
    { .needs = &lki_need_nodes, .name = "insecure", .type = LKI_OPTION_FLAG,                     \
      .offset = LKI_NODE_AT(at_, insecure),                                                      \
      .help = "no key: anybody on the network can read, change and join the job" },              \
    { .needs = &lki_need_nodes, .name = "join-timeout", .type = LKI_OPTION_SECONDS,              \
      .value = "S", .offset = LKI_NODE_AT(at_, join_ms), .range = &lki_range_positive,           \
      .preset = "300", .help = "how long to wait for the other hosts to come, or for MIN" }
/* clang-format on */

/* So many hosts are enough to begin with, where others may come; 0 = all have to be there. */
uint32_t lki_nodes_least(const lki_nodes *nodes);

/* Puts what was given into `how`, and has notes written to stderr; the key is read here.  A
 * negative result says: go on.  Otherwise it is the exit status, and why has been said. */
int lki_nodes_apply(lki_nodes *nodes, const lki_command *command, lk_launch_options *how);

#endif
