"""Where models run, in which types there, and how much of a GPU's memory their cache may take."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from flexspec.codegen.cuda.targets import TARGETS, device_target
from flexspec.codegen.kv_storage import KVShape
from flexspec.errors import UsageError
from flexspec.strategy import DTYPES

DEVICES = ("cpu", "cuda")
KV_CACHE_DTYPES = ("auto", "fp8")
_CPU = torch.device("cpu")
_CPU_DTYPES = ("float32", "bfloat16")

_MEMORY_SHARE = 0.9
"""Of the memory that is free once weights are there; the rest is for activations and captured passes."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and how models run.

    Attributes:
        device: a CPU or a GPU.
        cache_dtype: of KV caches: the models', which None is, or on a GPU an 8-bit type.
        allow_references: whether references may stand in for kernels that there are no variants of, on a GPU.
    """

    device: torch.device = _CPU
    cache_dtype: torch.dtype | None = None
    allow_references: bool = False


ON_CPU = Placement()


def find_device(name: str | None) -> torch.device:
    """The device called `name`; None is the CPU.

    Raises:
        UsageError: if there is no such device, or nothing can run on it; an UncoveredCase for a GPU that there are no kernels for.
    """
    if name is None or name == "cpu":
        return _CPU
    if name != "cuda":
        raise UsageError(f"device={name!r} is not allowed: give one of {', '.join(DEVICES)}")
    if not torch.cuda.is_available():
        build = "was built without CUDA" if torch.version.cuda is None and torch.version.hip is None else "sees no GPU"
        raise UsageError(f"device='cuda' needs a GPU, and this PyTorch ({torch.__version__}) {build}: install one that does, or give 'cpu'")
    if find_spec("triton") is None:
        raise UsageError("device='cuda' needs Triton, in which its kernels are written: pip install triton, or give 'cpu'")
    if "LOCAL_RANK" in os.environ:  # of a process that torchrun started: each has a GPU of its own
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device())
    device_target(device)
    return device


def dtypes_of(device: torch.device) -> Sequence[str]:
    """Names of the dtypes that a device runs models in."""
    return DTYPES if device.type == "cuda" else _CPU_DTYPES


def find_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype called `name`, of weights and activations.

    Raises:
        UsageError: if there is no such dtype, or a device does not run it.
    """
    allowed = dtypes_of(device)
    if name not in allowed:
        elsewhere = ", or device='cuda'" if name in DTYPES else ""
        where = " on a CPU" if elsewhere else ""
        raise UsageError(f"dtype={name!r} is not allowed{where}: give one of {', '.join(allowed)}{elsewhere}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def find_cache_dtype(name: str, *, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of the KV cache of a model in `dtype`: its own for "auto", the GPU's 8-bit floats (e4m3) for "fp8".

    Raises:
        UsageError: if there is no such dtype, or the device or the model's dtype does not go with it.
    """
    if name == "auto":
        return dtype
    refused = f"kv_cache_dtype={name!r} is not allowed"
    if name not in KV_CACHE_DTYPES:
        raise UsageError(f"{refused}: give one of {', '.join(KV_CACHE_DTYPES)}")
    if device.type != "cuda":
        raise UsageError(f"{refused} on a CPU: give 'auto', the model's dtype, or device='cuda'")
    target = device_target(device)
    if target.cache_float8 is None:
        able = ", ".join(target.name for target in TARGETS if target.cache_float8 is not None)
        raise UsageError(
            f"{refused} on {torch.cuda.get_device_name(device)} ({target.name}), only on {able}: give 'auto', the model's dtype"
        )
    if dtype.itemsize != 2:
        raise UsageError(f"{refused} for a model in {str(dtype).removeprefix('torch.')}: give 'auto', or dtype='bfloat16' or 'float16'")
    return target.cache_float8


def affordable_slots(shape: KVShape, *, wanted: int) -> int:
    """How many of `wanted` slots of a KV cache fit into what is free of its GPU's memory."""
    free, _ = torch.cuda.mem_get_info(shape.device)
    return min(wanted, int(_MEMORY_SHARE * free) // shape.bytes_per_slot)
