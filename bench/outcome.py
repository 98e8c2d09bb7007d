"""outcome -- what a benchmark went without or lost: said at once, and in its exit status."""
import sys

sys.dont_write_bytecode = True

HOW = {
    "Open MPI": "apt packages openmpi-bin and libopenmpi-dev",
    "MPICH": "apt packages mpich and libmpich-dev",
    "PyTorch": "apt package python3-torch, or LK_TORCH_PYTHON names a python that has it",
    "Gloo": "apt package python3-torch",
    "torchft": "LK_TORCHFT_PYTHON names a python that has it",
    "llm.c": "LK_LLMC names its train_gpt2",
    "iperf3": "apt package iperf3",
    "qemu-aarch64": "apt package qemu-user",
    "clang": "apt package clang",
}
lost = []


def without(peer):
    """Names a peer that is not here."""
    print(f"without {peer}: not installed ({HOW[peer]})", file=sys.stderr, flush=True)


def lose(what):
    """Names a row, a peer that is here, or a whole table that did not come about."""
    lost.append(what)
    print(f"LOST: {what}", file=sys.stderr, flush=True)


def end(compared=True):
    """Ends the benchmark with status 1 if something was lost, or there was nothing to compare with."""
    if not compared:
        sys.exit("no peer is installed: nothing was compared")
    if lost:
        sys.exit(f"{len(lost)} {'result is' if len(lost) == 1 else 'results are'} missing")
