/* consolidate_test.c -- tests that consolidating writes the checkpoint's tensors to one file, in
 * little memory, completely or not at all. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/sanitized_testing.h"
#include "checkpoint/checkpoint_testing.h"

#include <cmocka.h>

/* The numbers of elements.  The model has several blocks, and its tensors do not end at block
 * boundaries. */
enum { FIRST = 300001, SECOND = 5, THIRD = 700003 };

typedef struct {
    float    *values;
    lk_tensor model[4], optimizer;
    char      weights[65];
} large;

static void large_write(large *l)
{
    l->values = malloc((FIRST + SECOND + THIRD) * sizeof *l->values);
    assert_non_null(l->values);
    for (size_t i = 0; i < FIRST + SECOND + THIRD; i++)
        l->values[i] = (float)i - 0.5f;
    l->model[0]  = (lk_tensor){ "a", LK_F32, { 1, { FIRST } }, l->values };
    l->model[1]  = (lk_tensor){ "b", LK_F32, { 1, { SECOND } }, l->values + FIRST };
    l->model[2]  = (lk_tensor){ "c", LK_F32, { 2, { 1, THIRD } }, l->values + FIRST + SECOND };
    l->model[3]  = (lk_tensor){ "none", LK_F32, { 2, { 0, 3 } }, l->values };
    l->optimizer = (lk_tensor){ "c.momentum", LK_F32, { 1, { SECOND } }, l->values };
    lk_weights_hash(l->model, 4, l->weights);
    const lk_checkpoint_file files[2] = {
        { .name = "optimizer.safetensors", .tensors = &l->optimizer, .tensor_count = 1 },
        { .name = "model.safetensors", .tensors = l->model, .tensor_count = 4 },
    };
    const lk_checkpoint_info info = { .step = 1, .exactness_id = "id", .weights = l->weights,
                                      .config = "{}" };
    assert_int_equal(lk_checkpoint_write(folder, &info, files, 2, 0), LK_OK);
}

static lk_status consolidate(const char *name, bool everything)
{
    char           out[256], sha256[65];
    lk_checkpoint *c;
    (void)snprintf(out, sizeof out, "%s/%s", folder, name);
    const lk_consolidate_options options = { .struct_size = sizeof(lk_consolidate_options),
                                             .path = out, .everything = everything };
    assert_int_equal(lk_checkpoint_open_manifest(&c, folder, NULL, 0), LK_OK);
    lk_status status = lk_checkpoint_consolidate(c, &options, sha256);
    lk_checkpoint_free(c);
    return status;
}

static void assert_same(const lk_safetensors *file, const lk_tensor *tensor, size_t count)
{
    const lk_tensor *found = lk_safetensors_find(file, tensor->name);
    assert_non_null(found);
    assert_memory_equal(&found->shape, &tensor->shape, sizeof found->shape);
    if (count > 0)
        assert_memory_equal(found->data, tensor->data, count * sizeof(float));
}

static void the_consolidated_file_has_the_same_tensors(void **state)
{
    (void)state;
    large           l;
    lk_safetensors *file;
    char            hex[65];
    large_write(&l);
    assert_int_equal(consolidate("weights.safetensors", false), LK_OK);
    assert_int_equal(lk_safetensors_open(&file, path_of("weights.safetensors")), LK_OK);
    assert_int_equal(lk_safetensors_count(file), 4);
    assert_same(file, &l.model[0], FIRST);
    assert_same(file, &l.model[1], SECOND);
    assert_same(file, &l.model[2], THIRD);
    assert_same(file, &l.model[3], 0);
    lk_weights_hash(lk_safetensors_at(file, 0), 4, hex);
    assert_string_equal(hex, l.weights);
    lk_safetensors_free(file);

    assert_int_equal(consolidate("all.safetensors", true), LK_OK);
    assert_int_equal(lk_safetensors_open(&file, path_of("all.safetensors")), LK_OK);
    assert_int_equal(lk_safetensors_count(file), 5);
    assert_same(file, &l.optimizer, SECOND);
    assert_same(file, &l.model[2], THIRD);
    lk_safetensors_free(file);
    assert_int_equal(entries(folder, "."), 2); /* . and .. */
    free(l.values);
}

static void refuses(lk_status wanted, const char *name, const char *reason)
{
    assert_int_equal(consolidate(name, false), wanted);
    if (strstr(lk_error_last()->message, reason) == NULL)
        fail_msg("no '%s' in: %s", reason, lk_error_last()->message);
    assert_int_equal(entries(folder, "."), 2);
}

static void flip(const char *path, long at)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

