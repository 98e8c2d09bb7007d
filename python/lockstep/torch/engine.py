"""A strategy of the C library over one model and its optimizer: turns, and values.

Every turn adds the gradient of one micro-batch to memory of the library.  Autograd makes a new
``p.grad`` for each parameter.  A hook adds it to that memory at once and drops it.
"""

import contextlib
import ctypes

import torch

from lockstep import _library
from lockstep._library import Error, layout, lk
from lockstep.torch import compress, gpu, kept, local, rehearsal, seeds, trace, uses
from lockstep.torch.gathered import Gathered, Interrupted
from lockstep.torch.model import view
from lockstep.torch.optim import names_of_states
from lockstep.torch.rehearsal import evaluate_loss, warn_of_mean

# Options that an optimizer has as attributes, besides those of its parameter groups.
_FIXED = ("clip_norm", "clip_value", "freeze_step", "freeze_after")


class Engine:
    """An open ``lk_parallel``.

    first: (step, loader, loss function) of the first step, None if it is not known.
    plan: the order in which parameters are gathered, None if it is not yet made.
    enters: takes part in the others' ``go_on()`` in a worker that replaces a lost one.
    step: the number of completed steps.
    """

    def __init__(self, group, model, optimizer, settings, micro_count, first=None, plan=None,
                 enters=False, step=0):
        self.group, self.model, self.optimizer = group, model, optimizer
        self._micro_limit, self._micros = micro_count, micro_count   # _micros: of the step
        self.survives = group.continues and settings["strategy"] != "single"
        self._settings = settings
        self._views, self._hooks = {}, []
        strategy = lk.strategy_name(settings["strategy"].encode()).decode()
        rounds = strategy in ("zero2", "zero3", "hybrid")
        # shapes and strides, which sharded parameters do not have between steps
        self._likes = [torch.empty_strided(p.shape, p.stride(), device="meta")
                       for p in model.params]
        self._order = list(reversed(range(len(model.params))))   # of the gradients
        self._sharded, self.plan = None, None
        self.holds = 0   # blocks of the program that have all parameters
        self._holding = False
        if group.hosts > 1 and (strategy == "zero3" or (strategy == "hybrid"
                                                        and settings["shard_hosts"] > 1)):
            rehearsal.refuse(model, optimizer, strategy)
            self.plan = plan or rehearsal.make_plan(group, model, settings["seed"], first)
            self._sharded = Gathered(model, self.plan, self._take_before)
            self._order = [p for block in self.plan.blocks for p in block]
        self._term_of = {p: t for t, p in enumerate(self._order)}
        # there is memory for two buckets, so gradients are taken in the order of terms
        self._in_order = self._sharded is not None or (micro_count == 1 and rounds)
        self._empty = ctypes.c_bool()
        self._empty_out = ctypes.byref(self._empty)
        # on a GPU, parameters are copies, and gradients are brought to the host
        self._on_host = model.device.type == "cpu"
        self._transfers = None if self._on_host else gpu.Transfers(model.params)
        self._recorder = None
        self._shown, self._running = None, {}   # the replica of the turn, {Norm: its statistics}
        self._warned = False   # that the loss is a mean
        self.observer = None   # called with the number and the Recorder of each step
        self._describe()
        self._handle = None
        try:
            if enters:
                self.go_on()
            else:
                self._open(step)
            self._hooks = self._add_hooks()
        except BaseException:
            self.close()
            raise
        group.at_close(self.close)

    def _open(self, step):
        self._handle = ctypes.c_void_p()
        lk.parallel_open(self._handle, self.group.comm, self._params, len(self.model.params),
                         self._options)
        lk.parallel_resume(self._handle, step)
        self._load_all()
        self._use_handle()
        self.place_params()

    def _describe(self):
        """Fill the C descriptions of parameters, running state and options."""
        model, settings = self.model, self._settings
        self._params = (_library.Param * len(model.params))()
        spared = undecayed(model, self.optimizer)
        self.optimizer.fix_undecayed()
        for c, name, p, no_decay in zip(self._params, model.names, model.params, spared):
            c.name = name.encode()
            c.shape.rank = p.dim()
            c.shape.dims[:p.dim()] = p.shape
            c.uses = 1
            c.no_decay = no_decay
        self._states = [(name, buffer, norm) for norm in model.norms
                        for name, buffer in zip(norm.names, norm.buffers)]
        states = (_library.State * max(1, len(self._states)))()
        for c, (name, buffer, norm) in zip(states, self._states):
            c.name, c.count, c.momentum = name.encode(), buffer.numel(), norm.momentum
        self._state_array = states
        self._rules = self._rules_now()
        self._fixed = self._fixed_options()
        self._replicas = local.replicas(settings)
        self._width = settings["virtual_workers"] // (settings["groups"] or
                                                      settings["virtual_workers"])
        # whole outer gradients need no groups
        groups = settings["groups"] if self._replicas is None or settings["compress"] else 0
        self._exchange = compress.exchange(settings["compress"], groups, settings["seed"],
                                           self.optimizer)
        # no rank has a whole gradient, or an audit would compare sums of groups
        audits = settings["audit_steps"]
        if self._sharded or self._exchange is not None or self._replicas is not None:
            audits = 0
        self._options = _library.Options(
            struct_size=ctypes.sizeof(_library.Options), strategy=settings["strategy"].encode(),
            virtual_workers=settings["virtual_workers"], micro_count=self._micro_limit,
            bucket_bytes=settings["bucket_bytes"], optimizer=self.optimizer.options(),
            clip_norm=self.optimizer.clip_norm, clip_value=self.optimizer.clip_value,
            unused=layout.constants["LK_UNUSED_ZERO"], seed=settings["seed"], states=states,
            state_count=len(self._states), rules=self._rules, survives=self.survives,
            audit=1.0 if audits else 0.0, audit_steps=audits, shard_hosts=settings["shard_hosts"],
            grad_algorithm=layout.constants["LK_TREE_" + settings["grad_algorithm"].upper()],
            adds_once=True)
        if self._exchange is not None:
            self._options.exchange = ctypes.pointer(self._exchange)
        if self._replicas is not None:
            self._options.replicas = ctypes.pointer(self._replicas)
        if self.plan is not None:
            self._describe_reads()

    def _describe_reads(self):
        """Add the blocks and the order in which they are gathered to the options."""
        firsts, terms = [], []
        for block in self.plan.blocks:
            firsts.append(len(terms))
            terms += [(p, 0, int(p != block[0])) for p in block]
        reads = [firsts[b] for b in self.plan.forward] + (firsts if self.plan.again else [])
        self._terms = (_library.Term * len(terms))(*terms)
        self._reads = (ctypes.c_uint32 * len(reads))(*reads)
        self._options.terms, self._options.term_count = self._terms, len(terms)
        self._options.reads, self._options.read_count = self._reads, len(reads)

    def undecayed(self):
        """Return for each parameter whether it is one without weight decay, as at the opening."""
        return [c.no_decay for c in self._params]

    def _rules_now(self):
        """Return the C rules of the parameters: learning rate and weight decay of their groups."""
        rates = self.optimizer.rates()
        missing = [n for n, p in zip(self.model.names, self.model.params) if id(p) not in rates]
        if missing:
            raise ValueError(f"the optimizer does not have parameter '{missing[0]}': give it to "
                             "the optimizer, or set requires_grad=False before run.prepare()")
        self._refuse_strangers(rates)
        rules = (_library.Rule * len(self.model.params))()
        for rule, p in zip(rules, self.model.params):
            rule.lr, rule.weight_decay = rates[id(p)]
            rule.own_decay = 1
        return rules

    def _refuse_strangers(self, rates):
        """Raise ``ValueError`` if the optimizer has a parameter to train that the model lacks."""
        if len(rates) == len(self.model.params):
            return
        known = set(map(id, self.model.params))
        for i, group in enumerate(self.optimizer.param_groups):
            for p in group["params"]:
                if id(p) not in known and p.requires_grad and p.numel():
                    raise ValueError(
                        f"parameter group {i} of the optimizer has a parameter of shape "
                        f"{list(p.shape)} that requires gradients and is not in the prepared "
                        f"{type(self.model.module).__name__}, so nothing sums its gradients: put "
                        "all modules that are trained into one, and give that to run.prepare()")

    def _fixed_options(self):
        return {name: getattr(self.optimizer, name) for name in _FIXED
                if hasattr(self.optimizer, name)}

    def refuse_other_options(self):
        """Raise ``RuntimeError`` if the program has changed an option of the optimizer that the
        library knows since the opening."""
        for name, value in self._fixed_options().items():
            if value != self._fixed[name]:
                raise RuntimeError(f"{name} of {type(self.optimizer).__name__} is {value}, and was "
                                   f"{self._fixed[name]} at the first step, from which on it is "
                                   "fixed: give it to the optimizer when that is made")

    def update_rules(self):
        """Pass on what schedulers have changed since the last step."""
        rules = self._rules_now()
        if bytes(rules) != bytes(self._rules):
            lk.parallel_set_rules(self._handle, rules)
            self._rules = self._options.rules = rules

    def close(self):
        """Give the parameters memory of their own, and free the strategy."""
        if not self._handle:
            return
        for p in self.model.params:
            p.grad = None
            if self._sharded is None:
                p.data = p.data.clone()
        for hook in self._hooks:
            hook.remove()
        lk.parallel_free(self._handle)
        self._handle, self._views = None, {}

    # ---- Values ----------------------------------------------------------------------------

    def _load_all(self):
        for i, p in enumerate(self.model.params):
            self.load(i, 0, p.data)
        for i in range(len(self._states)):
            self._load_state(i)
        for norm in self.model.norms:
            norm.reload()

    def _load_state(self, state):
        values = self._states[state][1].cpu()   # a copy, which the call needs, if it is on a GPU
        lk.parallel_load_state(self._handle, state, values.data_ptr())

    def load(self, param, which, tensor):
        """Set a parameter (`which` 0) or a state of its optimizer.  All ranks have equal values."""
        # elements in the order that they have in the library's memory
        in_order = torch.empty_like(self._likes[param], device="cpu")
        with torch.no_grad():
            in_order.copy_(tensor)
        lk.parallel_load(self._handle, param, which, in_order.data_ptr())

    def address(self, param, which):
        """Return the address of a parameter or a state of its optimizer, None if other hosts have
        parts of it."""
        return lk.parallel_value(self._handle, param, which)

    def value(self, param, which):
        """Return a tensor with the values of a parameter or of a state of its optimizer, valid
        until the next collective call.  Collective."""
        like = self._likes[param]
        if which == 0 and not self.optimizer.in_library:
            return self.model.params[param].data
        address = self.address(param, which)
        if address:
            return view(address, like)
        out = torch.empty_like(like, device="cpu")
        lk.parallel_fetch(self._handle, param, which, 0, out.numel(), out.data_ptr())
        return out

    def place_params(self):
        """Make the model's parameters views of the library's memory, if the library updates
        them."""
        if not self.optimizer.in_library:
            return
        if self._sharded is not None:
            self._sharded.hide()
            self._note_places()
            return
        for i, p in enumerate(self.model.params):
            address = lk.parallel_param(self._handle, i)
            if not self._on_host:
                p.data.copy_(self._view(address, i))
            elif p.data_ptr() != address:
                p.data = self._view(address, i)
        self._note_places()

    def _note_places(self):
        self._placed = [(p.data_ptr(), p._version) for p in self.model.params]

    def refuse_changed(self):
        """Raise ``RuntimeError`` if the program has changed a parameter on a GPU, or has given one
        other memory, which the library does not see.  It sees what changes in its own."""
        if not self.optimizer.in_library or self._holding:
            return
        for name, p, (address, version) in zip(self.model.names, self.model.params, self._placed):
            moved = p.data_ptr() != address
            if moved or (not self._on_host and p._version != version):
                what = ("has other memory than the last step gave it (by `p.data = ...`, half(), "
                        "double() or the like)" if moved
                        else "was changed outside of the update of a step")
                raise RuntimeError(f"parameter '{name}' {what}.  Change parameters only through "
                                   "steps.  With an optimizer of torch (lk.FromTorch) every worker "
                                   "has its own parameters, which the program may change between "
                                   "steps")

    def _view(self, address, param):
        known = self._views.get((address, param))
        if known is None:
            known = self._views[address, param] = view(address, self._likes[param])
        return known

    def kept(self):
        """Return a list of what groups and replicas keep between steps."""
        values = kept.of_groups(self._handle, self.model.names, self._likes)
        if self._has_replicas():
            values += kept.running(self._handle, self._states)
        return values

    def _has_replicas(self):
        """Return true if there are replicas now."""
        return self._replicas is not None and lk.parallel_groups(self._handle) > 0

    def kept_value(self, value):
        """Return a tensor with a value of ``kept()``.  Collective."""
        return value.read(self._handle)

    def load_kept(self, value, tensor):
        """Set a value of ``kept()``.  All ranks have equal tensors."""
        value.load(self._handle, tensor)

    def load_state(self, param, which, tensor):
        """Set a state of the program's optimizer, with replicas that of each."""
        if not self._has_replicas():
            self.load(param, which, tensor)
        else:
            kept.load_in_all(self._handle, self._likes[param], param, which, tensor)

    @property
    def state_names(self):
        """The names of the states of the optimizer that updates the model, as in torch
        ("exp_avg").  With replicas it is the outer one."""
        if self._has_replicas():
            return names_of_states(self._replicas.optimizer)
        return self.optimizer.state_names()

    # ---- A step ----------------------------------------------------------------------------

    def _add_hooks(self):
        """Have gradients taken over as soon as they are complete, so that they are summed during
        the backward pass.  Before torch 2.1 they are taken over after it, unless parameters are
        sharded."""
        if self._sharded is None and not hasattr(torch.Tensor,
                                                 "register_post_accumulate_grad_hook"):
            return []
        return [hook for i, p in enumerate(self.model.params)
                for hook in uses.on_gradient(p, lambda i=i: self._arrive(i))]

    _waiting = None   # in a turn: parameters whose gradient has not been taken, the last one first

    def _begin_backward(self):
        self._waiting = dict.fromkeys(self._order)
        if self._sharded is not None:
            self._sharded.begin_backward()

    def _arrive(self, param):
        """Take the gradient of a parameter, or keep it for its place in the order of terms."""
        waiting = self._waiting
        if waiting is None:   # a backward pass outside of a turn
            return
        if param not in waiting:
            if self._sharded is not None:
                raise self._sharded.late(param)
            raise RuntimeError(
                f"the gradient of '{self.model.names[param]}' is computed more than once in a "
                "backward pass, and was summed after the first time: give torch.utils.checkpoint "
                "use_reentrant=False, and leave backward() to run.step()")
        if not self._in_order:
            self._take(param)
            return
        while waiting:
            first = next(iter(waiting))
            if self.model.params[first].grad is None:
                return
            self._take(first)

    def _end_backward(self):
        """Take what is left.  Parameters that were not used have no gradient."""
        for param in list(self._waiting):
            self._take(param)
        self._waiting = None
        if self._transfers is not None:
            for arrived in self._transfers.complete(wait=True):
                self._add(*arrived)

    def _take(self, param):
        """Take a complete gradient from a parameter, and add it when it is in the host's memory."""
        del self._waiting[param]
        if self._sharded is not None:
            self._sharded.before_gradient(param)
        p = self.model.params[param]
        grad, p.grad = p.grad, None
        if grad is not None and grad.is_sparse:
            grad = grad.to_dense()
        if self._recorder is not None and grad is not None:
            self._recorder.add("gradient", self.model.names[param], grad)
        if self._transfers is None:
            self._add(param, grad)
            if self._sharded is not None:
                self._sharded.after_gradient(param)
            return
        self._transfers.start(param, grad)
        for arrived in self._transfers.complete():
            self._add(*arrived)

    def _add(self, param, grad):
        """Add a gradient to the library's memory, if it is not None, and announce it."""
        term = self._term_of[param]
        if grad is not None:
            address = lk.parallel_grad_new(self._handle, 0, term, self._empty_out)
            target = self._view(address, param)
            # adding 0 makes 0 of -0, as adding to memory of zeros does
            torch.add(grad, 0.0 if self._empty else target, out=target)
        lk.parallel_grad_ready(self._handle, 0, term)

    def step(self, number, data, loss_sum):
        """Compute step `number` and return an ``lk_step_result``."""
        lk.comm_note(self.group.comm, number + 1, b"turns")
        self.refuse_changed()
        self.model.refuse_changes(self._settings["buffers"])
        self.update_rules()
        self._begin_norms()
        own = self._own_virtual_workers()
        if data.micro_count > self._micro_limit:
            raise ValueError(f"the loader has {data.micro_count} micro-batches for a virtual "
                             f"worker in a step, and the run began with at most "
                             f"{self._micro_limit}: make all loaders before the first step")
        self._micros = data.micro_count
        lk.parallel_begin_micros(self._handle, number, self._micros)
        # a GPU has them since the last step, and replicas are shown in their turns
        if self._on_host and not self._has_replicas():
            self.place_params()
        data.begin(number, own)
        if self.observer is not None:
            self._recorder = trace.Recorder(self.model.module)
        digests = self._digests(number)
        self._all_turns(number, data, loss_sum)
        self.model.refuse_other_values(digests)
        self.refuse_changed()
        try:
            result = self._finish(number)
        except Error as failure:
            raise self._explain(failure, number, data, loss_sum) from None
        if self.observer is not None:
            self.observer(number, self._recorder)
        return result

    def _digests(self, number):
        """Return digests of what the turns of an audited step must not change."""
        if number >= self._settings["audit_steps"]:
            return []
        # the library itself sees changes of the memory that it updates
        copies = not (self._on_host and self.optimizer.in_library) and not self._has_replicas()
        return self.model.digests(self._settings["buffers"], trained=copies)

    def _all_turns(self, number, data, loss_sum):
        turn, replicas = _library.Turn(), self._has_replicas()
        if self._sharded is not None:
            self._sharded.show()
        try:
            while lk.parallel_next(self._handle, turn):
                if replicas:
                    self._show_replica(turn.virtual_worker)
                self._turn(number, turn.virtual_worker, turn.micro_index, data, loss_sum)
        except (Interrupted, RuntimeError):
            if self._sharded is None or not self._sharded.interrupted:
                raise   # otherwise lk_parallel_finish() has the reason
        if self._sharded is not None:
            self._sharded.hide()

    def _show_replica(self, virtual_worker):
        """Give the model the weights of the replica of a virtual worker, and its layers the running
        statistics, until ``read_back()``."""
        replica = virtual_worker // self._width
        if replica == self._shown:
            return
        self._shown = replica
        self.place_params()
        self._running = {}
        for i, (_, buffer, norm) in enumerate(self._states):
            values = view(lk.parallel_state_data(self._handle, i), buffer)
            self._running.setdefault(norm, []).append(values)

    def _begin_norms(self):
        """Prepare the running statistics, and give those of layers that were in evaluation mode to
        the library.  Layers that are in evaluation mode have the mean of all replicas."""
        if any(not norm.module.training for norm in self.model.norms):
            self._average()
        for norm in self.model.norms:
            norm.begin_step()
        for i, (_, _, norm) in enumerate(self._states):
            if norm.trains and norm.stale:
                self._load_state(i)

    def _turn(self, number, virtual_worker, micro, data, loss_sum):
        model = self.model
        batch, samples = data.fetch_counted(number, virtual_worker, micro)
        if self._sharded is not None:
            self._sharded.begin_turn()
        if samples == 0:
            self._drop_gradients()
            self._begin_backward()
            self._end_backward()
            return
        marks = model.marks(self._settings["buffers"])
        loss, count, hits = self._compute(number, virtual_worker, micro, batch, loss_sum)
        model.refuse_marked(marks)
        self._add_running(samples)
        lk.parallel_report(self._handle, 0, loss.item(), samples, count, hits)

    def _compute(self, number, virtual_worker, micro, batch, loss_sum, adds=True):
        """Compute the loss and the gradients of a micro-batch.  If not `adds`, gradients are only
        recorded."""
        self._drop_gradients()
        for norm in self.model.norms:
            norm.begin_turn(self._running.get(norm))
        if self._recorder is not None:
            self._recorder.begin(virtual_worker, micro, batch)
        seeds.seed_all(seeds.key(self._settings["seed"], "turn", number, virtual_worker, micro))
        with contextlib.nullcontext() if self._sharded is None else self._sharded.watching():
            result = evaluate_loss(loss_sum, self.model.module, batch)
            if self._recorder is not None:
                self._recorder.end_forward(result)
            if self.group.rank == 0 and not self._warned:
                self._warned = warn_of_mean(*result[:2])
            self._backward(result[0], adds)
        return result

    def _drop_gradients(self):
        """Forget gradients from before the turn: those that the step before has left to the
        program, and those of the program's own backward passes."""
        for p in self.model.params:
            p.grad = None

    def _backward(self, loss, adds):
        if not loss.requires_grad:
            raise ValueError("the loss does not depend on a parameter that is trained: the loss "
                             "function must not use torch.no_grad(), detach() or item() for it")
        if adds:
            self._begin_backward()
        loss.backward() if self._sharded is None else uses.backward(loss)
        if adds:
            self._end_backward()
            return
        for p, name in reversed(list(zip(self.model.params, self.model.names))):
            self._recorder.add("gradient", name, p.grad)

    def _add_running(self, samples):
        for i, (_, buffer, _) in enumerate(self._states):
            total = view(lk.parallel_state_sum(self._handle, 0, i), buffer)
            total.add_(buffer.cpu() * samples)   # the product is rounded

    def _finish(self, number):
        for norm in self.model.norms:
            norm.end_turns()
        result = _library.Result()
        lk.parallel_finish(self._handle, 1.0, result)   # rules have whole learning rates
        self.read_back(number)
        return result

    def read_back(self, number):
        """Make the model see the values after step `number`."""
        self._shown, self._running = None, {}
        self.place_params()
        if not self.optimizer.in_library:
            for i, p in enumerate(self.model.params):
                p.grad = self.value(i, 1).clone().to(p.device)
            seeds.seed_all(seeds.key(self._settings["seed"], "update", number))
            self.optimizer.update()
        for i, (_, buffer, norm) in enumerate(self._states):
            if norm.trains:
                buffer.copy_(view(lk.parallel_state_data(self._handle, i), buffer))
        for norm in self.model.norms:
            norm.count(self._micros)

    def _average(self):
        """Give the model the mean of all replicas, if these average with their neighbours only."""
        if self._replicas is None or self._replicas.topology == 0:
            return
        norms = [norm for norm in self.model.norms if norm.trains and not norm.is_stale()]
        lk.parallel_average(self._handle)
        self.place_params()
        for i, (_, buffer, norm) in enumerate(self._states):
            if norm in norms:
                buffer.copy_(view(lk.parallel_state_data(self._handle, i), buffer))
        for norm in norms:
            norm.count(0)

    def outer_step(self):
        """Return the ``OuterStep`` that the last step included, or None."""
        return local.outer_step(self._handle)

    def _own_virtual_workers(self):
        first, count, stride = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32()
        lk.parallel_share(self._handle, first, count, stride)
        return [first.value + i * stride.value for i in range(count.value)]

    # ---- Audits ------------------------------------------------------------------------------

    def _explain(self, failure, number, data, loss_sum):
        """Return the failure of a step, explained if an audit found a difference."""
        finding = _library.Finding()
        if failure.status != "ECORRUPT" or not lk.parallel_finding(self._handle, finding):
            return failure
        known = trace.classes(self.model.module)
        where, advice = trace.explain_finding(known, finding.what.decode())
        if not (self.survives and finding.odd < finding.count):   # or the group is failed already
            records = self._repeat(finding, number, data, loss_sum)
            where, advice = trace.explain(known, *records, f"the data set ({data.kind})") or (
                where, f"{advice}.  Computed once more, the results are equal, so it happens "
                "seldom, only in the first calls, or by values kept from call to call: see what "
                "python -m lockstep.torch selftest finds")
            self.group.fail_together()
        return Error(failure.status, f"step {finding.step}: {_results(finding)} of virtual worker "
                     f"{finding.virtual_worker}.  The first difference is in {where}.  {advice}.  "
                     f"{trace.explain_compiled(self.model.module)}If there is no such thing, the "
                     "processor or the memory of a machine is faulty.  Nothing was updated")

    def _repeat(self, finding, number, data, loss_sum):
        """Have the two ranks whose results differ compute them once more, and return the records
        of both, which have all values on the way.  Collective."""
        ranks = {lk.comm_world_rank(self.group.comm, r): r for r in range(self.group.size)}
        records = []
        for rank in finding.ranks[0], finding.ranks[min(1, finding.count - 1)]:
            root, mine = ranks[rank], None
            if root == self.group.rank:
                mine = self._record(number, finding.virtual_worker, data, loss_sum)
            records.append(self.group.share(mine, root))
        return records

    def _record(self, number, virtual_worker, data, loss_sum):
        """Compute a virtual worker outside of the library and return its records, one after the
        other."""
        self._recorder = trace.Recorder(self.model.module)
        for micro in range(data.micro_count):
            batch, samples = data.fetch_counted(number, virtual_worker, micro)
            if samples:
                self._compute(number, virtual_worker, micro, batch, loss_sum, adds=False)
        return [entry for record in self._recorder.turns.values() for entry in record]

    # ---- After a loss ------------------------------------------------------------------------

    def go_on(self):
        """Continue in another group, which took over the arenas.  Return the standing of the run:
        if an interrupted step is complete, its result."""
        self._waiting = None
        for norm in self.model.norms:
            norm.end_turns()
        failed, handle, standing = self._handle, ctypes.c_void_p(), _library.Standing()
        lk.parallel_go_on(handle, failed, self.group.comm, self._params, len(self.model.params),
                          self._options, standing)
        self._handle, self._views, self._holding = handle, {}, False
        self._use_handle()
        self.place_params()
        lk.parallel_free(failed)
        return standing

    # ---- Sharded parameters ------------------------------------------------------------------

    def _use_handle(self):
        if self._sharded is not None:
            self._sharded.open(self._handle)

    def _take_before(self, block):
        """Take the gradients of the blocks before a block, complete or not used."""
        for param in list(self._waiting):
            if self._sharded.block_of[param] >= block:
                return
            if param in self._waiting:
                self._take(param)

    @property
    def sharded(self):
        """True if no host has all parameters."""
        return self._sharded is not None

    def gather(self, everywhere=True):
        """Give the model all parameters, on rank 0 or `everywhere`, until ``scatter()``, if they
        are sharded.  With a topology give it the mean of all replicas.  Collective."""
        self._average()
        if self._sharded is None or self._holding:
            return
        try:
            for i, p in enumerate(self.model.params):
                value = self.value(i, 0)
                if everywhere or self.group.rank == 0:
                    p.data = value
        except BaseException:
            self._sharded.hide()
            raise
        self._holding = everywhere
        self._versions = [p._version for p in self.model.params]

    def refuse_written(self):
        """Raise ``RuntimeError`` if a parameter was changed since ``gather()``."""
        if self._sharded is None or not self._holding:
            return
        for name, p, version in zip(self.model.names, self.model.params, self._versions):
            if p._version != version:
                raise RuntimeError(f"parameter '{name}' was changed within `with run.gathered()`: "
                                   "parameters change only in steps")

    def scatter(self):
        """Let go of what ``gather()`` brought, unless the program holds it."""
        if self._sharded is not None and self.holds == 0:
            self._holding = False
            self._sharded.hide()


def undecayed(model, optimizer):
    """Return for each parameter whether the optimizer treats it as one without weight decay."""
    rates = optimizer.rates() if optimizer.undecayed_unscaled else {}
    return [id(p) in rates and rates[id(p)][1] == 0 for p in model.params]


def _results(finding):
    """Say which ranks of an audit have computed what."""
    ranks = [str(r) for r in finding.ranks[:finding.count]]
    if finding.odd >= finding.count:
        ranks.sort()
    if finding.count == 1:
        return f"rank {ranks[0]} computed two different results"
    if finding.odd < finding.count:
        odd = ranks.pop(finding.odd)
        return f"rank {odd} computed another result than ranks {' and '.join(ranks)}"
    return f"ranks {', '.join(ranks[:-1])} and {ranks[-1]} computed different results"
