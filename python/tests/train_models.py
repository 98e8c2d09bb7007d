"""Trains models of models.py and prints what became of them.  The program of matrix_test.py and of
matrix, which start it on some number of workers.

All runs of a process use one group of workers, so that torch is imported once.  Rank 0 prints lines
"MODEL/STRATEGY HASH", where the hash is of all parameters, buffers and losses.
"""

import argparse
import ctypes
import hashlib
import os
import signal

import torch

import lockstep.torch as lk
import models
from lockstep.torch import run as run_module
from lockstep.torch import seeds
from lockstep.torch.data import Loader

V, GLOBAL_BATCH, SEED = 4, 8, 1
BUCKET_BYTES = 4096   # several buckets also in small models
TURNS_BEFORE_DEATH = 3
MICRO_BATCH = {"lstm": 1, "gpt": 1}   # others: 2, all samples of a virtual worker
PARITY_STEPS = 50 if "LK_THOROUGH" in os.environ else 20


# ---- Runs ----------------------------------------------------------------------------------------


def share_group():
    """Have all runs of this process use the group that the first one joins."""
    join, joined = run_module.Group, []

    def shared(*arguments):
        if not joined:
            joined.append(join(*arguments))
        return joined[0]
    run_module.Group = shared


def begin(**settings):
    run_module._current = None   # as if the process had no run yet
    return lk.init(seed=SEED, virtual_workers=V, bucket_bytes=BUCKET_BYTES, **settings)


def optimizer(name, kinds, parameters):
    """Return an optimizer of lockstep.torch or of torch.optim: both have the same arguments."""
    if name in ("mlp", "cnn", "branches"):
        return kinds.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)
    return kinds.AdamW(parameters, lr=2e-3, weight_decay=0.1)


def clip_norm(name):
    return 0.0 if name == "mlp" else 1.0


def loader_options(name):
    return {"global_batch": GLOBAL_BATCH, "micro_batch": MICRO_BATCH.get(name, 2)}


def digest(module, *more):
    """Return the hash of all parameters, all buffers and further values."""
    sha = hashlib.sha256(repr(more).encode())
    for name, tensor in module.state_dict().items():
        tensor = tensor.cpu().contiguous()
        sha.update(name.encode())
        sha.update(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    return sha.hexdigest()


def make_model(name, device):
    """Return (module, dataset, loss_sum), with the module and the batches on a device."""
    module, dataset, loss_sum = models.MODELS[name]()
    return (module.to(device), dataset,
            lambda model, batch: loss_sum(model, [t.to(device) for t in batch]))


def train(name, strategy, steps, dies=False, audits=0, device="cpu"):
    """Train a model and return (digest, losses of the steps).  The strategy "hybrid-2" is hybrid
    with two hosts for each copy of the model."""
    kind, _, shard_hosts = strategy.partition("-")
    run = begin(strategy=kind, shard_hosts=int(shard_hosts or 1), audit_steps=audits)
    module, dataset, loss_sum = make_model(name, device)
    turns = 0

    def counted(model, batch):
        nonlocal turns
        turns += 1
        if dies and turns == TURNS_BEFORE_DEATH and run.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss_sum(model, batch)

    run.prepare(module)
    opt = optimizer(name, lk, module.parameters())
    opt.clip_norm = clip_norm(name)
    data = run.loader(dataset, **loader_options(name))
    results = [run.step(counted, data, opt) for _ in run.steps(steps)]
    losses = [r.loss for r in results]
    with run.gathered():
        result = digest(module, losses, [r.grad_norm for r in results], results[-1].hits)
    run._engine.close()
    return result, losses


# ---- Controls ------------------------------------------------------------------------------------


def micro_batches(name, dataset, step, virtual_workers):
    """Yield a step's micro-batches of some virtual workers, with the generators seeded as in a
    turn of a run."""
    data = Loader(dataset, SEED, V, **loader_options(name))
    for v in virtual_workers:
        for micro in range(data.micro_count):
            batch, _ = data.fetch_counted(step, v, micro)
            seeds.seed_all(seeds.key(SEED, "turn", step, v, micro))
            yield batch


def update(name, module, opt, scale):
    """Make a mean of sums of gradients, clip, and update.  Unused parameters have zeros."""
    for p in module.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad.mul_(scale)
    if clip_norm(name):
        torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm(name))
    opt.step()
    opt.zero_grad()


def make(name, device):
    seeds.seed_all(seeds.key(SEED, "model"))
    module, dataset, loss_sum = make_model(name, device)
    return module, dataset, loss_sum, optimizer(name, torch.optim, module.parameters())


def plain(name, steps, device):
    """Train as `train` does, with torch alone, and return the losses of the steps."""
    module, dataset, loss_sum, opt = make(name, device)
    losses = []
    for step in range(steps):
        total, counts = 0.0, 0
        for batch in micro_batches(name, dataset, step, range(V)):
            loss, count = loss_sum(module, batch)[:2]
            loss.backward()
            total, counts = total + loss.item(), counts + count
        losses.append(total / counts)
        update(name, module, opt, 1 / counts)
    return losses


def data_parallel(name, steps, rank, size, device):
    """Train as `train` does, with DistributedDataParallel, and return the digest."""
    module, dataset, loss_sum, opt = make(name, device)
    parallel = torch.nn.parallel.DistributedDataParallel(
        module, find_unused_parameters=name == "branches")
    own = range(rank * V // size, (rank + 1) * V // size)
    for step in range(steps):
        batches = list(micro_batches(name, dataset, step, own))
        for i, batch in enumerate(batches):
            parallel.require_backward_grad_sync = i + 1 == len(batches)   # as no_sync() does
            loss, count = loss_sum(parallel, batch)[:2]
            loss.backward()
        total = count * (GLOBAL_BATCH // len(batch[0]))
        update(name, module, opt, size / total)
    for _, buffer in module.named_buffers():
        buffer.zero_()   # each process has its own running statistics
    return digest(module)


def relative_difference(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(models.available()[0]))
    parser.add_argument("--strategies", default="ddp")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--audits", type=int, default=0)
    parser.add_argument("--dies", default="", help="MODEL/STRATEGY,...: rank 1 dies in these runs")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--control", action="store_true", help="also DistributedDataParallel")
    parser.add_argument("--parity", action="store_true", help="also torch alone")
    options = parser.parse_args()
    share_group()
    run = begin()
    names, dies = options.models.split(","), options.dies.split(",")
    if options.control:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{os.getcwd()}/store", rank=run.rank, world_size=run.size)
    for name in names:
        for strategy in options.strategies.split(","):
            case = f"{name}/{strategy}"
            result, _ = train(name, strategy, options.steps, case in dies, options.audits,
                              options.device)
            run.print(case, result)
        if options.control:
            run.print(f"{name}/control",
                      data_parallel(name, options.steps, run.rank, run.size, options.device))
        if options.parity:
            _, losses = train(name, "ddp", PARITY_STEPS, device=options.device)
            run.print(f"{name}/parity",
                      relative_difference(losses, plain(name, PARITY_STEPS, options.device)))
    if options.control:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
