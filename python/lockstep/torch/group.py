"""The workers of a run: joining, what they tell each other, losses, and the end."""

import atexit
import contextlib
import ctypes
import json
import os
import signal
import struct
import sys

from lockstep import _library
from lockstep._library import Error, lk

# Failures that are no fault of the program at the place where they are raised.
_WITHOUT_TRACEBACK = ("EPEER", "ETIMEOUT", "EMISMATCH", "ECORRUPT", "ENONFINITE", "ESTOPPED")

_WAIT_MS = 600 * 1000          # for another worker, by default
_PATIENCE_MS = 3600 * 1000     # for rank 0, while it works with files
_MEETING = struct.Struct("<48sQ??6x")   # the operation, a value; is a stop requested, a worker
                                        # waiting to enter


class Group:
    """The communicator of this process.  After a loss it is that of the survivors."""

    def __init__(self, timeout=0.0, flight=None):
        self._leave_signals_to_the_launcher()
        self._process = os.getpid()   # a forked child has no part in the group
        self.comm = None
        self._first_hook = self._hook = sys.excepthook
        self._reporting = False
        self.keep_hook()
        self._wait_ms = int(timeout * 1000) or _launchers_timeout_ms() or _WAIT_MS
        options = _library.JoinOptions(struct_size=ctypes.sizeof(_library.JoinOptions),
                                       timeout_ms=self._wait_ms,
                                       flight=os.fsencode(flight) if flight else None)
        self._options = options
        self.continues = lk.continues()
        self.failed = False
        self.stop = self.awaited = False   # what all ranks know since they last met
        self.enters = lk.enters()   # true until this worker is in the place of a lost one
        self._closing = []
        atexit.register(self._leave)
        if self.enters:   # as the last of the ranks, until the real numbers are known
            self.size = int(os.environ["WORLD_SIZE"])
            self.rank, self.hosts = self.size - 1, 1
        else:
            self.enter()

    @staticmethod
    def _leave_signals_to_the_launcher():
        """Let Ctrl-C ask for a stop after the step.  The launcher receives it, too, and lk_join()
        ignores signals that have their default action."""
        launched = ctypes.c_bool()
        lk.launched(launched)
        if launched and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def enter(self):
        """Join the other workers.  A worker that replaces a lost one waits until they admit it."""
        comm = ctypes.c_void_p()
        lk.join_with(comm, self._options)
        self._take(comm)
        self.stop_requested()   # announces that this program asks

    def _take(self, comm):
        self.comm = comm
        lk.comm_set_timeout(comm, self._wait_ms)
        self.rank, self.size = lk.comm_rank(comm), lk.comm_size(comm)
        self.hosts = lk.comm_hosts(comm)

    def local_rank(self):
        """Return the number of this worker among those of its host."""
        if self.comm is None:   # not yet
            return int(os.environ["LOCAL_RANK"])
        return lk.comm_local_rank(self.comm, self.rank)

    def host(self, rank):
        """Return the number of the host of a rank."""
        return lk.comm_host(self.comm, rank)

    # ---- What ranks tell each other ----------------------------------------------------------

    def barrier(self):
        lk.barrier(self.comm)

    def meet(self, operation, value=0):
        """Wait for all ranks, which must be about to run the same operation.  Return their values.

        operation: its name, as users know it.  Raise ``lockstep.Error`` on all ranks if the names
        differ.
        """
        mine = _MEETING.pack(operation.encode(), value, self.stop_requested(),
                             lk.comm_awaited(self.comm))
        gathered = ctypes.create_string_buffer(len(mine) * self.size)
        lk.all_gather(self.comm, mine, gathered, len(mine))
        names, values, stops, awaited = zip(*_MEETING.iter_unpack(gathered.raw))
        self.stop, self.awaited = any(stops), any(awaited)
        for rank, name in enumerate(names):
            if name != names[0]:
                first, other = (n.rstrip(b"\0").decode() for n in (names[0], name))
                self.raise_together(Error("EMISMATCH", (
                    f"rank 0 is at {first}, and rank {rank} at {other}.  Every rank must make the "
                    "same calls of the run in the same order.  Look for a rank that left the loop "
                    "or ended early, and for calls on some ranks only (`if run.rank == 0`)")))
        return values

    def raise_together(self, error):
        """Raise an error that all ranks raise at this place."""
        error.everywhere = True
        self.fail_together()
        raise error

    def share(self, value, root=0):
        """Return the `value` of rank `root`, anything that JSON can hold, on every rank."""
        text = json.dumps(value).encode() if self.rank == root else b""
        length = ctypes.c_uint64(len(text))
        lk.broadcast(self.comm, ctypes.byref(length), 8, root)
        buffer = ctypes.create_string_buffer(text, length.value + 1)
        lk.broadcast(self.comm, buffer, length.value, root)
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
                lk.comm_set_timeout(self.comm, self._wait_ms)

    def gather(self, value):
        """Return the numbers (0 to 2^64 - 1) of all ranks."""
        mine, all_ranks = ctypes.c_uint64(value), (ctypes.c_uint64 * self.size)()
        lk.all_gather(self.comm, ctypes.byref(mine), all_ranks, 8)
        return list(all_ranks)

    def sum_rows(self, rows):
        """Sum rows of numbers, one for each virtual worker, of which rank r has every row v with v
        % size == r.  The order is that of a balanced tree over the virtual workers."""
        width = len(rows[0])
        mine = (ctypes.c_double * (len(rows) * width))(*(x for row in rows for x in row))
        gathered = (ctypes.c_double * (len(mine) * self.size))()
        lk.all_gather(self.comm, mine, gathered, ctypes.sizeof(mine))
        level = []
        for v in range(len(rows)):
            first = (v % self.size) * len(mine) + v * width
            level.append(gathered[first:first + width])
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2])
            level = [[a + b for a, b in zip(*pair)] for pair in pairs] + level[len(level) // 2 * 2:]
        return level[0]

    def limit_s(self):
        """Return how many seconds rank 0 may keep the others waiting; None if there are none."""
        return None if self.size == 1 else self._wait_ms * 0.75e-3

    def stop_requested(self):
        """Return true if the launcher was asked to stop this job.  Ranks may learn it at
        different times."""
        return lk.stop_requested(self.comm)

    # ---- Failures ----------------------------------------------------------------------------

    def rebuild(self):
        """Form a group of the survivors and return the old communicator, to be freed."""
        return self._exchange(lk.comm_rebuild)

    def admit(self):
        """Form a group with the workers that wait and return the old communicator, to be freed."""
        return self._exchange(lk.comm_admit)

    def _exchange(self, form):
        old, new = self.comm, ctypes.c_void_p()
        # a survivor may be in a long turn
        options = _library.CommOptions(struct_size=ctypes.sizeof(_library.CommOptions),
                                       timeout_ms=self._wait_ms)
        form(new, old, options)
        self._take(new)
        return old

    def changes(self, old):
        """Return what a new group has lost and won, as logs have it (docs/log.md)."""
        before = {lk.comm_world_rank(old, r) for r in range(lk.comm_size(old))}
        now = {lk.comm_world_rank(self.comm, r) for r in range(self.size)}
        return {"lost": sorted(before - now), "entered": sorted(now - before),
                "workers": self.size}

    def take_arenas(self, old):
        """Move the shared memory of the old group to this one; None in a worker that entered."""
        lk.comm_take_arenas(self.comm, old)

    def has_lost(self):
        return lk.comm_has_lost(self.comm)

    def abort(self, error):
        """End the waits of all other ranks, and tell them the reason.  The end of a worker that
        enters concerns no other."""
        if self.failed:
            return
        self.failed = True
        if self.enters:
            return
        constants = _library.layout.constants
        if not isinstance(error, Error):
            lk.error_set(constants["LK_EINVAL"], _in_one_line(error).encode()[:400])
        elif error.everywhere:   # on this rank no call has failed
            lk.error_set(constants["LK_" + error.status], str(error).encode())
        lk.comm_abort(self.comm)

    def fail_together(self):
        """Prepare for an error that all ranks are about to raise: none ends another's waits.
        Collective."""
        lk.barrier(self.comm)
        self.failed = True

    def _is_blamed(self):
        """Return true if this rank was the first to call `abort`."""
        try:
            lk.barrier(self.comm)
        except Error as error:
            return str(error).startswith(f"rank {self.rank} ")
        return True

    def keep_hook(self):
        """Report exceptions, also if the program has set a hook of its own meanwhile.  That hook is
        called for the traceback."""
        if sys.excepthook != self._report:
            self._hook, sys.excepthook = sys.excepthook, self._report

    def _report(self, kind, error, trace):
        """Print the traceback of the first rank whose program fails, and one line on the others."""
        if self._reporting:   # called by a hook that the program has set
            self._first_hook(kind, error, trace)
            return
        self._reporting = True
        if os.getpid() != self._process:
            self._hook(kind, error, trace)
            return
        known = isinstance(error, KeyboardInterrupt) or (
            isinstance(error, Error) and error.status in _WITHOUT_TRACEBACK)
        if self.comm is not None:
            self.abort(error)
            # what all ranks raise, rank 0 shows
            everywhere = getattr(error, "everywhere", False)
            known = known or (not self.enters and
                              (self.rank != 0 if everywhere else not self._is_blamed()))
        if known:
            where = "" if self.comm is None else f"rank {self.rank}: "
            print(f"lockstep: {where}{_in_one_line(error)}", file=sys.stderr)
        else:
            self._hook(kind, error, trace)

    # ---- The end -----------------------------------------------------------------------------

    def at_close(self, close):
        """Have `close` called before this process leaves the group."""
        self._closing.append(close)

    def _leave(self):
        if self.comm is None or os.getpid() != self._process:
            return
        try:
            if self.enters and not self.failed:
                print(f"lockstep: rank {self.rank} replaces a lost worker, but has not found the "
                      "loop over run.steps() in which the others are", file=sys.stderr)
            elif not self.failed:   # no rank leaves while others read its memory
                self.meet("the end of the program")
        except Error as error:   # others fail, or wait for something else than the end
            self.failed = True
            print(f"lockstep: rank {self.rank}, at its end: {error}", file=sys.stderr)
        lost = [error for error in map(_error_of, reversed(self._closing)) if error is not None]
        for error in lost:
            print(f"lockstep: rank {self.rank}, at its end: {_in_one_line(error)}",
                  file=sys.stderr)
        lk.comm_free(self.comm)
        self.comm = None
        if lost:
            _exit_now()


def _error_of(close):
    """Return the error of a function; None if it has none."""
    try:
        close()
    except (Error, OSError) as error:
        return error
    return None


def _exit_now():
    """End with status 1.  An exception in a function of ``atexit`` would not change the status."""
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(AttributeError, OSError, ValueError):   # None, lost or closed
            stream.flush()
    os._exit(1)


def _launchers_timeout_ms():
    """Return what `lockstep run --timeout`, or the user, has set for all waits, or 0."""
    text = os.environ.get("LOCKSTEP_TIMEOUT_MS", "")
    return int(text) if text.isdecimal() else 0


def _in_one_line(error):
    """Return the class of an exception and the first and the last line of its text."""
    if isinstance(error, Error):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted (Ctrl-C)"
    if isinstance(error, SystemExit):
        return f"the program left with sys.exit({error.code!r})"
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1].strip()}"
    return f"{type(error).__name__}: {text}"


