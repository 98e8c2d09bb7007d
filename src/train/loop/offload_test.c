/* offload_test.c -- checks optimizer state, parameters and activations in files: equal bits, and
 * disk errors.
 *
 * Goal:    runs with some or all of these in files have the bits of `single`, which has all of them
 *          in memory: with io_uring and with threads, with every strategy, on one host and on
 *          several.  Their evaluations are equal, too.  If a disk is full, fails or returns wrong
 *          bytes, the run ends with a clear error, and the saved run can be resumed.
 * Method:  the functions below replace those of the C library (offload_test.wrap).  The optimizer
 *          state is that of an MLP with more chunks than there are buffers.  Parameters have one
 *          unit per layer, or a single unit where writes are counted.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sanitized_testing.h"
#include "base/store.h"
#include "comm/hosted_testing.h"
#include "lockstep/train.h"

enum { RANKS_MAX = 4, KINDS = 8 };

static const hosted alone = { .hosts = 1, .each = 1 }, pair = { .hosts = 1, .each = 2 },
                    apart = { .hosts = 2, .each = 2, .fewer = 1, .seed = 7 },
                    four  = { .hosts = 4, .each = 1, .seed = 9 };

/* ---- Faults ------------------------------------------------------------------------------ */

typedef enum { NO_FAULT, READ_FAILS, READ_LIES, READ_ENDS, WRITE_FAILS, DISK_FULL, DRIBBLES } fault;

/* The number of chunks in files.  A step writes each chunk once, and so does the initialisation of
 * parameters. */
enum { CHUNKS = 5, BOTH = LK_OFFLOADED_STATES | LK_OFFLOADED_PARAMETERS };

static struct {
    fault       kind;
    bool        ring;
    int         writes_before; /* writes before a fault */
    _Atomic int calls, writes;
} disk;

ssize_t __real_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int     __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int     __real_io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
    __attribute__((weak)); /* a build without liburing has no such function */
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int     __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int     __wrap_io_uring_queue_init(unsigned entries, void *ring, unsigned flags);

static bool strikes(void)
{
    return atomic_load(&disk.writes) > disk.writes_before;
}

static ssize_t fail_with(int error)
{
    errno = error;
    return -1;
}

ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset)
{
    if (disk.kind == DRIBBLES)
        return atomic_fetch_add(&disk.calls, 1) % 3 == 0
                   ? fail_with(EINTR)
                   : __real_pread(fd, data, bytes > 3 * LKI_STORE_ALIGN ? 3 * LKI_STORE_ALIGN
                                                                        : bytes, offset);
    if (disk.kind == READ_FAILS && strikes())
        return fail_with(EIO);
    if (disk.kind == READ_ENDS && strikes())
        return 0;
    ssize_t got = __real_pread(fd, data, bytes, offset);
    if (disk.kind == READ_LIES && strikes())
        ((unsigned char *)data)[bytes / 2] ^= 16;
    return got;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    (void)atomic_fetch_add(&disk.writes, bytes >= LKI_STORE_ALIGN); /* the lock file is smaller */
    if (disk.kind == WRITE_FAILS && strikes())
        return fail_with(ENOSPC);
    return __real_pwrite(fd, data, bytes, offset);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    return disk.kind == DISK_FULL ? (int)fail_with(ENOSPC)
                                  : __real_fallocate(fd, mode, offset, bytes);
}

int __wrap_io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
    return disk.ring ? __real_io_uring_queue_init(entries, ring, flags) : -ENOSYS;
}

/* ---- Runs -------------------------------------------------------------------------------- */

static char folder[64], checkpoints[96];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/lockstep-offload-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    char line[128];
    (void)state;
    (void)snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

static lk_train_config config_of(unsigned offloaded)
{
    return (lk_train_config){ .struct_size     = sizeof(lk_train_config),
                              .model           = "mlp",
                              .data.source     = "synthetic:images=60,h=6,w=6,c=1,classes=5",
                              .model_options   = { .hidden = { 300, 400 }, .hidden_count = 2 },
                              .seed            = 3,
                              .global_batch    = 4,
                              .micro_batch     = 1,
                              .virtual_workers = 4,
                              .steps           = 4,
                              .data.validation = 0.2,
                              .eval_every      = 3,
                              .optimizer       = { .kind = LK_ADAMW },
                              .schedule        = { .lr = 0.01 },
                              .offload         = offloaded != 0 ? folder : NULL,
                              .offloaded       = offloaded,
                              .checkpoint.resume_step = -1,
                              .quiet                  = true };
}

