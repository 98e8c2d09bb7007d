/* layout_test.c -- the text of lk_layout() against what the compiler says here.
 *
 * Goal:   a binding can read the text, and finds in it what a C program sees.
 * Method: reads every line.  The fields of a struct must be in order and leave no gap that could
 *         hold a forgotten field.  Some fields are compared with offsetof().
 *         tests/house/layout compares the names with the headers.
 */
#include "lockstep/binding.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lockstep/comm.h"
#include "lockstep/launch.h"
#include "lockstep/parallel.h"

/* Finds a field's line, and returns its offset, size and kind. */
static void find(const char *type, const char *field, size_t *offset, size_t *bytes, char kind[16])
{
    char head[64], name[64];
    (void)snprintf(head, sizeof head, "struct %s ", type);
    const char *line = strstr(lk_layout(), head);

    assert_non_null(line);
    while ((line = strchr(line, '\n')) != NULL) {
        line++;
        if (sscanf(line, "  %63s %zu %zu %15s", name, offset, bytes, kind) != 4
            || line[0] != ' ')
            break;
        if (strcmp(name, field) == 0)
            return;
    }
    fail_msg("%s has no %s", type, field);
}

static void assert_field(const char *type, const char *field, size_t offset, size_t bytes,
                         const char *kind)
{
    size_t has_offset, has_bytes;
    char   has_kind[16];

    find(type, field, &has_offset, &has_bytes, has_kind);
    assert_int_equal(has_offset, offset);
    assert_int_equal(has_bytes, bytes);
    assert_string_equal(has_kind, kind);
}

#define ASSERT_FIELD(type, field, kind)                                                          \
    assert_field(#type, #field, offsetof(type, field), sizeof(((type *)0)->field), kind)

static void fields_are_where_the_compiler_puts_them(void **state)
{
    (void)state;
    ASSERT_FIELD(lk_shape, dims, "uint[8]");
    ASSERT_FIELD(lk_param, name, "text");
    ASSERT_FIELD(lk_param, bf16, "bool");
    ASSERT_FIELD(lk_error, status, "int");
    ASSERT_FIELD(lk_parallel_options, virtual_workers, "uint");
    ASSERT_FIELD(lk_parallel_options, optimizer, "struct");
    ASSERT_FIELD(lk_parallel_options, hook, "pointer");
    ASSERT_FIELD(lk_parallel_options, backups, "uint");
    ASSERT_FIELD(lk_join_options, leaves, "bool");
    ASSERT_FIELD(lk_launch_options, node, "int");
    ASSERT_FIELD(lk_tree_op, slices, "pointer");
    ASSERT_FIELD(lk_step_result, loss, "float");
}

/* Returns the value of a constant; there must be one. */
static long long constant(const char *name)
{
    char      head[64];
    long long value;
    (void)snprintf(head, sizeof head, "constant %s ", name);
    const char *line = strstr(lk_layout(), head);
    assert_non_null(line);
    assert_int_equal(sscanf(line + strlen(head), "%lld", &value), 1);
    return value;
}

static void constants_have_their_values(void **state)
{
    (void)state;
    assert_int_equal(constant("LK_OK"), 0);
    assert_int_equal(constant("LK_EINVAL"), -1);
    assert_int_equal(constant("LK_ESTOPPED"), -11);
    assert_int_equal(constant("LK_BF16"), LK_BF16);
    assert_int_equal(constant("LK_I4"), LK_I4);
    assert_int_equal(constant("LK_ADAMW"), LK_ADAMW);
    assert_int_equal(constant("LK_UNUSED_ZERO"), LK_UNUSED_ZERO);
    assert_int_equal(constant("LK_RANK_MAX"), LK_RANK_MAX);
    assert_int_equal(constant("LK_NAME_MAX"), LK_NAME_MAX);
    assert_int_equal(constant("LK_NO_COLOR"), UINT32_MAX);
}

/* Checks one line of the text.  *end is the end of the last field of the struct `bytes` long. */
static void check_line(const char *line, size_t *end, size_t *bytes)
{
    char      name[64], kind[16], rest;
    size_t    offset, size;
    long long value;

    if (sscanf(line, "version %63s %c", name, &rest) == 1)
        return;
    if (sscanf(line, "constant %63s %lld %c", name, &value, &rest) == 2
        || sscanf(line, "struct %63s %zu %c", name, &size, &rest) == 2) {
        assert_true(*bytes - *end < 8); /* padding only */
        *end   = 0;
        *bytes = line[0] == 's' ? size : 0;
        return;
    }
    assert_int_equal(sscanf(line, "  %63s %zu %zu %15s %c", name, &offset, &size, kind, &rest), 4);
    assert_true(size > 0 && offset >= *end && offset - *end < 8);
    assert_true(offset + size <= *bytes);
    *end = offset + size;
}

static void the_first_line_is_the_version(void **state)
{
    static const char line[] = "version " LK_VERSION "\n";

    (void)state;
    assert_int_equal(strncmp(lk_layout(), line, sizeof line - 1), 0);
}

static void every_line_can_be_read(void **state)
{
    char  *text = strdup(lk_layout()), *rest = text;
    size_t end = 0, bytes = 0, lines = 0;

    (void)state;
    assert_non_null(text);
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (char *line; (line = strsep(&rest, "\n")) != NULL && rest != NULL; lines++)
        check_line(line, &end, &bytes);
    assert_int_equal(bytes, 0); /* constants are last */
    assert_true(lines > 400);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_where_the_compiler_puts_them),
        cmocka_unit_test(constants_have_their_values),
        cmocka_unit_test(the_first_line_is_the_version),
        cmocka_unit_test(every_line_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
