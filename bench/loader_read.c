/* bench/loader_read.c -- Lockstep's side of bench/loader: reads a file, directly or as a data set.
 *
 *     loader_read plain FILE              read() in pieces of 1 MiB
 *     loader_read loader FILE THREADS     opens tokens:FILE, and reads an epoch in permuted order
 *                                         from a loader
 *
 * Prints the seconds of opening and reading, and the bytes of the file.  A last argument `cold`
 * first drops the file from the page cache.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lockstep/data.h"
#include "usage.h"

enum { PIECE = 1 << 20, CONTEXT = 1024, BATCH = 64 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int drop(const char *path)
{
    int fd     = open(path, O_RDONLY | O_CLOEXEC);
    int failed = fd < 0 || fdatasync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0;
    return fd >= 0 && close(fd) != 0 ? 1 : failed;
}

/* Reads a file, and touches one byte per page of the data. */
static int read_plainly(const char *path)
{
    char    *piece = malloc(PIECE);
    double   begun = now();
    int      fd    = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t bytes = 0, sum = 0;
    ssize_t  got   = piece != NULL && fd >= 0 ? 1 : -1;
    while (got > 0) {
        got = read(fd, piece, PIECE);
        for (ssize_t i = 0; i < got; i += 4096)
            sum += (uint64_t)(unsigned char)piece[i];
        bytes += got > 0 ? (uint64_t)got : 0;
    }
    printf("0 %.6f %llu %llu\n", now() - begun, (unsigned long long)bytes, (unsigned long long)sum);
    free(piece);
    return got < 0 || close(fd) != 0;
}

static lk_status read_epoch(const lk_dataset *set, uint32_t threads, uint64_t *tokens)
{
    uint64_t          n       = lk_dataset_describe(set)->train_count;
    uint64_t          steps   = lk_steps_per_epoch(n, BATCH, false);
    lk_loader        *loader  = NULL;
    lk_loader_options options = { .struct_size = sizeof(lk_loader_options),
                                  .global_batch = BATCH, .micro_batch = BATCH,
                                  .virtual_workers = 1, .count = 1, .end_step = steps,
                                  .threads = threads };
    lk_status status = lk_loader_open(&loader, set, &options);
    for (uint64_t i = 0; i < steps && status == LK_OK; i++) {
        lk_batch batch;
        status = lk_loader_next(loader, &batch);
        *tokens += (uint64_t)batch.samples * CONTEXT;
    }
    lk_loader_free(loader);
    return status;
}

static int read_as_data(const char *path, uint32_t threads)
{
    char        spec[1024];
    uint64_t    tokens = 0;
    lk_dataset *set    = NULL;
    double      begun  = now();
    (void)snprintf(spec, sizeof spec, "tokens:%s", path);
    lk_dataset_options options = { .struct_size = sizeof options, .context = CONTEXT };
    lk_status          status  = lk_dataset_open(&set, spec, &options);
    double             opened  = now();
    if (status == LK_OK)
        status = read_epoch(set, threads, &tokens);
    printf("%.6f %.6f %llu\n", opened - begun, now() - opened, 2 * (unsigned long long)tokens);
    if (status != LK_OK)
        fprintf(stderr, "loader_read: %s\n", lk_error_last()->message);
    lk_dataset_free(set);
    return status != LK_OK;
}

int main(int argc, char **argv)
{
    check_arguments(argc, argv, 2, 4);
    if (argc > 3 && strcmp(argv[argc - 1], "cold") == 0 && drop(argv[2]) != 0)
        return 1;
    if (argc >= 3 && strcmp(argv[1], "plain") == 0)
        return read_plainly(argv[2]);
    if (argc >= 4 && strcmp(argv[1], "loader") == 0)
        return read_as_data(argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    fprintf(stderr, "usage: loader_read plain FILE [cold] | loader FILE THREADS [cold]\n");
    return 2;
}
