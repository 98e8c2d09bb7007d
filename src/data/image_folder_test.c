/* image_folder_test.c -- tests images in a folder for each class.
 *
 * Goal:   classes are numbered in byte order, in one folder or in train and val; samples have the
 *         bits that the same images have in an archive, with every augmentation; `resize` evaluates
 *         the centre; what is damaged, unknown or changed is named.
 * Method: PNGs written by hand, and JPEGs of four inks by libjpeg-turbo.
 */
#include "data/tar_testing.h"

#include <turbojpeg.h>

#include "data/image.h"

enum { SIDE = 12, VALUES = 4 * 4 * 3 };

static const lk_dataset_options none = LK_DATASET_OPTIONS_INIT;

static void run(const char *command)
{
    assert_int_equal(system(command), 0);
}

/* Draws an image whose bytes depend on `which`. */
static void draw(lkt_file *picture, uint32_t which)
{
    uint8_t rows[SIDE * SIDE * 3];
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (uint8_t)((i * 7 + which * 31 + i / 5 * which) % 256);
    lkt_png(picture, SIDE, SIDE, 8, 2, NULL, rows, (size_t)SIDE * 3);
}

static void write_image(const char *path, uint32_t which)
{
    static lkt_file picture;
    draw(&picture, which);
    lkt_write(path, picture.bytes, picture.count);
}

/* Writes four images of two classes to the folder `root`. */
static void write_classes(const char *root)
{
    char text[200];
    (void)snprintf(text, sizeof text, "mkdir -p %s/zebra/deep '%s/big cat'", root, root);
    run(text);
    static const char *const names[] = { "big cat/2.png", "big cat/a.PNG", "zebra/1.png",
                                         "zebra/deep/0.png" };
    for (uint32_t i = 0; i < 4; i++) {
        (void)snprintf(text, sizeof text, "%s/%s", root, names[i]);
        write_image(text, i);
    }
    (void)snprintf(text, sizeof text, "%s/zebra/notes.txt", root);
    lkt_write_text(text, "no image");
}

static void classes_are_numbered_in_byte_order(void **state)
{
    (void)state;
    write_classes("one");
    lk_dataset            *set  = lkt_open("folder:one?h=4&w=4", &none);
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->classes, 2);
    assert_string_equal(info->class_names[0], "big cat");
    assert_string_equal(info->class_names[1], "zebra");
    assert_int_equal(info->train_count, 4);
    assert_int_equal(info->validation_count, 0);
    for (uint64_t i = 0; i < 4; i++) {
        float   x[VALUES];
        int32_t y;
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        assert_int_equal(y, i / 2);
    }
    lk_dataset_free(set);
}

/* Moves a file to another class, where it has the same name and place in the order. */
static void a_file_of_another_class_is_other_data(void **state)
{
    char before[33];
    (void)state;
    run("mkdir -p moved/a moved/b");
    write_image("moved/a/1.png", 0);
    write_image("moved/b/2.png", 1);
    write_image("moved/b/3.png", 2);
    lk_dataset *set = lkt_open("folder:moved?h=4&w=4", &none);
    (void)snprintf(before, sizeof before, "%s", lk_dataset_describe(set)->content_hash);
    lk_dataset_free(set);
    run("mv moved/b/2.png moved/a/2.png");
    set = lkt_open("folder:moved?h=4&w=4", &none);
    assert_string_not_equal(before, lk_dataset_describe(set)->content_hash);
    lk_dataset_free(set);
}

/* Compares with an archive of the same images in the same order, as they are and augmented. */
static void samples_are_those_of_an_archive(void **state)
{
    static lkt_file tar;
    (void)state;
    tar.count = 0;
    for (uint32_t i = 0; i < 4; i++) {
        static lkt_file picture;
        char            name[16];
        draw(&picture, i);
        (void)snprintf(name, sizeof name, "%u.jpg", i); /* a PNG, whatever its ending */
        lkt_tar_add(&tar, name, '0', picture.bytes, picture.count);
        (void)snprintf(name, sizeof name, "%u", i);
        lkt_tar_class(&tar, name, (int)i / 2);
    }
    lkt_tar_end(&tar);
    lkt_write("same.tar", tar.bytes, tar.count);
    write_classes("same");
    const lk_dataset_options *options[] = {
        &none, LKT_DATASET(.augment = { .flip = true, .resized_crop = 0.08 }, .seed = 5)
    };
    for (size_t o = 0; o < 2; o++) {
        lk_dataset *a = lkt_open("folder:same?h=4&w=4&resize=5", options[o]);
        lk_dataset *b = lkt_open("tar:same.tar?h=4&w=4&resize=5", options[o]);
        for (uint64_t i = 0; i < 12; i++) {
            float   x[2][VALUES];
            int32_t y[2];
            LKT_OK(lk_dataset_read(a, false, i / 4, i % 4, x[0], &y[0]));
            LKT_OK(lk_dataset_read(b, false, i / 4, i % 4, x[1], &y[1]));
            assert_memory_equal(x[0], x[1], sizeof x[0]);
            assert_int_equal(y[0], y[1]);
        }
        lk_dataset_free(a);
        lk_dataset_free(b);
    }
}

