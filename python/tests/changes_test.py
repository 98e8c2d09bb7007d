"""Changes of a model that no worker would see, or only some, are refused with the name of what
changed."""

import tempfile
import unittest

from support import nursery

PROGRAM = """
    import os
    import torch, torch.nn.functional as F
    import lockstep.torch as lk

    FAULT = os.environ["FAULT"]

    class Shift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.zeros(16))

        def forward(self, x):
            return x + self.shift

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)
            self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
            self.register_buffer("longest", torch.zeros(()))
            self.norm, self.more = torch.nn.BatchNorm1d(16, affine=False), torch.nn.Identity()
            self.shift = Shift()
            self.register_buffer("unset", None)
            self.register_buffer("graph", torch.eye(8).to_sparse_csr(), persistent=False)
            self.register_buffer("large", torch.sparse_coo_tensor(
                torch.tensor([[0], [7]]), torch.ones(1), (1 << 24, 1 << 24)), persistent=False)
            self.register_buffer("later", torch.empty(3, device="meta"), persistent=False)
            self.words = torch.nn.Embedding(4, 8, max_norm=0.1 if FAULT == "max_norm" else None)

        def forward(self, x):
            if FAULT == "evaluation" and not self.training:
                self.longest.copy_(torch.maximum(self.longest, x.abs().max()))
            if FAULT == "max_norm":
                x = x + self.words(torch.zeros(len(x), dtype=torch.int64))
            if FAULT == "frozen":
                with torch.no_grad():
                    self.frozen.bias.add_(x.mean())
            if FAULT == "buffer.data":
                self.longest.data.mul_(0.9).add_(x.abs().max())
            if FAULT == "unset":
                self.unset = x.detach()
            if FAULT == "frozen.data":
                self.frozen.bias.data.add_(x.mean())
            if FAULT == "turn p.data":
                self.words.weight.data = self.words.weight.data + x.mean()
            if FAULT == "trained.data":
                self.words.weight.data.add_(x.mean())
            x = self.more(self.shift(self.norm(self.first(self.frozen(x)))))
            return self.last(F.relu(x))

    class Criterion(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

        def forward(self, out, y):
            return F.cross_entropy(out * self.scale, y, reduction="sum")

    def loss_sum(model, batch):
        x, y = batch
        return criterion(model(x), y), y.numel()

    run = lk.init(seed=1, virtual_workers=4, buffers=os.environ.get("BUFFERS", "check"))
    points = torch.utils.data.TensorDataset(torch.randn(48, 8), torch.arange(48) % 3)
    model, criterion = Net(), Criterion()
    if FAULT == "frozen view":
        model.frozen.weight = torch.nn.Parameter(model.first.weight.data[4:12], requires_grad=False)
    if FAULT == "buffer view":
        model.longest = model.first.weight.data[:, 2]
    if FAULT == "attribute view":
        model.norm.flat = model.first.weight.view(-1)
    if FAULT == "kept view":
        model.norm.kept = {"of": [(0, model.first.weight), (1, model.first.weight[2:])], "no": 3}
        model.norm.kept["self"] = model.norm.kept
    if run.rank == 1 and FAULT.startswith("other "):
        model.state_dict()[FAULT[6:]].add_(1)
    if run.rank == 1 and FAULT == "graph":
        model.graph = (2 * torch.eye(8)).to_sparse_csr()
    if run.rank == 1 and FAULT == "momenta":
        model.norm.momentum = 0.2
    if FAULT == "":
        model.unset = model.first.weight   # the Parameter itself
        model.kept = [model.first.weight, model.first.weight.detach().clone(), model]
    if FAULT != "criterion":
        criterion.requires_grad_(False)
    run.prepare(model)
    params = [*model.parameters(), *criterion.parameters()]
    opt = lk.SGD(params, lr=0.1, clip_norm=9)
    if os.environ.get("OPTIMIZER") == "torch":
        opt = lk.FromTorch(torch.optim.SGD(params, lr=0.1), clip_norm=9)
    data = run.loader(points, global_batch=12)
    if os.environ.get("BEFORE"):
        run.evaluate(loss_sum, data)
    for step in run.steps(3):
        if step == 1 and FAULT == "freeze":
            model.first.requires_grad_(False)
        if step == 1 and FAULT == "thaw":
            model.frozen.requires_grad_(True)
        if step == 1 and FAULT == "replace":
            model.last = torch.nn.Linear(16, 3)
        if step == 1 and FAULT == "remove":
            model.last = torch.nn.Identity()
        if step == 1 and FAULT == "assign":
            model.longest = torch.ones(())
            model.unset = torch.ones(())
            model.norm.running_mean.fill_(0.5)
        if step == 1 and FAULT == "statistics":
            model.norm.running_mean = torch.zeros(16)
        if step == 1 and FAULT == "mode" and run.rank == 1:
            model.more.eval()
        if step == 1 and FAULT == "modes" and run.rank == 0:
            model.eval()
        if step == 1 and FAULT == "momentum":
            model.norm.momentum = 0.05
        if step == 1 and FAULT == "norm":
            model.norm = torch.nn.BatchNorm1d(16, affine=False)
        if step == 1 and FAULT == "late":
            model.register_buffer("late", torch.zeros(8))
        if step == 1 and FAULT == "add":
            model.more = Shift()
        if step == 1 and FAULT == "view":
            model.longest = model.first.weight.data[3]
        if step == 1 and FAULT == "layer":
            model.shift = Shift()
        if step == 1 and FAULT == "no layer":
            model.shift = torch.nn.Identity()
        if step == 1 and FAULT == "p.data":
            model.first.weight.data = torch.zeros(16, 8)
        if step == 1 and FAULT == "half":
            model.half().float()
        if step == 1 and FAULT == "swap":   # as for an evaluation of averaged weights
            old, model.first.weight.data = model.first.weight.data, torch.zeros(16, 8)
            run.evaluate(loss_sum, data)
            model.first.weight.data = old
        if step == 1 and FAULT.startswith("clip_"):
            setattr(opt, FAULT, 0.5)
        if step == 1 and os.environ.get("SAVES"):
            run.save("checkpoints")
        run.step(loss_sum, data, opt)
        run.evaluate(loss_sum, data)
    run.print("weights", run.weights_hash())
"""


