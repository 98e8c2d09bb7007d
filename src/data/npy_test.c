/* npy_test.c -- tests NumPy arrays of every type and header version, and the errors for invalid
 * files. */
#include "data/data_testing.h"

#include "data/files.h"

static const lk_dataset_options none = LK_DATASET_OPTIONS_INIT;

/* Writes an npy file with `header`, padded as NumPy does, so that the values begin at byte 64. */
static void write_npy(const char *path, int version, const char *header, const void *values,
                      size_t bytes)
{
    uint8_t file[4096] = { 0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)version, 0 };
    size_t  start = version == 1 ? 10 : 12, length = strlen(header), end = 64;
    while (end < start + length + 1)
        end += 64;
    file[8] = (uint8_t)(end - start);
    file[9] = (uint8_t)((end - start) >> 8);
    memset(file + start, ' ', end - start);
    memcpy(file + start, header, length);
    file[end - 1] = '\n';
    assert_true(end + bytes <= sizeof file);
    memcpy(file + end, values, bytes);
    lkt_write(path, file, end + bytes);
}

static void write_labels(size_t count)
{
    int64_t labels[16];
    char    header[128];
    for (size_t i = 0; i < 16; i++)
        labels[i] = (int64_t)(i % 5);
    (void)snprintf(header, sizeof header,
                   "{'descr': '<i8', 'fortran_order': False, 'shape': (%zu,), }", count);
    write_npy("y.npy", 1, header, labels, count * sizeof *labels);
}

static void assert_values(const float *want, size_t samples, size_t features)
{
    write_labels(samples);
    lk_dataset            *set  = lkt_open("npy:x.npy,y.npy", &none);
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->train_count, samples);
    assert_int_equal(info->classes, samples < 5 ? samples : 5);
    for (size_t i = 0; i < samples; i++) {
        float   x[64];
        int32_t y;
        assert_true(features <= 64);
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        assert_memory_equal(x, want + i * features, features * sizeof *x);
        assert_int_equal(y, i % 5);
    }
    lk_dataset_free(set);
}

#define ONE_TYPE(type, descr, a, b, c)                                                           \
    do {                                                                                         \
        const type  values[] = { a, b, c, a, b, c };                                             \
        const float want[]   = { (float)a, (float)b, (float)c, (float)a, (float)b, (float)c };   \
        write_npy("x.npy", 1,                                                                    \
                  "{'descr': '" descr "', 'fortran_order': False, 'shape': (2, 3), }", values,   \
                  sizeof values);                                                                \
        assert_values(want, 2, 3);                                                               \
    } while (0)

static void reads_every_type(void **state)
{
    (void)state;
    ONE_TYPE(float, "<f4", 0.5f, -1.25f, 3e30f);
    ONE_TYPE(double, "<f8", 0.1, -1.25, 3e30);
    ONE_TYPE(int8_t, "|i1", 0, -128, 127);
    ONE_TYPE(int16_t, "<i2", 0, -32768, 32767);
    ONE_TYPE(uint16_t, "<u2", 0, 1, 65535);
    ONE_TYPE(int32_t, "<i4", 0, -7, 2147483647);
    ONE_TYPE(uint32_t, "<u4", 0, 1, 4294967295u);
    ONE_TYPE(int64_t, "<i8", 0, -9007199254740993, 5);
    ONE_TYPE(uint64_t, "<u8", 0, 18446744073709551615u, 5);

    const uint8_t pixels[] = { 0, 128, 255 };
    float         want[3];
    for (int i = 0; i < 3; i++)
        want[i] = ((float)pixels[i] / 255.0f - 0.5f) / 0.5f;
    write_npy("x.npy", 1, "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }", pixels, 3);
    assert_values(want, 3, 1);
}

static void reads_every_version_and_shape(void **state)
{
    (void)state;
    static const struct {
        int         version;
        const char *header;
        uint64_t    samples;
        lk_shape    x;
    } cases[] = {
        { 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (12,), }", 12, { 1, { 1 } } },
        { 2, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }", 3, { 1, { 4 } } },
        { 3, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 2), }", 2,
          { 3, { 3, 2, 1 } } },
        { 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 2, 3), }", 2,
          { 3, { 1, 2, 3 } } },
        { 1, "{\"shape\":(6,2),\"fortran_order\":False,\"descr\":\"<f4\"}", 6, { 1, { 2 } } },
        { 1, " { 'shape' : ( 4 , 3 , ) , 'descr' : '<f4' , 'fortran_order' : False , } ", 4,
          { 1, { 3 } } },
    };
    float values[12];
    for (int i = 0; i < 12; i++)
        values[i] = (float)i;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_npy("x.npy", cases[i].version, cases[i].header, values, sizeof values);
        assert_values(values, cases[i].samples, 12 / cases[i].samples);
        lk_dataset *set = lkt_open("npy:x.npy,y.npy", &none);
        lk_shape    got = lk_dataset_describe(set)->x;
        assert_memory_equal(&got, &cases[i].x, sizeof got);
        lk_dataset_free(set);
    }
}