typedef struct {
    lk_train_config config;
    lk_train_result result[RANKS_MAX];
    lk_status       status[RANKS_MAX];
    char            message[RANKS_MAX][480];
} run;

static bool train(lk_comm *comm, void *context)
{
    run     *r    = context;
    uint32_t rank = lk_comm_rank(comm);
    r->status[rank] = lk_train_run(comm, &r->config, &r->result[rank]);
    (void)snprintf(r->message[rank], sizeof r->message[rank], "%s", lk_error_last()->message);
    return true;
}

static void run_on(hosted h, run *r)
{
    r->config.workers = hosted_size(h);
    if (lk_train_check(&r->config) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    assert_true(hosted_all(h, train, r));
}

/* Computes the hash of a run with one unit per layer. */
static double hash_of(hosted h, const char *strategy, lk_optimizer_kind optimizer,
                      unsigned offloaded, char hash[65])
{
    run r = { .config = config_of(offloaded) };
    if (strcmp(strategy, "hybrid") == 0)
        r.config.shard_hosts = 2;
    r.config.bucket_bytes = 4096;
    r.config.strategy     = strategy;
    r.config.optimizer    = (lk_optimizer){ .kind = optimizer };
    run_on(h, &r);
    if (r.status[0] != LK_OK)
        fail_msg("%s", r.message[0]);
    memcpy(hash, r.result[0].run, 65);
    return r.result[0].validation_loss;
}

/* ---- The same bits ------------------------------------------------------------------------ */

/* Runs with LAMB, which processes its states twice per step and the values three times.  Expects
 * the bits of a run in memory. */
static void offloaded_runs_have_the_same_bits(void **state)
{
    (void)state;
    enum { STATES = LK_OFFLOADED_STATES, PARAMS = LK_OFFLOADED_PARAMETERS };
    static const struct {
        const hosted     *on;
        const char       *strategy;
        lk_optimizer_kind optimizer;
        unsigned          offloaded;
    } cases[] = {
        { &alone, "single", LK_ADAMW, STATES }, { &pair, "zero3", LK_ADAMW, BOTH },
        { &apart, "zero3", LK_LAMB, BOTH },     { &apart, "zero3", LK_LAMB, STATES },
        { &pair, "ddp", LK_ADAMW, STATES },     { &alone, "zero3", LK_SGD, PARAMS },
        { &apart, "ddp", LK_ADAMW, STATES },    { &apart, "zero1", LK_LAMB, STATES },
        { &pair, "zero2", LK_ADAMW, STATES },   { &apart, "zero2", LK_ADAMW, STATES },
        { &four, "hybrid", LK_ADAMW, STATES },  { &four, "hybrid", LK_ADAMW, PARAMS },
    };
    char   whole[KINDS][65], hash[65];
    double loss[KINDS];
    size_t count = LKI_SANITIZED ? 3 : sizeof cases / sizeof cases[0];
    disk.kind    = NO_FAULT;
    disk.ring    = true;
    for (int kind = 0; kind < KINDS; kind++)
        if (kind == LK_ADAMW || kind == LK_LAMB || kind == LK_SGD)
            loss[kind] = hash_of(alone, "single", (lk_optimizer_kind)kind, 0, whole[kind]);
    for (size_t i = 0; i < count; i++, disk.ring = !disk.ring) {
        double said = hash_of(*cases[i].on, cases[i].strategy, cases[i].optimizer,
                              cases[i].offloaded, hash);
        assert_string_equal(hash, whole[cases[i].optimizer]);
        assert_true(said == loss[cases[i].optimizer]);
    }
    disk.kind = DRIBBLES; /* a few pages at a time, interrupted by signals */
    disk.ring = false;
    (void)hash_of(alone, "zero3", LK_ADAMW, BOTH, hash);
    disk.kind = NO_FAULT;
    assert_string_equal(hash, whole[LK_ADAMW]);
}

/* Resumes from checkpoints and writes them, with states and parameters in files and in memory. */
static void offloaded_runs_resume_from_checkpoints(void **state)
{
    (void)state;
    char whole[65];
    disk.kind = NO_FAULT;
    disk.ring = true;
    (void)hash_of(alone, "single", LK_ADAMW, 0, whole);
    for (uint64_t variant = 0; variant < 3; variant++) {
        run r = { .config = config_of(variant == 0 ? BOTH : 0) };
        (void)snprintf(checkpoints, sizeof checkpoints, "%s/run%d", folder, (int)variant);
        r.config.strategy          = "zero3";
        r.config.checkpoint.folder = checkpoints;
        r.config.checkpoint.every  = 2;
        run_on(variant == 0 ? apart : alone, &r);
        assert_int_equal(r.status[0], LK_OK);
        assert_string_equal(r.result[0].run, whole);
        r.config.checkpoint.resume      = true;
        r.config.checkpoint.resume_step = 2;
        r.config.offload                = variant == 0 ? NULL : folder;
        r.config.offloaded              = variant == 1 ? LK_OFFLOADED_STATES : BOTH;
        run_on(pair, &r);
        assert_int_equal(r.status[0], LK_OK);
        assert_string_equal(r.result[0].run, whole);
    }
}

/* ---- Activations --------------------------------------------------------------------------- */

/* Configures a run whose activation checkpointing stores more than fits in memory.  Each pass
 * writes the outputs of two of five layers to files.  With resnet, it writes five of eight layers
 * of different sizes. */
static lk_train_config deep_config(const char *model, unsigned offloaded)
{
    lk_train_config c = config_of(offloaded);
    c.model           = model;
    c.model_options   = (lk_model_options){ .layers = 6, .heads = 2, .width = 16, .depth = 20,
                                            .activation_checkpointing = offloaded != 0 };
    c.context         = 8;
    if (strcmp(model, "gpt") == 0)
        c.data.source = "synthetic:tokens=400,vocab=20";
    else
        c.model_options.batchnorm = LK_BATCHNORM_SYNC; /* runs virtual workers together */
    return c;
}

static void offloaded_activations_change_no_bit(void **state)
{
    (void)state;
    static const struct { const char *model; lk_dtype precision; uint64_t step; } cases[] = {
        { "gpt", LK_F32, 4 * 2 }, { "gpt", LK_BF16, 4 * 2 }, { "resnet", LK_F32, 2 * 5 },
    };
    static run whole, offloaded;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        whole     = (run){ .config = deep_config(cases[i].model, 0) };
        offloaded = (run){ .config = deep_config(cases[i].model, LK_OFFLOADED_ACTIVATIONS) };
        disk.kind = NO_FAULT;
        disk.ring = false;
        whole.config.precision = offloaded.config.precision = cases[i].precision;
        run_on(alone, &whole);
        atomic_store(&disk.writes, 0);
        run_on(pair, &offloaded);
        if (whole.status[0] != LK_OK || offloaded.status[0] != LK_OK)
            fail_msg("%s; %s", whole.message[0], offloaded.message[0]);
        assert_string_equal(offloaded.result[0].run, whole.result[0].run);
        assert_int_equal(atomic_load(&disk.writes), 4 * cases[i].step);
        disk.ring = true;
        run_on(pair, &offloaded);
        assert_string_equal(offloaded.result[0].run, whole.result[0].run);
    }
}

