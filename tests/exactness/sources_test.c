/* sources_test.c -- tests that training gives the same bits on any number of workers, with data of
 * every kind.
 *
 * Goal:   images in archives, augmented, drawn by weights or in PyTorch's order, from any number of
 *         loader threads, train the same model with one, two and three workers, and so do images in
 *         folders.  Documents also train the same model: their tokens have equal weights however
 *         the documents are divided among workers.  A stream gives the bits of the same samples in
 *         files, including images in archives and a short last step.  Ignored labels and weights in
 *         the loss give exact sums.
 * Method: the command itself; the hash of each run.
 */
#include <math.h>

#include "base/thorough_testing.h"
#include "cli/command.h"
#include "data/tar_testing.h"

static void run_of(char hash[65], const char *folder, const char *options, uint32_t workers)
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line,
                   "'%s' train mlp --hidden 9 --virtual-workers 6 --micro-batch 2 "
                   "--global-batch 12 --steps 7 --lr 0.05 --workers %u --worker-mode %s %s",
                   LK_TEST_COMMAND, workers, workers == 2 ? "processes" : "threads", options);
    (void)run_shell(&r, folder, line);
    if (r.status != 0)
        fail_msg("%s: status %d\n%s", line, r.status, r.err);
    const char *at = strstr(r.err, "\nrun ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\nrun %64[0-9a-f]", hash), 1);
}

/* Checks that runs on `least` to three workers have the hash of a run on one worker. */
static void same_on_any_workers(const char *folder, const char *options, uint32_t least,
                                char want[65])
{
    run_of(want, folder, options, 1);
    for (uint32_t workers = 3; workers >= least; workers -= lki_brief() ? 2 : 1) {
        char got[65];
        run_of(got, folder, options, workers);
        if (strcmp(got, want) != 0)
            fail_msg("%s: %u workers give %s, one %s", options, workers, got, want);
    }
}

/* Runs a command line that must exit with `status`.  Returns the hash, or checks a part of the
 * message. */
static void run_line(const char *folder, const char *line, int status, char hash[65],
                     const char *text)
{
    static command_result r;
    (void)run_shell(&r, folder, line);
    if (r.status != status || (text != NULL && strstr(r.err, text) == NULL))
        fail_msg("%s: status %d, expected %d and '%s'\n%s", line, r.status, status,
                 text != NULL ? text : "", r.err);
    const char *at = strstr(r.err, "\nrun ");
    if (hash != NULL)
        assert_true(at != NULL && sscanf(at, "\nrun %64[0-9a-f]", hash) == 1);
}

static void archives_give_the_same_bits(void **state)
{
    static lkt_file archive;
    char            path[128], weights[128], plain[65], other[4][65];
    for (uint32_t k = 0; k < 3; k++) {
        archive.count = 0;
        for (uint32_t i = 0; i < 10; i++) {
            char key[16];
            (void)snprintf(key, sizeof key, "%u", i);
            lkt_tar_sample(&archive, key, 9 + i % 3, 10 * k + i, (int)(i * (k + 1) % 4));
        }
        lkt_tar_end(&archive);
        (void)snprintf(path, sizeof path, "%s/%u.tar", (const char *)*state, k);
        lkt_write(path, archive.bytes, archive.count);
    }
    (void)snprintf(weights, sizeof weights, "%s/weights", (const char *)*state);
    lkt_write_text(weights, "1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0");
#define ARCHIVES "--data 'tar:{0..2}.tar?h=8&w=8' "
    same_on_any_workers(*state, ARCHIVES "--loader-threads 3", 2, plain);
    same_on_any_workers(*state, ARCHIVES "--augment crop=2,flip --loader-threads 2", 3, other[0]);
    same_on_any_workers(*state, ARCHIVES "--sample-weights weights", 3, other[1]);
    same_on_any_workers(*state, ARCHIVES "--order torch-distributed", 3, other[2]);
    same_on_any_workers(*state, ARCHIVES "--augment resized-crop=0.2,flip", 3, other[3]);
    for (size_t i = 0; i < 4; i++)
        assert_string_not_equal(plain, other[i]);
}

/* Trains on images in folders.  The checkpoint has the names of the classes, and is not continued
 * with others. */
