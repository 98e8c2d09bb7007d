"""Checkpoints: safetensors files with torch's names, written and read by the C library.

``model.safetensors`` has what ``state_dict()`` of the model returns, so a plain torch model loads
it.  A parameter that has two names is there under both.  ``optimizer.safetensors`` has the states
of the optimizer as "NAME.exp_avg", parameter by parameter.  ``groups.safetensors`` has what groups
keep between steps as "NAME.error.3", if there are groups.  With replicas these are their weights,
states of the optimizer and running statistics, and ``optimizer.safetensors`` has the states of the
outer optimizer.  The manifest's configuration has what the result depends on, and the states of the
schedulers.

Rank 0 writes and reads.  The other ranks send it the values that only their hosts have, and receive
what it reads.  What rank 0 cannot write or read is an error of all ranks.
"""

import ctypes
import json
import os

import torch

from lockstep import _library
from lockstep._library import RANK_MAX, Error, layout, lk
from lockstep.torch import environment, plain, trace
from lockstep.torch.compress import settle

MODEL, OPTIMIZER, GROUPS = "model.safetensors", "optimizer.safetensors", "groups.safetensors"

_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
          torch.int8: "I8", torch.uint8: "U8", torch.int16: "I16", torch.int32: "I32",
          torch.int64: "I64", torch.bool: "U8"}
_CODES = {dtype: layout.constants["LK_" + kind] for dtype, kind in _KINDS.items()}
_DTYPES = {_CODES[dtype]: dtype for dtype in _KINDS if dtype is not torch.bool}

# The part of a configuration with those states of an optimizer of torch that are no tensors.
_NUMBERS = "numbers"
# The part with the types and strides of those that a file holds in others.
_FORMS = "forms"

# What init() is given and does not change the bits of a run.
_FREE = ("seed", "strategy", "audit_steps", "buffers", "shard_hosts")
# What a run must have as its checkpoint has it.  The rest of an environment makes the exactness id.
_CHOSEN = ("virtual_workers", "threads", "deterministic", "dtype", "matmul", "groups", "compress",
           "local_steps", "local_start", "outer", "topology")

# ---- What a checkpoint holds --------------------------------------------------------------------


class _Item:
    """A tensor of a file.  `read()` returns its value; it is collective if `address` is None and
    the value is on several hosts."""

    def __init__(self, name, like, read, address=None):
        self.name, self.read, self.address = name, read, address
        self.code, self.shape = _CODES[like.dtype], list(like.shape)
        self.width = like.element_size()

    def describe(self, c):
        """Fill an lk_tensor."""
        c.name, c.dtype, c.data = self.name.encode(), self.code, self.address
        c.shape.rank = len(self.shape)
        c.shape.dims[:len(self.shape)] = self.shape


def model_tensors(module):
    """Return {name: tensor} of a module's parameters and persistent buffers, in torch's order.
    Raise ``TypeError`` for what a checkpoint cannot hold."""
    tensors = module.state_dict(keep_vars=True)
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"'{name}' in the state dict of the model is a {type(value).__name__}; "
                            "a checkpoint holds tensors only")
        if value.dtype not in _CODES:
            raise TypeError(f"'{name}' is of {value.dtype}, which a checkpoint cannot hold")
        if value.dim() > RANK_MAX:
            raise TypeError(f"'{name}' has {value.dim()} dimensions; a checkpoint holds at most "
                            f"{RANK_MAX}")
    return {trace.plain_name(name): value.detach() for name, value in tensors.items()}


def added_state(module):
    """Return the part of a module's state dict that its own methods, such as get_extra_state() or a
    hook, add to the parameters and buffers."""
    state = module.state_dict(keep_vars=True)
    own = set(map(id, (*module.parameters(), *module.buffers())))
    for name in [name for name, value in state.items() if id(value) in own]:
        del state[name]
    return state


