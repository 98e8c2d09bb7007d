"""The self-test: the first steps of a program with several numbers of workers, compared.

    python -m lockstep.torch selftest train.py --its arguments

starts the program with 1, 2 and 3 workers.  Environment variables make ``Run`` write records of
what each virtual worker computes (trace.py), and end the program after some steps.  The first
difference is named.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from lockstep import _library
from lockstep._library import Error
from lockstep.torch import trace

_FOLDER, _STEPS = "LOCKSTEP_SELFTEST_FOLDER", "LOCKSTEP_SELFTEST_STEPS"


# ---- In the program ----------------------------------------------------------------------------


class Observer:
    """Writes what a rank computes into a file of JSON lines."""

    def __init__(self, folder, steps):
        self._folder, self.steps = pathlib.Path(folder), steps
        self._file = None

    @classmethod
    def from_environment(cls):
        """Return the observer of this program, or None if it is not part of a self-test."""
        if _FOLDER not in os.environ:
            return None
        return cls(os.environ[_FOLDER], int(os.environ[_STEPS]))

    def watch(self, engine, virtual_workers, data):
        """Have the engine record its turns, and describe the program."""
        self._engine = engine
        engine.observer = self._write_turns
        self._file = open(self._folder / f"rank-{engine.group.rank}.jsonl", "w", encoding="utf-8")
        self._write(virtual_workers=virtual_workers, classes=trace.classes(engine.model.module),
                    dataset=data.kind if data else "none")

    def begin(self, number):
        """Record the weights before a step.  Collective."""
        names = self._engine.model.names
        self._write(step=number, weights=[[name, trace.digest(self._engine.value(i, 0))]
                                          for i, name in enumerate(names)])

    def _write_turns(self, number, recorder):
        for turn, record in recorder.turns.items():
            self._write(step=number, turn=turn, record=record)

    def end(self, number, result):
        """Record the result of a step, and after the last one the weights."""
        self._write(step=number, result=[["loss", result.loss], ["count", result.count],
                                         ["hits", result.hits], ["grad_norm", result.grad_norm]])
        if number + 1 == self.steps:
            self.begin(self.steps)

    def _write(self, **line):
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


# ---- The comparison ----------------------------------------------------------------------------


class _Records:
    """What the ranks of one job wrote."""

    def __init__(self, folder):
        self.weights, self.turns, self.results = {}, {}, {}
        for path in sorted(folder.glob("rank-*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                self._take(json.loads(line))

    def _take(self, line):
        if "classes" in line:
            self.classes, self.dataset = line["classes"], line["dataset"]
            self.virtual_workers = line["virtual_workers"]
        elif "weights" in line:
            self.weights[line["step"]] = line["weights"]
        elif "turn" in line:
            self.turns[(line["step"], *line["turn"])] = line["record"]
        else:
            self.results[line["step"]] = line["result"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference between two numbers of workers.  ``step`` is counted from 1.
    ``virtual_worker`` is None if it is not in what one virtual worker computes.
    """

    workers: tuple
    step: int
    virtual_worker: object
    where: str
    advice: str

    def __str__(self):
        one, other = self.workers
        of = "" if self.virtual_worker is None else f" of virtual worker {self.virtual_worker}"
        return (f"{one} and {other} workers differ in step {self.step}{of}.\n"
                f"The first difference is in {self.where}.\n{self.advice}.")


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome of a self-test.  ``difference`` is None if all results are equal."""

    steps: int
    workers: tuple
    tensors: int
    difference: object

    @property
    def equal(self):
        """True if no difference was found."""
        return self.difference is None

    def __str__(self):
        if self.difference is not None:
            return f"selftest: {self.difference}"
        return (f"selftest: {self.steps} steps with {_listed(self.workers)} workers have equal "
                f"losses, gradients and weights ({self.tensors} tensors compared)")


def _listed(numbers):
    texts = [str(n) for n in numbers]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _first_difference(workers, one, other, steps):
    for step in range(steps + 1):
        found = _compare_weights(one, other, step)
        if found:
            return Difference(workers, step + 1, None, *found)
        for key in sorted(k for k in one.turns if k[0] == step):
            found = trace.explain(one.classes, one.turns[key], other.turns.get(key, []),
                                  f"the data set ({one.dataset})")
            if found:
                return Difference(workers, step + 1, key[1], *found)
        if one.results.get(step) != other.results.get(step):
            return Difference(workers, step + 1, None, "the sums over virtual workers, whose "
                              "results are equal", "This is a fault of Lockstep: please report it")
    return None


def _compare_weights(one, other, step):
    for (name, ours), (_, theirs) in zip(one.weights[step], other.weights[step]):
        if ours != theirs and step == 0:
            return (f"the initial value of '{name}' ({trace.owner(one.classes, name)})",
                    "Make the model from the global random generators, which init() seeds: call "
                    "lk.init() before the model is made")
        if ours != theirs:
            return (f"the updated value of '{name}' ({trace.owner(one.classes, name)})",
                    "Look for code that changes parameters or the learning rate by itself")
    return None


# ---- Running it --------------------------------------------------------------------------------


def selftest(script: str, args: Sequence[str] = (), *, steps: int = 3,
             workers: Sequence[int] = (1, 2, 3), quiet: bool = False) -> Report:
    """Run the first steps of a program with several numbers of workers, and compare.

    script: the path of a program that calls ``lockstep.torch.init()``.  It ends by itself after
        the steps.  Nothing is saved, resumed or logged meanwhile.
    args: its arguments.
    workers: the numbers of workers.  Those above `virtual_workers` are left out.
    quiet: do not print the report.

    Return a ``Report``.  Raise ``lockstep.Error`` if the program fails, or does not come as far.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-selftest-") as folder:
        done = {}
        for n in sorted(workers):
            if not done or n <= next(iter(done.values())).virtual_workers:
                done[n] = _run(pathlib.Path(folder) / str(n), n, script, args, steps)
        report = _compare(done, steps)
    if not quiet:
        print(report)
    return report


def _compare(done, steps):
    (first, reference), *others = done.items()
    found = (_first_difference((first, n), reference, records, steps) for n, records in others)
    return Report(steps, tuple(done), sum(map(len, reference.turns.values())),
                  next(filter(None, found), None))


def _run(folder, workers, script, args, steps):
    folder.mkdir()
    command = [_command(), "run", "-n", str(workers), "--no-prefix", "--", sys.executable,
               str(script), *map(str, args)]
    env = dict(os.environ, **{_FOLDER: str(folder), _STEPS: str(steps)})
    ended = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    records = _Records(folder)
    if ended.returncode != 0 or len(records.results) < steps:
        raise Error("EINVAL", f"with {workers} worker{'s' * (workers > 1)}, {script} ended with "
                    f"exit status {ended.returncode} after {len(records.results)} of {steps} "
                    f"steps:\n{ended.stdout}")
    return records


def _command():
    """Return the path of the command `lockstep`: LOCKSTEP_COMMAND, beside the library, or on
    PATH."""
    beside = pathlib.Path(_library.path).parent.parent / "bin" / "lockstep"
    found = os.environ.get("LOCKSTEP_COMMAND") or (str(beside) if beside.exists() else None)
    found = found or shutil.which("lockstep")
    if found is None:
        raise Error("EINVAL", "the command `lockstep` is neither beside the library nor on PATH: "
                    "name it in LOCKSTEP_COMMAND")
    return found
