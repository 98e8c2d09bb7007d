"""What groups of virtual workers and replicas keep between steps, by name, for checkpoints."""

import ctypes

import torch

from lockstep._library import lk
from lockstep.torch.model import view


class _Kept:
    """A value with a name.

    like: a tensor with its shape and strides.
    param: the number of the parameter, or of the running state.
    """

    def __init__(self, name, like, param):
        self.name, self.like, self._param = name, like, param

    def _empty(self):
        return torch.empty_like(self.like, device="cpu")


class _OfGroup(_Kept):
    """A value that a group keeps of a parameter."""

    def __init__(self, name, like, param, which, group):
        super().__init__(name, like, param)
        self._which, self._group = which, group

    def read(self, handle):
        """Return a tensor with the value.  Collective."""
        out = self._empty()
        lk.parallel_fetch_kept(handle, self._param, self._which, self._group, 0, out.numel(),
                               out.data_ptr())
        return out

    def load(self, handle, tensor):
        """Set the value.  All ranks have equal tensors."""
        in_order = self._empty().copy_(tensor)
        lk.parallel_load_kept(handle, self._param, self._which, self._group, in_order.data_ptr())


class _Shared(_Kept):
    """What all groups share of a parameter."""

    def read(self, handle):
        """Return a tensor with the value."""
        return view(lk.parallel_shared(handle, self._param, ctypes.c_size_t()), self.like)

    def load(self, handle, tensor):
        """Set the value.  All ranks have equal tensors."""
        lk.parallel_load_shared(handle, self._param, tensor.data_ptr())


class _Running(_Kept):
    """The running statistics of a replica in a buffer of the model."""

    def __init__(self, name, buffer, norm, state, replica):
        super().__init__(f"{name}.running.{replica}", buffer, state)
        self._norm, self._replica = norm, replica

    def read(self, handle):
        """Return a tensor with the statistics with which the replica begins the next step.
        Collective."""
        if self._norm.is_stale():   # all replicas are given those of the model
            return self.like.cpu()
        out = self._empty()
        lk.parallel_fetch_replica_state(handle, self._replica, self._param, out.data_ptr())
        return out

    def load(self, handle, tensor):
        """Set the statistics.  All ranks have equal tensors."""
        lk.parallel_load_replica_state(handle, self._replica, self._param, tensor.data_ptr())


def of_groups(handle, names, likes):
    """Return a list of what groups keep of the parameters, and share."""
    values, bytes_ = [], ctypes.c_size_t()
    if lk.parallel_shared(handle, len(names), bytes_):   # of the whole model
        values.append(_Shared("shared", torch.empty(bytes_.value // 4, device="meta"), len(names)))
    for p, (name, like) in enumerate(zip(names, likes)):
        which = 0
        while (what := lk.parallel_kept_name(handle, p, which)) is not None:
            what, count = f"{name}.{what.decode()}", lk.parallel_kept_groups(handle, which)
            single = what.endswith(".server_error")   # that of no group
            values += [_OfGroup(what if single else f"{what}.{g}", like, p, which, g)
                       for g in range(count)]
            which += 1
        if lk.parallel_shared(handle, p, bytes_):
            values.append(_Shared(f"{name}.shared",
                                  torch.empty(bytes_.value // 4, device="meta"), p))
    return values


def load_in_all(handle, like, param, which, tensor):
    """Set a value of a parameter in all groups."""
    for group in range(lk.parallel_groups(handle)):
        _OfGroup("", like, param, which, group).load(handle, tensor)


def running(handle, states):
    """Return a list of the running statistics of all replicas.

    states: (name, buffer, Norm) of each running state.
    """
    return [_Running(name, buffer, norm, s, r) for s, (name, buffer, norm) in enumerate(states)
            for r in range(lk.parallel_groups(handle))]
