"""The parameters and buffers of a prepared model, and where they are in shared memory."""

import bisect
import ctypes

import torch
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase

from lockstep._library import NAME_MAX, RANK_MAX, Error
from lockstep.torch import trace
from lockstep.torch.group import first_that_differs


def view(address, like):
    """Return a tensor over C memory with the shape and strides of `like`, a dense FP32 tensor."""
    count = like.numel()
    flat = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
    return flat.as_strided(like.shape, like.stride())


def is_dense(tensor):
    """Return true if the elements fill a range of memory, each in a place of its own."""
    count = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != count:
            return False
        count *= size
    return True


def _span(tensor):
    """Return the addresses of the first byte of a tensor and of the one after its last."""
    first, last = tensor.data_ptr(), sum((n - 1) * s
                                         for n, s in zip(tensor.shape, tensor.stride()))
    return first, first + (last + 1) * tensor.element_size()


def _is_plain(tensor):
    """Return true for a tensor with elements in memory, and none of a class with another layout."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout == torch.strided and tensor.numel() > 0)


def _is_trained(parameter):
    return parameter.requires_grad and parameter.numel() > 0


def _has_statistics(module):
    return isinstance(module, _NormBase) and module.running_mean is not None


class _Place:
    """Where a module has a parameter or a buffer, which the program may replace between steps."""

    def __init__(self, kind, path, tensors, key):
        self.kind, self.name = kind, trace.plain_name(f"{path}.{key}" if path else key)
        self._tensors, self._key = tensors, key

    def tensor(self):
        """Return what is there now, None if there is nothing."""
        return self._tensors[self._key] if self._key in self._tensors else None


def _places(module):
    """Return the places of all parameters and then of all buffers, also of those that are None."""
    modules = list(module.named_modules())
    return ([_Place("parameter", path, m._parameters, key)
             for path, m in modules for key in m._parameters.keys()]
            + [_Place("buffer", path, m._buffers, key)
               for path, m in modules for key in m._buffers.keys()])


_OWN = frozenset(vars(torch.nn.Module()))   # attributes that all modules have


def _kept_in(value, name):
    """Yield the name and value of each tensor that is `value`, or is in it, if it is a list, tuple
    or dict of such."""
    left, seen = [(name, value)], set()
    while left:
        name, value = left.pop()
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple, dict)) and id(value) not in seen:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            left.extend((f"{name}[{key!r}]", item) for key, item in items
                        if isinstance(item, (torch.Tensor, list, tuple, dict)))


def _attributes(module):
    """Return the places of tensors that modules have as plain attributes, or in them.  Those of
    which there is an original, as of torch's spectral_norm(), are computed before each use."""
    return [_Place("attribute", path, {name: tensor}, name)
            for path, m in module.named_modules()
            for key, value in vars(m).items()
            if key not in _OWN and f"{key}_orig" not in m._parameters
            for name, tensor in _kept_in(value, key)]


def _layers(module, buffers):
    """Return {path: (module, names)} of the modules that have parameters, or buffers that must not
    change in turns, and the names of these."""
    found = {}
    for path, m in module.named_modules():
        names = [*m._parameters.keys()]
        if buffers == "check" or _has_statistics(m):
            names += m._buffers.keys()
        if names:
            found[path] = m, names
    return found


