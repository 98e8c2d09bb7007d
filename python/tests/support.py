"""Runs training programs on workers, for the tests of this folder."""

import os
import pathlib
import subprocess
import sys
import textwrap

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
    return Ended(subprocess.run(command, env=environment(**(env or {})), capture_output=True,
                                text=True, timeout=TIMEOUT_S, cwd=folder))
