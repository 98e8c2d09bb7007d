"""A log that is a pipe, which never blocks the run in silence.

A write to a full pipe would block until the reader reads, and neither a request to stop nor a
timeout could end it.  So the pipe is not blocking.  Rank 0 waits for room in short steps, says so
after a second, and fails before the timeout of the other ranks, which wait for it.  After a request
to stop it waits for two seconds more, and then leaves out the rest.
"""

import errno
import os
import select
import stat
import sys
import time

from lockstep._library import Error

_MOMENT_S, _NOTE_S, _GRACE_S = 0.02, 1.0, 2.0


def is_pipe(path):
    """Return true if there is a pipe."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


class Pipe:
    """An open pipe, with the methods of a file that a log needs.

    limit_s: seconds to wait for the reader with one line; None: for ever.
    stops: returns true if the run is to stop.
    """

    def __init__(self, path, limit_s, stops):
        self._path, self._limit_s, self._stops = path, limit_s, stops
        self._waited = self._asked = 0.0
        self._said = self._left_out = False
        while not self._left_out:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                return
            except OSError as failure:
                if failure.errno != errno.ENXIO:
                    raise
            time.sleep(_MOMENT_S)
            self._count(_MOMENT_S, "is a pipe that nobody reads; waiting for a reader")

    def write(self, data):
        """Write all bytes, or leave out the rest of the log."""
        self._waited = self._asked = 0.0
        while data and not self._left_out:
            try:
                data = data[os.write(self._file, data):]
            except BlockingIOError:
                self._await_room()
            except BrokenPipeError:
                raise Error("EIO", f"nobody reads the log '{self._path}' any more") from None

    def flush(self):
        """Do nothing: what is written has been sent."""

    def _await_room(self):
        begun = time.monotonic()
        if select.select([], [self._file], [], _MOMENT_S)[1]:
            return
        # a time in which the process did not run does not count
        self._count(min(time.monotonic() - begun, 10 * _MOMENT_S),
                    "is a full pipe, whose reader does not read; waiting for the reader")

    def _count(self, seconds, what):
        self._waited += seconds
        self._asked = self._asked + seconds if self._stops() else 0.0
        if self._asked >= _GRACE_S:
            self._left_out = True
            self._note("is not read, and the run is to stop: it lacks its last lines")
        elif self._limit_s is not None and self._waited >= self._limit_s:
            raise Error("ETIMEOUT", f"the log '{self._path}' {what.partition(';')[0]}: waited for "
                        f"{self._waited:.0f} s")
        elif self._waited >= _NOTE_S and not self._said:
            self._said = True
            self._note(what)

    def _note(self, what):
        print(f"lockstep: note: the log '{self._path}' {what}", file=sys.stderr, flush=True)
