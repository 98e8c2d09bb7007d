"""Optimizers that run in the C library, with the interface of ``torch.optim``.

Parameter groups, state dicts and learning-rate schedulers work as with torch's optimizers.  The
update itself is part of ``Run.step()``.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable
from typing import Any, Tuple, Union

import torch
import torch.optim.optimizer as torch_optimizer

from lockstep import _library
from lockstep._library import layout, lk
from lockstep.torch import trace
from lockstep.torch.model import is_dense

# What torch's optimizers take: parameters, or parameter groups.
Params = Iterable[Any]
Betas = Tuple[float, float]


def names_of_states(options):
    """Return the names of the states that the optimizer of C options has for each parameter."""
    return [lk.optimizer_state_name(options, i).decode()
            for i in range(lk.optimizer_state_count(options))]


class Optimizer(torch.optim.Optimizer):
    """What the optimizers of this module have in common.

    Parameter groups may differ in lr and weight_decay, and both may change between steps.
    `clip_norm` and `clip_value` limit the mean gradient as torch's ``clip_grad_norm_`` and
    ``clip_grad_value_`` do.  0 means no limit.
    """

    kind = None                # the enumerator of lk_optimizer_kind
    in_library = True          # the C library updates the parameters
    undecayed_unscaled = False # the tensors of groups without weight decay have a trust ratio of 1
    changing = ("lr", "weight_decay")
    _run = None                # the run, once it has the states of this optimizer
    _undecayed = None          # the ids of parameters without weight decay, once they are fixed

    def __init__(self, params, defaults, clip_norm=0.0, clip_value=0.0):
        self.clip_norm, self.clip_value = clip_norm, clip_value
        super().__init__(params, defaults)

    def step(self, closure=None):
        raise RuntimeError("run.step(loss_sum, data, opt) computes the gradients and updates the "
                           "parameters; opt.step() is not called")

    def describe(self):
        """Return what the result depends on besides what may change between steps."""
        fixed = {k: v for k, v in self.defaults.items() if k not in self.changing}
        return {"class": type(self).__name__, "clip_norm": self.clip_norm,
                "clip_value": self.clip_value, **fixed}

    def options(self):
        """Return the C options.  Weight decay is left to the rules of parameters."""
        self._refuse_changes()
        options = _library.Optimizer(kind=layout.constants[self.kind])
        for field, value in self.fields().items():
            setattr(options, field, value)
        return options

    def state_names(self):
        """Return the names of the states that each parameter has, as in torch ("exp_avg")."""
        return names_of_states(self.options())

    def state_dict(self):
        """Return the parameter groups and the states ("step", "exp_avg", ...), as torch does.
        Collective once training has begun."""
        if self._run is None:
            return super().state_dict()
        self.state.update(self._run.optimizer_state())
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict):
        """Set the parameter groups and states from a state dict, also from that of torch's
        optimizer of this name.  Collective once training has begun.

        ``Run.resume()`` after it has the run go on from the step of the state.
        """
        options = dict(self.defaults)
        super().load_state_dict(state_dict)
        self.defaults = options   # torch adds one that these optimizers do not have
        if self._run is not None:
            self._run.load_optimizer_state()

    def completed_steps(self):
        """Return the step of a loaded state, 0 without one."""
        return max((int(s.get("step", 0)) for s in self.state.values()), default=0)

    def fields(self):
        """Return the fields of lk_optimizer that are not zero."""
        raise NotImplementedError

    def _refuse_changes(self):
        for group in self.param_groups:
            for name, value in self.defaults.items():
                if name not in self.changing and group[name] != value:
                    raise ValueError(f"{name} is {group[name]} in one parameter group and {value} "
                                     f"in {type(self).__name__}'s options: only "
                                     + " and ".join(self.changing) + " may differ or change "
                                     "(for torch's OneCycleLR give cycle_momentum=False)")

    def rates(self):
        """Return {id of a parameter: (lr, weight_decay)}, after checking the other settings."""
        self._refuse_changes()
        self._refuse_other_decays()
        return {id(p): (float(g["lr"]), float(g["weight_decay"]))
                for g in self.param_groups for p in g["params"]}

    def fix_undecayed(self):
        """Have ``rates()`` refuse weight decay that begins or ends, if the library needs to know
        once for all which parameters have none."""
        if self.undecayed_unscaled and self._undecayed is None:
            self._undecayed = {id(p) for g in self.param_groups if g["weight_decay"] == 0
                               for p in g["params"]}

    def _refuse_other_decays(self):
        if self._undecayed is None:
            return
        for i, group in enumerate(self.param_groups):
            decay = group["weight_decay"]
            if any((decay == 0) != (id(p) in self._undecayed) for p in group["params"]):
                raise ValueError(
                    f"the weight_decay of parameter group {i} is {decay} now, and was "
                    + ("not 0" if decay == 0 else "0") + " when the run began: "
                    f"{type(self).__name__} gives no trust ratio to parameters without weight "
                    "decay, and which ones these are is fixed in the first step.  For a schedule "
                    "from or to 0 use a small number instead of 0, such as 1e-12")

    def fingerprint(self):
        """Return 64 bits of what may change between steps, which must be equal on all ranks."""
        return _fingerprint(self.param_groups)

    def update(self):
        """Called after a step, with the mean gradients in ``.grad`` if not `in_library`."""

    def register_step_pre_hook(self, hook):
        """Refuse a hook that would see the gradients before the update."""
        raise RuntimeError(f"{type(self).__name__} has no moment for a pre-hook of step(): the C "
                           "library updates each part of the parameters as soon as it has the sum "
                           "of its gradients.  Use a post-hook, `clip_norm` or `clip_value`, or an "
                           "optimizer of torch, whose hooks are called")

    def refuse_pre_hooks(self):
        """Refuse those that were given to torch for all optimizers."""
        for hook in getattr(torch_optimizer, "_global_optimizer_pre_hooks", {}).values():
            self.register_step_pre_hook(hook)

    def call_post_hooks(self):
        """Call what was given to register_step_post_hook(), on this optimizer or on all."""
        own = getattr(self, "_optimizer_step_post_hooks", {})   # before torch 2.0 there are none
        of_all = getattr(torch_optimizer, "_global_optimizer_post_hooks", {})
        for hook in [*own.values(), *of_all.values()]:
            hook(self, (self,), {})   # as torch does


class SGD(Optimizer):
    """Stochastic gradient descent as ``torch.optim.SGD``, without `dampening`."""

    kind = "LK_SGD"

    def __init__(self, params: Params, lr: float = 1e-3, momentum: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False, clip_norm: float = 0.0,
                 clip_value: float = 0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay,
                                      nesterov=nesterov), clip_norm, clip_value)

    def fields(self):
        return {"momentum": self.defaults["momentum"], "nesterov": self.defaults["nesterov"]}


class _Adaptive(Optimizer):
    def __init__(self, params, lr, betas, eps, weight_decay, clip_norm, clip_value):
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps,
                                      weight_decay=weight_decay), clip_norm, clip_value)

    def fields(self):
        beta1, beta2 = self.defaults["betas"]
        return {"beta1": beta1, "beta2": beta2, "eps": self.defaults["eps"]}


class AdamW(_Adaptive):
    """Adam with decoupled weight decay, as ``torch.optim.AdamW``."""

    kind = "LK_ADAMW"

    def __init__(self, params: Params, lr: float = 1e-3, betas: Betas = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, clip_norm: float = 0.0,
                 clip_value: float = 0.0):
        super().__init__(params, lr, betas, eps, weight_decay, clip_norm, clip_value)


class _OneBit(_Adaptive):
    def __init__(self, params, lr, betas, eps, weight_decay, clip_norm, freeze_step, freeze_after):
        super().__init__(params, lr, betas, eps, weight_decay, clip_norm, 0.0)
        if freeze_step != "auto" and (not isinstance(freeze_step, int) or
                                      not 1 <= freeze_step < 1 << 48):
            raise ValueError(f"freeze_step is {freeze_step!r}: give the number of steps before the "
                             "freeze, such as a fifth of all, or \"auto\"")
        if not isinstance(freeze_after, int) or not 0 <= freeze_after < 1 << 48:
            raise ValueError(f"freeze_after is {freeze_after!r}: give a number of steps")
        if freeze_after > 0 and freeze_step != "auto":
            raise ValueError("freeze_after goes with freeze_step=\"auto\"")
        self.freeze_step, self.freeze_after = freeze_step, freeze_after

    def describe(self):
        after = {"freeze_after": self.freeze_after} if self.freeze_after > 0 else {}
        return {**super().describe(), "freeze_step": self.freeze_step, **after}


class OneBitAdam(_OneBit):
    """AdamW for `freeze_step` steps; then the second moment is frozen, and groups exchange their
    momenta in one bit for an element (Tang et al., 2021).

    ``lk.init(groups=G)`` sets the number of groups.  `clip_norm` limits the mean gradient before
    the freeze and, divided by the root of G, that of each group after it.  With `freeze_step`
    "auto" the freeze is as soon as the second moment changes slowly, but not before `freeze_after`
    steps, such as those in which a schedule raises the learning rate.
    """

    kind = "LK_ONEBIT_ADAM"

    def __init__(self, params: Params, lr: float = 1e-3, betas: Betas = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, clip_norm: float = 0.0,
                 freeze_step: Union[int, str] = 0, freeze_after: int = 0):
        super().__init__(params, lr, betas, eps, weight_decay, clip_norm, freeze_step,
                         freeze_after)


class LAMB(_Adaptive):
    """AdamW with a step proportional to each tensor's norm (You et al. 2020).

    The tensors of parameter groups without weight decay are updated as by AdamW."""

    kind = "LK_LAMB"
    undecayed_unscaled = True

    def __init__(self, params: Params, lr: float = 1e-3, betas: Betas = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 1e-2, clip_norm: float = 0.0,
                 clip_value: float = 0.0):
        super().__init__(params, lr, betas, eps, weight_decay, clip_norm, clip_value)


class OneBitLamb(_OneBit):
    """LAMB for `freeze_step` steps; then the second moment is frozen, groups exchange their momenta
    in one bit for an element, and the ratio of a tensor is the mean of its earlier ratios times a
    factor that follows a second moment that is not frozen (Li et al., 2021).

    The other options are those of `OneBitAdam`.  The tensors of parameter groups without weight
    decay are updated as by it.
    """

    kind = "LK_ONEBIT_LAMB"
    undecayed_unscaled = True

    def __init__(self, params: Params, lr: float = 1e-3, betas: Betas = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 1e-2, clip_norm: float = 0.0,
                 freeze_step: Union[int, str] = 0, freeze_after: int = 0):
        super().__init__(params, lr, betas, eps, weight_decay, clip_norm, freeze_step,
                         freeze_after)


class LARS(Optimizer):
    """SGD with momentum and a step proportional to each tensor's norm (You et al. 2017).

    The tensors of parameter groups without weight decay are updated as by SGD."""

    kind = "LK_LARS"
    undecayed_unscaled = True

    def __init__(self, params: Params, lr: float = 1e-3, momentum: float = 0.9,
                 weight_decay: float = 0.0, nesterov: bool = False,
                 trust_coefficient: float = 0.001, eps: float = 0.0, clip_norm: float = 0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay,
                                      nesterov=nesterov, trust_coefficient=trust_coefficient,
                                      eps=eps), clip_norm)

    def fields(self):
        d = self.defaults
        return {"momentum": d["momentum"], "nesterov": d["nesterov"],
                "trust": d["trust_coefficient"], "eps": d["eps"]}


class Lion(Optimizer):
    """The sign of a moving mean of gradients (Chen et al. 2023)."""

    kind = "LK_LION"

    def __init__(self, params: Params, lr: float = 1e-4, betas: Betas = (0.9, 0.99),
                 weight_decay: float = 0.0, clip_norm: float = 0.0, clip_value: float = 0.0):
        super().__init__(params, dict(lr=lr, betas=tuple(betas), weight_decay=weight_decay),
                         clip_norm, clip_value)

    def fields(self):
        beta1, beta2 = self.defaults["betas"]
        return {"beta1": beta1, "beta2": beta2}


class Adagrad(Optimizer):
    """Gradients over the root of the sum of all their squares, as ``torch.optim.Adagrad``."""

    kind = "LK_ADAGRAD"

    def __init__(self, params: Params, lr: float = 1e-2, weight_decay: float = 0.0,
                 eps: float = 1e-10, clip_norm: float = 0.0, clip_value: float = 0.0):
        super().__init__(params, dict(lr=lr, eps=eps, weight_decay=weight_decay), clip_norm,
                         clip_value)

    def fields(self):
        return {"eps": self.defaults["eps"]}


class Yogi(_Adaptive):
    """AdamW whose second moment v changes by (1 - beta2) g² in the direction of g² (Zaheer et al.
    2018)."""

    kind = "LK_YOGI"

    def __init__(self, params: Params, lr: float = 1e-2, betas: Betas = (0.9, 0.999),
                 eps: float = 1e-3, weight_decay: float = 0.0, clip_norm: float = 0.0,
                 clip_value: float = 0.0):
        super().__init__(params, lr, betas, eps, weight_decay, clip_norm, clip_value)


class FromTorch:
    """Any optimizer of torch, run by every worker on a copy of the parameters of its own.

    ``Run.step()`` also takes the optimizer itself.  Memory is as with DistributedDataParallel: each
    worker has all parameters, gradients and states.  Results do not depend on the number of workers
    if the optimizer does the same in every process.  ``Run.weights_hash()`` compares the copies.
    """

    kind = "LK_OPTIMIZER_NONE"
    in_library = False
    undecayed_unscaled = False

    state = {}   # no states wait for the library, which keeps none

    def __init__(self, optimizer: torch.optim.Optimizer, clip_norm: float = 0.0,
                 clip_value: float = 0.0):
        _refuse_closure(optimizer)
        self.torch = optimizer
        self.clip_norm, self.clip_value = clip_norm, clip_value

    @property
    def param_groups(self):
        """The parameter groups of torch's optimizer."""
        return self.torch.param_groups

    def describe(self):
        """Return what the result depends on besides what may change between steps."""
        fixed = {k: v for k, v in self.torch.defaults.items()
                 if k not in Optimizer.changing and not callable(v)}
        return {"class": type(self.torch).__name__, "clip_norm": self.clip_norm,
                "clip_value": self.clip_value, **fixed}

    def options(self):
        """Return the C options of an optimizer that only hands out the mean gradient."""
        return _library.Optimizer(kind=layout.constants[self.kind])

    def state_names(self):
        """Return None: torch's optimizers make their states in the first step."""
        return None

    def completed_steps(self):
        """Return 0: a run of torch's optimizer continues from a checkpoint of this package."""
        return 0

    def fix_undecayed(self):
        """Do nothing: the library updates no parameter."""

    def rates(self):
        """Return {id of a parameter: (lr, weight_decay)}: 0, because the library updates none."""
        return {id(p): (0.0, 0.0) for g in self.torch.param_groups for p in g["params"]}

    def fingerprint(self):
        """Return 64 bits of what may change between steps, which must be equal on all ranks."""
        return _fingerprint(self.param_groups)

    def update(self):
        """Update the parameters from the mean gradients in ``.grad``."""
        self.torch.step()

    def is_same(self, other):
        """Return true for another ``FromTorch`` of this optimizer and with these options."""
        return (isinstance(other, FromTorch) and self.torch is other.torch
                and self.describe() == other.describe())

    def states(self, model):
        """Return [(number of a parameter, key, value)] of all states.  Raise ``TypeError`` for one
        that neither a checkpoint nor another worker could restore."""
        self._refuse_other_states(model.params)
        found = []
        for i, (name, p) in enumerate(zip(model.names, model.params)):
            for key, value in self.torch.state.get(p, {}).items():
                if not isinstance(key, str) or "." in key:
                    raise TypeError(f"the optimizer's state {key!r} of '{name}' cannot be "
                                    "restored: give it a name without a dot")
                if isinstance(value, torch.Tensor) and (value.layout is not torch.strided
                                                        or not is_dense(value)):
                    raise TypeError(f"the elements of the optimizer's state '{key}' of '{name}' "
                                    "are not consecutive in memory, so it cannot be restored: "
                                    "make it from a tensor's clone()")
                found.append((i, key, value))
        return found

    def _refuse_other_states(self, params):
        kind, known = type(self.torch).__name__, set(map(id, params))
        advice = ("neither a checkpoint nor a worker that replaces a lost one would have it: keep "
                  "it in state[parameter]")
        for key, state in self.torch.state.items():
            if id(key) not in known and state:
                where = "a tensor" if isinstance(key, torch.Tensor) else repr(key)
                raise TypeError(f"{kind} keeps a state under {where}, which is no parameter that "
                                f"is trained; {advice}")
        for name in self.torch.state_dict():
            if name not in ("state", "param_groups"):
                raise TypeError(f"{kind}.state_dict() has '{name}' besides the states of "
                                f"parameters; {advice}")

    def digests(self, names):
        """Return {"NAME.key": a digest of its value} of the states, which must be equal on all
        ranks.  `names` are those of parameters, by id."""
        return {name: trace.digest(value) for name, value in self._named_states(names)}

    def numbers(self, names):
        """Return {"NAME.step": value} of the states that are no tensors.  `names` are those of
        parameters, by id."""
        return {name: value for name, value in self._named_states(names)
                if not isinstance(value, torch.Tensor)}

    def forms(self, names):
        """Return {"NAME.key": {"dtype": "bool", "strides": [1, 4]}} of the states that a file does
        not hold in their type, or in the order of their elements."""
        forms = {}
        for name, value in self._named_states(names):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                form = {"dtype": "bool"} if value.dtype is torch.bool else {}
                if value.stride() != torch.empty(value.shape, device="meta").stride():
                    form["strides"] = list(value.stride())
                if form:
                    forms[name] = form
        return forms

    def _named_states(self, names):
        return [(f"{names[id(p)]}.{key}", value) for p, state in self.torch.state.items()
                if id(p) in names for key, value in state.items()]


