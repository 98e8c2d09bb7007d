/* packs_test.c -- packed weights that several threads and processes share.
 *
 * Goal:   a pack is read only by callers with its version, and only when it is complete.  A process
 *         that dies while it fills a pack blocks no other process, and its pack is never read.
 *         Threads that share packs compute the bits of a product without packs.  A pack is read
 *         only in the layout in which it was filled.
 * Control: a changed weight with an unchanged version gives the old bits.
 * gemm_test.c, conv_test.c and conv_bf16_test.c test the bits of products with packs, shape by
 * shape.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/half.h"
#include "tensor/reference.h"
#include "tensor/tensor_testing.h"

enum { M = 5, N = 70, K = 90, STATE_BYTES = 64, BYTES = STATE_BYTES + 96 * 96 * 4, WORKERS = 4 };
enum { LAYOUT = 5 }; /* any */

/* Returns a pack of an N x K weight in memory that processes share. */
static lk_pack pack_new(void)
{
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return (lk_pack){ .state   = memory,
                      .version = 1,
                      .data    = (float *)(void *)((char *)memory + STATE_BYTES) };
}

static void pack_free(const lk_pack *pack)
{
    (void)munmap((char *)pack->data - STATE_BYTES, BYTES);
}

static void multiply(lk_exec *exec, const float *a, const float *b, float *c, const lk_pack *pack)
{
    lki_gemm_args args = { .transpose_b = true, .m = M, .n = N, .k = K, .a = a, .b = b, .c = c,
                           .pack = pack };
    if (pack != NULL)
        assert_in_range(lki_gemm_pack_bytes(exec, &args), 1, BYTES - STATE_BYTES);
    lki_gemm(exec, &args);
}

static bool is_complete(const lk_pack *pack)
{
    return *pack->state >> 4 == pack->version && (*pack->state & 1) != 0;
}

static void a_version_is_packed_once(void **state)
{
    lk_pack pack = pack_new();
    (void)state;
    assert_int_equal(lki_pack_begin(NULL, 0), LKI_PACK_NONE);
    for (uint64_t v = 1; v < 5; v++) {
        pack.version = v == 4 ? 2 : v; /* a version that was used before */
        assert_int_equal(lki_pack_begin(&pack, LAYOUT), LKI_PACK_MINE);
        assert_int_equal(lki_pack_begin(&pack, LAYOUT), LKI_PACK_NONE);
        lki_pack_end(&pack, LAYOUT);
        assert_int_equal(lki_pack_begin(&pack, LAYOUT), LKI_PACK_THERE);
    }
    const lk_pack late = pack;
    pack.version       = 9;
    assert_int_equal(lki_pack_begin(&pack, LAYOUT), LKI_PACK_MINE);
    lki_pack_end(&late, LAYOUT);
    assert_int_equal(lki_pack_begin(&pack, LAYOUT), LKI_PACK_NONE);
    pack_free(&pack);
}

