/* layout_test.c -- every gradient element is in one slice of one owner, for any size of buckets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "parallel/layout.h"
#include "tensor/ops.h"

static const lk_param model[] = {
    { .name = "wte", .shape = { 2, { 300, 32 } }, .uses = 2 },
    { .name = "h.0.weight", .shape = { 2, { 32, 96 } } },
    { .name = "h.0.bias", .shape = { 1, { 96 } } },
    { .name = "one", .shape = { 1, { 1 } } },
    { .name = "h.1.weight", .shape = { 2, { 4097, 3 } } },
    { .name = "long", .shape = { 1, { 45 * 4096 + 100 } } }, /* 22 equal buckets of 20000 bytes */
};
enum { PARAMS = sizeof model / sizeof model[0] };

enum { OWNERS_MAX = 8 };

/* Opens a layout with shards of `each` owners.  The last shard has the remaining owners. */
static lki_layout *open_layout_as(size_t bucket_bytes, size_t first_bytes, uint32_t ranks,
                                  uint32_t each, bool counted)
{
    lk_parallel_options options = { .struct_size        = sizeof(lk_parallel_options),
                                    .bucket_bytes       = bucket_bytes,
                                    .first_bucket_bytes = first_bytes };
    lki_owner           owners[OWNERS_MAX];
    const lki_deal      deal    = { .owners = owners, .count = ranks,
                                    .shards = (ranks + each - 1) / each,
                                    .counted = counted };
    lki_layout         *layout  = NULL;
    for (uint32_t o = 0; o < ranks; o++)
        owners[o] = (lki_owner){ o / each, o % each };
    assert_int_equal(lki_layout_open(&layout, model, PARAMS, &options, &deal), LK_OK);
    return layout;
}

static lki_layout *open_layout(size_t bucket_bytes, size_t first_bytes, uint32_t ranks,
                               uint32_t each)
{
    return open_layout_as(bucket_bytes, first_bytes, ranks, each, false);
}

/* Returns the owner of each element of the gradient space; every element must have exactly one
 * owner. */
static uint32_t *owners_of(const lki_layout *layout, uint32_t each)
{
    uint32_t *owner = NULL;
    size_t    next  = 0;
    assert_int_equal(LKI_NEW(&owner, layout->grad_elements, "owners"), LK_OK);
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const lki_bucket *bucket = &layout->buckets[b];
        size_t            inside = 0;
        assert_int_equal(bucket->first, next);
        for (size_t s = 0; s < bucket->slice_count; s++) {
            assert_int_equal(bucket->slices[s].first, inside);
            for (size_t i = 0; i < bucket->slices[s].count; i++)
                owner[next + inside++] = bucket->slices[s].shard * each + bucket->slices[s].owner;
        }
        assert_int_equal(inside, bucket->count);
        next += bucket->count;
    }
    assert_int_equal(next, layout->grad_elements);
    return owner;
}

