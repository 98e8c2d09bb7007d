"""Rank 0 writes the log: JSON lines, and scalars for TensorBoard, where that is installed."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

from support import BUILD, environment, launch

PROGRAM = """
    import os, pathlib, signal, sys, time
    import torch, torch.nn.functional as F
    import lockstep.torch as lk

    if os.environ.get("WITHOUT"):
        sys.modules["tensorboard"] = None   # importing it fails

    def loss_sum(model, batch):
        x, y = batch
        out = model(x)
        return F.cross_entropy(out, y, reduction="sum"), len(y), int((out.argmax(1) == y).sum())

    run = lk.init(int(os.environ.get("SEED", 0)), virtual_workers=2,
                  log=os.environ.get("LOG", "log.jsonl"), tensorboard=os.environ.get("BOARD"))
    model = run.prepare(torch.nn.Linear(4, 2))
    opt = lk.SGD(model.parameters(), lr=0.5)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    points = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    data = run.loader(points, global_batch=8)
    run.resume(os.environ.get("SAVED", "saved"), model, opt)
    for step in run.steps(int(os.environ.get("STEPS", 4))):
        run.log(run.step(loss_sum, data, opt), lr=0.5, note="text")
        if step == 1:
            run.save(os.environ.get("SAVED", "saved"))
    run.log(run.evaluate(loss_sum, points), more=float("nan"))
    if os.environ.get("HASH"):
        run.weights_hash()
    if os.environ.get("DIES") and run.rank == 1:
        while '"val_loss"' not in pathlib.Path("log.jsonl").read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    while os.environ.get("WAITS") and not os.path.exists("closed"):
        time.sleep(0.01)
