"""Micro-batches as a function of step, virtual worker and number, whoever reads them.

The order of an epoch is a permutation drawn by seed and epoch.  Step s takes the next
`global_batch` samples of it.  They are cut into V slices, one for each virtual worker, and a slice
into micro-batches.  Before a sample is read, the global random generators are seeded by (seed,
epoch, index), and before a micro-batch is collated by its place in the run.  So random transforms
do not depend on the number of workers, or of torch's data worker processes.
"""

import collections
import contextlib
import ctypes
import inspect
import multiprocessing
import multiprocessing.util
import os
import signal

import torch
from torch.utils.data import DataLoader, TensorDataset

from lockstep.torch import seeds


class Place(collections.namedtuple("Place", "step virtual_worker micro")):
    """The place of a micro-batch in a run."""


@contextlib.contextmanager
def one_thread():
    """A block in which torch has one thread, as it has in data workers, whose bits would differ
    otherwise."""
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


class Collate:
    """A `collate_fn` that is called with seeded generators and one thread."""

    def __init__(self, collate_fn, seed):
        self._collate = collate_fn or torch.utils.data.default_collate
        self._seed = seed
        self._may_draw = self._collate is not torch.utils.data.default_collate

    def __call__(self, samples, place):
        if self._may_draw:
            seeds.seed_all(seeds.key(self._seed, "collate", *place))
        with one_thread():
            return self._collate(samples)


class _Reader(torch.utils.data.Dataset):
    """Reads and collates micro-batches, with seeded generators and one thread.  A key
    is a tuple of numbers, the place of the micro-batch, and the (epoch, index) pairs of its
    samples."""

    def __init__(self, dataset, seed, collate_fn):
        self._dataset = dataset
        self._seed = seed
        self._may_draw = type(dataset) is not TensorDataset   # which draws no random numbers
        self._collate = Collate(collate_fn, seed)

    def __getitem__(self, at):
        place, samples = at
        with one_thread():
            read = [self._read(*sample) for sample in samples]
        return self._collate(read, place)

    def _read(self, epoch, index):
        if self._may_draw:
            seeds.seed_all(seeds.key(self._seed, "sample", epoch, index))
        return self._dataset[index]


def _as_read(batch):
    """The ``collate_fn`` of a DataLoader whose data set has whole micro-batches."""
    return batch


class _WorkerInit:
    """The ``worker_init_fn`` of data workers: they end with their rank, however it ends."""

    def __init__(self, users_own):
        self._users_own = users_own

    def __call__(self, worker):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if not multiprocessing.parent_process().is_alive():   # it ended before the call
            os._exit(1)
        if self._users_own is not None:
            self._users_own(worker)


# The options of torch's DataLoader that decide nothing about samples.
_OPTIONS = ("pin_memory", "pin_memory_device", "timeout", "multiprocessing_context",
            "prefetch_factor", "persistent_workers")


def _refuse_options(names):
    """Raise ``TypeError`` for options that ``Run.loader()`` has not."""
    for name in names:
        if name in inspect.signature(DataLoader).parameters and name not in _OPTIONS:
            raise TypeError(f"leave out {name}: run.loader() decides which samples a micro-batch "
                            "has, by global_batch, micro_batch, shuffle and the seed of the run; "
                            "for another choice, make a data set that has these samples")
        if name not in _OPTIONS:
            raise TypeError(f"run.loader() has no option {name}; of torch's DataLoader it takes "
                            + ", ".join(_OPTIONS))


_PR_SET_PDEATHSIG = 1
_DEATH_S = 0.2   # from a broken connection to the end of a process


def cut(virtual_workers, global_batch, micro_batch):
    """Return the samples of a micro-batch, and the micro-batches of a virtual worker in a step."""
    if global_batch < 1 or global_batch % virtual_workers:
        raise ValueError(f"global_batch {global_batch} is not a multiple of the "
                         f"{virtual_workers} virtual workers")
    share = global_batch // virtual_workers
    micro_batch = share if micro_batch is None else micro_batch
    if micro_batch < 1 or share % micro_batch:
        raise ValueError(f"each of the {virtual_workers} virtual workers takes {share} of the "
                         f"{global_batch} samples of a step, which is not a multiple of "
                         f"micro_batch {micro_batch}")
    return micro_batch, share // micro_batch


