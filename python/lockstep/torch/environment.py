"""What decides the bits of torch's operators besides the program: set, described, compared."""

import hashlib
import json
import os
import platform
import re

import torch

# Variables that choose kernels, or the order of their sums.
_VARIABLES = ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA",
              "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE",
              "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")


def set_up(threads, deterministic):
    """Set torch's threads, and make it refuse operators that are not deterministic."""
    torch.set_num_threads(threads)
    if deterministic:
        # read by cuBLAS when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        if hasattr(torch.utils, "deterministic"):   # since torch 2.2
            torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False


def describe(settings):
    """Return a dict of everything that may change the bits of a run on another machine."""
    names = ("seed", "virtual_workers", "strategy", "threads", "deterministic", "audit_steps",
             "buffers", "shard_hosts")
    described = {name: settings[name] for name in names}
    if settings["compress"] is not None or settings["groups"] or settings["local_steps"]:
        described["groups"] = settings["groups"] or settings["virtual_workers"]
    if settings["compress"] is not None:
        described["compress"] = settings["compress"].describe()
    if settings["local_steps"]:
        described.update(local_steps=settings["local_steps"],
                         local_start=settings["local_start"], outer=settings["outer"].describe())
    if settings["topology"] != "all":
        described["topology"] = settings["topology"]
    described.update(torch=torch.__version__, commit=str(torch.version.git_version)[:12],
                     cpu=_cpu_capability(), machine=platform.machine(),
                     dtype=str(torch.get_default_dtype()),
                     matmul=torch.get_float32_matmul_precision())
    described.update({name: os.environ[name] for name in _VARIABLES if name in os.environ})
    return described


def _cpu_capability():
    """Return the instruction set that torch uses, for example "AVX512"."""
    if hasattr(torch.backends, "cpu"):   # since torch 2.1
        return torch.backends.cpu.get_cpu_capability()
    found = re.search(r"CPU capability usage: (\w+)", torch.__config__.show())
    return found[1] if found else "unknown"


def processor():
    """Return the vendor and the vector instructions of the processor, as Linux names them."""
    found = {}
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                found.setdefault(name.strip(), value.split())
    except OSError:
        pass
    return {"vendor": " ".join(found.get("vendor_id", [])),
            "instructions": sorted(filter(re.compile("avx|amx|fma|sse").search,
                                          found.get("flags", [])))}


def exactness_id(described):
    """Return 64 hex digits that differ if anything described does."""
    text = json.dumps(described, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def first_difference(mine, theirs):
    """Return the name and both values of the first entry that differs."""
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            return name, mine.get(name), theirs.get(name)
    return None
