"""A training run: the loop over steps, on any number of workers.

A step, on every rank:

    begin      parameters are views of the memory that the workers of a host share
    a turn     lk_parallel_next() names a virtual worker and a micro-batch.  The random generators
               are seeded by seed, step, virtual worker and micro-batch.  The loss function runs,
               and hooks add gradients to the memory that lk_parallel_grad_new() returns
    finish     the library sums the gradients of all virtual workers in the order of a fixed tree,
               clips, and updates

Operations of all ranks (a step, an evaluation, a checkpoint) are numbered.  If a rank is lost, the
survivors form a new group and repeat the operation that was under way.  A survivor that had
finished it before repeats it with the others.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Tuple, TypeVar, Union

import torch

from lockstep._library import Error
from lockstep.torch import checkpoint, environment, gpu, local, optim, plain, seeds
from lockstep.torch.compress import Compressor
from lockstep.torch.compress import check as check_exchange
from lockstep.torch.data import Loader
from lockstep.torch.engine import Engine
from lockstep.torch.group import Group, agree, note_flight, note_processors
from lockstep.torch.log import Log
from lockstep.torch.membership import Membership
from lockstep.torch.model import Model
from lockstep.torch.rehearsal import evaluate_loss
from lockstep.torch.results import Evaluation, StepResult
from lockstep.torch.selftest import Observer
from lockstep.torch.stream import Stream, is_stream

_GRAD_ALGORITHMS = ("auto", "direct", "linear")
STOPPED = 75   # the exit status of a run that was asked to stop, as that of `lockstep train`

# Returns (sum of losses, count) or (sum of losses, count, hits) of a micro-batch.
LossFunction = Callable[[Any, Any], Union[Tuple[torch.Tensor, int], Tuple[torch.Tensor, int, int]]]
ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)

_current: Run | None = None


def init(seed: int = 0, virtual_workers: int = 8, *, strategy: str = "ddp", threads: int = 1,
         deterministic: bool = True, audit_steps: int = 2, buffers: str = "check",
         bucket_bytes: int = 0, shard_hosts: int = 1, grad_algorithm: str = "auto",
         compress: Compressor | None = None, groups: int = 0, local_steps: int = 0,
         local_start: int = 0, outer: local.Outer | None = None, topology: str = "all",
         log: str | os.PathLike[str] | None = None,
         tensorboard: str | os.PathLike[str] | None = None, timeout: float = 0.0,
         flight: str | os.PathLike[str] | None = None) -> Run:
    """Join the workers that a launcher started, or begin a run of one worker.

    Call it once, before the model is made: it also seeds the random generators.

    seed: of everything random in the run.
    virtual_workers: V, the number of fixed slices of every global batch.  The result depends on V,
        and not on the number of workers, which must not exceed V.
    strategy: "ddp", "zero1", "zero2", "zero3", "hybrid", or "single" (the plain reference, one
        worker).  With "zero3" on several hosts no host keeps all parameters: see ``gathered()``.
    threads: torch's threads in each worker.  They are part of the configuration, because the bits
        of some operators depend on them.  Samples are read and collated with one.
    deterministic: makes torch refuse operators that are not deterministic.
    audit_steps: in this many first steps every virtual worker is computed twice.  A difference
        ends the run with the name of the tensor.  Not where hosts shard the parameters.
    buffers: "check" refuses a model that changes buffers other than running statistics, and
        "ignore" leaves such buffers to the model.
    bucket_bytes: how many bytes of gradients are summed at once, and of parameters gathered at
        once; 0 means 25 MiB.
    shard_hosts: with "hybrid", the number of neighbouring hosts that keep one copy of the model
        together.
    grad_algorithm: how hosts sum gradients, with the same bits: "direct" (each host sums a part),
        "linear" (each receives all: fewer messages, more bytes from three hosts on) or "auto".
    compress: a compressor of gradients such as ``PowerSGD(rank=4)``, with "ddp" or "zero1".  The
        result depends on the compressor and on `groups`, and not on the number of workers.  No
        virtual worker is computed twice then.
    groups: the number of groups of virtual workers, each with an error of its own.  A group has
        V / `groups` virtual workers, a power of two.  0 means V groups if there is a compressor or
        `local_steps`.
    local_steps: gives each group weights and a state of the optimizer of its own, and averages
        these replicas every `local_steps` steps (local SGD, DiLoCo), with "ddp" or "zero1".  The
        model has the outer weights between steps, and those of a replica in the loss function.
        The optimizer must be one of ``lockstep.torch``, and lost workers end the run.
    local_start: the number of steps before which there are no replicas (post-local SGD).
    outer: how the replicas become the new outer weights: ``Mean()`` by default, ``Nesterov()`` as
        in DiLoCo, ``Momentum()``, ``FedAdam()``, ``FedYogi()`` or ``FedAdagrad()``.
    topology: "ring", "exponential" or "pairs" averages each replica with its neighbours only, by
        default after every step.  There is no `outer` then, and the model has the mean of all
        replicas after ``evaluate()``, ``save()``, ``weights_hash()`` and in ``gathered()``.
    log: a file for the lines of ``Run.log()``, written by rank 0.
    tensorboard: a directory for TensorBoard, to which ``Run.log()`` adds scalars.
    timeout: seconds after which a wait for another worker fails, in which it computes its turns,
        or imports torch before it joins.  0 means that of `lockstep run --timeout`, if it was
        given, and else 600.  A worker that ends is noticed at once.
    flight: a directory for records of each rank's last operations, under torchrun, mpirun and srun
        (`lockstep inspect --flight`).  Under `lockstep run` its --flight-recorder decides, and a
        process alone has no records.

    Raise ``lockstep.Error`` if the workers cannot join, or if their torch builds, processors or
    settings differ.
    """
    global _current
    settings = dict(locals())
    _check(settings)
    local.complete(settings)
    _current = Run(settings)
    return _current


# The least and the greatest of each whole number that init() takes.
_RANGES = {"seed": (0, 2 ** 64 - 1), "virtual_workers": (1, 2 ** 32 - 1),
           "threads": (1, 4096),   # with 100000 torch ends by SIGSEGV
           "audit_steps": (0, 2 ** 63 - 1),
           "bucket_bytes": (0, 2 ** 63 - 1), "shard_hosts": (0, 2 ** 32 - 1)}
_TIMEOUT_MAX = 2 ** 31 // 1000   # seconds


def _check(settings):
    """Raise an error if this process may not call init(), or not with these settings."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError("init() in a process that only imports this program, such as a data "
                           'worker: call it in a function, and that under if __name__ == '
                           '"__main__":')
    if _current is not None:
        raise RuntimeError("init() was called before in this process, which has one run: start "
                           "the program, or the kernel of a notebook, again")
    if settings["buffers"] not in ("check", "ignore"):
        raise ValueError(f'buffers is {settings["buffers"]!r}: give "check" or "ignore"')
    if settings["grad_algorithm"] not in _GRAD_ALGORITHMS:
        raise ValueError(f"grad_algorithm is {settings['grad_algorithm']!r}: give one of "
                         + ", ".join(_GRAD_ALGORITHMS))
    _check_numbers(settings)
    check_exchange(settings["compress"], settings["groups"])