def load_added_state(module, values):
    """Give a module the values of ``added_state()`` of another process."""
    state = added_state(module)   # with the versions of modules, without which some load otherwise
    state.clear()
    state.update(values)
    module.load_state_dict(state, strict=False)


def _model_items(module):
    items = []
    for name, value in model_tensors(module).items():
        value = value.cpu()   # itself, unless it is on a GPU
        address = value.data_ptr() if value.is_contiguous() else None
        items.append(_Item(name, value, lambda value=value: value, address))
    return items


def _optimizer_items(engine):
    if not engine.optimizer.in_library:
        return _torch_items(engine)
    items = []
    for i, (name, p) in enumerate(zip(engine.model.names, engine.model.params)):
        for w, state in enumerate(engine.state_names, start=1):
            address = engine.address(i, w) if p.is_contiguous() else None
            items.append(_Item(f"{name}.{state}", p, lambda i=i, w=w: engine.value(i, w), address))
    return items


def _group_items(engine):
    """What groups keep between steps.  All items are read by all ranks."""
    return [_Item(kept.name, kept.like, lambda kept=kept: engine.kept_value(kept))
            for kept in engine.kept()]


def _torch_items(engine):
    """The states of an optimizer of torch.  Every worker has all of them."""
    items = []
    for i, key, value in engine.optimizer.states(engine.model):
        name = engine.model.names[i]
        if not isinstance(value, torch.Tensor):   # Contents has it
            continue
        if value.dtype not in _CODES:
            raise TypeError(f"the optimizer's state '{key}' of '{name}' is of {value.dtype}, "
                            "which a checkpoint cannot hold")
        value = value.detach().cpu().contiguous()
        items.append(_Item(f"{name}.{key}", value, lambda value=value: value, value.data_ptr()))
    return items


def _c_tensors(items):
    tensors = (_library.Tensor * max(1, len(items)))()
    for c, item in zip(tensors, items):
        item.describe(c)
    return tensors


def weights_hash(group, module):
    """Return the hash of what ``model.safetensors`` would hold.  Collective."""
    items = _model_items(module)
    with group.patient():
        return group.share(_hash(items) if group.rank == 0 else None)


def hash_of_copy(module, buffers):
    """Return 64 bits of the hash of this worker's parameters, and of its buffers if `buffers`."""
    params = {trace.plain_name(name) for name, _ in module.named_parameters()}
    items = [item for item in _model_items(module) if buffers or item.name in params]
    return int(_hash(items)[:16], 16)


def _hash(items):
    digits, seen = ctypes.create_string_buffer(65), set()
    for item in items:
        _own_memory(item, seen)
    lk.weights_hash(_c_tensors(items), len(items), digits)
    return digits.value.decode()


def _own_memory(item, seen):
    """Give a tensor contiguous memory that no earlier one has, as in a file.  lk_weights_hash()
    would not count a second name of the same memory."""
    if item.address is not None and item.address not in seen:
        seen.add(item.address)
        return
    item.copy = item.read().clone(memory_format=torch.contiguous_format)
    item.address = item.copy.data_ptr()


def schedulers_to_json(schedulers):
    """Return what is needed to restore schedulers.  Raise ``TypeError`` with the name of a part
    that a checkpoint cannot hold."""
    described = []
    for scheduler in schedulers:
        kind = type(scheduler).__name__
        # before torch 2.1 OneCycleLR lists a method of its own, which the new object has, too
        state = {k: v for k, v in scheduler.state_dict().items()
                 if getattr(v, "__self__", None) is not scheduler}
        described.append({"class": kind, "state": plain.to_json(state, kind, tuples=True)})
    return described


