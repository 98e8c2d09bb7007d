/* csv_test.c -- tests tables: quoted fields, kinds of columns, standardisation and levels of the
 * training part, targets, and the errors for damaged files. */
#include "data/batch.h"
#include "data/data_testing.h"

#include <math.h>

static const char table[] = "\xef\xbb\xbf" "size,\"colour, name\",city,price,ok\r\n"
                            "1,red,\"Old \"\"Town\"\"\",10,1\r\n"
                            "2.5,blue,\"two\nlines\",-20.5,0\r\n"
                            "\r\n"
                            "4e0, red,x,30,0.25\r\n"
                            "-3,red,x,1e1,1";

#define TARGET(...) LKT_DATASET(.normalize = "auto", __VA_ARGS__)

static float number_of(int32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void columns_and_numbers(void **state)
{
    (void)state;
    lkt_write_text("t.csv", table);
    lk_dataset            *set  = lkt_open("csv:t.csv", TARGET(.target = "price,ok"));
    const lk_dataset_info *info = lk_dataset_describe(set);
    float                  x[7];
    int32_t                y[2];
    assert_int_equal(info->train_count, 4);
    assert_int_equal(info->x.dims[0], 7); /* 1 number, 3 colours, 3 cities */
    assert_true(info->numbers && info->targets == 2 && info->classes == 2);
    assert_int_equal(info->column_count, 5);
    assert_string_equal(info->columns[1].name, "colour, name");
    assert_int_equal(info->columns[1].level_count, 3);
    assert_string_equal(info->columns[1].levels[0], " red");
    assert_string_equal(info->columns[2].levels[0], "Old \"Town\"");
    assert_string_equal(info->columns[2].levels[1], "two\nlines");
    assert_true(info->columns[3].target && info->columns[0].mean == 1.125);
    LKT_OK(lk_dataset_read(set, false, 0, 1, x, y));
    double deviation = sqrt((0.125 * 0.125 + 1.375 * 1.375 + 2.875 * 2.875 + 4.125 * 4.125) / 4);
    const float want[] = { (float)(1.375 / deviation), 0, 1, 0, 0, 1, 0 };
    assert_memory_equal(x, want, sizeof want);
    assert_true(number_of(y[0]) == -20.5f && number_of(y[1]) == 0);
    lk_dataset_free(set);
}

static void plain_numbers(void **state)
{
    (void)state;
    float       x[3];
    int32_t     y;
    lkt_write_text("t.tsv", "a\tb\tc\tclass\n1\t2\t3\t7\n4\t5\t6\t-10\n7\t8\t9\t7\n");
    lk_dataset *set = lkt_open("csv:t.tsv", LKT_DATASET(.normalize = "none", .target = "class",
                                                        .targets = LK_TARGETS_CLASSES));
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_true(!info->numbers && info->targets == 1 && info->classes == 2);
    assert_string_equal(info->columns[3].levels[0], "-10");
    assert_string_equal(info->class_names[1], "7");
    LKT_OK(lk_dataset_read(set, false, 0, 2, x, &y));
    assert_true(x[0] == 7 && x[1] == 8 && x[2] == 9 && y == 1);
    lk_dataset_free(set);
}

/* Means, deviations and levels are those of the training part, and a level that only the validation
 * part has is no number.  Classes are those of the whole file. */
static void training_part(void **state)
{
    char   text[4000] = "v,level,class\n";
    size_t used = strlen(text);
    (void)state;
    for (int i = 0; i < 100; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%d,l%d,c%d\n", i * i, i, i % 3);
    lkt_write_text("t.csv", text);
    lk_dataset *set = lkt_open("csv:t.csv", TARGET(.target = "class", .validation = 0.25));
    const lk_dataset_info *info = lk_dataset_describe(set);
    float                  x[76];
    int32_t                y;
    double                 sum = 0, squares = 0;
    assert_int_equal(info->classes, 3);
    assert_int_equal(info->x.dims[0], 76);
    for (uint64_t i = 0; i < info->train_count; i++) {
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        double v = round((double)x[0] * info->columns[0].deviation + info->columns[0].mean);
        float  ones = 0;
        for (size_t k = 1; k < 76; k++)
            ones += x[k];
        assert_true(ones == 1 && y == (int32_t)sqrt(v) % 3);
        sum += v;
        squares += v * v;
    }
    assert_true(info->columns[0].mean == sum / 75);
    assert_true(fabs(info->columns[0].deviation - sqrt(squares / 75 - sum / 75 * sum / 75)) < 1e-9 *
                sum);
    LKT_OK(lk_dataset_read(set, true, 0, 0, x, &y));
    for (size_t k = 1; k < 76; k++)
        assert_true(x[k] == 0);
    lk_dataset_free(set);
}

/* A table that is opened as another one has the other's means, deviations, levels and classes. */
static void columns_of_another_table(void **state)
{
    const char *const colours[] = { "green", "red" }, *const classes[] = { "9", "x", "y" };
    const lk_column   columns[] = { { .name = "v", .mean = 5, .deviation = 2 },
                                    { .name = "colour", .levels = colours, .level_count = 2 },
                                    { .name = "class", .levels = classes, .level_count = 3 } };
    const lk_dataset_options *options = LKT_DATASET(.target = "class");
    const float               want[2][3] = { { -2, 0, 1 }, { -1, 0, 0 } };
    lk_dataset               *set;
    float                     x[3];
    int32_t                   y;
    (void)state;
    lkt_write_text("t.csv", "v,colour,class\n1,red,y\n3,7,9\n");
    LKT_OK(lki_dataset_open_as(&set, "csv:t.csv", options, columns, 3));
    assert_true(lk_dataset_describe(set)->classes == 3 && !lk_dataset_describe(set)->numbers);
    for (uint64_t i = 0; i < 2; i++) {
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        assert_memory_equal(x, want[i], sizeof x);
        assert_int_equal(y, i == 0 ? 2 : 0);
    }
    lk_dataset_free(set);
    lkt_write_text("t.csv", "v,colour,class\n1,red,z\n");
    assert_int_equal(lki_dataset_open_as(&set, "csv:t.csv", options, columns, 3), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "column 'class': the table of the training "
                                                     "has no class 'z'"));
    lkt_write_text("t.csv", "colour,v,class\n1,red,z\n");
    assert_int_equal(lki_dataset_open_as(&set, "csv:t.csv", options, columns, 3), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "column 1 is colour, and in the table of the "
                                                     "training v"));
    assert_int_equal(lki_dataset_open_as(&set, "csv:t.csv", options, columns, 2), LK_EINVAL);
}

