"""Parameters that hosts shard (zero3, hybrid): the same bits as with ddp whatever a model does with
its parameters, little memory, and a clear end where it is not possible."""

import tempfile
import unittest

import torch

import support
import lockstep.torch as lk
from lockstep.torch import plan, rehearsal
from lockstep.torch.model import Model

BEGIN = """
    import functools, hashlib
    import torch, torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    import lockstep.torch as lk
    from lockstep.torch import run as run_module

    join = run_module.Group
    run_module.Group = functools.lru_cache(None)(join)   # one group for all runs

    def begin(strategy, **more):
        run_module._current = None
        return lk.init(seed=1, virtual_workers=4, strategy=strategy, bucket_bytes=2048,
                       timeout=60, **more)

    W = 16

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), len(y)

    def points():
        x = torch.randn(24, W, generator=torch.Generator().manual_seed(3))
        return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())

    def digest(run, module):
        with run.gathered():
            values = [p.detach().clone() for p in module.parameters()]
        text = b"".join(bytes(v.contiguous().view(-1).view(torch.uint8).tolist()) for v in values)
        return hashlib.sha256(text).hexdigest()[:16]
"""

MODELS = BEGIN + """
    class Tied(nn.Module):   # the head is the first layer's weight, used by hand
        def __init__(self):
            super().__init__()
            self.first, self.middle = nn.Linear(W, W), nn.Sequential(
                nn.Linear(W, W), nn.Tanh(), nn.Linear(W, W))

        def forward(self, x):
            return F.linear(self.middle(self.first(x).tanh()), self.first.weight)

    class Attention(nn.Module):   # uses parameters of a submodule that is not called
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(W, 2, batch_first=True)
            self.head = nn.Linear(W, 2)
            self.scale = nn.Parameter(torch.ones(W))

        def forward(self, x):
            x = (x * self.scale).unsqueeze(1)
            return self.head(self.attention(x, x, x)[0][:, 0])

    class Checkpointed(nn.Module):   # computes its segments again in the backward pass
        def __init__(self, reentrant):
            super().__init__()
            self.segments = nn.ModuleList(nn.Sequential(nn.Linear(W, 3 * W), nn.Tanh(),
                                                        nn.Linear(3 * W, W)) for _ in range(3))
            self.reentrant = reentrant

        def forward(self, x):
            x = x.clone().requires_grad_(True)
            for segment in self.segments:
                x = x + checkpoint(segment, x, use_reentrant=self.reentrant)
            return x

    class Twice(nn.Module):   # two layers in turn, several times, and normalized weights
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(W, W), nn.utils.weight_norm(nn.Linear(W, W))
            self.views = nn.Parameter(torch.randn(4, W, W) / 4)
            self.frozen = nn.Linear(W, W).requires_grad_(False)
            self.head = nn.Linear(W, 2)

        def forward(self, x):
            x = self.one(x)   # the next line needs the head after its gradient is complete
            x = F.linear(F.linear(x, self.head.weight.detach()), self.head.weight.detach().t())
            for _ in range(3):
                x = self.two(torch.tanh(self.one(x)))
            for v in self.views.unbind():
                x = torch.tanh(x @ v)
            x = x + F.linear(x, self.one.weight.detach())
            return self.head(self.frozen(x))

    class Backwards(nn.Module):   # registers its layers in another order than it uses them in
        def __init__(self):
            super().__init__()
            self.head, self.last, self.first = (nn.Linear(W, 2), nn.LayerNorm(W),
                                                nn.Linear(W, W))

        def forward(self, x):
            return self.head(self.last(self.first(x)))

    MODELS = {"tied": Tied, "attention": Attention, "twice": Twice, "backwards": Backwards,
              "checkpointed": lambda: Checkpointed(False), "reentrant": lambda: Checkpointed(True)}
    for name, make in MODELS.items():
        for strategy in "ddp", "zero3":
            run = begin(strategy)
            model = run.prepare(make())
            opt = lk.AdamW(model.parameters(), lr=1e-2, clip_norm=1.0)
            data = run.loader(points(), global_batch=8, micro_batch=1 + (name != "tied"))
            for step in run.steps(3):
                run.step(loss_sum, data, opt)
            found = [digest(run, model), run.weights_hash(),
                     run.evaluate(loss_sum, data).loss.hex()]
            sharded = run._engine._sharded
            if strategy == "zero3":
                assert all(p.isnan().all() for p in model.parameters() if p.requires_grad)
                size = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
                run.print("memory", name, sharded.largest / size)
            run.print(name, strategy, *found)
            run._engine.close()
"""

CHECKPOINT = BEGIN + """
    def train(strategy, steps, **more):
        run = begin(strategy, **more)
        model = run.prepare(nn.Sequential(nn.Linear(W, W), nn.Tanh(), nn.Linear(W, 2)))
        opt = lk.AdamW(model.parameters(), lr=1e-2)
        data = run.loader(points(), global_batch=8)
        run.resume("ckpt", model, opt)
        if strategy == "zero3":
            run.save("ckpt")   # opens the engine without a plan
            assert not run._engine.plan.again
        for step in run.steps(steps):
            run.step(loss_sum, data, opt)
            run.save("ckpt")
        run.print(strategy, steps, run.weights_hash())
        assert run._engine.address(0, 0) is None   # no host has the whole parameter
        with run.gathered():   # what save() and the end of an evaluation leave alone
            run.save("ckpt")
            run.evaluate(loss_sum, data)
            assert not any(p.isnan().any() for p in model.parameters())
            try:
                run.step(loss_sum, data, opt)
                assert False
            except RuntimeError as error:
                assert "within `with run.gathered()`" in str(error), error
        assert all(p.isnan().all() for p in model.parameters())
        try:
            with run.gathered(), torch.no_grad():
                next(iter(model.parameters())).add_(1)
            assert False
        except RuntimeError as error:
            assert "was changed within" in str(error), error
        state = opt.state_dict()
        assert len(state["state"]) == 4 and not state["state"][0]["exp_avg"].isnan().any()
        run._engine.close()

    def alone(steps):
        run = begin("ddp")
        model = run.prepare(nn.Sequential(nn.Linear(W, W), nn.Tanh(), nn.Linear(W, 2)))
        opt, data = lk.AdamW(model.parameters(), lr=1e-2), run.loader(points(), global_batch=8)
        for step in run.steps(steps):
            run.step(loss_sum, data, opt)
        run.print("ddp", steps, run.weights_hash())
        run._engine.close()

    train("zero3", 2)
    train("hybrid", 4, shard_hosts=2)
    alone(4)
"""