static void folders_give_the_same_bits(void **state)
{
    static lkt_file       picture;
    static command_result r;
    char                  path[160], hash[65];
    run_line(*state, "mkdir -p net/train/cat net/train/dog net/val/dog", 0, NULL, NULL);
    for (uint32_t i = 0; i < 14; i++) {
        uint8_t rows[16 * 12 * 3];
        for (size_t k = 0; k < sizeof rows; k++)
            rows[k] = (uint8_t)(k * (i + 3) / 7 % 256);
        lkt_png(&picture, 12, 16, 8, 2, NULL, rows, 36);
        (void)snprintf(path, sizeof path, "%s/net/%s/%u.png", (const char *)*state,
                       i < 6 ? "train/cat" : i < 12 ? "train/dog" : "val/dog", i);
        lkt_write(path, picture.bytes, picture.count);
    }
#define FOLDER "--data 'folder:net?h=8&w=8&resize=9' --augment resized-crop=0.2,flip "
    same_on_any_workers(*state, FOLDER "--loader-threads 2", 2, hash);
    run_of(hash, *state, FOLDER "--checkpoint named", 1);
    run_command(&r, *state, "inspect named");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "[\"cat\",\"dog\"]");
    run_line(*state, "mv net/train/dog net/train/wolf && mv net/val/dog net/val/wolf", 0, NULL,
             NULL);
    run_line(*state, "'" LK_TEST_COMMAND "' resume named", 2, NULL, "the list of classes is [");
}

/* ---- Documents ------------------------------------------------------------------------------ */

/* Reads the losses of the steps, and the loss of the validation part at the end. */
static size_t losses_of(const char *folder, double out[16])
{
    static char log[1 << 14];
    size_t      count = 0;
    read_stream(folder, "log", log, sizeof log);
    const char *at = strchr(log, '\n'); /* after the configuration, which names the loss */
    while (at != NULL && (at = strstr(at, "loss\": ")) != NULL && count < 16)
        assert_int_equal(sscanf(at++, "loss\": %lf", &out[count++]), 1);
    return count;
}

/* Trains on documents of 1 to 40 letters, with a short last batch.  Expects the same losses however
 * the documents are divided among workers. */
static void documents_weigh_by_their_tokens(void **state)
{
    static const char *const ways[] = {
        "--workers 1", "--workers 2 --strategy zero2", "--workers 3 --worker-mode threads",
        "--workers 5 --loader-threads 2 --hosts 2 --strategy zero3",
    };
    static const char *const splits[] = { "--virtual-workers 1 --micro-batch 30",
                                          "--virtual-workers 6 --micro-batch 1",
                                          "--virtual-workers 3 --micro-batch 5" };
    char   line[1024], path[128], text[8192] = "", want[65] = "", got[65];
    double losses[2][16];
    for (size_t i = 0; i < 70; i++)
        for (size_t k = 0, n = 1 + i * 11 % 40; k <= n; k++)
            (void)snprintf(text + strlen(text), 2, "%c", k < n ? (char)('a' + i * k % 26) : '\n');
    (void)snprintf(path, sizeof path, "%s/lines", (const char *)*state);
    lkt_write_text(path, text);
#define DOCUMENTS                                                                                \
    "rm -f log; "                                                                                \
    "'" LK_TEST_COMMAND "' train gpt --data docs:lines --validation 0.2 --context 24 --layers 1 "\
    "--width 8 --heads 2 --global-batch 30 --lr 0.1 --steps 6 --eval-every 3 --log log "
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        (void)snprintf(line, sizeof line, DOCUMENTS "--dropout 0.1 --virtual-workers 5 "
                       "--micro-batch 2 %s", ways[i]);
        run_line(*state, line, 0, got, NULL);
        if (i == 0)
            strcpy(want, got);
        assert_string_equal(got, want);
    }
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        (void)snprintf(line, sizeof line, DOCUMENTS "--workers 1 %s", splits[i]);
        run_line(*state, line, 0, NULL, NULL);
        size_t count = losses_of(*state, losses[i > 0]);
        assert_int_equal(count, 8);
        for (size_t k = 0; k < count; k++)
            assert_true(fabs(losses[i > 0][k] - losses[0][k]) < 1e-5 * losses[0][k]);
    }
}

/* ---- Streams -------------------------------------------------------------------------------- */

enum { SAMPLES = 41, SIDE = 3, RECORD = 1 + SIDE * SIDE }; /* three steps of 12 samples, and one
                                                            * step of 5 */

