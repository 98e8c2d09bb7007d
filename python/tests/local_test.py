"""Replicas of PyTorch models (local SGD, DiLoCo): the same bits on any workers, also if a run is
resumed in the middle of a round, and the weights of loops of torch alone.

Control: a loop with the sign of the outer gradient turned round has other weights, and its loss
rises.
"""

import json
import pathlib
import tempfile
import unittest

from support import launch

PROGRAM = """
    import copy, functools, hashlib, json, os, sys
    import torch, torch.nn.functional as F
    from torch import nn
    import lockstep.torch as lk
    from lockstep.torch import run as run_module, seeds
    from lockstep.torch.data import Loader

    run_module.Group = functools.lru_cache(None)(run_module.Group)   # one for all runs
    SEED, V, W = 1, 8, 32

    RULES = {
        "local": dict(groups=4, local_steps=3),
        "diloco": dict(groups=4, local_steps=2, outer=lk.Nesterov()),
        "adam": dict(groups=2, local_steps=2, outer=lk.FedAdam(dtype="int8",
                                                              streaming=lk.Streaming(2))),
        "adagrad": dict(groups=4, local_steps=2, outer=lk.FedAdagrad()),
        "post": dict(groups=4, local_steps=2, local_start=3, outer=lk.FedYogi()),
        "ring": dict(groups=4, topology="ring"),
        "pairs": dict(groups=4, local_steps=2, topology="pairs"),
        "topk": dict(local_steps=2, outer=lk.Momentum(0.5), compress=lk.TopK(0.1)),
    }

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), len(y)

    class Sometimes(nn.Module):
        "A batch norm that some micro-batches do not use."
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(W)

        def forward(self, x):
            return self.norm(x) if torch.rand(()) < 0.7 else x

    def make_model():
        return nn.Sequential(
            nn.Unflatten(1, (2, 4, 4)),
            nn.Conv2d(2, 8, 3, bias=False).to(memory_format=torch.channels_last),
            nn.BatchNorm2d(8), nn.Flatten(), nn.Tanh(), nn.Linear(W, W, bias=False),
            nn.Dropout(0.1), Sometimes(), nn.Tanh(), nn.Linear(W, 2))

    def make_data(samples):
        x = torch.randn(samples, W, generator=torch.Generator().manual_seed(3))
        return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())

    def make_optimizer(name, kinds, parameters):
        if name == "local":
            return kinds.SGD(parameters, lr=0.1, momentum=0.9)
        return kinds.AdamW(parameters, lr=2e-3, weight_decay=0.1, eps=1e-3)   # tames rounding

    def begin(rule, **more):
        run_module._current = None   # as if the process had no run yet
        return lk.init(seed=SEED, virtual_workers=V, timeout=60, **dict(rule, **more))
"""

# Runs one run for each dict of the argument, and prints lines "run.I HASH".  In the last step of an
# epoch the last two virtual workers have no samples, and layer 7 keeps its running statistics in
# the steps `rests`.
RUNS = PROGRAM + """
    def between(model):
        "Returns what must not change between two outer steps."
        return [v.clone() for name, v in model.state_dict().items() if "num_batches" not in name]

    def train(number, name, steps=9, strategy="ddp", folder=None, rests=()):
        run = begin(RULES[name], strategy=strategy, log=folder and folder + ".log")
        model = run.prepare(make_model())
        opt = make_optimizer(name, lk, model.parameters())
        opt.clip_norm = 0.5
        data = run.loader(make_data(60), global_batch=16, drop_last=False)
        if folder is not None:
            run.resume(folder, model, opt)
        for step in run.steps(steps):
            model[7].train(step not in rests)
            before = between(model)
            result = run.step(loss_sum, data, opt)
            run.log(result)
            moves = result.outer is not None or step < RULES[name].get("local_start", 0)
            if "topology" in RULES[name]:   # a mean of all replicas is computed on request
                assert result.outer is None
                moves = step % 3 == 1
                if moves:
                    run.weights_hash()
            assert moves != all(map(torch.equal, before, between(model))), (name, step)
        evaluation = run.evaluate(loss_sum, make_data(60))
        if folder is not None:
            run.save(folder)
        run.print(f"run.{number}", hashlib.sha256(repr(
            [run.weights_hash(), result.loss, result.grad_norm, result.outer, evaluation]
        ).encode()).hexdigest())
        run._engine.close()   # the engines of a process end before the next one begins

    for number, settings in enumerate(json.loads(sys.argv[1])):
        train(number, **settings)
"""