/* ---- Disks -------------------------------------------------------------------------------- */

/* Causes a disk error in the third step during the update, or in the fourth step at the first read
 * of a unit.  Expects a clear message.  Then resumes from the checkpoint of step 2. */
static void disk_errors_end_the_run_with_a_clear_message(void **state)
{
    (void)state;
    enum { THIRD = 2 * CHUNKS, STATES = LK_OFFLOADED_STATES, PARAMS = LK_OFFLOADED_PARAMETERS,
           ACTIVATIONS = LK_OFFLOADED_ACTIVATIONS };
    static const struct {
        fault       kind;
        unsigned    offloaded;
        int         before;
        lk_status   status;
        const char *says;
    } cases[] = {
        { READ_FAILS, STATES, THIRD, LK_EIO, "Input/output error" },
        { READ_ENDS, STATES, THIRD, LK_EIO, "it ends there" },
        { READ_LIES, STATES, THIRD, LK_ECORRUPT, "is not what was written" },
        { WRITE_FAILS, STATES, THIRD, LK_EIO, "No space left on device" },
        { READ_FAILS, PARAMS, 4 * CHUNKS - 1, LK_EIO, "Input/output error" },
        { READ_LIES, PARAMS, 4 * CHUNKS - 1, LK_ECORRUPT, "is not what was written" },
        { WRITE_FAILS, PARAMS, THIRD + CHUNKS, LK_EIO, "No space left on device" },
        { READ_ENDS, ACTIVATIONS, 2 * 4 * 2, LK_EIO, "it ends there" },
        { READ_LIES, ACTIVATIONS, 2 * 4 * 2, LK_ECORRUPT, "is not what was written" },
        { WRITE_FAILS, ACTIVATIONS, 2 * 4 * 2, LK_EIO, "No space left on device" },
    };
    static const char *const of[] = { [STATES]      = "rank 0: the optimizer's state",
                                      [PARAMS]      = "rank 0: its part of the parameters",
                                      [ACTIVATIONS] = "activations: " };
    static run r, whole;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r                    = (run){ .config = cases[i].offloaded == ACTIVATIONS
                                                    ? deep_config("gpt", ACTIVATIONS)
                                                    : config_of(cases[i].offloaded) };
        whole                = r;
        whole.config.offload = NULL;
        disk.kind            = NO_FAULT;
        run_on(alone, &whole);
        (void)snprintf(checkpoints, sizeof checkpoints, "%s/fault%zu", folder, i);
        r.config.strategy          = cases[i].offloaded == PARAMS ? "zero3" : NULL;
        r.config.checkpoint.folder = checkpoints;
        r.config.checkpoint.every  = 2;
        r.config.eval_every        = 0;
        disk.kind                  = cases[i].kind;
        disk.ring                  = false;
        disk.writes_before         = cases[i].before;
        atomic_store(&disk.writes, 0);
        run_on(alone, &r);
        assert_int_equal(r.status[0], cases[i].status);
        if (strstr(r.message[0], cases[i].says) == NULL || strstr(r.message[0], folder) == NULL ||
            strstr(r.message[0], of[cases[i].offloaded]) == NULL ||
            strstr(r.message[0], "continue from the last checkpoint") == NULL)
            fail_msg("%s", r.message[0]);
        disk.kind                  = NO_FAULT;
        r.config.checkpoint.resume = r.config.checkpoint.resume_required = true;
        run_on(alone, &r);
        if (r.status[0] != LK_OK)
            fail_msg("case %zu: %s", i, r.message[0]);
        assert_string_equal(r.result[0].run, whole.result[0].run);
    }
}