/* Writes the same images as a stream of records and as IDX files. */
static void make_images(const char *folder)
{
    static lkt_file records, images, labels;
    char            path[128];
    const uint8_t   head[16] = { 0, 0, 8, 3, 0, 0, 0, SAMPLES, 0, 0, 0, SIDE, 0, 0, 0, SIDE };
    const uint8_t   label_head[8] = { 0, 0, 8, 1, 0, 0, 0, SAMPLES };
    records.count = images.count = labels.count = 0;
    lkt_add(&images, head, sizeof head);
    lkt_add(&labels, label_head, sizeof label_head);
    for (size_t i = 0; i < SAMPLES; i++) {
        uint8_t record[RECORD] = { (uint8_t)(i % 4) };
        for (size_t p = 1; p < RECORD; p++)
            record[p] = (uint8_t)(i * 37 + p * 11);
        lkt_add(&records, record, RECORD);
        lkt_add(&images, record + 1, RECORD - 1);
        lkt_add(&labels, record, 1);
    }
    (void)snprintf(path, sizeof path, "%s/records", folder);
    lkt_write(path, records.bytes, records.count);
    (void)snprintf(path, sizeof path, "%s/images", folder);
    lkt_write(path, images.bytes, images.count);
    (void)snprintf(path, sizeof path, "%s/labels", folder);
    lkt_write(path, labels.bytes, labels.count);
}

#define TRAIN                                                                                    \
    "'" LK_TEST_COMMAND "' train mlp --hidden 9 --virtual-workers 6 --micro-batch 2 "            \
    "--global-batch 12 --lr 0.05 --momentum 0.9 "
#define STREAM(name) "--data 'stream:" name "?h=3&w=3&classes=4' "

static void a_stream_trains_on_its_samples_in_order(void **state)
{
    static const char *const ways[] = {
        "cat records | " TRAIN STREAM("-") "--steps 50 --workers 1",
        "cat records | " TRAIN STREAM("-") "--steps 50 --workers 2",
        "(head -c 133 records; sleep 0.2; tail -c +134 records) | " TRAIN STREAM("-")
        "--steps 4 --workers 3 --worker-mode threads",
        TRAIN STREAM("records") "--steps 50 --workers 3 --strategy zero2",
        TRAIN STREAM("-") "--steps 50 --workers 6 --worker-mode threads <records",
    };
    char want[65], got[65];
    make_images(*state);
    run_line(*state, TRAIN "--data idx:images,labels --normalize source --order sequential "
             "--epochs 1 --workers 1", 0,
             want, NULL);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        run_line(*state, ways[i], 0, got,
                 i == 2 ? NULL : "--data ended the run after step 4 of 50");
        if (strcmp(got, want) != 0)
            fail_msg("%s: %s, not %s", ways[i], got, want);
    }
    run_line(*state, TRAIN "--data idx:images,labels --normalize source --order sequential "
             "--steps 3 --workers 1", 0,
             want, NULL);
    run_line(*state, "head -c 360 records | " TRAIN STREAM("-") "--steps 50 --workers 2", 0, got,
             "--data ended the run after step 3 of 50");
    assert_string_equal(got, want);
}

static void a_run_resumes_from_a_file_but_not_from_a_pipe(void **state)
{
    char want[65], got[65];
    make_images(*state);
    run_line(*state, TRAIN STREAM("records") "--steps 9 --workers 1", 0, want, NULL);
    run_line(*state, TRAIN STREAM("records") "--steps 2 --workers 2 --checkpoint c", 0, NULL, NULL);
    run_line(*state, "cat records | " TRAIN STREAM("-")
             "--steps 9 --workers 2 --checkpoint c --resume", 1, NULL,
             "'stream:-' cannot go to byte 240, for sample 24: ");
    run_line(*state, TRAIN STREAM("records") "--steps 9 --workers 3 --checkpoint c --resume", 0,
             got, "--data ended the run after step 4 of 9");
    assert_string_equal(got, want);
    run_line(*state, TRAIN STREAM("records") "--steps 9 --workers 2 --checkpoint c --resume", 0,
             got, "--data ended the run after step 4 of 9"); /* no sample is left in the stream */
    assert_string_equal(got, want);
}

/* A shell line for a pipe with 13 records that no process closes. */
#define PAUSED "rm -f p; mkfifo p && exec 3<>p && head -c 133 records >&3; "

