"""The C library: finding it, its functions, and its failures as exceptions."""

import ctypes
import os
import pathlib
from ctypes import POINTER, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_size_t
from ctypes import c_uint32, c_uint64, c_void_p

from lockstep._layout import Layout

_NAME = "liblockstep.so.0"


class Error(RuntimeError):
    """A failed call of the library.

    ``status`` is the name of the C status, for example ``"EMISMATCH"``.  The message says what
    failed, on which rank, and what to do.
    """

    everywhere = False   # true: all ranks raise it, and none is lost

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


# ---- Loading -----------------------------------------------------------------------------------


def _reserve_standard():
    """Reserve descriptors 0, 1 and 2, if they are closed, as the command does.

    A log that is opened as one of them would get output that is not for it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open("/dev/null", os.O_PATH), True)


def _candidates():
    """Yield the places where the library may be, in the order in which they are tried."""
    if "LOCKSTEP_LIBRARY" in os.environ:
        yield os.environ["LOCKSTEP_LIBRARY"]
        return
    package = pathlib.Path(__file__).resolve().parent
    yield str(package / "lib" / _NAME)
    yield str(package.parent.parent / "build" / "release" / "lib" / _NAME)
    yield _NAME


def _load():
    tried = []
    for path in _candidates():
        if "/" in path and not os.path.exists(path):
            tried.append(f"{path}: no such file")
            continue
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    raise ImportError("the lockstep library cannot be loaded (LOCKSTEP_LIBRARY may name it): "
                      + "; ".join(tried))


_reserve_standard()
_lib = _load()
path = _lib._name
_lib.lk_layout.restype = c_char_p
layout = Layout(_lib.lk_layout().decode())
RANK_MAX = layout.constants["LK_RANK_MAX"]
NAME_MAX = layout.constants["LK_NAME_MAX"]

# ---- Structs -----------------------------------------------------------------------------------

Shape = layout.struct("lk_shape", rank=c_uint32, dims=c_uint64 * RANK_MAX)
Tensor = layout.struct("lk_tensor", name=c_char_p, dtype=c_uint32, shape=Shape, data=c_void_p)
Param = layout.struct("lk_param", name=c_char * NAME_MAX, shape=Shape, uses=c_uint32,
                      no_decay=c_bool)
Rule = layout.struct("lk_param_rule", lr=c_double, weight_decay=c_double, own_decay=c_uint64)
Optimizer = layout.struct("lk_optimizer", kind=c_uint32, momentum=c_double, nesterov=c_bool,
                          beta1=c_double, beta2=c_double, eps=c_double, weight_decay=c_double,
                          trust=c_double, decay_all=c_bool, uncorrected=c_bool)
Term = layout.struct("lk_parallel_term", param=c_uint32, use=c_uint32, same_block=c_uint32)
State = layout.struct("lk_parallel_state", name=c_char_p, count=c_size_t, initial=c_float,
                      momentum=c_float)
Compression = layout.struct("lk_compression", rank=c_uint32, min_rate=c_double, cold_start=c_bool,
                            ratio=c_double, seed=c_uint64, levels=c_uint32, bucket=c_uint32,
                            clip=c_double)
Exchange = layout.struct("lk_exchange", struct_size=c_size_t, groups=c_uint32,
                         compressor=c_void_p, compression=Compression, feedback=c_uint32,
                         momentum=c_double, nesterov=c_bool, clip=c_double, start=c_uint64,
                         warmup_count=c_uint32,
                         warmup=c_double * layout.constants["LK_WARMUP_RATIOS_MAX"],
                         warmup_span=c_uint64, auto_after=c_uint64)
Replicas = layout.struct("lk_replicas", struct_size=c_size_t, count=c_uint32, local_steps=c_uint64,
                         start=c_uint64, optimizer=Optimizer, lr=c_double, dtype=c_uint32,
                         fragments=c_uint32, delay=c_uint32, alpha=c_double, topology=c_uint32)
OuterStep = layout.struct("lk_outer_step", number=c_uint64, fragment=c_uint32, grad_norm=c_double,
                          drift=c_double, message_bytes=c_uint64)
Options = layout.struct("lk_parallel_options", struct_size=c_size_t, strategy=c_char_p,
                        virtual_workers=c_uint32, micro_count=c_uint32, bucket_bytes=c_size_t,
                        optimizer=Optimizer, clip_norm=c_double, clip_value=c_double,
                        unused=c_uint32, seed=c_uint64, terms=POINTER(Term), term_count=c_uint32,
                        states=POINTER(State), state_count=c_uint32, reads=POINTER(c_uint32),
                        read_count=c_uint32, shard_hosts=c_uint32, grad_algorithm=c_uint32,
                        rules=POINTER(Rule),
                        adds_once=c_bool, exchange=POINTER(Exchange),
                        replicas=POINTER(Replicas),
                        survives=c_bool, audit=c_double, audit_steps=c_uint64)
Turn = layout.struct("lk_parallel_turn", virtual_worker=c_uint32, micro_index=c_uint32,
                     again=c_bool)
Result = layout.struct("lk_step_result", loss=c_double, grad_norm=c_double, count=c_uint64,
                       hits=c_uint64, skipped=c_bool, unused=c_uint32, audited=c_uint32)
Finding = layout.struct("lk_audit_finding", step=c_uint64, virtual_worker=c_uint32,
                        ranks=c_uint32 * 3, count=c_uint32, odd=c_uint32,
                        what=c_char * (NAME_MAX + 64))
Standing = layout.struct("lk_parallel_standing", steps=c_uint64, last=Result, unfinished=c_uint32)
CommOptions = layout.struct("lk_comm_options", struct_size=c_size_t, timeout_ms=c_uint32)
JoinOptions = layout.struct("lk_join_options", struct_size=c_size_t, timeout_ms=c_uint32,
                            flight=c_char_p)
LastError = layout.struct("lk_error", status=c_int, where=c_char_p, message=c_char * 480)
CheckpointInfo = layout.struct("lk_checkpoint_info", step=c_uint64, seed=c_uint64,
                               exactness_id=c_char_p, weights=c_char_p, config=c_char_p)
Fetch = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_size_t, c_size_t, c_void_p)
CheckpointFile = layout.struct("lk_checkpoint_file", name=c_char_p, tensors=POINTER(Tensor),
                               tensor_count=c_size_t, fetch=Fetch)

DatasetOptions = layout.struct("lk_dataset_options", struct_size=c_size_t, context=c_uint32)
DatasetInfo = layout.struct("lk_dataset_info", content_hash=c_char * 33,
                            tokenizer_hash=c_char * 33)

# ---- Functions ---------------------------------------------------------------------------------

_out = POINTER(c_void_p)
_STATUS = "status"
_FUNCTIONS = {
    "lk_error_last": (POINTER(LastError), []),
    "lk_error_set": (c_int, [c_int, c_char_p]),
    "lk_status_name": (c_char_p, [c_int]),
    "lk_launched": (_STATUS, [POINTER(c_bool)]),
    "lk_join_with": (_STATUS, [_out, POINTER(JoinOptions)]),
    "lk_stop_requested": (c_bool, [c_void_p]),
    "lk_continues": (c_bool, []),
    "lk_enters": (c_bool, []),
    "lk_comm_free": (None, [c_void_p]),
    "lk_comm_rank": (c_uint32, [c_void_p]),
    "lk_comm_size": (c_uint32, [c_void_p]),
    "lk_comm_world_rank": (c_uint32, [c_void_p, c_uint32]),
    "lk_comm_hosts": (c_uint32, [c_void_p]),
    "lk_comm_host": (c_uint32, [c_void_p, c_uint32]),
    "lk_comm_local_rank": (c_uint32, [c_void_p, c_uint32]),
    "lk_comm_note": (None, [c_void_p, c_uint64, c_char_p]),
    "lk_comm_set_timeout": (None, [c_void_p, c_uint32]),
    "lk_comm_abort": (None, [c_void_p]),
    "lk_comm_rebuild": (_STATUS, [_out, c_void_p, POINTER(CommOptions)]),
    "lk_comm_awaited": (c_bool, [c_void_p]),
    "lk_comm_admit": (_STATUS, [_out, c_void_p, POINTER(CommOptions)]),
    "lk_comm_entered": (c_uint32, [c_void_p]),
    "lk_comm_take_arenas": (_STATUS, [c_void_p, c_void_p]),
    "lk_comm_has_lost": (c_bool, [c_void_p]),
    "lk_barrier": (_STATUS, [c_void_p]),
    "lk_broadcast": (_STATUS, [c_void_p, c_void_p, c_size_t, c_uint32]),
    "lk_all_gather": (_STATUS, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "lk_strategy_name": (c_char_p, [c_char_p]),
    "lk_parallel_open": (_STATUS, [_out, c_void_p, POINTER(Param), c_uint32, POINTER(Options)]),
    "lk_parallel_go_on": (_STATUS, [_out, c_void_p, c_void_p, POINTER(Param), c_uint32,
                                    POINTER(Options), POINTER(Standing)]),
    "lk_parallel_free": (None, [c_void_p]),
    "lk_parallel_set_rules": (_STATUS, [c_void_p, POINTER(Rule)]),
    "lk_parallel_param": (c_void_p, [c_void_p, c_uint32]),
    "lk_parallel_state_data": (c_void_p, [c_void_p, c_uint32]),
    "lk_parallel_load": (_STATUS, [c_void_p, c_uint32, c_uint32, c_void_p]),
    "lk_parallel_load_state": (_STATUS, [c_void_p, c_uint32, c_void_p]),
    "lk_parallel_value": (c_void_p, [c_void_p, c_uint32, c_uint32]),
    "lk_parallel_fetch": (_STATUS, [c_void_p, c_uint32, c_uint32, c_size_t, c_size_t, c_void_p]),
    "lk_compressor_find": (_STATUS, [_out, c_char_p]),
    "lk_feedback_find": (_STATUS, [POINTER(c_uint32), c_char_p]),
    "lk_parallel_groups": (c_uint32, [c_void_p]),
    "lk_parallel_kept_name": (c_char_p, [c_void_p, c_uint32, c_uint32]),
    "lk_parallel_kept_groups": (c_uint32, [c_void_p, c_uint32]),
    "lk_parallel_fetch_kept": (_STATUS, [c_void_p, c_uint32, c_uint32, c_uint32, c_size_t,
                                         c_size_t, c_void_p]),
    "lk_parallel_load_kept": (_STATUS, [c_void_p, c_uint32, c_uint32, c_uint32, c_void_p]),
    "lk_parallel_shared": (c_void_p, [c_void_p, c_uint32, POINTER(c_size_t)]),
    "lk_parallel_load_shared": (_STATUS, [c_void_p, c_uint32, c_void_p]),
    "lk_parallel_fetch_replica_state": (_STATUS, [c_void_p, c_uint32, c_uint32, c_void_p]),
    "lk_parallel_load_replica_state": (_STATUS, [c_void_p, c_uint32, c_uint32, c_void_p]),
    "lk_parallel_average": (_STATUS, [c_void_p]),
    "lk_parallel_outer_step": (OuterStep, [c_void_p]),
    "lk_parallel_resume": (_STATUS, [c_void_p, c_uint64]),
    "lk_parallel_share": (None, [c_void_p, POINTER(c_uint32), POINTER(c_uint32),
                                 POINTER(c_uint32)]),
    "lk_parallel_begin_micros": (_STATUS, [c_void_p, c_uint64, c_uint32]),
    "lk_parallel_next": (c_bool, [c_void_p, POINTER(Turn)]),
    "lk_parallel_read": (c_bool, [c_void_p, c_uint32]),
    "lk_parallel_grad_new": (c_void_p, [c_void_p, c_uint32, c_uint32, POINTER(c_bool)]),
    "lk_parallel_grad_ready": (None, [c_void_p, c_uint32, c_uint32]),
    "lk_parallel_state_sum": (c_void_p, [c_void_p, c_uint32, c_uint32]),
    "lk_parallel_report": (None, [c_void_p, c_uint32, c_double, c_uint64, c_uint64, c_uint64]),
    "lk_parallel_finish": (_STATUS, [c_void_p, c_double, POINTER(Result)]),
    "lk_parallel_finding": (c_bool, [c_void_p, POINTER(Finding)]),
    "lk_optimizer_state_count": (c_uint32, [POINTER(Optimizer)]),
    "lk_optimizer_state_name": (c_char_p, [POINTER(Optimizer), c_uint32]),
    "lk_checkpoint_write": (_STATUS, [c_char_p, POINTER(CheckpointInfo), POINTER(CheckpointFile),
                                      c_size_t, c_uint32]),
    "lk_checkpoint_exists": (_STATUS, [c_char_p, POINTER(c_bool)]),
    "lk_checkpoint_open": (_STATUS, [_out, c_char_p, c_char_p, c_size_t]),
    "lk_checkpoint_free": (None, [c_void_p]),
    "lk_checkpoint_describe": (POINTER(CheckpointInfo), [c_void_p]),
    "lk_checkpoint_path": (c_char_p, [c_void_p]),
    "lk_checkpoint_tensor": (POINTER(Tensor), [c_void_p, c_size_t]),
    "lk_checkpoint_tensor_file": (c_char_p, [c_void_p, c_size_t]),
    "lk_dataset_open": (_STATUS, [_out, c_char_p, POINTER(DatasetOptions)]),
    "lk_dataset_free": (None, [c_void_p]),
    "lk_dataset_describe": (POINTER(DatasetInfo), [c_void_p]),
    "lk_weights_hash": (None, [POINTER(Tensor), c_size_t, c_char * 65]),
}


def _raise_failure(status, _function, _arguments):
    if status != 0:
        error = _lib.lk_error_last().contents
        name = _lib.lk_status_name(status).decode()
        raise Error(name, error.message.decode(errors="replace"))
    return status


class _Functions:
    """The C functions, without their prefix ``lk_``.  A failing status raises ``Error``."""

    def __init__(self):
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(_lib, name)
            except AttributeError:
                raise ImportError(f"the lockstep library has no function {name}: library and "
                                  "package are of different versions") from None
            function.argtypes = arguments
            function.restype = c_int if result == _STATUS else result
            if result == _STATUS:
                function.errcheck = _raise_failure
            setattr(self, name[len("lk_"):], function)


lk = _Functions()


def content_hash(source, context):
    """Return the content hash of a data source, which runs on it report."""
    options = DatasetOptions(struct_size=ctypes.sizeof(DatasetOptions), context=context)
    dataset = c_void_p()
    lk.dataset_open(ctypes.byref(dataset), source.encode(), ctypes.byref(options))
    try:
        return lk.dataset_describe(dataset).contents.content_hash.decode()
    finally:
        lk.dataset_free(dataset)


def version():
    """Return the version of the library, for example ``"0.1.0"``."""
    return layout.version
