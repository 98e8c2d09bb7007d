/* parts_test.c -- the parts of a tensor that are encoded at once.
 *
 * Goal:    the parts of a round have every element once, and their order changes no bit of the
 *          message or of the residual.
 * Method:  every compressor, with tensors of several shapes that are larger than a part.
 * Control: some compressor has several parts.
 */
#include "compress/values_testing.h"

enum { MOST = 210000 };

static const size_t shapes[][2] = { { 300, 700 }, { 2, 70000 }, { 70000, 3 }, { 209999, 1 } };

/* Counts how often each element is in a part.  Returns the number of parts. */
static uint32_t count_parts(const lk_compressor *by, const lk_compression *options,
                            const lk_compress_key *key, uint32_t round)
{
    static uint8_t   times[MOST];
    lk_compress_part part;
    uint32_t         parts = 0;
    memset(times, 0, sizeof times);
    for (; lkt_part(by, options, key, round, parts, &part); parts++)
        for (size_t row = 0; row < part.rows; row++)
            for (size_t i = 0; i < part.count; i++)
                times[part.first + row * part.stride + i]++;
    for (size_t i = 0; i < key->rows * key->cols; i++)
        assert_int_equal(times[i], 1);
    return parts;
}

static void parts_have_every_element_once(void **state)
{
    lk_compression given = LK_COMPRESSION_INIT, options;
    uint32_t       most  = 0;
    (void)state;
    assert_int_equal(lk_compression_resolve(&options, &given), LK_OK);
    for (uint32_t c = 0; lk_compressors(c) != NULL; c++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (uint32_t round = 0; round < lk_compressors(c)->rounds; round++) {
                const lk_compress_key key = { .rows = shapes[s][0], .cols = shapes[s][1] };
                uint32_t parts = count_parts(lk_compressors(c), &options, &key, round);
                most           = parts > most ? parts : most;
            }
    assert_true(most > 2);
}

/* Plays two steps of a group.  out[0] gets the values that are decoded, out[1] the errors. */
static void play(const lk_compressor *by, size_t shape, bool turned, float *out[2])
{
    static float   values[MOST];
    float *const   all[] = { values };
    lkt_compressed c     = { .by      = by,
                             .options = LK_COMPRESSION_INIT,
                             .key     = { .rows = shapes[shape][0], .cols = shapes[shape][1] },
                             .groups  = 1,
                             .samples = 3,
                             .turned  = turned };
    lkt_compressed_open(&c);
    for (uint32_t step = 0; step < 2; step++) {
        for (size_t i = 0; i < lkt_compressed_count(&c); i++)
            values[i] = (float)((i + 1) * (step + 7) * 2654435761u % 1000003) - 500000;
        lkt_compressed_step(&c, all, out[0]);
    }
    memcpy(out[1], c.errors[0], lkt_compressed_count(&c) * sizeof(float));
    lkt_compressed_close(&c);
}

static void their_order_changes_no_bit(void **state)
{
    static float of[4][MOST];
    float       *want[] = { of[0], of[1] }, *got[] = { of[2], of[3] };
    lk_compression given = LK_COMPRESSION_INIT, options;
    (void)state;
    assert_int_equal(lk_compression_resolve(&options, &given), LK_OK);
    for (uint32_t c = 0; lk_compressors(c) != NULL; c++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            const lk_compress_key key = { .rows = shapes[s][0], .cols = shapes[s][1] };
            if (lk_compressors(c)->bytes(&options, &key, 0) == 0)
                continue;
            play(lk_compressors(c), s, false, want);
            play(lk_compressors(c), s, true, got);
            for (size_t i = 0; i < 2; i++)
                assert_memory_equal(got[i], want[i], key.rows * key.cols * sizeof(float));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_every_element_once),
        cmocka_unit_test(their_order_changes_no_bit),
    };
    return cmocka_run_group_tests_name("compress.parts", tests, NULL, NULL);
}