static void a_pausing_stream_times_out_and_can_be_stopped(void **state)
{
    char want[65], got[65];
    make_images(*state);
    run_line(*state, PAUSED TRAIN STREAM("p") "--steps 9 --workers 1 --worker-mode threads "
             "--timeout 0.3", 1, NULL, "has not given a batch of 12 samples in 300 ms");
    run_line(*state, PAUSED TRAIN STREAM("p") "--steps 9 --workers 2 --checkpoint w --log wlog & "
             "until grep -qs '\"step\": 1,' wlog; do sleep 0.05; done; kill -TERM $!; wait $!",
             75, NULL, "stopped on request after step 1; the state is saved");
    run_line(*state, "rm p; cp records p; " TRAIN STREAM("p") "--steps 9 --workers 1", 0, want,
             NULL);
    run_line(*state, TRAIN STREAM("p") "--steps 9 --workers 2 --checkpoint w --resume", 0, got,
             NULL);
    assert_string_equal(got, want);
}

static void bad_streams_are_refused(void **state)
{
    static const struct {
        const char *line, *text;
        int         status;
    } bad[] = {
        { "head -c 365 records | " TRAIN STREAM("-") "--steps 9 --workers 2",
          "'stream:-' ends inside record 36: it has 5 of 10 bytes", 1 },
        { "true | " TRAIN STREAM("-") "--steps 9 --workers 2", "has no sample to train on", 1 },
        { TRAIN "--data 'stream:records?h=3&w=3&classes=3' --steps 9 --workers 1",
          "record 3 at byte 30 has class 3, expected 0 to 2", 1 },
        { TRAIN STREAM("nowhere") "--steps 9", "nowhere", 1 },
        { TRAIN STREAM("records") "--epochs 1", "a stream has no epochs: count in --steps", 2 },
        { TRAIN STREAM("records"), "give --steps, the most that the stream can have", 2 },
        { TRAIN STREAM("records") "--steps 9 --drop-last", "leave out --order and --drop-last", 2 },
        { TRAIN STREAM("records") "--steps 9 --validation 0.5", "leave out --validation", 2 },
        { TRAIN STREAM("records") "--steps 9 --checkpoint d --restart", "a stream may not allow",
          2 },
        { TRAIN "--data 'stream:records?h=3' --steps 9", "must have h=, w= and classes=", 2 },
    };
    make_images(*state);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        run_line(*state, bad[i].line, bad[i].status, NULL, bad[i].text);
}

static void tokens_of_a_stream_give_the_same_bits(void **state)
{
    static const char *const ways[] = { "--workers 1", "--workers 2", "--workers 3" };
    char                     line[1024], want[65] = "", got[65];
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(line, sizeof line,
                       "seq 200 | '%s' train gpt --data stream:- --context 8 --layers 1 --width 8 "
                       "--heads 1 --virtual-workers 3 --micro-batch 2 --global-batch 12 --lr 0.1 "
                       "--steps 99 --dropout 0.1 %s", LK_TEST_COMMAND, ways[i]);
        run_line(*state, line, 0, got, "--data ended the run after step 8 of 99"); /* the stream has
                                                                                    * 86 samples */
        if (i == 0)
            strcpy(want, got);
        assert_string_equal(got, want);
    }
}

/* Writes 41 pictures into two archives. */
static void make_archives(const char *folder)
{
    static lkt_file archive;
    char            name[128];
    for (uint32_t k = 0; k < 2; k++) {
        archive.count = 0;
        for (uint32_t i = k * 20; i < (k == 0 ? 20 : SAMPLES); i++) {
            (void)snprintf(name, sizeof name, "%u", i);
            lkt_tar_sample(&archive, name, 7 + i % 4, i, (int)(i % 4));
        }
        lkt_tar_end(&archive);
        (void)snprintf(name, sizeof name, "%s/%u.tar", folder, k);
        lkt_write(name, archive.bytes, archive.count);
    }
}

#define PICTURES "?h=8&w=8&classes=4' --augment resized-crop=0.3,flip "
#define PIPED "--data 'stream:-?tar=1&h=8&w=8&classes=4' --augment resized-crop=0.3,flip "

