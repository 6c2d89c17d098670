"""The stochastic verifiers' trials of children, of rows of a whole vocabulary."""

from collections.abc import Iterator

import torch

from flexspec.codegen.cuda.kernels.residual import residual_reference
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, largest_error, mismatches
from flexspec.codegen.device_check.part import Context

_NODES = 6
_WIDTH = 3
_BOUND = 1e-9
"""Sums over a vocabulary in float64, in whatever order."""


def residual_trials(context: Context) -> Iterator[Trial]:
    """With and without replacement, in either type."""
    for dtype, is_distinct, odd in ((torch.float32, False, 0), (torch.float32, True, 0), (torch.float64, False, 3)):
        case = f"{str(dtype).removeprefix('torch.')}{', distinct' * is_distinct}{', odd vocabulary' * bool(odd)}"
        yield Trial(
            kernel="residual",
            case=case,
            bound=_BOUND,
            error=lambda dtype=dtype, is_distinct=is_distinct, odd=odd: _error(context, dtype, is_distinct, odd),  # type: ignore[misc]
        )


def _error(context: Context, dtype: torch.dtype, is_distinct: bool, odd: int) -> float:
    generator = torch.Generator().manual_seed(5)
    vocab = (context.sizes.vocab // 16) * 16 + odd
    p, q = (torch.softmax(2 * torch.randn((_NODES, vocab), generator=generator), dim=-1).to(dtype) for _ in range(2))
    p[0] = q[0]  # succeeds at once
    tokens = torch.multinomial(q, _WIDTH, generator=generator).int()
    rows = torch.arange(_NODES, dtype=torch.int32)[:, None].repeat(1, _WIDTH)
    tokens[1, 2] = -1
    rows[2, 1] = -1  # chosen, not drawn
    uniforms = torch.rand((_NODES, _WIDTH + 1), generator=generator, dtype=torch.float64)
    owed = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.9], dtype=torch.float64)
    arguments = (p, q, tokens, rows, uniforms)
    device = context.device
    found = launcher("residual", device)(*(one.to(device) for one in arguments), owed=owed.to(device), is_distinct=is_distinct)
    expected = residual_reference(*arguments, owed=owed, is_distinct=is_distinct)
    numbers = max(largest_error(getattr(found, name), getattr(expected, name)) for name in ("acceptances", "masses", "owed"))
    return numbers + sum(mismatches(getattr(found, name), getattr(expected, name)) for name in ("accepted", "bonus"))
