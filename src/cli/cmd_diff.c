/* cmd_diff.c -- `lockstep diff`: prints where two runs, checkpoints or logs first differ. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/difference.h"
#include "cli/text.h"
#include "cli/words.h"
#include "cli/workers.h"

enum { EXIT_DIFFERENT = 1, EXIT_TROUBLE = 2 }; /* as cmp(1) has them */

typedef struct {
    const char *a, *b;
} diff_options;

static const lki_option table[] = {
    LKI_POSITIONAL("A", offsetof(diff_options, a), true,
                   "a log, a checkpoint, a run (a directory of checkpoints), or a .safetensors "
                   "file"),
    LKI_POSITIONAL("B", offsetof(diff_options, b), true, "what A is compared with"),
    LKI_OPTIONS_END,
};

static void print_values(const lk_difference *d)
{
    printf("\n  A  ");
    lki_print_safely(d->a[0] != '\0' ? d->a : "none");
    printf("\n  B  ");
    lki_print_safely(d->b[0] != '\0' ? d->b : "none");
    printf("\n");
}

static void print_workers(const lk_difference *d)
{
    if (d->worker_count == 1)
        printf(", virtual worker %" PRIu32, d->first_worker);
    else if (d->worker_count > 1)
        printf(", virtual workers %" PRIu32 "-%" PRIu32, d->first_worker,
               d->first_worker + d->worker_count - 1);
}

static void print_tensor(const lk_difference *d)
{
    static const char *const what[] = {
        [LK_DIFFERENCE_MISSING] = " is in one of them only",
        [LK_DIFFERENCE_SHAPE]   = " has another type or shape",
        [LK_DIFFERENCE_TENSOR]  = "",
    };
    if (d->step > 0)
        printf("checkpoint of step %" PRIu64, d->step);
    else
        printf("model");
    print_workers(d);
    printf(", tensor ");
    lki_print_safely(d->name);
    printf(" (");
    lki_print_safely(d->file);
    printf(")%s", what[d->kind]);
    if (d->kind == LK_DIFFERENCE_TENSOR)
        printf(", element %" PRIu64 " %s", d->element, d->index);
    print_values(d);
}

static void count_tensor(lki_difference_totals *totals, const lk_difference *d)
{
    if (d->kind == LK_DIFFERENCE_TENSOR)
        totals->elements += d->count;
    else
        totals->missing++;
    if (totals->tensors++ == 0)
        print_tensor(d);
}

void lki_print_difference(void *context, const lk_difference *d)
{
    switch (d->kind) {
    case LK_DIFFERENCE_CONFIG: printf("configuration: "); break;
    case LK_DIFFERENCE_LOG: printf("log, step %" PRIu64, d->step); break;
    case LK_DIFFERENCE_END:
        printf("log: equal up to step %" PRIu64 ", where one of them ends", d->step);
        break;
    case LK_DIFFERENCE_STEP: printf("checkpoint: step"); break;
    case LK_DIFFERENCE_RUN: printf("checkpoint of step %" PRIu64 ": ", d->step); break;
    case LK_DIFFERENCE_MISSING:
    case LK_DIFFERENCE_SHAPE:
    case LK_DIFFERENCE_TENSOR:
    default: count_tensor(context, d); return;
    }
    print_workers(d);
    if (d->kind == LK_DIFFERENCE_LOG)
        printf(": ");
    lki_print_safely(d->name);
    print_values(d);
}

void lki_print_difference_totals(const lki_difference_totals *totals)
{
    if (totals->tensors > 0)
        printf("tensors that differ: %" PRIu64 ", with %" PRIu64 " elements; missing or of another "
               "type or shape: %" PRIu64 "\n",
               totals->tensors - totals->missing, totals->elements, totals->missing);
}

static int diff_main(int argc, char **argv)
{
    diff_options options = { 0 };
    lki_difference_totals totals = { 0 };
    bool         equal   = false;
    int          done    = lki_options_parse(&lki_command_diff, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_diff, NULL);
    if (done >= 0)
        return done;
    if (lk_diff(options.a, options.b, lki_print_difference, &totals, &equal) != LK_OK) {
        lki_print_error("diff");
        return EXIT_TROUBLE;
    }
    lki_print_difference_totals(&totals);
    if (equal && isatty(STDOUT_FILENO) == 1) /* a script reads the status, as that of cmp */
        fprintf(stderr, "equal\n");
    return equal ? 0 : EXIT_DIFFERENT;
}

const lki_command lki_command_diff = {
    .name    = "diff",
    .summary = "find where two runs, checkpoints or logs first differ",
    .usage   = "A B",
    .about =
        "Prints what differs, in this order: the data and keys of the configuration; the first\n"
        "step in which the logs differ, with its values; the first checkpoint that differs, with\n"
        "the first element of its first tensor.  Numbers are in decimal and in hexadecimal.  A\n"
        "virtual worker is named where the files know it.  Times and other values that depend on\n"
        "the machine are not compared, and checkpoints may come from any numbers of workers and\n"
        "strategies.  The exit status is that of cmp: 0 if A and B are equal, 1 if they differ,\n"
        "2 if they cannot be compared.  If they are equal, only a terminal gets a line, on\n"
        "stderr.",
    .examples = "  lockstep diff run1 run2\n"
                "  lockstep diff run1/step-00000100 run2\n"
                "  lockstep diff monday.jsonl tuesday.jsonl\n"
                "  lockstep diff run1 gpt2/model.safetensors",
    .options  = table,
    .main     = diff_main,
};
