"""What a run resumes with is what it was saved with, or save() says what it cannot hold."""

import tempfile
import textwrap
import unittest

from support import launch

# A whole run, one that is saved after three of six steps, and its rest, in each process.
PROGRAM = """
    import functools, os
    import torch, torch.nn.functional as F
    import lockstep.torch as lk
    from lockstep.torch import run as run_module

    run_module.Group = functools.lru_cache(None)(run_module.Group)   # one for all runs
    POINTS = torch.utils.data.TensorDataset(
        torch.randn(64, 3, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 4)

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    def net():
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Flatten(),
                                   torch.nn.Linear(128, 4))

    def between(model, opt, step):
        pass

    class Own(torch.optim.Optimizer):
        # an optimizer as users write them: update(state of p, p, gradient)

        def __init__(self, params):
            super().__init__(params, dict(lr=0.05))

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                self.update(self.state[p], p, p.grad)

    def train(name, until, directory):
        run_module._current = None
        run = lk.init(seed=1, virtual_workers=4)
        model = run.prepare(net())
        opt = make(model.parameters())
        data = run.loader(POINTS, global_batch=16)
        run.resume(directory, model, opt)
        for step in run.steps(until):
            between(model, opt, step)
            run.step(loss_sum, data, opt)
        if directory is not None:
            run.save(directory)
        run.print(name, run.weights_hash())

    def train_all():
        train("whole", 6, None)
        train("half", 3, "ck")
        train("rest", 6, "ck")
"""

DECAY = """
    make = lambda params: getattr(lk, os.environ["KIND"])(params, lr=0.01, weight_decay=0.0)

    def between(model, opt, step):
        opt.param_groups[0]["weight_decay"] = START if step < 3 else 0.1

    START = float(os.environ["START"])
    if "REST" in os.environ:   # the first step after the checkpoint is that of the change
        train("half", 3, "ck")
        train("rest", 6, "ck")
    else:
        train_all()
"""

# States whose type or order of elements decides on the bits of the next step.
STATES = """
    def boolean(state, p, g):   # moves only where the sign of the gradient stayed
        sign = g > 0
        same = ~(sign ^ state["sign"]) if "sign" in state else torch.ones_like(sign)
        state["sign"] = sign
        p.sub_(g * same.float(), alpha=0.05)

    def strides(state, p, g):   # a normalised momentum
        m = state.setdefault("m", torch.zeros_like(p))
        state["turned"] = torch.zeros(2, 3).t()
        assert m.stride() == p.stride()
        m.mul_(0.9).add_(g)
        p.sub_(m / (m.norm() + 1e-6), alpha=0.05)

    def every_other(state, p, g):
        state["m"] = torch.zeros(4)[::2]
        p.sub_(g, alpha=0.05)

    def dotted(state, p, g):
        state["m.n"] = 1
        p.sub_(g, alpha=0.05)

    Own.update = staticmethod(globals()[os.environ["KIND"]])
    make = Own
    plain = net

    def net():
        return plain().to(memory_format=torch.channels_last)

    train_all()
"""

# States that belong to no parameter.
ELSEWHERE = """
    class Elsewhere(torch.optim.SGD):
        count = 0

        def step(self, closure=None):
            super().step()
            self.count += 1
            if os.environ["KIND"] == "global":
                self.state["global"]["count"] = self.count

        if os.environ["KIND"] == "attribute":
            def state_dict(self):
                return dict(super().state_dict(), count=self.count)

    make = lambda params: Elsewhere(params, lr=0.1, momentum=0.9)
    train("whole", 6, None)
    train("half", 3, "ck")
"""

# Langevin dynamics, by the global generators or by one that every worker seeds differently.
NOISE = """
    import random

    class Langevin(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            own = torch.Generator().manual_seed(int(os.environ["RANK"]))
            generator = own if os.environ.get("OWN") else None
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    noise = torch.randn(p.shape, generator=generator)
                    p.add_(noise, alpha=0.01 * random.random())

    make = lambda params: Langevin(params, lr=0.1)
    if os.environ.get("OWN"):
        lk.Run.weights_hash = lambda run: ""
        train("half", 1, "ck")
    else:
        train_all()
"""

