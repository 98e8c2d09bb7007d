/* steady_test.c -- a step allocates no memory, because the engine allocates all memory when it
 * opens.
 *
 * Method: the linker redirects every call of malloc and similar functions, in the library and in
 *         this test, to the functions below, which count the calls.
 */
#include "nn/nets_testing.h"

static size_t allocations;

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int   __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
int   __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocations++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    allocations++;
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    allocations++;
    return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    allocations++;
    return __real_posix_memalign(memory, alignment, bytes);
}

static void test_a_step_allocates_nothing(void **state)
{
    const build nets[] = { plain_decoder, checkpointed_decoder, chunked_decoder, convnet };
    (void)state;
    for (size_t k = 0; k < sizeof nets / sizeof nets[0]; k++) {
        allocations   = 0;
        net     n      = net_open(nets[k](), 2, NULL, SAMPLES, 1);
        float  *images = noise_floats(2, (size_t)SAMPLES * 216);
        lk_walk walk   = net_walk(&n, true);
        lk_pass pass   = pass_of(&n, 0, 0, SAMPLES, images);
        assert_true(allocations > 0); /* calls are counted */
        allocations = 0;
        lk_engine_forward(n.engine, &walk, &pass, 1);
        lk_engine_backward(n.engine, &walk, &pass, 1);
        assert_int_equal(allocations, 0);
        net_close(&n);
        lki_free(images);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_a_step_allocates_nothing) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
