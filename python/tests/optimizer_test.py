"""Optimizers compute what torch's do, in groups, with schedulers, on any number of workers."""

import tempfile
import unittest

import torch.optim.optimizer as torch_optimizer

from support import launch

PROGRAM = """
    import functools, os
    import torch, torch.nn.functional as F
    import lockstep.torch as lk
    from lockstep.torch import run as run_module

    run_module.Group = functools.lru_cache(None)(run_module.Group)   # one for all runs

    class Plain(torch.optim.Optimizer):
        # an optimizer as its paper has it: update(state, p, gradient, lr, weight decay)

        def __init__(self, groups, update, lr, weight_decay):
            self.update = update
            super().__init__(groups, dict(lr=lr, weight_decay=weight_decay))

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    self.update(self.state[p], p, p.grad, group["lr"], group["weight_decay"])

    def zeros(state, name, p):
        return state.setdefault(name, torch.zeros_like(p))

    def lion(state, p, g, lr, decay):
        mean = zeros(state, "mean", p)
        direction = torch.sign(0.9 * mean + 0.1 * g)
        mean.mul_(0.99).add_(g, alpha=0.01)
        p.sub_(lr * (direction + decay * p))

    def lamb(state, p, g, lr, decay):
        mean, square = zeros(state, "mean", p), zeros(state, "square", p)
        t = state["t"] = state.get("t", 0) + 1
        mean.mul_(0.9).add_(g, alpha=0.1)
        square.mul_(0.999).addcmul_(g, g, value=0.001)
        move = mean / (1 - 0.9 ** t) / ((square / (1 - 0.999 ** t)).sqrt() + 1e-6) + decay * p
        trust = p.norm() / move.norm() if decay and p.norm() > 0 else 1.0
        p.sub_(lr * trust * move)

    def lars(state, p, g, lr, decay):
        steps = zeros(state, "steps", p)
        trust = 0.01 * p.norm() / (g.norm() + decay * p.norm()) if decay else 1.0
        steps.mul_(0.9).add_(lr * trust * (g + decay * p))
        p.sub_(steps)

    def yogi(state, p, g, lr, decay):
        mean, square = zeros(state, "mean", p), zeros(state, "square", p)
        t = state["t"] = state.get("t", 0) + 1
        mean.mul_(0.9).add_(g, alpha=0.1)
        square.sub_(0.05 * torch.sign(square - g * g) * g * g)
        p.mul_(1 - lr * decay)
        p.sub_(lr * mean / (1 - 0.9 ** t) / ((square / (1 - 0.95 ** t)).sqrt() + 1e-3))

    OPTIMIZERS = {
        "lion": (lambda g: lk.Lion(g, lr=1e-3, weight_decay=0.1),
                 lambda g: Plain(g, lion, 1e-3, 0.1)),
        "lamb": (lambda g: lk.LAMB(g, lr=1e-2, weight_decay=0.1),
                 lambda g: Plain(g, lamb, 1e-2, 0.1)),
        "lars": (lambda g: lk.LARS(g, lr=0.5, weight_decay=0.1, trust_coefficient=0.01),
                 lambda g: Plain(g, lars, 0.5, 0.1)),
        "adamw": (lambda g: lk.AdamW(g, lr=1e-2, weight_decay=0.1),
                  lambda g: torch.optim.AdamW(g, lr=1e-2, weight_decay=0.1)),
        "sgd": (lambda g: lk.SGD(g, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
                lambda g: torch.optim.SGD(g, lr=0.05, momentum=0.9, weight_decay=0.01,
                                          nesterov=True)),
        "yogi": (lambda g: lk.Yogi(g, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1),
                 lambda g: Plain(g, yogi, 1e-2, 0.1)),
        "sums": (lambda g: lk.Adagrad(g, lr=0.02, weight_decay=0.1),
                 lambda g: torch.optim.Adagrad(g, lr=0.02, weight_decay=0.1)),
        "adagrad": (lambda g: lk.FromTorch(torch.optim.Adagrad(g, lr=0.02)),
                    lambda g: torch.optim.Adagrad(g, lr=0.02)),
    }

    def net():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))

    def groups(model):
        return [{"params": [p for p in model.parameters() if p.dim() > 1]},
                {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.003,
                 "weight_decay": 0.0}]

    def schedule(opt):
        return torch.optim.lr_scheduler.LambdaLR(opt, [lambda s: 0.9 ** s, lambda s: 1 / (1 + s)])

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 240
        def __getitem__(self, i):
            return torch.randn(8, generator=torch.Generator().manual_seed(i)), i % 3

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    def plain(make, steps):
        model = net()
        opt = make(groups(model))
        sched = schedule(opt)
        for s in range(steps):
            opt.zero_grad()
            samples = [Points()[i] for i in range(24 * s, 24 * s + 24)]
            x, y = torch.stack([s[0] for s in samples]), torch.tensor([s[1] for s in samples])
            F.cross_entropy(model(x), y).backward()
            opt.step()
            sched.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def train(name):
        ours, theirs = OPTIMIZERS[name]
        run_module._current = None
        run = lk.init(seed=1, virtual_workers=6)
        model = run.prepare(net())
        opt = ours(groups(model))
        sched = schedule(getattr(opt, "torch", opt))
        data = run.loader(Points(), global_batch=24, shuffle=False)
        if "SAVED" in os.environ:
            run.resume(os.environ["SAVED"], model, opt, sched)
        for step in run.steps(int(os.environ.get("UNTIL", 10))):
            run.step(loss_sum, data, opt)
            sched.step()
        if "SAVED" in os.environ:
            run.save(os.environ["SAVED"])
        run.print("weights." + name, run.weights_hash())
        ours = torch.cat([p.detach().flatten() for p in model.parameters()])
        wanted = plain(theirs, int(os.environ.get("STEPS", 10)))
        run.print("error." + name, ((ours - wanted).norm() / wanted.norm()).item())

    for name in os.environ["OPTIMIZERS"].split():
        train(name)
"""