static void a_pack_of_a_dead_process_is_never_read(void **state)
{
    static float a[M * K], b[N * K], want[M * N], got[M * N];
    lk_pack      pack = pack_new();
    lk_exec     *exec;
    int          status;
    (void)state;

    lki_test_fill(a, M * K, 1, 1.0f);
    lki_test_fill(b, N * K, 2, 1.0f);
    pid_t child = fork();
    if (child == 0) { /* half of the pack then contains garbage */
        bool mine = lki_pack_begin(&pack, LAYOUT) == LKI_PACK_MINE;
        memset(pack.data, 0xff, (BYTES - STATE_BYTES) / 2);
        _exit(mine ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    multiply(exec, a, b, want, NULL);
    multiply(exec, a, b, got, &pack);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(lki_pack_begin(&pack, LAYOUT), LKI_PACK_NONE);
    pack.version++;
    multiply(exec, a, b, got, &pack);
    assert_memory_equal(got, want, sizeof want);
    assert_true(is_complete(&pack));
    lk_exec_free(exec);
    pack_free(&pack);
}

static void an_unchanged_version_gives_the_old_bits(void **state)
{
    static float a[M * K], b[N * K], old[M * N], want[M * N], got[M * N];
    lk_pack      pack = pack_new();
    lk_exec     *exec;
    (void)state;

    lki_test_fill(a, M * K, 1, 1.0f);
    lki_test_fill(b, N * K, 2, 1.0f);
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    multiply(exec, a, b, old, &pack);
    b[7] += 1;
    multiply(exec, a, b, got, &pack);
    assert_memory_equal(got, old, sizeof old);
    multiply(exec, a, b, want, NULL);
    assert_memory_not_equal(want, old, sizeof old);
    pack.version++;
    multiply(exec, a, b, got, &pack);
    assert_memory_equal(got, want, sizeof want);
    lk_exec_free(exec);
    pack_free(&pack);
}

/* Fills a pack with the kernels of one instruction set, and reads it with those of all. */
static void a_pack_is_read_in_its_layout_only(void **state)
{
    static uint16_t a[M * K], b[N * K];
    static float    want[M * N], got[M * N];
    lk_pack         pack = pack_new();
    lk_exec        *execs[LKI_EXECS_MAX];
    size_t          count = lki_test_execs_for(execs, true);
    lki_gemm_args   args  = { .operands = LK_BF16, .transpose_b = true, .m = M, .n = N, .k = K,
                              .a = a, .b = b, .c = want };
    (void)state;

    for (size_t i = 0; i < M * K; i++)
        a[i] = lki_bf16_narrow((float)(i * 7919 % 1000) * 1e-3f - 0.5f);
    for (size_t i = 0; i < N * K; i++)
        b[i] = lki_bf16_narrow((float)(i * 104729 % 1000) * 1e-3f - 0.5f);
    lki_reference_gemm(&args);
    args.c    = got;
    args.pack = &pack;
    for (size_t first = 0; first < count;
         first = lki_test_next_isa(execs, count, first), pack.version++)
        for (size_t next = 0; next < count; next = lki_test_next_isa(execs, count, next)) {
            assert_in_range(lki_gemm_pack_bytes(execs[first], &args), 1, BYTES - STATE_BYTES);
            assert_int_equal(lki_gemm_pack_bytes(execs[first], &args),
                             lki_gemm_pack_bytes(execs[next], &args));
            lki_gemm(execs[first], &args);
            assert_true(is_complete(&pack));
            lki_gemm(execs[next], &args);
            assert_memory_equal(got, want, sizeof want);
        }
    lki_test_execs_free(execs, count);
    pack_free(&pack);
}

/* ---- Workers that share packs ------------------------------------------------------------- */

enum { STEPS = 30, TURNS = 3 };

typedef struct {
    lk_pack           pack;
    float             b[N * K];
    pthread_barrier_t step;
} shared;

typedef struct {
    shared  *all;
    uint32_t number;
    bool     good;
} worker;

static void *work(void *context)
{
    worker  *w   = context;
    shared  *all = w->all;
    lk_pack  pack = all->pack;
    float    a[M * K], want[M * N], got[M * N];
    lk_exec *exec;

    w->good = lk_exec_open(&exec, w->number % 2 + 1, NULL) == LK_OK;
    lki_test_fill(a, M * K, w->number, 1.0f);
    for (uint32_t step = 0; step < STEPS; step++) {
        if (w->number == 0)
            lki_test_fill(all->b, N * K, 100 + step, 1.0f);
        (void)pthread_barrier_wait(&all->step);
        pack.version = step + 1;
        multiply(exec, a, all->b, want, NULL);
        for (uint32_t turn = 0; turn < TURNS; turn++) {
            multiply(exec, a, all->b, got, &pack);
            w->good = w->good && memcmp(got, want, sizeof want) == 0;
        }
        (void)pthread_barrier_wait(&all->step);
    }
    lk_exec_free(exec);
    return NULL;
}

static void threads_with_shared_packs_have_the_right_bits(void **state)
{
    static shared all;
    pthread_t     threads[WORKERS];
    worker        workers[WORKERS];
    (void)state;

    all.pack = pack_new();
    assert_int_equal(pthread_barrier_init(&all.step, NULL, WORKERS), 0);
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i] = (worker){ .all = &all, .number = i };
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(workers[i].good);
    }
    (void)pthread_barrier_destroy(&all.step);
    pack_free(&all.pack);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_version_is_packed_once),
        cmocka_unit_test(a_pack_of_a_dead_process_is_never_read),
        cmocka_unit_test(an_unchanged_version_gives_the_old_bits),
        cmocka_unit_test(a_pack_is_read_in_its_layout_only),
        cmocka_unit_test(threads_with_shared_packs_have_the_right_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
