/* module.c -- all calls of MPI.  This file is compiled into two modules, one for Open MPI and one
 * for MPICH.
 *
 * Sends are synchronous (MPI_Issend): they complete when the receiver has matched them.  The open
 * requests therefore bound the unread data at a receiver, independent of MPI's limit for small
 * messages.
 */
#include "link/mpi/module.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SETTLE_MS = 2000 };

struct lki_mpi_ticket {
    lki_mpi_ticket *next;
    MPI_Request     request;
};

struct lki_mpi_world {
    MPI_Comm      comm;      /* communicator for messages */
    MPI_Comm      native[2]; /* communicators for collectives: [0] for calls with `apart`, [1]
                              * for calls without it */
    lki_mpi_ticket *tickets; /* list of the open collectives */
    bool          ours;      /* this module has initialised MPI */
    int           slots;
    MPI_Request  *requests; /* one for every slot; MPI_REQUEST_NULL = the slot is free */
    int          *indices;
    MPI_Status   *statuses;
    lki_mpi_done *done;
    char          text[MPI_MAX_ERROR_STRING + 64];
};

static const char *fail(lki_mpi_world *world, const char *call, int code)
{
    char reason[MPI_MAX_ERROR_STRING] = "";
    int  length;

    if (MPI_Error_string(code, reason, &length) != MPI_SUCCESS)
        (void)snprintf(reason, sizeof reason, "code %d", code);
    (void)snprintf(world->text, sizeof world->text, "%s: %s", call, reason);
    return world->text;
}

/* ---- Life -------------------------------------------------------------------------------- */

/* Writes the first line of the library's text, up to a comma, and without the word "version" and
 * the `v` before a number: "Open MPI v4.1.4, package: ..." becomes "Open MPI 4.1.4". */
static void module_name(char out[LKI_MPI_NAME_BYTES])
{
    char  text[MPI_MAX_LIBRARY_VERSION_STRING] = "", *rest = text;
    int   length, used = 0;

    out[0] = '\0';
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        return;
    text[strcspn(text, ",\n")] = '\0';
    for (char *word; (word = strtok_r(rest, " \t", &rest)) != NULL && used < LKI_MPI_NAME_BYTES;) {
        bool number = word[0] == 'v' && word[1] >= '0' && word[1] <= '9';
        if (strcasecmp(word, "version:") != 0 && strcasecmp(word, "version") != 0)
            used += snprintf(out + used, (size_t)(LKI_MPI_NAME_BYTES - used), "%s%s",
                             used > 0 ? " " : "", word + number);
    }
}

/* Ignores SIGPIPE, unless the program handles it.  Open MPI writes to sockets without MSG_NOSIGNAL,
 * so the death of a rank would kill the ranks that are sending to it, and hide the cause. */
static void ignore_sigpipe(void)
{
    struct sigaction now;

    if (sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL)
        (void)signal(SIGPIPE, SIG_IGN);
}

/* Initialises MPI unless it is initialised, if it `may_begin`.  *ours becomes true if this call
 * initialised MPI.
 * MPI_THREAD_SERIALIZED suffices, because calls of several threads never overlap. */
