"""The drafters of a compiled model once more, for another engine: an engine's own serve no other."""

from collections.abc import Iterator, Sequence
from typing import Any

from flexspec.api.drafters import SHIPPED_DRAFTERS
from flexspec.api.llm import LLM
from flexspec.api.lower import Compilation
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.registry import make_drafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.tree_shape import Tree


def given_drafters(model: Any, ssms: Sequence[Any] | None) -> Sequence[Any]:
    """What `flexspec.compile` makes drafters of: `ssms`, or without them what ships for the model."""
    return SHIPPED_DRAFTERS.get(str(model), ()) if ssms is None else ssms


def drafters_again(llm: LLM, ssms: Sequence[Any], tree: Tree, *, alpha: float | None = None) -> list[Drafter]:
    """Drafters like those of `llm`, with caches and memories of their own, over the same compiled SSMs.

    Args:
        llm: the compiled model.
        ssms: what its drafters were made of; drafters that the user made are taken as they are.
        tree: what they will draft.
        alpha: as `SsmDrafter` takes it.
    """
    compiled = iter(llm.plan.ssms)
    return [_again(llm, ssm, drafter, compiled, tree, alpha) for ssm, drafter in zip(ssms, llm.drafters, strict=True)]


def _again(llm: LLM, ssm: Any, drafter: Drafter, compiled: Iterator[Compilation], tree: Tree, alpha: float | None) -> Drafter:
    users_own: bool = drafter is ssm
    if users_own:
        return drafter
    if not isinstance(drafter, SsmDrafter):
        return make_drafter(ssm)
    strategy = llm.plan.strategy
    assert strategy.max_len is not None
    block_size = strategy.max_len + tree.num_nodes
    return SsmDrafter(drafter.name, next(compiled).model, max_requests=strategy.max_batch, block_size=block_size, alpha=alpha)