# Trains with lockstep.torch and with torch alone.  Prints "NAME DIFFERENCE DIFFERENCE OUTER", where
# the differences are of all values after the training and of the losses, and then "turned.NAME ..."
# for a loop with another sign.
ORACLE = PROGRAM + """
    STEPS, SAMPLES = 6, 16 * 6

    def library(name):
        run = begin(RULES[name])
        model = run.prepare(make_model())
        opt = make_optimizer(name, lk, model.parameters())
        opt.clip_norm = 0.5
        data = run.loader(make_data(SAMPLES), global_batch=16)
        results = [run.step(loss_sum, data, opt) for _ in run.steps(STEPS)]
        run.weights_hash()   # gives the model the mean of all replicas
        run._engine.close()
        return model, results

    def inner_step(model, opt, batches):
        "A step of one replica.  Returns the sum of the losses and the number of samples."
        layers, seen, total, count = [model[2], model[7].norm], [], 0.0, 0
        before = [(m.running_mean.clone(), m.running_var.clone()) for m in layers]
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for batch, key in batches:
            for m, values in zip(layers, before):
                m.momentum = 1.0
                m.running_mean.copy_(values[0])
                m.running_var.copy_(values[1])
            seeds.seed_all(key)
            loss, n = loss_sum(model, batch)
            loss.backward()
            total, count = total + loss.item(), count + n
            seen.append([(m.running_mean.clone(), m.running_var.clone()) for m in layers])
        for i, m in enumerate(layers):
            for kind, buffer in enumerate((m.running_mean, m.running_var)):
                mean = torch.stack([s[i][kind] for s in seen]).mean(0)
                buffer.copy_(0.9 * before[i][kind] + 0.1 * mean)
        for p in model.parameters():
            p.grad /= count
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        return total, count

    def outer_step(outer, replicas, opt, sign):
        for p, *others in zip(outer.parameters(), *(m.parameters() for m in replicas)):
            p.grad = sign * (p.detach() - torch.stack([o.detach() for o in others]).mean(0))
        opt.step()
        for b, *others in zip(outer.buffers(), *(m.buffers() for m in replicas)):
            b.copy_(torch.stack([o.double() for o in others]).mean(0))
        for m in replicas:
            m.load_state_dict(outer.state_dict())

    def values_of(model):
        return [*model.parameters(), *model.buffers()]

    def mix(replicas):
        "Give each replica the mean of the one before, itself, and the one behind."
        for values in zip(*map(values_of, replicas)):
            old = [v.detach().double() for v in values]
            for r, v in enumerate(values):
                v.data.copy_((old[r - 1] + old[r] + old[(r + 1) % len(old)]) / 3)

    def alone(name, sign=1):
        rule = RULES[name]
        seeds.seed_all(seeds.key(SEED, "model"))
        outer = make_model()
        replicas = [copy.deepcopy(outer) for _ in range(rule["groups"])]
        opts = [make_optimizer(name, torch.optim, m.parameters()) for m in replicas]
        if name == "adagrad":
            outer_opt = torch.optim.Adagrad(outer.parameters(), lr=0.01, eps=1e-3)
        else:
            how = dict(lr=0.7, momentum=0.9, nesterov=True) if "outer" in rule else dict(lr=1.0)
            outer_opt = torch.optim.SGD(outer.parameters(), **how)
        data, width, losses = Loader(make_data(SAMPLES), SEED, V, 16), V // len(replicas), []
        for step in range(STEPS):
            sums = []
            for r, (model, opt) in enumerate(zip(replicas, opts)):
                own = range(r * width, (r + 1) * width)
                sums.append(inner_step(model, opt, [
                    (data.fetch_counted(step, v, 0)[0], seeds.key(SEED, "turn", step, v, 0))
                    for v in own]))
            losses.append(sum(s for s, _ in sums) / sum(n for _, n in sums))
            if "topology" in rule:
                mix(replicas)
            elif (step + 1) % rule["local_steps"] == 0:
                outer_step(outer, replicas, outer_opt, sign)
        if "topology" in rule:
            for v, *others in zip(values_of(outer), *map(values_of, replicas)):
                v.data.copy_(torch.stack([o.detach().double() for o in others]).mean(0))
        return outer, losses

    def difference(a, b):
        return max(float((x.double() - y.double()).abs().max()) for x, y in zip(a, b))

    for name in ("local", "diloco", "adagrad", "ring"):
        model, results = library(name)
        for label, sign in ((name, 1), ("turned." + name, -1)):
            outer, losses = alone(name, sign)
            values = [[v for n, v in m.state_dict().items() if "num_batches" not in n]
                      for m in (model, outer)]
            apart = max(abs(r.loss - loss) for r, loss in zip(results, losses))
            print(label, json.dumps([difference(*values), apart, losses[-1]]), flush=True)
        print("rounds." + name, json.dumps([r.outer and r.outer.number for r in results]))
"""

