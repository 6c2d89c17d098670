"""The stochastic verifiers' trials of children, of rows of a whole vocabulary."""

from collections.abc import Iterator

import torch

from flexspec.codegen.cuda.kernels.residual import ROW_UNIT, residual_reference
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, largest_error, mismatches
from flexspec.codegen.device_check.part import Context

_NODES = 6
_WIDTH = 3
_BOUND = 1e-9
"""Sums over a vocabulary in float64, in whatever order."""


def residual_trials(context: Context) -> Iterator[Trial]:
    """Each node with a row of its own, and several nodes with one; trials that are decided, and those that are only computed."""
    for is_shared, is_decided in ((False, True), (True, True), (True, False)):
        case = f"{'shared rows' if is_shared else 'own rows'}, {'decided' if is_decided else 'computed'}"
        yield Trial(
            kernel="residual",
            case=case,
            bound=_BOUND,
            error=lambda is_shared=is_shared, is_decided=is_decided: _error(context, is_shared, is_decided),  # type: ignore[misc]
        )


def _error(context: Context, is_shared: bool, is_decided: bool) -> float:
    generator = torch.Generator().manual_seed(5)
    vocab = context.sizes.vocab // ROW_UNIT * ROW_UNIT
    p, q = (torch.softmax(2 * torch.randn((_NODES, vocab), generator=generator, dtype=torch.float64), dim=-1) for _ in range(2))
    p[0] = q[0]  # succeeds at once
    tokens = torch.multinomial(q, _WIDTH, generator=generator).int()
    rows = torch.arange(_NODES, dtype=torch.int32)[:, None].repeat(1, _WIDTH)
    tokens[1, 2] = -1
    rows[2, 1] = -1  # chosen, not drawn
    arguments = (p, q, tokens, rows, torch.rand((_NODES, _WIDTH + 1), generator=generator, dtype=torch.float64))
    options = {"owed": torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.9], dtype=torch.float64)}
    if is_shared:
        options["p_rows"] = torch.arange(_NODES, dtype=torch.int32) // 2
    if not is_decided:
        options["is_decided"] = torch.zeros(_NODES, dtype=torch.int32)
    device = context.device
    found = launcher("residual", device)(
        *(one.to(device) for one in arguments), **{name: value.to(device) for name, value in options.items()}
    )
    expected = residual_reference(*arguments, **options)
    numbers = max(largest_error(getattr(found, name), getattr(expected, name)) for name in ("acceptances", "masses", "owed"))
    return numbers + sum(mismatches(getattr(found, name), getattr(expected, name)) for name in ("accepted", "bonus"))