# The last batch of each epoch leaves virtual workers empty.  Gradients of the step before, and of
# the program's own backward pass, must not count in their turns.
SHORT = """
    import functools
    import torch, torch.nn.functional as F
    import lockstep.torch as lk
    from lockstep.torch import run as run_module

    run_module.Group = functools.lru_cache(None)(run_module.Group)   # one for all runs

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, i):
            generator = torch.Generator().manual_seed(i)
            return torch.randn(8, generator=generator), i % 3

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    for own in (True, False):
        run_module._current = None
        run = lk.init(seed=1, virtual_workers=4, audit_steps=0)
        model = run.prepare(torch.nn.Linear(8, 3))
        make = torch.optim.Adagrad if own else lk.AdamW
        opt = make(model.parameters(), lr=0.02)
        data = run.loader(Points(), global_batch=8, drop_last=False)
        for step in run.steps(6):
            run.step(loss_sum, data, opt)
            if not own:
                F.cross_entropy(model(torch.ones(1, 8)), torch.tensor([1])).backward()
        run.print("weights." + ("own" if own else "ours"), run.weights_hash())
"""

# Optimizers of the user's: without a learning rate, or with one that they choose by themselves, and
# with a state that is a number.
OWN = """
    import functools, os
    import torch, torch.nn.functional as F
    import lockstep.torch as lk
    from lockstep.torch import run as run_module

    run_module.Group = functools.lru_cache(None)(run_module.Group)   # one for all runs

    class Own(torch.optim.Optimizer):
        def __init__(self, params, **defaults):
            super().__init__(params, defaults)

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["steps"] = state.get("steps", 0) + 1
                    state["past"] = state.get("past", ())[-1:] + (state["steps"],)
                    p.sub_(p.grad * group.get("rate", 0.1) / state["steps"])

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    for number, options in enumerate([{"rate": 0.2}, {"lr": None, "weight_decay": None}]):
        for name, until, saved in (("whole", 6, None), ("half", 3, str(number)),
                                   ("resumed", 6, str(number))):
            run_module._current = None
            run = lk.init(seed=1, virtual_workers=4)
            model = run.prepare(torch.nn.Linear(8, 3))
            opt = Own(model.parameters(), **options)
            points = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.arange(32) % 3)
            data = run.loader(points, global_batch=8)
            run.resume(saved, model, lk.FromTorch(opt, clip_norm=1.0))
            for step in run.steps(until):
                run.step(loss_sum, data, lk.FromTorch(opt, clip_norm=1.0))
            if saved is not None:
                run.save(saved)
            run.print(f"{name}.{number}", run.weights_hash())
    try:
        run.step(loss_sum, data, lk.FromTorch(opt))
    except RuntimeError as error:
        run.print("other", error)
"""