static void every_element_has_one_owner(void **state)
{
    (void)state;
    static const size_t sizes[] = { 1, 20000, 100000, 1 << 20, 0 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (uint32_t ranks = 1; ranks <= OWNERS_MAX; ranks++) {
            uint32_t    each   = i % 2 == 0 ? ranks : 3;
            lki_layout *layout = open_layout(sizes[i], 30000, ranks, each);
            uint32_t   *owner  = owners_of(layout, each);
            for (size_t s = 0; s < layout->span_count; s++) {
                const lki_param_span *span = &layout->spans[s];
                assert_true(span->owner < ranks && span->count <= LKI_NORM_BLOCK);
                for (uint32_t use = 0; use < lki_layout_uses(layout, span->param); use++) {
                    size_t at = lki_layout_grad_at(layout, span, use);
                    for (size_t e = 0; e < span->count; e++)
                        assert_int_equal(owner[at + e], span->owner);
                }
            }
            lki_free(owner);
            lki_layout_free(layout);
        }
}

/* Expects that the spans of a shard are consecutive in the shard's space, and that span->turn
 * follows the order of owners. */
static void every_span_is_stored_once(void **state)
{
    (void)state;
    for (uint32_t each = 1; each <= 3; each++) {
        lki_layout *layout     = open_layout(20000, 30000, OWNERS_MAX, each);
        size_t      ends[8]    = { 0 }, turns = 0, total = 0;
        uint32_t    last_owner = 0;
        for (size_t s = 0; s < layout->span_count; s++) {
            const lki_param_span *span  = &layout->spans[s];
            uint32_t              shard = layout->owners[span->owner].shard;
            assert_int_equal(span->shard_at, ends[shard]);
            ends[shard] += lki_layout_width(layout, span);
            turns += span->turn;
        }
        for (uint32_t shard = 0; shard < layout->shards; shard++) {
            assert_int_equal(layout->shard_elements[shard], ends[shard]);
            total += ends[shard];
        }
        assert_int_equal(total, layout->elements);
        assert_int_equal(turns, layout->span_count * (layout->span_count - 1) / 2);
        for (size_t turn = 0; turn < layout->span_count; turn++)
            for (size_t s = 0; s < layout->span_count; s++)
                if (layout->spans[s].turn == turn) {
                    assert_true(layout->spans[s].owner >= last_owner);
                    last_owner = layout->spans[s].owner;
                }
        lki_layout_free(layout);
    }
}

static void counts_the_terms_of_each_bucket(void **state)
{
    (void)state;
    lki_layout *layout = open_layout(20000, 20000, 3, 3);
    assert_true(layout->bucket_count > 3);
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        uint32_t terms = 0;
        for (uint32_t t = 0; t < layout->term_count; t++)
            terms += layout->first_bucket[t] <= b && b <= layout->last_bucket[t];
        assert_int_equal(terms, layout->buckets[b].terms);
        assert_true(terms > 0);
    }
    lki_layout_free(layout);
}

/* Checks owners in the order of the gradient space: a span belongs to the owner whose equal part of
 * the bucket contains the span's middle. */
static void owners_have_equal_parts(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < 3 * OWNERS_MAX; way++) {
        static const size_t bytes[] = { 20000, 300000, 1000000 };
        const uint32_t      ranks   = 1 + way / 3;
        lki_layout         *layout  = open_layout(bytes[way % 3], 30000, ranks, ranks);
        size_t              done    = 0;
        uint32_t            last    = UINT32_MAX;
        for (uint32_t t = 0; t < layout->term_count; t++) {
            uint32_t p = layout->terms[t].param;
            for (size_t i = layout->first_span[p];
                 layout->terms[t].use == 0 && i < layout->first_span[p + 1]; i++) {
                const lki_param_span *span  = &layout->spans[i];
                size_t                width = lki_layout_width(layout, span);
                size_t                at    = layout->term_at[t] + span->inside;
                uint32_t              b     = 0;
                while (at >= layout->buckets[b].first + layout->buckets[b].count)
                    b++;
                done = b == last ? done : 0;
                last = b;
                assert_int_equal(span->owner,
                                 (done + width / 2) * ranks / layout->buckets[b].dealt);
                done += width;
            }
        }
        lki_layout_free(layout);
    }
}

/* Compares the buckets of a counted layout, in which equal buckets are one entry, with those of a
 * listed layout. */
static void compare_buckets(const lki_layout *counted, const lki_layout *listed)
{
    uint32_t next = 0;
    for (uint32_t b = 0; b < counted->bucket_count; b++) {
        const lki_bucket *bucket = &counted->buckets[b];
        assert_null(bucket->slices);
        for (size_t i = 0; i < bucket->alike; i++, next++) {
            assert_int_equal(listed->buckets[next].alike, 1);
            assert_int_equal(listed->buckets[next].first, bucket->first + i * bucket->count);
            assert_int_equal(listed->buckets[next].count, bucket->count);
            assert_int_equal(listed->buckets[next].dealt, bucket->dealt);
            assert_int_equal(listed->buckets[next].terms, bucket->terms);
        }
    }
    assert_int_equal(next, listed->bucket_count);
}

/* Compares a counted layout with a listed layout.  Expects equal numbers, but no tables in the
 * counted layout. */
