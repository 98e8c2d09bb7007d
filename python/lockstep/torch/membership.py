"""Changes of the group during a run: workers that are lost, and workers that take their places.

A worker that replaces a lost one (`lockstep run --restart`) runs the program from its beginning.
It enters the group at its first loop over ``run.steps()``, when the others are between two steps,
and receives the state of the run.  Until it has come to the place of the others, its collective
operations do nothing, and loops that the others have left have no rounds.
"""

import dataclasses
import time

import torch

from lockstep._library import Error, lk
from lockstep.torch import checkpoint, gpu, plain, seeds, trace
from lockstep.torch.engine import Engine, undecayed
from lockstep.torch.group import advised, agree
from lockstep.torch.model import Model
from lockstep.torch.optim import has_scheduler
from lockstep.torch.plan import Plan


_ADMITTING = "letting workers in"

# Settings that all workers have alike, besides those of a checkpoint's manifest.
_SETTINGS = ("seed", "virtual_workers", "strategy", "threads", "deterministic", "audit_steps",
             "buffers", "bucket_bytes", "shard_hosts", "grad_algorithm")


class Membership:
    """The group of a run over its losses and entrances."""

    def __init__(self, run, group):
        self._run, self._group = run, group
        self._operation, self._previous = 0, None   # the number of operations, the last one
        self._loops = 0        # calls of run.steps()
        self._ended = []       # communicators to be freed; until it goes on, the engine uses one
        self._about = self._received = None   # in a worker that enters: the state of the others
        self._added = {}       # in it: what methods of modules add to the state dict of the others

    # ---- Operations ------------------------------------------------------------------------

    def collective(self, name, work, agrees=False):
        """Run `work`, an operation of all ranks.  After a loss, repeat it with the survivors.  In a
        worker that enters, do nothing and return None.

        agrees: what a step depends on, and the program may change between steps, must be equal on
            all ranks.
        """
        if self._group.enters:
            return None
        settings = self._settings_of_step() if agrees else None

        def attempt():
            values = self._group.meet(name, trace.number(settings) if agrees else 0)
            if len(set(values)) > 1:
                self._refuse_other_settings(*settings)
            return work()

        self._operation += 1
        while True:
            try:
                result = attempt()
                break
            except Error as failure:
                self._survive(failure)
            except BaseException as failure:
                self._group.abort(failure)
                raise
        self._previous = attempt
        return result

    def _settings_of_step(self):
        """Return what the program may change between steps, and what ranks must have alike: 64 bits
        of learning rates and weight decays, and the modes of modules."""
        return self._run._optimizer.fingerprint(), self._run._model.modes()

    def _refuse_other_settings(self, rates, modes):
        """Raise ``lockstep.Error`` on all ranks if the settings of a step depend on the rank."""
        step = self._run._step + 1
        values = self._group.gather(rates)
        if len(set(values)) > 1:
            odd = next(r for r, v in enumerate(values) if v != values[0])
            self._group.raise_together(Error("EMISMATCH", (
                f"rank {odd} and rank 0 have other learning rates or weight decays in step {step}: "
                "they must not depend on the rank")))
        agree(self._group, self._run._model.describe_modes(modes), plain.first_difference,
              f"in step {step} every rank must have the same.  Look for train() and eval() on some "
              "ranks only (`if run.rank == 0`)")

    # ---- Losses ----------------------------------------------------------------------------

    def _survive(self, failure):
        """Form a group of the survivors, or raise the failure again."""
        engine = self._run._engine
        while True:
            survives = self._group.continues if engine is None else engine.survives
            if (failure.everywhere or not survives or not self._group.has_lost()
                    or failure.status == "ECORRUPT"):   # the others go on without this rank
                raise advised(failure)
            try:
                self._regroup()
                if self._operation > min(self._group.gather(self._operation)):
                    self._previous()   # another survivor had not finished it
                return
            except Error as again:
                failure = again

    def _regroup(self):
        """Make the group of the survivors, and continue the interrupted step if there is one."""
        begun = time.monotonic()
        run, old = self._run, self._group.rebuild()
        self._ended.append(old)
        change = self._group.changes(old)
        if len(set(self._group.gather(int(run._engine is not None)))) > 1:
            raise Error("EPEER", "a worker was lost while the run was being opened; start it again")
        if run._engine is not None:
            self._group.take_arenas(old)
            standing = run._engine.go_on()
            if standing.steps > run._step:
                run._step, run._completed = standing.steps, standing.last
                run._engine.read_back(standing.steps - 1)
            else:
                change["unfinished"] = standing.unfinished
            run.log_membership({**change, "ms": 1e3 * (time.monotonic() - begun)})
        while self._ended:
            lk.comm_free(self._ended.pop())

    # ---- Entrances -------------------------------------------------------------------------

    def begin_loop(self, total):
        """Return true if run.steps(total) has rounds in this worker: always, unless it enters."""
        self._loops += 1
        if not self._group.enters:
            return True
        if self._about is None:
            self._enter()
        if (self._about["total"], self._about["loops"]) == (total, self._loops):
            self._arrive()
        return not self._group.enters

    def admit(self, total):
        """Let in the workers that wait.  All ranks are between two rounds of run.steps(total)."""
        if self._group.awaited:
            self.collective(_ADMITTING, lambda: self._admit(total))

    def _admit(self, total):
        if not self._group.awaited:   # this is repeated after a loss
            return
        begun, about = time.monotonic(), self._describe(total)
        old = self._group.admit()
        change = self._group.changes(old)
        try:
            self._group.take_arenas(old)
            enters = lk.comm_entered(self._group.comm) > 0
            if enters:
                self._group.share(about)
            self._run._engine.update_rules()   # the worker that enters has those of the next step
            self._run._engine.go_on()
            if enters and "refused" not in about:
                self._share_tensors(about)
        finally:
            lk.comm_free(old)
        if change["lost"] or change["entered"]:
            self._run.log_membership({**change, "ms": 1e3 * (time.monotonic() - begun)})

    def _describe(self, total):
        """Return what a worker that enters must have as well, and the state that is in no tensor;
        or why nobody can enter."""
        run = self._run
        model, engine = run._model, run._engine
        try:
            return {"config": run._contents().config, "device": gpu.describe(model.device),
                    "settings": {name: run._settings[name] for name in _SETTINGS},
                    "parameters": [[n, list(p.shape)] for n, p in zip(model.names, model.params)],
                    "momenta": model.momenta(),
                    "undecayed": undecayed(model, run._optimizer) if engine is None
                    else engine.undecayed(),
                    "tensors": [[str(t.dtype), list(t.shape)] for t in self._tensors()],
                    "added": _describe_added(model.module),
                    "micro-batches": run._micro_limit, "step": run._step, "total": total,
                    "loops": self._loops, "operation": self._operation,
                    "plan": engine and engine.plan and dataclasses.asdict(engine.plan),
                    "directory": [run._directory, run._keep], "random": seeds.state(),
                    "stale": [norm.is_stale() for norm in model.norms],
                    "training": [m.training for m in model.module.modules()],
                    "torch": [] if run._optimizer.in_library else _describe_states(run)}
        except (TypeError, ValueError) as reason:
            return {"refused": str(reason)}

    # ---- Of the worker that enters -----------------------------------------------------------

    def _enter(self):
        """Enter the group when the others let this worker in, and receive the state."""
        run = self._run
        run._check_prepared()
        if run._optimizer is None:
            raise RuntimeError(
                "this worker replaces a lost one, and takes over the state of what run.resume() is "
                "given: call run.resume(directory, model, optimizer, *schedulers) before "
                "run.steps(); the directory may be None")
        run._model = Model(run._model.module)   # as it is now
        self._group.enter()
        self._group.take_arenas(None)
        about = self._about = self._group.share(None)
        self._refuse_differences(about)
        checkpoint.restore_settings(about["config"], run._optimizer, run._schedulers)
        self._refuse("parameters without decay", about["undecayed"],
                     undecayed(run._model, run._optimizer))
        run._micro_limit = about["micro-batches"]
        run._engine = Engine(self._group, run._model, run._optimizer, run._settings,
                             run._micro_limit, plan=about["plan"] and Plan(**about["plan"]),
                             enters=True)
        self._received = self._share_tensors(about)

    def _arrive(self):
        """Be as the others are.  What the program has done since it entered is undone."""
        run, about = self._run, self._about
        with torch.no_grad():
            for tensor, value in self._received:
                tensor.copy_(value)
        if self._added:
            checkpoint.load_added_state(run._model.module, self._added)
            self._added = {}
        for norm, stale in zip(run._model.norms, about["stale"]):
            norm.reload()
            norm.stale = stale
        for module, training in zip(run._model.module.modules(), about["training"]):
            module.training = training
        checkpoint.restore_settings(about["config"], run._optimizer, run._schedulers)
        run._directory, run._keep = about["directory"]
        run._optimizer._run = run
        run._take_step(about["step"])
        seeds.set_state(about["random"])
        self._operation = about["operation"]
        self._previous = lambda: (self._group.meet(_ADMITTING), self._admit(about["total"]))
        self._received = None
        self._group.enters = False

    def _refuse_differences(self, about):
        """Raise an error if this worker, which enters, differs from the others."""
        run = self._run
        if "refused" in about:
            raise RuntimeError(f"no worker can replace a lost one in this run: {about['refused']}")
        mine = self._describe(None)
        if "refused" in mine:
            raise RuntimeError(mine["refused"])
        loaders = [plain.to_json(d, "loader") for d in run._loaders]
        if about["config"]["data"] in loaders:
            mine["config"]["data"] = about["config"]["data"]
        for name in ("device", "settings", "parameters", "tensors"):
            self._refuse(name, about[name], mine[name])
        self._refuse("", about["momenta"], mine["momenta"])
        self._refuse("", *(checkpoint.fixed(d["config"]) for d in (about, mine)))
        if has_scheduler(run._optimizer) and not run._schedulers:
            raise RuntimeError("this worker was to replace a lost one, but run.resume() was not "
                               "given the scheduler: run.resume(directory, model, opt, sched)")

    @staticmethod
    def _refuse(name, there, here):
        found = plain.first_difference(there, here, name)
        if found is not None:
            raise ValueError("this worker was to replace a lost one, but differs from the others: "
                             "{} is {!r} there, and {!r} here".format(*found))

    # ---- Tensors -----------------------------------------------------------------------------

    def _tensors(self):
        """Return the tensors of the model that are not in memory that workers share."""
        run = self._run
        shared = {id(p) for p in run._model.params} if run._optimizer.in_library else ()
        return [t for t in (*run._model.module.parameters(), *run._model.module.buffers())
                if id(t) not in shared]

    def _share_tensors(self, about):
        """Send the tensors that are not in shared memory from rank 0 to the workers that enter.
        Return pairs of a tensor and its value."""
        tensors = self._tensors()
        if not self._run._optimizer.in_library:
            tensors += _states(self._run, about["torch"])
        if self._group.enters:
            added = self._added = _make_added(about["added"])
        else:
            added = checkpoint.added_state(self._run._model.module)
        tensors += [t for t in added.values() if isinstance(t, torch.Tensor)]
        pairs = []
        for tensor in tensors:
            value = tensor.detach().to("cpu", copy=self._group.enters).contiguous()
            lk.broadcast(self._group.comm, value.data_ptr(), value.numel() * value.element_size(),
                         0)
            pairs.append((tensor, value))
        return pairs


