"""Changes of the group during a run: workers that are lost, and workers that take their places.

A worker that replaces a lost one (`lockstep run --restart`) runs the program from its beginning.
It enters the group at its first loop over ``run.steps()``, when the others are between two steps,
and receives the state of the run.  Until it has come to the place of the others, its collective
operations do nothing, and loops that the others have left have no rounds.
"""

import dataclasses

import torch

from lockstep._library import Error, lk
from lockstep.torch import checkpoint, gpu, plain
from lockstep.torch.engine import Engine
from lockstep.torch.group import advised
from lockstep.torch.model import Model
from lockstep.torch.plan import Plan


class Membership:
    """The group of a run over its losses and entrances."""

    def __init__(self, run, group):
        self._run, self._group = run, group
        self._operation, self._previous = 0, None   # the number of operations, the last one
        self._total = None   # in a worker that enters: of the loop in which the others are

    # ---- Operations ------------------------------------------------------------------------

    def collective(self, name, work, value=0):
        """Run `work`, an operation of all ranks.  After a loss, repeat it with the survivors.  In a
        worker that enters, do nothing and return None.

        value: a number that must be equal on all ranks, of what the operation depends on.
        """
        if self._group.enters:
            return None

        def attempt():
            values = self._group.meet(name, value)
            if len(set(values)) > 1:
                odd = next(r for r, v in enumerate(values) if v != values[0])
                self._group.raise_together(Error("EMISMATCH", (
                    f"rank {odd} and rank 0 have other learning rates or weight decays in step "
                    f"{self._run._step + 1}: they must not depend on the rank")))
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
        run, old = self._run, self._group.rebuild()
        if len(set(self._group.gather(int(run._engine is not None)))) > 1:
            raise Error("EPEER", "a worker was lost while the run was being opened; start it again")
        if run._engine is not None:
            self._group.take_arenas(old)
            standing = run._engine.go_on()
            if standing.steps > run._step:
                run._step, run._completed = standing.steps, standing.last
                run._engine.read_back()
        lk.comm_free(old)

    # ---- Entrances -------------------------------------------------------------------------

    def admit(self, total):
        """Let in the workers that wait.  All ranks are between two rounds of run.steps(total)."""
        if self._group.awaited:
            self.collective("letting workers in", lambda: self._admit(total))

    def _admit(self, total):
        if not self._group.awaited:   # this is repeated after a loss
            return
        old = self._group.admit()
        try:
            self._group.take_arenas(old)
            enters = lk.comm_entered(self._group.comm) > 0
            about = self._about(total)
            if enters:
                self._group.share(about)
            self._run._engine.update_rules()   # the worker that enters has those of the next step
            self._run._engine.go_on()
            if enters:
                self._share_tensors(about)
        finally:
            lk.comm_free(old)

    def arrives(self, total):
        """Return true if run.steps(total) is where the others are, in a worker that enters."""
        if self._total is None:
            self._enter()
        if total == self._total:
            self._group.enters = False
        return not self._group.enters

    def _enter(self):
        """Enter the group when the others let this worker in, and take over the state."""
        run = self._run
        run._check_prepared()
        if run._optimizer is None:
            raise RuntimeError(
                "this worker replaces a lost one, and takes over the state of what run.resume() is "
                "given: call run.resume(directory, model, optimizer, *schedulers) before "
                "run.steps(); the directory may be None")
        run._model = Model(run._model.module)   # as it is now
        run._data = run._loader and run._loader.describe()
        self._group.enter()
        self._group.take_arenas(None)
        about = self._group.share(None)
        self._refuse_differences(about)
        checkpoint.restore_settings(about["config"], run._optimizer, run._schedulers)
        plan = about["plan"] and Plan(**about["plan"])
        run._engine = Engine(self._group, run._model, run._optimizer, run._settings,
                             run._micro_limit, plan=plan, enters=True)
        self._share_tensors(about)
        for norm, stale in zip(run._model.norms, about["stale"]):
            norm.reload()
            norm.stale = stale
        for module, training in zip(run._model.module.modules(), about["training"]):
            module.training = training
        run.take_step(about["step"])
        self._operation, self._total = about["operation"], about["total"]
        self._previous = lambda: self._group.meet("letting workers in")

    def _about(self, total):
        """Return what a worker that enters must have as well, and the state that is in no
        tensor."""
        run, engine = self._run, self._run._engine
        plan = None if engine is None or engine.plan is None else dataclasses.asdict(engine.plan)
        return {"config": run.contents().config, "device": gpu.describe(run._model.device),
                "parameters": [[n, list(p.shape)] for n, p in zip(run._model.names,
                                                                   run._model.params)],
                "micro-batches": run._micro_limit, "step": run._step, "total": total,
                "operation": self._operation, "plan": plan,
                "stale": [norm.stale for norm in run._model.norms],
                "training": [m.training for m in run._model.module.modules()],
                "torch": [] if run._optimizer.in_library else _describe_states(run)}

    def _refuse_differences(self, about):
        """Raise ``ValueError`` if this worker, which enters, differs from the others."""
        def fixed(described):
            config = dict(described["config"])
            config["groups"] = [g["params"] for g in config["groups"]]
            config["schedulers"] = [s["class"] for s in config["schedulers"]]
            if self._run._loader is None:
                del config["data"]
            return dict(config, **{name: described[name] for name in
                                   ("device", "parameters", "micro-batches")})

        found = plain.first_difference(fixed(about), fixed(self._about(None)), "")
        if found is not None:
            name, there, here = found
            raise ValueError(f"this worker was to replace a lost one, but differs from the others: "
                             f"{name} is {there!r} there, and {here!r} here")

    def _share_tensors(self, about):
        """Send the tensors that are not in shared memory from rank 0 to the workers that enter."""
        run, comm = self._run, self._group.comm
        fresh = self._group.enters
        shared = {id(p) for p in run._model.params} if run._optimizer.in_library else ()
        tensors = [t for t in (*run._model.module.parameters(), *run._model.module.buffers())
                   if id(t) not in shared]
        if not run._optimizer.in_library:
            tensors += _states(run, about["torch"])
        with torch.no_grad():
            for tensor in tensors:
                host = tensor.detach().cpu().contiguous()
                lk.broadcast(comm, host.data_ptr(), host.numel() * host.element_size(), 0)
                if fresh:
                    tensor.copy_(host)


def _describe_states(run):
    """Return [parameter, name, device, type, shape] of each state of an optimizer of torch, and
    [parameter, name, value] of those that are no tensors."""
    described = []
    for i, p in enumerate(run._model.params):
        for name, value in run._optimizer.torch.state.get(p, {}).items():
            if isinstance(value, torch.Tensor):
                described.append([i, name, value.device.type, str(value.dtype).split(".")[1],
                                  list(value.shape)])
            else:
                described.append([i, name, plain.to_json(value, name)])
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
        kind, dtype, shape = about
        if name not in state:
            device = p.device if kind == p.device.type else kind
            state[name] = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
        tensors.append(state[name])
    return tensors