class Norm:
    """A normalisation layer with running statistics (BatchNorm, or InstanceNorm with them).

    In a turn its momentum is 1, so that the buffers receive the statistics of this micro-batch
    alone.  Their mean over all micro-batches, weighted by samples, then updates the running
    statistics with the layer's own momentum.  A layer that a micro-batch does not use contributes
    its running statistics.  A layer in evaluation mode keeps them.
    """

    def __init__(self, name, module):
        if module.momentum is None:
            raise ValueError(f"'{name}' has momentum=None, a cumulative average over all "
                             "micro-batches in order: give it a momentum, such as 0.1")
        if module.running_mean.dtype != torch.float32:
            kind = str(module.running_mean.dtype).removeprefix("torch.")
            raise TypeError(f"the running statistics of '{name}' are {kind}; lockstep.torch keeps "
                            "float32 ones: call float() of this layer")
        self.name, self.module, self.momentum = name, module, module.momentum
        self.buffers = [module.running_mean, module.running_var]
        self.names = [f"{name}.running_mean", f"{name}.running_var"]
        self.trains = True     # in the step in progress
        self._in_step = False
        self.stale = False     # the library has other values
        self.reload()

    def refuse_changes(self):
        """Raise ``RuntimeError`` if the layer has another momentum, or other tensors for its
        statistics, than before."""
        module = self.module
        if module.momentum != self.momentum:
            raise RuntimeError(f"the momentum of '{self.name}' ({type(module).__name__}) is "
                               f"{module.momentum}, and was {self.momentum} at the first step, "
                               "from which on it is fixed: set it before")
        if [id(module.running_mean), id(module.running_var)] != list(map(id, self.buffers)):
            raise RuntimeError(f"the running statistics of '{self.name}' are other tensors than at "
                               "the first step, and would not be averaged: change them in place, "
                               "as with copy_(), fill_() or reset_running_stats()")

    def reload(self):
        """Take over what the module has."""
        self._batches = self.module.num_batches_tracked.item()
        self._values = [b.clone() for b in self.buffers]

    def begin_step(self):
        """Keep the running statistics, which the program may have changed since the last step.
        The layer's mode must be that of all turns."""
        self.stale = self.is_stale()
        self.reload()
        self.trains, self._in_step = self.module.training, True

    def is_stale(self):
        """Return true if the library has other values, or the program has changed them."""
        return self.stale or any(not torch.equal(b, v)
                                 for b, v in zip(self.buffers, self._values))

    def begin_turn(self, values=None):
        """Have the next forward pass store its own statistics.

        values: the running statistics of the replica that computes.  A layer in evaluation mode
            has those of the model in all replicas.
        """
        if self.trains:
            self.module.momentum = 1.0
        self._restore(values if self.trains else None)

    def end_turns(self):
        """Undo what the turns did, if there were any since the last call."""
        if self._in_step:
            self._in_step = False
            self.module.momentum = self.momentum
            self._restore()

    def count(self, batches):
        """Count the micro-batches of a virtual worker in a completed step, and keep its running
        statistics."""
        self._batches += batches if self.trains else 0
        self.stale = not self.trains   # not before: all ranks repeat an interrupted step alike
        self.module.num_batches_tracked.fill_(self._batches)
        self._values = [b.clone() for b in self.buffers]

    def _restore(self, values=None):
        for buffer, value in zip(self.buffers, values or self._values):
            buffer.copy_(value)
        self.module.num_batches_tracked.fill_(self._batches)


