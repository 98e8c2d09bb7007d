/* tcp_stream.c -- one end of a stream between two processes, both of which bench/tcp starts.
 *
 *     tcp_stream floor|tcp|tls RANK HOST DIRECTORY BYTES SECONDS one|two
 *
 * Rank 0 writes blocks of BYTES to rank 1 until the reader stops; with `two`, each rank writes to
 * the other.  Each rank reads for SECONDS after half a second of warm-up.  It prints the bytes
 * received per second, and the processor time per byte read or written.  "floor" uses bare sockets:
 * only poll(), read() and write().
 *
 * HOST is the address to listen on.  Ranks publish their addresses in DIRECTORY.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "link/tcp.h"
#include "usage.h"

static const double WARM_UP_S = 0.5, COOL_DOWN_S = 0.3;

typedef struct {
    uint32_t       rank;
    const char    *host, *directory;
    size_t         bytes;
    double         seconds;
    bool           reads, writes;
    unsigned char *out, *in;
    char           peer[LKI_ADDRESS_BYTES];
    double         first_s;                /* time of the first byte */
    double         begin_s, begin_used_s;  /* beginning: time, and processor time */
    double         rate, cost;             /* bytes per second; processor seconds per byte */
    size_t         counted, written, done; /* bytes read and written during the measurement */
} stream;

static void die(const char *what)
{
    fprintf(stderr, "tcp_stream: %s: %s\n", what, errno != 0 ? strerror(errno) : "failed");
    exit(1);
}

static double used_s(void)
{
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* ---- Addresses --------------------------------------------------------------------------- */

static void publish(const stream *s, const char *address)
{
    char path[512], fresh[520];
    snprintf(path, sizeof path, "%s/%u", s->directory, s->rank);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "w");
    if (file == NULL || fputs(address, file) < 0 || fclose(file) != 0 || rename(fresh, path) != 0)
        die(path);
}

static const char *address_of(void *context, uint32_t rank)
{
    stream *s = context;
    char    path[512];
    snprintf(path, sizeof path, "%s/%u", s->directory, rank);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return NULL;
    bool good = fgets(s->peer, sizeof s->peer, file) != NULL;
    fclose(file);
    return good ? s->peer : NULL;
}

/* ---- Counting ---------------------------------------------------------------------------- */

/* Counts bytes, and returns true when the measurement is over. */
static bool is_over(stream *s, size_t arrived, size_t sent)
{
    double now = lki_seconds();
    if (s->first_s == 0 && arrived + sent > 0)
        s->first_s = now;
    if (s->first_s == 0)
        return false;
    if (s->begin_s == 0 && now >= s->first_s + WARM_UP_S) {
        s->begin_s      = now;
        s->begin_used_s = used_s();
    } else if (s->begin_s != 0 && s->rate == 0) {
        s->counted += arrived;
        s->written += sent;
    }
    if (s->begin_s != 0 && s->rate == 0 && now >= s->begin_s + s->seconds) {
        s->rate = (double)s->counted / (now - s->begin_s);
        s->cost = (used_s() - s->begin_used_s) / (double)(s->counted + s->written + 1);
    }
    return now >= s->first_s + WARM_UP_S + s->seconds + COOL_DOWN_S;
}

/* ---- The link ---------------------------------------------------------------------------- */

static void run_link(stream *s, const unsigned char *key)
{
    lki_tcp_options options = { .rank       = s->rank,
                                .ranks      = 2,
                                .key        = key,
                                .host       = s->host,
                                .address_of = address_of,
                                .context    = s };
    lki_link       *link    = NULL;
    uint32_t        peer    = 1 - s->rank;
    lk_status       status  = lki_tcp_open(&link, &options);
    if (status != LK_OK)
        die(lk_error_last()->message);
    publish(s, lki_tcp_address(link));
    link->ops->watch(link, peer, 0, s->reads, s->writes);

    bool over = false;
    while (!over && status == LK_OK) {
        lki_ready ready[2];
        uint32_t  count = 0;
        size_t    in = 0, out = 0;
        status = link->ops->wait(link, 1000, ready, 2, &count);
        for (uint32_t i = 0; i < count && status == LK_OK; i++) {
            struct iovec part = { s->out + s->done, s->bytes - s->done };
            if (ready[i].readable)
                status = link->ops->read(link, peer, 0, s->in, s->bytes, &in);
            if (ready[i].writable && status == LK_OK)
                status = link->ops->write(link, peer, 0, &part, 1, &out);
            s->done = (s->done + out) % s->bytes;
        }
        over = is_over(s, in, out);
    }
    link->ops->close(link);
}

