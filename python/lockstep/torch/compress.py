"""Compressors of gradients, which run in the C library.

Each group of virtual workers has an error of its own, so the result of a run depends on the number
of groups, and not on the number of workers.
"""

import ctypes
from typing import Any, Sequence

from lockstep import _library
from lockstep._library import lk


def _check_number(name, value):
    """Raise for a number that the C struct would not hold, or would take for the default."""
    if isinstance(value, bool):
        return
    if name in ("rank", "levels", "bucket"):
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}: give a whole number")
        if not 1 <= value <= 1 << 30:
            raise ValueError(f"{name} is {value}: give a number from 1 to {1 << 30}")
    elif not value > 0:
        raise ValueError(f"{name} is {value}: give a number above 0")


_MOMENTUM = 0.9   # of a group's gradients by default; as in the C library
_START_AUTO = (1 << 64) - 1   # LK_START_AUTO


class Compressor:
    """What the compressors of this module have in common.

    feedback: the rule by which a group keeps something from step to step: "ef14" (error feedback),
        "off", "dgc" (momentum correction, with `TopK` and `RandomK`), "signum", "ef21" or
        "ef21-sgdm".  None means that of the compressor.
    momentum, nesterov: of a group's gradients, with "dgc", "signum" and "ef21-sgdm".  0 means 0.9.
    clip_norm: the maximum norm of a group's mean gradient, multiplied by the square root of the
        number of groups.  0 means no limit.
    start: the first step, from 1, whose gradients are compressed.  Earlier steps are those of a run
        without a compressor.  `start_powerSGD_iter` of torch's hook is this number less 1.
    """

    name = None       # in the C library
    rule = "ef14"     # feedback by default
    warmup, warmup_steps = (), 0

    def __init__(self, options, feedback=None, momentum=0.0, nesterov=False, clip_norm=0.0,
                 start=1):
        for name, value in options.items():
            _check_number(name, value)
        if feedback is not None and not isinstance(feedback, str):
            raise TypeError(f"feedback is {feedback!r}: give the name of a rule")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}: give 0 to below 1")
        if not clip_norm >= 0:
            raise ValueError(f"clip_norm is {clip_norm}: give a norm, or 0 for no limit")
        if not isinstance(start, int) or isinstance(start, bool):
            raise TypeError(f"start is {start!r}: give the number of a step")
        if not 1 <= start < 1 << 48:
            raise ValueError(f"start is {start}: steps are counted from 1")
        self._options = options   # fields of lk_compression
        self.feedback, self.momentum, self.nesterov = feedback, float(momentum), nesterov
        self.clip_norm, self.start = float(clip_norm), start

    def describe(self):
        """Return what the result depends on, with defaults as they were given."""
        return {"class": type(self).__name__, **self._options, "feedback": self.feedback,
                "momentum": self.momentum, "nesterov": self.nesterov, "clip_norm": self.clip_norm,
                "start": self.start, "warmup": list(self.warmup), "warmup_steps": self.warmup_steps}

    def __repr__(self):
        words = [f"{k}={v!r}" for k, v in self._options.items()]
        return f"{type(self).__name__}({', '.join(words)})"


class PowerSGD(Compressor):
    """Two factors of low rank of each matrix (Vogels et al., 2019).

    rank: the number of columns of a factor.
    min_rate: a matrix is sent whole unless its factors have this many times fewer elements.
    warm_start: begins a step with the factors of the step before.
    """

    name = "powersgd"

    def __init__(self, rank: int = 4, min_rate: float = 2.0, warm_start: bool = True, **rule: Any):
        super().__init__({"rank": rank, "min_rate": float(min_rate),
                          "cold_start": not warm_start}, **rule)


class TopK(Compressor):
    """The elements of each tensor with the largest magnitudes, a fraction `ratio` of them.

    warmup: ratios for the first steps from `start` on, such as (0.25, 0.063), at most 8.
    warmup_steps: the number of steps of each of them.
    """

    name = "topk"

    def __init__(self, ratio: float = 0.01, warmup: Sequence[float] = (), warmup_steps: int = 0,
                 **rule: Any):
        super().__init__({"ratio": float(ratio)}, **rule)
        if len(warmup) > 8 or not all(0 < r <= 1 for r in warmup):
            raise ValueError(f"warmup is {warmup!r}: give up to 8 ratios above 0 and up to 1")
        if not isinstance(warmup_steps, int) or (len(warmup) > 0) != (warmup_steps > 0):
            raise ValueError(f"warmup_steps is {warmup_steps!r}: give the number of steps of a "
                             "ratio together with `warmup`")
        self.warmup, self.warmup_steps = tuple(map(float, warmup)), warmup_steps


