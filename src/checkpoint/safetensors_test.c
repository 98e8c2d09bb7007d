/* safetensors_test.c -- tests that a file is read back as it was written, and that malformed files
 * are refused with a reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"

#include <cmocka.h>

static const float    weight[6] = { 0.0f, 1.0f, -2.5f, 3.25f, -0.0f, 0x1p-149f };
static const uint64_t steps     = 7;
static const uint8_t  bytes[3]  = { 1, 2, 3 };

#define LONG_NAME "a.name.of.a.tensor.that.is.longer.than.those.of.any.model.that.we.know.of."
static const lk_tensor sample[] = {
    { "wte.weight", LK_F32, { 2, { 2, 3 } }, weight },
    { "bytes", LK_U8, { 1, { 3 } }, bytes },
    { "odd \"name\" \xc3\xa9", LK_F32, { 1, { 2 } }, weight }, /* unaligned: follows 3 bytes */
    { "empty", LK_F64, { 2, { 4, 0 } }, NULL },
    { "steps", LK_U64, { 0, { 0 } }, &steps },
    { "conv3d", LK_F32, { 5, { 1, 1, 3, 2, 1 } }, weight },
    { LONG_NAME LONG_NAME LONG_NAME, LK_F32, { 8, { 1, 1, 1, 1, 2, 1, 3, 1 } }, weight },
};
enum { SAMPLES = sizeof sample / sizeof sample[0] };

static char folder[64], path[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/lockstep-safetensors-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof path, "%s/x.safetensors", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void put_file(const void *data, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void a_file_is_read_back_as_written(void **state)
{
    (void)state;
    lk_safetensors *file;
    assert_int_equal(lk_safetensors_write(path, sample, SAMPLES), LK_OK);
    assert_int_equal(lk_safetensors_open(&file, path), LK_OK);
    assert_int_equal(lk_safetensors_count(file), SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++) {
        const lk_tensor *got = lk_safetensors_find(file, sample[i].name);
        uint64_t         count, size;
        assert_non_null(got);
        assert_ptr_equal(got, lk_safetensors_at(file, i)); /* in the order written */
        assert_int_equal(got->dtype, sample[i].dtype);
        assert_int_equal(got->shape.rank, sample[i].shape.rank);
        assert_memory_equal(got->shape.dims, sample[i].shape.dims, sizeof got->shape.dims);
        assert_true(lki_shape_size(got->shape, got->dtype, &count, &size));
        assert_int_equal((uintptr_t)got->data % lk_dtype_bytes(got->dtype), 0);
        assert_non_null(got->data);
        if (size > 0)
            assert_memory_equal(got->data, sample[i].data, size);
    }
    assert_null(lk_safetensors_at(file, SAMPLES));
    assert_null(lk_safetensors_find(file, "no such"));
    assert_null(lk_safetensors_find(file, NULL));
    lk_safetensors_free(file);
}

static void refuses_to_write_nonsense(void **state)
{
    (void)state;
    lk_tensor two[2] = { sample[0], sample[0] };
    assert_int_equal(lk_safetensors_write(path, two, 2), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "twice"));
    two[0].name = "\xff";
    assert_int_equal(lk_safetensors_write(path, two, 1), LK_EINVAL);
    two[0].name = "__metadata__";
    assert_int_equal(lk_safetensors_write(path, two, 1), LK_EINVAL);
    two[1].shape = (lk_shape){ 2, { UINT64_C(1) << 40, UINT64_C(1) << 40 } };
    assert_int_equal(lk_safetensors_write(path, two + 1, 1), LK_EINVAL);
    two[1]      = sample[0];
    two[1].data = NULL;
    assert_int_equal(lk_safetensors_write(path, two + 1, 1), LK_EINVAL);
    assert_int_equal(lk_safetensors_write("/nonexistent/x", sample, 1), LK_EIO);
    assert_int_equal(lk_safetensors_write("/dev/full", sample, SAMPLES), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "No space"));
}

/* Malformed headers of a file with eight bytes of data, and text that the error message must
 * contain. */
static const struct { const char *header, *reason; lk_status status; } malformed[] = {
    { "[]", "'{'", LK_EFORMAT },
    { "", "'{'", LK_EFORMAT },
    { " {}", "'{'", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", "header", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}} x", "header", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}",
      "duplicate", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
      "duplicate", LK_EFORMAT },
    { "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "decode", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", "F33", LK_EUNSUPPORTED },
    { "{\"a\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}}", "string", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "dimension",
      LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "dimension",
      LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "array", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}",
      "9 dimensions", LK_EUNSUPPORTED },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "needs 12", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "8 to 0", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", "-8", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", "tensor 'a'",
      LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "tensor 'a'", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"more\":1}}", "more",
      LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "data_offsets", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
      "overflows", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
      "overflows", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}", "big",
      LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "hole", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "take 4 bytes",
      LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", "take 12 bytes",
      LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
      "tensor that ends", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"__metadata__\":{\"a\":1}}",
      "__metadata__", LK_EFORMAT },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"__metadata__\":[]}",
      "__metadata__", LK_EFORMAT },
    { "{}", "take 0 bytes", LK_EFORMAT },
};

/* Builds a file in memory from a header's text and eight bytes of data, to be freed by the
 * caller. */
static uint8_t *file_of(const char *header, size_t *size)
{
    uint64_t length = strlen(header);
    *size           = 8 + (size_t)length + 8;
    uint8_t *file   = calloc(1, *size);
    assert_non_null(file);
    memcpy(file, &length, sizeof length);
    memcpy(file + 8, header, (size_t)length);
    return file;
}

