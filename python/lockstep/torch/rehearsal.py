"""The loss function of a run, and its rehearsal: a turn that is computed before the first step,
with all parameters in memory, to learn in which order the model uses them (plan.py)."""

import dataclasses
import warnings

import torch

from lockstep.torch import plan, seeds, trace
from lockstep.torch.uses import Events

_MEAN = 1   # torch's number of reduction="mean"


def refuse(model, optimizer, strategy):
    """Raise ``ValueError`` for what cannot have its parameters on several hosts."""
    module = model.module
    compiled = [name or type(module).__name__ for name, m in module.named_modules()
                if isinstance(m, torch.jit.ScriptModule) or trace.is_compiled(m)]
    reason = None
    if compiled:
        reason = f"'{compiled[0]}' is compiled, and reads its parameters unseen"
    elif model.device.type != "cpu":
        reason = f"the model is on {model.device}"
    elif not optimizer.in_library:
        reason = "an optimizer of torch needs all parameters on every worker"
    if reason is not None:
        raise ValueError(f"strategy {strategy} shards the parameters between hosts, but {reason}: "
                         "give zero2")


def make_plan(group, model, seed, first):
    """Return the plan that rank 0 makes from the first micro-batch of the first step.  Collective.

    first: (step, loader, loss function), or None.
    """
    found = None
    if group.rank == 0 and first is not None:
        events = _rehearse(model, seed, *first)
        if events is not None:
            sizes = [p.numel() for p in model.params]
            found = dataclasses.asdict(plan.make(model.names, sizes, events))
    found = group.share(found)
    return plan.keep_all(len(model.params)) if found is None else plan.Plan(**found)


def _rehearse(model, seed, number, data, loss_sum):
    """Compute a micro-batch with the initial parameters, leaving everything as it is."""
    events = Events(model.params)
    buffers = [(b, b.clone()) for b in model.module.buffers()]
    with seeds.restored():
        batch, samples = data.fetch_counted(number, 0, 0)
        if not samples:
            return None
        seeds.seed_all(seeds.key(seed, "turn", number, 0, 0))
        events.record(lambda: evaluate_loss(loss_sum, model.module, batch)[0])
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    return events


def evaluate_loss(loss_sum, module, batch):
    """Call the user's function and return (loss, count, hits)."""
    result = loss_sum(module, batch)
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise TypeError("the loss function returned "
                        f"{type(result).__name__}; it must return (loss, count), or (loss, count, "
                        "hits): the sum of the losses of the micro-batch, the number by which the "
                        "sum of all is divided, and the number of correct answers")
    loss = result[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError("the loss function must return the sum of losses as a tensor of one "
                        'element (reduction="sum")')
    return (loss, *(_whole(number, name) for number, name in zip(result[1:], ("count", "hits"))),
            *[0] * (3 - len(result)))


def warn_of_mean(loss, count):
    """Warn if the last operation of a loss is a mean although it is to be divided by a count.
    Return true after a warning.

    Only the last operation is looked at: a mean that is multiplied by the count is a sum again.
    """
    last = loss.grad_fn
    if last is None or count <= 1 or not (last.name().startswith("MeanBackward")
                                          or getattr(last, "_saved_reduction", None) == _MEAN):
        return False
    warnings.warn(f"the loss function returned a mean ({last.name()}) with the count {count}, by "
                  "which lockstep divides the sum of all losses once more: the gradients are as "
                  f"much as {count} times too small.  Return the sum (reduction=\"sum\"), or the "
                  "mean times the count", stacklevel=2)
    return True


def _whole(number, name):
    """Return a number that the loss function returned, as an int."""
    whole = int(number)
    if whole != number or whole < 0:
        raise ValueError(f"the loss function returned {number!r} as {name}, which must be a whole "
                         "number and not negative")
    return whole
