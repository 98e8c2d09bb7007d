/* load_test.c -- the shared library, loaded by a program whose threads already run.
 *
 * Goal:   interpreters load the library late.  Its only thread-local variable, the last error, must
 *         then exist on all threads, and its functions must not be those of the program.
 * Method: threads wait at a barrier until the library is loaded.  Each then fails in its own way,
 *         and reads its message after all others have failed, too.  The program is linked with the
 *         static library.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lockstep/binding.h"
#include "lockstep/tensor.h"

#ifdef LK_TEST_LIBRARY

enum { THREADS = 4 };

typedef lk_status       exec_open(lk_exec **out, uint32_t threads, const char *isa);
typedef const lk_error *error_last(void);
typedef const char     *layout(void);

typedef struct {
    pthread_barrier_t loaded, failed;
    exec_open        *open;
    error_last       *error;
    struct {
        pthread_t thread;
        char      isa[16], message[sizeof((lk_error *)0)->message];
    } threads[THREADS];
} scene;

typedef struct {
    scene   *scene;
    uint32_t index;
} part;

static void *open_unknown(void *context)
{
    const part *p = context;
    scene      *s = p->scene;
    lk_exec    *exec;

    (void)pthread_barrier_wait(&s->loaded);
    lk_status st = s->open(&exec, 1, s->threads[p->index].isa);
    (void)pthread_barrier_wait(&s->failed);
    if (st == LK_EINVAL)
        (void)snprintf(s->threads[p->index].message, sizeof s->threads[0].message, "%s",
                       s->error()->message);
    return NULL;
}

static void *function(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (address == NULL)
        fail_msg("%s", dlerror());
    return address;
}

static void threads_that_are_older_have_their_own_error(void **state)
{
    scene   s = {0};
    part    parts[THREADS];
    layout *text;

    (void)state;
    assert_int_equal(pthread_barrier_init(&s.loaded, NULL, THREADS + 1), 0);
    assert_int_equal(pthread_barrier_init(&s.failed, NULL, THREADS), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        parts[i] = (part){ &s, i };
        (void)snprintf(s.threads[i].isa, sizeof s.threads[i].isa, "isa-%u", i);
        assert_int_equal(pthread_create(&s.threads[i].thread, NULL, open_unknown, &parts[i]), 0);
    }
    void *library = dlopen(LK_TEST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fail_msg("%s", dlerror());
    *(void **)&s.open  = function(library, "lk_exec_open");
    *(void **)&s.error = function(library, "lk_error_last");
    *(void **)&text    = function(library, "lk_layout");
    (void)pthread_barrier_wait(&s.loaded);
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(s.threads[i].thread, NULL), 0);
        assert_non_null(strstr(s.threads[i].message, s.threads[i].isa));
    }
    assert_ptr_not_equal(s.open, lk_exec_open);
    assert_string_equal(text(), lk_layout());
    assert_null(dlsym(library, "lki_fail")); /* internal names stay inside */
    (void)pthread_barrier_destroy(&s.loaded);
    (void)pthread_barrier_destroy(&s.failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_that_are_older_have_their_own_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    (void)puts("skipped: built without the shared library");
    return 77;
}

#endif