static void a_counted_layout_equals_a_listed_one(void **state)
{
    (void)state;
    for (uint32_t each = 1; each <= OWNERS_MAX; each += 3) {
        lki_layout *listed  = open_layout(20000, 30000, OWNERS_MAX, each);
        lki_layout *counted = open_layout_as(20000, 30000, OWNERS_MAX, each, true);
        size_t      slices[OWNERS_MAX] = { 0 };
        assert_null(counted->spans);
        assert_int_equal(counted->span_count, listed->span_count);
        assert_int_equal(counted->read_bytes, listed->read_bytes);
        assert_true(counted->bucket_count + 20 <= listed->bucket_count);
        compare_buckets(counted, listed);
        for (uint32_t b = 0; b < listed->bucket_count; b++)
            for (size_t i = 0; i < listed->buckets[b].slice_count; i++) {
                const lk_slice *slice = &listed->buckets[b].slices[i];
                slices[slice->shard * each + slice->owner] += slice->count;
            }
        for (uint32_t o = 0; o < OWNERS_MAX; o++)
            assert_int_equal(counted->owned[o], slices[o]);
        for (uint32_t shard = 0; shard < listed->shards; shard++)
            assert_int_equal(counted->shard_elements[shard], listed->shard_elements[shard]);
        lki_layout_free(counted);
        lki_layout_free(listed);
    }
}

static void refuses_terms_that_do_not_match(void **state)
{
    (void)state;
    lk_parallel_term    twice[PARAMS + 1] = { { 0, 0, 0 }, { 0, 0, 0 }, { 1, 0, 0 },
                                              { 2, 0, 0 }, { 3, 0, 0 }, { 4, 0, 0 },
                                              { 5, 0, 0 } };
    lk_parallel_options options           = { .struct_size = sizeof(lk_parallel_options),
                                              .terms = twice, .term_count = PARAMS + 1 };
    lki_owner           owner             = { 0, 0 };
    const lki_deal      deal              = { .owners = &owner, .count = 1, .shards = 1 };
    lki_layout         *layout            = NULL;
    assert_int_equal(lki_layout_open(&layout, model, PARAMS, &options, &deal), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "both use 0 of 'wte'"));
    options.term_count = 2;
    assert_int_equal(lki_layout_open(&layout, model, PARAMS, &options, &deal), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "have 7 uses"));
}

static void refuses(const lk_param *param, const char *text)
{
    const lk_parallel_options options = { .struct_size = sizeof(lk_parallel_options) };
    lki_owner                 owner   = { 0, 0 };
    const lki_deal            deal    = { .owners = &owner, .count = 1, .shards = 1 };
    lki_layout               *layout  = NULL;
    assert_int_equal(lki_layout_open(&layout, param, 1, &options, &deal), LK_EINVAL);
    if (strstr(lk_error_last()->message, text) == NULL)
        fail_msg("'%s' does not say '%s'", lk_error_last()->message, text);
}

static void refuses_impossible_parameters(void **state)
{
    (void)state;
    lk_param param = { .name = "w", .shape = { 9, { 1, 1, 1, 1, 1, 1, 1, 1 } } };
    refuses(&param, "'w' has 9 dimensions, at most 8");
    param.shape = (lk_shape){ 2, { 5, 0 } };
    refuses(&param, "'w' has no elements");
    /* the number of elements is 2^80, 2^64 + 2, and 2^62, whose bytes are 2^64 */
    static const lk_shape huge[] = { { 2, { 1ULL << 40, 1ULL << 40 } },
                                     { 2, { (1ULL << 63) + 1, 2 } }, { 1, { 1ULL << 62 } } };
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        param.shape = huge[i];
        refuses(&param, "'w' has more elements than memory can hold");
    }
    param.shape = (lk_shape){ 1, { 3 } };
    memset(param.name, 'w', sizeof param.name);
    refuses(&param, "parameter 0 has no end");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_has_one_owner),
        cmocka_unit_test(every_span_is_stored_once),
        cmocka_unit_test(counts_the_terms_of_each_bucket),
        cmocka_unit_test(owners_have_equal_parts),
        cmocka_unit_test(a_counted_layout_equals_a_listed_one),
        cmocka_unit_test(refuses_terms_that_do_not_match),
        cmocka_unit_test(refuses_impossible_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