static const char *initialise(bool *ours, bool may_begin)
{
    int initialised = 0, finalised = 0, provided;

    if (MPI_Initialized(&initialised) != MPI_SUCCESS || MPI_Finalized(&finalised) != MPI_SUCCESS)
        return "MPI_Initialized: it does not say";
    if (finalised)
        return "MPI has been finalised in this process, and cannot begin again: initialise it "
               "before the first communicator, and finalise it after the last";
    if (!initialised && !may_begin)
        return "MPI is not initialised, so there is no communicator: call MPI_Init first";
    *ours = !initialised;
    if (*ours)
        ignore_sigpipe();
    if (*ours && MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return "MPI_Init_thread has failed";
    return NULL;
}

/* Reads the handle of the communicator. */
static const char *find_comm(MPI_Comm *out, const lki_mpi_ranks *of)
{
    MPI_Fint number;
    int      inter = 0;

    *out = MPI_COMM_WORLD;
    if (of->comm == NULL)
        return NULL;
    if (of->bytes != (of->fortran ? sizeof number : sizeof *out))
        return of->fortran ? "an MPI_Fint of this MPI has another size"
                           : "an MPI_Comm of this MPI has another size: the program was compiled "
                             "with the mpi.h of another MPI";
    if (of->fortran) {
        memcpy(&number, of->comm, sizeof number);
        *out = MPI_Comm_f2c(number);
    } else
        memcpy(out, of->comm, sizeof *out);
    if (*out == MPI_COMM_NULL)
        return "the communicator is MPI_COMM_NULL, in which this process has no rank";
    if (MPI_Comm_test_inter(*out, &inter) != MPI_SUCCESS || inter)
        return "the communicator is not one of a single group (an intracommunicator)";
    return NULL;
}

static const char *duplicate(lki_mpi_world *world, MPI_Comm comm)
{
    MPI_Comm *copies[3] = { &world->comm, &world->native[0], &world->native[1] };

    for (int i = 0; i < 3; i++) {
        if (MPI_Comm_dup(comm, copies[i]) != MPI_SUCCESS)
            return "MPI_Comm_dup has failed";
        (void)MPI_Comm_set_errhandler(*copies[i], MPI_ERRORS_RETURN);
    }
    return NULL;
}

static const char *module_open(lki_mpi_world **out, uint32_t *rank, uint32_t *ranks,
                               const lki_mpi_ranks *of)
{
    lki_mpi_world *world = calloc(1, sizeof *world);
    int            me = 0, size = 1;
    MPI_Comm       comm;

    *out = NULL;
    if (world == NULL)
        return "no memory";
    const char *error = initialise(&world->ours, of->comm == NULL);
    if (error == NULL)
        error = find_comm(&comm, of);
    if (error == NULL)
        error = duplicate(world, comm);
    if (error != NULL) {
        free(world);
        return error;
    }
    (void)MPI_Comm_rank(world->comm, &me);
    (void)MPI_Comm_size(world->comm, &size);
    *rank  = (uint32_t)me;
    *ranks = (uint32_t)size;
    *out   = world;
    return NULL;
}

static const char *module_reserve(lki_mpi_world *world, uint32_t slots)
{
    world->requests = calloc(slots, sizeof *world->requests);
    world->indices  = calloc(slots, sizeof *world->indices);
    world->statuses = calloc(slots, sizeof *world->statuses);
    world->done     = calloc(slots, sizeof *world->done);
    if (world->requests == NULL || world->indices == NULL || world->statuses == NULL ||
        world->done == NULL)
        return "no memory for requests";
    for (uint32_t i = 0; i < slots; i++)
        world->requests[i] = MPI_REQUEST_NULL;
    world->slots = (int)slots;
    return NULL;
}

static void forget(lki_mpi_world *world, lki_mpi_ticket *ticket)
{
    lki_mpi_ticket **at = &world->tickets;

    while (*at != ticket)
        at = &(*at)->next;
    *at = ticket->next;
    free(ticket);
}

/* Waits briefly for collectives that were abandoned after a failure.  Returns true if all of them
 * have ended. */
static bool settle(lki_mpi_world *world)
{
    const struct timespec nap = { .tv_nsec = 1000000 };

    for (int ms = 0; world->tickets != NULL && ms < SETTLE_MS; ms++) {
        int flag = 0, code = MPI_Test(&world->tickets->request, &flag, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return false;
        if (flag != 0)
            forget(world, world->tickets);
        else
            (void)nanosleep(&nap, NULL);
    }
    return world->tickets == NULL;
}

/* Returns true if MPI_Finalize() would wait for the launcher until it kills this process.  mpirun
 * of Open MPI no longer serves its ranks after a signal.  MPICH's continues, and would treat a rank
 * that has not finalised as lost. */
static bool is_left_alone(lki_mpi_world *world, bool stopping)
{
#ifdef OPEN_MPI
    int any = stopping;

    return MPI_Allreduce(MPI_IN_PLACE, &any, 1, MPI_INT, MPI_MAX, world->comm) != MPI_SUCCESS ||
           any != 0;
#else
    (void)world;
    (void)stopping;
    return false;
#endif
}

static void module_close(lki_mpi_world *world, bool stopping)
{
    bool finalises = world->ours;

    if (!settle(world)) /* MPI_Finalize() would wait forever, and MPI may still use the callers'
                         * buffers */
        return;
    finalises = finalises && !is_left_alone(world, stopping);
    (void)MPI_Comm_free(&world->comm);
    (void)MPI_Comm_free(&world->native[0]);
    (void)MPI_Comm_free(&world->native[1]);
    free(world->requests);
    free(world->indices);
    free(world->statuses);
    free(world->done);
    free(world);
    if (finalises)
        (void)MPI_Finalize();
}

/* ---- Messages ---------------------------------------------------------------------------- */

static const char *module_gather(lki_mpi_world *world, const void *mine, void *all, size_t bytes)
{
    int n    = (int)bytes;
    int code = MPI_Allgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, world->comm);

    return code == MPI_SUCCESS ? NULL : fail(world, "MPI_Allgather", code);
}

static const char *module_send(lki_mpi_world *world, uint32_t slot, uint32_t peer, uint32_t tag,
                               const void *data, size_t bytes)
{
    int code = MPI_Issend(data, (int)bytes, MPI_BYTE, (int)peer, (int)tag, world->comm,
                          &world->requests[slot]);

    return code == MPI_SUCCESS ? NULL : fail(world, "MPI_Issend", code);
}

static const char *module_receive(lki_mpi_world *world, uint32_t slot, uint32_t peer,
                                  uint32_t tag, void *data, size_t bytes)
{
    int code = MPI_Irecv(data, (int)bytes, MPI_BYTE, (int)peer, (int)tag, world->comm,
                         &world->requests[slot]);

    return code == MPI_SUCCESS ? NULL : fail(world, "MPI_Irecv", code);
}

static const char *module_cancel(lki_mpi_world *world, uint32_t slot)
{
    int code = MPI_Cancel(&world->requests[slot]);

    return code == MPI_SUCCESS ? NULL : fail(world, "MPI_Cancel", code);
}

static const char *module_poll(lki_mpi_world *world, const lki_mpi_done **done, uint32_t *count)
{
    int n = 0, code;

    *done  = world->done;
    *count = 0;
    code   = MPI_Testsome(world->slots, world->requests, &n, world->indices, world->statuses);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS)
        return fail(world, "MPI_Testsome", code);
    if (n == MPI_UNDEFINED)
        return NULL;
    for (int i = 0; i < n; i++) {
        bool broken = code == MPI_ERR_IN_STATUS && world->statuses[i].MPI_ERROR != MPI_SUCCESS;
        int  bytes  = 0, cancelled = 0;
        if (broken)
            (void)fail(world, "MPI_Testsome", world->statuses[i].MPI_ERROR);
        else
            (void)MPI_Test_cancelled(&world->statuses[i], &cancelled);
        if (!broken && cancelled == 0)
            (void)MPI_Get_count(&world->statuses[i], MPI_BYTE, &bytes);
        world->done[i] = (lki_mpi_done){ .slot      = (uint32_t)world->indices[i],
                                         .bytes     = bytes > 0 ? (size_t)bytes : 0,
                                         .cancelled = cancelled != 0,
                                         .error     = broken ? world->text : NULL };
    }
    *count = (uint32_t)n;
    return NULL;
}

