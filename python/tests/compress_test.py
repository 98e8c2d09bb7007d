"""Compressed gradients of PyTorch models: the same bits on any workers, also if a run is resumed,
and less loss.  Without a compressor groups change no bit.

Control: another number of groups, and a run that forgets its errors, have other weights.
"""

import json
import os
import shutil
import tempfile
import unittest

import torch

from support import launch
import lockstep.torch as lk

# Runs one run for each dict of the argument, and prints lines "weights.I HASH" and "loss.I LOSS".
PROGRAM = """
    import functools, json, sys
    import torch, torch.nn.functional as F
    from torch import nn
    import lockstep.torch as lk
    from lockstep.torch import engine, run as run_module

    run_module.Group = functools.lru_cache(None)(run_module.Group)   # one for all runs
    load_kept = engine.Engine.load_kept

    METHODS = {
        "none": None,
        "powersgd": lk.PowerSGD(rank=2),
        "defaults": lk.PowerSGD(rank=2, feedback="ef14"),   # powersgd with defaults spelled out
        "topk": lk.TopK(0.05),
        "dgc": lk.TopK(0.05, feedback="dgc", momentum=0.5),
        "ef21": lk.TopK(0.1, feedback="ef21", clip_norm=4.0),
        "randomk": lk.RandomK(0.1),
        "sign": lk.Sign(),
        "qsgd": lk.QSGD(levels=3, bucket=64),
        "terngrad": lk.TernGrad(),
        "later": lk.PowerSGD(rank=2, start=4),
        "warm": lk.TopK(0.1, warmup=(1.0, 0.5), warmup_steps=2, start=2),
        "ef14 with momentum": lk.PowerSGD(momentum=0.5),
    }
    W = 32

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), len(y)

    def train(number, name, groups=4, strategy="ddp", steps=6, folder=None, forgets=False,
              freeze=None, kind="OneBitAdam"):
        run_module._current = None
        run = lk.init(seed=1, virtual_workers=8, strategy=strategy, compress=METHODS[name],
                      groups=groups, timeout=60)
        model = run.prepare(nn.Sequential(
            nn.Unflatten(1, (2, 4, 4)), nn.Conv2d(2, 8, 3).to(memory_format=torch.channels_last),
            nn.Flatten(), nn.Tanh(), nn.Linear(W, W), nn.Tanh(), nn.Linear(W, 2)))
        opt = (lk.SGD(model.parameters(), lr=0.1, clip_norm=1.0) if freeze is None else
               lk.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.9), clip_norm=1.0)
               if freeze == 0 else
               getattr(lk, kind)(model.parameters(), lr=0.01, betas=(0.9, 0.9), clip_norm=1.0,
                                 freeze_step=freeze, freeze_after=20 if freeze == "auto" else 0))
        x = torch.randn(60, W, generator=torch.Generator().manual_seed(3))
        data = run.loader(torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long()),
                          global_batch=16, drop_last=False)
        if folder is not None:
            run.resume(folder, model, opt)
        engine.Engine.load_kept = (lambda *_: None) if forgets else load_kept
        for step in run.steps(steps):
            result = run.step(loss_sum, data, opt)
        if folder is not None:
            run.save(folder)
        run.print(f"loss.{number}", result.loss)
        run.print(f"weights.{number}", run.weights_hash())

    for number, settings in enumerate(json.loads(sys.argv[1])):
        train(number, **settings)
"""

PARAMETER = torch.nn.Parameter(torch.zeros(3))
METHODS = ("powersgd", "dgc", "ef21", "qsgd")
if "LK_THOROUGH" in os.environ:   # others differ in the library only
    METHODS += "topk", "randomk", "sign", "terngrad"


