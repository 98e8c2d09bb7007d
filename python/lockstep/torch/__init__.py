"""Training of PyTorch models with the same bits on any number of workers.

    import lockstep.torch as lk

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    run = lk.init(seed=1, virtual_workers=8)
    model = run.prepare(Net())
    opt = lk.AdamW(model.parameters(), lr=1e-3)
    data = run.loader(dataset, global_batch=64, micro_batch=8)
    for step in run.steps(1000):
        result = run.step(loss_sum, data, opt)
    run.print("weights", run.weights_hash())

Start it with `lockstep run -n 3 -- python train.py`, with torchrun, mpirun or srun, or alone.
"""

from lockstep._library import Error
from lockstep.torch.compress import QSGD, PowerSGD, RandomK, Sign, TernGrad, TopK, Vote
from lockstep.torch.local import (FedAdagrad, FedAdam, FedYogi, Mean, Momentum, Nesterov,
                                  Streaming)
from lockstep.torch.optim import (LAMB, LARS, SGD, Adagrad, AdamW, FromTorch, Lion, OneBitAdam,
                                  OneBitLamb, Yogi)
from lockstep.torch.results import Evaluation, OuterStep, StepResult
from lockstep.torch.run import Run, init
from lockstep.torch.selftest import selftest

__all__ = ["QSGD", "SGD", "Adagrad", "AdamW", "Error", "Evaluation", "FedAdagrad", "FedAdam",
           "FedYogi", "FromTorch", "LAMB", "LARS", "Lion", "Mean", "Momentum", "Nesterov",
           "OneBitAdam", "OneBitLamb", "OuterStep", "PowerSGD", "RandomK", "Run", "Sign",
           "StepResult", "Streaming", "TernGrad", "TopK", "Vote", "Yogi", "init", "selftest"]