static void train_and_val_are_parts(void **state)
{
    float   x[VALUES];
    int32_t y;
    (void)state;
    write_classes("parts/train");
    run("mkdir -p parts/val/zebra parts/test && cp parts/train/zebra/1.png parts/val/zebra/");
    lk_dataset            *set  = lkt_open("folder:parts?h=4&w=4", &none);
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->classes, 2);
    assert_int_equal(info->train_count, 4);
    assert_int_equal(info->validation_count, 1);
    LKT_OK(lk_dataset_read(set, true, 0, 0, x, &y));
    assert_int_equal(y, 1);
    lk_dataset_free(set);
    set = lkt_open("folder:parts?h=4&w=4", LKT_DATASET(.validation = 0.25)); /* not `val` */
    assert_int_equal(lk_dataset_describe(set)->train_count, 3);
    lk_dataset_free(set);
    run("mkdir -p parts/val/yak && cp parts/train/zebra/1.png parts/val/yak/");
    lkt_refuses("folder:parts", &none, LK_EFORMAT, "'parts/val' has a class 'yak'", "/train'");
    run("rm -r parts/val/*");
    lkt_refuses("folder:parts", &none, LK_EFORMAT, "'parts/val'", "no folder for each class");
    run("mkdir parts/bus && cp parts/train/zebra/1.png parts/bus");
    lkt_refuses("folder:parts", &none, LK_EFORMAT, "'parts' has the parts train and val, and bus",
                "move bus away, or give 'folder:parts/train'");
    run("rm -r parts/val parts/test");
    set = lkt_open("folder:parts", &none); /* bus and train are classes */
    assert_string_equal(lk_dataset_describe(set)->class_names[1], "train");
    assert_int_equal(lk_dataset_describe(set)->train_count, 5);
    lk_dataset_free(set);
    run("mkdir -p held && mv parts/train held/val");
    lkt_refuses("folder:held", &none, LK_EFORMAT, "'held' has the part val, but no train",
                "'folder:held/val'");
}

/* Parts with other names are not taken for classes. */
static void names_like_those_of_parts_are_refused(void **state)
{
    static const char *const others[] = { "Train val test", "train valid", "Train", "dog VAL train",
                                          "training testing" };
    char                     line[200];
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        (void)snprintf(line, sizeof line, "rm -rf like; for f in %s; do mkdir -p like/$f && "
                       "cp parts/bus/1.png like/$f; done", others[i]);
        run(line);
        lkt_refuses("folder:like", &none, LK_EFORMAT, "no names for classes",
                    "called train, val or validation, and test: rename them");
    }
    run("rm -rf like/*; for f in dog valid; do mkdir like/$f && cp parts/bus/1.png like/$f; done");
    lk_dataset_free(lkt_open("folder:like", &none));
}

static void resize_takes_the_centre(void **state)
{
    static lkt_file picture;
    uint8_t         rows[8 * 8] = { 0 };
    float           x[4];
    int32_t         y;
    (void)state;
    for (size_t i = 2; i < 6; i++)
        memset(rows + 8 * i + 2, 255, 4);
    lkt_png(&picture, 8, 8, 8, 0, NULL, rows, 8);
    run("mkdir -p centre/a");
    lkt_write("centre/a/0.png", picture.bytes, picture.count);
    const lk_dataset_options *plain = LKT_DATASET(.normalize = "none");
    lk_dataset *set = lkt_open("folder:centre?h=2&w=2&c=1&resize=4", plain);
    lk_dataset *all = lkt_open("folder:centre?h=2&w=2&c=1", plain);
    LKT_OK(lk_dataset_read(set, false, 0, 0, x, &y));
    assert_true(x[0] == 1 && x[1] == 1 && x[2] == 1 && x[3] == 1);
    LKT_OK(lk_dataset_read(all, false, 0, 0, x, &y));
    assert_true(x[0] > 0.2F && x[0] < 0.3F);
    assert_string_not_equal(lk_dataset_describe(set)->content_hash,
                            lk_dataset_describe(all)->content_hash);
    lk_dataset_free(set);
    lk_dataset_free(all);
    lkt_refuses("folder:centre?h=4&w=2&resize=3", &none, LK_EINVAL, "resize=3", "4 x 2");
    lkt_refuses("folder:centre?classes=3", &none, LK_EINVAL, "classes", "resize=N");
}

