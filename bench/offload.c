/* bench/offload.c -- the speed of the optimizer's state in a file, compared with the bare disk.
 *
 *     offload DIR [MIB]      MIB of AdamW's state (512)
 *
 * Alternates between three measurements, which bypass the page cache.  raw: a file of the same size
 * is read from beginning to end and then written, in pieces of 4 MiB.  bare: the same file is read
 * ahead and written behind as in a step, without computing.  The third is the end of a step (norm,
 * update, attestation) of one worker whose state is in DIR.  Prints the medians in MiB/s read and
 * written and their ratios, the time that the worker waited, and the time of the end of a step with
 * the state in memory.  The goal is 0.8 of raw.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/store.h"
#include "lockstep/parallel.h"
#include "usage.h"

enum { PIECE = 4 << 20, TURNS = 5, CHUNK = 2 << 20, BUFFERS = 4 };

static double median(double *values)
{
    qsort(values, TURNS, sizeof *values, lki_by_value);
    return values[TURNS / 2];
}

/* ---- The bare disk ----------------------------------------------------------------------- */

typedef struct {
    int    fd;
    size_t bytes;
    void  *piece;
} raw_file;

static bool raw_open(raw_file *raw, const char *dir, size_t bytes)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/.bench-offload-%ld", dir, (long)getpid());
    *raw    = (raw_file){ .bytes = bytes / PIECE * PIECE };
    raw->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    if (raw->fd < 0)
        return false;
    (void)unlink(path);
    return lki_alloc(&raw->piece, PIECE, "a piece") == LK_OK &&
           fallocate(raw->fd, 0, 0, (off_t)raw->bytes) == 0;
}

static bool raw_pass(const raw_file *raw, bool write)
{
    for (size_t at = 0; at < raw->bytes; at += PIECE) {
        ssize_t moved = write ? pwrite(raw->fd, raw->piece, PIECE, (off_t)at)
                              : pread(raw->fd, raw->piece, PIECE, (off_t)at);
        if (moved != PIECE)
            return false;
    }
    return true;
}

/* ---- The bare disk, with overlapping transfers --------------------------------------------- */

typedef struct {
    lki_store *store;
    size_t     bytes;
    char      *buffers;
} bare_file;

static bool bare_open(bare_file *bare, const char *dir, size_t bytes)
{
    bare->bytes = bytes / CHUNK * CHUNK;
    return lki_store_open(&bare->store, dir, bare->bytes) == LK_OK &&
           LKI_NEW(&bare->buffers, BUFFERS * CHUNK, "buffers") == LK_OK;
}

/* Reads chunk k into buffer k mod 4, two chunks ahead of the write. */
static bool bare_pass(const bare_file *bare, bool read)
{
    size_t count = bare->bytes / CHUNK;
    for (size_t k = 0; k < count + 2; k++) {
        uint32_t slot = k % BUFFERS, before = (k + 2) % BUFFERS;
        if (k < count && lki_store_wait(bare->store, slot) != LK_OK)
            return false;
        if (k < count && read)
            lki_store_start(bare->store, slot, false, bare->buffers + slot * CHUNK, CHUNK,
                            k * CHUNK);
        if (k >= 2 && lki_store_wait(bare->store, before) != LK_OK)
            return false;
        if (k >= 2)
            lki_store_start(bare->store, before, true, bare->buffers + before * CHUNK, CHUNK,
                            (k - 2) * CHUNK);
    }
    return true;
}

/* ---- Steps ------------------------------------------------------------------------------- */

static lk_status open_worker(lk_parallel **out, lk_comm *comm, const char *dir, size_t elements)
{
    const lk_param            param   = { .name = "w", .shape = { 1, { elements } } };
    const lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                          .virtual_workers = 1,
                                          .optimizer       = { .kind = LK_ADAMW },
                                          .offload         = dir };
    return lk_parallel_open(out, comm, &param, 1, &options);
}

/* Measures the end of a step, and the time that it waited, in seconds. */
static bool step(lk_parallel *parallel, uint64_t number, size_t elements, double *seconds,
                 double *stalled)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    if (lk_parallel_begin(parallel, number) != LK_OK)
        return false;
    while (lk_parallel_next(parallel, &turn)) {
        float *gradient = lk_parallel_grad(parallel, 0, 0);
        for (size_t i = 0; i < elements; i++)
            gradient[i] = (float)(i % 97) * 0.01f;
        lk_parallel_report(parallel, 0, 1, 1, 1, 0);
    }
    double begun = lki_seconds();
    if (lk_parallel_finish(parallel, 1e-3, &result) != LK_OK)
        return false;
    *seconds = lki_seconds() - begun;
    *stalled = result.stalled;
    return true;
}