class Changes(unittest.TestCase):
    def run_program(self, fault, workers=2, **env):
        with tempfile.TemporaryDirectory() as folder:
            return nursery().run(PROGRAM, workers, folder=folder, env=dict(env, FAULT=fault))

    def assert_refused(self, fault, *texts, **env):
        """All ranks end, and their last lines have the texts."""
        for rank in self.run_program(fault, **env):
            self.assertEqual(rank.status, 1, rank.out + rank.err)
            for text in texts:
                self.assertIn(text, rank.err.splitlines()[-1])

    def test_none(self):
        for fault in ("", "assign", "swap"):   # a buffer may be replaced between steps
            for rank in self.run_program(fault):
                self.assertEqual(rank.status, 0, rank.err)

    def test_the_optimizer_has_a_parameter_that_the_model_lacks(self):
        for optimizer in ("lockstep", "torch"):
            self.assert_refused("criterion", "parameter group 0 of the optimizer",
                                "shape [3]", "not in the prepared Net", OPTIMIZER=optimizer)

    def test_what_is_trained_is_fixed(self):
        for fault, text in (
                ("freeze", "'first.weight' no longer requires gradients"),
                ("thaw", "'frozen.weight' requires gradients now, and did not before"),
                ("replace", "'last.weight' is another one than before, as after its layer"),
                ("remove", "'last.weight' is no longer in the model")):
            self.assert_refused(fault, text, "what is trained is fixed at the first step")

    def test_layers_with_buffers_are_fixed(self):
        for fault, text in (
                ("norm", "'norm' (BatchNorm1d) is another layer than before"),
                ("momentum", "the momentum of 'norm' (BatchNorm1d) is 0.05, and was 0.1"),
                ("statistics", "the running statistics of 'norm' are other tensors")):
            for buffers in ("check", "ignore"):
                self.assert_refused(fault, text, "at the first step", BUFFERS=buffers)
        for fault, text in (("late", "the model (Net) has a 'late' that it did not have"),
                            ("add", "'more' (Shift) has a 'shift' that it did not have"),
                            ("layer", "'shift' (Shift) is another layer than before"),
                            ("no layer", "'shift' (Shift) no longer has its 'shift'")):
            self.assert_refused(fault, text, "fixed at the first step")

    def test_memory_of_trained_parameters(self):
        for fault, text in (("frozen view", "parameter 'frozen.weight'"),
                            ("buffer view", "buffer 'longest'"), ("view", "buffer 'longest'"),
                            ("attribute view", "attribute 'norm.flat'"),
                            ("kept view", "attribute 'norm.kept['of'][1][1]'")):
            for optimizer in ("lockstep", "torch"):
                self.assert_refused(fault, text + " shares memory with parameter 'first.weight'",
                                    OPTIMIZER=optimizer)

    def test_other_memory_of_parameters(self):
        """Such a change was undone in the next step, and a save before it stored it."""
        for fault, name in (("p.data", "first.weight"), ("half", "first.weight"),
                            ("turn p.data", "words.weight")):
            for saves in "", "1":
                self.assert_refused(fault, f"parameter '{name}' has other memory than the last "
                                    "step gave it", "Change parameters only through steps",
                                    SAVES=saves)

    def test_values_are_the_same_on_all_ranks(self):
        values = ("frozen.bias", "norm.running_var", "norm.num_batches_tracked")
        for buffers, names in ("check", (*values, "longest")), ("ignore", values):
            for name in names:
                self.assert_refused("other " + name, "ranks 0 and 1 start with different values of "
                                    f"'{name}'; every rank must load the same: make the model "
                                    "after init()", BUFFERS=buffers)
        self.assert_refused("graph", "ranks 0 and 1 start with different values of 'graph'")
        for rank in self.run_program("other longest", BUFFERS="ignore"):
            self.assertEqual(rank.status, 0, rank.err)
        self.assert_refused("momenta", "rank 1 and rank 0 differ in the momentum of 'norm': 0.2 "
                            "and 0.1; every rank must make the same model")

    def test_modes_are_the_same_on_all_ranks(self):
        for fault, text in (
                ("mode", "rank 1 and rank 0 differ in the mode of 'more' (Identity): 'evaluation' "
                 "and 'training'; in step 2 every rank must have the same"),
                ("modes", "rank 1 and rank 0 differ in the mode of the model (Net): 'training' and "
                 "'evaluation'; in step 2 every rank must have the same")):
            self.assert_refused(fault, text)

    def test_clipping_is_fixed(self):
        for optimizer, kind in ("lockstep", "SGD"), ("torch", "FromTorch"):
            for fault, before in ("clip_norm", 9), ("clip_value", 0.0):
                self.assert_refused(fault, f"{fault} of {kind} is 0.5, and was {before} at the "
                                    "first step", OPTIMIZER=optimizer)
            self.assert_refused("clip_norm", "clip_norm of", OPTIMIZER=optimizer, SAVES="1")

    def test_a_buffer_without_a_value_that_a_forward_pass_sets(self):
        self.assert_refused("unset", "forward changes buffer 'unset' of a Net")

    def test_buffers_that_evaluations_change(self):
        for before in ("", "1"):
            self.assert_refused("evaluation", "forward changes buffer 'longest' of a Net",
                                BEFORE=before)

    def test_parameters_that_turns_change(self):
        for optimizer in ("lockstep", "torch"):
            self.assert_refused("frozen", "the loss function changes parameter 'frozen.bias' "
                                "(Linear) in place", OPTIMIZER=optimizer)
            self.assert_refused("max_norm", "'words.weight' (Embedding) in place",
                                OPTIMIZER=optimizer)

    def test_changes_through_data_in_the_first_steps(self):
        self.assert_refused("buffer.data", "forward changes buffer 'longest' of a Net")
        self.assert_refused("frozen.data", "changes parameter 'frozen.bias' (Linear) in place")
        self.assert_refused("trained.data", "changes parameter 'words.weight' (Embedding) in place",
                            OPTIMIZER="torch")


if __name__ == "__main__":
    unittest.main()
