"""pytorch.py -- the workers of bench/pytorch: a model trained by lockstep.torch and by torch alone.

    lockstep run -n N -- python3 pytorch.py SPECIFICATION        one JSON object, see bench/pytorch

All sides live in the same processes and take turns.  Torch's side is what users write for speed:
fused AdamW, gradients as views of DistributedDataParallel's buckets, no_sync() for all but the last
micro-batch of a step, and a DataLoader.  It is not held to deterministic operators.  Rank 0 prints
one JSON object, with [seconds of a step, processor seconds of rank 0] of each turn of each side.
"""
import json, os, pathlib, sys, time

SPEC = json.loads(sys.argv[1])
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/tests")]

import torch

import lockstep.torch as lk
import models
import train_models

WARM_UP = 4
CLIP    = 1.0


def endless(loader):
    while True:
        yield from loader


class Lockstep:
    def __init__(self, virtual_workers):
        train_models.run_module._current = None
        self.run = lk.init(seed=1, virtual_workers=virtual_workers, audit_steps=SPEC["audits"],
                           strategy=SPEC["strategy"])
        module, dataset, self.loss_sum = models.MODELS[SPEC["model"]](**SPEC["sizes"])
        self.run.prepare(module)
        self.optimizer = lk.AdamW(module.parameters(), lr=1e-3, clip_norm=CLIP)
        self.data = self.run.loader(dataset, global_batch=virtual_workers * SPEC["micro_batch"],
                                    micro_batch=SPEC["micro_batch"])
        self.steps = iter(self.run.steps(1 << 40))

    def step(self):
        next(self.steps)
        return self.run.step(self.loss_sum, self.data, self.optimizer).loss


class Torch:
    def __init__(self, virtual_workers, size):
        self.module, dataset, self.loss_sum = models.MODELS[SPEC["model"]](**SPEC["sizes"])
        self.net = self.module
        if size > 1:
            self.net = torch.nn.parallel.DistributedDataParallel(self.module,
                                                                 gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3, fused=True)
        self.batches = endless(torch.utils.data.DataLoader(dataset, SPEC["micro_batch"],
                                                           shuffle=True, drop_last=True))
        self.turns = virtual_workers // size

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for turn in range(self.turns):
            batch = next(self.batches)
            if self.net is not self.module:   # no_sync() does this
                self.net.require_backward_grad_sync = turn + 1 == self.turns
            loss, count = self.loss_sum(self.net, batch)[:2]
            loss = loss / (count * self.turns)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        return total


def sides(size):
    for name in SPEC["sides"]:
        kind, virtual_workers = name.split()[0], int(name.split()[-1])
        yield name, (Lockstep(virtual_workers) if kind == "lockstep"
                     else Torch(virtual_workers, size))


def turn(group, side, steps):
    torch.use_deterministic_algorithms(isinstance(side, Lockstep))
    group.barrier()
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(steps):
        side.step()
    group.barrier()
    return (time.perf_counter() - began) / steps, (time.process_time() - worked) / steps


def main():
    train_models.share_group()
    run = lk.init()
    group = run._group
    if run.size > 1:
        torch.distributed.init_process_group("gloo", init_method="file://" + SPEC["store"],
                                             rank=run.rank, world_size=run.size)
    torch.set_num_threads(1)
    made = dict(sides(run.size))
    first = max(turn(group, side, WARM_UP)[0] for side in made.values())
    steps = group.share(max(1, round(SPEC["seconds"] / first)))
    times = {name: [] for name in made}
    for pair in range(SPEC["pairs"]):
        for name in list(made)[::1 if pair % 2 == 0 else -1]:
            times[name].append(turn(group, made[name], steps))
    optimizer = next(iter(made.values())).optimizer
    parameters = sum(p.numel() for p in optimizer.param_groups[0]["params"])
    run.print(json.dumps({"times": times, "parameters": parameters, "torch": torch.__version__}))
    if run.size > 1:
        torch.distributed.destroy_process_group()


main()
