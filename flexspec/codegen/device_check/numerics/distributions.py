"""What tokens are distributed like at nodes: what top_k, top_p and min_p keep of them, and with which probability."""

from collections.abc import Iterator

import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.probabilities import probabilities_reference
from flexspec.codegen.cuda.kernels.truncate import Cuts, truncate_reference
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, largest_error, mismatches
from flexspec.codegen.device_check.part import Context

_BOUND = 1e-12
"""Exponentials and sums in float64."""
_TEMPERATURES = (0.7, 0.7, 1.3, 0.9, 1.0)
_TOP_KS = (40, 0, 0, 100, 0)
_TOP_PS = (1.0, 0.9, 1.0, 0.8, 1.0)
_MIN_PS = (0.0, 0.0, 0.05, 0.01, 0.0)


def distribution_trials(context: Context) -> Iterator[Trial]:
    """Both kernels, for vocabularies that are a multiple of 16 and for others."""
    for odd in (0, 3):
        case = "odd vocabulary" if odd else "float32"
        yield Trial(kernel="truncate", case=case, bound=0.0, error=lambda odd=odd: _cut_error(context, odd))  # type: ignore[misc]
        yield Trial(kernel="probabilities", case=case, bound=_BOUND, error=lambda odd=odd: _error(context, odd))  # type: ignore[misc]


def _cut_error(context: Context, odd: int) -> float:
    logits, keys = _inputs(context, odd)
    device = context.device
    found = launcher("truncate", device)(logits.to(device), **{name: value.to(device) for name, value in keys.items()})
    return sum(mismatches(one, other) for one, other in zip(found, truncate_reference(logits, **keys), strict=True))


def _error(context: Context, odd: int) -> float:
    logits, keys = _inputs(context, odd)
    cuts = truncate_reference(logits, **keys)
    given = {name: keys[name] for name in ("temperatures", "vocab_limits")}
    device = context.device
    found = launcher("probabilities", device)(
        logits.to(device), **{name: value.to(device) for name, value in given.items()}, cuts=Cuts(*(one.to(device) for one in cuts))
    )
    return largest_error(found, probabilities_reference(logits, **given, cuts=cuts))


def _inputs(context: Context, odd: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and each node's rules."""
    vocab = context.sizes.vocab // 16 * 16 + odd
    count = len(_TEMPERATURES)
    logits = 2 * torch.randn((count, vocab), generator=torch.Generator().manual_seed(6))
    return logits, {
        "temperatures": torch.tensor(_TEMPERATURES, dtype=torch.float64),
        "vocab_limits": torch.full((count,), vocab - 5, dtype=torch.int32),
        "top_ks": torch.tensor(_TOP_KS, dtype=torch.int32),
        "top_ps": torch.tensor(_TOP_PS, dtype=torch.float64),
        "min_ps": torch.tensor(_MIN_PS, dtype=torch.float64),
    }
