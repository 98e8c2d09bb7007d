"""A run's weights do not depend on the number of workers, on hosts, or on deaths."""

import tempfile
import unittest

from support import launch

PROGRAM = """
    import os, signal, sys
    import torch, torch.nn.functional as F
    import lockstep.torch as lk

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

    run = lk.init(seed=1, virtual_workers=6, strategy=os.environ.get("STRATEGY", "ddp"),
                  audit_steps=int(os.environ.get("AUDITS", 2)))
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
    run.print("result", result.loss, result.grad_norm, evaluation.loss, evaluation.accuracy,
              model.norm.running_mean.sum().item(), int(model.norm.num_batches_tracked))
    run.print("weights", run.weights_hash())
"""


class Training(unittest.TestCase):
    def run_program(self, workers, *launcher, **env):
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(PROGRAM, workers, *launcher, folder=folder, env=env)
        self.assertEqual(ended.status, 0, ended.err)
        return ended

    def results(self, *arguments, **env):
        ended = self.run_program(*arguments, **env)
        return ended.value("weights"), ended.value("result")

    def test_any_number_of_workers(self):
        alone = self.results(1)
        self.assertEqual(len(alone[0]), 64)
        for workers in (2, 3, 6):
            self.assertEqual(self.results(workers), alone, workers)

    def test_strategies_and_hosts(self):
        alone = self.results(1, STRATEGY="single")
        for strategy in ("ddp", "zero1", "zero2"):
            self.assertEqual(self.results(2, STRATEGY=strategy), alone, strategy)
        for strategy in ("ddp", "zero1"):
            self.assertEqual(self.results(4, "--hosts", "2", STRATEGY=strategy), alone, strategy)

    def test_data_workers(self):
        self.assertEqual(self.results(2, READERS=2), self.results(1))

    def test_deaths(self):
        alone = self.results(1)
        for turn in (1, 7, 30, 100):
            ended = self.run_program(3, "--on-failure", "continue", DIES=turn)
            self.assertIn("continues with 2 of 3", ended.err)
            self.assertEqual((ended.value("weights"), ended.value("result")), alone, turn)

    def test_randomness_of_a_rank_is_seen(self):
        """The comparison can fail: with random numbers by rank the weights differ."""
        ranked = {self.results(n, RANKED=1, AUDITS=0)[0] for n in (1, 2, 3)}
        self.assertEqual(len(ranked), 3)


if __name__ == "__main__":
    unittest.main()
