/* checkpoint_test.c -- tests that a checkpoint is read back as it was written, and that every
 * change on disk is detected.
 *
 * Method: small checkpoints, each case in a new folder.  Damage is one flipped bit in every byte of
 * every file, truncation, and manifests with a correct hash but wrong contents.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/file.h>

#include "base/hash.h"
#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/manifest.h"

#include <cmocka.h>

static uint8_t *load(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size         = (size_t)ftell(file);
    uint8_t *data = malloc(*size + 1);
    assert_non_null(data);
    rewind(file);
    assert_int_equal(fread(data, 1, *size, file), *size);
    assert_int_equal(fclose(file), 0);
    data[*size] = 0;
    return data;
}

static void store(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void assert_is_small(const lk_checkpoint *checkpoint, uint64_t step)
{
    static const lk_shape matrix = { 2, { 2, 3 } };
    small                 s;
    float                 got[6];
    small_init(&s, step);
    const lk_checkpoint_info *info = lk_checkpoint_describe(checkpoint);
    assert_int_equal(info->step, step);
    assert_true(info->seed == UINT64_MAX);
    assert_string_equal(info->exactness_id, "v8-b4");
    assert_string_equal(info->weights, WEIGHTS);
    assert_non_null(strstr(info->config, "\"layers\":2"));
    assert_int_equal(
        lk_checkpoint_read(checkpoint, "model.safetensors", "wte.weight", matrix, 0, 6, got),
        LK_OK);
    assert_memory_equal(got, s.weight, sizeof got);
    assert_int_equal(
        lk_checkpoint_read(checkpoint, "optimizer.safetensors", "wte.weight", matrix, 2, 3, got),
        LK_OK);
    assert_memory_equal(got, s.momentum + 2, 3 * sizeof *got);
    assert_string_equal(lk_checkpoint_tensor(checkpoint, 3)->name, "counter");
    assert_string_equal(lk_checkpoint_tensor_file(checkpoint, 3), "state.safetensors");
    assert_memory_equal(lk_checkpoint_tensor(checkpoint, 3)->data, &step, sizeof step);
    assert_null(lk_checkpoint_tensor(checkpoint, 4));
}

static void a_checkpoint_is_read_back_as_written(void **state)
{
    (void)state;
    lk_checkpoint *checkpoint;
    char           notes[100] = "old";
    bool           exists     = true;
    char           deep[128];
    (void)snprintf(deep, sizeof deep, "%s/a/b//c/", folder);
    assert_int_equal(lk_checkpoint_exists(deep, &exists), LK_OK);
    assert_false(exists);
    assert_int_equal(small_write(deep, 7, 0), LK_OK);
    assert_int_equal(lk_checkpoint_exists(deep, &exists), LK_OK);
    assert_true(exists);

    assert_int_equal(lk_checkpoint_open(&checkpoint, deep, notes, sizeof notes), LK_OK);
    assert_string_equal(notes, "");
    assert_is_small(checkpoint, 7);
    assert_string_equal(lk_checkpoint_path(checkpoint), path_of("a/b//c/step-00000007"));
    for (size_t i = 0; i < 3; i++) {
        assert_non_null(lk_checkpoint_file_at(checkpoint, i));
        assert_int_equal(lk_checkpoint_verify(checkpoint, i), LK_OK);
    }
    assert_null(lk_checkpoint_file_at(checkpoint, 3));
    lk_checkpoint_free(checkpoint);

    assert_int_equal(lk_checkpoint_open_step(&checkpoint, deep, 7), LK_OK);
    lk_checkpoint_free(checkpoint);
    assert_int_equal(lk_checkpoint_open_step(&checkpoint, deep, 8), LK_EIO);
    assert_null(checkpoint);
    assert_int_equal(
        lk_checkpoint_open_manifest(&checkpoint, path_of("a/b/c/step-00000007/"), NULL, 0), LK_OK);
    assert_null(lk_checkpoint_tensor(checkpoint, 0)->data);
    lk_checkpoint_free(checkpoint);
}

static void a_read_returns_the_requested_elements(void **state)
{
    (void)state;
    static const lk_shape matrix = { 2, { 2, 3 } }, row = { 1, { 6 } }, scalar = { 0, { 0 } };
    lk_checkpoint        *c;
    float                 out[6];
    assert_int_equal(small_write(folder, 1, 0), LK_OK);
    assert_int_equal(lk_checkpoint_open(&c, folder, NULL, 0), LK_OK);
    assert_int_equal(lk_checkpoint_read(c, "model.safetensors", "no", matrix, 0, 1, out),
                     LK_EFORMAT);
    assert_int_equal(lk_checkpoint_read(c, "state.safetensors", "wte.weight", matrix, 0, 1, out),
                     LK_EFORMAT);
    assert_int_equal(lk_checkpoint_read(c, "model.safetensors", "wte.weight", row, 0, 1, out),
                     LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "(2, 3), not (6)"));
    assert_int_equal(lk_checkpoint_read(c, "state.safetensors", "counter", scalar, 0, 1, out),
                     LK_EFORMAT);
    assert_int_equal(lk_checkpoint_read(c, "model.safetensors", "wte.weight", matrix, 6, 0, out),
                     LK_OK);
    assert_int_equal(lk_checkpoint_read(c, "model.safetensors", "wte.weight", matrix, 6, 1, out),
                     LK_EINVAL);
    assert_int_equal(
        lk_checkpoint_read(c, "model.safetensors", "wte.weight", matrix, 1, SIZE_MAX, out),
        LK_EINVAL);
    lk_checkpoint_free(c);
}

static void tensors_of_many_dimensions_are_checked_and_read(void **state)
{
    (void)state;
    static const lk_shape five = { 5, { 1, 1, 3, 1, 2 } };
    static const lk_shape huge = { 8, { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                        UINT64_MAX, UINT64_MAX, UINT64_MAX } };
    char                  name[LK_NAME_MAX], hash[65], again[65];
    float                 out[6];
    small                 s;
    lk_checkpoint        *c;

    (void)snprintf(name, sizeof name, "%0*d", LK_NAME_MAX - 1, 7);
    small_init(&s, 1);
    s.model[0].shape = five;
    s.model[0].name  = name;
    lk_weights_hash(s.model, 2, hash);
    s.info.weights = hash;
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_OK);
    assert_int_equal(lk_checkpoint_open(&c, folder, NULL, 0), LK_OK);
    assert_true(lk_checkpoint_weights_hash(c, again));
    assert_string_equal(again, hash);
    assert_int_equal(lk_checkpoint_read(c, "model.safetensors", name, five, 0, 6, out), LK_OK);
    assert_memory_equal(out, s.weight, sizeof out);
    assert_int_equal(lk_checkpoint_read(c, "model.safetensors", name, huge, 0, 6, out), LK_EFORMAT);
    lk_checkpoint_free(c);
}

static void refuses_wrong_requests(void **state)
{
    (void)state;
    static const char *const names[] = { "", "..", "../x.safetensors", "a/b.safetensors",
                                         ".x.safetensors", "x.bin", ".safetensors",
                                         "manifest.json", "a b.safetensors" };
    small s;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        small_init(&s, 1);
        s.files[1].name = names[i];
        assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_EINVAL);
    }
    small_init(&s, 1);
    s.files[1].name = s.files[0].name;
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_EINVAL);
    small_init(&s, 1);
    s.model[1].name = "wte.weight";
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_EINVAL);
    small_init(&s, UINT64_MAX);
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_EINVAL);
    static const char *const configs[] = { "", "[]", "{\"a\":1,\"a\":2}", "{}x", "\"x\"" };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        small_init(&s, 1);
        s.info.config = configs[i];
        assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_EINVAL);
    }
    small_init(&s, 1);
    s.info.weights = "0123";
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_EINVAL);
    assert_int_equal(entries(folder, "step-"), 0);

    assert_int_equal(small_write(folder, 5, 0), LK_OK);
    assert_int_equal(small_write(folder, 5, 0), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "never overwritten"));
    store(path_of("file"), "x", 1);
    assert_int_equal(small_write(path_of("file"), 5, 0), LK_EIO);
    assert_int_equal(small_write(path_of("file/dir"), 5, 0), LK_EIO);
    assert_int_equal(entries(folder, ".tmp-"), 0);
}

/* Checks that a flipped bit in any byte of a file is detected, and that the message names the file.
 * Tests only every fifth byte of the manifest, which is longer than the other files and verified as
 * a whole. */
