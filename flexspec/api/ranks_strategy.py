"""What `strategy="auto"` is for a process that was started as one of several ranks."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from flexspec.api.search import search
from flexspec.errors import UsageError
from flexspec.strategy import Strategy

_RANKED = 1000


def searched_strategy(model: Any, ssms: Sequence[Any] | None, *, ranks: int, dtype: str | None, max_batch: int | None) -> Strategy:
    """The best strategy for so many devices like this machine's, which all of them have work in; the same on every rank.

    Args:
        model: as `flexspec.compile` takes it, by name.
        ssms: likewise.
        ranks: how many were started.
        dtype: of the weights; None is bfloat16.
        max_batch: most requests that run at once; None for the search's own.

    Raises:
        UsageError: if this machine was not measured, or no strategy uses all ranks.
    """
    if isinstance(model, nn.Module):
        raise UsageError(
            f"strategy='auto' of {ranks} ranks is not allowed for a module ({type(model).__name__}): give a strategy, such as "
            "`flexspec search --export-strategy FILE` writes, or a model by name"
        )
    given: dict[str, Any] = {} if max_batch is None else {"batch": max_batch}
    result = search(model, ssms, f"local-{ranks}", dtype=dtype, top=_RANKED, **given)
    found = next((one.strategy for one in result.ranking if one.strategy.parallel.world_size == ranks), None)
    if found is None:
        raise UsageError(
            f"strategy='auto' found nothing for {ranks} ranks of this machine: the best is for {result.strategy.parallel.world_size}; "
            "start as many, or give a strategy's file"
        )
    return found
