"""elastic.py -- PyTorch's programs for bench/elastic: an MLP that two workers train until they are killed.

    python3 elastic.py torchrun PIPE CHECKPOINT EVERY     under torchrun: DistributedDataParallel over Gloo,
                                                          a checkpoint of rank 0 every EVERY steps
    python3 elastic.py torchft PIPE REPLICA LIGHTHOUSE    one of two replicas of torchft

A line "pid RANK PID" when training begins, and "step RANK STEP" after each step, go to PIPE.
"""
import os, sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

WIDTHS, SAMPLES = (784, 512, 512, 10), 64


def network():
    torch.manual_seed(3)
    layers = []
    for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def tell(pipe, *words):
    os.write(pipe, (" ".join(map(str, words)) + "\n").encode())


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.rand(SAMPLES, WIDTHS[0], generator=generator),
            torch.randint(WIDTHS[-1], (SAMPLES,), generator=generator))


def train(model, optimizer, step, rank):
    images, labels = batch(step, rank)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def torchrun(pipe, checkpoint, every):
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = nn.parallel.DistributedDataParallel(model)
    tell(pipe, "pid", rank, os.getpid())
    while True:
        train(model, optimizer, step, rank)
        step += 1
        tell(pipe, "step", rank, step)
        if rank == 0 and step % int(every) == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                       checkpoint + ".new")
            os.rename(checkpoint + ".new", checkpoint)


def torchft(pipe, replica, lighthouse):
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    plain = network()
    inner = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)

    def load(saved):
        plain.load_state_dict(saved["model"])
        inner.load_state_dict(saved["optimizer"])

    manager = Manager(pg=ProcessGroupGloo(timeout=timedelta(seconds=60)), min_replica_size=1, load_state_dict=load,
                      state_dict=lambda: {"model": plain.state_dict(), "optimizer": inner.state_dict()},
                      replica_id=f"replica_{replica}", store_addr="127.0.0.1", store_port=store.port, rank=0,
                      world_size=1, lighthouse_addr=lighthouse, hostname="127.0.0.1")
    model, optimizer = DistributedDataParallel(manager, plain), Optimizer(manager, inner)
    tell(pipe, "pid", replica, os.getpid())
    while True:
        before = manager.current_step()
        train(model, optimizer, before, int(replica))
        if manager.current_step() > before:
            tell(pipe, "step", replica, manager.current_step())


def main():
    torch.set_num_threads(1)
    way, pipe, *rest = sys.argv[1:]
    {"torchrun": torchrun, "torchft": torchft}[way](os.open(pipe, os.O_WRONLY), *rest)


main()