class Contents:
    """What the manifest tells of a run, besides its tensors.

    `described` is that of ``environment.describe()``, `data` that of a loader, or None.
    """

    def __init__(self, described, module, optimizer, schedulers, data, step):
        self.step, self.seed = step, described["seed"]
        names = {id(p): trace.plain_name(name) for name, p in module.named_parameters()}
        groups = [dict(g, params=[names.get(id(p), "") for p in g["params"]])
                  for g in optimizer.param_groups]
        self.machine = plain.to_json({k: v for k, v in described.items()
                                      if k not in _FREE + _CHOSEN}, "environment")
        self.config = {
            "program": "lockstep.torch",
            "settings": {k: described[k] for k in _CHOSEN if k in described},
            "machine": self.machine,
            "data": plain.to_json(data, "loader"),
            "optimizer": plain.to_json(optimizer.describe(), "optimizer"),
            "groups": plain.to_json(groups, "param_groups"),
            "schedulers": schedulers_to_json(schedulers)}
        if not optimizer.in_library:
            for part, found in ((_NUMBERS, optimizer.numbers(names)),
                                (_FORMS, optimizer.forms(names))):
                if found:
                    self.config[part] = plain.to_json(found, "optimizer.state", tuples=True)
        self.exactness_id = environment.exactness_id(self.machine)


def fixed(config):
    """Return the parts of a ``Contents.config`` that do not change between steps."""
    return dict(config, groups=[g["params"] for g in config["groups"]],
                schedulers=[s["class"] for s in config["schedulers"]],
                **{_NUMBERS: None, _FORMS: None})


def restore_settings(config, optimizer, schedulers):
    """Set the options of parameter groups, and the states of schedulers, to those of a
    ``Contents.config``."""
    for group, stored in zip(optimizer.param_groups, config["groups"]):
        for name, value in plain.from_json(stored).items():
            if name != "params":
                group[name] = tuple(value) if isinstance(group.get(name), tuple) else value
    for scheduler, stored in zip(schedulers, config["schedulers"]):
        scheduler.load_state_dict(plain.from_json(stored["state"]))


# ---- Saving -------------------------------------------------------------------------------------


def save(group, engine, directory, contents, keep):
    """Write DIR/step-XXXXXXXX; if it exists with the same contents, leave it.  Collective.

    Raise ``lockstep.Error`` on all ranks if rank 0 cannot write it.
    """
    weights = weights_hash(group, engine.model.module)
    optimizer, groups = _optimizer_items(engine), _group_items(engine)
    with group.patient():
        wanted = group.share_work(lambda: not _is_there(directory, contents, weights))
        if not wanted:
            return
        if group.rank == 0:
            writer = _Writer(optimizer, groups)
            group.share_work(lambda: writer.write(engine, directory, contents, weights, keep))
        else:
            for item in optimizer + groups:
                if item.address is None:
                    item.read()
            group.share_work(None)


def _is_there(directory, contents, weights):
    path = os.path.join(directory, f"step-{contents.step:08d}")
    try:
        checkpoint = _Open(path)
    except Error:   # there is none, or a damaged one, which is renamed
        return False
    try:
        mine = {"weights": weights, "exactness id": contents.exactness_id, **contents.config}
        theirs = {"weights": checkpoint.weights, "exactness id": checkpoint.exactness_id,
                  **checkpoint.config}
    finally:
        checkpoint.close()
    difference = plain.first_difference(theirs, mine)
    if difference is not None:
        name, there, here = difference
        raise Error("EINVAL", f"'{path}' exists already and differs: {name} is {there!r} there, "
                    f"and {here!r} here; give another directory")
    return True


