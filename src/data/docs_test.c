/* docs_test.c -- tests how documents are found, cut into samples, and distributed over virtual
 * workers.
 *
 * Goal:   lines, JSON, archives and ids yield their documents.  A sample has as many targets as its
 *         document, and a longer document is cut without loss.  The two parts share no document.
 *         Every sample of a step is delivered once.  In every step virtual workers get nearly equal
 *         numbers of tokens, and no more samples than they have room for.  This holds for loaders
 *         that serve any subset of the virtual workers.
 * Method: small handwritten files, and the text of a play if present.
 */
#include "data/tar_testing.h"

#include "base/memory.h"

enum { T = 6 };

static const lk_dataset_options plain = { .struct_size = sizeof(lk_dataset_options), .context = T };

/* Writes sample `index` as text: its targets, with '|' for the separator. */
static void text_of(const lk_dataset *set, bool validation, uint64_t index, char out[T + 1])
{
    int32_t  x[T], y[T];
    uint32_t length = lk_dataset_length(set, validation, index);
    LKT_OK(lk_dataset_read(set, validation, 0, index, x, y));
    for (uint32_t i = 0; i < T; i++) {
        assert_int_equal(y[i] < 0, i >= length);
        if (i > 0)
            assert_int_equal(x[i], i < length ? y[i - 1] : 0);
        out[i] = (char)(i >= length ? '\0' : y[i] == 0 ? '|' : y[i]);
    }
    out[length] = '\0';
}

/* Checks all samples, concatenated. */
static void assert_samples(const char *spec, const char *want)
{
    lk_dataset *set       = lkt_open(spec, &plain);
    char        got[1024] = "", text[T + 1];
    assert_true(lk_dataset_describe(set)->documents && lk_dataset_describe(set)->tokens);
    assert_int_equal(lk_dataset_describe(set)->classes, 256);
    for (uint64_t i = 0; i < lk_dataset_describe(set)->train_count; i++) {
        text_of(set, false, i, text);
        (void)snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i > 0 ? " " : "", text);
    }
    if (strcmp(got, want) != 0)
        fail_msg("%s: '%s', expected '%s'", spec, got, want);
    lk_dataset_free(set);
}

static void lines_and_json_yield_documents(void **state)
{
    (void)state;
    lkt_write_text("lines.txt", "one\n\ntwo22\r\nthree3\nfourfourfour!\nx");
    assert_samples("docs:lines.txt", "one| two22| three3 | fourfo urfour !| x|");
    lkt_write_text("a.jsonl", "{\"text\": \"a\\nb\", \"id\": 7}\n\n{\"id\": 8, \"text\": \"\"}\n"
                              "{\"text\": \"\\u00e9tait-il\"}\n");
    assert_samples("docs:a.jsonl", "a\nb| \xc3\xa9tait -il|");
    assert_int_equal(mkdir("folder", 0755), 0);
    lkt_write_text("folder/b.txt", "bb\n");
    lkt_write_text("folder/a.jsonl", "{\"text\": \"aa\"}");
    lkt_write_text("folder/c.md", "not this one");
    assert_samples("docs:folder", "aa| bb|");
    lkt_write_text("r-1", "1\n");
    lkt_write_text("r-2", "2\n");
    assert_samples("docs:r-{1..2}", "1| 2|");
}

/* Other members than "text" may hold anything that JSON has. */
static void other_members_are_ignored(void **state)
{
    (void)state;
    lkt_write_text("other.jsonl", "{\"text\": \"one\", \"id\": 13835058055282163712, \"x\": 1e9}\n"
                                  "{\"text\": \"two\", \"x\": [{\"y\": \"a\\u0000b\"}, 1e-999]}\n");
    assert_samples("docs:other.jsonl", "one| two|");
}

