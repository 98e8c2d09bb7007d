"""Eight kinds of models have the same weights for any number of workers, strategies, hosts and
deaths, and the losses of plain torch.  `matrix` in this folder tries all combinations."""

import functools
import os
import tempfile
import unittest

import support

PROGRAM = "import train_models; train_models.main()"


def launch(workers, *launcher, arguments=(), left=1, real=False):
    """Train all models and return {"MODEL/STRATEGY": hash}.  With --dies, of four workers `left`
    are left."""
    tests = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([str(support.ROOT / "python"), tests, os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        ended = support.launch(PROGRAM, workers, *launcher, folder=folder,
                               env={"PYTHONPATH": path}, arguments=arguments, real=real)
    assert ended.status == 0, ended.err
    if "--dies" in arguments:
        assert f"continues with {left} of 4" in ended.err, ended.err
    return dict(line.split() for line in ended.out.splitlines() if "/" in line.split()[0])


@functools.lru_cache(maxsize=None)
def results(workers):
    """The results of one host, with all controls."""
    more = ("--parity",) if workers == 1 else ()
    return launch(workers, arguments=("--strategies", "ddp,zero2", "--control", *more),
                  real=workers == 3)


TWICE = """
    import sys, torch
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        sys.exit("gradients are taken after the backward pass")   # before torch 2.1
    import lockstep.torch as lk
    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(8, 8)

        def forward(self, x):
            return checkpoint(self.a, self.a(x), use_reentrant=True)

    run = lk.init(virtual_workers=1, audit_steps=0)
    model = run.prepare(Net())
    data = run.loader(torch.utils.data.TensorDataset(torch.ones(4, 8)), global_batch=4)
    run.step(lambda m, b: (m(b[0]).sum(), 4), data, lk.SGD(model.parameters()))
"""


def of_kind(found, kind):
    return {name.split("/")[0]: value for name, value in found.items() if name.endswith(kind)}


class Matrix(unittest.TestCase):
    def check(self, found, strategies):
        alone = of_kind(results(1), "/ddp")
        self.assertGreaterEqual(len(alone), 6)   # bert and unet3d may be missing
        for strategy in strategies:
            self.assertEqual(of_kind(found, "/" + strategy), alone, strategy)

    def test_workers(self):
        for workers in (1, 2, 3):
            self.check(results(workers), ("ddp", "zero2"))

    def test_hosts(self):
        strategies = ("ddp", "zero1", "zero2", "zero3", "hybrid")
        found = launch(2, "--hosts", "2", arguments=("--strategies", ",".join(strategies)),
                       real=True)
        self.check(found, strategies)

    def test_sharded_hosts(self):
        """Three workers are unequal on two hosts, and one has no virtual worker in the end."""
        found = launch(3, "--hosts", "2",
                       arguments=("--strategies", "zero3,hybrid-2", "--models", "cnn,gpt,branches"))
        self.check_some(found, 6)

    def test_deaths(self):
        """Rank 1 dies in three of the runs: of four workers one is left."""
        dies = ("cnn/ddp", "gpt/zero2", "branches/zero1")
        found = launch(4, "--on-failure", "continue",
                       arguments=("--strategies", "ddp,zero1,zero2", "--models",
                                  "cnn,gpt,branches", "--dies", ",".join(dies)))
        self.check_some(found, 9)

    def test_deaths_on_hosts(self):
        """Of each of two hosts one worker dies, and of four hosts in two groups one."""
        found = launch(4, "--hosts", "2", "--on-failure", "continue", left=2,
                       arguments=("--strategies", "zero3,hybrid-2", "--models", "cnn,gpt",
                                  "--dies", "cnn/zero3,gpt/hybrid-2"))
        self.check_some(found, 4)
        found = launch(4, "--hosts", "4", "--on-failure", "continue", left=3,
                       arguments=("--strategies", "zero3,hybrid-2", "--models", "cnn,gpt",
                                  "--dies", "gpt/hybrid-2"))
        self.check_some(found, 4)

    def check_some(self, found, count):
        alone = results(1)
        self.assertEqual(len(found), count)
        for name, value in found.items():
            self.assertEqual(value, alone[name.split("/")[0] + "/ddp"], name)

    def test_parity(self):
        """Lockstep's losses are those of torch with its own optimizers."""
        found = of_kind(results(1), "/parity")
        self.assertEqual(found.keys(), of_kind(results(1), "/ddp").keys())
        for name, difference in found.items():
            self.assertLess(float(difference), 1e-6, name)

    def test_control(self):
        """DistributedDataParallel gives other weights for each number of workers."""
        controls = [of_kind(results(workers), "/control") for workers in (1, 2, 3)]
        for name in controls[0]:
            self.assertEqual(len({c[name] for c in controls}), 3, name)

    def test_gradient_that_comes_twice(self):
        """It is refused, because it may have been sent after the first time."""
        with tempfile.TemporaryDirectory() as folder:
            ended = support.launch(TWICE, 1, folder=folder)
        if "gradients are taken after" in ended.err:
            self.skipTest("before torch 2.1 gradients are taken after the backward pass")
        self.assertNotEqual(ended.status, 0)
        self.assertIn("is computed more than once in a backward pass", ended.err)


if __name__ == "__main__":
    unittest.main()
