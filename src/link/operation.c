/* operation.c -- texts that name an operation: "all_reduce #12 (F32 sum, 100 elements)". */
#include "link/operation.h"

#include <stdio.h>

#include "device/combine.h"

typedef enum { NOTHING, BYTES, ELEMENTS, REDUCTION } unit;

typedef struct {
    const char *name, *root; /* `root`: the preposition before the root's rank in the text; NULL: no
                              * root */
    unit        counts;
} kind_row;

static const kind_row kinds[] = {
    [LKI_OP_NONE]             = { "nothing", NULL, NOTHING },
    [LKI_OP_BARRIER]          = { "barrier", NULL, NOTHING },
    [LKI_OP_BROADCAST]        = { "broadcast", "from", BYTES },
    [LKI_OP_ALL_GATHER]       = { "all_gather", NULL, BYTES },
    [LKI_OP_ALL_REDUCE]       = { "all_reduce", NULL, REDUCTION },
    [LKI_OP_TREE_REDUCE]      = { "tree_reduce", NULL, ELEMENTS },
    [LKI_OP_ARENA]            = { "creating an arena", NULL, BYTES },
    [LKI_OP_AGREE]            = { "comparing outcomes", NULL, NOTHING },
    [LKI_OP_REDUCE]           = { "reduce", "to", REDUCTION },
    [LKI_OP_REDUCE_SCATTER]   = { "reduce_scatter", NULL, REDUCTION },
    [LKI_OP_REDUCE_SCATTER_V] = { "reduce_scatter_v", NULL, REDUCTION },
    [LKI_OP_ALL_GATHER_V]     = { "all_gather_v", NULL, BYTES },
    [LKI_OP_GATHER]           = { "gather", "to", BYTES },
    [LKI_OP_SCATTER]          = { "scatter", "from", BYTES },
    [LKI_OP_ALL_TO_ALL]       = { "all_to_all", NULL, BYTES },
    [LKI_OP_ALL_TO_ALL_V]     = { "all_to_all_v", NULL, NOTHING },
    [LKI_OP_SEND]             = { "send", "to", BYTES },
    [LKI_OP_RECV]             = { "recv", "from", BYTES },
    [LKI_OP_SPLIT]            = { "split", NULL, NOTHING },
    [LKI_OP_ADASUM]           = { "adasum", NULL, ELEMENTS },
    [LKI_OP_MIRROR]           = { "mirror", NULL, BYTES },
    [LKI_OP_MESSAGE]          = { "message", "to", BYTES },
};

/* Writes "F32 sum, 100 elements", "100 bytes" or nothing. */
static void count_text(char *out, size_t bytes, const kind_row *row, lki_print print)
{
    const char        *dtype = lk_dtype_name((lk_dtype)(print.what >> 8 & 0xff));
    unsigned long long count = print.count;

    out[0] = '\0';
    if (row->counts == BYTES)
        snprintf(out, bytes, "%llu bytes", count);
    else if (row->counts == ELEMENTS)
        snprintf(out, bytes, "%s, %llu elements", dtype, count);
    else if (row->counts == REDUCTION)
        snprintf(out, bytes, "%s %s, %llu elements", dtype,
                 lki_reduce_name(print.what >> 16 & 0xff), count);
}

uint64_t lki_print_bytes(lki_print print)
{
    uint64_t kind = print.what & 0xff, bytes = 0;
    unit     counts = kind < sizeof kinds / sizeof kinds[0] ? kinds[kind].counts : NOTHING;

    if (counts == BYTES)
        return print.count;
    if (counts == NOTHING ||
        __builtin_mul_overflow(print.count, lk_dtype_bytes((lk_dtype)(print.what >> 8 & 0xff)),
                               &bytes))
        return 0;
    return bytes;
}

/* Appends " by ring" if the user selected the algorithm by its name. */
static void method_text(char *out, size_t bytes, uint64_t number)
{
#define METHOD_NAME(name) #name,
    static const char *const names[] = { LKI_METHOD_TABLE(METHOD_NAME) };
#undef METHOD_NAME

    out[0] = '\0';
    if (number - 1 < sizeof names / sizeof names[0])
        snprintf(out, bytes, " by %s", names[number - 1]);
}

void lki_print_text(char *out, size_t bytes, lki_print print, uint64_t seq, uint64_t group)
{
    uint64_t kind = print.what & 0xff, root = print.what >> 32;
    char     count[64], rooted[40] = "", by[32] = "", where[64] = "";

    if (kind >= sizeof kinds / sizeof kinds[0])
        kind = LKI_OP_NONE;
    const kind_row *row = &kinds[kind];
    count_text(count, sizeof count, row, print);
    method_text(by, sizeof by, print.what >> 24 & 0xff);
    if (row->root != NULL)
        snprintf(rooted, sizeof rooted, " %s rank %llu", row->root, (unsigned long long)root);
    if (group != 0)
        snprintf(where, sizeof where, " in a group of %llu with rank %llu",
                 (unsigned long long)(group >> 32), (unsigned long long)(group & UINT32_MAX));
    snprintf(out, bytes, "%s #%llu%s%s%s%s%s%s", row->name, (unsigned long long)seq,
             count[0] != '\0' ? " (" : "", count, count[0] != '\0' ? rooted : "",
             count[0] != '\0' ? ")" : "", by, where);
}
