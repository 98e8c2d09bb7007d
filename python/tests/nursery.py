"""Forks the ranks of many jobs from one process that has imported torch; see support.py.

Importing torch, and freeing it at the end, takes far longer than the job of a test.  A forked rank
runs its program at the top level of this file, with the exceptions, exit handlers and exit status
of a program.  All ranks have one order of sets of strings, which real processes do not.

    nursery.py NAME DESCRIPTOR

serves the clients of a socket (forked.py) until its standard input ends.  NAME makes the processes
of a nursery known.
"""

import array
import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import warnings

ended = 0   # the exit status, negative after a signal
names = {}  # of the program, which end after its exit handlers


def end_at_once():
    """End this process after all other exit handlers, without freeing what torch has imported."""
    for name in ("last_exc", "last_value", "last_traceback"):   # their frames hold files of torch
        vars(sys).pop(name, None)
    names.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    if ended < 0:
        signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    os._exit(ended)


atexit.register(end_at_once)   # the first registered is called last

import torch  # noqa: E402

import lockstep.torch as lk  # noqa: E402


# ---- Ranks ---------------------------------------------------------------------------------------


def become(argv, env, folder, inherited, descriptors):
    """Take over the arguments, the environment, the folder and the open files of a rank."""
    os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for descriptor, source in enumerate(descriptors[:3]):
        os.dup2(source, descriptor)
        os.close(source)
    for name, descriptor in zip(inherited, descriptors[3:]):
        os.environ[name] = str(descriptor)
    tempfile.tempdir = None   # torch has used it
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    torch.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.argv = argv
    sys.path[0] = os.path.dirname(argv[0])
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
                     if path and path not in sys.path]


def run(program):
    """Run a program and store its exit status."""
    global ended, names
    ended = 1
    try:
        names = runpy.run_path(program, run_name="__main__")
    except SystemExit as leaving:
        ended = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        raise
    except KeyboardInterrupt:
        ended = -signal.SIGINT
        raise
    ended = 0


# ---- The server ----------------------------------------------------------------------------------


class Client:
    """The connection of a client, and the rank that it has asked for."""

    def __init__(self, connection):
        self.connection, self.closed, self.status = connection, False, None
        _, data, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(8 * 4))
        self.descriptors = array.array("i", data[0][2])
        with connection.makefile() as lines:
            self.request = json.loads(lines.readline())
        self.pid = self.pidfd = None

    def fork(self):
        """Fork the rank, and return true in it."""
        self.pid = os.fork()
        if self.pid == 0:
            return True
        self.pidfd = os.pidfd_open(self.pid)
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.say(self.pid)
        return False

    def say(self, number):
        try:
            self.connection.sendall(f"{number}\n".encode())
        except OSError:   # it has ended
            pass

    def has_ended(self):
        """Tell the client the status of the rank, which it does not yet reap: like a worker of a
        launcher the rank is gone only when its end is known."""
        found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        self.status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self.say(self.status)

    def forget(self):
        """Close all files, and reap the rank, if it is a child of this process."""
        self.connection.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        if self.status is not None:
            os.waitpid(self.pid, 0)


class Server:
    def __init__(self, listener):
        self.sources, self.clients = selectors.DefaultSelector(), []
        self.listener = listener
        self.sources.register(listener, selectors.EVENT_READ, None)
        self.sources.register(sys.stdin, selectors.EVENT_READ, None)

    def serve(self):
        """Return the client whose rank this process is, or None at the end."""
        while True:
            for key, _ in self.sources.select():
                if key.fileobj is sys.stdin:
                    self._end()
                    return None
                if key.data is not None:
                    self._answer(key)
                    continue
                client = Client(self.listener.accept()[0])
                if client.fork():
                    self._leave()
                    return client
                self.clients.append(client)
                self.sources.register(client.pidfd, selectors.EVENT_READ, client)
                self.sources.register(client.connection, selectors.EVENT_READ, client)

    def _answer(self, key):
        """A rank has ended, or its client has."""
        client = key.data
        self.sources.unregister(key.fileobj)
        if key.fileobj is client.connection:
            client.closed = True
            if client.status is None:
                os.kill(client.pid, signal.SIGKILL)
        else:
            client.has_ended()
        if client.closed and client.status is not None:
            self.clients.remove(client)
            client.forget()

    def _leave(self):
        """Close what a rank does not need."""
        self.sources.close()
        self.listener.close()
        for client in self.clients:
            client.status = None   # not a child of this process
            client.forget()

    def _end(self):
        for client in self.clients:
            os.kill(client.pid, signal.SIGKILL)


torch.set_num_threads(1)   # a forked process has none of its parent's threads
lk.SGD([torch.nn.Parameter(torch.zeros(1))])   # has torch import the rest of itself
gc.freeze()   # so that a rank collects only its own objects
mine = Server(socket.socket(fileno=int(sys.argv[2]))).serve()
if mine is not None:
    become(**mine.request, descriptors=mine.descriptors)
    mine.connection.close()
    run(sys.argv[0])