/* ---- Bare sockets ------------------------------------------------------------------------ */

/* Connects rank 0 to rank 1, which listens.  Each direction has its own connection. */
static int bare_connection(stream *s, int listener)
{
    lki_address address;
    const char *text = NULL;
    int         fd   = -1;
    if (s->rank == 1) {
        struct pollfd wait = { .fd = listener, .events = POLLIN };
        if (poll(&wait, 1, 30000) != 1)
            die("poll");
        fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    } else {
        for (int i = 0; text == NULL && i < 3000; i++, (void)usleep(10000))
            text = address_of(s, 1);
        if (text == NULL || lki_address_parse(&address, text) != LK_OK)
            die("no address");
        fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&address.storage, address.bytes) != 0)
            die("connect");
    }
    if (fd < 0)
        die("connection");
    return fd;
}

static void run_bare(stream *s)
{
    lki_address address;
    int         listener, fds[2];
    char        text[LKI_ADDRESS_BYTES];
    if (lki_address_listen(&listener, &address, s->host) != LK_OK)
        die(lk_error_last()->message);
    lki_address_text(text, &address);
    publish(s, text);
    fds[0] = bare_connection(s, listener); /* from rank 0 to 1 */
    fds[1] = bare_connection(s, listener);

    int  reading = fds[1 - s->rank], writing = fds[s->rank];
    bool over = false;
    while (!over) {
        struct pollfd wait[2] = { { .fd = s->reads ? reading : -1, .events = POLLIN },
                                  { .fd = s->writes ? writing : -1, .events = POLLOUT } };
        ssize_t       in = 0, out = 0;
        if (poll(wait, 2, 1000) < 0)
            die("poll");
        if (wait[0].revents != 0)
            in = recv(reading, s->in, s->bytes, MSG_DONTWAIT);
        if (wait[1].revents != 0)
            out = send(writing, s->out + s->done, s->bytes - s->done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if ((wait[0].revents != 0 && in == 0) || ((in < 0 || out < 0) && errno != EAGAIN))
            break;
        size_t sent = out > 0 ? (size_t)out : 0;
        s->done     = (s->done + sent) % s->bytes;
        over        = is_over(s, in > 0 ? (size_t)in : 0, sent);
    }
    close(fds[0]);
    close(fds[1]);
    close(listener);
}

int main(int argc, char **argv)
{
    static const unsigned char KEY[LKI_KEY_BYTES] = { 1 };
    check_arguments(argc, argv, 7, 7);
    stream s   = { .rank      = (uint32_t)strtoul(argv[2], NULL, 10),
                   .host      = argv[3],
                   .directory = argv[4],
                   .bytes     = strtoul(argv[5], NULL, 10),
                   .seconds   = strtod(argv[6], NULL) };
    bool   two = strcmp(argv[7], "two") == 0;
    s.reads    = two || s.rank == 1;
    s.writes   = two || s.rank == 0;
    s.out      = calloc(1, s.bytes);
    s.in       = calloc(1, s.bytes);
    if (s.out == NULL || s.in == NULL)
        die("memory");
    if (strcmp(argv[1], "floor") == 0)
        run_bare(&s);
    else
        run_link(&s, strcmp(argv[1], "tls") == 0 ? KEY : NULL);
    printf("%.0f %.6g\n", s.rate, s.cost);
    free(s.out);
    free(s.in);
    return 0;
}