def agree(group, described, first_difference,
          advice="results would depend on who computes what"):
    """Raise ``lockstep.Error`` on all ranks if a rank describes something else than rank 0.  What
    a worker that enters describes is compared when it does."""
    found = None if group.enters else first_that_differs(group, described)
    if found is not None:
        odd, mine, wanted = found
        name, here, there = first_difference(mine, wanted)
        group.raise_together(Error("EMISMATCH", f"rank {odd} and rank 0 differ in {name}: {here!r} "
                                   f"and {there!r}; {advice}"))


def first_that_differs(group, described):
    """Return the first rank that describes something else than rank 0, what it describes, and what
    rank 0 does; None if all are equal.  Collective."""
    wanted = group.share(described)
    mine = json.loads(json.dumps(described))
    differs = group.gather(int(mine != wanted))
    if not any(differs):
        return None
    odd = differs.index(1)
    return odd, group.share(mine, odd), wanted


def note_processors(group, described):
    """Have rank 0 print a note if a rank has another processor than it has.  Collective."""
    found = None if group.enters else first_that_differs(group, described)
    if found is None or group.rank != 0:
        return
    odd, theirs, mine = found
    words = f"{theirs['vendor']} and {mine['vendor']}"
    if theirs["vendor"] == mine["vendor"]:
        words = "only one has " + ", ".join(sorted(
            set(theirs["instructions"]) ^ set(mine["instructions"])))
    print(f"lockstep: note: rank {odd} and rank 0 have other processors ({words}).  If torch or a "
          "library of it chooses kernels by them, results depend on who computes what",
          file=sys.stderr)


