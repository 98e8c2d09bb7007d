/* cmd_doctor.c -- `lockstep doctor`: the features of this machine, and what is missing.
 *
 * Prints one line per finding.  The line begins with ok, warn (works, but slower or smaller than
 * possible) or missing (does not work).  The finding and a remedy follow.  Every finding comes from
 * a trial or from the kernel.  The command changes nothing.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/nodes.h"
#include "lockstep/tensor.h"

/* ---- Findings ---------------------------------------------------------------------------- */

typedef enum { FOUND_OK, FOUND_WARN, FOUND_MISSING, FOUND_KINDS } finding;

typedef struct {
    uint32_t counts[FOUND_KINDS];
    uint32_t cores; /* whole cores that this process may use, within its quota */
} report;

static void say(report *r, finding kind, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void say(report *r, finding kind, const char *what, const char *format, ...)
{
    static const char *const names[FOUND_KINDS] = { "ok", "warn", "missing" };
    va_list                  args;

    r->counts[kind]++;
    printf("%-8s %-12s ", names[kind], what);
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)putchar('\n');
}

/* ---- Reading kernel files ---------------------------------------------------------------- */

/* Reads the beginning of a small file.  Returns false if the file cannot be read. */
static bool read_text(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    text[fread(text, 1, bytes - 1, file)] = '\0';
    (void)fclose(file);
    return true;
}

/* Returns the number of bytes in a line "KEY: 123 kB" of /proc/meminfo; 0 if there is no such
 * line. */
static uint64_t memory_line(const char *key)
{
    char               text[4096];
    unsigned long long kib = 0;

    if (!read_text("/proc/meminfo", text, sizeof text))
        return 0;
    const char *line = strstr(text, key);
    if (line == NULL || sscanf(line + strlen(key), ": %llu", &kib) != 1)
        return 0;
    return (uint64_t)kib * 1024;
}

/* ---- The checks -------------------------------------------------------------------------- */

static void check_cores(report *r)
{
    long               online = sysconf(_SC_NPROCESSORS_ONLN);
    const lk_allowance mine   = lk_allowance_read();

    r->cores = mine.cores;
    if (mine.granted_cores > 0 && mine.granted_cores < mine.bound_cores) {
        say(r, FOUND_WARN, "cores", "%u, but the cgroup grants the time of %.1f: commands use %u "
            "by default; raise its CPU limit for more", mine.bound_cores, mine.granted_cores,
            mine.cores);
    } else if (online > 0 && r->cores < (unsigned long)online) {
        say(r, FOUND_OK, "cores", "%u of the machine's %ld: this process is bound to them",
            r->cores, online);
    } else {
        say(r, FOUND_OK, "cores", "%u", r->cores);
    }
}

/* Returns the ending of a noun after a number. */
static const char *plural(uint32_t count)
{
    return count == 1 ? "" : "s";
}

/* Prints where `run` and `train` would place their workers. */
static void check_topology(report *r, uint32_t workers, lk_bind bind)
{
    enum { SHOWN = 8 };
    lk_topology t;
    char        place[200];

    lk_topology_find(&t);
    bool hwloc = strncmp(t.by, "hwloc", 5) == 0;
    if (hwloc)
        say(r, FOUND_OK, "topology", "%u package%s, %u NUMA node%s, %u core%s, %u thread%s (%s)",
            t.packages, plural(t.packages), t.nodes, plural(t.nodes), t.cores, plural(t.cores),
            t.cpus, plural(t.cpus), t.by);
    else
        say(r, FOUND_WARN, "topology", "%u package%s, %u core%s, %u thread%s (%s): on a machine "
            "with several NUMA nodes install libhwloc15, for workers beside their memory",
            t.packages, plural(t.packages), t.cores, plural(t.cores), t.cpus, plural(t.cpus),
            t.by[0] == '\0' ? "not known" : t.by);
    for (uint32_t rank = 0; rank < workers && rank < SHOWN; rank++)
        if (lk_topology_place(place, sizeof place, rank, workers, bind))
            say(r, FOUND_OK, rank == 0 ? "placement" : "", "worker %u of %u on cpu %s", rank,
                workers, place);
        else if (rank == 0)
            say(r, FOUND_OK, "placement", "%u worker%s, anywhere", workers, plural(workers));
}

