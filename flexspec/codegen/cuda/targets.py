"""The GPUs that kernels are compiled for."""

from dataclasses import dataclass

import torch

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


TARGETS = (
    GpuTarget(name="sm_80", backend="cuda", arch=80, warp_size=32, shared_bytes=163 * 1024, cache_float8=None),
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
