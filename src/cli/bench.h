/* cli/bench.h -- the operations that `lockstep bench` times, and the checks of their results.
 *
 * Element e of rank r's input in round k is the number (e + 3 r + k) mod 13.  So every input is a
 * section of one periodic row, and every sum is a section of a second periodic row.  Sums of such
 * small whole numbers are exact in any order and in every type, except for one final rounding of
 * 16-bit types.  Results are compared with these rows byte by byte.
 */
#ifndef LKI_CLI_BENCH_H
#define LKI_CLI_BENCH_H

#include "lockstep/comm.h"

enum { BENCH_PERIOD = 13 };

struct bench_kind;

typedef struct {
    const struct bench_kind *kind;
    lk_comm  *comm;
    lk_dtype  dtype;
    size_t    width; /* bytes per element */
    uint32_t  rank, ranks, round;
    size_t    each;          /* bytes per buffer */
    lk_arena *arena;         /* contains the buffers of all ranks; NULL: ordinary memory */
    char     *input, *recv;  /* this rank's buffers; a broadcast returns its result in `input` */
    char     *shared;        /* arena_mirror: the parts of all ranks */
    char     *row, *sums;    /* periodic rows, longer than a buffer by BENCH_PERIOD elements */
    void     *memory;        /* owned; buffers outside of an arena; else NULL */
    size_t    count;         /* number of elements of the current size */
    size_t   *counts, *first; /* per rank: number of elements in its part; index of the part's first
                               * element */
    size_t   *bytes, *from_bytes; /* parts in bytes, as arguments of the calls */
    lk_slice *slices;
} bench;

/* The minimum number of bytes that each rank must move.  Bus bandwidth is this number divided by
 * the time. */
typedef enum { BENCH_NOTHING, BENCH_ONCE, BENCH_OTHERS, BENCH_OTHERS_TWICE } bench_moves;

typedef struct bench_kind {
    const char *name;
    bench_moves moves;
    bool divided;    /* the size is the total of all parts */
    bool uneven;     /* parts have different sizes */
    bool tree;       /* sums FP32 in arenas, so other ranks read this rank's input */
    bool pairs;      /* needs at least two ranks */
    const char *way; /* name of the only algorithm between hosts; NULL: several */
    bool gives_part; /* a rank's input is one part instead of all parts */
    bool mirrors;    /* the input lies in `shared` */
    lk_status (*call)(const bench *b);
    bool (*right)(const bench *b); /* checks the result on this rank */
} bench_kind;

/* The operations; a row without a name ends the table. */
extern const bench_kind bench_kinds[];

/* Returns the operation `name`; NULL if there is none. */
const bench_kind *bench_kind_find(const char *name);

/* Allocates buffers and rows for sizes up to `widest` bytes.  Collective. */
lk_status bench_open(bench *b, uint64_t widest, bool foreign);
void      bench_close(bench *b);

/* Sets the size of the operation in bytes. */
void bench_resize(bench *b, uint64_t bytes);

/* Writes this rank's input for round b->round. */
void bench_write_input(const bench *b);

/* Returns the minimum number of bytes that each rank must move, divided by the operation's size. */
double bench_factor(const bench *b);

#endif
