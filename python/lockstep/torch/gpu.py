"""Gradients on their way from a GPU to the memory of the host."""

import collections

import torch


class Transfers:
    """Copies gradients on a stream of its own, so that the backward pass goes on meanwhile.

    Each parameter has a buffer in pinned memory, which is used once in a turn.
    """

    def __init__(self, params):
        self._device = params[0].device
        self._stream = torch.cuda.Stream(self._device)
        self._buffers = [torch.empty(p.shape, pin_memory=True) for p in params]
        self._pending = collections.deque()   # (parameter, event or None), in order of start

    def start(self, param, gradient):
        """Begin to copy a gradient.  None, for a parameter that was not used, keeps its place."""
        if gradient is None:
            self._pending.append((param, None))
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._buffers[param].copy_(gradient, non_blocking=True)
            event = self._stream.record_event()
        gradient.record_stream(self._stream)
        self._pending.append((param, event))

    def complete(self, wait=False):
        """Yield (parameter, gradient in the host's memory) of the transfers that are complete, in
        the order of their start.  With `wait` those are all."""
        while self._pending:
            param, event = self._pending[0]
            if event is not None and not event.query():
                if not wait:
                    return
                event.synchronize()
            self._pending.popleft()
            yield param, self._buffers[param] if event is not None else None


def describe(device):
    """Return what decides the bits of a GPU's kernels besides the program."""
    if device.type != "cuda":
        return {"device": device.type}
    return {"device": torch.cuda.get_device_name(device),
            "capability": list(torch.cuda.get_device_capability(device)),
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
            "tf32": torch.backends.cudnn.allow_tf32}
