/* frame_test.c -- encoding and decoding of headers, and their checksum.
 *
 * Goal:   decoding returns the encoded fields, at the offsets in frame.h.  The fast checksum equals
 *         the plain one, which is CRC-32C as in RFC 3720.
 * Method: all fields have different values.  The checksums are compared for all lengths and
 *         alignments that the fast version handles differently.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "link/wire/crc32c.h"
#include "link/wire/frame.h"

static void decoded_frames_equal_the_encoded_ones(void **state)
{
    const lki_frame frame = {
        .kind = LKI_FRAME_PIECE, .from = 0x01020304, .step = 0x05060708,
        .op = { .group = 0x1112131415161718, .seq = 0x2122232425262728,
                .label = 0x3132333435363738,
                .print = { 0x4142434445464748, 0x5152535455565758, 0x6162636465666768 } },
        .total = 0x7172737475767778, .offset = 0x8400000, .bytes = 262144, .sum = 0x91929394,
        .value = 0xa1a2a3a4,
    };
    unsigned char bytes[LKI_FRAME_BYTES], again[LKI_FRAME_BYTES];
    lki_frame     got;

    (void)state;
    lki_frame_encode(bytes, &frame);
    assert_int_equal(lki_frame_decode(&got, bytes), LK_OK);
    lki_frame_encode(again, &got);
    assert_memory_equal(bytes, again, sizeof bytes);
    assert_true(got.kind == frame.kind && got.from == frame.from && got.step == frame.step);
    assert_memory_equal(&got.op, &frame.op, sizeof got.op);
    assert_true(got.total == frame.total && got.offset == frame.offset);
    assert_true(got.bytes == frame.bytes && got.sum == frame.sum && got.value == frame.value);
    assert_memory_equal(bytes, "lkiw\1\0\4\0\4\3\2\1\10\7\6\5\x18\x17\x16\x15\x14\x13\x12\x11", 24);
}

static void checksums_have_known_values(void **state)
{
    unsigned char bytes[32];

    (void)state;
    assert_int_equal(lki_crc32c_plain(0, "123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(lki_crc32c_plain(0, bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(lki_crc32c_plain(0, bytes, sizeof bytes), 0x62a8ab43);
}

static void fast_checksums_equal_plain_ones(void **state)
{
    enum { ALL = 3 * 3 * 8192 + 100 };
    unsigned char *bytes = malloc(ALL);
    uint32_t       random = 1;

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < ALL; i++) {
        random   = random * 1664525 + 1013904223;
        bytes[i] = (unsigned char)(random >> 24);
    }
    for (size_t first = 0; first < 9; first++)
        for (size_t length = 0; first + length <= ALL; length += length < 40 ? 1 : 4099)
            assert_int_equal(lki_crc32c(7, bytes + first, length),
                             lki_crc32c_plain(7, bytes + first, length));
    assert_int_equal(lki_crc32c(lki_crc32c(0, bytes, 1000), bytes + 1000, ALL - 1000),
                     lki_crc32c_plain(0, bytes, ALL));
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoded_frames_equal_the_encoded_ones),
        cmocka_unit_test(checksums_have_known_values),
        cmocka_unit_test(fast_checksums_equal_plain_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