static void every_flipped_bit_is_detected(void **state)
{
    (void)state;
    static const char *const names[] = { "manifest.json", "model.safetensors",
                                         "optimizer.safetensors", "state.safetensors" };
    assert_int_equal(small_write(folder, 1, 0), LK_OK);
    for (size_t f = 0; f < 4; f++) {
        char   path[128];
        size_t size;
        (void)snprintf(path, sizeof path, "%s/step-00000001/%s", folder, names[f]);
        uint8_t *data = load(path, &size);
        for (size_t i = 0; i < size; i += f == 0 ? 5 : 1) {
            lk_checkpoint *checkpoint;
            data[i] ^= (uint8_t)(1u << i % 8);
            store(path, data, size);
            lk_status status = lk_checkpoint_open_step(&checkpoint, folder, 1);
            if (status != LK_ECORRUPT && !(f == 0 && status == LK_EFORMAT))
                fail_msg("%s, byte %zu: %s", names[f], i, lk_status_name(status));
            assert_non_null(strstr(lk_error_last()->message, names[f]));
            data[i] ^= (uint8_t)(1u << i % 8);
        }
        for (size_t cut = 0; cut < size; cut += 1 + cut / 8) {
            lk_checkpoint *checkpoint;
            store(path, data, cut);
            assert_int_not_equal(lk_checkpoint_open_step(&checkpoint, folder, 1), LK_OK);
        }
        store(path, data, size);
        free(data);
    }
    lk_checkpoint *checkpoint;
    assert_int_equal(lk_checkpoint_open_step(&checkpoint, folder, 1), LK_OK);
    assert_is_small(checkpoint, 1);
    lk_checkpoint_free(checkpoint);
}