CHANGING = BEGIN + """
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(W, W) for _ in range(4))

        def forward(self, x):
            global turns
            turns += 1
            for layer in [*self.layers, *([self.layers[0]] if turns > 3 else [])]:
                x = torch.tanh(layer(x))
            return x

    turns = 0
    run = begin("zero3")
    model = run.prepare(Changing())
    opt, data = lk.SGD(model.parameters(), lr=0.1), run.loader(points(), global_batch=8)
    for step in run.steps(4):
        run.step(loss_sum, data, opt)
"""


class Sharding(unittest.TestCase):
    def launch(self, program, workers, *options, **more):
        with tempfile.TemporaryDirectory() as folder:
            return support.launch(program, workers, "--hosts", "2", *options, folder=folder, **more)

    def test_models(self):
        """What models do with their parameters changes no bit."""
        ended = self.launch(MODELS, 3, env={"PYTHONWARNINGS": "ignore"})
        self.assertEqual(ended.status, 0, ended.err)
        lines = [line.split() for line in ended.out.splitlines()]
        found = {(name, strategy): rest for name, strategy, *rest in lines if name != "memory"}
        self.assertEqual(len(found), 12)
        for (name, strategy), values in found.items():
            self.assertEqual(values, found[name, "ddp"], (name, strategy))
        memory = {line[1]: float(line[2]) for line in lines if line[0] == "memory"}
        for name in "checkpointed", "reentrant":   # a segment of three at a time
            self.assertLess(memory[name], 0.7, name)

    def test_checkpoints(self):
        ended = self.launch(CHECKPOINT, 2)
        self.assertEqual(ended.status, 0, ended.err)
        self.assertEqual(ended.value("hybrid 4"), ended.value("ddp 4"))

    def test_changing_order(self):
        """A parameter that is used again after its release ends the run with its name."""
        ended = self.launch(CHANGING, 2)
        self.assertNotEqual(ended.status, 0)
        self.assertIn("parameter 'layers.0.weight' is used later than in the first micro-batch",
                      ended.err)

    def test_refusals(self):
        """What cannot be sharded is refused with the reason."""
        layer = torch.nn.Linear(4, 4)
        own = lk.SGD(layer.parameters(), lr=0.1)
        other = lk.FromTorch(torch.optim.SGD(layer.parameters(), lr=0.1))
        for module, optimizer, text in (
                (layer, other, "an optimizer of torch needs all parameters"),
                (torch.jit.script(layer), own, "'RecursiveScriptModule' is compiled")):
            with self.assertRaisesRegex(ValueError, text):
                rehearsal.refuse(Model(module), optimizer, "zero3")


class Events:
    """The events of a turn, from text: "a,b" uses, "A" is the gradient of a."""

    def __init__(self, forward, backward):
        self.forward, self.backward = self._events(forward), self._events(backward)

    @staticmethod
    def _events(text):
        return [("gradient", ord(word) - ord("A")) if word.isupper() else
                ("use", [ord(letter) - ord("a") for letter in word.split(",")])
                for word in text.split()]


def planned(forward, backward, sizes=None):
    """Return a plan in letters: blocks, forward order, kept, released."""
    count = len(set(forward + backward) & set("abcdefgh"))
    names = [f"m{i}.w" for i in range(count)]
    found = plan.make(names, sizes or [1] * count, Events(forward, backward))

    def letters(params):
        return "".join(chr(ord("a") + p) for p in params)

    return (" ".join(map(letters, found.blocks)), " ".join(letters(found.blocks[b])
                                                           for b in found.forward),
            letters(found.kept), " ".join(letters(r) or "-" for r in found.released))


class Plans(unittest.TestCase):
    def test_chain(self):
        self.assertEqual(planned("a b c", "c C b B a A"), ("c b a", "a b c", "", "- a b"))

    def test_together(self):
        """What is needed before earlier gradients are complete is in one block with them."""
        self.assertEqual(planned("a,b c,d", "c D C a B A"), ("dc ba", "ba dc", "", "- ba"))

    def test_tied(self):
        """A parameter of both ends is kept, so that the rest stays in small blocks."""
        self.assertEqual(planned("a b c d a", "a d D c C b B A"),
                         ("d c b a", "a b c d", "a", "- - b c"))

    def test_in_turn(self):
        self.assertEqual(planned("a b a b c", "c C b a b a B A", [1, 3, 9]),
                         ("c ba", "ba c", "", "- ba"))

    def test_unused(self):
        """What has no gradient yet is placed after what precedes it in the model."""
        self.assertEqual(planned("a c", "c C b A"), ("c b a", "a b c", "", "- - a"))


if __name__ == "__main__":
    unittest.main()