"""


class Said(io.StringIO):
    """Standard error that calls a function when it gets a text."""

    def __init__(self, text, then):
        super().__init__()
        self._text, self._then = text, then

    def write(self, text):
        if self._text in text:
            self._then()
        return super().write(text)


class Pipes(unittest.TestCase):
    MUCH = b"0123456789" * 30000   # more than a pipe holds

    def setUp(self):
        from lockstep.torch.log_pipe import Pipe
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "pipe")
        os.mkfifo(self.path)
        self.reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.open = lambda limit_s=None, stops=False: Pipe(self.path, limit_s, lambda: stops)

    def read_much(self):
        os.set_blocking(self.reader, True)
        self.got = b""
        while len(self.got) < len(self.MUCH):
            self.got += os.read(self.reader, 1 << 16)

    def test_a_reader_that_reads_late(self):
        """It reads when the run has said that it waits."""
        thread = threading.Thread(target=self.read_much)
        with contextlib.redirect_stderr(Said("waiting for the reader", thread.start)) as said:
            self.open().write(self.MUCH)
        thread.join()
        self.assertEqual(self.got, self.MUCH)
        self.assertEqual(said.getvalue().count("is a full pipe, whose reader does not read"), 1)
        os.close(self.reader)

    def test_a_reader_that_does_not_read(self):
        from lockstep._library import Error
        with self.assertRaisesRegex(Error, "pipe' is a full pipe, whose reader does not read"):
            self.open(limit_s=0.1).write(self.MUCH)
        with contextlib.redirect_stderr(io.StringIO()) as said:   # the run is to stop
            self.open(stops=True).write(self.MUCH)
        self.assertIn("it lacks its last lines", said.getvalue())
        pipe = self.open()
        os.close(self.reader)
        with self.assertRaisesRegex(Error, "nobody reads the log '.*' any more"):
            pipe.write(b"x")


class ClosedStreams(unittest.TestCase):
    PROGRAM = """if True:
        import os, sys
        import lockstep
        with open("log", "w") as log:
            assert log.fileno() > 2, log.fileno()
            for fd in map(int, sys.argv[1:]):
                try:
                    os.write(fd, b"for the terminal")
                except OSError:
                    continue
                sys.exit("it was written")
    """

    def test_no_file_takes_their_place(self):
        for closed, which in (("2>&-", "2"), (">&-", "1"), ("<&- 2>&-", "0 2")):
            with self.subTest(closed), tempfile.TemporaryDirectory() as folder:
                ended = subprocess.run(
                    ["sh", "-c", f'exec "$0" -c "$1" {which} {closed}', sys.executable,
                     self.PROGRAM], cwd=folder, env=environment(), capture_output=True,
                    text=True, check=False)
                self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
                self.assertEqual(pathlib.Path(folder, "log").read_text(), "")


class Logs(unittest.TestCase):
    def run_program(self, folder, **env):
        ended = launch(PROGRAM, 2, folder=folder, env=env)
        self.assertEqual(ended.status, 0, ended.err)

    def read(self, folder):
        return [json.loads(line, parse_constant=self.fail) for line in
                pathlib.Path(folder, "log.jsonl").read_text().splitlines()]

    def test_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_program(folder, HASH=1)
            head, *steps, evaluation, end = self.read(folder)
            shown = subprocess.run([BUILD / "bin" / "lockstep", "top", "log.jsonl"], cwd=folder,
                                   capture_output=True, text=True, env=environment(), check=False)
        self.assertEqual((head["step"], head["steps"], len(head["ranks"])), (0, 4, 2))
        self.assertEqual(head["config"]["data"]["global_batch"], 8)
        self.assertEqual([line["step"] for line in steps], [1, 2, 3, 4])
        for line in steps:
            self.assertEqual(struct.unpack(">d", bytes.fromhex(line["loss_bits"]))[0],
                             line["loss"])
        for name in ("grad_norm", "count", "hits", "step_ms", "samples_per_s", "lr", "note"):
            self.assertIn(name, steps[0])
        self.assertEqual(sorted(evaluation), ["more", "step", "time", "val_accuracy",
                                              "val_count", "val_hits", "val_loss",
                                              "val_loss_bits"])
        self.assertIsNone(evaluation["more"])
        self.assertEqual((end["step"], len(end["weights"])), (4, 64))
        self.assertIn("step 4/4", shown.stdout)
        self.assertIn("weights " + end["weights"], shown.stdout)

    def test_no_log_is_lost(self):
        """A run that is resumed goes on in its log.  One that begins replaces no other log."""
        with tempfile.TemporaryDirectory() as folder:
            self.run_program(folder)
            self.run_program(folder, STEPS=6)
            lines = self.read(folder)
            self.assertEqual([line["step"] for line in lines if "loss" in line],
                             [1, 2, 3, 4, 5, 6])
            self.assertEqual(sum("weights" in line for line in lines), 1)
            shutil.rmtree(pathlib.Path(folder, "saved"))
            ended = launch(PROGRAM, 2, folder=folder)
            self.assertNotEqual(ended.status, 0)
            self.assertIn("the log 'log.jsonl' is that of this run, which has ended, with step 6",
                          ended.err)
            self.assertEqual(self.read(folder), lines)
            log = pathlib.Path(folder, "log.jsonl")   # as if it had been killed
            log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
            ended = launch(PROGRAM, 2, folder=folder)
            self.assertEqual(ended.status, 0, ended.err)
            self.assertIn("begins the log 'log.jsonl' again", ended.out)
            self.assertEqual(len(self.read(folder)), 7)

    def test_a_resumed_run_cuts_its_own_log_only(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_program(folder, SEED=2, SAVED="other", STEPS=2)
            pathlib.Path(folder, "log.jsonl").unlink()
            self.run_program(folder)
            lines = self.read(folder)
            ended = launch(PROGRAM, 2, folder=folder, env={"SEED": 2, "SAVED": "other"})
            self.assertEqual(ended.status, 1, ended.err)
            self.assertIn("the log 'log.jsonl' is that of another run, with step 4", ended.err)
            self.assertEqual(self.read(folder), lines)

    def test_a_run_whose_end_fails_has_not_ended(self):
        """A worker is lost while the others wait for it at the end of the program."""
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(PROGRAM, 2, folder=folder, env={"DIES": 1})
            self.assertNotEqual(ended.status, 0)
            self.assertNotIn("weights", self.read(folder)[-1])

    def test_a_log_may_be_a_pipe(self):
        with tempfile.TemporaryDirectory() as folder:
            path, read = pathlib.Path(folder, "log.jsonl"), []
            os.mkfifo(path)
            reader = threading.Thread(target=lambda: read.append(path.read_text()))
            reader.start()
            self.run_program(folder)
            reader.join()
            self.assertEqual(len(read[0].splitlines()), 7)

    def test_a_log_that_cannot_be_written(self):
        """Its name is in the error, also if only the last line is lost."""
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(PROGRAM, 2, folder=folder, env={"LOG": "/dev/full"})
            self.assertEqual(ended.status, 1)
            self.assertIn("cannot write the log '/dev/full': [Errno 28]", ended.err)
        for workers in 1, 2:
            with tempfile.TemporaryDirectory() as folder:
                os.mkfifo(pathlib.Path(folder, "log.jsonl"))
                reader = threading.Thread(target=self.read_some, args=(folder,))
                reader.start()
                ended = launch(PROGRAM, workers, folder=folder, env={"WAITS": 1})
                reader.join()
            self.assertEqual(ended.status, 1, ended.err)
            self.assertIn("at its end: nobody reads the log 'log.jsonl' any more", ended.err)
            self.assertNotIn("Traceback", ended.err)

    @staticmethod
    def read_some(folder):
        """Read all lines of PROGRAM but the last."""
        with open(pathlib.Path(folder, "log.jsonl"), "rb") as file:
            while b'"val_loss"' not in file.readline():
                continue
        pathlib.Path(folder, "closed").touch()

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "no tensorboard")
    def test_tensorboard(self):
        """A run that is resumed replaces the steps after its checkpoint."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        with tempfile.TemporaryDirectory() as folder:
            self.run_program(folder, BOARD="board")
            self.run_program(folder, BOARD="board", STEPS=6)
            events = EventAccumulator(str(pathlib.Path(folder, "board")))
            events.Reload()
        self.assertEqual(sorted(events.Tags()["scalars"]),
                         ["evaluation/accuracy", "evaluation/loss", "train/accuracy",
                          "train/grad_norm", "train/loss", "train/lr",
                          "train/samples_per_s", "train/seconds"])
        self.assertEqual([e.step for e in events.Scalars("train/loss")], [1, 2, 3, 4, 5, 6])
        self.assertEqual([e.step for e in events.Scalars("evaluation/loss")], [6])

    def test_without_tensorboard(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(PROGRAM, 1, folder=folder, env={"BOARD": "board", "WITHOUT": 1})
        self.assertEqual(ended.status, 1)
        self.assertIn("init(tensorboard=...) needs the package tensorboard", ended.err)


if __name__ == "__main__":
    if not importlib.util.find_spec("tensorboard"):
        print("skipped: scalars for TensorBoard: no package tensorboard")
    unittest.main()