# Prints "WHAT ERROR" for what is refused, and "states True" if all replicas begin with the states
# that their optimizer was given.
REFUSALS = PROGRAM + """
    def attempt(what, work):
        try:
            work()
            print(what, "was accepted")
        except Exception as error:
            print(what, type(error).__name__, error, flush=True)

    def trained(rule, folder=None, optimizer=None, loads=None):
        run = begin(rule)
        model = run.prepare(make_model())
        opt = make_optimizer("diloco", optimizer or lk, model.parameters())
        if loads is not None:
            opt.load_state_dict(loads)
        run.resume(folder, model, opt)
        data = run.loader(make_data(32), global_batch=16)
        for step in run.steps(3):
            run.step(loss_sum, data, opt)
        run.save("here" if folder is None else folder)
        return run, opt

    attempt("outer", lambda: begin(dict(outer=lk.Nesterov())))
    attempt("rule", lambda: begin(dict(local_steps=2, outer=0.7)))
    attempt("whole", lambda: begin(dict(local_steps=2.5)))
    attempt("negative", lambda: begin(dict(local_steps=-1)))
    attempt("start", lambda: begin(dict(local_start=2)))
    attempt("compressor", lambda: begin(dict(local_steps=2, compress=lk.TopK(start=3))))
    attempt("both", lambda: begin(dict(local_steps=2, outer=lk.Mean("int8"), compress=lk.Sign())))
    attempt("topology", lambda: begin(dict(topology="star")))
    attempt("neighbours", lambda: begin(dict(topology="ring", outer=lk.Nesterov())))
    attempt("sends", lambda: begin(dict(topology="ring", compress=lk.Sign())))
    attempt("strategy", lambda: begin(dict(local_steps=2, strategy="zero2")))
    attempt("lr", lambda: lk.Nesterov(lr=0))
    attempt("momentum", lambda: lk.Momentum(momentum=1))
    attempt("betas", lambda: lk.FedAdam(betas=(0, 0.99)))
    attempt("dtype", lambda: lk.Mean(dtype="fp8"))
    attempt("streaming", lambda: lk.Mean(streaming=2))
    late = dict(local_steps=4, outer=lk.Nesterov(streaming=lk.Streaming(2, delay=1)))
    attempt("delay", lambda: trained(late))
    os.environ["LOCKSTEP_CONTINUES"] = "1"   # as with --on-failure continue
    attempt("lost", lambda: begin(dict(local_steps=2)))
    del os.environ["LOCKSTEP_CONTINUES"]

    run, opt = trained({})
    states = opt.state_dict()
    run._engine.close()
    rule = dict(groups=4, local_steps=4)
    run, _ = trained(rule, "there", loads=states)   # which has no step left
    kept = {k.name: run._engine.kept_value(k) for k in run._engine.kept()}
    run._engine.close()
    print("states", all(torch.equal(kept[f"9.weight.exp_avg_sq.{g}"],
                                    states["state"][6]["exp_avg_sq"]) for g in range(4)))
    attempt("resumed", lambda: trained(dict(rule, local_steps=5), "there"))
    attempt("other", lambda: trained(dict(rule, outer=lk.Momentum(0.5)), "there"))
    run, opt = trained(rule, "there")
    attempt("state_dict", opt.state_dict)
    run._engine.close()
    attempt("torch", lambda: trained(rule, optimizer=torch.optim))
    attempt("groups", lambda: trained(dict(rule, groups=3)))
"""
REFUSED = {
    "outer": "ValueError outer is for replicas: give local_steps, too",
    "start": "ValueError local_start is for replicas: give local_steps, too",
    "both": "ValueError dtype is 'int8', and outer gradients are compressed",
    "compressor": "ValueError replicas (local_steps) compress all outer gradients alike",
    "topology": "ValueError topology is 'star': give one of all, ring, exponential, pairs",
    "neighbours": "ValueError topology 'ring' has no outer steps: leave out outer",
    "sends": "ValueError topology 'ring' sends whole weights: leave out compress",
    "rule": "TypeError outer is 0.7: give a rule such as",
    "whole": "TypeError local_steps is 2.5: give a whole number",
    "negative": "ValueError local_steps is -1",
    "strategy": "ValueError strategy is 'zero2': replicas (local_steps) of PyTorch models "
                "need \"ddp\" or \"zero1\"",
    "lr": "ValueError lr is 0", "momentum": "ValueError momentum is 1",
    "betas": "ValueError betas is 0", "dtype": "ValueError dtype is 'fp8': give one of fp32, bf16",
    "streaming": "TypeError streaming is 2", "delay": "running state, as that of BatchNorm",
    "lost": "leave out `--on-failure continue`",
    "resumed": "settings.local_steps is 4 there, and 5 here",
    "other": "settings.outer.class is 'Mean' there, and 'Momentum' here",
    "state_dict": "RuntimeError each replica (local_steps) has a state of the optimizer of its own",
    "torch": "TypeError AdamW trains one copy of the parameters",
    "groups": "3 replicas cannot divide 8 virtual workers",
    "states": "True",
}


