"""gloo.py -- PyTorch's driver for bench/collectives: all_reduce of fp32 by Gloo.

    lockstep run -n RANKS -- python3 gloo.py PIPES BYTES_MAX

Answers the same tasks as the drivers in C, which collectives.h describes.
"""
import os, sys, time
import torch
import torch.distributed as dist

SMALL_BYTES, MEDIUM_BYTES, WARM_UP = 512, 4096, 2


def round_ns(data, inputs, count, calls, small):
    dist.barrier()
    inside, began = 0, time.perf_counter_ns()
    for call in range(calls):
        data.copy_(inputs[call % 8:call % 8 + count])
        if 4 * count > MEDIUM_BYTES:
            dist.barrier()
        start = time.perf_counter_ns()
        dist.all_reduce(data)
        inside += time.perf_counter_ns() - start
    return (time.perf_counter_ns() - began if small else inside) / calls


def answer(rank, size, memory, inputs, line):
    _, op, dtype, *numbers = line.split()
    bytes_, calls, rounds = map(int, numbers)
    if op != "all_reduce" or dtype != "fp32":
        return "PyTorch's Gloo has no such operation"
    count = bytes_ // 4
    data = memory[:count]
    times = [round_ns(data, inputs, count, calls, bytes_ <= SMALL_BYTES)
             for _ in range(WARM_UP + rounds)][WARM_UP:]
    index = torch.arange(count, dtype=torch.int64) + calls - 1
    right = sum((index + 3 * r) % 8 for r in range(size))
    if not torch.equal(data, right.float()):
        return "a result was wrong"
    return " ".join(f"{t:.1f}" for t in times)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    count = int(sys.argv[2]) // 4
    memory = torch.zeros(count)
    inputs = ((torch.arange(count + 8) + 3 * rank) % 8).float()
    with open(f"{sys.argv[1]}.{rank}.in") as tasks, \
            open(f"{sys.argv[1]}.{rank}.out", "w") as out:
        print("ready", file=out, flush=True)
        for line in iter(tasks.readline, "end\n"):
            print(answer(rank, size, memory, inputs, line), file=out, flush=True)
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may outlive the interpreter


main()
