"""The drafters of a compiled model once more, for another engine: an engine's own serve no other."""

from collections.abc import Sequence
from typing import Any

from flexspec.api.drafters import SHIPPED_DRAFTERS
from flexspec.api.llm import LLM
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.level_drafter import LevelDrafter
from flexspec.runtime.drafters.registry import make_drafter
from flexspec.tree_shape import Tree


def given_drafters(model: Any, ssms: Sequence[Any] | None) -> Sequence[Any]:
    """What `flexspec.compile` makes drafters of: `ssms`, or without them what ships for the model."""
    return SHIPPED_DRAFTERS.get(str(model), ()) if ssms is None else ssms


def drafters_again(
    llm: LLM, ssms: Sequence[Any], tree: Tree, *, alpha: float | None = None, places: Sequence[int] | None = None
) -> list[Drafter]:
    """Drafters like those of `llm`, with caches and memories of their own, over the same compiled SSMs.

    Args:
        llm: the compiled model.
        ssms: what its drafters were made of; drafters that the user made are taken as they are.
        tree: what they will draft.
        alpha: as `LevelDrafter` takes it.
        places: which of `ssms`, in this order; None for all.
    """
    parts = list(zip(ssms, llm.drafters, strict=True))
    return [_again(llm, *parts[place], tree, alpha) for place in (range(len(parts)) if places is None else places)]


def _again(llm: LLM, ssm: Any, drafter: Drafter, tree: Tree, alpha: float | None) -> Drafter:
    users_own: bool = drafter is ssm
    if users_own:
        return drafter
    if not isinstance(drafter, LevelDrafter):
        return make_drafter(ssm)
    strategy = llm.plan.strategy
    assert strategy.max_len is not None
    return drafter.again(max_requests=strategy.max_batch, block_size=strategy.max_len + tree.num_nodes, alpha=alpha)