static void archives_of_a_stream_are_those_of_files(void **state)
{
    static const char *const ways[] = {
        "cat [01].tar | " TRAIN PIPED "--steps 50 --workers 1",
        "(head -c 9000 0.tar; sleep 0.2; cat 0.tar 1.tar | tail -c +9001) | " TRAIN PIPED
        "--steps 50 --workers 3 --worker-mode threads",
        "cat [01].tar | " TRAIN PIPED "--steps 50 --workers 2 --hosts 2 --strategy zero3",
    };
    char want[65], got[65];
    make_archives(*state);
    run_line(*state, TRAIN "--data 'tar:{0..1}.tar" PICTURES "--order sequential --epochs 1 "
             "--workers 1", 0, want, NULL);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        run_line(*state, ways[i], 0, got, "--data ended the run after step 4 of 50");
        assert_string_equal(got, want);
    }
    run_line(*state, "cat [01].tar >all; " TRAIN PIPED "--steps 2 --workers 2 --checkpoint t <all",
             0, NULL, NULL);
    run_line(*state, TRAIN PIPED "--steps 50 --workers 3 --checkpoint t --resume <all", 0, got,
             "--data ended the run after step 4 of 50");
    assert_string_equal(got, want);
    run_line(*state, "head -c 23296 0.tar | " TRAIN PIPED "--steps 50 --workers 2", 1, NULL,
             "'stream:-' ends at byte 23296, inside the member '11.png' at byte 22528: it has ");
    run_line(*state, "rm -f q; mkfifo q && exec 3<>q && head -c 23296 0.tar >&3; " TRAIN PIPED
             "--steps 50 --workers 1 --worker-mode threads --timeout 0.3 <q", 1, NULL,
             "has not given a batch of 12 samples in 300 ms");
}

/* ---- Weights and labels --------------------------------------------------------------------- */

/* Writes a number for each image: `text` if its class is `which`, else `other`. */
static void write_weights(const char *folder, const char *name, size_t which, const char *text,
                          const char *other)
{
    char path[128], all[512] = "";
    for (size_t i = 0; i < SAMPLES; i++)
        (void)snprintf(all + strlen(all), sizeof all - strlen(all), "%s\n",
                       i % 4 == which ? text : other);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    lkt_write_text(path, all);
}

/* Checks weights in every precision.  Weights of 4 give the bits of no weights, weights of 0 give
 * the bits of ignored labels, and mixed weights give the same bits on any workers. */
static void weights_and_labels_count_alike_on_any_workers(void **state)
{
    static const char *const ways[] = {
        "--workers 1", "--workers 2 --strategy zero2", "--workers 3 --worker-mode threads",
        "--workers 3 --hosts 3 --strategy zero3",
    };
    static const char *const precisions[] = { "fp32", "bf16", "fp16" };
    char line[512], want[65], got[65], none[65];
    make_images(*state);
    write_weights(*state, "fours", 0, "4", "4");
    write_weights(*state, "zeros", 1, "0", "1");
    write_weights(*state, "mixed", 2, "0.3", "1.7");
#define IMAGES TRAIN "--data idx:images,labels --steps 6 --workers 1 "
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(line, sizeof line, IMAGES "--precision %s", precisions[i]);
        run_line(*state, line, 0, none, NULL);
        (void)snprintf(line, sizeof line, IMAGES "--precision %s --loss-weights fours",
                       precisions[i]);
        run_line(*state, line, 0, got, NULL);
        assert_string_equal(got, none);
    }
    run_line(*state, IMAGES "--loss-weights zeros", 0, want, NULL);
    run_line(*state, IMAGES "--ignore-label 1", 0, got, NULL);
    assert_string_equal(got, want);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        (void)snprintf(line, sizeof line, TRAIN "--data idx:images,labels --steps 6 "
                       "--loss-weights mixed --ignore-label 3 %s", ways[i]);
        run_line(*state, line, 0, got, NULL);
        if (i == 0)
            strcpy(want, got);
        assert_string_equal(got, want);
    }
    write_weights(*state, "zeros", 5, "1", "0");
    run_line(*state, IMAGES "--loss-weights zeros", 1, NULL, "no sample to train on has a weight");
    run_line(*state, IMAGES "--ignore-label 1 --validation 0.03 --split-seed 2", 1, NULL,
             "none of the 1 samples for validation counts for anything");
    run_line(*state, "head -c 120 records | " TRAIN STREAM("-") "--steps 1 --workers 1 "
             "--ignore-label -1", 0, NULL, NULL);
    run_line(*state, "(head -c 10 records; head -c 10 records) | " TRAIN STREAM("-")
             "--steps 1 --workers 2 --ignore-label 0", 1, NULL,
             "step 1: none of its 2 samples counts for anything, by their labels or weights");
}