class Loader:
    """Reads the micro-batches of a map-style data set; made by ``Run.loader()``."""

    def __init__(self, dataset, seed, virtual_workers, global_batch, micro_batch=None, *,
                 shuffle=True, drop_last=True, num_workers=0, collate_fn=None, worker_init_fn=None,
                 **torch_options):
        _refuse_options(torch_options)
        self.global_batch = global_batch
        self.micro_batch, self.micro_count = cut(virtual_workers, global_batch, micro_batch)
        self.virtual_workers = virtual_workers
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last
        self._length = len(dataset)
        if self._length < (global_batch if drop_last else 1):
            raise ValueError(f"the data set has {self._length} samples, fewer than global_batch "
                             f"{global_batch}" + (" (drop_last=False uses them)"
                                                  if self._length else ""))
        self.kind = type(dataset).__name__
        self._reader = _Reader(dataset, seed, collate_fn)
        self._torch_options = dict(torch_options, num_workers=num_workers,
                                   worker_init_fn=worker_init_fn)
        self._epoch, self._order = None, None
        self._ahead = None

    @property
    def steps_per_epoch(self):
        """The number of steps that read every sample once, without the rest if `drop_last`."""
        rest = 0 if self._drop_last else self.global_batch - 1
        return (self._length + rest) // self.global_batch

    def describe(self):
        """Return what the result depends on, for checkpoints and for comparing ranks."""
        return {"samples": self._length, "global_batch": self.global_batch,
                "micro_batch": self.micro_batch, "shuffle": self._shuffle,
                "drop_last": self._drop_last}

    def samples(self, place):
        """Return the (epoch, index) pairs of a micro-batch.  They may be fewer in the last step
        of an epoch if not `drop_last`."""
        epoch, within = divmod(place.step, self.steps_per_epoch)
        first = (within * self.global_batch
                 + (place.virtual_worker * self.micro_count + place.micro) * self.micro_batch)
        last = min(first + self.micro_batch, self._length)
        if not self._shuffle:
            return [(epoch, i) for i in range(first, last)]
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(seeds.key(self._seed, "order", epoch))
            self._order = torch.randperm(self._length, generator=generator)
            self._epoch = epoch
        return [(epoch, i) for i in self._order[first:last].tolist()]

    def fetch_counted(self, step, virtual_worker, micro):
        """Return a collated micro-batch and its number of samples, (None, 0) if it has none."""
        place = Place(step, virtual_worker, micro)
        samples = self.samples(place)
        if not samples:
            return None, 0
        if self._ahead is not None and self._ahead.next_place() == place:
            return self._ahead.fetch(), len(samples)
        return self._reader[place, samples], len(samples)

    def begin(self, step, own):
        """Prepare to read the micro-batches of a step, of the virtual workers `own` of this rank.
        With data workers, those of later steps are read ahead."""
        if not self._torch_options["num_workers"]:
            return
        first = Place(step, own[0], 0) if own else None
        if self._ahead is None or self._ahead.own != own or self._ahead.next_place() != first:
            self.close()
            self._ahead = _Ahead(self, step, own) if own else None

    def close(self):
        """End torch's data workers."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def in_order(self):
        """Yield the micro-batches of one pass in the order of the data set, for evaluations."""
        for first in range(0, self._length, self.micro_batch):
            last = min(first + self.micro_batch, self._length)
            yield [(0, i) for i in range(first, last)]

    def collate(self, samples, number):
        """Read and collate what in_order() yielded as the micro-batch `number`.  Leaves the global
        generators in another state."""
        return self._reader[(number,), samples]


class _Ahead:
    """Micro-batches of one rank, read ahead by torch's DataLoader with worker processes."""

    def __init__(self, loader, step, own):
        self.own = own
        self._places = collections.deque()
        sampler = self._plan(loader, step)
        options = dict(loader._torch_options)
        options["worker_init_fn"] = _WorkerInit(options["worker_init_fn"])
        multiprocessing.util.get_temp_dir()   # in this process, so that it removes the folder
        # a generator of its own, so that starting workers draws nothing from the global one
        self._batches = iter(DataLoader(loader._reader, batch_size=None, sampler=sampler,
                                        collate_fn=_as_read, generator=torch.Generator(),
                                        **options))

    def _plan(self, loader, step):
        while True:
            for v in self.own:
                for m in range(loader.micro_count):
                    place = Place(step, v, m)
                    samples = loader.samples(place)
                    if samples:
                        self._places.append(place)
                        yield place, samples
            step += 1

    def close(self):
        """End the data workers.  The iterator refers to this object, which would keep it."""
        self._batches = None

    def next_place(self):
        return self._places[0] if self._places else None

    def fetch(self):
        self._places.popleft()
        try:
            return next(self._batches)
        except Exception as error:
            self._explain_death(error)
            raise

    def _explain_death(self, error):
        """Raise a clear error if a data worker was killed.  Depending on when that happens, torch
        reports it in different ways."""
        for worker in getattr(self._batches, "_workers", ()):
            worker.join(_DEATH_S)
            if worker.exitcode is not None and worker.exitcode < 0:
                name = signal.Signals(-worker.exitcode).name
                raise RuntimeError(f"a data worker (pid {worker.pid}) was killed by {name}; if the "
                                   "machine is short of memory, give fewer num_workers") from error