def has_scheduler(optimizer):
    """Return true if torch has made a scheduler for an optimizer of this module."""
    steps = optimizer if optimizer.in_library else optimizer.torch
    return any(hasattr(steps.step, mark) for mark in ("_wrapped_by_lr_sched", "_with_counter"))


def rate(group):
    """Return the learning rate of a parameter group.  It is None if the optimizer has none, or
    chooses it by itself, as Adafactor does."""
    return None if group.get("lr") is None else float(group["lr"])


def _fingerprint(groups):
    rates = [(rate(g), float(g.get("weight_decay") or 0)) for g in groups]
    return int.from_bytes(hashlib.blake2b(repr(rates).encode(), digest_size=8).digest(), "little")


def _refuse_closure(optimizer):
    """Raise ``TypeError`` if an optimizer computes gradients itself, by a function that its step()
    must be given."""
    # of the class, because a scheduler hides that of the object
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    for parameter in parameters:
        if (parameter.default is parameter.empty
                and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)):
            raise TypeError(f"step() of {type(optimizer).__name__} needs '{parameter.name}', with "
                            "which it computes gradients itself; run.step() computes the mean "
                            "gradient of all workers once a step: use another optimizer")


def adopt(optimizer):
    """Return an optimizer of this module for what a user gave."""
    if isinstance(optimizer, (Optimizer, FromTorch)):
        return optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        return FromTorch(optimizer)
    raise TypeError(f"{type(optimizer).__name__} is no optimizer of lockstep.torch or torch.optim")
