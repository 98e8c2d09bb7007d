"""Runs training programs on workers, for the tests of this folder."""

import atexit
import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid

import forked

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build" / "release"))
TIMEOUT_S = 300

# for the tests that import the package themselves
sys.path.insert(0, str(ROOT / "python"))
os.environ["LOCKSTEP_LIBRARY"] = str(BUILD / "lib" / "liblockstep.so.0")


class Ended:
    """The outcome of a job: its exit status and the text that it printed."""

    def __init__(self, process):
        self.status, self.out, self.err = process.returncode, process.stdout, process.stderr

    def value(self, name):
        """Return what rank 0 printed after the word `name` on the last such line."""
        found = [line.split(maxsplit=1)[1] for line in self.out.splitlines()
                 if line.startswith(name + " ")]
        assert found, f"no line '{name} ...' in:\n{self.out}\n{self.err}"
        return found[-1]


def environment(**more):
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH")]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)),
               LOCKSTEP_LIBRARY=str(BUILD / "lib" / "liblockstep.so.0"))
    env.update({name: str(value) for name, value in more.items()})
    return env


def launch(program, workers, *launcher, folder, env=None, arguments=(), real=False):
    """Run the text of a Python program on `workers` workers.  `launcher` are options of
    `lockstep run`, and `arguments` those of the program.

    real: start an interpreter for each worker.  Otherwise a nursery forks them.
    """
    path = pathlib.Path(folder) / "program.py"
    path.write_text(textwrap.dedent(program))
    command = [str(BUILD / "bin" / "lockstep"), "run", "-n", str(workers), "--no-prefix",
               *launcher, "--", *([sys.executable] if real else nursery().command()), str(path),
               *arguments]
    try:
        return Ended(subprocess.run(command, env=environment(**(env or {})), capture_output=True,
                                    text=True, timeout=TIMEOUT_S, cwd=folder))
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{late}\n{late.stdout}\n{late.stderr}") from None


class Rank:
    """The outcome of one rank of a job of a nursery: `status` is negative after a signal."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err


@functools.lru_cache(maxsize=None)
def nursery():
    """Return the nursery of this process."""
    found = Nursery()
    atexit.register(found.close)
    return found


class Nursery:
    """Runs jobs whose ranks are forked from one process with torch."""

    def __init__(self):
        self._name = uuid.uuid4().hex   # in the command lines of all its processes
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + self._name)
            listener.listen()
            self._server = subprocess.Popen(
                [sys.executable, str(TESTS / "nursery.py"), self._name, str(listener.fileno())],
                env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()])

    def close(self):
        self._server.stdin.close()
        self._server.wait()

    def command(self):
        """Return the words that begin the command of a worker of `lockstep run`."""
        return [sys.executable, "-I", "-S", str(TESTS / "forked.py"), self._name]

    def run(self, program, workers, *, folder, env=None, each=None, expected=None, meanwhile=None):
        """Run the text of a Python program on `workers` ranks, set up as by torchrun, and return a
        list of ``Rank``.

        each: a function from the rank to its own environment variables.
        expected: WORLD_SIZE, if it is not `workers`.
        meanwhile: a function that is called with the process ids.
        """
        path = pathlib.Path(folder) / "program.py"
        path.write_text(textwrap.dedent(program))
        ranks, port = [], _free_port()
        for rank in range(workers):
            variables = dict(env or {}, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=expected or workers,
                             LOCAL_WORLD_SIZE=expected or workers, MASTER_ADDR="127.0.0.1",
                             MASTER_PORT=port, **(each(rank) if each else {}))
            ranks.append(self._fork(path, rank, environment(**variables)))
        pids = [rank.pid for rank in ranks]
        limit = threading.Timer(TIMEOUT_S, _end, [pids])
        limit.start()
        if meanwhile:
            meanwhile(pids)
        statuses = [rank.wait() for rank in ranks]
        limit.cancel()
        return [Rank(status, *(path.with_name(f"{name}.{rank}").read_text()
                               for name in ("out", "err")))
                for rank, status in enumerate(statuses)]

    def _fork(self, path, rank, env):
        with open(os.devnull) as nothing, open(path.with_name(f"out.{rank}"), "w") as out, \
                open(path.with_name(f"err.{rank}"), "w") as err:
            return forked.Forked(self._name, [str(path)], env=env, folder=str(path.parent),
                                 standard=[f.fileno() for f in (nothing, out, err)])

    def left_behind(self):
        """Return the process ids that jobs have left, once there is none or the time is over."""
        ends = time.monotonic() + TIMEOUT_S / 5
        while self._others() and time.monotonic() < ends:
            time.sleep(0.05)
        return self._others()

    def _others(self):
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self._name.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:   # it has ended
                pass
        return [pid for pid in found if pid != self._server.pid]


def _end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