class RandomK(TopK):
    """A fraction `ratio` of the elements of each tensor, at random places, the same for all
    groups."""

    name = "randomk"


class Sign(Compressor):
    """The sign of each element, and the mean magnitude of the tensor (Karimireddy et al.,
    2019)."""

    name = "sign"

    def __init__(self, **rule: Any):
        super().__init__({}, **rule)


class Vote(Compressor):
    """The sign of each element, by the majority of groups (Bernstein et al., 2019).  Use an
    optimizer without momentum, with a learning rate like Adam's."""

    name, rule = "vote", "signum"

    def __init__(self, **rule: Any):
        super().__init__({}, **rule)


class TernGrad(Compressor):
    """Elements rounded at random to 0 or the largest magnitude (Wen et al., 2017).

    clip: magnitudes are cut off at this many standard deviations.
    """

    name, rule = "terngrad", "off"

    def __init__(self, clip: float = 2.5, **rule: Any):
        super().__init__({"clip": float(clip)}, **rule)


class QSGD(Compressor):
    """Elements rounded at random to a few magnitudes (Alistarh et al., 2017).

    levels: the number of magnitudes above 0.
    bucket: the number of elements with one norm, a multiple of 32.
    """

    name, rule = "qsgd", "off"

    def __init__(self, levels: int = 7, bucket: int = 512, **rule: Any):
        super().__init__({"levels": levels, "bucket": bucket}, **rule)


def check(compress, groups):
    """Raise ``TypeError`` or ``ValueError`` for what `init()` cannot take."""
    if compress is not None and not isinstance(compress, Compressor):
        raise TypeError(f"compress is {compress!r}: give a compressor such as "
                        "lockstep.torch.PowerSGD(rank=4)")
    if groups < 0:
        raise ValueError(f"groups is {groups}: give a number of groups, or 0")


def settle(settings, optimizer):
    """Return the settings of a run with its defaults spelled out, so that those of equal runs are
    equal.  Without anything that groups exchange or keep, they change no bit."""
    described = settings.get("compress")
    if described is None:
        matter = settings.get("local_steps") or optimizer.get("freeze_step")
        return settings if matter else {**settings, "groups": 0}
    kind = globals().get(described["class"], Compressor)
    rule = described["feedback"] or kind.rule
    has_momentum = rule in ("dgc", "signum", "ef21-sgdm")
    momentum = described["momentum"] or (_MOMENTUM if has_momentum else 0.0)
    return {**settings, "groups": settings["groups"] or settings["virtual_workers"],
            "compress": {"start": 1, "warmup": [], "warmup_steps": 0, **described,
                         "feedback": rule, "momentum": momentum}}


def exchange(compress, groups, seed, optimizer):
    """Return an ``lk_exchange``, or None without groups."""
    freeze_step = getattr(optimizer, "freeze_step", 0)
    if compress is None and groups == 0 and freeze_step == 0:
        return None
    c = _library.Exchange(struct_size=ctypes.sizeof(_library.Exchange), groups=groups)
    c.compression.seed = seed
    if freeze_step == "auto":
        c.start, c.auto_after = _START_AUTO, optimizer.freeze_after
    elif freeze_step > 0:
        c.start = freeze_step + 1
    if compress is None:
        return c
    found, feedback = ctypes.c_void_p(), ctypes.c_uint32()
    lk.compressor_find(found, compress.name.encode())
    c.compressor = found
    for name, value in compress._options.items():
        setattr(c.compression, name, value)
    if compress.feedback is not None:
        lk.feedback_find(feedback, compress.feedback.encode())
    c.feedback, c.momentum, c.nesterov = feedback.value, compress.momentum, compress.nesterov
    c.clip, c.start = compress.clip_norm, compress.start
    c.warmup_count, c.warmup_span = len(compress.warmup), compress.warmup_steps
    c.warmup[:len(compress.warmup)] = compress.warmup
    return c