def _describe_added(module):
    """Return [name, type, shape] of each tensor that methods of modules add to the state dict, and
    [name, value] of what is no tensor."""
    return [[name, str(value.dtype).split(".")[1], list(value.shape)]
            if isinstance(value, torch.Tensor) else [name, plain.to_json(value, name, tuples=True)]
            for name, value in checkpoint.added_state(module).items()]


def _make_added(described):
    """Return {name: an empty tensor, or the value}."""
    return {name: torch.empty(about[1], dtype=getattr(torch, about[0])) if len(about) == 2
            else plain.from_json(about[0]) for name, *about in described}


def _describe_states(run):
    """Return [parameter, name, device, type, shape, strides] of each state of an optimizer of
    torch, and [parameter, name, value] of those that are no tensors."""
    described = []
    for i, name, value in run._optimizer.states(run._model):
        if isinstance(value, torch.Tensor):
            described.append([i, name, value.device.type, str(value.dtype).split(".")[1],
                              list(value.shape), list(value.stride())])
        else:
            described.append([i, name, plain.to_json(value, name, tuples=True)])
    return described


def _states(run, described):
    """Return the tensors of the states, made if they do not exist."""
    tensors = []
    for i, name, *about in described:
        p = run._model.params[i]
        state = run._optimizer.torch.state[p]
        if len(about) == 1:
            state[name] = plain.from_json(about[0])
            continue
        kind, dtype, shape, strides = about
        if name not in state or run._group.enters:
            device = p.device if kind == p.device.type else kind
            state[name] = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype),
                                              device=device)
        tensors.append(state[name])
    return tensors
