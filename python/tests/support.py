"""Runs training programs on workers, for the tests of this folder."""

import json
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"),
               LOCKSTEP_LIBRARY=str(BUILD / "lib" / "liblockstep.so.0"))
    env.update({name: str(value) for name, value in more.items()})
    return env


def launch(program, workers, *launcher, folder, env=None, arguments=()):
    """Run the text of a Python program on `workers` workers.  `launcher` are options of
    `lockstep run`, and `arguments` those of the program."""
    path = pathlib.Path(folder) / "program.py"
    path.write_text(textwrap.dedent(program))
    command = [str(BUILD / "bin" / "lockstep"), "run", "-n", str(workers), "--no-prefix",
               *launcher, "--", sys.executable, str(path),
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


class Nursery:
    """Runs jobs whose ranks are forked from one process with torch, and set up as by torchrun."""

    def __init__(self):
        server = pathlib.Path(__file__).with_name("nursery.py")
        self._name = uuid.uuid4().hex   # in the command lines of all its processes
        self._server = subprocess.Popen([sys.executable, str(server), self._name],
                                        env=environment(), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def run(self, program, workers, *, folder, env=None, each=None, expected=None, meanwhile=None):
        """Run the text of a Python program on `workers` ranks and return a list of ``Rank``.

        each: a function from the rank to its own environment variables.
        expected: WORLD_SIZE, if it is not `workers`.
        meanwhile: a function that is called with the process ids.
        """
        path = pathlib.Path(folder) / "program.py"
        path.write_text(textwrap.dedent(program))
        ranks = []
        port = _free_port()
        for rank in range(workers):
            variables = dict(env or {}, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=expected or workers,
                             LOCAL_WORLD_SIZE=expected or workers, MASTER_ADDR="127.0.0.1",
                             MASTER_PORT=port, **(each(rank) if each else {}))
            files = {name: str(path.with_name(f"{name}.{rank}")) for name in ("out", "err")}
            for name in files.values():
                open(name, "w").close()
            ranks.append(dict(files, program=str(path),
                              env={name: str(value) for name, value in variables.items()}))
        pids = self._ask(ranks)
        limit = threading.Timer(TIMEOUT_S, _end, [pids])
        limit.start()
        if meanwhile:
            meanwhile(pids)
        statuses = json.loads(self._server.stdout.readline())
        limit.cancel()
        return [Rank(_exit_status(status), pathlib.Path(r["out"]).read_text(),
                     pathlib.Path(r["err"]).read_text()) for status, r in zip(statuses, ranks)]

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
                if self._name in path.read_text():
                    found.append(int(path.parent.name))
            except OSError:   # it has ended
                pass
        return [pid for pid in found if pid != self._server.pid]

    def _ask(self, ranks):
        self._server.stdin.write(json.dumps(ranks) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


def _exit_status(wait_status):
    if os.WIFSIGNALED(wait_status):
        return -os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)


def _end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
