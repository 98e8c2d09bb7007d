"""The log of a run: lines of JSON, and scalars for TensorBoard.

The lines have the keys of `lockstep train --log` (docs/log.md), so `lockstep top`, `report` and
`diff` read them.  The first line describes the run, and the last one says that it has ended.
"""

import dataclasses
import json
import math
import os
import struct
import time

from lockstep import __version__
from lockstep._library import Error
from lockstep.torch import checkpoint
from lockstep.torch.compress import settle
from lockstep.torch.log_pipe import Pipe, is_pipe
from lockstep.torch.results import Evaluation


class Log:
    """Written by the rank that calls its methods: rank 0, or its successor.

    path: the file of JSON lines, or None.
    tensorboard: the directory of TensorBoard's event files, or None.  Raise ``ImportError`` if the
    package tensorboard is not installed.
    group: that of the run.
    """

    def __init__(self, path, tensorboard, group):
        self._path, self._directory, self._group = path, tensorboard, group
        self._file = self._writer = None
        if tensorboard is not None:
            self._make_writer = _summary_writer()

    @property
    def has_lines(self):
        """True if there is a file of lines."""
        return self._path is not None

    def begin(self, step, head):
        """Begin the lines after a number of completed steps.  Lines of later steps are removed.
        Return a note for the user, or None.

        head: the fields of the first line.  Raise ``lockstep.Error`` if the log is that of another
        run, or if a run that begins would replace the log of one that has ended.
        """
        note = None
        try:
            old = _read(self._path)
            kept = _prefix(old, step) if step else b""
            if old:
                note = self._check_old(old, step, json.loads(json.dumps(head)))
            self._file = self._open()
            if os.path.isfile(self._path):
                self._file.truncate(len(kept))
        except OSError as failure:
            raise Error("EIO", f"cannot write the log '{self._path}': {failure}") from None
        self.add_line({"step": step, "lockstep": __version__, **head})
        return note

    def _open(self):
        if is_pipe(self._path):
            return Pipe(self._path, self._group.limit_s(), self._group.stop_requested)
        return open(self._path, "ab")

    def _check_old(self, old, step, head):
        """Return a note on what becomes of an old log, or None.  Raise ``lockstep.Error`` if it
        would lose what it must keep."""
        first, last = _line(old.split(b"\n", 1)[0]), _line(old.rstrip(b"\n").rsplit(b"\n", 1)[-1])
        if step and _is_continued(first, head):
            return None
        same = not step and all(first.get(key) == head[key]
                                for key in ("config", "seed", "exactness_id"))
        if same and "weights" not in last:
            return (f"begins the log '{self._path}' again, which had step {last.get('step', 0)} of "
                    "the same run")
        what = "this run, which has ended" if same else "another run"
        advice = ("or move this one away" if step else
                  "move this one away, or continue the run from a checkpoint by run.resume()")
        raise Error("EINVAL", (
            f"the log '{self._path}' is that of {what}, with step {last.get('step', '?')}, "
            f"and would be lost: give init(log=...) another file, {advice}"))

    def add(self, step, result, more):
        """Add the fields of a result, and `more`, after a number of completed steps."""
        if self._path is not None:
            fields = _evaluation(result) if isinstance(result, Evaluation) else _step(result)
            self.add_line({"step": step, **fields, **more})
        if self._directory is not None:
            self._add_scalars(step, result, more)

    def add_line(self, fields):
        """Add a line.  Numbers that are not finite become null."""
        if self._path is None:
            return
        line = {key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in fields.items()}
        data = json.dumps({**line, "time": round(time.time(), 3)}).encode() + b"\n"
        try:
            if self._file is None:   # the successor of a rank 0 that was lost
                self._file = self._open()
            self._file.write(data)
            self._file.flush()
        except OSError as failure:
            raise Error("EIO", f"cannot write the log '{self._path}': {failure}") from None

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


def _read(path):
    """Return the lines of an old log; nothing if there is none, or if it is no file."""
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read()


def _line(text):
    """Return a line of JSON; {} for what is none."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _is_continued(first, head):
    """Return true if the log with this first line is that of a run that goes on from a checkpoint.
    Rates, the states of schedulers and the machine may have changed since."""
    configs = first.get("config"), head["config"]
    if first.get("seed") != head["seed"] or not isinstance(configs[0], dict) or (
            configs[0].get("program") != configs[1]["program"]):
        return False
    fixed = [dict(checkpoint.fixed(c), machine=None, settings=settle(c["settings"], c["optimizer"]))
             for c in configs]
    if None in (fixed[0]["data"], fixed[1]["data"]):   # before the first step
        fixed[0]["data"] = fixed[1]["data"] = None
    return fixed[0] == fixed[1]


def _prefix(old, step):
    """Return the lines of a log up to a step, without the end of the run."""
    kept = 0
    for text in old.splitlines(keepends=True):
        line = _line(text)
        if not text.endswith(b"\n") or "weights" in line or not (
                isinstance(line.get("step"), int) and line["step"] <= step):
            break
        kept += len(text)
    return old[:kept]


def _bits(value):
    """Return the bits of a double in hexadecimal."""
    return struct.pack(">d", value).hex()


def _step(result):
    fields = _fields(result)
    seconds = fields.pop("seconds")
    del fields["step"]
    return {"loss": fields.pop("loss"), "loss_bits": _bits(result.loss), **fields,
            "step_ms": round(1e3 * seconds, 3)}


def _evaluation(result):
    fields = {"val_loss": result.loss, "val_loss_bits": _bits(result.loss),
              "val_count": result.count}
    if result.hits:
        fields.update(val_accuracy=result.accuracy, val_hits=result.hits)
    return fields


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
