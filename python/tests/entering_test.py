"""Workers that replace lost ones take over the state of the run, and change none of its bits."""

import functools
import tempfile
import unittest

from support import launch

PROGRAM = """
    import atexit, os, pathlib, signal, sys, time
    import torch, torch.nn.functional as F
    import lockstep.torch as lk
    from lockstep._library import lk as library

    NEW = "LOCKSTEP_ENTERS" in os.environ
    FAULT = os.environ.get("FAULT", "")
    DIES = int(os.environ.get("DIES", 0))       # the turn in which rank 1 dies
    WAITS = int(os.environ.get("WAITS", 99))    # the step in which rank 0 and a replacement meet
    EPOCHS, ROUNDS = 3, 8

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 200

        def __getitem__(self, i):
            x = torch.randn(8, generator=torch.Generator().manual_seed(i))
            return x + 0.01 * torch.randn(8), int(x.sum() > 0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm = torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6)
            self.b, self.drop = torch.nn.Linear(6, 2), torch.nn.Dropout(0.2)
            self.frozen = torch.nn.Parameter(torch.ones(6), requires_grad=False)
            self.scales = torch.ones(1)

        def get_extra_state(self):
            return self.scales

        def set_extra_state(self, state):
            self.scales = state

        def forward(self, x):
            x = self.drop(torch.relu(self.norm(self.a(x))))
            return self.b(x * self.frozen) * self.scales[-1]

    class Formed(torch.optim.Adam):
        # with states whose type and strides are not the usual ones

        def step(self, closure=None):
            super().step()
            for state in self.state.values():
                turned = state.setdefault("turned", torch.zeros(2, 3).t())
                seen = state.setdefault("seen", torch.zeros(2, dtype=torch.bool))
                assert turned.stride() == (1, 3) and seen.dtype is torch.bool

    turns, factor = 0, 1.0

    def loss_sum(model, batch):
        global turns
        turns += model.training
        if turns == DIES and os.environ.get("RANK") == "1" and not NEW:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch
        return factor * F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    def wait_for(condition):
        while not condition():
            time.sleep(0.01)

    if NEW:
        atexit.register(pathlib.Path("tried").touch)
        wait_for(lambda: WAITS == 99 or pathlib.Path("waits").exists())
    if FAULT == "does not start" and NEW:
        sys.exit("no such file")
    run = lk.init(seed=4 if FAULT == "other seed" and NEW else 3, virtual_workers=4,
                  strategy=os.environ.get("STRATEGY", "ddp"))
    net = Net()
    if FAULT == "other model" and NEW:
        net.b = torch.nn.Linear(6, 3)
    if FAULT == "other momentum" and NEW:
        net.norm.momentum = 0.2
    model = run.prepare(net)
    kinds = {"adamw": lk.AdamW, "torch": Formed}
    opt = kinds[os.environ.get("OPTIMIZER", "adamw")](model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=5, gamma=0.5)
    by_epoch = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.7)
    run.loader(Points(), global_batch=4)   # another one
    data = run.loader(Points(), global_batch=16, micro_batch=2,
                      num_workers=int(os.environ.get("READERS", 0)))
    if FAULT != "no resume":
        run.resume(None, model, opt, sched, by_epoch)
    run.print("before", run.evaluate(loss_sum, Points()).count)
    for epoch in range(EPOCHS):
        for step in run.steps((epoch + 1) * ROUNDS):
            if NEW and not turns:
                print("entered as", run.rank, "of", run.size, "at", step, flush=True)
            if step == WAITS and not NEW and run.rank == 0:
                pathlib.Path("waits").touch()
                wait_for(lambda: library.comm_awaited(run._group.comm))
            if step == 14 and FAULT and run.rank == 0:
                wait_for(pathlib.Path("tried").exists)
            factor = 1 + torch.rand(1).item() / 10   # the same on all ranks
            result = run.step(loss_sum, data, opt)
            sched.step()
            torch.rand(1)
            model.scales = torch.cat([model.scales, model.scales[-1:] * 0.99])
            if step == ROUNDS + 3:
                model.norm.eval()
                model.norm.running_mean.fill_(0.25)
            if step == ROUNDS + 6:
                model.norm.train()
        validation = run.evaluate(loss_sum, Points())
        run.print("validation", validation.loss)
        by_epoch.step(validation.loss)
        torch.rand(1)
    assert run.size == int(os.environ["WORLD_SIZE"]) or FAULT, run.size
    run.print("weights", run.weights_hash(), validation.loss, result.loss,
              model.norm.running_mean.sum().item(), model.norm.num_batches_tracked.item())
"""


def run_program(workers, *launcher, real=False, **env):
    with tempfile.TemporaryDirectory() as folder:
        ended = launch(PROGRAM, workers, *launcher, folder=folder, env=env, real=real)
    assert ended.status == 0, ended.err + ended.out
    return ended


@functools.lru_cache(maxsize=None)
def undisturbed(**env):
    """The weights of one worker."""
    return run_program(1, **env).value("weights")


class Entering(unittest.TestCase):
    def replaced(self, workers, *launcher, restart="--restart", **env):
        return run_program(workers, "--on-failure", "continue", restart, *launcher, **env)

    def assert_entered(self, ended, rank, step):
        self.assertIn(f"entered as {rank} of {rank + 1} at {step}\n", ended.out, ended.err)

    def test_a_lost_worker_is_replaced(self):
        wanted = undisturbed()
        for strategy, real in ("ddp", False), ("zero2", True):
            ended = self.replaced(3, real=real, STRATEGY=strategy, DIES=9, WAITS=11)
            self.assert_entered(ended, 2, 12)
            self.assertEqual(ended.value("weights"), wanted)

    def test_in_a_later_loop_and_with_data_workers(self):
        """The replacement skips the loops that the others have completed."""
        wanted = undisturbed()
        ended = self.replaced(2, DIES=30, WAITS=17, READERS=1)
        self.assert_entered(ended, 1, 18)
        self.assertEqual(ended.value("weights"), wanted)

    def test_an_optimizer_of_torch(self):
        wanted = undisturbed(OPTIMIZER="torch")
        ended = self.replaced(3, OPTIMIZER="torch", DIES=9, WAITS=11)
        self.assert_entered(ended, 2, 12)
        self.assertEqual(ended.value("weights"), wanted)

    def test_on_two_hosts(self):
        wanted = undisturbed()
        ended = self.replaced(4, "--hosts", "2", DIES=5, WAITS=11)
        self.assertIn("entered as 1 of 4 at 12\n", ended.out, ended.err)
        self.assertEqual(ended.value("weights"), wanted)

    def test_replacements_that_fail(self):
        """The others go on without them."""
        wanted = undisturbed()
        for fault, reason, waits in (
                ("does not start", "no such file", 99),
                ("other model", "differs from the others: parameters.4.1.0 is 2 there, and 3 here",
                 11),
                ("other momentum", "the momentum of 'norm' is 0.1 there, and 0.2 here", 11),
                ("other seed", "settings.seed is 3 there, and 4 here", 11),
                ("no resume", "call run.resume(directory, model, optimizer", 99)):
            ended = self.replaced(3, restart="--restart=1", FAULT=fault, DIES=9, WAITS=waits)
            self.assertIn(reason, ended.err)
            self.assertNotIn("entered as", ended.out)
            self.assertEqual(ended.value("weights"), wanted)


if __name__ == "__main__":
    unittest.main()
