"""Parameters that are in a worker's memory only while a turn uses them ("zero3", "hybrid").

Each parameter has an address of its own for the whole run, so tensors that are views of it, among
them those that autograd keeps, stay valid.  Its memory is there only from its gathering to its
release; then the pages are given back to the system, and nobody may read them.

    forward    a block is gathered before an operation uses it, and released when a later block is
               used and the plan (plan.py) says that nothing uses it again
    backward   a block is gathered again before an operation needs it, and a parameter is released
               when its gradient is complete and autograd keeps nothing of it

Ranks gather blocks in the order of the plan.  What a rank passes over in the forward pass stays in
its memory, in case that it is used later.
"""

import ctypes
import faulthandler
import mmap
import os

import torch

from lockstep._library import lk
from lockstep.torch.model import view
from lockstep.torch.uses import Watch

_PAGE = mmap.PAGESIZE
_NO_ACCESS, _ACCESS = 0, mmap.PROT_READ | mmap.PROT_WRITE
_ADVICE = 4   # MADV_DONTNEED
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000   # MAP_NORESERVE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Interrupted(BaseException):
    """Ends a turn after a failure, which lk_parallel_finish() reports.  Before torch 2.0 autograd
    makes another exception of it."""


class _Memory:
    """A range of pages for each parameter."""

    def __init__(self, sizes):
        self.sizes = sizes
        self._pages = [-(-max(1, size) // _PAGE) * _PAGE for size in sizes]
        self._map = mmap.mmap(-1, sum(self._pages), flags=_FLAGS, prot=_ACCESS)
        at = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._change(_libc.mprotect, at, sum(self._pages), _NO_ACCESS)
        self.addresses = []
        for pages in self._pages:
            self.addresses.append(at)
            at += pages

    @staticmethod
    def _change(function, address, size, how):
        if function(address, size, how) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"memory for parameters: {os.strerror(number)}")

    def fill(self, param, source):
        """Copy a parameter's values from an address."""
        self._change(_libc.mprotect, self.addresses[param], self._pages[param], _ACCESS)
        ctypes.memmove(self.addresses[param], source, self.sizes[param])

    def drop(self, param):
        """Give the pages of a parameter back."""
        self._change(_libc.madvise, self.addresses[param], self._pages[param], _ADVICE)
        self._change(_libc.mprotect, self.addresses[param], self._pages[param], _NO_ACCESS)


class Gathered:
    """The parameters of a model in the turns of a strategy that shards them.

    take: called with (block), takes the gradients of the blocks before it.
    """

    def __init__(self, model, plan, take):
        self._model, self._plan, self._take = model, plan, take
        self._memory = _Memory([p.numel() * p.element_size() for p in model.params])
        self._views = [view(address, p) for address, p in zip(self._memory.addresses,
                                                              model.params)]
        nothing = torch.full((1,), float("nan"))
        self._hidden = [nothing.expand(p.shape) for p in model.params]
        self.block_of = {p: b for b, block in enumerate(plan.blocks) for p in block}
        self._place_of = {b: i for i, b in enumerate(plan.forward)}
        self._first_terms, terms = [], 0
        for block in plan.blocks:
            self._first_terms.append(terms)
            terms += len(block)
        self._kept = set(plan.kept)
        self._watch = Watch(list(zip(self._memory.addresses, self._memory.sizes)), self._use,
                            self._keep)
        self._present = set()
        self.largest = 0   # bytes that were in memory at the same time
        self._begin()
        if not faulthandler.is_enabled():   # shows who reads a parameter that is not in memory
            faulthandler.enable()

    def open(self, handle):
        """Use a strategy, which may be another one after a loss."""
        self._handle, self.interrupted = handle, False

    def show(self):
        """Have the parameters be at their addresses, for the turns of a step."""
        for p, v in zip(self._model.params, self._views):
            p.data = v

    def hide(self):
        """Have the parameters be NaN, for the time between steps."""
        self.end_turn()
        for p, v in zip(self._model.params, self._hidden):
            p.data = v

    # ---- A turn ----------------------------------------------------------------------------

    def _begin(self):
        self._forward_at = self._backward_at = 0   # the next blocks to gather
        self._used = -1      # the last place of the forward order whose block was used
        self._backward = False
        self._waiting = set(range(len(self._model.params)))   # gradients that are not complete
        self._kept_tensors = [0] * len(self._model.params)    # by autograd

    def begin_turn(self):
        """Forget the turn before."""
        self.end_turn()
        self._begin()
        self._watch.turn += 1

    def begin_backward(self):
        """Gather in the order of the backward pass from now on."""
        self._backward = True

    def end_turn(self):
        """Release all parameters."""
        for param in list(self._present):
            self._release(param)

    def watching(self):
        """Return a context in which operations find the parameters that they use."""
        return self._watch.watching()

    def _use(self, params):
        for param in params:
            if param not in self._present:
                self._find(param)
        if not self._backward:
            self._release_before(max(self._place_of[self.block_of[p]] for p in params), params)

    def _release_before(self, place, used):
        """Release what is not used any more once the block at a place of the forward order is."""
        for reached in range(self._used + 1, place + 1):
            for param in self._plan.released[reached]:
                if param in self._present and param not in used:
                    self._release(param)
        self._used = max(self._used, place)

    def _find(self, param):
        """Gather up to a parameter that an operation is about to use."""
        block = self.block_of[param]
        if not self._backward and self._forward_at <= self._place_of[block]:
            while self._forward_at <= self._place_of[block]:
                self._read_forward(fills=True)
        elif self._backward and self._plan.again and self._backward_at <= block:
            self._reach(block, fills=True)
        if param not in self._present:
            raise RuntimeError(
                f"parameter '{self._model.names[param]}' is used later than in the first "
                "micro-batch of the run, after it was released: the order in which this model uses "
                "its parameters changes, so give a strategy that keeps them, such as zero2")

    def _read_forward(self, fills):
        block = self._plan.forward[self._forward_at]
        self._read(block)
        self._forward_at += 1
        if fills:
            self._fill(block)

    def _reach(self, block, fills):
        """Gather again up to a block, after taking the gradients of the blocks before it."""
        while self._forward_at < len(self._plan.forward):
            self._read_forward(fills=False)
        while self._plan.again and self._backward_at <= block:
            self._take(self._backward_at)
            self._read(self._backward_at)
            self._backward_at += 1
        if fills:
            self._fill(block)

    def _read(self, block):
        if not lk.parallel_read(self._handle, self._first_terms[block]):
            self.interrupted = True
            raise Interrupted

    def _fill(self, block):
        for param in self._plan.blocks[block]:
            if param in self._waiting and param not in self._present:
                self._memory.fill(param, lk.parallel_param(self._handle, param))
                self._present.add(param)
        self.largest = max(self.largest, sum(self._memory.sizes[p] for p in self._present))

    def _release(self, param):
        self._memory.drop(param)
        self._present.discard(param)

    def _keep(self, param, change):
        self._kept_tensors[param] += change
        self._release_complete(param)

    def before_gradient(self, param):
        """Take part in the gathers up to the block of a parameter whose gradient is about to be
        added."""
        self._reach(self.block_of[param], fills=False)

    def after_gradient(self, param):
        """Release a parameter whose gradient was taken, unless autograd needs it."""
        self._waiting.discard(param)
        self._release_complete(param)

    def late(self, param):
        """Return the error for a gradient that is complete after it was taken."""
        return RuntimeError(
            f"the gradient of '{self._model.names[param]}' is complete later than in the first "
            "micro-batch of the run, after parameters that needed it were gathered: the order in "
            "which this model uses its parameters changes, so give another strategy, such as zero2")

    def _release_complete(self, param):
        if (self._backward and param not in self._waiting and param in self._present
                and self._kept_tensors[param] <= 0):
            self._release(param)