static void what_is_no_image_is_named(void **state)
{
    float   x[VALUES];
    int32_t y;
    (void)state;
    write_classes("bad");
    lkt_write("bad/zebra/1.png", "\x89PNG\r\n\x1a\n and nothing", 20);
    lk_dataset *set = lkt_open("folder:bad?h=4&w=4", &none);
    assert_int_equal(lk_dataset_read(set, false, 0, 2, x, &y), LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "'bad/zebra/1.png'"));
    LKT_OK(lk_dataset_read(set, false, 0, 1, x, &y));
    lkt_write("bad/big cat/a.PNG", "other", 5);
    assert_int_equal(lk_dataset_read(set, false, 0, 1, x, &y), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "'bad/big cat/a.PNG' has changed"));
    lk_dataset_free(set);
    lkt_write_text("bad/zebra/x.webp", "RIFF");
    lkt_refuses("folder:bad", &none, LK_EUNSUPPORTED, "bad/zebra/x.webp", "neither JPEG nor PNG");
    run("rm -r bad/zebra/*");
    lkt_refuses("folder:bad", &none, LK_EFORMAT, "'bad/zebra'", "no image");
    run("rm -r bad/*");
    lkt_refuses("folder:bad", &none, LK_EFORMAT, "'bad'", "no folder for each class");
    lkt_refuses("folder:nowhere", &none, LK_EIO, "nowhere", "");
}

static void names_and_classes_are_content(void **state)
{
    char first[33];
    (void)state;
    write_classes("names");
    lk_dataset *set = lkt_open("folder:names", &none);
    memcpy(first, lk_dataset_describe(set)->content_hash, sizeof first);
    lk_dataset_free(set);
    run("mv names/zebra names/zebu");
    set = lkt_open("folder:names", &none);
    assert_string_not_equal(first, lk_dataset_describe(set)->content_hash);
    lk_dataset_free(set);
}

/* Checks a JPEG of four inks, which are stored as 255 minus the ink. */
static void four_inks_become_colours(void **state)
{
    const lki_image_place here = { "file", "member", 0 };
    uint8_t               pixels[8 * 8 * 4];
    unsigned char        *jpeg  = NULL;
    unsigned long         bytes = 0;
    lki_image             image;
    (void)state;
    for (size_t i = 0; i < sizeof pixels; i += 4)
        memcpy(pixels + i, (uint8_t[]){ 255, 128, 0, 200 }, 4);
    tjhandle handle = tjInitCompress();
    assert_int_equal(tjCompress2(handle, pixels, 8, 0, 8, TJPF_CMYK, &jpeg, &bytes, TJSAMP_444,
                                 100, 0), 0);
    LKT_OK(lki_jpeg_decode(&image, jpeg, bytes, 3, &here));
    const int want[3] = { 200, 100, 0 };
    for (size_t i = 0; i < 8 * 8 * 3; i++)
        assert_in_range(image.pixels[i] + 2, want[i % 3], want[i % 3] + 4);
    lki_image_free(&image);
    LKT_OK(lki_jpeg_decode(&image, jpeg, bytes, 1, &here));
    assert_in_range(image.pixels[0], 117, 121); /* 0.299 200 + 0.587 100 */
    lki_image_free(&image);
    tjFree(jpeg);
    (void)tjDestroy(handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_numbered_in_byte_order),
        cmocka_unit_test(a_file_of_another_class_is_other_data),
        cmocka_unit_test(samples_are_those_of_an_archive),
        cmocka_unit_test(train_and_val_are_parts),
        cmocka_unit_test(names_like_those_of_parts_are_refused),
        cmocka_unit_test(resize_takes_the_centre),
        cmocka_unit_test(what_is_no_image_is_named),
        cmocka_unit_test(names_and_classes_are_content),
        cmocka_unit_test(four_inks_become_colours),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}
