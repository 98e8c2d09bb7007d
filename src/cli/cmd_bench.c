/* cmd_bench.c -- `lockstep bench`: measures collectives and checks their results.
 *
 * Before each call every rank writes its input (bench_kinds.c) and enters a barrier; then it times
 * the call.  The time of an iteration is the time of the slowest rank.  On one host short calls are
 * timed in batches of 64, so that reading the clock does not dominate.  The time of a batch then
 * includes writing the few bytes of input.  The result of the last iteration is compared byte by
 * byte.
 *
 * algbw is bytes / time. busbw is algbw times the minimum number of bytes that each rank must move
 * per byte of the size: 2(N-1)/N for all_reduce, (N-1)/N if each rank has a part, else 1.  So busbw
 * can be compared with the bandwidth of memory or network for any N.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/bench_ops.h"
#include "cli/bench_step.h"
#include "cli/commands.h"
#include "cli/values.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/launch.h"

enum {
    BATCH        = 64,   /* number of short calls timed together */
    BATCH_BYTES  = 4096, /* largest size of a short call */
    WARM_UP      = 5,
    ROUNDS_MIN   = 15,
    ROUNDS_MAX   = 400,
    ROUNDS_BYTES = 1 << 28, /* approximate number of bytes moved in all rounds */
};

#define AT(field) offsetof(bench_options, field)

/* ---- Options ----------------------------------------------------------------------------- */

static bool read_size(const char *text, size_t length, uint64_t *bytes)
{
    static const char units[] = "KMG";
    uint64_t          unit    = 1;
    const char       *at      = length > 1 ? strchr(units, text[length - 1]) : NULL;
    if (at != NULL && *at != '\0') {
        unit = UINT64_C(1) << (10 * (at - units + 1));
        length--;
    }
    if (!lki_parse_u64(text, length, bytes) || *bytes > (UINT64_C(1) << 40) / unit)
        return false;
    *bytes *= unit;
    return *bytes >= 4;
}

static bool add_size(bench_options *options, uint64_t bytes, lki_message *error)
{
    if (options->size_count == BENCH_SIZES_MAX)
        return lki_refuse(error, "has more than %d sizes", BENCH_SIZES_MAX);
    options->sizes[options->size_count++] = bytes;
    return true;
}

/* Parses A,B,C or FROM:TO, a range of sizes in which each doubles the previous one. */
static bool read_sizes(const char *text, void *target, lki_message *error)
{
    bench_options *options = target;
    const char    *colon   = strchr(text, ':');
    uint64_t       from, to;

    options->size_count = 0;
    if (colon != NULL) {
        if (!read_size(text, (size_t)(colon - text), &from) ||
            !read_size(colon + 1, strlen(colon + 1), &to) || from > to)
            return lki_refuse(error, "must be FROM:TO with 4 <= FROM <= TO, as in 4:64M");
        for (; from <= to; from *= 2)
            if (!add_size(options, from, error))
                return false;
        return true;
    }
    while (*text != '\0') {
        size_t length = strcspn(text, ",");
        if (!read_size(text, length, &from))
            return lki_refuse(error, "must be sizes of at least 4 bytes, as in 4,1K,64M or 4:64M");
        if (!add_size(options, from, error))
            return false;
        text += length + (text[length] == ',');
    }
    return options->size_count > 0 || lki_refuse(error, "must name at least one size");
}

/* clang-format off */
static const lki_choice dtypes[] = {
    { .name = "fp32", .value = LK_F32 }, { .name = "fp64", .value = LK_F64 },
    { .name = "fp16", .value = LK_F16 }, { .name = "bf16", .value = LK_BF16 },
    { .name = "i8", .value = LK_I8 }, { .name = "u8", .value = LK_U8 },
    { .name = "i16", .value = LK_I16 }, { .name = "u16", .value = LK_U16 },
    { .name = "i32", .value = LK_I32 }, { .name = "u32", .value = LK_U32 },
    { .name = "i64", .value = LK_I64 }, { .name = "u64", .value = LK_U64 },
    { .name = NULL },
};

