/* cmd_bench.c -- `lockstep bench`: how long collectives take, and whether they are right.
 *
 * Every rank writes its input anew before each call, from numbers whose sum is exact in any
 * order, meets the others in a barrier, and times the call.  An iteration takes as long as its
 * slowest rank.  Short calls are timed in runs of 64, so that the clock is not what is measured;
 * the writing of their few bytes is then part of it.  The last iteration's result is compared
 * element by element.
 *
 * algbw is bytes / time.  busbw is algbw times what each rank must move at least, per byte
 * (2(N-1)/N for all_reduce, (N-1)/N where each rank has a part, 1 for the rest), so that it can be
 * compared with what the memory can do, whatever N.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/commands.h"
#include "cli/values.h"
#include "cli/workers.h"
#include "lockstep/launch.h"

enum {
    SIZES_MAX    = 64,
    PERIOD       = 13,   /* of the inputs */
    BATCH        = 64,   /* calls of a run, for short ones */
    BATCH_BYTES  = 4096, /* what is short */
    WARM_UP      = 5,
    ROUNDS_MIN   = 15,
    ROUNDS_MAX   = 400,
    ROUNDS_BYTES = 1 << 28, /* moved in all, about */
};

typedef enum {
    ALL_REDUCE,
    REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    BARRIER,
} bench_op;

typedef struct {
    const char *op_name;
    uint32_t    workers, timeout_ms, iterations;
    const char *dtype, *flight;
    uint64_t    sizes[SIZES_MAX];
    uint32_t    size_count;
    bool        json, foreign, explain;
    const char *algorithm, *tune;
} bench_options;

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
    if (options->size_count == SIZES_MAX)
        return lki_refuse(error, "has more than %d sizes", SIZES_MAX);
    options->sizes[options->size_count++] = bytes;
    return true;
}

/* A,B,C or FROM:TO, doubling. */
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
static const lki_choice ops[] = {
    { "all_reduce", ALL_REDUCE, NULL }, { "reduce", REDUCE, NULL },
    { "reduce_scatter", REDUCE_SCATTER, NULL }, { "all_gather", ALL_GATHER, NULL },
    { "all_to_all", ALL_TO_ALL, NULL }, { "broadcast", BROADCAST, NULL },
    { "barrier", BARRIER, NULL }, { NULL, 0, NULL },
};
static const lki_choice dtypes[] = {
    { "fp32", LK_F32, NULL }, { "fp64", LK_F64, NULL }, { NULL, 0, NULL },
};

static const lki_option table[] = {
    LKI_POSITIONAL("OP", AT(op_name), true,
                   "all_reduce, reduce, reduce_scatter, all_gather, all_to_all, broadcast, "
                   "barrier"),
    LKI_U32("workers", "N", AT(workers), 1, 4096, "2", "worker processes"),
    { .name = "bytes", .type = LKI_OPTION_CUSTOM, .value = "A,B|FROM:TO", .read = read_sizes,
      .preset = "4:16M",
      .help = "sizes of a rank's data, or of all parts together; K, M and G may follow; "
              "a range doubles" },
    LKI_CHOICE(LKI_OPTION_NAME, "dtype", "NAME", AT(dtype), dtypes, "fp32",
               "what is summed"),
    LKI_U32("iterations", "N", AT(iterations), 1, 1 << 20, "15 to 400, by size",
            "timed rounds of each size"),
    LKI_FLAG("foreign", AT(foreign), "buffers in ordinary memory, not in an arena"),
    LKI_STRING("flight", "DIR", AT(flight), NULL,
               "keep a record of what each worker did last, for inspect --flight DIR"),
    { .name = "algorithm", .type = LKI_OPTION_STRING, .value = "NAME", .offset = AT(algorithm),
      .preset = "the cheapest", .help = "over several hosts: direct, linear, tree, double_tree, "
                                        "halving, ring, where OP has it" },
    LKI_FLAG("explain", AT(explain), "over several hosts: time every algorithm that OP has, beside "
                                     "what it was thought to take"),
    { .name = "tune", .type = LKI_OPTION_STRING, .value = "FILE", .offset = AT(tune),
      .help = "over several hosts: measure what algorithms are chosen by, and write it" },
    LKI_FLAG("json", AT(json), "one JSON object a size"),
    { .name = "timeout", .type = LKI_OPTION_SECONDS, .value = "SECONDS", .offset = AT(timeout_ms),
      .range = &lki_range_positive, .preset = "30", .help = "how long ranks wait for each other" },
    LKI_OPTIONS_END,
};
/* clang-format on */