typedef struct {
    raw_file     raw;
    bare_file    bare;
    lk_parallel *offloaded, *whole;
    size_t       elements;
} bench;

typedef struct {
    double raw[TURNS], bare[TURNS], ours[TURNS], of_raw[TURNS], of_bare[TURNS], still[TURNS],
        memory[TURNS];
} figures;

static bool bench_open(bench *b, lk_comm *comm, const char *dir, size_t elements)
{
    size_t bytes  = elements * 2 * sizeof(float);
    double ignored;
    b->elements = elements;
    return raw_open(&b->raw, dir, bytes) && raw_pass(&b->raw, true) &&
           bare_open(&b->bare, dir, bytes) && bare_pass(&b->bare, false) &&
           open_worker(&b->offloaded, comm, dir, elements) == LK_OK &&
           open_worker(&b->whole, comm, NULL, elements) == LK_OK &&
           step(b->offloaded, 0, elements, &ignored, &ignored) &&
           step(b->whole, 0, elements, &ignored, &ignored);
}

static void bench_close(bench *b)
{
    lk_parallel_free(b->offloaded);
    lk_parallel_free(b->whole);
    lki_store_free(b->bare.store);
    lki_free(b->bare.buffers);
    lki_free(b->raw.piece);
    if (b->raw.fd > 0)
        (void)close(b->raw.fd);
}

static bool take_turn(bench *b, int t, figures *f)
{
    double begun = lki_seconds(), seconds, ignored;
    if (!raw_pass(&b->raw, false) || !raw_pass(&b->raw, true))
        return false;
    f->raw[t] = 2 * (double)b->raw.bytes / (lki_seconds() - begun);
    begun     = lki_seconds();
    if (!bare_pass(&b->bare, true))
        return false;
    f->bare[t] = 2 * (double)b->bare.bytes / (lki_seconds() - begun);
    if (!step(b->offloaded, (uint64_t)t + 1, b->elements, &seconds, &f->still[t]) ||
        !step(b->whole, (uint64_t)t + 1, b->elements, &f->memory[t], &ignored))
        return false;
    f->ours[t]    = 2 * (double)(b->elements * 2 * sizeof(float)) / seconds;
    f->of_raw[t]  = f->ours[t] / f->raw[t];
    f->of_bare[t] = f->ours[t] / f->bare[t];
    return true;
}

static bool measure(lk_comm *comm, const char *dir, size_t elements)
{
    bench   b    = { .raw.fd = -1 };
    figures f    = { .raw = { 0 } };
    bool    good = bench_open(&b, comm, dir, elements);
    for (int t = 0; t < TURNS && good; t++)
        good = take_turn(&b, t, &f);
    if (good)
        printf("raw %.0f MiB/s, bare %.0f, offload %.0f by %s: %.2f of raw, %.2f of bare; "
               "stalled %.1f ms a step, which takes %.1f ms in memory\n",
               median(f.raw) / 0x1p20, median(f.bare) / 0x1p20, median(f.ours) / 0x1p20,
               lk_parallel_offload_how(b.offloaded), median(f.of_raw), median(f.of_bare),
               1e3 * median(f.still), 1e3 * median(f.memory));
    bench_close(&b);
    return good;
}

int main(int argc, char **argv)
{
    const lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 0 };
    size_t                mib     = argc > 2 ? strtoul(argv[2], NULL, 10) : 512;
    lk_comm              *comm    = NULL;

    check_arguments(argc, argv, 1, 2);
    if (mib < 8) {
        fprintf(stderr, "%s: give at least 8 MiB\n", argv[0]);
        return 2;
    }
    bool good = lk_comm_open_threads(&comm, 1, &options) == LK_OK &&
                measure(comm, argv[1], mib << 17);
    if (!good)
        fprintf(stderr, "offload: %s (%s)\n", lk_error_last()->message, strerror(errno));
    lk_comm_free(comm);
    return good ? 0 : 1;
}
