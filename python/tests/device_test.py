"""Gradients that arrive late, as from a GPU, give the same weights; on a GPU where there is one."""

import tempfile
import unittest

from support import launch

PROGRAM = """
    import collections, os
    import torch, torch.nn.functional as F
    import lockstep.torch as lk
    from lockstep.torch import engine, gpu

    class Late:
        # stands for gpu.Transfers: gradients arrive two at a time, the last ones when waited for
        def __init__(self, params):
            self.pending = collections.deque()
        def start(self, param, gradient):
            self.pending.append((param, gradient))
        def complete(self, wait=False):
            while len(self.pending) > (0 if wait else 2):
                yield self.pending.popleft()

    class LateEngine(engine.Engine):
        def __init__(self, group, model, *rest, **named):
            model.device = torch.device("cuda")
            super().__init__(group, model, *rest, **named)

    if os.environ.get("LATE"):
        import lockstep.torch.run
        gpu.Transfers, lockstep.torch.run.Engine = Late, LateEngine

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 100
        def __getitem__(self, i):
            return torch.randn(8, generator=torch.Generator().manual_seed(i)), i % 3

    def loss_sum(model, batch):
        x, y = (t.to(device) for t in batch)
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    run = lk.init(seed=1, virtual_workers=4, strategy=os.environ.get("STRATEGY", "ddp"))
    device = run.device if os.environ.get("GPU") else torch.device("cpu")
    model = run.prepare(torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(16, 3)).to(device))
    opt = lk.AdamW(model.parameters(), lr=1e-2)
    micro_batch = int(os.environ.get("MICRO", 2))
    data = run.loader(Points(), global_batch=16, micro_batch=micro_batch, drop_last=False)
    for step in run.steps(14):
        run.step(loss_sum, data, opt)
        if "CHANGES" in os.environ:
            with torch.no_grad():
                model[0].bias.zero_()
    run.print("weights", run.weights_hash())
"""


class Devices(unittest.TestCase):
    def run_program(self, program, workers, **options):
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(program, workers, folder=folder, **options)
        self.assertEqual(ended.status, 0, ended.err)
        return ended

    def weights(self, workers, **env):
        return self.run_program(PROGRAM, workers, env=env, real="GPU" in env).value("weights")

    def test_late_gradients(self):
        self.assertEqual(self.weights(3, LATE=1), self.weights(1))
        self.assertEqual(self.weights(2, LATE=1, STRATEGY="zero2", MICRO=4),
                         self.weights(1, MICRO=4))

    def test_copies_that_the_program_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(PROGRAM, 2, folder=folder, env={"LATE": 1, "CHANGES": 1})
        self.assertEqual(ended.status, 1)
        self.assertIn("parameter '0.bias' was changed outside of the update of a step", ended.err)

    def test_any_number_of_workers_on_a_gpu(self):
        found = self.run_program("import torch; print('gpu', torch.cuda.is_available())", 1)
        if found.value("gpu") == "False":
            print("skipped: any number of workers on a GPU: torch finds no NVIDIA GPU")
            self.skipTest("no NVIDIA GPU")
        self.assertEqual(len({self.weights(n, GPU=1) for n in (1, 2, 4)}), 1)


if __name__ == "__main__":
    unittest.main()
