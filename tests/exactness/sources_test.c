/* sources_test.c -- data of every kind of its own give the same bits to any number of workers.
 *
 * Goal:   pictures in archives, augmented, drawn by weights or in PyTorch's order, from any number
 *         of loader threads, train the same model with one, two and three workers.
 * Method: the command itself; the hash of each run.
 */
#include "cli/command.h"
#include "data/tar_testing.h"

static void run_of(char hash[65], const char *folder, const char *options, uint32_t workers)
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line,
                   "'%s' train mlp --hidden 9 --virtual-workers 6 --micro-batch 2 "
                   "--global-batch 12 --steps 7 --lr 0.05 --workers %u --worker-mode %s %s",
                   LK_TEST_COMMAND, workers, workers == 2 ? "processes" : "threads", options);
    (void)run_shell(&r, folder, line);
    if (r.status != 0)
        fail_msg("%s: status %d\n%s", line, r.status, r.err);
    const char *at = strstr(r.err, "\nrun ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\nrun %64[0-9a-f]", hash), 1);
}

/* From `least` on. */
static void same_on_any_workers(const char *folder, const char *options, uint32_t least,
                                char want[65])
{
    run_of(want, folder, options, 1);
    for (uint32_t workers = 3; workers >= least; workers--) {
        char got[65];
        run_of(got, folder, options, workers);
        if (strcmp(got, want) != 0)
            fail_msg("%s: %u workers give %s, one %s", options, workers, got, want);
    }
}

static void archives_give_the_same_bits(void **state)
{
    static lkt_file archive;
    char            path[128], weights[128], plain[65], other[3][65];
    for (uint32_t k = 0; k < 3; k++) {
        archive.count = 0;
        for (uint32_t i = 0; i < 10; i++) {
            char key[16];
            (void)snprintf(key, sizeof key, "%u", i);
            lkt_tar_sample(&archive, key, 9 + i % 3, 10 * k + i, (int)(i * (k + 1) % 4));
        }
        lkt_tar_end(&archive);
        (void)snprintf(path, sizeof path, "%s/%u.tar", (const char *)*state, k);
        lkt_write(path, archive.bytes, archive.count);
    }
    (void)snprintf(weights, sizeof weights, "%s/weights", (const char *)*state);
    lkt_write_text(weights, "1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0");
#define ARCHIVES "--data 'tar:{0..2}.tar?h=8&w=8' "
    same_on_any_workers(*state, ARCHIVES "--loader-threads 3", 2, plain);
    same_on_any_workers(*state, ARCHIVES "--augment crop=2,flip --loader-threads 2", 3, other[0]);
    same_on_any_workers(*state, ARCHIVES "--weights weights", 3, other[1]);
    same_on_any_workers(*state, ARCHIVES "--order torch-distributed", 3, other[2]);
    for (size_t i = 0; i < 3; i++)
        assert_string_not_equal(plain, other[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(archives_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
