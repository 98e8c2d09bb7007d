/* serve.c -- serves the page of a report over HTTP, to those who know its token.
 *
 * A page of another site that a user has open can send requests to this server, too, so a request
 * must name our address in the header Host (a name that was made to point here does not), and its
 * path must begin with 128 random bits.  No other site can read an answer, because none permits it.
 */
#include "lockstep/report.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/options.h"
#include "report/microhttpd.h"
#include "report/page.h"

#ifdef LKI_MICROHTTPD

enum { TOKEN_BYTES = 16, HOST_BYTES = 64, CONNECTIONS = 32, IDLE_SECONDS = 30 };

struct lk_watch {
    lki_microhttpd     http;
    struct MHD_Daemon *daemon;
    lk_report         *report;
    char               token[2 * TOKEN_BYTES + 1], url[160];
    char               hosts[2][HOST_BYTES]; /* accepted values of the header Host */
};

/* ---- Requests ------------------------------------------------------------------------------ */

/* Sends an answer.  Takes over `text`, which malloc() has allocated or is NULL.  A redirection goes
 * to the page. */
static enum MHD_Result answer(const lk_watch *w, struct MHD_Connection *to, unsigned code,
                              const char *type, char *text, size_t bytes)
{
    char                 policy[512], page[2 * TOKEN_BYTES + 3];
    struct MHD_Response *response = w->http.MHD_create_response_from_buffer(
        bytes, text, text != NULL ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    lki_page_policy(true, policy);
    const char *const headers[][2] = { { "Content-Type", type },
                                       { "Content-Security-Policy", policy },
                                       { "Cache-Control", "no-store" },
                                       { "Referrer-Policy", "no-referrer" },
                                       { "X-Content-Type-Options", "nosniff" },
                                       { "X-Frame-Options", "DENY" },
                                       { "Cross-Origin-Resource-Policy", "same-origin" } };
    bool              good         = true;
    for (size_t i = 0; good && i < sizeof headers / sizeof headers[0]; i++)
        good = w->http.MHD_add_response_header(response, headers[i][0], headers[i][1]) == MHD_YES;
    (void)snprintf(page, sizeof page, "/%s/", w->token);
    if (good && code == MHD_HTTP_MOVED_PERMANENTLY)
        good = w->http.MHD_add_response_header(response, "Location", page) == MHD_YES;
    enum MHD_Result result = good ? w->http.MHD_queue_response(to, code, response) : MHD_NO;
    w->http.MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(const lk_watch *w, struct MHD_Connection *to, unsigned code,
                              const char *why)
{
    char *text = strdup(why);
    return answer(w, to, code, "text/plain; charset=utf-8", text, text != NULL ? strlen(text) : 0);
}

/* Compares the beginning of a path with the token in a time that does not depend on where they
 * differ.  Returns the rest of the path, which is empty or begins with a slash, or NULL. */
static const char *after_token(const lk_watch *w, const char *path)
{
    size_t        length = 2 * TOKEN_BYTES;
    unsigned char other  = 0;
    if (path[0] != '/' || strlen(path) < length + 1 ||
        (path[length + 1] != '/' && path[length + 1] != '\0'))
        return NULL;
    for (size_t i = 0; i < length; i++)
        other |= (unsigned char)(path[i + 1] ^ w->token[i]);
    return other == 0 ? path + length + 1 : NULL;
}

static bool is_ours(const lk_watch *w, const char *host)
{
    return host != NULL &&
           (strcasecmp(host, w->hosts[0]) == 0 || strcasecmp(host, w->hosts[1]) == 0);
}

static enum MHD_Result send_report(lk_watch *w, struct MHD_Connection *to, bool page)
{
    bool        changed;
    char       *text   = NULL;
    size_t      bytes  = 0;
    const char *known  = w->http.MHD_lookup_connection_value(to, MHD_GET_ARGUMENT_KIND, "version");
    lk_status   status = lk_report_update(w->report, &changed);
    if (status == LK_OK && !page && known != NULL && strtoull(known, NULL, 10) == w->report->number)
        return answer(w, to, MHD_HTTP_NO_CONTENT, "application/json", NULL, 0);
    if (status == LK_OK)
        status = page ? lki_page_make(w->report, true, &text, &bytes)
                      : lki_page_make_data(w->report, &text, &bytes);
    if (status != LK_OK)
        return refuse(w, to, MHD_HTTP_INTERNAL_SERVER_ERROR, lk_error_last()->message);
    return answer(w, to, MHD_HTTP_OK, page ? "text/html; charset=utf-8" : "application/json", text,
                  bytes);
}

static enum MHD_Result handle(void *context, struct MHD_Connection *to, const char *path,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **request)
{
    lk_watch   *w    = context;
    const char *host = w->http.MHD_lookup_connection_value(to, MHD_HEADER_KIND, "Host");
    const char *rest = after_token(w, path);
    (void)version;
    (void)upload;
    (void)request;
    *upload_bytes = 0;
    if (!is_ours(w, host))
        return refuse(w, to, MHD_HTTP_FORBIDDEN, "This server does not go by that name.\n");
    if (rest == NULL ||
        (strcmp(rest, "") != 0 && strcmp(rest, "/") != 0 && strcmp(rest, "/data") != 0))
        return refuse(w, to, MHD_HTTP_NOT_FOUND, "There is nothing here.\n");
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(w, to, MHD_HTTP_METHOD_NOT_ALLOWED, "Only GET is served here.\n");
    if (rest[0] == '\0') /* the page requests its data relative to the URL */
        return answer(w, to, MHD_HTTP_MOVED_PERMANENTLY, "text/plain; charset=utf-8", NULL, 0);
    return send_report(w, to, rest[1] == '\0');
}

/* ---- The server ---------------------------------------------------------------------------- */

typedef union {
    struct sockaddr     any;
    struct sockaddr_in  v4;
    struct sockaddr_in6 v6;
} socket_address;

static lk_status read_address(socket_address *out, socklen_t *bytes, const char *text,
                              uint16_t port)
{
    *out = (socket_address){ .any = { .sa_family = AF_UNSPEC } };
    if (inet_pton(AF_INET, text, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port   = htons(port);
        *bytes             = sizeof out->v4;
        if (out->v4.sin_addr.s_addr != htonl(INADDR_ANY))
            return LK_OK;
    } else if (inet_pton(AF_INET6, text, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port   = htons(port);
        *bytes              = sizeof out->v6;
        if (!IN6_IS_ADDR_UNSPECIFIED(&out->v6.sin6_addr))
            return LK_OK;
    }
    return lk_fail(LK_EINVAL,
                   "`address` is '%.60s', but must be one numeric address of this "
                   "machine, such as 127.0.0.1",
                   text);
}

/* Opens a socket that listens at an address, and finds its port. */
static lk_status listen_at(int *out, const char *text, uint16_t *port)
{
    socket_address address;
    socklen_t      bytes;
    const int      yes = 1;
    LK_TRY(read_address(&address, &bytes, text, *port));
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(fd, &address.any, bytes) != 0 || listen(fd, CONNECTIONS) != 0 ||
        getsockname(fd, &address.any, &bytes) != 0) {
        lk_status status = lk_fail(LK_EIO, "cannot listen at %s, port %u: %s", text, *port,
                                   strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return status;
    }
    *port = ntohs(address.any.sa_family == AF_INET ? address.v4.sin_port : address.v6.sin6_port);
    *out  = fd;
    return LK_OK;
}

static lk_status make_token(lk_watch *w)
{
    uint8_t bytes[TOKEN_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return lk_fail(LK_EIO, "the system has no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < TOKEN_BYTES; i++)
        (void)snprintf(w->token + 2 * i, 3, "%02x", bytes[i]);
    return LK_OK;
}

static void name_hosts(lk_watch *w, const char *address, uint16_t port)
{
    bool v6 = strchr(address, ':') != NULL;
    (void)snprintf(w->hosts[0], HOST_BYTES, v6 ? "[%.46s]:%u" : "%.46s:%u", address, port);
    (void)snprintf(w->url, sizeof w->url, "http://%s/%s/", w->hosts[0], w->token);
    if (strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0)
        (void)snprintf(w->hosts[1], HOST_BYTES, "localhost:%u", port);
    else
        (void)snprintf(w->hosts[1], HOST_BYTES, "%s", w->hosts[0]);
}

static lk_status start(lk_watch *w, const lk_watch_options *o)
{
    int         fd      = -1;
    uint16_t    port    = o->port;
    const char *address = o->address != NULL ? o->address : "127.0.0.1";
    LK_TRY(lki_microhttpd_load(&w->http));
    LK_TRY(make_token(w));
    LK_TRY(listen_at(&fd, address, &port));
    name_hosts(w, address, port);
    /* with poll(), because select() takes no descriptors from 1024 on */
    w->daemon = w->http.MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, port, NULL, NULL, handle, w,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_END);
    if (w->daemon != NULL)
        return LK_OK;
    (void)close(fd);
    return lk_fail(LK_EIO, "libmicrohttpd cannot serve at %s", w->hosts[0]);
}

lk_status lk_watch_open(lk_watch **out, lk_report *report, const lk_watch_options *options)
{
    lk_watch_options o;
    lk_watch        *w = NULL;
    *out               = NULL;
    LK_TRY(lki_options_copy(&o, sizeof o, options, "lk_watch_options"));
    LK_TRY(LKI_NEW(&w, 1, "a server"));
    w->report        = report;
    lk_status status = start(w, &o);
    if (status != LK_OK) {
        lk_watch_free(w);
        return status;
    }
    *out = w;
    return LK_OK;
}

const char *lk_watch_url(const lk_watch *watch)
{
    return watch->url;
}

void lk_watch_free(lk_watch *watch)
{
    if (watch == NULL)
        return;
    if (watch->daemon != NULL)
        watch->http.MHD_stop_daemon(watch->daemon);
    lki_microhttpd_unload(&watch->http);
    lki_free(watch);
}

#else

lk_status lk_watch_open(lk_watch **out, lk_report *report, const lk_watch_options *options)
{
    (void)report;
    (void)options;
    *out = NULL;
    return lk_fail(LK_EUNSUPPORTED, "this build serves no pages: build it where the header of GNU "
                                    "libmicrohttpd is installed, or write the page to a file");
}

const char *lk_watch_url(const lk_watch *watch)
{
    (void)watch;
    return "";
}

void lk_watch_free(lk_watch *watch)
{
    (void)watch;
}

#endif
