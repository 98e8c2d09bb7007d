"""Statements: honest runs are verified, forged ones are found and named; needs no torch.

Method: a run of six steps with checkpoints of steps 2, 4 and 6.  Each forger makes manifest and
statement anew, so that all hashes fit, and only a replay or the data show the forgery.
"""

import ctypes
import ctypes.util
import hashlib
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from support import BUILD, environment

COMMAND = str(BUILD / "bin" / "lockstep")
OPTIONS = ("gpt --data text:t.txt --layers 1 --width 8 --heads 1 --context 8 --global-batch 4 "
           "--micro-batch 1 --steps 6 --threads 1").split()
STEPS = 2, 4, 6
TEXT = "".join(chr(97 + i * i % 23) for i in range(600))


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3(library, data):
    """Return XXH3-128 in hexadecimal, as manifests have it."""
    function = ctypes.CDLL(library).XXH3_128bits
    function.restype, function.argtypes = Hash128, [ctypes.c_char_p, ctypes.c_size_t]
    value = function(data, len(data))
    return f"{value.high:016x}{value.low:016x}"


def sha256(*lines):
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def chain(text, change):
    """Change a statement, and make its links anew, as docs/attest.md describes them."""
    # Numbers stay as they are written, because another JSON library may write them otherwise.
    root = json.loads(text, parse_float="#{}#".format)
    change(root)
    rest = {key: value for key, value in root.items() if key not in ("losses", "checkpoints")}
    written = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    link, first = sha256(re.sub('"#|#"', "", written)), 0
    for checkpoint in root["checkpoints"]:
        losses = [f"{i + 1} {root['losses'][i]}" for i in range(first, checkpoint["step"])]
        link = sha256(link, *losses, checkpoint["weights"], checkpoint["manifest"])
        checkpoint["link"], first = link, checkpoint["step"]
    return re.sub('"#|#"', "", json.dumps(root, ensure_ascii=False))