/* Checks that the message names a damaged block and the tensor in it, even far into a large
 * file. */
static void damage_is_reported_with_block_and_tensor(void **state)
{
    (void)state;
    enum { COUNT = 700000 }; /* each tensor has 2.7 MiB; the first is in blocks 0 to 2, the second
                              * in blocks 2 to 5 */
    small  s;
    float *data = calloc(COUNT, sizeof *data);
    assert_non_null(data);
    small_init(&s, 3);
    s.model[0] = (lk_tensor){ "first", LK_F32, { 1, { COUNT } }, data };
    s.model[1] = (lk_tensor){ "second", LK_F32, { 1, { COUNT } }, data };
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_OK);
    free(data);

    static const struct { size_t at; const char *block, *tensor; } cases[] = {
        { 3, "block 0", "the header" },
        { 1 << 20, "block 1", "'first'" },
        { (1 << 20) * 4 + 17, "block 4", "'second'" },
        { 2 * 4 * COUNT, "block 5", "'second'" },
    };
    size_t   size;
    uint8_t *file = load(path_of("step-00000003/model.safetensors"), &size);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lk_checkpoint *c;
        file[cases[i].at] ^= 0x10;
        store(path_of("step-00000003/model.safetensors"), file, size);
        file[cases[i].at] ^= 0x10;
        assert_int_equal(lk_checkpoint_open(&c, path_of("step-00000003"), NULL, 0), LK_ECORRUPT);
        if (strstr(lk_error_last()->message, cases[i].block) == NULL ||
            strstr(lk_error_last()->message, cases[i].tensor) == NULL)
            fail_msg("%s, %s: %s", cases[i].block, cases[i].tensor, lk_error_last()->message);
        assert_int_equal(lk_checkpoint_open_manifest(&c, folder, NULL, 0), LK_OK);
        assert_int_equal(lk_checkpoint_verify(c, 0), LK_ECORRUPT);
        assert_int_equal(lk_checkpoint_verify(c, 1), LK_OK);
        lk_checkpoint_free(c);
    }
    free(file);
}