/* The content hash depends on the file, the target, and what the numbers become. */
static void content_hash(void **state)
{
    char hashes[4][33];
    (void)state;
    lkt_write_text("t.csv", "a,b,c\n1,2,3\n3,4,4\n");
    const lk_dataset_options *options[] = { TARGET(.target = "c"), TARGET(.target = "b"),
                                            LKT_DATASET(.normalize = "none", .target = "c"),
                                            TARGET(.target = "c") };
    for (size_t i = 0; i < 4; i++) {
        lk_dataset *set = lkt_open("csv:t.csv", options[i]);
        memcpy(hashes[i], lk_dataset_describe(set)->content_hash, 33);
        lk_dataset_free(set);
        assert_true((i == 3) == (strcmp(hashes[i], hashes[0]) == 0 && i > 0));
    }
}

static void refused_files(void **state)
{
    static const struct { const char *text, *first, *second; } bad[] = {
        { "", "is empty", "names the columns" },
        { "a,y\n", "no rows", "header" },
        { "a,y\n1,2\n1,2,3\n", "line 3 has 3 fields", "names 2 columns" },
        { "a,y\n1,\n", "line 2, column 'y'", "missing value" },
        { "a,y\n1,2\n\"x\n\nz\",2\n", "line 3", "is no number" },
        { "a,y\n\n1,2\nNA,2\n3,4\n", "line 4, column 'a'", "missing value; fill it in" },
        { "a,y\n1,2\n2,1e99\n", "line 3, column 'y'", "'1e99'" },
        { "a,y\n1,2\n2,0x10\n", "line 3, column 'y'", "'0x10'" },
        { "a,y\n\"1,2\n", "line 2", "never closed" },
        { "a,y\n\"1\"x,2\n", "line 2", "after a closing quote" },
        { "a,y\n1\"x,2\n", "line 2", "quote inside a field" },
        { "a,y\r1,2\r", "line 1", "without line feed" },
        { "a,,y\n1,2,3\n", "column 2 has no name", "index=False" },
        { "y,a,y\n1,2,3\n", "two columns have the name 'y'", "rename" },
        { "a,y\n\xff\xfe,2\n", "line 2, column 'a'", "UTF-8" },
        { "y\n1\n", "only target columns", "none to predict" },
        { "x,z\n1,2\n", "`target` y", "there are x, z" },
        { "x;y\n1;2\n", "`target` y", "there are x;y; commas separate fields, or tabs if" },
        { "x, y \n1,2\n", "`target` y", "there are x,  y ; a space beside it belongs to its name" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lkt_write_text("t.csv", bad[i].text);
        lk_status status = strstr(bad[i].first, "arget") != NULL ? LK_EINVAL : LK_EFORMAT;
        lkt_refuses("csv:t.csv", TARGET(.target = "y"), status, bad[i].first, bad[i].second);
    }
    lkt_write("t.csv", "a,y\n1,\0002\n", 9);
    lkt_refuses("csv:t.csv", TARGET(.target = "y"), LK_EFORMAT, "line 2", "NUL byte");
}

/* Names that contain commas and quotes, as in the header. */
static void quoted_targets(void **state)
{
    (void)state;
    lkt_write_text("t.csv", "\"price, net\",\"a \"\"b\"\"\",c\n1,2,3\n4,5,6\n");
    lk_dataset *set = lkt_open("csv:t.csv", TARGET(.target = "\"a \"\"b\"\"\",\"price, net\""));
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->targets, 2);
    assert_true(info->columns[0].target && info->columns[1].target && !info->columns[2].target);
    lk_dataset_free(set);
    lkt_refuses("csv:t.csv", TARGET(.target = "price"), LK_EINVAL, "`target` price",
                "there are \"price, net\", a");
    lkt_refuses("csv:t.csv", TARGET(.target = "\"price, net\"c"), LK_EINVAL, "'c' stands after",
                "write commas between names");
    lkt_refuses("csv:t.csv", TARGET(.target = "\"c"), LK_EINVAL, "`target`: the quote before 'c'",
                "is not closed");
    lkt_refuses("csv:t.csv", TARGET(.target = "c,"), LK_EINVAL, "`target` has an empty name",
                "the columns \"price, net\", a");
    lkt_refuses("csv:t.csv", TARGET(.target = "c,price, net"), LK_EINVAL, "`target` price: ",
                "write '\"price, net\"', with the double quotes, for that column");
}

