/* inspect_consolidate.c -- `lockstep inspect --consolidate`: writes a checkpoint as one file. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cli/inspect.h"
#include "cli/options.h"
#include "cli/words.h"
#include "lockstep/checkpoint.h"

enum { PAUSE_MS = 200, PAUSE_IN_FILES_MS = 10000 };

/* The time of the last progress line, and whether progress lines go to a terminal. */
typedef struct {
    bool     terminal;
    uint64_t shown_ms;
} progress;

static uint64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void show_progress(void *context, uint64_t done, uint64_t all)
{
    progress *p = context;
    uint64_t  now = now_ms();
    if (now - p->shown_ms < (p->terminal ? PAUSE_MS : PAUSE_IN_FILES_MS))
        return;
    p->shown_ms = now;
    fprintf(stderr, "%slockstep inspect: %.0f of %.0f MiB, %.0f %%%s", p->terminal ? "\r" : "",
            (double)done / 1048576, (double)all / 1048576, 100.0 * (double)done / (double)all,
            p->terminal ? "" : "\n");
}

static int fail(void)
{
    lki_print_error("inspect");
    return LKI_EXIT_FAILURE;
}

int lki_inspect_consolidate(const char *path, const char *out, bool everything)
{
    lk_checkpoint *checkpoint;
    progress       p = { .terminal = isatty(STDERR_FILENO) == 1, .shown_ms = now_ms() };
    char           notes[4096] = "", sha256[65] = "";
    lk_status status = lk_checkpoint_open_manifest(&checkpoint, path, notes, sizeof notes);
    fputs(notes, stderr);
    if (status != LK_OK)
        return fail();
    const lk_consolidate_options options = {
        .struct_size = sizeof(lk_consolidate_options),
        .path = out, .everything = everything, .progress = show_progress, .context = &p
    };
    const uint64_t before = p.shown_ms;
    status                = lk_checkpoint_consolidate(checkpoint, &options, sha256);
    if (p.terminal && p.shown_ms != before)
        fprintf(stderr, "\r\033[K");
    int result = LKI_EXIT_FAILURE;
    if (status == LK_OK) {
        printf("%-14s %s\n%-14s %s\n%-14s %s\n%-14s %s\n", "checkpoint",
               lk_checkpoint_path(checkpoint), "file", out, "sha256", sha256, "weights",
               lk_checkpoint_describe(checkpoint)->weights);
        result = 0;
    } else {
        (void)fail();
    }
    lk_checkpoint_free(checkpoint);
    return result;
}
