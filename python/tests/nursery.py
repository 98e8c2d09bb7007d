"""Forks the ranks of many jobs from one process that has imported torch; see support.Nursery.

Importing torch, and freeing it at the end, takes far longer than the job of a test.  A forked rank
runs its program at the top level of this file, with the exceptions, exit handlers and exit status
of a program.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import sys
import tempfile

ended = 0   # the exit status, negative after a signal


def end_at_once():
    """End this process after all other exit handlers, without freeing what torch has imported."""
    for name in ("last_exc", "last_value", "last_traceback"):   # their frames hold files of torch
        vars(sys).pop(name, None)
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


def become(rank):
    """Take over the environment and the output files of a rank."""
    os.setpgid(0, 0)
    os.chdir(os.path.dirname(rank["program"]))
    os.environ.update(rank["env"])
    tempfile.tempdir = None   # torch has used it
    torch.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sources = (os.open(os.devnull, os.O_RDONLY), os.open(rank["out"], os.O_WRONLY),
               os.open(rank["err"], os.O_WRONLY))
    for descriptor, source in enumerate(sources):
        os.dup2(source, descriptor)
        os.close(source)
    sys.argv = [rank["program"]]


def fork_all(ranks):
    """Fork the ranks.  Return their process ids in this process, and None in a rank."""
    pids = []
    for rank in ranks:
        pid = os.fork()
        if pid == 0:
            become(rank)
            return None
        pids.append(pid)
    return pids


def serve():
    """Answer requests until their end.  Return true in a rank."""
    answers = os.fdopen(os.dup(1), "w")
    while True:
        line = sys.stdin.readline()
        if not line:
            return False
        pids = fork_all(json.loads(line))
        if pids is None:
            return True
        print(json.dumps(pids), file=answers, flush=True)
        print(json.dumps([os.waitpid(pid, 0)[1] for pid in pids]), file=answers, flush=True)


def run(program):
    """Run a program and store its exit status."""
    global ended
    ended = 1
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as leaving:
        ended = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        raise
    except KeyboardInterrupt:
        ended = -signal.SIGINT
        raise
    ended = 0


torch.set_num_threads(1)   # a forked process has none of its parent's threads
lk.SGD([torch.nn.Parameter(torch.zeros(1))])   # has torch import the rest of itself
gc.freeze()   # so that a rank collects only its own objects
if serve():
    run(sys.argv[0])
