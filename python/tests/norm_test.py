"""Running statistics: of layers in evaluation mode, of unused layers, and set by the program."""

import tempfile
import unittest

import torch

from support import launch
from lockstep.torch.model import Model

PROGRAM = """
    import torch, torch.nn.functional as F
    import lockstep.torch as lk

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)
            self.frozen, self.used, self.unused = (torch.nn.BatchNorm1d(6) for _ in range(3))

        def forward(self, x):
            return self.last(self.used(self.frozen(self.first(x))))

    def net():
        torch.manual_seed(5)
        model = Net()
        for norm in model.frozen, model.unused:
            norm.running_mean.fill_(0.25)
            norm.running_var.fill_(2.0)
        return model

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 60
        def __getitem__(self, i):
            return torch.randn(4, generator=torch.Generator().manual_seed(i)), i % 2

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    def statistics(norm):
        return [norm.running_mean.tolist(), norm.running_var.tolist(),
                int(norm.num_batches_tracked)]

    run = lk.init(seed=1, virtual_workers=3)
    model = run.prepare(net())
    model.frozen.eval()
    opt = lk.SGD(model.parameters(), lr=0.1)
    data = run.loader(Points(), global_batch=12, shuffle=False)
    before = statistics(model.frozen), statistics(model.unused)

    plain = net()
    plain.frozen.eval()
    x, y = (torch.stack(t) for t in zip(*[(Points()[i][0], torch.tensor(i % 2))
                                          for i in range(12)]))
    # BatchNorm uses the statistics of a micro-batch, which has four samples
    wanted = sum(F.cross_entropy(plain(x[i:i + 4]), y[i:i + 4], reduction="sum")
                 for i in (0, 4, 8)).item() / 12

    for step in run.steps(6):
        result = run.step(loss_sum, data, opt)
        if step == 0:
            run.print("first", abs(result.loss - wanted) < 1e-6)
        if step == 2:
            run.print("kept", statistics(model.frozen) == before[0])
            model.frozen.train()
        if step == 3:
            model.used.reset_running_stats()
    run.print("moved", statistics(model.frozen) != before[0], int(model.frozen.num_batches_tracked))
    drift = (model.unused.running_var - 2.0).abs().max().item()
    run.print("unused", drift < 1e-6)
    run.print("reset", int(model.used.num_batches_tracked))
    run.print("weights", run.weights_hash())
"""


class Norms(unittest.TestCase):
    def run_program(self, workers):
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(PROGRAM, workers, folder=folder)
        self.assertEqual(ended.status, 0, ended.err)
        return ended

    def test_modes(self):
        alone, three = self.run_program(1), self.run_program(3)
        for ended in alone, three:
            self.assertEqual(ended.value("first"), "True")
            self.assertEqual(ended.value("kept"), "True")
            self.assertEqual(ended.value("moved"), "True 3")
            self.assertEqual(ended.value("unused"), "True")
            self.assertEqual(ended.value("reset"), "2")
        self.assertEqual(alone.value("weights"), three.value("weights"))

    def test_other_types_are_refused(self):
        for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float64, "float64")):
            norm = torch.nn.BatchNorm1d(4).to(dtype).requires_grad_(False)
            with self.assertRaisesRegex(TypeError, f"statistics of '1' are {name}; .*float32"):
                Model(torch.nn.Sequential(torch.nn.Linear(2, 4), norm))


if __name__ == "__main__":
    unittest.main()
