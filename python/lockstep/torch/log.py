"""The log of a run: lines of JSON, and scalars for TensorBoard."""

import dataclasses
import json
import math

from lockstep.torch.results import Evaluation


class Log:
    """Written by the rank that calls ``add()``: rank 0, or its successor.

    path: the file of JSON lines, or None.
    tensorboard: the directory of TensorBoard's event files, or None.  Raise ``ImportError`` if the
    package tensorboard is not installed.
    """

    def __init__(self, path, tensorboard):
        self._path, self._directory = path, tensorboard
        self._file = self._writer = None
        if tensorboard is not None:
            self._make_writer = _summary_writer()

    def add(self, step, result, more):
        """Add the fields of a result, and `more`, after a number of completed steps."""
        if self._path is not None:
            self._add_line(dict(_fields(result), **more))
        if self._directory is not None:
            self._add_scalars(step, result, more)

    def _add_line(self, fields):
        if self._file is None:
            self._file = open(self._path, "a", encoding="utf-8")
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    def _add_scalars(self, step, result, more):
        """Tags are train/loss, train/lr ..., and evaluation/loss ...; the step is that of torch's
        loops, the number of completed steps."""
        if self._writer is None:   # after resume() later steps of an earlier run do not count
            self._writer = self._make_writer(self._directory, purge_step=step)
        kind = "evaluation" if isinstance(result, Evaluation) else "train"
        fields = dict(_fields(result), accuracy=result.accuracy, **more)
        if not result.hits:
            del fields["accuracy"]
        for name in ("step", "count", "hits", "outer_step"):
            fields.pop(name, None)
        for name, value in fields.items():
            if isinstance(value, (int, float)) and not math.isnan(value):
                self._writer.add_scalar(f"{kind}/{name}", value, step)
        self._writer.flush()


def _fields(result):
    """Return the fields of a result, with those of the outer step if there was one."""
    fields = dataclasses.asdict(result)
    outer = fields.pop("outer", None)
    if outer is not None:
        fields.update(outer_step=outer["number"], fragment=outer["fragment"],
                      outer_grad_norm=outer["grad_norm"],
                      drift=outer["drift"], message_bytes=outer["message_bytes"])
    return fields


def _summary_writer():
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as missing:
        raise ImportError("init(tensorboard=...) needs the package tensorboard: pip install "
                          f"tensorboard ({missing})") from None
    return SummaryWriter
