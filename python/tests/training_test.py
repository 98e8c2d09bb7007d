"""A run's weights do not depend on the number of workers, on hosts, or on deaths."""

import functools
import os
import tempfile
import unittest

from support import launch
from lockstep._library import layout
import lockstep.torch as lk

PROGRAM = """
    import functools, os, signal, sys
    import torch, torch.nn.functional as F
    import lockstep.torch as lk
    from lockstep.torch import run as run_module

    run_module.Group = functools.lru_cache(None)(run_module.Group)   # one for all runs

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 500

        def __getitem__(self, i):
            x = torch.randn(32, generator=torch.Generator().manual_seed(i))
            return x + 0.1 * torch.randn(32), int(x[:16].sum() > x[16:].sum())

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(32, 64)
            self.norm = torch.nn.BatchNorm1d(64)
            self.last = torch.nn.Linear(64, 2)

        def forward(self, x):
            return self.last(F.dropout(F.relu(self.norm(self.first(x))), 0.1, self.training))

    turns = 0

    def loss_sum(model, batch):
        global turns
        turns += 1
        if turns == int(os.environ.get("DIES", 0)) and run.rank == 1 and run.size == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("RANKED"):
            torch.manual_seed(run.rank)
        x, y = batch
        out = model(x)
        hits = int((out.argmax(1) == y).sum())
        return F.cross_entropy(out, y, reduction="sum"), y.numel(), hits

    def train(strategy):
        global run
        run_module._current = None
        run = lk.init(seed=1, virtual_workers=6, strategy=strategy,
                      audit_steps=int(os.environ.get("AUDITS", 2)),
                      grad_algorithm=os.environ.get("ALGORITHM", "auto"))
        model = run.prepare(Net())
        opt = lk.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, clip_norm=1.0)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=30)
        data = run.loader(Points(), global_batch=48, micro_batch=4,
                          num_workers=int(os.environ.get("READERS", 0)))
        run.loader(Points(), global_batch=6)   # with other micro-batches
        run.evaluate(loss_sum, Points())
        for step in run.steps(30):
            result = run.step(loss_sum, data, opt)
            sched.step()
        evaluation = run.evaluate(loss_sum, Points())
        run.print("result." + strategy, result.loss, result.grad_norm, evaluation.loss,
                  evaluation.accuracy, model.norm.running_mean.sum().item(),
                  int(model.norm.num_batches_tracked))
        run.print("weights." + strategy, run.weights_hash())
        run.print("algorithm." + strategy, run._engine._options.grad_algorithm)

    for strategy in sys.argv[1:]:
        train(strategy)
"""


def run_program(workers, *launcher, strategies=("ddp",), **env):
    with tempfile.TemporaryDirectory() as folder:
        ended = launch(PROGRAM, workers, *launcher, folder=folder, env=env, arguments=strategies)
    assert ended.status == 0, ended.err
    return ended


def outcome(ended, strategy="ddp"):
    return ended.value("weights." + strategy), ended.value("result." + strategy)


@functools.lru_cache(maxsize=None)
def alone(strategy="ddp"):
    return outcome(run_program(1, strategies=(strategy,)), strategy)


class Training(unittest.TestCase):
    def test_any_number_of_workers(self):
        self.assertEqual(len(alone()[0]), 64)
        for workers in (3, 6):   # others: test_strategies_and_hosts
            self.assertEqual(outcome(run_program(workers)), alone(), workers)

    def test_strategies_and_hosts(self):
        for arguments, strategies, algorithm in (
                ((2,), ("ddp", "zero1", "zero2"), "auto"),
                ((4, "--hosts", "2"), ("ddp", "zero1"), "linear")):
            ended = run_program(*arguments, strategies=strategies, ALGORITHM=algorithm)
            for strategy in strategies:
                self.assertEqual(outcome(ended, strategy), alone("single"), (arguments, strategy))
                self.assertEqual(ended.value("algorithm." + strategy),
                                 str(layout.constants["LK_TREE_" + algorithm.upper()]))

    def test_an_unknown_algorithm_is_refused(self):
        with self.assertRaisesRegex(ValueError, "'ring': give one of auto, direct, linear"):
            lk.init(grad_algorithm="ring")

    def test_data_workers(self):
        self.assertEqual(outcome(run_program(2, READERS=2)), alone())

    def test_deaths(self):
        for turn in (1, 7, 30, 100) if "LK_THOROUGH" in os.environ else (1, 30):
            ended = run_program(3, "--on-failure", "continue", DIES=turn)
            self.assertIn("continues with 2 of 3", ended.err)
            self.assertEqual(outcome(ended), alone(), turn)

    def test_randomness_of_a_rank_is_seen(self):
        """The comparison can fail: with random numbers by rank the weights differ."""
        ranked = {outcome(run_program(n, RANKED=1, AUDITS=0))[0] for n in (1, 3)}
        self.assertEqual(len(ranked), 2)


if __name__ == "__main__":
    unittest.main()