class _Writer:
    """Writes the files of a checkpoint on rank 0, and fetches what other hosts have."""

    def __init__(self, optimizer_items, group_items):
        self._items = optimizer_items + group_items
        self._parts = (OPTIMIZER, optimizer_items), (GROUPS, group_items)
        self._fetched = 0          # the number of items that need no further fetch
        self._value = None         # of the tensor that is written
        self._failure = None       # what ended a fetch

    def write(self, engine, directory, contents, weights, keep):
        try:
            self._write(_model_items(engine.model.module), directory, contents, weights, keep)
        finally:
            if self._failure is None:
                self._fetch_rest()

    def _write(self, model_items, directory, contents, weights, keep):
        info = _library.CheckpointInfo(
            step=contents.step, seed=contents.seed, exactness_id=contents.exactness_id.encode(),
            weights=weights.encode(), config=json.dumps(contents.config).encode())
        parts, first = [(MODEL, model_items, None)], 0
        for name, items in self._parts:
            parts += [(name, items, first)] if items else []
            first += len(items)
        files = (_library.CheckpointFile * len(parts))()
        for c, (name, items, first) in zip(files, parts):
            c.name, c.tensors, c.tensor_count = name.encode(), _c_tensors(items), len(items)
            c.fetch = _library.Fetch(
                lambda _, tensor, at, count, out, items=items, first=first:
                self._fetch(items, first, tensor, at, count, out))
        try:
            lk.checkpoint_write(directory.encode(), info, files, len(parts), keep)
        except Error:
            if self._failure is not None:
                raise self._failure
            raise

    def _fetch(self, items, first, tensor, at, count, out):
        """Copy elements of a tensor to `out`, for the library.  `first` is the number of the
        file's first item, None for the model.  No exception may pass through C."""
        try:
            item = items[tensor]
            if at == 0:
                self._value = item.read().contiguous()
                if first is not None:
                    self._fetched = first + tensor + 1
            ctypes.memmove(out, self._value.data_ptr() + at * item.width, count * item.width)
            return 0
        except BaseException as failure:
            self._failure = failure
            return layout.constants["LK_EPEER"]

    def _fetch_rest(self):
        """Take part in the fetches of the other ranks that a failed write has left out."""
        for item in self._items[self._fetched:]:
            if item.address is None:
                item.read()


# ---- Reading ------------------------------------------------------------------------------------


class _Open:
    """An open checkpoint, of which every byte has been verified."""

    def __init__(self, path):
        notes = ctypes.create_string_buffer(4096)
        self._handle = ctypes.c_void_p()
        lk.checkpoint_open(self._handle, os.fspath(path).encode(), notes, len(notes))
        self.notes = notes.value.decode(errors="replace").splitlines()
        self.path = lk.checkpoint_path(self._handle).decode()
        info = lk.checkpoint_describe(self._handle).contents
        self.step, self.seed = info.step, info.seed
        self.weights, self.exactness_id = info.weights.decode(), info.exactness_id.decode()
        self.config = json.loads(info.config.decode())
        self._tensors = {}
        index = 0
        while True:
            c = lk.checkpoint_tensor(self._handle, index)
            if not c:
                break
            file = lk.checkpoint_tensor_file(self._handle, index).decode()
            self._tensors[file, c.contents.name.decode()] = c.contents
            index += 1

    def tensors(self, file):
        """Return {name: [type code, shape]} of the tensors of a file."""
        return {name: [c.dtype, list(c.shape.dims[:c.shape.rank])]
                for (f, name), c in self._tensors.items() if f == file}

    def copy(self, file, name, out):
        """Copy a tensor to the memory of a contiguous tensor of its type and shape."""
        ctypes.memmove(out.data_ptr(), self._tensors[file, name].data,
                       out.numel() * out.element_size())

    def close(self):
        lk.checkpoint_free(self._handle)
        self._handle, self._tensors = None, {}