/* Returns true if the processor has the tiles for bf16 values, which a kernel may still refuse. */
static bool has_tiles(void)
{
    char text[4096];
    return read_text("/proc/cpuinfo", text, sizeof text) && strstr(text, " amx_bf16") != NULL;
}

/* Prints the measured rates of every instruction set that this processor has. */
static void say_rates(report *r)
{
    const double measured = 2e-3; /* seconds for each rate */
    lk_exec     *exec;

    for (uint32_t i = 0; lk_isa_name(i) != NULL; i++) {
        if (lk_exec_open(&exec, 1, lk_isa_name(i)) != LK_OK) {
            if (strcmp(lk_isa_name(i), "amx") == 0 && has_tiles())
                say(r, FOUND_WARN, "", "%s", lk_error_last()->message);
            continue;
        }
        double fp32 = lk_exec_peak(exec, LK_F32, measured);
        double bf16 = lk_exec_peak(exec, LK_BF16, measured);
        say(r, FOUND_OK, "", "%s: up to %.1f GFLOP/s a core in FP32, %.1f in bf16", lk_isa_name(i),
            fp32 / 1e9, bf16 / 1e9);
        lk_exec_free(exec);
    }
}

static void check_isa(report *r)
{
    lk_exec *exec;

    if (lk_exec_open(&exec, 1, NULL) != LK_OK) {
        say(r, FOUND_MISSING, "instructions", "%s", lk_error_last()->message);
        return;
    }
    bool slow = strcmp(lk_exec_isa(exec), "portable") == 0;
    say(r, slow ? FOUND_WARN : FOUND_OK, "instructions",
        "%s, the fastest here (all have the same bits)%s", lk_exec_isa(exec),
        slow ? ": no vector unit that Lockstep has kernels for, so slow" : "");
    lk_exec_free(exec);
    say_rates(r);
}

static void check_memory(report *r)
{
    uint64_t free_bytes = memory_line("MemAvailable");
    uint64_t granted    = lk_allowance_read().granted_bytes;
    bool     limited    = granted < free_bytes;
    double   gib        = (double)(limited ? granted : free_bytes) / (double)(1 << 30);

    say(r, gib < 0.5 ? FOUND_WARN : FOUND_OK, "memory", "%.1f GiB available%s%s", gib,
        limited ? " within the cgroup's limit" : "",
        gib < 0.5 ? ": only small models will fit" : "");
}

/* Returns true if `word` is the selected word in a text such as "always [madvise] never". */
static bool is_chosen(const char *text, const char *word)
{
    const char *open = strchr(text, '[');
    return open != NULL && strncmp(open + 1, word, strlen(word)) == 0;
}

static void check_huge_pages(report *r)
{
    static const char *const path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    char                     text[128];

    if (!read_text(path, text, sizeof text)) {
        say(r, FOUND_WARN, "huge pages", "not in this kernel: shared memory has small pages");
        return;
    }
    bool never = is_chosen(text, "never") || is_chosen(text, "deny");
    say(r, never ? FOUND_WARN : FOUND_OK, "huge pages", "%s for shared memory%s",
        never ? "off" : "on",
        never ? "; to allow them, as root: echo advise > "
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled" : "");
}

static void say_tried(report *r, const char *what, bool works, const char *good, const char *todo)
{
    if (works)
        say(r, FOUND_OK, what, "%s", good);
    else
        say(r, FOUND_MISSING, what, "%s; %s", strerror(errno), todo);
}

static void check_kernel(report *r)
{
    struct utsname name;
    uint32_t       word = 0;
    int            pair[2] = { -1, -1 };

    if (uname(&name) == 0)
        say(r, FOUND_OK, "kernel", "%s %s on %s", name.sysname, name.release, name.machine);
    int fd = memfd_create("doctor", MFD_CLOEXEC);
    say_tried(r, "memfd", fd >= 0, "shared memory without names (the size of /dev/shm is of no "
              "importance)", "workers share memory through memfd_create: allow it in the sandbox");
    if (fd >= 0)
        (void)close(fd);
    fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    say_tried(r, "pidfd", fd >= 0, "a worker's death is seen at once",
              "the launcher needs Linux 5.3, and pidfd_open allowed in the sandbox");
    if (fd >= 0)
        (void)close(fd);
    say_tried(r, "futex", syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0) == 0,
              "waiting workers sleep", "allow futex in the sandbox");
    say_tried(r, "sockets", socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0,
              "Unix sockets carry descriptors", "allow AF_UNIX sockets in the sandbox");
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            (void)close(pair[i]);
}

