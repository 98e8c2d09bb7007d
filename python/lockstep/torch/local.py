"""Replicas: groups of virtual workers with weights of their own (local SGD, DiLoCo).

The replicas are trained by themselves for some steps.  Then an outer step averages them: the
difference between the outer weights and the mean of the replicas is the gradient of an outer
optimizer, and all replicas continue from the new outer weights.  The C library does all this.
"""

from __future__ import annotations

import ctypes
import dataclasses

from lockstep import _library
from lockstep._library import layout, lk
from lockstep.torch.optim import Betas, names_of_states
from lockstep.torch.results import OuterStep

_TOPOLOGIES = {"all": "LK_TOPOLOGY_ALL", "ring": "LK_TOPOLOGY_RING",
               "exponential": "LK_TOPOLOGY_EXPONENTIAL", "pairs": "LK_TOPOLOGY_PAIRS"}
_DTYPES = {"fp32": "LK_F32", "bf16": "LK_BF16", "int8": "LK_I8", "int4": "LK_I4"}


@dataclasses.dataclass(frozen=True)
class Streaming:
    """Streaming DiLoCo (Douillard et al. 2025).

    fragments: the number of parts of the parameters, with outer steps of their own,
        ``local_steps / fragments`` steps apart.
    delay: the number of steps, below these, in which outer gradients are sent before their outer
        step.  Not with batch norm.
    alpha: the share of its own weights that a replica keeps in an outer step, 0 to below 1.
    """

    fragments: int = 1
    delay: int = 0
    alpha: float = 0.0

    def __post_init__(self):
        for name, least in (("fragments", 1), ("delay", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}: give a whole number")
            if value < least:
                raise ValueError(f"{name} is {value}: give at least {least}")
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}: give 0 to below 1")


class Outer:
    """What the rules of outer steps have in common.

    dtype: the type in which hosts send outer gradients: "fp32", "bf16", "int8" or "int4".  They are
        rounded to it on one host, too.
    streaming: None, or ``Streaming()``: outer steps of one fragment of the parameters after
        another.
    """

    kind = "LK_SGD"   # the enumerator of lk_optimizer_kind

    def __init__(self, lr, dtype, streaming=None, **fields):
        if not lr > 0:
            raise ValueError(f"lr is {lr}: give a number above 0")
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}: give one of {', '.join(_DTYPES)}")
        if not isinstance(streaming, (Streaming, type(None))):
            raise TypeError(f"streaming is {streaming!r}: give lockstep.torch.Streaming(fragments)")
        self.lr, self.dtype, self._fields = float(lr), dtype, fields   # of lk_optimizer
        self.streaming = streaming or Streaming(1)

    def describe(self):
        """Return what the result depends on."""
        described = {"class": type(self).__name__, "lr": self.lr, **self._fields,
                     "dtype": self.dtype}
        if self.streaming != Streaming(1):
            described["streaming"] = dataclasses.asdict(self.streaming)
        return described

    def options(self):
        """Return the C options of the optimizer."""
        return _library.Optimizer(kind=layout.constants[self.kind], **self._fields)


class Mean(Outer):
    """The mean of the replicas (local SGD, Stich 2019)."""

    def __init__(self, dtype: str = "fp32", streaming: Streaming | None = None):
        super().__init__(1.0, dtype, streaming)


class Momentum(Outer):
    """A step of SGD with momentum, 0 for none."""

    def __init__(self, lr: float = 1.0, momentum: float = 0.9, dtype: str = "fp32",
                 streaming: Streaming | None = None):
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}: give 0 to below 1")
        super().__init__(lr, dtype, streaming, momentum=float(momentum))


class Nesterov(Outer):
    """A step of SGD with Nesterov's momentum.  With ``AdamW`` and 500 local steps it is DiLoCo
    (Douillard et al. 2023)."""

    def __init__(self, lr: float = 0.7, momentum: float = 0.9, dtype: str = "fp32",
                 streaming: Streaming | None = None):
        _check_fraction("momentum", momentum)
        super().__init__(lr, dtype, streaming, momentum=float(momentum), nesterov=True)


class FedAdam(Outer):
    """A step of Adam without bias correction, whose `eps` is large (Reddi et al. 2021)."""

    kind = "LK_ADAMW"

    def __init__(self, lr: float = 0.01, betas: Betas = (0.9, 0.99), eps: float = 1e-3,
                 dtype: str = "fp32", streaming: Streaming | None = None):
        for beta in betas:
            _check_fraction("betas", beta)
        _check_eps(eps)
        super().__init__(lr, dtype, streaming, beta1=float(betas[0]), beta2=float(betas[1]),
                         eps=float(eps), uncorrected=True)


class FedYogi(FedAdam):
    """A step of Yogi without bias correction, whose `eps` is large (Reddi et al. 2021)."""

    kind = "LK_YOGI"


class FedAdagrad(Outer):
    """A step of Adagrad, whose `eps` is large (Reddi et al. 2021)."""

    kind = "LK_ADAGRAD"

    def __init__(self, lr: float = 0.01, eps: float = 1e-3, dtype: str = "fp32",
                 streaming: Streaming | None = None):
        _check_eps(eps)
        super().__init__(lr, dtype, streaming, eps=float(eps))


def _check_fraction(name, value):
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value}: give a number above 0 and below 1")


def _check_eps(eps):
    if not eps > 0:
        raise ValueError(f"eps is {eps}: give a number above 0")