static void a_damaged_checkpoint_is_refused(void **state)
{
    (void)state;
    large l;
    char  model[256];
    large_write(&l);
    (void)snprintf(model, sizeof model, "%s", path_of("step-00000001/model.safetensors"));
    refuses(LK_EINVAL, "step-00000001", "not overwritten");
    refuses(LK_EIO, "missing/w.safetensors", "cannot create");
    flip(model, 3 << 20);
    refuses(LK_ECORRUPT, "w.safetensors", "model.safetensors: block 3 (bytes 3145728 to");
    refuses(LK_ECORRUPT, "w.safetensors", "tensor 'c') differs");
    flip(model, 3 << 20);
    flip(model, 9);
    refuses(LK_ECORRUPT, "w.safetensors", "block 0 (bytes 0 to 1048576: the header) differs");
    flip(model, 9);
    assert_int_equal(truncate(model, 3 << 20), 0);
    refuses(LK_ECORRUPT, "w.safetensors", "has 3145728 bytes, the manifest says");
    free(l.values);
}

/* Checks that valid files whose tensors do not match the recorded weights hash are refused. */
static void tensors_must_match_the_weights_hash(void **state)
{
    (void)state;
    assert_int_equal(small_write(folder, 1, 0), LK_OK);
    refuses(LK_ECORRUPT, "w.safetensors", "its weights hash to");
    assert_int_equal(consolidate("w.safetensors", true), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "'wte.weight' is there twice"));
}

static void options_without_a_path_are_refused(void **state)
{
    (void)state;
    lk_checkpoint         *c;
    char                   hex[65];
    lk_consolidate_options options = LK_CONSOLIDATE_OPTIONS_INIT;
    assert_int_equal(small_write(folder, 1, 0), LK_OK);
    assert_int_equal(lk_checkpoint_open_step(&c, folder, 1), LK_OK);
    assert_int_equal(lk_checkpoint_consolidate(c, &options, hex), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "`path` is missing"));
    options.path = "";
    assert_int_equal(lk_checkpoint_consolidate(c, NULL, hex), LK_EINVAL);
    assert_int_equal(lk_checkpoint_consolidate(c, &options, hex), LK_EINVAL);
    lk_checkpoint_free(c);
}

/* Checks that a failure in the middle of writing removes the partial file. */
static void a_failed_write_leaves_no_file(void **state)
{
    (void)state;
    large         l;
    struct rlimit before, little;
    large_write(&l);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = (struct rlimit){ 2500000, before.rlim_max };
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    lk_status status = consolidate("w.safetensors", false);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "at byte 2500000: File too large"));
    assert_int_equal(entries(folder, "."), 2);
    assert_int_equal(entries(folder, "w."), 0);
    free(l.values);
}

static lk_status make_up(void *context, size_t tensor, size_t first, size_t count, void *out)
{
    (void)context;
    (void)tensor;
    (void)first;
    memset(out, 0, count * sizeof(float));
    return LK_OK;
}

enum { NO_LIMIT = 3 };

/* Consolidates a model of 32 MiB in a child process, with only 12 MiB of additional address
 * space. */
static int copy_in_little_memory(void)
{
    struct rlimit limit;
    unsigned long pages = 0;
    FILE         *file  = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%lu", &pages) != 1 || fclose(file) != 0)
        return 1;
    limit.rlim_cur = limit.rlim_max = pages * (unsigned long)sysconf(_SC_PAGESIZE) + (12u << 20);
    if (setrlimit(RLIMIT_AS, &limit) != 0)
        return 2;
    if (malloc(20u << 20) != NULL)
        return NO_LIMIT;
    /* the weights hash of the zeros differs from the manifest's, which is reported after the last
     * byte */
    return consolidate("w.safetensors", false) == LK_ECORRUPT &&
                   strstr(lk_error_last()->message, "its weights hash to") != NULL
               ? 0
               : 4;
}

static void consolidating_takes_little_memory(void **state)
{
    (void)state;
    if (LKI_SANITIZED)
        skip(); /* sanitizers need more address space than the limit allows */
    const lk_tensor          tensor = { "w", LK_F32, { 1, { 8 << 20 } }, NULL };
    const lk_checkpoint_file file   = { .name = "model.safetensors", .tensors = &tensor,
                                        .tensor_count = 1, .fetch = make_up };
    const lk_checkpoint_info info   = { .step = 1, .exactness_id = "id", .weights = WEIGHTS,
                                        .config = "{}" };
    int                      result;
    assert_int_equal(lk_checkpoint_write(folder, &info, &file, 1, 0), LK_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(copy_in_little_memory());
    assert_int_equal(waitpid(child, &result, 0), child);
    if (WIFEXITED(result) && WEXITSTATUS(result) == NO_LIMIT) {
        puts("skipped: memory cannot be limited here (qemu-user takes no RLIMIT_AS)");
        skip();
    }
    assert_int_equal(result, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_consolidated_file_has_the_same_tensors), CASE(a_damaged_checkpoint_is_refused),
        CASE(tensors_must_match_the_weights_hash),
        CASE(options_without_a_path_are_refused),
        CASE(a_failed_write_leaves_no_file),
        CASE(consolidating_takes_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
