"""A run continues from its checkpoints with the same bits, on any workers; what is wrong is named.

The checkpoints of one run, made once on two hosts with zero1, are what the tests start from.
"""

import collections
import json
import pathlib
import shutil
import subprocess
import tempfile
import textwrap
import unittest
from unittest import mock

import torch
from support import BUILD, launch
from torch.optim import lr_scheduler

try:
    from safetensors.torch import load_file
except ImportError:
    load_file = None

NET = """
    import torch
    import torch.nn.functional as F

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, i):
            x = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(i))
            return x + 0.1 * torch.randn(2, 8, 8), int(x[0].sum() > x[1].sum())

    class Net(torch.nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.first = torch.nn.Conv2d(2, width, 3).to(memory_format=torch.channels_last)
            self.norm = torch.nn.BatchNorm2d(width)
            self.encode = torch.nn.Linear(width, width)
            self.tied = torch.nn.Linear(width, width, bias=False)
            self.tied.weight = self.encode.weight
            self.last = torch.nn.Linear(width, 2)
            self.frozen = torch.nn.Parameter(torch.ones(2, dtype=torch.float64),
                                             requires_grad=False)
            self.register_buffer("mask", torch.ones(width, dtype=torch.bool))

        def forward(self, x):
            x = F.relu(self.norm(self.first(x))).mean((2, 3)) * self.mask
            x = F.dropout(self.tied(F.relu(self.encode(x))), 0.1, self.training)
            return self.last(x) * self.frozen.float()
"""

PROGRAM = NET + """
    import os, resource, signal, sys
    import lockstep.torch as lk
    from lockstep.torch import gpu
    from torch.optim.lr_scheduler import MultiStepLR

    if "DEVICE" in os.environ:
        gpu.describe = lambda device: {"device": os.environ["DEVICE"]}

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    run = lk.init(seed=1, virtual_workers=4, strategy=os.environ.get("STRATEGY", "ddp"),
                  audit_steps=0)
    model = run.prepare(Net())
    opt = lk.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    sched = MultiStepLR(opt, [7, 14], gamma=0.5)
    data = run.loader(Points(), global_batch=16)

    def train(until):
        for step in run.steps(until):
            result = run.step(loss_sum, data, opt)
            sched.step()
            run.log(result)
            if (step + 1) % 10 == 0:
                run.save("ck")
            run.print("loss", step, result.loss)
            if step + 1 == int(os.environ.get("DIES", 0)):
                os.kill(os.getpid(), signal.SIGKILL)
"""

WHOLE = PROGRAM + """
    run.resume("ck", model, opt, sched)
    train(30)
    run.print("evaluation", run.evaluate(loss_sum, Points()))
    run.print("outputs", model.eval()(torch.ones(2, 2, 8, 8)).tolist())
    run.print("weights", run.weights_hash())
"""

# Rank 0 cannot write more than some bytes.  All ranks learn it, and go on.
FULL = PROGRAM + """
    def save(bytes, keep=0):
        if run.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, resource.RLIM_INFINITY))
        if os.environ.get("UNCAUGHT"):
            run.save("full")
        try:
            run.save("full", keep)
            return "saved"
        except lk.Error as error:
            return f"{error.status} {error}"

    run.resume("ck", model, opt, sched)
    train(11)
    sys.stdout.write(f"rank {run.rank} {save(3000)}\\n")
    train(12)
    sys.stdout.write(f"rank {run.rank} {save(resource.RLIM_INFINITY)}\\n")
    train(13)
    save(resource.RLIM_INFINITY, keep=1)
    torch.save([model.state_dict(), opt.state_dict(), sched.state_dict(), run.weights_hash()],
               f"by-hand-{run.rank}")
"""

BY_HAND = PROGRAM + """
    weights, states, schedule, digits = torch.load("by-hand-1")
    model.load_state_dict(weights)
    opt.load_state_dict(states)
    sched.load_state_dict(schedule)
    run.print("step", run.resume("none", model, opt, sched))
    run.print("same", run.weights_hash() == digits)
    train(30)
    run.print("weights", run.weights_hash())
"""

# Rank 0 dies when it has written step 10, and the next one when it is about to write step 20.
DEATHS = PROGRAM + """
    from lockstep.torch import checkpoint
    write = checkpoint._Writer.write

    def die(writer, engine, directory, contents, *more):
        if contents.step == 20 and run.size == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        write(writer, engine, directory, contents, *more)
        if contents.step == 10:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint._Writer.write = die
    run.resume("ck", model, opt, sched)
    train(30)
    run.print("evaluation", run.evaluate(loss_sum, Points()))
    run.print("weights", run.weights_hash())
"""