/* Expects that a run is not continued with pixels of another mean. */
static void a_checkpoint_keeps_the_mean_of_the_pixels(void **state)
{
    char one[65], three[65], told[65];
    make_images(*state);
    run_line(*state, IMAGES "--checkpoint pixels", 0, one, NULL);
    run_line(*state, TRAIN "--data idx:images,labels --steps 6 --workers 3", 0, three, NULL);
    assert_string_equal(one, three);
    run_line(*state, IMAGES "--normalize source", 0, told, NULL);
    assert_string_not_equal(one, told);
    run_line(*state, "printf '\\377\\377' | dd of=images bs=1 seek=16 conv=notrunc status=none && "
             TRAIN "--data idx:images,labels --steps 8 --workers 1 --checkpoint pixels --resume", 2,
             NULL, "the mean of the pixels (--normalize) is [");
    make_images(*state);
}

/* ---- Tables ------------------------------------------------------------------------------- */

/* Writes a table of 50 rows: two columns of numbers, one of text, and targets of all kinds. */
static void make_table(const char *folder)
{
    char   text[4096] = "u,v,\"city, name\",price,rain,sun,class\n", path[128];
    size_t used       = strlen(text);
    for (int i = 1; i <= 50; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%d,0.%d,c%d,%d.5,%d,%d,k%d\n",
                                 i * i, i, i % 7, i % 9 - 4, i % 2, i % 3 / 2, i % 4);
    (void)snprintf(path, sizeof path, "%s/table.csv", folder);
    lkt_write_text(path, text);
}

#define TABLE "--data table.csv --validation 0.2 --eval-every 3 "

/* Checks each loss with tables on any number of workers, and that they differ. */
static void tables_and_losses(void **state)
{
    static const char *const losses[] = {
        TABLE "--target price", TABLE "--target price,u --loss huber --huber-delta 4",
        TABLE "--target rain,sun --loss bce", TABLE "--target class --label-smoothing 0.1",
        TABLE "--target rain --loss cross-entropy", TABLE "--target price --precision bf16",
        TABLE "--target price --normalize none --lr 0.000001",
    };
    char hashes[sizeof losses / sizeof losses[0]][65];
    make_table(*state);
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        same_on_any_workers(*state, losses[i], i % 3 == 0 && !lki_brief() ? 2 : 3, hashes[i]);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(hashes[i], hashes[k]);
    }
}

#define EVALUATES                                                                                \
    "'" LK_TEST_COMMAND "' train mlp --hidden 9 --global-batch 12 --steps 1 --workers 1 "        \
    "--lr 1e-30 --data table.csv --validation 0.2 "

/* Checks the errors of an evaluation, and that its loss is without label smoothing: the weights of
 * the three runs do not change. */
static void evaluations_report_what_suits_the_loss(void **state)
{
    static command_result r;
    double                loss = 0, rmse = 0, mae = 0;
    make_table(*state);
    run_line(*state, EVALUATES "--target price --log e", 0, NULL, "  RMSE ");
    (void)run_shell(&r, *state, "grep -o 'val_[^t]*' e | tr -d '\n'");
    const char *at = strstr(r.out, "val_loss\"");
    assert_true(at != NULL && sscanf(at, "val_loss\": %lf", &loss) == 1);
    assert_true((at = strstr(at, "val_rmse")) != NULL && sscanf(at, "val_rmse\": %lf", &rmse) == 1);
    assert_true((at = strstr(at, "val_mae")) != NULL && sscanf(at, "val_mae\": %lf", &mae) == 1);
    assert_true(fabs(rmse * rmse - loss) < 1e-6 * loss && mae > 0 && mae < rmse);
    run_line(*state, EVALUATES "--target class --log plain", 0, NULL, "  accuracy ");
    run_line(*state, EVALUATES "--target class --log smooth --label-smoothing 0.5", 0, NULL, NULL);
    run_line(*state, "for f in plain smooth; do grep -o 'val_loss_bits.*val_acc' $f >$f.bits; done;"
             " test -s plain.bits && cmp plain.bits smooth.bits", 0, NULL, NULL);
    run_line(*state, EVALUATES "--target rain,sun --loss bce", 0, NULL, "  accuracy ");
}