static const lki_option table[] = {
    LKI_POSITIONAL("OP", AT(op_name), true, "step, scaling, or a collective such as all_reduce"),
    { .name = "workers", .type = LKI_OPTION_U32, .value = "N", .letter = 'n', .offset = AT(workers),
      .low = 1, .high = 1024, .preset = "2", .help = "number of worker processes" },
    { .name = "bytes", .type = LKI_OPTION_CUSTOM, .value = "A,B|FROM:TO", .read = read_sizes,
      .preset = "4:16M",
      .help = "sizes in bytes of a rank's data, or of the parts of all ranks together; K, M and G "
              "are suffixes; FROM:TO doubles the size each time" },
    LKI_CHOICE(LKI_OPTION_NAME, "dtype", "NAME", AT(dtype), dtypes, "fp32",
               "type of the elements"),
    LKI_U32("iterations", "N", AT(iterations), 1, 100000, "15 to 400, by size",
            "number of timed rounds per size"),
    LKI_FLAG("foreign", AT(foreign), "use buffers in ordinary memory, not in an arena"),
    { .name = "flight-recorder", .alias = "flight", .type = LKI_OPTION_STRING, .value = "DIR",
      .offset = AT(flight),
      .help = "record each worker's last operations in DIR, for lockstep inspect --flight DIR" },
    LKI_FLAG("json", AT(json), "print one JSON object per line"),
    { .name = "timeout", .type = LKI_OPTION_SECONDS, .value = "SECONDS", .offset = AT(timeout_ms),
      .range = &lki_range_positive, .preset = "30",
      .help = "seconds for which ranks wait for each other" },
    { .group = "algorithms, for workers on several hosts", .name = "algorithm",
      .type = LKI_OPTION_STRING, .value = "NAME", .offset = AT(algorithm),
      .preset = "the cheapest",
      .help = "algorithm between hosts: direct, linear, tree, double_tree, halving, ring or "
              "levels, if OP has it; native: MPI's own, under mpirun" },
    LKI_FLAG("mpi", AT(mpi), "under mpirun: use MPI between hosts instead of TCP"),
    LKI_FLAG("explain", AT(explain),
             "time every available algorithm, and also print its predicted time"),
    { .name = "tune", .type = LKI_OPTION_STRING, .value = "FILE", .offset = AT(tune),
      .help = "first measure the constants that decide the choice of algorithms, and write them to "
              "FILE" },
    LKI_NODE_OPTIONS(AT(nodes)),
    LKI_OPTIONS_END,
};
/* clang-format on */

/* ---- One size ---------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns the number of calls that are timed together. */
static uint32_t calls_of(const bench *b, uint64_t bytes)
{
    return bytes <= BATCH_BYTES && lk_comm_hosts(b->comm) == 1 && !b->kind->tree ? BATCH : 1;
}

static lk_status timed_round(bench_timing *t, uint64_t bytes, uint32_t round, double *time)
{
    bench   *b     = &t->bench;
    uint32_t calls = calls_of(b, bytes);

    b->round = round;
    bench_write_input(b);
    lk_status status = lk_barrier(b->comm);
    if (status == LK_OK && lk_stop_requested(b->comm))
        return LK_ESTOPPED;
    double begun = seconds();
    for (uint32_t i = 0; status == LK_OK && i < calls; i++) {
        if (i > 0)
            bench_write_input(b);
        status = b->kind->call(b);
    }
    *time = (seconds() - begun) / calls;
    if (status == LK_OK && b->kind->tree) /* other ranks read this rank's input until here */
        status = lk_barrier(b->comm);
    return status;
}

/* Computes the time of the slowest rank in each round, and sorts these times. */
static lk_status merge_times(const bench_timing *t, uint32_t rounds)
{
    double   *all    = t->times + rounds;
    lk_status status = lk_all_gather(t->bench.comm, t->times, all, rounds * sizeof *all);
    for (uint32_t i = 0; status == LK_OK && i < rounds; i++)
        for (uint32_t r = 0; r < t->bench.ranks; r++)
            t->times[i] = fmax(t->times[i], all[(size_t)r * rounds + i]);
    qsort(t->times, rounds, sizeof *t->times, lki_compare_numbers);
    return status;
}

static uint32_t rounds_of(const bench_options *options, uint64_t bytes)
{
    uint64_t wanted = bytes > 0 ? ROUNDS_BYTES / bytes : ROUNDS_MAX;

    if (options->iterations > 0)
        return options->iterations;
    return wanted < ROUNDS_MIN ? ROUNDS_MIN : wanted > ROUNDS_MAX ? ROUNDS_MAX : (uint32_t)wanted;
}

