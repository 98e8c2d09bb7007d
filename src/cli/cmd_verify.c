/* cmd_verify.c -- `lockstep verify`: one virtual worker of one step again, alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/train.h"

typedef struct {
    train_options train; /* the first, for lki_train_rows() */
    uint64_t      step;
    uint32_t      virtual_worker;
    bool          odd;
} verify_options;

#define AT(field) offsetof(verify_options, field)

/* A command line of train can be given as it was, but for what is not exact. */
static const char *const left_out[] = { "kernels", NULL };

/* clang-format off */
static const lki_option own[] = {
    { .group = "what to make again", .required = true, .name = "step", .type = LKI_OPTION_U64,
      .value = "S", .offset = AT(step), .low = 1, .high = UINT64_MAX >> 16,
      .help = "which one of the run, from 1" },
    { .required = true, .name = "virtual-worker", .type = LKI_OPTION_U32, .value = "K",
      .offset = AT(virtual_worker), .high = 4095, .help = "which one in that step, from 0" },
    LKI_OPTIONS_END,
};
/* clang-format on */

static void print_odd(void *context, const lk_replay_odd *odd)
{
    ((verify_options *)context)->odd = true;
    printf("not finite: block %u, gradient of '%s': element %zu of %zu is %g\n", odd->block,
           odd->param, odd->element, odd->count, (double)odd->value);
}

static int verify(verify_options *o)
{
    lk_replay replay = { .step = o->step, .virtual_worker = o->virtual_worker, .odd = print_odd,
                         .context = o };
    lk_status status = lk_train_replay(&o->train.config, &replay);
    if (status == LK_EINVAL)
        return lki_usage_error_of(o->train.command, &o->train.file, "%s",
                                  lk_error_last()->message);
    if (status != LK_OK) {
        fprintf(stderr, "lockstep verify: %s\n", lk_error_last()->message);
        return LKI_EXIT_FAILURE;
    }
    printf("step %llu, virtual worker %u, from step %llu on\n", (unsigned long long)o->step,
           o->virtual_worker, (unsigned long long)replay.from);
    printf("samples %llu\nloss %.17g (a mean over %llu)\ngradient %s\n",
           (unsigned long long)replay.samples, replay.loss, (unsigned long long)replay.count,
           replay.gradient);
    return isfinite(replay.loss) && !o->odd ? 0 : LKI_EXIT_NONFINITE;
}

static int verify_main(int argc, char **argv)
{
    verify_options options = { .train = LKI_TRAIN_OPTIONS_INIT };
    lki_command    command = lki_command_verify;
    lki_option    *rows    = lki_train_rows(left_out, own, false);
    if (rows == NULL) {
        fprintf(stderr, "lockstep verify: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    command.options       = rows;
    options.train.command = &command;
    int result            = lki_options_parse(&command, argc, argv, &options);
    if (result < 0)
        result = verify(&options);
    free(options.train.file.text);
    free(rows);
    return result;
}

const lki_command lki_command_verify = {
    .name    = "verify",
    .summary = "make one virtual worker of one step again",
    .usage   = "MODEL [options of train] --step S --virtual-worker K",
    .about =
        "Goes from the newest checkpoint before step S (of --checkpoint DIR; without one from the\n"
        "beginning) to that step, and makes virtual worker K of it again, alone and in this\n"
        "process.  Prints how many samples it had, its loss and the hash of its gradient, which\n"
        "are the same on every machine, and each block in whose gradients something is not\n"
        "finite, from the last block to the first (then the status is 3).  The options are those\n"
        "of the run; what cannot change the result is not heeded.  Nothing is written, and the\n"
        "run may be going on.",
    .examples = "  lockstep verify gpt --data text:book.txt --global-batch 32 --steps 500 \\\n"
                "      --optimizer adamw --lr 1e-3 --checkpoint run1 --step 312 --virtual-worker 5",
    .options  = own,
    .main     = verify_main,
};
