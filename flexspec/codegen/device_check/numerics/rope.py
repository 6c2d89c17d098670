"""Rotary embedding and cache write: whole, partial, interleaved and none, also to an 8-bit cache."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.rope_write import rope_write_reference
from flexspec.codegen.cuda.targets import device_target
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, largest_error
from flexspec.codegen.device_check.part import Context

_BOUNDS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 1e-6, torch.float8_e4m3fn: 0.13, torch.float8_e4m3fnuz: 0.13}
"""One step of the type, where a fused multiplication and addition rounds to the other side."""
_BLOCK_SIZE = 16
_UNWRITTEN = 77.0


@dataclass(frozen=True, kw_only=True)
class RopeCase:
    """One launch; `rotary_dim` is None for no rotation."""

    name: str
    heads: int = 8
    kv_heads: int = 2
    dim: int = 128
    rotary_dim: int | None = 128
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None
    interleaved: bool = False


def rope_trials(context: Context) -> Iterator[Trial]:
    """The trials."""
    cases = [
        RopeCase(name="whole"),
        RopeCase(name="partial", dim=80, rotary_dim=32, dtype=torch.float16),
        RopeCase(name="interleaved", dim=64, rotary_dim=64, interleaved=True),
        RopeCase(name="interleaved, partial, odd sizes", heads=3, kv_heads=1, dim=20, rotary_dim=10, interleaved=True, dtype=torch.float32),
        RopeCase(name="none, head size 256", dim=256, rotary_dim=None, dtype=torch.float16),
        RopeCase(name="float32, head size 96", dim=96, rotary_dim=96, dtype=torch.float32),
    ]
    float8 = device_target(context.device).cache_float8
    if float8 is None:
        context.leave_out("rope_write, 8-bit cache", "this GPU has none, or its kind is not known")
    else:
        cases.append(RopeCase(name=f"cache {str(float8).removeprefix('torch.')}", cache_dtype=float8))
    for case in cases:
        bound = _BOUNDS[case.cache_dtype or case.dtype]
        yield Trial(kernel="rope_write", case=case.name, bound=bound, error=lambda case=case: _error(context, case))  # type: ignore[misc]


def _error(context: Context, case: RopeCase) -> float:
    generator = torch.Generator().manual_seed(2)
    slots = torch.tensor([0, 1, 17, -1, 40, 5, -1, 9], dtype=torch.int32)
    rows = torch.tensor([0, 0, 0, 0, 1, 1, 0, 2], dtype=torch.int32)
    tables = torch.randperm(12, generator=generator).int().view(3, 4)
    num_tokens = len(slots)
    parts = [case.heads * case.dim, *[case.kv_heads * case.dim] * 2]
    # As models have them: parts of one projection.
    projected = torch.randn((num_tokens, sum(parts)), generator=generator).to(case.dtype)
    cos = sin = None
    if case.rotary_dim is not None:
        angles = 7 * torch.rand((num_tokens, case.rotary_dim), generator=generator)
        cos, sin = angles.cos(), angles.sin()
    scales = {}
    if case.cache_dtype is not None:
        scales = {name: 0.5 + torch.rand(case.kv_heads, generator=generator) for name in ("k_scales", "v_scales")}
    cache = torch.full((12 * _BLOCK_SIZE, case.kv_heads, -(-case.dim // 16) * 16), _UNWRITTEN).to(case.cache_dtype or case.dtype)

    def run(write: Callable[..., Tensor], device: torch.device) -> list[Tensor]:
        moved = projected.to(device)
        q, k, v = (part.view(num_tokens, -1, case.dim) for part in torch.split(moved, parts, dim=-1))
        keys, values = cache.to(device, copy=True), cache.to(device, copy=True)
        turns: list[Any] = [None if table is None else table.to(device) for table in (cos, sin)]
        rotated = write(
            *(q, k, v, *turns, keys, values, slots.to(device), rows.to(device), tables.to(device)),
            block_size=_BLOCK_SIZE,
            interleaved=case.interleaved,
            **{name: scale.to(device) for name, scale in scales.items()},
        )
        return [rotated.cpu()[slots >= 0], keys.cpu(), values.cpu()]

    found = run(launcher("rope_write", context.device), context.device)
    expected = run(rope_write_reference, torch.device("cpu"))
    return max(largest_error(one.float(), other.float()) for one, other in zip(found, expected, strict=True))
