/* train_mpi.c -- decides whether MPI carries the bytes between the hosts of `lockstep train`. */
#include "cli/train.h"
#include "cli/words.h"
#include "cli/workers.h"

static int refuse(const train_options *options, const char *why)
{
    return lki_usage_error_of(options->command, &options->file, "%s", why);
}

/* Returns the reason why MPI cannot carry the bytes of this run; NULL if it can. */
static const char *not_by_mpi(const train_options *options)
{
    if (options->nodes.count > 0)
        return "--nnodes is for hosts that lockstep train connects itself, and --mpi for those of "
               "mpirun and srun: leave out one of them";
    if (options->nodes.hosts > 1)
        return "--hosts emulates hosts that lockstep train connects itself: leave it out, and set "
               "LOCKSTEP_MPI_HOSTS to emulate hosts of MPI";
    if (options->worker_mode == LKI_MODE_THREADS)
        return "--worker-mode threads is for workers that lockstep train starts itself: leave it "
               "out under MPI";
    if (options->on_failure == LK_ON_FAILURE_CONTINUE)
        return "--on-failure continue (and MIN:MAX) is not for MPI, whose launcher ends all ranks "
               "after a loss: leave it out, or start lockstep train --nnodes on each host";
    if (options->restart > 0)
        return "--restart is not for MPI, whose launcher starts the ranks: leave it out, and start "
               "the job again with --resume=auto";
    return options->chaos.rate > 0
               ? "--chaos is not for MPI, whose launcher starts the ranks: leave it out" : NULL;
}

int lki_train_find_launcher(train_options *options, bool *launched)
{
    bool wanted = options->mpi == LK_MPI_ON;
    if (wanted && not_by_mpi(options) != NULL)
        return refuse(options, not_by_mpi(options));
    *launched = wanted;
    int result = wanted ? -1 : lki_find_launcher(options->command, &options->nodes, launched);
    if (result >= 0 || !*launched)
        return result;
    if (lk_mpi_chosen(&options->by_mpi, options->mpi) != LK_OK) {
        lki_print_error(options->command->name);
        return LKI_EXIT_USAGE;
    }
    const char *why = options->by_mpi ? not_by_mpi(options) : NULL;
    return why != NULL ? refuse(options, why) : -1;
}