OTHERS = PROGRAM + """
    def attempt(name, *arguments):
        try:
            run.resume("ck", *arguments)
            run.print(name, "resumed")
        except (TypeError, ValueError) as error:
            run.print(name, error)

    params = list(model.parameters())
    halves = [{"params": params[:2]}, {"params": params[2:]}]
    attempt("class", model, lk.SGD(params), sched)
    attempt("betas", model, lk.AdamW(params, betas=(0.8, 0.999)), sched)
    attempt("groups", model, lk.AdamW(halves), sched)
    attempt("schedulers", model, opt)
    attempt("function", model, opt, MultiStepLR(opt, [run.save]))
    for name, other in ("model", Net(17)), ("bias", Net()):
        if name == "bias":
            other.encode = torch.nn.Linear(16, 16, bias=False)
        run._model = None
        run.prepare(other)
        o = lk.AdamW(other.parameters(), weight_decay=0.1)
        attempt(name, other, o, MultiStepLR(o, [7, 14], gamma=0.5))
    run._model = None
    run.prepare(model)
    attempt("same", model, opt, sched)
    run.print("states", len(opt.state_dict()["state"]), opt.state_dict()["state"][1]["step"].item())
    try:
        run.step(loss_sum, run.loader(Points(), global_batch=32), opt)
    except ValueError as error:
        run.print("loader", error)
    run._environment, run._engine = dict(run._environment, threads=2), None
    attempt("threads", model, opt, sched)
"""


# The model is compiled, or not.
COMPILED = NET + """
    import os
    import lockstep.torch as lk

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    run = lk.init(seed=1, virtual_workers=2)
    net = Net()
    if "COMPILED" in os.environ:
        net.encode = torch.compile(net.encode, backend="eager")
        net = torch.compile(net, backend="eager")
    model = run.prepare(net)
    opt = lk.AdamW(model.parameters(), lr=1e-2)
    data = run.loader(Points(), global_batch=8)
    run.resume("ck", model, opt)
    for step in run.steps(int(os.environ["UNTIL"])):
        run.step(loss_sum, data, opt)
    run.save("ck")
    run.print("weights", run.weights_hash())
"""

