"""Random numbers that depend on what is computed, never on the rank that computes it."""

import hashlib
import random
import struct
import sys

import torch


def key(seed, purpose, *numbers):
    """Return 64 bits for a seed, a purpose (a word) and non-negative numbers."""
    data = purpose.encode() + struct.pack(f"<{1 + len(numbers)}Q", seed, *numbers)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def seed_all(value):
    """Seed the global generators of torch's CPU, of `random` and, if it is loaded, of NumPy.

    This is called for every sample.  torch.manual_seed() also notes the seed for devices, with the
    stack of the caller, which takes a hundred times as long.
    """
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


def state():
    """Return the states of the global generators, as values of JSON types."""
    numpy = sys.modules.get("numpy")
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    own = None
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        own = [kind, keys.tolist(), *rest]
    return {"torch": _hex(torch.get_rng_state()), "random": random.getstate(), "numpy": own,
            "devices": [_hex(d) for d in devices]}


def set_state(values):
    """Set the states that ``state()`` returned, also in another process."""
    torch.set_rng_state(_from_hex(values["torch"]))
    version, keys, gauss = values["random"]
    random.setstate((version, tuple(keys), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and values["numpy"] is not None:
        numpy.random.set_state(tuple(values["numpy"]))
    if values["devices"]:
        torch.cuda.set_rng_state_all([_from_hex(d) for d in values["devices"]])


def _hex(tensor):
    return bytes(tensor.tolist()).hex()


def _from_hex(text):
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


class restored:
    """A context after which the global generators are as before."""

    def __enter__(self):
        self._state = state()

    def __exit__(self, *_):
        set_state(self._state)
