"""A rank that a nursery forks; see nursery.py.

    forked.py NURSERY PROGRAM [ARGUMENT...]

stands for the program as a worker of `lockstep run`: the rank has the environment, the folder and
the open files of this process, which ends as the rank does.
"""

import json
import os
import signal
import socket
import sys


class Forked:
    """The client of a nursery for one rank.  The nursery kills the rank if its client has ended."""

    def __init__(self, nursery, argv, *, env, folder, standard):
        """Have the nursery of that name fork a rank.  `standard` are its first descriptors."""
        inherited = [name for name in env
                     if name.startswith("LOCKSTEP_") and name.endswith("_FD")]
        request = json.dumps({"argv": argv, "env": env, "folder": folder, "inherited": inherited})
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect("\0" + nursery)
        socket.send_fds(self._connection, [b"+"],
                        [*standard, *(int(env[name]) for name in inherited)])
        self._connection.sendall(request.encode() + b"\n")
        self._answers = self._connection.makefile()
        self.pid = self._answer()

    def wait(self):
        """Return the exit status, which is negative after a signal."""
        status = self._answer()
        self._answers.close()
        self._connection.close()
        return status

    def _answer(self):
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the nursery has ended")
        return int(line)


def main():
    env = dict(os.environ)
    rank = Forked(sys.argv[1], sys.argv[2:], env=env, folder=os.getcwd(), standard=range(3))
    for name in env:   # so that only the rank has them
        if name.startswith("LOCKSTEP_") and name.endswith("_FD"):
            os.close(int(env[name]))
    for descriptor in range(3):
        os.close(descriptor)
    status = rank.wait()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