/* ---- Collectives ------------------------------------------------------------------------- */

static MPI_Datatype type_of(lk_dtype dtype)
{
    switch ((int)dtype) {
    case LK_F32: return MPI_FLOAT;
    case LK_F64: return MPI_DOUBLE;
    case LK_I8: return MPI_INT8_T;
    case LK_U8: return MPI_UINT8_T;
    case LK_I16: return MPI_INT16_T;
    case LK_U16: return MPI_UINT16_T;
    case LK_I32: return MPI_INT32_T;
    case LK_U32: return MPI_UINT32_T;
    case LK_I64: return MPI_INT64_T;
    default: return MPI_UINT64_T;
    }
}

static MPI_Op op_of(lk_reduce_kind kind)
{
    switch ((int)kind) {
    case LK_REDUCE_PRODUCT: return MPI_PROD;
    case LK_REDUCE_MIN: return MPI_MIN;
    case LK_REDUCE_MAX: return MPI_MAX;
    default: return MPI_SUM;
    }
}

static int call_mpi(MPI_Comm comm, const lki_mpi_call *c, MPI_Request *out)
{
    const void  *send = c->send == NULL ? MPI_IN_PLACE : c->send;
    MPI_Datatype type = type_of(c->dtype);
    MPI_Op       op   = op_of(c->op);
    int          n    = (int)c->count, root = (int)c->root;

    switch (c->kind) {
    case LKI_MPI_BROADCAST: return MPI_Ibcast(c->recv, n, type, root, comm, out);
    case LKI_MPI_ALL_GATHER:
        return MPI_Iallgather(send, n, type, c->recv, n, type, comm, out);
    case LKI_MPI_ALL_TO_ALL:
        return MPI_Ialltoall(send, n, type, c->recv, n, type, comm, out);
    case LKI_MPI_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(send, c->recv, n, type, op, comm, out);
    case LKI_MPI_REDUCE: return MPI_Ireduce(send, c->recv, n, type, op, root, comm, out);
    case LKI_MPI_ALL_REDUCE: break;
    }
    return MPI_Iallreduce(send, c->recv, n, type, op, comm, out);
}

static const char *module_start(lki_mpi_world *world, const lki_mpi_call *call,
                                lki_mpi_ticket **out)
{
    lki_mpi_ticket *ticket = malloc(sizeof *ticket);

    *out = NULL;
    if (ticket == NULL)
        return "no memory for a request";
    int code = call_mpi(world->native[call->apart ? 0 : 1], call, &ticket->request);
    if (code != MPI_SUCCESS) {
        free(ticket);
        return fail(world, "a collective of MPI", code);
    }
    ticket->next   = world->tickets;
    world->tickets = ticket;
    *out           = ticket;
    return NULL;
}

static const char *module_test(lki_mpi_world *world, lki_mpi_ticket *ticket, bool *done)
{
    int flag = 0, code = MPI_Test(&ticket->request, &flag, MPI_STATUS_IGNORE);

    *done = code == MPI_SUCCESS && flag != 0;
    if (code != MPI_SUCCESS)
        return fail(world, "a collective of MPI", code);
    if (*done)
        forget(world, ticket);
    return NULL;
}

extern const lki_mpi_module lk_mpi_module;

__attribute__((visibility("default"))) const lki_mpi_module lk_mpi_module = {
    .revision = LKI_MPI_REVISION,
    .name     = module_name,
    .open     = module_open,
    .reserve  = module_reserve,
    .gather   = module_gather,
    .send     = module_send,
    .receive  = module_receive,
    .cancel   = module_cancel,
    .poll     = module_poll,
    .start    = module_start,
    .test     = module_test,
    .close    = module_close,
};
