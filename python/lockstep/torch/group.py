"""The workers of a run: joining, what they tell each other, losses, and the end."""

import atexit
import contextlib
import ctypes
import json
import signal
import sys

from lockstep import _library
from lockstep._library import Error, lk


_PATIENCE_MS = 3600 * 1000


class Group:
    """The communicator of this process.  After a loss it is that of the survivors."""

    def __init__(self, timeout=0.0, flight=None):
        self._leave_signals_to_the_launcher()
        options = _library.JoinOptions(struct_size=ctypes.sizeof(_library.JoinOptions),
                                       timeout_ms=int(timeout * 1000),
                                       flight=flight.encode() if flight else None)
        comm = ctypes.c_void_p()
        lk.join_with(comm, options)
        self.continues = lk.continues()
        self.failed = False
        self._take(comm)
        self.stop_requested()   # announces that this program asks
        self._closing = []
        self._hook, sys.excepthook = sys.excepthook, self._report
        atexit.register(self._leave)

    @staticmethod
    def _leave_signals_to_the_launcher():
        """Let Ctrl-C ask for a stop after the step.  The launcher receives it, too, and lk_join()
        ignores signals that have their default action."""
        launched = ctypes.c_bool()
        lk.launched(launched)
        if launched and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _take(self, comm):
        self.comm = comm
        self.rank, self.size = lk.comm_rank(comm), lk.comm_size(comm)
        self.hosts = lk.comm_hosts(comm)

    # ---- What ranks tell each other ----------------------------------------------------------

    def barrier(self):
        lk.barrier(self.comm)

    def share(self, value):
        """Return rank 0's `value`, anything that JSON can hold, on every rank."""
        text = json.dumps(value).encode() if self.rank == 0 else b""
        length = ctypes.c_uint64(len(text))
        lk.broadcast(self.comm, ctypes.byref(length), 8, 0)
        buffer = ctypes.create_string_buffer(text, length.value + 1)
        lk.broadcast(self.comm, buffer, length.value, 0)
        return json.loads(buffer.raw[:length.value])

    def share_work(self, work):
        """Run `work` on rank 0.  Return what it returned, or raise its ``Error``, on all ranks."""
        outcome = None
        if self.rank == 0:
            try:
                outcome = {"value": work()}
            except Error as failure:
                outcome = {"error": [failure.status, str(failure)]}
        outcome = self.share(outcome)
        if "error" in outcome:
            self._raise_everywhere(Error(*outcome["error"]))
        return outcome["value"]

    def _raise_everywhere(self, error):
        """Raise an error that all ranks know, when all know it: who ends then is not lost."""
        error.everywhere = True
        with contextlib.suppress(Error):
            self.barrier()
        raise error

    @contextlib.contextmanager
    def patient(self):
        """Let the other ranks wait long for rank 0, while it reads or writes files."""
        if self.rank != 0:
            lk.comm_set_timeout(self.comm, _PATIENCE_MS)
        try:
            yield
        finally:
            if self.rank != 0:
                lk.comm_set_timeout(self.comm, 0)   # as the group was opened

    def gather(self, value):
        """Return the numbers (0 to 2^64 - 1) of all ranks."""
        mine, all_ranks = ctypes.c_uint64(value), (ctypes.c_uint64 * self.size)()
        lk.all_gather(self.comm, ctypes.byref(mine), all_ranks, 8)
        return list(all_ranks)

    def stop_requested(self):
        """Return true if the launcher was asked to stop this job.  Ranks may learn it at
        different times."""
        return lk.stop_requested(self.comm)

    # ---- Failures ----------------------------------------------------------------------------

    def rebuild(self):
        """Form a group of the survivors and return the old communicator, to be freed."""
        old, new = self.comm, ctypes.c_void_p()
        lk.comm_rebuild(new, old, None)
        lk.comm_take_arenas(new, old)
        self._take(new)
        return old

    def has_lost(self):
        return lk.comm_has_lost(self.comm)

    def abort(self, error):
        """End the waits of all other ranks, and tell them the reason."""
        if self.failed:
            return
        self.failed = True
        constants = _library.layout.constants
        if not isinstance(error, Error):
            message = f"{type(error).__name__}: {error}"
            lk.error_set(constants["LK_EINVAL"], message.encode()[:400])
        elif error.everywhere:   # on this rank no call has failed
            lk.error_set(constants["LK_" + error.status], str(error).encode())
        lk.comm_abort(self.comm)

    def _report(self, kind, error, trace):
        """Print one line for the failure of another rank, and a traceback for one of this rank."""
        if self.comm is not None:
            self.abort(error)
        is_of_others = isinstance(error, Error) and (error.status == "EPEER" or
                                                     error.everywhere and self.rank != 0)
        if is_of_others:
            print(f"lockstep: rank {self.rank}: {error}", file=sys.stderr)
        else:
            self._hook(kind, error, trace)

    # ---- The end -----------------------------------------------------------------------------

    def at_close(self, close):
        """Have `close` called before this process leaves the group."""
        self._closing.append(close)

    def _leave(self):
        if self.comm is None:
            return
        try:
            if not self.failed:
                lk.barrier(self.comm)   # no rank leaves while others read its memory
        except Error:
            pass
        for close in reversed(self._closing):
            close()
        lk.comm_free(self.comm)
        self.comm = None


def agree(group, described, first_difference):
    """Raise ``lockstep.Error`` on all ranks if a rank describes something else than rank 0."""
    wanted = group.share(described)
    mine = json.loads(json.dumps(described))
    differs = group.gather(int(mine != wanted))
    if not any(differs):
        return
    if mine != wanted:
        name, here, there = first_difference(mine, wanted)
        reason = (f"rank {group.rank} and rank 0 differ in {name}: {here!r} and {there!r}; results "
                  "would depend on who computes what")
    else:
        reason = f"rank {differs.index(1)} differs from rank 0 in its settings or its torch"
    group.failed = True
    raise Error("EMISMATCH", reason)