class Compressed(unittest.TestCase):
    def run_all(self, workers, *launcher, runs):
        with tempfile.TemporaryDirectory() as here:
            return launch(PROGRAM, workers, *launcher, folder=here, arguments=(json.dumps(runs),))

    def weights(self, workers, *launcher, runs):
        """Return the hashes and the losses of runs."""
        ended = self.run_all(workers, *launcher, runs=runs)
        self.assertEqual(ended.status, 0, ended.err)
        return ([ended.value(f"weights.{i}") for i in range(len(runs))],
                [float(ended.value(f"loss.{i}")) for i in range(len(runs))])

    def test_any_workers(self):
        for name, loss in zip(METHODS, self.weights(1, runs=[{"name": name, "steps": 60}
                                                             for name in METHODS])[1]):
            self.assertLess(loss, 0.45, name)
        runs = [{"name": name, "steps": 12} for name in METHODS] + [{"name": "none", "groups": 0}]
        one = self.weights(1, runs=runs)[0]
        zero1 = [dict(run, strategy="zero1") for run in runs]
        self.assertEqual(self.weights(3, runs=zero1)[0], one)
        runs[-1] = {"name": "none", "groups": 2}   # the bits of no groups
        self.assertEqual(self.weights(4, "--hosts", "2", runs=runs)[0], one)
        runs = [dict(run, groups=8) for run in runs]
        for got, other in zip(self.weights(1, runs=runs)[0][:-1], one):
            self.assertNotEqual(got, other)

    def test_resumed(self):
        with tempfile.TemporaryDirectory() as folder:
            names = ("powersgd", "dgc", "ef21")
            plain = [{"name": "none", "groups": g, "steps": s, "folder": f"{folder}/none"}
                     for g, s in ((0, 3), (2, 6))]   # groups change no bit without a compressor
            *whole, without, _ = self.weights(
                1, runs=[{"name": name} for name in names] + [{"name": "none", "groups": 0},
                                                              plain[0]])[0]
            runs = [{"name": name, "folder": f"{folder}/{name}"} for name in names]
            self.weights(3, runs=[dict(run, steps=3) for run in runs])
            spelled = shutil.copytree(runs[0]["folder"], f"{folder}/spelled")
            forgetting = [dict(run, folder=shutil.copytree(run["folder"], run["folder"] + "-copy"),
                               forgets=True) for run in runs]
            *forgotten, like, resumed = self.weights(
                1, runs=forgetting + [{"name": "defaults", "folder": spelled}, plain[1]])[0]
            self.assertEqual(like, whole[0])
            self.assertEqual(resumed, without)
            for got, right in zip(forgotten, whole):
                self.assertNotEqual(got, right)
            self.assertEqual(self.weights(4, "--hosts", "2", runs=runs)[0], whole)
            other = self.run_all(1, runs=[dict(runs[0], name="sign", steps=9)])
            self.assertNotEqual(other.status, 0)
            self.assertIn("compress", other.err)

    def test_start_and_warmup(self):
        """`later` compresses from step 4 on; the ratio 1 of `warm` sends whole gradients in steps
        2 and 3."""
        runs = [{"name": name, "steps": steps} for name in ("later", "warm") for steps in (3, 4, 6)]
        plain = [{"name": "none", "groups": 0, "steps": steps} for steps in (3, 4)]
        *one, three, four = self.weights(1, runs=runs + plain)[0]
        for first in (0, 3):
            self.assertEqual(one[first], three)
            self.assertNotEqual(one[first + 1], four)
        self.assertEqual(self.weights(3, runs=runs)[0], one)

    def test_onebit(self):
        """Steps are those of AdamW up to the freeze, and learning goes on after it.  OneBitLamb is
        frozen by a test."""
        run = {"name": "none", "freeze": 20}
        lamb = {"name": "none", "freeze": "auto", "kind": "OneBitLamb", "steps": 60}
        runs = [dict(run, steps=20), dict(run, steps=60), lamb]
        (*one, plain), losses = self.weights(1, runs=runs + [dict(runs[0], freeze=0, groups=0)])
        self.assertEqual(one[0], plain)
        self.assertLess(losses[1], losses[0])
        self.assertLess(losses[2], 0.4)
        with tempfile.TemporaryDirectory() as folder:
            kept = [dict(of, folder=f"{folder}/{i}") for i, of in enumerate((run, lamb))]
            zero1 = [dict(run, strategy="zero1") for run in runs]
            half = [dict(of, steps=30) for of in kept]
            self.assertEqual(self.weights(3, runs=zero1 + half)[0][:3], one)
            whole = [dict(of, steps=60) for of in kept]
            self.assertEqual(self.weights(4, "--hosts", "2", runs=runs + whole)[0], one + one[1:])
        refused = self.run_all(1, runs=[dict(run, name="topk")])
        self.assertIn("onebit-adam sends momenta in its own way", refused.err)

    def test_numbers(self):
        for word, make in (("rank", lambda: lk.PowerSGD(rank=-1)), ("rank", lambda: lk.PowerSGD(0)),
                           ("rank", lambda: lk.PowerSGD(2 ** 40)), ("ratio", lambda: lk.TopK(0)),
                           ("levels", lambda: lk.QSGD(levels=-1)),
                           ("momentum", lambda: lk.TopK(feedback="dgc", momentum=1.5)),
                           ("clip_norm", lambda: lk.Sign(clip_norm=-1)),
                           ("start", lambda: lk.Sign(start=0)),
                           ("warmup", lambda: lk.TopK(warmup=(2,), warmup_steps=3)),
                           ("warmup_steps", lambda: lk.RandomK(warmup=(0.5,))),
                           ("freeze_step", lambda: lk.OneBitLamb([PARAMETER], freeze_step="soon")),
                           ("freeze_after", lambda: lk.OneBitAdam([PARAMETER], freeze_step=5,
                                                                  freeze_after=3))):
            with self.assertRaisesRegex(ValueError, word):
                make()
        for word, make in (("rank", lambda: lk.PowerSGD("x")), ("rank", lambda: lk.PowerSGD(2.5)),
                           ("feedback", lambda: lk.Sign(feedback=3))):
            with self.assertRaisesRegex(TypeError, word):
                make()

    def test_refused(self):
        ended = self.run_all(1, runs=[{"name": "topk", "groups": 3}])
        self.assertNotEqual(ended.status, 0)
        self.assertIn("3 groups of 8 virtual workers", ended.err)
        ended = self.run_all(1, runs=[{"name": "ef14 with momentum"}])
        self.assertNotEqual(ended.status, 0)
        self.assertIn("`momentum` and `nesterov`", ended.err)   # not options of a command
        self.assertNotIn("--momentum", ended.err)


if __name__ == "__main__":
    unittest.main()