/* Checks that a run on a table goes on from a checkpoint, which has the columns, that a step can be
 * verified, and that a table with other numbers is refused. */
static void a_table_is_kept_in_the_checkpoint(void **state)
{
    char want[65], got[65];
    make_table(*state);
    run_line(*state, TRAIN TABLE "--target price --steps 6 --workers 1", 0, want,
             "  RMSE ");
    run_line(*state, TRAIN TABLE "--target price --steps 2 --workers 2 --checkpoint table", 0, NULL,
             NULL);
    run_line(*state, "tr -d '\\n ' <table/step-00000002/manifest.json | grep -q "
             "'\"levels\":\\[\"c0\",\"c1\",.*\"c6\"\\],\"name\":\"city,name\"'", 0, NULL, NULL);
    run_line(*state, TRAIN TABLE "--target price --steps 6 --workers 3 --checkpoint table --resume",
             0, got, NULL);
    assert_string_equal(got, want);
    run_line(*state, "'" LK_TEST_COMMAND "' verify table --step 6", 0, NULL, NULL);
    run_line(*state, TRAIN TABLE "--target u --steps 8 --workers 1 --checkpoint table --resume", 2,
             NULL, "target");
    run_line(*state, "sed -i 's/^[0-9]*,/5,/' table.csv && " TRAIN TABLE "--target "
             "price --steps 8 --workers 1 --checkpoint table --resume", 2, NULL, "columns");
    run_line(*state, TRAIN "--data table.csv --steps 1", 2, NULL, "--target must name the column");
    run_line(*state, TRAIN TABLE "--target price --steps 1 --label-smoothing 0.5", 2, NULL,
             "is for the loss cross-entropy");
}

/* Returns the first loss of a batch of all images, with `weights` as the weights of the classes. */
static double weighted_loss(const char *folder, const char *const weights[4])
{
    double losses[16];
    char   path[128], all[512] = "";
    for (size_t i = 0; i < SAMPLES; i++)
        (void)snprintf(all + strlen(all), sizeof all - strlen(all), "%s ", weights[i % 4]);
    (void)snprintf(path, sizeof path, "%s/classes", folder);
    lkt_write_text(path, all);
    run_line(folder, "rm -f log; " TRAIN "--data idx:images,labels --global-batch 48 --steps 1 "
             "--workers 2 --loss-weights classes --log log", 0, NULL, NULL);
    assert_int_equal(losses_of(folder, losses), 1);
    return losses[0];
}

static void a_weighted_loss_is_that_of_its_classes(void **state)
{
    static const char *const some[4] = { "0.5", "2", "0", "10" };
    static const double      share[4] = { 0.5 * 11, 2 * 10, 0 * 10, 10 * 10 };
    double                   want = 0, sum = 0;
    make_images(*state);
    for (size_t k = 0; k < 4; k++) {
        const char *one[4] = { "0", "0", "0", "0" };
        one[k]             = "1";
        want += share[k] * weighted_loss(*state, one);
        sum += share[k];
    }
    assert_true(fabs(weighted_loss(*state, some) - want / sum) < 1e-6 * want / sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(archives_give_the_same_bits),
        cmocka_unit_test(folders_give_the_same_bits),
        cmocka_unit_test(documents_weigh_by_their_tokens),
        cmocka_unit_test(a_stream_trains_on_its_samples_in_order),
        cmocka_unit_test(a_run_resumes_from_a_file_but_not_from_a_pipe),
        cmocka_unit_test(a_pausing_stream_times_out_and_can_be_stopped),
        cmocka_unit_test(bad_streams_are_refused),
        cmocka_unit_test(tokens_of_a_stream_give_the_same_bits),
        cmocka_unit_test(archives_of_a_stream_are_those_of_files),
        cmocka_unit_test(a_checkpoint_keeps_the_mean_of_the_pixels),
        cmocka_unit_test(tables_and_losses),
        cmocka_unit_test(evaluations_report_what_suits_the_loss),
        cmocka_unit_test(a_table_is_kept_in_the_checkpoint),
        cmocka_unit_test(weights_and_labels_count_alike_on_any_workers),
        cmocka_unit_test(a_weighted_loss_is_that_of_its_classes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