static void malformed_headers_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        lki_safetensors_index index;
        size_t                size;
        uint8_t              *file = file_of(malformed[i].header, &size);
        if (lki_safetensors_parse(&index, file, size, "memory") != malformed[i].status ||
            strstr(lk_error_last()->message, malformed[i].reason) == NULL)
            fail_msg("%s: %s, not '%s'", malformed[i].header, lk_error_last()->message,
                     malformed[i].reason);
        free(file);
    }
}

static void accepts_what_the_format_allows(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}      ",
        "{\"b\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[7,8]},"
        "\"a\":{\"shape\":[7],\"dtype\":\"I8\",\"data_offsets\":[0,7]},"
        "\"__metadata__\":{\"x\":\"y\"}}",
        "{\"e\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]}}",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        lki_safetensors_index index;
        size_t                size;
        uint8_t              *file = file_of(good[i], &size);
        if (lki_safetensors_parse(&index, file, size, "memory") != LK_OK)
            fail_msg("%s: %s", good[i], lk_error_last()->message);
        assert_int_equal(index.count, i + 1);
        lki_safetensors_index_free(&index);
        free(file);
    }
}

static void wrong_header_lengths_are_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = { 0, 9, 10, 1000, 100000001, UINT64_MAX, UINT64_MAX - 7 };
    lki_safetensors_index index;
    uint8_t               file[17] = { 0 };
    memset(file + 8, '{', 9);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(file, &lengths[i], 8);
        assert_int_equal(lki_safetensors_parse(&index, file, sizeof file, "memory"), LK_EFORMAT);
        assert_null(index.tensors);
    }
    for (size_t size = 0; size < 8; size++)
        assert_int_equal(lki_safetensors_parse(&index, file, size, "memory"), LK_EFORMAT);
}

/* Checks that a file truncated anywhere, or missing, does not open. */
static void truncated_files_are_refused(void **state)
{
    (void)state;
    static uint8_t  whole[4096];
    lk_safetensors *file;
    assert_int_equal(lk_safetensors_write(path, sample, SAMPLES), LK_OK);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    size_t size = fread(whole, 1, sizeof whole, in);
    assert_int_equal(fclose(in), 0);
    for (size_t cut = 0; cut < size; cut++) {
        put_file(whole, cut);
        assert_int_equal(lk_safetensors_open(&file, path), LK_EFORMAT);
        assert_null(file);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lk_safetensors_open(&file, path), LK_EIO);
    assert_int_equal(lk_safetensors_write(path, sample, 1), LK_OK);
}

/* A script with which the reference implementation reads a file of this test and writes one for the
 * test to read. */
static const char python[] =
    "import sys\n"
    "try:\n"
    "    import numpy as np\n"
    "    from safetensors.numpy import load_file, save_file\n"
    "except ImportError as e:\n"
    "    print('skipped:', e)\n"
    "    sys.exit(77)\n"
    "x = load_file(sys.argv[1])\n"
    "assert set(x) == {'wte.weight', 'bytes', 'odd \"name\" \\u00e9', 'empty', 'steps', 'conv3d',\n"
    "                  '" LONG_NAME LONG_NAME LONG_NAME "'}, list(x)\n"
    "assert x['conv3d'].shape == (1, 1, 3, 2, 1)\n"
    "assert x['" LONG_NAME LONG_NAME LONG_NAME "'].shape == (1, 1, 1, 1, 2, 1, 3, 1)\n"
    "assert x['wte.weight'].dtype == np.float32 and x['wte.weight'].shape == (2, 3)\n"
    "assert x['wte.weight'].tobytes() == "
    "np.array([0, 1, -2.5, 3.25, -0.0, 1e-45], np.float32).tobytes()\n"
    "assert x['empty'].shape == (4, 0) and x['steps'].shape == () and int(x['steps']) == 7\n"
    "assert x['bytes'].tolist() == [1, 2, 3]\n"
    "save_file({'b': np.arange(5, dtype=np.int16), 'a': np.ones((2, 2), np.float64),\n"
    "           'mask': np.array([True, False, True])}, sys.argv[1], {'from': 'python'})\n";

static void python_agrees(void **state)
{
    (void)state;
    const char *interpreter = getenv("LK_TEST_PYTHON");
    assert_int_equal(lk_safetensors_write(path, sample, SAMPLES), LK_OK);
    (void)fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const char *name = interpreter != NULL ? interpreter : "python3";
        (void)execlp(name, name, "-c", python, path, (char *)NULL);
        _exit(77);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: needs python3 with numpy and safetensors (or LK_TEST_PYTHON)\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);

    lk_safetensors *file;
    assert_int_equal(lk_safetensors_open(&file, path), LK_OK);
    const lk_tensor *b = lk_safetensors_find(file, "b"), *mask = lk_safetensors_find(file, "mask");
    assert_non_null(b);
    assert_non_null(mask);
    assert_int_equal(b->dtype, LK_I16);
    assert_memory_equal(b->data, ((const int16_t[]){ 0, 1, 2, 3, 4 }), 10);
    assert_memory_equal(mask->data, ((const uint8_t[]){ 1, 0, 1 }), 3);
    lk_safetensors_free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read_back_as_written),
        cmocka_unit_test(refuses_to_write_nonsense),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(accepts_what_the_format_allows),
        cmocka_unit_test(wrong_header_lengths_are_refused),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(python_agrees),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