class Attest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        (self.folder / "t.txt").write_text(TEXT)
        self.train("run", "--checkpoint-every", "2", "--workers", "2", "--log", "log")
        shutil.move(self.folder / "log", self.folder / "run" / "log.jsonl")

    def call(self, status, *line):
        done = subprocess.run(line, cwd=self.folder, env=environment(), capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, status, (line, done.stdout, done.stderr))
        return done.stdout

    def train(self, run, *more):
        self.call(0, COMMAND, "train", *OPTIONS, "--checkpoint", run, *more)

    def verify(self, status, *more):
        return self.call(status, COMMAND, "verify", "run.attest.json", "--segments", "all",
                         "--workers", "1", "--threads", "1", *more)

    def attest(self, *more):
        self.call(0, COMMAND, "attest", "run", *more)

    def refuse(self, says):
        failed = subprocess.run([COMMAND, "attest", "run"], cwd=self.folder, env=environment(),
                                capture_output=True, text=True)
        self.assertEqual(failed.returncode, 1)
        self.assertIn(says, failed.stderr)
        self.assertFalse((self.folder / "run.attest.json").exists())

    def rewrite(self, step, change):
        """Change the manifest of a step, with the hash that it has of itself."""
        path = self.folder / "run" / f"step-{step:08}" / "manifest.json"
        lines = change(path.read_text()).split("\n")
        rest = "\n".join(lines[:1] + lines[2:])
        lines[1] = f' "manifest_sha256": "{hashlib.sha256(rest.encode()).hexdigest()}",'
        path.write_text("\n".join(lines))

    def forge_losses(self, step):
        """Make the manifest of a step have the hash over the losses of the log."""
        lines = map(json.loads, (self.folder / "run" / "log.jsonl").read_text().splitlines())
        found = ""
        for bits in [line["loss_bits"] for line in lines if "loss_bits" in line][:step]:
            found = hashlib.sha256((found + bits).encode()).hexdigest()
        self.rewrite(step, lambda text: re.sub('"loss-chain": "[0-9a-f]*"',
                                               f'"loss-chain": "{found}"', text))

    def test_progress_on_a_terminal(self):
        self.attest()
        ours, theirs = pty.openpty()
        subprocess.run([COMMAND, "verify", "run.attest.json", "--segments", "1", "--seed", "1",
                        "--workers", "1", "--threads", "1"], cwd=self.folder, stderr=theirs,
                       stdout=subprocess.DEVNULL, env=environment(TERM="xterm"), check=True)
        os.close(theirs)
        shown = os.read(ours, 1 << 16).decode()
        os.close(ours)
        self.assertIn("hashing the data", shown)
        self.assertIn("reading the checkpoint of step 2", shown)
        self.assertTrue(shown.endswith("\r\033[K"), shown)

    def test_honest(self):
        self.attest()
        out = self.verify(0)
        self.assertIn("signature: none", out)
        self.assertEqual(out.count("  equal\n"), 3)
        shutil.rmtree(self.folder / "run" / "step-00000004")
        out = self.verify(0, "--checkpoint", "run", "--workers", "4")
        self.assertIn("steps 3-6:\n  equal", out)
        out = self.verify(1, "--workers", "5")  # more than there are virtual workers
        self.assertIn("\nnot verified: 3 of the segments could not be replayed\n", out)

    def test_signature(self):
        if shutil.which("ssh-keygen") is None:
            self.skipTest("no ssh-keygen (openssh-client)")
        for name in "k", "other":
            self.call(0, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name)
            key = (self.folder / f"{name}.pub").read_text()
            (self.folder / f"{name}.signers").write_text(f"me {key}")
        self.attest("--key", "k")
        line = ["verify", "run.attest.json", "--identity", "me", "--signers"]
        self.assertIn("signature: good, by me", self.call(0, COMMAND, *line, "k.signers"))
        piped = f"'{COMMAND}' {' '.join(line)} <(cat k.signers)"
        self.assertIn("signature: good, by me", self.call(0, "bash", "-c", piped))
        self.assertIn("not signed by a key of me", self.call(1, COMMAND, *line, "other.signers"))
        statement = self.folder / "run.attest.json"
        statement.write_text(statement.read_text().replace('"lockstep": "', '"lockstep": "9'))
        self.assertIn("signature: not good", self.call(1, COMMAND, *line, "k.signers"))

    def test_nudged_weights(self):
        """A weight of the last checkpoint is changed, and all its hashes are made anew."""
        found = ctypes.util.find_library("xxhash")
        if found is None:
            self.skipTest("no libxxhash, with which the forger makes hashes")
        path = self.folder / "run" / "step-00000006" / "model.safetensors"
        before = hashlib.sha256(path.read_bytes()).hexdigest()
        data = bytearray(path.read_bytes())
        data[-4:] = struct.pack("<f", struct.unpack("<f", data[-4:])[0] + 0.5)
        path.write_bytes(data)
        manifest = json.loads((path.parent / "manifest.json").read_text())
        block = next(f for f in manifest["files"] if f["name"] == path.name)["xxh3_128"][0]
        self.rewrite(6, lambda text: text.replace(
            before, hashlib.sha256(data).hexdigest()).replace(block, xxh3(found, bytes(data))))
        failed = subprocess.run([COMMAND, "attest", "run"], cwd=self.folder, env=environment(),
                                capture_output=True, text=True)
        weights = re.search("have the hash ([0-9a-f]{64})", failed.stderr)
        self.assertIsNotNone(weights, failed.stderr)
        self.rewrite(6, lambda text: text.replace(manifest["weights"], weights[1]))
        self.refuse("the last line of the log 'run/log.jsonl' has weights")
        log = self.folder / "run" / "log.jsonl"
        log.write_text(log.read_text().replace(manifest["weights"], weights[1]))
        self.attest()
        out = self.verify(1)
        self.assertIn("not equal: the weights after step 6", out)
        self.assertRegex(out, "checkpoint of step 6.*, tensor ")
        self.assertIn("tensors that differ: 1, with 1 elements", out)

    def test_skipped_batch(self):
        """The state after step 4 counts as that after step 5."""
        run = self.folder / "run"
        shutil.rmtree(run / "step-00000006")
        (run / "step-00000004").rename(run / "step-00000005")
        self.rewrite(5, lambda text: text.replace('"step": 4,', '"step": 5,'))
        self.train("run", "--resume=5", "--workers", "1", "--log", "rest")
        lines = (run / "log.jsonl").read_text().splitlines()
        rest = (self.folder / "rest").read_text().splitlines()
        (run / "log.jsonl").write_text("\n".join(
            [line for line in lines if json.loads(line)["step"] <= 5]
            + [line for line in rest if '"loss"' in line]) + "\n")
        self.refuse("the checkpoint of step 5 is not of the run with these losses")
        self.forge_losses(5)
        self.forge_losses(6)
        self.attest()
        out = self.verify(1)
        self.assertIn("segment 2 of 3, steps 3-5:\n  not equal: the weights after step 5", out)

    def test_seed(self):
        """Another seed in the record of a run contradicts checkpoints that do not have it."""
        path = self.folder / "run" / "command.json"
        record = json.loads(path.read_text())
        record["options"]["seed"] = "1"
        path.write_text(json.dumps(record))
        self.refuse("--seed is 1, but the checkpoint was made with 0")
        for step in STEPS:
            self.rewrite(step, lambda text: text.replace('"seed": "0"', '"seed": "1"')
                         .replace('"seed": 0,', '"seed": 1,'))
        self.attest()
        self.assertIn("not equal: step 1 is the first with another loss", self.verify(1))

    def test_sample(self):
        self.attest()
        (self.folder / "t.txt").write_text(TEXT[:100] + "Z" + TEXT[101:])
        self.assertIn("data: not equal", self.verify(1))

    def loss_of(self, worker):
        out = self.call(0, COMMAND, "verify", "run", "--step", "2", "--virtual-worker", worker)
        return re.search("loss ([^ ]*)", out)[1]

    def content(self):
        """Return the hash of the data that the checkpoints name."""
        manifest = json.loads((self.folder / "run/step-00000002/manifest.json").read_text())
        return manifest["config"]["data"]["content"]

    def swap_sample(self):
        """Train with a sample of step 2 changed, and make all manifests name the honest data."""
        honest = [self.loss_of(worker) for worker in "01"]
        content = self.content()
        shutil.rmtree(self.folder / "run")
        (self.folder / "t.txt").write_text(TEXT[:340] + "Z" + TEXT[341:])
        self.train("run", "--checkpoint-every", "2", "--workers", "2", "--log", "log")
        shutil.move(self.folder / "log", self.folder / "run" / "log.jsonl")
        forged = [self.loss_of(worker) for worker in "01"]
        (self.folder / "t.txt").write_text(TEXT)
        self.refuse("--data text:t.txt is not the data of the checkpoint")
        other = self.content()
        for step in STEPS:
            self.rewrite(step, lambda text: text.replace(other, content))
        self.assertEqual(honest[0], forged[0])
        self.assertNotEqual(honest[1], forged[1])
        return honest[1], forged[1]

    def test_swapped_sample(self):
        """The virtual worker is named, with the losses that it has when it is computed alone."""
        honest, forged = self.swap_sample()
        self.attest()
        out = self.verify(1)
        self.assertIn("data: equal", out)
        self.assertIn("not equal: step 2 is the first with another loss", out)
        self.assertIn("not equal: virtual worker 1 is the first with another loss in step 2: "
                      f"stated {forged}, replayed {honest}\n", out)

    def test_losses_of_virtual_workers(self):
        """A loss is changed, in a statement of each kind, and the chain is made anew."""
        self.attest()
        path = self.folder / "run.attest.json"
        text = path.read_text()

        def change(root):
            loss = root["losses"][2]
            self.assertEqual(len(loss), 16 * 5)
            root["losses"][2] = f"{loss[:-17]}{'01'[loss[-17] == '0']}{loss[-16:]}"

        def shorten(root):
            root["losses"][2] = root["losses"][2][:-16]

        def old(root):
            root.update(version=1, losses=[loss[:16] for loss in root["losses"]])

        def old_and_changed(root):
            old(root)
            root["losses"][2] = f"{root['losses'][2][:-1]}f"

        cases = ((change, "not equal: virtual worker 2 is the first with another loss in step 3"),
                 (shorten, "not equal: step 3 is the first with another loss"),
                 (old, None),
                 (old_and_changed, "virtual worker: the statement does not show which"))
        for forge, says in cases:
            with self.subTest(forge.__name__):
                path.write_text(chain(text, forge))
                out = self.verify(0 if says is None else 1)
                self.assertIn(says or "\nequal\n", out)
        root = json.loads(text)
        change(root)
        path.write_text(json.dumps(root))
        failed = subprocess.run([COMMAND, "verify", str(path)], env=environment(),
                                capture_output=True, text=True)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("the statement was changed", failed.stderr)

    def test_logs_without_virtual_workers(self):
        """Many virtual workers would make lines long, and clients are none."""
        model = "gpt --data text:t.txt --layers 1 --width 8 --heads 1 --context 4 --steps 1"
        for more in ("--virtual-workers 128 --global-batch 128",
                     "--clients 4 --client-fraction 0.5 --client-batch 1"):
            log = self.folder / more
            self.call(0, COMMAND, "train", *model.split(), *more.split(), "--threads", "1",
                      "--log", str(log))
            text = log.read_text()
            self.assertIn('"loss_bits"', text)
            self.assertNotIn("virtual_losses", text)

    def test_data_changed_while_training(self):
        (self.folder / "t.txt").write_text(TEXT[:100] + "Z" + TEXT[101:])
        self.call(0, COMMAND, "resume", "run", "--steps", "8", "--log", "run/log.jsonl",
                  "--changed-data")
        self.call(1, COMMAND, "attest", "run")

    def test_other_files_are_kept(self):
        self.call(1, COMMAND, "attest", "run", "--out", "t.txt")
        self.assertEqual((self.folder / "t.txt").read_text(), TEXT)
        self.attest()
        self.attest()

    def test_draw(self):
        """The segments are another choice each time, and the same with a seed."""
        self.attest()
        first = [line for line in self.draw() if line.startswith("segment")]
        self.assertEqual(len(first), 2)
        seeds = {self.draw("--segments", "1")[0] for _ in range(2)}
        self.assertEqual(len(seeds), 2)
        self.assertEqual(self.draw("--seed", "5"), self.draw("--seed", "5"))

    def draw(self, *more):
        out = self.call(0, COMMAND, "verify", "run.attest.json", "--workers", "1", "--segments",
                        "2", *more)
        return out[out.index("seed "):].splitlines()

    def test_missing_key(self):
        self.call(1, COMMAND, "attest", "run", "--key", "nowhere")
        self.assertFalse((self.folder / "run.attest.json").exists())


if __name__ == "__main__":
    unittest.main()