/* ---- One size ---------------------------------------------------------------------------- */

typedef struct {
    const bench_options *options;
    lk_comm             *comm;
    bench_op             op;
    lk_dtype             dtype;
    size_t               width; /* bytes of an element */
    uint32_t             rank, ranks;
    char                *send, *recv; /* the widest size each */
    char                *row;         /* inputs, as long as that and PERIOD elements more */
    double              *times;       /* mine, then all ranks' */
} bench;

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Small whole numbers: sums of them are exact in any order and any type. */
static uint32_t input(uint32_t rank, size_t element, uint32_t round)
{
    return (uint32_t)((element + 3 * (size_t)rank + round) % PERIOD);
}

static void store(const bench *b, char *at, size_t element, double value)
{
    if (b->dtype == LK_F32)
        ((float *)(void *)at)[element] = (float)value;
    else
        ((double *)(void *)at)[element] = value;
}

static double load(const bench *b, const char *at, size_t element)
{
    return b->dtype == LK_F32 ? (double)((const float *)(const void *)at)[element]
                              : ((const double *)(const void *)at)[element];
}

/* Whether the bytes of a size are those of all ranks' parts together. */
static bool in_parts(const bench *b)
{
    return b->op == ALL_GATHER || b->op == REDUCE_SCATTER || b->op == ALL_TO_ALL;
}

/* Elements of a rank's part, or of all where there are no parts. */
static size_t part_count(const bench *b, uint64_t bytes)
{
    size_t count = bytes / b->width, part = count / b->ranks;
    return !in_parts(b) ? count : part > 0 ? part : 1;
}

/* Elements that this rank puts in, and gets. */
static size_t in_count(const bench *b, uint64_t bytes)
{
    bool all = b->op == REDUCE_SCATTER || b->op == ALL_TO_ALL;
    return part_count(b, bytes) * (all ? b->ranks : 1);
}

static size_t out_count(const bench *b, uint64_t bytes)
{
    bool all  = b->op == ALL_GATHER || b->op == ALL_TO_ALL;
    bool none = b->op == BARRIER || (b->op == REDUCE && b->rank != 0);
    return none ? 0 : part_count(b, bytes) * (all ? b->ranks : 1);
}

/* Input i of round k is that of element i + k: one long row holds the inputs of all rounds. */
static void write_input(const bench *b, uint64_t bytes, uint32_t round)
{
    if (b->op != BARRIER)
        memcpy(b->send, b->row + round % PERIOD * b->width, in_count(b, bytes) * b->width);
}

static lk_status call(const bench *b, uint64_t bytes)
{
    size_t   count = part_count(b, bytes), wide = count * b->width;
    lk_comm *comm = b->comm;
    switch (b->op) {
    case ALL_REDUCE: return lk_all_reduce(comm, b->send, b->recv, count, b->dtype, LK_SUM);
    case REDUCE: return lk_reduce(comm, b->send, b->recv, count, b->dtype, LK_SUM, 0);
    case REDUCE_SCATTER: return lk_reduce_scatter(comm, b->send, b->recv, count, b->dtype, LK_SUM);
    case ALL_GATHER: return lk_all_gather(comm, b->send, b->recv, wide);
    case ALL_TO_ALL: return lk_all_to_all(comm, b->send, b->recv, wide);
    case BROADCAST: return lk_broadcast(comm, b->send, wide, 0);
    case BARRIER: break;
    }
    return lk_barrier(comm);
}

/* What element i of this rank's result must be. */
static uint32_t expected(const bench *b, size_t count, size_t i, uint32_t round)
{
    uint32_t from = (uint32_t)(i / count), sum = 0;
    if (b->op == BROADCAST)
        return input(0, i, round);
    if (b->op == ALL_GATHER)
        return input(from, i % count, round);
    if (b->op == ALL_TO_ALL)
        return input(from, b->rank * count + i % count, round);
    for (uint32_t r = 0; r < b->ranks; r++)
        sum += input(r, b->op == REDUCE_SCATTER ? b->rank * count + i : i, round);
    return sum;
}