static void opening_takes_the_newest_intact_checkpoint(void **state)
{
    (void)state;
    char           notes[1000];
    lk_checkpoint *c;
    assert_int_equal(lk_checkpoint_open(&c, folder, notes, sizeof notes), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "no checkpoint"));
    assert_int_equal(lk_checkpoint_open(&c, path_of("missing"), notes, sizeof notes), LK_EIO);
    for (uint64_t step = 9; step <= 12; step++)
        assert_int_equal(small_write(folder, step, 0), LK_OK);
    assert_int_equal(unlink(path_of("step-00000012/manifest.json")), 0);
    assert_int_equal(truncate(path_of("step-00000011/state.safetensors"), 50), 0);
    assert_int_equal(mkdir(path_of("step-13"), 0777), 0); /* not the name of a step */
    assert_int_equal(lk_checkpoint_open(&c, folder, notes, sizeof notes), LK_OK);
    assert_is_small(c, 10);
    lk_checkpoint_free(c);
    assert_non_null(strstr(notes, "skipped step-00000012: "));
    assert_non_null(strstr(notes, "skipped step-00000011: "));
    assert_non_null(strstr(notes, "has 50 bytes"));
    assert_null(strstr(notes, "step-00000010"));
    assert_int_equal(lk_checkpoint_open(&c, folder, notes, 10), LK_OK); /* the buffer is too
                                                                         * small: harmless */
    assert_int_equal(strlen(notes), 9);
    lk_checkpoint_free(c);

    assert_int_equal(unlink(path_of("step-00000010/model.safetensors")), 0);
    assert_int_equal(unlink(path_of("step-00000009/model.safetensors")), 0);
    assert_int_equal(lk_checkpoint_open(&c, folder, NULL, 0), LK_ECORRUPT);
    assert_non_null(strstr(lk_error_last()->message, "none of the 4"));

    assert_int_equal(small_write(folder, 14, 0), LK_OK);
    char from[256];
    (void)snprintf(from, sizeof from, "%s", path_of("step-00000014"));
    assert_int_equal(rename(from, path_of("step-00000015")), 0); /* under another step's name */
    assert_int_equal(lk_checkpoint_open_step(&c, folder, 15), LK_EFORMAT);
}

static void assert_steps(const char *wanted)
{
    char found[200] = "";
    for (uint64_t step = 0; step < 100; step++) {
        char        name[64];
        struct stat info;
        (void)snprintf(name, sizeof name, "step-%08" PRIu64, step);
        if (stat(path_of(name), &info) == 0)
            (void)snprintf(found + strlen(found), sizeof found - strlen(found), "%" PRIu64 " ",
                           step);
    }
    assert_string_equal(found, wanted);
    assert_int_equal(entries(folder, ".tmp-"), 0);
}

static void only_the_newest_checkpoints_are_kept(void **state)
{
    (void)state;
    assert_int_equal(small_write(folder, 10, 2), LK_OK);
    assert_int_equal(small_write(folder, 20, 2), LK_OK);
    assert_int_equal(small_write(folder, 30, 2), LK_OK);
    assert_steps("20 30 ");
    assert_int_equal(unlink(path_of("step-00000030/model.safetensors")), 0);
    assert_int_equal(small_write(folder, 40, 2), LK_OK); /* 30 does not count */
    assert_steps("20 30 40 ");
    assert_int_equal(small_write(folder, 50, 2), LK_OK); /* 30 is now too old to keep */
    assert_steps("40 50 ");
    assert_int_equal(small_write(folder, 5, 1), LK_OK); /* the step just written is never removed */
    assert_steps("5 50 ");
    assert_int_equal(small_write(folder, 60, 0), LK_OK);
    assert_steps("5 50 60 ");
}

/* Checks that temporary directories of dead writers are removed, and those of living writers
 * kept. */
static void temporary_files_of_dead_writers_are_removed(void **state)
{
    (void)state;
    char dead[128], living[128];
    (void)snprintf(dead, sizeof dead, "%s/.tmp-step-00000004-%ld", folder, (long)getpid());
    (void)snprintf(living, sizeof living, "%s/.tmp-step-00000009-1", folder);
    assert_int_equal(mkdir(dead, 0777), 0);
    store(path_of("x"), "x", 1);
    assert_int_equal(mkdir(living, 0777), 0);
    int lock = open(living, O_RDONLY | O_DIRECTORY);
    assert_true(lock >= 0);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    assert_int_equal(small_write(folder, 4, 0), LK_OK);
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(access(living, F_OK), 0);
    assert_int_equal(close(lock), 0);
    assert_int_equal(small_write(folder, 5, 0), LK_OK);
    assert_int_equal(entries(folder, ".tmp-"), 0);
}

static lk_status supply_nothing(void *context, size_t tensor, size_t first, size_t count, void *out)
{
    (void)tensor;
    (void)first;
    (void)count;
    (void)out;
    return context == NULL ? LK_EIO : lk_error_set(LK_EIO, context);
}

