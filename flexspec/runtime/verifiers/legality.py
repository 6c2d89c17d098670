"""Which verifiers keep the text exact, and a seed repeatable, with which trees."""

from collections.abc import Mapping

from flexspec.errors import UsageError
from flexspec.runtime.verifiers.registry import AUTO, VERIFIERS
from flexspec.tree_shape import Tree, TreeLimits

LEGAL: Mapping[str, Mapping[str, bool]] = {
    # verifier: trees that are static, and adaptive ones
    AUTO: {"static": True, "adaptive": True},
    "greedy": {"static": True, "adaptive": True},
    "coupled": {"static": True, "adaptive": True},
    # An adaptive tree is pruned by which tokens came out, which biases what is emitted, and by the clock, so that a seed
    # would not give the same draws again.
    "mss": {"static": True, "adaptive": False},
}


def allows_adaptive(verifier: str) -> bool:
    """Whether adaptive trees may be verified by `verifier`.

    Raises:
        UsageError: if it is unknown.
    """
    if verifier != AUTO:
        VERIFIERS.get(verifier, also=(AUTO,))
    return LEGAL[verifier]["adaptive"]


def check_pair(verifier: str, tree: Tree) -> None:
    """Raise UsageError unless `verifier` is known and stays exact with `tree`."""
    if isinstance(tree, TreeLimits) and not allows_adaptive(verifier):
        able = ", ".join(name for name, trees in LEGAL.items() if trees["adaptive"])
        raise UsageError(
            f"verifier={verifier!r} does not allow adaptive trees, whose size depends on the clock: give tree=[2, 2, 1], or one of {able}"
        )
    allows_adaptive(verifier)