class Stored:
    """The checkpoint from which a run continues.  Rank 0 has it open."""

    def __init__(self, group, about):
        self._group, self._open = group, None
        self.path, self.step, self.seed = about["path"], about["step"], about["seed"]
        self.exactness_id, self.config = about["exactness_id"], about["config"]
        self._tensors = {MODEL: about["model"], OPTIMIZER: about["optimizer"],
                         GROUPS: about["groups"]}

    # ---- Comparing -------------------------------------------------------------------------

    def check(self, contents, module, state_names, trained):
        """Raise ``ValueError`` with the first difference if the checkpoint is that of another
        model or configuration.  `state_names` is None if they are not known yet."""
        if self.config.get("program") != "lockstep.torch":
            raise ValueError(f"'{self.path}' is not a checkpoint of lockstep.torch; its "
                             f"{MODEL} may be loaded as weights")
        self._check_tensors(MODEL, {name: [_CODES[t.dtype], list(t.shape)]
                                    for name, t in model_tensors(module).items()})
        self._compare("seed", self.seed, contents.seed)
        self._compare("settings", *(settle(c["settings"], c["optimizer"])
                                    for c in (self.config, contents.config)))
        self._compare("optimizer", self.config["optimizer"], contents.config["optimizer"])
        groups = [[g["params"] for g in c["groups"]] for c in (self.config, contents.config)]
        self._compare("number of parameter groups", *map(len, groups))
        self._compare("parameters of groups", *groups)
        kinds = [[s["class"] for s in c["schedulers"]] for c in (self.config, contents.config)]
        self._compare("schedulers", *map(", ".join, kinds))
        if state_names is not None:
            self._check_tensors(OPTIMIZER,
                                {f"{name}.{state}": [_CODES[torch.float32], list(p.shape)]
                                 for name, p in trained for state in state_names})

    def check_data(self, described):
        """Raise ``ValueError`` if a loader differs from that of the checkpoint."""
        if self.config["data"] is not None:
            self._compare("loader", self.config["data"], plain.to_json(described, "loader"))

    def _compare(self, name, there, here):
        difference = plain.first_difference(there, here, name)
        if difference is not None:
            name, there, here = difference
            raise ValueError(f"'{self.path}' is a checkpoint of another run: {name} is {there!r} "
                             f"there, and {here!r} here")

    def _check_tensors(self, file, mine):
        stored = self._tensors[file]
        for name in [*mine, *(n for n in stored if n not in mine)]:
            if stored.get(name) != mine.get(name):
                raise ValueError(f"'{self.path}' is a checkpoint of another model: '{name}' is "
                                 f"{_words(stored.get(name))} in its {file}, and "
                                 f"{_words(mine.get(name))} here")

    def warning(self, contents):
        """Return a line if torch or the machine differ from those of the checkpoint, or None."""
        if self.exactness_id == contents.exactness_id:
            return None
        difference = plain.first_difference(self.config["machine"], contents.machine)
        name, there, here = difference or ("exactness id", self.exactness_id, contents.exactness_id)
        return (f"lockstep: warning: '{self.path}' was made with {name} {there!r}, and this is "
                f"{here!r}: bits may differ from here on")

    # ---- Restoring -------------------------------------------------------------------------

    def restore_model(self, module):
        """Set the parameters and buffers of a module, and what its own methods add to the state
        dict.  Collective."""
        state, usual = module.state_dict(keep_vars=True), not added_state(module)
        with self._group.patient(), torch.no_grad():
            for name, tensor in state.items():
                value = self._read(MODEL, trace.plain_name(name))
                if usual:
                    tensor.copy_(value)
                else:
                    state[name] = value.to(tensor)   # in its type, which is another one for bool
            if not usual:
                module.load_state_dict(state)

    def restore(self, engine):
        """Set the states of the optimizer, and what groups keep between steps.  Collective."""
        with self._group.patient():
            self._restore_optimizer(engine)
            for kept in engine.kept():
                engine.load_kept(kept, self._read(GROUPS, kept.name))

    def _restore_optimizer(self, engine):
        if not engine.optimizer.in_library:
            self._restore_torch(engine)
            return
        for i, name in enumerate(engine.model.names):
            for w, state in enumerate(engine.state_names, start=1):
                engine.load(i, w, self._read(OPTIMIZER, f"{name}.{state}"))

    def _restore_torch(self, engine):
        params = dict(zip(engine.model.names, engine.model.params))
        forms = self.config.get(_FORMS, {})
        values = {name: _formed(self._read(OPTIMIZER, name), **forms.get(name, {}))
                  for name in self._tensors[OPTIMIZER]}
        values.update(plain.from_json(self.config.get(_NUMBERS, {})))
        groups = {id(p): g for g in engine.optimizer.torch.param_groups for p in g["params"]}
        for name, value in values.items():
            owner, _, key = name.rpartition(".")
            p = params[owner]
            engine.optimizer.torch.state[p][key] = _placed(value, key, p, groups[id(p)])

    def _read(self, file, name):
        """Return a tensor that rank 0 reads and sends.  Collective."""
        code, shape = self._tensors[file][name]
        out = torch.empty(shape, dtype=_DTYPES[code])
        if self._group.rank == 0:
            if self._open is None:   # this rank was another one when the checkpoint was found
                self._open = _Open(self.path)
            self._open.copy(file, name, out)
        lk.broadcast(self._group.comm, out.data_ptr(), out.numel() * out.element_size(), 0)
        return out

    def close(self):
        if self._open is not None:
            self._open.close()
            self._open = None


