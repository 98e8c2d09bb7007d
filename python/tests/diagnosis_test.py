"""What is not reproducible in a program is named, with its module and what to do."""

import os
import pathlib
import shlex
import sys
import tempfile
import textwrap
import unittest

import torch
from support import BUILD, launch, nursery

PROGRAM = """
    import os, random
    import torch, torch.nn.functional as F
    import lockstep.torch as lk

    try:
        import numpy as np
        own = np.random.default_rng()
    except ImportError:
        np, own = random, random.Random()

    FAULT = os.environ.get("FAULT", "")

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 48

        def __getitem__(self, i):
            x = torch.randn(8, generator=torch.Generator().manual_seed(i))
            if FAULT == "data":
                x = x + own.random()
            if FAULT == "seeded":
                x = x + np.random.random() + random.random()
            return x, int(x.sum() > 0)

    class Noise(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.calls = random.Random(), 0
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            if FAULT == "own":
                return x + self.own.random()
            if FAULT == "seeded":
                return x + random.random()
            if FAULT == "state":
                return x * self.calls
            if FAULT == "first":
                return x + (self.calls == 1)
            if FAULT == "rank":
                return x * (1 + run.rank)
            if FAULT == "buffer":
                self.seen += 1
            return x

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * random.Random().random()

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.noise, self.out = Noise(), torch.nn.Linear(16, 2)

        def forward(self, x):
            x = self.noise(x)
            if FAULT == "between":
                x = x + run.rank
            if FAULT == "backward":
                x = Backward.apply(x)
            return self.out(F.relu(x))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.block = torch.nn.Linear(8, 16), Block()
            if "COMPILED" in os.environ:
                self.first = torch.compile(self.first, backend="eager")
            if FAULT == "initial":
                self.first.weight.data += random.Random().random()
            if FAULT == "bfloat16":
                self.block.bfloat16()
            if FAULT == "float64":
                self.first.double()
            if FAULT == "sync":
                self.norm = torch.nn.SyncBatchNorm(16)

        def forward(self, x):
            return self.block(self.first(x))

    WORDS = set("one two three four five six seven eight nine ten".split())

    def loss_sum(model, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y, reduction="sum")
        if FAULT == "set":
            for word in WORDS:
                loss = loss * 0.9 + sum(map(ord, word))
        if FAULT == "loss":
            loss = loss * (1 + run.rank)
        if FAULT == "world rank":
            loss = loss * (1 + int(os.environ["RANK"]) // 2)
        return loss, y.numel()

    run = lk.init(seed=1, virtual_workers=3, audit_steps=int(os.environ.get("AUDITS", 2)))
    model = run.prepare(Net())
    opt = lk.SGD(model.parameters(), lr=0.2 if FAULT == "lr" and run.rank else 0.1)
    data = run.loader(Points(), global_batch=12, micro_batch=2)
    saved = os.environ.get("SAVED")
    if saved:
        run.resume(saved, model, opt)
    for step in run.steps(4):
        run.step(loss_sum, data, opt)
        if saved:
            run.save(saved)
    run.print("weights", run.weights_hash())
"""

CAUSES = "a generator of its own"