/* Measures t->rounds rounds, and stores their sorted times in t->times. */
static lk_status measure(bench_timing *t, uint64_t bytes, bool *right)
{
    double    unused = 0, wrong = 0, wrongs = 0;
    lk_status status = LK_OK;

    t->rounds = rounds_of(t->options, bytes);
    bench_resize(&t->bench, bytes);
    for (uint32_t i = 0; status == LK_OK && i < WARM_UP; i++)
        status = timed_round(t, bytes, i, &unused);
    for (uint32_t i = 0; status == LK_OK && i < t->rounds; i++)
        status = timed_round(t, bytes, i, &t->times[i]);
    if (status == LK_OK) {
        wrong  = t->bench.kind->right(&t->bench) ? 0 : 1;
        status = lk_all_reduce(t->bench.comm, &wrong, &wrongs, 1, LK_F64, LK_SUM);
    }
    if (status == LK_OK)
        status = merge_times(t, t->rounds);
    *right = wrongs == 0;
    return status;
}

/* ---- All sizes --------------------------------------------------------------------------- */

enum { ALGORITHMS = 16 };

/* Lists the algorithms for a size.  There is at least one. */
static lk_status list_algorithms(const bench *b, uint64_t bytes, lk_algorithm list[ALGORITHMS],
                                 uint32_t *count)
{
    bool here = lk_comm_hosts(b->comm) == 1;

    *count = 0;
    if (b->kind->way == NULL) {
        lk_status status = lk_comm_explain(b->comm, b->kind->name, bytes, list, ALGORITHMS, count);
        if (status != LK_OK)
            return status;
    }
    if (*count == 0) {
        list[0] = (lk_algorithm){ .name   = here ? "shared" : b->kind->way,
                                  .exact  = true,
                                  .chosen = true };
        *count  = 1;
    }
    for (uint32_t i = 0; here && i < *count; i++)
        if (strcmp(list[i].name, "native") != 0)
            list[i].name = "shared";
    return LK_OK;
}

/* Measures one size with every algorithm, and prints the times with the predictions. */
static lk_status explain_size(bench_timing *t, uint64_t bytes, bool *all_right)
{
    bench       *b = &t->bench;
    lk_algorithm list[ALGORITHMS];
    uint32_t     count;
    char         name[64];
    lk_status    status = list_algorithms(b, bytes, list, &count);

    for (uint32_t i = 0; status == LK_OK && i < count; i++) {
        bool right = true;
        snprintf(name, sizeof name, "%s:%s", b->kind->name, list[i].name);
        if (count > 1)
            status = lk_comm_set_algorithms(b->comm, strcmp(list[i].name, "shared") == 0 ? NULL
                                                                                         : name);
        if (status == LK_OK)
            status = measure(t, bytes, &right);
        *all_right &= right;
        if (status == LK_OK && b->rank == 0)
            bench_print_prediction(t, &list[i], right);
    }
    return status == LK_OK ? lk_comm_set_algorithms(b->comm, NULL) : status;
}

/* Finds the algorithm that is selected for a size. */
static lk_status find_algorithm(const bench *b, uint64_t bytes, lk_algorithm *out)
{
    lk_algorithm list[ALGORITHMS];
    uint32_t     count;
    lk_status    status = list_algorithms(b, bytes, list, &count);

    for (uint32_t i = 0; status == LK_OK && i < count; i++)
        if (list[i].chosen)
            *out = list[i];
    return status;
}

static lk_status bench_size(bench_timing *t, uint64_t bytes, bool *all_right)
{
    lk_algorithm by    = { .name = "" };
    bool         right = true;
    lk_status    status;

    if (t->options->explain)
        return explain_size(t, bytes, all_right);
    status = measure(t, bytes, &right);
    if (status == LK_OK)
        status = find_algorithm(&t->bench, bytes, &by);
    if (status == LK_OK && t->bench.rank == 0)
        bench_print_size(t, &by, right);
    *all_right &= right;
    return status;
}