static void refused_options(void **state)
{
    static char text[16000] = "a,y,t\n";
    size_t used = strlen(text);
    (void)state;
    for (int i = 0; i < 1001; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%d.5,%d,t%d\n", i, i, i);
    lkt_write_text("t.csv", text);
    lkt_refuses("csv:t.csv", TARGET(.target = "y"), LK_EFORMAT, "column 't' has more than 1000",
                "different texts");
    lkt_refuses("csv:t.csv", TARGET(.target = "y", .targets = LK_TARGETS_CLASSES), LK_EFORMAT,
                "column 'y' has more than 1000", "different classes; group them, or");
    lkt_refuses("csv:t.csv", TARGET(.target = "t", .targets = LK_TARGETS_NUMBERS), LK_EINVAL,
                "'t' has texts", "cross-entropy");
    lkt_refuses("csv:t.csv", TARGET(.target = "y,t", .targets = LK_TARGETS_CLASSES), LK_EINVAL,
                "of one target column", "names 2");
    lkt_refuses("csv:t.csv", TARGET(.target = "y", .targets = LK_TARGETS_LABELS), LK_EFORMAT,
                "line 4, column 'y'", "from 0 to 1");
    lkt_refuses("csv:t.csv", TARGET(.target = "a", .targets = LK_TARGETS_CLASSES), LK_EFORMAT,
                "line 2, column 'a'", "whole number");
    lkt_refuses("csv:t.csv", TARGET(.target = NULL), LK_EINVAL, "must name the column", "a, y, t");
    lkt_refuses("csv:t.csv", LKT_DATASET(.normalize = "0/1", .target = "y"), LK_EFORMAT, "'t'",
                "1000");
    lkt_write_text("t.csv", "a,y\n1,2\n");
    lkt_refuses("csv:t.csv", LKT_DATASET(.normalize = "0/1", .target = "y"), LK_EINVAL,
                "`normalize` 0/1", "write train");
    lkt_refuses("csv:t.csv", TARGET(.target = "y", .ignores = true), LK_EINVAL, "`ignored` 0",
                "numbers");
    lkt_refuses("synthetic:samples=9", LKT_DATASET(.target = "y"), LK_EINVAL, "`target` 'y'",
                "for tables");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_and_numbers), cmocka_unit_test(plain_numbers),
        cmocka_unit_test(training_part),       cmocka_unit_test(content_hash),
        cmocka_unit_test(refused_files),       cmocka_unit_test(refused_options),
        cmocka_unit_test(columns_of_another_table), cmocka_unit_test(quoted_targets),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}
