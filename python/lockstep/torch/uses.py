"""Which parameters the operations of a turn use, found by the addresses of tensors.

A view of a parameter lies in the parameter's memory, so it counts as the parameter, wherever the
program has it from.  Two things are watched: the functions of torch that a program calls, in the
forward pass and in what the backward pass computes again (``torch.utils.checkpoint``), and the
tensors that autograd keeps from the one pass to the other.
"""

import bisect
import contextlib

import torch
from torch.overrides import TorchFunctionMode

# What looks at a tensor but not at its elements.  Attributes are "__get__".
_METADATA = frozenset((
    "__get__", "__set__", "__hash__", "__len__", "data_ptr", "device", "dim", "element_size",
    "get_device", "has_names", "is_complex", "is_contiguous", "is_floating_point", "is_inference",
    "is_signed", "is_tensor", "ndimension", "nelement", "numel", "register_hook", "requires_grad_",
    "size", "storage_offset", "stride", "type", "untyped_storage"))


class Watch(TorchFunctionMode):
    """Calls ``use(params)`` with the set of the parameters that an operation is about to use.

    places: of each parameter (address, bytes).
    keep: called with (param, 1) when autograd keeps a tensor, and (param, -1) when it drops it.
    """

    def __init__(self, places, use, keep):
        super().__init__()
        order = sorted(range(len(places)), key=lambda i: places[i])
        self._starts = [places[i][0] for i in order]
        self._ends = [sum(places[i]) for i in order]
        self._params = order
        self.use, self.keep = use, keep
        self.turn = 0   # tensors that were kept in another one do not count

    def find(self, tensor):
        """Return the parameter in whose memory a tensor lies, or None."""
        try:
            address = tensor.data_ptr()
        except (RuntimeError, NotImplementedError):   # it is sparse, or a wrapper of a tensor
            return None
        i = bisect.bisect_right(self._starts, address) - 1
        return self._params[i] if i >= 0 and address < self._ends[i] else None

    def _collect(self, values, found):
        for value in values:
            if isinstance(value, torch.Tensor):
                param = self.find(value)
                if param is not None:
                    found.add(param)
            elif isinstance(value, (list, tuple)):
                self._collect(value, found)
            elif isinstance(value, dict):
                self._collect(value.values(), found)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in _METADATA:
            found = set()
            self._collect(args, found)
            self._collect(kwargs.values(), found)
            if found:
                self.use(found)
        return func(*args, **kwargs)

    @contextlib.contextmanager
    def watching(self):
        """Watch what happens in the block."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack), self:
            yield

    def _pack(self, tensor):
        param = self.find(tensor)
        return tensor if param is None else _Kept(self, param, tensor)

    @staticmethod
    def _unpack(packed):
        if isinstance(packed, _Kept):
            packed.watch.use({packed.param})
            return packed.tensor
        return packed


class _Kept:
    """A parameter, or a view of it, that autograd keeps for the backward pass."""

    def __init__(self, watch, param, tensor):
        self.watch, self.param, self.tensor = watch, param, tensor
        self._turn = watch.turn
        watch.keep(param, 1)

    def __del__(self):
        if self._turn == self.watch.turn:
            self.watch.keep(self.param, -1)


def backward(loss):
    """Act as ``loss.backward()``, with a ``Watch`` that sees what the backward pass calls.  As a
    function of torch, ``backward()`` would be watched itself, but nothing that it calls."""
    torch.autograd.Variable._execution_engine.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True,
        accumulate_grad=True)


def on_gradient(parameter, call):
    """Have `call()` called when a backward pass has the whole gradient of a parameter.  Return
    handles to remove."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):   # since torch 2.1
        return [parameter.register_post_accumulate_grad_hook(lambda _: call())]
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return [node.register_hook(lambda *_: call()), _Alive(node)]


class _Alive:
    """Keeps the node of a parameter, which torch would make again without its hooks."""

    def __init__(self, node):
        self._node = node

    def remove(self):
        """Let the node go."""
        self._node = None


class Events:
    """The events of a turn that is computed with all parameters in memory: what the order in which
    parameters are gathered is made from."""

    def __init__(self, params):
        self._params = params
        self.forward, self.backward = [], []   # ("use", params) and ("gradient", param)
        self._events = self.forward
        self._watch = Watch([(p.data_ptr(), p.numel() * p.element_size()) for p in params],
                            lambda found: self._events.append(("use", sorted(found))),
                            lambda param, change: None)

    def record(self, forward):
        """Call `forward`, which returns the loss, and do the backward pass."""
        hooks = []
        for i, p in enumerate(self._params):
            p.grad = None
            hooks += on_gradient(p, lambda i=i: self._complete(i))
        try:
            with self._watch.watching():
                loss = forward()
                self._events = self.backward
                if loss.requires_grad:
                    backward(loss)
        finally:
            for hook in hooks:
                hook.remove()
            for p in self._params:
                p.grad = None

    def _complete(self, param):
        self._params[param].grad = None
        self.backward.append(("gradient", param))