class Model:
    """The parameters to train, the running statistics, and all other buffers of a module."""

    def __init__(self, module):
        self.module = module
        self.names, self.params = [], []
        for name, parameter in module.named_parameters():
            name = trace.plain_name(name)
            if _is_trained(parameter):
                self._check(name, parameter)
                self.names.append(name)
                self.params.append(parameter)
        if not self.params:
            raise ValueError(f"{type(module).__name__} has no parameter with requires_grad")
        self._known = set(map(id, self.params))
        self._refuse_shared_memory()
        self.device = self.params[0].device
        elsewhere = [n for n, p in zip(self.names, self.params) if p.device != self.device]
        if elsewhere:
            raise ValueError(f"parameter '{elsewhere[0]}' is not on {self.device}, as "
                             f"'{self.names[0]}' is: a model must be on one device")
        self.norms = []
        for name, m in module.named_modules():
            if isinstance(m, SyncBatchNorm):
                raise ValueError(f"'{name}' is a SyncBatchNorm, which sums over the processes of "
                                 "torch.distributed: use BatchNorm, whose batch is then the "
                                 "micro-batch for any number of workers")
            if _has_statistics(m):
                self.norms.append(Norm(trace.plain_name(name), m))
        counted = {id(b) for n in self.norms for b in n.buffers}
        counted |= {id(n.module.num_batches_tracked) for n in self.norms}
        self._places = _places(module)
        self._refuse_views()
        self._watched = [p for p in self._places if id(p.tensor()) not in counted]
        self._parameters = sum(place.kind == "parameter" for place in self._watched)
        self._layers = {buffers: _layers(module, buffers) for buffers in ("check", "ignore")}

    def refuse_changes(self, buffers):
        """Raise ``RuntimeError`` if other parameters require gradients than at the first step, or
        if the model has other layers with parameters or buffers.  Values may differ, and tensors of
        equal names that are not trained."""
        if set(map(id, filter(_is_trained, self.module.parameters()))) != self._known:
            raise RuntimeError(f"{self._first_change()}; what is trained is fixed at the first "
                               "step")
        self._refuse_other_layers(buffers)
        for norm in self.norms:
            norm.refuse_changes()
        if any(a is not p.tensor() for a, p in zip(self._tensors, self._places)):
            self._refuse_views()

    def _refuse_other_layers(self, buffers):
        before, now = self._layers[buffers], _layers(self.module, buffers)
        if now == before:
            return
        path = next(p for p in {**before, **now} if before.get(p) != now.get(p))
        (old, known), (new, names) = (layers.get(path, (None, [])) for layers in (before, now))
        known, names = sorted(set(known) - set(names)), sorted(set(names) - set(known))
        what = ("is another layer than before" if None not in (old, new) and old is not new
                else f"has a '{names[0]}' that it did not have" if names
                else f"no longer has its '{known[0]}'")
        where = trace.named({path: type(new or old).__name__}, path)
        raise RuntimeError(f"{where} {what}; the parameters and buffers of a model are fixed at "
                           "the first step, but for their values: add them before it")

    def _first_change(self):
        for name, p in zip(self.names, self.params):
            if not p.requires_grad:
                return f"parameter '{name}' no longer requires gradients"
        left = dict(zip(self.names, self.params))
        for name, p in self.module.named_parameters():
            name = trace.plain_name(name)
            if _is_trained(p) and id(p) not in self._known:
                return f"parameter '{name}' " + (
                    "is another one than before, as after its layer was replaced" if name in left
                    else "requires gradients now, and did not before")
            left.pop(name, None)
        return f"parameter '{next(iter(left))}' is no longer in the model"

    def _refuse_shared_memory(self):
        """Raise ``ValueError`` if two parameters share memory and are not the same object."""
        spans = sorted((*_span(p), i) for i, p in enumerate(self.params))
        for (_, end, i), (first, _, j) in zip(spans, spans[1:]):
            if first < end:
                raise ValueError(f"parameters '{self.names[min(i, j)]}' and "
                                 f"'{self.names[max(i, j)]}' share memory, but are two parameters: "
                                 "to tie them, assign the same Parameter to both modules")

    def _refuse_views(self):
        """Raise ``ValueError`` if a buffer, an attribute or a parameter that is not trained shares
        memory with one that is.  It would not follow when that moves to the library's memory."""
        self._tensors = [place.tensor() for place in self._places]
        spans = sorted((*_span(p), name) for name, p in zip(self.names, self.params))
        for place in (*self._places, *_attributes(self.module)):
            tensor = place.tensor()
            if (not _is_plain(tensor) or id(tensor) in self._known
                    or tensor.device != self.device):
                continue
            first, end = _span(tensor)
            i = bisect.bisect_left(spans, (end,)) - 1   # the last one that begins before the end
            if i >= 0 and spans[i][1] > first:
                raise ValueError(
                    f"{place.kind} '{place.name}' shares memory with parameter '{spans[i][2]}', "
                    "which is trained, but is not the same object, and would not follow it: "
                    + ("make the view where it is used, as in forward()"
                       if place.kind == "attribute" else
                       "to tie them, assign the same Parameter to both modules")
                    + "; otherwise make it from a clone()")

    @staticmethod
    def _check(name, parameter):
        if parameter.is_complex():
            raise TypeError(f"parameter '{name}' is complex; lockstep.torch trains float32 "
                            "parameters: store the real and the imaginary part as one")
        if not is_dense(parameter):
            raise ValueError(f"the elements of parameter '{name}' are not consecutive in memory "
                             f"(shape {list(parameter.shape)}, strides {list(parameter.stride())}):"
                             " make it from a tensor's clone()")
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise TypeError(f"parameter '{name}' is {kind}; lockstep.torch trains float32 "
                            "parameters: call model.float(), and for bfloat16 arithmetic use "
                            "torch.autocast in the loss function")
        if parameter.device.type not in ("cpu", "cuda"):
            raise TypeError(f"parameter '{name}' is on {parameter.device}: models are trained on "
                            "the CPU or on an NVIDIA GPU")
        if parameter.dim() > RANK_MAX:
            raise ValueError(f"parameter '{name}' has {parameter.dim()} dimensions; at most "
                             f"{RANK_MAX} are supported")
        if len(name.encode()) >= NAME_MAX:
            raise ValueError(f"the name of parameter '{name}' has more than {NAME_MAX - 1} bytes")

    # ---- What ranks must have alike ----------------------------------------------------------

    def compare_values(self, group, buffers, more):
        """Raise ``lockstep.Error`` on all ranks if a rank has another value of a parameter that is
        not trained, or of a buffer, than rank 0.  The library compares the trained parameters.

        buffers: "ignore" leaves out all buffers but running statistics.
        more: digests of other values, by name.
        """
        left_out = self._watched[self._parameters:] if buffers == "ignore" else []
        skipped = self._known.union(id(place.tensor()) for place in left_out)
        digests = {place.name: trace.digest(tensor)
                   for place, tensor in zip(self._places, self._tensors)
                   if tensor is not None and id(tensor) not in skipped}
        digests.update(more)
        found = first_that_differs(group, digests)
        if found is not None:
            odd, mine, wanted = found
            name = next(n for n in {**wanted, **mine} if wanted.get(n) != mine.get(n))
            group.raise_together(Error("EMISMATCH", f"ranks 0 and {odd} start with different "
                                       f"values of '{name}'; every rank must load the same"))

    def momenta(self):
        """Return {words for it: the momentum of a layer with running statistics}."""
        return {f"the momentum of '{norm.name}'": float(norm.momentum) for norm in self.norms}

    def modes(self):
        """Return a byte for each module: 1 if it is in training mode, else 0."""
        return bytes(bool(m.training) for m in self.module.modules())

    def describe_modes(self, modes):
        """Return {words for it: the mode of a module} of what ``modes()`` has returned."""
        known = trace.classes(self.module)
        return {f"the mode of {trace.named(known, trace.plain_name(name))}":
                "training" if trains else "evaluation"
                for trains, (name, _) in zip(modes, self.module.named_modules())}

    # ---- What turns must not change ----------------------------------------------------------

    def marks(self, buffers):
        """Return marks, for ``refuse_marked()``, of the parameters, and of the buffers if `buffers`
        is "check"."""
        return [(place, tensor, tensor is not None and tensor._version)
                for place in self._watch(buffers) for tensor in [place.tensor()]]

    def refuse_marked(self, marks):
        """Raise ``ValueError`` if a parameter or a buffer was changed or replaced since it was
        marked."""
        for place, tensor, version in marks:
            if tensor is not place.tensor() or (tensor is not None
                                                and tensor._version != version):
                raise self._changed(place)

    def digests(self, buffers, trained):
        """Return what ``refuse_other_values()`` compares: digests of what ``marks()`` marks, of the
        parameters that are trained only if `trained`.  In contrast to marks they show changes
        through ``.data``, but take a second for a gigabyte."""
        return [(place, trace.digest(place.tensor())) for place in self._watch(buffers)
                if trained or id(place.tensor()) not in self._known]

    def refuse_other_values(self, digests):
        """Raise ``ValueError`` if a parameter or a buffer has another value than in `digests`."""
        for place, digest in digests:
            if trace.digest(place.tensor()) != digest:
                raise self._changed(place)

    def _watch(self, buffers):
        return self._watched if buffers == "check" else self._watched[:self._parameters]

    def _changed(self, place):
        if place.kind == "parameter":
            return ValueError(
                f"the loss function changes parameter '{place.name}' ({self.owner(place.name)}) in "
                "place (as Embedding(max_norm=...) does); parameters change only in steps")
        return ValueError(
            f"forward changes buffer '{place.name}' of a {self.owner(place.name)}: its value would "
            "depend on which worker computes what.  Compute it outside of the loss function, or "
            'give init(buffers="ignore") if it does not affect the result')

    def owner(self, name):
        """Return the class of the module to which the parameter or buffer `name` belongs."""
        return trace.owner(trace.classes(self.module), name)