# Hooks of optimizers, and states that a rank has otherwise than the others.
HOOKS = """
    import os
    import torch, torch.nn.functional as F
    import torch.optim.optimizer as torch_optimizer
    import lockstep.torch as lk

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    def add_hooks(opt):
        handle = opt.register_step_post_hook(lambda optimizer, args, kwargs: called.append(
            (optimizer is opt, args[0] is opt, kwargs)))
        torch_optimizer.register_optimizer_step_post_hook(lambda *_: called.append("all"))
        try:
            opt.register_step_pre_hook(lambda *_: called.append("before"))
        except RuntimeError as error:
            run.print("pre", error)
        return handle

    run = lk.init(seed=1, virtual_workers=4)
    model = run.prepare(torch.nn.Linear(8, 3))
    make = lk.AdamW if os.environ.get("OURS") else torch.optim.AdamW
    opt = make(model.parameters(), lr=0.02)
    called = []
    handle = None if os.environ.get("DIFFERS") else add_hooks(opt)
    if os.environ.get("DIFFERS"):
        for p in model.parameters():
            opt.state[p] = {"step": torch.tensor(1.0), "exp_avg": torch.full_like(p, run.rank),
                            "exp_avg_sq": torch.ones_like(p)}
    points = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.arange(32) % 3)
    data = run.loader(points, global_batch=8)
    for step in run.steps(3):
        run.step(loss_sum, data, opt)
        if step == 1 and handle:
            handle.remove()
    if os.environ.get("OURS"):
        torch_optimizer.register_optimizer_step_pre_hook(lambda *_: called.append("before all"))
        try:
            run.step(loss_sum, data, opt)
        except RuntimeError as error:
            run.print("pre.all", error)
    run.print("called", called)
"""


class Optimizers(unittest.TestCase):
    def run_program(self, workers, **env):
        with tempfile.TemporaryDirectory() as folder:
            ended = launch(PROGRAM, workers, folder=folder, env=env)
        self.assertEqual(ended.status, 0, ended.err)
        return ended

    def test_as_in_torch(self):
        names = ("adamw", "sgd", "lamb", "lars", "lion", "yogi", "sums", "adagrad")
        alone, three = (self.run_program(n, OPTIMIZERS=" ".join(names)) for n in (1, 3))
        for name in names:
            self.assertEqual(alone.value("weights." + name), three.value("weights." + name), name)
            self.assertLess(float(alone.value("error." + name)), 1e-6, name)

    def test_states_of_torchs_optimizers_are_saved(self):
        whole = self.run_program(2, OPTIMIZERS="adagrad")
        with tempfile.TemporaryDirectory() as saved:
            self.run_program(1, OPTIMIZERS="adagrad", SAVED=saved, UNTIL=5)
            rest = self.run_program(3, OPTIMIZERS="adagrad", SAVED=saved)
        self.assertEqual(rest.value("weights.adagrad"), whole.value("weights.adagrad"))

    def run_hooks(self, workers, **env):
        with tempfile.TemporaryDirectory() as folder:
            return launch(HOOKS, workers, folder=folder, env=env)

    @unittest.skipUnless(hasattr(torch_optimizer, "register_optimizer_step_post_hook"),
                         "this torch has no hooks of optimizers")
    def test_hooks_are_called(self):
        ours, torchs = self.run_hooks(2, OURS=1), self.run_hooks(2)
        for ended in ours, torchs:
            self.assertEqual(ended.status, 0, ended.err)
        each = "(True, True, {})"
        self.assertEqual(ours.value("called"), f"[{each}, 'all', {each}, 'all', 'all']")
        for name in "pre", "pre.all":
            self.assertIn("has no moment for a pre-hook", ours.value(name))
        self.assertEqual(torchs.value("called"), f"['before', {each}, 'all', 'before', {each}, "
                                                 "'all', 'before', 'all']")

    def test_other_states_on_a_rank_are_named(self):
        ended = self.run_hooks(2, DIFFERS=1)
        self.assertEqual(ended.status, 1)
        self.assertIn("ranks 0 and 1 start with different values of 'weight.exp_avg'", ended.err)
        self.assertEqual(self.run_hooks(1, DIFFERS=1).status, 0)

    def test_optimizers_of_the_user(self):
        ended = []
        for workers in 1, 2:
            with tempfile.TemporaryDirectory() as folder:
                ended.append(launch(OWN, workers, folder=folder))
            self.assertEqual(ended[-1].status, 0, ended[-1].err)
        for number in "01":
            hashes = {e.value(f"{name}.{number}") for e in ended for name in ("whole", "resumed")}
            self.assertEqual(len(hashes), 1)
            self.assertNotIn(ended[0].value(f"half.{number}"), hashes)
        self.assertEqual(ended[0].value("other"), "a run has one optimizer")

    def test_gradients_from_before_a_step_do_not_count(self):
        hashes = set()
        for workers in (1, 2, 4):
            with tempfile.TemporaryDirectory() as folder:
                ended = launch(SHORT, workers, folder=folder)
            self.assertEqual(ended.status, 0, ended.err)
            hashes.add((ended.value("weights.own"), ended.value("weights.ours")))
        self.assertEqual(len(hashes), 1, hashes)

    def test_a_missing_step_is_seen(self):
        ended = self.run_program(1, OPTIMIZERS="adamw", STEPS=9)
        self.assertGreater(float(ended.value("error.adamw")), 1e-4)


if __name__ == "__main__":
    unittest.main()