/* Checks the limit of open files.  The launcher needs four descriptors per worker: a socket, a
 * pidfd and two pipes.  A worker needs one per peer, and some for arenas and files. */
static void check_limits(report *r)
{
    enum { FOR_A_WORKER = 4, FOR_THE_REST = 64 };
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        unsigned long long soft = limit.rlim_cur;
        unsigned long long most = soft > FOR_THE_REST ? (soft - FOR_THE_REST) / FOR_A_WORKER : 0;
        bool               few  = most < r->cores;
        say(r, few ? FOUND_WARN : FOUND_OK, "open files", "%llu, enough for %llu workers%s", soft,
            most, few ? ": fewer than cores; raise it with ulimit -n" : "");
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        if (limit.rlim_cur == RLIM_INFINITY)
            say(r, FOUND_OK, "locked memory", "unlimited (not needed)");
        else
            say(r, FOUND_OK, "locked memory", "%llu KiB (none is needed)",
                (unsigned long long)limit.rlim_cur / 1024);
    }
    if (getrlimit(RLIMIT_CORE, &limit) == 0)
        say(r, FOUND_OK, "core files", "%s", limit.rlim_cur != 0
                ? "written when a worker crashes; they hold all of its memory"
                : "off; ulimit -c unlimited keeps one when a worker crashes");
}

/* Prints the launcher that started this process, as the other commands see it.  Only the other
 * commands refuse a job that is described in part. */
static void check_launcher(report *r)
{
    char text[1024];

    if (lk_launcher_describe(text, sizeof text) == LK_OK)
        say(r, FOUND_OK, "launcher", "%s%s", text,
            strcmp(text, "none") == 0 ? ": commands start their own workers" : "");
    else
        say(r, FOUND_WARN, "launcher", "%s%s%s", strcmp(text, "none") == 0 ? "" : text,
            strcmp(text, "none") == 0 ? "" : "; ", lk_error_last()->message);
}

/* ---- The command ------------------------------------------------------------------------- */

typedef struct {
    uint32_t    workers;
    const char *bind;
} doctor_options;

#define AT(field) offsetof(doctor_options, field)

static const lki_option table[] = {
    LKI_U32("workers", "N", AT(workers), 1, 1024, "one for each core",
            "number of workers for which to show the placement"),
    LKI_CHOICE(LKI_OPTION_NAME, "bind", "WHERE", AT(bind), lki_binds, "core",
               "cores for these workers, as in lockstep run"),
    LKI_OPTIONS_END,
};

static int doctor_main(int argc, char **argv)
{
    doctor_options o    = { .bind = "core" };
    report         r    = { .cores = 1 };
    int            done = lki_options_parse(&lki_command_doctor, argc, argv, &o);

    if (done >= 0)
        return done;
    say(&r, FOUND_OK, "lockstep", "%s", LK_VERSION);
    check_launcher(&r);
    check_cores(&r);
    check_topology(&r, o.workers == 0 ? r.cores : o.workers, lki_bind_of(o.bind));
    check_isa(&r);
    check_memory(&r);
    check_huge_pages(&r);
    check_kernel(&r);
    check_limits(&r);
    if (r.counts[FOUND_MISSING] > 0)
        printf("\n%u missing: training on several workers will not run here.\n",
               r.counts[FOUND_MISSING]);
    else
        printf("\nReady: lockstep train ... --workers %u uses every core%s.\n", r.cores,
               r.counts[FOUND_WARN] > 0 ? "; see the warnings above" : "");
    return r.counts[FOUND_MISSING] > 0 ? LKI_EXIT_FAILURE : 0;
}

const lki_command lki_command_doctor = {
    .name     = "doctor",
    .summary  = "show what this machine offers and what is missing",
    .usage    = "[options]",
    .about    = "Examines this machine as a training run would see it.  One line per finding:\n"
                "ok, warn (works, but could be better) or missing (does not work), and what to do\n"
                "about it.  Changes nothing.  Exits with 1 if something is missing, else with 0.",
    .examples = "  lockstep doctor",
    .options  = table,
    .main     = doctor_main,
};