static lk_status bench_all(bench_timing *t, bool *right)
{
    const bench_options *o      = t->options;
    uint64_t             widest = 64;

    for (uint32_t i = 0; i < o->size_count; i++)
        widest = o->sizes[i] > widest ? o->sizes[i] : widest;
    uint32_t  most   = o->iterations > ROUNDS_MAX ? o->iterations : ROUNDS_MAX;
    lk_status status = bench_open(&t->bench, widest, o->foreign);
    t->times         = calloc((size_t)most * (t->bench.ranks + 1), sizeof *t->times);
    if (status == LK_OK && t->times == NULL)
        status = LK_ENOMEM;
    if (status == LK_OK)
        bench_print_heading(t);
    for (uint32_t i = 0; status == LK_OK && i < o->size_count; i++)
        status = bench_size(t, o->sizes[i], right);
    free(t->times);
    bench_close(&t->bench);
    return status;
}

/* Fails on every rank, after rank 0 has printed the reason.  No rank exits before rank 0 has
 * printed. */
static lk_status refuse(const bench *b, const char *option, const char *why)
{
    if (b->rank == 0)
        fprintf(stderr, "lockstep bench: %s: %s\n", option, why);
    lk_status status = lk_barrier(b->comm);
    return status == LK_OK ? LK_EINVAL : status;
}

static const char tune_here[] = "it measures the network between hosts, and all workers are on "
                                "one (--hosts 2 emulates two)";
static const char algorithm_here[] = "on one host ranks share memory, and only sizes and places "
                                     "decide; it is for several hosts (--hosts 2 emulates two)";

/* Measures the constants for the choice, and sets the requested algorithm.  If that is impossible,
 * prints the reason and returns LK_EINVAL. */
static lk_status prepare_algorithms(const bench_timing *t)
{
    const bench_options *o = t->options;
    const bench         *b = &t->bench;
    char                 name[128];

    if (lk_comm_hosts(b->comm) == 1 && o->tune != NULL)
        return refuse(b, "--tune", tune_here);
    if (lk_comm_hosts(b->comm) == 1 && o->algorithm != NULL && !o->mpi)
        return refuse(b, "--algorithm", algorithm_here);
    lk_status status = o->tune == NULL ? LK_OK : lk_comm_tune(b->comm, o->tune);
    if (status == LK_EINVAL)
        return refuse(b, "--tune", lk_error_last()->message);
    if (status != LK_OK || o->algorithm == NULL)
        return status;
    snprintf(name, sizeof name, "%s:%s", b->kind->name, o->algorithm);
    status = lk_comm_set_algorithms(b->comm, name);
    return status == LK_EINVAL ? refuse(b, "--algorithm", lk_error_last()->message) : status;
}

static lk_status join(lk_comm **out, const bench_options *options)
{
    const lk_comm_options how  = { .struct_size = sizeof(lk_comm_options),
                                   .timeout_ms = options->timeout_ms, .flight = options->flight };
    const lk_join_options join = { .struct_size = sizeof(lk_join_options),
                                   .timeout_ms = options->timeout_ms, .flight = options->flight };

    return options->mpi ? lk_comm_open_mpi(out, &how) : lki_join_workers(out, &join);
}

static int run_worker(const bench_options *options, const bench_kind *kind)
{
    bench_timing t      = { .options = options, .bench = { .kind = kind } };
    bench       *b      = &t.bench;
    bool         right  = true;
    lk_status    status = join(&b->comm, options);
    if (status != LK_OK) {
        lki_print_error("bench");
        return lki_exit_unjoined(status);
    }
    b->rank  = lk_comm_rank(b->comm);
    b->ranks = lk_comm_size(b->comm);
    for (const lki_choice *c = dtypes; c->name != NULL; c++)
        b->dtype = strcmp(c->name, options->dtype) == 0 ? (lk_dtype)c->value : b->dtype;
    b->width = lk_dtype_bytes(b->dtype);
    lki_name_worker(b->rank);
    status       = prepare_algorithms(&t);
    bool refused = status == LK_EINVAL;
    if (refused) {
        lk_comm_free(b->comm);
        return LKI_EXIT_USAGE;
    }
    if (status == LK_OK)
        status = bench_all(&t, &right);
    /* The first rank that sees the request to stop leaves.  Ranks that wait for this rank get an
     * error. */
    bool stopped = status != LK_OK && lk_stop_requested(b->comm);
    if (status != LK_OK && !stopped)
        lk_comm_abort(b->comm);
    else if (!right && b->rank == 0)
        fprintf(stderr, "lockstep bench: a result was wrong\n");
    lk_comm_free(b->comm);
    return stopped ? LKI_EXIT_STOPPED : status == LK_OK && right ? 0 : LKI_EXIT_FAILURE;
}

