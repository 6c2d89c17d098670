"""Which verifiers keep the text exact, and a seed repeatable, with which trees."""

from collections.abc import Mapping
from dataclasses import dataclass

from flexspec.errors import UsageError
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.verifiers.registry import AUTO, VERIFIERS
from flexspec.tree_shape import Tree, TreeLimits


@dataclass(frozen=True, kw_only=True)
class LegalTrees:
    """The trees that a verifier may be given.

    Attributes:
        adaptive: whether adaptive ones are among them; static ones always are.
        children: what the children at a node may be, at one node or another and merged at the same one.
    """

    adaptive: bool
    children: frozenset[Children]


_WHATEVER = LegalTrees(adaptive=True, children=frozenset(Children))
"""For walks that end up with plain's own text, even in a tree that was made with knowledge of the noise to come."""
_RECORDED = LegalTrees(adaptive=False, children=frozenset({Children.CHOSEN, Children.DRAWN, Children.DISTINCT}))
"""For verifiers that decide by chance, which is exact if a tree is independent of their chance and its draws are recorded.

A trial asks for no more than an honest record of what its child was drawn from, so one rule serves all three kinds; what was
made with the request's noise promises no such independence. An adaptive tree is pruned by which tokens came out, which
biases children that were drawn, and is sized by the clock, so that a seed would not give the same text again.
"""

LEGAL: Mapping[str, LegalTrees] = {
    AUTO: _WHATEVER,
    "greedy": _WHATEVER,
    "coupled": _WHATEVER,
    "mss": _RECORDED,
    "without_replacement": _RECORDED,
    "point_mass": _RECORDED,
    "traversal": _RECORDED,
}
"""A verifier that is registered but not named here is held to the stricter rule."""


def legal_trees(verifier: str) -> LegalTrees:
    """The trees that `verifier` may be given.

    Raises:
        UsageError: if it is unknown.
    """
    if verifier != AUTO:
        VERIFIERS.get(verifier, also=(AUTO,))
    return LEGAL.get(verifier, _RECORDED)


def allows_adaptive(verifier: str) -> bool:
    """Whether adaptive trees may be verified by `verifier`.

    Raises:
        UsageError: if it is unknown.
    """
    return legal_trees(verifier).adaptive


def check_pair(verifier: str, tree: Tree, children: Children | None = None) -> None:
    """Raise UsageError unless `verifier` is known and stays exact with such trees.

    Args:
        verifier: its name, or `auto`.
        tree: the trees' shape.
        children: what a node's children are; None for what the verifier asks its drafters for.
    """
    legal = legal_trees(verifier)
    if isinstance(tree, TreeLimits) and not legal.adaptive:
        able = ", ".join(name for name, trees in LEGAL.items() if trees.adaptive)
        raise UsageError(
            f"verifier={verifier!r} does not allow adaptive trees ({tree}), which are sized by the clock, so that a seed would not "
            f"repeat, and pruned by which tokens come out, which biases drawn ones: give tree=[2, 2, 1], or verifier= one of {able}"
        )
    if children is not None and children not in legal.children:
        able = ", ".join(name for name, trees in LEGAL.items() if children in trees.children)
        allowed = ", ".join(kind.value for kind in Children if kind in legal.children)
        raise UsageError(
            f"verifier={verifier!r} does not allow children={children.value!r}, which may depend on the chance it decides by: "
            f"draft children that are {allowed}, or give verifier= one of {able}"
        )