static bool verified(const bench *b, uint64_t bytes, uint32_t round)
{
    const char *result = b->op == BROADCAST ? b->send : b->recv;
    size_t      count  = part_count(b, bytes);
    for (size_t i = 0; i < out_count(b, bytes); i++)
        if (load(b, result, i) != (double)expected(b, count, i, round))
            return false;
    return true;
}

static lk_status timed_round(const bench *b, uint64_t bytes, uint32_t round, double *time)
{
    uint32_t calls = bytes <= BATCH_BYTES ? BATCH : 1;
    write_input(b, bytes, round);
    lk_status status = lk_barrier(b->comm);
    if (status == LK_OK && lk_stop_requested(b->comm))
        return LK_ESTOPPED;
    double begun = seconds();
    for (uint32_t i = 0; status == LK_OK && i < calls; i++) {
        if (i > 0)
            write_input(b, bytes, round);
        status = call(b, bytes);
    }
    *time = (seconds() - begun) / calls;
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The slowest rank of each round, sorted. */
static lk_status merge_times(const bench *b, uint32_t rounds)
{
    double   *all    = b->times + ROUNDS_MAX;
    lk_status status = lk_all_gather(b->comm, b->times, all, rounds * sizeof *all);
    for (uint32_t i = 0; status == LK_OK && i < rounds; i++)
        for (uint32_t r = 0; r < b->ranks; r++)
            b->times[i] = fmax(b->times[i], all[(size_t)r * rounds + i]);
    qsort(b->times, rounds, sizeof *b->times, by_value);
    return status;
}

static double bus_factor(const bench *b)
{
    double n = b->ranks;
    switch (b->op) {
    case ALL_REDUCE: return 2 * (n - 1) / n;
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
    case ALL_GATHER: return (n - 1) / n;
    case REDUCE:
    case BROADCAST:
    case BARRIER: break;
    }
    return 1;
}

static void print_size(const bench *b, uint64_t bytes, uint32_t rounds, bool right)
{
    double median = b->times[rounds / 2], p99 = b->times[(rounds - 1) * 99 / 100];
    double alg = b->op == BARRIER ? 0 : (double)bytes / median / 1e9;
    if (b->options->json)
        printf("{\"op\": \"%s\", \"workers\": %u, \"dtype\": \"%s\", \"bytes\": %llu, "
               "\"algorithm\": \"direct\", \"median_us\": %.3f, \"p99_us\": %.3f, "
               "\"algbw_gb_s\": %.3f, \"busbw_gb_s\": %.3f, \"verified\": %s}\n",
               b->options->op_name, b->ranks, b->options->dtype, (unsigned long long)bytes,
               1e6 * median, 1e6 * p99, alg, alg * bus_factor(b), right ? "true" : "false");
    else
        printf("%12llu %12.2f %12.2f %10.2f %10.2f  %s\n", (unsigned long long)bytes, 1e6 * median,
               1e6 * p99, alg, alg * bus_factor(b), right ? "yes" : "NO");
    (void)fflush(stdout);
}

/* b->times of *rounds rounds, sorted. */
static lk_status measure(const bench *b, uint64_t bytes, uint32_t *count, bool *right)
{
    uint64_t  wanted = bytes > 0 ? ROUNDS_BYTES / bytes : ROUNDS_MAX;
    uint32_t  rounds = wanted < ROUNDS_MIN   ? ROUNDS_MIN
                       : wanted > ROUNDS_MAX ? ROUNDS_MAX
                                             : (uint32_t)wanted;
    double    unused = 0, wrong = 0, wrongs = 0;
    lk_status status = LK_OK;

    if (b->options->iterations > 0)
        rounds = b->options->iterations < ROUNDS_MAX ? b->options->iterations : ROUNDS_MAX;
    for (uint32_t i = 0; status == LK_OK && i < WARM_UP; i++)
        status = timed_round(b, bytes, i, &unused);
    for (uint32_t i = 0; status == LK_OK && i < rounds; i++)
        status = timed_round(b, bytes, i, &b->times[i]);
    if (status == LK_OK) {
        wrong  = verified(b, bytes, rounds - 1) ? 0 : 1;
        status = lk_all_reduce(b->comm, &wrong, &wrongs, 1, LK_F64, LK_SUM);
    }
    if (status == LK_OK)
        status = merge_times(b, rounds);
    *count = rounds;
    *right = wrongs == 0;
    return status;
}

/* Over several hosts: what the operation takes by every algorithm, and was thought to take. */
static lk_status explain_size(const bench *b, uint64_t bytes, bool *all_right)
{
    lk_algorithm list[16];
    uint32_t     count, rounds;
    char         name[64];
    lk_status    status = lk_comm_explain(b->comm, b->options->op_name, bytes, list, 16, &count);

    for (uint32_t i = 0; status == LK_OK && i < count; i++) {
        bool right = true;
        snprintf(name, sizeof name, "%s:%s", b->options->op_name, list[i].name);
        status = lk_comm_set_algorithms(b->comm, name);
        if (status == LK_OK)
            status = measure(b, bytes, &rounds, &right);
        *all_right &= right;
        if (status == LK_OK && b->rank == 0)
            printf("%12llu  %-13s %5s %12.2f %12.2f  %s%s\n", (unsigned long long)bytes,
                   list[i].name, list[i].exact ? "yes" : "no", 1e6 * list[i].seconds,
                   1e6 * b->times[rounds / 2], right ? "yes" : "NO",
                   list[i].chosen ? "  chosen" : "");
        (void)fflush(stdout);
    }
    return status == LK_OK ? lk_comm_set_algorithms(b->comm, NULL) : status;
}

static lk_status bench_size(const bench *b, uint64_t bytes, bool *all_right)
{
    uint32_t  rounds;
    bool      right = true;
    lk_status status;

    if (b->options->explain)
        return explain_size(b, bytes, all_right);
    status = measure(b, bytes, &rounds, &right);
    if (status == LK_OK && b->rank == 0)
        print_size(b, bytes, rounds, right);
    *all_right &= right;
    return status;
}

/* ---- All sizes --------------------------------------------------------------------------- */

/* Room for the widest size: my part of one arena, or ordinary memory. */
static lk_status open_buffers(bench *b, void **foreign)
{
    uint64_t widest = 64;
    for (uint32_t i = 0; i < b->options->size_count; i++)
        widest = b->options->sizes[i] > widest ? b->options->sizes[i] : widest;
    size_t each = (size_t)(widest + b->width * b->ranks + 63) / 64 * 64;
    if (b->options->foreign) {
        *foreign = aligned_alloc(64, 2 * each);
        if (*foreign == NULL)
            return LK_ENOMEM;
        memset(*foreign, 0, 2 * each);
        b->send = *foreign;
    } else {
        lk_arena *arena  = NULL;
        lk_status status = lk_comm_arena(&arena, b->comm, "bench", 2 * each * b->ranks);
        if (status != LK_OK)
            return status;
        b->send = (char *)lk_arena_data(arena) + 2 * each * b->rank;
    }
    b->recv = b->send + each;
    b->row  = malloc(each + PERIOD * b->width);
    if (b->row == NULL)
        return LK_ENOMEM;
    for (size_t i = 0; i < each / b->width + PERIOD; i++)
        store(b, b->row, i, (double)input(b->rank, i, 0));
    return LK_OK;
}

static lk_status bench_all(bench *b, bool *right)
{
    void     *foreign = NULL;
    lk_status status  = open_buffers(b, &foreign);
    b->times          = calloc((size_t)ROUNDS_MAX * (b->ranks + 1), sizeof *b->times);
    if (b->times == NULL)
        status = LK_ENOMEM;
    if (status == LK_OK && b->rank == 0 && b->options->explain)
        printf("%s, %u workers on %u hosts, %s\n%12s  %-13s %5s %12s %12s  %s\n",
               b->options->op_name, b->ranks, lk_comm_hosts(b->comm), b->options->dtype, "bytes",
               "algorithm", "exact", "predicted us", "median us", "right");
    else if (status == LK_OK && b->rank == 0 && !b->options->json)
        printf("%s, %u workers, %s\n%12s %12s %12s %10s %10s  %s\n", b->options->op_name, b->ranks,
               b->options->dtype, "bytes", "median us", "p99 us", "alg GB/s", "bus GB/s", "right");
    for (uint32_t i = 0; status == LK_OK && i < b->options->size_count; i++)
        status = bench_size(b, b->op == BARRIER ? 0 : b->options->sizes[i], right);
    free(b->times);
    free(b->row);
    free(foreign);
    return status;
}

/* What is said about algorithms, where there are some. */
static lk_status prepare_algorithms(const bench *b)
{
    const bench_options *o = b->options;
    char                 name[128];

    if (o->algorithm == NULL && o->tune == NULL && !o->explain)
        return LK_OK;
    if (lk_comm_hosts(b->comm) == 1) {
        if (b->rank == 0)
            fprintf(stderr, "lockstep bench: --algorithm, --tune and --explain are for workers on "
                            "several hosts; on one, sizes and places choose\n");
        return LK_EINVAL;
    }
    lk_status status = o->tune == NULL ? LK_OK : lk_comm_tune(b->comm, o->tune);
    if (status != LK_OK)
        return status;
    snprintf(name, sizeof name, "%s:%s", o->op_name, o->algorithm == NULL ? "" : o->algorithm);
    return lk_comm_set_algorithms(b->comm, o->algorithm == NULL ? NULL : name);
}

static int run_worker(const bench_options *options, bench_op op)
{
    bench     b      = { .options = options, .op = op };
    bool      right  = true;
    lk_status status = lki_join_workers(&b.comm);
    if (status != LK_OK) {
        fprintf(stderr, "lockstep bench: %s\n", lk_error_last()->message);
        return LKI_EXIT_FAILURE;
    }
    b.rank  = lk_comm_rank(b.comm);
    b.ranks = lk_comm_size(b.comm);
    b.dtype = strcmp(options->dtype, "fp64") == 0 ? LK_F64 : LK_F32;
    b.width = lk_dtype_bytes(b.dtype);
    lki_name_worker(b.rank);
    status = prepare_algorithms(&b);
    if (status == LK_OK)
        status = bench_all(&b, &right);
    /* Whoever sees the request first leaves, which is an error to those who wait for it. */
    bool stopped = status != LK_OK && lk_stop_requested(b.comm);
    if (status != LK_OK && !stopped)
        lk_comm_abort(b.comm);
    else if (!right && b.rank == 0)
        fprintf(stderr, "lockstep bench: a result was wrong\n");
    lk_comm_free(b.comm);
    return stopped ? LKI_EXIT_STOPPED : status == LK_OK && right ? 0 : LKI_EXIT_FAILURE;
}

static bool find_op(const char *name, bench_op *op)
{
    for (size_t i = 0; ops[i].name != NULL; i++)
        if (strcmp(ops[i].name, name) == 0) {
            *op = (bench_op)ops[i].value;
            return true;
        }
    return false;
}

static int bench_main(int argc, char **argv)
{
    bench_options options = { .workers = 2, .dtype = "fp32" };
    lki_message   unused;
    bench_op      op;
    int           done = lki_options_parse(&lki_command_bench, argc, argv, &options);
    if (done >= 0)
        return done;
    if (!find_op(options.op_name, &op))
        return lki_usage_error(
            &lki_command_bench,
            "there is no benchmark %s; there are all_reduce, reduce, reduce_scatter, "
            "all_gather, all_to_all, broadcast and barrier",
            options.op_name);
    if (!lk_launched() && (options.algorithm != NULL || options.tune != NULL || options.explain))
        return lki_usage_error(&lki_command_bench,
                               "--algorithm, --tune and --explain are for workers on several "
                               "hosts, started by lockstep run; on one, sizes and places choose");
    if (op == BARRIER)
        options.size_count = 1;
    else if (options.size_count == 0)
        (void)read_sizes("4:16M", &options, &unused);
    const lk_launch_options how = { .workers    = options.workers,
                                    .timeout_ms = options.timeout_ms,
                                    .flight     = options.flight };
    return lk_launched() ? run_worker(&options, op) : lki_start_workers(argv, how);
}

const lki_command lki_command_bench = {
    .name    = "bench",
    .summary = "time collectives on this machine",
    .usage   = "OP [--workers N] [--bytes FROM:TO] [options]",
    .about = "Times a collective among N workers of this machine, with inputs written anew before\n"
             "each call, and verifies the result.  A time is the slowest rank's; median and 99th\n"
             "percentile are over the rounds.  alg GB/s is bytes over time; bus GB/s is what each\n"
             "rank had to move for it.",
    .examples = "  lockstep bench all_reduce --workers 2 --bytes 4:64M\n"
                "  lockstep bench all_gather --workers 4 --bytes 1K,1M --json",
    .options  = table,
    .main     = bench_main,
};
