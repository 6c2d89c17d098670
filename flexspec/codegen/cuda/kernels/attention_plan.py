"""Which specialisation of the tree attention kernel serves a launch, and the list of all there are."""

from dataclasses import dataclass

import torch

from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import GpuTarget
from flexspec.codegen.cuda.tiles import ROW_BLOCKS, row_block

_QUERY_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_DIM_BLOCKS = (64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """One specialisation.

    Attributes:
        dtype: of queries and result.
        cache_dtype: of keys and values.
        block_m: rows (tokens times query heads of a KV head) of a program.
        block_n: keys of a step.
        block_d: the head size rounded up to a power of two.
        has_tail: reads bit rows.
        general: knows windows, soft caps and ALiBi; reads bit rows too.
        num_warps: warps of a program.
        num_stages: steps whose loads are in flight.
    """

    dtype: torch.dtype
    cache_dtype: torch.dtype
    block_m: int
    block_n: int
    block_d: int
    has_tail: bool
    general: bool
    num_warps: int
    num_stages: int


def plan_attention(
    target: GpuTarget, dtype: torch.dtype, cache_dtype: torch.dtype, *, head_dim: int, rows: int, has_tail: bool, general: bool
) -> AttentionPlan:
    """The specialisation for tiles of `rows` rows.

    Raises:
        UncoveredCase: if there is none.
    """
    case = f"tree attention on {target.name}, queries {dtype}, cache {cache_dtype}, head size {head_dim}"
    if dtype not in _QUERY_TYPES:
        raise UncoveredCase(f"{case}: queries may be {', '.join(map(str, _QUERY_TYPES))}")
    if (dtype, cache_dtype) not in _type_pairs(target):
        eight_bits = "" if target.cache_float8 is None else f", or {target.cache_float8} where they have 16 bits"
        raise UncoveredCase(f"{case}: the cache has the queries' dtype{eight_bits}")
    if not 16 <= head_dim <= _DIM_BLOCKS[-1] or head_dim % 8:
        raise UncoveredCase(f"{case}: head sizes are multiples of 8 from 16 to {_DIM_BLOCKS[-1]}")
    block_d = next(block for block in _DIM_BLOCKS if block >= head_dim)
    return _plan(target, dtype, cache_dtype, block_d, rows, has_tail=has_tail, general=general)


def attention_plans(target: GpuTarget) -> list[AttentionPlan]:
    """Every plan that `plan_attention` makes for a target, each once."""
    plans = [
        _plan(target, dtype, cache_dtype, block_d, rows, has_tail=has_tail, general=general)
        for dtype, cache_dtype in _type_pairs(target)
        for block_d in _DIM_BLOCKS
        for has_tail, general in ((False, False), (True, False), (True, True))
        for rows in ROW_BLOCKS
    ]
    return list(dict.fromkeys(plans))


def _type_pairs(target: GpuTarget) -> list[tuple[torch.dtype, torch.dtype]]:
    pairs = [(dtype, dtype) for dtype in _QUERY_TYPES]
    if target.cache_float8 is not None:
        pairs += [(dtype, target.cache_float8) for dtype in _QUERY_TYPES if dtype.itemsize == 2]
    return pairs


def _plan(
    target: GpuTarget, dtype: torch.dtype, cache_dtype: torch.dtype, block_d: int, rows: int, *, has_tail: bool, general: bool
) -> AttentionPlan:
    block_m, block_n, num_warps = row_block(rows), 64, 4
    # Block tables, then keys and values: with fewer than five stages no load is under way while a step computes.
    num_stages = 5 if target.backend == "cuda" else 3
    if dtype == torch.float32:
        # Without matrix units, for comparisons rather than for speed: few specialisations, few rows and keys.
        block_m, block_n, block_d, num_warps, num_stages = 16, 32, max(block_d, 128), 8, 1
    elif block_d == 256:
        # What registers and shared memory hold.
        block_m, block_n = min(block_m, 32 if target.name == "sm_80" else 64), 32
        num_warps = 8 if target.backend == "cuda" and block_m > 16 else 4
    elif target.backend == "cuda":
        if target.name == "sm_80" and block_d == 128 and block_m == 64:
            block_m = 128  # the warps of 64 rows would share all of them, and spill
        has_many_rows = block_m == 128 and (block_d == 128 or target.name != "sm_100")
        # What warps hold of keys that are converted is shared by more of them.
        converts_keys = cache_dtype != dtype and (
            (block_m == 16 and block_d == 128) or (target.name == "sm_100" and general and block_m == 64 and block_d == 64)
        )
        num_warps = 8 if has_many_rows or converts_keys else 4
    return AttentionPlan(
        dtype=dtype,
        cache_dtype=cache_dtype,
        block_m=block_m,
        block_n=block_n,
        block_d=block_d,
        # One specialisation fewer: with an 8-bit cache, chains too take the one that reads bit rows.
        has_tail=has_tail or general or cache_dtype != dtype,
        general=general,
        num_warps=num_warps,
        num_stages=num_stages,
    )