def _check_numbers(settings):
    """Raise an error with the name and the range of a number of init() that is out of it."""
    for name, (least, most) in _RANGES.items():
        try:
            value = settings[name] = operator.index(settings[name])
        except TypeError:
            raise TypeError(f"{name} is {settings[name]!r}: give a whole number") from None
        if not least <= value <= most:
            raise ValueError(f"{name} is {value}: give {least} to {most}")
    if not 0 <= settings["timeout"] <= _TIMEOUT_MAX:
        raise ValueError(f"timeout is {settings['timeout']}: give 0 to {_TIMEOUT_MAX} seconds")


class Run:
    """A run, as ``init()`` returns it.  All methods but `print` and `log` are collective: every
    rank calls them, in the same order.
    """

    def __init__(self, settings):
        self._observer = Observer.from_environment()   # in a self-test
        if self._observer is not None:
            settings = dict(settings, audit_steps=0)
        self._settings = settings
        self.seed, self.virtual_workers = settings["seed"], settings["virtual_workers"]
        environment.set_up(settings["threads"], settings["deterministic"])
        self._group = Group(settings["timeout"], settings["flight"])
        self._environment = environment.describe(settings)
        agree(self._group, self._environment, environment.first_difference)
        note_processors(self._group, environment.processor())
        note_flight(self._group, settings["flight"])
        self._members = Membership(self, self._group)
        self._collective = self._members.collective
        seeds.seed_all(seeds.key(self.seed, "model"))
        self._model = self._engine = self._loader = None
        self._reader = None          # the loader of the last step
        self._loaders = []           # the descriptions of those that were made
        self._given_optimizer = self._optimizer = None
        self._micro_limit = 1       # of the loaders that were made
        self._step = 0              # completed steps
        self._completed = None      # the result of a step that was complete when a worker was lost
        self._restored = None       # a checkpoint whose optimizer the engine has not yet loaded
        self._data = None           # the description of the loader of the last step
        self._check_data = None     # compares that of the next step
        self._schedulers = ()
        self._directory, self._keep = None, 0   # of the last save() or resume()
        self._log = Log(settings["log"], settings["tensorboard"], self._group)
        self._total = None          # of the first loop over steps()
        self._stopped = False       # on request
        self._hash = None           # (step, hash of the weights), if the program asked for it
        self._group.at_close(self._end_log)
        self._group.at_close(lambda: self._reader and self._reader.close())

    @property
    def rank(self) -> int:
        """This worker's number, from 0.  It may change when a worker is lost."""
        return self._group.rank

    @property
    def size(self) -> int:
        """The number of workers.  It may change when a worker is lost."""
        return self._group.size

    @property
    def device(self) -> torch.device:
        """The GPU that this worker should use, shared with others if there are fewer GPUs than
        workers on this host; the CPU if there is none."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self._group.local_rank() % torch.cuda.device_count())

    # ---- Preparation -----------------------------------------------------------------------

    def prepare(self, model: ModuleT) -> ModuleT:
        """Take the parameters of a ``torch.nn.Module`` that require gradients, and return it.

        From the first step on the parameters lie in memory that the workers of a host share.
        Change them only through steps.
        """
        if self._model is not None:
            raise RuntimeError("prepare() was called before; put the modules into one module")
        self._group.keep_hook()
        self._model = Model(model)
        device = gpu.describe(self._model.device)
        agree(self._group, device, environment.first_difference)
        if device != {"device": "cpu"}:   # so that the ids of runs on CPUs stay what they were
            self._environment.update(device)
        return model

    def _check_prepared(self):
        if self._model is None:
            raise RuntimeError("call run.prepare(model) first")

    def loader(self, dataset: Any, global_batch: int, micro_batch: int | None = None, *,
               shuffle: bool = True, drop_last: bool = True, num_workers: int = 0,
               collate_fn: Callable[[list[Any]], Any] | None = None,
               **torch_options: Any) -> Loader | Stream:
        """Return a loader of the global batches of a data set.

        global_batch: the samples of a step, a multiple of the number of virtual workers.
        micro_batch: the samples of one call of the loss function.  By default those of a virtual
            worker.  With fewer, gradients are accumulated.
        shuffle: a new order in each epoch, drawn by the run's seed.
        drop_last: leaves out the samples that do not fill the last global batch of an epoch.
        num_workers: torch's processes that read ahead, in each worker.
        torch_options: of those of ``torch.utils.data.DataLoader`` pin_memory, pin_memory_device,
            timeout, prefetch_factor, persistent_workers and multiprocessing_context.

        Before each sample is read, torch, NumPy and `random` are seeded by (seed, epoch, index),
        and before `collate_fn` is called by the seed and the place of the micro-batch.
        An iterable data set is read in its order, completely by every worker, so `shuffle`,
        `num_workers` and `torch_options` do not apply to it.
        """
        if is_stream(dataset):
            if num_workers or torch_options:
                raise ValueError("every worker reads an iterable data set by itself: leave out "
                                 + ", ".join(["num_workers"] * bool(num_workers)
                                             + list(torch_options)))
            self._loader = Stream(dataset, self.seed, self.virtual_workers, global_batch,
                                  micro_batch, drop_last=drop_last, collate_fn=collate_fn)
        else:
            self._loader = Loader(dataset, self.seed, self.virtual_workers, global_batch,
                                  micro_batch, shuffle=shuffle, drop_last=drop_last,
                                  num_workers=num_workers, collate_fn=collate_fn, **torch_options)
        self._micro_limit = max(self._micro_limit, self._loader.micro_count)
        self._loaders.append(self._loader.describe())
        return self._loader

    def _open(self, optimizer=None, data=None, loss_sum=None):
        """Open the engine when it is first needed."""
        self._take_optimizer(optimizer)
        if self._engine is not None:
            self._engine.refuse_other_options()
            return
        self._group.keep_hook()
        self._check_prepared()
        if self._optimizer is None:
            raise RuntimeError("the run has no optimizer yet: give it to run.step() or "
                               "run.resume()")
        data = data or self._loader
        self._model = Model(self._model.module)   # as it is now
        self._micro_limit = max(self._micro_limit, data.micro_count if data else 1)
        first = None if loss_sum is None else (self._step, data, loss_sum)
        self._engine = self._collective("the first step", lambda: self._make_engine(data, first))
        self._optimizer._run = self
        if self._restored is not None:
            restored, self._restored = self._restored, None
            self._collective("run.resume()", lambda: restored.restore(self._engine))
            restored.close()
        if self._optimizer.state:
            self._load_optimizer_state()
        if self._observer is not None:
            self._observer.watch(self._engine, self.virtual_workers, data)
        else:
            self._begin_log()

    def _make_engine(self, data, first):
        self._compare_ranks(data)
        return Engine(self._group, self._model, self._optimizer, self._settings, self._micro_limit,
                      first, step=self._step)

    def _begin_log(self):
        """Write the first line of the log on rank 0.  What it refuses is an error of all ranks."""
        def begin():
            if not self._group.share(self._log.has_lines):
                return None
            ranks = [self._group.share({"rank": r, "host": self._group.host(r),
                                        "hostname": socket.gethostname(), "pid": os.getpid()}, r)
                     for r in range(self.size)]
            contents = self._contents()
            head = {"exactness_id": contents.exactness_id, "seed": self.seed,
                    "parameters": sum(p.numel() for p in self._model.module.parameters()),
                    "hosts": self._group.hosts, "threads": torch.get_num_threads(), "ranks": ranks,
                    "config": contents.config}
            if self._total is not None:
                head["steps"] = self._total
            return self._group.share_work(lambda: self._log.begin(self._step, head))

        note = self._collective("the log", begin)
        if note is not None:
            self.print("lockstep:", note)

    def _end_log(self):
        """Say in the log that the run has ended, unless the program failed or was stopped."""
        if (self.rank != 0 or self._engine is None or self._group.failed or self._stopped
                or self._observer is not None):
            return
        known = self._hash is not None and self._hash[0] == self._step
        self._log.add_line({"step": self._step, "weights": self._hash[1] if known else None})

    def _compare_ranks(self, data):
        """Fail on all ranks if they have made another optimizer or loader, or other values of what
        is not trained and of states of torch's optimizers.  The library compares the rest."""
        described = {f"the learning rate of parameter group {i}": optim.rate(group)
                     for i, group in enumerate(self._optimizer.param_groups)}
        for part in (self._optimizer, data):
            described.update(plain.to_json(part.describe(), "") if part else {})
        described["torch's threads"] = torch.get_num_threads()
        described.update(self._model.momenta())
        agree(self._group, described, environment.first_difference,
              "every rank must make the same model, optimizer and loader")
        states = {}
        if not self._optimizer.in_library:
            model = self._model
            states = self._optimizer.digests(dict(zip(map(id, model.params), model.names)))
        self._model.compare_values(self._group, self._settings["buffers"], states)

    def _take_optimizer(self, optimizer):
        if optimizer is None or optimizer is self._given_optimizer:
            return
        adopted = optim.adopt(optimizer)
        if self._engine is not None:
            if not self._optimizer.in_library and self._optimizer.is_same(adopted):
                return
            raise RuntimeError("a run has one optimizer")
        local.check_optimizer(self._settings, adopted)
        self._given_optimizer, self._optimizer = optimizer, adopted

    # ---- Steps -----------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the steps from the first that is not complete to `total` - 1.

        If the launcher is asked to stop, the run is saved (if it has a checkpoint directory) and
        ends with exit status 75.  Between two rounds, workers that replace lost ones enter.
        """
        if not self._members.begin_loop(total):
            return
        self._total = self._total or total
        while self._step < total:
            begun = self._step
            yield begun
            if self._step == begun:
                raise RuntimeError("the loop over run.steps() must call run.step() once in each "
                                   "round")
            self._stop_if_requested()
            self._end_selftest()
            if self._step < total:
                self._members.admit(total)
        note = local.unfinished(self._settings, self._step)
        if note is not None and self.rank == 0:
            print("lockstep:", note, file=sys.stderr)

    def _stop_if_requested(self):
        self._collective("the next round of run.steps()", lambda: None)
        if not self._group.stop:
            return
        self._stopped = True
        words = f"stopped on request after step {self._step}"
        if self._directory is not None:
            self.save(self._directory, self._keep)
            words += f"; saved to {self._directory}"
        self.print("lockstep:", words)
        raise SystemExit(STOPPED)

    def _end_selftest(self):
        """End the program after the steps of a self-test."""
        if self._observer is not None and self._step >= self._observer.steps:
            raise SystemExit(0)

    def step(self, loss_sum: LossFunction, data: Loader | Stream,
             optimizer: torch.optim.Optimizer | optim.FromTorch) -> StepResult:
        """Compute one step and return a ``StepResult``.

        loss_sum: a function of the model and a micro-batch.  It returns (loss, count) or (loss,
            count, hits): the sum of the losses as a tensor, the number by which the sum over all
            workers is divided, and the number of correct answers.  It may be called again for the
            same micro-batch, and must depend on nothing else than the model, the micro-batch and
            the global random generators.
        data: what ``Run.loader()`` returned.
        optimizer: an optimizer of ``lockstep.torch`` or of torch.
        """
        begun = time.monotonic()
        if self._group.enters:
            raise RuntimeError("this worker replaces a lost one, and can do so only in a loop over "
                               "run.steps()")
        self._end_selftest()
        self._take_data(data)
        self._open(optimizer, data, loss_sum)
        if self._engine.holds:
            raise RuntimeError("run.step() within `with run.gathered()`")
        number = self._step

        def attempt():
            if self._step > number:   # survivors have completed the step
                return self._completed
            return self._engine.step(number, data, loss_sum)

        if self._optimizer.in_library:
            self._optimizer.refuse_pre_hooks()
        if self._observer is not None:
            self._observer.begin(number)
        result = self._collective("run.step()", attempt, agrees=True)
        self._take_step(number + 1)
        if self._optimizer.in_library:
            self._optimizer.call_post_hooks()
        if self._observer is not None:
            self._observer.end(number, result)
        return StepResult(number, result.loss, result.grad_norm, result.count, result.hits,
                          time.monotonic() - begun, self._engine.outer_step())

    def _take_step(self, completed):
        """Be as after a number of completed steps: its random numbers, and what torch's schedulers
        look at."""
        self._step = completed
        if self._optimizer.in_library:
            self._optimizer._opt_called = True
            self._optimizer._step_count = completed
        seeds.seed_all(seeds.key(self.seed, "between", completed - 1))

    def _take_data(self, data):
        """Note the loader of a step.  After ``resume()`` it must be that of the checkpoint."""
        _refuse_torch_loader(data)
        if not isinstance(data, (Loader, Stream)):
            raise TypeError(f"the data of a step is a {type(data).__name__}: give what "
                            "run.loader() returned")
        described = data.describe()
        if self._check_data is not None:
            self._check_data(described)
            self._check_data = None
        if self._reader is not data:   # whose data workers are no longer needed
            if self._reader is not None:
                self._reader.close()
            self._reader = data
        self._loader, self._data = data, described

    # ---- Sharded parameters ------------------------------------------------------------------

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """A block in which the model has all its parameters, on every worker, to be read.

        Outside of steps and evaluations the parameters are NaN if hosts shard them ("zero3", and
        "hybrid" with `shard_hosts` above 1).  ``save()`` and ``weights_hash()`` need no such block.
        With other strategies the block changes nothing.  Raises ``RuntimeError`` if the program
        has written to a parameter that hosts shard, because what it wrote would be lost.
        """
        self._collective("run.gathered()", lambda: self._engine and self._engine.gather())
        engine = self._engine
        if engine is None:
            yield
            return
        engine.holds += 1
        try:
            yield
            engine.refuse_written()
        finally:
            engine.holds -= 1
            engine.scatter()

    @contextlib.contextmanager
    def _whole_model(self, everywhere):
        """Have all parameters on rank 0 or `everywhere`.  Collective."""
        if self._engine is None:
            yield
            return
        try:
            self._engine.gather(everywhere)
            yield
        finally:
            self._engine.scatter()

    # ---- Evaluation --------------------------------------------------------------------------

    def evaluate(self, loss_sum: LossFunction, data: Any, batch: int | None = None) -> Evaluation:
        """Return the ``Evaluation`` of the model on a data set or on the data set of a loader.

        The model is in evaluation mode meanwhile, and no gradients are computed.  `batch` is the
        number of samples of one call of `loss_sum`, by default that of the training loader.
        """
        self._check_prepared()
        _refuse_torch_loader(data)
        if not isinstance(data, (Loader, Stream)):
            batch = batch or (self._loader.micro_batch if self._loader else 1)
            make = Stream if is_stream(data) else Loader
            data = make(data, self.seed, 1, batch, drop_last=False)
        return (self._collective("run.evaluate()", lambda: self._evaluate_whole(loss_sum, data))
                or Evaluation(float("nan"), 0, 0))

    def _evaluate_whole(self, loss_sum, data):
        with self._whole_model(everywhere=True):
            return self._evaluate(loss_sum, data)

    def _evaluate(self, loss_sum, data):
        module = self._model.module
        modes = {m: m.training for m in module.modules()}
        module.eval()
        rows = [[0.0] * 3 for _ in range(self.virtual_workers)]
        try:
            with torch.no_grad(), seeds.restored():
                for number, samples in enumerate(data.in_order()):
                    v = number % self.virtual_workers
                    if v % self.size == self.rank:
                        row = self._evaluate_batch(loss_sum, data, number, samples)
                        rows[v] = [a + b for a, b in zip(rows[v], row)]
        finally:
            for m, mode in modes.items():
                m.training = mode
        loss, count, hits = self._group.sum_rows(rows)
        return Evaluation(loss / count if count else float("nan"), int(count), int(hits))

    def _evaluate_batch(self, loss_sum, data, number, samples):
        batch = data.collate(samples, number)
        seeds.seed_all(seeds.key(self.seed, "evaluate", self._step, number))
        marks = self._model.marks(self._settings["buffers"])
        loss, count, hits = evaluate_loss(loss_sum, self._model.module, batch)
        self._model.refuse_marked(marks)
        return [loss.item(), count, hits]

    # ---- Checkpoints -----------------------------------------------------------------------

    def save(self, directory: str | os.PathLike[str], keep: int = 0) -> None:
        """Write a checkpoint of the completed steps into `directory`, as DIR/step-XXXXXXXX.

        It holds the model, the optimizer, the parameter groups, and the schedulers that were given
        to ``resume()``.  Call ``save()`` after ``scheduler.step()``.

        keep: removes all but this many newest checkpoints; 0 keeps all.

        Raise ``lockstep.Error`` on all ranks if rank 0 cannot write it.  Older checkpoints then
        stay, and the run may go on.
        """
        if self._observer is not None or self._group.enters:
            return   # a self-test, or a worker that has no part in the run yet
        self._open()
        self._directory, self._keep = os.fspath(directory), keep
        contents = self._contents()
        self._collective("run.save()", lambda: self._save(contents))

    def _save(self, contents):
        self._engine.refuse_changed()
        self._compare_copies()
        with self._whole_model(everywhere=False):
            checkpoint.save(self._group, self._engine, self._directory, contents, self._keep)

    def resume(self, directory: str | os.PathLike[str] | None, model: torch.nn.Module | None = None,
               optimizer: torch.optim.Optimizer | optim.FromTorch | None = None,
               *schedulers: Any) -> int:
        """Continue from the newest valid checkpoint of `directory`, which any number of workers
        may have written.  Without a checkpoint there, begin.  Return the number of completed steps.

        Call it before the first step, with all objects whose state a checkpoint shall hold: the
        prepared model, the optimizer, and the learning-rate schedulers.  A worker that replaces a
        lost one takes over the state of these objects from the others, reads no checkpoint, and
        gets 0.  `directory` None means that there are no checkpoints.

        Raise ``ValueError`` with the first difference if the checkpoint is of another model or
        configuration, and ``lockstep.Error`` if all checkpoints are damaged.
        """
        self._check_may_resume(model, optimizer)
        self._take_optimizer(optimizer)
        self._schedulers = schedulers
        self._directory = None if directory is None else os.fspath(directory)
        if self._observer is not None or self._group.enters:
            return 0
        contents = self._contents()
        stored, notes = (None, []) if directory is None else checkpoint.find(self._group,
                                                                             self._directory)
        if self.rank == 0:
            for note in notes:
                print("lockstep:", note, file=sys.stderr)
        if stored is None:
            self._step = self._optimizer.completed_steps()
        else:
            self._restore(stored, contents)
        self._optimizer._step_count = self._step
        if self._step:
            seeds.seed_all(seeds.key(self.seed, "between", self._step - 1))
        return self._step

    def _check_may_resume(self, model, optimizer):
        self._check_prepared()
        if model is not None and model is not self._model.module:
            raise ValueError("resume() was given another model than prepare()")
        if self._engine is not None:
            raise RuntimeError("call run.resume() before the first step, save or evaluation")
        if optimizer is None and self._optimizer is None:
            raise TypeError("resume() needs the optimizer: "
                            "run.resume(directory, model, optimizer, *schedulers)")

    def _restore(self, stored, contents):
        model = self._model
        stored.check(contents, model.module,
                     local.saved_states(self._settings, self._optimizer, stored.step),
                     list(zip(model.names, model.params)))
        warning = stored.warning(contents)
        if warning is not None and self.rank == 0:
            print(warning, file=sys.stderr)
        if optim.has_scheduler(self._optimizer) and not self._schedulers and self.rank == 0:
            print("lockstep: warning: run.resume() was not given the scheduler, which begins anew: "
                  "run.resume(directory, model, opt, sched)", file=sys.stderr)
        stored.restore_model(model.module)
        checkpoint.restore_settings(stored.config, self._optimizer, self._schedulers)
        self._optimizer.fix_undecayed()
        self._optimizer.state.clear()
        self._optimizer._run = self
        self._step, self._restored = stored.step, stored
        self._data, self._check_data = stored.config["data"], stored.check_data

    def _contents(self):
        """Return what a checkpoint of the completed steps tells, besides tensors."""
        return checkpoint.Contents(self._environment, self._model.module, self._optimizer,
                                   self._schedulers, self._data, self._step)

    def optimizer_state(self):
        """Return the states of the optimizer, for its ``state_dict()``."""
        if local.are_there(self._settings, self._step):
            raise RuntimeError("each replica (local_steps) has a state of the optimizer of its "
                               "own: run.save() stores them all, and run.resume() reads them")
        self._open()
        return self._collective(
            "state_dict()", lambda: checkpoint.optimizer_state(self._engine, self._step)) or {}

    def load_optimizer_state(self):
        """Give the engine the states that the optimizer was given by ``load_state_dict()``."""
        if self._engine is None:
            self._open()   # which loads them
        else:
            self._load_optimizer_state()

    def _load_optimizer_state(self):
        states, step = dict(self._optimizer.state), self._step
        self._collective("load_state_dict()", lambda: checkpoint.load_optimizer_state(
            self._engine, states, step))
        self._optimizer.state.clear()

    # ---- Reports ---------------------------------------------------------------------------

    def print(self, *values: object) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            print(*values, flush=True)

    def log(self, result: StepResult | Evaluation, **more: Any) -> None:
        """Add the fields of a ``StepResult`` or ``Evaluation``, and `more`, to the logs of
        ``init()``, on rank 0: a line of JSON to `log`, and scalars to `tensorboard`, such as
        train/loss, train/lr and evaluation/loss."""
        if self.rank == 0 and self._observer is None and not self._group.enters:
            samples = {}
            if isinstance(result, StepResult) and (self._data or {}).get("drop_last"):
                samples["samples_per_s"] = round(self._data["global_batch"] / result.seconds, 1)
            self._log.add(self._step, result, {**samples, **more})

    def log_membership(self, change):
        """Add a line about lost workers, or workers that have entered, on rank 0."""
        if self.rank == 0 and self._observer is None:
            self._log.add_line({"step": self._step, "membership": change})

    def weights_hash(self) -> str:
        """Return the SHA-256 of the weights that a checkpoint would have, 64 hex digits."""
        self._check_prepared()
        digits = self._collective("run.weights_hash()", self._weights_hash)
        self._hash = (self._step, digits)
        return digits or ""

    def _weights_hash(self):
        with self._whole_model(everywhere=False):
            digits = checkpoint.weights_hash(self._group, self._model.module)
        self._compare_copies(buffers=True)
        return digits

    def _compare_copies(self, buffers=False):
        """Raise ``lockstep.Error`` if an optimizer of torch has made other parameters elsewhere."""
        if self._optimizer is None or self._optimizer.in_library:
            return
        copies = self._group.gather(checkpoint.hash_of_copy(self._model.module, buffers))
        if len(set(copies)) > 1:
            odd = next(r for r, c in enumerate(copies) if c != copies[0])
            self._group.raise_together(Error("EMISMATCH", (
                f"rank {odd} and rank 0 have other parameters after the same steps of "
                f"{type(self._optimizer.torch).__name__}: it depends on something else than "
                "parameters and gradients")))


def _refuse_torch_loader(data):
    if isinstance(data, torch.utils.data.DataLoader):
        raise TypeError("data is a torch DataLoader: give its data set to run.loader(), which "
                        "takes collate_fn, num_workers and the like, too")