# Modules whose state dict has what is no parameter or buffer of theirs.
EXTRA = """
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.count = torch.nn.Parameter(torch.ones(4)), 0
            self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

        def forward(self, x):
            return x * self.weight * self.mask * (1 + self.count)

        if os.environ["KIND"] != "converted":
            def get_extra_state(self):
                if os.environ["KIND"] == "bits":
                    return torch.tensor([self.count >> i & 1 for i in range(8)]) > 0
                return torch.tensor(self.count)

            def set_extra_state(self, value):
                if value.dim() > 0:
                    value = ((~value).logical_not() * 2 ** torch.arange(8)).sum()
                self.count = int(value)
        else:
            def _save_to_state_dict(self, state, prefix, keep_vars):
                super()._save_to_state_dict(state, prefix, keep_vars)
                state[prefix + "weight"] = (self.weight * 2).detach()

            def _load_from_state_dict(self, state, prefix, *rest):
                state[prefix + "weight"] = state[prefix + "weight"] / 2
                super()._load_from_state_dict(state, prefix, *rest)

    plain = net

    def net():
        return torch.nn.Sequential(plain(), Scale())

    def between(model, opt, step):
        if os.environ["KIND"] != "converted":
            model[1].count += step % 2

    make = lambda params: lk.SGD(params, lr=0.05, momentum=0.9)
    train_all()
"""


class Restored(unittest.TestCase):
    def run_program(self, program, workers=2, **env):
        with tempfile.TemporaryDirectory() as folder:
            return launch(textwrap.dedent(PROGRAM) + textwrap.dedent(program), workers,
                          folder=folder, env=env)

    def assert_same(self, program, **env):
        ended = self.run_program(program, **env)
        self.assertEqual(ended.status, 0, ended.err)
        self.assertEqual(ended.value("whole"), ended.value("rest"))
        self.assertNotEqual(ended.value("whole"), ended.value("half"))

    def assert_refused(self, program, *texts, **env):
        ended = self.run_program(program, **env)
        self.assertNotEqual(ended.status, 0, ended.out + ended.err)
        for text in texts:
            self.assertIn(text, ended.err)

    def test_weight_decay_that_changes(self):
        for kind in ("LAMB", "LARS"):
            self.assert_same(DECAY, KIND=kind, START=1e-12)

    def test_weight_decay_that_begins(self):
        for kind in ("LAMB", "LARS"):
            self.assert_refused(DECAY, "the weight_decay of parameter group 0 is 0.1 now, and was "
                                f"0 when the run began: {kind} gives no trust", KIND=kind, START=0)
        self.assert_refused(DECAY, "group 0 is 0.1 now, and was 0 when", KIND="LAMB", START=0,
                            REST=1)

    def test_states_in_other_forms(self):
        self.assert_same(STATES, KIND="boolean")
        self.assert_same(STATES, KIND="strides")

    def test_states_that_cannot_be_restored(self):
        self.assert_refused(STATES, "the optimizer's state 'm' of '0.weight' are not consecutive",
                            KIND="every_other")
        self.assert_refused(STATES, "state 'm.n' of '0.weight' cannot be restored", KIND="dotted")

    def test_states_of_no_parameter(self):
        self.assert_refused(ELSEWHERE, "Elsewhere keeps a state under 'global', which is no "
                            "parameter that is trained", KIND="global")
        self.assert_refused(ELSEWHERE, "Elsewhere.state_dict() has 'count'", KIND="attribute")
        self.assertEqual(self.run_program(ELSEWHERE, KIND="").status, 0)

    def test_optimizers_that_draw_random_numbers(self):
        found = []
        for workers in (1, 3):
            found.append(self.run_program(NOISE, workers))
            self.assertEqual(found[-1].status, 0, found[-1].err)
            self.assertEqual(found[-1].value("whole"), found[-1].value("rest"))
        self.assertEqual(found[0].value("whole"), found[1].value("whole"))

    def test_optimizers_whose_copies_differ(self):
        self.assert_refused(NOISE, "rank 1 and rank 0 have other parameters after the same steps "
                            "of Langevin", OWN=1)

    def test_what_modules_add_to_the_state_dict(self):
        for kind in ("number", "bits", "converted"):
            self.assert_same(EXTRA, KIND=kind)


if __name__ == "__main__":
    unittest.main()