static void a_byte_order_mark_is_skipped(void **state)
{
    (void)state;
    lkt_write_text("mark.jsonl", "\xef\xbb\xbf{\"text\": \"one\"}\r\n{\"text\": \"two\"}\r\n");
    assert_samples("docs:mark.jsonl", "one| two|");
}

/* With a tokenizer NUL is a byte as any other. */
static void a_tokenizer_takes_nul(void **state)
{
    const lk_dataset_options how = { .struct_size = sizeof how, .context = T,
                                     .tokenizer = LK_TEST_SOURCE "/tests/tokenizers/gpt2.json" };
    (void)state;
    lkt_write_text("nul.jsonl", "{\"text\": \"a\\u0000b\"}\n");
    lkt_write("nul.txt", "a\0b\n", 4);
    lk_dataset *json = lkt_open("docs:nul.jsonl", &how), *text = lkt_open("docs:nul.txt", &how);
    int32_t     x[2][T], y[2][T];
    LKT_OK(lk_dataset_read(json, false, 0, 0, x[0], y[0]));
    LKT_OK(lk_dataset_read(text, false, 0, 0, x[1], y[1]));
    assert_int_equal(lk_dataset_length(json, false, 0), 4);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    lk_dataset_free(json);
    lk_dataset_free(text);
}

static void archive_members_yield_documents(void **state)
{
    static lkt_file tar;
    (void)state;
    lkt_tar_text(&tar, "d/1.txt", "first");
    lkt_tar_text(&tar, "d/1.json", "{\"caption\": 1}");
    lkt_tar_text(&tar, "d/2.cls", "4");
    lkt_tar_text(&tar, "d/2.json", "{\"text\": \"second\"}");
    lkt_tar_text(&tar, "d/3.jpg", "no text");
    lkt_tar_text(&tar, "d/4.txt", "");
    lkt_tar_end(&tar);
    lkt_write("docs.tar", tar.bytes, tar.count);
    assert_samples("docs:docs.tar", "first| second |");
    tar.count = 0;
    lkt_tar_text(&tar, "a.txt", "1");
    lkt_tar_text(&tar, "a.txt", "2");
    lkt_tar_end(&tar);
    lkt_write("twice.tar", tar.bytes, tar.count);
    lkt_refuses("docs:twice.tar", &plain, LK_EFORMAT, "'a.txt' at byte 1024", "second of its");
    tar.count = 0;
    lkt_tar_text(&tar, "a.json", "{}");
    lkt_tar_end(&tar);
    lkt_write("none.tar", tar.bytes, tar.count);
    lkt_refuses("docs:none.tar", &plain, LK_EFORMAT, "'a' at byte 0", "no \"text\"");
}

static void ids_between_separators_yield_documents(void **state)
{
    const uint16_t    ids[] = { 9, 1, 2, 3, 9, 9, 4, 9, 5, 6 };
    static const char want[3][3] = { { 1, 2, 3 }, { 4 }, { 5, 6 } };
    int32_t           x[T], y[T];
    (void)state;
    lkt_write("ids.u16", ids, sizeof ids);
    lk_dataset *set = lkt_open("docs:ids.u16?end=9&vocab=12", &plain);
    assert_int_equal(lk_dataset_describe(set)->classes, 12);
    assert_int_equal(lk_dataset_describe(set)->train_count, 3);
    for (uint64_t i = 0; i < 3; i++) {
        uint32_t length = i == 0 ? 4 : i == 1 ? 2 : 3;
        LKT_OK(lk_dataset_read(set, false, 0, i, x, y));
        assert_int_equal(lk_dataset_length(set, false, i), length);
        assert_int_equal(x[0], 9);
        for (uint32_t k = 0; k < T; k++)
            assert_int_equal(y[k], k + 1 < length ? want[i][k] : k + 1 == length ? 9 : -1);
    }
    lk_dataset_free(set);
    lkt_refuses("docs:ids.u16", &plain, LK_EINVAL, "holds token ids", "?end=ID");
    lkt_refuses("docs:ids.u16?end=9&vocab=9", &plain, LK_EINVAL, "end=9", "vocab=9");
}

