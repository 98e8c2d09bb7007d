/* counted.c -- counts what a program sends by MPI, and its own sockets for networks.  Preloaded by
 * tests/mpi/train.
 *
 * When a process ends, it adds a line to the file that LKT_COUNTS names: the bytes that it gave to
 * MPI_Issend(), and the number of internet sockets that it opened.  MPI's own sockets are not
 * counted: only those that the program's file has asked for.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REPLACES __attribute__((visibility("default")))

static unsigned long long bytes, sockets;

REPLACES int MPI_Issend(const void *buf, int count, MPI_Datatype datatype, int dest, int tag,
                        MPI_Comm comm, MPI_Request *request)
{
    int each = 0;

    PMPI_Type_size(datatype, &each);
    bytes += (unsigned long long)count * (unsigned long long)each;
    return PMPI_Issend(buf, count, datatype, dest, tag, comm, request);
}

/* Returns true if an address belongs to the program `lockstep`, and not to a library. */
static int is_of_the_program(void *address)
{
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    return strcmp(slash == NULL ? info.dli_fname : slash + 1, "lockstep") == 0;
}

REPLACES int socket(int domain, int type, int protocol)
{
    int (*real)(int, int, int);
    void *symbol = dlsym(RTLD_NEXT, "socket");

    memcpy(&real, &symbol, sizeof real);
    if ((domain == AF_INET || domain == AF_INET6) &&
        is_of_the_program(__builtin_return_address(0)))
        sockets++;
    return real(domain, type, protocol);
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("LKT_COUNTS");
    char        line[80];
    int         fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);

    if (fd < 0)
        return;
    int length = snprintf(line, sizeof line, "%llu %llu\n", bytes, sockets);
    (void)!write(fd, line, (size_t)length);
    (void)close(fd);
}