static void refuses_bad_headers(void **state)
{
    (void)state;
#define GOOD "'fortran_order': False, 'shape': (2, 2), }"
    static const struct { const char *header, *why; } cases[] = {
        { "", "no dictionary" },
        { "{", "expected a key" },
        { "{'descr'", "expected a key" },
        { "{'descr: '<f4', " GOOD, "expected a key" },
        { "{'descr': '<f4', 'descr': '<f4', " GOOD, "twice" },
        { "{'type': '<f4', " GOOD, "unknown key" },
        { "{" GOOD, "missing" },
        { "{'descr': '<f4', 'shape': (2, 2), }", "missing" },
        { "{'descr': '<f4', 'fortran_order': False, }", "missing" },
        { "{'descr': '<f4' " GOOD, "does not end" },
        { "{'descr': '<f4', " GOOD "}", "follows the dictionary" },
        { "{'descr': '>f4', " GOOD, "big-endian" },
        { "{'descr': '<f2', " GOOD, "'<f2'" },
        { "{'descr': '|b1', " GOOD, "'|b1'" },
        { "{'descr': '<c8', " GOOD, "'<c8'" },
        { "{'descr': '|O', " GOOD, "'|O'" },
        { "{'descr': [('a', '<f4')], " GOOD, "no plain numbers" },
        { "{'descr': '<f4\\n', " GOOD, "no plain numbers" },
        { "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", "Fortran" },
        { "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 2), }", "neither" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': [2, 2], }", "no tuple" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -2), }", "no number" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2 2), }", "parenthesis" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
          "too large" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
          "more than any file holds" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "single number" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4), }", "empty" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 2, 2), }",
          "more than 4 dimensions" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
          "truncated: its header speaks of 24 bytes of values, it has 16" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }",
          "left over: its header speaks of 8 bytes of values, it has 16" },
    };
    const float values[4] = { 0 };
    write_labels(2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_npy("x.npy", 1, cases[i].header, values, sizeof values);
        lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "'x.npy'", cases[i].why);
    }
#undef GOOD
}

static void refuses_bad_files(void **state)
{
    (void)state;
    const uint8_t short_header[12] = { 0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 3, 0, '{', '}' };
    const uint8_t new_version[12]  = { 0x93, 'N', 'U', 'M', 'P', 'Y', 4, 0, 2, 0, '{', '}' };
    lkt_refuses("npy:x.npy", &none, LK_EINVAL, "x.npy", "npy:X,Y");
    lkt_refuses("npy:none,y.npy", &none, LK_EIO, "'none'", "No such file");
    lkt_write("x.npy", "", 0);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "'x.npy'", "empty");
    lkt_write_text("x.npy", "PK\3\4 a zip file, as npz is");
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "'x.npy'", "no npy file");
    lkt_write("x.npy", short_header, 9);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "'x.npy' (9 bytes)", "no npy file");
    lkt_write("x.npy", short_header, 12);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "its header has 3 bytes", "2 follow");
    lkt_write("x.npy", new_version, 12);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "version 4", "expected 1, 2 or 3");
}

static void refuses_bad_contents(void **state)
{
    (void)state;
    static const char floats[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
    float             values[4] = { 0 };
    int64_t           labels[4] = { 0 };
    write_npy("x.npy", 1, floats, values, sizeof values);
    write_labels(3);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "2 samples", "3 labels");
    write_npy("y.npy", 1, floats, values, sizeof values);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "'y.npy'", "one column");
    write_npy("y.npy", 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", values, 8);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "type F32", "astype('int64')");
    static const char integers[] = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1), }";
    labels[1] = -1;
    write_npy("y.npy", 1, integers, labels, 16);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "label 1 is -1", "expected 0");
    labels[1] = INT32_MAX;
    write_npy("y.npy", 1, integers, labels, 16);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "label 1 is 2147483647", "2147483646");
    write_npy("y.npy", 1, "{'descr': '|i1', 'fortran_order': False, 'shape': (2,), }", "\3\xff", 2);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "label 1 is -1", "expected 0");
    write_labels(2);
    values[3] = 1.0f / 0.0f;
    write_npy("x.npy", 1, floats, values, sizeof values);
    lkt_refuses("npy:x.npy,y.npy", &none, LK_EFORMAT, "element 3 of 4", "finite");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(reads_every_version_and_shape),
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(refuses_bad_contents),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}