def _formed(value, dtype=None, strides=None):
    """Return a state in the type, and with the strides, that its optimizer has given it."""
    if dtype is not None:
        value = value.to(getattr(torch, dtype))
    if strides is None:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def _placed(value, key, p, group):
    """Return a state of an optimizer of torch on the device of its parameter.  The number of steps
    is there only with fused or capturable kernels, as after load_state_dict() of torch."""
    if not isinstance(value, torch.Tensor) or (
            key == "step" and not (group.get("fused") or group.get("capturable"))):
        return value
    return value.to(p.device)


def _words(described):
    """Return a type and shape in words: "F32 [3, 4]"."""
    if described is None:
        return "missing"
    code, shape = described
    return f"{_KINDS[_DTYPES[code]]} {shape}"


def find(group, directory):
    """Return the newest valid checkpoint of a directory as ``Stored``, or None, and notes on the
    damaged ones.  Collective."""
    opened = []

    def look():
        exists = ctypes.c_bool()
        lk.checkpoint_exists(directory.encode(), exists)
        if not exists:
            return None
        c = _Open(directory)
        opened.append(c)
        return {"path": c.path, "step": c.step, "seed": str(c.seed), "config": c.config,
                "exactness_id": c.exactness_id, "notes": c.notes,
                "model": c.tensors(MODEL), "optimizer": c.tensors(OPTIMIZER),
                "groups": c.tensors(GROUPS)}

    with group.patient():
        about = group.share_work(look)
    if about is None:
        return None, []
    stored = Stored(group, dict(about, seed=int(about["seed"])))
    stored._open = opened[0] if opened else None
    return stored, about["notes"]


# ---- State dicts --------------------------------------------------------------------------------


def optimizer_state(engine, step):
    """Return the states of the optimizer as torch has them: {parameter: {"step", "exp_avg", ...}}.
    Collective."""
    states = {}
    for i, p in enumerate(engine.model.params):
        states[p] = {"step": torch.tensor(float(step))}
        for w, name in enumerate(engine.state_names, start=1):
            states[p][name] = engine.value(i, w).clone()
    return states


def load_optimizer_state(engine, states, step):
    """Set the states of the optimizer from those of torch, in all replicas if there are some.
    Collective."""
    names = engine.optimizer.state_names()
    known = {"step", *names}
    for i, (name, p) in enumerate(zip(engine.model.names, engine.model.params)):
        state = states.get(p, {})
        for other in state.keys() - known:
            raise ValueError(f"the state of '{name}' has '{other}', which this optimizer does not "
                             "keep")
        steps = int(state.get("step", step))
        if steps != step:
            raise ValueError(f"the optimizer's state is that of step {steps}, but the run is at "
                             f"step {step}: call run.resume(), which goes on from the state")
        for w, kind in enumerate(names, start=1):
            value = state.get(kind)
            engine.load_state(i, w, torch.zeros_like(p.data) if value is None else value)