class Diagnosis(unittest.TestCase):
    def run_program(self, fault, workers, **env):
        with tempfile.TemporaryDirectory() as folder:
            return nursery().run(PROGRAM, workers, folder=folder, env=dict(env, FAULT=fault))

    def weights(self, fault, workers, **env):
        ranks = self.run_program(fault, workers, **env)
        self.assertEqual([r.status for r in ranks], [0] * workers, ranks[0].err)
        return ranks[0].out

    def assert_named(self, fault, workers, *texts, **env):
        """Every rank ends with one line that has the texts."""
        for rank in self.run_program(fault, workers, **env):
            self.assertEqual(rank.status, 1, rank.err)
            lines = rank.err.splitlines()
            self.assertEqual(len(lines), 1, rank.err)
            for text in texts:
                self.assertIn(text, lines[0])

    def assert_refused(self, fault, *texts):
        """One rank prints a traceback, and the other one a line.  Both have the texts."""
        ranks = self.run_program(fault, 2)
        self.assertEqual([r.status for r in ranks], [1, 1])
        self.assertEqual(sum("Traceback" in r.err for r in ranks), 1)
        for rank in ranks:
            for text in texts:
                self.assertIn(text, rank.err.splitlines()[-1])

    def test_a_generator_of_a_module(self):
        for workers in (1, 2, 3):
            self.assert_named("own", workers, "step 1", "virtual worker 0",
                              "the output of 'block.noise' (Noise), called with equal inputs",
                              CAUSES)

    @unittest.skipUnless(hasattr(torch, "compile"), "this torch compiles nothing")
    def test_a_compiled_module(self):
        self.assert_named("own", 1, "'block.noise' (Noise)", "'first' is compiled: if "
                          "micro-batches differ in shape", "dynamic=True", COMPILED=1)

    def test_a_generator_of_a_data_set(self):
        for workers in (1, 2):
            self.assert_named("data", workers, "the micro-batch", "the data set (Points)", CAUSES)

    def test_global_generators_are_seeded(self):
        alone = self.weights("seeded", 1)
        self.assertIn("weights ", alone)
        self.assertEqual(self.weights("seeded", 2), alone)

    def test_without_audit_nothing_is_seen(self):
        """The model of these tests does go wrong: its weights differ from run to run."""
        self.assertNotEqual(self.weights("own", 1, AUDITS=0), self.weights("own", 1, AUDITS=0))

    def test_state_of_a_module(self):
        self.assert_named("state", 1, "rank 0 computed two different results",
                          "'block.noise' (Noise)", "values kept in a module")

    def test_a_difference_that_does_not_come_again(self):
        self.assert_named("first", 1, "the gradient of 'block.out.bias' (Linear)",
                          "Computed once more, the results are equal", "only in the first calls")

    def test_rank(self):
        self.assert_named("rank", 2, "ranks 0 and 1 computed different results",
                          "the output of 'block.noise' (Noise)", "the rank")
        self.assert_named("between", 2, "the input of 'block.out' (Linear)",
                          "called by 'block' (Block)")
        self.assert_named("loss", 2, "the loss, after equal outputs of all modules",
                          "the loss function")

    def test_the_others_go_on_without_the_rank_at_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(PROGRAM, 3, "--on-failure", "continue", folder=folder,
                           env={"FAULT": "world rank"})
        self.assertEqual(ended.status, 0, ended.err)
        self.assertIn("rank 2 computed another result than ranks 0 and 1", ended.err)
        self.assertIn("the group continues with 2 of 3", ended.err)
        self.assertEqual(ended.out, self.weights("", 1))

    def test_backward_pass(self):
        self.assert_named("backward", 2, "the gradient of 'first.", "(Linear), after an equal "
                          "forward pass", "not deterministic")

    def test_what_ranks_make(self):
        self.assert_named("initial", 2, "different values of 'first.weight'",
                          "global random generators")
        self.assert_named("lr", 2, "the learning rate of parameter group 0: 0.2 and 0.1")

    def test_unsupported_models(self):
        self.assert_refused("buffer", "buffer 'block.noise.seen' of a Noise", 'buffers="ignore"')
        self.assert_refused("bfloat16", "'block.out.weight' is bfloat16", "torch.autocast")
        self.assert_refused("float64", "'first.weight' is float64", "model.float()")
        self.assert_refused("sync", "'norm' is a SyncBatchNorm", "use BatchNorm")


class SelfTest(unittest.TestCase):
    def selftest(self, fault, *options, real=False, **more):
        """Return the status and the text of a self-test.  real: see support.launch()."""
        with tempfile.TemporaryDirectory() as folder:
            python = pathlib.Path(folder) / "python"
            words = [sys.executable] if real else nursery().command()
            python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            python.chmod(0o755)
            program = pathlib.Path(folder) / "train.py"
            program.write_text(textwrap.dedent(PROGRAM))
            env = dict(FAULT=fault, LOCKSTEP_COMMAND=BUILD / "bin" / "lockstep",
                       PYTHONHASHSEED="random", TMPDIR=folder, **more)
            rank, = nursery().run(f"""
                import runpy, sys
                sys.executable = {str(python)!r}
                sys.argv = ["lockstep.torch", "selftest", *{options!r}, {str(program)!r}]
                runpy.run_module("lockstep.torch", run_name="__main__")
            """, 1, folder=folder, env=env)
            self.assertEqual([f for f in os.listdir(folder) if "lockstep" in f], [])
        return rank.status, rank.out + rank.err

    def test_equal(self):
        status, text = self.selftest("seeded", "--workers", "1,2", "--steps", "2")
        self.assertEqual(status, 0, text)
        self.assertIn("2 steps with 1 and 2 workers have equal losses, gradients and weights", text)

    def test_checkpoints_are_left_alone(self):
        with tempfile.TemporaryDirectory() as saved:
            status, text = self.selftest("", "--workers", "1,2", "--steps", "2", SAVED=saved)
            self.assertEqual(os.listdir(saved), [])
        self.assertEqual(status, 0, text)
        self.assertIn("2 steps with 1 and 2 workers", text)

    def test_the_order_of_a_set(self):
        status, text = self.selftest("set", "--workers", "1,2", "--steps", "1", real=True)
        self.assertEqual(status, 1, text)
        self.assertIn("1 and 2 workers differ in step 1 of virtual worker", text)
        self.assertIn("the loss, after equal outputs of all modules", text)
        self.assertIn("the order of a set of strings", text)

    def test_a_program_that_fails(self):
        status, text = self.selftest("float64", "--workers", "1")
        self.assertEqual(status, 2, text)
        self.assertIn("with 1 worker, ", text)
        self.assertIn("'first.weight' is float64", text)


if __name__ == "__main__":
    unittest.main()