# The scheduler is not given to resume().
FORGETS = PROGRAM + """
    run.resume("forgets", model, opt)
    train(int(os.environ["UNTIL"]))
    run.save("forgets")
"""


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.whole = launch(WHOLE, 2, "--hosts", "2", folder=cls.folder.name,
                           env={"STRATEGY": "zero1"})
        assert cls.whole.status == 0, cls.whole.err
        cls.made = pathlib.Path(cls.folder.name, "ck")

    def begin(self, *steps):
        """Return a folder with some of the checkpoints of the whole run."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for step in steps:
            name = f"step-{step:08d}"
            shutil.copytree(self.made / name, pathlib.Path(folder.name, "ck", name))
        return folder.name

    def go_on(self, program, workers, *launcher, folder, status=0, **env):
        ended = launch(program, workers, *launcher, folder=folder, env=env)
        self.assertEqual(ended.status, status, ended.out + ended.err)
        return ended

    def assert_same_end(self, folder, ended):
        """The files are those of the whole run, byte for byte, and so are the losses."""
        for path in sorted((self.made / "step-00000030").iterdir()):
            other = pathlib.Path(folder, "ck", "step-00000030", path.name)
            self.assertEqual(other.read_bytes(), path.read_bytes(), path.name)
        for name in ("weights", "evaluation", "loss"):
            self.assertEqual(ended.value(name), self.whole.value(name))

    def test_killed_and_resumed_elsewhere(self):
        folder = self.begin(10)
        killed = launch(WHOLE, 3, folder=folder, env={"DIES": 24})
        self.assertNotEqual(killed.status, 0)
        steps = [line.split()[1] for line in killed.out.splitlines() if line.startswith("loss")]
        self.assertEqual(steps, [str(s) for s in range(10, 24)])
        ended = self.go_on(WHOLE, 1, folder=folder, STRATEGY="single")
        self.assert_same_end(folder, ended)
        # nothing is left to do, in an environment that is another one
        again = self.go_on(WHOLE, 1, folder=folder, NVIDIA_TF32_OVERRIDE=0)
        self.assertRegex(again.err, "^lockstep: warning: 'ck/step-00000030' was made with "
                         "NVIDIA_TF32_OVERRIDE None, and this is '0'")
        again = self.go_on(WHOLE, 1, folder=folder, DEVICE="H100")
        self.assertRegex(again.err, "was made with device None, and this is 'H100'")
        self.assertEqual(ended.err, "")
        self.assertEqual(again.value("weights"), ended.value("weights"))

    def test_a_scheduler_that_is_not_given(self):
        folder = self.begin()
        self.assertEqual(self.go_on(FORGETS, 2, folder=folder, UNTIL=2).err, "")
        ended = self.go_on(FORGETS, 2, folder=folder, UNTIL=4)
        self.assertEqual(ended.err, "lockstep: warning: run.resume() was not given the scheduler, "
                         "which begins anew: run.resume(directory, model, opt, sched)\n")

    @unittest.skipUnless(hasattr(torch, "compile"), "this torch compiles nothing")
    def test_a_compiled_model_has_the_names_of_the_model(self):
        folder, other = self.begin(), self.begin()
        for until, compiled in (2, {"COMPILED": 1}), (4, {}), (6, {"COMPILED": 1}):
            ended = self.go_on(COMPILED, 1, folder=folder, UNTIL=until, **compiled)
        whole = self.go_on(COMPILED, 1, folder=other, UNTIL=6)
        self.assertEqual(ended.value("weights"), whole.value("weights"))

    def test_deaths_in_saves(self):
        folder = self.begin()
        ended = self.go_on(DEATHS, 3, "--on-failure", "continue", folder=folder)
        self.assertIn("continues with 1 of 3", ended.err)
        self.assert_same_end(folder, ended)

    def test_full_disk_and_state_dicts(self):
        folder = self.begin(10)
        ended = self.go_on(FULL, 2, "--hosts", "2", folder=folder, STRATEGY="zero2")
        lines = [line for line in ended.out.splitlines() if line.startswith("rank ")]
        failed = {line[7:] for line in lines if "saved" not in line}
        self.assertEqual(len(lines), 4, ended.out)
        self.assertEqual(len(failed), 1, ended.out)   # the same message on both ranks
        self.assertRegex(failed.pop(), "^EIO .*safetensors.*File too large")
        self.assertEqual([p.name for p in pathlib.Path(folder, "full").iterdir()
                          if not p.name.startswith(".")], ["step-00000013"])
        state = torch.load(pathlib.Path(folder, "by-hand-1"))[1]
        plain = torch.optim.AdamW([torch.zeros(*s["exp_avg"].shape, requires_grad=True)
                                   for s in state["state"].values()])
        self.assertEqual({float(s["step"]) for s in state["state"].values()}, {13.0})
        plain.load_state_dict(dict(state, param_groups=[
            dict(g, params=list(state["state"])) for g in state["param_groups"]]))
        ended = self.go_on(BY_HAND, 3, folder=folder)
        self.assertEqual((ended.value("step"), ended.value("same")), ("13", "True"))
        self.assertEqual(ended.value("weights"), self.whole.value("weights"))

    def test_error_ends_all(self):
        """Who ends with an error of rank 0 is not lost: the others do not continue without it."""
        for launcher in ["--hosts", "2"], ["--on-failure", "continue"]:
            ended = self.go_on(FULL, 2, *launcher, folder=self.begin(10), status=1, UNCAUGHT=1)
            self.assertIn("File too large", ended.err.splitlines()[-1])
            self.assertEqual(ended.err.count("Traceback"), 1)
            self.assertNotIn("continues with", ended.err)

    def test_flipped_byte(self):
        folder = self.begin(10, 20)
        path = pathlib.Path(folder, "ck", "step-00000020", "optimizer.safetensors")
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        ended = self.go_on(WHOLE, 2, folder=folder)
        self.assertRegex(ended.err, "lockstep: .*step-00000020.*differs from its hash")
        self.assertIn("loss 10 ", ended.out)
        self.assert_same_end(folder, ended)

    def test_what_differs_is_named(self):
        ended = self.go_on(OTHERS, 2, folder=self.begin(10))
        for name, words in {
                "class": "optimizer.class is 'AdamW' there, and 'SGD' here",
                "betas": "optimizer.betas.0 is 0.9 there, and 0.8 here",
                "groups": "number of parameter groups is 1 there, and 2 here",
                "schedulers": "schedulers is 'MultiStepLR' there, and '' here",
                "function": "MultiStepLR.milestones.",
                "model": "'mask' is U8 [16] in its model.safetensors, and U8 [17] here",
                "bias": "'encode.bias' is F32 [16] in its model.safetensors, and missing here",
                "same": "resumed",
                "states": "8 10.0",
                "loader": "loader.global_batch is 16 there, and 32 here",
                "threads": "settings.threads is 1 there, and 2 here"}.items():
            self.assertIn(words, ended.value(name))

    def test_files(self):
        step = self.made / "step-00000030"
        manifest = json.loads((step / "manifest.json").read_text())
        self.assertEqual(manifest["weights"], self.whole.value("weights"))
        seen = subprocess.run([BUILD / "bin" / "lockstep", "inspect", step, "--json"],
                              capture_output=True, text=True)
        self.assertEqual(seen.returncode, 0, seen.stderr)
        self.assertEqual(json.loads(seen.stdout)["model_hash"], self.whole.value("weights"))

    @unittest.skipIf(load_file is None, "there is no package safetensors")
    def test_plain_torch_loads_it(self):
        scope = {}
        exec(textwrap.dedent(NET), scope)
        model = scope["Net"]()
        model.load_state_dict(load_file(self.made / "step-00000030" / "model.safetensors"))
        self.assertEqual(int(model.norm.num_batches_tracked), 30)
        torch.set_num_threads(1)
        outputs = model.eval()(torch.ones(2, 2, 8, 8))
        self.assertEqual(str(outputs.tolist()), self.whole.value("outputs"))


class States(unittest.TestCase):
    def test_states_of_torchs_optimizers_are_where_their_parameters_are(self):
        from lockstep.torch import checkpoint
        p = torch.nn.Parameter(torch.ones(2, device="meta"))   # as one on a GPU
        saved = {"w.step": torch.ones(()), "w.exp_avg": torch.ones(2)}
        for options, device in ({}, "cpu"), ({"capturable": True}, "meta"):
            opt = torch.optim.AdamW([p], **options)
            stored = mock.Mock(_tensors={checkpoint.OPTIMIZER: saved}, config={},
                               _read=lambda file, name: saved[name])
            engine = mock.Mock(optimizer=mock.Mock(torch=opt),
                               model=mock.Mock(names=["w"], params=[p]))
            checkpoint.Stored._restore_torch(stored, engine)
            self.assertEqual({key: value.device.type for key, value in opt.state[p].items()},
                             {"step": device, "exp_avg": "meta"})


class Schedulers(unittest.TestCase):
    def test_states(self):
        from lockstep.torch import checkpoint, plain
        s = lr_scheduler
        kinds = [
            lambda o: s.MultiStepLR(o, [3, 5, 5, 8]), lambda o: s.StepLR(o, 3),
            lambda o: s.OneCycleLR(o, 1.0, total_steps=12, cycle_momentum=False),
            lambda o: s.ReduceLROnPlateau(o, patience=1),
            lambda o: s.CosineAnnealingWarmRestarts(o, 4),
            lambda o: s.LambdaLR(o, lambda step: 0.9 ** step),
            lambda o: s.SequentialLR(o, [s.ConstantLR(o), s.ExponentialLR(o, 0.9)], [4])]
        for make in kinds:
            rates = []
            for stops in False, True:
                optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
                scheduler, at = make(optimizer), []
                for step in range(10):
                    if stops and step == 4:
                        text = json.dumps(checkpoint.schedulers_to_json([scheduler])[0]["state"])
                        scheduler = make(optimizer)
                        scheduler.load_state_dict(plain.from_json(json.loads(text)))
                        optimizer.param_groups[0]["lr"] = at[-1]
                    optimizer.step()
                    more = [1.0] if isinstance(scheduler, s.ReduceLROnPlateau) else []
                    scheduler.step(*more)
                    at.append(optimizer.param_groups[0]["lr"])
                rates.append(at)
            self.assertEqual(*rates, type(scheduler).__name__)

    def test_values(self):
        from lockstep.torch import plain
        value = {"a": [1, -0.5, None, True, "x"], "b": float("inf"), "c": {3: {"d": -1}},
                 "e": collections.Counter({4: 2}), "f": {"__tuple__": [1]},
                 "g": [{"__float__": "x"}, {"__items__": {"__counter__": 3}}]}
        text = json.dumps(plain.to_json(value, "v"), allow_nan=False)
        again = plain.from_json(json.loads(text))
        self.assertEqual(again, value)
        self.assertIs(type(again["e"]), collections.Counter)
        value = {"f": (1, [2, (3.0,)], ()), (4, 5): ("x",)}   # lists, unless told otherwise
        text = json.dumps(plain.to_json(value, "v", tuples=True))
        self.assertEqual(plain.from_json(json.loads(text)), value)
        self.assertEqual(plain.to_json((1, (2,)), "v"), [1, [2]])
        for wrong, name in (({"a": [1, {2}]}, "v.a.1"), ({"b": 2 ** 63}, "v.b"),
                            ({1: torch.ones(1)}, "v.1.1")):
            with self.assertRaisesRegex(TypeError, f"'{name}'"):
                plain.to_json(wrong, "v")


if __name__ == "__main__":
    unittest.main()
