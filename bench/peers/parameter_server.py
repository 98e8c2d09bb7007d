"""parameter_server.py -- an asynchronous parameter server over torch.distributed, for bench/straggler.

    python3 parameter_server.py SPECIFICATION      one JSON object: that of step.py, and "rank",
                                                   "workers", "store", "seconds"

What a user would write with send and recv of Gloo.  Rank `workers` is the server, and the ranks
below it are the workers.  A worker pulls the parameters, computes a gradient and pushes it, all as
one vector each, and begins again.  The server has a thread for each worker, so that none waits for
another: it receives a gradient, updates the parameters under a lock, and sends a copy of them.

First the workers compute gradients on their own for some seconds.  Then the server says "ready" and
the sum of their gradients per second, and answers each line "N" on stdin with the gradients per
second that it applies in the next N seconds.
"""
import os, sys, threading, time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from step import SPEC, batch, build

BATCHES, WARM_UP = 4, 5


def flat(net):
    """Returns vectors of the parameters and of the gradients, of which the network's are views."""
    parameters = list(net.parameters())
    values     = torch.cat([p.detach().flatten() for p in parameters])
    gradients  = torch.zeros_like(values)
    at = 0
    for p in parameters:
        p.data = values[at:at + p.numel()].view_as(p)
        p.grad = gradients[at:at + p.numel()].view_as(p)
        at += p.numel()
    return values, gradients


def work(rank, server):
    net = build()
    values, gradients = flat(net)
    batches = [batch() for _ in range(BATCHES)]

    def compute(number):
        gradients.zero_()
        x, y = batches[number % BATCHES]
        F.cross_entropy(net(x).flatten(0, -2), y.flatten()).backward()

    for number in range(WARM_UP):
        compute(number)
    dist.barrier()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SPEC["seconds"]:
        compute(count)
        count += 1
    rate = torch.tensor([count / (time.perf_counter() - began)])
    dist.all_reduce(rate)
    while True:
        dist.recv(values, server)
        compute(count)
        dist.send(gradients, server)
        count += 1


class Server:
    def __init__(self, workers):
        self.values = torch.nn.Parameter(flat(build())[0])
        self.rule   = torch.optim.SGD([self.values], lr=1e-3, fused=True)
        self.lock, self.applied = threading.Lock(), 0
        dist.barrier()
        rate = torch.zeros(1)
        dist.all_reduce(rate)
        self.alone = rate.item()
        for worker in range(workers):
            threading.Thread(target=self.serve, args=(worker,), daemon=True).start()

    def serve(self, worker):
        copy, gradient = self.values.detach().clone(), torch.empty_like(self.values)
        while True:
            dist.send(copy, worker)
            dist.recv(gradient, worker)
            with self.lock:
                self.values.grad = gradient
                self.rule.step()
                copy.copy_(self.values.detach())
                self.applied += 1

    def rate(self, seconds):
        began, before = time.perf_counter(), self.applied
        time.sleep(seconds)
        return (self.applied - before) / (time.perf_counter() - began)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rank, workers = SPEC["rank"], SPEC["workers"]
    dist.init_process_group("gloo", init_method="file://" + SPEC["store"], rank=rank,
                            world_size=workers + 1)
    if rank < workers:
        work(rank, workers)
    server = Server(workers)
    while server.applied < WARM_UP * workers:
        time.sleep(0.01)
    print(f"ready {server.alone} PyTorch {torch.__version__}", flush=True)
    for line in sys.stdin:
        print(server.rate(float(line)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may outlive the interpreter


main()