/* A callback may say why it failed.  If it does not, an older message must not take its place. */
static void the_failure_of_a_callback_is_reported(void **state)
{
    char  reason[] = "the values are on another machine";
    small s;
    (void)state;
    small_init(&s, 1);
    s.model[0].data    = NULL;
    s.files[0].fetch   = supply_nothing;
    (void)lk_error_set(LK_EFORMAT, "an older failure");
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "elements 0 to 5 of tensor 'wte.weight'"));
    s.files[0].context = reason;
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_EIO);
    assert_string_equal(lk_error_last()->message, reason);
    assert_int_equal(entries(folder, "step-"), 0);
}

static void files_past_the_last_are_refused(void **state)
{
    lk_checkpoint *c;
    (void)state;
    assert_int_equal(small_write(folder, 1, 0), LK_OK);
    assert_int_equal(lk_checkpoint_open_step(&c, folder, 1), LK_OK);
    assert_int_equal(lk_checkpoint_verify(c, 2), LK_OK);
    assert_int_equal(lk_checkpoint_verify(c, 3), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "file 3 of 3"));
    lk_checkpoint_free(c);
}

/* ---- Wrong manifests with a correct hash ---------------------------------------------------- */

/* Replaces the first occurrence of `from` in `original` by `to`, corrects the hash, and stores the
 * result as the manifest of step 1. */
static void forge(const char *original, const char *from, const char *to)
{
    const char *at = strstr(original, from);
    assert_non_null(at);
    size_t size = strlen(original) + strlen(to) + 1;
    char  *text = malloc(size), hex[65];
    assert_non_null(text);
    (void)snprintf(text, size, "%.*s%s%s", (int)(at - original), original, to, at + strlen(from));

    char      *line = strchr(text, '\n') + 1, *rest = strchr(line, '\n') + 1;
    lki_sha256 hash;
    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, text, (size_t)(line - text));
    lki_sha256_add(&hash, rest, strlen(rest));
    lki_sha256_end(&hash, hex);
    memcpy(strstr(line, ": \"") + 3, hex, 64);
    store(path_of("step-00000001/manifest.json"), text, strlen(text));
    free(text);
}

static const struct { const char *from, *to, *reason; } forgeries[] = {
    { "\"version\": 1", "\"version\": 2", "version 2" },
    { "lockstep-checkpoint", "other", "other" },
    { "\"version\": 1", "\"version\": 1, \"more\": 1", "more" },
    { "\"version\": 1", "\"version\": 1, \"version\": 1", "duplicate" },
    { "\"step\": 1", "\"step\": -1", "step" },
    { "\"step\": 1", "\"step\": 2", "directory of step 1" },
    { "\"step\": 1", "\"step\": 1.0", "step" },
    { "1048576", "1048577", "blocks" },
    { "18446744073709551615", "18446744073709551616", "seed" },
    { "18446744073709551615", "-1", "seed" },
    { "000ff", "000fg", "weights" },
    { "\"config\": {", "\"config\": [], \"x\": {", "x" },
    { "\"name\": \"model.safetensors\"", "\"name\": \"../model.safetensors\"", "not a name" },
    { "\"name\": \"model.safetensors\"", "\"name\": \"/etc/x.safetensors\"", "not a name" },
    { "\"name\": \"model.safetensors\"", "\"name\": \"optimizer.safetensors\"", "twice" },
    { "\"name\": \"model.safetensors\"", "\"name\": \"moved.safetensors\"", "not among the files" },
    { "\"bytes\": ", "\"bytes\": 9999999", "block hashes" },
    { "\"bytes\": ", "\"bytes\": -", "size" },
    { "\"bytes\": ", "\"bytes\": 1", "bytes, the manifest says" },
    { "\"dtype\": \"F32\"", "\"dtype\": \"I32\"", "type or shape" },
    { "\"dtype\": \"F32\"", "\"dtype\": \"X\"", "'X'" },
    { "\"count\": 6", "\"count\": 5", "5 of 6" },
    { "\"count\": 6", "\"count\": 7", "end by 6" },
    { "\"count\": 6", "\"count\": 9223372036854775807", "end by 6" },
    { "\"first\": 0", "\"first\": 1", "must start at 0" },
    { "ln.bias", "wte.weight", "twice" },
    { "ln.bias", "ln.bios", "which the manifest puts there" },
};