/* ---- The command ------------------------------------------------------------------------- */

static int refuse_name(const char *name)
{
    char   names[400] = "";
    size_t used       = 0;

    for (const bench_kind *kind = bench_kinds; kind->name != NULL; kind++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
                                 kind->name);
    return lki_usage_error(&lki_command_bench, "there is no benchmark %s; there are %s", name,
                           names);
}

/* Returns true if the operation has the requested algorithm.  After the workers have joined,
 * prepare_algorithms() checks whether they can use the algorithm. */
static bool is_algorithm(const bench_options *o, const bench_kind *kind)
{
    char                  name[128];
    const lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .algorithms = name };
    lk_comm              *comm    = NULL;

    if (o->algorithm == NULL)
        return true;
    snprintf(name, sizeof name, "%s:%s", kind->name, o->algorithm);
    lk_status status = lk_comm_open_threads(&comm, 1, &options);
    lk_comm_free(comm);
    return status == LK_OK || status == LK_EUNSUPPORTED; /* LK_EUNSUPPORTED: MPI's own algorithm */
}

/* Returns the bytes per element of the selected type. */
static size_t width_of(const bench_options *o)
{
    const lki_choice *c = dtypes;

    while (strcmp(c->name, o->dtype) != 0)
        c++;
    return lk_dtype_bytes((lk_dtype)c->value);
}

/* Returns an exit status if a size is invalid, or a negative number to continue. */
static int check_sizes(const bench_options *o)
{
    for (uint32_t i = 0; i < o->size_count; i++)
        if (o->sizes[i] % width_of(o) != 0)
            return lki_usage_error(&lki_command_bench, "--bytes: %llu are not whole elements of "
                                   "%s, which have %zu bytes", (unsigned long long)o->sizes[i],
                                   o->dtype, width_of(o));
    return -1;
}

/* Returns an exit status if the options are invalid, or a negative number to continue. */
static int check(const bench_options *o, const bench_kind *kind)
{
    bool hosts = o->nodes.hosts > 1 || o->nodes.count > 1 || o->launched;

    if (!hosts && o->tune != NULL)
        return lki_usage_error(&lki_command_bench, "--tune: %s", tune_here);
    if (!hosts && o->algorithm != NULL)
        return lki_usage_error(&lki_command_bench, "--algorithm: %s", algorithm_here);
    if (kind->way != NULL && (o->algorithm != NULL || o->tune != NULL))
        return lki_usage_error(&lki_command_bench, "%s: %s has one algorithm, and nothing to "
                               "choose by constants", o->algorithm != NULL ? "--algorithm"
                                                                           : "--tune", kind->name);
    if (!is_algorithm(o, kind))
        return lki_usage_error(&lki_command_bench, "--algorithm: %s", lk_error_last()->message);
    if (o->algorithm != NULL && o->explain)
        return lki_usage_error(&lki_command_bench, "--explain times every algorithm, "
                                                   "--algorithm one: leave out one of the two");
    if (kind->tree && strcmp(o->dtype, "fp32") != 0)
        return lki_usage_error(&lki_command_bench, "%s sums fp32 only", kind->name);
    if ((kind->tree || kind->mirrors) && o->foreign)
        return lki_usage_error(&lki_command_bench, "%s needs an arena: leave out --foreign",
                               kind->name);
    if (kind->pairs && o->workers < 2 && o->nodes.count < 2 && !o->launched)
        return lki_usage_error(&lki_command_bench, "%s needs two workers", kind->name);
    return -1;
}

