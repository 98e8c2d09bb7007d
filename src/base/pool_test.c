/* pool_test.c -- threads compute in the standard mode, whatever mode their opener is in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/float.h"
#include "base/pool.h"

#if defined(__x86_64__)
#define FLUSH_TO_ZERO UINT64_C(0x8040)
#else
#define FLUSH_TO_ZERO UINT64_C(0x1000000)
#endif

typedef struct {
    _Atomic uint32_t arrived;
    float            half[2]; /* of the smallest normal number, by thread */
} meeting;

/* Two tasks that wait for each other run on two threads. */
static void halve(void *context, size_t index, uint32_t thread)
{
    meeting       *m    = context;
    volatile float tiny = 0x1p-126f;
    (void)index;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < 2)
        continue;
    m->half[thread] = tiny * 0.5f;
}

static void helpers_keep_subnormal_numbers(void **state)
{
    lki_pool *pool = NULL;
    meeting   m    = { .half = { 1.0f, 1.0f } };
    uint64_t  mode = lki_float_mode();
    (void)state;
    assert_true(lki_float_is_standard());
    lki_float_mode_set(mode | FLUSH_TO_ZERO);
    if (lki_float_is_standard()) /* under an emulator without the mode */
        skip();
    assert_int_equal(lki_pool_open(&pool, 2), LK_OK);
    lki_pool_run(pool, 2, halve, &m);
    lki_pool_free(pool);
    lki_float_mode_set(mode);
    assert_true(m.half[0] == 0.0f); /* the control: our own thread did flush */
    assert_true(m.half[1] == 0x1p-127f);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(helpers_keep_subnormal_numbers) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
