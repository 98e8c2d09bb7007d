"""Micro-batches of an iterable data set, which can only be read in order.

Every worker reads the whole stream and keeps the samples of one global batch.  The random
generators are seeded by (seed, epoch, number of the sample) before each sample, and by the place of
a micro-batch before it is collated.  An epoch is one pass over the data set.
"""

import itertools

import torch

from lockstep.torch import seeds
from lockstep.torch.data import Collate, cut, one_thread


def is_stream(dataset):
    """Return true for a data set that can only be iterated over."""
    return isinstance(dataset, torch.utils.data.IterableDataset) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"))


class Stream:
    """Reads the micro-batches of an iterable data set; made by ``Run.loader()``."""

    def __init__(self, dataset, seed, virtual_workers, global_batch, micro_batch=None, *,
                 drop_last=True, collate_fn=None):
        self.global_batch = global_batch
        self.micro_batch, self.micro_count = cut(virtual_workers, global_batch, micro_batch)
        self.kind = type(dataset).__name__
        self._dataset, self._seed, self._drop_last = dataset, seed, drop_last
        self._collate = Collate(collate_fn, seed)
        self._batches, self._next = None, 0   # of all epochs, from a step on
        self._held, self._samples = None, []  # the step whose global batch is held, and the batch

    def describe(self):
        """Return what the result depends on, for checkpoints and for comparing ranks."""
        return {"samples": "iterable", "global_batch": self.global_batch,
                "micro_batch": self.micro_batch, "drop_last": self._drop_last}

    def fetch_counted(self, step, virtual_worker, micro):
        """Return a collated micro-batch and its number of samples, (None, 0) if it has none."""
        first = (virtual_worker * self.micro_count + micro) * self.micro_batch
        samples = self._global_batch(step)[first:first + self.micro_batch]
        if not samples:
            return None, 0
        return self._collate(samples, (step, virtual_worker, micro)), len(samples)

    def begin(self, step, own):
        """Prepare to read the micro-batches of a step.  Does nothing: they are read when the first
        is fetched."""

    def close(self):
        """Forget the data set's iterator."""
        self._batches = None

    def in_order(self):
        """Yield the micro-batches of one pass, for evaluations."""
        return self._cut(self._epoch(0), self.micro_batch, keep_rest=True)

    def collate(self, samples, number):
        """Collate what in_order() yielded as the micro-batch `number`."""
        return self._collate(samples, (number,))

    def _global_batch(self, step):
        if step == self._held:
            return self._samples
        if self._batches is None or step < self._next:
            self._batches, self._next = self._all_batches(), 0
        for self._samples in self._batches:
            self._held, self._next = self._next, self._next + 1
            if self._held == step:
                return self._samples
        raise AssertionError("unreachable: epochs do not end")

    def _all_batches(self):
        for epoch in itertools.count():
            batches = 0
            for batch in self._cut(self._epoch(epoch), self.global_batch, not self._drop_last):
                batches += 1
                yield batch
            if not batches:
                raise ValueError(f"epoch {epoch} of the data set has fewer samples than "
                                 f"global_batch {self.global_batch}")

    def _epoch(self, epoch):
        """Yield the samples of an epoch, each read with seeded generators.  Leaves the global
        generators in another state."""
        seeds.seed_all(seeds.key(self._seed, "epoch", epoch))
        with one_thread():
            samples = iter(self._dataset)
        for number in itertools.count():
            seeds.seed_all(seeds.key(self._seed, "sample", epoch, number))
            try:
                with one_thread():
                    sample = next(samples)
            except StopIteration:
                return
            yield sample

    @staticmethod
    def _cut(samples, size, keep_rest):
        batch = []
        for sample in samples:
            batch.append(sample)
            if len(batch) == size:
                yield batch
                batch = []
        if batch and keep_rest:
            yield batch
