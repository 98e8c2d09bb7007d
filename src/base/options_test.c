/* options_test.c -- tests options of programs that are older or newer than the library.
 *
 * Goal:   an option that was appended later changes nothing for programs that do not know this
 *         option.  An option that the library does not know is never ignored.
 * Method: pass structs of several lengths to lki_options_copy() as one type.  The memory ends with
 *         the struct, so that the address sanitizer detects any access beyond it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"

/* An options type as the library knows it.  Older programs have fewer fields, newer programs have
 * more. */
typedef struct {
    size_t   struct_size;
    uint64_t first, second;
} lk_some_options;

enum { KNOWN = sizeof(lk_some_options), OLD = KNOWN - 8, NEW = KNOWN + 24 };

/* Returns an options struct of `bytes` bytes, to be freed.  Sets `first` and `second` as far as
 * they fit; all other bytes are zero. */
static unsigned char *options_of(size_t bytes, uint64_t first, uint64_t second)
{
    const lk_some_options all     = { .struct_size = bytes, .first = first, .second = second };
    unsigned char        *options = calloc(1, bytes > sizeof(size_t) ? bytes : sizeof(size_t));
    assert_non_null(options);
    memcpy(options, &all, bytes < KNOWN ? bytes > sizeof(size_t) ? bytes : sizeof(size_t) : KNOWN);
    return options;
}

/* Fills `mine` with other values, copies `options` to `mine`, and frees `options`.  Returns the
 * status of the copy. */
static lk_status copy(lk_some_options *mine, unsigned char *options)
{
    memset(mine, 0xa5, sizeof *mine);
    lk_status status = lki_options_copy(mine, sizeof *mine, options, "lk_some_options");
    free(options);
    return status;
}

static void assert_copied(const lk_some_options *mine, uint64_t first, uint64_t second)
{
    assert_int_equal(mine->struct_size, KNOWN);
    assert_int_equal(mine->first, first);
    assert_int_equal(mine->second, second);
}

static void fields_unknown_to_the_program_are_zero(void **state)
{
    lk_some_options mine;
    (void)state;
    assert_int_equal(copy(&mine, options_of(KNOWN, 1, 2)), LK_OK);
    assert_copied(&mine, 1, 2);
    assert_int_equal(copy(&mine, options_of(OLD, 1, 2)), LK_OK);
    assert_copied(&mine, 1, 0);
    assert_int_equal(copy(&mine, options_of(sizeof(size_t), 1, 2)), LK_OK);
    assert_copied(&mine, 0, 0);
    assert_int_equal(copy(&mine, NULL), LK_OK);
    assert_copied(&mine, 0, 0);
}

static void fields_unknown_to_the_library_must_be_zero(void **state)
{
    lk_some_options mine;
    (void)state;
    assert_int_equal(copy(&mine, options_of(NEW, 1, 2)), LK_OK);
    assert_copied(&mine, 1, 2);
    for (size_t i = KNOWN; i < NEW; i++) {
        unsigned char *options = options_of(NEW, 1, 2);
        options[i]             = 1;
        assert_int_equal(copy(&mine, options), LK_EUNSUPPORTED);
        assert_string_equal(lk_error_last()->message,
                            "lk_some_options has 24 bytes that this library does not know; it is "
                            "older than the program");
    }
}

static void an_invalid_struct_size_is_refused(void **state)
{
    static const size_t none[] = { 0, 1, sizeof(size_t) - 1, 5000000, SIZE_MAX };
    lk_some_options     mine;
    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        unsigned char *options = options_of(KNOWN, 1, 2);
        memcpy(options, &none[i], sizeof none[i]);
        assert_int_equal(copy(&mine, options), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, "begin with LK_SOME_OPTIONS_INIT"));
    }
    assert_int_equal(copy(&mine, options_of(0, 1, 2)), LK_EINVAL);
    assert_string_equal(lk_error_last()->message,
                        "lk_some_options.struct_size is 0: begin with LK_SOME_OPTIONS_INIT");
}

/* Checks that lki_options_return() changes neither the struct_size of the caller's options nor the
 * bytes after the struct. */
static void completed_options_keep_their_size(void **state)
{
    static const size_t   sizes[] = { sizeof(size_t), OLD, KNOWN, NEW };
    const lk_some_options mine    = { .struct_size = KNOWN, .first = 7, .second = 8 };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *options = options_of(sizes[i], 1, 2), *wanted = options_of(sizes[i], 7, 8);
        lki_options_return(options, &mine);
        assert_memory_equal(options, wanted, sizes[i]);
        free(options);
        free(wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_unknown_to_the_program_are_zero),
        cmocka_unit_test(fields_unknown_to_the_library_must_be_zero),
        cmocka_unit_test(an_invalid_struct_size_is_refused),
        cmocka_unit_test(completed_options_keep_their_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
