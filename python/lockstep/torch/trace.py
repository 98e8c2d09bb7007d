"""Records of what a turn computes, to find the first place where two computations differ.

A record is a list of entries (kind, name, digest) in the order in which the values were computed:

    batch      the micro-batch
    input      what a module was called with; `name` is its path in the model
    output     what it returned
    loss       what the loss function returned
    gradient   of a parameter, after the backward pass; `name` is its name

If the output of a module differs, and nothing before it, then that module's own code is the cause.
If the input of a module differs first, it is the code that calls the module.
"""

import ctypes
import hashlib
import re
from collections.abc import Mapping, Set

import torch


def digest(value):
    """Return 16 hex digits of the contents of tensors, numbers and texts, also in containers.  Of
    any other object only the class counts."""
    state = hashlib.blake2b(digest_size=8)
    _update(state, value)
    return state.hexdigest()


def number(value):
    """Return 64 bits of the ``digest()`` of a value."""
    return int(digest(value), 16)


def _update(state, value):
    if isinstance(value, torch.Tensor):
        _update_tensor(state, value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _update(state, key)
            _update(state, item)
    elif isinstance(value, (list, tuple)):
        state.update(f"{len(value)} items".encode())
        for item in value:
            _update(state, item)
    elif isinstance(value, Set):
        state.update(repr(sorted(map(repr, value))).encode())
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        state.update(repr(value).encode())
    else:
        state.update(type(value).__name__.encode())


def _update_tensor(state, tensor):
    shape = "" if tensor.is_nested else tuple(tensor.shape)   # which has numbers of the process
    state.update(f"{tensor.dtype} {shape}".encode())
    parts = _parts(tensor)
    if parts is not None:
        for part in parts:
            _update_tensor(state, part)
        return
    plain = tensor.detach().cpu().contiguous()
    size = plain.numel() * plain.element_size()
    if size:
        state.update((ctypes.c_char * size).from_address(plain.data_ptr()))


def _parts(tensor):
    """Return the tensors that have the contents of a tensor; None if it has them itself.  A sparse
    one may be far too large to be made dense."""
    if tensor.is_meta:
        return []
    if tensor.is_nested:
        return tensor.unbind()
    if hasattr(tensor, "__tensor_flatten__"):   # a wrapper, such as a quantized weight
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    if tensor.is_mkldnn:
        return [tensor.to_dense()]
    if tensor.is_sparse:
        tensor = tensor.detach().coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return None


class Recorder:
    """Keeps the records of turns: ``turns`` maps (virtual worker, micro-batch) to a record."""

    def __init__(self, module):
        self.turns = {}
        self._module = module
        self._paths = {id(m): plain_name(name) for name, m in module.named_modules()}
        self._record = None
        self._hooks = []

    def begin(self, virtual_worker, micro, batch):
        """Start the record of a turn.  Hooks of all modules fill it during the forward pass."""
        self._record = self.turns[virtual_worker, micro] = []
        self.add("batch", "", batch)
        for m in self._module.modules():
            self._hooks += [_add_input_hook(m, self._input), m.register_forward_hook(self._output)]

    def end_forward(self, result):
        """Take the hooks away, and record what the loss function returned."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.add("loss", "", result)

    def add(self, kind, name, value):
        """Add an entry to the record of the turn."""
        self._record.append((kind, name, digest(value)))

    def _input(self, module, args, kwargs=None):
        self.add("input", self._paths[id(module)], (args, kwargs or {}))

    def _output(self, module, _args, output):
        self.add("output", self._paths[id(module)], output)


def _add_input_hook(module, hook):
    try:
        return module.register_forward_pre_hook(hook, with_kwargs=True)
    except TypeError:   # before torch 2.0
        return module.register_forward_pre_hook(hook)


# ---- The first difference ----------------------------------------------------------------------

_CAUSES = ("random numbers of a generator of its own (use the global ones of torch, random or "
           "NumPy, which are seeded for every micro-batch), the order of a set of strings, the "
           "time, a file, values kept in a module or a global variable between calls, the rank, "
           "threads")


def plain_name(name):
    """Return the name of a module, parameter or buffer in the model that was not compiled."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def is_compiled(module):
    """Return true if torch.compile() has made a module, or module.compile() was called."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def classes(module):
    """Return {path of a module in the model: name of its class}."""
    return {plain_name(name): type(m).__name__ for name, m in module.named_modules()}


def owner(known, name):
    """Return the class of the module with the parameter or buffer `name`."""
    return known.get(name.rpartition(".")[0], known[""])


def explain_compiled(module):
    """Return how torch.compile may be the cause of a difference, "" if no part of a module is
    compiled."""
    names = [plain_name(name) for name, m in module.named_modules() if is_compiled(m)]
    if not names:
        return ""
    part = f"'{names[0]}'" if names[0] else "The model"
    return (f"{part} is compiled: if micro-batches differ in shape, the code that torch.compile "
            "makes depends on the shapes that this process had before, so give it dynamic=True, or "
            "pad to one shape.  ")


def explain(known, left, right, dataset="the data set"):
    """Return (where, advice) for the first difference of two records, or None if they are equal.

    known: the ``classes`` of the model.
    where: for example "the output of 'noise' (Noise)".
    advice: whose code is the cause, and what to look for.
    """
    for at in range(max(len(left), len(right))):
        ours, theirs = (tuple(r[at]) if at < len(r) else ("end", "", "") for r in (left, right))
        if ours != theirs:
            return _explain(known, left[:at], ours, theirs, dataset)
    return None


def explain_finding(known, what):
    """Explain what an audit of the library found without records: "gradient of 'a.weight'", the
    one that was computed first and differs."""
    found = re.fullmatch(r"gradient of '(.*)'", what)
    where = f"the gradient of '{found[1]}' ({owner(known, found[1])})" if found else f"the {what}"
    return where, _blame("the program")


def _explain(known, before, ours, theirs, dataset):
    caller = _caller(known, before)
    kind = ours[0]
    what = _what(known, ours)
    if ours[:2] != theirs[:2]:
        return (f"the order of calls: {what} in one and {_what(known, theirs)} in the other",
                _blame(f"the code of {caller}"))
    if kind == "batch":
        return what, _blame(f"reading or collating the samples of {dataset}")
    if kind == "input":
        return f"{what}, called by {caller}", _blame(f"the code of {caller}")
    if kind == "output":
        return f"{what}, called with equal inputs", _blame("the code of that module")
    if kind == "loss":
        return f"{what}, after equal outputs of all modules", _blame("the loss function")
    return (f"{what}, after an equal forward pass",
            "Look for an operator whose backward pass is not deterministic, a hook on gradients, "
            "or threads")


def _blame(code):
    return f"The usual cause is something that {code} depends on: {_CAUSES}"


def _caller(known, before):
    """Return the module in whose forward the next entry was computed."""
    stack = []
    for kind, name, _ in before:
        if kind == "input":
            stack.append(name)
        elif kind == "output":
            stack.pop()
    return named(known, stack[-1]) if stack else "the loss function"


def _what(known, entry):
    kind, name, _ = entry
    if kind == "gradient":
        return f"the gradient of '{name}' ({owner(known, name)})"
    texts = {"batch": "the micro-batch", "loss": "the loss", "end": "nothing"}
    return texts.get(kind) or f"the {kind} of {named(known, name)}"


def named(known, path):
    """Return the path and the class of a module: "'blocks.0' (Block)"."""
    return f"'{path}' ({known[path]})" if path else f"the model ({known['']})"
