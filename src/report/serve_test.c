/* serve_test.c -- serving a page: who gets it, who does not, and that it follows a run.  Requests
 * are written by hand on a socket.  Without libmicrohttpd the tests are skipped. */
#include "report/report_testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/report.h"

static lk_report *report;
static lk_watch  *watch;
static char       host[64], token[64], answer[1 << 20];

/* Sends a request, and reads the whole answer.  Returns its status. */
static int request(const char *method, const char *path, const char *name)
{
    char               text[512];
    struct sockaddr_in to = { .sin_family = AF_INET };
    to.sin_port           = htons((uint16_t)atoi(strchr(host, ':') + 1));
    to.sin_addr.s_addr    = htonl(INADDR_LOOPBACK);
    int fd                = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int length = snprintf(text, sizeof text,
                          "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", method, path,
                          name);
    assert_int_equal(write(fd, text, (size_t)length), length);
    size_t  used = 0;
    ssize_t got;
    while ((got = read(fd, answer + used, sizeof answer - 1 - used)) > 0)
        used += (size_t)got;
    answer[used] = '\0';
    assert_int_equal(close(fd), 0);
    assert_int_equal(strncmp(answer, "HTTP/1.1 ", 9), 0);
    return atoi(answer + 9);
}

static const char *path_to(const char *rest)
{
    static char path[160];
    (void)snprintf(path, sizeof path, "/%s/%s", token, rest);
    return path;
}

static int begin(void **state)
{
    lk_report_options options = LK_REPORT_OPTIONS_INIT;
    if (lkt_make_folder(state) != 0)
        return 1;
    const char *run   = lkt_write("a.jsonl", "w", LKT_ONE);
    options.runs      = &run;
    options.run_count = 1;
    if (lk_report_open(&report, &options) != LK_OK || lk_watch_open(&watch, report, NULL) != LK_OK)
        return 1;
    return sscanf(lk_watch_url(watch), "http://%63[^/]/%63[^/]/", host, token) != 2;
}

static int end(void **state)
{
    lk_watch_free(watch);
    lk_report_free(report);
    return lkt_remove_folder(state);
}

static void page(void **state)
{
    (void)state;
    char name[80];
    assert_int_equal(strncmp(host, "127.0.0.1:", 10), 0);
    assert_int_equal(strlen(token), 32);
    assert_int_equal(request("GET", path_to(""), host), 200);
    assert_non_null(strstr(answer, "<!doctype html>"));
    assert_non_null(strstr(answer, "Content-Security-Policy: default-src 'none'; script-src 'sha"));
    assert_non_null(strstr(answer, "connect-src 'self'"));
    assert_non_null(strstr(answer, "Referrer-Policy: no-referrer"));
    (void)snprintf(name, sizeof name, "/%s", token); /* without the last slash */
    assert_int_equal(request("GET", name, host), 301);
    assert_non_null(strstr(answer, "Location: /"));
    assert_non_null(strstr(answer, path_to("")));
    (void)snprintf(name, sizeof name, "localhost%s", strchr(host, ':'));
    assert_int_equal(request("GET", path_to(""), name), 200);
}

static void refusals(void **state)
{
    (void)state;
    char        wrong[160];
    const char *paths[] = { "/", "/data", "/favicon.ico", "//", "/x/data" };
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        assert_int_equal(request("GET", paths[i], host), 404);
    (void)snprintf(wrong, sizeof wrong, "%s", path_to(""));
    wrong[32] = wrong[32] == '0' ? '1' : '0'; /* the last digit of the token */
    assert_int_equal(request("GET", wrong, host), 404);
    assert_null(strstr(answer, token));
    assert_int_equal(request("GET", path_to("other"), host), 404);
    assert_int_equal(request("GET", path_to(""), "example.org"), 403);
    assert_int_equal(request("GET", path_to("data"), "127.0.0.1:1"), 403);
    assert_int_equal(request("POST", path_to(""), host), 405);
}

static void following(void **state)
{
    (void)state;
    assert_int_equal(request("GET", path_to("data"), host), 200);
    assert_non_null(strstr(answer, "\"rows\":1,"));
    assert_int_equal(request("GET", path_to("data?version=0"), host), 204);
    (void)lkt_write("a.jsonl", "a", LKT_TWO);
    assert_int_equal(request("GET", path_to("data?version=0"), host), 200);
    assert_non_null(strstr(answer, "\"rows\":2,"));
    assert_int_equal(request("GET", path_to("data?version=1"), host), 204);
    (void)lkt_write("a.jsonl", "a", "text\n");
    assert_int_equal(request("GET", path_to("data?version=1"), host), 500);
    assert_non_null(strstr(answer, "is no JSON object"));
}

static void addresses(void **state)
{
    (void)state;
    lk_watch        *other;
    lk_watch_options options = LK_WATCH_OPTIONS_INIT;
    const char      *none[]  = { "0.0.0.0", "::", "localhost", "" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        options.address = none[i];
        assert_int_equal(lk_watch_open(&other, report, &options), LK_EINVAL);
    }
    options.address = "127.0.0.1";
    options.port    = (uint16_t)atoi(strchr(host, ':') + 1);
    assert_int_equal(lk_watch_open(&other, report, &options), LK_EIO); /* it is in use */
}

/* Opens another server in a program with so many files that its sockets have numbers which select()
 * does not take. */
static void many_files(void **state)
{
    (void)state;
    enum { FILES = FD_SETSIZE + 50 };
    lk_watch     *other;
    char          first_host[sizeof host], first_token[sizeof token];
    int           open[FILES], count = 0;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < 2 * (rlim_t)FILES)
        skip();
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    memcpy(first_host, host, sizeof host);
    memcpy(first_token, token, sizeof token);
    do {
        open[count] = dup(STDOUT_FILENO);
        assert_true(open[count] >= 0);
    } while (open[count++] <= FD_SETSIZE);
    assert_int_equal(lk_watch_open(&other, report, NULL), LK_OK);
    assert_int_equal(sscanf(lk_watch_url(other), "http://%63[^/]/%63[^/]/", host, token), 2);
    assert_int_equal(request("GET", path_to("data"), host), 200);
    lk_watch_free(other);
    while (count > 0)
        (void)close(open[--count]);
    memcpy(host, first_host, sizeof host);
    memcpy(token, first_token, sizeof token);
}

int main(void)
{
    lk_watch *none;
    if (lk_watch_open(&none, NULL, NULL) == LK_EUNSUPPORTED) {
        printf("skipped: %s\n", lk_error_last()->message);
        return 77;
    }
    lk_watch_free(none);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page),
        cmocka_unit_test(refusals),
        cmocka_unit_test(addresses),
        cmocka_unit_test(many_files),
        cmocka_unit_test(following),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
