"""python -m lockstep prepare: token files of JSON lines, texts and Parquet.

This needs no torch."""

import array
import gzip
import importlib.util
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

import support  # finds the package

TOKENIZER = str(support.ROOT / "tests/tokenizers/gpt2.json")
TEXTS = ["Once upon a time,\n", "there was <|endoftext|> in a text. ", "naïve café 中文", "x" * 5000]


def prepare(folder, *arguments, before=None):
    environment = dict(os.environ, PYTHONPATH=str(support.ROOT / "python"))
    return subprocess.run([sys.executable, "-m", "lockstep", "prepare", *arguments], cwd=folder,
                          capture_output=True, text=True, env=environment, preexec_fn=before)


def ids_of(folder):
    return [array.array("H", path.read_bytes()[1024:]).tolist()
            for path in sorted(folder.glob("*.bin"))]


class Prepare(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "in").mkdir()
        lines = "".join(json.dumps({"id": i, "text": text}) + "\n\n"
                        for i, text in enumerate(TEXTS[:2]))
        (self.folder / "in/b.jsonl").write_text(lines)
        with gzip.open(self.folder / "in/c.jsonl.gz", "wt") as file:
            file.write(json.dumps({"text": ""}) + "\n" + json.dumps({"text": TEXTS[2]}))
        (self.folder / "in/d.txt").write_text(TEXTS[3])
        (self.folder / "in/skipped.md").write_text("no")

    def run_it(self, out, *inputs, tokenizer=TOKENIZER, more=()):
        return prepare(self.folder, *inputs, "--tokenizer", tokenizer, "--out", out, *more)

    def refused(self, message, *inputs, **options):
        said = self.run_it("out", *inputs, **options)
        self.assertEqual(said.returncode, 1, said.stderr)
        self.assertIn(message, said.stderr)
        self.assertNotIn("Traceback", said.stderr)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith("out")], [])

    def tokenized(self, texts):
        names = []
        for i, text in enumerate(texts):
            names.append(self.folder / f"{i}.t")
            names[-1].write_text(text)
        subprocess.run([support.BUILD / "bin/lockstep", "tokenize", *names, "--documents",
                        "--tokenizer", TOKENIZER, "--out", self.folder / "ids"], check=True,
                       stdout=subprocess.DEVNULL)
        return array.array("H", (self.folder / "ids").read_bytes()[1024:]).tolist()

    def test_ids_are_those_of_tokenize(self):
        said = self.run_it("out", "in")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(ids_of(self.folder / "out"), [self.tokenized(TEXTS)])
        manifest = json.loads((self.folder / "out/manifest.json").read_text())
        self.assertEqual(manifest["documents"], 4)
        self.assertEqual(manifest["tokens"], len(ids_of(self.folder / "out")[0]))
        self.assertEqual([i["file"] for i in manifest["inputs"]],
                         ["b.jsonl", "c.jsonl.gz", "d.txt"])
        self.assertEqual(sorted(p.name for p in self.folder.glob("out*")), ["out"])
        log = self.folder / "log"
        source = f"shards:{self.folder}/out?vocab={manifest['vocabulary']}"
        subprocess.run([support.BUILD / "bin/lockstep", "train", "gpt", "--data", source,
                        "--steps", "1", "--layers", "1", "--width", "8", "--heads", "1",
                        "--context", "8", "--workers", "1", "--quiet", "--log", log],
                       check=True, stdout=subprocess.DEVNULL)
        self.assertIn('"step": 1', log.read_text())

    def test_the_hash_is_that_of_the_tokens(self):
        hashes = set()
        for out, key in (("a", 0), ("b", 0), ("c", 1)):
            (self.folder / "in/d.txt").write_text(TEXTS[3] + "y" * key)
            self.assertEqual(self.run_it(out, "in").returncode, 0)
            manifest = json.loads((self.folder / out / "manifest.json").read_text())
            hashes.add(manifest["content_hash"])
            self.assertRegex(manifest["content_hash"], "^[0-9a-f]{32}$")
            if out == "b":
                self.assertEqual(len(hashes), 1)
                for name in ("manifest.json", "000000.bin", "tokenizer.json"):
                    self.assertEqual(*((self.folder / o / name).read_bytes() for o in "ab"))
        self.assertEqual(len(hashes), 2)

    def test_shards_are_cut_between_documents(self):
        (self.folder / "in/e.txt").write_text("word " * 250_000)
        (self.folder / "in/f.txt").write_text("last")
        said = self.run_it("out", "in/e.txt", "in/f.txt", more=("--shard-mib", "1"))
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual([len(ids) > 0 for ids in ids_of(self.folder / "out")], [True, True])
        self.assertEqual(ids_of(self.folder / "out")[1], self.tokenized(["last"]))

    def test_what_cannot_be_read_is_refused_and_nothing_is_left(self):
        (self.folder / "bad.jsonl").write_text('{"text": "a"}\n{"text": ')
        self.refused("bad.jsonl, line 2: Expecting value", "in", "bad.jsonl")
        (self.folder / "bad.jsonl").write_bytes(b'{"text": "\xff"}')
        self.refused("bad.jsonl, line 1: 'utf-8' codec", "bad.jsonl")
        whole = gzip.compress(b'{"text": "a"}\n')
        for damaged in (whole[:-9], whole[:10] + b"\xff" * 20):
            (self.folder / "bad.jsonl.gz").write_bytes(damaged)
            self.refused("bad.jsonl.gz, after line ", "bad.jsonl.gz")
        (self.folder / "bad.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
        self.refused("bad.jsonl, line 2 is no object with the member 'text'", "bad.jsonl")
        (self.folder / "bad.jsonl").write_text('{"text": 3}')
        self.refused("bad.jsonl, document 1: 'text' is no text but int", "bad.jsonl")
        (self.folder / "bad.jsonl").write_text('{"text": "\\ud800"}')
        self.refused("half a character", "bad.jsonl")
        self.refused("no such file", "nowhere")
        self.refused("the ending is none of", "in/skipped.md")
        self.refused("cannot be read as a tokenizer.json", "in", tokenizer="in/d.txt")
        (self.folder / "t.json").write_text('{"added_tokens": [], "model": {"vocab": {"a": 0}}}')
        self.refused("no end of text", "in", tokenizer="t.json")
        (self.folder / "t.json").write_text(
            '{"added_tokens": [{"content": "</s>", "id": 1}], "model": {"vocab": {"a": 0}}}')
        self.refused("t.json", "in", tokenizer="t.json")  # the command's own message
        (self.folder / "empty.txt").write_text("")
        self.refused("no document", "empty.txt")

    def test_lines_that_are_no_json_are_refused(self):
        for line, message in (('{"text": "a", "y": %s}' % ("[" * 100_000 + "]" * 100_000),
                               "line 2 nests arrays or objects too deep"),
                              ('{"text": "a", "y": [NaN]}', "line 2: NaN is no number"),
                              ('{"text": "a", "y": -Infinity}', "line 2: -Infinity is no number"),
                              ('{"text": "a", "text": "b"}', "line 2: the member 'text' is there"),
                              ('{"text": "a", "x": {"y": 1, "z": 2, "y": 3}}',
                               "line 2: the member 'y' is there twice"),
                              ('{"text": %s}' % ("1" * 6000), "'text' is no text but int")):
            (self.folder / "bad.jsonl").write_text('{"text": "a"}\n' + line + "\n")
            self.refused("bad.jsonl, ", "bad.jsonl")
            self.refused(message, "bad.jsonl")
        (self.folder / "t.json").write_text("[" * 100_000)
        self.refused("cannot be read as a tokenizer.json", "in", tokenizer="t.json")

    def test_other_members_are_ignored(self):
        (self.folder / "a.jsonl").write_text(
            '{"text": "a\\u0000b", "x": %s, "y": [-7, 1e999, {}], "z": "\\u0000"}\n' % ("1" * 6000))
        said = self.run_it("out", "a.jsonl")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(ids_of(self.folder / "out"), [self.tokenized(["a\0b"])])

    def test_what_cannot_be_written_is_named(self):
        said = prepare(self.folder, "in", "--tokenizer", TOKENIZER, "--out", "out",
                       before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        self.assertEqual(said.stderr, "lockstep: cannot write out.partial: File too large\n")
        said = self.run_it("/proc/out", "in")
        self.assertRegex(said.stderr, "^lockstep: /proc/out.partial: [A-Z][a-z ]+\n$")
        self.assertFalse((self.folder / "out.partial").exists())

    def test_a_folder_that_exists_is_kept(self):
        (self.folder / "kept").mkdir()
        said = self.run_it("kept", "in")
        self.assertEqual((said.returncode, "exists" in said.stderr), (1, True))
        self.assertEqual(list((self.folder / "kept").iterdir()), [])

    def test_the_rest_of_a_killed_process_is_replaced(self):
        (self.folder / "out.partial").mkdir()
        (self.folder / "out.partial/000007.bin").write_text("half")
        self.assertEqual(self.run_it("out", "in").returncode, 0)
        self.assertEqual(ids_of(self.folder / "out"), [self.tokenized(TEXTS)])

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "this Python has no pyarrow")
    def test_parquet_gives_the_ids_of_its_column(self):
        import pyarrow
        from pyarrow import parquet
        table = pyarrow.table({"n": [1, 2, 3, 4], "body": TEXTS})
        parquet.write_table(table, self.folder / "t.parquet")
        said = self.run_it("out", "t.parquet", more=("--text-key", "body"))
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(ids_of(self.folder / "out"), [self.tokenized(TEXTS)])
        (self.folder / "out").rename(self.folder / "done")
        self.refused("no column 'text', but n, body", "t.parquet")
        (self.folder / "t.parquet").write_bytes(b"PAR1 damaged")
        self.refused("t.parquet: ", "t.parquet")

    @unittest.skipUnless(importlib.util.find_spec("pyarrow") is None, "this Python has pyarrow")
    def test_parquet_needs_pyarrow(self):
        (self.folder / "t.parquet").write_bytes(b"PAR1")
        self.refused("needs the package pyarrow", "t.parquet")


if __name__ == "__main__":
    unittest.main()
