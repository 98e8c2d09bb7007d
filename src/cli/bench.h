/* cli/bench.h -- the operations that `lockstep bench` times, and how it knows that they are right.
 *
 * Element e of rank r's input in round k is the number (e + 3 r + k) mod 13.  So every input is a
 * piece of one row that repeats itself, and every sum a piece of another: sums of such small
 * whole numbers are exact in any order and in every type, but for one rounding of 16-bit types at
 * the end.  What an operation leaves is compared with these rows, byte by byte.
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
    size_t    width; /* bytes of an element */
    uint32_t  rank, ranks, round;
    size_t    each;          /* bytes of a buffer */
    lk_arena *arena;         /* where all ranks' buffers are; NULL: in ordinary memory */
    char     *input, *recv;  /* my buffers; a broadcast's result is in `input` */
    char     *shared;        /* of an arena_mirror: where the pieces of all ranks lie */
    char     *row, *sums;    /* as long as a buffer, and BENCH_PERIOD elements more */
    void     *memory;        /* owned: buffers that are not in the arena */
    size_t    count;         /* elements of a size */
    size_t   *counts, *first; /* of every rank's part, and where it begins */
    size_t   *bytes, *from_bytes; /* parts in bytes, as calls want them */
    lk_slice *slices;
} bench;

/* What each rank must move at least, by bytes: bus bandwidth is that over the time. */
typedef enum { BENCH_NOTHING, BENCH_ONCE, BENCH_OTHERS, BENCH_OTHERS_TWICE } bench_moves;

typedef struct bench_kind {
    const char *name;
    bench_moves moves;
    bool divided;    /* bytes are of all parts together */
    bool uneven;     /* parts differ */
    bool tree;       /* sums FP32 in arenas, and lends its input to the others */
    bool pairs;      /* needs two ranks */
    const char *way; /* NULL = there are algorithms to choose from, between hosts; else its one */
    bool gives_part; /* input is one part, not all of them */
    bool mirrors;    /* and lies in `shared` */
    lk_status (*call)(const bench *b);
    bool (*right)(const bench *b); /* what the call has left on this rank */
} bench_kind;

/* A row without a name ends it. */
extern const bench_kind bench_kinds[];

/* NULL if there is none of that name. */
const bench_kind *bench_kind_find(const char *name);

/* Buffers and rows for sizes up to `widest` bytes.  Collective. */
lk_status bench_open(bench *b, uint64_t widest, bool foreign);
void      bench_close(bench *b);

/* From here on the operation is about so many bytes. */
void bench_resize(bench *b, uint64_t bytes);

/* This rank's input of b->round. */
void bench_write_input(const bench *b);

/* Bytes that each rank must move at least for each byte of the size. */
double bench_factor(const bench *b);

#endif
