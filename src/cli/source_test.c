/* source_test.c -- the kind of a data source from its ending, its first bytes or its folder.
 *
 * Method: files and folders of each kind in a folder of the test, and for each the source or a part
 *         of the message.  Also the spellings of torchrun and mpirun, argument by argument.
 */
#include "cli/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/foreign.h"

static const char script[] =
    "printf 'Once upon' >book.txt; printf 'int x;' >a.c; printf '{}' >a.jsonl; "
    "printf 'a\\000b' >odd.x; printf 'ab' >ids.u16; printf 'ab' >train.bin; "
    "printf '\\200\\000\\065\\001\\001\\000\\000\\000ab' >w; printf 'x' >m.safetensors; "
    "touch lines.jsonl.gz book.txt.gz; printf 'x' >t.parquet; printf 'x' >t.tsv; "
    "mkfifo pipe; mkdir texts src ids cifar mnist both arrays sets; "
    "touch texts/a.txt texts/README src/a.c ids/a.bin ids/README.md; "
    "touch cifar/data_batch_1.bin cifar/test_batch.bin; "
    "touch both/a.txt both/a.u16 arrays/x.npy; printf 'a.txt' >t.tar; printf 'a.jpg' >p.tar; "
    "for s in train t10k; do touch mnist/$s-images-idx3-ubyte.gz mnist/$s-labels-idx1-ubyte.gz; "
    "done; printf '\\000\\000\\010\\003' >x-images; touch x-labels; "
    "printf '\\000\\000\\010\\003' >lone; mkdir -p net/train/cat pets/cat pets/dog; "
    "touch net/train/cat/1.JPEG pets/dog/x.png; mkdir run step model begun; "
    "touch run/command.json step/manifest.json step/model.safetensors model/config.json "
    "model/model.safetensors; mkdir begun/step-00000001; touch begun/step-00000001/manifest.json; "
    "mkdir made; touch made/tokens-00000.bin made/manifest.json made/tokenizer.json";

static const struct {
    const char *given, *source, *message;
} cases[] = {
    { "book.txt", "text:book.txt", NULL },
    { "text:nowhere", "text:nowhere", NULL },
    { "a.c", "text:a.c", NULL },
    { "a.jsonl", "docs:a.jsonl", NULL },
    { "t.tsv", "csv:t.tsv", NULL },
    { "ids.u16", "tokens:ids.u16", NULL },
    { "t.tar", "docs:t.tar", NULL },
    { "p.tar", "tar:p.tar", NULL },
    { "x-images", "idx:x-images,x-labels", NULL },
    { "mnist/t10k-labels-idx1-ubyte.gz",
      "idx:mnist/t10k-images-idx3-ubyte.gz,mnist/t10k-labels-idx1-ubyte.gz", NULL },
    { "x.npy,y.npy", "npy:x.npy,y.npy", NULL },
    { "-", "stream:-", NULL },
    { "texts", "text:texts", NULL },
    { "src", "text:src", NULL },
    { "net", "folder:net", NULL },
    { "pets", "folder:pets", NULL },
    { "ids", "shards:ids", NULL },
    { "cifar", "cifar10:cifar", NULL },
    { "mnist", "idx:mnist/train-images-idx3-ubyte.gz,mnist/train-labels-idx1-ubyte.gz", NULL },
    { "lone", NULL, "write idx:IMAGES,LABELS" },
    { "both", NULL, "several kinds; write text:both (for a.txt) or shards:both (for a.u16)" },
    { "arrays", NULL, "write npy:X.npy,Y.npy" },
    { "train.bin", NULL, "tokens:FILE?width=16" },
    { "odd.x", NULL, "is not text" },
    { "m.safetensors", NULL, "--init FILE" },
    { "t.parquet", NULL, "docs:FILE" },
    { "pipe", NULL, "stream:PATH" },
    { "nowhere", NULL, "there is no such file or folder" },
    { "ids.u16?vocab=5", NULL, "a kind before them" },
    { "tockens:ids.u16", NULL, "did you mean tokens" },
    { "https://host/book.txt", NULL, "nothing is downloaded: download it first" },
    { "text:https://host/book.txt", NULL, "nothing is downloaded: download it first" },
    { "lines.jsonl.gz", NULL, "`python -m lockstep prepare` makes token files of it" },
    { "docs:lines.jsonl.gz", NULL, "`python -m lockstep prepare` makes token files of it" },
    { "book.txt.gz", NULL, "is packed; unpack it first (gunzip)" },
    { "run", NULL, "is the directory of a run, not data" },
    { "begun", NULL, "is the directory of a run, not data" },
    { "step", NULL, "has the weights of a model (model.safetensors), not data" },
    { "model", NULL, "has the weights of a model (model.safetensors), not data" },
    { "made", "shards:made", NULL },
    { "text:run", "text:run", NULL },
};

static void sources_are_recognised(void **state)
{
    char folder[] = "/tmp/lockstep-source-XXXXXX", before[1024], remove[64];
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(system(script), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char        out[LKI_SOURCE_BYTES];
        lki_message error  = { "" };
        const char *source = lki_source_of(cases[i].given, out, &error);
        if (cases[i].source != NULL && source == NULL)
            fail_msg("%s: %s", cases[i].given, error.text);
        if (cases[i].source != NULL)
            assert_string_equal(source, cases[i].source);
        else if (source != NULL || strstr(error.text, cases[i].message) == NULL)
            fail_msg("%s: %s", cases[i].given, source != NULL ? source : error.text);
    }
    assert_int_equal(chdir(before), 0);
    (void)snprintf(remove, sizeof remove, "rm -rf %s", folder);
    assert_int_equal(system(remove), 0);
}

static void run_reads_the_spellings_of_others(void **state)
{
    static const struct {
        const char *given[8], *want[8];
    } lines[] = {
        { { "run", "--nproc_per_node=2", "--standalone", "p", "-np" },
          { "run", "--workers=2", "p", "-np" } },
        { { "run", "-np", "3", "--", "--np", "4" }, { "run", "--workers=3", "--", "--np", "4" } },
        { { "run", "--rdzv-endpoint", "h:29400", "--rdzv_backend=c10d", "-n", "1", "p" },
          { "run", "--rendezvous=tcp://h:29400", "-n", "1", "p" } },
        { { "run", "--no-prefix", "--np=2", "--bind", "none", "p" },
          { "run", "--no-prefix", "--workers=2", "--bind", "none", "p" } },
        { { "run", "--nproc-per-node" }, { "run", "--workers" } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        int given = 0, count = 0;
        while (lines[i].given[given] != NULL)
            given++;
        char **out = lki_foreign_run(given, (char **)(uintptr_t)lines[i].given, &count);
        assert_non_null(out);
        for (int k = 0; k < count; k++)
            assert_string_equal(out[k], lines[i].want[k]);
        assert_null(lines[i].want[count]);
        lki_foreign_free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_are_recognised),
        cmocka_unit_test(run_reads_the_spellings_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
