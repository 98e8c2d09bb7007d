/* shared_port_test.c -- tests how hosts learn the port of the rendezvous from torchrun's store.
 *
 * The store is a thread of this test with one key, in the form since PyTorch 2.1 and in the form
 * before.  tests/hosts runs torchrun itself, if it is installed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "base/status.h"
#include "launch/shared_port.h"

typedef struct {
    pthread_t       thread;
    int             listener;
    bool            greets;
    pthread_mutex_t lock;
    bool            found; /* the key exists */
    char            key[100], value[100];
} store;

static bool take(int fd, void *out, size_t bytes)
{
    return recv(fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static bool take_text(int fd, char out[100])
{
    uint64_t length;
    if (!take(fd, &length, sizeof length) || length >= 100 || !take(fd, out, length))
        return false;
    out[length] = '\0';
    return true;
}

static bool put(int fd, const void *bytes, size_t count)
{
    return send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count;
}

static bool put_text(int fd, const char *text)
{
    uint64_t length = strlen(text);
    return put(fd, &length, sizeof length) && put(fd, text, length);
}

/* Serves one operation.  Returns false if the connection is to be closed. */
static bool serve(store *s, int fd)
{
    unsigned char number, answer = 1;
    uint64_t      one = 1;
    char          key[100];

    if (!take(fd, &number, 1))
        return false;
    if (number == 12 && s->greets)
        return put(fd, &answer, 1);
    switch (number == 8 ? 8 : number - s->greets) {
    case 0:
        return take_text(fd, s->key) && take_text(fd, s->value) && (s->found = true);
    case 2:
        return take_text(fd, key) && put_text(fd, s->value);
    case 4:
        if (!take(fd, &one, sizeof one) || one != 1 || !take_text(fd, key))
            return false;
        answer = s->found && strcmp(key, s->key) == 0 ? 0 : 1;
        return put(fd, &answer, 1);
    case 8:
        s->found = s->found && !(take_text(fd, key) && strcmp(key, s->key) == 0);
        return put(fd, &one, sizeof one);
    default: return false;
    }
}

/* Serves one connection after the other: the tests have one at a time, or end the first. */
static void *be_store(void *context)
{
    store        *s = context;
    unsigned char hello[5];
    for (int fd; (fd = accept(s->listener, NULL, NULL)) >= 0; (void)close(fd)) {
        bool goes_on = !s->greets || (take(fd, hello, 5) && hello[0] == 0);
        while (goes_on) {
            (void)pthread_mutex_lock(&s->lock);
            goes_on = serve(s, fd);
            (void)pthread_mutex_unlock(&s->lock);
        }
    }
    return NULL;
}

static void start(store *s, lki_foreign *f, bool greets)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t          bytes   = sizeof address;

    *s = (store){ .greets = greets, .lock = PTHREAD_MUTEX_INITIALIZER };
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->listener, (const struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(s->listener, 8), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&address, &bytes), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, be_store, s), 0);
    *f = (lki_foreign){ .by = "torchrun", .size = 2, .local_size = 1, .store = "run-1" };
    (void)snprintf(f->rendezvous, sizeof f->rendezvous, "tcp://127.0.0.1:%u",
                   ntohs(address.sin_port));
}

static bool has_key(store *s)
{
    (void)pthread_mutex_lock(&s->lock);
    bool found = s->found;
    (void)pthread_mutex_unlock(&s->lock);
    return found;
}

static void set(store *s, const char *key, const char *value)
{
    (void)pthread_mutex_lock(&s->lock);
    (void)snprintf(s->key, sizeof s->key, "%s", key);
    (void)snprintf(s->value, sizeof s->value, "%s", value);
    s->found = true;
    (void)pthread_mutex_unlock(&s->lock);
}

static void stop(store *s)
{
    (void)shutdown(s->listener, SHUT_RDWR);
    (void)pthread_join(s->thread, NULL);
    (void)close(s->listener);
}

static lk_status go_on(void *context)
{
    (void)context;
    return LK_OK;
}

static lk_status give_up(void *context)
{
    (void)context;
    return lk_fail(LK_ESTOPPED, "SIGTERM came");
}

static void the_port_is_told(void **state)
{
    (void)state;
    for (int greets = 0; greets < 2; greets++) {
        lki_shared_port first, second;
        lki_foreign     f, other;
        store           s;
        start(&s, &f, greets == 1);
        other      = f;
        other.rank = 1;
        assert_int_equal(lki_shared_port_open(&first, &f, 1000, go_on, NULL), LK_OK);
        assert_true(first.listener >= 0);
        lki_torch_store_close(&first.store); /* the test's store has one connection at a time */
        assert_int_equal(lki_shared_port_open(&second, &other, 20000, go_on, NULL), LK_OK);
        assert_string_equal(second.endpoint, first.endpoint);
        assert_string_not_equal(second.endpoint, f.rendezvous);
        assert_int_equal(second.listener, -1);
        lki_shared_port_withdraw(&second);
        assert_true(has_key(&s)); /* only rank 0's host deletes the entry */
        (void)close(first.listener);
        assert_int_equal(lki_shared_port_open(&first, &f, 1000, go_on, NULL), LK_OK);
        lki_shared_port_withdraw(&first);
        assert_false(has_key(&s));
        (void)close(first.listener);
        stop(&s);
    }
}

static void waiting_for_the_port_ends(void **state)
{
    lki_shared_port port;
    lki_foreign     f;
    store           s;
    (void)state;
    start(&s, &f, true);
    f.rank = 1;
    assert_int_equal(lki_shared_port_open(&port, &f, 1, go_on, NULL), LK_ETIMEOUT);
    assert_non_null(strstr(lk_error_last()->message, "rank 0 has not written its port"));
    lki_shared_port_withdraw(&port);
    assert_int_equal(lki_shared_port_open(&port, &f, 20000, give_up, NULL), LK_ESTOPPED);
    lki_shared_port_withdraw(&port);
    set(&s, "lockstep/run-1", "no port");
    assert_int_equal(lki_shared_port_open(&port, &f, 20000, go_on, NULL), LK_EINVAL);
    lki_shared_port_withdraw(&port);
    stop(&s);
    assert_int_equal(lki_shared_port_open(&port, &f, 20000, go_on, NULL), LK_EPEER);
    assert_non_null(strstr(lk_error_last()->message, "the store of torchrun"));
    lki_shared_port_withdraw(&port);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_port_is_told),
        cmocka_unit_test(waiting_for_the_port_ends),
    };
    return cmocka_run_group_tests_name("launch.shared_port", tests, NULL, NULL);
}
