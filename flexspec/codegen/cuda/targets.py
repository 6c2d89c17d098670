"""The GPUs that kernels are compiled for."""

from dataclasses import dataclass

import torch

from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class GpuTarget:
    """One kind of GPU.

    Attributes:
        name: as its vendor's compilers call it, for example "sm_90".
        backend: Triton's: "cuda" or "hip".
        arch: Triton's name of it.
        warp_size: threads that run in step.
        shared_bytes: most shared memory of a block of threads.
        cache_float8: the 8-bit type of a KV cache that its matrix units read; None if they read none.
    """

    name: str
    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int
    cache_float8: torch.dtype | None


# sm_80 stands for all of compute capability 8; an 8.6 or 8.9 has less shared memory than an 8.0.
TARGETS = (
    GpuTarget(name="sm_80", backend="cuda", arch=80, warp_size=32, shared_bytes=99 * 1024, cache_float8=None),
    GpuTarget(name="sm_90", backend="cuda", arch=90, warp_size=32, shared_bytes=227 * 1024, cache_float8=torch.float8_e4m3fn),
    GpuTarget(name="sm_100", backend="cuda", arch=100, warp_size=32, shared_bytes=227 * 1024, cache_float8=torch.float8_e4m3fn),
    GpuTarget(name="gfx942", backend="hip", arch="gfx942", warp_size=64, shared_bytes=64 * 1024, cache_float8=torch.float8_e4m3fnuz),
)


def find_target(name: str) -> GpuTarget:
    """The target called `name`.

    Raises:
        UsageError: if there is none.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    raise UsageError(f"no kernels for GPU {name!r}: there are some for {', '.join(target.name for target in TARGETS)}")


def device_target(device: torch.device) -> GpuTarget:
    """The target whose variants a device runs; a CPU, under Triton's interpreter, stands for an sm_90.

    Raises:
        UncoveredCase: for GPUs that none is for.
    """
    if device.type == "cpu":
        return find_target("sm_90")
    if torch.version.hip is not None:
        name = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        target = next((target for target in TARGETS if target.name == name), None)
    else:
        major, minor = torch.cuda.get_device_capability(device)
        name = f"compute capability {major}.{minor}"
        target = next((target for target in TARGETS if target.backend == "cuda" and int(target.arch) // 10 == major), None)
    if target is None:
        raise UncoveredCase(
            f"no kernels for {torch.cuda.get_device_name(device)}, a GPU of {name}: there are some for NVIDIA's of compute capability 8, 9 "
            "and 10, and for AMD's gfx942"
        )
    return target