static void refuses_forged_manifests(void **state)
{
    (void)state;
    size_t         size;
    lk_checkpoint *c;
    assert_int_equal(small_write(folder, 1, 0), LK_OK);
    char *original = (char *)load(path_of("step-00000001/manifest.json"), &size);
    forge(original, "layers", "levels"); /* control: a valid change is accepted */
    assert_int_equal(lk_checkpoint_open_step(&c, folder, 1), LK_OK);
    assert_non_null(strstr(lk_checkpoint_describe(c)->config, "levels"));
    lk_checkpoint_free(c);
    for (size_t i = 0; i < sizeof forgeries / sizeof forgeries[0]; i++) {
        forge(original, forgeries[i].from, forgeries[i].to);
        if (lk_checkpoint_open_step(&c, folder, 1) == LK_OK)
            fail_msg("accepted %s", forgeries[i].to);
        if (strstr(lk_error_last()->message, forgeries[i].reason) == NULL)
            fail_msg("%s: %s", forgeries[i].to, lk_error_last()->message);
    }
    free(original);
}

/* Checks that a tensor in pieces over two files is read as one.  The library itself never writes
 * such files. */
static void a_tensor_in_two_files_is_read_as_one(void **state)
{
    (void)state;
    small          s;
    size_t         size;
    lk_checkpoint *c;
    float          got[4];
    char           weights[65], hex[65], out[128];
    small_init(&s, 1);
    lk_weights_hash(s.model, 2, weights);
    s.info.weights  = weights;
    s.files[1].name = "model-2.safetensors";
    s.model[0]      = (lk_tensor){ "wte.weight", LK_F32, { 1, { 2 } }, s.weight };
    s.optimizer[0]  = (lk_tensor){ "wte.weight", LK_F32, { 1, { 4 } }, s.weight + 2 };
    assert_int_equal(lk_checkpoint_write(folder, &s.info, s.files, 3, 0), LK_OK);
    char *text = (char *)load(path_of("step-00000001/manifest.json"), &size);

    char *second = strstr(text, "\"file\": \"model-2.safetensors\""); /* removes its entry */
    assert_non_null(second);
    char *begin = second, *end = strstr(second, "\"file\": \"state.safetensors\"");
    while (*begin != '{')
        begin--;
    while (*end != '{')
        end--;
    memmove(begin, end, strlen(end) + 1);
    char *shape = strstr(text, "\"shape\": ["), *close = strchr(shape, ']'); /* grows the first */
    char  joined[8192];
    (void)snprintf(joined, sizeof joined, "%.*s\"shape\": [2, 3%s", (int)(shape - text), text,
                   close);
    forge(joined, "\"count\": 2\n    }",
          "\"count\": 2 }, {\"file\": \"model-2.safetensors\", \"first\": 2, \"count\": 4}");
    if (lk_checkpoint_open_step(&c, folder, 1) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    assert_int_equal(lk_checkpoint_read(c, "model.safetensors", "wte.weight",
                                        (lk_shape){ 2, { 2, 3 } }, 1, 4, got), LK_OK);
    assert_memory_equal(got, s.weight + 1, sizeof got);
    assert_memory_equal(lk_checkpoint_tensor(c, 0)->data, s.weight, sizeof s.weight);
    (void)snprintf(out, sizeof out, "%s/one.safetensors", folder);
    const lk_consolidate_options options = { .struct_size = sizeof(lk_consolidate_options),
                                             .path        = out };
    if (lk_checkpoint_consolidate(c, &options, hex) != LK_OK) /* this compares the weights */
        fail_msg("%s", lk_error_last()->message);
    lk_checkpoint_free(c);

    forge(text, "wte.weight", "ln.weight"); /* now no entry refers to the contents of the second
                                             * file */
    assert_int_equal(lk_checkpoint_open_step(&c, folder, 1), LK_EFORMAT);
    free(text);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_checkpoint_is_read_back_as_written),
        CASE(a_read_returns_the_requested_elements),
        CASE(tensors_of_many_dimensions_are_checked_and_read),
        CASE(refuses_wrong_requests),
        CASE(every_flipped_bit_is_detected),
        CASE(damage_is_reported_with_block_and_tensor),
        CASE(opening_takes_the_newest_intact_checkpoint),
        CASE(only_the_newest_checkpoints_are_kept),
        CASE(temporary_files_of_dead_writers_are_removed),
        CASE(the_failure_of_a_callback_is_reported),
        CASE(files_past_the_last_are_refused),
        CASE(refuses_forged_manifests),
        CASE(a_tensor_in_two_files_is_read_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
