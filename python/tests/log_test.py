"""Rank 0 writes the log: JSON lines, and scalars for TensorBoard, where that is installed."""

import importlib.util
import json
import pathlib
import tempfile
import unittest

from support import launch

PROGRAM = """
    import os, sys
    import torch, torch.nn.functional as F
    import lockstep.torch as lk

    if os.environ.get("WITHOUT"):
        sys.modules["tensorboard"] = None   # importing it fails

    def loss_sum(model, batch):
        x, y = batch
        out = model(x)
        return F.cross_entropy(out, y, reduction="sum"), len(y), int((out.argmax(1) == y).sum())

    run = lk.init(virtual_workers=2, log="log.jsonl", tensorboard=os.environ.get("BOARD"))
    model = run.prepare(torch.nn.Linear(4, 2))
    opt = lk.SGD(model.parameters(), lr=0.5)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    points = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    data = run.loader(points, global_batch=8)
    run.resume("saved", model, opt)
    for step in run.steps(int(os.environ.get("STEPS", 4))):
        run.log(run.step(loss_sum, data, opt), lr=0.5, note="text")
        if step == 1:
            run.save("saved")
    run.log(run.evaluate(loss_sum, points))
"""


class Logs(unittest.TestCase):
    def run_program(self, folder, **env):
        ended = launch(PROGRAM, 2, folder=folder, env=env)
        self.assertEqual(ended.status, 0, ended.err)

    def test_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_program(folder)
            lines = [json.loads(line) for line in
                     pathlib.Path(folder, "log.jsonl").read_text().splitlines()]
        self.assertEqual([line.get("step") for line in lines], [0, 1, 2, 3, None])
        for name in ("loss", "grad_norm", "count", "hits", "seconds", "lr", "note"):
            self.assertIn(name, lines[0])
        self.assertEqual(sorted(lines[-1]), ["count", "hits", "loss"])

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
                          "train/grad_norm", "train/loss", "train/lr", "train/seconds"])
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
