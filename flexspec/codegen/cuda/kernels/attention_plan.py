"""Which specialisation of the tree attention kernel serves a launch, and the list of all there are."""

from dataclasses import dataclass

import torch

from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.tiles import ROW_BLOCKS, row_block

QUERY_TYPES = (torch.bfloat16, torch.float16, torch.float32)
FLOAT8_TYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
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
    dtype: torch.dtype, cache_dtype: torch.dtype, *, head_dim: int, rows: int, has_tail: bool, general: bool
) -> AttentionPlan:
    """The specialisation for tiles of `rows` rows.

    Raises:
        UncoveredCase: if there is none.
    """
    case = f"tree attention, queries {dtype}, cache {cache_dtype}, head size {head_dim}"
    if dtype not in QUERY_TYPES:
        raise UncoveredCase(f"{case}: queries may be {', '.join(map(str, QUERY_TYPES))}")
    if cache_dtype != dtype and (cache_dtype not in FLOAT8_TYPES or dtype == torch.float32):
        raise UncoveredCase(f"{case}: the cache has the queries' dtype, or an 8-bit one where the queries have 16 bits")
    if not 16 <= head_dim <= _DIM_BLOCKS[-1] or head_dim % 8:
        raise UncoveredCase(f"{case}: head sizes are multiples of 8 from 16 to {_DIM_BLOCKS[-1]}")
    block_d = next(block for block in _DIM_BLOCKS if block >= head_dim)
    return _plan(dtype, cache_dtype, block_d, rows, has_tail=has_tail, general=general)


def _plan(dtype: torch.dtype, cache_dtype: torch.dtype, block_d: int, rows: int, *, has_tail: bool, general: bool) -> AttentionPlan:
    block_m, block_n, num_stages = row_block(rows), 64, 3
    num_warps = 8 if block_m == 128 else 4
    if dtype == torch.float32:
        # Without matrix units, for comparisons rather than for speed: few specialisations, few rows and keys.
        block_m, block_n, block_d, num_warps, num_stages = 16, 32, max(block_d, 128), 8, 1
    elif block_d == 256:
        block_m, num_warps, num_stages = min(block_m, 64), 4, 2
    return AttentionPlan(
        dtype=dtype,
        cache_dtype=cache_dtype,
        block_m=block_m,
        block_n=block_n,
        block_d=block_d,
        has_tail=has_tail or general or cache_dtype != dtype,
        general=general,
        num_warps=num_warps,
        num_stages=num_stages,
    )


def attention_plans(float8: torch.dtype | None) -> list[AttentionPlan]:
    """Every plan that `plan_attention` makes, each once; those of an 8-bit cache only for the 8-bit type that the target reads."""
    pairs = [(dtype, dtype) for dtype in QUERY_TYPES]
    if float8 is not None:
        pairs += [(dtype, float8) for dtype in QUERY_TYPES if dtype != torch.float32]
    plans = [
        _plan(dtype, cache_dtype, block_d, rows, has_tail=has_tail, general=general)
        for dtype, cache_dtype in pairs
        for block_d in _DIM_BLOCKS
        for has_tail, general in ((False, False), (True, False), (True, True))
        for rows in ROW_BLOCKS
    ]
    return list(dict.fromkeys(plans))