static int bench_main(int argc, char **argv)
{
    bench_options options = { .workers = 2, .dtype = "fp32", .nodes = LKI_NODES_INIT };
    lki_message   unused;
    if (argc > 1 && strcmp(argv[1], "step") == 0)
        return lki_bench_step(argc, argv);
    if (argc > 1 && strcmp(argv[1], "scaling") == 0)
        return lki_bench_scaling(argc, argv);
    int done = lki_options_parse(&lki_command_bench, argc, argv, &options);
    if (done >= 0)
        return done;
    const bench_kind *kind = bench_kind_find(options.op_name);
    if (kind == NULL)
        return refuse_name(options.op_name);
    options.mpi = options.mpi || (options.algorithm != NULL &&
                                  strcmp(options.algorithm, "native") == 0);
    options.launched = options.mpi; /* with MPI, mpirun has started this process */
    if (!options.mpi)
        done = lki_find_launcher(&lki_command_bench, &options.nodes, &options.launched);
    if (done < 0)
        done = check(&options, kind);
    if (done >= 0)
        return done;
    if (kind->moves == BENCH_NOTHING) {
        options.sizes[0]   = 0;
        options.size_count = 1;
    } else if (options.size_count == 0) {
        (void)read_sizes(width_of(&options) > 4 ? "8:16M" : "4:16M", &options, &unused);
    }
    done = check_sizes(&options);
    if (done >= 0)
        return done;
    if (options.launched)
        return run_worker(&options, kind);
    lk_launch_options how = { .struct_size = sizeof(lk_launch_options),
                              .workers     = options.workers,
                              .timeout_ms  = options.timeout_ms,
                              .flight      = options.flight };
    done = lki_nodes_apply(&options.nodes, &lki_command_bench, &how);
    return done >= 0 ? done : lki_start_workers("bench", argv, how, NULL, -1);
}

const lki_command lki_command_bench = {
    .name    = "bench",
    .summary = "time training steps or collectives",
    .usage   = "OP [--workers N] [--hosts H] [--bytes FROM:TO] [options]",
    .about =
        "`bench step MODEL` times training steps, and `bench scaling MODEL` measures how much\n"
        "faster they become with more workers; their --help lists the options.  Every other OP\n"
        "times a collective among N workers and verifies its result.  OP is one of\n"
        "\n"
        "  all_reduce       every rank gets the sum      all_reduce_many  of 16 tensors at once\n"
        "  reduce           rank 0 gets the sum\n"
        "  reduce_scatter   each gets a part of the sum  reduce_scatter_v  of uneven parts\n"
        "  tree_reduce      owners get their slices of the sum over virtual workers (here N)\n"
        "  all_gather       every rank gets all parts    all_gather_v     of uneven parts\n"
        "  arena_mirror     every host's arena gets what other hosts' ranks wrote\n"
        "  gather           rank 0 gets all parts        scatter          rank 0 sends the parts\n"
        "  all_to_all       each gets a part of each     all_to_all_v     of uneven parts\n"
        "  broadcast        every rank gets rank 0's     send_recv        each sends to the next\n"
        "  barrier          all ranks wait for each other\n"
        "\n"
        "Before each call the ranks write new inputs: whole numbers, whose sum is exact in any\n"
        "order.  The last result is compared with the right one byte by byte.  The time of a call\n"
        "is that of the slowest rank; median and 99th percentile are over the rounds.\n"
        "\n"
        "alg GB/s is bytes over time.  bus GB/s counts the fewest bytes that a rank can move:\n"
        "2(N-1)/N times the size for all_reduce, (N-1)/N times the size if every rank has a part,\n"
        "the size itself for the others.  It can be compared with the bandwidth of memory or\n"
        "network for any N.\n"
        "\n"
        "On one host workers share memory, and there is no choice of an algorithm (\"shared\").\n"
        "--hosts 2 emulates two hosts on this one, with TCP and TLS between them; --explain then\n"
        "times every available algorithm, also prints the time that the cost model predicts, and\n"
        "marks the algorithm that a run would choose.\n"
        "\n"
        "Under mpirun, --mpi uses MPI between hosts, and --algorithm native times MPI's own\n"
        "collective instead of Lockstep's.  MPI's sums depend on the number of workers.",
    .examples = "  lockstep bench all_reduce --workers 2 --bytes 4:64M\n"
                "  lockstep bench all_gather --workers 4 --bytes 1K,1M --dtype bf16 --json\n"
                "  lockstep bench all_reduce --workers 4 --hosts 2 --explain\n"
                "  mpirun -n 4 lockstep bench all_reduce --mpi --explain",
    .options  = table,
    .main     = bench_main,
};
