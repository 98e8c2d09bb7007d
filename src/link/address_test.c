/* address_test.c -- addresses as text, and listening sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "link/address.h"

static void addresses_survive_formatting_and_parsing(void **state)
{
    static const char *const TEXTS[] = { "10.0.0.1:4711", "[::1]:4711", "127.0.0.1:1",
                                         "[2001:db8::ff00:42:8329]:65535" };
    (void)state;
    for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++) {
        lki_address address;
        char        text[LKI_ADDRESS_BYTES];
        assert_int_equal(lki_address_parse(&address, TEXTS[i]), LK_OK);
        lki_address_text(text, &address);
        assert_string_equal(text, TEXTS[i]);
        assert_int_equal(lki_address_is_loopback(&address),
                         strchr(TEXTS[i], '1') == TEXTS[i] + 3 || TEXTS[i][2] == '7');
    }
}

static void invalid_addresses_are_refused(void **state)
{
    static const char *const TEXTS[] = { "",
                                         ":",
                                         "10.0.0.1",
                                         "10.0.0.1:",
                                         ":4711",
                                         "::1:4711",
                                         "[::1]",
                                         "[]:1",
                                         "localhost:4711",
                                         "10.0.0.256:1",
                                         "10.0.0.1:port",
                                         "10.0.0.1:12345678901234567",
                                         "[::1:5" };
    (void)state;
    for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++) {
        lki_address address;
        if (lki_address_parse(&address, TEXTS[i]) != LK_EINVAL)
            fail_msg("\"%s\" is taken for an address", TEXTS[i]);
    }
    char host[256], port[16];
    assert_int_equal(lki_address_split("node7.cluster:29500", host, port), LK_OK);
    assert_string_equal(host, "node7.cluster");
    assert_string_equal(port, "29500");
}

/* Checks that the kernel chooses a port, and that the call returns it. */
static void listening_returns_the_chosen_port(void **state)
{
    static const char *const HOSTS[] = { "127.0.0.1", "::1" };
    (void)state;
    lki_address elsewhere;
    int         none;
    assert_int_equal(lki_address_listen(&none, &elsewhere, "192.0.2.77"), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "no such address"));
    assert_int_equal(none, -1);
    for (int i = 0; i < 2; i++) {
        lki_address address, other;
        int         fd, more;
        char        text[LKI_ADDRESS_BYTES], again[LKI_ADDRESS_BYTES];
        if (i == 1 && lki_address_listen(&fd, &address, HOSTS[i]) != LK_OK) {
            print_message("skipped: no IPv6 here\n");
            skip();
        }
        if (i == 1)
            close(fd);
        assert_int_equal(lki_address_listen(&fd, &address, HOSTS[i]), LK_OK);
        assert_int_equal(lki_address_listen(&more, &other, HOSTS[i]), LK_OK);
        lki_address_text(text, &address);
        lki_address_text(again, &other);
        assert_string_not_equal(text, again);
        assert_true(strstr(text, HOSTS[i]) != NULL && strstr(text, ":0") == NULL);
        close(fd);
        close(more);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_survive_formatting_and_parsing),
        cmocka_unit_test(invalid_addresses_are_refused),
        cmocka_unit_test(listening_returns_the_chosen_port),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
