#!/usr/bin/env python3
"""gpu_first.py [--steps N] -- trains a GPT on one NVIDIA GPU with 1, 2 and 4 workers, and with a
worker killed, and prints hashes and times as JSON.  DistributedDataParallel over gloo, with two
processes on the same GPU, is timed beside it.
"""

import argparse
import json
import sys
import tempfile

import support
import torch

GPT = support.ROOT / "examples" / "pytorch" / "gpt.py"

LOCKSTEP = """
    import os, signal, statistics, sys
    sys.path.insert(0, {folder!r})
    import gpt, torch
    import lockstep.torch as lk

    def loss_sum(model, batch):
        turns.append(0)
        if len(turns) == int(os.environ.get("DIES", 0)) and run.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return gpt.loss_sum(model, [t.to(run.device) for t in batch])

    turns = []
    run = lk.init(seed=1, virtual_workers=4)
    model = gpt.GPT(20, width=256, heads=8, layers=4).to(run.device)
    run.prepare(model)
    opt = lk.AdamW(model.parameters(), lr=1e-3, clip_norm=1.0)
    codes = torch.randint(20, (20000,), generator=torch.Generator().manual_seed(1))
    data = run.loader(gpt.Windows(codes), global_batch=32)
    seconds = [run.step(loss_sum, data, opt).seconds for _ in run.steps({steps})]
    run.print("seconds", statistics.median(seconds[2:]))
    run.print("weights", run.weights_hash())
"""

DDP = """
    import sys, time, statistics
    sys.path.insert(0, {folder!r})
    import gpt, torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    DDP = torch.nn.parallel.DistributedDataParallel
    model = gpt.GPT(20, width=256, heads=8, layers=4).cuda(0)
    # gloo cannot send masks, which are bool
    DDP._set_params_and_buffers_to_ignore_for_model(model, [n for n, _ in model.named_buffers()])
    model = DDP(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    codes = torch.randint(20, (20000,), generator=torch.Generator().manual_seed(1))
    windows = gpt.Windows(codes)
    seconds = []
    for step in range({steps}):
        begun = time.monotonic()
        for micro in range(2):
            at = (step * 4 + dist.get_rank() * 2 + micro) * 8
            batch = [torch.stack(t).cuda(0) for t in zip(*(windows[i] for i in range(at, at + 8)))]
            model.require_backward_grad_sync = micro == 1
            loss, count = gpt.loss_sum(model, batch)
            (loss / count / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - begun)
    if dist.get_rank() == 0:
        print("seconds", statistics.median(seconds[2:]))
"""


def run(program, workers, *launcher, steps, env=None):
    text = program.format(folder=str(GPT.parent), steps=steps)
    with tempfile.TemporaryDirectory() as folder:
        return support.launch(text, workers, *launcher, folder=folder, env=env, real=True)


def result(ended, *names):
    if ended.status:
        return {"error": ended.err[-2000:]}
    return {name: ended.value(name) for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    if not torch.cuda.is_available():
        print(json.dumps({"skipped": "torch finds no NVIDIA GPU", "torch": torch.__version__}))
        return 0
    report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for workers in (1, 2, 4):
        report[f"workers {workers}"] = result(run(LOCKSTEP, workers, steps=steps), "weights",
                                              "seconds")
    report["workers 4, one killed"] = result(
        run(LOCKSTEP, 4, "--on-failure", "continue", steps=steps, env={"DIES": 5}), "weights",
        "seconds")
    report["ddp over gloo, 2 processes"] = result(run(DDP, 2, steps=steps), "seconds")
    hashes = {entry.get("weights") for name, entry in report.items() if name.startswith("workers")}
    report["equal"] = len(hashes) == 1 and None not in hashes
    print(json.dumps(report, indent=1))
    return 0 if report["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