static void bad_documents_are_refused(void **state)
{
    static const struct { const char *text, *first; } bad[] = {
        { "{\"text\": 3}\n", "line 1 has no \"text\" that is a string; rename the member" },
        { "{\"text\": \"a\"}\n\xef\xbb\xbf{\"text\": \"b\"}\n", "line 2 is no valid JSON: " },
        { "{\"text\": \"a\"}\n[1]\n", "line 2 has no \"text\"" },
        { "{\"text\": \"a\"}\n{\"text\": \"\n", "line 2 is no valid JSON: " },
        { "{\"text\": \"a\\u0000b\"}\n", "line 1 holds a NUL byte, which no document may" },
        { "{\"text\": \"a\", \"b\\u0000\": 1}\n", "line 1 has a member whose name holds a NUL" },
        { "{\"text\": \"a\", \"b\": [1e999]}\n", "line 1 has a number beyond 1.8e308" },
        { "{\"text\": 13835058055282163712}\n", "line 1 has no \"text\" that is a string" },
        { "{\"text\": \"a\", \"text\": \"b\"}\n", "line 1 is no valid JSON: duplicate" },
        { "\n\n", "no documents" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lkt_write_text("bad.jsonl", bad[i].text);
        lkt_refuses("docs:bad.jsonl", &plain, LK_EFORMAT, bad[i].first, "bad.jsonl");
    }
    lkt_write("nul.txt", "a\nb\0c\n", 6);
    lkt_refuses("docs:nul.txt", &plain, LK_EFORMAT, "line 2 holds a NUL byte", "nul.txt");
    lkt_refuses("docs:lines.txt?end=3", &plain, LK_EINVAL, "is text, which has no end=", "");
    lkt_refuses("docs:lines.txt", LKT_DATASET(), LK_EINVAL, "`context`", "");
    lkt_refuses("docs:lines.txt", LKT_DATASET(.context = T, .weights = "w"), LK_EINVAL,
                "`weights`", "tokens");
    assert_int_equal(mkdir("mixed", 0755), 0);
    lkt_write_text("mixed/a.txt", "a");
    lkt_write("mixed/b.u16", "ab", 2);
    lkt_refuses("docs:mixed", &plain, LK_EFORMAT, "b.u16' holds token ids", "a.txt");
}

/* ---- Parts ---------------------------------------------------------------------------------- */

enum { DOCUMENTS = 40 };

/* Writes documents: document i consists of the letter 'A' + i, 1 to 19 times. */
static void write_letters(void)
{
    char text[2048] = "";
    for (int i = 0; i < DOCUMENTS; i++)
        for (int k = 0, n = 1 + i * 7 % 19; k <= n; k++)
            (void)snprintf(text + strlen(text), 2, "%c", k < n ? 'A' + i : '\n');
    lkt_write_text("letters", text);
}

/* Adds a part's samples to the count of each letter. */
static void count_letters(const lk_dataset *set, bool validation, uint32_t count[DOCUMENTS])
{
    const lk_dataset_info *info = lk_dataset_describe(set);
    char                   text[T + 1];
    for (uint64_t i = 0; i < (validation ? info->validation_count : info->train_count); i++) {
        text_of(set, validation, i, text);
        for (const char *c = text; *c != '\0'; c++)
            count[*c == '|' ? 0 : *c - 'A'] += *c != '|';
    }
}

static void parts_share_no_document(void **state)
{
    uint32_t held_in_all[DOCUMENTS] = { 0 };
    (void)state;
    write_letters();
    for (uint32_t fold = 1; fold <= 4; fold++) {
        uint32_t    mine[DOCUMENTS] = { 0 }, held[DOCUMENTS] = { 0 };
        lk_dataset *set = lkt_open("docs:letters", &(lk_dataset_options){
                                       .struct_size = sizeof(lk_dataset_options),
                                       .context = T, .validation = 0.25, .fold = fold });
        count_letters(set, false, mine);
        count_letters(set, true, held);
        for (uint32_t i = 0; i < DOCUMENTS; i++) {
            assert_int_equal(mine[i] + held[i], 1 + i * 7 % 19);
            assert_true(mine[i] == 0 || held[i] == 0);
            held_in_all[i] += held[i] > 0;
        }
        lk_dataset_free(set);
    }
    for (uint32_t i = 0; i < DOCUMENTS; i++)
        assert_int_equal(held_in_all[i], 1);
}

/* ---- Distribution --------------------------------------------------------------------------- */

enum { V = 4, M = 3, B = 2, G = V * M * B, STEPS = 9 };

static lk_loader *open_loader(const lk_dataset *set, uint32_t first, uint32_t count,
                              uint32_t stride, lk_order order)
{
    lk_loader *loader = NULL;
    LKT_OK(lk_loader_open(&loader, set, &(lk_loader_options){
                              .struct_size = sizeof(lk_loader_options),
                              .seed = 5, .global_batch = G, .micro_batch = B, .virtual_workers = V,
                              .first = first, .count = count, .stride = stride, .order = order,
                              .end_step = STEPS, .threads = 2 }));
    return loader;
}

/* All samples of a virtual worker in a step. */
typedef struct {
    uint32_t samples[M], length[M];
    uint64_t tokens, longest;
    int32_t  x[M][B * T], y[M][B * T];
} hand;

static void take_hand(lk_loader *loader, hand *out)
{
    *out = (hand){ .tokens = 0 };
    for (uint32_t m = 0; m < M; m++) {
        lk_batch batch;
        LKT_OK(lk_loader_next(loader, &batch));
        out->samples[m] = batch.samples;
        out->length[m]  = batch.length;
        memcpy(out->x[m], batch.x, sizeof out->x[m]);
        memcpy(out->y[m], batch.y, sizeof out->y[m]);
        for (uint32_t i = 0; i < batch.samples; i++) {
            uint64_t tokens = 0;
            for (uint32_t k = 0; k < batch.length; k++)
                tokens += batch.y[i * batch.length + k] >= 0;
            out->tokens += tokens;
            out->longest = lki_max(out->longest, tokens);
        }
    }
}

static uint64_t key_of(const int32_t *y, uint32_t length)
{
    uint64_t key = 0;
    for (uint32_t k = 0; k < length && y[k] >= 0; k++)
        key = key * 131 + (uint64_t)y[k] + 1;
    return key;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *left = a, *right = b;
    return *left < *right ? -1 : *left > *right;
}

/* Checks that the virtual workers together got the samples at the positions of `step`, each once.
 * Compares the contents. */
static void assert_all_once(const lk_dataset *set, const hand hands[V], uint64_t step)
{
    uint64_t     got[G], want[G], count = 0, n = lk_dataset_describe(set)->train_count;
    lk_step_span span = lk_step_at(n, G, false, step);
    for (uint32_t v = 0; v < V; v++)
        for (uint32_t m = 0; m < M; m++)
            for (uint32_t i = 0; i < hands[v].samples[m]; i++)
                got[count++] = key_of(hands[v].y[m] + i * hands[v].length[m], hands[v].length[m]);
    assert_int_equal(count, span.samples);
    for (uint64_t i = 0; i < count; i++) {
        int32_t x[T], y[T];
        uint64_t index = lk_sample_at(5, span.epoch, n, span.first + i);
        LKT_OK(lk_dataset_read(set, false, 0, index, x, y));
        want[i] = key_of(y, T);
    }
    qsort(got, count, sizeof *got, by_value);
    qsort(want, count, sizeof *want, by_value);
    assert_memory_equal(got, want, count * sizeof *got);
}

/* Checks that the numbers of tokens of any two virtual workers differ by at most the tokens of one
 * sample, even in a short batch. */
static void assert_balanced(const hand hands[V])
{
    for (uint32_t v = 0; v < V; v++)
        for (uint32_t w = 0; w < V; w++)
            assert_true(hands[v].tokens <= hands[w].tokens + hands[v].longest);
}

static void a_step_is_balanced_by_tokens(void **state)
{
    (void)state;
    write_letters();
    lk_dataset *set   = lkt_open("docs:letters", &plain); /* 3 steps of 24 samples, then 16 */
    lk_loader  *whole = open_loader(set, 0, V, 1, LK_ORDER_PERMUTED);
    lk_loader  *each[2] = { open_loader(set, 0, 2, 2, LK_ORDER_PERMUTED),
                            open_loader(set, 1, 2, 2, LK_ORDER_PERMUTED) };
    for (uint64_t step = 0; step < STEPS; step++) {
        hand hands[V], other;
        for (uint32_t v = 0; v < V; v++)
            take_hand(whole, &hands[v]);
        assert_all_once(set, hands, step);
        assert_balanced(hands);
        for (uint32_t v = 0; v < V; v++) {
            for (uint32_t m = 1; m < M; m++)
                assert_true(hands[v].length[m] <= hands[v].length[m - 1]);
            take_hand(each[v % 2], &other);
            assert_memory_equal(&other, &hands[v], sizeof other);
        }
    }
    for (uint32_t v = 0; v < 2; v++)
        lk_loader_free(each[v]);
    lk_loader_free(whole);
    lk_dataset_free(set);
}

/* Checks that samples are not balanced by length in PyTorch's orders. */
static void pytorch_orders_are_not_balanced(void **state)
{
    int32_t  x[T], y[T];
    lk_batch batch;
    (void)state;
    write_letters();
    lk_dataset *set    = lkt_open("docs:letters", &plain);
    lk_loader  *loader = open_loader(set, 0, V, 1, LK_ORDER_TORCH_UNSHUFFLED);
    LKT_OK(lk_loader_next(loader, &batch));
    for (uint32_t i = 0; i < B; i++) {
        LKT_OK(lk_dataset_read(set, false, 0, (uint64_t)i * V, x, y));
        assert_int_equal(key_of(batch.y + i * batch.length, batch.length), key_of(y, T));
    }
    lk_loader_free(loader);
    lk_dataset_free(set);
}

static void lines_of_a_real_text_yield_documents(void **state)
{
    char        path[512], spec[600];
    uint64_t    tokens = 0, lines = 0;
    (void)state;
    if (lkt_real_file(path, sizeof path, "text/tinyshakespeare.txt") == NULL)
        skip();
    (void)snprintf(spec, sizeof spec, "docs:%s", path);
    lk_dataset *set = lkt_open(spec, LKT_DATASET(.context = 128));
    lines           = lk_dataset_describe(set)->train_count;
    for (uint64_t i = 0; i < lines; i++)
        tokens += lk_dataset_length(set, false, i);
    assert_int_equal(lines, 32777);
    assert_int_equal(tokens, 1115394 - 7223); /* each line with its end; empty lines are skipped */
    lk_dataset_free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_and_json_yield_documents),
        cmocka_unit_test(other_members_are_ignored),
        cmocka_unit_test(a_byte_order_mark_is_skipped),
        cmocka_unit_test(a_tokenizer_takes_nul),
        cmocka_unit_test(archive_members_yield_documents),
        cmocka_unit_test(ids_between_separators_yield_documents),
        cmocka_unit_test(bad_documents_are_refused),
        cmocka_unit_test(parts_share_no_document),
        cmocka_unit_test(a_step_is_balanced_by_tokens),
        cmocka_unit_test(pytorch_orders_are_not_balanced),
        cmocka_unit_test(lines_of_a_real_text_yield_documents),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}