def note_flight(group, flight):
    """Have rank 0 print a note if it is the launcher that decides about flight records."""
    launched = "LOCKSTEP_SOCKET_FD" in os.environ and "LOCKSTEP_FLIGHT" not in os.environ
    if flight and launched and group.rank == 0:
        print("lockstep: note: there are no flight records: under lockstep run, init(flight=...) "
              "has no effect; give lockstep run --flight-recorder DIR", file=sys.stderr)


def advised(failure):
    """Return a failure with what to do, where the library cannot know it."""
    text = str(failure)
    if failure.status == "EMISMATCH" and "start with different values" in text:
        text += (": make the model after init(), which seeds the global random generators, and "
                 "with no other generators and nothing that depends on the rank")
    elif failure.status == "EMISMATCH" and "; rank " in text:
        text += (".  Every rank must make the same calls of the run in the same order.  Look for a "
                 "rank that left the loop or ended early, and for step(), evaluate(), save() or "
                 "weights_hash() on some ranks only (`if run.rank == 0`)")
    elif "changed since it was written" in text:
        text += (".  Change parameters only through steps.  With an optimizer of torch "
                 "(lk.FromTorch) every worker has its own parameters, which the program may change "
                 "between steps")
    elif "-ffast-math" in text:
        text += ".  torch.set_flush_denormal(True) does this, too: leave it out"
    else:
        return failure
    return Error(failure.status, text)