# ---- Options of a run ----------------------------------------------------------------------------


def complete(settings):
    """Give the settings of ``init()`` the default rule of outer steps.  Raise ``TypeError`` or
    ``ValueError`` for what replicas exclude."""
    outer = settings["outer"]
    for name in ("local_steps", "local_start"):
        if not isinstance(settings[name], int) or isinstance(settings[name], bool):
            raise TypeError(f"{name} is {settings[name]!r}: give a whole number")
        if not 0 <= settings[name] <= 1 << 30:
            raise ValueError(f"{name} is {settings[name]}: give a number of steps, or 0")
    if outer is not None and not isinstance(outer, Outer):
        raise TypeError(f"outer is {outer!r}: give a rule such as lockstep.torch.Nesterov(lr=0.7)")
    if settings["topology"] != "all":
        _check_topology(settings)
        settings["local_steps"] = settings["local_steps"] or 1
    for name in ("outer", "local_start"):
        if settings[name] and not settings["local_steps"]:
            raise ValueError(f"{name} is for replicas: give local_steps, too (DiLoCo has 500)")
    if settings["local_steps"] == 0:
        return
    strategy = lk.strategy_name(settings["strategy"].encode())
    if strategy not in (b"ddp", b"zero1"):
        raise ValueError(f"strategy is {settings['strategy']!r}: replicas (local_steps) of PyTorch "
                         'models need "ddp" or "zero1"')
    if lk.continues():
        raise ValueError("replicas (local_steps) end with the first worker that is lost: leave out "
                         "`--on-failure continue` of lockstep run, and start again from a "
                         "checkpoint")
    settings["outer"] = outer or Mean()
    _check_compressor(settings["compress"], settings["outer"])


def _check_topology(settings):
    """Raise ``ValueError`` for what averaging with neighbours only excludes."""
    name, outer = settings["topology"], settings["outer"]
    if name not in _TOPOLOGIES:
        raise ValueError(f"topology is {name!r}: give one of {', '.join(_TOPOLOGIES)}")
    if outer is not None and outer.describe() != Mean().describe():
        raise ValueError(f"topology {name!r} has no outer steps: leave out outer")
    if settings["compress"] is not None:
        raise ValueError(f"topology {name!r} sends whole weights: leave out compress")


def _check_compressor(compress, outer):
    if compress is not None and (compress.start > 1 or compress.warmup):
        raise ValueError("replicas (local_steps) compress all outer gradients alike: leave out "
                         "start and warmup of the compressor")
    if compress is not None and outer.dtype != "fp32":
        raise ValueError(f"dtype is {outer.dtype!r}, and outer gradients are compressed: leave out "
                         "dtype or compress")


def check_optimizer(settings, optimizer):
    """Raise ``TypeError`` for an optimizer that keeps the state of one replica only."""
    if settings["local_steps"] and not optimizer.in_library:
        raise TypeError(f"{type(optimizer.torch).__name__} trains one copy of the parameters, and "
                        "with local_steps a worker may have several: give an optimizer of "
                        "lockstep.torch, such as lk.AdamW")


def replicas(settings):
    """Return an ``lk_replicas``, or None without replicas."""
    if not settings["local_steps"]:
        return None
    outer = settings["outer"]
    streaming = outer.streaming
    return _library.Replicas(struct_size=ctypes.sizeof(_library.Replicas),
                             count=settings["groups"], local_steps=settings["local_steps"],
                             start=settings["local_start"], optimizer=outer.options(), lr=outer.lr,
                             dtype=layout.constants[_DTYPES[outer.dtype]],
                             fragments=streaming.fragments, delay=streaming.delay,
                             alpha=streaming.alpha,
                             topology=layout.constants[_TOPOLOGIES[settings["topology"]]])


def are_there(settings, steps):
    """Return true if there are replicas after a number of steps."""
    start = settings["local_start"]
    return settings["local_steps"] > 0 and (start == 0 or steps > start)


def unfinished(settings, steps):
    """Return a note if the weights do not have what the last steps have learned, else None."""
    steps_of_round, start = settings["local_steps"], settings["local_start"]
    if not steps_of_round or steps <= start or settings["topology"] != "all":
        return None
    streaming = settings["outer"].streaming
    own, every = steps - start, steps_of_round // streaming.fragments
    last = max(own - streaming.delay, 0) // every * every
    if last < steps_of_round:
        return ("note: weights are as they were before there were replicas: all have had an outer "
                f"step after step {start + steps_of_round + streaming.delay}")
    if streaming.fragments == 1 and last == own:
        return None
    return ("note: the weights are those of outer steps with the gradients after step "
            f"{start + last}{' and before' if streaming.fragments > 1 else ''}; what came after is "
            "in the replicas only")


def saved_states(settings, optimizer, steps):
    """Return the names of the states of the optimizer that updates the weights of the model, which
    is the outer one if there are replicas; None if they are not known yet."""
    if are_there(settings, steps):
        return names_of_states(settings["outer"].options())
    return optimizer.state_names()


# ---- Results -------------------------------------------------------------------------------------


def outer_step(handle):
    """Return the ``OuterStep`` that the last step of an ``lk_parallel`` included, or None."""
    last = lk.parallel_outer_step(handle)
    step = OuterStep(last.number, last.grad_norm, last.drift, last.fragment, last.message_bytes)
    return step if last.number else None
