/* cut_test.c -- cuts the link between two hosts in the middle of a collective.
 *
 * Goal:   both sides end within the deadline and name the host that they lost; no process retains a
 *         descriptor or a thread of the connection.
 * Method: each node has a network namespace and a host name of its own, with a pair of virtual
 *         interfaces between them.  The workers are this program.  Rank 0 starts a collective of
 *         some megabytes and takes its interface down.  All ranks wait.  Skipped if the rights or
 *         the tools are missing.
 */
#include "hosts/nodes.h"

#include <dirent.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include "base/status.h"
#include "launch/self_testing.h"
#include "lockstep/launch.h"

enum { ELEMENTS = 1 << 20 };

/* ---- The worker --------------------------------------------------------------------------- */

static uint32_t entries_of(const char *path)
{
    uint32_t count  = 0;
    DIR     *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        (void)closedir(folder);
    return count;
}

static bool cut(void)
{
    struct ifreq request = { .ifr_name = "v0" };
    int          fd      = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool         good    = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;

    request.ifr_flags = (short)(request.ifr_flags & ~IFF_UP);
    good              = good && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    (void)close(fd);
    return good;
}

/* Runs collectives; the link is cut in the middle of one. */
static lk_status work(lk_comm *comm, float *data)
{
    lk_request *request;

    for (int i = 0; i < 3; i++)
        LK_TRY(lk_all_reduce(comm, data, data, ELEMENTS, LK_F32, LK_SUM));
    LK_TRY(lk_all_reduce_start(&request, comm, data, data, ELEMENTS, LK_F32, LK_SUM));
    if (lk_comm_rank(comm) == 0 && !cut())
        return lk_fail(LK_EIO, "cannot cut the link");
    lk_status st = LK_OK;
    for (int i = 0; i < 3 && st == LK_OK; i++) /* repeated, because data in transit may complete a
                                                * collective */
        st = i == 0 ? lk_request_wait(request)
                    : lk_all_reduce(comm, data, data, ELEMENTS, LK_F32, LK_SUM);
    lk_error why = *lk_error_last();
    lk_request_free(request);
    return st == LK_OK ? LK_OK : lki_fail_again(&why);
}

/* Runs as a worker.  Prints the failure that the worker receives, and any remaining descriptors and
 * threads of the connection.  Returns 1 if the worker has received a failure. */
static int worker(void)
{
    float   *data   = calloc(ELEMENTS, sizeof *data);
    uint32_t before = entries_of("/proc/self/fd");
    lk_comm *comm   = NULL;

    if (data == NULL || lk_join(&comm) != LK_OK || work(comm, data) == LK_OK) {
        fprintf(stderr, "not cut: %s\n", lk_error_last()->message);
        return 97;
    }
    fprintf(stderr, "told: %s\n", lk_error_last()->message);
    double since = seconds_now();
    lk_comm_abort(comm);
    lk_comm_free(comm);
    if (seconds_now() - since > 120)
        fprintf(stderr, "leaving took %g s\n", seconds_now() - since);
    free(data);
    uint32_t after = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task") - 2;
    if (after > before || threads != 1)
        fprintf(stderr, "kept: %u descriptors, %u before; %u threads\n", after, before, threads);
    return 1;
}

/* ---- The test ----------------------------------------------------------------------------- */

static char self[SELF_BYTES];

#define WORKERS "-n 2 --timeout 20 --nnodes 2 --rendezvous tcp://10.77.0.1:29400 --job-key key"

/* Starts both hosts.  `before` is a line of shell that each of them runs before its launcher. */
static void start(nodes *j, const char *before)
{
    static char line[9000];

    forget_stream(j, "pid", 1); /* that of the previous test, whose process has ended */
    (void)snprintf(line, sizeof line,
                   "exec unshare -n -u sh -c 'hostname far; ip link set lo up; echo $$ >pid1\n"
                   "until ip addr add 10.77.0.2/24 dev v1 2>/dev/null; do sleep 0.05\n"
                   "test -e pid1 || exit 96; done\n"
                   "ip link set v1 up; %s; exec '$L' run --node-rank 1 %s %.4000s worker'",
                   before, WORKERS, self);
    (void)node_start(j, line);
    (void)snprintf(line, sizeof line,
                   "exec unshare -n -u sh -c 'hostname near; ip link set lo up\n"
                   "until test -s pid1; do sleep 0.05; done\n"
                   "ip link add v0 type veth peer name v1 netns $(cat pid1) || rm pid1\n"
                   "ip addr add 10.77.0.1/24 dev v0; ip link set v0 up\n"
                   "%s; exec '$L' run --node-rank 0 %s %.4000s worker'", before, WORKERS, self);
    (void)node_start(j, line);
}

static bool names_another(const char *said, const char *host)
{
    char words[64];
    (void)snprintf(words, sizeof words, "host %s", host);
    return strstr(said, words) != NULL;
}

static void a_cut_link_is_found_and_named(void **state)
{
    static nodes j;

    if (geteuid() != 0 || system("unshare -n -u ip link add v0 type veth peer name v1 2>/dev/null "
                                 "&& command -v hostname >/dev/null") != 0) {
        print_message("skipped: no right, or no tools, to make a network of one's own\n");
        skip();
    }
    nodes_begin(&j, *state);
    start(&j, ":");
    for (uint32_t i = 0; i < 2; i++) {
        const char *other = i == 0 ? "near" : "far"; /* node 0 was started last */
        const char *err   = node_wait(&j, i)->err;
        if (strstr(err, "told: ") == NULL || strstr(err, "kept: ") != NULL
            || strstr(err, "leaving took") != NULL || strstr(err, "not cut") != NULL
            || strstr(err, "lockstep run: ") == NULL || !names_another(err, other)
            || j.ended[i].status == 0 || j.ended[i].status == 97)
            nodes_fail(&j, "node %u ends with %d", i, j.ended[i].status);
    }
}

/* Blocks the ports of the workers.  Expects the address and the reason, and not only that a rank
 * does not answer. */
static void a_firewall_is_found_and_named(void **state)
{
#define BLOCK "ip rule add ipproto tcp sport 30000-65534 dport 30000-65534 pref 1 unreachable"
    static nodes j;

    if (geteuid() != 0 || system("unshare -n -u sh -c 'ip link add v0 type veth peer name v1 && "
                                 BLOCK " && command -v hostname' >/dev/null 2>&1") != 0) {
        print_message("skipped: no right, or no tools, to make a network with a firewall\n");
        skip();
    }
    nodes_begin(&j, *state);
    start(&j, BLOCK);
    for (uint32_t i = 0; i < 2; i++) {
        const char *err = node_wait(&j, i)->err;
        const char *words = "no connection within 15000 ms: Network is unreachable (a firewall ";
        if (strstr(err, words) == NULL || strstr(err, "10.77.0.") == NULL || j.ended[i].status == 0)
            nodes_fail(&j, "node %u ends with %d", i, j.ended[i].status);
    }
}

int main(int argc, char **argv)
{
    if (self_is_worker(self, argc, argv))
        return worker();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_link_is_found_and_named),
        cmocka_unit_test(a_firewall_is_found_and_named),
    };
    return cmocka_run_group_tests_name("hosts.cut", tests, make_folder_with_key, remove_folder);
}