static void a_full_disk_is_reported_before_the_start(void **state)
{
    (void)state;
    static run r;
    for (unsigned offloaded = 1; offloaded <= BOTH; offloaded++) {
        r                 = (run){ .config = config_of(offloaded) };
        r.config.strategy = "zero3";
        disk.kind         = DISK_FULL;
        run_on(alone, &r);
        disk.kind = NO_FAULT;
        assert_int_equal(r.status[0], LK_EIO);
        assert_non_null(strstr(r.message[0], "No space left on device; make room there"));
    }
    r         = (run){ .config = deep_config("gpt", LK_OFFLOADED_ACTIVATIONS) };
    disk.kind = DISK_FULL;
    run_on(alone, &r);
    disk.kind = NO_FAULT;
    assert_int_equal(r.status[0], LK_EIO);
    assert_non_null(strstr(r.message[0], "No space left on device; make room there"));
}

static void unusable_options_are_refused(void **state)
{
    (void)state;
    lk_train_config config = config_of(BOTH);
    config.workers         = 1;
    config.strategy        = "zero3";
    config.offload         = "/nowhere";
    assert_int_equal(lk_train_check(&config), LK_EIO);
    config.offload = "/proc/self/status";
    assert_int_equal(lk_train_check(&config), LK_EINVAL);
    config.offload  = folder;
    config.strategy = "zero2";
    assert_int_equal(lk_train_check(&config), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "reads them by units: `strategy` zero3"));
    config.strategy  = "zero3";
    config.optimizer = (lk_optimizer){ .kind = LK_SGD };
    assert_int_equal(lk_train_check(&config), LK_EINVAL);
    config.offloaded = LK_OFFLOADED_PARAMETERS;
    assert_int_equal(lk_train_check(&config), LK_OK);
    config.offloaded = LK_OFFLOADED_ACTIVATIONS;
    assert_int_equal(lk_train_check(&config), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "give `activation_checkpointing`"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(offloaded_runs_have_the_same_bits),
        CASE(offloaded_runs_resume_from_checkpoints),
        CASE(offloaded_activations_change_no_bit),
        CASE(disk_errors_end_the_run_with_a_clear_message),
        CASE(a_full_disk_is_reported_before_the_start),
        CASE(unusable_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