RULES = ("local", "diloco", "adam", "post", "topk", "pairs")
# The steps whose gradients are in the weights after 9 steps: the last round has one of two steps,
# or the first fragment is a step older.
UNFINISHED = {"diloco": "8;", "topk": "8;", "adam": "9 and before;"}
RESTS = [3, 4]   # in the middle of a round of 3 steps, and at the end of a round of 2
RUNS_OF_ALL = [{"name": name} for name in RULES] + [{"name": "local", "rests": RESTS}]


class Replicas(unittest.TestCase):
    def run_all(self, workers, *launcher, runs):
        """Return the digests of runs."""
        with tempfile.TemporaryDirectory() as here:
            ended = launch(RUNS, workers, *launcher, folder=here, arguments=(json.dumps(runs),))
        self.assertEqual(ended.status, 0, ended.err)
        for end in set(UNFINISHED.values()):
            ends = sum("steps" not in run and UNFINISHED.get(run["name"]) == end for run in runs)
            self.assertEqual(ended.err.count(f"gradients after step {end}"), ends, ended.err)
        return [ended.value(f"run.{i}") for i in range(len(runs))]

    def test_any_workers(self):
        with tempfile.TemporaryDirectory() as folder:
            one = self.run_all(1, runs=RUNS_OF_ALL)
            self.assertEqual(len(set(one)), len(one))
            zero1 = [dict(run, strategy="zero1") for run in RUNS_OF_ALL]
            self.assertEqual(self.run_all(2, runs=zero1), one)
            # after 5 steps all are in the middle of a round, after 2 there is no replica yet
            stored = [dict(run, folder=f"{folder}/{i}") for i, run in enumerate(RUNS_OF_ALL)]
            early = dict(RUNS_OF_ALL[3], folder=f"{folder}/early")
            runs = [dict(run, steps=5) for run in stored] + [dict(early, steps=2)]
            three = self.run_all(3, runs=RUNS_OF_ALL[2:] + runs)
            self.assertEqual(three[:len(one) - 2], one[2:])
            runs = RUNS_OF_ALL[:2] + stored + [early]
            self.assertEqual(self.run_all(4, "--hosts", "2", runs=runs),
                             one[:2] + one + one[3:4])
            lines = [json.loads(x) for x in pathlib.Path(f"{folder}/1.log").read_text().split("\n")
                     if x]
        lines = [x for x in lines if "loss" in x]
        self.assertEqual([x.get("outer_step") for x in lines],
                         [None, 1, None, 2, None, 3, None, 4, None])
        self.assertTrue(all(x["drift"] > 0 for x in lines if "outer_step" in x))

    def test_oracle(self):
        with tempfile.TemporaryDirectory() as here:
            ended = launch(ORACLE, 1, folder=here)
        self.assertEqual(ended.status, 0, ended.err)
        for name in ("local", "diloco", "adagrad", "ring"):
            values, losses, last = json.loads(ended.value(name))
            self.assertLess(values, 1e-6, name)
            self.assertLess(losses, 1e-6, name)
            if name == "ring":
                continue
            values, losses, turned = json.loads(ended.value(f"turned.{name}"))
            self.assertGreater(values, 1e-3, name)
            self.assertGreater(turned, last + 0.01, name)

    def test_refused(self):
        with tempfile.TemporaryDirectory() as here:
            ended = launch(REFUSALS, 1, folder=here)
        self.assertIn("groups", ended.out, ended.err)
        for what, error in REFUSED.items():
            self.assertIn(error, ended.value(what), what)


if __name__ == "__main__":
    unittest.main()
